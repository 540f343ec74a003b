package workloads

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// leaseTime is longer than any run, so that an event claimed twice is a fault and not a lease that ended.
const leaseTime = "24h"

// retryDelay is how long a worker keeps off a server that it could not reach.
const retryDelay = 100 * time.Millisecond

// worker is one client: a goroutine and its connection.
type worker struct {
	at     *endpoint
	queue  string
	shard  *shard
	ledger *ledger

	mu      sync.Mutex
	conn    *conn // nil after a failure, until the next request; changed by the worker's goroutine alone, under mu
	over    bool  // interrupted
	waiting bool  // a claim may be waiting at the server

	posted int64 // the event that the latest post made
	buffer []byte
	ids    []int64
	leases []lease
}

func newWorker(at *endpoint, queue string, m *meter, number int, l *ledger) *worker {
	return &worker{at: at, queue: queue, shard: m.shardOf(number), ledger: l}
}

// connect opens the worker's connection unless it is open.
func (w *worker) connect(ctx context.Context) error {
	if w.conn != nil {
		return nil
	}
	c, err := dial(ctx, w.at)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = c
	if w.over && w.waiting {
		c.cut()
	}
	return nil
}

func (w *worker) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		w.conn.close()
		w.conn = nil
	}
}

// ask sends a request, which may wait for so long at the server, and returns the answer's body if it has the status that
// is wanted. Anything else is counted as a fault of this kind, and that is all that becomes of it.
func (w *worker) ask(ctx context.Context, k kind, request []byte, want int, wait time.Duration) (body []byte, ok bool) {
	if err := w.connect(ctx); err != nil {
		w.fail(ctx, k, "connection")
		return nil, false
	}
	status, body, err := w.conn.do(request, wait)
	switch {
	case err != nil:
		w.close()
		w.fail(ctx, k, "connection")
		return nil, false
	case status != want:
		what := strconv.Itoa(status)
		if code := problemCode(body); code != "" {
			what += " " + code
		}
		w.fail(ctx, k, what)
		return nil, false
	}
	return body, true
}

// fail counts a failure and pauses, so that a server in trouble is not stormed.
func (w *worker) fail(ctx context.Context, k kind, what string) {
	if ctx.Err() == nil { // or it was interrupted, which is nobody's fault
		w.shard.failed(kindNames[k] + " " + what)
	}
	if k == posting {
		w.ledger.failedPosts.Add(1)
	}
	pause(ctx, retryDelay)
}

// post sends one event; request is from postRequest. Its latency counts from intended, if that is not zero.
func (w *worker) post(ctx context.Context, request []byte, intended time.Time) bool {
	start := orNow(intended)
	body, ok := w.ask(ctx, posting, request, 201, 0)
	if !ok {
		return false
	}
	took := time.Since(start)
	id, err := scanID(body)
	if err != nil {
		w.fail(ctx, posting, err.Error())
		return false
	}
	w.shard.done(posting, took, 1)
	w.ledger.post(id)
	w.posted = id
	return true
}

// interrupt ends a claim that waits, and every later one at once. Other requests are soon over, and cutting
// them off would leave open what became of them. Unlike the rest, it may be called from elsewhere.
func (w *worker) interrupt() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = true
	if w.waiting && w.conn != nil {
		w.conn.cut()
	}
}

// await notes that the next request may wait for long, unless the worker was interrupted.
func (w *worker) await(waits bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = waits
	return !w.over
}

// postBatch sends many events; request is from batchRequest.
func (w *worker) postBatch(ctx context.Context, request []byte, n int, intended time.Time) bool {
	start := orNow(intended)
	body, ok := w.ask(ctx, posting, request, 201, 0)
	if !ok {
		w.ledger.failedPosts.Add(int64(n - 1))
		return false
	}
	took := time.Since(start)
	var err error
	w.ids, err = scanIDs(body, w.ids[:0])
	if err == nil && len(w.ids) != n {
		err = fmt.Errorf("%d events were posted and %d ids came back", n, len(w.ids))
	}
	if err != nil {
		w.fail(ctx, posting, err.Error())
		return false
	}
	w.shard.done(posting, took, n)
	for _, id := range w.ids {
		w.ledger.post(id)
	}
	return true
}

// claim asks for events; request is from claimRequest. What it returns is good until the next request.
func (w *worker) claim(ctx context.Context, request []byte, wait time.Duration) ([]lease, bool) {
	if wait > 0 {
		if !w.await(true) {
			return nil, false
		}
		defer w.await(false)
	}
	start := time.Now()
	body, ok := w.ask(ctx, claiming, request, 200, wait)
	if !ok {
		return nil, false
	}
	took := time.Since(start)
	var err error
	w.leases, err = scanLeases(body, w.leases[:0])
	if err != nil {
		w.fail(ctx, claiming, err.Error())
		return nil, false
	}
	w.shard.done(claiming, took, len(w.leases))
	for _, l := range w.leases {
		w.ledger.claim(l.id)
	}
	return w.leases, true
}

// ack finishes one event.
func (w *worker) ack(ctx context.Context, l lease) bool {
	w.buffer = append(w.buffer[:0], "/events/"...)
	w.buffer = strconv.AppendInt(w.buffer, l.id, 10)
	w.buffer = append(w.buffer, "?receipt="...)
	w.buffer = append(w.buffer, l.receipt...)
	path := string(w.buffer)
	w.buffer = w.at.appendRequest(w.buffer[:0], "DELETE", path, nil)
	start := time.Now()
	if _, ok := w.ask(ctx, acking, w.buffer, 204, 0); !ok {
		return false
	}
	w.shard.done(acking, time.Since(start), 1)
	w.ledger.ack(l.id)
	return true
}

// ackBatch finishes many events.
func (w *worker) ackBatch(ctx context.Context, leases []lease) bool {
	w.buffer = append(w.buffer[:0], `{"events":[`...)
	for i, l := range leases {
		if i > 0 {
			w.buffer = append(w.buffer, ',')
		}
		w.buffer = append(w.buffer, `{"id":`...)
		w.buffer = strconv.AppendInt(w.buffer, l.id, 10)
		w.buffer = append(w.buffer, `,"receipt":"`...)
		w.buffer = append(w.buffer, l.receipt...)
		w.buffer = append(w.buffer, `"}`...)
	}
	w.buffer = append(w.buffer, "]}"...)
	body := w.buffer
	request := w.at.request("POST", "/ack", body)
	start := time.Now()
	answer, ok := w.ask(ctx, acking, request, 200, 0)
	if !ok {
		return false
	}
	took, finished := time.Since(start), 0
	err := scanAcks(answer, func(id, status int64) {
		if status != 204 {
			w.shard.failed(fmt.Sprintf("ack %d", status))
			return
		}
		finished++
		w.ledger.ack(id)
	})
	if err != nil {
		w.fail(ctx, acking, err.Error())
		return false
	}
	w.shard.done(acking, took, finished)
	return true
}

// postRequest posts one event.
func postRequest(at *endpoint, queue string, payload []byte) []byte {
	return at.request("POST", "/events?queue="+queue, payload)
}

// batchRequest posts n events.
func batchRequest(at *endpoint, queue string, payload []byte, n int) []byte {
	body := []byte(`{"events":[`)
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, `{"event":`...)
		body = append(body, payload...)
		body = append(body, `,"queue":"`...)
		body = append(body, queue...)
		body = append(body, `"}`...)
	}
	return at.request("POST", "/events/batch", append(body, "]}"...))
}

// claimRequest claims up to limit events, in the order (empty: the server's own) and after the wait (zero: none).
func claimRequest(at *endpoint, queue string, limit int, order string, wait time.Duration) []byte {
	body := fmt.Appendf(nil, `{"queue":%q,"limit":%d,"invisible_for":%q`, queue, limit, leaseTime)
	if order != "" {
		body = fmt.Appendf(body, `,"order":%q`, order)
	}
	if wait > 0 {
		body = fmt.Appendf(body, `,"wait":%q`, wait)
	}
	return at.request("POST", "/claim", append(body, '}'))
}

func orNow(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}

// pause waits for d and reports whether it passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// pauseUntil is pause up to a time, which may have passed.
func pauseUntil(ctx context.Context, t time.Time) bool {
	if d := time.Until(t); d > 0 {
		return pause(ctx, d)
	}
	return ctx.Err() == nil
}
