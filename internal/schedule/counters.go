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

// Counters are what a Service made of occurrences since it was opened.
type Counters struct {
	Fired   int64 // became events; extra ones are not counted
	Skipped int64 // were missed, and recorded as skipped
	Faulty  int64 // schedules that could not fire and were paused for it
	// Lateness counts those that fired by how long after their time they were committed: up to each of LatenessBounds, those within a lower
	// bound included.
	Lateness  [len(LatenessBounds)]uint64
	TotalLate time.Duration // of all that fired
}

// counters count for a Service.
type counters struct {
	mu sync.Mutex
	Counters
}

// Counters returns what became of occurrences in this process.
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

// add counts what was committed at a time by the database's clock, of the schedules that were fired; nil: of all.
func (c *counters) add(b *batch, fired []int64, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, status := range b.statuses {
		if fired != nil && !slices.Contains(fired, b.scheduleIDs[i]) {
			continue
		}
		if status != "fired" {
			c.Skipped++
			continue
		}
		c.Fired++
		late := max(0, at.Sub(b.scheduledFor[i]))
		c.TotalLate += late
		first, _ := slices.BinarySearch(LatenessBounds[:], late)
		for j := first; j < len(LatenessBounds); j++ {
			c.Lateness[j]++
		}
	}
}
