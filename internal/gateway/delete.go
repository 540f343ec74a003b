package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
)

// deleteQueue is for the deletion of the queue in the path: home decides, which knows what names it, and the cells that hold a part of it follow.
func deleteQueue(g *Gateway, c *call, r *http.Request) error {
	queue := pathValue(r, "name")
	if c.target = g.home(); !isQueue(queue) {
		return nil
	}
	c.queue = queue
	holders, err := g.cellsOf(queue)
	if err != nil {
		return err
	}
	if others := slices.DeleteFunc(slices.Clone(holders), func(at *cell) bool { return at == g.home() }); len(others) > 0 {
		c.answer = func(r *http.Request) error { return g.answerDelete(c, r, holders, others) }
	}
	return nil
}

// answerDelete deletes a queue at home, and then on the others. What a cell would refuse is refused before anything is deleted: that there are events, or leases.
func (g *Gateway) answerDelete(c *call, r *http.Request, holders, others []*cell) error {
	// Who may not delete the queue is told so, and learns nothing else.
	if err := g.rehearse(r.Context(), c, g.home(), c.deletion(r)); !isAnswer(err, http.StatusPreconditionFailed) && !isAnswer(err, http.StatusNotFound) {
		return err
	}
	waiting, leased := int64(0), int64(0)
	for _, at := range holders {
		has, err := g.countsOf(r.Context(), at, c.queue)
		if err != nil {
			return away(at.number, "Cell "+at.label+" holds a part of the queue, and cannot be asked whether it has events. Nothing was deleted; retry.", err)
		}
		waiting += has.events() - has.Leased
		leased += has.Leased
	}
	switch {
	case leased > 0:
		return refuse(queueLeased, "Events of the queue are under a lease: %d. Pause the queue, wait until they are finished or their leases end, and delete it then.", leased)
	case waiting > 0 && queryOf(r, "purge", "") != "true":
		return refuse(queueNotEmpty, "The queue has events: %d. Send ?purge=true to move them into history as cancelled, or move them to another queue first.", waiting)
	}

	type deleted struct {
		Purged int64 `json:"purged"`
	}
	var done deleted
	var answer *http.Response // the first success
	add := func(part *part) error {
		var one deleted
		text, err := g.success(c, part)
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err == nil && answer == nil {
			answer = part.resp
		}
		done.Purged += one.Purged
		return err
	}
	ofHome := c.deletion(r)
	ofHome.Header["If-None-Match"] = r.Header["If-None-Match"]
	absent := add(g.ask(r.Context(), c, g.home(), ofHome))
	if absent != nil && !isAnswer(absent, http.StatusNotFound) {
		return absent
	}
	var missing []int
	for _, part := range g.askEach(r.Context(), c, others, func(*cell) *http.Request {
		part := c.deletion(r)
		part.Header.Del("If-Match") // which home has checked
		return part
	}) {
		err := add(part)
		switch {
		case err == nil || isAnswer(err, http.StatusNotFound):
		case refusalOf(err) != nil:
			return err
		default:
			missing = append(missing, part.at.number)
		}
	}
	if answer == nil && len(missing) == 0 {
		return absent // all say so
	}
	if answer == nil {
		return away(missing[0], "The queue could not be deleted on every cell that holds a part of it. Retry.", nil)
	}
	c.missing(append(missing, g.spread(r.Context(), ofSettings)...))
	text, err := json.Marshal(done)
	if err != nil {
		return err
	}
	writeAs(c, answer, append(text, '\n'))
	return nil
}

// deletion returns the request to a cell to delete its part of a queue.
func (c *call) deletion(r *http.Request) *http.Request {
	part := c.partOf(r, r.Method, r.URL.EscapedPath(), nil, nil)
	part.URL.RawQuery = r.URL.RawQuery // cells refuse what is malformed
	return part
}

// writeAs answers a call with the answer of a cell, whose body was read or made anew.
func writeAs(c *call, resp *http.Response, body []byte) {
	for _, name := range []string{"Etag", "Location", "Idempotency-Replayed"} {
		if values := resp.Header[name]; len(values) > 0 {
			c.Header()[name] = values
		}
	}
	(&answered{resp.StatusCode, resp.Header, body}).write(c)
}

// A waitingCount is how many events a cell has of a queue.
type waitingCount struct {
	Ready, Scheduled, Waiting, Leased int64
	Estimated                         bool
}

// events counts them all, whatever their state.
func (w *waitingCount) events() int64 { return w.Ready + w.Scheduled + w.Waiting + w.Leased }

// countsOf asks a cell, in the gateway's name, how many events it has of a queue.
func (g *Gateway) countsOf(ctx context.Context, at *cell, queue string) (has waitingCount, err error) {
	if !at.isUp() {
		return has, errAway
	}
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	err = at.do(ctx, http.MethodGet, "/queues/"+url.PathEscape(queue), at.ownHeader(), nil, &has)
	if isAnswer(err, http.StatusNotFound) { // only declared queues are taken, and nobody has made it there
		return waitingCount{}, nil
	}
	return has, err
}
