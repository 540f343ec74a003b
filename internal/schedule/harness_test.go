package schedule_test

import (
	"cmp"
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/schedule"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// environment is a service on a database of its own, with a session of the owner's beside it.
type environment struct {
	*schedule.Service
	url string
	sql *pgx.Conn
}

func setup(t *testing.T) environment {
	t.Helper()
	url := pgtest.New(t).URL
	return environment{Service: serviceOn(t, url), url: url, sql: pgtest.Connect(t, url)}
}

func serviceOn(t *testing.T, url string) *schedule.Service {
	t.Helper()
	return serviceWith(t, schedule.Config{DatabaseURL: url})
}

func serviceWith(t *testing.T, cfg schedule.Config) *schedule.Service {
	t.Helper()
	// On a busy machine no test fails by them.
	cfg.QueryTimeout = cmp.Or(cfg.QueryTimeout, time.Minute)
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, 2*time.Minute)
	cfg.DatabaseURL = pgtest.AsService(cfg.DatabaseURL)
	cfg.Logger = zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.InfoLevel)
	s, err := schedule.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return s
}

// running calls s.Run until the test ends or the returned function is called.
func running(t *testing.T, s *schedule.Service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// exec runs a statement as the owner.
func (env environment) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := env.sql.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// local reads a local time, instant an instant.
func local(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse("2006-01-02T15:04:05", s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func moment(t *testing.T, s string) *schedule.Moment {
	t.Helper()
	m, err := schedule.ParseMoment(s)
	if err != nil {
		t.Fatal(err)
	}
	return &m
}

// hourly is a schedule that comes at every full hour of a zone.
func hourly(zone string) schedule.Spec {
	return schedule.Spec{Cron: "0 * * * *", Timezone: zone, Event: json.RawMessage(`{"kind":"hourly"}`)}
}

// listen returns a function that waits until an event is inserted or published.
func (env environment) listen(t *testing.T) (awaitEvent func()) {
	t.Helper()
	conn := pgtest.Connect(t, env.url)
	if _, err := conn.Exec(t.Context(), `listen agent_event; listen agent_log`); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			t.Fatalf("waiting for an event: %v", err)
		}
	}
}

// create creates a schedule.
func (env environment) create(t *testing.T, spec schedule.Spec) schedule.Schedule {
	t.Helper()
	if spec.Event == nil {
		spec.Event = json.RawMessage(`{"n":1}`)
	}
	created, err := env.Create(t.Context(), schedule.CreateParams{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return created.Schedule
}

// fire fires what is due, and fails the test unless that is want schedules.
func (env environment) fire(t *testing.T, want int) {
	t.Helper()
	ids, err := schedule.Fire(t.Context(), env.Service)
	if err != nil {
		t.Fatal(err)
	}
	if len(ids) != want {
		t.Fatalf("%d schedules fired, want %d", len(ids), want)
	}
}

// nextAt makes a schedule's next occurrence one of a local time, at the instant that is in its zone.
func (env environment) nextAt(t *testing.T, id int64, at string) {
	t.Helper()
	env.exec(t, `update agent.schedule set next_local = $2, next_at = agent.resolve_local($2, zone, gap, overlap) where id = $1`, id, local(t, at))
}

// backBy moves a schedule's next occurrence back in time.
func (env environment) backBy(t *testing.T, id int64, by time.Duration) {
	t.Helper()
	env.exec(t, `update agent.schedule set next_local = next_local - $2::interval, next_at = next_at - $2::interval where id = $1`, id, by)
}

func (env environment) get(t *testing.T, id int64) schedule.Schedule {
	t.Helper()
	s, err := env.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// past returns the occurrences of a schedule, oldest first.
func (env environment) past(t *testing.T, id int64) []schedule.Occurrence {
	t.Helper()
	o, err := env.Occurrences(t.Context(), schedule.OccurrencesParams{ID: id, Limit: schedule.MaxPage})
	if err != nil {
		t.Fatal(err)
	}
	for i, j := 0, len(o.Past)-1; i < j; i, j = i+1, j-1 {
		o.Past[i], o.Past[j] = o.Past[j], o.Past[i]
	}
	return o.Past
}

// statuses returns what became of a schedule's occurrences, oldest first.
func (env environment) statuses(t *testing.T, id int64) []schedule.OccurrenceStatus {
	t.Helper()
	var statuses []schedule.OccurrenceStatus
	for _, o := range env.past(t, id) {
		statuses = append(statuses, o.Status)
	}
	return statuses
}
