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
		vt          *time.Time
		outcome     *Outcome
		queue       string
		repeated    bool
		attempts    int
		most        *int
		deadLetters *string // the queue that a dead letter went to
		took        *time.Duration
		trace       EventTrace
	)
	if p.WantsTrace {
		trace = s.eventTrace(ctx, p.ID)
	}
	err := s.row(ctx, `
		select vt, outcome, queue, repeated, attempts, max_attempts, dead_letter_queue, took
		from agent.nack_event($1, nullif($2, ''), $3, nullif($4, ''), $5, _notify => false, _retryable => $6, _queues => $7, _notify_dead_letters => false,
			_hold_group => $8)`,
		[]any{p.ID, p.Receipt, p.Delay, p.Error, p.Final, p.Retryable, p.Queues, p.HoldGroup}, &vt, &outcome, &queue, &repeated, &attempts, &most, &deadLetters, &took)
	if err != nil {
		return NackResult{Trace: trace}, wrap("nacking an event", err)
	}
	if outcome != nil {
		if !repeated {
			n := &Counters{Failed: 1}
			if took != nil {
				n.Processing.observe(*took)
			}
			s.counters.add(queue, n)
		}
		if deadLetters != nil {
			s.counters.add(queue, &Counters{DeadLettered: 1})
			s.wake(map[string]bool{*deadLetters: true})
		}
		s.ends.wake(p.ID)
		return NackResult{Outcome: *outcome, Trace: trace}, nil
	}
	if !repeated {
		s.counters.add(queue, &Counters{Nacked: 1})
	}
	s.wake(map[string]bool{queue: true})
	return NackResult{VT: *vt, IsExhausted: most == nil && attempts >= s.cfg.MaxAttempts, Trace: trace}, nil
}

// eventTrace returns the trace of an event, which nothing hangs on: none if it cannot be read.
func (s *Service) eventTrace(ctx context.Context, id int64) (trace EventTrace) {
	_ = s.row(ctx, tracesSQL, []any{[]int64{id}}, new(int64), &trace.Queue, &trace.Parent, &trace.State)
	return trace
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
	ids, receipts := columnsOf(leases)
	readyQueues := make(map[string]bool)
	err := s.short(ctx, func(pool *pg.Pool) error {
		rows, _ := pool.Query(ctx, `select queue, coalesce(type, ''), priority, vt from agent.release_events($1, $2)`, ids, receipts)
		var lane watermark.Lane
		var vt time.Time
		_, err := pgx.ForEachRow(rows, []any{&lane.Queue, &lane.Type, &lane.Priority, &vt}, func() error {
			s.counters.add(lane.Queue, &Counters{Released: 1})
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

// ReleaseEach gives claimed events back, each on its own: they are claimable again, after delay or at once, and the attempts do not count.
// Results are in the order of leases, which need receipts. Only events of queues that one of these patterns stands for are found (nil: all). A release that is repeated
// finds the lease lost. It fails with an *InvalidError, ErrLocked, ErrOverloaded or ErrUnavailable.
func (s *Service) ReleaseEach(ctx context.Context, leases []Lease, delay time.Duration, queues []string) ([]LeaseResult, error) {
	ids, receipts := columnsOf(leases)
	var results []LeaseResult
	readyQueues := make(map[string]bool)
	err := s.short(ctx, func(pool *pg.Pool) error {
		results = make([]LeaseResult, 0, len(leases))
		rows, _ := pool.Query(ctx, `
			select id, status, vt, coalesce(queue, ''), coalesce(type, ''), coalesce(priority, 0)
			from agent_service.release_leases($1, $2, $3, $4)`, ids, receipts, pg.OrNull(delay), queues)
		var (
			id     int64
			status string
			vt     *time.Time
			lane   watermark.Lane
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &status, &vt, &lane.Queue, &lane.Type, &lane.Priority}, func() error {
			result := leaseResult(id, status, vt)
			results = append(results, result)
			if result.Err == nil {
				s.counters.add(lane.Queue, &Counters{Released: 1})
				s.watermarks.Lower(time.Now(), lane, result.VT)
				readyQueues[lane.Queue] = true
			}
			return nil
		})
		return err
	})
	s.wake(readyQueues)
	return results, wrap("releasing claims", err)
}

// An Extend is one lease of ExtendEach.
type Extend struct {
	Lease
	InvisibleFor time.Duration // from now; zero: as the queue's policy says, or DefaultInvisibleFor
}

// ExtendEach extends leases in one transaction, each on its own: see Extend. Results are in the order of extends, which need receipts. Only events of queues that one of
// these patterns stands for are found (nil: all). It fails with an *InvalidError, ErrLocked, ErrOverloaded or ErrUnavailable.
func (s *Service) ExtendEach(ctx context.Context, extends []Extend, queues []string) ([]LeaseResult, error) {
	leases, lengths := make([]Lease, len(extends)), make([]*time.Duration, len(extends))
	for i, x := range extends {
		leases[i], lengths[i] = x.Lease, pg.OrNull(x.InvisibleFor)
	}
	ids, receipts := columnsOf(leases)
	var results []LeaseResult
	err := s.short(ctx, func(pool *pg.Pool) error {
		results = make([]LeaseResult, 0, len(extends))
		rows, _ := pool.Query(ctx, `select id, status, vt from agent_service.extend_leases($1, $2, $3, $4)`, ids, receipts, lengths, queues)
		var (
			id     int64
			status string
			vt     *time.Time
		)
		_, err := pgx.ForEachRow(rows, []any{&id, &status, &vt}, func() error {
			results = append(results, leaseResult(id, status, vt))
			return nil
		})
		return err
	})
	return results, wrap("extending leases", err)
}

// columnsOf returns the ids and the receipts of leases as arguments of a statement.
func columnsOf(leases []Lease) (ids []int64, receipts []*string) {
	ids, receipts = make([]int64, len(leases)), make([]*string, len(leases))
	for i, l := range leases {
		ids[i], receipts[i] = l.ID, pg.OrNull(l.Receipt)
	}
	return ids, receipts
}

// leaseResult is the meaning of a status that a function about many leases returns.
func leaseResult(id int64, status string, vt *time.Time) LeaseResult {
	switch status {
	case "not_found":
		return LeaseResult{ID: id, Err: ErrNotFound}
	case "lease_lost":
		return LeaseResult{ID: id, Err: ErrLeaseLost}
	}
	return LeaseResult{ID: id, VT: *vt}
}
