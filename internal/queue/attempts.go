package queue

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Attempts returns every attempt at an event, in its queue or in history, in their order. It fails with ErrNotFound.
func (s *Service) Attempts(ctx context.Context, id int64) ([]Attempt, error) {
	rows, _ := s.calls.Query(ctx, `
		select attempt, coalesce(worker, ''), started_at, ended_at, outcome, error
		from agent.list_attempts($1)`, id)
	attempts, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a Attempt, err error) {
		err = row.Scan(&a.Number, &a.Worker, &a.StartedAt, &a.EndedAt, &a.Outcome, &a.Error)
		return a, err
	})
	return attempts, wrap("listing attempts", err)
}
