package main

import (
	"strings"
	"syscall"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/sql"
)

func TestNoMigrateRefusesADatabaseThatIsDue(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	p := startProgram(t, []string{"serve", "--no-migrate"}, []string{"QUEUED_DATABASE_URL=" + db.URL})
	if code := p.wait(); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	if want := `is at version none and this program needs ` + sql.Version() + `: run \"queued migrate\"`; !strings.Contains(p.output(), want) {
		t.Errorf("it does not say %s", want)
	}
	if got := schemaVersion(t, db.URL); got != "" {
		t.Errorf("the database was migrated to %s", got)
	}
}

func TestNoMigrateServesADatabaseThatIsUpToDate(t *testing.T) {
	t.Parallel()
	setup(t, "QUEUED_NO_MIGRATE=true")
}

func TestMigrateMigratesAndStatusChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	environ := []string{"QUEUED_DATABASE_URL=" + db.URL}
	migrate := func(wantOut string, args ...string) {
		t.Helper()
		p := startProgram(t, append([]string{"migrate"}, args...), environ)
		if code := p.wait(); code != exitOK {
			t.Fatalf("exit code %d", code)
		}
		out := strings.Join(strings.Fields(p.stdout.String()), " ")
		if !strings.Contains(out, wantOut) {
			t.Errorf("migrate %v said %q, want %q", args, out, wantOut)
		}
	}

	migrate("database none ", "--status")
	migrate("program "+sql.Version()+" to run incremental/001-", "--status")
	if got := schemaVersion(t, db.URL); got != "" {
		t.Fatalf("--status migrated to %s", got)
	}
	migrate("migrated from none to " + sql.Version())
	if got := schemaVersion(t, db.URL); got != sql.Version() {
		t.Errorf("the database is at %q, want %s", got, sql.Version())
	}
	migrate("nothing to do: the database is at " + sql.Version())
	migrate("database "+sql.Version()+" ", "--status")
	migrate("to run nothing", "--status")
}

func TestProgramOlderThanTheDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := connect(t, db.URL)
	if _, err := conn.Exec(t.Context(), `update agent.version set version = '999.0.0'`); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + db.ServiceURL})
	if code := p.wait(); code != exitFailure || !strings.Contains(p.output(), "999.0.0") {
		t.Errorf("exit code %d", code)
	}
}

func TestSignalEndsTheWaitForAnotherMigration(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	conn := connect(t, db.URL)
	if _, err := conn.Exec(t.Context(), `select pg_catalog.pg_advisory_lock(31321898691465844)`); err != nil {
		t.Fatal(err)
	}
	for command, want := range map[string]int{"serve": exitOK, "migrate": exitInterrupted} {
		p := startProgram(t, []string{command}, []string{"QUEUED_DATABASE_URL=" + db.URL})
		p.waitFor("another session is migrating the schema, waiting for it")
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != want {
			t.Errorf("%s: exit code %d, want %d", command, code, want)
		}
	}
	if got := schemaVersion(t, db.URL); got != "" {
		t.Errorf("the database was migrated to %s", got)
	}
}
