package queue

import (
	"testing"
	"time"
)

// Gathered returns how many calls wait for a writer.
func Gathered(s *Service) int {
	s.flusher.mu.Lock()
	defer s.flusher.mu.Unlock()
	return len(s.flusher.waiting)
}

// Mark returns where claims of a queue begin in the lane of priority zero, zero for at its beginning.
func Mark(s *Service, queue string) time.Time {
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	k := s.marks.byKey[markKey{queue, "", s.cfg.MaxAttempts}]
	if k == nil || !k.heeded || k.byLane[0] == nil {
		return time.Time{}
	}
	return k.byLane[0].at
}

// Writers returns how many writers are at work.
func Writers(s *Service) int {
	s.flusher.mu.Lock()
	defer s.flusher.mu.Unlock()
	return s.flusher.running
}

// LookBehindEvery sets the time between two looks behind a mark, before s runs.
func LookBehindEvery(s *Service, d time.Duration) { s.marks.every = d }

// Closed reports whether s takes no more calls.
func Closed(s *Service) bool {
	s.flusher.mu.Lock()
	defer s.flusher.mu.Unlock()
	return s.flusher.closed
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

// LanesAreKnown reports whether the next claim of a queue need not look for its lanes.
func LanesAreKnown(s *Service, queue string) bool {
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	k := s.marks.byKey[markKey{queue, "", s.cfg.MaxAttempts}]
	return k != nil && k.known && !k.stale
}

// UpkeepEvery sets the time between two rounds of upkeep, after one that failed, and between two tries of a step, before s runs.
func UpkeepEvery(s *Service, every, retry, pause time.Duration) {
	s.upkeep.every, s.upkeep.retry, s.upkeep.pause = every, retry, pause
}

// MarksAreOn returns when claims leave marks.
func MarksAreOn(t *testing.T, s *Service) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(time.Millisecond) {
		s.marks.mu.Lock()
		off := s.marks.off
		s.marks.mu.Unlock()
		if !off {
			return
		}
	}
	t.Fatal("claims leave no marks")
}

// Marked returns how many queues, and types of theirs, have marks.
func Marked(s *Service) int {
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	return len(s.marks.byKey)
}
