package schedule

import (
	"context"
	"slices"
	"time"

	"github.com/teambition/rrule-go"
)

// Rules are expanded here, not by the library that reads them: that one may search without end inside of one call, where neither a budget nor a
// context reaches. Here the work is bounded by construction: a rule is gone through by days, and within days by the steps of its
// INTERVAL, leaping over what cannot fit; each day, step and time is counted.

const (
	// maxSteps bounds what is gone through for one call: half a second's work. It is every day until the year 9999, and some.
	maxSteps = 4_000_000
	// maxSearch bounds what is gone through for one next time. The calendar repeats after 400 years, which are 146,097 days. A rule that has nothing
	// within so many days and steps has nothing.
	maxSearch = 300_000
	// checkInterval is how many steps are taken between two looks at the context.
	checkInterval = 1 << 12
)

// steps is the budget of one call, whatever it has to do with rules.
type steps struct {
	ctx  context.Context //nolint:containedctx // it lives as long as the call
	left int
}

func newSteps(ctx context.Context) *steps { return &steps{ctx: ctx, left: maxSteps} }

// take counts one step. It fails when the context has ended, and with an *InvalidError when there are none left.
func (s *steps) take() error {
	s.left--
	if s.left%checkInterval == 0 {
		if err := s.ctx.Err(); err != nil {
			return err
		}
	}
	if s.left < 0 {
		return &InvalidError{Detail: "takes too long to follow: it comes in too few of its steps, or COUNT is too great for it"}
	}
	return nil
}

// pattern is a rule as it is expanded. All times are local, in seconds since 1 January 1970.
type pattern struct {
	freq     rrule.Frequency
	interval int64
	start    int64 // nothing comes before; periods are counted from here
	days     dayFilter
	setPos   []int // which of each period's times count, negative ones from the end; empty: all

	times timesOfDay // for periods of a day and longer: when it comes on its days

	// For shorter periods:
	unit    int64   // the length of one
	offsets []int64 // when it comes within one that fits
	hours   numbers // those that fit; empty: all
	minutes numbers
	seconds numbers
}

// walk goes through a pattern's times in order.
type walk struct {
	p     *pattern
	steps *steps
	until int64 // nothing after
	least int64 // nothing before

	period int64   // the next one to be looked at, counted from that of the start
	days   []int64 // of the period at hand that fit
	next   int     // of the combinations of days and times
	picked []int64 // times of the period at hand, where they are not just all combinations
}

// from returns a walk through the times from a time on.
func (p *pattern) from(s *steps, from, until int64) *walk {
	w := &walk{p: p, steps: s, until: until, least: max(from, p.start)}
	w.period = max(0, p.periodOf(w.least))
	return w
}

// periodOf returns which period a time lies in, or the one before where INTERVAL leaves that out.
func (p *pattern) periodOf(at int64) int64 {
	var distance int64
	switch p.freq {
	case rrule.YEARLY:
		distance = int64(civil(at).Year() - civil(p.start).Year())
	case rrule.MONTHLY:
		a, b := civil(at), civil(p.start)
		distance = int64((a.Year()-b.Year())*12 + int(a.Month()) - int(b.Month()))
	case rrule.WEEKLY:
		distance = floorDiv(dayOf(at)-p.firstWeek(), 7)
	case rrule.DAILY:
		distance = dayOf(at) - dayOf(p.start)
	default:
		distance = floorDiv(at, p.unit) - floorDiv(p.start, p.unit)
	}
	return floorDiv(distance, p.interval)
}

// firstWeek is the first day of the week that the start is in.
func (p *pattern) firstWeek() int64 {
	day := dayOf(p.start)
	return day - int64((weekdayOf(day)-p.days.weekStart+7)%7)
}

// bounds returns the first and last day of a period of a day or longer.
func (p *pattern) bounds(period int64) (first, last int64) {
	switch p.freq {
	case rrule.YEARLY:
		year := civil(p.start).Year() + int(period*p.interval)
		if year > lastTime.Year() {
			return lastDay + 1, lastDay
		}
		first = firstOfYear(year)
		return first, first + int64(yearLength(year)) - 1
	case rrule.MONTHLY:
		start := civil(p.start)
		month := int64(start.Year()*12+int(start.Month())-1) + period*p.interval
		if month >= int64(lastTime.Year()+1)*12 {
			return lastDay + 1, lastDay
		}
		year := int(month / 12)
		first = dayOf(time.Date(year, time.Month(month%12+1), 1, 0, 0, 0, 0, time.UTC).Unix())
		return first, first + int64(monthLength(year, time.Month(month%12+1))) - 1
	case rrule.WEEKLY:
		first = p.firstWeek() + period*p.interval*7
		return first, first + 6
	default:
		first = dayOf(p.start) + period*p.interval
		return first, first
	}
}

// following returns the next time, or false when there is none, or none within maxSearch.
func (w *walk) following() (int64, bool, error) {
	for last := w.steps.left - maxSearch; w.steps.left > last; {
		if at, found := w.ready(); found {
			return at, at <= w.until, w.steps.take()
		}
		ok, err := w.open()
		if !ok || err != nil {
			return 0, false, err
		}
	}
	return 0, false, nil
}

// ready returns the next time of the period at hand.
func (w *walk) ready() (int64, bool) {
	if len(w.picked) > 0 {
		at := w.picked[0]
		w.picked = w.picked[1:]
		return at, true
	}
	size := w.p.times.size()
	if w.next >= len(w.days)*size {
		return 0, false
	}
	at := w.days[w.next/size]*secondsPerDay + w.p.times.at(w.next%size)
	w.next++
	return at, true
}

// open goes on to the next period, or by a step towards one. It returns false when there is none.
func (w *walk) open() (bool, error) {
	if w.p.unit > 0 {
		return w.openWithinDay()
	}
	first, last := w.p.bounds(w.period)
	w.period++
	if first > lastDay || first*secondsPerDay > w.until {
		return false, nil
	}
	w.days, w.next = w.days[:0], 0
	if len(w.p.setPos) == 0 {
		first = max(first, dayOf(w.least))
	}
	for day := first; day <= min(last, lastDay); day++ {
		if err := w.steps.take(); err != nil {
			return false, err
		}
		if w.p.days.fits(day) {
			w.days = append(w.days, day)
		}
	}
	switch {
	case len(w.days) == 0:
	case len(w.p.setPos) > 0:
		size := w.p.times.size()
		w.picked = w.pick(len(w.days)*size, func(i int) int64 { return w.days[i/size]*secondsPerDay + w.p.times.at(i%size) })
		w.days = w.days[:0]
	case w.days[0] == dayOf(w.least):
		w.next = w.p.times.from(w.least - w.days[0]*secondsPerDay)
	}
	return true, nil
}

// pick returns the times that BYSETPOS has of size times, those before least left out.
func (w *walk) pick(size int, at func(int) int64) []int64 {
	picked := w.picked[:0]
	for _, i := range positions(w.p.setPos, size) {
		if t := at(i); t >= w.least {
			picked = append(picked, t)
		}
	}
	return picked
}

// positions returns the indexes that BYSETPOS means among size elements, in order.
func positions(setPos []int, size int) []int {
	var all []int
	for _, pos := range setPos {
		i := pos - 1
		if pos < 0 {
			i = size + pos
		}
		if i >= 0 && i < size {
			all = append(all, i)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// openWithinDay goes on to the next hour, minute or second that fits, or by one leap towards it.
func (w *walk) openWithinDay() (bool, error) {
	if err := w.steps.take(); err != nil {
		return false, err
	}
	p := w.p
	base, step := floorDiv(p.start, p.unit)*p.unit, p.interval*p.unit
	at := base + w.period*step
	if at > w.until || dayOf(at) > lastDay {
		return false, nil
	}
	if to := p.leap(at); to > at {
		w.period = ceilDiv(to-base, step)
		return true, nil
	}
	w.period++
	w.picked = w.picked[:0]
	for _, offset := range p.offsets {
		if at+offset >= w.least {
			w.picked = append(w.picked, at+offset)
		}
	}
	return true, nil
}

// leap returns at when the period that begins then fits, or else a later time before which none does.
func (p *pattern) leap(at int64) int64 {
	day := dayOf(at)
	midnight := day * secondsPerDay
	if !p.days.fits(day) {
		return midnight + secondsPerDay
	}
	clock := int(at - midnight)
	hour, minute, second := clock/3600, clock/60%60, clock%60
	if !p.hours.fits(hour) {
		if next, ok := p.hours.after(hour, 23); ok {
			return midnight + int64(next)*3600
		}
		return midnight + secondsPerDay
	}
	if p.unit < 3600 && !p.minutes.fits(minute) {
		if next, ok := p.minutes.after(minute, 59); ok {
			return midnight + int64(hour)*3600 + int64(next)*60
		}
		return midnight + int64(hour+1)*3600
	}
	if p.unit < 60 && !p.seconds.fits(second) {
		if next, ok := p.seconds.after(second, 59); ok {
			return midnight + int64(hour)*3600 + int64(minute)*60 + int64(next)
		}
		return midnight + int64(hour)*3600 + int64(minute+1)*60
	}
	return at
}

// isReachable reports whether the steps of a pattern within days ever meet its weekdays, hours, minutes and seconds: they repeat weekly, or in a
// divisor of a week that the step has in common with it.
func (p *pattern) isReachable() bool {
	const week = 7 * secondsPerDay
	if p.unit == 0 {
		return true
	}
	a, b := p.interval*p.unit, int64(week)
	for b != 0 {
		a, b = b, a%b
	}
	// Monday, 5 January 1970, was day 4.
	start := floorDiv(p.start, p.unit)*p.unit - 4*secondsPerDay
	for s := ((start % a) + a) % a; s < week; s += a {
		clock := int(s % secondsPerDay)
		if p.days.weekdays.fits(int(s/secondsPerDay)) && p.hours.fits(clock/3600) &&
			(p.unit == 3600 || p.minutes.fits(clock/60%60)) && (p.unit > 1 || p.seconds.fits(clock%60)) {
			return true
		}
	}
	return false
}
