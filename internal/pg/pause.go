package pg

import (
	"context"
	"math/rand/v2"
	"time"
)

// Pause waits for d and reports whether it passed before ctx ended. It is for loops that ask the database again and again.
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

// Jittered returns d, give or take a quarter, so that the loops of many processes do not ask at the same time.
func Jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // jitter, no secret
}
