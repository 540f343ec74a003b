package topic

import (
	"context"
	"errors"

	"github.com/queued/queued/internal/pg"
)

// upkeepBatch is how many rows one statement counts or deletes, so that each commit stays short.
const upkeepBatch = 10_000

// pruneBatch is how many subscriptions one statement deletes.
const pruneBatch = 1000

// doUpkeep takes the steps of upkeep that are due. Those that another process takes at the same time, or that would make others wait, are left for
// the next round.
func (s *Service) doUpkeep(ctx context.Context) error {
	return errors.Join(
		s.steps(ctx, "maintaining segments", `select agent_service.maintain_log() is not null`),
		s.steps(ctx, "counting topics", `select agent_service.count_topics($1) = $1`, upkeepBatch),
		s.steps(ctx, "dropping segments", `select agent_service.drop_log_segment() is not null`),
		s.steps(ctx, "pruning subscriptions", `select agent_service.prune_subscriptions($1) >= $1`, pruneBatch),
		s.steps(ctx, "pruning idempotency keys", `select agent_service.prune_publication_keys($1) = $1`, upkeepBatch),
	)
}

// steps repeats a statement while it returns true.
func (s *Service) steps(ctx context.Context, doing, sql string, args ...any) error {
	for goesOn := true; goesOn; {
		err := s.loops.QueryRow(ctx, sql, args...).Scan(&goesOn)
		if pg.LostRace(err) {
			return nil
		}
		if err != nil {
			return wrap(doing, err)
		}
	}
	return nil
}
