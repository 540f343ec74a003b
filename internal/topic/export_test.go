package topic

import "github.com/queued/queued/internal/match"

// Followers returns how many follow the log in this process with filters that are in the index.
func (s *Service) Followers() (n int) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	for _, g := range s.tail.groups {
		if g.isIndexed {
			n += g.followers
		}
	}
	return n
}

// Groups returns how many groups follow the log in this process.
func (s *Service) Groups() int {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	return len(s.tail.groups)
}

// Wakes returns how often those who follow the log were woken for events.
func (s *Service) Wakes() int {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	return s.tail.wakes
}

// SetGroupLinger sets whether groups that nobody follows any more are kept for a while.
func (s *Service) SetGroupLinger(isKept bool) {
	s.tail.mu.Lock()
	defer s.tail.mu.Unlock()
	s.tail.linger = 0
	if isKept {
		s.tail.linger = groupLinger
	}
}

// RelyOnStates has states of subscriptions that were read be relied on however long ago that was.
func (s *Service) RelyOnStates() {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	s.watches.stateAge = 1 << 62
}

// KnowsState reports whether the state of a subscription was read since this process has changed it last, and its position then.
func (s *Service) KnowsState(name string) (position int64, isKnown bool) {
	s.watches.mu.Lock()
	defer s.watches.mu.Unlock()
	w := s.watches.byName[name]
	if w == nil || w.readAt.IsZero() {
		return 0, false
	}
	return w.state.Position, true
}

// KnowsFilters reports whether the filters of as many subscriptions are in memory.
func (s *Service) KnowsFilters(n int) bool {
	s.filters.mu.Lock()
	defer s.filters.mu.Unlock()
	return len(s.filters.sets) >= n
}

// A Tail is a tail that no service has.
type Tail struct{ t *tail }

// NewTail returns an empty one.
func NewTail() Tail { return Tail{newTail(1 << 20)} }

// UpdateIndex brings its index up to date.
func (t Tail) UpdateIndex() { t.t.updateIndex() }

// JoinAndLeave follows it by the name of a topic, and no more.
func (t Tail) JoinAndLeave(name string) {
	filter, err := match.Parse([]string{name}, nil)
	if err != nil {
		panic(err)
	}
	t.t.leave(t.t.join(filter))
}
