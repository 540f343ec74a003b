package migrate_test

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

func TestMigratingTwiceLeavesTheSameCatalog(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL

	first := run(t, migrate.Config{DatabaseURL: db})
	if first.Database != "" || !first.Due() || first.Pending[0] != "incremental/001-service.sql" {
		t.Errorf("an empty database was found as %+v", first)
	}
	once := catalog(t, db)
	if !slices.ContainsFunc(once, func(line string) bool { return strings.HasPrefix(line, "function agent.claim_event(") }) {
		t.Fatal("the first migration made no agent.claim_event")
	}

	second := run(t, migrate.Config{DatabaseURL: db, Version: "999.0.0"})
	if second.Database != first.Program || !second.Due() || slices.Contains(second.Pending, "incremental/001-service.sql") {
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
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree(
		"incremental/001-log.sql", "create table agent.log (line int generated always as identity, what text)",
		"incremental/002-two.sql", "insert into agent.log (what) values ('two')",
		"idempotent/001-first.sql", "insert into agent.log (what) values ('first')",
		"idempotent/002-second.sql", "insert into agent.log (what) values ('second'); select pg_sleep(1)",
	)
	var log bytes.Buffer
	status := run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.1.0", Logger: zerolog.New(&log).Level(zerolog.InfoLevel)})
	want := migrate.Status{Program: "1.1.0", Pending: []string{
		"incremental/001-log.sql", "incremental/002-two.sql", "idempotent/001-first.sql", "idempotent/002-second.sql",
	}}
	if diff := cmp.Diff(want, status); diff != "" {
		t.Errorf("first migration (-want +got):\n%s", diff)
	}
	if lines := strings.Count(log.String(), "\n"); lines != 2 || !strings.Contains(log.String(), `"script":"idempotent/002-second.sql"`) {
		t.Errorf("logged %d lines, want one for the slow script and one at the end:\n%s", lines, log.String())
	}
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.1.0"})

	scripts["incremental/003-three.sql"] = &fstest.MapFile{Data: []byte("insert into agent.log (what) values ('three')")}
	status = run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.2.0"})
	want = migrate.Status{Database: "1.1.0", Program: "1.2.0", Pending: []string{
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
	if diff := cmp.Diff([]string{"001-log.sql 1.1.0", "002-two.sql 1.1.0", "003-three.sql 1.2.0"},
		column(t, conn, "select name || ' ' || version from agent.migration where checksum is not null and took > '0' order by name")); diff != "" {
		t.Errorf("agent.migration (-want +got):\n%s", diff)
	}
	if version := query[string](t, conn, "select version from agent.version"); version != "1.2.0" {
		t.Errorf("agent.version is %s", version)
	}
	if _, err := conn.Exec(t.Context(), "insert into agent.version (version) values ('1.3.0')"); err == nil {
		t.Error("agent.version takes a second row")
	}
}

func TestScriptWithNothingButCommentsRuns(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	run(t, migrate.Config{DatabaseURL: db, Scripts: tree("incremental/001-a.sql", "-- nothing yet", "incremental/002-b.sql", "")})
}

func TestCheckChangesNothing(t *testing.T) {
	pgtest.EachFlavour(t)
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
	check(migrate.Status{Program: "1.1.0", Pending: []string{"incremental/001-a.sql", "idempotent/001-f.sql"}})
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.1.0"})
	check(migrate.Status{Database: "1.1.0", Program: "1.1.0"})
	check(migrate.Status{Database: "1.1.0", Program: "1.2.0", Pending: []string{"idempotent/001-f.sql"}})

	if status := run(t, migrate.Config{DatabaseURL: readOnly, Scripts: scripts, Version: "1.1.0"}); status.Due() {
		t.Errorf("a run in a read-only session found %+v", status)
	}
}
