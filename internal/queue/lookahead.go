package queue

import (
	"context"
	"sync"
	"time"
)

const (
	// longLook is how long looking ahead may take the database and still be done by the dispatcher itself, each
	// time before it goes to sleep. Beside an old snapshot it grows long: the entries of finished leases lie ahead.
	longLook = time.Millisecond
	// lookTimeout bounds one look.
	lookTimeout = 10 * time.Second
	// shortPoll is the time between polls where looking ahead takes longer.
	shortPoll = 250 * time.Millisecond
)

// lookouts know when the next events become claimable in the queues where finding out takes long.
type lookouts struct {
	mu      sync.Mutex
	byQueue map[string]*lookout
}

// lookout is a queue where looking ahead took long the last time.
type lookout struct {
	due     time.Time // when the next event becomes claimable; zero: none was seen
	again   time.Time // not to look before
	looking bool
}

// lookAhead returns how long it is safe to sleep if a claim after it finds nothing: what becomes claimable before
// that claim is claimed, and what becomes so later is covered by the answer.
func (s *Service) lookAhead(queue string) time.Duration {
	if sleep, long := s.lookBeside(queue); long {
		return sleep
	}
	return s.look(queue)
}

// lookBeside returns what is known of a queue where looking takes long, and has somebody look beside the claims when it
// is time to. It reports whether the queue is such a one.
func (s *Service) lookBeside(queue string) (sleep time.Duration, long bool) {
	s.lookouts.mu.Lock()
	defer s.lookouts.mu.Unlock()
	l := s.lookouts.byQueue[queue]
	if l == nil {
		return 0, false
	}
	now := time.Now()
	if !l.looking && now.After(l.again) {
		l.looking = true
		s.work.Go(func() {
			if s.look(queue) < shortPoll {
				s.wakeHere(map[string]bool{queue: true})
			}
		})
	}
	if l.due.After(now) {
		return min(shortPoll, l.due.Sub(now)), true
	}
	return shortPoll, true
}

// look asks the database when the next event of a queue becomes claimable, and notes when that took long.
func (s *Service) look(queue string) (sleep time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	start := time.Now()
	next, walk, err := s.nextVT(ctx, queue)
	took := time.Since(start)
	switch {
	case err != nil:
		sleep = shortPoll // the claim that follows says what is wrong
	case next == nil:
		sleep = time.Hour
	default:
		sleep = max(0, *next-took) // when the answer was made is not known
	}

	s.lookouts.mu.Lock()
	defer s.lookouts.mu.Unlock()
	if walk <= longLook {
		delete(s.lookouts.byQueue, queue)
		return sleep
	}
	l := &lookout{again: time.Now().Add(lookShare * took)}
	if next != nil {
		l.due = start.Add(*next)
	}
	if s.lookouts.byQueue == nil {
		s.lookouts.byQueue = make(map[string]*lookout)
	}
	s.lookouts.byQueue[queue] = l
	forgetAny(s.lookouts.byQueue, maxRemembered, queue)
	return sleep
}
