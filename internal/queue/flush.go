package queue

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// runParts runs parts in one transaction and one round trip, and fills in what came of them. Acks come first and
// claims last, so that a transaction holds hardly a lock when it may have to wait for one.
func (s *Service) runParts(ctx context.Context, pool *pgxpool.Pool, parts []*part) error {
	fl := flush{svc: s, batch: new(pgx.Batch)}
	for _, p := range parts {
		p.claimed, p.surplus, p.handed = nil, nil, 0 // what a flush that failed had found
		if p.offered {
			if fl.offers == nil {
				fl.offers = make(map[string]*part, 1)
			}
			fl.offers[p.claim.Queue] = p
		}
	}
	fl.queueAcks(parts)
	fl.queueInserts(parts)
	for _, p := range parts {
		if p.claim != nil && p.handed == 0 {
			fl.queueClaim(p)
		}
	}
	// What those who wait here take along need not be told of. Whether they take all of it is known afterwards.
	elsewhere := maps.Clone(fl.touched)
	for _, p := range parts {
		if p.offered {
			delete(elsewhere, p.claim.Queue)
		}
	}
	told, _ := s.notifier.due(elsewhere)
	if len(told) > 0 {
		fl.batch.Queue(notifySQL, slices.Collect(maps.Keys(told)), s.name)
	}
	if err := pool.SendBatch(ctx, fl.batch).Close(); err != nil {
		maps.DeleteFunc(told, func(queue string, _ bool) bool { return fl.touched[queue] })
		s.notifier.add(told) // those of earlier flushes, which were committed
		return wrap("writing to the queue", err)
	}
	fl.announce(parts, elsewhere, len(told) > 0)
	return nil
}

// announce wakes those who wait for what was committed, and counts it.
func (fl *flush) announce(parts []*part, elsewhere map[string]bool, told bool) {
	s := fl.svc
	s.counters.count(fl.counted)
	for _, p := range parts {
		for i := range p.inserts {
			if e := &p.inserts[i]; e.VT != nil {
				s.marks.lower(cmp.Or(e.Queue, Default), *e.VT)
			}
		}
		switch {
		case !p.offered:
		case fl.later[p.claim.Queue] || len(p.claimed)+len(p.surplus) == p.claim.Limit:
			s.notifier.add(map[string]bool{p.claim.Queue: true})
		default:
			delete(fl.touched, p.claim.Queue) // those who waited have all there is
		}
	}
	s.wakeHere(fl.touched)
	if !told {
		s.notifier.add(elsewhere)
	}
}

// flush is one transaction in the making.
type flush struct {
	svc     *Service
	batch   *pgx.Batch
	touched map[string]bool  // queues that get something claimable
	later   map[string]bool  // queues that get something claimable later
	offers  map[string]*part // claims that inserts into these queues take along
	counted map[string]Counters
}

// add counts events of a queue, to be kept when the flush is committed.
func (fl *flush) add(queue string, count func(*Counters)) {
	if fl.counted == nil {
		fl.counted = make(map[string]Counters, 1)
	}
	c := fl.counted[queue]
	count(&c)
	fl.counted[queue] = c
}

func (fl *flush) claimableLater(queue string) {
	if fl.later == nil {
		fl.later = make(map[string]bool, 1)
	}
	fl.later[queue] = true
}

func (fl *flush) queueInserts(parts []*part) {
	n := 0
	for _, p := range parts {
		n += len(p.inserts)
	}
	if n == 0 {
		return
	}
	fl.touched = make(map[string]bool, 1)
	events := make([]string, 0, n)
	queues := make([]string, 0, n)
	var ( // nil when nobody asks for one: then they are not even looked at
		delays []*time.Duration
		vts    []*time.Time
		leases []*time.Duration
	)
	takers := make(map[int]*part)
	for _, p := range parts {
		for i := range p.inserts {
			e := &p.inserts[i]
			at := len(events)
			events = append(events, string(e.Event))
			queues = append(queues, cmp.Or(e.Queue, Default))
			fl.touched[queues[at]] = true
			switch {
			case e.VT != nil:
				fl.claimableLater(queues[at])
				if vts == nil {
					vts = make([]*time.Time, n)
				}
				vts[at] = e.VT
			case e.Delay != 0:
				fl.claimableLater(queues[at])
				if delays == nil {
					delays = make([]*time.Duration, n)
				}
				delays[at] = &e.Delay
			default:
				taker := fl.offers[queues[at]]
				if taker == nil || taker.handed == taker.claim.Limit {
					break
				}
				if leases == nil {
					leases = make([]*time.Duration, n)
				}
				leases[at] = &taker.claim.InvisibleFor
				takers[at] = taker
				taker.handed++
			}
		}
	}
	// The waking is the service's own: a notifying commit takes a lock that the whole server shares.
	fl.batch.Queue(`
		select id, vt, enqueued_at, event_ts, event, claimed
		from agent.add_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], $5::interval[])`,
		events, queues, delays, vts, leases).Query(func(rows pgx.Rows) error {
		inserted := make([]Inserted, 0, n)
		for rows.Next() {
			in := Inserted{Queue: queues[len(inserted)]}
			taker := takers[len(inserted)]
			if taker == nil {
				if err := rows.Scan(&in.ID, &in.VT, nil, nil, nil, nil); err != nil {
					return err
				}
			} else {
				e := Event{Queue: in.Queue, Attempts: 1}
				if err := rows.Scan(&e.ID, &e.VT, &e.EnqueuedAt, &e.EventTS, (*[]byte)(&e.Payload), &e.Claimed); err != nil {
					return err
				}
				e.Receipt = receiptOf(e)
				in.ID, in.VT = e.ID, e.EnqueuedAt
				taker.claimed, taker.priorVT = append(taker.claimed, e), e.EnqueuedAt
				fl.add(in.Queue, func(c *Counters) { c.Claimed++ })
			}
			fl.add(in.Queue, func(c *Counters) { c.Inserted++ })
			inserted = append(inserted, in)
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for _, p := range parts {
			k := len(p.inserts)
			p.inserted, inserted = inserted[:k:k], inserted[k:]
		}
		return nil
	})
}

// queueAcks finishes the acks of all parts in the order of their ids, so that no two transactions
// wait for each other.
func (fl *flush) queueAcks(parts []*part) {
	type ack struct {
		lease  *Lease
		result *AckResult
	}
	var acks []ack
	for _, p := range parts {
		if len(p.acks) == 0 {
			continue
		}
		p.acked = make([]AckResult, len(p.acks))
		for i := range p.acks {
			acks = append(acks, ack{&p.acks[i], &p.acked[i]})
		}
	}
	if len(acks) == 0 {
		return
	}
	slices.SortStableFunc(acks, func(a, b ack) int { return cmp.Compare(a.lease.ID, b.lease.ID) })
	ids, receipts := make([]int64, len(acks)), make([]*string, len(acks))
	for i, a := range acks {
		ids[i] = a.lease.ID
		if a.lease.Receipt != "" {
			receipts[i] = &a.lease.Receipt
		}
	}
	fl.batch.Queue(`select status, queue, repeated from agent.delete_events($1, $2)`, ids, receipts).Query(func(rows pgx.Rows) error {
		for i := 0; rows.Next(); i++ {
			var status string
			var queue *string
			var repeated bool
			if err := rows.Scan(&status, &queue, &repeated); err != nil {
				return err
			}
			result, err := ackResult(ids[i], status)
			if err != nil {
				return err
			}
			if result.Err == nil && !repeated {
				fl.add(*queue, func(c *Counters) { c.Acked++ })
			}
			*acks[i].result = result
		}
		return rows.Err()
	})
}

func (fl *flush) queueClaim(p *part) {
	from := &p.from
	if from.IsZero() {
		from = nil
	}
	fl.batch.Queue(`
		select (t.event).id, (t.event).event_ts, (t.event).enqueued_at, (t.event).attempts, (t.event).vt, (t.event).claimed,
			(t.event).event, (t.event).last_error, (t.event).requeued_from, t.prior_vt
		from agent.take_events($1, $2, $3, $4, $5, $6) t`,
		p.claim.Queue, p.claim.Limit, p.claim.MaxAttempts, p.claim.InvisibleFor, string(p.claim.Order), from).Query(func(rows pgx.Rows) error {
		bytes := 0
		for rows.Next() {
			e := Event{Queue: p.claim.Queue}
			if err := rows.Scan(&e.ID, &e.EventTS, &e.EnqueuedAt, &e.Attempts, &e.VT, &e.Claimed, (*[]byte)(&e.Payload), &e.LastError,
				&e.RequeuedFrom, &p.priorVT); err != nil {
				return err
			}
			e.Receipt = receiptOf(e)
			if bytes += len(e.Payload); bytes > maxFlushBytes && len(p.claimed) > 0 {
				p.surplus = append(p.surplus, Lease{ID: e.ID, Receipt: e.Receipt})
				continue
			}
			p.claimed = append(p.claimed, e)
		}
		if n := int64(len(p.claimed) + len(p.surplus)); n > 0 {
			fl.add(p.claim.Queue, func(c *Counters) { c.Claimed += n })
		}
		return rows.Err()
	})
}
