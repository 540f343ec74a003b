package queue

import (
	"time"

	"github.com/queued/queued/internal/watermark"
)

// Gathered returns how many calls wait for a writer, and how many writers are at work.
func Gathered(s *Service) (calls, writers int) { return s.commits.Waiting() }

// Watermark returns where claims of a queue begin in the lane of priority zero, zero for at its beginning, and whether they know the queue's lanes.
// No claim of the queue may be under way.
func Watermark(s *Service, queue string) (mark time.Time, knowsLanes bool) {
	start := s.watermarks.Begin(time.Now(), watermark.Claims{Queue: queue, MaxAttempts: s.cfg.MaxAttempts})
	for i, priority := range start.Priorities {
		if priority == 0 && start.Marks != nil && start.Marks[i] != nil {
			mark = *start.Marks[i]
		}
	}
	return mark, start.Priorities != nil
}

// Offers reports whether an insert into the queue would take the claim of those who wait along.
func Offers(s *Service, queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dispatchers[queue]
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.offer != nil
}

// Waiting returns how many claims wait.
func Waiting(s *Service) int { return s.waiting() }
