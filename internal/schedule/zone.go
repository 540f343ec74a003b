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

// zoneTimeout bounds one check of all zones in use, of which there are some 600 at most.
const zoneTimeout = 5 * time.Minute

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
// each knows the rules that were there when it began. A zone that the server has lost is logged, and keeps none of the others from being checked.
// Run calls it at its start and hourly.
func (s *Service) CheckZones(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, zoneTimeout)
	defer cancel()
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
		now        time.Time
		changed    int
		unresolved []int64
	)
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `select zone, moved, unresolved, fault from agent.check_zone_rules($1)`, since)
		var (
			zone  string
			moved int64
			ids   []int64
			fault *string
		)
		_, err := pgx.ForEachRow(rows, []any{&zone, &moved, &ids, &fault}, func() error {
			if fault != nil {
				s.cfg.Logger.Error().Str("zone", zone).Str("reason", *fault).Msg("the rules of a time zone could not be checked; its schedules are paused when they are due")
				return nil
			}
			changed++
			unresolved = append(unresolved, ids...)
			s.cfg.Logger.Info().Str("zone", zone).Int64("schedules", moved).Msg("the rules of a time zone have changed; its schedules are resolved anew")
			return nil
		})
		return err
	})
	if err != nil {
		return wrap("checking zones", err)
	}
	s.zones = now
	if changed > 0 {
		s.replan(ctx, conn, unresolved) // by this session, which knows the new rules
		s.pools.Reset()
		s.wake()
	}
	return nil
}

// listen hears of schedules that are due soon, and of zones, until ctx ends.
func (s *Service) listen(ctx context.Context) error {
	l := pg.Listener{
		Database: s.db,
		Pool:     s.loops,
		Channel:  channel,
		Begin:    s.wake,
		Heard: func(payload string) {
			if payload == "zones" {
				s.pools.Reset()
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
