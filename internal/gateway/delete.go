package gateway

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
)

// deleteQueue is for the deletion of the queue in the path, which all cells are asked for: something on a cell that holds no part of a queue may name it, such as a source, a
// subscription or a schedule.
func deleteQueue(g *Gateway, c *call, r *http.Request) error {
	queue := pathValue(r, "name")
	if c.target = g.home(); !isQueue(queue) {
		return nil
	}
	c.queue = queue
	cells, err := g.holdersOf(queue, false)
	if err != nil {
		return err
	}
	return g.chooseAmong(c, r, append(cells, g.cellsBut(cells)...), func(g *Gateway, c *call, r *http.Request, _ []*cell, body []byte) error {
		return g.answerDelete(c, r, cells, body)
	})
}

// answerDelete deletes a queue on the cells that hold a part of it. What a cell would refuse is refused before anything is deleted: that something names the queue, that
// there are events, or leases.
func (g *Gateway) answerDelete(c *call, r *http.Request, cells []*cell, body []byte) error {
	// Who may not delete the queue is told so, and learns nothing else.
	if err := g.rehearse(r.Context(), c, cells[0], c.partWith(r, body)); !isAnswer(err, http.StatusPreconditionFailed) && !isAnswer(err, http.StatusNotFound) {
		return err
	}
	waiting, leased := int64(0), int64(0)
	for _, at := range cells {
		if len(cells) == 1 { // which counts them itself
			break
		}
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
	if err := g.checkUnnamed(c, r, g.cellsBut(cells)); err != nil {
		return err
	}
	return g.answerSums(c, r, cells, body)
}

// cellsBut returns all cells but some.
func (g *Gateway) cellsBut(some []*cell) []*cell {
	return slices.DeleteFunc(slices.Clone(g.cells()), func(at *cell) bool { return slices.Contains(some, at) })
}

// checkUnnamed has cells that hold no part of a queue delete it, which they refuse if something there names it. Else they have nothing to delete, but for what was left there.
func (g *Gateway) checkUnnamed(c *call, r *http.Request, cells []*cell) error {
	parts := g.askEach(r.Context(), c, cells, func(*cell) *http.Request {
		part := withoutConditions(c.partWith(r, nil))
		part.URL.RawQuery = "" // events that came there meanwhile stay
		return part
	})
	var refused error
	for _, part := range parts {
		_, err := g.success(c, part)
		var whole *answered
		switch {
		case err == nil || isAnswer(err, http.StatusNotFound) || refused != nil:
		case errors.As(err, &whole) && whole.status < http.StatusInternalServerError:
			refused = err
		case r.Context().Err() != nil:
			return err
		default:
			refused = away(part.at.number, "Cell "+part.at.label+" cannot be asked whether something there names the queue. Nothing was deleted; retry.", err)
		}
	}
	return refused
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
