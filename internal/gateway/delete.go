package gateway

import (
	"context"
	"net/http"
	"net/url"
)

// deleteQueue is for the deletion of the queue in the path.
func deleteQueue(g *Gateway, c *call, r *http.Request) error {
	return g.chooseOfQueue(c, r, (*Gateway).answerDelete)
}

// answerDelete deletes a queue on all cells that hold a part of it. What one of them would refuse is refused before anything is deleted: that there are events, or leases.
func (g *Gateway) answerDelete(c *call, r *http.Request, cells []*cell, body []byte) error {
	// Who may not delete the queue is told so, and learns nothing else.
	if err := g.rehearse(r.Context(), c, cells[0], c.partWith(r, body)); !isAnswer(err, http.StatusPreconditionFailed) && !isAnswer(err, http.StatusNotFound) {
		return err
	}
	waiting, leased := int64(0), int64(0)
	for _, at := range cells {
		has, err := g.countsOf(r.Context(), at, c.queue)
		if err != nil {
			return away(at.number, "Cell "+at.label+" holds a part of the queue, and cannot be asked whether it has events. Nothing was deleted; retry.", err)
		}
		waiting += has.Ready + has.Scheduled
		leased += has.Leased
	}
	switch {
	case leased > 0:
		return refuse(queueLeased, "%d events of the queue are under a lease, on all its cells together. Nothing was deleted.", leased)
	case waiting > 0 && queryOf(r, "purge", "") != "true":
		return refuse(queueNotEmpty, "The queue has %d events on all its cells together. Nothing was deleted. Send purge=true to move them into history as cancelled.", waiting)
	}
	return g.answerSums(c, r, cells, body)
}

// A waitingCount is how many events a cell has of a queue.
type waitingCount struct {
	Ready, Scheduled, Leased int64
	Estimated                bool
}

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
