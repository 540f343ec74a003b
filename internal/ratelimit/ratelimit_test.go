package ratelimit_test

import (
	"math"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/ratelimit"
)

var now = time.Date(2026, 3, 29, 2, 30, 0, 0, time.UTC)

func TestRenewKeepsTheCountOfTheSameLimitOnly(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		perSecond float64
		burst     int
		want      float64 // tokens
	}{
		"the same limit":  {0.5, 3, 1},
		"another rate":    {0.25, 3, 3},
		"another burst":   {0.5, 2, 2},
		"a greater burst": {0.5, 30, 30},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := ratelimit.Renew(nil, 0.5, 3)
			if !before.AllowN(now, 2) {
				t.Fatal("a new limiter is not full")
			}
			after := ratelimit.Renew(before, tc.perSecond, tc.burst)
			if got := after.TokensAt(now); got != tc.want {
				t.Errorf("%v tokens, want %v", got, tc.want)
			}
			if after.Limit() != rate.Limit(tc.perSecond) || after.Burst() != tc.burst {
				t.Errorf("%v a second, %d at once, want %v and %d", after.Limit(), after.Burst(), tc.perSecond, tc.burst)
			}
		})
	}
}

func TestTakeTellsTheWholeSecondsUntilTheNextToken(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		perSecond float64
		later     time.Duration // than the only token was taken
		want      time.Duration
	}{
		"at once":                  {0.1, 0, 10 * time.Second},
		"a part of a second later": {0.1, 500 * time.Millisecond, 10 * time.Second},
		"on a whole second":        {0.125, 3 * time.Second, 5 * time.Second},
		"less than one is left":    {0.1, 9500 * time.Millisecond, time.Second},
		"many in a second":         {1000, 0, time.Second},
		"there is one":             {0.125, 8 * time.Second, 0},
		"the lowest limit":         {0.001, 0, 1000 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := ratelimit.Renew(nil, tc.perSecond, 1)
			if retry := ratelimit.Take(l, now); retry != 0 {
				t.Fatalf("a new limiter has nothing to take for %v", retry)
			}
			if got := ratelimit.Take(l, now.Add(tc.later)); got != tc.want {
				t.Errorf("after %v: retry in %v, want %v", tc.later, got, tc.want)
			}
			if tc.want > 0 && ratelimit.Take(l, now.Add(tc.later+tc.want)) != 0 {
				t.Error("there is nothing to take after the time that was told")
			}
		})
	}
}

func TestRefillTakesWholeSeconds(t *testing.T) {
	t.Parallel()
	l := ratelimit.Renew(nil, 4, 100)
	for tokens, want := range map[float64]time.Duration{
		-9: 0, 0: 0, 0.5: time.Second, 4: time.Second, 5: 2 * time.Second, 100: 25 * time.Second,
	} {
		if got := ratelimit.Refill(l, tokens); got != want {
			t.Errorf("%v tokens in %v, want %v", tokens, got, want)
		}
	}
	if got := ratelimit.Refill(ratelimit.Renew(nil, 0.001, 1_000_000), 1_000_000); got != 1_000_000_000*time.Second {
		t.Errorf("the longest: %v", got)
	}
}

func TestWaitIsNoShorterThanTheTimeUntilTheNextToken(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{0.001, 0.3, 1, 7, 999.9, 1e6} {
		l := ratelimit.Renew(nil, perSecond, 2)
		if got := ratelimit.Wait(l, now); got != 0 {
			t.Errorf("%v a second: a full limiter waits for %v", perSecond, got)
		}
		l.AllowN(now, 1)
		if got := ratelimit.Wait(l, now); got != 0 {
			t.Errorf("%v a second: with one token left it waits for %v", perSecond, got)
		}
		l.AllowN(now, 1)
		at := now.Add(time.Duration(0.25 / perSecond * float64(time.Second)))
		got := ratelimit.Wait(l, at)
		if exact := 0.75 / perSecond; math.Abs(got.Seconds()-exact) > 2e-6 {
			t.Errorf("%v a second: waits for %v, want %v s", perSecond, got, exact)
		}
		if tokens := l.TokensAt(at.Add(got)); tokens < 1 || !l.AllowN(at.Add(got), 1) {
			t.Errorf("%v a second: there are %v tokens after %v", perSecond, tokens, got)
		}
	}
}
