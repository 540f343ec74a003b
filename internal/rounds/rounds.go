// Package rounds keeps a loop from taking a processor when it gets nothing done. In each round a loop of a service gets something
// done, or waits: for a signal, for a time, for an answer. A round that does neither is idle. A fault that makes every round idle
// would use a processor until the process ends; a Limiter holds up such a loop, and its Counts show it.
package rounds

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// freeRounds idle rounds in a row go on at once: a signal and a read that race with each other cause a few.
	freeRounds = 8
	// minDelay is the delay after the first idle round that is held up. Each further delay is twice as long, up to maxDelay.
	minDelay = time.Millisecond
	// maxDelay is the delay of a loop that stays idle. A round with one statement takes about a millisecond of processor time,
	// so such a loop takes half a percent of a processor.
	maxDelay = 200 * time.Millisecond

	// MinWait is the shortest wait that counts: a loop that waits for less in each round is idle, too.
	MinWait = 5 * time.Millisecond
)

// Counts counts the rounds of the loops of a process, by the names of the loops. The zero value is ready. It may be used
// concurrently.
type Counts struct {
	mu     sync.Mutex
	byName map[string]*Loop
}

// A Loop counts the rounds of all loops of one name. Nil counts nothing.
type Loop struct {
	total, heldUp atomic.Int64
	mostIdle      atomic.Int64 // rounds in a row
}

// Loop returns the counts of a name, which is the same Loop each time.
func (c *Counts) Loop(name string) *Loop {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.byName[name]
	if l == nil {
		if c.byName == nil {
			c.byName = make(map[string]*Loop)
		}
		l = new(Loop)
		c.byName[name] = l
	}
	return l
}

// Total returns how many rounds there were.
func (l *Loop) Total() int64 { return l.total.Load() }

// HeldUp returns how many rounds of each loop were held up, without the loops of which none was.
func (c *Counts) HeldUp() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	heldUp := make(map[string]int64)
	for name, l := range c.byName {
		if n := l.heldUp.Load(); n > 0 {
			heldUp[name] = n
		}
	}
	return heldUp
}

// manyIdle is how many idle rounds in a row only a fault explains: at their end a loop has waited for four seconds for nothing.
const manyIdle = freeRounds + 25

// Stuck returns the loops that had so many idle rounds in a row that only a fault explains it, each with their number. Tests require that
// there is none. A loop that is held up for some rounds now and then, as signals race with reads, is not stuck.
func (c *Counts) Stuck() map[string]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	stuck := make(map[string]int64)
	for name, l := range c.byName {
		if n := l.mostIdle.Load(); n >= manyIdle {
			stuck[name] = n
		}
	}
	return stuck
}

var (
	totalRounds = prometheus.NewDesc("queued_loop_rounds_total",
		"Rounds of the loops of this process, by what the loop does.", []string{"loop"}, nil)
	heldUpRounds = prometheus.NewDesc("queued_loop_held_up_rounds_total",
		"Rounds of loops that were held up, because round after round neither got anything done nor waited: a defect.", []string{"loop"}, nil)
)

// Describe describes the metrics of Collect.
func Describe(out chan<- *prometheus.Desc) {
	out <- totalRounds
	out <- heldUpRounds
}

// Collect sends the counts of all loops.
func (c *Counts) Collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, l := range c.byName {
		out <- prometheus.MustNewConstMetric(totalRounds, prometheus.CounterValue, float64(l.total.Load()), name)
		out <- prometheus.MustNewConstMetric(heldUpRounds, prometheus.CounterValue, float64(l.heldUp.Load()), name)
	}
}

// Limiter returns a Limiter for one run of the loop.
func (l *Loop) Limiter() Limiter { return Limiter{loop: l} }

// A Limiter holds up a loop whose rounds are idle. It is for one goroutine.
type Limiter struct {
	loop *Loop
	idle int // rounds in a row
}

// Delay counts a round that has ended, and returns how long the loop has to wait before the next one: zero unless too many rounds in
// a row were idle.
func (l *Limiter) Delay(isIdle bool) time.Duration {
	if l.loop != nil {
		l.loop.total.Add(1)
	}
	if !isIdle {
		l.idle = 0
		return 0
	}
	if l.idle++; l.idle <= freeRounds {
		return 0
	}
	if l.loop != nil {
		l.loop.heldUp.Add(1)
		for n := l.loop.mostIdle.Load(); n < int64(l.idle) && !l.loop.mostIdle.CompareAndSwap(n, int64(l.idle)); {
			n = l.loop.mostIdle.Load()
		}
	}
	return min(minDelay<<min(l.idle-freeRounds-1, 16), maxDelay)
}

// Pause counts a round that has ended, and waits as long as Delay says. It fails with the error of ctx if that ends first.
func (l *Limiter) Pause(ctx context.Context, isIdle bool) error {
	delay := l.Delay(isIdle)
	if delay == 0 {
		return nil
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
