package schedule

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

// querier is a transaction, or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// position is an occurrence's place among those of its schedule: by instant, and by local time where a gap has moved several to one instant.
type position struct {
	at    time.Time
	local time.Time
}

// notBefore is the position before all occurrences from at on.
func notBefore(at time.Time) position { return position{at.Add(-time.Microsecond), lastTime} }

func (p position) compare(q Instant) int {
	if c := p.at.Compare(q.UTC); c != 0 {
		return c
	}
	return p.local.Compare(q.Local)
}

// line is what the occurrences of a schedule follow from.
type line struct {
	id           int64 // of the schedule; zero: none yet
	rule         *rule
	zone         string
	gap          Gap
	overlap      Overlap
	starts, ends *Moment
}

// line returns what r's occurrences follow from. It fails with an *InvalidError, also where the row holds what no schedule can.
func (r *row) line() (line, error) {
	if r.fault != "" {
		return line{}, &InvalidError{Detail: r.fault}
	}
	l := line{id: r.ID, zone: r.Zone, gap: r.Gap, overlap: r.Overlap, starts: r.Starts, ends: r.Ends}
	var err error
	switch r.Kind {
	case Once:
		l.rule = onceRule(r.At.Time)
	case Cron:
		l.rule, err = parseCron(r.Cron)
	case RRule:
		var rec *recurrence
		if rec, err = parseRecurrence(r.RRule); err == nil {
			l.rule = rec.starting(r.At.Time, r.Leap, r.lastLocal) // lastLocal has its COUNT, too
		}
	}
	return l, err
}

// resolved is what agent.resolve_locals says of a local time.
type resolved struct {
	at        *time.Time // nil: it does not come
	isShifted bool       // a gap has moved it
	isKnown   bool       // it is an occurrence already
	resume    *time.Time // where it does not come: the local time at which the gap ends
	fault     *string    // why nothing can be said of it
}

// localTime is a local time to resolve.
type localTime struct {
	*line
	at time.Time
}

// resolve resolves local times, each in its zone.
func resolve(ctx context.Context, q querier, times []localTime) ([]resolved, error) {
	if len(times) == 0 {
		return nil, nil
	}
	var (
		locals   = make([]time.Time, len(times))
		zones    = make([]string, len(times))
		gaps     = make([]string, len(times))
		overlaps = make([]string, len(times))
		ids      = make([]int64, len(times))
	)
	for i, t := range times {
		locals[i], zones[i], gaps[i], overlaps[i], ids[i] = t.at, t.zone, string(t.gap), string(t.overlap), t.id
	}
	rows, _ := q.Query(ctx, `select at, is_shifted, is_known, resume, fault from agent.resolve_locals($1, $2, $3, $4, $5)`, locals, zones, gaps, overlaps, ids)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r resolved, err error) {
		err = row.Scan(&r.at, &r.isShifted, &r.isKnown, &r.resume, &r.fault)
		if r.at != nil {
			*r.at = r.at.UTC()
		}
		return r, err
	})
}

const (
	// maxCandidates is how many local times are resolved for the next occurrences of one schedule. A rule of seconds has 86,400 of them
	// on the day that a zone leaves out when it changes sides of the date line.
	maxCandidates = 100_000
	// maxGaps is how many gaps in a row may swallow all that a rule has, where gaps are skipped. A zone has one a year.
	maxGaps = 400
	// longestGap is more than any zone ever left out at once, which was a day.
	longestGap = 26 * time.Hour
	// afterGap is how many local times are looked at after a gap: there may be another.
	afterGap = 2
)

// following returns the n occurrences that come after a position, in order, or fewer when there are no more. All
// local times before floor come before that position. Those that are known already are passed over. It fails with an *InvalidError when
// s is used up, and where nothing can be said, as for a zone that the server does not know.
//
// Local times and their instants come in the same order, but for those that a gap moves forward, among others that are not moved. So what
// follows is settled as far as the latest instant of a time that was not moved, or, by the length of a gap at most, of one that was.
func following(ctx context.Context, q querier, s *steps, l line, after position, floor time.Time, n int) ([]Instant, error) {
	if s := l.starts.local(); s != nil && s.After(floor) {
		floor = *s
	}
	if s := l.starts.instant(); s != nil && s.After(after.at) {
		var from time.Time
		if err := q.QueryRow(ctx, `select floor from agent.expansion_start($1, $2)`, l.zone, s).Scan(&from); err != nil {
			return nil, err
		}
		if from.After(floor) {
			floor = from
		}
	}
	next := l.rule.from(s, floor)
	var found []Instant
	gaps := 0
	for looked, chunk, more := 0, n+1, true; more; chunk = min(max(afterGap, chunk*4), 1000) {
		times := make([]localTime, 0, chunk)
		for len(times) < chunk && more {
			var at time.Time
			var err error
			if at, more, err = next(); err != nil {
				return nil, err
			}
			if e := l.ends.local(); more && e != nil && at.After(*e) {
				more = false
			}
			if more {
				times = append(times, localTime{&l, at})
			}
		}
		if looked += len(times); looked > maxCandidates {
			return nil, &InvalidError{Detail: "takes too long to follow: too many of its times do not come"}
		}
		answers, err := resolve(ctx, q, times)
		if err != nil {
			return nil, err
		}
		var settled time.Time
		for i, r := range answers {
			if r.fault != nil {
				return nil, &InvalidError{Field: "timezone", Detail: *r.fault}
			}
			if r.at == nil {
				continue
			}
			gaps = 0
			instant := Instant{Local: times[i].at, UTC: *r.at}
			from := instant.UTC // what comes later in local time does not come before
			if r.isShifted {
				from = from.Add(-longestGap)
			}
			if from.After(settled) {
				settled = from
			}
			if e := l.ends.instant(); e != nil && instant.UTC.After(*e) {
				more = more && !from.After(*e)
				continue
			}
			if s := l.starts.instant(); s != nil && instant.UTC.Before(*s) {
				continue
			}
			if !r.isKnown && after.compare(instant) < 0 {
				found = append(found, instant)
			}
		}
		slices.SortFunc(found, func(a, b Instant) int { return position{a.UTC, a.Local}.compare(b) })
		certain := len(found)
		if more {
			certain, _ = slices.BinarySearchFunc(found, settled, func(i Instant, t time.Time) int {
				if i.UTC.After(t) {
					return 1
				}
				return -1
			})
		}
		if certain >= n {
			return found[:n], nil
		}
		// The rest of a gap holds nothing: it is leapt over.
		if last := len(answers) - 1; more && answers[last].resume != nil && answers[last].resume.After(times[last].at) {
			if gaps++; gaps > maxGaps {
				return nil, &InvalidError{Field: "gap", Detail: "leaves nothing: all that the rule has lies in gaps of the time zone"}
			}
			next = l.rule.from(s, *answers[last].resume)
			chunk = 0
		}
	}
	return found[:min(n, len(found))], nil
}

// replanned tries plan, which reads what a schedule is made of and stores what follows from it, until nobody has changed that in between.
func replanned(ctx context.Context, plan func() error) error {
	for tries := 0; ; tries++ {
		err := plan()
		if !errors.Is(err, errChanged) {
			return err
		}
		if !loop.Pause(ctx, loop.Jittered(time.Duration(tries)*time.Millisecond)) {
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}
