package migrate_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestFailingLastStatementLeavesTheDatabaseAsItWas(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for _, version := range []string{"", "1.1.0"} {
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
			status, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.2.0"})
			wantError(t, err, nil, "the database is as it was", "idempotent/001-f.sql", "division by zero", "22012")
			if status.Database != version || status.Program != "1.2.0" {
				t.Errorf("the status says %+v", status)
			}
			wantCatalog(t, db, before)
		})
	}
}

func TestFailingCommitLeavesTheDatabaseAsItWas(t *testing.T) {
	pgtest.EachFlavour(t)
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
	pgtest.EachFlavour(t)
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
	pgtest.EachFlavour(t)
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

func TestCancelledMigrationLeavesNothingBehind(t *testing.T) {
	pgtest.EachFlavour(t)
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
