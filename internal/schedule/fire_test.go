package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

func TestOccurrenceBecomesAnEventThatSaysWhichItIs(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{At: moment(t, "2040-03-28T09:00:00"), Timezone: "Europe/Berlin", Queue: "q", Type: "greeting", Priority: 7, Event: json.RawMessage(`{"to":"Ada"}`)})
	env.fire(t, 0)
	env.exec(t, `update agent.schedule set next_at = now() - interval '1 s' where id = $1`, s.ID)
	due := pgtest.Query[time.Time](t, env.sql, `select next_at from agent.schedule`)
	env.fire(t, 1)
	env.fire(t, 0)
	var event string
	if err := env.sql.QueryRow(t.Context(), `select concat_ws(' ', event, queue, type, priority, attempts, vt <= now(), occurrence) from agent.event`).Scan(&event); err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf(`{"to": "Ada"} q greeting 7 0 t {"nominal_at": "2040-03-28T09:00:00", "schedule_id": %d, "scheduled_for": "%s"}`, s.ID, due.UTC().Format("2006-01-02T15:04:05.999999Z"))
	if event != want {
		t.Errorf("got %s\nwant %s", event, want)
	}
	if got := env.get(t, s.ID); got.Status != schedule.Completed || got.NextAt != nil || got.Fired != 1 {
		t.Errorf("after its only time: %+v", got)
	}
}

func TestMisfirePolicyDecidesWhatWasMissed(t *testing.T) {
	t.Parallel()
	for misfire, want := range map[schedule.Misfire]struct{ fired, skipped int }{
		"": {1, 4}, schedule.MisfireOnce: {1, 4}, schedule.MisfireAll: {5, 0}, schedule.MisfireSkip: {0, 5},
	} {
		t.Run(string(misfire), func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			spec := hourly("UTC")
			spec.Misfire = misfire
			s := env.create(t, spec)
			// The next is at a full hour within the hour to come: five hours back, five of them are over, the latest of them for up to an hour. At
			// a full hour that one might be in time.
			env.exec(t, `update agent.schedule set rule = to_char(clock_timestamp() at time zone 'UTC' - interval '10 min', 'MI') || ' * * * *'`)
			env.exec(t, `update agent.schedule set next_local = date_trunc('minute', clock_timestamp() at time zone 'UTC' - interval '10 min' - interval '4 h')`)
			env.exec(t, `update agent.schedule set next_at = next_local at time zone 'UTC'`)
			env.fire(t, 1)
			env.fire(t, 0)
			past := env.past(t, s.ID)
			fired, skipped := 0, 0
			for _, o := range past {
				switch o.Status {
				case schedule.OccurrencePending:
					fired++
				case schedule.OccurrenceSkipped:
					skipped++
					if o.EventID != nil || o.FailureReason == nil {
						t.Errorf("a skipped one: %+v", o)
					}
				}
			}
			if fired != want.fired || skipped != want.skipped || len(past) != 5 {
				t.Fatalf("%d fired and %d were skipped of %d, want %+v", fired, skipped, len(past), want)
			}
			if want.fired == 1 && past[4].Status != schedule.OccurrencePending {
				t.Errorf("it was not the latest that fired: %+v", past)
			}
			if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != want.fired {
				t.Errorf("%d events, want %d", n, want.fired)
			}
			if got := env.get(t, s.ID); !got.NextAt.After(time.Now()) || got.Fired != int64(want.fired) {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

func TestOccurrenceThatIsLateWithinTheGraceFiresByEveryPolicy(t *testing.T) {
	t.Parallel()
	env := setup(t)
	for _, misfire := range []schedule.Misfire{schedule.MisfireOnce, schedule.MisfireAll, schedule.MisfireSkip} {
		s := env.create(t, schedule.Spec{At: moment(t, "2040-01-01T00:00:00Z"), Misfire: misfire})
		env.exec(t, `update agent.schedule set next_at = now() - interval '50 s' where id = $1`, s.ID)
	}
	env.fire(t, 3)
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 3 {
		t.Errorf("%d of 3 fired", n)
	}
}

func TestWhatWasMissedFiresThoughWhatIsInTimeFails(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	env.backBy(t, s.ID, 2*time.Hour)
	env.exec(t, `alter function agent_service.lock_due_schedules rename to lock_all_due_schedules`)
	env.exec(t, `
		create function agent_service.lock_due_schedules(_limit int4, _grace interval)
		returns table (schedule agent.schedule, now timestamptz, is_plain boolean, fault text)
		language plpgsql as $$
		begin
			if _grace is not null then
				raise 'in time';
			end if;
			return query select * from agent_service.lock_all_due_schedules(_limit);
		end $$`)
	env.exec(t, `grant execute on function agent_service.lock_due_schedules to public`)
	if err := schedule.FireBehind(t.Context(), env.Service); err == nil || !strings.Contains(err.Error(), "in time") {
		t.Errorf("the error is %v", err)
	}
	if n := len(env.past(t, s.ID)); n == 0 {
		t.Error("what was missed has not fired")
	}
}

func TestLongOutageIsCaughtUpWithInSteps(t *testing.T) {
	t.Parallel()
	for misfire, want := range map[schedule.Misfire]int{schedule.MisfireOnce: 1, schedule.MisfireAll: 2881} {
		t.Run(string(misfire), func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			s := env.create(t, schedule.Spec{Cron: "* * * * *", Timezone: "UTC", Misfire: misfire})
			env.exec(t, `update agent.schedule set next_local = date_trunc('minute', clock_timestamp() at time zone 'UTC' - interval '2 days')`)
			env.exec(t, `update agent.schedule set next_at = next_local at time zone 'UTC'`)
			for range 10 {
				ids, err := schedule.Fire(t.Context(), env.Service)
				if err != nil {
					t.Fatal(err)
				}
				if len(ids) == 0 {
					break
				}
			}
			events := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`)
			all := pgtest.Query[int](t, env.sql, `select count(*) from agent.occurrence`)
			// A minute more or less, and those that are not missed yet, come on top.
			if events < want || events > want+2 || all < 2881 || all > 2883 {
				t.Errorf("%d events of %d occurrences, want %d of 2881", events, all, want)
			}
			if missing := pgtest.Query[int](t, env.sql, `
				select count(*) from (select nominal_at - lag(nominal_at) over (order by nominal_at) as d from agent.occurrence) o where d <> interval '1 minute'`); missing != 0 {
				t.Errorf("%d times are missing among the occurrences", missing)
			}
			if got := env.get(t, s.ID); !got.NextAt.After(time.Now().Add(-time.Second)) {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

func TestCountAndEndsCompleteASchedule(t *testing.T) {
	t.Parallel()
	env := setup(t)
	counted := hourly("UTC")
	counted.Count, counted.Misfire = 3, schedule.MisfireAll
	ended := hourly("UTC")
	until := time.Now().UTC().Truncate(time.Hour)
	ended.Misfire, ended.Starts = schedule.MisfireAll, &schedule.Moment{Time: until.Add(-100 * time.Hour)}
	ruled := schedule.Spec{RRule: "FREQ=HOURLY;COUNT=102", At: &schedule.Moment{Time: until.Add(-100 * time.Hour)}, Timezone: "UTC", Misfire: schedule.MisfireAll}
	for name, c := range map[string]struct {
		spec schedule.Spec
		want int
	}{"count": {counted, 3}, "ends": {ended, 5}, "the rule's count": {ruled, 6}} {
		s := env.create(t, c.spec)
		env.backBy(t, s.ID, 5*time.Hour)
		if name == "ends" {
			env.exec(t, `update agent.schedule set ends_local = $2 where id = $1`, s.ID, until)
		}
		if name == "the rule's count" {
			env.exec(t, `update agent.schedule set next_local = next_local, next_at = next_at where id = $1`, s.ID)
		}
		for range 3 {
			if _, err := schedule.Fire(t.Context(), env.Service); err != nil {
				t.Fatal(err)
			}
		}
		got := env.get(t, s.ID)
		if name == "the rule's count" { // its last time is at the next full hour
			if got.Status != schedule.Active || got.Fired != 5 {
				t.Errorf("%s: %+v", name, got)
			}
			env.exec(t, `update agent.schedule set next_at = now(), until_at = now() where id = $1`, s.ID)
			env.fire(t, 1)
			got = env.get(t, s.ID)
		}
		if got.Status != schedule.Completed || got.NextAt != nil || got.Fired != int64(c.want) {
			t.Errorf("%s: %+v, want it completed after %d", name, got, c.want)
		}
	}
}

func TestTimeThatComesTwiceFiresOnceAndOneInAGapFires(t *testing.T) {
	t.Parallel()
	env := setup(t)
	for name, c := range map[string]struct {
		spec schedule.Spec
		from string
		want []string
	}{
		"cron, a gap": {
			schedule.Spec{Cron: "30 0-4 * * *", Timezone: "America/New_York", Misfire: schedule.MisfireAll},
			"2026-03-08T00:30:00",
			[]string{"00:30=05:30", "01:30=06:30", "02:30=07:30", "03:30=07:30", "04:30=08:30"},
		},
		"rule, a gap": {
			schedule.Spec{RRule: "FREQ=DAILY;BYHOUR=1,2,3,4;BYMINUTE=0,30", At: moment(t, "2026-01-01T00:00:00"), Timezone: "America/New_York", Misfire: schedule.MisfireAll},
			"2026-03-08T01:30:00",
			[]string{"01:30=06:30", "02:00=07:00", "03:00=07:00", "02:30=07:30", "03:30=07:30", "04:00=08:00"},
		},
		"cron, an overlap": {
			schedule.Spec{Cron: "30 0-3 * * *", Timezone: "America/New_York", Misfire: schedule.MisfireAll},
			"2026-11-01T00:30:00",
			[]string{"00:30=04:30", "01:30=05:30", "02:30=07:30", "03:30=08:30"},
		},
		"rule, an overlap, last": {
			schedule.Spec{RRule: "FREQ=DAILY;BYHOUR=0,1,2,3", At: moment(t, "2026-01-01T00:30:00"), Timezone: "America/New_York", Misfire: schedule.MisfireAll, Overlap: schedule.OverlapLast},
			"2026-11-01T00:30:00",
			[]string{"00:30=04:30", "01:30=06:30", "02:30=07:30", "03:30=08:30"},
		},
		"cron in real time, a gap": {
			schedule.Spec{Cron: "30 * * * *", Timezone: "America/New_York", Misfire: schedule.MisfireAll},
			"2026-03-08T00:30:00",
			[]string{"00:30=05:30", "01:30=06:30", "03:30=07:30", "04:30=08:30"},
		},
		"rule in real time, an overlap": {
			schedule.Spec{RRule: "FREQ=MINUTELY;INTERVAL=30", At: moment(t, "2026-01-01T00:00:00"), Timezone: "America/New_York", Misfire: schedule.MisfireAll, Overlap: schedule.OverlapLast},
			"2026-11-01T00:30:00",
			[]string{"00:30=04:30", "01:00=05:00", "01:30=05:30", "01:00=06:00", "01:30=06:30", "02:00=07:00"},
		},
	} {
		s := env.create(t, c.spec)
		env.nextAt(t, s.ID, c.from)
		env.fire(t, 1)
		if _, err := env.Pause(t.Context(), s.ID); err != nil { // or it goes on to this day
			t.Fatal(err)
		}
		got := pgtest.Query[[]string](t, env.sql, `
			select (array_agg(to_char(nominal_at, 'HH24:MI') || '=' || to_char(scheduled_for at time zone 'UTC', 'HH24:MI') order by scheduled_for, nominal_at))[:$2]
			from agent.occurrence where schedule_id = $1`, s.ID, len(c.want))
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%s:\n got %v\nwant %v", name, got, c.want)
		}
	}
}

func TestKnownOccurrenceIsNeverFiredTwice(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, schedule.Spec{Cron: "0 0 1 1 *", Timezone: "UTC"})
	next := *s.NextLocal
	env.exec(t, `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, status) values ($1, $2, now(), 'fired'), ($1, $2 + interval '1 year', now(), 'fired')`, s.ID, next)
	env.exec(t, `update agent.schedule set next_at = now()`)
	env.fire(t, 1)
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("it became %d events again", n)
	}
	if got := env.get(t, s.ID); got.NextLocal.Year() != next.Year()+2 {
		t.Errorf("next is %v, want that in two years", got.NextLocal)
	}
}

func TestCrashBetweenTheStepsLeavesAllOrNothing(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	env.create(t, publishing())
	env.exec(t, `update agent.schedule set next_at = now()`)
	before := env.get(t, s.ID)

	// Held up after the schedules are locked, while their events are written, and at the commit, its session ends.
	for _, table := range []string{"agent.occurrence", "agent.event", "agent.outgoing", "agent.log"} {
		blocker := pgtest.Connect(t, env.url)
		tx, err := blocker.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `lock table `+table+` in share mode`); err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := schedule.Fire(context.WithoutCancel(t.Context()), env.Service)
			failed <- err
		}()
		for pgtest.Query[int](t, env.sql, `
			select count(pg_terminate_backend(l.pid, 60000)) from pg_locks l -- and wait: until it has ended, its locks keep schedules from the next firing
			join pg_database d on d.oid = l.database and d.datname = current_database()
			where l.relation = $1::regclass and not l.granted`, table) == 0 {
			if err := t.Context().Err(); err != nil || len(failed) > 0 {
				t.Fatalf("firing did not wait for %s: %v", table, err)
			}
		}
		if err := <-failed; !errors.Is(err, schedule.ErrUnavailable) {
			t.Errorf("firing without a session: %v", err)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := pgtest.Query[int](t, env.sql, `select (select count(*) from agent.occurrence) + (select count(*) from agent.event) + (select count(*) from agent.log)`); n != 0 {
			t.Fatalf("%d rows of the transaction that failed", n)
		}
		if got := env.get(t, s.ID); !got.NextAt.Equal(*before.NextAt) || got.Fired != 0 {
			t.Fatalf("after the failure: %+v", got)
		}
	}
	env.fire(t, 2)
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 1 || len(env.logged(t)) != 1 {
		t.Errorf("%d events, want one, and %q in the log", n, env.logged(t))
	}
}

func TestTwoServicesFireEachOccurrenceOnceThoughOneIsKilled(t *testing.T) {
	t.Parallel()
	env := setup(t)
	const n = 10_000
	// The victim's sessions are known by their name.
	u, err := url.Parse(env.url)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("application_name", "victim")
	u.RawQuery = q.Encode()
	victim := serviceOn(t, u.String())

	awaitEvent := env.listen(t)
	// They are due within the next seconds, and in time: what is missed is expanded one by one.
	env.exec(t, `
		insert into agent.schedule (queue, topic, event, kind, at_local, timezone, zone, next_local, next_at)
		select case when i % 2 = 0 then 'many' end, case when i % 2 = 1 then 'tick' end, '{"n":1}', 'once', t.at at time zone 'Europe/Berlin', 'Europe/Berlin', 'Europe/Berlin', t.at at time zone 'Europe/Berlin', t.at
		from generate_series(1, $1) as i, lateral (select clock_timestamp() + interval '500 ms' + i * interval '0.6 ms' as at offset 0) as t`, n)
	if late := pgtest.Query[time.Duration](t, env.sql, `select now() - min(next_at) from agent.schedule`); late > schedule.DefaultMisfireGrace/2 {
		t.Fatalf("the first was due %s ago before anybody could fire it", late)
	}
	running(t, env.Service)
	stop := running(t, victim)

	fired := func() int { return pgtest.Query[int](t, env.sql, `select count(*) from agent.occurrence`) }
	killed := false
	for fired() < n {
		awaitEvent()
		if !killed && fired() > n/4 {
			killed = true
			if pgtest.Query[int](t, env.sql, `select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database() and application_name = 'victim'`) == 0 {
				t.Error("there was nothing to kill")
			}
			stop()
		}
	}
	if !killed {
		t.Error("all fired before one could be killed")
	}
	var events, published, distinct, late int
	if err := env.sql.QueryRow(t.Context(), `
		select (select count(*) from agent.event), (select count(*) from agent.log), count(distinct (o.occurrence ->> 'schedule_id', o.occurrence ->> 'nominal_at'))
		, (select count(*) from agent.schedule where status <> 'completed')
		from (select occurrence from agent.event union all select meta -> 'occurrence' from agent.log) o`).Scan(&events, &published, &distinct, &late); err != nil {
		t.Fatal(err)
	}
	if events != n/2 || published != n/2 || distinct != n || late != 0 {
		t.Errorf("%d events and %d publications of %d occurrences, want %d; %d schedules are not completed", events, published, distinct, n, late)
	}
}

func TestScheduleMadeForSoonFiresWithoutWaitingForAPoll(t *testing.T) {
	t.Parallel()
	env := setup(t)
	slow := serviceWith(t, schedule.Config{DatabaseURL: env.url, PollInterval: time.Hour})
	awaitEvent := env.listen(t)
	running(t, slow)
	soon := func() schedule.Spec {
		return schedule.Spec{At: &schedule.Moment{Time: time.Now().Add(300 * time.Millisecond), IsInstant: true}}
	}
	env.create(t, soon())
	awaitEvent() // by now it listens
	env.create(t, soon())
	awaitEvent()
}

func TestFaultyScheduleDoesNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	env := setup(t)
	bad, good := env.create(t, hourly("UTC")), env.create(t, hourly("UTC"))
	env.exec(t, `update agent.schedule set rule = 'never' where id = $1`, bad.ID)
	env.exec(t, `update agent.schedule set next_at = now() - id * interval '1 ms'`)
	awaitEvent := env.listen(t)
	stop := running(t, env.Service)
	awaitEvent()
	until(t, "the bad one is paused", func() bool { return env.get(t, bad.ID).Status == schedule.Paused })
	stop()
	if got := env.get(t, good.ID); got.Fired != 1 || got.Status != schedule.Active {
		t.Errorf("the good one: %+v", got)
	}
}

// A million schedules that wait cost nothing: what is due is the front of an index, before any statistics and after.
func TestFiringReadsOnlyDueSchedules(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.create(t, hourly("UTC"))
	for _, analyze := range []string{`select 1`, `analyze agent.schedule`} {
		env.exec(t, `
			insert into agent.schedule (event, kind, rule, timezone, zone, next_local, next_at)
			select event, kind, rule, timezone, zone, now() at time zone 'UTC' + i * interval '1 s' + interval '1 h', now() + i * interval '1 s' + interval '1 h'
			from agent.schedule, generate_series(1, 20000) i where id = 1`)
		env.exec(t, `update agent.schedule set next_at = now() - interval '1 s' where id <= 3`)
		env.exec(t, analyze)
		for _, statement := range []string{
			`select s from agent.schedule s where s.status = 'active' and s.next_at is not null and s.next_at <= now() order by s.next_at, s.id limit 1000 for update skip locked`,
			`select s.next_at from agent.schedule s where s.status = 'active' and s.next_at is not null order by s.next_at, s.id limit 1`,
		} {
			tx, err := env.sql.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `set local enable_seqscan to off; set local enable_bitmapscan to off; set local plan_cache_mode to force_generic_plan`); err != nil {
				t.Fatal(err)
			}
			rows, err := tx.Query(t.Context(), `explain (analyze, costs off, timing off, summary off, buffers off) `+statement)
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				t.Fatal(err)
			}
			_ = tx.Rollback(t.Context())
			plan := strings.Join(lines, "\n")
			if !strings.Contains(plan, "schedule_due") || strings.Contains(plan, "Sort") || strings.Contains(plan, "Removed") || strings.Contains(plan, "Seq Scan") {
				t.Errorf("%s:\n%s", statement, plan)
			}
		}
		if n := pgtest.Query[int](t, env.sql, `select count(*) from agent_service.lock_due_schedules()`); n != 3 {
			t.Errorf("%d are due, want 3", n)
		}
	}
}

func TestOccurrencesFollowTheirEventsLife(t *testing.T) {
	t.Parallel()
	env := setup(t)
	spec := hourly("UTC")
	spec.Misfire = schedule.MisfireAll
	s := env.create(t, spec)
	env.backBy(t, s.ID, 7*time.Hour)
	env.fire(t, 1)
	ids := pgtest.Query[[]int64](t, env.sql, `select array_agg(event_id order by nominal_at) from agent.occurrence`)
	if len(ids) != 7 {
		t.Fatalf("%d events, want 7", len(ids))
	}
	claim := func(id int64) string {
		t.Helper()
		env.exec(t, `update agent.event set vt = case when id = $1 then now() - interval '1 s' else now() + interval '1 h' end`, id)
		return pgtest.Query[string](t, env.sql, `select agent.receipt(e) from agent.claim_event(_queue => (select q.queue from agent.event q where q.id = $1)) e`, id)
	}
	claim(ids[1])
	env.exec(t, `select agent.delete_event($1, $2)`, ids[2], claim(ids[2]))
	env.exec(t, `select agent.nack_event($1, $2, _error => 'first')`, ids[3], claim(ids[3]))
	env.exec(t, `select agent.nack_event($1, $2, _error => 'the receiver said 500', _final => true)`, ids[3], claim(ids[3]))
	env.exec(t, `select agent.delete_event($1)`, ids[4])
	env.exec(t, `select agent_private.move_to_history(array[$1::int8], 'expired')`, ids[5])
	env.exec(t, `select agent_private.move_to_history(array[$1::int8], 'failed')`, ids[6])
	env.exec(t, `select agent.requeue_event($1)`, ids[6])

	want := []schedule.OccurrenceStatus{schedule.OccurrencePending, schedule.OccurrenceProcessing, schedule.OccurrenceCompleted, schedule.OccurrenceFailed, schedule.OccurrenceCancelled, schedule.OccurrenceFailed, schedule.OccurrencePending}
	if got := env.statuses(t, s.ID); !slices.Equal(got, want) {
		t.Fatalf("got %v\nwant %v", got, want)
	}
	past := env.past(t, s.ID)
	if o := past[3]; o.FailureReason == nil || *o.FailureReason != "the receiver said 500" || o.RetryCount != 1 || o.ExecutedAt == nil || *o.EventID != ids[3] {
		t.Errorf("the failed one: %+v", o)
	}
	if o := past[2]; o.ExecutedAt == nil || o.FailureReason != nil || o.RetryCount != 0 {
		t.Errorf("the completed one: %+v", o)
	}
	if o := past[6]; *o.EventID == ids[6] || o.ExecutedAt != nil {
		t.Errorf("the one that was put back: %+v", o)
	}
	if o := past[0]; !o.ScheduledFor.Equal(o.NominalAt) || o.FiredAt == nil || o.ExecutedAt != nil || o.ScheduleID != s.ID {
		t.Errorf("the pending one: %+v", o)
	}
	if got := env.get(t, s.ID); got.Status != schedule.Active || !got.NextAt.After(time.Now()) {
		t.Errorf("after a failed occurrence the schedule does not go on: %+v", got)
	}

	extra, err := env.Within(nil, nil).RunNow(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	never := env.create(t, hourly("UTC"))
	last, err := env.LastOccurrences(t.Context(), s.ID, never.ID, s.ID, s.ID+100)
	if err != nil || len(last) != 1 || !last[s.ID].NominalAt.Equal(extra.NominalAt) || last[s.ID].Status != schedule.OccurrencePending || !last[s.ID].Manual {
		t.Errorf("the last occurrences are %+v, %v; want %+v", last, err, extra)
	}
	env.exec(t, `delete from agent.occurrence where is_manual`)
	env.exec(t, `delete from agent.event where id = $1`, *extra.EventID)
	if last, err = env.LastOccurrences(t.Context(), s.ID); err != nil || !last[s.ID].NominalAt.Equal(past[6].NominalAt) {
		t.Errorf("the last occurrence is %+v, %v; want %+v", last, err, past[6])
	}

	// In pages, and with those to come.
	var seen []time.Time
	p := schedule.OccurrencesParams{ID: s.ID, Limit: 2, Upcoming: 3}
	for {
		page, err := env.Occurrences(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Past {
			seen = append(seen, o.NominalAt)
		}
		next := env.get(t, s.ID).NextAt
		if len(page.Upcoming) != 3 || !page.Upcoming[0].UTC.Equal(*next) || !page.Upcoming[2].UTC.Equal(next.Add(2*time.Hour)) {
			t.Errorf("to come: %v, want three from %v on", page.Upcoming, next)
		}
		if p.Cursor = page.Next; p.Cursor == "" {
			break
		}
	}
	if len(seen) != 7 || !slices.IsSortedFunc(seen, func(a, b time.Time) int { return b.Compare(a) }) {
		t.Errorf("pages have %v", seen)
	}
	if _, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: never.ID + 1}); !errors.Is(err, schedule.ErrNotFound) {
		t.Errorf("of a schedule there is not: %v", err)
	}
}

func TestPausedScheduleDoesNotFireAndTheMisfirePolicyDecidesWhenItIsResumed(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	for range 2 {
		got, err := env.Pause(t.Context(), s.ID)
		if err != nil || got.Status != schedule.Paused || got.Version != 2 {
			t.Fatalf("paused: %+v, %v", got, err)
		}
	}
	env.exec(t, `update agent.schedule set next_local = date_trunc('hour', now() at time zone 'UTC') - interval '3 h'`)
	env.exec(t, `update agent.schedule set next_at = next_local at time zone 'UTC'`)
	env.fire(t, 0)
	for range 2 {
		got, err := env.Resume(t.Context(), s.ID)
		if err != nil || got.Status != schedule.Active || got.Version != 3 {
			t.Fatalf("resumed: %+v, %v", got, err)
		}
	}
	env.fire(t, 1)
	statuses := env.statuses(t, s.ID)
	if len(statuses) != 4 || statuses[0] != schedule.OccurrenceSkipped || statuses[3] != schedule.OccurrencePending {
		t.Errorf("what was missed became %v", statuses)
	}
	if err := env.Delete(t.Context(), s.ID, nil); err != nil {
		t.Fatal(err)
	}
	_, paused := env.Pause(t.Context(), s.ID)
	_, resumed := env.Resume(t.Context(), s.ID)
	_, ran := env.RunNow(t.Context(), s.ID)
	for _, err := range []error{paused, resumed, ran} {
		if !errors.Is(err, schedule.ErrEnded) {
			t.Errorf("of a cancelled schedule: %v", err)
		}
	}
}

func TestExtraOccurrenceLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	env := setup(t)
	spec := hourly("America/New_York")
	spec.Count = 5
	s := env.create(t, spec)
	o, err := env.RunNow(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	past := env.past(t, s.ID)
	if len(past) != 1 || !o.Manual || !past[0].Manual || o.Status != schedule.OccurrencePending || *past[0].EventID != *o.EventID || !past[0].NominalAt.Equal(o.NominalAt) {
		t.Errorf("ran %+v, stored %+v", o, past)
	}
	if want := pgtest.Query[time.Time](t, env.sql, `select $1::timestamptz at time zone 'America/New_York'`, o.ScheduledFor); !o.NominalAt.Equal(want) {
		t.Errorf("nominally at %v, want %v", o.NominalAt, want)
	}
	if got := env.get(t, s.ID); got.Fired != 0 || !got.NextAt.Equal(*s.NextAt) {
		t.Errorf("the schedule: %+v", got)
	}
	if _, err := env.RunNow(t.Context(), s.ID+1); !errors.Is(err, schedule.ErrNotFound) {
		t.Errorf("of a schedule there is not: %v", err)
	}
}

func TestDeletedScheduleIsCancelledWithTheEventsThatNobodyClaimed(t *testing.T) {
	t.Parallel()
	env := setup(t)
	spec := hourly("UTC")
	spec.Misfire = schedule.MisfireAll
	s := env.create(t, spec)
	env.backBy(t, s.ID, 3*time.Hour)
	env.fire(t, 1)
	env.exec(t, `update agent.event set attempts = 1, claimed = array[now()], vt = now() + interval '1 h' where id = (select min(id) from agent.event)`)
	for range 2 {
		if err := env.Delete(t.Context(), s.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	want := []schedule.OccurrenceStatus{schedule.OccurrenceProcessing, schedule.OccurrenceCancelled, schedule.OccurrenceCancelled, schedule.OccurrenceCancelled}
	if got := env.statuses(t, s.ID); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event_hist where outcome = 'cancelled'`); n != 2 {
		t.Errorf("history has %d cancelled events, want 2", n)
	}
	if got := env.get(t, s.ID); got.Status != schedule.Cancelled || got.NextAt != nil || got.Version != s.Version+1 {
		t.Errorf("afterwards: %+v", got)
	}
	if err := env.Delete(t.Context(), s.ID+1, nil); !errors.Is(err, schedule.ErrNotFound) {
		t.Errorf("of a schedule there is not: %v", err)
	}
}

func TestPruningKeepsOccurrencesThatAChangeOfZoneCouldBringBack(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.exec(t, `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, status)
		select 1, now() at time zone 'UTC' - d * interval '1 day', now() - d * interval '1 day', 'fired' from unnest(array[0, 1, 5, 50]) d`)
	if n := pgtest.Query[int](t, env.sql, `select agent_service.prune_occurrences('3 days')`); n != 2 {
		t.Errorf("%d were forgotten, want 2", n)
	}
	if _, err := env.sql.Exec(t.Context(), `select agent_service.prune_occurrences('1 day')`); err == nil || !strings.Contains(err.Error(), "QD003") {
		t.Errorf("a short retention: %v", err)
	}
}

// After a failover the ids move ahead before a schedule fires: it draws those of its events before it inserts them.
func TestSchedulesGiveOutNoIDsThatAFailoverHasLost(t *testing.T) {
	t.Parallel()
	for name, fire := range map[string]string{
		"a run by hand": `select agent.run_schedule(id) from agent.schedule where id = $1`,
		"a firing that is due": `select agent_service.fire_schedules(array[id], array[next_local], array[next_at], '{fired}', array[id], array[next_local], array[next_at + '1 h'::interval])
			from agent.schedule where id = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := setup(t)
			s := env.create(t, hourly("UTC"))
			before := pgtest.Query[int64](t, env.sql, `select last_value from agent.event_id_seq`)
			env.exec(t, `select setval('agent.server_timeline', 77), setval('agent.server_mark', 1)`)
			env.exec(t, fire, s.ID)
			if after := pgtest.Query[int64](t, env.sql, `select max(id) from agent.event`); after-before < 1<<20 {
				t.Errorf("the event has the id %d, after %d", after, before)
			}
		})
	}
}
