package push

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// neverLooks has a process rely on notifications.
func neverLooks(c *Config) { c.PollInterval = time.Hour }

// notifiesNobody has changes of pushes raise versions and notify nobody.
func notifiesNobody(t *testing.T, db *pgtest.DB) {
	t.Helper()
	run(t, db, `
		create or replace function agent_private.change_replica_version(_name text)
		returns void
		language sql
		set search_path to pg_catalog, pg_temp
		as 'update agent_private.replica_version v set version = v.version + 7 where v.name = _name'`)
}

// timeoutOf waits until a process pushes the queue mail with a timeout.
func (p *process) timeoutOf(want time.Duration) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("the process that pushes has the timeout %s", want), func() bool {
		w := p.worker("mail")
		if w == nil {
			return false
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.endpoint.timeout == want
	})
}

// changes are made in one process, and followed in another one.
func testChangesAreFollowed(t *testing.T, db *pgtest.DB, here, there *process) {
	t.Helper()
	here.Drain() // the other one pushes
	r := receive(t, nil)
	here.put("mail", r)
	until(t, "the push is seen", func() bool { return there.worker("mail") != nil })
	here.put("mail", r, func(p *PutParams) { p.Timeout = 7 * time.Second })
	there.timeoutOf(7 * time.Second)
	_, secret, err := here.RotateSecret(t.Context(), "mail", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.trust(secret)
	until(t, "the other secret is seen", func() bool {
		w := there.worker("mail")
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.endpoint.secrets) == 1 && w.endpoint.secrets[0].text == secret
	})
	run(t, db, `update agent.push_state set epoch = epoch + 1, disabled_at = now(), disabled_reason = 'by hand'`)
	until(t, "that it is disabled is seen", func() bool { return there.worker("mail") == nil })
	if _, err := here.Enable(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	until(t, "that it is enabled is seen", func() bool { return there.worker("mail") != nil })
	there.outcome(queue.Done, there.insert(numbered("mail", 2)...)...)
	run(t, db, `update agent.server set database_oid = 1`)
	until(t, "that the database is a copy is seen", func() bool { return there.worker("mail") == nil })
	run(t, db, `select agent.adopt_database()`)
	until(t, "the adoption is seen", func() bool { return there.worker("mail") != nil })
	run(t, db, `select agent.delete_queue('mail')`)
	until(t, "the deletion of the queue is seen", func() bool { return there.worker("mail") == nil })
	here.put("mail", r)
	until(t, "the push is seen again", func() bool { return there.worker("mail") != nil })
	if err := here.Delete(t.Context(), "mail", nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the end of the push is seen", func() bool { return there.worker("mail") == nil })
}

func TestChangesHoldInEveryProcessByNotification(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	testChangesAreFollowed(t, db, start(t, db, neverLooks), start(t, db, neverLooks))
}

func TestChangesHoldInEveryProcessWithoutNotifications(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	notifiesNobody(t, db)
	often := func(c *Config) { c.PollInterval = 10 * time.Millisecond }
	testChangesAreFollowed(t, db, start(t, db, often), start(t, db, often))
}

func TestChangeThatWasMadeDuringAnOutageHoldsAfterIt(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, neverLooks)
	p.put("mail", receive(t, nil))
	p.timeoutOf(busyTimeout)
	until(t, "the process listens", p.cfg.Database.IsListening)
	notifiesNobody(t, db)
	run(t, db, `update agent.push set timeout = '7 seconds', version = version + 1`)
	run(t, db, `select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`)
	p.timeoutOf(7 * time.Second)
}

// A process that was killed reports no more, and tells nobody.
func TestQueuesOfAProcessThatReportsNoMoreAreTakenOver(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db, neverLooks)
	until(t, "the process is known", func() bool {
		return pgtest.Query[int](t, pgtest.Connect(t, db.URL), `select count(*) from agent_service.list_pushers(null)`) == 1
	})
	const report = `select agent_service.report_process('dead', 'dead:1', '{pusher}', '{true}')`
	run(t, db, report)
	r := receive(t, nil)
	names := make([]string, 12)
	for i := range names {
		names[i] = "q" + string(rune('a'+i))
		p.put(names[i], r)
	}
	owned := func() (n int) {
		for _, name := range names {
			if p.worker(name) != nil {
				n++
			}
		}
		return n
	}
	expected := 0
	for _, name := range names {
		if ownerOf(name, []string{"dead", p.queue.Name()}) != "dead" {
			expected++
		}
	}
	until(t, "the other process owns its part", func() bool { return owned() == expected })
	run(t, db, `update agent.process_metric set updated_at = updated_at - interval '16 seconds' where id = 'dead'`)
	until(t, "all are taken over", func() bool { return owned() == len(names) })
	run(t, db, report) // it stood still
	until(t, "the other process has its part again", func() bool { return owned() == expected })
}

func TestVersionsChangeWithWhatIsFollowed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	p.Drain()
	p.stop()
	conn := pgtest.Connect(t, db.URL)
	versions := func() (both [2]int64) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `
			select (select version from agent_private.replica_version where name = 'push'), (select version from agent_private.replica_version where name = 'pusher')`).
			Scan(&both[0], &both[1]); err != nil {
			t.Fatal(err)
		}
		return both
	}
	const nothing, push, pusher = -1, 0, 1
	for _, change := range []struct {
		statement string
		what      int
	}{
		{`select agent_service.put_push('q', 'https://a', 'event', '1 s', 1, null, null, '{}', '12 h', null, null, '\x01')`, push},
		{`select agent_service.put_push('q', 'https://a', 'event', '1 s', 1, null, null, '{}', '12 h', null, null, '\x01')`, nothing},
		{`select agent_service.put_push('q', 'https://b', 'event', '1 s', 1, null, null, '{}', '12 h', null, null, '\x01')`, push},
		{`select agent_service.rotate_push_secret('q', '\x02', '1 h')`, push},
		{`select agent_service.reseal('push.secret', 'q', (select max(id) from agent.push_secret), '\x02', '\x03')`, push},
		{`select agent_service.record_push_change('q', (select epoch from agent.push_state), true, null, 5, '1 s', 'e', '1 s', '1 s')`, nothing},
		{`select agent_service.record_push_seen('{q}', (select array[epoch] from agent.push_state), '{6}', '{1 s}', '{0 s}', '{e}', '{null}')`, nothing},
		{`select agent.enable_push('q')`, push},
		{`select agent_service.record_push_change('q', (select epoch from agent.push_state), false, 'gone', 5, '1 s', 'e', null, null)`, push},
		{`select agent.enable_push('q')`, push},
		{`select agent.delete_push('q')`, push},
		{`select agent.delete_queue('q')`, nothing}, // there is no push any more
		{`select agent_service.put_push('q', 'https://a', 'event', '1 s', 1, null, null, '{}', '12 h', null, null, '\x01')`, push},
		{`select agent.delete_queue('q')`, push},
		{`select agent_service.record_server()`, nothing},
		{`update agent.server set database_oid = 1`, push},
		{`select agent.adopt_database()`, push},
		{`select agent.adopt_database()`, nothing},
		{`truncate agent.push cascade`, push},

		{`select agent_service.report_process('a', 'a:1', '{acked,pusher}', '{1,false}')`, nothing},
		{`select agent_service.report_process('a', 'a:1', '{acked,pusher}', '{1,true}')`, pusher},
		{`select agent_service.report_process('a', 'a:1', '{acked,pusher}', '{2,true}')`, nothing},
		{`select agent_service.prune_processes()`, nothing},
		{`update agent.process_metric set updated_at = now() - interval '16 s'`, nothing},
		{`select agent_service.prune_processes()`, pusher},
		{`select agent_service.report_process('a', 'a:1', '{acked,pusher}', '{3,true}')`, pusher},
		{`select agent_service.report_process('a', 'a:1', '{acked,pusher}', '{3,false}')`, pusher},
		{`select agent_service.report_process('b', 'b:1', '{pusher}', '{true}')`, pusher},
		{`select agent_service.prune_processes('b')`, pusher},
		{`select agent_service.prune_processes('a')`, nothing},
	} {
		before := versions()
		if _, err := conn.Exec(t.Context(), change.statement); err != nil {
			t.Fatalf("%s: %v", change.statement, err)
		}
		for i, after := range versions() {
			if (after != before[i]) != (i == change.what) {
				t.Errorf("%s: version %d was %d, is %d", change.statement, i, before[i], after)
			}
		}
	}
}

// Whoever changes a push in a transaction that goes on must not have processes taken for dead.
func TestReportsDoNotWaitForChangesOfPushes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	p := start(t, db)
	p.put("mail", receive(t, nil))
	tx, err := pgtest.Connect(t, db.URL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select agent.enable_push('mail')`); err != nil {
		t.Fatal(err)
	}
	run(t, db, `
		set lock_timeout = '10s';
		select agent_service.report_process('a', 'a:1', '{pusher}', '{true}');
		select agent_service.prune_processes('a')`)
}
