package schedule_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// previewed returns the first n instants of a schedule after another, each with its local time.
func (env environment) previewed(t *testing.T, spec schedule.Spec, after time.Time, n int) (texts []string) {
	t.Helper()
	got, err := env.Preview(t.Context(), schedule.PreviewParams{Spec: spec, After: &after, N: n})
	if err != nil {
		t.Fatalf("%s%s: %v", spec.Cron, spec.RRule, err)
	}
	for _, i := range got {
		texts = append(texts, i.Local.Format("15:04:05")+"="+i.UTC.Format("02T15:04:05"))
	}
	return texts
}

// Rules that come within days follow real time where clocks change: each instant at which clocks show one of their times, once.
func TestFrequentRulesFollowRealTime(t *testing.T) {
	t.Parallel()
	env := setup(t)
	const back, forward = "2026-11-01T04:59:59Z", "2026-03-08T06:28:59Z" // an hour before New York's clocks change, or half an hour
	halves := []string{"01:00:00=01T05:00:00", "01:30:00=01T05:30:00", "01:00:00=01T06:00:00", "01:30:00=01T06:30:00", "02:00:00=01T07:00:00"}
	for _, c := range []struct {
		cron, rule, at string
		zone           string
		after          string
		want           []string
		hasNoMore      bool
		change         func(*schedule.Spec)
	}{
		{cron: "*/15 * * * *", after: back, want: []string{
			"01:00:00=01T05:00:00", "01:15:00=01T05:15:00", "01:30:00=01T05:30:00", "01:45:00=01T05:45:00",
			"01:00:00=01T06:00:00", "01:15:00=01T06:15:00", "01:30:00=01T06:30:00", "01:45:00=01T06:45:00", "02:00:00=01T07:00:00",
		}},
		{cron: "*/15 * * * *", after: "2026-11-01T06:20:00Z", want: []string{"01:30:00=01T06:30:00", "01:45:00=01T06:45:00", "02:00:00=01T07:00:00"}},
		{cron: "*/15 * * * *", after: "2026-11-01T05:45:00Z", want: []string{"01:00:00=01T06:00:00"}},
		{cron: "* * * * *", after: "2026-03-08T06:58:00Z", want: []string{"01:59:00=08T06:59:00", "03:00:00=08T07:00:00", "03:01:00=08T07:01:00"}},
		{cron: "0,30 * * * *", after: back, want: halves},
		{cron: "*/30 1,2 * * *", after: back, want: halves},
		{cron: "0 */30 1,2 * * *", after: back, want: halves},
		{cron: "0,30 */1 * * *", after: back, want: halves, change: func(s *schedule.Spec) { s.Overlap = schedule.OverlapLast }},
		{cron: "@hourly", after: back, want: []string{"01:00:00=01T05:00:00", "01:00:00=01T06:00:00", "02:00:00=01T07:00:00"}},
		{cron: "*/30 2 * * *", after: forward, want: []string{"02:00:00=09T06:00:00", "02:30:00=09T06:30:00"}},
		{rule: "FREQ=MINUTELY;INTERVAL=30", at: "2026-01-01T00:00:00", after: back, want: halves},
		{rule: "FREQ=SECONDLY;INTERVAL=1800", at: "2026-01-01T00:00:00", after: back, want: halves},
		{rule: "FREQ=HOURLY;BYMINUTE=0,30", at: "2026-01-01T00:00:00", after: back, want: halves},
		{rule: "FREQ=HOURLY", at: "2026-01-01T00:30:00", after: forward, want: []string{"01:30:00=08T06:30:00", "03:30:00=08T07:30:00", "04:30:00=08T08:30:00"}},
		{rule: "FREQ=HOURLY;COUNT=2", at: "2026-11-01T00:30:00", after: "2026-10-01T00:00:00Z", hasNoMore: true, want: []string{"00:30:00=01T04:30:00", "01:30:00=01T05:30:00"}},
		{rule: "FREQ=HOURLY;COUNT=4", at: "2026-11-01T00:30:00", after: "2026-10-01T00:00:00Z", hasNoMore: true, want: []string{
			"00:30:00=01T04:30:00", "01:30:00=01T05:30:00", "01:30:00=01T06:30:00", "02:30:00=01T07:30:00",
		}},
		{rule: "FREQ=HOURLY;COUNT=3", at: "2026-03-08T01:30:00", after: "2026-03-01T00:00:00Z", hasNoMore: true, want: []string{
			"01:30:00=08T06:30:00", "03:30:00=08T07:30:00", "04:30:00=08T08:30:00",
		}},
		{rule: "FREQ=HOURLY;UNTIL=20261101T053000Z", at: "2026-11-01T00:30:00", after: "2026-10-01T00:00:00Z", hasNoMore: true, want: []string{
			"00:30:00=01T04:30:00", "01:30:00=01T05:30:00",
		}},
		{cron: "30 * * * *", after: back, want: []string{"01:30:00=01T06:30:00", "02:30:00=01T07:30:00"}, change: func(s *schedule.Spec) { s.Starts = moment(t, "2026-11-01T06:00:00Z") }},
		{cron: "30 * * * *", after: back, hasNoMore: true, want: []string{"01:30:00=01T05:30:00"}, change: func(s *schedule.Spec) { s.Ends = moment(t, "2026-11-01T06:00:00Z") }},
		{cron: "30 * * * *", after: back, hasNoMore: true, want: []string{"01:30:00=01T05:30:00", "01:30:00=01T06:30:00"}, change: func(s *schedule.Spec) { s.Ends = moment(t, "2026-11-01T01:30:00") }},
		{cron: "15,45 * * * *", zone: "Australia/Lord_Howe", after: "2027-04-03T14:14:00Z", want: []string{
			"01:15:00=03T14:15:00", "01:45:00=03T14:45:00", "01:45:00=03T15:15:00", "02:15:00=03T15:45:00",
		}},
		// Those that come at some times of a day do not.
		{cron: "0,30 1,2 * * *", after: back, want: []string{"01:00:00=01T05:00:00", "01:30:00=01T05:30:00", "02:00:00=01T07:00:00"}},
		{cron: "*/10 30 1 * * *", after: "2026-11-01T05:30:40Z", want: []string{"01:30:50=01T05:30:50", "01:30:00=02T06:30:00"}},
		{rule: "FREQ=HOURLY;INTERVAL=24", at: "2026-01-01T01:30:00", after: back, want: []string{"01:30:00=01T05:30:00", "01:30:00=02T06:30:00"}},
		{rule: "FREQ=DAILY;BYHOUR=1", at: "2026-01-01T01:30:00", after: back, want: []string{"01:30:00=01T05:30:00", "01:30:00=02T06:30:00"}},
	} {
		spec := schedule.Spec{Cron: c.cron, RRule: c.rule, Timezone: cmp.Or(c.zone, "America/New_York")}
		if c.at != "" {
			spec.At = moment(t, c.at)
		}
		if c.change != nil {
			c.change(&spec)
		}
		n := len(c.want)
		if c.hasNoMore {
			n = 20
		}
		if got := env.previewed(t, spec, instant(t, c.after), n); !slices.Equal(got, c.want) {
			t.Errorf("%s%s after %s:\n got %v\nwant %v", c.cron, c.rule, c.after, got, c.want)
		}
	}
}

// All changes of some zones within years are tried, against the clocks of package time, which is asked about each minute.
func TestFrequentRulesComeWheneverClocksShowTheirTimes(t *testing.T) {
	t.Parallel()
	env := setup(t)
	for _, c := range []struct{ zone, from, to string }{
		{"America/New_York", "2025-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"Australia/Lord_Howe", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"Antarctica/Troll", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
		{"America/Sao_Paulo", "2018-01-01T00:00:00Z", "2019-01-01T00:00:00Z"},
		{"Pacific/Apia", "2011-01-01T00:00:00Z", "2012-12-01T00:00:00Z"},
		{"Africa/Casablanca", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z"},
	} {
		loc, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		all := segments(loc, instant(t, c.from), instant(t, c.to))
		if !agree(t, env.sql, c.zone, loc, all) {
			t.Logf("the server has other rules for %s", c.zone)
			continue
		}
		for _, change := range all[1:] {
			for expression, shows := range map[string]func(time.Time) bool{
				"*/15 * * * *":     func(at time.Time) bool { return at.Minute()%15 == 0 },
				"7 * * * *":        func(at time.Time) bool { return at.Minute() == 7 },
				"*/20 0-3 * * *":   func(at time.Time) bool { return at.Minute()%20 == 0 && at.Hour() <= 3 },
				"5,50 */2 * * *":   func(at time.Time) bool { return (at.Minute() == 5 || at.Minute() == 50) && at.Hour()%2 == 0 },
				"*/10 1 * * 0,6":   func(at time.Time) bool { return at.Minute()%10 == 0 && at.Hour() == 1 && at.Weekday()%6 == 0 },
				"0 0,30 */1 * * *": func(at time.Time) bool { return at.Minute()%30 == 0 },
			} {
				for _, early := range []time.Duration{27 * time.Hour, 90 * time.Minute, 20 * time.Minute, -10 * time.Minute} {
					after := change.start.Add(-early)
					var want []string
					for at := after.Truncate(time.Minute).Add(time.Minute); len(want) < 20; at = at.Add(time.Minute) {
						if civil := at.In(loc); shows(civil) {
							want = append(want, civil.Format("15:04:05")+"="+at.UTC().Format("02T15:04:05"))
						}
					}
					if got := env.previewed(t, schedule.Spec{Cron: expression, Timezone: c.zone}, after, 20); !slices.Equal(got, want) {
						t.Errorf("%s in %s after %s:\n got %v\nwant %v", expression, c.zone, format(&after), got, want)
					}
				}
			}
		}
	}
}

// The same local time comes twice, and each is an occurrence of its own: both are listed, in their order, and pages of one miss none.
func TestOccurrencesInRealTimeAreListedInTheirOrder(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{Cron: "*/30 * * * *", Timezone: "America/New_York", Misfire: schedule.MisfireAll})
	env.nextAt(t, s.ID, "2025-11-02T00:30:00")
	env.fire(t, 1)
	if _, err := env.Pause(t.Context(), s.ID); err != nil {
		t.Fatal(err)
	}
	env.exec(t, `delete from agent.occurrence where scheduled_for > '2025-11-02T07:00:00Z'`)
	var got []string
	for cursor := ""; ; {
		page, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: s.ID, Limit: 1, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Past {
			got = append(got, o.NominalAt.Format("15:04")+"="+o.ScheduledFor.UTC().Format("15:04"))
		}
		if cursor = page.Next; cursor == "" {
			break
		}
	}
	if want := "[02:00=07:00 01:30=06:30 01:00=06:00 01:30=05:30 01:00=05:00 00:30=04:30]"; fmt.Sprint(got) != want {
		t.Errorf("listed %v, want %s", got, want)
	}
	env.exec(t, `delete from agent.occurrence where scheduled_for > '2025-11-02T06:00:00Z'`)
	last, err := env.LastOccurrences(t.Context(), s.ID)
	if err != nil || format(new(last[s.ID].ScheduledFor)) != "2025-11-02T06:00:00Z" {
		t.Errorf("the last one is %+v, %v", last, err)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(distinct event -> 'n') from agent.event where occurrence ->> 'nominal_at' = '2025-11-02T01:30:00'`); n != 1 {
		t.Errorf("events of the local time that came twice: %d payloads", n)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event where occurrence ->> 'nominal_at' = '2025-11-02T01:30:00'`); n != 2 {
		t.Errorf("%d events of the local time that came twice", n)
	}
}

// A frequent schedule goes on in the zone that its owner moves to, without a stop of hours and without what would have come there before.
func TestFrequentScheduleGoesOnWhenItsOwnerMoves(t *testing.T) {
	t.Parallel()
	for _, zone := range []string{"Etc/GMT+9", "Etc/GMT-9", "Asia/Kolkata"} {
		t.Run(strings.ReplaceAll(zone, "/", "_"), func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			env.owner(t, "ada", "UTC")
			s := env.create(t, schedule.Spec{Owner: "ada", Cron: "*/15 * * * *", Misfire: schedule.MisfireAll})
			env.backBy(t, s.ID, 24*time.Hour)
			for range 3 { // of a day, with all local times
				if _, err := schedule.Fire(t.Context(), env.Service); err != nil {
					t.Fatal(err)
				}
			}
			before := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`)
			if moved := env.owner(t, "ada", zone); moved.Moved != 1 {
				t.Errorf("moved: %+v", moved)
			}
			next := env.get(t, s.ID)
			if wait := time.Until(*next.NextAt); wait > 15*time.Minute+time.Second || wait < -time.Second || next.NextAt.Minute()%15 != 0 {
				t.Errorf("next is at %v, %v from now", next.NextAt, wait)
			}
			if got := pgtest.Query[bool](t, env.sql, `select next_local = next_at at time zone zone and not is_unplanned from agent.schedule`); !got {
				t.Errorf("next is %v at %v, which clocks there do not show", next.NextLocal, next.NextAt)
			}
			if upcoming, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: s.ID, Upcoming: 5}); err != nil || len(upcoming.Upcoming) != 5 ||
				!upcoming.Upcoming[4].UTC.Equal(next.NextAt.Add(time.Hour)) {
				t.Errorf("upcoming: %+v, %v", upcoming.Upcoming, err)
			}
			if _, err := schedule.Fire(t.Context(), env.Service); err != nil {
				t.Fatal(err)
			}
			if after := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); after > before+1 {
				t.Errorf("the move made %d events", after-before)
			}
		})
	}
}

// One that is due and has not fired as its owner moves fires, once.
func TestFrequentOccurrenceThatIsDueAsItsOwnerMovesFires(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.owner(t, "ada", "UTC")
	s := env.create(t, schedule.Spec{Owner: "ada", RRule: "FREQ=MINUTELY;INTERVAL=30", At: moment(t, "2026-01-01T00:00:00")})
	env.exec(t, `update agent.schedule set next_local = next_local - interval '30 min', next_at = next_at - interval '30 min', misfire = 'all'`)
	due := env.get(t, s.ID).NextAt
	env.owner(t, "ada", "Etc/GMT-9")
	env.fire(t, 1)
	if past := env.past(t, s.ID); len(past) != 1 || !past[0].ScheduledFor.Equal(*due) {
		t.Errorf("what came is %+v, want that of %v", past, due)
	}
	if next := env.get(t, s.ID).NextAt; !next.Equal(due.Add(30 * time.Minute)) {
		t.Errorf("next is at %v, want half an hour after %v", next, due)
	}
}

// A patch of the zone does the same as the move of an owner, and that of a name leaves the end by COUNT where it is.
func TestFrequentScheduleIsPatched(t *testing.T) {
	t.Parallel()
	env := setup(t)
	hour := time.Now().UTC().Truncate(time.Hour)
	start := hour.Add(-24 * time.Hour) // which is over in each zone
	s := env.create(t, schedule.Spec{RRule: "FREQ=HOURLY;COUNT=100", At: &schedule.Moment{Time: start}, Timezone: "UTC"})
	end := start.Add(99 * time.Hour)
	zone, name := "Etc/GMT+9", "ada"
	for _, p := range []schedule.PatchParams{{ID: s.ID, Timezone: &zone}, {ID: s.ID, Name: &name}} {
		if _, err := env.Patch(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if got := pgtest.Query[time.Time](t, env.sql, `select until_at from agent.schedule`); !got.Equal(end) {
			t.Errorf("it ends at %v, want %v", got, end)
		}
	}
	if got := env.get(t, s.ID); !got.NextAt.Equal(hour.Add(time.Hour)) {
		t.Errorf("next is at %v, want %v", got.NextAt, hour.Add(time.Hour))
	}
	daily := "0 0 * * *"
	if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: s.ID, Cron: &daily}); err != nil {
		t.Fatal(err)
	}
	if pgtest.Query[bool](t, env.sql, `select is_real_time or until_at is not null from agent.schedule`) {
		t.Error("a daily rule in its place is in real time, too, or ends where the other did")
	}
}
