package migrate_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestOnlyTheOwnerMigrates(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).AdminURL
	scripts := tree("incremental/001-a.sql", "create table agent.a (id int)")
	admin := connect(t, db)
	owner, other := role(t, admin, "owner"), role(t, admin, "other")
	as := func(role, version string) migrate.Config {
		return migrate.Config{DatabaseURL: withOption(t, db, "role", role), Scripts: scripts, Version: version}
	}

	before := catalog(t, db)
	_, err := migrate.Run(t.Context(), as(owner, "1.1.0"))
	wantError(t, err, nil, "may not create the schema agent", fmt.Sprintf(`create schema agent authorization "%s"`, owner))
	wantCatalog(t, db, before)

	exec(t, admin, fmt.Sprintf(`create schema agent authorization "%s"`, owner)) // as the error says
	run(t, as(owner, "1.1.0"))
	if tables := column(t, admin, fmt.Sprintf("select tablename from pg_tables where schemaname = 'agent' and tableowner = '%s' order by 1", owner)); !slices.Equal(tables, []string{"a", "migration", "version"}) {
		t.Errorf("the owner owns %v", tables)
	}

	_, err = migrate.Check(t.Context(), as(other, "1.1.0"))
	grants := fmt.Sprintf(`grant usage on schema agent to "%s"; grant select on agent.version, agent.migration to "%[1]s"`, other)
	wantError(t, err, nil, "may not read which version", grants)
	exec(t, admin, grants)

	if status := run(t, as(other, "1.1.0")); status.Due() {
		t.Errorf("up to date, yet found %+v", status)
	}
	status, err := migrate.Check(t.Context(), as(other, "1.2.0"))
	if err != nil || !status.Due() {
		t.Errorf("a check by another role got %+v, %v", status, err)
	}
	before = catalog(t, db)
	_, err = migrate.Run(t.Context(), as(other, "1.2.0"))
	wantError(t, err, migrate.ErrNotOwner, owner, other)
	_, err = migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.2.0"})
	wantError(t, err, migrate.ErrNotOwner, owner) // a superuser is no exception: what it makes would be its own
	wantCatalog(t, db, before)

	if status := run(t, as(owner, "1.2.0")); !status.Due() {
		t.Errorf("the owner found %+v", status)
	}
}

func TestSchemaOfSomebodyElseIsLeftAlone(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for name, c := range map[string]struct{ setup, want string }{
		"a table":                     {"create schema agent; create table agent.smith (id int)", "holds something else than queued's"},
		"a function":                  {"create schema agent; create function agent.f() returns int language sql as 'select 1'", "holds something else than queued's"},
		"a type":                      {"create schema agent; create type agent.t as enum ('a')", "holds something else than queued's"},
		"a table version":             {"create schema agent; create table agent.version (version text)", "holds something else than queued's"},
		"tables of other columns":     {"create schema agent; create table agent.version (id int); create table agent.migration (id int)", "read agent.version"},
		"other migrations":            {"create schema agent; create table agent.version as select '1.1.0' as version; create table agent.migration (id int)", "read agent.migration"},
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
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	exec(t, connect(t, db), "create schema agent; comment on schema agent is 'ours'; alter default privileges in schema agent grant select on tables to public")
	run(t, migrate.Config{DatabaseURL: db})
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
