package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

// channel is what the functions of the schema notify on: with "zones" when the rules of a zone have changed, with nothing
// when a schedule is due soon.
const channel = "agent_schedule"

// listenRetry is the pause before the next try after the listening connection failed.
const listenRetry = time.Second

// zoneLoop checks the rules of the zones in use at once and then now and then until ctx ends.
func (s *Service) zoneLoop(ctx context.Context) error {
	for {
		next := jittered(s.cfg.ZoneInterval)
		if err := s.CheckZones(ctx); err != nil && ctx.Err() == nil {
			next = min(next, jittered(time.Minute))
			s.cfg.Logger.Error().Err(err).Msg("the rules of the time zones could not be checked; it is tried again")
		}
		if !pause(ctx, next) {
			return nil
		}
	}
}

// CheckZones holds the database server's rules of every zone in use against what they were. Where they have changed, by an update of the server's time
// zone data, it resolves the next occurrences of the schedules in that zone anew, all in one transaction, and begins new sessions, as
// each knows the rules that were there when it began. Run calls it at its start and hourly.
func (s *Service) CheckZones(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return wrap("checking zones", err)
	}
	defer closeConn(ctx, conn)

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
	for {
		err := s.listenOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.cfg.Logger.Warn().Err(err).Msg("not listening for schedules: they are polled for until the database answers")
		if !pause(ctx, listenRetry) {
			return nil
		}
	}
}

// listenOnce listens on a connection of its own until that fails.
func (s *Service) listenOnce(ctx context.Context) error {
	conn, err := pgx.ConnectConfig(ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return err
	}
	defer closeConn(ctx, conn)
	if _, err := conn.Exec(ctx, "listen "+channel); err != nil {
		return err
	}
	s.wake() // whatever was announced while nobody listened
	for {
		// A connection that died without a word is noticed by the ping.
		wait, cancel := context.WithTimeout(ctx, 30*time.Second)
		n, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil && n.Payload == "zones":
			s.pool.Reset()
		case err == nil:
			s.wake()
		case errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			if err := conn.Ping(ctx); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // there is nobody left to tell
}
