package queue

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/queued/queued/internal/loop"
	"github.com/queued/queued/internal/pg"
)

// dispatcher claims for everyone in this process who waits on one queue. It runs while
// there are waiters: each round takes those who ask for the same and makes one claim for
// them all, so that a thousand waiting claims cost no more polling than one.
type dispatcher struct {
	svc   *Service
	queue string
	woken chan struct{} // holds a token when there may be something new

	mu       sync.Mutex
	waiters  []*waiter // in order of arrival
	draining bool
	offer    *part // the claim that an insert may take along; see sleep
}

// waiter is one Claim under way.
type waiter struct {
	params   ClaimParams
	deadline time.Time
	result   chan claimResult // of capacity one: answering never blocks
}

type claimResult struct {
	events []Event
	err    error
}

func newWaiter(p ClaimParams) *waiter {
	return &waiter{params: p, deadline: time.Now().Add(p.Wait), result: make(chan claimResult, 1)}
}

// sharesClaim reports whether one statement can claim for both.
func (w *waiter) sharesClaim(o *waiter) bool {
	a, b := w.params, o.params
	return a.MaxAttempts == b.MaxAttempts && a.InvisibleFor == b.InvisibleFor && a.Order == b.Order &&
		slices.Equal(a.Types, b.Types) && slices.Equal(a.ExcludeIDs, b.ExcludeIDs)
}

// join adds a waiter to its queue's dispatcher, starting that if need be. Close waits until the waiter's caller
// calls s.work.Done.
func (s *Service) join(w *waiter) (*dispatcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, pg.ErrClosed
	}
	s.work.Add(1)
	d := s.dispatchers[w.params.Queue]
	if d == nil {
		d = &dispatcher{svc: s, queue: w.params.Queue, woken: make(chan struct{}, 1), draining: s.draining}
		s.dispatchers[d.queue] = d
		s.work.Add(1)
		go d.run()
	}
	d.mu.Lock()
	d.waiters = append(d.waiters, w)
	d.mu.Unlock()
	d.wake()
	return d, nil
}

// leave takes back a waiter whose caller has gone. What was claimed for it already is released.
func (d *dispatcher) leave(w *waiter) {
	d.mu.Lock()
	d.remove(w)
	d.mu.Unlock()
	select {
	case r := <-w.result:
		d.release(r.events)
	default:
	}
}

// remove takes w off the list and reports whether it was there. The caller holds mu.
func (d *dispatcher) remove(w *waiter) bool {
	i := slices.Index(d.waiters, w)
	if i >= 0 {
		d.waiters = slices.Delete(d.waiters, i, i+1)
	}
	return i >= 0
}

func (d *dispatcher) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

func (d *dispatcher) drain() {
	d.mu.Lock()
	d.draining = true
	d.mu.Unlock()
	d.wake()
}

// run makes rounds until nobody waits any more.
func (d *dispatcher) run() {
	defer d.svc.work.Done()
	// Only a round that looked ahead knows how long it is safe to sleep; the first one of a claim, and the first one
	// after it was woken, does without, since mostly it finds something.
	lookAhead := false
	for {
		select {
		case <-d.woken: // what that was about is covered by this round
		default:
		}
		groups := d.groups()
		if len(groups) == 0 {
			if d.retire() {
				return
			}
			continue
		}
		sleep := loop.Jittered(d.svc.cfg.PollInterval)
		if lookAhead {
			sleep = min(sleep, d.svc.lookAhead(d.queue))
		}
		unserved, more := d.serve(groups)
		switch {
		case more:
		case unserved == 0:
			lookAhead = false
		case !lookAhead:
			lookAhead = true
		default:
			lookAhead = !d.sleep(sleep)
		}
	}
}

// groups parts the waiters into those that one statement can serve.
func (d *dispatcher) groups() (groups [][]*waiter) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.waiters {
		i := slices.IndexFunc(groups, func(g []*waiter) bool { return g[0].sharesClaim(w) })
		if i < 0 {
			groups = append(groups, []*waiter{w})
		} else {
			groups[i] = append(groups[i], w)
		}
	}
	return groups
}

// serve makes one claim for each group, all in one transaction unless they are many, and hands out what they found. It returns how many waiters go on
// waiting, and whether a claim found as many as one statement may while some of its group wait: then there may be more at once.
func (d *dispatcher) serve(groups [][]*waiter) (unserved int, more bool) {
	parts := make([]*part, len(groups))
	for i, g := range groups {
		parts[i] = d.claimFor(g)
	}
	err := d.svc.flusher.add(parts...)
	for i, p := range parts {
		result := err
		if err == nil {
			result = <-p.done // within the limits of a flush
		}
		waiting, full := d.handOut(groups[i], p, result)
		unserved += waiting
		more = more || full && waiting > 0
	}
	return unserved, more
}

// claimFor returns a claim for a whole group.
func (d *dispatcher) claimFor(group []*waiter) *part {
	p := group[0].params
	p.Limit = 0
	named := false
	for _, w := range group {
		p.Limit += w.params.Limit
		named = named || w.params.Worker != ""
	}
	p.Limit = min(p.Limit, d.svc.fits.get(d.queue))
	claim := newClaim(d.svc, p)
	if named {
		claim.workers = make([]string, 0, p.Limit)
		for _, w := range group {
			for range min(w.params.Limit, p.Limit-len(claim.workers)) {
				claim.workers = append(claim.workers, w.params.Worker)
			}
		}
	}
	return claim
}

// handOut gives a group what was claimed for it.
func (d *dispatcher) handOut(group []*waiter, p *part, err error) (waiting int, full bool) {
	var found []Event
	if err == nil {
		found, full = d.svc.settle(p)
	}
	d.mu.Lock()
	now := time.Now()
	var unwanted []Event
	for _, w := range group {
		n := min(len(found), w.params.Limit)
		if n == 0 && err == nil && (full || now.Before(w.deadline) && !d.draining) {
			waiting++
			continue
		}
		switch {
		case d.remove(w):
			w.result <- claimResult{events: found[:n:n], err: err}
		case p.workers == nil:
			continue // the next one takes them
		default: // they bear the name of one who has gone
			unwanted = append(unwanted, found[:n]...)
		}
		found = found[n:]
	}
	d.mu.Unlock()
	d.release(append(unwanted, found...))
	return waiting, full
}

// release gives back events that nobody is there to take.
func (d *dispatcher) release(events []Event) {
	if len(events) == 0 {
		return
	}
	leases := make([]Lease, len(events))
	for i, e := range events {
		leases[i] = Lease{ID: e.ID, Receipt: e.Receipt}
	}
	if err := d.svc.Release(context.Background(), leases); err != nil {
		d.svc.logUnreleased(err, d.queue, len(events))
	}
}

// sleep returns after at most limit, or when the dispatcher is woken, or when a waiter's time is up. Meanwhile inserts
// of this process may take the claim of the waiters along: what they bring is claimed in the same transaction, and
// handed out a whole commit sooner than by waking the dispatcher. It reports whether anything happened meanwhile.
func (d *dispatcher) sleep(limit time.Duration) bool {
	until := time.Now().Add(limit)
	for {
		groups := d.groups()
		if len(groups) == 0 {
			return true
		}
		var offer *part
		if len(groups) == 1 {
			offer = d.claimFor(groups[0])
		}
		d.mu.Lock()
		for _, w := range d.waiters {
			if w.deadline.Before(until) {
				until = w.deadline
			}
		}
		if d.draining || len(d.waiters) != total(groups) { // or somebody has come since
			d.mu.Unlock()
			return true
		}
		d.offer = offer
		d.mu.Unlock()

		woken := d.wait(until)
		d.mu.Lock()
		taken := offer != nil && d.offer != offer
		d.offer = nil
		d.mu.Unlock()
		if !taken {
			return woken
		}
		if err := <-offer.done; err != nil {
			return true // the next round shows what is wrong
		}
		if waiting, full := d.handOut(groups[0], offer, nil); waiting == 0 || full || !woken {
			return true
		}
	}
}

// wait returns at a time, or when the dispatcher is woken: then it reports true.
func (d *dispatcher) wait(until time.Time) bool {
	timer := time.NewTimer(max(time.Until(until), 0))
	defer timer.Stop()
	select {
	case <-d.woken:
		return true
	case <-timer.C:
		return false
	}
}

// total is how many waiters there are in groups.
func total(groups [][]*waiter) (n int) {
	for _, g := range groups {
		n += len(g)
	}
	return n
}

// takeOffer returns the claim of those who wait on a queue, for a flush that brings something, or nil.
func (s *Service) takeOffer(queue string) *part {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dispatchers[queue]
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	offer := d.offer
	d.offer = nil
	if offer != nil {
		offer.offered = true
		d.wake()
	}
	return offer
}

// retire takes the dispatcher out of service, unless a waiter has come meanwhile.
func (d *dispatcher) retire() bool {
	d.svc.mu.Lock()
	defer d.svc.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.waiters) > 0 {
		return false
	}
	delete(d.svc.dispatchers, d.queue)
	return true
}
