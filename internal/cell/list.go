package cell

import (
	"context"

	"github.com/queued/queued/internal/pg"
)

const listedColumns = `cell, url, takes_new, updated_at, placed, former`

// List returns the cells that gateways are told of, by their numbers. It fails with ErrNotHome.
func (s *Service) List(ctx context.Context) ([]Listed, error) {
	rows, _ := s.pool.Query(ctx, `select `+listedColumns+` from agent.list_cells()`)
	found, err := pg.Collect[Listed](rows)
	return found, wrap("listing cells", err)
}

// Put lists a cell, or changes what is listed of it. It fails with ErrNotHome and an *InvalidError.
func (s *Service) Put(ctx context.Context, number int, url *string, takesNew bool) (Listed, error) {
	put, err := pg.WriteOne[Listed](ctx, &s.writes, `select `+listedColumns+` from agent.put_cell($1, $2, $3)`, number, url, takesNew)
	return put, wrap("listing a cell", err)
}

// Delete takes a cell off the list. It fails with ErrNotHome, ErrNotListed and ErrInUse.
func (s *Service) Delete(ctx context.Context, number int) error {
	return wrap("deleting a cell", s.writes.Exec(ctx, `select agent.delete_cell($1)`, number))
}
