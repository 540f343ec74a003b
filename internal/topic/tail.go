package topic

import (
	"context"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

// eventOverhead is what an event of the tail takes in memory besides its texts, in bytes, about.
const eventOverhead = 256

// A tail has the newest events of the log, which are read once for all who follow it. It is empty while nobody does.
type tail struct {
	wake     pg.Signal // there may be more, or somebody has begun to follow
	maxBytes int

	mu        sync.Mutex
	followers int
	isRunning bool
	isDrained bool
	start     int64 // events has what comes after this position; zero: nothing was read yet
	head      int64 // and is complete up to here
	events    []Event
	bytes     int
	grown     chan struct{} // closed when head grows, or nobody is to wait any more
}

func newTail(maxBytes int) *tail {
	return &tail{wake: pg.NewSignal(), maxBytes: maxBytes, grown: make(chan struct{})}
}

func (t *tail) setRunning(isRunning bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.isRunning = isRunning
	if !isRunning {
		t.clear()
	}
}

// isFed reports whether Run reads the log.
func (t *tail) isFed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isRunning || t.isDrained
}

// clear forgets what was read. The caller holds mu.
func (t *tail) clear() {
	t.start, t.head, t.events, t.bytes = 0, 0, nil, 0
}

func (t *tail) drain() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.isDrained {
		t.isDrained = true
		close(t.grown)
	}
}

func (t *tail) join() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.followers++; t.followers == 1 {
		t.wake.Send()
	}
}

func (t *tail) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.followers--; t.followers == 0 {
		t.clear()
	}
}

// end returns up to where the tail reaches, and whether anybody follows it.
func (t *tail) end() (head int64, isFollowed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.head, t.followers > 0
}

// begin makes the tail start after a position, unless it has started.
func (t *tail) begin(head int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.start == 0 && t.followers > 0 {
		t.start = head
		t.reach(head)
	}
}

// reach moves the head, and wakes those who wait for that. The caller holds mu.
func (t *tail) reach(head int64) {
	t.head = head
	if !t.isDrained {
		close(t.grown)
		t.grown = make(chan struct{})
	}
}

// add adds a page that was read after a position, and drops the oldest events that are too many.
func (t *tail) add(after int64, p part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.head != after || p.Next <= after { // everybody has left meanwhile
		return
	}
	t.events = append(t.events, p.Events...)
	for i := range p.Events {
		t.bytes += p.Events[i].size()
	}
	drop := 0
	for ; t.bytes > t.maxBytes && drop < len(t.events); drop++ {
		t.bytes -= t.events[drop].size()
		t.start = t.events[drop].Position
	}
	if drop > 0 { // readers may still have the others: they are copied, not moved
		t.events = slices.Clone(t.events[drop:])
	}
	t.reach(p.Next)
}

func (e *Event) size() int {
	return len(e.Event) + len(e.Meta) + len(e.Topic) + len(e.Key) + eventOverhead
}

// after returns up to limit events of the tail after a position, and up to where they are complete. It reports whether the tail reaches back so far.
func (t *tail) after(position int64, limit int) (p part, isThere bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.start == 0 || position < t.start {
		return part{}, false
	}
	i := sort.Search(len(t.events), func(i int) bool { return t.events[i].Position > position })
	events := t.events[i:]
	p = part{Page: Page{Events: events, Next: max(t.head, position), Head: t.head}, isLevel: true}
	if len(events) > limit {
		p.Events, p.isLevel = events[:limit:limit], false
		p.Next = p.Events[limit-1].Position
	}
	p.scanned = len(p.Events)
	return p, true
}

// wait waits until the tail reaches beyond a position, and reports whether it does before ctx ends, the time is over, or nobody is to wait.
func (t *tail) wait(ctx context.Context, position int64, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		t.mu.Lock()
		grown, reaches, isDrained := t.grown, t.head > position, t.isDrained
		t.mu.Unlock()
		if reaches || isDrained {
			return reaches && !isDrained
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		}
	}
}

// followLog reads on to the end of the log, while anybody follows it.
func (s *Service) followLog(ctx context.Context) error {
	for {
		head, isFollowed := s.tail.end()
		if !isFollowed {
			return nil
		}
		if head == 0 {
			_, end, err := s.Bounds(ctx)
			if err != nil {
				return err
			}
			s.tail.begin(end)
			continue
		}
		p, err := s.readPage(ctx, head, readEvents, nil)
		if err != nil {
			return err
		}
		s.tail.add(head, p)
		if p.isLevel {
			return nil
		}
	}
}

// A follower reads the log from a position on: from the tail where that reaches back so far, else from the database.
type follower struct {
	svc      *Service
	position int64
	topics   []string
	filter   *match.Filter
	isJoined bool
}

// follow returns a follower. Close it.
func (s *Service) follow(after int64, topics []string, filter *match.Filter) *follower {
	return &follower{svc: s, position: after, topics: topics, filter: filter}
}

func (f *follower) close() {
	if f.isJoined {
		f.svc.tail.leave()
	}
}

// next returns up to limit events of those that come next.
func (f *follower) next(ctx context.Context, limit int) (part, error) {
	p, isThere := f.svc.tail.after(f.position, readEvents)
	if !isThere {
		var err error
		size := readEvents
		if f.filter == nil || f.topics != nil {
			size = limit
		}
		if p, err = f.svc.readPage(ctx, f.position, size, f.topics); err != nil {
			return part{}, err
		}
	}
	matching := make([]Event, 0, min(limit, len(p.Events)))
	for i := range p.Events {
		e := &p.Events[i]
		if e.Subscription != "" || f.filter != nil && !f.filter.Matches(e.Topic, e.Event) {
			continue
		}
		if len(matching) == limit {
			p.Next, p.isLevel = p.Events[i-1].Position, false
			break
		}
		matching = append(matching, *e)
	}
	p.Events = matching
	f.position = p.Next
	return p, nil
}

// wait waits for more, and reports whether to look again.
func (f *follower) wait(ctx context.Context, limit time.Duration) bool {
	if limit <= 0 {
		return false
	}
	if !f.svc.tail.isFed() {
		return pg.Pause(ctx, min(limit, f.svc.cfg.PollInterval))
	}
	if !f.isJoined {
		f.isJoined = true
		f.svc.tail.join()
	}
	return f.svc.tail.wait(ctx, f.position, limit)
}
