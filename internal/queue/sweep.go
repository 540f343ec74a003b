package queue

import (
	"cmp"
	"context"

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
		rows, _ := s.loops.Query(ctx, `select queue, expired, put_off, coalesce(reason, '') from agent.sweep_events($1, $2, nullif($3, ''), $4)`,
			cmp.Or(p.MaxAttempts, s.cfg.MaxAttempts), p.MaxVTAge, p.Queue, sweepBatch)
		var (
			queue, reason string
			n, putOff     int64
			batch         int64
		)
		_, err := pgx.ForEachRow(rows, []any{&queue, &n, &putOff, &reason}, func() error {
			batch += n + putOff
			total += n
			if putOff > 0 {
				s.cfg.Logger.Error().Str("queue", queue).Str("reason", reason).
					Msg("history does not take an event that is to expire: it is left alone for an hour")
				return nil
			}
			s.counters.add(queue, func(c *Counters) { c.Expired += n })
			return nil
		})
		if err != nil {
			return total, wrap("sweeping", err)
		}
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
