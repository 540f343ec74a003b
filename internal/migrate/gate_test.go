package migrate_test

import (
	"context"
	"testing"
	"testing/fstest"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestChangedReleasedScriptIsAnError(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	released := tree(
		"incremental/001-a.sql", "create table agent.a (id int)",
		"incremental/002-b.sql", "create table agent.b (id int)",
		"idempotent/001-f.sql", "select 1",
	)
	run(t, migrate.Config{DatabaseURL: db, Scripts: released, Version: "1.2.0"})
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
		for _, version := range []string{"1.2.0", "1.3.0"} {
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
		_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Scripts: tree("incremental/001-a.sql", "select 2"), Version: "1.1.0"})
		wantError(t, err, migrate.ErrProgramOlder)
	})
	t.Run("added without a new version", func(t *testing.T) {
		t.Parallel()
		_, err := migrate.Run(t.Context(), migrate.Config{DatabaseURL: db, Version: "1.2.0", Scripts: tree(
			"incremental/001-a.sql", "create table agent.a (id int)",
			"incremental/002-b.sql", "create table agent.b (id int)",
			"incremental/003-c.sql", "create table agent.c (id int)",
		)})
		wantError(t, err, migrate.ErrScriptChanged, "has not applied incremental/003-c.sql: a new script needs a new version")
	})
	t.Run("idempotent script changed", func(t *testing.T) {
		t.Parallel()
		status, err := migrate.Check(t.Context(), migrate.Config{DatabaseURL: db, Version: "1.3.0", Scripts: tree(
			"incremental/001-a.sql", "create table agent.a (id int)",
			"incremental/002-b.sql", "create table agent.b (id int)",
			"idempotent/001-f.sql", "select 2",
		)})
		if err != nil || !status.Due() {
			t.Errorf("got %+v, %v", status, err)
		}
	})
}

func TestDatabaseOfADevelopmentVersionIsRefused(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	scripts := tree("incremental/001-a.sql", "create table agent.a (id int)", "incremental/002-b.sql", "create table agent.b (id int)")
	for name, c := range map[string]struct {
		database string // the version that has made it
		scripts  fstest.MapFS
		want     string
	}{
		"below the first release": {"0.8.0", scripts, "made by a development version of queued, 0.8.0, which no release upgrades: make the database anew"},
		"before it was final":     {"1.0.0-rc.1", scripts, "1.0.0-rc.1, which no release upgrades: make the database anew"},
		"with a script that has changed until then": {
			"1.0.0", tree("incremental/001-a.sql", "create table agent.a (id int8)"), "as its incremental/001-a.sql is not that of this program: make the database anew",
		},
		"with a script that went until then": {
			"1.0.0", tree("incremental/001-a.sql", "create table agent.a (id int)", "incremental/002-z.sql", "select 1"), "as its incremental/002-z.sql is not",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t).URL
			run(t, migrate.Config{DatabaseURL: db, Scripts: c.scripts, Version: c.database})
			before := catalog(t, db)
			for _, version := range []string{"1.0.0", "1.1.0"} {
				cfg := migrate.Config{DatabaseURL: db, Scripts: scripts, Version: version}
				status, err := migrate.Run(t.Context(), cfg)
				wantError(t, err, migrate.ErrDevelopment, c.want)
				if status.Database != c.database || status.Due() && len(status.Pending) > 0 {
					t.Errorf("the status says %+v", status)
				}
				_, err = migrate.Check(t.Context(), cfg)
				wantError(t, err, migrate.ErrDevelopment, c.want)
				wantCatalog(t, db, before)
			}
		})
	}
}

func TestOlderProgramIsRefused(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree("incremental/001-a.sql", "create table agent.a (id int)")
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.10.0"})
	before := catalog(t, db)
	for _, version := range []string{"1.9.0", "1.10.0-rc.1"} {
		for name, do := range map[string]func(context.Context, migrate.Config) (migrate.Status, error){"run": migrate.Run, "check": migrate.Check} {
			t.Run(name+" "+version, func(t *testing.T) {
				t.Parallel() // they share the database, as none of them changes it
				status, err := do(t.Context(), migrate.Config{DatabaseURL: db, Scripts: scripts, Version: version})
				wantError(t, err, migrate.ErrProgramOlder, "the database is at 1.10.0, this program is "+version+": run a newer queued")
				if status.Database != "1.10.0" || status.Program != version || status.Due() {
					t.Errorf("the status says %+v", status)
				}
				wantCatalog(t, db, before)
			})
		}
	}
}

func TestVersionOfTheProgramMustBeSemantic(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for _, version := range []string{"v1.2.3", "one", "1.2.3.4"} {
		_, err := migrate.Check(t.Context(), migrate.Config{Version: version})
		wantError(t, err, nil, "not a semantic version")
	}
}
