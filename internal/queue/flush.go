package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queued/queued/internal/pg"
)

// runParts runs parts in one transaction and one round trip, and fills in what came of them. Acks come first and
// claims last, so that a transaction holds hardly a lock when it may have to wait for one. An error says that nothing was written, or that it
// is unknown whether it was. What was written for a part and cannot be read concerns that part alone: see part.err.
func (s *Service) runParts(ctx context.Context, pool *pg.Pool, parts []*part) error {
	fl := flush{svc: s, batch: new(pgx.Batch)}
	if prologue := pool.Prologue(); prologue != "" {
		fl.batch.Queue(prologue)
	}
	for _, p := range parts {
		p.claimed, p.surplus, p.upTo, p.handed, p.err = nil, nil, nil, 0, nil // what a flush that failed had found
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
	recorded := fl.queueRecord()
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
	err := pool.SendBatch(ctx, fl.batch)
	if errors.Is(err, pg.ErrUnconfirmed) { // it is committed, and everybody sees it; whether it lasts is what nobody knows
		for _, p := range parts {
			if p.err == nil { // a claim, too: were it lost with the primary, the event would have two leases at once
				p.err = wrap("writing to the queue", err)
			}
		}
		err = nil
	}
	if err != nil {
		maps.DeleteFunc(told, func(queue string, _ bool) bool { return fl.touched[queue] })
		s.notifier.add(told) // those of earlier flushes, which were committed
		s.executions.restore(recorded)
		return wrap("writing to the queue", err)
	}
	fl.announce(parts, elsewhere, len(told) > 0)
	return nil
}

// announce wakes those who wait for what was committed, and counts it.
func (fl *flush) announce(parts []*part, elsewhere map[string]bool, told bool) {
	s := fl.svc
	s.counters.count(fl.counted)
	s.executions.add(fl.finished)
	for l, vt := range fl.lanes {
		s.marks.lower(l, vt)
	}
	for _, p := range parts {
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
	counted map[string]*Counters
	noted   lane               // the last that was put into lanes
	lanes   map[lane]time.Time // where something is inserted, and its earliest vt of those that were given; zero: none was

	acks     bool // whether it has any
	finished []execution
}

// count returns what the flush has done with a queue, to be kept when it is committed.
func (fl *flush) count(queue string) *Counters {
	c := fl.counted[queue]
	if c == nil {
		if fl.counted == nil {
			fl.counted = make(map[string]*Counters, 1)
		}
		c = new(Counters)
		fl.counted[queue] = c
	}
	return c
}

func (fl *flush) claimableLater(queue string) {
	if fl.later == nil {
		fl.later = make(map[string]bool, 1)
	}
	fl.later[queue] = true
}

// An arrival is an event on its way into a queue, and who takes it as it arrives, if anybody does.
type arrival struct {
	*InsertParams
	part  *part // that inserts it
	queue string
	taker *part
	slot  int // which one of the taker's it is
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
	fl.lanes = make(map[lane]time.Time, 1)
	arrivals := make([]arrival, 0, n)
	for _, p := range parts {
		for i := range p.inserts {
			arrivals = append(arrivals, arrival{InsertParams: &p.inserts[i], part: p, queue: cmp.Or(p.inserts[i].Queue, Default)})
		}
	}
	fl.handOver(arrivals)

	events := make([]string, n)
	queues := make([]string, n)
	var ( // nil when nobody asks for one: then they are not even looked at
		delays  []*time.Duration
		vts     []*time.Time
		leases  []*time.Duration
		workers []*string
		options []*string
	)
	for i, a := range arrivals {
		events[i], queues[i] = string(a.Event), a.queue
		fl.touched[a.queue] = true
		fl.note(lane{a.queue, a.Type, a.Priority}, a.VT)
		switch {
		case a.VT != nil:
			fl.claimableLater(a.queue)
			set(&vts, n, i, a.VT)
		case a.Delay != 0:
			fl.claimableLater(a.queue)
			set(&delays, n, i, &a.Delay)
		case a.taker != nil:
			set(&leases, n, i, &a.taker.claim.InvisibleFor)
			if worker := a.worker(); worker != "" {
				set(&workers, n, i, &worker)
			}
		}
		if option := a.options(); option != nil {
			set(&options, n, i, option)
		}
	}
	// The waking is the service's own: a notifying commit takes a lock that the whole server shares.
	fl.batch.Queue(`
		select id, vt, enqueued_at, event_ts, event, claimed, replayed
		from agent.insert_and_claim_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], $5::interval[], $6::text[], $7::text[]::jsonb[], $8)`,
		events, queues, delays, vts, leases, workers, options, fl.svc.cfg.KeyRetention).Query(func(rows pgx.Rows) error {
		r := newRowReader(rows)
		inserted := make([]Inserted, n)
		i := 0
		for ; i < n && rows.Next(); i++ {
			var err error
			if inserted[i], err = fl.arrived(r, &arrivals[i]); err != nil {
				arrivals[i].part.unreadable(err)
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for ; i < n; i++ {
			arrivals[i].part.unreadable(errNoAnswer)
		}
		for _, p := range parts {
			k := len(p.inserts)
			p.inserted, inserted = inserted[:k:k], inserted[k:]
		}
		return nil
	})
}

// note remembers that something is inserted into a lane, claimable from vt on (nil: not said).
func (fl *flush) note(l lane, vt *time.Time) {
	if vt == nil && l == fl.noted {
		return
	}
	known, ok := fl.lanes[l]
	switch {
	case vt != nil && (known.IsZero() || vt.Before(known)):
		fl.lanes[l] = *vt
	case !ok:
		fl.lanes[l] = time.Time{}
	}
	fl.noted = l
}

// set puts v at i into values, which are n, or none as long as nothing was put there.
func set[T any](values *[]*T, n, i int, v *T) {
	if *values == nil {
		*values = make([]*T, n)
	}
	(*values)[i] = v
}

// handOver gives those who wait what arrives for them, in the order in which they would claim it.
func (fl *flush) handOver(arrivals []arrival) {
	if len(fl.offers) == 0 {
		return
	}
	order := make([]int, len(arrivals))
	sorted := true
	for i := range order {
		order[i] = i
		sorted = sorted && arrivals[i].Priority == arrivals[0].Priority
	}
	if !sorted {
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(arrivals[i].Priority, arrivals[j].Priority) })
	}
	for _, i := range order {
		a := &arrivals[i]
		taker := fl.offers[a.queue]
		if taker == nil || taker.handed == taker.claim.Limit || a.VT != nil || a.Delay != 0 || !taker.takes(a.Type) {
			continue
		}
		a.taker, a.slot = taker, taker.handed
		taker.handed++
	}
}

// takes reports whether the claim is for events of a type.
func (p *part) takes(typ string) bool {
	return len(p.claim.Types) == 0 || slices.Contains(p.claim.Types, typ)
}

// worker is who takes the arrival.
func (a *arrival) worker() string {
	if a.slot < len(a.taker.workers) {
		return a.taker.workers[a.slot]
	}
	return ""
}

// arrived reads what became of an arrival, and gives it to its taker.
func (fl *flush) arrived(r *rowReader, a *arrival) (Inserted, error) {
	in := Inserted{Queue: a.queue}
	if a.taker == nil {
		if err := r.read(&in.ID, &in.VT, nil, nil, nil, nil, &in.Replayed); err != nil {
			return in, err
		}
	} else {
		e := Event{Queue: in.Queue, Attempts: 1, Type: a.Type, Source: a.Source, Priority: a.Priority, Key: a.Key, ExpiresAt: a.ExpiresAt, Worker: a.worker()}
		if a.MaxAttempts != 0 {
			e.MaxAttempts = new(int32(min(a.MaxAttempts, math.MaxInt32)))
		}
		var enqueuedAt, eventTS *time.Time // null where the key was known
		if err := r.read(&e.ID, &e.VT, &enqueuedAt, &eventTS, (*[]byte)(&e.Payload), &e.Claimed, &in.Replayed); err != nil {
			a.taker.unreadable(err)
			return in, err
		}
		in.ID, in.VT = e.ID, e.VT
		if len(e.Claimed) > 0 { // else the queue is paused, or nothing was enqueued
			e.EnqueuedAt, e.EventTS, e.Receipt = *enqueuedAt, *eventTS, receiptOf(&e)
			in.VT = e.EnqueuedAt
			a.taker.claimed = append(a.taker.claimed, e)
			a.taker.passed(&e, e.EnqueuedAt)
			fl.count(in.Queue).Claimed++
		}
	}
	if in.ID == 0 {
		return in, errNoAnswer
	}
	if !in.Replayed {
		fl.count(in.Queue).Inserted++
	}
	return in, nil
}

// passed notes the vt that a claimed event had before.
func (p *part) passed(e *Event, vt time.Time) {
	if p.upTo == nil {
		p.upTo = make(map[lane]time.Time, 1)
	}
	l := lane{queue: e.Queue, priority: e.Priority}
	if len(p.claim.Types) > 0 {
		l.typ = e.Type
	}
	p.upTo[l] = vt
}

// options is what the event has beyond a payload, as agent.insert_and_claim_events takes it, or nil.
func (e *InsertParams) options() *string {
	if e.Type == "" && e.Source == "" && e.Priority == 0 && e.Key == "" && e.MaxAttempts == 0 && e.ExpiresAt == nil {
		return nil
	}
	b, err := json.Marshal(struct {
		Type        string     `json:"type,omitempty"`
		Source      string     `json:"source,omitempty"`
		Priority    int32      `json:"priority,omitempty"`
		Key         string     `json:"key,omitempty"`
		MaxAttempts int        `json:"max_attempts,omitempty"`
		ExpiresAt   *time.Time `json:"expires_at,omitempty"`
	}{e.Type, e.Source, e.Priority, e.Key, e.MaxAttempts, e.ExpiresAt})
	text := string(b)
	if err != nil { // a time that JSON has no way to write
		text = `{"expires_at":"infinity"}` // which is refused
	}
	return &text
}

// errNoAnswer is why a part's answer cannot be read that did not come.
var errNoAnswer = errors.New("the database gave no answer for it")

// unreadable notes that what was done for the part cannot be read, the first time why.
func (p *part) unreadable(err error) {
	if p.err == nil {
		p.err = fmt.Errorf("%w: what was written cannot be read: %w", ErrUnavailable, err)
	}
}

// A rowReader scans rows as pgx.Rows does, but a row that cannot be read does not end the reading of the others.
type rowReader struct {
	rows  pgx.Rows
	types *pgtype.Map
	plans []pgtype.ScanPlan // of each column, for the type of its destination
}

func newRowReader(rows pgx.Rows) *rowReader {
	return &rowReader{rows: rows, types: rows.Conn().TypeMap()}
}

// read scans the row into dest, of the same types for each row. It passes over columns whose destination is nil, and leaves alone what is null in the
// row: most columns of most events are, and each has its price.
func (r *rowReader) read(dest ...any) error {
	values := r.rows.RawValues()
	if len(values) != len(dest) {
		return fmt.Errorf("%d columns, want %d", len(values), len(dest))
	}
	if r.plans == nil {
		r.plans = make([]pgtype.ScanPlan, len(dest))
	}
	for i, value := range values {
		if value == nil || dest[i] == nil {
			continue
		}
		if r.plans[i] == nil {
			column := &r.rows.FieldDescriptions()[i]
			r.plans[i] = r.types.PlanScan(column.DataTypeOID, column.Format, dest[i])
		}
		if err := r.plans[i].Scan(value, dest[i]); err != nil {
			return fmt.Errorf("column %s: %w", r.rows.FieldDescriptions()[i].Name, err)
		}
	}
	return nil
}

// untimed is the time of an attempt that did not end with this ack.
const untimed time.Duration = math.MinInt64

// queueAcks finishes the acks of all parts in the order of their ids, so that no two transactions
// wait for each other.
func (fl *flush) queueAcks(parts []*part) {
	type ack struct {
		*Ack
		part   *part
		result *AckResult
	}
	var acks []ack
	for _, p := range parts {
		if len(p.acks) == 0 {
			continue
		}
		p.acked = make([]AckResult, len(p.acks))
		for i := range p.acks {
			acks = append(acks, ack{&p.acks[i], p, &p.acked[i]})
		}
	}
	if len(acks) == 0 {
		return
	}
	fl.acks = true
	slices.SortStableFunc(acks, func(a, b ack) int { return cmp.Compare(a.ID, b.ID) })
	ids, receipts := make([]int64, len(acks)), make([]*string, len(acks))
	var results []*string
	for i, a := range acks {
		ids[i] = a.ID
		if a.Receipt != "" {
			receipts[i] = &a.Receipt
		}
		if a.Result != nil {
			set(&results, len(acks), i, jsonArg(a.Result))
		}
	}
	fl.batch.Queue(`
		select ord, status, queue, repeated, type, worker, took
		from agent.ack_events($1, $2, $3::text[]::jsonb[])`, ids, receipts, results).Query(func(rows pgx.Rows) error {
		r := newRowReader(rows)
		var ord int
		var status, queue string
		var repeated bool
		var done execution
		for rows.Next() {
			ord, status, queue, done = 0, "", "", execution{took: untimed}
			err := r.read(&ord, &status, &queue, &repeated, &done.typ, &done.worker, &done.took)
			if ord < 1 || ord > len(acks) || acks[ord-1].result.ID != 0 { // the first row counts
				continue
			}
			a := acks[ord-1]
			if err == nil {
				*a.result, err = ackResult(a.ID, status)
			}
			if err != nil {
				a.part.unreadable(err)
				continue
			}
			if !repeated {
				fl.count(queue).Acked++
				if done.took != untimed {
					fl.finished = append(fl.finished, done)
				}
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		for _, a := range acks {
			if a.result.ID == 0 {
				a.part.unreadable(errNoAnswer)
			}
		}
		return nil
	})
}

func (fl *flush) queueClaim(p *part) {
	c := p.claim
	fl.batch.Queue(`
		select id, attempts, claimed, event_ts, enqueued_at, vt, event, last_error, requeued_from,
			type, source, priority, key, max_attempts, expires_at, worker, occurrence, prior_vt
		from agent.claim_from_watermarks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`,
		c.Queue, c.Limit, c.MaxAttempts, orNull(c.InvisibleFor), string(c.Order), c.Types, c.ExcludeIDs, p.workers,
		p.from.lanes, p.from.types, p.from.marks).Query(func(rows pgx.Rows) error {
		r := newRowReader(rows)
		var priorVT time.Time
		bytes := 0
		for rows.Next() {
			if p.claimed == nil {
				p.claimed = make([]Event, 0, min(c.Limit, 128))
			}
			n := len(p.claimed)
			p.claimed = append(p.claimed, Event{Queue: c.Queue})
			e := &p.claimed[n]
			err := r.read(&e.ID, &e.Attempts, &e.Claimed, &e.EventTS, &e.EnqueuedAt, &e.VT, (*[]byte)(&e.Payload), &e.LastError, &e.RequeuedFrom,
				&e.Type, &e.Source, &e.Priority, &e.Key, &e.MaxAttempts, &e.ExpiresAt, &e.Worker, (*[]byte)(&e.Occurrence), &priorVT)
			if len(e.Claimed) > 0 {
				e.Receipt = receiptOf(e)
			}
			if err != nil {
				p.unreadable(fmt.Errorf("event %d: %w", e.ID, err))
			} else {
				p.passed(e, priorVT)
			}
			if bytes += len(e.Payload); bytes > maxFlushBytes && n > 0 {
				p.surplus = append(p.surplus, Lease{ID: e.ID, Receipt: e.Receipt})
				p.claimed = p.claimed[:n]
			}
		}
		if n := int64(len(p.claimed) + len(p.surplus)); n > 0 {
			fl.count(c.Queue).Claimed += n
		}
		return rows.Err()
	})
}
