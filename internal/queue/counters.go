package queue

import (
	"slices"
	"strings"
	"sync"
)

// Counters counts events of one queue.
type Counters struct {
	Queue                                                                 string
	Inserted, Claimed, Released, Acked, Nacked, Failed, Expired, Requeued int64
}

// counters counts events by queue since the service was opened.
type counters struct {
	mu      sync.Mutex
	byQueue map[string]*Counters
}

func (c *counters) add(queue string, count func(*Counters)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.byQueue == nil {
		c.byQueue = make(map[string]*Counters)
	}
	if c.byQueue[queue] == nil {
		c.byQueue[queue] = &Counters{Queue: queue}
	}
	count(c.byQueue[queue])
}

// count adds what a flush did, by queue.
func (c *counters) count(done map[string]*Counters) {
	for queue, n := range done {
		c.add(queue, func(c *Counters) {
			c.Inserted += n.Inserted
			c.Claimed += n.Claimed
			c.Acked += n.Acked
		})
	}
}

// Counters returns what this service has done since it was opened, by queue.
func (s *Service) Counters() []Counters {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	all := make([]Counters, 0, len(s.counters.byQueue))
	for _, c := range s.counters.byQueue {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b Counters) int { return strings.Compare(a.Queue, b.Queue) })
	return all
}
