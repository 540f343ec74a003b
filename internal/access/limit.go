package access

import (
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/ratelimit"
)

// A Limit is the state of a rate limit after a request, for the header of the answer.
type Limit struct {
	Burst     int
	Window    time.Duration // in which Burst requests may be made again and again
	Remaining int           // requests that may be made now
	Reset     time.Duration // after which Burst may be made at once
	Retry     time.Duration // after which one may be made; zero: now
}

// Take counts a request of the caller. limit is nil when there is none; ok tells whether the request may be made. Limits are those of one process.
func (g *Grant) Take() (limit *Limit, ok bool) {
	if g.counted == nil {
		return nil, true
	}
	g.counted.note(g.svc.now())
	limiter := g.counted.limiter
	if limiter == nil {
		return nil, true
	}
	now := time.Now()
	retry := ratelimit.Take(limiter, now)
	tokens, burst := limiter.TokensAt(now), limiter.Burst()
	return &Limit{
		Burst: burst, Window: max(ratelimit.Refill(limiter, float64(burst)), time.Second),
		Remaining: max(0, int(tokens)), Reset: ratelimit.Refill(limiter, float64(burst)-tokens), Retry: retry,
	}, retry == 0
}

// PlacesPerHour is how many queues a key may place in an hour, in one process; one with the scope manage for all queues may place any number.
const PlacesPerHour = 1000

// TakePlace counts a queue that the caller places. It returns after how long the caller may place one more; zero: this one may be placed.
func (g *Grant) TakePlace() (retry time.Duration) {
	if g.counted == nil || g.Has(Manage) && !g.IsRestricted() {
		return 0
	}
	return ratelimit.Take(g.counted.places, g.svc.now())
}

// limiterOf returns the limiter of a limit, and nil if there is none. before is that of the same key as it was, or nil.
func limiterOf(r *Rate, before *rate.Limiter) *rate.Limiter {
	if r == nil {
		return nil
	}
	return ratelimit.Renew(before, r.PerSecond, r.Burst)
}
