package schedule

import (
	"context"
	"iter"
	"slices"
	"sort"
	"time"
)

// A series is expanded here, not by the library that parses its rule: see docs/decisions/009-schedules.md. The work is bounded: days and the steps of
// INTERVAL within days are counted, and those that cannot fit are skipped.

const (
	// maxSteps bounds the steps of one call: half a second's work, enough for every day until the year 9999.
	maxSteps = 4_000_000
	// maxSearch bounds the search for one time. The calendar repeats after 400 years, which are 146,097 days: a rule without a time within
	// that many days and as many steps has none.
	maxSearch = 300_000
	// checkInterval is how many steps are taken between two looks at the context.
	checkInterval = 1 << 12
)

// budget bounds the steps of one call.
type budget struct {
	ctx  context.Context //nolint:containedctx // it lives as long as the call
	left int
}

func newBudget(ctx context.Context) *budget { return &budget{ctx: ctx, left: maxSteps} }

// take counts one step. It fails when the context has ended, and with an *InvalidError when no steps are left.
func (b *budget) take() error {
	b.left--
	if b.left%checkInterval == 0 {
		if err := b.ctx.Err(); err != nil {
			return err
		}
	}
	if b.left < 0 {
		return &InvalidError{Detail: "takes too long to expand: it comes in too few of its steps, or COUNT is too great for it"}
	}
	return nil
}

// series are the civil times of a recurrence rule or a cron expression, in order, or a single one. Times are in seconds since 1 January 1970, of no
// zone. A series goes through periods of FREQ, INTERVAL apart, and has the times of each period that its BY parts allow.
type series struct {
	only *time.Time // the single time; nil: a rule's

	// isRealTime says that each instant at which clocks show a time of the series is an occurrence: none of a time that they skip, two of one that they
	// show twice. The policies for gaps and overlaps do not matter then.
	isRealTime bool

	start int64 // nothing comes before
	until int64 // nothing comes after

	// The periods, counted in months, days, or units of so many seconds.
	byMonth bool
	unit    int64 // zero: months or days
	origin  int64 // where the first one begins
	step    int64 // from the beginning of one to that of the next
	length  int64

	days    dayFilter
	clock   [3]numbers // the hours, minutes and seconds, for periods shorter than a day
	offsets []int64    // the times within a period shorter than a day, from its beginning
	times   timesOfDay // the times within a day, for longer periods
	setPos  []int      // which of a longer period's times count, negative ones from the end; empty: all
}

// singleTime is the series of one time.
func singleTime(at time.Time) *series { return &series{only: &at} }

// from yields the times of a series from t on. It ends after maxSearch steps without a time, and with an error when the budget is used up or
// its context ends.
func (s *series) from(b *budget, t time.Time) iter.Seq2[time.Time, error] {
	return func(yield func(time.Time, error) bool) {
		if s.only != nil {
			if !s.only.Before(t) {
				yield(*s.only, nil)
			}
			return
		}
		x := expansion{series: s, budget: b, yield: yield, least: max(s.start, ceilDiv(t.UnixMicro(), 1_000_000))}
		x.run()
	}
}

// after returns the first time after t. It takes a number of steps at most.
func (s *series) after(ctx context.Context, t time.Time, steps int) (time.Time, bool, error) {
	for at, err := range s.from(&budget{ctx, steps}, t.Add(time.Microsecond)) {
		return at, err == nil, err
	}
	return time.Time{}, false, nil
}

// check makes sure that a rule comes at all, and ends the series after count times (zero: no bound). It fails with an *InvalidError of field.
func (s *series) check(b *budget, field string, count int) error {
	if detail := s.contradiction(); detail != "" {
		return &InvalidError{Field: field, Detail: detail}
	}
	n := 0
	for at, err := range s.from(b, civil(s.start)) {
		if err != nil {
			return fieldOf(err, field)
		}
		if n++; n == count {
			s.until = at.Unix()
		}
		if n >= count {
			return nil
		}
	}
	if n == 0 {
		return &InvalidError{Field: field, Detail: "never comes"}
	}
	return nil
}

// contradiction returns why a rule never comes, as far as that follows from its parts alone.
func (s *series) contradiction() string {
	perDay := len(s.offsets)
	if s.unit == 0 {
		perDay = s.times.size()
		if !s.byMonth && s.length == 1 && len(s.setPos) > 0 {
			perDay = len(positions(s.setPos, perDay))
		}
	}
	switch {
	case perDay == 0:
		return "never comes: BYSETPOS asks for more than there is in each period of FREQ"
	case s.unit > 0 && !s.isReachable():
		return "never comes: the steps of INTERVAL meet none of the times that BY... names"
	}
	return ""
}

// isReachable reports whether periods within days ever meet the weekdays, hours, minutes and seconds: where they begin repeats weekly, or in the
// greatest common divisor of a week and their distance.
func (s *series) isReachable() bool {
	const week, firstMonday = 7 * secondsPerDay, 4 * secondsPerDay // 5 January 1970
	distance, rest := s.step*s.unit, int64(week)
	for rest != 0 {
		distance, rest = rest, distance%rest
	}
	first := s.origin*s.unit - firstMonday
	for at := first - floorDiv(first, distance)*distance; at < week; at += distance {
		if s.days.weekdays.allows(int(at/secondsPerDay)) && s.excludedBy(at%secondsPerDay) < 0 {
			return true
		}
	}
	return false
}

// The units of a time of day, and the unit that each is a part of.
var (
	clockUnits = [3]int64{3600, 60, 1}
	clockSpans = [3]int64{secondsPerDay, 3600, 60}
)

// excludedBy returns which of hours, minutes and seconds leaves out the period that begins at a time of day, or -1 when none does.
func (s *series) excludedBy(clock int64) int {
	for i, unit := range clockUnits {
		if s.unit <= unit && !s.clock[i].allows(int(clock%clockSpans[i]/unit)) {
			return i
		}
	}
	return -1
}

// skip returns at when the period that begins there can have times, or else a later time before which none can.
func (s *series) skip(at int64) int64 {
	midnight := dayOf(at) * secondsPerDay
	if !s.days.allows(dayOf(at)) {
		return midnight + secondsPerDay
	}
	clock := at - midnight
	i := s.excludedBy(clock)
	if i < 0 {
		return at
	}
	unit, span := clockUnits[i], clockSpans[i]
	next := clock%span/unit + 1
	for next < span/unit && !s.clock[i].has(int(next)) {
		next++
	}
	return at - clock%span + next*unit
}

// periodOf returns the period that a time lies in, or the one before where INTERVAL leaves it out.
func (s *series) periodOf(at int64) int64 {
	var index int64
	switch {
	case s.byMonth:
		index = monthOf(at)
	case s.unit > 0:
		index = floorDiv(at, s.unit)
	default:
		index = dayOf(at)
	}
	return floorDiv(index-s.origin, s.step)
}

// period returns the first and last day of a period of a day or longer.
func (s *series) period(n int64) (first, last int64) {
	begin := s.origin + n*s.step
	if s.byMonth {
		return firstOfMonth(begin), firstOfMonth(begin+s.length) - 1
	}
	return begin, begin + s.length - 1
}

// expansion is one run through a series.
type expansion struct {
	*series
	budget *budget
	least  int64 // nothing comes before
	yield  func(time.Time, error) bool
	giveUp int // the budget at which the search for the next time ends
}

// run yields all times.
func (x *expansion) run() {
	x.giveUp = x.budget.left - maxSearch
	for n := max(0, x.periodOf(x.least)); x.budget.left > x.giveUp; n++ {
		if x.unit == 0 {
			if !x.runDays(n) {
				return
			}
			continue
		}
		at := (x.origin + n*x.step) * x.unit
		if at > x.until || !x.count() {
			return
		}
		if to := x.skip(at); to > at {
			n = ceilDiv(to-x.origin*x.unit, x.step*x.unit) - 1
			continue
		}
		for _, offset := range x.offsets {
			if !x.emit(at + offset) {
				return
			}
		}
	}
}

// runDays yields the times of a period of a day or longer, and reports whether more may follow.
func (x *expansion) runDays(n int64) bool {
	first, last := x.period(n)
	if first*secondsPerDay > x.until {
		return false
	}
	if len(x.setPos) == 0 {
		first = max(first, dayOf(x.least))
	}
	size := x.times.size()
	var days []int64 // that setPos counts
	for day := first; day <= last; day++ {
		switch {
		case !x.count():
			return false
		case !x.days.allows(day):
		case len(x.setPos) > 0:
			days = append(days, day)
		default:
			for i := x.times.search(x.least - day*secondsPerDay); i < size; i++ {
				if !x.emit(day*secondsPerDay + x.times.at(i)) {
					return false
				}
			}
		}
	}
	for _, i := range positions(x.setPos, len(days)*size) {
		if !x.emit(days[i/size]*secondsPerDay + x.times.at(i%size)) {
			return false
		}
	}
	return true
}

// emit yields a time unless it lies before least, and reports whether more may follow.
func (x *expansion) emit(at int64) bool {
	if at < x.least {
		return true
	}
	if at > x.until || !x.count() {
		return false
	}
	x.giveUp = x.budget.left - maxSearch
	return x.yield(civil(at), nil)
}

// count takes a step. Where it cannot, it yields the error and returns false.
func (x *expansion) count() bool {
	err := x.budget.take()
	if err != nil {
		x.yield(time.Time{}, err)
	}
	return err == nil
}

// positions returns the indexes that BYSETPOS selects of size elements, in order.
func positions(setPos []int, size int) []int {
	var all []int
	for _, pos := range setPos {
		if pos < 0 {
			pos += size + 1
		}
		if pos >= 1 && pos <= size {
			all = append(all, pos-1)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// timesOfDay are all combinations of hours, minutes and seconds, in order. They are computed, not stored: there may be 86,400.
type timesOfDay struct{ hours, minutes, seconds []int }

func combine(hours, minutes, seconds []int) timesOfDay {
	sorted := func(all []int) []int { return slices.Compact(slices.Sorted(slices.Values(all))) }
	return timesOfDay{sorted(hours), sorted(minutes), sorted(seconds)}
}

func (t *timesOfDay) size() int { return len(t.hours) * len(t.minutes) * len(t.seconds) }

// at returns the combination of an index, in seconds.
func (t *timesOfDay) at(i int) int64 {
	m, s := len(t.minutes), len(t.seconds)
	return int64(t.hours[i/(m*s)]*3600 + t.minutes[i/s%m]*60 + t.seconds[i%s])
}

// search returns the index of the first combination from a time of day on.
func (t *timesOfDay) search(seconds int64) int {
	return sort.Search(t.size(), func(i int) bool { return t.at(i) >= seconds })
}

// A dayFilter is the days that a rule allows. Empty sets allow all.
type dayFilter struct {
	months    numbers
	monthDays numbers // negative ones from the month's end
	yearDays  numbers // negative ones from the year's end
	weeks     numbers // of the year, negative ones from its end
	weekStart int     // the weekday that weeks begin with
	weekdays  numbers // 0 is Monday
	// nth has, by weekday, which of them within their month or year are allowed as well, negative ones from its end.
	nth       [7]numbers
	hasNth    bool
	nthOfYear bool
	// isEither allows a day of monthDays or of weekdays where both are given, as cron does.
	isEither bool
}

func (f *dayFilter) allows(day int64) bool {
	if !f.isEither && !f.hasNth && !f.weekdays.allows(weekdayOf(day)) { // the cheapest test first
		return false
	}
	year, month, monthDay := civil(day * secondsPerDay).Date()
	if !f.months.allows(int(month)) {
		return false
	}
	isMonthDay := f.monthDays.allows(monthDay) || f.monthDays.has(monthDay-1-monthLength(year, month))
	isWeekday := f.allowsWeekday(day, year, month, monthDay)
	if f.isEither && f.monthDays != nil && f.weekdays != nil {
		return isMonthDay || isWeekday
	}
	if !isMonthDay || !isWeekday {
		return false
	}
	if f.yearDays != nil {
		yearDay := int(day-firstOfYear(year)) + 1
		if !f.yearDays.has(yearDay) && !f.yearDays.has(yearDay-1-yearLength(year)) {
			return false
		}
	}
	return f.weeks == nil || f.allowsWeek(day)
}

func (f *dayFilter) allowsWeekday(day int64, year int, month time.Month, monthDay int) bool {
	weekday := weekdayOf(day)
	nth := f.nth[weekday]
	if nth == nil {
		return f.weekdays.has(weekday) || !f.hasNth && f.weekdays == nil
	}
	at, length := monthDay-1, monthLength(year, month)
	if f.nthOfYear {
		at, length = int(day-firstOfYear(year)), yearLength(year)
	}
	return f.weekdays.has(weekday) || nth.has(at/7+1) || nth.has(-((length-1-at)/7 + 1))
}

// allowsWeek goes by the numbers of weeks: a week belongs to the year that its fourth day is in, as ISO 8601 has it.
func (f *dayFilter) allowsWeek(day int64) bool {
	fourth := day - int64((weekdayOf(day)-f.weekStart+7)%7) + 3
	year := civil(fourth * secondsPerDay).Year()
	at := int(fourth - firstOfYear(year))
	week, weeks := at/7+1, (yearLength(year)-1-at%7)/7+1
	return f.weeks.has(week) || f.weeks.has(week-weeks-1)
}

// numbers is a set of whole numbers from -366 to 366, nil when it is empty.
type numbers []bool

func numbersOf(all []int) (n numbers) {
	for _, v := range all {
		if n == nil {
			n = make(numbers, 2*366+1)
		}
		n[v+366] = true
	}
	return n
}

func (n numbers) has(v int) bool { return n != nil && n[v+366] }

// allows reports whether v is in the set, or the set is empty.
func (n numbers) allows(v int) bool { return n == nil || n[v+366] }

const secondsPerDay = 86400

// civil returns a civil time that is given in seconds.
func civil(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

// dayOf returns the day that a civil time is in, counted from 1 January 1970.
func dayOf(seconds int64) int64 { return floorDiv(seconds, secondsPerDay) }

// monthOf returns the month that a civil time is in, counted from January of the year 0.
func monthOf(seconds int64) int64 {
	year, month, _ := civil(seconds).Date()
	return int64(year*12 + int(month) - 1)
}

// firstOfMonth returns the first day of a month.
func firstOfMonth(month int64) int64 {
	return dayOf(time.Date(int(month/12), time.Month(month%12+1), 1, 0, 0, 0, 0, time.UTC).Unix())
}

func firstOfYear(year int) int64 { return firstOfMonth(int64(year) * 12) }

func yearLength(year int) int {
	if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
		return 366
	}
	return 365
}

func monthLength(year int, month time.Month) int {
	return time.Date(year, month+1, 0, 0, 0, 0, 0, time.UTC).Day()
}

// weekdayOf returns a day's weekday, 0 for Monday.
func weekdayOf(day int64) int { return int(day + 3 - 7*floorDiv(day+3, 7)) } // 1 January 1970 was a Thursday

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }
