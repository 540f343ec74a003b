package queue

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/watermark"
)

// transaction is one group commit in the making.
type transaction struct {
	svc         *Service
	batch       *pgx.Batch
	inserts     []pendingInsert
	offers      map[string]*operation        // by queue: the claims that its inserts and acks take along
	readyQueues map[string]bool              // queues that get something claimable
	later       map[string]bool              // queues that get something claimable later
	lanes       map[watermark.Lane]time.Time // where something is inserted, and its earliest vt of those that were given; zero: none was
	counts      map[string]*Counters
	freed       map[string]*time.Time // queues in which acks have freed slots for others, and the earliest vt of these; nil: it is not known
	hasAcks     bool
	keepsRaw    bool                           // insertRawSQL inserts its events
	acked       map[executionKey]*executionSum // the attempts that acks have ended

	recorded     map[executionKey]*executionSum // the statistics of earlier transactions that this one writes
	remoteQueues map[string]bool                // queues that other processes are to be notified of
	notified     map[string]bool                // queues that this transaction notifies of
	hasJoints    bool                           // operations of other packages have joined it
	committed    []func()                       // functions that these have called after the commit
}

// pendingInsert is an event on its way into a queue, and the claim that gets it at once, if one does.
type pendingInsert struct {
	*InsertParams
	op     *operation // that inserts it
	result *Inserted
	queue  string
	waiter *operation // the claim; nil: none
	slot   int        // its place among the events of the claim
	token  token      // the random part of the receipt, if it is claimed
}

// add has the statements for operations join the transaction, in the order in which they run. A statement that takes a lock which
// other transactions wait for belongs at the end, so that it is held for the commit alone.
func (tx *transaction) add(ops []*operation) {
	for _, op := range ops {
		op.err = nil
		if op.claim != nil {
			op.claim.found = found{} // by a commit that failed
			if op.claim.isOffer {
				tx.offers[op.claim.Queue] = op
			}
		}
	}
	tx.addAcks(ops)
	tx.addInserts(ops)
	tx.addClaims(ops)
	tx.addExecutions()
	tx.addNotification()
	tx.addJoints(ops)
}

// commit runs operations in one transaction and one round trip, and fills in their results. An error says that nothing was written, or that it is
// unknown whether it was. A committed result that cannot be read concerns its operation alone: see operation.err.
func (s *Service) commit(ctx context.Context, pool *pg.Pool, ops []*operation) error {
	tx := transaction{
		svc: s, batch: new(pgx.Batch), offers: make(map[string]*operation), readyQueues: make(map[string]bool), later: make(map[string]bool),
		lanes: make(map[watermark.Lane]time.Time), counts: make(map[string]*Counters), freed: make(map[string]*time.Time), acked: make(map[executionKey]*executionSum),
	}
	if prologue := pool.Prologue(); prologue != "" {
		tx.batch.Queue(prologue)
	}
	tx.add(ops)
	began := s.spans.Add(1)
	err := pool.SendBatch(ctx, tx.batch)
	ended := s.spans.Add(1)
	for _, op := range ops {
		op.commit = span{began, ended}
	}
	s.writes.note(len(tx.inserts) > 0 || len(tx.counts) > 0 || tx.hasJoints, err)
	if errors.Is(err, pg.ErrUnconfirmed) { // it is committed and visible, and may be lost by a failover
		for _, op := range ops {
			if op.err == nil { // a claim, too: were it lost with the primary, the event would have two leases at once
				op.err = wrap("writing to the queue", err)
			}
		}
		err = nil
	}
	if err != nil {
		tx.undo()
		return wrap("writing to the queue", err)
	}
	tx.announce()
	s.ends.wakeAcked(ops)
	return nil
}

// query has a statement join the transaction. read is called for each row of its result, and done after the last one.
func (tx *transaction) query(sql string, args []any, read func(*pg.RowReader), done func()) {
	tx.batch.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		r := pg.NewRowReader(rows)
		for rows.Next() {
			read(r)
		}
		err := rows.Err()
		if err == nil {
			done()
		}
		return err
	})
}

// addExecutions writes the statistics that have gathered, if there are acks: these add to them.
func (tx *transaction) addExecutions() {
	if !tx.hasAcks {
		return
	}
	if tx.recorded = tx.svc.executions.take(recordInterval); len(tx.recorded) > 0 {
		tx.batch.Queue(recordSQL, tx.svc.recordArgs(tx.recorded)...)
	}
}

// addNotification notifies other processes, if it is time for that, but not of the queues of offers: whether these take all events is known
// afterwards.
func (tx *transaction) addNotification() {
	tx.remoteQueues = maps.Clone(tx.readyQueues)
	for queue := range tx.offers {
		delete(tx.remoteQueues, queue)
	}
	if tx.notified, _ = tx.svc.notifier.due(tx.remoteQueues); len(tx.notified) > 0 {
		tx.batch.Queue(notifySQL, slices.Collect(maps.Keys(tx.notified)), tx.svc.name)
	}
}

// undo puts back the notifications and statistics that the transaction took along and has not written.
func (tx *transaction) undo() {
	maps.DeleteFunc(tx.notified, func(queue string, _ bool) bool { return tx.readyQueues[queue] })
	tx.svc.notifier.add(tx.notified) // those of earlier commits
	tx.svc.executions.restore(tx.recorded)
}

// announce counts the events committed, and wakes those who wait for them.
func (tx *transaction) announce() {
	s := tx.svc
	for queue, n := range tx.counts {
		s.counters.add(queue, n)
	}
	s.executions.add(tx.acked)
	for lane, vt := range tx.lanes {
		s.watermarks.Lower(time.Now(), lane, vt)
	}
	if len(tx.freed) > 0 {
		queues := make(map[string]bool, len(tx.freed))
		for queue, vt := range tx.freed {
			if vt != nil {
				s.watermarks.LowerQueue(queue, *vt)
			}
			if offer := tx.offers[queue]; vt == nil || offer == nil || !offer.claim.isLast() {
				queues[queue] = true
			}
		}
		s.wakeHere(queues)
		s.notifier.add(queues)
	}
	s.noteHandovers(tx.freed, tx.offers)
	for queue, op := range tx.offers {
		if tx.later[queue] || op.claim.count() == op.claim.Limit {
			s.notifier.add(map[string]bool{queue: true})
		} else {
			delete(tx.readyQueues, queue) // the waiters have all there is
		}
	}
	s.wakeHere(tx.readyQueues)
	if len(tx.notified) == 0 {
		s.notifier.add(tx.remoteQueues)
	}
	for _, committed := range tx.committed {
		committed()
	}
}

// count returns the transaction's counts of a queue.
func (tx *transaction) count(queue string) *Counters {
	c := tx.counts[queue]
	if c == nil {
		c = new(Counters)
		tx.counts[queue] = c
	}
	return c
}

// addInserts inserts the events of all operations, and claims at once those that offers take.
func (tx *transaction) addInserts(ops []*operation) {
	n := 0
	for _, op := range ops {
		n += len(op.inserts)
	}
	if n == 0 {
		return
	}
	tx.inserts = make([]pendingInsert, 0, n)
	for _, op := range ops {
		op.inserted = make([]Inserted, len(op.inserts))
		for i := range op.inserts {
			tx.inserts = append(tx.inserts, pendingInsert{
				InsertParams: &op.inserts[i], op: op, result: &op.inserted[i], queue: cmp.Or(op.inserts[i].Queue, Default),
			})
		}
	}
	tx.assignToWaiters()

	events := make([]string, n)
	queues := make([]string, n)
	var ( // nil when no event has one, which spares the database reading them
		delays  []*time.Duration
		vts     []*time.Time
		leases  []*time.Duration
		workers []*string
		options []*string
		hashes  []*[]byte

		rawBodies  []*[]byte
		mediaTypes []*string
		keeps      []*time.Duration
	)
	for i, in := range tx.inserts {
		events[i], queues[i] = string(in.Event), in.queue
		tx.readyQueues[in.queue] = true
		tx.noteLane(watermark.Lane{Queue: in.queue, Type: in.Type, Priority: in.Priority}, in.VT)
		switch {
		case in.VT != nil:
			tx.later[in.queue] = true
			pg.SetArg(&vts, n, i, in.VT)
		case in.Delay != 0:
			tx.later[in.queue] = true
			pg.SetArg(&delays, n, i, &in.Delay)
		case in.waiter != nil:
			pg.SetArg(&leases, n, i, &in.waiter.claim.InvisibleFor)
			pg.SetArg(&workers, n, i, pg.OrNull(in.worker()))
			tx.inserts[i].token = newTokens(1)[0]
			pg.SetArg(&hashes, n, i, new(tx.inserts[i].token.hash()))
		}
		if in.AtOnce && in.VT == nil {
			pg.SetArg(&delays, n, i, &in.Delay)
		}
		if option := in.options(); option != nil {
			pg.SetArg(&options, n, i, option)
		}
		if in.Raw != nil {
			pg.SetArg(&rawBodies, n, i, &in.Raw.Body)
			pg.SetArg(&mediaTypes, n, i, pg.OrNull(in.Raw.MediaType))
			pg.SetArg(&keeps, n, i, &in.Raw.Keep)
		}
	}
	sql, args := insertSQL, []any{events, queues, delays, vts, leases, workers, options, tx.svc.cfg.KeyRetention, hashes}
	switch {
	case rawBodies == nil && leases == nil:
		sql = insertAloneSQL
	case rawBodies != nil:
		tx.keepsRaw = true
		sql, args = insertRawSQL, append(args, rawBodies, mediaTypes, keeps)
	}
	if tx.svc.declared != nil {
		required := slices.AppendSeq([]string{}, tx.requiredQueues()) // not nil, which would be all
		slices.Sort(required)
		sql, args = requiringQueues(sql, len(args)+1), append(args, slices.Compact(required))
	}
	// The service wakes waiters itself: a notifying commit takes a lock that the whole server shares.
	i := 0
	tx.query(sql, args, func(r *pg.RowReader) {
		if i == n { // more rows than events
			return
		}
		if err := tx.readInserted(r, &tx.inserts[i]); err != nil {
			tx.inserts[i].op.unreadable(err)
		}
		i++
	}, func() {
		for ; i < n; i++ {
			tx.inserts[i].op.unreadable(errNoAnswer)
		}
	})
}

// insertSQL inserts events. insertAloneSQL has nothing for the waiters that it gives none of the events. insertRawSQL also keeps the raw bodies of those that are inserted, in a last column that holds nothing.
const (
	insertSQL = `
		select id, vt, enqueued_at, event_ts, event, claimed, replayed, meta
		from agent_service.insert_and_claim_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], $5::interval[], $6::text[], $7::text[]::jsonb[], $8, $9)`
	insertAloneSQL = `
		select id, vt, null, null, null, null, replayed, null
		from agent_service.insert_and_claim_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], $5::interval[], $6::text[], $7::text[]::jsonb[], $8, $9)`
	insertRawSQL = `
		select a.id, a.vt, a.enqueued_at, a.event_ts, a.event, a.claimed, a.replayed, a.meta
		, case when raw.body is not null and not a.replayed then agent.keep_raw_body(a.id, raw.body, raw.media_type, raw.keep) end
		from rows from (
			agent_service.insert_and_claim_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], $5::interval[], $6::text[], $7::text[]::jsonb[], $8, $9)
		) with ordinality a (id, queue, vt, enqueued_at, event_ts, event, claimed, replayed, meta, ord)
		join unnest($10::bytea[], $11::text[], $12::interval[]) with ordinality raw (body, media_type, keep, ord) on raw.ord = a.ord
		order by a.ord`
)

// requiringQueues returns one of them so that the queues have to be declared that parameter n lists.
func requiringQueues(sql string, n int) string {
	return strings.Replace(sql, "$2::text[]", "agent_service.require_queues($2::text[], $"+strconv.Itoa(n)+"::text[])", 1)
}

// requiredQueues are the queues that have to be declared for the inserts.
func (tx *transaction) requiredQueues() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, in := range tx.inserts {
			if !in.IsAccepted && !yield(in.queue) {
				return
			}
		}
	}
}

// noteLane notes that something is inserted into a lane, claimable from vt on (nil: not said).
func (tx *transaction) noteLane(lane watermark.Lane, vt *time.Time) {
	earliest, known := tx.lanes[lane]
	switch {
	case vt != nil && (earliest.IsZero() || vt.Before(earliest)):
		tx.lanes[lane] = *vt
	case !known:
		tx.lanes[lane] = time.Time{}
	}
}

// assignToWaiters gives the claims that wait the events inserted for them, in the order in which they would claim them.
func (tx *transaction) assignToWaiters() {
	if len(tx.offers) == 0 {
		return
	}
	order := make([]*pendingInsert, len(tx.inserts))
	for i := range order {
		order[i] = &tx.inserts[i]
	}
	slices.SortStableFunc(order, func(a, b *pendingInsert) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, in := range order {
		op := tx.offers[in.queue]
		if op == nil || in.VT != nil || in.Delay != 0 || op.claim.handedOver == op.claim.Limit {
			continue
		}
		if types := op.claim.Types; len(types) > 0 && !slices.Contains(types, in.Type) {
			continue
		}
		in.waiter, in.slot = op, op.claim.handedOver
		op.claim.handedOver++
	}
}

// worker is whom the event is claimed for.
func (in *pendingInsert) worker() string {
	if in.slot < len(in.waiter.claim.workers) {
		return in.waiter.claim.workers[in.slot]
	}
	return ""
}

// readInserted reads the result of an insert, and gives the event to its waiter.
func (tx *transaction) readInserted(r *pg.RowReader, in *pendingInsert) error {
	result := in.result
	result.Queue = in.queue
	var rest []any // of the columns
	if tx.keepsRaw {
		rest = []any{nil}
	}
	if in.waiter == nil {
		if err := r.Read(append([]any{&result.ID, &result.VT, nil, nil, nil, nil, &result.Deduplicated, nil}, rest...)...); err != nil {
			return err
		}
	} else {
		e := Event{
			Queue: in.queue, Attempts: 1, Type: in.Type, Source: in.Source, Priority: in.Priority, IdempotencyKey: in.IdempotencyKey, Group: in.Group, ExpiresAt: in.ExpiresAt, Worker: in.worker(),
		}
		if in.MaxAttempts != 0 {
			e.MaxAttempts = new(int32(min(in.MaxAttempts, math.MaxInt32)))
		}
		// Where the key was known these are null.
		columns := []any{&e.ID, &e.VT, &e.EnqueuedAt, &e.EventTS, (*[]byte)(&e.Payload), &e.Claimed, &result.Deduplicated, (*[]byte)(&e.Meta)}
		if err := r.Read(append(columns, rest...)...); err != nil {
			in.waiter.unreadable(err)
			return err
		}
		result.ID, result.VT = e.ID, e.VT
		if len(e.Claimed) > 0 { // else the queue is paused, its limits are against it, or nothing was inserted
			e.Receipt = receiptOf(&e, in.token[:])
			result.VT = e.EnqueuedAt
			in.waiter.claim.events = append(in.waiter.claim.events, e)
			in.waiter.claim.noteThrough(&e, e.EnqueuedAt)
			n := tx.count(in.queue)
			n.Claimed++
			n.Waits.observeWait(&e, result.VT)
		} else {
			tx.later[in.queue] = true // the queue may delay its events: the waiters have to look when they are due
		}
	}
	if result.ID == 0 {
		return errNoAnswer
	}
	if !result.Deduplicated {
		tx.count(in.queue).Inserted++
	}
	return nil
}

// options returns the fields of the event beside its payload, as agent_service.insert_and_claim_events takes them, or nil.
func (e *InsertParams) options() *string {
	if e.Type == "" && e.Source == "" && e.Priority == 0 && e.IdempotencyKey == "" && e.MaxAttempts == 0 && e.ExpiresAt == nil &&
		e.EventTS == nil && e.Meta == nil && e.Group == "" && e.KeyUntil == "" && e.MaxWait == 0 && !e.OnDuplicate.isReplacing() {
		return nil
	}
	b, err := json.Marshal(struct {
		Type        string          `json:"type,omitempty"`
		Source      string          `json:"source,omitempty"`
		Priority    int32           `json:"priority,omitempty"`
		Key         string          `json:"key,omitempty"`
		MaxAttempts int             `json:"max_attempts,omitempty"`
		ExpiresAt   *time.Time      `json:"expires_at,omitempty"`
		EventTS     *time.Time      `json:"event_ts,omitempty"`
		OnDuplicate OnDuplicate     `json:"on_duplicate,omitempty"`
		KeyFor      string          `json:"key_retention,omitempty"`
		KeyScope    string          `json:"key_scope,omitempty"`
		Meta        json.RawMessage `json:"meta,omitempty"`
		Verified    string          `json:"verified_source,omitempty"`
		Group       string          `json:"group,omitempty"`
		KeyUntil    KeyUntil        `json:"key_until,omitempty"`
		MaxWait     string          `json:"max_wait,omitempty"`
	}{
		e.Type, e.Source, e.Priority, e.IdempotencyKey, e.MaxAttempts, e.ExpiresAt, e.EventTS, e.OnDuplicate, e.keyFor(), e.KeyScope, e.Meta, e.VerifiedSource, e.Group,
		e.KeyUntil, intervalIfAny(e.MaxWait),
	})
	if err != nil { // a time that JSON has no way to write, or metadata that is not JSON
		_, noEventTS := json.Marshal(e.EventTS)
		switch { // to what is refused
		case e.Meta != nil && !json.Valid(e.Meta):
			b = []byte(`{"meta":0}`)
		case noEventTS != nil:
			b = []byte(`{"event_ts":"infinity"}`)
		default:
			b = []byte(`{"expires_at":"infinity"}`)
		}
	}
	return new(string(b))
}

// keyFor is KeyFor as PostgreSQL reads an interval; empty: zero.
func (e *InsertParams) keyFor() string {
	if e.IdempotencyKey == "" {
		return ""
	}
	return intervalIfAny(e.KeyFor)
}

// interval is a duration as PostgreSQL reads an interval, and intervalIfAny is empty for zero.
func interval(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + " s"
}

func intervalIfAny(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return interval(d)
}

// untimed is the time of an attempt that did not end with this ack.
const untimed time.Duration = math.MinInt64

// addAcks acks the events of all operations in the order of their ids, so that no two transactions wait for each other.
func (tx *transaction) addAcks(ops []*operation) {
	type pendingAck struct {
		*Ack
		op     *operation
		result *AckResult
	}
	var acks []pendingAck
	for _, op := range ops {
		if len(op.acks) > 0 {
			op.acked = make([]AckResult, len(op.acks))
		}
		for i := range op.acks {
			acks = append(acks, pendingAck{&op.acks[i], op, &op.acked[i]})
		}
	}
	if len(acks) == 0 {
		return
	}
	tx.hasAcks = true
	var traced []int64
	for _, a := range acks {
		if a.WantsTrace {
			traced = append(traced, a.ID)
		}
	}
	traces := tx.addTraces(traced)
	slices.SortStableFunc(acks, func(a, b pendingAck) int { return cmp.Compare(a.ID, b.ID) })
	ids, receipts := make([]int64, len(acks)), make([]*string, len(acks))
	var (
		results, allowed []*string
		attempts         []*int32 // of the receipts
		hashes           []*[]byte
	)
	for i, a := range acks {
		ids[i] = a.ID
		if a.Receipt != "" {
			receipts[i] = &a.Receipt
			if attempt, hash, ok := readReceipt(a.ID, a.Receipt); ok {
				pg.SetArg(&attempts, len(acks), i, &attempt)
				pg.SetArg(&hashes, len(acks), i, &hash)
			}
		}
		pg.SetArg(&results, len(acks), i, pg.JSONArg(a.Result))
		if a.Queues != nil {
			pg.SetArg(&allowed, len(acks), i, new(strings.Join(a.Queues, ",")))
		}
	}
	var ( // of a row
		ord           int
		status, queue string
		repeated      bool
		key           executionKey
		took          time.Duration
		readyVT       *time.Time
	)
	tx.query(`select ord, status, queue, repeated, type, worker, took, ready_vt from agent_service.ack_events($1, $2, $3::text[]::jsonb[], $4::text[], $5, $6)`,
		[]any{ids, receipts, results, allowed, attempts, hashes}, func(r *pg.RowReader) {
			ord, status, queue, key, took, readyVT = 0, "", "", executionKey{}, untimed, nil
			err := r.Read(&ord, &status, &queue, &repeated, &key.typ, &key.worker, &took, &readyVT)
			if err == nil && ord == 0 && status == "ready" {
				tx.freed[queue] = readyVT
				return
			}
			if ord < 1 || ord > len(acks) || acks[ord-1].result.ID != 0 { // the first row counts
				return
			}
			a := acks[ord-1]
			if err == nil {
				*a.result, err = ackResult(a.ID, status)
				if a.WantsTrace {
					a.result.Trace = traces[a.ID]
				}
			}
			switch {
			case err != nil:
				a.op.unreadable(err)
			case !repeated:
				n := tx.count(queue)
				n.Acked++
				if took != untimed {
					n.Processing.observe(took)
					addExecution(tx.acked, key, executionSum{cycles: 1, total: took, fastest: took, longest: took, latest: took})
				}
			}
		}, func() {
			for _, a := range acks {
				if a.result.ID == 0 {
					a.op.unreadable(errNoAnswer)
				}
			}
		})
}

// tracesSQL returns the EventTrace of events that are in their queue.
const tracesSQL = `select id, queue, traceparent, tracestate from agent_service.event_traces($1)`

// addTraces has the traces of events read before anything becomes of them. The map has them once the statement has run.
func (tx *transaction) addTraces(ids []int64) map[int64]EventTrace {
	if len(ids) == 0 {
		return nil
	}
	traces := make(map[int64]EventTrace, len(ids))
	tx.query(tracesSQL, []any{ids}, func(r *pg.RowReader) {
		var id int64
		var trace EventTrace
		if r.Read(&id, &trace.Queue, &trace.Parent, &trace.State) == nil {
			traces[id] = trace
		}
	}, func() {})
	return traces
}

// ackResult is the meaning of a status of agent_service.ack_events.
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

// addClaims makes the claims that inserts have not served, by queue: claims of a queue with a limit come one after the other, and those of two such queues must not wait
// for each other.
func (tx *transaction) addClaims(ops []*operation) {
	var claims []*operation
	for _, op := range ops {
		if op.claim != nil && op.claim.handedOver == 0 {
			claims = append(claims, op)
		}
	}
	slices.SortStableFunc(claims, func(a, b *operation) int { return cmp.Compare(a.claim.Queue, b.claim.Queue) })
	for _, op := range claims {
		tx.addClaim(op)
	}
}

func (tx *transaction) addClaim(op *operation) {
	c := op.claim
	c.tokens = newTokens(min(c.Limit, maxTokens))
	hashes := make([]byte, 0, 8*len(c.tokens))
	for i := range c.tokens {
		hashes = append(hashes, c.tokens[i].hash()...)
	}
	var token string
	var slot int
	var priorVT time.Time
	var waits Durations
	bytes := 0
	// The parts of the receipt come first: an event of which something else cannot be read is released by it.
	tx.query(`
		select id, attempts, claim_token, slot, claimed, event_ts, enqueued_at, vt, event, last_error, requeued_from,
			type, source, priority, key, max_attempts, expires_at, worker, occurrence, meta, publication, dead_letter_of, prior_vt, group_key
		from agent_service.claim_from_watermarks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, _max_bytes => $12, _hashes => $13, _sweep_max_attempts => $14)`,
		[]any{
			c.Queue, c.Limit, c.MaxAttempts, pg.OrNull(c.InvisibleFor), string(c.Order), c.Types, c.ExcludeIDs, c.workers,
			c.start.Priorities, c.start.Types, c.start.Marks, maxCommitBytes, hashes, tx.svc.cfg.MaxAttempts,
		}, func(r *pg.RowReader) {
			if c.events == nil {
				c.events = make([]Event, 0, min(c.Limit, 128))
			}
			n := len(c.events)
			c.events = append(c.events, Event{Queue: c.Queue})
			e := &c.events[n]
			token, slot = "", 0
			err := r.Read(&e.ID, &e.Attempts, &token, &slot, &e.Claimed, &e.EventTS, &e.EnqueuedAt, &e.VT, (*[]byte)(&e.Payload), &e.LastError, &e.RequeuedFrom,
				&e.Type, &e.Source, &e.Priority, &e.IdempotencyKey, &e.MaxAttempts, &e.ExpiresAt, &e.Worker, (*[]byte)(&e.Occurrence),
				(*[]byte)(&e.Meta), (*[]byte)(&e.Publication), &e.DeadLetterOf, &priorVT, &e.Group)
			switch {
			case token != "":
				e.Receipt = receiptOf(e, token)
			case slot > 0 && slot <= len(c.tokens):
				e.Receipt = receiptOf(e, c.tokens[slot-1][:])
			}
			if err != nil {
				op.unreadable(fmt.Errorf("event %d: %w", e.ID, err))
			} else {
				c.noteThrough(e, priorVT)
				waits.observeWait(e, priorVT)
			}
			isBeyond := e.Payload == nil // see agent_service.claim_from_watermarks
			if bytes += len(e.Payload) + len(e.Meta) + len(e.Publication); isBeyond || bytes > maxCommitBytes && n > 0 {
				c.surplus = append(c.surplus, Lease{ID: e.ID, Receipt: e.Receipt})
				c.events = c.events[:n]
			}
		}, func() {
			if n := c.count(); n > 0 {
				counts := tx.count(c.Queue)
				counts.Claimed += int64(n)
				counts.Waits.add(&waits)
			}
		})
}

// errNoAnswer is why an operation cannot be answered for which the database returned no row.
var errNoAnswer = errors.New("the database gave no answer for it")

// unreadable notes that the result of the operation cannot be read, and the first time why.
func (op *operation) unreadable(err error) {
	if op.err == nil {
		op.err = fmt.Errorf("%w: what was written cannot be read: %w", ErrUnavailable, err)
	}
}
