package schedule_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/netresearch/go-cron"
	"github.com/teambition/rrule-go"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// hostileRules are rules that take rrule-go very long or for ever, and similar ones. refused is a part of the error that a rule is refused with; empty: it is
// accepted.
var hostileRules = []struct{ rule, refused string }{
	{"FREQ=SECONDLY;BYSECOND=0;BYSETPOS=2", "BYSETPOS"},
	{"FREQ=MINUTELY;BYSECOND=0,30;BYSETPOS=3", "BYSETPOS"},
	{"FREQ=MINUTELY;BYSECOND=0,30;BYSETPOS=-3,366", "BYSETPOS"},
	{"FREQ=HOURLY;BYMINUTE=1;BYSETPOS=-2", "BYSETPOS"},
	{"FREQ=DAILY;BYHOUR=1,2;BYSETPOS=3", "BYSETPOS"},
	{"FREQ=WEEKLY;BYDAY=MO;BYSETPOS=2", "never comes"},
	{"FREQ=MONTHLY;BYMONTHDAY=1;BYSETPOS=2", "never comes"},
	{"FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "never comes"},
	{"FREQ=YEARLY;BYWEEKNO=53;BYMONTH=6", "never comes"},
	{"FREQ=YEARLY;BYYEARDAY=1;BYMONTH=2", "never comes"},
	{"FREQ=DAILY;BYMONTH=4,6;BYMONTHDAY=31", "never comes"},
	{"FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30", "never comes"},
	{"FREQ=SECONDLY;INTERVAL=60;BYSECOND=7", "INTERVAL"},
	{"FREQ=HOURLY;INTERVAL=168;BYDAY=MO", "INTERVAL"}, // it starts on a Friday
	{"FREQ=MINUTELY;INTERVAL=10080;BYDAY=TU", "INTERVAL"},
	{"FREQ=SECONDLY;INTERVAL=604800;BYDAY=SA,SU", "INTERVAL"},
	{"FREQ=SECONDLY;INTERVAL=86399;BYHOUR=1;BYMINUTE=2;BYSECOND=3;BYDAY=MO;BYMONTHDAY=13;BYMONTH=6", "never comes"},
	{"FREQ=DAILY;COUNT=3;COUNT=10000", "twice"},
	{"FREQ=DAILY;BYHOUR=" + strings.Repeat("1,", 600) + "1;BYMINUTE=" + strings.Repeat("1,", 600) + "1;BYSECOND=" + strings.Repeat("1,", 600) + "1", ""},
	{"FREQ=HOURLY;INTERVAL=999983;BYDAY=MO", ""},
	{"FREQ=MINUTELY;INTERVAL=1439;BYDAY=MO;BYHOUR=1;BYMINUTE=2;COUNT=1000", ""},
	{"FREQ=SECONDLY;BYMONTH=3;BYMONTHDAY=8,9,10,11,12,13,14;BYDAY=SU;BYHOUR=2", ""},
	{"FREQ=SECONDLY;INTERVAL=86399;BYHOUR=1;BYMINUTE=2;BYSECOND=3", ""},
	{"FREQ=SECONDLY;INTERVAL=3601;BYSECOND=0;BYMINUTE=0;COUNT=1000", ""},
	{"FREQ=SECONDLY;INTERVAL=999983;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO;BYHOUR=3", ""},
	{"FREQ=YEARLY;INTERVAL=1000000", ""},
	{"FREQ=DAILY;BYMONTHDAY=13;BYDAY=FR;COUNT=10000", ""},
	{"FREQ=YEARLY;BYMONTH=1;BYHOUR=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23;BYMINUTE=0,1,2,3,4,5,6,7,8,9;BYSECOND=0,1,2,3,4,5,6,7,8,9;BYSETPOS=-1,366", ""},
}

func TestHostileRulesAreRefusedOrExpandedWithinTheBudget(t *testing.T) {
	t.Parallel()
	pgtest.WithoutRaceDetector(t)
	start := local(t, "2027-01-01T00:00:00")
	for _, c := range hostileRules {
		times, err := schedule.LocalTimes(t.Context(), c.rule, start, "", start, 100)
		var invalid *schedule.InvalidError
		switch {
		case c.refused == "" && errors.As(err, &invalid) && strings.Contains(invalid.Detail, "too long"): // so many of them
		case c.refused == "" && err != nil:
			t.Errorf("%.80s: %v", c.rule, err)
		case c.refused != "" && (!errors.As(err, &invalid) || invalid.Field != "rrule" || !strings.Contains(invalid.Detail, c.refused)):
			t.Errorf("%.80s: got %v, want it refused for %q", c.rule, err, c.refused)
		}
		if times.Steps > schedule.MaxSteps+1 {
			t.Errorf("%.80s took %d steps", c.rule, times.Steps)
		}
	}
}

func TestExpansionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	start := local(t, "2027-01-01T00:00:00")
	times, err := schedule.LocalTimes(ctx, "FREQ=MINUTELY;INTERVAL=1439;BYDAY=MO;BYHOUR=1;BYMINUTE=2;COUNT=1000", start, "", start, 1)
	if !errors.Is(err, context.Canceled) || times.Steps > 10_000 {
		t.Errorf("after %d steps: %v, want it cancelled", times.Steps, err)
	}
}

// rrule-go is the reference; it expands rules in tests only. Left out is what it is wrong about: numbers of weeks at the turn of the
// year (see below), weekdays with and without a number together, and BYSETPOS within a first week that began before the start.
func TestRulesComeWhenAnIndependentExpansionHasThem(t *testing.T) {
	t.Parallel()
	pgtest.WithoutRaceDetector(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	pick := func(parts ...string) string { return parts[random.IntN(len(parts))] }
	compared := 0
	for range 500 {
		freq := pick("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
		rule := "FREQ=" + freq + pick("", ";INTERVAL=2", ";INTERVAL=3", ";INTERVAL=7", ";INTERVAL=61") + pick("", ";WKST=SU", ";WKST=TH")
		switch freq {
		case "YEARLY":
			rule += pick("", ";BYMONTH=1,6", ";BYYEARDAY=1,200,-1", ";BYWEEKNO=20", ";BYWEEKNO=7,-9;BYDAY=MO,SU", ";BYDAY=10MO,-1SU", ";BYMONTH=3;BYMONTHDAY=31,-1", ";BYMONTH=2,3;BYDAY=1FR,-2MO;BYMINUTE=3,4", ";BYDAY=53MO,-53TU")
			rule += pick("", "", ";BYHOUR=1,2;BYSETPOS=1", ";BYSECOND=1,5;BYSETPOS=-1,2,7")
		case "MONTHLY":
			rule += pick("", ";BYMONTHDAY=1,15,31", ";BYDAY=2TU", ";BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ";BYMONTHDAY=-2;BYMONTH=2,8", ";BYDAY=FR;BYMONTHDAY=13", ";BYDAY=FR,SA;BYHOUR=9,12;BYSETPOS=2,-3")
		case "WEEKLY":
			rule += pick("", ";BYDAY=SU,TU", ";BYDAY=MO;BYHOUR=1,2,3", ";BYMONTH=5")
		case "DAILY":
			rule += pick("", ";BYDAY=SA,SU", ";BYMONTHDAY=13", ";BYHOUR=6,18;BYMINUTE=0,30", ";BYHOUR=6,18;BYMINUTE=0,30;BYSETPOS=-1,2", ";BYMONTH=1,12")
		default:
			rule += pick("", ";BYDAY=SA", ";BYMONTH=1;BYMONTHDAY=1", ";BYHOUR=1,5,23", ";BYMINUTE=0,7,30", ";BYSECOND=0,9", ";BYYEARDAY=1,-1", ";BYHOUR=3;BYMINUTE=5")
			if freq == "HOURLY" && !strings.Contains(rule, "BYMINUTE") {
				rule += pick("", ";BYMINUTE=4,9;BYSETPOS=-1")
			}
		}
		start := time.Date(1999+random.IntN(10), time.Month(1+random.IntN(12)), 1+random.IntN(28)+random.IntN(2)*3, random.IntN(24), random.IntN(60), 0, 0, time.UTC)
		got, err := localTimes(t, rule, start, schedule.LeapSkip, start, 200)
		if err != nil {
			if !strings.Contains(err.Error(), "never comes") {
				t.Errorf("%s from %s: %v", rule, start, err)
			}
			continue
		}
		if strings.Contains(rule, "BYWEEKNO") && !strings.Contains(rule, "BYDAY") { // the reference takes all days of the week, RFC 8984 that of the start
			rule += ";BYDAY=" + strings.ToUpper(start.Weekday().String()[:2])
		}
		option, err := rrule.StrToROption(rule)
		if err != nil {
			t.Fatal(err)
		}
		option.Dtstart, option.Until = start, start.AddDate(3, 0, 0) // so that it ends
		reference, err := rrule.NewRRule(*option)
		if err != nil {
			t.Fatal(err)
		}
		next := reference.Iterator()
		for i := range got {
			want, ok := next()
			if !ok {
				break
			}
			compared++
			if !got[i].Equal(want) {
				t.Errorf("%s from %s: time %d is %s, the reference has %s", rule, start, i, got[i], want)
				break
			}
		}
	}
	if compared < 15_000 {
		t.Errorf("only %d times were compared", compared)
	}
}

func TestWeeksAreNumberedAsISO8601HasIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule string
		fits func(year, week int) bool
	}{
		{"FREQ=YEARLY;BYWEEKNO=1;BYDAY=MO,TU,WE,TH,FR,SA,SU", func(_, week int) bool { return week == 1 }},
		{"FREQ=YEARLY;BYWEEKNO=52,53;BYDAY=MO,TU,WE,TH,FR,SA,SU", func(_, week int) bool { return week >= 52 }},
		{"FREQ=YEARLY;BYWEEKNO=-1;BYDAY=MO,TU,WE,TH,FR,SA,SU", func(year, week int) bool {
			_, last := time.Date(year, 12, 28, 0, 0, 0, 0, time.UTC).ISOWeek()
			return week == last
		}},
	} {
		start := local(t, "2000-01-01T00:00:00")
		got, err := localTimes(t, c.rule, start, "", start, 500)
		if err != nil {
			t.Fatal(err)
		}
		i := 0
		for day := start; i < len(got); day = day.AddDate(0, 0, 1) {
			if !c.fits(day.ISOWeek()) {
				continue
			}
			if !got[i].Equal(day) {
				t.Fatalf("%s: time %d is %s, want %s", c.rule, i, got[i], day)
			}
			i++
		}
	}
}

func TestWeekdaysWithAndWithoutANumberAreAddedUp(t *testing.T) {
	t.Parallel()
	start := local(t, "2027-01-01T09:00:00")
	got, err := localTimes(t, "FREQ=MONTHLY;BYDAY=MO,1TU", start, "", start, 6)
	if err != nil {
		t.Fatal(err)
	}
	if want := "2027-01-04T09:00:00 2027-01-05T09:00:00 2027-01-11T09:00:00 2027-01-18T09:00:00 2027-01-25T09:00:00 2027-02-01T09:00:00"; strings.Join(texts(got), " ") != want {
		t.Errorf("got %v, want %s", texts(got), want)
	}
}

func TestCronExpressionsComeWhenAnIndependentExpansionHasThem(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	pick := func(parts ...string) string { return parts[random.IntN(len(parts))] }
	const fields = cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow
	both, either := cron.MustNewParser(fields).WithMaxSearchYears(50), cron.MustNewParser(fields|cron.DowOrDom).WithMaxSearchYears(50)
	for range 1000 {
		expression := pick("", "", "0 ", "*/20 ", "5,9 ") + pick("*", "0", "*/7", "3-9", "59") + " " + pick("*", "0", "9-17", "*/5", "23") + " " +
			pick("*", "1", "13,31", "29", "*/2", "?") + " " + pick("*", "2", "JAN-MAR", "*/5", "NOV-FEB") + " " + pick("*", "MON-FRI", "0", "7", "5,6", "FRI-MON", "*/2", "?")
		parser := either
		if part := strings.Fields(expression); part[len(part)-3] == "*/2" || part[len(part)-1] == "*/2" {
			parser = both
		}
		start := time.Date(1999+random.IntN(10), time.Month(1+random.IntN(12)), 1+random.IntN(28), random.IntN(24), random.IntN(60), 0, 0, time.UTC)
		got, err := cronTimes(t, expression, start, 50)
		if err != nil {
			t.Fatalf("%s: %v", expression, err)
		}
		reference, err := parser.Parse(expression)
		if err != nil {
			t.Fatal(err)
		}
		at := start.Add(-time.Second)
		for i := range 50 {
			if at = reference.Next(at); !got[i].Equal(at) {
				t.Errorf("%s from %s: time %d is %s, the reference has %s", expression, start, i, got[i], at)
				break
			}
		}
	}
}

// Any rule is refused, or expanded within the budget, in order and without a panic.
func FuzzRecurrenceRule(f *testing.F) {
	pgtest.WithoutRaceDetector(f)
	for _, rule := range []string{"FREQ=YEARLY;BYDAY=53SU,-53MO;BYWEEKNO=53", "FREQ=MONTHLY;BYDAY=5MO;BYSETPOS=-1", "FREQ=WEEKLY;WKST=SU;BYDAY=SA;INTERVAL=3", "FREQ=YEARLY;BYYEARDAY=-366,366;BYHOUR=0,23"} {
		f.Add(rule, int64(0), int64(1_000_000_000))
	}
	for _, c := range hostileRules {
		f.Add(c.rule, int64(1_798_761_600), int64(1_798_761_600))
	}
	f.Fuzz(func(t *testing.T, rule string, start, from int64) {
		const first, last = -62_135_596_800, 253_402_300_799 // the years 1 to 9999
		if len(rule) > 4096 || start < first || start > last || from < first || from > last {
			t.Skip()
		}
		times, err := schedule.LocalTimes(t.Context(), rule, time.Unix(start, 0).UTC(), "", time.Unix(from, 0).UTC(), 5)
		checkTimes(t, rule, from, times, err)
	})
}

// The same of a cron expression.
func FuzzCronExpression(f *testing.F) {
	for _, expression := range []string{"0 0 29 2 *", "0 0 31 2 *", "*/7 * * * * *", "0 0 1-7 * MON", "@yearly", "0 0 30 2 0-6"} {
		f.Add(expression, int64(1_798_761_600))
	}
	f.Fuzz(func(t *testing.T, expression string, from int64) {
		const first, last = -62_135_596_800, 253_402_300_799
		if len(expression) > 255 || from < first || from > last {
			t.Skip()
		}
		times, err := schedule.CronTimes(t.Context(), expression, time.Unix(from, 0).UTC(), 5)
		checkTimes(t, expression, from, times, err)
	})
}

func checkTimes(t *testing.T, rule string, from int64, times schedule.Times, err error) {
	t.Helper()
	if err != nil && !errors.Is(err, schedule.ErrInvalid) {
		t.Fatal(err)
	}
	if times.Steps > schedule.MaxSteps+1 {
		t.Fatalf("%s took %d steps", rule, times.Steps)
	}
	for i, at := range times.All {
		if at.Unix() < from || i > 0 && !at.After(times.All[i-1]) || at.Year() > 9999 {
			t.Fatalf("%s: %v from %d on", rule, texts(times.All), from)
		}
	}
}
