package queue_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// TestEveryEventIsFinishedOnceByItsLeaseHolder runs many workers of two services, which claim one event at a time and ack, nack or release it at random, and sometimes
// repeat the call with an old receipt. The results are compared with each other and with history.
func TestEveryEventIsFinishedOnceByItsLeaseHolder(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	const events, workers = 4_000, 64
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	b := setup(t, nil)
	other := anotherService(t, b.url, nil)
	b.exec(t, `select count(*) from agent.insert_events(array_fill(jsonb '{}', array[$1::int]))`, events)
	first := pgtest.Query[int64](t, b.sql, `select min(id) from agent.event`)

	// For each event: its holder, how often it was nacked, and its outcome.
	var (
		held     [events]atomic.Bool
		nacked   [events]atomic.Int32
		ended    [events]atomic.Value // of queue.Outcome
		finished atomic.Int32
		all      sync.WaitGroup
	)
	work := func(s *queue.Service, r *rand.Rand) error {
		got, err := s.Claim(t.Context(), queue.ClaimParams{MaxAttempts: 1_000, InvisibleFor: time.Hour, Wait: 100 * time.Millisecond})
		if err != nil || len(got) == 0 {
			return err
		}
		e, at := got[0], got[0].ID-first
		if !held[at].CompareAndSwap(false, true) {
			return fmt.Errorf("event %d was claimed during another lease", e.ID)
		}
		if o := ended[at].Load(); o != nil {
			return fmt.Errorf("event %d was claimed after it was %v", e.ID, o)
		}
		if n := nacked[at].Load(); e.Attempts != n+1 || len(e.Claimed) != int(n)+1 {
			return fmt.Errorf("event %d was nacked %d times and claimed as attempt %d (%v)", e.ID, n, e.Attempts, e.Claimed)
		}
		switch n := r.IntN(10); {
		case n == 0:
			held[at].Store(false)
			return s.Release(t.Context(), []queue.Lease{lease(e)})
		case n <= 2:
			nacked[at].Add(1)
			held[at].Store(false)
			_, err := s.Nack(t.Context(), queue.NackParams{Lease: lease(e)})
			return err
		case n == 3:
			ended[at].Store(queue.Failed)
			finished.Add(1)
			_, err := s.Nack(t.Context(), queue.NackParams{Lease: lease(e), Final: true})
			return err
		default:
			ended[at].Store(queue.Done)
			finished.Add(1)
			for range 1 + r.IntN(5)/4 {
				results, err := s.Ack(t.Context(), acks(lease(e)))
				if err != nil || results[0].Err != nil || results[0].Outcome != queue.Done {
					return errors.Join(err, fmt.Errorf("the ack of %d returned %+v", e.ID, results))
				}
			}
			return nil
		}
	}
	for i := range 2 * workers {
		s, r := []*queue.Service{b.Service, other}[i%2], rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			for finished.Load() < events && !t.Failed() {
				if err := work(s, r); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events are still in the queue", n)
	}
	rows, _ := b.sql.Query(t.Context(), `select id, outcome, attempts, cardinality(claimed) from agent.event_hist`)
	defer rows.Close()
	seen := make(map[int64]bool, events)
	for rows.Next() {
		var (
			id                int64
			outcome           queue.Outcome
			attempts, claimed int32
		)
		if err := rows.Scan(&id, &outcome, &attempts, &claimed); err != nil {
			t.Fatal(err)
		}
		if seen[id] {
			t.Errorf("event %d is in history twice", id)
		}
		seen[id] = true
		if at := id - first; outcome != ended[at].Load() || attempts != nacked[at].Load()+1 || claimed != attempts {
			t.Errorf("event %d is %s in history after %d attempts (%d claims); its workers made it %v after %d nacks",
				id, outcome, attempts, claimed, ended[at].Load(), nacked[at].Load())
		}
	}
	if err := rows.Err(); err != nil || len(seen) != events {
		t.Errorf("history has %d events, want %d; %v", len(seen), events, err)
	}
}
