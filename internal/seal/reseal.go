package seal

import (
	"context"
	"fmt"

	"github.com/queued/queued/internal/pg"
)

// Resealed is the result of Reseal, in counts of sealed values.
type Resealed struct {
	Sealed  int     // all in the database
	Anew    int     // those that were sealed under another key than the first, and now are under that
	Changed int     // those that others have put meanwhile: they are sealed under the first key of the process that has put them
	Failed  []error // of those that cannot be opened: their keys are missing
}

// Reseal seals the secrets of sources, and those of endpoints that events are pushed to, under the first key of sealer, where they are sealed under another. It may
// be repeated, and run while servers do.
func Reseal(ctx context.Context, db *pg.Database, sealer *Sealer) (done Resealed, err error) {
	pool, err := db.NewPool(ctx, pg.PoolConfig{MaxConns: 1})
	if err != nil {
		return done, err
	}
	defer func() { _ = pg.Pools{pool}.CloseBy(ctx) }()
	type sealed struct {
		Kind   Kind
		Name   string
		Place  int64
		Sealed []byte
	}
	rows, _ := pool.Query(ctx, `select kind, name, place, sealed from agent_service.list_sealed()`)
	all, err := pg.Collect[sealed](rows)
	if err != nil {
		return done, pg.States{}.Wrap("listing what is sealed", err)
	}
	for _, one := range all {
		done.Sealed++
		if sealer.IsCurrent(one.Sealed) {
			continue
		}
		holder := one.Kind.Owner(one.Name)
		secret, err := sealer.Open(one.Sealed, holder)
		if err != nil {
			done.Failed = append(done.Failed, fmt.Errorf("%s of %s: %w", one.Kind, one.Name, err))
			continue
		}
		var isDone bool
		if err := pool.QueryRow(ctx, `select agent_service.reseal($1, $2, $3, $4, $5)`, one.Kind, one.Name, one.Place, one.Sealed, sealer.Seal(secret, holder)).Scan(&isDone); err != nil {
			return done, pg.States{}.Wrap("sealing anew", err)
		}
		if isDone {
			done.Anew++
		} else {
			done.Changed++
		}
	}
	return done, nil
}
