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
	pgtest.EachFlavour(t)
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
		drop function agent_service.next_due()`, granted))
	exec(t, admin, fmt.Sprintf(`drop owned by "%s"; drop role "%[1]s"`, forgotten))
	run(t, migrate.Config{DatabaseURL: db.URL, Version: "999.0.0"})
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

// A script drops a function that takes or returns something else from then on, and remembers in kept_grants who might execute it.
func TestFunctionMadeAnewKeepsItsGrants(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	owner, admin := connect(t, db.URL), connect(t, db.AdminURL)
	operator := role(t, admin, "operator")
	exec(t, owner, fmt.Sprintf(`grant usage on schema agent to "%s"; grant execute on function agent.purge_queue to "%[1]s"`, operator))
	scripts := fstest.MapFS{}
	names, err := fs.Glob(sql.FS, "*/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		body, err := fs.ReadFile(sql.FS, name)
		if err != nil {
			t.Fatal(err)
		}
		scripts[name] = &fstest.MapFile{Data: body}
	}
	incremental, err := fs.Glob(sql.FS, "incremental/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	scripts[fmt.Sprintf("incremental/%03d-purge.sql", len(incremental)+1)] = &fstest.MapFile{Data: []byte(`
		create temporary table if not exists kept_grants (function name, grantee oid) on commit drop;
		insert into kept_grants (function, grantee)
		select p.proname, a.grantee
		from pg_catalog.pg_proc p cross join pg_catalog.aclexplode(p.proacl) a
		where p.pronamespace = 'agent'::pg_catalog.regnamespace and p.proname = 'purge_queue' and a.grantee not in (0, p.proowner);
		do $$ begin execute (select 'drop function ' || p.oid::pg_catalog.regprocedure from pg_catalog.pg_proc p where p.proname = 'purge_queue'); end $$;`)}
	before := query[int64](t, owner, `select oid::int8 from pg_proc where proname = 'purge_queue'`)
	run(t, migrate.Config{DatabaseURL: db.URL, Scripts: scripts, Version: "999.0.0"})
	if after := query[int64](t, owner, `select oid::int8 from pg_proc where proname = 'purge_queue'`); after == before {
		t.Error("the function was not made anew")
	}
	if !query[bool](t, owner, fmt.Sprintf(`select has_function_privilege('%s', oid, 'execute') from pg_proc where proname = 'purge_queue'`, operator)) {
		t.Error("the role may not execute it any more")
	}
}
