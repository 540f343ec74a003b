//go:build unix

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The load is light, because the tests are about faults.
const (
	inserters = 3
	workers   = 4
	leaseTime = 2 * time.Second
	claimWait = 500 * time.Millisecond

	cellBits = 45 // of an id, below the number of its cell

	// answerLimit bounds every response: QUEUED_REQUEST_TIMEOUT, the wait of a claim, and 10 s for a busy machine.
	answerLimit = 15*time.Second + claimWait + 10*time.Second
)

// load is a set of clients that insert, claim and finish events, at several addresses.
type load struct {
	t      *testing.T
	ledger *ledger
	addrs  []string
	client *http.Client
	seed   uint64
	queues []string // that it uses; none: the default one
	groups []string // of its events, with "" for those that have none; none: no event has one
	// throughGateways: the addresses are those of gateways with several cells behind them.
	throughGateways bool

	clients       uint64
	next          atomic.Int64    // the n of the latest insert
	context       context.Context // of the inserters
	workContext   context.Context // of the workers
	stopInserting context.CancelFunc
	stopWorking   context.CancelFunc
	inserting     sync.WaitGroup
	working       sync.WaitGroup
}

// startLoad starts the clients. They end with the test, or with finish.
func startLoad(t *testing.T, l *ledger, servers ...*queued) *load {
	t.Helper()
	d := newLoad(t, l, servers...)
	d.start()
	return d
}

// newLoad returns a load that has not started.
func newLoad(t *testing.T, l *ledger, servers ...*queued) *load {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: inserters + workers}
	d := &load{t: t, ledger: l, client: &http.Client{Transport: transport}, seed: uint64(time.Now().UnixNano())}
	t.Logf("seed %d", d.seed)
	for _, q := range servers {
		d.addrs = append(d.addrs, q.addr)
	}
	t.Cleanup(transport.CloseIdleConnections)
	return d
}

// start starts the clients.
func (d *load) start() {
	d.context, d.stopInserting = context.WithCancel(d.t.Context())
	d.workContext, d.stopWorking = context.WithCancel(d.t.Context())
	d.addInserters(inserters, true)
	d.addWorkers(workers)
	d.t.Cleanup(func() {
		d.stopInserting()
		d.stopWorking()
		d.inserting.Wait()
		d.working.Wait()
	})
}

// addInserters starts clients that insert. Without pauses, they insert as fast as they get responses.
func (d *load) addInserters(n int, pauses bool) {
	for range n {
		d.clients++
		c := d.newClient(d.clients)
		c.unthrottled = !pauses
		d.inserting.Go(func() { c.insert(d.context) })
	}
}

// addWorkers starts clients that claim and finish events.
func (d *load) addWorkers(n int) {
	for range n {
		d.clients++
		c := d.newClient(d.clients)
		d.working.Go(func() { c.work(d.workContext) })
	}
}

// awaitInserts returns when n more inserts have succeeded.
func (d *load) awaitInserts(n int) {
	d.t.Helper()
	before, _ := d.ledger.counts()
	for began := time.Now(); ; pause(5 * time.Millisecond) {
		if now, _ := d.ledger.counts(); now >= before+n {
			return
		}
		if time.Since(began) > startLimit {
			d.t.Fatalf("within %v fewer than %d inserts succeeded: %v", startLimit, n, d.ledger.counted())
		}
	}
}

// awaitInsertAfter waits for a successful insert after an instant, and returns how long after it that was.
func (d *load) awaitInsertAfter(since time.Time) time.Duration {
	d.t.Helper()
	return d.awaitInsertOn(anyCell, since)
}

// awaitInsertOn is awaitInsertAfter for one of several cells.
func (d *load) awaitInsertOn(cell int, since time.Time) time.Duration {
	d.t.Helper()
	for ; ; pause(5 * time.Millisecond) {
		if last := d.ledger.lastInserted(cell); last.After(since) {
			return last.Sub(since)
		}
		if time.Since(since) > startLimit {
			d.t.Fatalf("no insert succeeded within %v (cell %d)", startLimit, cell)
		}
	}
}

// finish stops the inserters, waits until the workers have emptied the queues, and compares the ledger with the databases at urls: one, or that of each cell.
func (d *load) finish(urls ...string) {
	d.t.Helper()
	d.stopInserting()
	d.inserting.Wait()
	limit := 90 * time.Second // many times the longest lease
	if !d.ledger.clean() {
		limit = 5 * time.Second // a violation is known already
	}
	for began := time.Now(); ; pause(50 * time.Millisecond) {
		left := 0
		for _, url := range urls {
			left += query[int](d.t, url, `select count(*)::int4 from agent.event where event ? 'n'`)
		}
		if left == 0 {
			break
		}
		if time.Since(began) > limit {
			d.ledger.violated("%d events are still in the queue %v after the last insert", left, limit)
			for cell, url := range urls {
				d.ledger.violated("database %d: %s", cell, query[string](d.t, url, `
					select coalesce(string_agg(format('%s: %s, %s of them due', queue, n, due), '; '), 'none')
					from (select queue, count(*) n, count(*) filter (where vt <= now()) due from agent.event where event ? 'n' group by queue) q`))
			}
			break
		}
	}
	d.stopWorking()
	d.working.Wait()
	d.ledger.check(d.t, urls...)
}

// client is one inserter or worker. One goroutine at a time uses it.
type client struct {
	*load
	rand *rand.Rand
	slow []*lease // leases whose events are acked long after the leases have ended
	kept []keyed  // inserts that are repeated later

	unthrottled bool
}

// keyed is an insert with a key.
type keyed struct{ n, path string }

func (d *load) newClient(number uint64) *client {
	return &client{load: d, rand: rand.New(rand.NewPCG(d.seed, number))}
}

// call sends one request to one of the servers. After status 0, 502 of a gateway, or 503, it is unknown whether the request took effect.
func (c *client) call(ctx context.Context, method, path string, body, out any, headers ...string) int {
	route, _, _ := strings.Cut(method+" "+path, "?")
	if i := strings.IndexAny(route, "0123456789"); i > 0 {
		rest := strings.TrimLeft(route[i:], "0123456789")
		route = route[:i] + "{id}" + rest
	}
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Error(err)
		return 0
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	status := 0
	defer func() {
		took := time.Since(began)
		c.ledger.answered(route, status, took)
		if status == 0 && took >= answerLimit {
			c.ledger.violated("%s got no response within %v", route, answerLimit)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.addrs[c.rand.IntN(len(c.addrs))]+path, bytes.NewReader(text))
	if err != nil {
		c.t.Error(err)
		return 0
	}
	if body == nil {
		req.Body, req.ContentLength = http.NoBody, 0
	} else {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	res, err := c.client.Do(req)
	if err != nil {
		return 0
	}
	answer, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		return 0
	}
	status = res.StatusCode
	if out != nil && status < 300 {
		if err := json.Unmarshal(answer, out); err != nil {
			c.ledger.violated("%s returned %s", route, answer)
		}
	}
	switch status {
	case http.StatusOK, http.StatusCreated, http.StatusNoContent, http.StatusConflict, http.StatusServiceUnavailable:
	case http.StatusBadGateway:
		if !c.throughGateways {
			c.ledger.violated("%s returned %d %s", route, status, answer)
		}
	case http.StatusNotFound: // the insert of the event was lost
		if !c.ledger.lossy {
			c.ledger.violated("%s returned %d %s", route, status, answer)
		}
	default:
		c.ledger.violated("%s returned %d %s", route, status, answer)
	}
	return status
}

// pause waits after a call, longer after a failure.
func (c *client) pause(ctx context.Context, status int) {
	d := time.Duration(c.rand.IntN(40)) * time.Millisecond
	if c.unthrottled {
		d = 0
	}
	if status == 0 || status >= http.StatusInternalServerError {
		d += 50 * time.Millisecond
	}
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (c *client) name() string {
	n := fmt.Sprintf("%d-%d", c.seed, c.next.Add(1)) // other loads may use the same ledger
	c.ledger.inserting(n)
	return n
}

func (c *client) insert(ctx context.Context) {
	// An insert that is running when the load ends is completed.
	calls := context.WithoutCancel(ctx)
	for ctx.Err() == nil {
		var status int
		switch chance := c.rand.IntN(10); {
		case chance < 6:
			n := c.name()
			var answer struct{ ID int64 }
			if status = c.call(calls, http.MethodPost, "/events"+c.inQueue(), map[string]any{"n": n}, &answer); status == http.StatusCreated {
				c.ledger.inserted(n, answer.ID)
			}
		case chance < 8: // with a key, repeated until the result is known
			status = c.insertKeyed(calls, keyed{c.name(), "/events" + c.inQueue()})
		case chance < 9 && len(c.kept) > 0: // and again, long after that
			status = c.insertKeyed(calls, c.kept[c.rand.IntN(len(c.kept))])
		default:
			events := make([]map[string]any, 1+c.rand.IntN(10))
			names := make([]string, len(events))
			in := c.queue()
			for i := range events {
				names[i] = c.name()
				events[i] = map[string]any{"event": map[string]any{"n": names[i]}}
				if in != "" {
					events[i]["queue"] = in
				}
				if group := c.group(); group != "" {
					events[i]["group"] = group
				}
			}
			var answer struct{ IDs []int64 }
			if status = c.call(calls, http.MethodPost, "/events/batch", map[string]any{"events": events}, &answer); status == http.StatusCreated {
				for i, id := range answer.IDs {
					c.ledger.inserted(names[i], id)
				}
			}
		}
		c.pause(ctx, status)
	}
}

// insertKeyed inserts an event with a key until the result is known, and returns the status of the answer.
func (c *client) insertKeyed(ctx context.Context, k keyed) (status int) {
	const most = 100 // that are kept
	for began := time.Now(); time.Since(began) < startLimit; c.pause(ctx, status) {
		var answer struct{ ID int64 }
		status = c.call(ctx, http.MethodPost, k.path, map[string]any{"n": k.n}, &answer, "Idempotency-Key: "+k.n)
		if status != http.StatusCreated && status != http.StatusOK {
			continue
		}
		c.ledger.inserted(k.n, answer.ID)
		if len(c.kept) < most && status == http.StatusCreated {
			c.kept = append(c.kept, k)
		}
		break
	}
	return status
}

// queue returns one of the load's queues; empty: the default one.
func (c *client) queue() string {
	if len(c.queues) == 0 {
		return ""
	}
	return c.queues[c.rand.IntN(len(c.queues))]
}

// group returns one of the load's groups; empty: none.
func (c *client) group() string {
	if len(c.groups) == 0 {
		return ""
	}
	return c.groups[c.rand.IntN(len(c.groups))]
}

// inQueue returns the query of an insert into one of the load's queues.
func (c *client) inQueue() string {
	query := url.Values{}
	if queue := c.queue(); queue != "" {
		query.Set("queue", queue)
	}
	if group := c.group(); group != "" {
		query.Set("group", group)
	}
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}

func (c *client) work(ctx context.Context) {
	for ctx.Err() == nil {
		var claim struct{ Events []*lease }
		body := map[string]any{
			"limit": 1 + c.rand.IntN(10), "wait": claimWait.String(), "invisible_for": leaseTime.String(), "max_attempts": 100000,
			"order": []string{"fifo", "random"}[c.rand.IntN(2)],
		}
		if queue := c.queue(); queue != "" {
			body["queue"] = queue
		}
		status := c.call(ctx, http.MethodPost, "/claim", body, &claim)
		c.ledger.claimed(claim.Events)
		c.handle(ctx, claim.Events)
		c.pause(ctx, status)
	}
}

// handle acks most of the claimed events, nacks some, drops some, and acks some too late.
func (c *client) handle(ctx context.Context, leases []*lease) {
	var batch []*lease
	for _, l := range leases {
		path := fmt.Sprintf("/events/%d", l.ID)
		switch chance := c.rand.IntN(100); {
		case chance < 2: // dropped
		case chance < 5: // acked after another client has claimed it
			l.late = time.Now().Add(2 * leaseTime)
			c.slow = append(c.slow, l)
		case chance < 10:
			c.ledger.mu.Lock()
			l.nacked = true
			c.ledger.mu.Unlock()
			c.nack(ctx, l)
		case chance < 15:
			var extended struct{ VT time.Time }
			if c.call(ctx, http.MethodPost, path+"/extend", map[string]any{"receipt": l.Receipt, "invisible_for": leaseTime.String()}, &extended) == http.StatusOK {
				c.ledger.mu.Lock()
				l.VT = extended.VT
				c.ledger.mu.Unlock()
			}
			batch = append(batch, l)
		case chance < 50:
			if c.call(ctx, http.MethodDelete, path+"?receipt="+l.Receipt, nil, nil) == http.StatusNoContent {
				c.ledger.ackSucceeded(l)
			}
		default:
			batch = append(batch, l)
		}
	}
	for len(c.slow) > 0 && time.Now().After(c.slow[0].late) {
		batch, c.slow = append(batch, c.slow[0]), c.slow[1:]
	}
	// A batch is of events of one cell. A single database has all of them.
	byCell := map[int64][]*lease{}
	for _, l := range batch {
		byCell[l.ID>>cellBits] = append(byCell[l.ID>>cellBits], l)
	}
	for _, number := range slices.Sorted(maps.Keys(byCell)) {
		c.ackBatch(ctx, byCell[number])
	}
}

// nack nacks an event, and often holds its group.
func (c *client) nack(ctx context.Context, l *lease) {
	body := map[string]any{"receipt": l.Receipt, "delay": "0s", "error": "failed on purpose"}
	var holdFor time.Duration
	if l.Group != "" && l.Queue != pausedQueue && c.rand.IntN(2) == 0 {
		holdFor = time.Duration(50+c.rand.IntN(200)) * time.Millisecond
		body["hold_group"] = holdFor.String()
	}
	began := time.Now()
	status := c.call(ctx, http.MethodPost, fmt.Sprintf("/events/%d/nack", l.ID), body, nil)
	answered := time.Now()
	// A failover may lose the hold if it may lose anything, and a nack after the end of the lease may hold nothing.
	if status == http.StatusOK && holdFor > 0 && !c.ledger.lossy && answered.Before(l.VT) {
		c.ledger.held(hold{l.Queue, l.Group, answered, began.Add(holdFor)})
	}
}

func (c *client) ackBatch(ctx context.Context, batch []*lease) {
	events := make([]map[string]any, len(batch))
	for i, l := range batch {
		events[i] = map[string]any{"id": l.ID, "receipt": l.Receipt}
	}
	var answer struct {
		Results []struct{ Status int }
	}
	c.call(ctx, http.MethodPost, "/ack", map[string]any{"events": events}, &answer)
	for i, r := range answer.Results {
		if r.Status == http.StatusNoContent {
			c.ledger.ackSucceeded(batch[i])
		}
	}
}
