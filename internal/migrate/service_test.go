package migrate_test

import (
	"fmt"
	"io/fs"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/sql"
)

// neededByService is true of the functions, p, that the service calls.
const neededByService = `(p.pronamespace = 'agent_service'::regnamespace
	or p.pronamespace = 'agent'::regnamespace and p.proname in (select agent_private.shared_functions()))`

func TestEachMigrationGrantsTheServiceWhatItNeeds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, admin := connect(t, db.URL), connect(t, db.AdminURL)
	granted := role(t, admin, "service")
	forgotten := granted + "_gone"
	exec(t, admin, fmt.Sprintf(`create role "%s"`, forgotten))
	executes := func(role string) []string {
		t.Helper()
		return column(t, owner, fmt.Sprintf(`select distinct p.oid::regprocedure::text from pg_catalog.pg_proc p
			where p.pronamespace in ('agent'::regnamespace, 'agent_service'::regnamespace) and has_function_privilege('%s', p.oid, 'execute')
			and has_schema_privilege('%[1]s', p.pronamespace, 'usage') order by 1`, role))
	}
	needed := column(t, owner, `select p.oid::regprocedure::text from pg_catalog.pg_proc p where `+neededByService+` order by 1`)
	exec(t, owner, fmt.Sprintf(`select agent.grant_service('"%s"'), agent.grant_service('"%s"')`, granted, forgotten))
	if got := executes(granted); !slices.Equal(got, needed) {
		t.Errorf("granted are %q", got)
	}
	if got := column(t, owner, fmt.Sprintf(`select c.relname::text from pg_catalog.pg_class c where c.relnamespace = 'agent'::regnamespace and c.relkind in ('r', 'p', 'v')
		and has_table_privilege('%s', c.oid, 'select, insert, update, delete, truncate') order by 1`, granted)); !slices.Equal(got, []string{"migration", "version"}) {
		t.Errorf("it may use the tables %q", got)
	}
	if got := column(t, owner, `select p.proname::text from pg_catalog.pg_proc p
		where `+neededByService+` and not p.prosecdef order by 1`); len(got) > 0 {
		t.Errorf("these do not run with the owner's rights, so that the service may not do what they do: %q", got)
	}
	for _, call := range []string{`agent.grant_service('%s')`, `agent.revoke_service('%s')`} {
		if _, err := connect(t, withOption(t, db.AdminURL, "role", granted)).Exec(t.Context(), fmt.Sprintf("select "+call, `"`+granted+`"`)); err == nil {
			t.Errorf("the role could call %s itself", call)
		}
	}

	// A version whose scripts make functions that were not there, and a role that is no more.
	exec(t, owner, fmt.Sprintf(`
		revoke execute on function agent_service.claim_from_watermarks from "%s";
		drop function agent_service.next_due();
		update agent.version set version = '0.2.0'`, granted))
	exec(t, admin, fmt.Sprintf(`drop owned by "%s"; drop role "%[1]s"`, forgotten))
	run(t, migrate.Config{DatabaseURL: db.URL})
	if got := executes(granted); !slices.Equal(got, needed) {
		t.Errorf("after the migration granted are %q", got)
	}

	exec(t, owner, fmt.Sprintf(`select agent.revoke_service('"%s"')`, granted))
	if got := executes(granted); len(got) > 0 {
		t.Errorf("after all was revoked granted are %q", got)
	}
	if got := column(t, owner, `select name::text from agent.service_role order by 1`); slices.Contains(got, granted) {
		t.Errorf("remembered are %q", got)
	}
}

func TestARoleThatWasGrantedAllFunctionsBeforeStillRunsTheService(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	owner := connect(t, db.URL)
	byHand := role(t, connect(t, db.AdminURL), "old_service")
	before := tree("idempotent/001-a.sql", "create function agent.take_events() returns void language sql return null")
	scripts, err := fs.Glob(sql.FS, "incremental/00[1-4]-*.sql")
	if err != nil || len(scripts) != 4 {
		t.Fatal(scripts, err)
	}
	for _, name := range scripts {
		body, err := fs.ReadFile(sql.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		before[name] = &fstest.MapFile{Data: body, Mode: fs.ModePerm}
	}
	run(t, migrate.Config{DatabaseURL: db.URL, Scripts: before, Version: "0.2.0"})
	exec(t, owner, fmt.Sprintf(`grant usage on schema agent to "%s"; grant execute on all functions in schema agent to "%[1]s"`, byHand))
	run(t, migrate.Config{DatabaseURL: db.URL})
	if missing := column(t, owner, fmt.Sprintf(`select p.proname::text from pg_catalog.pg_proc p
		where `+neededByService+`
		and not has_function_privilege('%s', p.oid, 'execute')`, byHand)); len(missing) > 0 {
		t.Errorf("the role may not execute %q", missing)
	}
}
