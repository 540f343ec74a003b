package schedule

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// Moment is a civil time, whose zone is given elsewhere, or an instant.
type Moment struct {
	Time      time.Time // in UTC
	IsInstant bool
}

// ParseMoment reads "2027-03-28T09:00:00" as a civil time, and the same with Z or an offset as an instant. Seconds may be left out, and may have a
// fraction down to microseconds. Anything else, and a year beyond 1 to 9999, is an *InvalidError without a field.
func ParseMoment(s string) (Moment, error) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04Z07:00", "2006-01-02T15:04:05", "2006-01-02T15:04"} {
		m := Moment{IsInstant: strings.HasSuffix(layout, "07:00")}
		t, err := time.Parse(layout, s)
		if m.Time = t.UTC().Truncate(time.Microsecond); err != nil || !m.IsInstant && strings.Contains(s, ",") { // a decimal comma
			continue
		}
		if m.Time.Year() < 1 || m.Time.Year() > 9999 {
			return Moment{}, &InvalidError{Detail: "must lie within the years 1 to 9999"}
		}
		return m, nil
	}
	return Moment{}, &InvalidError{Detail: `must be a local date-time like 2027-03-28T09:00:00, or an instant like 2027-03-28T07:00:00Z`}
}

// UnmarshalText reads text as ParseMoment does.
func (m *Moment) UnmarshalText(text []byte) (err error) {
	*m, err = ParseMoment(string(text))
	return err
}

// String writes m as ParseMoment reads it.
func (m Moment) String() string {
	if m.IsInstant {
		return m.Time.UTC().Format(time.RFC3339Nano)
	}
	return FormatLocal(m.Time)
}

// FormatLocal writes a civil time as RFC 3339 does, without an offset: 2027-03-28T09:00:00.
func FormatLocal(t time.Time) string { return t.Format("2006-01-02T15:04:05.999999") }

// local returns the civil time; nil: m is nil or an instant.
func (m *Moment) local() *time.Time {
	if m == nil || m.IsInstant {
		return nil
	}
	return &m.Time
}

// instant returns the instant; nil: m is nil or a civil time.
func (m *Moment) instant() *time.Time {
	if m == nil || !m.IsInstant {
		return nil
	}
	return &m.Time
}

// civilTime is a civil time to resolve by the zone and policies of a schedule.
type civilTime struct {
	*row
	at time.Time
}

// isRealTime reports whether the rule of a schedule that was parsed follows real time.
func (r *row) isRealTime() bool { return r.series != nil && r.series.isRealTime }

// resolution is the result of agent_service.resolve_locals for a civil time.
type resolution struct {
	At        *time.Time // the instant; nil: the time is skipped
	IsShifted bool       // a gap has moved it
	IsKnown   bool       // it is an occurrence already
	Resume    *time.Time // where it is skipped: the civil time at which the gap ends
	Fault     *string    // why it cannot be resolved
}

// resolve resolves civil times, each in its zone. Of one in real time it is the first instant at which clocks show it, if they do.
func resolve(ctx context.Context, q querier, times []civilTime) ([]resolution, error) {
	return resolveBy(ctx, q, times, OverlapFirst)
}

// resolveLast is resolve with the last instants of times in real time; nil if the times are not.
func resolveLast(ctx context.Context, q querier, times []civilTime) ([]resolution, error) {
	if len(times) == 0 || !times[0].isRealTime() {
		return nil, nil
	}
	return resolveBy(ctx, q, times, OverlapLast)
}

func resolveBy(ctx context.Context, q querier, times []civilTime, realTime Overlap) ([]resolution, error) {
	n := len(times)
	if n == 0 {
		return nil, nil
	}
	locals, zones, gaps, overlaps, ids := make([]time.Time, n), make([]string, n), make([]string, n), make([]string, n), make([]int64, n)
	areRealTime := make([]bool, n)
	for i, t := range times {
		locals[i], zones[i], gaps[i], overlaps[i], ids[i] = t.at, t.Zone, string(t.Gap), string(t.Overlap), t.ID
		if t.isRealTime() {
			gaps[i], overlaps[i], areRealTime[i] = string(GapSkip), string(realTime), true
		}
	}
	rows, _ := q.Query(ctx, `select at, is_shifted, is_known, resume, fault from agent_service.resolve_locals($1, $2, $3, $4, $5, $6)`,
		locals, zones, gaps, overlaps, ids, areRealTime)
	return pg.Collect[resolution](rows)
}

// channel is the channel that the functions of the schema notify on: with the payload "zones" when the rules of a zone have changed, with none when a schedule
// is due soon.
const channel = "agent_schedule"

// zoneTimeout bounds one check of all zones in use. There are some 600 zones.
const zoneTimeout = 5 * time.Minute

// CheckZones compares the database server's rules of every zone in use with those of the last check. Where an update of the server's time zone data has changed
// them, it resolves the next occurrences of the schedules in that zone again, all in one transaction, and has the pools begin new sessions, as each
// session knows the rules that were there when it began. A zone that the server does not know any more is logged, and the others are checked nevertheless.
// Run calls it at its start and every ZoneInterval.
func (s *Service) CheckZones(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, zoneTimeout)
	defer cancel()
	s.zonesMu.Lock()
	defer s.zonesMu.Unlock()
	var since *time.Time
	if !s.zones.IsZero() {
		since = &s.zones
		s.loops.Reset() // each session knows the rules that were there when it began
	}
	var (
		now        time.Time
		changed    int
		unresolved []int64
	)
	err := pgx.BeginFunc(ctx, s.loops, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `select clock_timestamp() from set_config('lock_timeout', $1, true)`, s.loops.LockTimeout()).Scan(&now); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, `select zone, moved, unresolved, fault from agent_service.check_zone_rules($1)`, since)
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
		s.pools.Reset()
		s.expandUnresolved(ctx, s.loops, unresolved) // by a session that knows the new rules
		s.woken.Send()
	}
	return nil
}

// expandUnresolved finds the next occurrences of schedules whose next civil time is skipped in their new zone, as far as there is time. They are marked
// in the database: those left here are found by the firing loop of some process.
func (s *Service) expandUnresolved(ctx context.Context, q querier, ids []int64) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	for _, id := range ids {
		r, err := selectRow(ctx, q, `select `+columns+` from agent.get_schedule($1) s`, id)
		if err == nil && r.IsUnplanned {
			var f firing
			if f, err = s.expandDue(newExpander(ctx, q), &due{row: r}, 1); err == nil {
				_, err = storeUnlocked(ctx, q, []firing{f})
			}
		}
		if err != nil {
			s.cfg.Logger.Info().Err(err).Int64("schedule_id", id).Int("schedules", len(ids)).Msg("the next times of schedules are left for the firing loop to find")
			return
		}
	}
}

// subscriber wakes the firing loop when a schedule is due soon, and resets the pools when the rules of a zone have changed.
func (s *Service) subscriber() pg.Subscriber {
	return pg.Subscriber{
		Channel: channel,
		Started: s.woken.Send,
		Received: func(payload string) {
			if payload == "zones" {
				s.pools.Reset()
			} else {
				s.woken.Send()
			}
		},
	}
}
