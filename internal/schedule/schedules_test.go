package schedule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

func TestCreatedScheduleIsReadBackAsItWasMade(t *testing.T) {
	t.Parallel()
	env := setup(t)
	at := time.Now().UTC().AddDate(1, 0, 0).Truncate(time.Second)
	spec := schedule.Spec{
		Name: "greeting", Queue: "greetings", Type: "birthday", Priority: -3, Event: json.RawMessage(`{"to": "Ada"}`),
		At: &schedule.Moment{Time: at}, RRule: "FREQ=YEARLY;COUNT=5", Timezone: "Europe/Berlin",
		Starts: &schedule.Moment{Time: at.AddDate(0, -1, 0)}, Ends: &schedule.Moment{Time: at.AddDate(20, 0, 0), IsInstant: true}, Count: 4,
		Misfire: schedule.MisfireAll, Gap: schedule.GapNext, Overlap: schedule.OverlapLast, Leap: schedule.LeapMar1,
	}
	made := env.create(t, spec)
	got := env.get(t, made.ID)
	if fmt.Sprintf("%+v", deref(made)) != fmt.Sprintf("%+v", deref(got)) {
		t.Errorf("made %+v\n got %+v", deref(made), deref(got))
	}
	if got.Name != spec.Name || got.Queue != spec.Queue || got.Type != spec.Type || got.Priority != -3 || string(got.Event) != `{"to": "Ada"}` ||
		*got.At != *spec.At || got.RRule != spec.RRule || got.Timezone != spec.Timezone || *got.Starts != *spec.Starts || *got.Ends != *spec.Ends || got.Count != 4 ||
		got.Misfire != spec.Misfire || got.Gap != spec.Gap || got.Overlap != spec.Overlap || got.Leap != spec.Leap {
		t.Errorf("got %+v, want what was asked for: %+v", got, spec)
	}
	if got.Kind != schedule.RRule || got.Status != schedule.Active || got.Version != 1 || got.Zone != "Europe/Berlin" || !got.NextLocal.Equal(at) {
		t.Errorf("got %+v", got)
	}
	if _, err := env.Get(t.Context(), made.ID+1); !errors.Is(err, schedule.ErrNotFound) {
		t.Errorf("a schedule there is not: %v", err)
	}
}

// deref makes what the pointers of a schedule point to comparable.
func deref(s schedule.Schedule) []any {
	return []any{s.ID, s.Name, *s.At, *s.Starts, *s.Ends, *s.NextLocal, s.NextAt.UTC(), s.Version, s.CreatedAt.UTC(), s.UpdatedAt.UTC(), s.Kind, s.Status, s.Gap}
}

func TestInvalidSchedulesAreRefusedByField(t *testing.T) {
	t.Parallel()
	env := setup(t)
	at := moment(t, "2030-01-01T00:00:00")
	event := json.RawMessage(`{}`)
	for _, c := range []struct {
		field string
		spec  schedule.Spec
	}{
		{"at", schedule.Spec{Event: event, Timezone: "UTC"}},
		{"at", schedule.Spec{Event: event, Timezone: "UTC", At: &schedule.Moment{}}},
		{"at", schedule.Spec{Event: event, Timezone: "UTC", Cron: "0 9 * * *", At: at}},
		{"cron", schedule.Spec{Event: event, Timezone: "UTC", Cron: "0 9 * * *", RRule: "FREQ=DAILY"}},
		{"cron", schedule.Spec{Event: event, Timezone: "UTC", Cron: "often"}},
		{"rrule", schedule.Spec{Event: event, Timezone: "UTC", RRule: "often"}},
		{"event", schedule.Spec{Timezone: "UTC", At: at}},
		{"event", schedule.Spec{Event: json.RawMessage(`[1]`), Timezone: "UTC", At: at}},
		{"queue", schedule.Spec{Event: event, Timezone: "UTC", At: at, Queue: "no queue"}},
		{"timezone", schedule.Spec{Event: event, At: at}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "Local"}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "europe/berlin"}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "FOO+3"}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "PST"}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "Factory"}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "../etc/passwd"}},
		{"timezone", schedule.Spec{Event: event, At: at, Timezone: "Europe/Berlin "}},
		{"owner", schedule.Spec{Event: event, At: at, Owner: "nobody"}},
		{"misfire", schedule.Spec{Event: event, At: at, Timezone: "UTC", Misfire: "often"}},
		{"gap", schedule.Spec{Event: event, At: at, Timezone: "UTC", Gap: "wide"}},
		{"overlap", schedule.Spec{Event: event, At: at, Timezone: "UTC", Overlap: "both"}},
		{"leap", schedule.Spec{Event: event, At: at, Timezone: "UTC", Leap: "year"}},
		{"count", schedule.Spec{Event: event, At: at, Timezone: "UTC", Count: -1}},
	} {
		_, err := env.Create(t.Context(), schedule.CreateParams{Spec: c.spec})
		var invalid *schedule.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%+v: got %v, want %s refused", c.spec, err, c.field)
		}
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.schedule`); n != 0 {
		t.Errorf("%d schedules were stored all the same", n)
	}
}

func TestPreviewFollowsTheClocksOfTheZone(t *testing.T) {
	t.Parallel()
	env := setup(t)
	daily := schedule.Spec{RRule: "FREQ=DAILY", At: moment(t, "2026-01-01T02:30:00"), Timezone: "America/New_York"}
	half := schedule.Spec{Cron: "0,30 2,3 * * *", Timezone: "America/New_York"}
	with := func(s schedule.Spec, change func(*schedule.Spec)) schedule.Spec {
		change(&s)
		return s
	}
	for name, c := range map[string]struct {
		spec  schedule.Spec
		after string
		want  []string
	}{
		"gap": {daily, "2026-03-07T12:00:00Z", []string{"2026-03-08T02:30:00=2026-03-08T07:30:00Z skipped", "2026-03-09T02:30:00=2026-03-09T06:30:00Z"}},
		"gap next": {
			with(daily, func(s *schedule.Spec) { s.Gap = schedule.GapNext }), "2026-03-07T12:00:00Z",
			[]string{"2026-03-08T02:30:00=2026-03-08T07:00:00Z skipped", "2026-03-09T02:30:00=2026-03-09T06:30:00Z"},
		},
		"gap skip": {
			with(daily, func(s *schedule.Spec) { s.Gap = schedule.GapSkip }), "2026-03-07T12:00:00Z",
			[]string{"2026-03-09T02:30:00=2026-03-09T06:30:00Z"},
		},
		"overlap": {
			with(daily, func(s *schedule.Spec) { s.At = moment(t, "2026-01-01T01:30:00") }), "2026-10-31T12:00:00Z",
			[]string{"2026-11-01T01:30:00=2026-11-01T05:30:00Z repeated", "2026-11-02T01:30:00=2026-11-02T06:30:00Z"},
		},
		"overlap last": {
			with(daily, func(s *schedule.Spec) { s.At, s.Overlap = moment(t, "2026-01-01T01:30:00"), schedule.OverlapLast }), "2026-11-01T05:45:00Z",
			[]string{"2026-11-01T01:30:00=2026-11-01T06:30:00Z repeated", "2026-11-02T01:30:00=2026-11-02T06:30:00Z"},
		},
		"in order of the instants": {
			half, "2026-03-08T06:59:59Z",
			[]string{"2026-03-08T02:00:00=2026-03-08T07:00:00Z skipped", "2026-03-08T03:00:00=2026-03-08T07:00:00Z", "2026-03-08T02:30:00=2026-03-08T07:30:00Z skipped", "2026-03-08T03:30:00=2026-03-08T07:30:00Z", "2026-03-09T02:00:00=2026-03-09T06:00:00Z"},
		},
		"every 50 minutes, past a gap": {
			schedule.Spec{RRule: "FREQ=MINUTELY;INTERVAL=50", At: moment(t, "2026-03-08T00:10:00"), Timezone: "America/New_York"},
			"2026-03-08T06:50:00Z",
			[]string{"2026-03-08T03:30:00=2026-03-08T07:30:00Z"},
		},
		"a day that was skipped": {
			schedule.Spec{Cron: "0 9 * * *", Timezone: "Pacific/Apia", Gap: schedule.GapSkip},
			"2011-12-28T00:00:00Z",
			[]string{"2011-12-28T09:00:00=2011-12-28T19:00:00Z", "2011-12-29T09:00:00=2011-12-29T19:00:00Z", "2011-12-31T09:00:00=2011-12-30T19:00:00Z"},
		},
		"an instant": {schedule.Spec{At: moment(t, "2030-01-01T00:00:00+01:00")}, "2026-01-01T00:00:00Z", []string{"2029-12-31T23:00:00=2029-12-31T23:00:00Z"}},
		"over":       {schedule.Spec{At: moment(t, "2020-01-01T00:00:00Z")}, "2026-01-01T00:00:00Z", nil},
		"starts, ends": {with(daily, func(s *schedule.Spec) {
			s.Starts, s.Ends = moment(t, "2026-06-01T02:30:00"), moment(t, "2026-06-02T06:30:00Z")
		}), "2026-03-07T12:00:00Z", []string{"2026-06-01T02:30:00=2026-06-01T06:30:00Z", "2026-06-02T02:30:00=2026-06-02T06:30:00Z"}},
		"starts at an instant, ends locally": {with(daily, func(s *schedule.Spec) {
			s.Starts, s.Ends = moment(t, "2026-06-01T06:30:01Z"), moment(t, "2026-06-03T02:29:00")
		}), "2026-03-07T12:00:00Z", []string{"2026-06-02T02:30:00=2026-06-02T06:30:00Z"}},
		"until an instant": {with(daily, func(s *schedule.Spec) { s.RRule = "FREQ=DAILY;UNTIL=20260602T063000Z" }), "2026-06-01T06:30:00Z", []string{"2026-06-02T02:30:00=2026-06-02T06:30:00Z"}},
		"until the first of two": {with(daily, func(s *schedule.Spec) {
			s.RRule, s.At = "FREQ=DAILY;UNTIL=20261101T060000Z", moment(t, "2026-10-31T01:30:00")
		}), "2026-10-30T00:00:00Z", []string{"2026-10-31T01:30:00=2026-10-31T05:30:00Z", "2026-11-01T01:30:00=2026-11-01T05:30:00Z repeated"}},
		"until before the last of two": {with(daily, func(s *schedule.Spec) {
			s.RRule, s.At, s.Overlap = "FREQ=DAILY;UNTIL=20261101T053500Z", moment(t, "2026-10-31T01:30:00"), schedule.OverlapLast
		}), "2026-10-30T00:00:00Z", []string{"2026-10-31T01:30:00=2026-10-31T05:30:00Z"}},
		"until before the end of a gap": {with(daily, func(s *schedule.Spec) {
			s.RRule, s.At = "FREQ=DAILY;UNTIL=20260308T070000Z", moment(t, "2026-03-07T02:30:00")
		}), "2026-03-06T00:00:00Z", []string{"2026-03-07T02:30:00=2026-03-07T07:30:00Z"}},
		"until a local time": {with(daily, func(s *schedule.Spec) {
			s.RRule, s.At = "FREQ=DAILY;UNTIL=20260308T023000", moment(t, "2026-03-07T02:30:00")
		}), "2026-03-06T00:00:00Z", []string{"2026-03-07T02:30:00=2026-03-07T07:30:00Z", "2026-03-08T02:30:00=2026-03-08T07:30:00Z skipped"}},
		"count of a rule without what is skipped": {with(daily, func(s *schedule.Spec) {
			s.RRule, s.At, s.Gap = "FREQ=DAILY;COUNT=3", moment(t, "2026-03-07T02:30:00"), schedule.GapSkip
		}), "2026-03-06T00:00:00Z", []string{"2026-03-07T02:30:00=2026-03-07T07:30:00Z", "2026-03-09T02:30:00=2026-03-09T06:30:00Z", "2026-03-10T02:30:00=2026-03-10T06:30:00Z"}},
		"count of a rule with what is moved": {with(daily, func(s *schedule.Spec) {
			s.RRule, s.At = "FREQ=DAILY;COUNT=3", moment(t, "2026-03-07T02:30:00")
		}), "2026-03-06T00:00:00Z", []string{"2026-03-07T02:30:00=2026-03-07T07:30:00Z", "2026-03-08T02:30:00=2026-03-08T07:30:00Z skipped", "2026-03-09T02:30:00=2026-03-09T06:30:00Z"}},
		"count": {with(daily, func(s *schedule.Spec) { s.Count = 1 }), "2026-06-01T06:30:00Z", []string{"2026-06-02T02:30:00=2026-06-02T06:30:00Z"}},
		"leap":  {schedule.Spec{RRule: "FREQ=YEARLY", At: moment(t, "2024-02-29T09:00:00"), Timezone: "Asia/Kolkata", Leap: schedule.LeapMar1}, "2026-12-01T00:00:00Z", []string{"2027-03-01T09:00:00=2027-03-01T03:30:00Z", "2028-02-29T09:00:00=2028-02-29T03:30:00Z"}},
	} {
		after := instant(t, c.after)
		n := len(c.want)
		if name == "over" || name == "starts, ends" || name == "starts at an instant, ends locally" || strings.HasPrefix(name, "until") || strings.HasPrefix(name, "count") {
			n = 50 // there are no more
		}
		got, err := env.Preview(t.Context(), schedule.PreviewParams{Spec: c.spec, After: &after, N: n})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var texts []string
		for _, i := range got {
			texts = append(texts, strings.TrimSuffix(schedule.FormatLocal(i.Local)+"="+format(&i.UTC)+" "+string(i.Note), " "))
		}
		if fmt.Sprint(texts) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n got %v\nwant %v", name, texts, c.want)
		}
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.schedule`); n != 0 {
		t.Errorf("previews stored %d schedules", n)
	}
}

func TestIdempotencyKeyMakesOneScheduleOfManyCalls(t *testing.T) {
	t.Parallel()
	env := setup(t)
	p := schedule.CreateParams{Spec: hourly("UTC"), IdempotencyKey: "k"}
	var (
		wg       sync.WaitGroup
		mu       sync.Mutex
		ids      = map[int64]int{}
		replayed int
	)
	for range 20 {
		wg.Go(func() {
			created, err := env.Create(t.Context(), p)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			ids[created.ID]++
			if created.Deduplicated {
				replayed++
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || replayed != 19 {
		t.Errorf("20 calls made %v, %d of them replayed", ids, replayed)
	}
	p.Queue = "other"
	if _, err := env.Create(t.Context(), p); !errors.Is(err, schedule.ErrKeyReused) {
		t.Errorf("another request under the key: %v", err)
	}
}

func TestIdempotencyKeysOfSchedulesAreOfTheirCaller(t *testing.T) {
	t.Parallel()
	env := setup(t)
	ids := make(map[int64]bool)
	for round := range 2 {
		for _, key := range []string{"key:a", "key:b"} {
			spec := hourly("UTC")
			spec.Queue = key[len("key:"):]
			made, err := env.Create(pg.WithActor(t.Context(), key), schedule.CreateParams{Spec: spec, IdempotencyKey: "k"})
			if err != nil || made.Deduplicated != (round > 0) {
				t.Errorf("call %d of %s returned %t, %v", round, key, made.Deduplicated, err)
			}
			ids[made.ID] = true
		}
	}
	if len(ids) != 2 {
		t.Errorf("two callers have the schedules %v", ids)
	}
}

func TestOfTwoPatchesOfOneVersionOneWins(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	for round := range 20 {
		version := env.get(t, s.ID).Version
		var (
			wg   sync.WaitGroup
			errs [4]error
		)
		for i := range errs {
			wg.Go(func() {
				if i == 3 {
					priority := int32(round)
					_, errs[i] = env.Patch(t.Context(), schedule.PatchParams{ID: s.ID, IfVersions: []int64{version}, Priority: &priority})
					return
				}
				name := fmt.Sprintf("%d.%d", round, i)
				_, errs[i] = env.Patch(t.Context(), schedule.PatchParams{ID: s.ID, IfVersions: []int64{version}, Name: &name})
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			switch {
			case err == nil:
				won++
			case !errors.Is(err, schedule.ErrStale):
				t.Error(err)
			}
		}
		if got := env.get(t, s.ID).Version; won != 1 || got != version+1 {
			t.Fatalf("%d of 4 patches of version %d won, it is at %d now", won, version, got)
		}
	}
	stale := int64(1)
	if err := env.Delete(t.Context(), s.ID, []int64{stale}); !errors.Is(err, schedule.ErrStale) || env.get(t, s.ID).Status != schedule.Active {
		t.Errorf("a delete of a stale version: %v", err)
	}
}

func TestPatchChangesWhatItNamesAndTheNextTimeWithIt(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{Cron: "0 9 * * *", Timezone: "Europe/Berlin", Name: "a"})
	patch := func(p schedule.PatchParams) schedule.Schedule {
		t.Helper()
		p.ID = s.ID
		changed, err := env.Patch(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		if got := env.get(t, s.ID); got.Version != changed.Version || changed.Version <= s.Version {
			t.Errorf("version %d after %d, stored %d", changed.Version, s.Version, got.Version)
		}
		s = changed
		return changed
	}
	queue, cron, rrule, none := "q", "0 10 * * *", "FREQ=DAILY;COUNT=2", ""
	before := *s.NextAt
	if got := patch(schedule.PatchParams{Queue: &queue}); got.Queue != "q" || got.Name != "a" || !got.NextAt.Equal(before) {
		t.Errorf("after a patch of the queue: %+v", got)
	}
	if got := patch(schedule.PatchParams{Cron: &cron}); got.NextLocal.Hour() != 10 {
		t.Errorf("after a patch of the cron, next is %v", got.NextLocal)
	}
	at := moment(t, "2040-05-05T05:00:00")
	if got := patch(schedule.PatchParams{RRule: &rrule, At: &at}); got.Kind != schedule.RRule || got.Cron != "" || schedule.FormatLocal(*got.NextLocal) != "2040-05-05T05:00:00" {
		t.Errorf("after a patch to a rule: %+v", got)
	}
	zone := "Asia/Tokyo"
	if got := patch(schedule.PatchParams{Timezone: &zone}); got.Zone != zone || schedule.FormatLocal(*got.NextLocal) != "2040-05-05T05:00:00" || format(got.NextAt) != "2040-05-04T20:00:00Z" {
		t.Errorf("after a patch of the zone: %+v", got)
	}
	if got := patch(schedule.PatchParams{RRule: &none}); got.Kind != schedule.Once || format(got.NextAt) != "2040-05-04T20:00:00Z" {
		t.Errorf("after the rule was taken away: %+v", got)
	}
	ends := moment(t, "2030-01-01T00:00:00Z")
	if got := patch(schedule.PatchParams{Ends: &ends}); got.Status != schedule.Completed || got.NextAt != nil {
		t.Errorf("after a patch to an end before: %+v", got)
	}
	ends = nil
	if got := patch(schedule.PatchParams{Ends: &ends}); got.Status != schedule.Active || got.Ends != nil || format(got.NextAt) != "2040-05-04T20:00:00Z" {
		t.Errorf("after the end was taken away: %+v", got)
	}
	name := ""
	if got := patch(schedule.PatchParams{Name: &name}); got.Name != "" || got.Status != schedule.Active {
		t.Errorf("after the name was taken away: %+v", got)
	}
	bad := "often"
	if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: s.ID, Cron: &bad}); !errors.Is(err, schedule.ErrInvalid) {
		t.Errorf("a patch that makes no sense: %v", err)
	}
	if err := env.Delete(t.Context(), s.ID, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: s.ID, Queue: &queue}); !errors.Is(err, schedule.ErrEnded) {
		t.Errorf("a patch of a cancelled schedule: %v", err)
	}
}

func TestListingFiltersAndPages(t *testing.T) {
	t.Parallel()
	env := setup(t)
	if _, err := env.PutOwner(t.Context(), schedule.PutOwnerParams{ID: "ada", Timezone: "Europe/London"}); err != nil {
		t.Fatal(err)
	}
	var all, ofAda, inQ []int64
	for i := range 9 {
		spec := hourly("UTC")
		spec.Cron = fmt.Sprintf("%d %d 1 1 *", 59-i, 23-i)
		if i%2 == 0 {
			spec.Owner, spec.Timezone = "ada", ""
		}
		if i%3 == 0 {
			spec.Queue = "q"
		}
		id := env.create(t, spec).ID
		all = append(all, id)
		if i%2 == 0 {
			ofAda = append(ofAda, id)
		}
		if i%3 == 0 {
			inQ = append(inQ, id)
		}
	}
	if _, err := env.Pause(t.Context(), all[0]); err != nil {
		t.Fatal(err)
	}
	far := time.Now().AddDate(2, 0, 0)
	byTime := []int64{}
	for i := len(all) - 1; i > 0; i-- { // the later made, the sooner due, and the first is paused
		byTime = append(byTime, all[i])
	}
	for name, c := range map[string]struct {
		p    schedule.ListParams
		want []int64
	}{
		"all":    {schedule.ListParams{}, all},
		"owner":  {schedule.ListParams{Owner: "ada"}, ofAda},
		"queue":  {schedule.ListParams{Queue: "q"}, inQ},
		"status": {schedule.ListParams{Status: schedule.Paused}, all[:1]},
		"due":    {schedule.ListParams{DueBefore: &far}, byTime},
		"none":   {schedule.ListParams{Owner: "x'; drop table agent.schedule --"}, nil},
	} {
		for _, limit := range []int{0, 2} {
			p := c.p
			p.Limit = limit
			var got []int64
			for pages := 0; pages < 20; pages++ {
				page, err := env.List(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range page.Schedules {
					got = append(got, s.ID)
				}
				if page.Next == "" {
					break
				}
				p.Cursor = page.Next
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%s in pages of %d: got %v, want %v", name, limit, got, c.want)
			}
		}
	}
	for _, cursor := range []string{"x", "eyJsIjoib3duZXJzIn0", "AAAA"} {
		if _, err := env.List(t.Context(), schedule.ListParams{Cursor: cursor}); !errors.Is(err, schedule.ErrBadCursor) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
	if _, err := env.List(t.Context(), schedule.ListParams{Status: "busy"}); !errors.Is(err, schedule.ErrInvalid) {
		t.Errorf("a status there is not: %v", err)
	}
}

func TestIdempotencyKeysCompareValues(t *testing.T) {
	t.Parallel()
	env := setup(t)
	spec := func(change func(*schedule.Spec)) schedule.Spec {
		s := schedule.Spec{
			RRule: "FREQ=DAILY;INTERVAL=2", Timezone: "UTC", At: moment(t, "2126-07-01T12:00:00Z"), Starts: moment(t, "2126-07-01T12:00:00Z"),
			Event: json.RawMessage(`{"a":1.0,"b":{"c":[10,1.50]}}`),
		}
		change(&s)
		return s
	}
	first, err := env.Create(t.Context(), schedule.CreateParams{Spec: spec(func(*schedule.Spec) {}), IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*schedule.Spec){
		"payload": func(s *schedule.Spec) { s.Event = json.RawMessage(`{ "b": {"c":[1e1,1.5]}, "a": 1 }`) },
		"instants": func(s *schedule.Spec) {
			s.At, s.Starts = moment(t, "2126-07-01T14:00:00+02:00"), moment(t, "2126-07-01T07:00:00-05:00")
		},
		"rule": func(s *schedule.Spec) { s.RRule = "RRULE:interval=2;freq=daily" },
		"defaults": func(s *schedule.Spec) {
			s.Queue, s.Misfire, s.Gap = "default", schedule.MisfireOnce, schedule.GapForward
		},
		"more defaults": func(s *schedule.Spec) { s.Overlap, s.Leap = schedule.OverlapFirst, schedule.LeapFeb28 },
	} {
		again, err := env.Create(t.Context(), schedule.CreateParams{Spec: spec(change), IdempotencyKey: "k"})
		if err != nil || again.ID != first.ID || !again.Deduplicated {
			t.Errorf("the same %s: schedule %d, %v", name, again.ID, err)
		}
	}
	for name, change := range map[string]func(*schedule.Spec){
		"payload": func(s *schedule.Spec) { s.Event = json.RawMessage(`{"a":"1.0","b":{"c":[10,1.50]}}`) },
		"instant": func(s *schedule.Spec) { s.At = moment(t, "2126-07-01T12:00:01Z") },
		"kind":    func(s *schedule.Spec) { s.At = moment(t, "2126-07-01T12:00:00") },
		"rule":    func(s *schedule.Spec) { s.RRule = "FREQ=DAILY;INTERVAL=3" },
		"misfire": func(s *schedule.Spec) { s.Misfire = schedule.MisfireAll },
		"queue":   func(s *schedule.Spec) { s.Queue = "other" },
		"topic":   func(s *schedule.Spec) { s.Topic = "other" },
	} {
		if _, err := env.Create(t.Context(), schedule.CreateParams{Spec: spec(change), IdempotencyKey: "k"}); !errors.Is(err, schedule.ErrKeyReused) {
			t.Errorf("another %s: %v", name, err)
		}
	}
}
