package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/groupcommit"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/timelimit"
	"github.com/queued/queued/internal/watermark"
)

// Claim claims up to p.Limit events, waiting up to p.Wait for the first; none is no error. When ctx ends during the call nothing stays claimed.
func (s *Service) Claim(ctx context.Context, p ClaimParams) ([]Event, error) {
	_, events, err := s.AckAndClaim(ctx, nil, p)
	return events, err
}

// AckAndClaim acks each of acks, as Ack does, and then claims, as Claim does: what the acks make claimable, too. The acks are committed before it waits, and in the transaction of the claim where there is
// something to look for. It fails as both do. When it fails nothing stays claimed, and the acks can be repeated.
func (s *Service) AckAndClaim(ctx context.Context, acks []Ack, p ClaimParams) (acked []AckResult, events []Event, err error) {
	p.Queue = cmp.Or(p.Queue, Default)
	p.Limit = min(cmp.Or(p.Limit, 1), MaxBatch)
	p.MaxAttempts = cmp.Or(p.MaxAttempts, s.cfg.MaxAttempts)
	p.Order = cmp.Or(p.Order, FIFO)
	if len(p.Types) > 0 {
		p.Types = slices.Compact(slices.Sorted(slices.Values(p.Types))) // so that equal ones are seen to be equal
	}

	w := &waiter{params: p, deadline: time.Now().Add(p.Wait), result: make(chan claimResult, 1)}
	switch {
	case len(acks) == 0:
	case s.waitsInVain(p.Queue): // the claim joins the others, and the acks take these along if they free anything
		if acked, err = s.Ack(ctx, acks); err != nil {
			return nil, nil, err
		}
	default:
		w.acks = newAcks(acks)
		w.acks.waiter = w
		if err := s.commits.Admit(w.acks); err != nil {
			return nil, nil, err
		}
	}
	along := w.acks // the dispatcher takes it away
	if err := s.join(w); err != nil {
		return nil, nil, fmt.Errorf("claiming events: %w", err)
	}
	defer s.work.Done()
	if along != nil {
		if err := s.written(ctx, along, s.commits.Await(ctx, along)); err != nil {
			w.dispatcher.leave(w) //nolint:contextcheck // events claimed for it must be released, whether this context has ended or not
			return nil, nil, err
		}
		acked = along.acked
		if along.isApart { // it has left, as its claim did not wait for them
			events, err = s.claimUntil(ctx, p, w.deadline)
			return acked, events, err
		}
	}
	r, err := timelimit.Receive(ctx, w.result)
	if err != nil {
		w.dispatcher.leave(w) //nolint:contextcheck // as above
		return nil, nil, wrap("claiming events", err)
	}
	if along != nil && r.err == nil && len(r.events) == 0 && !r.looked.covers(along.commit) { // they were too many for one commit with the claim
		events, err = s.claimUntil(ctx, p, w.deadline)
		return acked, events, err
	}
	return acked, r.events, r.err
}

// claimUntil claims, and waits until deadline.
func (s *Service) claimUntil(ctx context.Context, p ClaimParams, deadline time.Time) ([]Event, error) {
	p.Wait = max(0, time.Until(deadline))
	return s.Claim(ctx, p)
}

// waitsFor is how long a process may go on with the wait of a policy that was changed without it being told.
const waitsFor = 5 * time.Second

// policyWaits remembers for how long claims on queues wait that do not say.
type policyWaits struct {
	lookUps pg.LookUps[string, map[string]time.Duration]

	mu      sync.Mutex
	byQueue map[string]policyWait
}

type policyWait struct {
	wait time.Duration
	at   time.Time // when it was asked for
}

func (s *Service) openPolicyWaits() {
	type row struct {
		Name string
		Wait time.Duration
	}
	s.waits.lookUps = pg.LookUps[string, map[string]time.Duration]{Most: 1, Timeout: lookUpTimeout, Find: func(ctx context.Context, queues []string) (map[string]time.Duration, error) {
		rows, err := shortCall(ctx, &s.pools, pg.Collect[row], `select name, wait from agent_service.queue_waits($1)`, queues)
		found := make(map[string]time.Duration, len(rows))
		for _, r := range rows {
			found[r.Name] = r.Wait
		}
		return found, err
	}}
}

// KnownPolicyWait is PolicyWait for a queue that this process has looked up lately; it reports false for others.
func (s *Service) KnownPolicyWait(queue string) (wait time.Duration, isKnown bool) {
	w := &s.waits
	w.mu.Lock()
	defer w.mu.Unlock()
	known, isKnown := w.byQueue[queue]
	return known.wait, isKnown && time.Since(known.at) < waitsFor
}

// PolicyWait returns for how long claims on a queue wait that do not say: not at all, unless its policy does. A change of the policy by another process may be
// up to 5 seconds late if notifications are lost. It fails with ErrUnavailable.
func (s *Service) PolicyWait(ctx context.Context, queue string) (time.Duration, error) {
	if wait, isKnown := s.KnownPolicyWait(queue); isKnown {
		return wait, nil
	}
	w, asked := &s.waits, time.Now()
	found, err := w.lookUps.Get(ctx, queue)
	if err != nil {
		return 0, wrap("looking up for how long claims wait", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	remember(&w.byQueue, queue, policyWait{found[queue], asked})
	return found[queue], nil
}

// forget forgets the wait of a queue whose policy was changed.
func (w *policyWaits) forget(queue string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byQueue, queue)
}

// claim is one statement's claim for the waiters of a queue.
type claim struct {
	ClaimParams
	workers []string        // whom each event is claimed for, in order; nil: not said
	tokens  []token         // of the receipts, by agent_service.claim_from_watermarks' slot
	start   watermark.Start // where the scan begins
	isOffer bool            // it goes along with inserts or acks
	found
}

// found is the result of a claim.
type found struct {
	handedOver int // inserts of the same transaction that go to the claim, instead of a scan
	events     []Event
	surplus    []Lease                      // claimed as well, but too large to hold
	lastVT     map[watermark.Lane]time.Time // the vt that the last event claimed from each lane had before
}

// count returns how many events the claim has a lease on.
func (f *found) count() int { return len(f.events) + len(f.surplus) }

// isLast reports whether it has taken all that could be claimed, as far as that shows.
func (c *claim) isLast() bool {
	return c.handedOver == 0 && c.count() > 0 && c.count() < c.Limit && len(c.Types) == 0 && len(c.ExcludeIDs) == 0
}

// newClaim returns the operation of a claim, which several callers may share.
func (s *Service) newClaim(p ClaimParams, workers []string) *operation {
	c := &claim{ClaimParams: p, workers: workers}
	c.start = s.watermarks.Begin(time.Now(), c.sharedMarks())
	return &operation{Ticket: groupcommit.NewTicket(1, itemOverhead), claim: c}
}

func (c *claim) sharedMarks() watermark.Claims {
	return watermark.Claims{Queue: c.Queue, Types: c.Types, MaxAttempts: c.MaxAttempts}
}

// noteThrough notes the vt that a claimed event had before.
func (c *claim) noteThrough(e *Event, vt time.Time) {
	if c.lastVT == nil {
		c.lastVT = make(map[watermark.Lane]time.Time, 1)
	}
	lane := watermark.Lane{Queue: e.Queue, Priority: e.Priority}
	if len(c.Types) > 0 {
		lane.Type = e.Type
	}
	c.lastVT[lane] = vt
}

// finishClaim returns the events of a claim that was committed, and whether they are as many as it asked for: then there may be more to claim at
// once. It returns fewer events than were claimed when their payloads would be more than maxCommitBytes, and none when some cannot be read or their
// commit was not confirmed: the rest is released.
func (s *Service) finishClaim(op *operation) (events []Event, full bool, err error) {
	c := op.claim
	if op.err != nil {
		released := slices.DeleteFunc(append(LeasesOf(c.events), c.surplus...), func(l Lease) bool { return l.Receipt == "" }) // it could not be read
		if len(released) > 0 || !errors.Is(op.err, pg.ErrUnconfirmed) {
			s.cfg.Logger.Error().Func(failure.Of(op.err)).Int("released", len(released)).Msg("what a transaction has committed cannot be answered")
		}
		s.work.Go(func() { s.releaseUndelivered(c.Queue, released) })
		return nil, false, op.err
	}
	if c.count() == 0 {
		return nil, false, nil
	}
	if c.Order == FIFO && len(c.ExcludeIDs) == 0 {
		s.watermarks.NoteClaimedThrough(time.Now(), c.sharedMarks(), c.lastVT)
	}
	full = c.count() == c.Limit
	if full {
		s.claimSizes.learn(c.Queue, len(c.events), len(c.surplus) > 0)
	}
	s.releaseUndelivered(c.Queue, c.surplus)
	return c.events, full, nil
}

// LeasesOf returns the leases of claimed events.
func LeasesOf(events []Event) []Lease {
	leases := make([]Lease, len(events))
	for i := range events {
		leases[i] = Lease{ID: events[i].ID, Receipt: events[i].Receipt}
	}
	return leases
}

// releaseUndelivered releases claims that no caller gets.
func (s *Service) releaseUndelivered(queue string, leases []Lease) {
	if err := s.Release(context.Background(), leases); err != nil {
		s.cfg.Logger.Error().Func(failure.Of(err)).Str("queue", queue).Int("events", len(leases)).
			Msg("claims could not be released: they stay leased until they run out")
	}
}

// claimSizeLimits remembers how many events one claim may ask for of the queues with large payloads, so that its events stay within
// maxCommitBytes.
type claimSizeLimits struct {
	mu      sync.Mutex
	byQueue map[string]int // less than MaxBatch
}

// get returns the most events of a queue that one claim may ask for.
func (l *claimSizeLimits) get(queue string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.byQueue[queue], MaxBatch)
}

// learn notes that n events were as many as one claim may return, or that they were not too many.
func (l *claimSizeLimits) learn(queue string, n int, tooMany bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch limit, limited := l.byQueue[queue]; {
	case tooMany:
		remember(&l.byQueue, queue, n)
	case !limited:
	case 2*n >= MaxBatch:
		delete(l.byQueue, queue)
	default:
		l.byQueue[queue] = max(limit, 2*n)
	}
}

// maxRemembered is how many queues something is remembered of that is soon learnt anew.
const maxRemembered = 1000

// remember puts a queue's value into m, and takes others out while there are more than maxRemembered.
func remember[V any](m *map[string]V, queue string, v V) {
	if *m == nil {
		*m = make(map[string]V)
	}
	(*m)[queue] = v
	for other := range *m {
		if len(*m) <= maxRemembered {
			return
		}
		if other != queue {
			delete(*m, other)
		}
	}
}
