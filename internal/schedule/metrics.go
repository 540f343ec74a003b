package schedule

import (
	"slices"
	"sync"
	"time"
)

// LatenessBounds are the upper bounds of Counters.Lateness.
var LatenessBounds = [...]time.Duration{
	10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 5 * time.Second, time.Minute, time.Hour, 24 * time.Hour,
}

// Counters count the firings of a Service since it was opened.
type Counters struct {
	Fired   int64 // occurrences that became events or were published, without those of RunNow
	Skipped int64 // occurrences that were missed and recorded as skipped
	Faulty  int64 // schedules that could not fire and were paused
	// Lateness counts fired occurrences by the time from when they were due to their commit: cumulatively, up to each of LatenessBounds.
	Lateness  [len(LatenessBounds)]uint64
	TotalLate time.Duration // of all that fired
}

// counters are the Counters of a Service.
type counters struct {
	mu sync.Mutex
	Counters
}

// Counters returns the counts of this Service.
func (s *Service) Counters() Counters {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	return s.counters.Counters
}

// addFaulty counts schedules that were paused.
func (c *counters) addFaulty(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Faulty += int64(n)
}

// add counts occurrences that were committed at a time by the database's clock.
func (c *counters) add(firings []firing, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range firings {
		for _, o := range f.occurrences {
			if o.isSkipped {
				c.Skipped++
				continue
			}
			c.Fired++
			late := max(0, at.Sub(o.UTC))
			c.TotalLate += late
			first, _ := slices.BinarySearch(LatenessBounds[:], late)
			for i := first; i < len(LatenessBounds); i++ {
				c.Lateness[i]++
			}
		}
	}
}
