package queue

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/watermark"
)

// releaseTimeout bounds a release. It runs after its caller has gone.
const releaseTimeout = 10 * time.Second

// Nack makes a claimed event wait again, or moves it to history where p says so, or it was the last attempt. It fails with ErrNotFound, ErrLeaseLost or
// ErrLocked; repeated with the same receipt, it answers as it did.
func (s *Service) Nack(ctx context.Context, p NackParams) (NackResult, error) {
	var (
		vt       *time.Time
		outcome  *Outcome
		queue    string
		repeated bool
	)
	err := s.row(ctx, `
		select vt, outcome, queue, repeated
		from agent.nack_event($1, nullif($2, ''), $3, nullif($4, ''), $5, _notify => false, _retryable => $6, _queues => $7)`,
		[]any{p.ID, p.Receipt, p.Delay, p.Error, p.Final, p.Retryable, p.Queues}, &vt, &outcome, &queue, &repeated)
	if err != nil {
		return NackResult{}, wrap("nacking an event", err)
	}
	if outcome != nil {
		if !repeated {
			s.counters.add(queue, Counters{Failed: 1})
		}
		return NackResult{Outcome: *outcome}, nil
	}
	if !repeated {
		s.counters.add(queue, Counters{Nacked: 1})
	}
	s.wake(map[string]bool{queue: true})
	return NackResult{VT: *vt}, nil
}

// Extend makes the lease last until invisibleFor from now (zero: as the queue's policy says, or DefaultInvisibleFor) and returns
// that time. It fails with ErrNotFound, ErrLeaseLost or ErrLocked.
func (s *Service) Extend(ctx context.Context, l Lease, invisibleFor time.Duration) (time.Time, error) {
	var vt time.Time
	err := s.row(ctx, `select agent.extend_event($1, nullif($2, ''), $3, $4)`, []any{l.ID, l.Receipt, pg.OrNull(invisibleFor), l.Queues}, &vt)
	return vt, wrap("extending a lease", err)
}

// Release undoes claims that never reached their client: the events are claimable again at once and the attempts do not count. Leases that were
// lost meanwhile are passed over. It outlives ctx's cancellation. A release that no standby confirmed has been made: were it lost with the
// primary, the leases would run out by themselves.
func (s *Service) Release(ctx context.Context, leases []Lease) error {
	if len(leases) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	ids, receipts := make([]int64, len(leases)), make([]*string, len(leases))
	for i, l := range leases {
		ids[i], receipts[i] = l.ID, pg.OrNull(l.Receipt)
	}
	readyQueues := make(map[string]bool)
	err := s.short(ctx, func(pool *pg.Pool) error {
		rows, _ := pool.Query(ctx, `select queue, coalesce(type, ''), priority, vt from agent.release_events($1, $2)`, ids, receipts)
		var lane watermark.Lane
		var vt time.Time
		_, err := pgx.ForEachRow(rows, []any{&lane.Queue, &lane.Type, &lane.Priority, &vt}, func() error {
			s.counters.add(lane.Queue, Counters{Released: 1})
			s.watermarks.Lower(time.Now(), lane, vt)
			readyQueues[lane.Queue] = true
			return nil
		})
		return err
	})
	s.wake(readyQueues)
	if errors.Is(err, pg.ErrUnconfirmed) {
		return nil
	}
	return wrap("releasing claims", err)
}
