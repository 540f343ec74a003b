package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Ack finishes each of leases on its own, as Done, or as Cancelled where nobody ever claimed
// the event. Results are in the order of leases. A repeated ack with the receipt that succeeded succeeds again.
// Concurrent calls share statements.
func (s *Service) Ack(ctx context.Context, leases []Lease) ([]AckResult, error) {
	return s.acks.do(ctx, leases)
}

// ack finishes leases with one statement.
func (s *Service) ack(ctx context.Context, leases []Lease) ([]AckResult, error) {
	ids, receipts := columns(leases)
	rows, _ := s.pool.Query(ctx, `select id, status, queue, repeated from agent.delete_events($1, $2)`, ids, receipts)
	results, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r AckResult, err error) {
		var status string
		var queue *string
		var repeated bool
		if err := row.Scan(&r.ID, &status, &queue, &repeated); err != nil {
			return r, err
		}
		switch status {
		case "not_found":
			r.Err = ErrNotFound
		case "lease_lost":
			r.Err = ErrLeaseLost
		case string(Done), string(Cancelled):
			r.Outcome = Outcome(status)
			if !repeated {
				s.counters.add(*queue, func(c *Counters) { c.Acked++ })
			}
		default:
			return r, fmt.Errorf("unknown status %q", status)
		}
		return r, nil
	})
	return results, wrap("acking events", err)
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
