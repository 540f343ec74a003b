package access

import (
	"math"
	"time"

	"golang.org/x/time/rate"
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
	ok = limiter.AllowN(now, 1)
	tokens, perSecond := limiter.TokensAt(now), float64(limiter.Limit())
	seconds := func(n float64) time.Duration { return time.Duration(math.Ceil(max(0, n)/perSecond)) * time.Second }
	burst := limiter.Burst()
	limit = &Limit{Burst: burst, Window: max(seconds(float64(burst)), time.Second), Remaining: max(0, int(tokens)), Reset: seconds(float64(burst) - tokens)}
	if !ok {
		limit.Retry = max(seconds(1-tokens), time.Second)
	}
	return limit, ok
}

func newLimiter(r *Rate) *rate.Limiter {
	if r == nil {
		return nil
	}
	return rate.NewLimiter(rate.Limit(r.PerSecond), r.Burst)
}
