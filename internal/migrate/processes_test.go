package migrate_test

import (
	"testing"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestMigrationIsRefusedWhileProcessesLiveThatCannotRunOnIt(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	scripts := tree("incremental/001-a.sql", `
		create table agent.process_metric (id text, process text, category text, value text, updated_at timestamptz)`)
	run(t, migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.6.0"})
	conn := connect(t, db)
	exec(t, conn, `
		insert into agent.process_metric values
		  ('a', 'old-host:1', 'version', '1.4.0', now() - interval '3 s')
		, ('a', 'old-host:1', 'posted', '1.1.0', now())
		, ('b', 'dead-host:2', 'version', '1.1.0', now() - interval '1 minute')
		, ('c', 'good-host:3', 'version', '1.5.0', now())
		, ('d', 'new-host:4', 'version', '1.6.0', now())`)
	next := migrate.Config{DatabaseURL: db, Scripts: scripts, Version: "1.7.0", Oldest: "1.5.0"}
	before := catalog(t, db)
	_, err := migrate.Run(t.Context(), next)
	wantError(t, err, migrate.ErrProcessesTooOld, "old-host:1 (version 1.4.0, last seen ", "1.5.0 or newer", "--force-migrate", "QUEUED_FORCE_MIGRATE")
	if after := catalog(t, db); len(after) != len(before) {
		t.Errorf("the refused migration has left something behind: %q, before %q", after, before)
	}
	exec(t, conn, `update agent.process_metric set value = '' where id = 'a' and category = 'version'`) // from before a version was reported
	_, err = migrate.Run(t.Context(), next)
	wantError(t, err, migrate.ErrProcessesTooOld, "old-host:1 (version unknown")

	forced := next
	forced.IsForced = true
	run(t, forced)
	if version := query[string](t, conn, "select version from agent.version"); version != "1.7.0" {
		t.Errorf("the forced migration has left version %s", version)
	}
	exec(t, conn, `delete from agent.process_metric where id = 'a'`)
	next.Version = "1.8.0"
	run(t, next)
}
