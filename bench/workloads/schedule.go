package workloads

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// schedule is an open loop's arrivals: the times at which lives are meant to begin, whether or not the server
// keeps up. A life that no worker is free for begins late, and its latency counts from the time it was meant to begin:
// a server that stalls cannot hide what waited meanwhile.
type schedule struct {
	mu      sync.Mutex
	gap     time.Duration // on average
	poisson bool
	next    time.Time
}

// newSchedule plans rate arrivals per second; it is nil, an endless closed loop, for none.
func newSchedule(rate float64, poisson bool) *schedule {
	if rate == 0 {
		return nil
	}
	return &schedule{gap: time.Duration(float64(time.Second) / rate), poisson: poisson}
}

// take returns the next arrival. The first one is now.
func (s *schedule) take(now time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next.IsZero() {
		s.next = now
	}
	intended := s.next
	gap := s.gap
	if s.poisson {
		gap = time.Duration(rand.ExpFloat64() * float64(gap)) //nolint:gosec // a load, not a secret
	}
	s.next = intended.Add(gap)
	return intended
}

// wait takes the next arrival and returns when it is due, false when ctx ends first.
func (s *schedule) wait(ctx context.Context, w *worker) (intended time.Time, ok bool) {
	now := time.Now()
	intended = s.take(now)
	if intended.After(now) {
		if !pauseUntil(ctx, intended) {
			return intended, false
		}
		w.shard.late(time.Since(intended)) // the timer's doing, which counts all the same
	}
	return intended, true
}
