package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

// generous is far more than an expansion within the budget takes, on a busy machine too.
const generous = 5 * time.Minute

// ruled returns a spec with a recurrence rule.
func ruled(t *testing.T, rule string) schedule.Spec {
	t.Helper()
	return schedule.Spec{RRule: rule, At: moment(t, "2027-01-01T00:00:00"), Timezone: "America/New_York", Event: json.RawMessage(`{}`)}
}

func TestHostileRulesAreBoundedInTime(t *testing.T) {
	t.Parallel()
	pgtest.WithoutRaceDetector(t)
	env := setup(t)
	for _, c := range hostileRules {
		if strings.Contains(c.rule, "COUNT") && !strings.Contains(c.rule, "INTERVAL=1439") { // one is enough of those that take the most steps
			continue
		}
		for _, gap := range []schedule.Gap{schedule.GapForward, schedule.GapSkip} {
			if c.refused != "" && gap != schedule.GapForward {
				continue
			}
			spec := ruled(t, c.rule)
			spec.Gap = gap
			for what, call := range map[string]func() error{
				"preview": func() error {
					_, err := env.Preview(t.Context(), schedule.PreviewParams{Spec: spec, N: 20})
					return err
				},
				"create": func() error {
					_, err := env.Create(t.Context(), schedule.CreateParams{Spec: spec})
					return err
				},
			} {
				begun := time.Now()
				err := call()
				if took := time.Since(begun); took > generous {
					t.Errorf("%s of %.80s, gap %s, took %s", what, c.rule, gap, took)
				}
				var invalid *schedule.InvalidError
				if c.refused != "" && (!errors.As(err, &invalid) || invalid.Field != "rrule") || err != nil && !errors.Is(err, schedule.ErrInvalid) && !errors.Is(err, schedule.ErrQueryTimeout) {
					t.Errorf("%s of %.80s, gap %s: %v", what, c.rule, gap, err)
				}
			}
		}
	}
	// Two in the morning on the second Sunday in March is never: the clocks are put forward then.
	spec := ruled(t, "FREQ=SECONDLY;BYMONTH=3;BYMONTHDAY=8,9,10,11,12,13,14;BYDAY=SU;BYHOUR=2")
	spec.Gap = schedule.GapSkip
	var invalid *schedule.InvalidError
	if _, err := env.Preview(t.Context(), schedule.PreviewParams{Spec: spec}); !errors.As(err, &invalid) || invalid.Field != "gap" {
		t.Errorf("a rule whose times all lie in gaps: %v", err)
	}
	env.makeDue(t)
	env.fireAll(t)
}

func TestCallEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	env := setup(t)
	spec := ruled(t, "FREQ=MINUTELY;INTERVAL=1439;BYDAY=MO;BYHOUR=1;BYMINUTE=2;COUNT=1000")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := env.Preview(ctx, schedule.PreviewParams{Spec: spec}); !errors.Is(err, context.Canceled) {
		t.Errorf("preview without a caller: %v", err)
	}
	impatient := serviceWith(t, schedule.Config{DatabaseURL: env.url, QueryTimeout: time.Millisecond})
	if _, err := impatient.Preview(t.Context(), schedule.PreviewParams{Spec: spec}); !errors.Is(err, schedule.ErrQueryTimeout) || errors.Is(err, schedule.ErrUnavailable) {
		t.Errorf("preview beyond its time: %v", err)
	}
	if _, err := impatient.Create(t.Context(), schedule.CreateParams{Spec: spec}); !errors.Is(err, schedule.ErrQueryTimeout) {
		t.Errorf("create beyond its time: %v", err)
	}
}

// locked takes a lock that the functions of the schema wait for, until release is called.
func (env environment) locked(t *testing.T, table string) (release func()) {
	t.Helper()
	tx, err := pgtest.Connect(t, env.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table `+table+` in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	return func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }
}

func TestHangingCallsDoNotStopFiring(t *testing.T) {
	t.Parallel()
	env := setup(t)
	release := env.locked(t, "agent.owner")
	defer release()
	ended := make(chan error)
	const calls = 3 * schedule.DefaultMaxConns
	for range calls {
		go func() {
			_, err := env.GetOwner(t.Context(), "ada")
			ended <- err
		}()
	}
	until(t, "all connections for calls are taken", func() bool {
		return pgtest.Query[int](t, env.sql, `select count(*) from pg_locks where not granted and relation = 'agent.owner'::regclass`) == schedule.DefaultMaxConns
	})
	env.exec(t, `insert into agent.schedule (event, kind, at_instant, zone, next_local, next_at) values ('{}', 'once', now(), 'UTC', now() at time zone 'UTC', now())`)
	stop := running(t, env.Service)
	until(t, "it fired", func() bool { return pgtest.Query[int](t, env.sql, `select count(*) from agent.occurrence`) == 1 })
	stop()
	release()
	for range calls {
		if err := <-ended; !errors.Is(err, schedule.ErrOwnerNotFound) && !errors.Is(err, schedule.ErrUnavailable) {
			t.Errorf("a call: %v", err)
		}
	}
}

func TestCloseReturnsWhileACallHangs(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s, err := schedule.Open(t.Context(), schedule.Config{DatabaseURL: pgtest.AsService(env.url), CallTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer env.locked(t, "agent.owner")()
	ended := make(chan error, 1)
	go func() {
		_, err := s.GetOwner(t.Context(), "ada")
		ended <- err
	}()
	until(t, "the call waits", func() bool {
		return pgtest.Query[int](t, env.sql, `select count(*) from pg_locks where not granted and relation = 'agent.owner'::regclass`) == 1
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, schedule.ErrUnavailable) {
		t.Errorf("the call: %v", err)
	}
	if _, err := s.GetOwner(t.Context(), "ada"); !errors.Is(err, schedule.ErrUnavailable) {
		t.Errorf("a call after the end: %v", err)
	}
}

func TestCallThatHangsIsAnsweredInTime(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := serviceWith(t, schedule.Config{DatabaseURL: env.url, CallTimeout: 50 * time.Millisecond, QueryTimeout: 50 * time.Millisecond})
	defer env.locked(t, "agent.schedule, agent.owner")()
	for what, call := range map[string]func() error{
		"get":    func() error { _, err := s.Get(t.Context(), 1); return err },
		"create": func() error { _, err := s.Create(t.Context(), schedule.CreateParams{Spec: hourly("UTC")}); return err },
		"patch": func() error {
			name := "x"
			_, err := s.Patch(t.Context(), schedule.PatchParams{ID: 1, Name: &name})
			return err
		},
		"pause":  func() error { _, err := s.Pause(t.Context(), 1); return err },
		"delete": func() error { return s.Delete(t.Context(), 1, nil) },
		"run":    func() error { _, err := s.RunNow(t.Context(), 1); return err },
		"put owner": func() error {
			_, err := s.PutOwner(t.Context(), schedule.PutOwnerParams{ID: "ada", Timezone: "UTC"})
			return err
		},
		"delete owner": func() error { _, err := s.DeleteOwner(t.Context(), "ada", nil); return err },
	} {
		if err := call(); !errors.Is(err, schedule.ErrUnavailable) && !errors.Is(err, schedule.ErrQueryTimeout) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A process that is stopped while it fires holds its schedules until the server ends its session.
func TestSchedulesThatAFrozenProcessHoldsAreFiredByAnother(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	env.makeDue(t)
	frozen := pgtest.Connect(t, env.url)
	tx, err := frozen.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, tx.Conn(), `select count(*) from agent_service.lock_due_schedules()`); n != 1 {
		t.Fatalf("%d are due", n)
	}
	stop := running(t, env.Service)
	until(t, "it fired", func() bool { return env.get(t, s.ID).Fired == 1 })
	stop()
	if _, err := tx.Exec(t.Context(), `select 1`); err == nil {
		t.Error("the session that stood still goes on")
	}
}

// The work of a session that was ended is tried again.
func TestFiringGoesOnWhenItsSessionIsEnded(t *testing.T) {
	t.Parallel()
	env := setup(t)
	s := env.create(t, hourly("UTC"))
	release := env.locked(t, "agent.occurrence") // which firing waits for, with its schedules locked
	env.makeDue(t)
	stop := running(t, env.Service)
	until(t, "a session that fires was ended", func() bool {
		return pgtest.Query[int](t, env.sql, `
			select count(pg_terminate_backend(l.pid)) from pg_locks l
			join pg_database d on d.oid = l.database and d.datname = current_database()
			where l.relation = 'agent.occurrence'::regclass and not l.granted`) > 0
	})
	release()
	until(t, "it fired", func() bool { return env.get(t, s.ID).Fired == 1 })
	stop()
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events, want one", n)
	}
}

// However much was missed, what is in time fires meanwhile, whether its next time is simple or not.
func TestMissedSchedulesDoNotHoldUpTheOthers(t *testing.T) {
	t.Parallel()
	env := setup(t)
	seconds := env.create(t, schedule.Spec{Cron: "* * * * * *", Timezone: "America/New_York"})
	simple := env.create(t, schedule.Spec{At: moment(t, "2040-01-01T00:00:00Z")})
	nearChange := env.create(t, schedule.Spec{At: moment(t, "2040-01-01T00:00:00Z")})
	env.exec(t, `update agent.schedule set status = 'paused' where id = $1`, seconds.ID)
	env.exec(t, `
		insert into agent.schedule (event, kind, rule, timezone, zone, next_local, next_at)
		select event, kind, rule, timezone, zone, l, l at time zone zone
		from agent.schedule, generate_series(1, 1500), lateral (select date_trunc('second', now() at time zone zone - interval '12 hours') as l offset 0) as times
		where id = $1`, seconds.ID)
	stop := running(t, env.Service)
	until(t, "some of what was missed is recorded", func() bool { return pgtest.Query[bool](t, env.sql, `select exists (select from agent.occurrence)`) })
	env.exec(t, `update agent.schedule set next_at = now(), next_local = now() at time zone 'UTC' where id = $1`, simple.ID)
	env.exec(t, `update agent.schedule set next_at = now() where id = $1`, nearChange.ID)
	until(t, "what is in time fired", func() bool { return env.get(t, simple.ID).Fired+env.get(t, nearChange.ID).Fired == 2 })
	stop()
	if n := pgtest.Query[int](t, env.sql, `select count(*) from agent.schedule where status = 'active' and next_at < now() - interval '1 min'`); n < 1000 {
		t.Errorf("only %d are still behind: that is too few to tell", n)
	}
}

func TestOldOccurrencesArePrunedInBatches(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.exec(t, `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, status)
		select 1, now() at time zone 'UTC' - i * interval '1 hour', now() - i * interval '1 hour', 'fired' from generate_series(0, 49999) i`)
	const want = 30 * 24
	s := serviceWith(t, schedule.Config{DatabaseURL: env.url, Retention: 30 * 24 * time.Hour})
	forgotten, err := s.Prune(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	left := pgtest.Query[int64](t, env.sql, `select count(*) from agent.occurrence`)
	if forgotten+left != 50_000 || left < want || left > want+1 {
		t.Errorf("%d were forgotten and %d are left, want %d", forgotten, left, want)
	}
	if n := pgtest.Query[int](t, env.sql, `select count(distinct xmin::text) from agent.occurrence`); n != 1 {
		t.Errorf("what is left was written by %d transactions", n)
	}
	// A batch is a part of the table: the second deletes nothing where the first did.
	env.exec(t, `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, status)
		select 2, now() at time zone 'UTC' - i * interval '1 hour', now() - i * interval '1 hour', 'fired' from generate_series(0, 49999) i`)
	first := pgtest.Query[int64](t, env.sql, `select agent_service.prune_occurrences('30 days', 0, 10)`)
	again := pgtest.Query[int64](t, env.sql, `select agent_service.prune_occurrences('30 days', 0, 10)`)
	if first > 2000 || again != 0 {
		t.Errorf("ten blocks had %d, and then %d", first, again)
	}
	if end := pgtest.Query[*int64](t, env.sql, `select agent_service.prune_occurrences('30 days', 1000000, 10)`); end != nil {
		t.Errorf("beyond the end: %d", *end)
	}

	// Running, it does so by itself.
	stop := running(t, s)
	until(t, "they are forgotten", func() bool {
		return pgtest.Query[int64](t, env.sql, `select count(*) from agent.occurrence`) <= 2*(want+1)
	})
	stop()
	none := serviceWith(t, schedule.Config{DatabaseURL: env.url})
	if n, err := none.Prune(t.Context()); n != 0 || err != nil {
		t.Errorf("without a retention: %d, %v", n, err)
	}
}

func TestPruningReadsOnlyItsBlocks(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.exec(t, `insert into agent.occurrence (schedule_id, nominal_at, scheduled_for, status) select i, now(), now(), 'fired' from generate_series(1, 20000) i`)
	rows, err := env.sql.Query(t.Context(), `explain (costs off) delete from agent.occurrence o where o.ctid >= '(0,0)'::tid and o.ctid < '(10,0)'::tid and o.scheduled_for < now()`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) < 2 || lines[1] != "  ->  Tid Range Scan on occurrence o" {
		t.Errorf("the plan is %v", lines)
	}
}
