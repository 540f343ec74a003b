package schedule

import (
	"slices"
	"sort"
	"time"
)

const secondsPerDay = 86400

// lastDay is the last day there is, counted from 1 January 1970.
var lastDay = dayOf(lastTime.Unix())

// dayOf returns the day in which a local time lies that is given in seconds.
func dayOf(seconds int64) int64 { return floorDiv(seconds, secondsPerDay) }

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }

// weekdayOf returns a day's weekday, 0 for Monday.
func weekdayOf(day int64) int { return int(((day+3)%7 + 7) % 7) } // 1 January 1970 was a Thursday

// civil returns a local time in seconds as package time has it, with the location UTC.
func civil(seconds int64) time.Time { return time.Unix(seconds, 0).UTC() }

func firstOfYear(year int) int64 { return dayOf(time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC).Unix()) }

func yearLength(year int) int {
	if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
		return 366
	}
	return 365
}

func monthLength(year int, month time.Month) int {
	switch month {
	case time.February:
		return yearLength(year) - 337
	case time.April, time.June, time.September, time.November:
		return 30
	default:
		return 31
	}
}

// numbers is a set of whole numbers from -366 to 366. The zero value is empty.
type numbers struct {
	bits [12]uint64
	size int
}

const numbersOffset = 366

func numbersOf(all []int) (n numbers) {
	for _, v := range all {
		n.add(v)
	}
	return n
}

func (n *numbers) add(v int) {
	if i := v + numbersOffset; !n.has(v) {
		n.bits[i/64] |= 1 << (i % 64)
		n.size++
	}
}

func (n *numbers) has(v int) bool {
	i := v + numbersOffset
	return n.bits[i/64]&(1<<(i%64)) != 0
}

// fits reports whether v is in the set, or nothing is.
func (n *numbers) fits(v int) bool { return n.size == 0 || n.has(v) }

// after returns the least of the set that is greater than v, and whether there is one up to last.
func (n *numbers) after(v, last int) (int, bool) {
	for v++; v <= last; v++ {
		if n.has(v) {
			return v, true
		}
	}
	return 0, false
}

// A dayFilter says which days a rule comes on. Sets that are empty let all days pass.
type dayFilter struct {
	months    numbers
	monthDays numbers // negative ones from the month's end
	yearDays  numbers // negative ones from the year's end
	weeks     numbers // of the year, negative ones from its end
	weekStart int     // the weekday that weeks begin with
	weekdays  numbers // 0 is Monday
	// nth has, for each weekday, which of them count, within their month or within their year; negative ones from its end. A day that fits weekdays
	// need not fit nth, and the other way round.
	nth       [7]numbers
	hasNth    bool
	nthOfYear bool
	// isEither has a day pass that fits monthDays or weekdays, where both are given: so cron has it.
	isEither bool
}

// fits reports whether a rule comes on a day.
func (f *dayFilter) fits(day int64) bool {
	if !f.isEither && !f.hasNth && !f.weekdays.fits(weekdayOf(day)) { // the cheapest to tell
		return false
	}
	year, month, monthDay := civil(day * secondsPerDay).Date()
	if !f.months.fits(int(month)) {
		return false
	}
	fitsMonthDay := f.monthDays.fits(monthDay) || f.monthDays.has(monthDay-1-monthLength(year, month))
	fitsWeekday := f.fitsWeekday(day, year, month, monthDay)
	if f.isEither && f.monthDays.size > 0 && f.weekdays.size > 0 {
		return fitsMonthDay || fitsWeekday
	}
	if !fitsMonthDay || !fitsWeekday {
		return false
	}
	if f.yearDays.size+f.weeks.size == 0 {
		return true
	}
	yearDay, length := int(day-firstOfYear(year)), yearLength(year)
	if f.yearDays.size > 0 && !f.yearDays.has(yearDay+1) && !f.yearDays.has(yearDay-length) {
		return false
	}
	return f.weeks.size == 0 || f.fitsWeek(day, year, yearDay)
}

func (f *dayFilter) fitsWeekday(day int64, year int, month time.Month, monthDay int) bool {
	weekday := weekdayOf(day)
	if !f.hasNth {
		return f.weekdays.fits(weekday)
	}
	if f.weekdays.has(weekday) {
		return true
	}
	nth := &f.nth[weekday]
	if nth.size == 0 {
		return false
	}
	at, length := monthDay-1, monthLength(year, month)
	if f.nthOfYear {
		at, length = int(day-firstOfYear(year)), yearLength(year)
	}
	return nth.has(at/7+1) || nth.has(-((length-1-at)/7 + 1))
}

// fitsWeek goes by the numbers of weeks: a week belongs to the year that has four of its days or more.
func (f *dayFilter) fitsWeek(day int64, year, yearDay int) bool {
	fourth := yearDay - (weekdayOf(day)-f.weekStart+7)%7 + 3 // the day of the year of the week's fourth day
	length := yearLength(year)
	switch {
	case fourth < 0:
		length = yearLength(year - 1)
		fourth += length
	case fourth >= length:
		fourth -= length
		length = yearLength(year + 1)
	}
	week, weeks := fourth/7+1, (length-1-fourth%7)/7+1
	return f.weeks.has(week) || f.weeks.has(week-weeks-1)
}

// timesOfDay are all combinations of hours, minutes and seconds, in order. They are counted out, not kept: there may be 86,400.
type timesOfDay struct{ hours, minutes, seconds []int }

func timesOf(hours, minutes, seconds []int) timesOfDay {
	sorted := func(all []int) []int { return slices.Compact(slices.Sorted(slices.Values(all))) }
	return timesOfDay{sorted(hours), sorted(minutes), sorted(seconds)}
}

func (t *timesOfDay) size() int { return len(t.hours) * len(t.minutes) * len(t.seconds) }

// at returns one of them, in seconds.
func (t *timesOfDay) at(i int) int64 {
	m, s := len(t.minutes), len(t.seconds)
	return int64(t.hours[i/(m*s)]*3600 + t.minutes[i/s%m]*60 + t.seconds[i%s])
}

// from returns how many come before a time, in seconds.
func (t *timesOfDay) from(seconds int64) int {
	return sort.Search(t.size(), func(i int) bool { return t.at(i) >= seconds })
}
