package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Pauses between tries: the first is around minPause, and each doubles until maxPause, so that a server that comes back is found soon, and
// one that is in trouble is left alone.
const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// pauseBefore returns how long to wait before a try, the first of which is 0, after err. Half of it is chance, so that clients that failed
// together do not come back together. A Retry-After is added to it, because nobody should come back earlier.
func pauseBefore(try int, err error) time.Duration {
	pause := min(maxPause, minPause<<min(max(try-1, 0), 10))
	pause = pause/2 + rand.N(pause/2) //nolint:gosec // jitter, no secret
	var e *Error
	if errors.As(err, &e) {
		pause += e.RetryAfter
	}
	return pause
}

// sleep waits; its error says that ctx has ended before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
