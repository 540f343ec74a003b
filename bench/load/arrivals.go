package load

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"
)

// Arrivals are the times of an open loop: when events are to be inserted, whether or not the server
// keeps up. An event that no client is free for is inserted late, and its latency counts from the planned time: a server that
// stalls cannot hide the requests that waited meanwhile. It is safe for concurrent use.
type Arrivals struct {
	mu      sync.Mutex
	gap     time.Duration // on average
	poisson bool
	next    time.Time
}

// NewArrivals plans rate arrivals a second, evenly or at random.
func NewArrivals(rate float64, poisson bool) *Arrivals {
	return &Arrivals{gap: time.Duration(float64(time.Second) / rate), poisson: poisson}
}

// take returns the next arrival. The first one is now.
func (a *Arrivals) take(now time.Time) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next.IsZero() {
		a.next = now
	}
	planned := a.next
	gap := a.gap
	if a.poisson {
		gap = time.Duration(rand.ExpFloat64() * float64(gap)) //nolint:gosec // a load, not a secret
	}
	a.next = planned.Add(gap)
	return planned
}

// Wait takes the next arrival for c and returns when it is due, false when ctx ends first.
func (a *Arrivals) Wait(ctx context.Context, c *Client) (planned time.Time, ok bool) {
	now := time.Now()
	planned = a.take(now)
	if planned.After(now) {
		if !Pause(ctx, time.Until(planned)) {
			return planned, false
		}
		c.shard.add(StartDelay, time.Since(planned), 0) // the timer's, and counted all the same
	}
	return planned, ctx.Err() == nil
}

// Pause waits for d and reports whether it passed before ctx ended.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
