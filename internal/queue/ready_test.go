package queue_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/sql"
)

// endSessions has the database take no further session, and ends those of the service whose latest statement matches a pattern or (matches false) does not.
func endSessions(t *testing.T, b env, pattern string, matches bool) {
	t.Helper()
	name := pgtest.Query[string](t, b.sql, `select pg_catalog.current_database()::text`)
	admin := pgtest.Connect(t, pgtest.New(t).URL) // of another database
	if _, err := admin.Exec(t.Context(), `alter database `+name+` with allow_connections false`); err != nil {
		t.Fatal(err)
	}
	ended := pgtest.Query[int](t, admin, `
		select count(*) filter (where pg_catalog.pg_terminate_backend(pid, 60000))
		from pg_catalog.pg_stat_activity where datname = $1 and pid <> $2 and (query ~ $3) = $4`,
		name, b.sql.PgConn().PID(), pattern, matches)
	if ended == 0 {
		t.Fatalf("no session was ended whose latest statement matches %s: %v", pattern, matches)
	}
}

func TestServiceIsReadyWhenOnlyItsWritesHaveConnections(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	endSessions(t, b, `insert_and_claim_events|notify_queues`, false)
	b.insert(t, "", `{}`)
	if err := b.CheckReady(t.Context()); err != nil {
		t.Errorf("inserts succeed, and readiness says %v", err)
	}
}

func TestServiceIsNotReadyWhenItsWritesHaveNoConnections(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if err := b.CheckReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.insert(t, "", `{}`)
	endSessions(t, b, `-- ping|from agent.version`, false) // all but that of Ping
	if err := b.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.CheckReady(t.Context()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("writes have no connection, and readiness says %v", err)
	}
}

func TestReadinessFollowsWritesThatFindNoRoom(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'no room' using errcode = 'disk_full'; end $$;
		create trigger refuse before insert on agent.event for each row when (new.queue = 'large') execute function public.refuse()`)
	b.insert(t, "", `{}`)
	if err := b.CheckReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: "large"}}); !errors.Is(err, queue.ErrUnavailable) {
		t.Fatalf("the insert failed with %v", err)
	}
	b.insert(t, "", `{}`) // a small one still finds room
	if err := b.CheckReady(t.Context()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("inserts find no room, and readiness says %v", err)
	}
}

func TestReadinessWritesWhereNothingElseDoes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'no room' using errcode = 'disk_full'; end $$;
		create trigger refuse before insert or update on agent.process_metric for each row execute function public.refuse()`)
	if err := b.CheckReady(t.Context()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("nothing can be written, and readiness says %v", err)
	}
	b.exec(t, `drop trigger refuse on agent.process_metric`)
	b.insert(t, "", `{}`)
}

func TestReadinessKnowsOfTheCommitsOfOtherPackages(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'no room' using errcode = 'disk_full'; end $$;
		create trigger refuse before insert or update on agent.process_metric for each row execute function public.refuse()`)
	op := joined{JointTicket: queue.JointTicket{Items: 1}, sql: `select 1::bigint`}
	if err := jointOf(b, make(chan []*joined, 1)).Do(t.Context(), &op); err != nil {
		t.Fatal(err)
	}
	if err := b.CheckReady(t.Context()); err != nil {
		t.Errorf("after a commit readiness tries a write of its own: %v", err)
	}
}

func TestSchemaThatHasMovedBeyondTheProgramTurnsReadinessOff(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.SchemaVersion = "1.10.0" })
	b.exec(t, `update agent.version set version = '2.0.0'`)
	for oldest, isOutdated := range map[string]bool{"1.9.0": false, "1.10.0": false, "1.11.0": true, "2.0.0": true} {
		b.exec(t, `create or replace function agent_service.oldest_beside() returns text language sql as 'select ''`+oldest+`''::text'`)
		if err := b.CheckReady(t.Context()); errors.Is(err, queue.ErrOutdated) != isOutdated || (err != nil) != isOutdated || b.IsOutdated() != isOutdated {
			t.Errorf("the schema takes %s and newer: %v, outdated: %v", oldest, err, b.IsOutdated())
		}
	}
}

func TestRunningServiceNoticesThatTheSchemaHasMovedBeyondIt(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.SchemaVersion = "1.0.0" })
	runService(t, b.Service)
	b.exec(t, `create or replace function agent_service.oldest_beside() returns text language sql as 'select ''99.0.0''::text'`)
	eventually(t, "the service notices it", b.IsOutdated)
	b.exec(t, `create or replace function agent_service.oldest_beside() returns text language sql as 'select ''1.0.0''::text'`)
	eventually(t, "the service notices that it is so no more", func() bool { return !b.IsOutdated() })
}

func TestSchemaSaysTheOldestVersionThatTheProgramMigratesBeside(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if got := pgtest.Query[string](t, b.sql, `select agent_service.oldest_beside()`); got != sql.OldestBeside {
		t.Errorf("agent_service.oldest_beside says %s, and sql.OldestBeside %s", got, sql.OldestBeside)
	}
}
