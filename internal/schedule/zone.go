package schedule

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
	"github.com/queued/queued/internal/pg"
)

// channel is what the functions of the schema notify on: with "zones" when the rules of a zone have changed, with nothing
// when a schedule is due soon.
const channel = "agent_schedule"

// zoneLoop checks the rules of the zones in use at once and then now and then until ctx ends.
func (s *Service) zoneLoop(ctx context.Context) error {
	for {
		next := loop.Jittered(s.cfg.ZoneInterval)
		if err := s.CheckZones(ctx); err != nil && ctx.Err() == nil {
			next = min(next, loop.Jittered(time.Minute))
			s.cfg.Logger.Error().Err(err).Msg("the rules of the time zones could not be checked; it is tried again")
		}
		if !loop.Pause(ctx, next) {
			return nil
		}
	}
}

// CheckZones holds the database server's rules of every zone in use against what they were. Where they have changed, by an update of the server's time
// zone data, it resolves the next occurrences of the schedules in that zone anew, all in one transaction, and begins new sessions, as
// each knows the rules that were there when it began. Run calls it at its start and hourly.
func (s *Service) CheckZones(ctx context.Context) error {
	conn, err := s.db.Connect(ctx)
	if err != nil {
		return wrap("checking zones", err)
	}
	defer s.db.Close(ctx, conn)

	s.mu.Lock()
	defer s.mu.Unlock()
	var since *time.Time
	if !s.zones.IsZero() {
		since = &s.zones
	}
	var (
		now     time.Time
		changed int
	)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `select zone, moved, unresolved from agent.check_zone_rules($1)`, since)
		var (
			zone       string
			moved      int64
			ids        []int64
			unresolved []int64
		)
		_, err := pgx.ForEachRow(rows, []any{&zone, &moved, &ids}, func() error {
			changed++
			unresolved = append(unresolved, ids...)
			s.cfg.Logger.Info().Str("zone", zone).Int64("schedules", moved).Msg("the rules of a time zone have changed; its schedules are resolved anew")
			return nil
		})
		if err != nil {
			return err
		}
		return s.replan(ctx, tx, unresolved)
	})
	if err != nil {
		return wrap("checking zones", err)
	}
	s.zones = now
	if changed > 0 {
		s.pool.Reset()
		s.wake()
	}
	return nil
}

// listen hears of schedules that are due soon, and of zones, until ctx ends.
func (s *Service) listen(ctx context.Context) error {
	l := pg.Listener{
		Database: s.db,
		Pool:     s.pool,
		Channel:  channel,
		Begin:    s.wake,
		Heard: func(payload string) {
			if payload == "zones" {
				s.pool.Reset()
			} else {
				s.wake()
			}
		},
		Failed: func(err error) {
			s.cfg.Logger.Warn().Err(err).Msg("not listening for schedules: they are polled for until the database answers")
		},
	}
	return l.Run(ctx)
}
