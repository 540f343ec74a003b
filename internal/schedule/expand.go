package schedule

import (
	"cmp"
	"context"
	"slices"
	"sort"
	"time"

	"github.com/jackc/pgx/v5"
)

// querier is a transaction, a connection, or a pool.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// expander finds the occurrences of a schedule that come next, within the budget of one call.
type expander struct {
	*budget
	q querier
}

func newExpander(ctx context.Context, q querier) *expander { return &expander{newBudget(ctx), q} }

const (
	// maxCandidates is how many civil times are resolved for the next occurrences of one schedule. A rule of seconds has 86,400 of them on the
	// day that a zone leaves out when it changes sides of the date line.
	maxCandidates = 100_000
	// maxGaps is how many gaps in a row may skip all that a rule has. A zone has one a year.
	maxGaps = 400
	// longestGap is more than any zone ever left out at once, which was a day.
	longestGap = 26 * time.Hour
	// afterGap is how many civil times are resolved after a gap: there may be another.
	afterGap = 2
)

// compareInstants orders occurrences of one schedule: by instant, and by civil time where a gap moves several to one instant.
func compareInstants(a, b Instant) int { return cmp.Or(a.UTC.Compare(b.UTC), a.Local.Compare(b.Local)) }

// following returns the n occurrences of a schedule that come after another one, in order, or fewer when there are no more. All civil times before
// floor come before that one. Those that are known already are left out. It fails with an *InvalidError when the budget is used up, and for a zone that the
// server does not know.
//
// Civil times and their instants come in the same order, except for times that a gap moves forward among others. So the occurrences that follow are certain up to the
// latest instant of a time that was not moved, or of one that was moved, less the length of a gap. In real time no time is moved, and the first instants of times come in their
// order.
func (e *expander) following(r *row, after Instant, floor time.Time, n int) ([]Instant, error) {
	floor, err := e.startFloor(r, after, floor)
	if err != nil {
		return nil, err
	}
	var found []Instant
	starts, ends := r.Starts.instant(), r.lastInstant()
	add := func(at Instant, isKnown bool) {
		if !isKnown && compareInstants(after, at) < 0 && (starts == nil || !at.UTC.Before(*starts)) && (ends == nil || !at.UTC.After(*ends)) {
			found = append(found, at)
		}
	}
	looked, gaps := 0, 0
	for chunk, more := n+1, true; more; chunk = min(max(afterGap, chunk*4), 1000) {
		times, err := e.take(r, floor, chunk)
		if err != nil {
			return nil, err
		}
		more = len(times) == chunk
		if looked += len(times); looked > maxCandidates {
			return nil, &InvalidError{Detail: "takes too long to expand: too many of its times do not come"}
		}
		resolutions, err := resolve(e.ctx, e.q, times)
		if err != nil {
			return nil, err
		}
		again, err := resolveLast(e.ctx, e.q, times)
		if err != nil {
			return nil, err
		}
		var certainUntil time.Time
		for i, res := range resolutions {
			if res.Fault != nil {
				return nil, &InvalidError{Field: "timezone", Detail: *res.Fault}
			}
			if res.At == nil {
				continue
			}
			gaps = 0
			instant := Instant{Local: times[i].at, UTC: res.At.UTC()}
			earliest := instant.UTC // that a later civil time can come at
			if res.IsShifted {
				earliest = earliest.Add(-longestGap)
			}
			if earliest.After(certainUntil) {
				certainUntil = earliest
			}
			if ends != nil && earliest.After(*ends) {
				more = false
			}
			add(instant, res.IsKnown)
			if again != nil && !again[i].At.Equal(*res.At) {
				add(Instant{Local: instant.Local, UTC: again[i].At.UTC()}, again[i].IsKnown)
			}
		}
		slices.SortFunc(found, compareInstants)
		certain := len(found)
		if more {
			certain = sort.Search(len(found), func(i int) bool { return found[i].UTC.After(certainUntil) })
		}
		if certain >= n {
			return found[:n], nil
		}
		if !more {
			break
		}
		last := len(times) - 1
		floor = times[last].at.Add(time.Microsecond)
		if resume := resolutions[last].Resume; resume != nil && resume.After(times[last].at) { // the rest of the gap holds nothing
			if gaps++; gaps > maxGaps {
				return nil, &InvalidError{Field: "gap", Detail: "skips everything: all times of the rule lie in gaps of the time zone"}
			}
			floor, chunk = *resume, 0
		}
	}
	return found[:min(n, len(found))], nil
}

// startFloor returns the later of floor and the civil time before which nothing comes by the schedule's Starts.
func (e *expander) startFloor(r *row, after Instant, floor time.Time) (time.Time, error) {
	starts := r.Starts.local()
	if at := r.Starts.instant(); at != nil && at.After(after.UTC) {
		_, first, err := e.start(r.Zone, at)
		if err != nil {
			return floor, err
		}
		starts = &first
	}
	if starts != nil && starts.After(floor) {
		return *starts, nil
	}
	return floor, nil
}

// start returns at, or (nil) now, and a civil time of a zone before which all come before that.
func (e *expander) start(zone string, at *time.Time) (from, floor time.Time, err error) {
	err = e.q.QueryRow(e.ctx, `select at, floor from agent_service.expansion_start($1, $2)`, zone, at).Scan(&from, &floor)
	return from, floor, wrap("expanding", err)
}

// take returns the first n civil times of a schedule from a time on, or fewer when there are no more.
func (e *expander) take(r *row, from time.Time, n int) ([]civilTime, error) {
	times := make([]civilTime, 0, n)
	for at, err := range r.series.from(e.budget, from) {
		if err != nil {
			return nil, err
		}
		if ends := r.Ends.local(); ends != nil && at.After(*ends) {
			break
		}
		if times = append(times, civilTime{r, at}); len(times) == n {
			break
		}
	}
	return times, nil
}

// noted returns occurrences of a schedule with what the clocks of its zone do with their civil times.
func (e *expander) noted(r *row, instants []Instant) ([]Upcoming, error) {
	policy := func(overlap Overlap) *row { // with only what resolve takes
		return &row{Schedule: Schedule{Zone: r.Zone, Spec: Spec{Gap: GapSkip, Overlap: overlap}}}
	}
	first, last := policy(OverlapFirst), policy(OverlapLast)
	n := len(instants)
	times := make([]civilTime, 2*n)
	for i, at := range instants {
		times[i], times[n+i] = civilTime{first, at.Local}, civilTime{last, at.Local}
	}
	resolutions, err := resolve(e.ctx, e.q, times)
	if err != nil {
		return nil, err
	}
	upcoming := make([]Upcoming, n)
	for i, at := range instants {
		upcoming[i].Instant = at
		switch a, b := resolutions[i], resolutions[n+i]; {
		case a.Fault != nil:
		case a.At == nil:
			upcoming[i].Note = NoteSkipped
		case b.At != nil && !a.At.Equal(*b.At):
			upcoming[i].Note = NoteRepeated
		}
	}
	return upcoming, nil
}

// draft is a schedule that is not stored yet.
type draft struct {
	row
	at    time.Time // where its times begin: now, or when a preview is to begin
	floor time.Time // a civil time before which all come before at
}

// fieldOf names the field that a draft's times come from in an *InvalidError that names none.
func (d *draft) fieldOf(err error) error {
	if d.Kind == Once {
		return fieldOf(err, "at")
	}
	return fieldOf(err, string(d.Kind))
}

func fieldOf(err error, field string) error {
	if invalid, ok := err.(*InvalidError); ok && invalid.Field == "" { //nolint:errorlint // it is not wrapped yet
		return &InvalidError{Field: field, Detail: invalid.Detail}
	}
	return err
}

// draft returns the draft of spec, from after or (nil) now on. It fails with an *InvalidError where the spec contradicts itself, or its rule never comes.
func (e *expander) draft(spec Spec, after *time.Time) (*draft, error) {
	kind, err := spec.check()
	if err != nil {
		return nil, err
	}
	d := &draft{row: row{Schedule: Schedule{Spec: spec, Kind: kind}}}
	rec := &recurrence{}
	if kind == RRule {
		if rec, err = parseRecurrence(spec.RRule); err != nil {
			return nil, err
		}
	}

	// A recurrence needs the civil times of instants.
	instants := []*time.Time{spec.At.instant(), spec.Starts.instant(), rec.until.instant()}
	var (
		localAt time.Time
		locals  []*time.Time
	)
	err = e.q.QueryRow(e.ctx, `select zone, at, local_at, floor, locals from agent_service.schedule_zone(nullif($1, ''), nullif($2, ''), $3, $4, $5)`,
		spec.Timezone, spec.Owner, kind == Once && spec.At.IsInstant, after, instants).Scan(&d.Zone, &d.at, &localAt, &d.floor, &locals)
	if err != nil {
		return nil, err
	}
	d.at = d.at.UTC()
	switch kind {
	case Once:
		d.series = singleTime(spec.At.Time)
		return d, nil
	case Cron:
		if d.series, err = parseCron(spec.Cron); err != nil {
			return nil, err
		}
		return d, d.series.check(e.budget, "cron", 0)
	}

	start := cmp.Or(spec.At.local(), locals[0], spec.Starts.local(), locals[1], &localAt).Truncate(time.Second)
	d.At = &Moment{Time: start}
	if d.UntilAt = rec.until.instant(); d.UntilAt != nil { // a later civil time may come before it
		d.series = rec.series(start, spec.Leap, new(locals[2].Add(longestGap)))
		return d, d.series.check(e.budget, "rrule", 0)
	}
	d.series = rec.series(start, spec.Leap, rec.until.local())
	count := rec.option.Count
	if d.Gap == GapSkip || d.isRealTime() { // which does not count all times once
		count = 0
	}
	if err := d.series.check(e.budget, "rrule", count); err != nil {
		return nil, err
	}
	if count < rec.option.Count {
		if err := e.endAfter(d, rec.option.Count); err != nil {
			return nil, err
		}
	}
	if last := civil(d.series.until); last.Before(lastTime) {
		d.LastLocal = &last
	}
	return d, nil
}

// endAfter ends a draft after count times that the clocks of its zone show: RFC 5545 does not count others. In real time it ends at an instant, as that may be the first of two of a
// civil time.
func (e *expander) endAfter(d *draft, count int) error {
	if d.isRealTime() {
		unbounded := row{Schedule: Schedule{Zone: d.Zone}, series: d.series}
		all, err := e.following(&unbounded, Instant{}, civil(d.series.start), count)
		if err == nil && len(all) == count {
			d.UntilAt = &all[count-1].UTC
		}
		return fieldOf(err, "rrule")
	}
	looked := 0
	for from := civil(d.series.start); count > 0; {
		times, err := e.take(&d.row, from, min(count+afterGap, 1000))
		if err != nil || len(times) == 0 {
			return fieldOf(err, "rrule")
		}
		if looked += len(times); looked > maxCandidates {
			return &InvalidError{Field: "rrule", Detail: "takes too long to expand: too many of its times do not come"}
		}
		resolutions, err := resolve(e.ctx, e.q, times)
		if err != nil {
			return err
		}
		for i, res := range resolutions {
			if res.Fault != nil {
				return &InvalidError{Field: "timezone", Detail: *res.Fault}
			}
			if from = times[i].at.Add(time.Microsecond); res.At == nil {
				continue
			}
			if count--; count == 0 {
				d.series.until = times[i].at.Unix()
				break
			}
		}
	}
	return nil
}

// setNext sets the first occurrence from d.at on that has not happened, or a single time, whenever it is.
func (e *expander) setNext(d *draft) error {
	d.NextLocal, d.NextAt, d.IsUnplanned = nil, nil, false
	if d.Count > 0 && d.Fired >= int64(d.Count) {
		return nil
	}
	after, floor := Instant{UTC: d.at.Add(-time.Microsecond), Local: lastTime}, d.floor
	if d.Kind == Once {
		after, floor = Instant{}, time.Time{}
	}
	next, err := e.following(&d.row, after, floor, 1)
	if err != nil {
		return d.fieldOf(err)
	}
	if len(next) > 0 {
		d.NextLocal, d.NextAt = &next[0].Local, &next[0].UTC
	}
	return nil
}

// setNextAfter sets the first occurrence from d.at on of a civil time later than local.
func (e *expander) setNextAfter(d *draft, local time.Time) error {
	if after := local.Add(time.Microsecond); after.After(d.floor) {
		d.floor = after
	}
	return e.setNext(d)
}

// move resolves the next occurrence of before anew, by the zone and policies of d, as agent_private.move_schedules does.
func (e *expander) move(d *draft, before row) error {
	switch {
	case before.NextAt == nil:
		return nil
	case d.isRealTime():
		return e.moveInRealTime(d, before)
	}
	resolutions, err := resolve(e.ctx, e.q, []civilTime{{&d.row, *before.NextLocal}})
	if err != nil {
		return err
	}
	if fault := resolutions[0].Fault; fault != nil {
		return &InvalidError{Field: "timezone", Detail: *fault}
	}
	at := resolutions[0].At
	if ends := d.lastInstant(); at == nil || ends != nil && at.After(*ends) {
		return e.setNextAfter(d, *before.NextLocal)
	}
	if at.Before(d.at) {
		if at = &d.at; !before.NextAt.After(d.at) {
			at = before.NextAt
		}
	}
	d.NextLocal, d.NextAt = before.NextLocal, at
	return nil
}

// plan finds the next occurrence of a stored schedule whose next civil time does not come.
func (e *expander) plan(d *draft) (err error) {
	if d.isRealTime() {
		return e.moveInRealTime(d, d.row)
	}
	if d.at, d.floor, err = e.start(d.Zone, nil); err != nil {
		return err
	}
	return e.setNextAfter(d, *d.NextLocal)
}

// moveInRealTime finds the next occurrence from now on, unless that of before has come and did not fire yet.
func (e *expander) moveInRealTime(d *draft, before row) (err error) {
	switch {
	case before.IsUnplanned: // it was moved before, and is to be looked for from then on
		if d.at, d.floor, err = e.start(d.Zone, before.NextAt); err != nil {
			return err
		}
	case !before.NextAt.After(d.at):
		d.NextLocal, d.NextAt = before.NextLocal, before.NextAt
		return nil
	}
	return e.setNext(d)
}
