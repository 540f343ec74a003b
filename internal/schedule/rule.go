package schedule

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
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

// lastTime is the last civil time of a schedule.
var lastTime = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)

// cronParser reads five fields, or six with seconds in front. A day fits when either its number or its weekday does, where both are
// given, as POSIX has it.
var cronParser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor | cron.DowOrDom)

// cronStar is the bit by which the library marks a field that was given as a star.
const cronStar = 1 << 63

// parseCron reads a cron expression. It fails with an *InvalidError.
func parseCron(text string) (*series, error) {
	invalid := func(detail string) (*series, error) { return nil, &InvalidError{Field: "cron", Detail: detail} }
	if strings.Contains(text, "=") {
		return invalid("takes its zone from timezone, not from the expression")
	}
	fields := strings.Fields(text)
	n := len(fields)
	isNamed := n == 1 // such as @daily
	for _, item := range strings.Split(strings.Join(fields, ","), ",") {
		if !isNamed && !cronItem.MatchString(item) {
			return invalid(fmt.Sprintf("%q is no number, name, range or step; L, W and # are not taken", item))
		}
	}
	parsed, err := cronParser.Parse(text)
	if err != nil {
		return invalid(err.Error())
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return invalid("must name times, not a distance between them")
	}
	s := &series{
		start: time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC).Unix(), until: lastTime.Unix(), step: 1, length: 1,
		times: combine(bitsBetween(spec.Hour, 0, 23), bitsBetween(spec.Minute, 0, 59), bitsBetween(spec.Second, 0, 59)),
		days:  dayFilter{months: numbersOf(bitsBetween(spec.Month, 1, 12)), isEither: true},
	}
	s.origin = dayOf(s.start)
	// A star allows every day: the other field alone decides.
	if spec.Dom&cronStar == 0 {
		s.days.monthDays = numbersOf(bitsBetween(spec.Dom, 1, 31))
	}
	if spec.Dow&cronStar == 0 {
		weekdays := bitsBetween(spec.Dow, 0, 6)
		if !isNamed {
			weekdays = cronWeekdays(fields[len(fields)-1])
		}
		for i, day := range weekdays { // 0 is Sunday
			weekdays[i] = (day + 6) % 7
		}
		s.days.weekdays = numbersOf(weekdays)
	}
	if isNamed {
		s.isRealTime = fields[0] == "@hourly"
		return s, nil
	}
	isStar := func(i int) bool { return strings.ContainsRune("*?", rune(fields[i][0])) }
	if fields[n-3][0] == '*' || fields[n-1][0] == '*' { // a step of a star restricts, but is not an alternative: crontab(5)
		s.days.isEither = false
	}
	s.isRealTime = isStar(n-5) || isStar(n-4) // the minute or the hour: cron(8) of Debian
	return s, nil
}

// cronItem is an item of a list: the library reads some that are none.
var cronItem = regexp.MustCompile(`^(?:[*?]|(?:[0-9]{1,2}|[A-Za-z]{3})(?:-(?:[0-9]{1,2}|[A-Za-z]{3}))?)(?:/[0-9]{1,2})?$`)

// cronWeekdays reads the field of weekdays, which the library has accepted. Sunday is 0, and 7 as well. A range may wrap around the end of the week: its
// step counts on from its first day, which the library does not do.
func cronWeekdays(field string) (days []int) {
	number := func(text string) int {
		if i := strings.Index("sunmontuewedthufrisat", strings.ToLower(text)); i >= 0 && len(text) == 3 {
			return i / 3
		}
		n, _ := strconv.Atoi(text) // it is one
		return n
	}
	for _, item := range strings.Split(field, ",") {
		span, stepText, hasStep := strings.Cut(item, "/")
		step := 1
		if hasStep {
			step = max(1, number(stepText))
		}
		firstText, lastText, isRange := strings.Cut(span, "-")
		first, last := number(firstText), number(lastText)
		switch {
		case firstText == "*" || firstText == "?":
			first, last = 0, 6
		case !isRange && hasStep:
			last = max(first, 6)
		case !isRange:
			last = first
		case last < first:
			last += 7
		}
		for day := first; day <= last; day += step {
			days = append(days, day%7)
		}
	}
	return days
}

// bitsBetween returns the bits of a set that lie between two numbers.
func bitsBetween(set uint64, first, last int) (all []int) {
	for n := first; n <= last; n++ {
		if set&(1<<n) != 0 {
			all = append(all, n)
		}
	}
	return all
}

// recurrence is a recurrence rule as it was written.
type recurrence struct {
	option rrule.ROption
	until  *Moment // its UNTIL; nil: none
}

// trimRule returns a recurrence rule in upper case, without the leading "RRULE:".
func trimRule(text string) string {
	return strings.TrimPrefix(strings.ToUpper(strings.TrimSpace(text)), "RRULE:")
}

// parseRecurrence reads a recurrence rule. It fails with an *InvalidError.
func parseRecurrence(text string) (*recurrence, error) {
	invalid := func(detail string) (*recurrence, error) { return nil, &InvalidError{Field: "rrule", Detail: detail} }
	upper := trimRule(text)
	if strings.Contains(upper, "DTSTART") || strings.ContainsAny(upper, "\r\n:") {
		return invalid("must be a single RRULE; it starts at the schedule's at")
	}
	values := make(map[string]string)
	for _, part := range strings.Split(upper, ";") {
		name, value, _ := strings.Cut(part, "=")
		if _, ok := values[name]; ok {
			return invalid(name + " is given twice")
		}
		values[name] = value
	}
	option, err := rrule.StrToROption(upper)
	if err != nil {
		return invalid(err.Error())
	}
	if detail := passedOver(values, option); detail != "" {
		return invalid(detail)
	}
	rec := &recurrence{option: *option}
	if value, ok := values["UNTIL"]; ok {
		m := Moment{Time: option.Until, IsInstant: strings.HasSuffix(value, "Z")}
		if !strings.Contains(value, "T") { // a day: up to its end
			m.Time = m.Time.Add(24*time.Hour - time.Second)
		}
		if m.Time.Year() < 1 || m.Time.Year() > 9999 {
			return invalid("UNTIL must lie within the years 1 to 9999")
		}
		rec.until = &m
	}
	if detail := violation(&rec.option); detail != "" {
		return invalid(detail)
	}
	return rec, nil
}

// passedOver returns the first mistake in the values of a rule that the library takes for something else; empty: none.
func passedOver(values map[string]string, o *rrule.ROption) string {
	_, hasInterval := values["INTERVAL"]
	_, hasCount := values["COUNT"]
	_, hasUntil := values["UNTIL"]
	switch {
	case hasInterval && o.Interval < 1:
		return "INTERVAL must be between 1 and 1000000"
	case hasCount && o.Count < 1:
		return "COUNT must be between 1 and 10000"
	case hasCount && hasUntil:
		return "COUNT does not go with UNTIL"
	case len(values["WKST"]) > 2:
		return "WKST must be a weekday, such as MO, without a number"
	}
	for _, day := range strings.Split(values["BYDAY"], ",") {
		if number := strings.TrimRight(day, "ADEFHMORSTUW"); number != "" && strings.Trim(number, "+-0") == "" {
			return "the numbers of BYDAY must be between 1 and 53, or between -1 and -53"
		}
	}
	return ""
}

// violation returns the first violation of RFC 5545 (section 3.3.10) or of the bounds above by a recurrence rule; empty: none.
func violation(o *rrule.ROption) string {
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
			switch {
			case v >= part.least && v <= part.most, part.isSigned && -v >= part.least && -v <= part.most:
			case part.isSigned:
				return fmt.Sprintf("%s must be between %[2]d and %[3]d, or between -%[2]d and -%[3]d", part.name, part.least, part.most)
			default:
				return fmt.Sprintf("%s must be between %d and %d", part.name, part.least, part.most)
			}
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
	case o.Interval > maxInterval:
		return "INTERVAL must be at most 1000000"
	case o.Count > maxRuleCount:
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

// series returns the civil times of a recurrence that starts at start, without its COUNT. leap decides on 29 February every year. until is UNTIL as a
// civil time (nil: none). Whether the series has any time is for series.check to find out.
func (rec *recurrence) series(start time.Time, leap Leap, until *time.Time) *series {
	o := rec.option
	start = start.Truncate(time.Second)
	fillIn(&o, start, leap)

	s := &series{start: start.Unix(), until: lastTime.Unix(), step: int64(max(1, o.Interval)), length: 1, setPos: o.Bysetpos}
	if until != nil && until.Before(lastTime) {
		s.until = until.Unix()
	}
	s.days = dayFilter{
		months: numbersOf(o.Bymonth), monthDays: numbersOf(o.Bymonthday), yearDays: numbersOf(o.Byyearday), weeks: numbersOf(o.Byweekno),
		weekStart: o.Wkst.Day(), nthOfYear: o.Freq == rrule.YEARLY && len(o.Bymonth) == 0,
	}
	var weekdays []int
	var nth [7][]int
	for _, day := range o.Byweekday {
		if day.N() == 0 {
			weekdays = append(weekdays, day.Day())
		} else {
			nth[day.Day()] = append(nth[day.Day()], day.N())
			s.days.hasNth = true
		}
	}
	s.days.weekdays = numbersOf(weekdays)
	for day := range nth {
		s.days.nth[day] = numbersOf(nth[day])
	}
	s.times = combine(o.Byhour, o.Byminute, o.Bysecond)
	s.clock = [3]numbers{numbersOf(o.Byhour), numbersOf(o.Byminute), numbersOf(o.Bysecond)}
	zero := []int{0}
	switch o.Freq {
	case rrule.YEARLY:
		s.byMonth, s.origin, s.step, s.length = true, int64(start.Year()*12), s.step*12, 12
	case rrule.MONTHLY:
		s.byMonth, s.origin = true, monthOf(s.start)
	case rrule.WEEKLY:
		s.origin, s.step, s.length = dayOf(s.start), s.step*7, 7
		s.origin -= int64((weekdayOf(s.origin) - s.days.weekStart + 7) % 7)
	case rrule.DAILY:
		s.origin = dayOf(s.start)
	case rrule.HOURLY:
		s.setUnit(3600, combine(zero, o.Byminute, o.Bysecond))
	case rrule.MINUTELY:
		s.setUnit(60, combine(zero, zero, o.Bysecond))
	default:
		s.setUnit(1, combine(zero, zero, zero))
	}
	return s
}

// setUnit has the periods of a series be so many seconds long, with times from their beginning.
func (s *series) setUnit(unit int64, times timesOfDay) {
	s.unit, s.origin = unit, floorDiv(s.start, unit)
	s.isRealTime = s.step*unit < secondsPerDay
	for i := range times.size() {
		if len(s.setPos) == 0 || slices.Contains(positions(s.setPos, times.size()), i) {
			s.offsets = append(s.offsets, times.at(i))
		}
	}
}

// fillIn sets the parts of a rule that its start implies.
func fillIn(o *rrule.ROption, start time.Time, leap Leap) {
	if len(o.Byyearday)+len(o.Bymonthday)+len(o.Byweekday) == 0 {
		days := []rrule.Weekday{rrule.SU, rrule.MO, rrule.TU, rrule.WE, rrule.TH, rrule.FR, rrule.SA}
		weekday := []rrule.Weekday{days[start.Weekday()]}
		switch o.Freq {
		case rrule.YEARLY:
			if len(o.Byweekno) > 0 { // RFC 8984 says so, RFC 5545 does not say
				o.Byweekday = weekday
				break
			}
			if len(o.Bymonth) == 0 {
				o.Bymonth = []int{int(start.Month())}
			}
			o.Bymonthday = []int{start.Day()}
		case rrule.MONTHLY:
			o.Bymonthday = []int{start.Day()}
		case rrule.WEEKLY:
			o.Byweekday = weekday
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
}
