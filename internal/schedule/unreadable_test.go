package schedule_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/queued/queued/internal/schedule"
)

// unreadable is why the event of a schedule cannot be read.
const unreadable = "the event cannot be read: its JSON is too long as text, or nested too deeply"

// The owner of the table can write it past the checks: numbers that take little of a table, and more as text than can be.
func TestScheduleWhoseEventCannotBeReadPausesOnlyItself(t *testing.T) {
	t.Parallel()
	env := setup(t)
	huge, topical, valid := env.create(t, hourly("UTC")), env.create(t, schedule.Spec{Cron: "0 * * * *", Timezone: "UTC", Topic: "a.b"}), env.create(t, hourly("UTC"))
	env.exec(t, `update agent.schedule set event = (select jsonb_build_object('n', jsonb_agg('1e131071'::jsonb)) from generate_series(1, 9000)) where id = any ($1)`,
		[]int64{huge.ID, topical.ID})

	page, err := env.List(t.Context(), schedule.ListParams{})
	if err != nil || len(page.Schedules) != 3 || !strings.Contains(string(page.Schedules[0].Event), unreadable) {
		t.Fatalf("listed %+v, %v", page.Schedules, err)
	}
	env.makeDue(t)
	env.fireAll(t)
	if got := env.get(t, valid.ID); got.Fired != 1 || got.Status != schedule.Active {
		t.Errorf("the valid one: %+v", got)
	}
	for _, id := range []int64{huge.ID, topical.ID} {
		got := env.get(t, id)
		if got.Status != schedule.Paused || got.StatusReason != unreadable || got.Fired != 0 || !strings.Contains(string(got.Event), unreadable) {
			t.Errorf("the one that cannot be read: %+v", got)
		}
		var invalid *schedule.InvalidError
		name := "x"
		if _, err := env.Patch(t.Context(), schedule.PatchParams{ID: id, Name: &name}); !errors.As(err, &invalid) || invalid.Field != "event" {
			t.Errorf("patch of something else: %v", err)
		}
		if resumed, err := env.Resume(t.Context(), id); err != nil || resumed.Status != schedule.Active {
			t.Errorf("resumed: %+v, %v", resumed, err)
		}
		event := json.RawMessage(`{"n": 1}`)
		if patched, err := env.Patch(t.Context(), schedule.PatchParams{ID: id, Event: &event}); err != nil || string(patched.Event) != string(event) {
			t.Errorf("patch of the event: %+v, %v", patched, err)
		}
	}
	env.makeDue(t)
	env.fireAll(t)
	if got := env.get(t, huge.ID); got.Fired == 0 {
		t.Errorf("after all: %+v", got)
	}
}
