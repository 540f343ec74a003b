package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

// sweepBatch is how many events one statement of a sweep expires, so that each commit stays short.
const sweepBatch = 1000

// Sweep moves events to history as Expired and returns how many. No running lease is touched.
// When it fails midway, what it has expired so far stays so.
func (s *Service) Sweep(ctx context.Context, p SweepParams) (int64, error) {
	var total int64
	for {
		rows, _ := s.pool.Query(ctx, `select queue, expired from agent.expire_events($1, $2, nullif($3, ''), $4)`,
			cmp.Or(p.MaxAttempts, s.cfg.MaxAttempts), p.MaxVTAge, p.Queue, sweepBatch)
		var (
			queue string
			n     int64
			batch int64
		)
		_, err := pgx.ForEachRow(rows, []any{&queue, &n}, func() error {
			s.counters.add(queue, func(c *Counters) { c.Expired += n })
			batch += n
			return nil
		})
		if err != nil {
			return total, wrap("sweeping", err)
		}
		total += batch
		if batch < sweepBatch {
			return total, nil
		}
	}
}

// sweepLoop sweeps now and then until ctx ends.
func (s *Service) sweepLoop(ctx context.Context) error {
	p := SweepParams{}
	if s.cfg.MaxVTAge > 0 {
		p.MaxVTAge = &s.cfg.MaxVTAge
	}
	for loop.Pause(ctx, loop.Jittered(s.cfg.SweepInterval)) {
		n, err := s.Sweep(ctx, p)
		if err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error().Err(err).Msg("sweep failed; the next one is due as usual")
		}
		if n > 0 {
			s.cfg.Logger.Info().Int64("expired", n).Msg("swept")
		}
	}
	return nil
}

// forget runs a statement that forgets up to $1 of what is no longer needed, and returns how many that were, until there are fewer.
func (s *Service) forget(ctx context.Context, sql string) error {
	for {
		var n int64
		if err := s.pool.QueryRow(ctx, sql, sweepBatch).Scan(&n); err != nil {
			return wrap("forgetting", err)
		}
		if n < sweepBatch {
			return nil
		}
	}
}

// upkeepInterval is how often history's partitions and retention, idempotency keys and the statistics of executions are seen to.
const upkeepInterval = time.Hour

// upkeepLoop sees to history at once and then hourly until ctx ends.
func (s *Service) upkeepLoop(ctx context.Context) error {
	for {
		next := loop.Jittered(upkeepInterval)
		if err := s.keepHistory(ctx); err != nil && ctx.Err() == nil {
			next = loop.Jittered(time.Minute)
			s.cfg.Logger.Error().Err(err).Msg("upkeep of history failed; it is tried again in a minute")
		}
		if !loop.Pause(ctx, next) {
			return nil
		}
	}
}

func (s *Service) keepHistory(ctx context.Context) error {
	var retention *time.Duration
	if s.cfg.Retention > 0 {
		retention = &s.cfg.Retention
	}
	rows, _ := s.pool.Query(ctx, `select action, name from agent.keep_history($1)`, retention)
	var action, name string
	_, err := pgx.ForEachRow(rows, []any{&action, &name}, func() error {
		s.cfg.Logger.Info().Str("action", action).Str("what", name).Msg("history upkeep")
		return nil
	})
	if err != nil {
		return wrap("keeping history", err)
	}
	for _, forget := range []string{`select agent.forget_history($1)`, `select agent.forget_keys($1)`} {
		if err := s.forget(ctx, forget); err != nil {
			return err
		}
	}
	_, err = s.pool.Exec(ctx, `select agent.fold_executions()`)
	return wrap("folding the statistics of executions", err)
}
