package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// env is a service on its own database, and a superuser's session to inspect and change that database.
type env struct {
	*queue.Service
	url string
	sql *pgx.Conn
}

// setup returns an env. change, if not nil, modifies the service's configuration.
func setup(t *testing.T, change func(*queue.Config)) env {
	t.Helper()
	url := pgtest.New(t).URL
	return env{Service: anotherService(t, url, change), url: url, sql: pgtest.Connect(t, url)}
}

// anotherService returns another service on the database at url.
func anotherService(t *testing.T, url string, change func(*queue.Config)) *queue.Service {
	t.Helper()
	cfg := queue.Config{DatabaseURL: pgtest.AsService(url), Logger: zerolog.New(zerolog.NewTestWriter(t))}
	if change != nil {
		change(&cfg)
	}
	s, err := queue.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if stuck := s.Rounds().Stuck(); len(stuck) > 0 {
			t.Errorf("loops went round without getting anything done: %v idle rounds in a row", stuck)
		}
	})
	return s
}

// runService runs s.Run until the test ends.
func runService(t *testing.T, s *queue.Service) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// exec runs a statement in the session of the env.
func (b env) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.sql.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// insert inserts payloads into a queue and returns the ids.
func (b env) insert(t *testing.T, q string, payloads ...string) []int64 {
	t.Helper()
	params := make([]queue.InsertParams, len(payloads))
	for i, p := range payloads {
		params[i] = queue.InsertParams{Event: json.RawMessage(p), Queue: q}
	}
	inserted, err := b.Insert(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, len(inserted))
	for i, in := range inserted {
		ids[i] = in.ID
	}
	return ids
}

// insertN inserts n numbered events.
func (b env) insertN(t *testing.T, q string, n int) []int64 {
	t.Helper()
	payloads := make([]string, n)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`{"n":%d}`, i)
	}
	return b.insert(t, q, payloads...)
}

// claim claims events, and fails the test unless it gets want of them.
func (b env) claim(t *testing.T, p queue.ClaimParams, want int) []queue.Event {
	t.Helper()
	events, err := b.Claim(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != want {
		waiting := pgtest.Query[string](t, b.sql, `
			select coalesce(json_agg(json_build_array(e.id, e.queue, e.priority, e.vt, e.attempts) order by e.id)::text, 'none') from
			(select * from agent.event order by id desc limit 10) e`)
		t.Fatalf("claimed %d events, want %d; at %v, %s; the last of those that wait (id, queue, priority, vt, attempts): %s",
			len(events), want, now(t, b.sql), queue.DescribeWatermarks(b.Service, p.Queue), waiting)
	}
	return events
}

// claimOne claims one event from the default queue.
func (b env) claimOne(t *testing.T) queue.Event {
	t.Helper()
	return b.claim(t, queue.ClaimParams{MaxAttempts: 100}, 1)[0]
}

// endLease ends the lease on an event, by moving its vt.
func (b env) endLease(t *testing.T, id int64) {
	t.Helper()
	b.exec(t, `update agent.event set vt = now() - interval '1 ms' where id = $1`, id)
}

// acks returns acks of leases, without results.
func acks(leases ...queue.Lease) []queue.Ack {
	all := make([]queue.Ack, len(leases))
	for i, l := range leases {
		all[i].Lease = l
	}
	return all
}

func lease(e queue.Event) queue.Lease { return queue.Lease{ID: e.ID, Receipt: e.Receipt} }

// ack acks one lease and returns the result.
func (b env) ack(t *testing.T, l queue.Lease) queue.AckResult {
	t.Helper()
	results, err := b.Ack(t.Context(), acks(l))
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 1 || results[0].ID != l.ID {
		t.Fatalf("ack of %d returned %+v", l.ID, results)
	}
	return results[0]
}

// get returns an event. Like any caller, it tries again while the upkeep of a service that runs has history locked.
func (b env) get(t *testing.T, id int64) (e queue.Event) {
	t.Helper()
	eventually(t, "history is not locked", func() bool {
		var err error
		e, err = b.Get(t.Context(), id)
		if err != nil && !errors.Is(err, queue.ErrLocked) {
			t.Fatal(err)
		}
		return err == nil
	})
	return e
}

func checkIDs(t *testing.T, events []queue.Event, want []int64) {
	t.Helper()
	got := make([]int64, len(events))
	for i, e := range events {
		got[i] = e.ID
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got events %v, want %v", got, want)
	}
}

func checkNear(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	if d := got.Sub(want).Abs(); d > 20*time.Second {
		t.Errorf("%s is %v, want about %v", what, got, want)
	}
}

func TestReadyOnTheSchemaNeededOrALaterOne(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.SchemaVersion = "1.10.0" })
	for version, ready := range map[string]bool{"1.10.0": true, "1.10.1": true, "2.0.0": true, "1.9.0": false, "0.1.0": false} {
		b.exec(t, `update agent.version set version = $1`, version)
		if err := b.CheckReady(t.Context()); (err == nil) != ready {
			t.Errorf("schema at %s: %v", version, err)
		}
	}
}

func TestOpenWithoutADatabaseSaysUnavailable(t *testing.T) {
	t.Parallel()
	_, err := queue.Open(t.Context(), queue.Config{DatabaseURL: "postgres://nobody@/none?host=" + t.TempDir()})
	if !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("open: %v", err)
	}
}
