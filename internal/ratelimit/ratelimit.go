// Package ratelimit has what the rate limits of keys, sources and pushes have in common, over golang.org/x/time/rate.
//
// A limiter counts for one process. It is full when it is made, so Renew keeps one as long as its limit stays the same, and what was used stays used;
// another limit begins full.
//
// Those who wait differ. A caller with a key, or who sends to a source, is told to come back in whole seconds, as Retry-After has them, of which one is
// the least: Take. A push waits by itself, for no longer than it has to: Wait. It takes tokens only when it has claimed events, several at a time.
package ratelimit

import (
	"math"
	"time"

	"golang.org/x/time/rate"
)

// Renew returns before if that has this limit, and a full limiter otherwise, also when before is nil.
func Renew(before *rate.Limiter, perSecond float64, burst int) *rate.Limiter {
	if before != nil && before.Limit() == rate.Limit(perSecond) && before.Burst() == burst {
		return before
	}
	return rate.NewLimiter(rate.Limit(perSecond), burst)
}

// Take takes a token, or returns after how many whole seconds, at least one, there is one to take; zero: it has taken one.
func Take(l *rate.Limiter, now time.Time) (retry time.Duration) {
	if l.AllowN(now, 1) {
		return 0
	}
	return max(time.Second, Refill(l, 1-l.TokensAt(now)))
}

// Refill returns in how many whole seconds a limiter gets so many tokens; zero if that is none, or fewer.
func Refill(l *rate.Limiter, tokens float64) time.Duration {
	return time.Duration(math.Ceil(max(0, tokens)/float64(l.Limit()))) * time.Second
}

// Wait returns how long it is until there is a token to take, at most a microsecond more; zero: there is one.
func Wait(l *rate.Limiter, now time.Time) time.Duration {
	tokens := l.TokensAt(now)
	if tokens >= 1 {
		return 0
	}
	return time.Duration((1-tokens)/float64(l.Limit())*float64(time.Second)) + time.Microsecond
}
