package schedule

import (
	"context"
	"fmt"
	"math/bits"
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
)

// lastTime is the last local time there is.
var lastTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// rule yields local times, which are held as a time.Time in UTC. It knows no zone.
type rule struct {
	at      *time.Time // the only one
	pattern *pattern
	until   time.Time // none comes after
}

// onceRule is the rule of a single time.
func onceRule(at time.Time) *rule { return &rule{at: &at, until: lastTime} }

// cronParser reads five fields, or six with seconds in front. A day fits when either its number or its weekday does, where both are
// given, as POSIX has it.
var cronParser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom)

// cronStar is the bit by which the library marks a field that was given as a star.
const cronStar = 1 << 63

// parseCron reads a cron expression. It fails with an *InvalidError.
func parseCron(text string) (*rule, error) {
	refuse := func(detail string) (*rule, error) { return nil, &InvalidError{Field: "cron", Detail: detail} }
	if strings.Contains(text, "=") {
		return refuse("takes its zone from timezone, not from the expression")
	}
	parsed, err := cronParser.Parse(text)
	if err != nil {
		return refuse(err.Error())
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return refuse("must name times, not a distance between them")
	}
	if len(spec.DomConstraints)+len(spec.DowConstraints)+len(spec.Year) > 0 {
		return refuse("must have no L, W or #, and no years")
	}
	p := &pattern{
		freq: rrule.DAILY, interval: 1, start: time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix(),
		times: timesOf(numbersIn(spec.Hour, 0, 23), numbersIn(spec.Minute, 0, 59), numbersIn(spec.Second, 0, 59)),
		days:  dayFilter{months: numbersOf(numbersIn(spec.Month, 1, 12)), isEither: true},
	}
	// A star lets every day pass: the other field alone decides.
	if spec.Dom&cronStar == 0 {
		p.days.monthDays = numbersOf(numbersIn(spec.Dom, 1, 31))
	}
	if spec.Dow&cronStar == 0 {
		for _, day := range numbersIn(spec.Dow, 0, 6) { // 0 is Sunday
			p.days.weekdays.add((day + 6) % 7)
		}
	}
	return &rule{pattern: p, until: lastTime}, nil
}

// numbersIn returns the bits of a set that lie between two numbers.
func numbersIn(set uint64, first, last int) (all []int) {
	for set &^= cronStar; set != 0; set &= set - 1 {
		if n := bits.TrailingZeros64(set); n >= first && n <= last {
			all = append(all, n)
		}
	}
	return all
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
	values := make(map[string]string)
	for _, part := range strings.Split(upper, ";") {
		name, value, _ := strings.Cut(part, "=")
		if _, ok := values[name]; ok {
			return refuse(name + " is given twice")
		}
		values[name] = value
	}
	option, err := rrule.StrToROption(upper) // it only reads; what it would expand with is never called
	if err != nil {
		return refuse(err.Error())
	}
	rec := &recurrence{option: *option}
	if value, ok := values["UNTIL"]; ok {
		m := Moment{Time: option.Until, IsInstant: strings.HasSuffix(value, "Z")}
		if !strings.Contains(value, "T") { // a day, which is meant whole
			m.Time = m.Time.Add(24*time.Hour - time.Second)
		}
		if m.Time.Year() < 1 || m.Time.Year() > 9999 {
			return refuse("UNTIL must lie within the years 1 to 9999")
		}
		rec.until = &m
	}
	if detail := unfit(&rec.option); detail != "" {
		return refuse(detail)
	}
	return rec, nil
}

// unfit says what is wrong with a recurrence rule: what RFC 5545 forbids (section 3.3.10), and what would take too long.
func unfit(o *rrule.ROption) string {
	for _, part := range []struct {
		name        string
		values      []int
		least, most int
		isSigned    bool
	}{
		{"BYSECOND", o.Bysecond, 0, 59, false},
		{"BYMINUTE", o.Byminute, 0, 59, false},
		{"BYHOUR", o.Byhour, 0, 23, false},
		{"BYMONTHDAY", o.Bymonthday, 1, 31, true},
		{"BYYEARDAY", o.Byyearday, 1, 366, true},
		{"BYWEEKNO", o.Byweekno, 1, 53, true},
		{"BYMONTH", o.Bymonth, 1, 12, false},
		{"BYSETPOS", o.Bysetpos, 1, 366, true},
	} {
		for _, v := range part.values {
			if v >= part.least && v <= part.most || part.isSigned && -v >= part.least && -v <= part.most {
				continue
			}
			if part.isSigned {
				return fmt.Sprintf("%s must be between %d and %d, or between -%d and -%d", part.name, part.least, part.most, part.least, part.most)
			}
			return fmt.Sprintf("%s must be between %d and %d", part.name, part.least, part.most)
		}
	}
	ordinal, far := false, false
	for _, day := range o.Byweekday {
		if day.N() < -53 || day.N() > 53 {
			return "the numbers of BYDAY must be between 1 and 53, or between -1 and -53"
		}
		ordinal = ordinal || day.N() != 0
		far = far || day.N() > 5 || day.N() < -5
	}
	parts := len(o.Bymonth) + len(o.Byweekno) + len(o.Byyearday) + len(o.Bymonthday) + len(o.Byweekday) + len(o.Byhour) + len(o.Byminute) + len(o.Bysecond)
	switch {
	case o.Interval < 0 || o.Interval > maxInterval:
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

// weekdayNumber returns 0 for Monday.
func weekdayNumber(day rrule.Weekday) int { return day.Day() }

// starting makes a rule of a recurrence that starts at a local time, without its COUNT. 29 February every year is as leap has it. until is the
// UNTIL in local terms. That the rule comes at all is for rule.check to find out.
func (rec *recurrence) starting(start time.Time, leap Leap, until *time.Time) *rule {
	o := rec.option
	start = start.Truncate(time.Second)

	// What DTSTART stands for.
	if len(o.Byweekno)+len(o.Byyearday)+len(o.Bymonthday)+len(o.Byweekday) == 0 {
		switch o.Freq {
		case rrule.YEARLY:
			if len(o.Bymonth) == 0 {
				o.Bymonth = []int{int(start.Month())}
			}
			o.Bymonthday = []int{start.Day()}
		case rrule.MONTHLY:
			o.Bymonthday = []int{start.Day()}
		case rrule.WEEKLY:
			days := []rrule.Weekday{rrule.SU, rrule.MO, rrule.TU, rrule.WE, rrule.TH, rrule.FR, rrule.SA}
			o.Byweekday = []rrule.Weekday{days[start.Weekday()]}
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
	if len(o.Byhour) == 0 && o.Freq < rrule.HOURLY {
		o.Byhour = []int{start.Hour()}
	}
	if len(o.Byminute) == 0 && o.Freq < rrule.MINUTELY {
		o.Byminute = []int{start.Minute()}
	}
	if len(o.Bysecond) == 0 && o.Freq < rrule.SECONDLY {
		o.Bysecond = []int{start.Second()}
	}

	p := &pattern{
		freq: o.Freq, interval: int64(max(1, o.Interval)), start: start.Unix(), setPos: o.Bysetpos,
		days: dayFilter{
			months: numbersOf(o.Bymonth), monthDays: numbersOf(o.Bymonthday), yearDays: numbersOf(o.Byyearday), weeks: numbersOf(o.Byweekno),
			weekStart: weekdayNumber(o.Wkst), nthOfYear: o.Freq == rrule.YEARLY && len(o.Bymonth) == 0,
		},
	}
	for _, day := range o.Byweekday {
		if day.N() == 0 {
			p.days.weekdays.add(weekdayNumber(day))
		} else {
			p.days.nth[weekdayNumber(day)].add(day.N())
			p.days.hasNth = true
		}
	}
	switch o.Freq {
	case rrule.HOURLY:
		p.within(3600, timesOf([]int{0}, o.Byminute, o.Bysecond))
	case rrule.MINUTELY:
		p.within(60, timesOf([]int{0}, []int{0}, o.Bysecond))
	case rrule.SECONDLY:
		p.within(1, timesOf([]int{0}, []int{0}, []int{0}))
	default:
		p.times = timesOf(o.Byhour, o.Byminute, o.Bysecond)
	}
	p.hours, p.minutes, p.seconds = numbersOf(o.Byhour), numbersOf(o.Byminute), numbersOf(o.Bysecond)

	r := &rule{pattern: p, until: lastTime}
	if until != nil && until.Before(lastTime) {
		r.until = *until
	}
	return r
}

// within sets when a pattern comes within one of its periods, which are shorter than a day.
func (p *pattern) within(unit int64, times timesOfDay) {
	p.unit = unit
	if len(p.setPos) > 0 {
		for _, i := range positions(p.setPos, times.size()) {
			p.offsets = append(p.offsets, times.at(i))
		}
		return
	}
	for i := range times.size() {
		p.offsets = append(p.offsets, times.at(i))
	}
}

// never says why a rule cannot come, as far as that can be told without going through it.
func (p *pattern) never() string {
	perDay := len(p.offsets)
	if p.unit == 0 {
		perDay = p.times.size()
		if p.freq == rrule.DAILY && len(p.setPos) > 0 {
			perDay = len(positions(p.setPos, perDay))
		}
	}
	switch {
	case perDay == 0:
		return "never comes: BYSETPOS asks for more than there is in each period of FREQ"
	case !p.isReachable():
		return "never comes: the steps of INTERVAL meet none of the times that BY... names"
	}
	return ""
}

// check makes sure that a rule comes at all, and sets the end that a COUNT (zero: none) is. It fails with an *InvalidError of field.
func (r *rule) check(s *steps, field string, count int) error {
	if r.at != nil {
		return nil
	}
	if detail := r.pattern.never(); detail != "" {
		return &InvalidError{Field: field, Detail: detail}
	}
	next := r.from(s, civil(r.pattern.start))
	for n := range max(1, count) {
		t, ok, err := next()
		switch {
		case err != nil:
			return fieldOf(err, field)
		case !ok && n == 0:
			return &InvalidError{Field: field, Detail: "never comes"}
		case !ok:
			return nil
		case n == count-1:
			r.until = t
		}
	}
	return nil
}

// fieldOf says which field an *InvalidError is about that names none.
func fieldOf(err error, field string) error {
	if invalid, ok := err.(*InvalidError); ok && invalid.Field == "" { //nolint:errorlint // it is not wrapped yet
		return &InvalidError{Field: field, Detail: invalid.Detail}
	}
	return err
}

// from returns what yields the rule's times from t on, t included, until it says false. It fails when s is used up or ends.
func (r *rule) from(s *steps, t time.Time) func() (time.Time, bool, error) {
	if r.at != nil {
		once := r.at
		return func() (time.Time, bool, error) {
			if once == nil || once.Before(t) {
				return time.Time{}, false, nil
			}
			at := *once
			once = nil
			return at, true, nil
		}
	}
	from := t.Unix()
	if t.Nanosecond() > 0 { // a rule has whole seconds
		from++
	}
	w := r.pattern.from(s, from, r.until.Unix())
	return func() (time.Time, bool, error) {
		at, ok, err := w.following()
		return civil(at), ok, err
	}
}

// after returns the rule's first time after t.
func (r *rule) after(ctx context.Context, t time.Time, most int) (time.Time, bool, error) {
	return r.from(&steps{ctx: ctx, left: most}, t.Add(time.Microsecond))()
}
