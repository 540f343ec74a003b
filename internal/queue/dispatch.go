package queue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/rounds"
	"github.com/queued/queued/internal/watermark"
)

// dispatcher claims for everyone in this process who waits on one queue. It runs while there are waiters: each round takes those who ask for the
// same and makes one claim for them all, so that a thousand waiting claims cost no more than one. While it sleeps it costs nothing: pollIdle looks at
// the queues of all sleeping dispatchers together.
type dispatcher struct {
	svc   *Service
	queue string
	woken pg.Signal // something below has changed

	mu       sync.Mutex
	waiters  []*waiter // in order of arrival
	draining bool
	mustLook bool       // there may be something new that no round has looked for
	unserved []*waiter  // while it sleeps: one of each group that the latest round had nothing for; nil: it does not sleep
	due      time.Time  // while it sleeps: when pollIdle has seen that an event becomes claimable; zero: it has seen none
	offer    *operation // the claim that an insert or acks may take along; see waitOrOffer
}

// waiter is one Claim under way.
type waiter struct {
	params   ClaimParams
	deadline time.Time
	result   chan claimResult // of capacity one: answering never blocks
	acks     *operation       // to be committed with the first round that the waiter is in, before its claim; nil: none, or they are under way
	looked   span             // the latest commit with a claim for it

	dispatcher *dispatcher // that it has joined
}

type claimResult struct {
	events []Event
	err    error
	looked span
}

// sharesClaim reports whether one statement can claim for both.
func (w *waiter) sharesClaim(o *waiter) bool {
	a, b := &w.params, &o.params
	return a.MaxAttempts == b.MaxAttempts && a.InvisibleFor == b.InvisibleFor && a.Order == b.Order &&
		slices.Equal(a.Types, b.Types) && slices.Equal(a.ExcludeIDs, b.ExcludeIDs)
}

// join adds a waiter to its queue's dispatcher, starting that if need be. Close waits until the waiter's caller calls s.work.Done.
func (s *Service) join(w *waiter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return pg.ErrClosed
	}
	s.work.Add(1)
	d := s.dispatchers[w.params.Queue]
	if d == nil {
		d = &dispatcher{svc: s, queue: w.params.Queue, woken: pg.NewSignal(), draining: s.draining}
		s.dispatchers[d.queue] = d
		s.work.Go(d.run)
	}
	w.dispatcher = d
	d.mu.Lock()
	d.waiters = append(d.waiters, w)
	// Where others wait in vain for the same, and notifications arrive, there is nothing to look for.
	if w.acks != nil || w.params.Wait <= 0 || !slices.ContainsFunc(d.unserved, w.sharesClaim) || !s.isTold() {
		d.mustLook = true
	}
	d.mu.Unlock()
	d.woken.Send()
	return nil
}

// waitsInVain reports whether claims of a queue wait for something to become claimable, so that no round is due.
func (s *Service) waitsInVain(queue string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.dispatchers[queue]
	return d != nil && d.sleeps()
}

// sleeps reports whether no round is due.
func (d *dispatcher) sleeps() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unserved != nil
}

// isTold reports whether this process is told of everything that becomes claimable, so that nobody needs to look whether a notification was lost.
func (s *Service) isTold() bool { return s.pollsIdle.Load() && s.db.IsListening() }

// leave takes back a waiter whose caller has gone. Events claimed for it already are released.
func (d *dispatcher) leave(w *waiter) {
	d.mu.Lock()
	d.remove(w)
	d.mu.Unlock()
	d.woken.Send() // what it offers to take along is for one less
	select {
	case r := <-w.result:
		d.svc.releaseUndelivered(d.queue, LeasesOf(r.events))
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

func (d *dispatcher) drain() {
	d.mu.Lock()
	d.draining = true
	d.mu.Unlock()
	d.woken.Send()
}

// wake has the dispatcher look whether there is something new.
func (d *dispatcher) wake() {
	d.mu.Lock()
	d.mustLook = true
	d.mu.Unlock()
	d.woken.Send()
}

// wakeAt has the dispatcher look at this time, at the latest, if it sleeps.
func (d *dispatcher) wakeAt(due time.Time) {
	d.mu.Lock()
	isEarlier := d.unserved != nil && (d.due.IsZero() || due.Before(d.due))
	if isEarlier {
		d.due = due
	}
	d.mu.Unlock()
	if isEarlier {
		d.woken.Send()
	}
}

// run claims in rounds until there are no waiters.
func (d *dispatcher) run() {
	// Only a round that looked ahead knows how long it is safe to sleep; the first one of a claim, and the first one after it was woken, does
	// without, since mostly it finds something.
	lookAhead := false
	var waited time.Duration
	overdue := 0 // rounds in a row after which something was due that no claim got, as its rows are locked
	limiter := d.svc.claims.Limiter()
	for {
		delay := limiter.Delay(lookAhead && waited < rounds.MinWait)
		d.mu.Lock()
		d.mustLook = false // what that was about is covered by this round
		d.mu.Unlock()
		groups := d.groups()
		if len(groups) == 0 {
			if d.retire() {
				return
			}
			continue
		}
		sleep := pg.Jittered(d.svc.cfg.PollInterval)
		if d.svc.pollsIdle.Load() { // it looks as often
			sleep = longSleep
		}
		if lookAhead {
			if ahead := d.svc.lookAhead(d.queue); ahead > 0 {
				sleep, overdue = min(sleep, ahead), 0
			} else if overdue++; overdue > maxOverdue {
				sleep = min(sleep, shortPoll)
			} else {
				sleep = 0
			}
		}
		sleep = max(sleep, delay)
		unserved, more := d.serve(groups)
		switch {
		case more:
		case unserved == 0:
			lookAhead = false
		case !lookAhead:
			lookAhead, overdue = true, 0
		default:
			began := time.Now()
			lookAhead = !d.waitOrOffer(groups, sleep)
			waited = time.Since(began) - delay
		}
	}
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

// groups returns the waiters, in groups that one statement each can serve.
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

// serve makes one claim for each group, after the acks of its waiters, all in one transaction unless they are many, and hands out the events found. It returns how many waiters go on
// waiting, and whether a claim found as many as one statement may while some of its group wait: then there may be more at once.
func (d *dispatcher) serve(groups [][]*waiter) (unserved int, more bool) {
	claims := make([]*operation, len(groups))
	var acks []*operation
	for i, g := range groups {
		claims[i] = d.claimFor(g)
		for _, w := range g {
			if w.acks != nil {
				acks, w.acks = append(acks, w.acks), nil
			}
		}
	}
	err := d.svc.commits.Start(append(acks, claims...)...)
	if err != nil {
		for _, op := range acks {
			op.Refuse(err)
		}
	}
	for i, op := range claims {
		result := err
		if err == nil {
			result = op.Wait() // within the limits of a commit
		}
		waiting, full := d.handOut(groups[i], op, result)
		unserved += waiting
		more = more || full && waiting > 0
	}
	return unserved, more
}

// claimFor returns a claim for a whole group.
func (d *dispatcher) claimFor(group []*waiter) *operation {
	p := group[0].params
	p.Limit = 0
	named := false
	for _, w := range group {
		p.Limit += w.params.Limit
		named = named || w.params.Worker != ""
	}
	p.Limit = min(p.Limit, d.svc.claimSizes.get(d.queue))
	var workers []string
	if named {
		workers = make([]string, 0, p.Limit)
		for _, w := range group {
			workers = append(workers, slices.Repeat([]string{w.params.Worker}, min(w.params.Limit, p.Limit-len(workers)))...)
		}
	}
	return d.svc.newClaim(p, workers)
}

// handOut gives a group the events claimed for it, or the error. It returns how many go on waiting, and whether the claim found as much as it asked for.
func (d *dispatcher) handOut(group []*waiter, op *operation, err error) (waiting int, full bool) {
	var found []Event
	if err == nil {
		found, full, err = d.svc.finishClaim(op)
	}
	d.mu.Lock()
	now := time.Now()
	var unwanted []Event
	for _, w := range group {
		w.looked = op.commit
		n := min(len(found), w.params.Limit)
		if n == 0 && err == nil && (full || now.Before(w.deadline) && !d.draining) {
			waiting++
			continue
		}
		switch {
		case d.remove(w):
			w.result <- claimResult{found[:n:n], err, w.looked}
		case op.claim.workers == nil:
			continue // the next one gets them
		default: // they bear the name of one who has gone
			unwanted = append(unwanted, found[:n]...)
		}
		found = found[n:]
	}
	d.mu.Unlock()
	d.svc.releaseUndelivered(d.queue, LeasesOf(append(unwanted, found...)))
	return waiting, full
}

// waitOrOffer returns after at most limit, or when the dispatcher must look, or when a waiter's time is up; but while this process is told of everything,
// waiters whose time is up are answered here, others join, and the last one that leaves is soon followed by another one, all without a look at the
// database. served are the groups of the round before.
//
// Meanwhile inserts of this process may take the claim of the waiters along, and acks that may free slots of its queue: their events, and those that get the slots, are claimed in the same transaction, and handed out a
// whole commit sooner than by waking the dispatcher. waitOrOffer reports whether there may be something new.
func (d *dispatcher) waitOrOffer(served [][]*waiter, limit time.Duration) bool {
	end := time.Now().Add(limit)
	d.mu.Lock()
	d.due = time.Time{}
	for _, g := range served {
		d.unserved = append(d.unserved, g[0])
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.unserved = nil
		d.mu.Unlock()
	}()
	var left time.Time // when the last waiter had left; zero: there are some
	for {
		isTold := d.svc.isTold()
		if isTold {
			d.answerLate()
		}
		groups := d.groups()
		var offer *operation
		if len(groups) == 1 {
			offer = d.claimFor(groups[0])
			offer.claim.isOffer = true
		}
		grouped := 0
		for _, g := range groups {
			grouped += len(g)
		}
		d.mu.Lock()
		if d.draining || d.mustLook {
			d.mu.Unlock()
			return true
		}
		if len(d.waiters) != grouped { // a waiter has joined or left since
			d.mu.Unlock()
			continue
		}
		lookAt := end
		if !d.due.IsZero() && d.due.Before(lookAt) {
			lookAt = d.due
		}
		until := lookAt
		for _, w := range d.waiters {
			if w.deadline.Before(until) {
				until = w.deadline
			}
		}
		switch {
		case grouped > 0:
			left = time.Time{}
		case left.IsZero():
			left = time.Now()
		}
		if grouped == 0 {
			if !isTold || time.Since(left) >= lingerTime {
				d.mu.Unlock()
				return true
			}
			if leaves := left.Add(lingerTime); leaves.Before(until) {
				until = leaves
			}
		}
		d.offer = offer
		d.mu.Unlock()

		woken := false
		timer := time.NewTimer(time.Until(until))
		select {
		case <-d.woken:
			woken = true
		case <-timer.C:
		}
		timer.Stop()
		d.mu.Lock()
		isTaken := offer != nil && d.offer != offer
		d.offer = nil
		d.mu.Unlock()
		switch {
		case isTaken:
			if err := offer.Wait(); err != nil {
				return true // the next round has the error
			}
			if _, full := d.handOut(groups[0], offer, nil); full {
				return true
			}
		case !woken && (until.Equal(lookAt) || !d.svc.isTold()):
			return false
		}
	}
}

// answerLate answers the waiters whose time is up: there is nothing for them.
func (d *dispatcher) answerLate() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mustLook {
		return
	}
	now := time.Now()
	d.waiters = slices.DeleteFunc(d.waiters, func(w *waiter) bool {
		isLate := !now.Before(w.deadline)
		if isLate {
			w.result <- claimResult{looked: w.looked}
		}
		return isLate
	})
}

// noteHandovers notes in which queues a transaction has freed slots, and in which claims went along in vain.
func (s *Service) noteHandovers(freed map[string]*time.Time, offers map[string]*operation) {
	if len(freed)+len(offers) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for queue, op := range offers {
		if op.claim.count() == 0 {
			delete(s.handsOver, queue)
		}
	}
	for queue := range freed {
		if s.dispatchers[queue] != nil {
			s.handsOver[queue] = true
		}
	}
}

// takeOffer takes the claim that the dispatcher offers, if it is usable, and wakes it to wait for the result; nil: it offers none.
func (d *dispatcher) takeOffer(isUsable func(*claim) bool) *operation {
	d.mu.Lock()
	defer d.mu.Unlock()
	offer := d.offer
	if offer == nil || !isUsable(offer.claim) {
		return nil
	}
	d.offer = nil
	d.woken.Send()
	return offer
}

// takeOffers takes the claims of those who wait for events that operations insert, or for slots that their acks may free, to be committed with them. The queues of events that are acked are not known here: those are
// looked at in which acks have freed slots since a claim was taken along in vain.
func (s *Service) takeOffers(ops []*operation) (offers []*operation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.dispatchers) == 0 {
		return nil
	}
	hasAcks := false
	for _, op := range ops {
		hasAcks = hasAcks || len(op.acks) > 0
		for i := range op.inserts {
			e := &op.inserts[i]
			d := s.dispatchers[cmp.Or(e.Queue, Default)]
			if d == nil || e.Delay != 0 || e.VT != nil {
				continue
			}
			if offer := d.takeOffer(func(*claim) bool { return true }); offer != nil {
				offers = append(offers, offer)
			}
		}
	}
	if !hasAcks {
		return offers
	}
	for queue := range s.handsOver {
		d := s.dispatchers[queue]
		if d == nil {
			delete(s.handsOver, queue)
			continue
		}
		// What gets a slot may be behind the watermark, and a claim without watermarks takes long where these are in use.
		if offer := d.takeOffer(func(c *claim) bool { return c.start.Marks == nil }); offer != nil {
			offer.claim.start = watermark.Start{}
			offers = append(offers, offer)
		}
	}
	return offers
}

// waiting returns how many claims wait.
func (s *Service) waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.dispatchers {
		d.mu.Lock()
		n += len(d.waiters)
		d.mu.Unlock()
	}
	return n
}

const (
	// lookAheadTimeout bounds one look ahead.
	lookAheadTimeout = 10 * time.Second
	// shortPoll is the time between polls where looking ahead takes longer.
	shortPoll = 250 * time.Millisecond
	// maxOverdue is how many rounds follow each other at once while something is due that no claim gets: mostly it became due since the claim.
	maxOverdue = 2
	// longSleep is how long a dispatcher sleeps while pollIdle looks for it.
	longSleep = time.Hour
	// lingerTime is how long a dispatcher that sleeps stays when its last waiter has left: many clients claim again at once.
	lingerTime = time.Second
	// pollIdleTimeout bounds pollIdle; then the dispatchers poll.
	pollIdleTimeout = 5 * time.Second
)

// pollIdle looks at the queues of all sleeping dispatchers in one statement: whether something has become claimable of which there was no
// notification, such as an event whose lease has ended, and when the next event does. When it fails the dispatchers poll, each for itself, and their
// waiters get the error.
func (s *Service) pollIdle(ctx context.Context) error {
	asked := time.Now()
	slow, err := s.wakeWhenDue(ctx, s.idleQueues(), asked)
	s.pollsIdle.Store(err == nil)
	if err != nil {
		s.wakeAll()
		return wrap("looking for what becomes claimable", err)
	}
	for _, queue := range slow { // their dispatchers look for themselves, as often as is good for such a queue
		s.slow.mu.Lock()
		remember(&s.slow.byQueue, queue, &nextDue{again: asked})
		s.slow.mu.Unlock()
		s.wakeHere(map[string]bool{queue: true})
	}
	return nil
}

// idleQueues returns the queues of the dispatchers that sleep, without those where looking ahead takes long.
func (s *Service) idleQueues() (queues []string) {
	s.mu.Lock()
	for queue, d := range s.dispatchers {
		if d.sleeps() {
			queues = append(queues, queue)
		}
	}
	s.mu.Unlock()
	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	return slices.DeleteFunc(queues, func(queue string) bool { return s.slow.byQueue[queue] != nil })
}

// wakeWhenDue has the dispatchers of these queues look when their next event becomes claimable, and returns the queues where finding that out took
// longer than Config.LookAheadTime.
func (s *Service) wakeWhenDue(ctx context.Context, queues []string, asked time.Time) (slow []string, err error) {
	if len(queues) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, pollIdleTimeout)
	defer cancel()
	rows, _ := s.loops.Query(ctx, `select queue, due_in, took from agent_service.next_vts($1)`, queues)
	var (
		queue string
		dueIn time.Duration
		took  time.Duration
	)
	_, err = pgx.ForEachRow(rows, []any{&queue, &dueIn, &took}, func() error {
		if took > s.cfg.LookAheadTime {
			slow = append(slow, queue)
		}
		s.mu.Lock()
		d := s.dispatchers[queue]
		s.mu.Unlock()
		if d != nil {
			d.wakeAt(asked.Add(dueIn))
		}
		return nil
	})
	return slow, err
}

// slowNextDue is when the next events become claimable in the queues where finding out takes longer than Config.LookAheadTime, as it does beside an
// old snapshot: the entries of leases that have ended lie ahead.
type slowNextDue struct {
	mu      sync.Mutex
	byQueue map[string]*nextDue
}

type nextDue struct {
	due     time.Time // when the next event becomes claimable; zero: none was seen
	again   time.Time // not to look before
	looking bool
}

// lookAhead returns how long it is safe to sleep if a claim after it finds nothing: events that become claimable before that claim are claimed by
// it, and those that become so later are covered by the answer. In a queue where looking takes long, a goroutine does it beside the claims.
func (s *Service) lookAhead(queue string) time.Duration {
	s.slow.mu.Lock()
	n := s.slow.byQueue[queue]
	if n == nil {
		s.slow.mu.Unlock()
		return s.queryNextDue(queue)
	}
	defer s.slow.mu.Unlock()
	now := time.Now()
	if !n.looking && now.After(n.again) {
		n.looking = true
		s.work.Go(func() {
			if s.queryNextDue(queue) < shortPoll {
				s.wakeHere(map[string]bool{queue: true})
			}
		})
	}
	if n.due.After(now) {
		return min(shortPoll, n.due.Sub(now))
	}
	return shortPoll
}

// queryNextDue asks the database how long until the next event of a queue becomes claimable, and notes when that took long.
func (s *Service) queryNextDue(queue string) (sleep time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), lookAheadTimeout)
	defer cancel()
	start := time.Now()
	var (
		next     *time.Duration // nil: nothing will by itself
		scanTook time.Duration
	)
	err := s.loops.QueryRow(ctx, `select agent_service.next_vt($1), clock_timestamp() - statement_timestamp()`, queue).Scan(&next, &scanTook)
	took := time.Since(start)
	switch {
	case err != nil:
		sleep = shortPoll // the claim that follows has the error
	case next == nil:
		sleep = time.Hour
	default:
		sleep = max(0, *next-took) // when the answer was made is not known
	}

	s.slow.mu.Lock()
	defer s.slow.mu.Unlock()
	if scanTook <= s.cfg.LookAheadTime {
		delete(s.slow.byQueue, queue)
		return sleep
	}
	n := &nextDue{again: time.Now().Add(watermark.ScanShare * took)}
	if next != nil {
		n.due = start.Add(*next)
	}
	remember(&s.slow.byQueue, queue, n)
	return min(sleep, shortPoll) // pollIdle does not look at it
}
