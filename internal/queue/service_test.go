package queue_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// bench is a service on a database of its own, with a session beside it that sees and bends what the service cannot.
type bench struct {
	*queue.Service
	url string
	sql *pgx.Conn
}

// open returns a bench; change, if not nil, changes the service's configuration.
func open(t *testing.T, change func(*queue.Config)) bench {
	t.Helper()
	url := pgtest.New(t).URL
	return bench{Service: openOn(t, url, change), url: url, sql: pgtest.Connect(t, url)}
}

// openOn returns another service on the database at url, as the role that services have.
func openOn(t *testing.T, url string, change func(*queue.Config)) *queue.Service {
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
	})
	return s
}

// running makes s.Run go until the test ends.
func running(t *testing.T, s *queue.Service) {
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

// exec runs a statement beside the service.
func (b bench) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if _, err := b.sql.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

// post enqueues payloads into a queue and returns their ids.
func (b bench) post(t *testing.T, q string, payloads ...string) []int64 {
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

// postN enqueues n numbered events.
func (b bench) postN(t *testing.T, q string, n int) []int64 {
	t.Helper()
	payloads := make([]string, n)
	for i := range payloads {
		payloads[i] = fmt.Sprintf(`{"n":%d}`, i)
	}
	return b.post(t, q, payloads...)
}

// take claims and fails the test unless it gets want events.
func (b bench) take(t *testing.T, p queue.ClaimParams, want int) []queue.Event {
	t.Helper()
	events, err := b.Claim(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(events) != want {
		t.Fatalf("claimed %d events, want %d", len(events), want)
	}
	return events
}

// takeOne claims one event of the default queue.
func (b bench) takeOne(t *testing.T) queue.Event {
	t.Helper()
	return b.take(t, queue.ClaimParams{MaxAttempts: 100}, 1)[0]
}

// endLease makes every lease on an event run out, by the clock that counts: the database's.
func (b bench) endLease(t *testing.T, id int64) {
	t.Helper()
	b.exec(t, `update agent.event set vt = now() - interval '1 ms' where id = $1`, id)
}

// acks finishes leases without a result.
func acks(leases ...queue.Lease) []queue.Ack {
	all := make([]queue.Ack, len(leases))
	for i, l := range leases {
		all[i].Lease = l
	}
	return all
}

func lease(e queue.Event) queue.Lease { return queue.Lease{ID: e.ID, Receipt: e.Receipt} }

// ack finishes one lease and returns its result.
func (b bench) ack(t *testing.T, l queue.Lease) queue.AckResult {
	t.Helper()
	results, err := b.Ack(t.Context(), acks(l))
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 1 || results[0].ID != l.ID {
		t.Fatalf("ack of %d answered %+v", l.ID, results)
	}
	return results[0]
}

// get looks an event up.
func (b bench) get(t *testing.T, id int64) queue.Event {
	t.Helper()
	e, err := b.Get(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func sameIDs(t *testing.T, events []queue.Event, want []int64) {
	t.Helper()
	got := make([]int64, len(events))
	for i, e := range events {
		got[i] = e.ID
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got events %v, want %v", got, want)
	}
}

func near(t *testing.T, what string, got, want time.Time) {
	t.Helper()
	if d := got.Sub(want).Abs(); d > 20*time.Second {
		t.Errorf("%s is %v, want about %v", what, got, want)
	}
}
