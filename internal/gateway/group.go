package gateway

import (
	"net/http"
	"time"
)

// A group of a queue is on one cell of those that the queue is spread over, so that its limits hold for the whole queue: the one that its hash chooses among the cells that idempotency keys go by. What is inserted into
// it goes there, and so do calls about it.

// insertKey says which cell an insert goes to: its group if it has one, or else its idempotency key.
type insertKey struct{ key, group string }

// hashed returns the text whose hash chooses the cell.
func (k insertKey) hashed() string {
	if k.group != "" {
		return "group " + k.group
	}
	return k.key
}

// groupCell returns the cell of a group of a placed queue.
func (g *Gateway) groupCell(p *placement, group string) (*cell, error) {
	set, _ := g.keyedSets(p, time.Now())
	return g.keyCell(p.Queue, insertKey{group: group}.hashed(), set)
}

// byGroup is for calls about the group in the path.
func byGroup(g *Gateway, c *call, r *http.Request) error { return g.toGroup(c, r, false) }

// useGroup is byGroup for calls that make something of the queue: they place it.
func useGroup(g *Gateway, c *call, r *http.Request) error { return g.toGroup(c, r, true) }

func (g *Gateway) toGroup(c *call, r *http.Request, isUse bool) error {
	queue := pathValue(r, "name")
	c.target = g.home()
	if !isQueue(queue) { // home says what is wrong
		return nil
	}
	c.queue = queue
	var p *placement
	var err error
	if isUse {
		p, err = g.place(c, r, queue)
	} else {
		p, err = g.placed(queue)
	}
	if err == nil && p != nil {
		c.target, err = g.groupCell(p, pathValue(r, "group"))
	}
	return err
}
