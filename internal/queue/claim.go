package queue

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Claim takes up to p.Limit events, waiting up to p.Wait for the first; none is no error.
// When ctx ends during the call nothing stays claimed.
func (s *Service) Claim(ctx context.Context, p ClaimParams) ([]Event, error) {
	p.Queue = cmp.Or(p.Queue, Default)
	p.Limit = min(cmp.Or(p.Limit, 1), MaxBatch)
	p.MaxAttempts = cmp.Or(p.MaxAttempts, s.cfg.MaxAttempts)
	p.InvisibleFor = cmp.Or(p.InvisibleFor, DefaultInvisibleFor)
	p.Wait = min(p.Wait, MaxWait)
	p.Order = cmp.Or(p.Order, FIFO)

	w := newWaiter(p)
	d := s.join(w) //nolint:contextcheck // the dispatcher serves many callers, and outlives each of them
	select {
	case r := <-w.result:
		return r.events, r.err
	case <-ctx.Done():
		d.leave(w) //nolint:contextcheck // this context has ended; what was claimed for it must be released all the same
		return nil, wrap("claiming events", ctx.Err())
	}
}

// claim makes one claim that several callers may share, and reports whether there was as much as it asked for: then
// there may be more to claim at once. It returns fewer events than that when their payloads would be more than maxFlushBytes.
func (s *Service) claim(ctx context.Context, p ClaimParams) (events []Event, full bool, err error) {
	key := markKey{p.Queue, p.MaxAttempts}
	pt := &part{claim: &p, from: s.marks.get(key)}
	if err := s.flusher.do(ctx, pt); err != nil {
		return nil, false, err
	}
	if p.Order == FIFO && len(pt.claimed) > 0 {
		s.marks.advance(key, pt.priorVT)
	}
	full = len(pt.claimed)+len(pt.surplus) == p.Limit
	if full {
		s.fits.learn(p.Queue, len(pt.claimed), len(pt.surplus) > 0)
	}
	if len(pt.surplus) > 0 {
		if err := s.Release(ctx, pt.surplus); err != nil {
			s.logUnreleased(err, p.Queue, len(pt.surplus))
		}
	}
	return pt.claimed, full, nil
}

// fits remembers how many events of the queues with large payloads one claim may ask for.
type fits struct {
	mu      sync.Mutex
	byQueue map[string]int // less than MaxBatch
}

// get returns the most events of a queue that one claim may ask for.
func (f *fits) get(queue string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.byQueue[queue], MaxBatch)
}

// learn notes that n events were as many as fit, or that they all fitted.
func (f *fits) learn(queue string, n int, overflowed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch limit, limited := f.byQueue[queue]; {
	case overflowed:
		if f.byQueue == nil {
			f.byQueue = make(map[string]int)
		}
		f.byQueue[queue] = n
	case !limited:
	case 2*n >= MaxBatch:
		delete(f.byQueue, queue)
	default:
		f.byQueue[queue] = max(limit, 2*n)
	}
}

// logUnreleased says that claims nobody got could not be undone.
func (s *Service) logUnreleased(err error, queue string, events int) {
	s.cfg.Logger.Error().Err(err).Str("queue", queue).Int("events", events).
		Msg("claims could not be released: they stay leased until they run out")
}

// nextVT returns how long until something of the queue becomes claimable that is not so yet; nil: nothing will by itself.
func (s *Service) nextVT(ctx context.Context, queue string) (next *time.Duration, err error) {
	err = s.pool.QueryRow(ctx, `select agent.next_vt($1)`, queue).Scan(&next)
	return next, wrap("looking ahead", err)
}

// receiptOf is agent.receipt of an event that was just claimed.
func receiptOf(e Event) string {
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
	rows, _ := s.pool.Query(ctx, `select queue, vt from agent.release_events($1, $2)`, ids, receipts)
	touched := make(map[string]bool)
	var queue string
	var vt time.Time
	_, err := pgx.ForEachRow(rows, []any{&queue, &vt}, func() error {
		s.counters.add(queue, func(c *Counters) { c.Released++ })
		s.marks.lower(queue, vt)
		touched[queue] = true
		return nil
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
