// Package loop is for what is done again and again until a context ends.
package loop

import (
	"context"
	"math/rand/v2"
	"time"
)

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

// Jittered spreads the loops of many processes: d, give or take a quarter.
func Jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // jitter, no secret
}
