package queue_test

import (
	"errors"
	"testing"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestSessionsOutliveAnIdleSessionTimeoutOfTheDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	admin := pgtest.Connect(t, url)
	name := pgtest.Query[string](t, admin, `select pg_catalog.current_database()::text`)
	if _, err := admin.Exec(t.Context(), `alter database `+name+` set idle_session_timeout to '300ms'`); err != nil {
		t.Fatal(err)
	}
	b := env{Service: anotherService(t, url, neverPolls), url: url, sql: admin}
	runService(t, b.Service)
	awaitTold(t, b)
	b.insert(t, "", `{}`)
	pids := func() []int32 {
		return pgtest.Query[[]int32](t, b.sql, `
			select coalesce(array_agg(pid order by pid) filter (where query ~ 'listen agent_event|insert_and_claim_events|notify_queues'), '{}')
			from pg_catalog.pg_stat_activity where datname = $1 and pid <> pg_catalog.pg_backend_pid()`, name)
	}
	before := pids()
	if len(before) < 2 {
		t.Fatalf("the sessions of the listener and of the writes are %v", before)
	}
	victim := pgtest.Connect(t, url) // a session that has the timeout: when it has ended, it is time
	eventually(t, "a session that has the timeout ends", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from pg_catalog.pg_stat_activity where pid = $1`, victim.PgConn().PID()) == 0
	})
	after := make(map[int32]bool)
	for _, pid := range pids() {
		after[pid] = true
	}
	for _, pid := range before {
		if !after[pid] {
			t.Errorf("the session %d of the service has ended", pid)
		}
	}
}

func TestEndOfAnIdleSessionIsARetry(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'idle for too long' using errcode = '57P05'; end $$;
		create trigger refuse before insert on agent.event for each row execute function public.refuse()`)
	_, err := b.Insert(t.Context(), []queue.InsertParams{{Event: []byte(`{}`)}})
	if !errors.Is(err, queue.ErrUnavailable) || !pg.IsUnavailable(err) {
		t.Errorf("the insert failed with %v, want ErrUnavailable", err)
	}
}
