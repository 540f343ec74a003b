package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestTenRunsAtOnceMigrateOnce(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	const processes = 10

	// One process gets the lock and then waits here, until the nine others have been refused it.
	gatekeeper := connect(t, db)
	exec(t, gatekeeper, "select pg_advisory_lock(4711)")
	scripts := tree(
		"incremental/001-log.sql", "set local lock_timeout to 0; select pg_advisory_xact_lock(4711); create table agent.log (at timestamptz)",
		"idempotent/001-run.sql", "insert into agent.log values (now())",
	)

	// With this delay the nine end in time only if they notice that the work is done.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiting := newSignal("waiting for it")
	var group sync.WaitGroup
	statuses, errs := make([]migrate.Status, processes), make([]error, processes)
	for i := range processes {
		group.Go(func() {
			statuses[i], errs[i] = migrate.Run(ctx, migrate.Config{
				DatabaseURL: db, Scripts: scripts, Version: "1.1.0", LockDelay: time.Hour, Logger: zerolog.New(waiting),
			})
		})
	}
	for range processes - 1 {
		waiting.wait(ctx, t)
	}
	exec(t, gatekeeper, "select pg_advisory_unlock(4711)")
	group.Wait()

	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	migrated := 0
	for _, status := range statuses {
		if status.Due() {
			migrated++
		} else if status.Database != "1.1.0" {
			t.Errorf("a process went on with %+v", status)
		}
	}
	runs := query[int64](t, gatekeeper, "select count(*) from agent.log")
	remembered := query[int64](t, gatekeeper, "select count(*) from agent.migration")
	if migrated != 1 || runs != 1 || remembered != 1 {
		t.Errorf("%d processes say they migrated, the idempotent script ran %d times, %d incremental scripts are remembered; want 1, 1, 1",
			migrated, runs, remembered)
	}
}

func TestLockHeldElsewhereEndsTheTries(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	holder := connect(t, db)
	exec(t, holder, "begin; select pg_advisory_xact_lock(31321898691465844)")

	before := catalog(t, db)
	_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, LockTries: 3, LockDelay: time.Millisecond})
	wantError(t, err, migrate.ErrLocked, "tried 3 times", fmt.Sprintf("backend %d ", holder.PgConn().PID()))
	wantCatalog(t, db, before)
}

func TestLockLetGoWithoutMigrationIsTaken(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	holder := connect(t, db)
	exec(t, holder, "begin; select pg_advisory_xact_lock(31321898691465844)")

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	waiting := newSignal("waiting for it")
	var group sync.WaitGroup
	var status migrate.Status
	var err error
	group.Go(func() {
		status, err = migrate.Run(ctx, migrate.Config{
			DatabaseURL: db, LockTries: 1_000_000, LockDelay: time.Millisecond, Logger: zerolog.New(waiting),
		})
	})
	waiting.wait(ctx, t)
	exec(t, holder, "rollback")
	group.Wait()
	if err != nil || !status.Due() {
		t.Errorf("got %+v, %v; want a migration", status, err)
	}
}

// A transaction that has written to one table and then wants another, which a script changes first, meets no migration that waits for it.
func TestMigrationDoesNotDeadlockWithRunningTransactions(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	files := []string{"incremental/001-tables.sql", "create table agent.event (n int); create table agent.queue (n int)"}
	if _, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: tree(files...), Version: "1.1.0"}); err != nil {
		t.Fatal(err)
	}
	files = append(files, "incremental/002-more.sql", "alter table agent.queue add m int; alter table agent.event add m int")

	service := connect(t, db)
	exec(t, service, "begin; insert into agent.event values (1)")
	migrated := make(chan error, 1)
	go func() {
		_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: tree(files...), Version: "1.2.0"})
		migrated <- err
	}()
	watcher := connect(t, db)
	for query[int64](t, watcher, `select count(*) from pg_locks l where not l.granted and l.relation = 'agent.event'::regclass`) == 0 {
		select {
		case err := <-migrated:
			t.Fatalf("the migration did not wait for the transaction: %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	exec(t, service, "select from agent.queue; commit")
	if err := <-migrated; err != nil {
		t.Error(err)
	}
}
