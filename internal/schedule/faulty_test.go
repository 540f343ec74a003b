package schedule_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// makeDue makes the active schedules due, in the order of their ids.
func (env environment) makeDue(t *testing.T) {
	t.Helper()
	env.exec(t, `update agent.schedule set next_at = now() - interval '1 s' + id * interval '1 ms' where status = 'active'`)
}

// fireAll fires what is due until nothing is.
func (env environment) fireAll(t *testing.T) {
	t.Helper()
	for range 20 {
		ids, err := schedule.Fire(t.Context(), env.Service)
		if err != nil {
			t.Fatal(err)
		}
		if len(ids) == 0 {
			return
		}
	}
	t.Error("after 20 times something is still due")
}

// An update of the operating system may take a zone away (tzdata-legacy), as may a restore to another server.
func TestUnknownZonePausesOnlyItsSchedules(t *testing.T) {
	t.Parallel()
	env := setup(t)
	lost := env.create(t, hourly("America/New_York"))
	yearly := env.create(t, schedule.Spec{RRule: "FREQ=YEARLY", At: moment(t, "2000-01-01T09:00:00"), Timezone: "America/Chicago"})
	valid := []schedule.Schedule{env.create(t, hourly("Europe/Berlin")), env.create(t, hourly("UTC"))}
	env.exec(t, `update agent.schedule set zone = 'US/Atlantis', timezone = 'US/Atlantis' where id = $1`, lost.ID)
	env.exec(t, `update agent.schedule set zone = 'Lemuria', timezone = 'Lemuria' where id = $1`, yearly.ID)
	env.makeDue(t)
	env.fireAll(t)
	for _, s := range valid {
		if got := env.get(t, s.ID); got.Fired != 1 || got.Status != schedule.Active || got.StatusReason != "" {
			t.Errorf("a valid one: %+v", got)
		}
	}
	for id, zone := range map[int64]string{lost.ID: "US/Atlantis", yearly.ID: "Lemuria"} {
		want := "the database server does not know the time zone " + zone
		if got := env.get(t, id); got.Status != schedule.Paused || got.StatusReason != want || got.Fired != 0 || got.NextAt == nil {
			t.Errorf("the one in %s: %+v", zone, got)
		}
	}
	if n := env.Counters().Faulty; n != 2 {
		t.Errorf("%d are counted as faulty, want 2", n)
	}

	// Everything else there is to do with it works, or says why not.
	var invalid *schedule.InvalidError
	if _, err := env.RunNow(t.Context(), lost.ID); !errors.As(err, &invalid) || invalid.Field != "timezone" {
		t.Errorf("run: %v", err)
	}
	if _, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: lost.ID, Upcoming: 3}); err != nil {
		t.Errorf("occurrences: %v", err)
	}
	name := "x"
	if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: lost.ID, Name: &name}); !errors.As(err, &invalid) || invalid.Field != "timezone" {
		t.Errorf("patch of something else: %v", err)
	}
	zone := "Asia/Tokyo"
	patched, err := env.Patch(t.Context(), schedule.PatchParams{ID: lost.ID, Timezone: &zone})
	if err != nil || patched.Status != schedule.Paused || patched.Zone != zone {
		t.Errorf("patch of the zone: %+v, %v", patched, err)
	}
	if resumed, err := env.Resume(t.Context(), lost.ID); err != nil || resumed.Status != schedule.Active || resumed.StatusReason != "" {
		t.Errorf("resumed: %+v, %v", resumed, err)
	}
	env.makeDue(t)
	env.fireAll(t)
	if got := env.get(t, lost.ID); got.Fired == 0 {
		t.Errorf("after all: %+v", got)
	}

	// One that is resumed unchanged is paused again.
	if _, err := env.Resume(t.Context(), yearly.ID); err != nil {
		t.Fatal(err)
	}
	env.fireAll(t)
	if got := env.get(t, yearly.ID); got.Status != schedule.Paused || got.StatusReason == "" {
		t.Errorf("resumed unchanged: %+v", got)
	}
	if err := env.Delete(t.Context(), yearly.ID, nil); err != nil {
		t.Error(err)
	}
}

func TestUnknownZoneDoesNotStopTheCheckOfOthers(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.owner(t, "ada", "Europe/Berlin")
	s := env.create(t, schedule.Spec{At: moment(t, "2040-07-01T09:00:00"), Owner: "ada"})
	lost := env.create(t, schedule.Spec{At: moment(t, "2040-07-01T09:00:00"), Timezone: "Africa/Cairo"})
	env.exec(t, `update agent.schedule set zone = 'Africa/Atlantis' where id = $1`, lost.ID)
	env.exec(t, `update agent.zone_rule set zone = 'Africa/Atlantis' where zone = 'Africa/Cairo'`) // which comes first
	// A row of the same zone that nothing can be said of.
	far := env.create(t, schedule.Spec{At: moment(t, "2040-07-01T09:00:00"), Owner: "ada"})
	env.exec(t, `update agent.schedule set next_local = '294276-12-31 23:00', next_at = '294276-12-31 23:00Z' where id = $1`, far.ID)
	env.exec(t, `update agent.zone_rule set fingerprint = 'others' where zone = 'Europe/Berlin'`)
	env.exec(t, `update agent.schedule set next_at = next_at + interval '1 h' where id = $1`, s.ID)
	if err := env.CheckZones(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := env.get(t, s.ID); format(got.NextAt) != "2040-07-01T07:00:00Z" {
		t.Errorf("next at %s: it was not checked", format(got.NextAt))
	}
	if got := env.get(t, far.ID); got.Status != schedule.Paused || !strings.Contains(got.StatusReason, "beyond") {
		t.Errorf("far away: %+v", got)
	}
	// The same when its owner moves.
	if _, err := env.Resume(t.Context(), far.ID); err != nil {
		t.Fatal(err)
	}
	env.owner(t, "ada", "America/New_York")
	if got := env.get(t, s.ID); got.Zone != "America/New_York" || format(got.NextAt) != "2040-07-01T13:00:00Z" {
		t.Errorf("moved: %+v", got)
	}
	if got := env.get(t, far.ID); got.Status != schedule.Paused {
		t.Errorf("far away, moved: %+v", got)
	}
	// A zone of an owner's that was lost is said of what is made for them.
	env.exec(t, `update agent.owner set timezone = 'Europe/Atlantis'`)
	var invalid *schedule.InvalidError
	if _, err := env.Create(t.Context(), schedule.CreateParams{Spec: schedule.Spec{Owner: "ada", Cron: "@daily", Event: json.RawMessage(`{}`)}}); !errors.As(err, &invalid) || invalid.Field != "owner" {
		t.Errorf("create for an owner in a lost zone: %v", err)
	}
}

// Rows that no call makes, but that the columns can hold: written by hand, or by a later version.
func TestInvalidRowPausesOnlyItself(t *testing.T) {
	t.Parallel()
	env := setup(t)
	bad := map[string]int64{}
	for _, set := range []string{
		`rule = 'never'`,
		`rule = null`,
		`rule = 'FREQ=DAILY;COUNT=0;COUNT=1', kind = 'rrule', at_local = '2027-01-01'`,
		`rule = 'FREQ=DAILY', kind = 'rrule'`, // which starts nowhere
		`kind = 'once'`,                       // at no time
		`kind = 'once', at_local = 'infinity'`,
		`kind = 'once', at_instant = 'infinity'`,
		`kind = 'rrule', rule = 'FREQ=DAILY', at_local = '294276-01-01'`,
		`zone = ''`,
		`zone = repeat('x', 10000)`,
		`next_local = '4713-01-01 BC', next_at = '4713-01-02 BC'`,
		`next_local = '294276-12-31'`,
		`queue = 'no queue'`,
		`type = ''`,
		`topic = 'no topic', queue = null`,
		`topic = 'queued.publish', queue = null`,
	} {
		bad[set] = env.create(t, hourly("UTC")).ID
	}
	odd := map[string]int64{}
	for _, set := range []string{
		`starts_at = '-infinity', ends_at = 'infinity'`,
		`starts_local = '-infinity', ends_local = 'infinity', last_local = 'infinity'`,
		`created_at = '-infinity', updated_at = 'infinity'`,
		`created_at = '4713-01-01 BC', updated_at = '294276-12-31'`,
		`name = repeat('x', 100000), owner = 'nobody'`,
	} {
		odd[set] = env.create(t, hourly("UTC")).ID
	}
	good := env.create(t, hourly("UTC"))
	env.makeDue(t)
	for _, rows := range []map[string]int64{bad, odd} {
		for set, id := range rows {
			env.exec(t, `update agent.schedule set `+set+` where id = $1`, id)
		}
	}
	page, err := env.List(t.Context(), schedule.ListParams{Limit: 1000})
	if err != nil || len(page.Schedules) != len(bad)+len(odd)+1 {
		t.Fatalf("listed %d, %v", len(page.Schedules), err)
	}
	due := time.Now().Add(time.Hour)
	var listed []int64
	for list := (schedule.ListParams{DueBefore: &due, Limit: 2}); ; {
		page, err := env.List(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range page.Schedules {
			listed = append(listed, s.ID)
		}
		if list.Cursor = page.Next; list.Cursor == "" || len(listed) > 100 {
			break
		}
	}
	if len(listed) != len(bad)+len(odd)+1 {
		t.Errorf("of those due %d are listed", len(listed))
	}

	stop := running(t, env.Service) // which pauses one that a constraint refuses by firing each alone
	for set, id := range bad {
		until(t, "paused: "+set, func() bool { return env.get(t, id).Status == schedule.Paused })
		if got := env.get(t, id); got.StatusReason == "" {
			t.Errorf("%s: paused without a reason", set)
		}
		if _, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: id, Upcoming: 3}); err != nil {
			t.Errorf("%s: %v", set, err)
		}
	}
	until(t, "the good one fired", func() bool { return env.get(t, good.ID).Fired == 1 })
	for set, id := range odd {
		until(t, "fired: "+set, func() bool { return env.get(t, id).Fired == 1 })
		if got := env.get(t, id); got.Status != schedule.Active || got.StatusReason != "" {
			t.Errorf("%s: %+v", set, got)
		}
	}
	stop()

	// A patch of what is wrong with it mends a row.
	cron := "@daily"
	for set, id := range bad {
		if strings.Contains(set, "zone") || strings.Contains(set, "queue") || strings.Contains(set, "type") || strings.Contains(set, "topic") {
			continue
		}
		if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: id, Cron: &cron}); err != nil {
			t.Errorf("%s: mending it: %v", set, err)
		}
	}
}

func TestOccurrencesPageThroughUnrepresentableTimes(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	times := []string{"infinity", "294276-12-31", "20000-01-01", "20000-01-02", "2026-01-01", "0044-03-15 BC", "0044-03-14 BC", "4713-01-01 BC", "-infinity"}
	env.exec(t, `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, fired_at, status) select $1, a::timestamp, a::timestamptz, a::timestamptz, 'fired' from unnest($2::text[]) a`, s.ID, times)
	seen := 0
	for list := (schedule.OccurrencesParams{ID: s.ID, Limit: 1}); ; {
		page, err := env.Occurrences(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		if seen += len(page.Past); seen > 100 {
			break
		}
		if list.Cursor = page.Next; list.Cursor == "" {
			break
		}
	}
	if seen != len(times) {
		t.Errorf("%d of %d occurrences are listed", seen, len(times))
	}
}

// A schedule whose next time is unresolved is marked, so that no process fires it before one has expanded it.
func TestUnresolvedScheduleFiresNothingUntilItIsExpanded(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{Cron: "@daily", Timezone: "UTC"})
	gone := env.create(t, schedule.Spec{RRule: "FREQ=DAILY", At: moment(t, "2027-01-01T00:00:00"), Timezone: "UTC", Ends: moment(t, "2027-01-03T00:00:00Z")})
	env.exec(t, `update agent.schedule set is_unplanned = true, next_at = now() where id = $1`, s.ID)
	env.exec(t, `update agent.schedule set is_unplanned = true, next_local = '2027-02-01', next_at = now() where id = $1`, gone.ID)
	env.fire(t, 2)
	env.fire(t, 0)
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.occurrence`); n != 0 {
		t.Errorf("%d fired", n)
	}
	if got := env.get(t, s.ID); !got.NextLocal.After(*s.NextLocal) || got.Status != schedule.Active || got.Fired != 0 {
		t.Errorf("expanded: %+v", got)
	}
	if got := env.get(t, gone.ID); got.Status != schedule.Completed || got.NextAt != nil {
		t.Errorf("expanded beyond its end: %+v", got)
	}
}

func TestExpansionIsRepeatedWhenItsScheduleChanges(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	const each = 15
	errs := make(chan error)
	for i := range 3 {
		go func() {
			for j := range each {
				starts := &schedule.Moment{Time: time.Date(2030+i, 1, 1+j, 0, 0, 0, 0, time.UTC)}
				if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: s.ID, Starts: &starts}); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	got := env.get(t, s.ID)
	if got.Version != 1+3*each || !got.NextLocal.Equal(got.Starts.Time) {
		t.Errorf("after %d changes: %+v", 3*each, got)
	}

	// An owner who moves while something is made for them.
	env.owner(t, "ada", "UTC")
	record := `{"event":{},"owner":"ada","kind":"cron","rule":"@daily","zone":"Asia/Tokyo","next_local":"2040-01-01T00:00:00","next_at":"2040-01-01T00:00:00Z"}`
	if _, err := env.sql.Exec(t.Context(), `select agent_service.insert_schedule($1)`, record); err == nil || !strings.Contains(err.Error(), "QD013") {
		t.Errorf("an expansion by the zone an owner had: %v", err)
	}
	done := make(chan error, 1)
	go func() {
		for i := range 20 {
			if _, err := env.PutOwner(t.Context(), schedule.PutOwnerParams{ID: "ada", Timezone: []string{"Asia/Tokyo", "Europe/Paris"}[i%2]}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range 20 {
		env.create(t, schedule.Spec{Owner: "ada", Cron: "@daily"})
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := pgtest.Query[int](t, env.sql, `
		select count(*) from agent.schedule s join agent.owner o on o.id = s.owner
		where s.zone <> o.timezone or s.next_at <> agent.resolve_local(s.next_local, o.timezone)`); n != 0 {
		t.Errorf("%d schedules go by a zone that their owner has left", n)
	}
}

// until polls for a state that nothing notifies of.
func until(t *testing.T, what string, state func() bool) {
	t.Helper()
	late := time.Now().Add(time.Minute)
	for !state() {
		if time.Now().After(late) {
			t.Fatalf("after a minute still not: %s", what)
		}
	}
}
