package migrate_test

import (
	"testing"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestNewDatabaseIsNoCellYet(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t)
	run(t, migrate.Config{DatabaseURL: db.URL})
	if !query[bool](t, connect(t, db.URL), `select number is null from agent.cell`) {
		t.Error("a migration has made it a cell")
	}
}
