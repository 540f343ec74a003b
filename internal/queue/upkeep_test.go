package queue_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// insertOldHistory inserts an event into history with an event_ts this many days ago.
func insertOldHistory(t *testing.T, conn *pgx.Conn, id int64, days int) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		values ($1, now() - make_interval(days => $2), 1, now(), '{}', '{}', 'q', now(), 'done', now())`, id, days)
	if err != nil {
		t.Fatal(err)
	}
}

func TestRetentionPrunesOlderEvents(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	sql := sqlBench(t)
	for i, days := range []int{0, 1, 5, 25, 45, 400, 3000} {
		insertOldHistory(t, sql, int64(i), days)
	}
	if _, err := sql.Exec(t.Context(), `select agent.maintain_history()`); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event_hist`); n != 7 {
		t.Errorf("without a retention, %d of 7 events remain", n)
	}
	if _, err := sql.Exec(t.Context(), `select agent.maintain_history('30 days')`); err != nil {
		t.Fatal(err)
	}
	// Whole weeks are dropped at once, so an event can stay up to seven days longer, but is never dropped early.
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event_hist where event_ts > now() - interval '30 days'`); n != 4 {
		t.Errorf("%d of the 4 events within the retention remain", n)
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event_hist where event_ts < now() - interval '38 days'`); n != 0 {
		t.Errorf("%d events beyond the retention remain", n)
	}
}

func TestRetentionDropsWholePartitions(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	sql := sqlBench(t)
	if pgtest.Query[string](t, sql, `select agent_private.history_flavour()`) == "partitioned" {
		if _, err := sql.Exec(t.Context(), `select agent_private.create_history_partition(now() - interval '60 days')`); err != nil {
			t.Fatal(err)
		}
	}
	insertOldHistory(t, sql, 1, 60)
	const partitions = `
		select count(*) from pg_catalog.pg_inherits where inhparent = 'agent.event_hist'::regclass`
	before := pgtest.Query[int](t, sql, partitions)
	if before < 1 {
		t.Fatalf("history has %d partitions", before)
	}
	if _, err := sql.Exec(t.Context(), `select agent.maintain_history('30 days')`); err != nil {
		t.Fatal(err)
	}
	if after := pgtest.Query[int](t, sql, partitions); after != before-1 {
		t.Errorf("history has %d partitions, had %d", after, before)
	}
}

// isPartitioned reports whether history is natively partitioned. A hypertable creates its chunks on demand.
func isPartitioned(t *testing.T, b env) bool {
	t.Helper()
	return pgtest.Query[string](t, b.sql, `select agent_private.history_flavour()`) == "partitioned"
}

// unpartition drops the partitions of history, as if upkeep had not run for months: new events go to the default partition.
func unpartition(t *testing.T, b env) {
	t.Helper()
	b.exec(t, `
		do $$ declare p text; begin
			for p in select c.oid::regclass from pg_catalog.pg_class c where c.relname ~ '^event_hist_[0-9]{8}$' loop
				execute 'drop table ' || p;
			end loop;
		end $$`)
}

// weeksAhead counts the partitions for weeks that begin more than two days from now.
const weeksAhead = `
	select count(*) from pg_catalog.pg_inherits i join pg_catalog.pg_class c on c.oid = i.inhrelid
	where i.inhparent = 'agent.event_hist'::regclass and c.relname ~ '^event_hist_[0-9]{8}$'
	and to_date(right(c.relname, 8), 'YYYYMMDD') > now() + interval '2 days'`

func TestPartitionsAreCreatedAheadWhenTheDefaultPartitionHasRows(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.UpkeepRetry, c.UpkeepStepRetry = 10*time.Millisecond, 10*time.Millisecond })
	if !isPartitioned(t, b) {
		return
	}
	unpartition(t, b)
	insertOldHistory(t, b.sql, 1, 0)
	insertOldHistory(t, b.sql, 2, 1000)
	runService(t, b.Service)
	eventually(t, "partitions for the weeks ahead exist", func() bool { return pgtest.Query[int](t, b.sql, weeksAhead) >= 3 })
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist_default`); n != 2 {
		t.Errorf("the default partition has %d events, want the two without another partition", n)
	}
	if h := b.get(t, 1); h.Outcome != queue.Done {
		t.Errorf("the event is %+v", h)
	}
	eventually(t, "no constraint remains on the default partition", func() bool {
		return pgtest.Query[int](t, b.sql, `
			select count(*) from pg_catalog.pg_constraint where conrelid = 'agent.event_hist_default'::regclass and contype = 'c' and conname like 'not%'`) == 0
	})
}

func TestAddingAPartitionDoesNotScanTheDefaultPartition(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	if !isPartitioned(t, b) {
		return
	}
	unpartition(t, b)
	insertOldHistory(t, b.sql, 1, 0)
	notices := make(chan string, 1000)
	sql := listenToNotices(t, b.url, notices)
	if _, err := sql.Exec(t.Context(), `set client_min_messages to debug1`); err != nil {
		t.Fatal(err)
	}
	for steps := 0; ; steps++ {
		var action, name string
		err := sql.QueryRow(t.Context(), `select action, name from agent.prepare_history()`).Scan(&action, &name)
		if errors.Is(err, pgx.ErrNoRows) && steps >= 9 {
			break
		}
		if err != nil {
			t.Fatalf("after %d steps: %v", steps, err)
		}
	}
	close(notices)
	implied := 0
	for notice := range notices {
		if strings.Contains(notice, "event_hist_default") && strings.Contains(notice, "is implied by existing constraints") {
			implied++
		}
	}
	if made := pgtest.Query[int](t, b.sql, weeksAhead); implied != made || made < 3 {
		t.Errorf("%d partitions were added, %d of them without a scan of the default partition", made, implied)
	}
}

// listenToNotices returns a session that sends its notices to a channel.
func listenToNotices(t *testing.T, url string, notices chan<- string) *pgx.Conn {
	t.Helper()
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { notices <- n.Message }
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func TestUpkeepDeletesOldEventsOfTheDefaultPartitionInBatches(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.Retention = 30 * 24 * time.Hour })
	if !isPartitioned(t, b) {
		return
	}
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select i, now() - make_interval(days => 60 - i / 2500 * 35), 1, now(), '{}', '{}', 'q', now(), 'done', now() from generate_series(0, 2999) i`)
	for i, want := range []int{1000, 1000, 500, 0} {
		if n := pgtest.Query[int](t, b.sql, `select agent.delete_old_history('30 days', 1000)`); n != want {
			t.Errorf("batch %d deleted %d, want %d", i, n, want)
		}
	}
	insertOldHistory(t, b.sql, 5000, 50)
	runService(t, b.Service)
	eventually(t, "the old event is pruned", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where event_ts < now() - interval '30 days'`) == 0
	})
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 500 {
		t.Errorf("%d events remain, want the 500 within the retention", n)
	}
}

// setupRetention is an env with partitions or chunks from eight and twelve weeks ago, a retention of thirty days, and frequent upkeep.
func setupRetention(t *testing.T, change func(*queue.Config)) env {
	t.Helper()
	b := setup(t, func(c *queue.Config) {
		c.Retention = 30 * 24 * time.Hour
		c.UpkeepInterval, c.UpkeepRetry, c.UpkeepStepRetry = 10*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
		if change != nil {
			change(c)
		}
	})
	for i, days := range []int{84, 56} {
		if isPartitioned(t, b) {
			b.exec(t, `select agent_private.create_history_partition(now() - make_interval(days => $1))`, days)
		}
		insertOldHistory(t, b.sql, int64(i), days)
	}
	return b
}

const oldParts = `select count(*) from agent.old_history('30 days')`

func TestUpkeepWaitsForReadersWithoutBlockingCalls(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setupRetention(t, nil)
	b.insertN(t, "", 200)
	reader, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.Exec(t.Context(), `select count(*) from agent.event_hist`); err != nil { // the transaction keeps its lock on the table
		t.Fatal(err)
	}
	runService(t, b.Service)
	awaitLockWait(t, b, reader.Conn())
	for range 200 { // acks are not blocked
		if r := b.ack(t, lease(b.claimOne(t))); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, oldParts); n != 2 {
		t.Errorf("%d old partitions remain during the read, want 2", n)
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the old partitions are dropped", func() bool { return pgtest.Query[int](t, b.sql, oldParts) == 0 })
}

func TestFailedDropDoesNotStopOtherUpkeep(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	var log logBuffer
	b := setupRetention(t, func(c *queue.Config) { c.Logger = zerolog.New(&log) })
	if !isPartitioned(t, b) {
		return // dropping a chunk drops its views, too
	}
	oldest := pgtest.Query[string](t, b.sql, `select o from agent.old_history('30 days') o limit 1`)
	b.exec(t, `create view public.dependent as select id from `+oldest)
	b.exec(t, `
		do $$ declare p text; begin
			select c.oid::regclass into p from pg_catalog.pg_class c where c.relname ~ '^event_hist_[0-9]{8}$' order by c.relname desc limit 1;
			execute 'drop table ' || p;
		end $$`)
	ahead := pgtest.Query[int](t, b.sql, weeksAhead)
	runService(t, b.Service)
	eventually(t, "the other partition is dropped", func() bool { return pgtest.Query[int](t, b.sql, oldParts) == 1 })
	eventually(t, "the partition of the week ahead exists again", func() bool { return pgtest.Query[int](t, b.sql, weeksAhead) == ahead+1 })
	eventually(t, "the failure is counted", func() bool {
		return slices.ContainsFunc(b.Upkeep(), func(u queue.UpkeepStats) bool { return u.Task == "retention" && u.Failures > 0 })
	})
	eventually(t, "the failure is logged", func() bool {
		return strings.Contains(log.String(), "upkeep failed") && strings.Contains(log.String(), oldest)
	})
	b.exec(t, `drop view public.dependent`)
	eventually(t, "the partition is dropped, too", func() bool { return pgtest.Query[int](t, b.sql, oldParts) == 0 })
}

func TestUnprivilegedRoleCannotSuspendUpkeep(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setupRetention(t, nil)
	stranger, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"agent.maintain_history", "agent.prune_executions"} {
		if _, err := stranger.Exec(t.Context(), `select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1, 0))`, name); err != nil {
			t.Fatal(err)
		}
	}
	b.exec(t, `insert into agent.execution values ('t', 'w', 'nobody''s', 1, '1 s', '1 s', '1 s', '1 s', now())`)
	runService(t, b.Service)
	eventually(t, "the old partitions are dropped", func() bool { return pgtest.Query[int](t, b.sql, oldParts) == 0 })
	eventually(t, "the executions are folded", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.execution where part = ''`) == 1
	})
}

func TestSuspendedUpkeepIsLoggedAndCounted(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	var log logBuffer
	b := setupRetention(t, func(c *queue.Config) { c.Logger, c.UpkeepStepRetry = zerolog.New(&log), time.Microsecond })
	b.exec(t, `update agent.upkeep set done_at = now() - interval '1 day'`)
	owner, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := owner.Exec(t.Context(), `select agent_private.lock_upkeep('retention')`); err != nil {
		t.Fatal(err)
	}
	runService(t, b.Service)
	eventually(t, "the suspension is logged", func() bool {
		return strings.Contains(log.String(), `"task":"retention","age":"24h0m`) && strings.Contains(log.String(), "upkeep is suspended")
	})
	stats := func() queue.UpkeepStats {
		i := slices.IndexFunc(b.Upkeep(), func(u queue.UpkeepStats) bool { return u.Task == "retention" })
		return b.Upkeep()[i]
	}
	if u := stats(); u.Failures == 0 || time.Since(u.Done) < 23*time.Hour {
		t.Errorf("the statistics are %+v", u)
	}
	if strings.Contains(log.String(), `"task":"keys","age"`) {
		t.Error("a task that is not suspended was reported as suspended")
	}
	if err := owner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the task is done again", func() bool { return time.Since(stats().Done) < time.Hour })
	if n := pgtest.Query[int](t, b.sql, oldParts); n != 0 {
		t.Errorf("%d old partitions remain", n)
	}
}

func TestAckDuringTheCreationOfAPartitionSucceeds(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for on, waits := range map[string]string{
		"a connection that waits briefly": `true`,
		"a connection that waits long":    `waitstart < clock_timestamp() - interval '500 ms'`, // far beyond the lock timeouts of the others
	} {
		t.Run(on, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *queue.Config) { c.LockTimeout = waitLimit })
			if !isPartitioned(t, b) {
				return
			}
			unpartition(t, b)
			ids := b.insertN(t, "", 3)
			events := b.claim(t, queue.ClaimParams{Limit: 3}, 3)
			tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `select agent_private.create_history_partition(now())`); err != nil {
				t.Fatal(err)
			}
			acks := make([]queue.Ack, len(events))
			for i, e := range events {
				acks[i] = queue.Ack{Lease: lease(e)}
			}
			done := make(chan error, 1)
			go func() {
				results, err := b.Ack(t.Context(), acks)
				for _, r := range results {
					err = errors.Join(err, r.Err)
				}
				done <- err
			}()
			eventually(t, "the ack waits on "+on, func() bool {
				return pgtest.Query[bool](t, b.sql, `
					select exists (select from pg_catalog.pg_locks
						where not granted and relation = 'agent.event_hist_default'::regclass and `+waits+`)`)
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if h := b.get(t, ids[0]); h.Outcome != queue.Done {
				t.Errorf("the event is %+v", h)
			}
		})
	}
}

func TestMinimumRetentionLimitsTheServicesRetention(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setupRetention(t, nil)
	insertOldHistory(t, b.sql, 10, 56)
	insertOldHistory(t, b.sql, 11, 84)
	b.exec(t, `select agent.set_minimum_retention('70 days')`)
	b.exec(t, `insert into agent.queue (name, history_retention) select distinct queue, interval '1 hour' from agent.event_hist`)
	service := pgtest.Connect(t, pgtest.AsService(b.url))
	young := func() int {
		t.Helper()
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where event_ts > now() - interval '60 days'`)
	}
	before := young()
	dropAll := func() {
		t.Helper()
		for {
			name := pgtest.Query[*string](t, service, `select (select o from agent.old_history('1 us') o limit 1)`)
			if name == nil {
				break
			}
			for !pgtest.Query[bool](t, service, `select agent.drop_history($1, '1 us')`, *name) {
			}
		}
		pgtest.Query[int](t, service, `select agent.delete_old_history('1 us', 1000)`)
		pgtest.Query[int](t, service, `select agent.prune_history(1000)`)
	}
	dropAll()
	if n := young(); n != before || n == 0 {
		t.Errorf("%d of %d events younger than the minimum remain", n, before)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != before {
		t.Errorf("%d events older than the minimum remain", n-before)
	}
	_, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "q", Retention: new(24 * time.Hour)}, queue.Precondition{})
	if invalid := new(queue.InvalidError); !errors.As(err, &invalid) || invalid.Field != "history_retention" {
		t.Errorf("a policy below the minimum: %v", err)
	}
	for _, call := range []string{`agent.set_minimum_retention(null)`, `agent.maintain_history('1 us')`} {
		if _, err := service.Exec(t.Context(), "select "+call); err == nil {
			t.Errorf("the service's role can call %s", call)
		}
	}
	b.exec(t, `select agent.set_minimum_retention(null)`)
	dropAll()
	if n := young(); n != 0 {
		t.Errorf("without a minimum, %d events remain", n)
	}
}
