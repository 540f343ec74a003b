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
	// coalescedRequests is how many requests of gathered calls are on their way at once. With one, two goroutines would take turns.
	coalescedRequests = 2
	// crowd is from how many events on their way there is no second request: those that come meanwhile cost less in one with the next.
	crowd = 8
	// maxCoalesced and maxCoalescedBytes bound such a request: a batch has at most 1,000 events, and 8 MiB unless the server says otherwise.
	maxCoalesced, maxCoalescedBytes = 1000, 2 << 20
	// maxCoalescedPayload is the size of a payload, in bytes, from which an event is sent by itself: there is little to save.
	maxCoalescedPayload = 32 << 10
)

// A coalescer sends the events that many goroutines insert, or publish, together: E is one of them, and R its result. While fewer than coalescedRequests with few events are on their way, an event
// is sent at once; those that come meanwhile go with the next request. So events gather when there are many, and none waits for a timer. The state below mu says who sends; there
// is no goroutine while nothing is sent.
type coalescer[E, R any] struct {
	c     *Client
	alone func(ctx context.Context, e E) (R, error)
	// together sends events as one request, each of which has a result or an error of its own unless the request failed.
	together func(ctx context.Context, events []E) ([]R, []error, error)

	mu      sync.Mutex
	sending int               // requests that are on their way
	onWay   int               // the events of these
	waiting []*gathered[E, R] // for the next request, in the order in which they came
	isOff   bool              // the server is older than coalescing
}

// A gathered event is sent with others. It has a key.
type gathered[E, R any] struct {
	event    E
	size     int           // of its payload, in bytes
	answered chan struct{} // closed once there are result and err
	result   R
	err      error
}

// send sends an event that has a key and an encoded payload. ctx ends the wait: an event that is on its way then may be stored all the same.
func (g *coalescer[E, R]) send(ctx context.Context, e E, size int) (R, error) {
	g.mu.Lock()
	if g.isOff || g.sending == 0 {
		g.sending++
		g.onWay++
		g.mu.Unlock()
		defer g.sent() // what is sent then is of other callers
		return g.alone(ctx, e)
	}
	one := &gathered[E, R]{event: e, size: size, answered: make(chan struct{})}
	g.waiting = append(g.waiting, one)
	if g.sending < coalescedRequests && g.onWay < crowd {
		g.sending++
		go g.run()
	}
	g.mu.Unlock()
	select {
	case <-one.answered:
		return one.result, one.err
	case <-ctx.Done():
		g.forget(one)
		var none R
		return none, context.Cause(ctx)
	}
}

// forget takes an event back that nobody waits for any more, unless it is on its way.
func (g *coalescer[E, R]) forget(one *gathered[E, R]) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if at := slices.Index(g.waiting, one); at >= 0 {
		g.waiting = slices.Delete(g.waiting, at, at+1)
	}
}

// sent notes that a request has its answer, and has what came meanwhile sent.
func (g *coalescer[E, R]) sent() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onWay--
	if len(g.waiting) == 0 || g.isCrowded() {
		g.sending--
		return
	}
	go g.run()
}

// isCrowded reports whether what waits goes with the next request of another sender. The caller holds mu, and counts as a sender without events on their way.
func (g *coalescer[E, R]) isCrowded() bool { return g.sending > 1 && g.onWay >= crowd }

// run sends requests until nothing waits, or another sender has taken over.
func (g *coalescer[E, R]) run() {
	for batch := g.next(0); batch != nil; batch = g.next(len(batch)) {
		g.sendTogether(batch)
		g.letCome()
	}
}

// letCome lets the goroutines run that have their answers, as long as they send more: it goes along with the next request, which takes less of the processors than two.
func (g *coalescer[E, R]) letCome() {
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

// next returns the events of the next request, after one of so many events; nil: none wait for the caller, which sends no more.
func (g *coalescer[E, R]) next(before int) []*gathered[E, R] {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onWay -= before // not earlier: whoever has an answer sends the next event before this, and that is to go along
	n, size := 0, 0
	for ; n < len(g.waiting) && n < maxCoalesced && !g.isCrowded(); n++ {
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
	g.onWay += n
	return batch
}

// sendTogether sends events as one request, and answers each.
func (g *coalescer[E, R]) sendTogether(batch []*gathered[E, R]) {
	ctx := context.Background() // the callers may go, but the others need the answer
	if len(batch) == 1 {
		g.sendAlone(ctx, batch[0])
		return
	}
	events := make([]E, len(batch))
	for i, one := range batch {
		events[i] = one.event
	}
	results, errs, err := g.together(ctx, events)
	var whole *Error
	if errors.As(err, &whole) && whole.isOfSomeEvent() {
		g.sendEach(batch, whole)
		return
	}
	for i, one := range batch {
		if one.err = err; err == nil {
			one.result, one.err = results[i], errs[i]
		}
		if err == nil && one.err != nil && doubtOf(one.err) != refused && g.c.makesKeys() {
			go g.sendAlone(ctx, one) // its cell is away; those of the others are not, and must not wait for it
			continue
		}
		close(one.answered)
	}
}

// sendAlone sends an event with a request of its own, and answers it.
func (g *coalescer[E, R]) sendAlone(ctx context.Context, one *gathered[E, R]) {
	one.result, one.err = g.alone(ctx, one.event)
	close(one.answered)
}

// isOfSomeEvent reports whether a batch was refused for a reason that another one of its events need not have.
func (e *Error) isOfSomeEvent() bool {
	return isOfTheBody(e.Status) || e.Status == http.StatusForbidden || e.Status == http.StatusNotFound
}

// sendEach sends events by themselves that the server has refused together, because of one of them, or because it does not know such requests.
func (g *coalescer[E, R]) sendEach(batch []*gathered[E, R], why *Error) {
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
			g.sendAlone(context.Background(), one)
			<-slots
		})
	}
	all.Wait()
}

// insertTogether inserts events with encoded payloads, each on its own, with one request.
func (c *Client) insertTogether(ctx context.Context, events []NewEvent) ([]Inserted, []error, error) {
	var answer insertedBatch
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/events/batch", Query: eachAlone, Body: insertBatchRequest{events}, Repeatable: allHave(events, func(e NewEvent) string { return e.Key })}, &answer)
	return resultsOf(len(events), answer.Results, func(i int) (Inserted, error) { return answer.Results[i].of() }, err)
}

// publishTogether publishes events that have keys and encoded payloads, each on its own, with one request.
func (c *Client) publishTogether(ctx context.Context, publications []NewPublication) ([]Published, []error, error) {
	var answer publishedBatch
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/publish", Query: eachAlone, Body: publishBatchRequest{publications}, Repeatable: true}, &answer)
	return resultsOf(len(publications), answer.Results, func(i int) (Published, error) { return answer.Results[i].of(publications[i].Topic) }, err)
}

// eachAlone is the query of a batch in which each event has a result of its own.
var eachAlone = url.Values{"atomic": {"false"}}

// resultsOf returns what n calls would have returned by themselves, which of says of each of the answers of a batch, unless that failed with err.
func resultsOf[A, R any](n int, answers []A, of func(i int) (R, error), err error) ([]R, []error, error) {
	switch {
	case err != nil:
		return nil, nil, err
	case len(answers) != n:
		return nil, nil, errNotJSON
	}
	results, errs := make([]R, n), make([]error, n)
	for i := range answers {
		results[i], errs[i] = of(i)
	}
	return results, errs, nil
}

// A batchError is why one event of a batch has no result.
type batchError struct {
	Status int    `json:"status"`
	Code   string `json:"code,omitzero"`
	Detail string `json:"detail,omitzero"`
}

// of returns the error of a call of that event alone, at path.
func (r *batchError) of(path string, cell *int) error {
	if r.Status < http.StatusBadRequest {
		return nil
	}
	return &Error{
		Status: r.Status, Code: r.Code, Title: http.StatusText(r.Status), Detail: r.Detail, Type: "urn:queued:problem:" + r.Code,
		Cell: cell, Method: http.MethodPost, Path: path,
	}
}

// An insertedResult is the answer to one of the inserts of a batch that is not atomic.
type insertedResult struct {
	batchError
	Cell  *int      `json:"cell,omitzero"` // that the error is with, of a gateway
	ID    int64     `json:"id,omitzero"`
	Queue string    `json:"queue,omitzero"`
	VT    time.Time `json:"vt,omitzero"`
}

// of returns what the call would have returned by itself.
func (r *insertedResult) of() (Inserted, error) {
	if err := r.batchError.of("/events", r.Cell); err != nil {
		return Inserted{}, err
	}
	return Inserted{ID: r.ID, Queue: r.Queue, VT: r.VT, Replayed: r.Status == http.StatusOK}, nil
}

// A publishedResult is the answer to one of the publications of a batch that is not atomic.
type publishedResult struct {
	batchError
	Position    int64     `json:"position,omitzero"`
	Topic       string    `json:"topic,omitzero"`
	PublishedAt time.Time `json:"published_at,omitzero"`
}

// of returns what the call to a topic would have returned by itself.
func (r *publishedResult) of(topic string) (Published, error) {
	if err := r.batchError.of("/topics/"+escape(topic), nil); err != nil {
		return Published{}, err
	}
	return Published{Position: r.Position, Topic: r.Topic, PublishedAt: r.PublishedAt, Replayed: r.Status == http.StatusOK}, nil
}
