package queue

import (
	"context"
	"fmt"
	"time"
)

// Ack finishes each of acks on its own, as Done, or as Cancelled where nobody ever claimed
// the event. Results are in the order of acks. A repeated ack with the receipt that succeeded succeeds again, and
// leaves the result in history as it is. Concurrent calls share transactions.
func (s *Service) Ack(ctx context.Context, acks []Ack) ([]AckResult, error) {
	if len(acks) == 0 {
		return nil, nil
	}
	p := &part{acks: acks, done: make(chan error, 1)}
	if err := s.flusher.do(ctx, p); err != nil {
		return nil, err
	}
	return p.acked, nil
}

// ackResult is what agent.ack_events means by a status.
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

// Nack gives a claimed event back, or moves it to history where p says so, or it was the last attempt. It fails with
// ErrNotFound, ErrLeaseLost or ErrLocked; repeated with the same receipt, it answers as it did.
func (s *Service) Nack(ctx context.Context, p NackParams) (NackResult, error) {
	var (
		vt       *time.Time
		outcome  *string
		queue    string
		repeated bool
	)
	err := s.row(ctx, `
		select vt, outcome, queue, repeated
		from agent.nack_event($1, nullif($2, ''), $3, nullif($4, ''), $5, _notify => false, _retryable => $6)`,
		[]any{p.ID, p.Receipt, p.Delay, p.Error, p.Final, p.Retryable}, &vt, &outcome, &queue, &repeated)
	if err != nil {
		return NackResult{}, wrap("nacking an event", err)
	}
	if !repeated {
		s.counters.add(queue, func(c *Counters) {
			if outcome != nil {
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

// Extend makes the lease last until invisibleFor from now (zero: as the queue's policy says, or DefaultInvisibleFor) and returns
// that time. It fails with ErrNotFound, ErrLeaseLost or ErrLocked.
func (s *Service) Extend(ctx context.Context, l Lease, invisibleFor time.Duration) (time.Time, error) {
	var vt time.Time
	err := s.row(ctx, `select agent.extend_event($1, nullif($2, ''), $3)`, []any{l.ID, l.Receipt, orNull(invisibleFor)}, &vt)
	return vt, wrap("extending a lease", err)
}

// orNull is a statement's argument: null for the zero value.
func orNull[T comparable](v T) *T {
	var zero T
	if v == zero {
		return nil
	}
	return &v
}
