package topic

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
