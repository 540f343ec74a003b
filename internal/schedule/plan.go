package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// querier is a transaction, or the pool.
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

// line returns what r's occurrences follow from. It fails with an *InvalidError.
func (r *row) line() (line, error) {
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
			rec.option.Count = 0 // lastLocal has it
			l.rule, err = rec.starting(r.At.Time, r.Leap, r.lastLocal)
		}
	}
	return l, err
}

// resolved is what agent.resolve_locals says of a local time.
type resolved struct {
	at        *time.Time // nil: it does not come
	isShifted bool       // a gap has moved it
	isKnown   bool       // it is an occurrence already
}

// localTime is a local time to resolve.
type localTime struct {
	*line
	at time.Time
}

// resolve resolves local times, each in its zone.
func resolve(ctx context.Context, q querier, times []localTime) ([]resolved, error) {
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
	rows, _ := q.Query(ctx, `select at, is_shifted, is_known from agent.resolve_locals($1, $2, $3, $4, $5)`, locals, zones, gaps, overlaps, ids)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r resolved, err error) {
		err = row.Scan(&r.at, &r.isShifted, &r.isKnown)
		if r.at != nil {
			*r.at = r.at.UTC()
		}
		return r, err
	})
}

// maxCandidates is how many local times are looked at for the next occurrences of one schedule.
const maxCandidates = 200_000

// following returns the n occurrences that come after a position, in order, or fewer when there are no more. All
// local times before floor come before that position. Those that are known already are passed over.
//
// Local times and their instants come in the same order, but for those that a gap moves forward, among others that are not moved. So what
// follows is settled as far as the latest instant of a time that was not moved.
func following(ctx context.Context, q querier, l line, after position, floor time.Time, n int) ([]Instant, error) {
	if s := l.starts.local(); s != nil && s.After(floor) {
		floor = *s
	}
	if s := l.starts.instant(); s != nil && s.Add(-16*time.Hour).After(floor) { // no zone is further behind
		floor = s.Add(-16 * time.Hour)
	}
	next := l.rule.from(floor)
	var found []Instant
	for looked, chunk, more := 0, n+1, true; more; chunk = min(chunk*4, 1000) {
		times := make([]localTime, 0, chunk)
		for len(times) < chunk && more {
			var at time.Time
			if at, more = next(); more {
				if e := l.ends.local(); e != nil && at.After(*e) {
					more = false
					break
				}
				times = append(times, localTime{&l, at})
			}
		}
		looked += len(times)
		more = more && looked < maxCandidates
		answers, err := resolve(ctx, q, times)
		if err != nil {
			return nil, err
		}
		var settled time.Time
		for i, r := range answers {
			if r.at == nil {
				continue
			}
			instant := Instant{Local: times[i].at, UTC: *r.at}
			if !r.isShifted && instant.UTC.After(settled) {
				settled = instant.UTC
			}
			if e := l.ends.instant(); e != nil && instant.UTC.After(*e) {
				more = more && r.isShifted
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
	}
	return found[:min(n, len(found))], nil
}
