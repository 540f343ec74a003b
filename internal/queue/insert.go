package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Insert enqueues all of events or, on any error, none; results are in the order of events.
// It fails with an *InvalidError or ErrUnrepresentable, and with ErrUnavailable or ctx's error when it is
// unknown whether the events were enqueued. Concurrent calls share statements.
func (s *Service) Insert(ctx context.Context, events []InsertParams) ([]Inserted, error) {
	return s.inserts.do(ctx, events)
}

// insert enqueues events with one statement.
func (s *Service) insert(ctx context.Context, events []InsertParams) ([]Inserted, error) {
	payloads := make([]string, len(events))
	queues := make([]string, len(events))
	delays := make([]*time.Duration, len(events))
	vts := make([]*time.Time, len(events))
	for i, e := range events {
		payloads[i] = string(e.Event)
		queues[i] = cmp.Or(e.Queue, Default)
		if e.VT != nil {
			vts[i] = e.VT
		} else if e.Delay != 0 {
			delays[i] = &e.Delay
		}
	}
	// The waking is the service's own, after the commit: a notifying commit takes a lock that the whole server shares.
	rows, _ := s.pool.Query(ctx, `
		select id, queue, vt
		from agent.insert_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], _notify => false)`,
		payloads, queues, delays, vts)
	inserted, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Inserted])
	if err != nil {
		return nil, wrap("inserting events", err)
	}
	touched := make(map[string]bool)
	for _, e := range inserted {
		s.counters.add(e.Queue, func(c *Counters) { c.Inserted++ })
		touched[e.Queue] = true
	}
	s.wake(touched)
	return inserted, nil
}
