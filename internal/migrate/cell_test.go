package migrate_test

import (
	"fmt"
	"testing"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestUpgradedDatabaseIsCellZeroAndKeepsItsIDs(t *testing.T) {
	t.Parallel()
	scripts := released(t, "0.7.0")
	for name, c := range map[string]struct{ id, last int64 }{
		"new":                         {0, 1<<45 - 1},
		"used":                        {4711, 1<<45 - 1},
		"restored often":              {1<<45 - 1, 1<<45 - 1},
		"restored beyond its cell":    {1 << 45, 1<<53 - 1},
		"restored beyond every cell":  {1<<53 + 1, 1<<53 + 1},
		"restored far into another's": {5<<45 + 77, 1<<53 - 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.Empty(t)
			run(t, migrate.Config{DatabaseURL: db.URL, Scripts: scripts, Version: "0.7.0"})
			conn := connect(t, db.URL)
			if c.id > 0 {
				exec(t, conn, fmt.Sprintf(`select setval('agent.event_id_seq', %d)`, c.id))
			}
			run(t, migrate.Config{DatabaseURL: db.URL})
			if got := query[int](t, conn, `select number from agent.cell`); got != 0 {
				t.Errorf("it is cell %d", got)
			}
			if got := query[int64](t, conn, `select last_id from agent_service.get_cell()`); got != c.last {
				t.Errorf("its last id is %d, want %d", got, c.last)
			}
			if got := query[int](t, conn, `select number from agent_service.take_cell(3)`); got != 0 {
				t.Errorf("it became cell %d", got)
			}
			if c.id < c.last {
				if id := query[int64](t, conn, `select agent.insert_event('{}')`); id != c.id+1 {
					t.Errorf("after %d comes %d", c.id, id)
				}
			}
		})
	}
}

func TestNewDatabaseIsNoCellYet(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	run(t, migrate.Config{DatabaseURL: db.URL})
	if !query[bool](t, connect(t, db.URL), `select number is null from agent.cell`) {
		t.Error("a migration has made it a cell")
	}
}
