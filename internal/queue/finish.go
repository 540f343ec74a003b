package queue

import (
	"context"
	"fmt"
	"time"
)

// Ack finishes each of leases on its own, as Done, or as Cancelled where nobody ever claimed
// the event. Results are in the order of leases. A repeated ack with the receipt that succeeded succeeds again.
// Concurrent calls share transactions.
func (s *Service) Ack(ctx context.Context, leases []Lease) ([]AckResult, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	p := &part{acks: leases, done: make(chan error, 1)}
	if err := s.flusher.do(ctx, p); err != nil {
		return nil, err
	}
	return p.acked, nil
}

// ackResult is what agent.delete_events means by a status.
func ackResult(id int64, status string) (AckResult, error) {
	switch status {
	case string(Done), string(Cancelled):
		return AckResult{ID: id, Outcome: Outcome(status)}, nil
	case "not_found":
		return AckResult{ID: id, Err: ErrNotFound}, nil
	case "lease_lost":
		return AckResult{ID: id, Err: ErrLeaseLost}, nil
	default:
		return AckResult{}, fmt.Errorf("unknown status %q", status)
	}
}

// Nack gives a claimed event back, or with p.Final moves it to history. It fails with
// ErrNotFound or ErrLeaseLost; repeated with the same receipt, it answers as it did.
func (s *Service) Nack(ctx context.Context, p NackParams) (NackResult, error) {
	var (
		vt       *time.Time
		outcome  *string
		queue    string
		repeated bool
	)
	err := s.pool.QueryRow(ctx, `
		select vt, outcome, queue, repeated
		from agent.nack_event($1, nullif($2, ''), $3, nullif($4, ''), $5, _notify => false)`,
		p.ID, p.Receipt, p.Delay, p.Error, p.Final).Scan(&vt, &outcome, &queue, &repeated)
	if err != nil {
		return NackResult{}, wrap("nacking an event", err)
	}
	if !repeated {
		s.counters.add(queue, func(c *Counters) {
			if p.Final {
				c.Failed++
			} else {
				c.Nacked++
			}
		})
	}
	if outcome != nil {
		return NackResult{Outcome: Outcome(*outcome)}, nil
	}
	s.wake(map[string]bool{queue: true})
	return NackResult{VT: *vt}, nil
}

// Extend makes the lease last until invisibleFor from now and returns that time. It fails
// with ErrNotFound or ErrLeaseLost.
func (s *Service) Extend(ctx context.Context, l Lease, invisibleFor time.Duration) (time.Time, error) {
	var vt time.Time
	err := s.pool.QueryRow(ctx, `select agent.extend_event($1, nullif($2, ''), $3)`, l.ID, l.Receipt, invisibleFor).Scan(&vt)
	return vt, wrap("extending a lease", err)
}
