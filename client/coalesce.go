package client

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// coalescedRequests is how many requests of gathered inserts are on their way at once. With one, two goroutines would take turns.
	coalescedRequests = 2
	// maxCoalesced and maxCoalescedBytes bound such a request: a batch has at most 1,000 events, and 8 MiB unless the server says otherwise.
	maxCoalesced, maxCoalescedBytes = 1000, 2 << 20
	// maxCoalescedPayload is the size of a payload, in bytes, from which an event is sent by itself: there is little to save.
	maxCoalescedPayload = 32 << 10
)

// A coalescer sends the inserts of many goroutines together. While fewer than coalescedRequests are on their way, an insert is sent at once; those that come meanwhile go with
// the next request. So inserts gather when there are many, and none waits for a timer. The state below mu says who sends; there is no goroutine while nothing is sent.
type coalescer struct {
	c *Client

	mu      sync.Mutex
	sending int               // requests that are on their way
	waiting []*gatheredInsert // for the next request, in the order in which they came
	isOff   bool              // the server is older than coalescing
}

// A gatheredInsert is an insert that is sent with others. Its event has a key.
type gatheredInsert struct {
	event    NewEvent
	size     int           // of its payload, in bytes
	answered chan struct{} // closed once there are inserted and err
	inserted Inserted
	err      error
}

// insert inserts an event that has a key and an encoded payload. ctx ends the wait: an event that is on its way then may be inserted all the same.
func (g *coalescer) insert(ctx context.Context, e NewEvent, size int) (Inserted, error) {
	g.mu.Lock()
	if g.isOff || g.sending == 0 {
		g.sending++
		g.mu.Unlock()
		defer g.sent() //nolint:contextcheck // what is sent then is of other callers
		return g.c.insertAlone(ctx, e)
	}
	one := &gatheredInsert{event: e, size: size, answered: make(chan struct{})}
	g.waiting = append(g.waiting, one)
	if g.sending < coalescedRequests {
		g.sending++
		go g.run() //nolint:contextcheck // as above
	}
	g.mu.Unlock()
	select {
	case <-one.answered:
		return one.inserted, one.err
	case <-ctx.Done():
		g.forget(one)
		return Inserted{}, context.Cause(ctx)
	}
}

// forget takes an insert back that nobody waits for any more, unless it is on its way.
func (g *coalescer) forget(one *gatheredInsert) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.waiting, one); at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	}
}

// sent notes that a request has its answer, and has what came meanwhile sent.
func (g *coalescer) sent() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.waiting) == 0 {
		g.sending--
		return
	}
	go g.run()
}

// run sends requests until nothing waits.
func (g *coalescer) run() {
	for {
		batch := g.next()
		if batch == nil {
			return
		}
		g.send(batch)
		g.letCome()
	}
}

// letCome lets the goroutines run that have their answers, as long as they insert more: it goes along with the next request, which takes less of the processors than two.
func (g *coalescer) letCome() {
	for before := -1; ; {
		g.mu.Lock()
		waiting := len(g.waiting)
		g.mu.Unlock()
		if waiting <= before || waiting >= maxCoalesced {
			return
		}
		before = waiting
		runtime.Gosched()
	}
}

// next returns the inserts of the next request; nil: none wait, and the caller sends no more.
func (g *coalescer) next() []*gatheredInsert {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, size := 0, 0
	for ; n < len(g.waiting) && n < maxCoalesced; n++ {
		if size += g.waiting[n].size; n > 0 && size > maxCoalescedBytes {
			break
		}
	}
	if n == 0 {
		g.sending--
		return nil
	}
	batch := slices.Clone(g.waiting[:n])
	g.waiting = slices.Delete(g.waiting, 0, n)
	return batch
}

// send sends inserts as one request, and answers each.
func (g *coalescer) send(batch []*gatheredInsert) {
	ctx := context.Background() // the callers may go, but the others need the answer
	if len(batch) == 1 {
		batch[0].inserted, batch[0].err = g.c.insertAlone(ctx, batch[0].event)
		close(batch[0].answered)
		return
	}
	events := make([]NewEvent, len(batch))
	for i, one := range batch {
		events[i] = one.event
	}
	var answer insertedBatch
	_, err := g.c.Do(ctx, Request{
		Method: http.MethodPost, Path: "/events/batch", Query: url.Values{"atomic": {"false"}}, Body: insertBatchRequest{events}, Repeatable: true,
	}, &answer)
	if err == nil && len(answer.Results) != len(batch) {
		err = errNotJSON
	}
	var whole *Error
	if errors.As(err, &whole) && whole.isOfSomeEvent() {
		g.sendEach(batch, whole)
		return
	}
	for i, one := range batch {
		if one.err = err; err == nil {
			one.inserted, one.err = answer.Results[i].of()
		}
		if err == nil && one.err != nil && doubtOf(one.err) != refused && g.c.makesKeys() {
			// Its cell is away; those of the others are not, and must not wait for it.
			go func() {
				one.inserted, one.err = g.c.insertAlone(ctx, one.event)
				close(one.answered)
			}()
			continue
		}
		close(one.answered)
	}
}

// isOfSomeEvent reports whether a batch was refused for a reason that another one of its events need not have.
func (e *Error) isOfSomeEvent() bool {
	return isOfTheBody(e.Status) || e.Status == http.StatusForbidden || e.Status == http.StatusNotFound
}

// sendEach sends inserts by themselves that the server has refused together, because of one of them, or because it does not know such requests.
func (g *coalescer) sendEach(batch []*gatheredInsert, why *Error) {
	if why.Code == "unknown_parameter" {
		g.mu.Lock()
		g.isOff = true
		g.mu.Unlock()
	}
	var all sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, one := range batch {
		slots <- struct{}{}
		all.Go(func() {
			one.inserted, one.err = g.c.insertAlone(context.Background(), one.event)
			close(one.answered)
			<-slots
		})
	}
	all.Wait()
}

// An insertedResult is the answer to one of the inserts of a batch that is not atomic.
type insertedResult struct {
	Status int       `json:"status"`
	ID     int64     `json:"id,omitzero"`
	Queue  string    `json:"queue,omitzero"`
	VT     time.Time `json:"vt,omitzero"`
	Code   string    `json:"code,omitzero"`
	Detail string    `json:"detail,omitzero"`
	Cell   *int      `json:"cell,omitzero"` // that the error is with, of a gateway
}

// of returns what the call would have returned by itself.
func (r *insertedResult) of() (Inserted, error) {
	if r.Status >= http.StatusBadRequest {
		return Inserted{}, &Error{
			Status: r.Status, Code: r.Code, Title: http.StatusText(r.Status), Detail: r.Detail, Type: "urn:queued:problem:" + r.Code,
			Cell: r.Cell, Method: http.MethodPost, Path: "/events",
		}
	}
	return Inserted{ID: r.ID, Queue: r.Queue, VT: r.VT, Replayed: r.Status == http.StatusOK}, nil
}
