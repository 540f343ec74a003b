package migrate_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestMigratingTwiceLeavesTheSameCatalog(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL

	first := run(t, migrate.Config{DatabaseURL: db})
	if first.Database != "" || !first.Due() || first.Pending[0] != "incremental/001-event.sql" {
		t.Errorf("an empty database was found as %+v", first)
	}
	once := catalog(t, db)
	if !slices.ContainsFunc(once, func(line string) bool { return strings.HasPrefix(line, "function agent.claim_event(") }) {
		t.Fatal("the first migration made no agent.claim_event")
	}

	second := run(t, migrate.Config{DatabaseURL: db, Version: "999.0.0"})
	if second.Database != first.Program || !second.Due() || slices.Contains(second.Pending, "incremental/001-event.sql") {
		t.Errorf("the second migration was %+v", second)
	}
	isVersionRow := func(line string) bool { return strings.HasPrefix(line, "version ") }
	if diff := cmp.Diff(slices.DeleteFunc(once, isVersionRow), slices.DeleteFunc(catalog(t, db), isVersionRow)); diff != "" {
		t.Errorf("the second migration changed the catalog (-once +twice):\n%s", diff)
	}

	third := run(t, migrate.Config{DatabaseURL: db, Version: "999.0.0"})
	if third.Due() || third.Database != "999.0.0" || len(third.Pending) != 0 {
		t.Errorf("after the second migration: %+v", third)
	}
}

func TestIncrementalScriptsRunOnceAndIdempotentOnesAlways(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree(
		"incremental/001-log.sql", "create table agent.log (line int generated always as identity, what text)",
		"incremental/002-two.sql", "insert into agent.log (what) values ('two')",
		"idempotent/001-first.sql", "insert into agent.log (what) values ('first')",
		"idempotent/002-second.sql", "insert into agent.log (what) values ('second')",
	)
	var log bytes.Buffer
	status := run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.1.0", Logger: zerolog.New(&log)})
	want := migrate.Status{Program: "0.1.0", Pending: []string{
		"incremental/001-log.sql", "incremental/002-two.sql", "idempotent/001-first.sql", "idempotent/002-second.sql",
	}}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("first migration (-want +got):\n%s", diff)
	}
	if lines := strings.Count(log.String(), "\n"); lines != len(want.Pending)+1 {
		t.Errorf("logged %d lines, want one per script and one at the end:\n%s", lines, log.String())
	}
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.1.0"})

	scripts["incremental/003-three.sql"] = &fstest.MapFile{Data: []byte("insert into agent.log (what) values ('three')")}
	status = run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.2.0"})
	want = migrate.Status{Database: "0.1.0", Program: "0.2.0", Pending: []string{
		"incremental/003-three.sql", "idempotent/001-first.sql", "idempotent/002-second.sql",
	}}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("second migration (-want +got):\n%s", diff)
	}

	conn := connect(t, db)
	if diff := cmp.Diff([]string{"two", "first", "second", "three", "first", "second"},
		column(t, conn, "select what from agent.log order by line")); diff != "" {
		t.Errorf("what ran (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"001-log.sql 0.1.0", "002-two.sql 0.1.0", "003-three.sql 0.2.0"},
		column(t, conn, "select name || ' ' || version from agent.migration where checksum is not null and took > '0' order by name")); diff != "" {
		t.Errorf("agent.migration (-want +got):\n%s", diff)
	}
	if version := query[string](t, conn, "select version from agent.version"); version != "0.2.0" {
		t.Errorf("agent.version is %s", version)
	}
	if _, err := conn.Exec(t.Context(), "insert into agent.version (version) values ('0.3.0')"); err == nil {
		t.Error("agent.version takes a second row")
	}
}

func TestTenRunsAtOnceMigrateOnce(t *testing.T) {
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
				DatabaseURL: db, Scripts: scripts, Version: "0.1.0", LockDelay: time.Hour, Logger: zerolog.New(waiting),
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
		} else if status.Database != "0.1.0" {
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

func TestFailingLastStatementLeavesTheDatabaseAsItWas(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "0.1.0"} {
		t.Run("database at "+version, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t).URL
			scripts := tree("incremental/001-a.sql", "create table agent.a (id int primary key)")
			if version != "" {
				run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: version})
			}
			before := catalog(t, db)

			scripts["incremental/002-b.sql"] = &fstest.MapFile{Data: []byte("alter table agent.a add b int; insert into agent.a values (1)")}
			scripts["idempotent/001-f.sql"] = &fstest.MapFile{Data: []byte(
				"create function agent.f() returns int language sql as 'select 1';\ninsert into agent.a values (2);\nselect 1/0;",
			)}
			status, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.2.0"})
			wantError(t, err, nil, "the database is as it was", "idempotent/001-f.sql", "division by zero", "22012")
			if status.Database != version || status.Program != "0.2.0" {
				t.Errorf("the status says %+v", status)
			}
			wantCatalog(t, db, before)
		})
	}
}

func TestFailingCommitLeavesTheDatabaseAsItWas(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	before := catalog(t, db)
	_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: tree("incremental/001-a.sql", `
		create table agent.a (id int primary key, other int references agent.a deferrable initially deferred);
		insert into agent.a values (1, 2);`)})
	wantError(t, err, nil, "failed at its commit, the database is as it was", "23503")
	wantCatalog(t, db, before)
}

func TestFailureNamesScriptLineAndCause(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	for _, c := range []struct {
		name, body string
		want       []string
	}{
		{"syntax", "select 1;\n-- ünïcödé\nselec 2;", []string{"incremental/001-a.sql, line 3: ", "syntax error", "42601"}},
		{"name", "create table agent.a (id int);\n\n\n\tselect nothing\n\tfrom agent.a;", []string{"line 4: ", `column "nothing" does not exist`, "42703"}},
		{"function body", "create function agent.f() returns int language plpgsql as $$\nbegin\n  retur 1;\nend $$", []string{"line 3: ", "retur"}},
		{"name without schema", "create table a (id int)", []string{"incremental/001-a.sql, line 1: ", "3F000"}},
		{"no position", "create table agent.a (id int);\ncreate table agent.a (id int)", []string{`incremental/001-a.sql: ERROR: relation "a" already exists`}},
		{
			"raised", "do $$ begin raise 'no' using hint = 'try yes', detail = 'ever'; end $$",
			[]string{"001-a.sql: ERROR: no (SQLSTATE P0001); detail: ever; hint: try yes; where: PL/pgSQL function inline_code_block line 1 at RAISE"},
		},
		{
			"within a function", "create function agent.f() returns void language plpgsql as $$ begin\n\n\nperform nothing; end $$;\nselect agent.f()",
			[]string{"incremental/001-a.sql: ERROR: ", `"nothing"`, "where: PL/pgSQL function agent.f() line 4 at PERFORM"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // they share the database, as none of them changes it
			_, err := migrate.Run(t.Context(), migrate.Config{
				DatabaseURL: db, Scripts: tree("incremental/001-a.sql", c.body), LockTries: 1_000_000, LockDelay: time.Millisecond,
			})
			wantError(t, err, nil, c.want...)
			if err != nil && (strings.Contains(err.Error(), "EXECUTE") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("the error shows how scripts are run, or has several lines: %v", err)
			}
		})
	}
}

func TestTransactionControlInAScriptIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	before := catalog(t, db)
	for _, statement := range []string{
		"commit", "rollback", "begin", "end", "abort", "start transaction", "commit and chain", "savepoint s", "prepare transaction 'x'",
		"do $$ begin commit; end $$",
		"create procedure agent.p() language plpgsql as $$ begin rollback; end $$; call agent.p()",
		"vacuum", "create index concurrently i on agent.a (id)",
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel() // they share the database, as none of them changes it
			_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, LockTries: 1_000_000, LockDelay: time.Millisecond, Scripts: tree(
				"incremental/001-a.sql", "create table agent.a (id int);\n"+statement+";\ncreate table agent.b (id int)",
			)})
			wantError(t, err, nil, "incremental/001-a.sql", "the database is as it was")
			wantCatalog(t, db, before)
		})
	}
}

func TestScriptWithNothingButCommentsRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	run(t, migrate.Config{DatabaseURL: db, Scripts: tree("incremental/001-a.sql", "-- nothing yet", "incremental/002-b.sql", "")})
}

func TestChangedReleasedScriptIsAnError(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	released := tree(
		"incremental/001-a.sql", "create table agent.a (id int)",
		"incremental/002-b.sql", "create table agent.b (id int)",
		"idempotent/001-f.sql", "select 1",
	)
	run(t, migrate.Config{DatabaseURL: db, Scripts: released, Version: "0.2.0"})
	before := catalog(t, db)

	for _, c := range []struct {
		name    string
		scripts fstest.MapFS
		want    string
	}{
		{
			"changed",
			tree("incremental/001-a.sql", "create table agent.a (id int) ", "incremental/002-b.sql", "create table agent.b (id int)"),
			"incremental/001-a.sql was changed",
		},
		{
			"renamed",
			tree("incremental/001-a.sql", "create table agent.a (id int)", "incremental/002-c.sql", "create table agent.b (id int)"),
			"it has applied incremental/002-b.sql, which this program does not have",
		},
		{
			"gone",
			tree("incremental/001-a.sql", "create table agent.a (id int)"),
			"it has applied incremental/002-b.sql, which this program does not have",
		},
	} {
		for _, version := range []string{"0.2.0", "0.3.0"} {
			t.Run(c.name+" in "+version, func(t *testing.T) {
				t.Parallel() // they share the database, as none of them changes it
				cfg := migrate.Config{DatabaseURL: db, Scripts: c.scripts, Version: version}
				_, err := migrate.Run(t.Context(), cfg)
				wantError(t, err, migrate.ErrScriptChanged, c.want)
				_, err = migrate.Check(t.Context(), cfg)
				wantError(t, err, migrate.ErrScriptChanged, c.want)
				wantCatalog(t, db, before)
			})
		}
	}

	t.Run("changed in an older program", func(t *testing.T) {
		t.Parallel()
		_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: tree("incremental/001-a.sql", "select 2"), Version: "0.1.0"})
		wantError(t, err, migrate.ErrProgramOlder)
	})
	t.Run("added without a new version", func(t *testing.T) {
		t.Parallel()
		_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Version: "0.2.0", Scripts: tree(
			"incremental/001-a.sql", "create table agent.a (id int)",
			"incremental/002-b.sql", "create table agent.b (id int)",
			"incremental/003-c.sql", "create table agent.c (id int)",
		)})
		wantError(t, err, migrate.ErrScriptChanged, "has not applied incremental/003-c.sql: a new script needs a new version")
	})
	t.Run("idempotent script changed", func(t *testing.T) {
		t.Parallel()
		status, err := migrate.Check(t.Context(), migrate.Config{DatabaseURL: db, Version: "0.3.0", Scripts: tree(
			"incremental/001-a.sql", "create table agent.a (id int)",
			"incremental/002-b.sql", "create table agent.b (id int)",
			"idempotent/001-f.sql", "select 2",
		)})
		if err != nil || !status.Due() {
			t.Errorf("got %+v, %v", status, err)
		}
	})
}

func TestOlderProgramIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree("incremental/001-a.sql", "create table agent.a (id int)")
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.10.0"})
	before := catalog(t, db)
	for _, version := range []string{"0.9.0", "0.10.0-rc.1"} {
		for name, do := range map[string]func(context.Context, migrate.Config) (migrate.Status, error){"run": migrate.Run, "check": migrate.Check} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel() // they share the database, as none of them changes it
				status, err := do(t.Context(), migrate.Config{DatabaseURL: db, Scripts: scripts, Version: version})
				wantError(t, err, migrate.ErrProgramOlder, "the database is at 0.10.0, this program is "+version+": run a newer queued")
				if status.Database != "0.10.0" || status.Program != version || status.Due() {
					t.Errorf("the status says %+v", status)
				}
				wantCatalog(t, db, before)
			})
		}
	}
}

func TestOnlyTheOwnerMigrates(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree("incremental/001-a.sql", "create table agent.a (id int)")
	admin := connect(t, db)
	owner, other := role(t, admin, "owner"), role(t, admin, "other")
	as := func(role, version string) migrate.Config {
		return migrate.Config{DatabaseURL: withOption(t, db, "role", role), Scripts: scripts, Version: version}
	}

	before := catalog(t, db)
	_, err := migrate.Run(t.Context(), as(owner, "0.1.0"))
	wantError(t, err, nil, "may not create the schema agent", fmt.Sprintf(`create schema agent authorization "%s"`, owner))
	wantCatalog(t, db, before)

	exec(t, admin, fmt.Sprintf(`create schema agent authorization "%s"`, owner)) // as the error says
	run(t, as(owner, "0.1.0"))
	if tables := column(t, admin, fmt.Sprintf("select tablename from pg_tables where schemaname = 'agent' and tableowner = '%s' order by 1", owner)); !slices.Equal(tables, []string{"a", "migration", "version"}) {
		t.Errorf("the owner owns %v", tables)
	}

	_, err = migrate.Check(t.Context(), as(other, "0.1.0"))
	grants := fmt.Sprintf(`grant usage on schema agent to "%s"; grant select on agent.version, agent.migration to "%[1]s"`, other)
	wantError(t, err, nil, "may not read which version", grants)
	exec(t, admin, grants)

	if status := run(t, as(other, "0.1.0")); status.Due() {
		t.Errorf("up to date, yet found %+v", status)
	}
	status, err := migrate.Check(t.Context(), as(other, "0.2.0"))
	if err != nil || !status.Due() {
		t.Errorf("a check by another role got %+v, %v", status, err)
	}
	before = catalog(t, db)
	_, err = migrate.Run(t.Context(), as(other, "0.2.0"))
	wantError(t, err, migrate.ErrNotOwner, owner, other)
	_, err = migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.2.0"})
	wantError(t, err, migrate.ErrNotOwner, owner) // a superuser is no exception: what it makes would be its own
	wantCatalog(t, db, before)

	if status := run(t, as(owner, "0.2.0")); !status.Due() {
		t.Errorf("the owner found %+v", status)
	}
}

func TestSchemaOfSomebodyElseIsLeftAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ setup, want string }{
		"a table":                     {"create schema agent; create table agent.smith (id int)", "holds something else than queued's"},
		"a function":                  {"create schema agent; create function agent.f() returns int language sql as 'select 1'", "holds something else than queued's"},
		"a type":                      {"create schema agent; create type agent.t as enum ('a')", "holds something else than queued's"},
		"a table version":             {"create schema agent; create table agent.version (version text)", "holds something else than queued's"},
		"tables of other columns":     {"create schema agent; create table agent.version (id int); create table agent.migration (id int)", "read agent.version"},
		"other migrations":            {"create schema agent; create table agent.version as select '0.1.0' as version; create table agent.migration (id int)", "read agent.migration"},
		"a version of something else": {"create schema agent; create table agent.version as select 'v7' as version; create table agent.migration (name text, checksum bytea)", `says "v7", which is no version of queued`},
		"no row":                      {"create schema agent; create table agent.version (version text); create table agent.migration (name text, checksum bytea)", "agent.version is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t).URL
			exec(t, connect(t, db), c.setup)
			_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db})
			wantError(t, err, nil, c.want)
			_, err = migrate.Check(t.Context(), migrate.Config{DatabaseURL: db})
			wantError(t, err, nil, c.want)
		})
	}
}

func TestEmptySchemaThatAnAdminMadeIsUsed(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	exec(t, connect(t, db), "create schema agent; comment on schema agent is 'ours'; alter default privileges in schema agent grant select on tables to public")
	run(t, migrate.Config{DatabaseURL: db})
}

func TestCheckChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree("incremental/001-a.sql", "create table agent.a (id int)", "idempotent/001-f.sql", "select 1")
	readOnly := withOption(t, db, "default_transaction_read_only", "on")
	check := func(want migrate.Status) {
		t.Helper()
		before := catalog(t, db)
		status, err := migrate.Check(t.Context(), migrate.Config{DatabaseURL: readOnly, Scripts: scripts, Version: want.Program})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, status); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		wantCatalog(t, db, before)
	}
	check(migrate.Status{Program: "0.1.0", Pending: []string{"incremental/001-a.sql", "idempotent/001-f.sql"}})
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "0.1.0"})
	check(migrate.Status{Database: "0.1.0", Program: "0.1.0"})
	check(migrate.Status{Database: "0.1.0", Program: "0.2.0", Pending: []string{"idempotent/001-f.sql"}})

	if status := run(t, migrate.Config{DatabaseURL: readOnly, Scripts: scripts, Version: "0.1.0"}); status.Due() {
		t.Errorf("a run in a read-only session found %+v", status)
	}
}

func TestSessionSettingsDoNotReachTheScripts(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	exec(t, connect(t, db), `
		create schema shadow;
		create function shadow.current_setting(text) returns text language sql as 'select ''shadowed''';
		do $$ begin
		  execute format('alter database %I set search_path to shadow, public, pg_catalog', current_database());
		  execute format('alter database %I set statement_timeout to ''1h''', current_database());
		  execute format('alter database %I set idle_in_transaction_session_timeout to ''1h''', current_database());
		  execute format('alter database %I set default_transaction_isolation to serializable', current_database());
		  execute format('alter database %I set default_transaction_read_only to on', current_database());
		end $$`)
	settings := `create table %s as select current_setting('search_path') || ' ' || current_setting('statement_timeout')
		|| ' ' || current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('lock_timeout')
		|| ' ' || current_setting('transaction_isolation') as settings;
		set local search_path to public, agent`
	run(t, migrate.Config{DatabaseURL: db, Scripts: tree(
		"incremental/001-a.sql", fmt.Sprintf(settings, "agent.a"), "incremental/002-b.sql", fmt.Sprintf(settings, "agent.b"),
	)})
	conn := connect(t, db)
	for _, table := range []string{"agent.a", "agent.b"} {
		if got := query[string](t, conn, "select settings from "+table); got != `"" 0 0 10s read committed` {
			t.Errorf("the script that made %s saw the settings %s", table, got)
		}
	}
}

func TestCancelledMigrationLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	before := catalog(t, db)
	gatekeeper := connect(t, db)
	exec(t, gatekeeper, "select pg_advisory_lock(4711)")

	ctx, cancel := context.WithCancel(t.Context())
	first := newSignal("001-a.sql")
	var group sync.WaitGroup
	var err error
	group.Go(func() {
		_, err = migrate.Run(ctx, migrate.Config{DatabaseURL: db, Logger: zerolog.New(first), Scripts: tree(
			"incremental/001-a.sql", "create table agent.a (id int)", "incremental/002-b.sql", "select pg_advisory_xact_lock(4711)",
		)})
	})
	first.wait(t.Context(), t)
	cancel()
	group.Wait()
	wantError(t, err, context.Canceled)
	wantCatalog(t, db, before)

	run(t, migrate.Config{
		DatabaseURL: db, Scripts: tree("incremental/001-a.sql", "create table agent.a (id int)"), LockTries: 1_000_000, LockDelay: time.Millisecond,
	})
}

func TestDatabaseURLTakesBothForms(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t).URL
	cfg, err := pgx.ParseConfig(db)
	if err != nil {
		t.Fatal(err)
	}
	keywords := fmt.Sprintf("host='%s' port=%d user='%s' password='%s' dbname='%s' pool_max_conns=3", cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database)
	scripts := tree("incremental/001-a.sql", "create table agent.a as select current_setting('application_name') as name")
	run(t, migrate.Config{DatabaseURL: keywords, Scripts: scripts})
	if status := run(t, migrate.Config{DatabaseURL: db, Scripts: scripts}); status.Due() {
		t.Errorf("the URL and the keywords are not the same database: %+v", status)
	}
	if name := query[string](t, connect(t, db), "select name from agent.a"); name != "queued migrate" {
		t.Errorf("application_name is %q", name)
	}
}

func TestUnusableDatabaseIsToldWithoutThePassword(t *testing.T) {
	t.Parallel()
	gone, err := url.Parse(pgtest.Empty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	gone.Path = "/nothing_of_this_name"
	for name, c := range map[string]struct{ url, want string }{
		"nobody listens":      {"postgres://me:s3cret@127.0.0.1:1/events", "connection refused"},
		"no socket":           {"host=/nowhere user=me password=s3cret", "no such file or directory"},
		"no such database":    {gone.String(), "does not exist"},
		"password with /":     {"postgres://me:s3cr/s3cret@localhost/events", "the database URL cannot be used: invalid port"},
		"password with %":     {"postgres://me:s3cret%zz@localhost/events", "the database URL cannot be parsed: it takes"},
		"password with blank": {"host=localhost password=a s3cret", "the database URL cannot be parsed: it takes"},
		"wrong sslmode":       {"postgres://me:s3cret@localhost/events?sslmode=maybe", "sslmode is invalid"},
		"other database":      {"mysql://me:s3cret@localhost/events", "the database URL cannot be parsed: it takes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := migrate.Check(t.Context(), migrate.Config{DatabaseURL: c.url})
			wantError(t, err, nil, c.want)
			if err != nil && (strings.Contains(err.Error(), "s3cr") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("the error shows the password, or has several lines: %v", err)
			}
		})
	}
}

func TestVersionOfTheProgramMustBeSemantic(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v1.2.3", "one", "1.2.3.4"} {
		_, err := migrate.Check(t.Context(), migrate.Config{Version: version})
		wantError(t, err, nil, "no semantic version")
	}
}

// run migrates, or ends the test.
func run(t *testing.T, cfg migrate.Config) migrate.Status {
	t.Helper()
	status, err := migrate.Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// tree makes scripts of pairs of path and body.
func tree(pairs ...string) fstest.MapFS {
	files := fstest.MapFS{}
	for pair := range slices.Chunk(pairs, 2) {
		files[pair[0]] = &fstest.MapFile{Data: []byte(pair[1]), Mode: fs.ModePerm}
	}
	return files
}

// wantError checks that err is target (unless that is nil) and says all of these.
func wantError(t *testing.T, err, target error, says ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %v %q", target, says)
		return
	}
	if target != nil && !errors.Is(err, target) {
		t.Errorf("got %v, want %v", err, target)
	}
	for _, part := range says {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
}

// wantCatalog checks that nothing changed in the database.
func wantCatalog(t *testing.T, url string, before []string) {
	t.Helper()
	if diff := cmp.Diff(before, catalog(t, url)); diff != "" {
		t.Errorf("the database changed (-before +after):\n%s", diff)
	}
}

// withOption returns the URL of sessions that start with a setting.
func withOption(t *testing.T, db, name, value string) string {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("options", "-c "+name+"="+value)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}

// role makes a role that ends with the test.
func role(t *testing.T, admin *pgx.Conn, suffix string) string {
	t.Helper()
	name := query[string](t, admin, "select $1 || '_' || md5(current_database())", suffix) // names are cut at 63 bytes
	exec(t, admin, fmt.Sprintf(`create role "%s"`, name))
	t.Cleanup(func() {
		if !t.Failed() { // a failing test keeps its database, and what that needs
			_, err := admin.Exec(context.WithoutCancel(t.Context()), fmt.Sprintf(`drop owned by "%s" cascade; drop role "%[1]s"`, name))
			if err != nil {
				t.Error(err)
			}
		}
	})
	return name
}

// signal is a log that tells when a line with a certain text was written.
type signal struct {
	text  string
	lines chan struct{}
}

func newSignal(text string) *signal { return &signal{text, make(chan struct{}, 1000)} }

func (s *signal) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(s.text)) {
		select {
		case s.lines <- struct{}{}:
		default: // nobody waits for so many
		}
	}
	return len(line), nil
}

// wait ends the test if ctx ends first.
func (s *signal) wait(ctx context.Context, t *testing.T) {
	t.Helper()
	select {
	case <-s.lines:
	case <-ctx.Done():
		t.Fatalf("nothing was logged with %q: %v", s.text, ctx.Err())
	}
}
