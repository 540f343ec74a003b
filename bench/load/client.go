package load

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"
)

const (
	// leaseTime is longer than any run, so that an event claimed twice is an error and not a lease that ended.
	leaseTime = "24h"
	// retryDelay is how long a client pauses after a failure, so that a server in trouble is not flooded.
	retryDelay = 100 * time.Millisecond
)

// Client is one goroutine's connection to a queue of a server. A method that reports false has counted the failure.
type Client struct {
	target  *Target
	queue   string
	shard   *shard
	account *Account

	connection *connection // nil after a failure, until the next request
	buffer     []byte      // of requests
	body       []byte
	ids        []int64
	leases     []Lease
	held       Lease // that the next AckAndClaim acks, a copy; zero: none
	heldSince  time.Time
}

// Queue returns the queue that the client works on.
func (c *Client) Queue() string { return c.queue }

func (c *Client) connect(ctx context.Context) (err error) {
	if c.connection == nil {
		c.connection, err = dial(ctx, c.target)
	}
	return err
}

func (c *Client) close() {
	if c.connection != nil {
		c.connection.close()
		c.connection = nil
	}
}

// Add counts a step that the client did not make as a request of its own, with its events.
func (c *Client) Add(step Step, took time.Duration, events int) { c.shard.add(step, took, events) }

// send sends a request, which may wait for so long at the server, and returns the body of a response with the wanted status.
// Anything else is counted as an error of this step.
func (c *Client) send(ctx context.Context, step Step, request []byte, want int, wait time.Duration) (body []byte, ok bool) {
	if err := c.connect(ctx); err != nil {
		c.fail(ctx, step, "connection")
		return nil, false
	}
	if wait > 0 {
		// Other requests are soon over, and cutting them off would leave their results open.
		defer context.AfterFunc(ctx, c.connection.close)()
	}
	status, body, err := c.connection.do(request, wait)
	switch {
	case err != nil:
		c.close()
		c.fail(ctx, step, "connection")
		return nil, false
	case status != want:
		c.fail(ctx, step, strconv.Itoa(status)+" "+problemCode(body))
		return nil, false
	}
	return body, true
}

// fail counts a failure and pauses.
func (c *Client) fail(ctx context.Context, step Step, what string) {
	if ctx.Err() == nil { // else it was interrupted, which is no error
		c.shard.fail(step.String() + " " + what)
	}
	Pause(ctx, retryDelay)
}

// InsertRequest is a prepared request for Insert.
type InsertRequest struct {
	bytes  []byte
	events int
	ids    []byte // the name of the id, or of the ids of a batch, in the response
	batch  bool
}

// InsertRequest prepares an insert of one event.
func (t *Target) InsertRequest(queue string, payload []byte) InsertRequest {
	return InsertRequest{bytes: t.appendRequest(nil, "POST", "/events?queue="+queue, payload), events: 1, ids: nameID}
}

// InsertBatchRequest prepares an insert of n events in one request.
func (t *Target) InsertBatchRequest(queue string, payload []byte, n int) InsertRequest {
	body := []byte(`{"events":[`)
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"event":%s,"queue":%q}`, payload, queue)
	}
	return InsertRequest{bytes: t.appendRequest(nil, "POST", "/events/batch", append(body, "]}"...)), events: n, ids: nameIDs, batch: true}
}

// InsertOfGroupRequest prepares an insert of one event of a group.
func (t *Target) InsertOfGroupRequest(queue, group string, payload []byte) InsertRequest {
	return InsertRequest{bytes: t.appendRequest(nil, "POST", "/events?queue="+queue+"&group="+group, payload), events: 1, ids: nameID}
}

// InsertOfGroupsRequest prepares an insert of an event of each of these groups in one request.
func (t *Target) InsertOfGroupsRequest(queue string, groups []string, payload []byte) InsertRequest {
	body := []byte(`{"events":[`)
	for i, group := range groups {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"event":%s,"queue":%q,"group":%q}`, payload, queue, group)
	}
	return InsertRequest{bytes: t.appendRequest(nil, "POST", "/events/batch", append(body, "]}"...)), events: len(groups), ids: nameIDs, batch: true}
}

// Insert inserts events and returns their ids, which are valid until the next insert. Its latency counts from the planned time
// unless that is zero.
func (c *Client) Insert(ctx context.Context, request InsertRequest, planned time.Time) (ids []int64, ok bool) {
	if planned.IsZero() {
		planned = time.Now()
	}
	body, ok := c.send(ctx, Insert, request.bytes, 201, 0)
	if !ok {
		c.account.failedInserts.Add(int64(request.events))
		return nil, false
	}
	took := time.Since(planned)
	var err error
	if request.batch {
		c.ids, err = parseInserts(c.ids[:0], body, request.ids)
	} else {
		var id int64
		id, err = parseInsert(body, request.ids)
		c.ids = append(c.ids[:0], id)
	}
	if err == nil && len(c.ids) != request.events {
		err = fmt.Errorf("%d events were inserted and %d ids came back", request.events, len(c.ids))
	}
	if err != nil {
		c.account.failedInserts.Add(int64(request.events))
		c.fail(ctx, Insert, err.Error())
		return nil, false
	}
	c.shard.add(Insert, took, len(c.ids))
	for _, id := range c.ids {
		c.account.Inserted(id)
	}
	return c.ids, true
}

// ClaimRequest is a prepared request for Claim.
type ClaimRequest struct {
	bytes []byte
	body  []byte // open at its end
	wait  time.Duration
}

// ClaimRequest prepares a claim of up to limit events, in the order (empty: the server's default), waiting for one for so long.
func (t *Target) ClaimRequest(queue string, limit int, order string, wait time.Duration) ClaimRequest {
	body := fmt.Appendf(nil, `{"queue":%q,"limit":%d,"invisible_for":%q`, queue, limit, leaseTime)
	if order != "" {
		body = fmt.Appendf(body, `,"order":%q`, order)
	}
	if wait > 0 {
		body = fmt.Appendf(body, `,"wait":%q`, wait)
	}
	return ClaimRequest{bytes: t.appendRequest(nil, "POST", "/claim", append(body, '}')), body: body, wait: wait}
}

// Claim claims events. The leases are valid until the next request. A claim that waits ends with ctx.
func (c *Client) Claim(ctx context.Context, request ClaimRequest) (leases []Lease, ok bool) {
	return c.claim(ctx, request, request.bytes, Lease{})
}

// AckAndClaim claims an event and acks the one that its last call has claimed, in one request, whose latency counts as that of both. The life of the new one counts from begin.
func (c *Client) AckAndClaim(ctx context.Context, request ClaimRequest, begin time.Time) bool {
	sent, held, began := request.bytes, c.held, c.heldSince
	if held.ID != 0 {
		c.body = fmt.Appendf(append(c.body[:0], request.body...), `,"acks":[{"id":%d,"receipt":%q}]}`, held.ID, held.Receipt)
		c.buffer = c.target.appendRequest(c.buffer[:0], "POST", "/claim", c.body)
		sent = c.buffer
	}
	leases, ok := c.claim(ctx, request, sent, held)
	if !ok {
		return false // the next call acks it
	}
	if held.ID != 0 {
		c.Add(EndToEnd, time.Since(began), 1)
	}
	c.held, c.heldSince = Lease{Receipt: c.held.Receipt[:0]}, begin
	if len(leases) > 0 {
		c.held.ID, c.held.Receipt = leases[0].ID, append(c.held.Receipt, leases[0].Receipt...)
	}
	return true
}

// claim sends a claim, with the ack of an event unless that has no id.
func (c *Client) claim(ctx context.Context, request ClaimRequest, sent []byte, held Lease) (leases []Lease, ok bool) {
	start := time.Now()
	body, ok := c.send(ctx, Claim, sent, 200, request.wait)
	if !ok {
		return nil, false
	}
	took := time.Since(start)
	var err error
	if held.ID != 0 {
		body, err = c.acked(body, held, took)
		if err != nil {
			c.fail(ctx, Ack, err.Error())
			return nil, false
		}
	}
	if c.leases, err = parseClaim(c.leases[:0], body); err != nil {
		c.fail(ctx, Claim, err.Error())
		return nil, false
	}
	c.shard.add(Claim, took, len(c.leases))
	for _, l := range c.leases {
		c.account.Claimed(l.ID)
	}
	return c.leases, true
}

// acked notes the result of the ack in the response to a claim, and returns what comes before that.
func (c *Client) acked(body []byte, held Lease, took time.Duration) (events []byte, err error) {
	at := bytes.LastIndex(body, nameAcks)
	if at < 0 {
		return nil, unexpected(body)
	}
	err = parseAcks(body[at:], func(id, status int64) {
		if id != held.ID || status != 204 {
			c.shard.fail(fmt.Sprintf("ack %d", status))
			return
		}
		c.shard.add(Ack, took, 1)
		c.account.Acked(id)
	})
	return body[:at], err
}

// Ack acks one event.
func (c *Client) Ack(ctx context.Context, l Lease) bool {
	path := "/events/" + strconv.FormatInt(l.ID, 10) + "?receipt=" + string(l.Receipt)
	c.buffer = c.target.appendRequest(c.buffer[:0], "DELETE", path, nil)
	start := time.Now()
	if _, ok := c.send(ctx, Ack, c.buffer, 204, 0); !ok {
		return false
	}
	c.shard.add(Ack, time.Since(start), 1)
	c.account.Acked(l.ID)
	return true
}

// AckBatch acks events in one request. It reports whether there was a response, which may refuse some of them.
func (c *Client) AckBatch(ctx context.Context, leases []Lease) bool {
	c.buffer = append(c.buffer[:0], `{"events":[`...)
	for i, l := range leases {
		if i > 0 {
			c.buffer = append(c.buffer, ',')
		}
		c.buffer = fmt.Appendf(c.buffer, `{"id":%d,"receipt":"%s"}`, l.ID, l.Receipt)
	}
	c.buffer = append(c.buffer, "]}"...)
	request := c.target.appendRequest(nil, "POST", "/ack", c.buffer)
	start := time.Now()
	response, ok := c.send(ctx, Ack, request, 200, 0)
	if !ok {
		return false
	}
	took, acked := time.Since(start), 0
	err := parseAcks(response, func(id, status int64) {
		if status != 204 {
			c.shard.fail(fmt.Sprintf("ack %d", status))
			return
		}
		acked++
		c.account.Acked(id)
	})
	if err != nil {
		c.fail(ctx, Ack, err.Error())
		return false
	}
	c.shard.add(Ack, took, acked)
	return true
}
