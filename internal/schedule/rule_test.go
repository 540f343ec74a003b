package schedule_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/schedule"
)

func texts(times []time.Time) []string {
	all := make([]string, len(times))
	for i, at := range times {
		all[i] = schedule.FormatLocal(at)
	}
	return all
}

func localTimes(t *testing.T, rule string, start time.Time, leap schedule.Leap, from time.Time, n int) ([]time.Time, error) {
	t.Helper()
	times, err := schedule.LocalTimes(t.Context(), rule, start, leap, from, n)
	return times.All, err
}

func cronTimes(t *testing.T, cron string, from time.Time, n int) ([]time.Time, error) {
	t.Helper()
	times, err := schedule.CronTimes(t.Context(), cron, from, n)
	return times.All, err
}

func TestRecurrenceRulesYieldLocalTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, start string
		leap        schedule.Leap
		from        string
		want        []string
	}{
		{rule: "FREQ=DAILY", start: "2027-03-27T02:30:00", from: "2027-03-27T00:00:00", want: []string{"2027-03-27T02:30:00", "2027-03-28T02:30:00", "2027-03-29T02:30:00"}},
		{rule: "RRULE:FREQ=WEEKLY;BYDAY=MO,FR;INTERVAL=2", start: "2027-01-04T09:00:00", from: "2047-01-01T00:00:00", want: []string{"2047-01-07T09:00:00", "2047-01-11T09:00:00", "2047-01-21T09:00:00"}},
		{rule: "FREQ=DAILY;BYHOUR=9,8,9;COUNT=3", start: "2027-01-01T00:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-01T08:00:00", "2027-01-01T09:00:00", "2027-01-02T08:00:00"}},
		{rule: "FREQ=WEEKLY", start: "2027-01-06T09:00:00", from: "2027-02-01T00:00:00", want: []string{"2027-02-03T09:00:00"}},
		{rule: "FREQ=MONTHLY;BYMONTHDAY=-1", start: "2027-01-31T08:00:00", from: "2028-02-01T00:00:00", want: []string{"2028-02-29T08:00:00", "2028-03-31T08:00:00"}},
		{rule: "FREQ=MONTHLY", start: "2027-01-31T08:00:00", from: "2027-02-01T00:00:00", want: []string{"2027-03-31T08:00:00", "2027-05-31T08:00:00"}},
		{rule: "FREQ=MONTHLY;INTERVAL=5", start: "1999-01-31T08:00:00", from: "2026-01-01T00:00:00", want: []string{"2026-07-31T08:00:00", "2026-12-31T08:00:00"}},
		{rule: "FREQ=MONTHLY;BYDAY=-1FR", start: "2027-01-01T08:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-29T08:00:00", "2027-02-26T08:00:00"}},
		{rule: "FREQ=YEARLY", start: "1950-12-31T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-12-31T09:00:00", "2028-12-31T09:00:00"}},
		{rule: "FREQ=YEARLY;INTERVAL=7", start: "1600-05-05T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-05-05T09:00:00", "2034-05-05T09:00:00"}},
		{rule: "FREQ=YEARLY", start: "2024-02-29T09:00:00", from: "2025-01-01T00:00:00", want: []string{"2025-02-28T09:00:00", "2026-02-28T09:00:00", "2027-02-28T09:00:00", "2028-02-29T09:00:00"}},
		{rule: "FREQ=YEARLY", leap: schedule.LeapMar1, start: "1904-02-29T09:00:00", from: "2026-01-01T00:00:00", want: []string{"2026-03-01T09:00:00", "2027-03-01T09:00:00", "2028-02-29T09:00:00"}},
		{rule: "FREQ=YEARLY", leap: schedule.LeapSkip, start: "2024-02-29T09:00:00", from: "2025-01-01T00:00:00", want: []string{"2028-02-29T09:00:00", "2032-02-29T09:00:00"}},
		{rule: "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29", start: "2027-01-01T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-02-28T09:00:00", "2028-02-29T09:00:00"}},
		{rule: "FREQ=YEARLY;BYMONTH=2,3;BYMONTHDAY=29", start: "2027-01-01T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-03-29T09:00:00", "2028-02-29T09:00:00"}},
		{rule: "rrule:FREQ=YEARLY;BYWEEKNO=1,2", start: "2027-01-06T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-06T09:00:00", "2027-01-13T09:00:00", "2028-01-05T09:00:00"}},
		{rule: "FREQ=DAILY;COUNT=3", start: "2027-01-01T09:00:00", from: "2027-01-02T00:00:00", want: []string{"2027-01-02T09:00:00", "2027-01-03T09:00:00"}},
		{rule: "FREQ=DAILY;UNTIL=20270102", start: "2027-01-01T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-01T09:00:00", "2027-01-02T09:00:00"}},
		{rule: "FREQ=DAILY;UNTIL=20270102T085959", start: "2027-01-01T09:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-01T09:00:00"}},
		{rule: "FREQ=MINUTELY;INTERVAL=45", start: "1971-01-01T00:10:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-01T00:10:00", "2027-01-01T00:55:00"}},
		{rule: "FREQ=SECONDLY;BYHOUR=23;BYMONTH=2;BYMONTHDAY=29;BYDAY=MO", start: "1971-01-01T00:00:00", from: "2027-01-01T00:00:00", want: []string{"2044-02-29T23:00:00", "2044-02-29T23:00:01"}},
		{rule: "FREQ=HOURLY;INTERVAL=5;BYDAY=SU", start: "2027-01-01T00:00:00", from: "2027-01-01T00:00:00", want: []string{"2027-01-03T02:00:00", "2027-01-03T07:00:00", "2027-01-03T12:00:00", "2027-01-03T17:00:00", "2027-01-03T22:00:00", "2027-01-10T04:00:00"}},
	} {
		got, err := localTimes(t, c.rule, local(t, c.start), c.leap, local(t, c.from), len(c.want))
		if err != nil {
			t.Errorf("%s: %v", c.rule, err)
			continue
		}
		if fmt.Sprint(texts(got)) != fmt.Sprint(c.want) {
			t.Errorf("%s from %s, leap %q:\n got %v\nwant %v", c.rule, c.start, c.leap, texts(got), c.want)
		}
	}
}

func TestInvalidRecurrenceRulesAreRefused(t *testing.T) {
	t.Parallel()
	for _, rule := range []string{
		"", "daily", "FREQ=FORTNIGHTLY", "INTERVAL=2", "FREQ=DAILY;INTERVAL=-1", "FREQ=DAILY;INTERVAL=1000001", "FREQ=DAILY;COUNT=10001", "FREQ=SECONDLY;BYHOUR=9;COUNT=1001", "FREQ=DAILY;COUNT=-1",
		"FREQ=YEARLY;BYMONTH=13", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30", "FREQ=SECONDLY;BYMONTH=2;BYMONTHDAY=30",
		"FREQ=SECONDLY;INTERVAL=60;BYSECOND=7", "FREQ=HOURLY;INTERVAL=24;BYHOUR=5", "FREQ=MINUTELY;INTERVAL=30;BYMINUTE=5", "FREQ=MONTHLY;BYDAY=53MO",
		"FREQ=MONTHLY;BYDAY=-53MO", "FREQ=YEARLY;BYMONTH=12;BYDAY=53MO", "FREQ=WEEKLY;BYDAY=1MO", "FREQ=YEARLY;BYEASTER=-300", "FREQ=DAILY;BYSETPOS=1",
		"FREQ=WEEKLY;BYWEEKNO=1", "DTSTART:20270101T000000\nRRULE:FREQ=DAILY", "FREQ=DAILY;DTSTART=20270101T000000", "FREQ=DAILY;UNTIL=20260101T000000",
		"RRULE:FREQ=DAILY\nEXDATE:20270101T000000", "FREQ=DAILY;FOO=1", "FREQ=DAILY;",
		"FREQ=DAILY;COUNT=0", "FREQ=DAILY;INTERVAL=0", "FREQ=MONTHLY;BYDAY=0MO", "FREQ=MONTHLY;BYDAY=1TU,+0MO", "FREQ=WEEKLY;WKST=1MO", "FREQ=DAILY;COUNT=3;UNTIL=20280101",
	} {
		start := time.Now()
		_, err := localTimes(t, rule, local(t, "2027-01-01T00:00:00"), "", local(t, "2027-01-01T00:00:00"), 1)
		var invalid *schedule.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "rrule" {
			t.Errorf("%q: got %v, want it refused as rrule", rule, err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("%q took %s to refuse", rule, took)
		}
	}
}

// A rule that is followed from long after its start comes at the same times as one that is followed from its start.
func TestRecurrenceRulesYieldTheSameTimesFromAnyStart(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	pick := func(parts ...string) string { return parts[random.IntN(len(parts))] }
	for range 60 {
		freq := pick("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY")
		rule := "FREQ=" + freq + pick("", ";INTERVAL=2", ";INTERVAL=3", ";INTERVAL=5") + pick("", ";WKST=SU")
		switch freq {
		case "YEARLY":
			rule += pick("", ";BYMONTH=1,6", ";BYYEARDAY=1,200,-1", ";BYWEEKNO=20,53", ";BYDAY=10MO,-1SU", ";BYMONTH=3;BYMONTHDAY=31,-1", ";BYMONTH=2;BYDAY=1FR;BYHOUR=3,4")
		case "MONTHLY":
			rule += pick("", ";BYMONTHDAY=1,15,31", ";BYDAY=2TU", ";BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ";BYMONTHDAY=-2;BYMONTH=2,8")
		case "WEEKLY":
			rule += pick("", ";BYDAY=SU,TU", ";BYDAY=MO;BYHOUR=1,2,3", ";BYMONTH=5")
		case "DAILY":
			rule += pick("", ";BYDAY=SA,SU", ";BYMONTHDAY=13", ";BYHOUR=6,18;BYMINUTE=0,30")
		default:
			rule += pick("", ";BYDAY=SA", ";BYMONTH=1;BYMONTHDAY=1")
		}
		start := time.Date(1999+random.IntN(10), time.Month(1+random.IntN(12)), 1+random.IntN(28)+random.IntN(2)*3, random.IntN(24), random.IntN(60), 0, 0, time.UTC)
		all, err := localTimes(t, rule, start, "", start, 1500)
		if err != nil {
			if strings.Contains(err.Error(), "never") {
				continue
			}
			t.Fatalf("%s from %s: %v", rule, start, err)
		}
		i := random.IntN(len(all))
		from := all[i].Add(-time.Duration(random.IntN(2)) * time.Second)
		got, err := localTimes(t, rule, start, "", from, len(all)-i)
		if err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(texts(got)) != fmt.Sprint(texts(all[i:])) {
			t.Errorf("%s from %s on, at %s:\n got %v\nwant %v", rule, schedule.FormatLocal(start), schedule.FormatLocal(from), texts(got)[:min(5, len(got))], texts(all[i:])[:min(5, len(all)-i)])
		}
	}
}

func TestCronExpressionsYieldLocalTimes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cron, from string
		want       []string
	}{
		{"30 2 * * *", "2027-03-27T02:30:00", []string{"2027-03-27T02:30:00", "2027-03-28T02:30:00"}},
		{"*/15 9-17 * * MON-FRI", "2027-01-01T17:31:00", []string{"2027-01-01T17:45:00", "2027-01-04T09:00:00"}},
		{"0 0 13 * FRI", "2027-01-01T00:00:00", []string{"2027-01-01T00:00:00", "2027-01-08T00:00:00", "2027-01-13T00:00:00", "2027-01-15T00:00:00"}},
		{"0 9 29 2 *", "2027-01-01T00:00:00", []string{"2028-02-29T09:00:00", "2032-02-29T09:00:00"}},
		{"*/20 * * * * *", "2027-01-01T00:00:01", []string{"2027-01-01T00:00:20", "2027-01-01T00:00:40", "2027-01-01T00:01:00"}},
		{"0 0 */2 * 1", "2027-01-01T00:00:00", []string{"2027-01-11T00:00:00", "2027-01-25T00:00:00", "2027-02-01T00:00:00"}},
		{"0 0 1,15 * */3", "2027-01-01T00:00:00", []string{"2027-05-01T00:00:00", "2027-05-15T00:00:00", "2027-08-01T00:00:00"}},
		{"0 0 * * sat-tue/2", "2027-01-01T00:00:00", []string{"2027-01-02T00:00:00", "2027-01-04T00:00:00", "2027-01-09T00:00:00"}},
		{"0 0 * * 5-3/2", "2027-01-01T00:00:00", []string{"2027-01-01T00:00:00", "2027-01-03T00:00:00", "2027-01-05T00:00:00", "2027-01-08T00:00:00"}},
		{"0 0 * * 7-3/2", "2027-01-01T00:00:00", []string{"2027-01-03T00:00:00", "2027-01-05T00:00:00", "2027-01-10T00:00:00"}},
		{"0 0 * * 6-1/2", "2027-01-01T00:00:00", []string{"2027-01-02T00:00:00", "2027-01-04T00:00:00", "2027-01-09T00:00:00"}},
		{"0 0 * * 5-1/3", "2027-01-01T00:00:00", []string{"2027-01-01T00:00:00", "2027-01-04T00:00:00", "2027-01-08T00:00:00"}},
		{"0 0 * * fri-7", "2027-01-01T00:00:00", []string{"2027-01-01T00:00:00", "2027-01-02T00:00:00", "2027-01-03T00:00:00", "2027-01-08T00:00:00"}},
		{"@daily", "2027-01-01T00:00:01", []string{"2027-01-02T00:00:00"}},
		{"@yearly", "2027-01-01T00:00:01", []string{"2028-01-01T00:00:00"}},
	} {
		got, err := cronTimes(t, c.cron, local(t, c.from), len(c.want))
		if err != nil {
			t.Errorf("%s: %v", c.cron, err)
			continue
		}
		if fmt.Sprint(texts(got)) != fmt.Sprint(c.want) {
			t.Errorf("%s: got %v, want %v", c.cron, texts(got), c.want)
		}
	}
	for _, cron := range []string{"", "* * * *", "60 * * * *", "0 0 30 2 *", "@every 1h", "@reboot", "TZ=Europe/Berlin 0 9 * * *", "CRON_TZ=UTC 0 9 * * *", "1 2 3 4 5 6 7", "*-5 * * * *", "0, * * * *", "0,,5 * * * *", "+5 * * * *", "0 0 * * -1", "0 0 * * mon-", "0 9 L * *", "0 9 * * 5L", "0 9 * * 1#2"} {
		_, err := cronTimes(t, cron, local(t, "2027-01-01T00:00:00"), 1)
		var invalid *schedule.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != "cron" {
			t.Errorf("%q: got %v, want it refused as cron", cron, err)
		}
	}
}

func TestMomentsAreLocalOrInstants(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2027-03-28T09:00:00":           "2027-03-28T09:00:00",
		"2027-03-28T09:00":              "2027-03-28T09:00:00",
		"2027-03-28T09:00:00.1234567":   "2027-03-28T09:00:00.123456",
		"2027-03-28T09:00:00Z":          "2027-03-28T09:00:00Z",
		"2027-03-28T09:00:00+02:00":     "2027-03-28T07:00:00Z",
		"2027-03-28T09:00:00.5-03:30":   "2027-03-28T12:30:00.5Z",
		"2028-02-29T00:00:00":           "2028-02-29T00:00:00",
		"":                              "",
		"2027-02-29T00:00:00":           "",
		"2027-03-28":                    "",
		"2027-03-28 09:00:00":           "",
		"09:00":                         "",
		"0000-01-01T00:00:00":           "",
		"0001-01-01T00:00:00+02:00":     "",
		"2027-03-28T24:00:00":           "",
		"2027-03-28T09:00:00 Europe":    "",
		"20270328T090000":               "",
		"tomorrow":                      "",
		"2027-03-28T09:00:00,5":         "",
		"12027-03-28T09:00:00":          "",
		"2027-03-28T09:00:00+02:00:00x": "",
	} {
		m, err := schedule.ParseMoment(text)
		switch {
		case want == "":
			if !errors.Is(err, schedule.ErrInvalid) {
				t.Errorf("%q: got %v, %v; want it refused", text, m, err)
			}
		case err != nil || m.String() != want:
			t.Errorf("%q: got %v, %v; want %s", text, m, err, want)
		}
	}
}
