package schedule

import (
	"slices"
	"strings"
	"time"

	"github.com/netresearch/go-cron"
	"github.com/teambition/rrule-go"
)

const (
	// maxInterval is the greatest INTERVAL of a recurrence rule.
	maxInterval = 1_000_000
	// maxRuleCount is the greatest COUNT of a recurrence rule: so many times are gone through when the schedule is made. One that comes
	// within days, and not in all its steps, is slower to follow.
	maxRuleCount    = 10_000
	maxPartialCount = 1000
	// searchYears is how far a rule is followed for its next time: in 400 years the calendar repeats.
	searchYears = 400
)

// lastTime is the last local time there is.
var lastTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// rule yields local times, which wear UTC's clothes. It knows no zone.
type rule struct {
	at    *time.Time // the only one
	cron  cron.Schedule
	rrule *rrule.ROption // without COUNT and UNTIL, with everything that DTSTART stands for said
	until time.Time      // none comes after
}

// onceRule is the rule of a single time.
func onceRule(at time.Time) *rule { return &rule{at: &at, until: lastTime} }

// cronParser reads five fields, or six with seconds in front. A day fits when either its number or its weekday does, where both are
// given, as POSIX has it.
var cronParser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom).
	WithMaxSearchYears(searchYears)

// parseCron reads a cron expression. It fails with an *InvalidError.
func parseCron(text string) (*rule, error) {
	if strings.Contains(text, "=") {
		return nil, &InvalidError{Field: "cron", Detail: "takes its zone from timezone, not from the expression"}
	}
	parsed, err := cronParser.Parse(text)
	if err != nil {
		return nil, &InvalidError{Field: "cron", Detail: err.Error()}
	}
	if _, ok := parsed.(*cron.SpecSchedule); !ok {
		return nil, &InvalidError{Field: "cron", Detail: "must name times, not a distance between them"}
	}
	r := &rule{cron: parsed, until: lastTime}
	if _, ok := r.from(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))(); !ok {
		return nil, &InvalidError{Field: "cron", Detail: "never comes"}
	}
	return r, nil
}

// recurrence is a recurrence rule as it was written.
type recurrence struct {
	option rrule.ROption
	// until is its UNTIL, nil where it has none.
	until *Moment
}

// parseRecurrence reads a recurrence rule. It fails with an *InvalidError.
func parseRecurrence(text string) (*recurrence, error) {
	refuse := func(detail string) (*recurrence, error) {
		return nil, &InvalidError{Field: "rrule", Detail: detail}
	}
	upper := strings.ToUpper(strings.TrimPrefix(strings.TrimSpace(text), "RRULE:"))
	if strings.Contains(upper, "DTSTART") || strings.ContainsAny(upper, "\r\n:") {
		return refuse("must be a single RRULE; it starts at the schedule's at")
	}
	option, err := rrule.StrToROption(upper)
	if err != nil {
		return refuse(err.Error())
	}
	if _, err := rrule.NewRRule(*option); err != nil {
		return refuse(err.Error())
	}
	rec := &recurrence{option: *option}
	if strings.Contains(upper, "UNTIL=") {
		_, value, _ := strings.Cut(upper, "UNTIL=")
		value, _, _ = strings.Cut(value, ";")
		m := Moment{Time: option.Until, IsInstant: strings.HasSuffix(value, "Z")}
		if !strings.Contains(value, "T") { // a day, which is meant whole
			m.Time = m.Time.Add(24*time.Hour - time.Second)
		}
		rec.until = &m
	}
	if detail := unfit(&rec.option); detail != "" {
		return refuse(detail)
	}
	return rec, nil
}

// unfit says what is wrong with a recurrence rule that the library takes: what RFC 5545 forbids (section 3.3.10), where the library may
// panic, and what would take too long.
func unfit(o *rrule.ROption) string {
	ordinal, far := false, false
	for _, day := range o.Byweekday {
		ordinal = ordinal || day.N() != 0
		far = far || day.N() > 5 || day.N() < -5
	}
	parts := len(o.Bymonth) + len(o.Byweekno) + len(o.Byyearday) + len(o.Bymonthday) + len(o.Byweekday) + len(o.Byhour) + len(o.Byminute) + len(o.Bysecond)
	switch {
	case o.Interval > maxInterval:
		return "INTERVAL must be at most 1000000"
	case o.Count < 0 || o.Count > maxRuleCount:
		return "COUNT must be at most 10000"
	case o.Count > maxPartialCount && o.Freq >= rrule.HOURLY && parts > 0:
		return "COUNT must be at most 1000 for some hours, minutes or seconds only"
	case len(o.Byeaster) > 0:
		return "BYEASTER is no part of RFC 5545"
	case o.Freq > rrule.MONTHLY && ordinal:
		return "BYDAY takes a number only with FREQ=MONTHLY or FREQ=YEARLY"
	case far && (o.Freq == rrule.MONTHLY || len(o.Bymonth) > 0):
		return "a month has no more than five of a weekday"
	case ordinal && len(o.Byweekno) > 0:
		return "BYDAY takes no number with BYWEEKNO"
	case o.Freq != rrule.YEARLY && len(o.Byweekno) > 0:
		return "BYWEEKNO goes with FREQ=YEARLY only"
	case o.Freq == rrule.WEEKLY && len(o.Bymonthday) > 0:
		return "BYMONTHDAY does not go with FREQ=WEEKLY"
	case (o.Freq == rrule.DAILY || o.Freq == rrule.WEEKLY || o.Freq == rrule.MONTHLY) && len(o.Byyearday) > 0:
		return "BYYEARDAY does not go with FREQ=DAILY, WEEKLY or MONTHLY"
	case len(o.Bysetpos) > 0 && parts == 0:
		return "BYSETPOS needs another BY"
	}
	return ""
}

// starting makes a rule of a recurrence that starts at a local time. 29 February every year is as leap has it. until is the
// UNTIL in local terms. It fails with an *InvalidError when there is no such time.
func (rec *recurrence) starting(start time.Time, leap Leap, until *time.Time) (*rule, error) {
	o := rec.option
	o.Dtstart = start.Truncate(time.Second)
	o.Count = 0
	o.Until = time.Time{}
	o.Interval = max(1, o.Interval)

	// What DTSTART stands for is said, so that the rule can be followed from elsewhere.
	if len(o.Byweekno)+len(o.Byyearday)+len(o.Bymonthday)+len(o.Byweekday) == 0 {
		switch o.Freq {
		case rrule.YEARLY:
			if len(o.Bymonth) == 0 {
				o.Bymonth = []int{int(o.Dtstart.Month())}
			}
			o.Bymonthday = []int{o.Dtstart.Day()}
		case rrule.MONTHLY:
			o.Bymonthday = []int{o.Dtstart.Day()}
		case rrule.WEEKLY:
			days := []rrule.Weekday{rrule.SU, rrule.MO, rrule.TU, rrule.WE, rrule.TH, rrule.FR, rrule.SA}
			o.Byweekday = []rrule.Weekday{days[o.Dtstart.Weekday()]}
		}
	}
	if o.Freq == rrule.YEARLY && slices.Equal(o.Bymonth, []int{2}) && slices.Equal(o.Bymonthday, []int{29}) && len(o.Byweekno)+len(o.Byyearday)+len(o.Byweekday) == 0 {
		switch leap {
		case LeapMar1: // the 60th day of a year is 29 February, or 1 March
			o.Bymonth, o.Bymonthday, o.Byyearday = nil, nil, []int{60}
		case LeapSkip:
		default: // the last of February
			o.Bymonthday = []int{-1}
		}
	}
	if !reachable(&o) {
		return nil, &InvalidError{Field: "rrule", Detail: "never comes"}
	}

	r := &rule{rrule: &o, until: lastTime}
	if until != nil && until.Before(lastTime) {
		r.until = *until
	}
	next := r.from(o.Dtstart)
	last, ok := next()
	if !ok {
		return nil, &InvalidError{Field: "rrule", Detail: "never comes"}
	}
	for n := 1; n < rec.option.Count; n++ {
		t, ok := next()
		if !ok {
			break
		}
		last = t
	}
	if rec.option.Count > 0 {
		r.until = last
	}
	return r, nil
}

// units are the lengths of frequencies in seconds, of those that have one.
var units = map[rrule.Frequency]int64{rrule.WEEKLY: 7 * 86400, rrule.DAILY: 86400, rrule.HOURLY: 3600, rrule.MINUTELY: 60, rrule.SECONDLY: 1}

// reachable reports whether the steps of a rule within days ever meet its BYHOUR, BYMINUTE and BYSECOND: the library would go on for ever.
func reachable(o *rrule.ROption) bool {
	if o.Freq < rrule.HOURLY {
		return true
	}
	fits := func(allowed []int, v int64) bool { return len(allowed) == 0 || slices.Contains(allowed, int(v)) }
	a, b := int64(o.Interval)*units[o.Freq], int64(86400)
	for b != 0 {
		a, b = b, a%b
	}
	start := int64(o.Dtstart.Hour()*3600 + o.Dtstart.Minute()*60 + o.Dtstart.Second())
	for s := start % a; s < 86400; s += a {
		if fits(o.Byhour, s/3600) && (o.Freq < rrule.MINUTELY || fits(o.Byminute, s/60%60)) && (o.Freq < rrule.SECONDLY || fits(o.Bysecond, s%60)) {
			return true
		}
	}
	return false
}

// from returns what yields the rule's times from t on, t included, until it says false.
func (r *rule) from(t time.Time) func() (time.Time, bool) {
	var next func() (time.Time, bool)
	switch {
	case r.at != nil:
		once := r.at
		next = func() (time.Time, bool) {
			if once == nil {
				return time.Time{}, false
			}
			at := *once
			once = nil
			return at, true
		}
	case r.cron != nil:
		at := t.Add(-time.Nanosecond)
		next = func() (time.Time, bool) {
			at = r.cron.Next(at)
			return at, !at.IsZero()
		}
	case r.rrule.Freq >= rrule.HOURLY && len(r.rrule.Bymonth)+len(r.rrule.Bymonthday)+len(r.rrule.Byyearday)+len(r.rrule.Byweekday) > 0:
		next = r.withinDays(t)
	default:
		next = iterate(*r.rrule, t, r.until)
	}
	least := t
	return func() (time.Time, bool) {
		for {
			at, ok := next()
			if !ok || at.After(r.until) {
				return time.Time{}, false
			}
			if !at.Before(least) { // the library has what is named twice, as by BYHOUR=9,9, twice
				least = at.Add(time.Nanosecond)
				return at, true
			}
		}
	}
}

// iterate follows a recurrence from about t on, beginning not later.
func iterate(o rrule.ROption, t, until time.Time) func() (time.Time, bool) {
	o.Dtstart = before(&o, t)
	o.Until = until // never none: the library would make that 290 years
	r, err := rrule.NewRRule(o)
	if err != nil {
		return func() (time.Time, bool) { return time.Time{}, false } // it was tried when it was parsed
	}
	return r.Iterator()
}

// before returns a start for a recurrence, one or two steps before t, from which it comes at the same times. As the library steps from the
// start to the first time asked for, an old start would cost more each year.
func before(o *rrule.ROption, t time.Time) time.Time {
	start, interval := o.Dtstart, o.Interval
	steps := func(distance int64, each int64) int64 { return max(0, distance/each-1) }
	switch o.Freq {
	case rrule.YEARLY:
		n := steps(int64(t.Year()-start.Year()), int64(interval))
		if n == 0 {
			return start
		}
		return onDay(start, start.Year()+int(n)*interval, start.Month())
	case rrule.MONTHLY:
		n := steps(int64((t.Year()-start.Year())*12+int(t.Month())-int(start.Month())), int64(interval))
		if n == 0 {
			return start
		}
		months := int(start.Month()) - 1 + int(n)*interval
		return onDay(start, start.Year()+months/12, time.Month(months%12+1))
	default:
		each := int64(interval) * units[o.Freq]
		return time.Unix(start.Unix()+steps(t.Unix()-start.Unix(), each)*each, 0).UTC()
	}
}

// onDay is t in another month, on a day that each has: where days are said, the start's own does not matter.
func onDay(t time.Time, year int, month time.Month) time.Time {
	return time.Date(year, month, min(t.Day(), 28), t.Hour(), t.Minute(), t.Second(), 0, time.UTC)
}

// withinDays follows a rule of hours, minutes or seconds that comes on some days only. The library would try each of its steps on the others.
func (r *rule) withinDays(t time.Time) func() (time.Time, bool) {
	start := r.rrule.Dtstart
	if t.After(start) {
		start = t
	}
	midnight := start.Truncate(24 * time.Hour)
	days := iterate(rrule.ROption{
		Freq: rrule.DAILY, Interval: 1, Dtstart: midnight,
		Bymonth: r.rrule.Bymonth, Bymonthday: r.rrule.Bymonthday, Byyearday: r.rrule.Byyearday, Byweekday: r.rrule.Byweekday,
	}, midnight, r.until)
	within := *r.rrule
	within.Bymonth, within.Bymonthday, within.Byyearday, within.Byweekday = nil, nil, nil, nil

	var times func() (time.Time, bool)
	var day time.Time
	tries := 0
	return func() (time.Time, bool) {
		for {
			if times != nil {
				for {
					at, ok := times()
					if !ok {
						break
					}
					if !at.Before(day) {
						tries = 0
						return at, true
					}
				}
			}
			var ok bool
			if day, ok = days(); !ok || tries > searchYears*366 {
				return time.Time{}, false
			}
			tries++
			times = iterate(within, day, day.Add(24*time.Hour-time.Second))
		}
	}
}
