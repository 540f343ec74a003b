package queue_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// holders is who has which event, as workers know it: an event is free, held, or its holder is about to end the attempt.
type holders struct {
	t      *testing.T
	mu     sync.Mutex
	isHeld map[int64]string // the receipt of whoever holds it
	acked  map[int64]int
}

func (h *holders) claimed(e queue.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if other := h.isHeld[e.ID]; other != "" {
		h.t.Errorf("event %d was claimed with %s while %s held it", e.ID, e.Receipt, other)
	}
	h.isHeld[e.ID] = e.Receipt
}

// ends notes that a holder is about to end its attempt: from now on others may claim the event.
func (h *holders) ends(id int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.isHeld, id)
}

// Workers that claim, ack, nack and release hold an event alone, end it once, and lose none, whatever runs, pauses, moves, sweeps and extends beside them.
func TestLeasesAreExclusiveWhateverRacesWithThem(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := anotherService(t, b.url, nil)
	const n = 60
	queues := []string{"a", "b"}
	var ids []int64
	for i := range n {
		ids = append(ids, b.insertLater(t, queue.InsertParams{Queue: queues[i%2], Delay: time.Hour}))
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	h := &holders{t: t, isHeld: make(map[int64]string), acked: make(map[int64]int)}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var workers, beside sync.WaitGroup
	for i := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		s := []*queue.Service{b.Service, other}[i%2]
		workers.Go(func() {
			for ctx.Err() == nil {
				h.mu.Lock()
				done := len(h.acked) == n
				h.mu.Unlock()
				if done {
					return
				}
				events, err := s.Claim(ctx, queue.ClaimParams{Queue: queues[random.IntN(2)], Limit: 3, MaxAttempts: 1 << 30, InvisibleFor: time.Hour, Wait: 50 * time.Millisecond})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				for _, e := range events {
					h.claimed(e)
				}
				for _, e := range events {
					if x, err := s.ExtendEach(ctx, []queue.Extend{{Lease: lease(e), InvisibleFor: 2 * time.Hour}}, nil); err != nil && ctx.Err() == nil || err == nil && x[0].Err != nil {
						t.Errorf("extending event %d: %v, %v", e.ID, x, err)
					}
					h.ends(e.ID)
					switch random.IntN(5) {
					case 0:
						var r []queue.AckResult
						if r, err = s.Ack(ctx, []queue.Ack{{Lease: lease(e)}}); err == nil {
							err = r[0].Err
							h.mu.Lock()
							h.acked[e.ID]++
							h.mu.Unlock()
						}
					case 1:
						_, err = s.Nack(ctx, queue.NackParams{Lease: lease(e), Delay: new(time.Hour)})
					default:
						var r []queue.LeaseResult
						if r, err = s.ReleaseEach(ctx, []queue.Lease{lease(e)}, time.Duration(random.IntN(2))*time.Hour, nil); err == nil {
							err = r[0].Err
						}
					}
					if err != nil && ctx.Err() == nil {
						t.Errorf("ending event %d: %v", e.ID, err)
					}
					if r, err := s.ReleaseEach(ctx, []queue.Lease{lease(e)}, 0, nil); err == nil && !errors.Is(r[0].Err, queue.ErrLeaseLost) {
						t.Errorf("a lease of event %d that has ended was released: %+v", e.ID, r)
					}
				}
			}
		})
	}
	stop := make(chan struct{})
	race := func(what func(random *rand.Rand) error) {
		random := rand.New(rand.NewPCG(seed, rand.Uint64()))
		beside.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := what(random); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	race(func(random *rand.Rand) error {
		_, err := other.RunQueue(ctx, queue.RunParams{Queue: queues[random.IntN(2)], NackedOnly: random.IntN(2) == 0})
		return err
	})
	race(func(random *rand.Rand) error {
		_, err := b.RunEvent(ctx, ids[random.IntN(n)], nil)
		if errors.Is(err, queue.ErrLeased) || errors.Is(err, queue.ErrEnded) {
			return nil
		}
		return err
	})
	race(func(random *rand.Rand) error {
		from := random.IntN(2)
		_, err := b.Move(ctx, queues[from], queues[1-from], nil, 5)
		return err
	})
	race(func(random *rand.Rand) error {
		q := queues[random.IntN(2)]
		_, err := b.Sweep(ctx, queue.SweepParams{MaxAttempts: 1 << 30})
		return errors.Join(err, other.Pause(ctx, q), other.Resume(ctx, q))
	})
	workers.Wait()
	close(stop)
	beside.Wait()
	if ctx.Err() != nil {
		t.Fatal("the events were not all acked in time")
	}
	for _, id := range ids {
		if h.acked[id] != 1 {
			t.Errorf("event %d was acked %d times", id, h.acked[id])
		}
	}
	if in, left := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where outcome = 'done'`), pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); in != n || left != 0 {
		t.Errorf("%d events are done and %d wait, want %d and none", in, left, n)
	}
}
