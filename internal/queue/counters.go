package queue

import (
	"container/list"
	"slices"
	"strings"
	"sync"
)

// Counters counts events of one queue.
type Counters struct {
	Queue                                                                 string
	Inserted, Claimed, Released, Acked, Nacked, Failed, Expired, Requeued int64
}

// add counts what another one did.
func (c *Counters) add(o *Counters) {
	c.Inserted += o.Inserted
	c.Claimed += o.Claimed
	c.Released += o.Released
	c.Acked += o.Acked
	c.Nacked += o.Nacked
	c.Failed += o.Failed
	c.Expired += o.Expired
	c.Requeued += o.Requeued
}

const (
	// maxCounted is how many queues have counters of their own: those that something happened in the latest.
	maxCounted = 500
	// OtherQueues stands for all queues that have no counters of their own any more. No queue can have this name.
	OtherQueues = "(other)"
)

// counters counts events by queue since the service was opened.
type counters struct {
	mu      sync.Mutex
	byQueue map[string]*list.Element // of recent
	recent  list.List                // of *Counters, the latest used first
	others  Counters                 // what those that were dropped had counted
}

func (c *counters) add(queue string, count func(*Counters)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	element := c.byQueue[queue]
	if element == nil {
		if c.byQueue == nil {
			c.byQueue = make(map[string]*list.Element)
		}
		element = c.recent.PushFront(&Counters{Queue: queue})
		c.byQueue[queue] = element
	} else {
		c.recent.MoveToFront(element)
	}
	count(element.Value.(*Counters))
	if len(c.byQueue) > maxCounted {
		oldest := c.recent.Remove(c.recent.Back()).(*Counters)
		delete(c.byQueue, oldest.Queue)
		c.others.add(oldest)
		c.others.Queue = OtherQueues
	}
}

// count adds what a flush did, by queue.
func (c *counters) count(done map[string]*Counters) {
	for queue, n := range done {
		c.add(queue, func(c *Counters) { c.add(n) })
	}
}

// Counters returns what this service has done since it was opened, by queue. Of the queues that it has had to do with the latest 500 are
// there, the others together as OtherQueues: one that comes back counts from zero again.
func (s *Service) Counters() []Counters {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	all := make([]Counters, 0, len(s.counters.byQueue)+1)
	if s.counters.others.Queue != "" {
		all = append(all, s.counters.others)
	}
	for _, element := range s.counters.byQueue {
		all = append(all, *element.Value.(*Counters))
	}
	slices.SortFunc(all, func(a, b Counters) int { return strings.Compare(a.Queue, b.Queue) })
	return all
}
