package schedule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// owner puts an owner into a zone.
func (env environment) owner(t *testing.T, id, zone string) schedule.PutOwnerResult {
	t.Helper()
	o, err := env.PutOwner(t.Context(), schedule.PutOwnerParams{ID: id, Timezone: zone})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOwnersMoveResolvesTheSameLocalTimesAnew(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.owner(t, "ada", "Europe/Berlin")
	at := moment(t, "2040-01-10T09:00:00")
	mine := env.create(t, schedule.Spec{Owner: "ada", At: at})
	own := env.create(t, schedule.Spec{Owner: "ada", At: at, Timezone: "Asia/Tokyo"})
	fixed := env.create(t, schedule.Spec{Owner: "ada", At: moment(t, "2040-01-10T08:00:00Z")})
	done := env.create(t, schedule.Spec{Owner: "ada", At: at})
	if err := env.Delete(t.Context(), done.ID, nil); err != nil {
		t.Fatal(err)
	}
	if format(mine.NextAt) != "2040-01-10T08:00:00Z" || mine.Zone != "Europe/Berlin" {
		t.Fatalf("made: %+v", mine)
	}
	moved := env.owner(t, "ada", "America/New_York")
	if moved.Created || moved.Moved != 1 || moved.Version != 2 {
		t.Errorf("put: %+v", moved)
	}
	for id, want := range map[int64]string{mine.ID: "2040-01-10T14:00:00Z", own.ID: "2040-01-10T00:00:00Z", fixed.ID: "2040-01-10T08:00:00Z"} {
		if got := env.get(t, id); format(got.NextAt) != want {
			t.Errorf("schedule %d is next at %s, want %s", id, format(got.NextAt), want)
		}
	}
	if got := env.get(t, mine.ID); got.Zone != "America/New_York" || schedule.FormatLocal(*got.NextLocal) != "2040-01-10T09:00:00" || got.Version != 2 || got.Timezone != "" {
		t.Errorf("moved: %+v", got)
	}
}

// UNTIL in UTC is the same instant wherever the owner is.
func TestUntilStaysWhereItIsWhenItsOwnerMoves(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.owner(t, "ada", "Europe/London")
	made := env.create(t, schedule.Spec{Owner: "ada", RRule: "FREQ=DAILY;UNTIL=20400110T090000Z", At: moment(t, "2040-01-10T09:00:00")})
	more := env.create(t, schedule.Spec{Owner: "ada", RRule: "FREQ=DAILY;UNTIL=20400110T143000Z", At: moment(t, "2040-01-09T09:00:00")})
	if format(made.NextAt) != "2040-01-10T09:00:00Z" {
		t.Fatalf("made: %+v", made)
	}
	upcoming := func() string {
		t.Helper()
		got, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: more.ID, Upcoming: 10})
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, i := range got.Upcoming {
			texts = append(texts, format(&i.UTC))
		}
		return fmt.Sprint(texts)
	}
	if got := upcoming(); got != "[2040-01-09T09:00:00Z 2040-01-10T09:00:00Z]" {
		t.Errorf("in London: %s", got)
	}
	env.owner(t, "ada", "America/New_York")
	if got := upcoming(); got != "[2040-01-09T14:00:00Z 2040-01-10T14:00:00Z]" {
		t.Errorf("in New York: %s", got)
	}
	if got := env.get(t, made.ID); got.NextAt != nil && !got.NextAt.Before(time.Date(2040, 1, 10, 9, 0, 1, 0, time.UTC)) {
		t.Errorf("it comes after its end: %+v", got)
	}
}

// East across the due time: it is over there, and has not come: it comes now, by every policy. West after it came: it does not come again.
func TestOwnersMoveNeitherLosesAnOccurrenceNorFiresItTwice(t *testing.T) {
	t.Parallel()
	for _, misfire := range []schedule.Misfire{schedule.MisfireOnce, schedule.MisfireAll, schedule.MisfireSkip} {
		t.Run(string(misfire), func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			env.owner(t, "ada", "Etc/GMT+10") // ten hours behind UTC
			now := pgtest.Query[time.Time](t, env.sql, `select now() at time zone 'Etc/GMT+10'`)
			at := schedule.Moment{Time: now.Add(2 * time.Hour).Truncate(time.Second)}
			s := env.create(t, schedule.Spec{Owner: "ada", RRule: "FREQ=DAILY", At: &at, Misfire: misfire})
			env.fire(t, 0)

			env.owner(t, "ada", "Etc/GMT-10") // east
			env.fire(t, 1)
			if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 1 {
				t.Fatalf("after the move east there are %d events, want one", n)
			}
			if past := env.past(t, s.ID); len(past) != 1 || !past[0].NominalAt.Equal(at.Time) {
				t.Fatalf("what came is %+v, want %v", past, at)
			}
			// The next occurrence comes by the new zone: at the same time tomorrow, which is in six hours.
			got := env.get(t, s.ID)
			if !got.NextLocal.Equal(at.Time.AddDate(0, 0, 1)) || got.NextAt.Before(time.Now().Add(5*time.Hour)) || got.NextAt.After(time.Now().Add(7*time.Hour)) {
				t.Errorf("next: %v, at %v", got.NextLocal, got.NextAt)
			}

			env.owner(t, "ada", "Etc/GMT+10") // and back west, where it is still to come
			env.fire(t, 0)
			if got := env.get(t, s.ID); !got.NextLocal.Equal(at.Time.AddDate(0, 0, 1)) || got.NextAt.Before(time.Now().Add(25*time.Hour)) {
				t.Errorf("after the move back: %v, at %v", got.NextLocal, got.NextAt)
			}
			if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 1 {
				t.Errorf("after the move back there are %d events, want one", n)
			}
		})
	}
}

func TestOwnersMoveIntoASkippedGapFindsTheTimeAfter(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.owner(t, "ada", "Asia/Tokyo")
	s := env.create(t, schedule.Spec{Owner: "ada", Cron: "30 2 * * *", Gap: schedule.GapSkip})
	gap := pgtest.Query[time.Time](t, env.sql, `
		select date_trunc('day', at at time zone 'America/New_York') + interval '2 h 30 min'
		from agent_private.zone_transitions('America/New_York', now() + interval '2 days', now() + interval '2 years', '7 days') where offset_after > offset_before limit 1`)
	env.exec(t, `update agent.schedule set next_local = $1, next_at = $1::timestamp at time zone 'Asia/Tokyo'`, gap)
	env.owner(t, "ada", "America/New_York")
	got := env.get(t, s.ID)
	if !got.NextLocal.Equal(gap.AddDate(0, 0, 1)) || got.Status != schedule.Active {
		t.Errorf("next is %v, want the day after %v", got.NextLocal, gap)
	}
}

func TestDeletedOwnersSchedulesAreCancelled(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.owner(t, "ada", "UTC")
	env.owner(t, "bob", "UTC")
	spec := hourly("")
	spec.Owner, spec.Misfire = "ada", schedule.MisfireAll
	s := env.create(t, spec)
	spec.Owner = "bob"
	other := env.create(t, spec)
	env.backBy(t, s.ID, time.Hour)
	env.fire(t, 1)
	stale := int64(7)
	if _, err := env.DeleteOwner(t.Context(), "ada", []int64{stale}); !errors.Is(err, schedule.ErrStale) {
		t.Errorf("a stale version: %v", err)
	}
	if n, err := env.DeleteOwner(t.Context(), "ada", nil); err != nil || n != 1 {
		t.Fatalf("%d cancelled, %v", n, err)
	}
	if got := env.get(t, s.ID); got.Status != schedule.Cancelled {
		t.Errorf("ada's: %+v", got)
	}
	if got := env.get(t, other.ID); got.Status != schedule.Active {
		t.Errorf("bob's: %+v", got)
	}
	if got := fmt.Sprint(env.statuses(t, s.ID)); got != "[cancelled cancelled]" {
		t.Errorf("ada's occurrences are %s", got)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event_hist where outcome = 'cancelled'`); n != 1 {
		t.Errorf("history has %d cancelled events, want 1", n)
	}
	if _, err := env.GetOwner(t.Context(), "ada"); !errors.Is(err, schedule.ErrOwnerNotFound) {
		t.Errorf("after the deletion: %v", err)
	}
	if _, err := env.DeleteOwner(t.Context(), "ada", nil); !errors.Is(err, schedule.ErrOwnerNotFound) {
		t.Errorf("a second deletion: %v", err)
	}
}

func TestOwnersAreKeptWithVersions(t *testing.T) {
	t.Parallel()
	env := setup(t)
	p := schedule.PutOwnerParams{ID: "ada", Timezone: "Europe/London", Attributes: json.RawMessage(`{"born": "1815-12-10"}`)}
	one := int64(1)
	p.IfVersions = []int64{one}
	if _, err := env.PutOwner(t.Context(), p); !errors.Is(err, schedule.ErrStale) {
		t.Errorf("a version of an owner there is not: %v", err)
	}
	p.IfVersions = nil
	made, err := env.PutOwner(t.Context(), p)
	if err != nil || !made.Created || made.Version != 1 || string(made.Attributes) != `{"born": "1815-12-10"}` {
		t.Fatalf("made %+v, %v", made, err)
	}
	p.IfVersions = []int64{one}
	if changed, err := env.PutOwner(t.Context(), p); err != nil || changed.Created || changed.Version != 2 {
		t.Errorf("changed %+v, %v", changed, err)
	}
	if _, err := env.PutOwner(t.Context(), p); !errors.Is(err, schedule.ErrStale) {
		t.Errorf("a stale version: %v", err)
	}
	for field, p := range map[string]schedule.PutOwnerParams{
		"timezone": {ID: "x", Timezone: "Local"}, "id": {Timezone: "UTC"}, "attributes": {ID: "x", Timezone: "UTC", Attributes: json.RawMessage(`[]`)},
	} {
		var invalid *schedule.InvalidError
		if _, err := env.PutOwner(t.Context(), p); !errors.As(err, &invalid) || invalid.Field != field {
			t.Errorf("%+v: %v, want %s refused", p, err, field)
		}
	}
	for _, id := range []string{"bob", "eve", "Zoë", "ida"} {
		env.owner(t, id, "UTC")
	}
	var got []string
	list := schedule.ListOwnersParams{Limit: 2}
	for {
		page, err := env.ListOwners(t.Context(), list)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Owners {
			got = append(got, o.ID)
		}
		if list.Cursor = page.Next; list.Cursor == "" {
			break
		}
	}
	if fmt.Sprint(got) != "[Zoë ada bob eve ida]" {
		t.Errorf("listed %v", got)
	}
}

func TestChangedZoneRulesResolveWhatIsToCome(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{At: moment(t, "2040-07-01T09:00:00"), Timezone: "Europe/Berlin"})
	other := env.create(t, schedule.Spec{At: moment(t, "2040-07-01T09:00:00"), Timezone: "Europe/Paris"})
	check := func() {
		t.Helper()
		if err := env.CheckZones(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// As if the rules had been others when these were resolved.
	env.exec(t, `update agent.schedule set next_at = next_at + interval '1 h'`)
	check()
	if got := env.get(t, s.ID); format(got.NextAt) != "2040-07-01T08:00:00Z" {
		t.Errorf("with rules as they were it is next at %s, as nobody touched it", format(got.NextAt))
	}
	env.exec(t, `update agent.zone_rule set fingerprint = 'others' where zone = 'Europe/Berlin'`)
	// A service that has looked before hears of it from the one that found out, and looks again.
	late := serviceOn(t, env.url)
	if err := late.CheckZones(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := env.get(t, s.ID); format(got.NextAt) != "2040-07-01T07:00:00Z" || schedule.FormatLocal(*got.NextLocal) != "2040-07-01T09:00:00" {
		t.Errorf("with other rules it is next at %s", format(got.NextAt))
	}
	if got := env.get(t, other.ID); format(got.NextAt) != "2040-07-01T08:00:00Z" {
		t.Errorf("a schedule of another zone is next at %s", format(got.NextAt))
	}
	env.exec(t, `update agent.schedule set next_at = next_at + interval '1 h' where id = $1`, s.ID)
	check()
	if got := env.get(t, s.ID); format(got.NextAt) != "2040-07-01T07:00:00Z" {
		t.Errorf("after the other service's check it is next at %s", format(got.NextAt))
	}
	env.exec(t, `update agent.schedule set next_at = next_at + interval '1 h' where id = $1`, s.ID)
	check()
	if got := env.get(t, s.ID); format(got.NextAt) != "2040-07-01T08:00:00Z" {
		t.Errorf("without a new change it is next at %s", format(got.NextAt))
	}
}
