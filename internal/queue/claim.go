package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// Claim takes up to p.Limit events, waiting up to p.Wait for the first; none is no error.
// When ctx ends during the call nothing stays claimed.
func (s *Service) Claim(ctx context.Context, p ClaimParams) ([]Event, error) {
	p.Queue = cmp.Or(p.Queue, Default)
	p.Limit = min(cmp.Or(p.Limit, 1), MaxBatch)
	p.MaxAttempts = cmp.Or(p.MaxAttempts, s.cfg.MaxAttempts)
	p.Wait = min(p.Wait, MaxWait)
	p.Order = cmp.Or(p.Order, FIFO)
	p.Types = slices.Compact(slices.Sorted(slices.Values(p.Types))) // so that equal ones are seen to be equal

	w := newWaiter(p)
	d, err := s.join(w) //nolint:contextcheck // the dispatcher serves many callers, and outlives each of them
	if err != nil {
		return nil, fmt.Errorf("claiming events: %w", err)
	}
	defer s.work.Done()
	select {
	case r := <-w.result:
		return r.events, r.err
	case <-ctx.Done():
		d.leave(w) //nolint:contextcheck // this context has ended; what was claimed for it must be released all the same
		return nil, wrap("claiming events", ctx.Err())
	}
}

// newClaim returns a claim that several callers may share.
func newClaim(s *Service, p ClaimParams) *part {
	return &part{claim: &p, from: s.marks.begin(&p), done: make(chan error, 1)}
}

// settle returns what a claim found that was flushed, and whether that was as much as it asked for: then there may be more to
// claim at once. It returns fewer events than were claimed when their payloads would be more than maxFlushBytes.
func (s *Service) settle(p *part) (events []Event, full bool) {
	queue, n := p.claim.Queue, len(p.claimed)+len(p.surplus)
	if n == 0 {
		return nil, false
	}
	if p.claim.Order == FIFO && len(p.claim.ExcludeIDs) == 0 {
		s.marks.advance(p.claim, p.upTo)
	}
	full = n == p.claim.Limit
	if full {
		s.fits.learn(queue, len(p.claimed), len(p.surplus) > 0)
	}
	if len(p.surplus) > 0 {
		if err := s.Release(context.Background(), p.surplus); err != nil {
			s.logUnreleased(err, queue, len(p.surplus))
		}
	}
	return p.claimed, full
}

// logUnreleased says that claims nobody got could not be undone.
func (s *Service) logUnreleased(err error, queue string, events int) {
	s.cfg.Logger.Error().Err(err).Str("queue", queue).Int("events", events).
		Msg("claims could not be released: they stay leased until they run out")
}

// nextVT returns how long until something of the queue becomes claimable that is not so yet (nil: nothing will by itself), and
// how long the database looked for it.
func (s *Service) nextVT(ctx context.Context, queue string) (next *time.Duration, took time.Duration, err error) {
	err = s.loops.QueryRow(ctx, `select agent.next_vt($1), clock_timestamp() - statement_timestamp()`, queue).Scan(&next, &took)
	return next, took, wrap("looking ahead", err)
}

// receiptOf is agent.receipt of an event that was just claimed.
func receiptOf(e *Event) string {
	b := make([]byte, 0, 40)
	b = strconv.AppendInt(b, e.ID, 10)
	b = strconv.AppendInt(append(b, '.'), int64(e.Attempts), 10)
	b = strconv.AppendInt(append(b, '.'), e.Claimed[len(e.Claimed)-1].UnixMicro(), 10)
	return string(b)
}

// releaseTimeout bounds a release, which nobody waits for and which outlives its caller.
const releaseTimeout = 10 * time.Second

// Release undoes claims that never reached their client: the events are claimable again at once
// and the attempts do not count. Leases that were lost meanwhile are passed over. It outlives ctx's
// cancellation.
func (s *Service) Release(ctx context.Context, leases []Lease) error {
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	ids, receipts := columns(leases)
	touched := make(map[string]bool)
	err := s.short(ctx, func(pool *pg.Pool) error {
		var l lane
		var vt time.Time
		rows, _ := pool.Query(ctx, `select queue, coalesce(type, ''), priority, vt from agent.release_events($1, $2)`, ids, receipts)
		_, err := pgx.ForEachRow(rows, []any{&l.queue, &l.typ, &l.priority, &vt}, func() error {
			s.counters.add(l.queue, func(c *Counters) { c.Released++ })
			s.marks.lower(l, vt)
			touched[l.queue] = true
			return nil
		})
		return err
	})
	s.wake(touched)
	return wrap("releasing claims", err)
}

// columns turns leases into the parallel arrays the SQL functions take; no receipt is null.
func columns(leases []Lease) (ids []int64, receipts []*string) {
	ids, receipts = make([]int64, len(leases)), make([]*string, len(leases))
	for i := range leases {
		ids[i] = leases[i].ID
		if leases[i].Receipt != "" {
			receipts[i] = &leases[i].Receipt
		}
	}
	return ids, receipts
}
