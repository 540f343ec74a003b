package schedule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// logged returns what is in the log, in order.
func (env environment) logged(t *testing.T) []string {
	t.Helper()
	rows, _ := env.sql.Query(t.Context(), `select concat_ws(' ', topic, event, meta, 'key=' || key, 'for=' || subscription) from agent.read_log(0, 1000)`)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// publishing is hourly, to the topic tick.
func publishing() schedule.Spec {
	spec := hourly("UTC")
	spec.Topic = "tick"
	return spec
}

func TestOccurrenceOfATopicIsPublishedOnceAndSaysWhichItIs(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{At: moment(t, "2040-03-28T09:00:00"), Timezone: "Europe/Berlin", Topic: "report.due", Event: json.RawMessage(`{"of":"sales"}`)})
	beside := env.create(t, schedule.Spec{At: moment(t, "2040-03-28T09:00:00"), Timezone: "Europe/Berlin", Queue: "q"})
	if s.Topic != "report.due" || s.Queue != "" {
		t.Errorf("created with the topic %q and the queue %q", s.Topic, s.Queue)
	}
	env.exec(t, `update agent.schedule set next_at = now() - interval '1 s'`)
	due := pgtest.Query[time.Time](t, env.sql, `select next_at from agent.schedule where id = $1`, s.ID)
	env.fire(t, 2)
	env.fire(t, 0)

	want := []string{fmt.Sprintf(`report.due {"of": "sales"} {"occurrence": {"nominal_at": "2040-03-28T09:00:00", "schedule_id": %d, "scheduled_for": "%s"}}`,
		s.ID, due.UTC().Format("2006-01-02T15:04:05.999999Z"))}
	if diff := cmp.Diff(want, env.logged(t)); diff != "" {
		t.Errorf("the log (-want +got)\n%s", diff)
	}
	if ids := pgtest.Query[[]int64](t, env.sql, `select array_agg((occurrence ->> 'schedule_id')::int8) from agent.event`); !slices.Equal(ids, []int64{beside.ID}) {
		t.Errorf("the queue has events of the schedules %v, want %d", ids, beside.ID)
	}
	past := env.past(t, s.ID)
	if len(past) != 1 || past[0].Status != schedule.OccurrencePublished || past[0].Topic == nil || *past[0].Topic != "report.due" ||
		past[0].EventID != nil || past[0].FiredAt == nil || past[0].ExecutedAt != nil {
		t.Errorf("its occurrences: %+v", past)
	}
	if past := env.past(t, beside.ID); len(past) != 1 || past[0].Topic != nil || past[0].EventID == nil {
		t.Errorf("the occurrences of the other one: %+v", past)
	}
	if got := env.get(t, s.ID); got.Status != schedule.Completed || got.Fired != 1 || got.Topic != "report.due" {
		t.Errorf("after its only time: %+v", got)
	}
	if c := env.Counters(); c.Fired != 2 {
		t.Errorf("%d are counted, want 2", c.Fired)
	}
}

func TestMisfirePolicyDecidesWhatIsPublished(t *testing.T) {
	t.Parallel()
	for misfire, want := range map[schedule.Misfire]int{schedule.MisfireOnce: 1, schedule.MisfireAll: 5, schedule.MisfireSkip: 0} {
		t.Run(string(misfire), func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			spec := publishing()
			spec.Misfire = misfire
			s := env.create(t, spec)
			env.exec(t, `update agent.schedule set rule = to_char(clock_timestamp() at time zone 'UTC' - interval '10 min', 'MI') || ' * * * *'`)
			env.exec(t, `update agent.schedule set next_local = date_trunc('minute', clock_timestamp() at time zone 'UTC' - interval '10 min' - interval '4 h')`)
			env.exec(t, `update agent.schedule set next_at = next_local at time zone 'UTC'`)
			env.fire(t, 1)
			env.fire(t, 0)
			published, skipped := 0, 0
			for _, o := range env.past(t, s.ID) {
				switch {
				case o.Status == schedule.OccurrencePublished && o.Topic != nil:
					published++
				case o.Status == schedule.OccurrenceSkipped && o.Topic == nil:
					skipped++
				}
			}
			if published != want || skipped != 5-want || len(env.logged(t)) != want {
				t.Errorf("%d were published and %d skipped; the log has %d; want %d of 5", published, skipped, len(env.logged(t)), want)
			}
			if isOrdered := pgtest.Query[bool](t, env.sql, `
				select coalesce(bool_and(o.at > o.before), true)
				from (select meta #>> '{occurrence,nominal_at}' as at, lag(meta #>> '{occurrence,nominal_at}') over (order by position) as before from agent.log) o
				where o.before is not null`); !isOrdered {
				t.Errorf("the log is not in the order of the times: %q", env.logged(t))
			}
		})
	}
}

// The firing transaction has locked schedules, and writes others' rows: nobody may have to wait for its end to read the log.
func TestFiringDoesNotHoldTheHeadOfTheLog(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, publishing())
	env.exec(t, `update agent.schedule set next_at = now()`)
	tx, err := pgtest.Connect(t, env.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent_service.lock_due_schedules()`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent_service.fire_schedules(array[id], array[next_local], array[next_at], '{fired}', array[id], array[next_local], array[next_at + '1 h'::interval])
		from agent.schedule where id = $1`, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.run_schedule($1)`, s.ID); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.log_holder()`); n != 0 {
		t.Error("firing holds the head of the log before its commit")
	}
	env.exec(t, `select agent.publish('other', '{}')`)
	if got := env.logged(t); !slices.Equal(got, []string{"other {}"}) {
		t.Errorf("beside a firing that has not been committed the log has %q", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := env.logged(t); len(got) != 3 {
		t.Errorf("after the commit the log has %q", got)
	}
}

func TestExtraOccurrenceOfATopicIsPublished(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, publishing())
	o, err := env.RunNow(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	past := env.past(t, s.ID)
	if o.Status != schedule.OccurrencePublished || !o.Manual || o.EventID != nil || o.Topic == nil || *o.Topic != "tick" || len(past) != 1 || !cmp.Equal(past[0], o) {
		t.Errorf("ran %+v, stored %+v", o, past)
	}
	if got := env.logged(t); len(got) != 1 {
		t.Errorf("the log has %q", got)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events are in a queue", n)
	}
	if got := env.get(t, s.ID); got.Fired != 0 || !got.NextAt.Equal(*s.NextAt) {
		t.Errorf("the schedule: %+v", got)
	}
}

func TestCancellingAScheduleLeavesTheLogAlone(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, publishing())
	env.exec(t, `update agent.schedule set next_at = now()`)
	env.fire(t, 1)
	before := env.logged(t)
	if err := env.Delete(t.Context(), s.ID, nil); err != nil {
		t.Fatal(err)
	}
	if after := env.logged(t); len(before) != 1 || !slices.Equal(after, before) {
		t.Errorf("the log had %q, and has %q", before, after)
	}
	want := []schedule.OccurrenceStatus{schedule.OccurrencePublished, schedule.OccurrenceCancelled}
	if got := env.statuses(t, s.ID); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if past := env.past(t, s.ID); past[1].Topic != nil {
		t.Errorf("the cancelled one says that it was published to %q", *past[1].Topic)
	}
}

func TestTopicDoesNotGoWithWhatIsOfAQueue(t *testing.T) {
	t.Parallel()
	env := setup(t)
	stored := func(columns string) error { // by the function
		_, err := env.sql.Exec(t.Context(), `select agent_service.insert_schedule(
			'{"topic": "tick", "event": {}, "kind": "once", "at_instant": "2040-01-01Z", "zone": "UTC", "next_at": "2040-01-01Z", "next_local": "2040-01-01"}'::jsonb
			|| ('{' || $1 || '}')::jsonb)`, columns)
		return err
	}
	written := func(columns string) error { // by hand
		_, err := env.sql.Exec(t.Context(), `insert into agent.schedule (topic, queue, type, priority, event, kind, zone)
			select 'tick', s.queue, s.type, coalesce(s.priority, 0), '{}', 'once', 'UTC' from jsonb_populate_record(null::agent.schedule, ('{' || $1 || '}')::jsonb) s`, columns)
		return err
	}
	if err := errors.Join(stored(""), written("")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		field, columns string
		change         func(*schedule.Spec)
	}{
		{"queue", `"queue": "q"`, func(s *schedule.Spec) { s.Queue = "q" }},
		{"type", `"type": "t"`, func(s *schedule.Spec) { s.Type = "t" }},
		{"priority", `"priority": 1`, func(s *schedule.Spec) { s.Priority = 1 }},
		{"topic", `"topic": "a..b"`, func(s *schedule.Spec) { s.Topic = "a..b" }},
		{"topic", `"topic": "queued.publish"`, func(s *schedule.Spec) { s.Topic = "queued.publish" }},
	} {
		spec := publishing()
		c.change(&spec)
		_, err := env.Create(t.Context(), schedule.CreateParams{Spec: spec})
		if invalid := new(schedule.InvalidError); !errors.As(err, &invalid) || invalid.Field != c.field {
			t.Errorf("%+v: got %v, want %s refused", spec, err, c.field)
		}
		if refused := new(pgconn.PgError); !errors.As(stored(c.columns), &refused) || refused.Code != "QD003" || refused.ColumnName != c.field {
			t.Errorf("SQL answers a schedule with %s by %v", c.columns, refused)
		}
		if c.field != "topic" && written(c.columns) == nil { // a bad name is found when it is published to
			t.Errorf("a row was inserted with %s", c.columns)
		}
	}
}

func TestPatchMovesAScheduleBetweenItsQueueAndATopic(t *testing.T) {
	t.Parallel()
	env := setup(t)
	spec := hourly("UTC")
	spec.Queue, spec.Type, spec.Priority = "q", "t", 7
	id := env.create(t, spec).ID
	text, none := func(s string) *string { return &s }, new(string)
	for _, c := range []struct {
		patch schedule.PatchParams
		want  string // topic, queue, type, priority; or the field that is refused
	}{
		{schedule.PatchParams{Topic: text("tick")}, "tick,,,0"},
		{schedule.PatchParams{Name: text("n")}, "tick,,,0"},
		{schedule.PatchParams{Type: text("t")}, "type"},
		{schedule.PatchParams{Topic: text("tock"), Queue: text("q")}, "queue"},
		{schedule.PatchParams{Topic: text("tock"), Type: text("t")}, "type"},
		{schedule.PatchParams{Topic: text("queued.x")}, "topic"},
		{schedule.PatchParams{Queue: text("r"), Type: text("t")}, ",r,t,0"},
		{schedule.PatchParams{Topic: text("tock")}, "tock,,,0"},
		{schedule.PatchParams{Topic: none}, ",default,,0"},
	} {
		c.patch.ID = id
		got, err := env.Patch(t.Context(), c.patch)
		said := fmt.Sprintf("%s,%s,%s,%d", got.Topic, got.Queue, got.Type, got.Priority)
		if invalid := new(schedule.InvalidError); errors.As(err, &invalid) {
			said = invalid.Field
		} else if err != nil {
			t.Fatal(err)
		}
		if said != c.want {
			t.Errorf("want %s, got %s", c.want, said)
		}
	}
}
