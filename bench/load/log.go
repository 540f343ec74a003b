package load

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httputil"
	"strconv"
	"time"
)

// PublishRequest prepares the publication of one event to a topic. Insert sends it and returns its position.
func (t *Target) PublishRequest(topic string, payload []byte) InsertRequest {
	return InsertRequest{bytes: t.appendRequest(nil, "POST", "/topics/"+topic, payload), events: 1, ids: namePosition}
}

// PublishBatchRequest prepares the publication of n events to a topic in one request. Insert sends it and returns their positions.
func (t *Target) PublishBatchRequest(topic string, payload []byte, n int) InsertRequest {
	body := []byte(`{"events":[`)
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"topic":%q,"event":%s}`, topic, payload)
	}
	return InsertRequest{bytes: t.appendRequest(nil, "POST", "/publish", append(body, "]}"...)), events: n, ids: namePositions, batch: true}
}

// LogReader reads the log in order over a connection of its own, from a position on.
type LogReader struct {
	target     *Target
	connection *connection
	query      string
	request    []byte
	next, head int64
	Order
}

// Order is the events that a reader of the log has read, in order.
type Order struct {
	last, read int64
	hash       uint64 // of all positions, in order
}

// add adds a position, and fails when it does not come after all others.
func (o *Order) add(position int64) error {
	if position <= o.last {
		return fmt.Errorf("reading the log: position %d came after %d", position, o.last)
	}
	const basis, prime = 14695981039346656037, 1099511628211 // of FNV-1a
	if o.read == 0 {
		o.hash = basis
	}
	o.hash = (o.hash ^ uint64(position)) * prime
	o.last, o.read = position, o.read+1
	return nil
}

// SameOrder fails unless two readers that have come equally far have read the same events in the same order.
func (o *Order) SameOrder(other *Order) error {
	if o.read != other.read || o.hash != other.hash {
		return fmt.Errorf("two readers of the log disagree: one has read %d events, the other %d, in another order or others", o.read, other.read)
	}
	return nil
}

// ReadLog connects a reader that reads up to limit events at a time after a position: all of them, or those that a query such as topic=a asks
// for. It must be closed.
func (t *Target) ReadLog(ctx context.Context, query string, limit int, after int64) (*LogReader, error) {
	c, err := dial(ctx, t)
	if err != nil {
		return nil, err
	}
	if query != "" {
		query += "&"
	}
	return &LogReader{
		target: t, connection: c, query: "/log?" + query + "limit=" + strconv.Itoa(limit) + "&after=", next: after,
		Order: Order{last: after},
	}, nil
}

// Close ends the connection.
func (r *LogReader) Close() { r.connection.close() }

// Page reads the next page and calls each, unless it is nil, with every position. It returns how many events the page had, and fails when one did
// not come after the one before it. After an error the reader is of no more use.
func (r *LogReader) Page(each func(position int64)) (events int, err error) {
	r.request = r.target.appendRequest(r.request[:0], "GET", r.query+strconv.FormatInt(r.next, 10), nil)
	status, body, err := r.connection.do(r.request, 0)
	if err != nil {
		return 0, fmt.Errorf("reading the log: %w", err)
	}
	if status != 200 {
		return 0, &StatusError{Path: "/log", Status: status, Code: problemCode(body)}
	}
	rest := body
	for at := after(rest, namePosition); at != nil; at = after(rest, namePosition) {
		position, tail, ok := number(at)
		if !ok {
			return events, unexpected(body)
		}
		if err := r.add(position); err != nil {
			return events, err
		}
		if each != nil {
			each(position)
		}
		rest = tail
		events++
	}
	if after(rest, nameGap) != nil {
		return events, errors.New("reading the log: a part of it was dropped before it was read")
	}
	next, _, hasNext := number(after(rest, nameNext))
	head, _, hasHead := number(after(rest, nameHead))
	if !hasNext || !hasHead || next < r.last {
		return events, unexpected(rest)
	}
	r.next, r.head = next, head
	return events, nil
}

// Next is the position from which the next page goes on.
func (r *LogReader) Next() int64 { return r.next }

// IsLevel reports whether the last page had everything up to the head of the log.
func (r *LogReader) IsLevel() bool { return r.next >= r.head }

// CatchUp reads up to a position at least, calling each as Page does.
func (r *LogReader) CatchUp(ctx context.Context, until int64, each func(position int64)) error {
	for r.next < until {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := r.Page(each)
		if err != nil {
			return err
		}
		if n == 0 && r.IsLevel() && r.next < until {
			Pause(ctx, time.Millisecond) // an earlier position is still held
		}
	}
	return nil
}

// SubscriptionReader reads by a subscription of its own, and commits each page, over a connection of its own.
type SubscriptionReader struct {
	target       *Target
	connection   *connection
	path         string
	read, commit []byte // requests
	Order
}

// Subscribe makes a subscription to a topic, from the head of the log on, and connects a reader of up to limit events at a time. It must be closed.
func (t *Target) Subscribe(ctx context.Context, name, topic string, limit int) (*SubscriptionReader, error) {
	c, err := dial(ctx, t)
	if err != nil {
		return nil, err
	}
	path := "/subscriptions/" + name
	status, body, err := c.do(t.appendRequest(nil, "PUT", path, fmt.Appendf(nil, `{"filters":[{"topics":[%q]}]}`, topic)), 0)
	if err == nil && status != 201 {
		err = &StatusError{Path: path, Status: status, Code: problemCode(body)}
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("making a subscription: %w", err)
	}
	return &SubscriptionReader{
		target: t, connection: c, path: path, read: t.appendRequest(nil, "POST", path+"/read", fmt.Appendf(nil, `{"limit":%d}`, limit)),
	}, nil
}

// Close ends the connection. The subscription stays.
func (r *SubscriptionReader) Close() { r.connection.close() }

// Page reads the next page and commits it. It returns how many events the page had, and fails when one did not come after the one before it.
func (r *SubscriptionReader) Page() (events int, err error) {
	status, body, err := r.connection.do(r.read, 0)
	if err == nil && status != 200 {
		err = &StatusError{Path: r.path + "/read", Status: status, Code: problemCode(body)}
	}
	if err != nil {
		return 0, fmt.Errorf("reading by a subscription: %w", err)
	}
	cursor, _, ok := text(after(body, nameCursor))
	if !ok {
		return 0, unexpected(body)
	}
	for at := after(body, namePosition); at != nil; at = after(at, namePosition) {
		position, _, ok := number(at)
		if !ok {
			return events, unexpected(body)
		}
		if err := r.add(position); err != nil {
			return events, err
		}
		events++
	}
	if events == 0 {
		return 0, nil
	}
	r.commit = r.target.appendRequest(r.commit[:0], "POST", r.path+"/commit", fmt.Appendf(nil, `{"cursor":%q}`, cursor))
	status, body, err = r.connection.do(r.commit, 0)
	if err == nil && status != 200 {
		err = &StatusError{Path: r.path + "/commit", Status: status, Code: problemCode(body)}
	}
	if err != nil {
		return events, fmt.Errorf("committing a cursor: %w", err)
	}
	return events, nil
}

// Deliver makes a subscription to a topic, from a place of the log on, that is delivered into the queue of its name, however many events are there.
func (t *Target) Deliver(ctx context.Context, name, topic, start string) error {
	body := fmt.Appendf(nil, `{"filters":[{"topics":[%q]}],"start":%q,"deliver":{"queue":%q},"max_waiting":1000000000}`, topic, start, name)
	if _, err := t.call(ctx, "PUT", "/subscriptions/"+name, body, 201); err != nil {
		return fmt.Errorf("making a subscription: %w", err)
	}
	return nil
}

// Push has the events of a queue pushed to a URL, with so many requests in flight.
func (t *Target) Push(ctx context.Context, queue, url string, inFlight int) error {
	body := fmt.Appendf(nil, `{"url":%q,"max_in_flight":%d}`, url, inFlight)
	if _, err := t.call(ctx, "PUT", "/queues/"+queue+"/push", body, 201); err != nil {
		return fmt.Errorf("setting a push: %w", err)
	}
	return nil
}

// Limit sets what limits which events of a queue are leased at once: the flow of its policy, as JSON. No other setting of the policy is kept.
func (t *Target) Limit(ctx context.Context, queue, flow string) error {
	if _, err := t.call(ctx, "PUT", "/queues/"+queue, fmt.Appendf(nil, `{"flow":%s}`, flow), 200); err != nil {
		return fmt.Errorf("setting the limits of a queue: %w", err)
	}
	return nil
}

// Lag returns how many events of the log lie after the position of a subscription.
func (t *Target) Lag(ctx context.Context, name string) (int64, error) {
	body, err := t.Get(ctx, "/subscriptions/"+name)
	if err != nil {
		return 0, err
	}
	var subscription struct {
		Lag struct{ Events int64 }
	}
	if err := json.Unmarshal(body, &subscription); err != nil {
		return 0, fmt.Errorf("reading a subscription: %w", err)
	}
	return subscription.Lag.Events, nil
}

// Stream is a stream of the log, as Server-Sent Events, over a connection of its own.
type Stream struct {
	connection *connection
	lines      *bufio.Reader
	Order
}

// Follow opens a stream of the events after the head of the log that match a query such as topic=a. It must be closed.
func (t *Target) Follow(ctx context.Context, query string) (*Stream, error) {
	c, lines, err := t.openStream(ctx, "/stream?"+query)
	if err != nil {
		return nil, err
	}
	s := &Stream{connection: c, lines: lines}
	if err := s.begin(); err != nil {
		c.close()
		return nil, fmt.Errorf("opening a stream: %w", err)
	}
	return s, nil
}

// openStream requests Server-Sent Events over a connection of its own, which must be closed, and returns what reads their lines.
func (t *Target) openStream(ctx context.Context, path string) (*connection, *bufio.Reader, error) {
	c, err := dial(ctx, t)
	if err != nil {
		return nil, nil, err
	}
	if _, err = c.net.Write(t.appendRequest(nil, "GET", path, nil)); err == nil {
		err = c.response.Header.Read(c.reader)
	}
	if status := c.response.StatusCode(); err == nil && status != 200 {
		err = &StatusError{Path: path, Status: status}
	}
	if err != nil {
		c.close()
		return nil, nil, fmt.Errorf("opening a stream: %w", err)
	}
	return c, bufio.NewReader(httputil.NewChunkedReader(c.reader)), nil
}

// begin reads the first frame, which says where the stream begins.
func (s *Stream) begin() error {
	for {
		line, err := s.lines.ReadSlice('\n')
		if err != nil {
			return err
		}
		if id, found := bytes.CutPrefix(line, []byte("id: ")); found {
			s.last, _, _ = number(id)
			return nil
		}
	}
}

// Next waits for the next event and returns its position. It fails when that does not come after the last one, at a gap, and when the stream ends.
func (s *Stream) Next() (position int64, err error) {
	for {
		line, err := s.lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) { // of a long line the beginning is enough: the rest begins like no other
			return 0, fmt.Errorf("the stream ended: %w", err)
		}
		data, found := bytes.CutPrefix(line, []byte("data: "))
		if !found {
			continue
		}
		position, _, ok := number(after(data, namePosition))
		if !ok {
			return 0, unexpected(data)
		}
		return position, s.add(position)
	}
}

// Close ends the stream, and a call of Next that waits.
func (s *Stream) Close() { s.connection.close() }

// Head returns the position up to which the log is complete.
func (t *Target) Head(ctx context.Context) (int64, error) {
	body, err := t.Get(ctx, "/log?after=latest&limit=1")
	if err != nil {
		return 0, err
	}
	head, _, ok := number(after(body, nameHead))
	if !ok {
		return 0, unexpected(body)
	}
	return head, nil
}
