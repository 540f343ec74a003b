package queue

import (
	"cmp"
	"context"
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

// claimed is what one claim statement found: events in claim order and, when asked for, how
// long until another event becomes claimable by itself (nil: none will).
type claimed struct {
	events []Event
	next   *time.Duration
}

// claim runs one claim statement. With lookAhead it first asks for the next vt, in the same
// round trip: what becomes claimable after that question but before the claim is claimed, and what becomes
// claimable later is covered by the answer, so nothing falls between the two.
func (s *Service) claim(ctx context.Context, p ClaimParams, lookAhead bool) (claimed, error) {
	var found claimed
	batch := new(pgx.Batch)
	if lookAhead {
		batch.Queue(`select agent.next_vt($1)`, p.Queue).QueryRow(func(row pgx.Row) error {
			return row.Scan(&found.next)
		})
	}
	batch.Queue(`
		select e.id, e.queue, e.event_ts, e.enqueued_at, e.attempts, e.vt, e.claimed, e.event, e.last_error, e.requeued_from,
			agent.receipt(e)
		from agent.claim_events($1, $2, $3, $4, $5) e`,
		p.Queue, p.Limit, p.MaxAttempts, p.InvisibleFor, string(p.Order)).Query(func(rows pgx.Rows) error {
		var err error
		found.events, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Event, err error) {
			err = row.Scan(&e.ID, &e.Queue, &e.EventTS, &e.EnqueuedAt, &e.Attempts, &e.VT, &e.Claimed, &e.Payload, &e.LastError,
				&e.RequeuedFrom, &e.Receipt)
			return e, err
		})
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return claimed{}, wrap("claiming events", err)
	}
	for range found.events {
		s.counters.add(p.Queue, func(c *Counters) { c.Claimed++ })
	}
	return found, nil
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
	rows, _ := s.pool.Query(ctx, `select queue from agent.release_events($1, $2)`, ids, receipts)
	queues, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return wrap("releasing claims", err)
	}
	touched := make(map[string]bool)
	for _, q := range queues {
		s.counters.add(q, func(c *Counters) { c.Released++ })
		touched[q] = true
	}
	s.wake(touched)
	return nil
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
