package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Bounded runs read in a transaction whose statements may each take so long, a millisecond at least.
func Bounded(ctx context.Context, pool *Pool, limit time.Duration, read func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("set local statement_timeout = %d", max(1, limit.Milliseconds()))); err != nil {
			return err
		}
		return read(tx)
	})
}
