package cell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pg"
)

const listedColumns = `cell, url, takes_new, updated_at, placed, former`

// List returns the cells that gateways are told of, by their numbers. It fails with ErrNotHome.
func (s *Service) List(ctx context.Context) ([]Listed, error) {
	rows, _ := s.pool.Query(ctx, `select `+listedColumns+` from agent.list_cells()`)
	found, err := pg.Collect[Listed](rows)
	return found, wrap("listing cells", err)
}

// Put lists a cell, or changes what is listed of it. With keysNow, inserts with an idempotency key into queues on all cells go by that at once. It fails with ErrNotHome and an *InvalidError.
func (s *Service) Put(ctx context.Context, number int, url *string, takesNew, keysNow bool) (Listed, error) {
	put, err := pg.WriteOne[Listed](ctx, &s.writes, `select `+listedColumns+` from agent.put_cell($1, $2, $3, $4)`, number, url, takesNew, keysNow)
	return put, wrap("listing a cell", err)
}

// Delete takes a cell off the list. With keysNow it does so also while idempotency keys that were used there count, which are given up. It fails with ErrNotHome, ErrNotListed and an
// *InUseError.
func (s *Service) Delete(ctx context.Context, number int, keysNow bool) error {
	err := s.writes.Exec(ctx, `select agent.delete_cell($1, $2, $3)`, number, keysNow, s.cfg.KeyRetention)
	var used InUseError
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && errors.Is(sqlstates[pgErr.Code], ErrInUse) && json.Unmarshal([]byte(pgErr.Detail), &used) == nil {
		return fmt.Errorf("deleting a cell: %w", &used)
	}
	return wrap("deleting a cell", err)
}
