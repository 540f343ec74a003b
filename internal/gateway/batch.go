package gateway

import (
	"errors"
	"net/http"
	"net/url"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// A batch is the events of a call, each of which names a queue.
type batch struct {
	*listBody
	query  url.Values
	shares shares
	failed map[int]error // why elements have no cell: a *problem, or home's refusal, an *answered
}

// A target is what an event of a batch says of where it goes.
type target struct{ queue, key, group string }

// chooseBatch is for events that each name a queue. Where all go to one cell, that gets the batch as it is. Else each event has to be inserted on its own.
func chooseBatch(g *Gateway, c *call, r *http.Request) error {
	body, err := g.peek(c, r, g.cfg.MaxBody)
	if err != nil {
		return err
	}
	list, isReadable := parseList(body, "events")
	query, err := url.ParseQuery(r.URL.RawQuery)
	if !isReadable || err != nil || len(r.Header["Content-Encoding"]) > 0 {
		return toHome(g, c, r) // which says what is wrong
	}
	targets, isReadable := list.targets()
	if !isReadable {
		return toHome(g, c, r)
	}
	b := &batch{listBody: list, query: query, failed: map[int]error{}}
	isAtomic := query.Get("atomic") != "false"
	switch err := g.chooseEach(c, r, b, targets, isAtomic); {
	case err != nil:
		return err
	case len(b.shares) == 1 && len(b.failed) == 0:
		c.target = b.shares[0].at
		return nil
	case isAtomic && query.Get("atomic") != "" && query.Get("atomic") != "true":
		return toHome(g, c, r) // which says what is wrong with it
	case isAtomic:
		c.target = nil
		if err := g.checkKnownCaller(c, r); err != nil { // strangers are not told where queues are
			return err
		}
		return refuse(batchNotAtomic, "The queues of the events are on the cells %s, and a batch is all or nothing within one cell alone. Send atomic=false, "+
			"and each event gets a result of its own, or a batch for each cell. Nothing was done.", listNumbers(b.shares.numbers()))
	}
	c.answer = func(r *http.Request) error { return g.answerBatch(c, r, b) }
	return nil
}

// targets returns what each event says. It reports whether they can be read: no cell can read others.
func (l *listBody) targets() ([]target, bool) {
	targets := make([]target, len(l.elements))
	for i, element := range l.elements {
		var members struct {
			Queue jsontext.Value `json:"queue"`
			Key   jsontext.Value `json:"key"`
			Group jsontext.Value `json:"group"`
		}
		isQueueText, isKeyText, isGroupText := false, false, false
		if decode(element, &members) {
			targets[i].queue, isQueueText = textOf(members.Queue, defaultQueue)
			targets[i].key, isKeyText = textOf(members.Key, "")
			targets[i].group, isGroupText = textOf(members.Group, "")
		}
		if !isQueueText || !isKeyText || !isGroupText || !isQueue(targets[i].queue) {
			return nil, false
		}
	}
	return targets, true
}

// chooseEach finds the cell of each event of a batch, and places the queues that are not placed yet. Events without a key and a group of one queue go to one cell, which is one that others of
// the batch go to, if that may be. A batch that is atomic fails as soon as one of its events has no cell, and any batch as soon as its caller may not use a queue: no cell takes a batch with one
// such event, and nobody makes a call of each of a thousand.
func (g *Gateway) chooseEach(c *call, r *http.Request, b *batch, targets []target, isAtomic bool) error {
	type ofQueue struct {
		placed                  *placement
		keyed, grouped, unkeyed []int // events: under a key, of a group, and others
	}
	queues := map[string]*ofQueue{}
	cells, errs := make([]*cell, len(targets)), make([]error, len(targets))
	var names []string
	for i, to := range targets {
		of := queues[to.queue]
		if of == nil {
			of = new(ofQueue)
			queues[to.queue] = of
			names = append(names, to.queue)
		}
		switch {
		case to.key != "":
			of.keyed = append(of.keyed, i)
		case to.group != "":
			of.grouped = append(of.grouped, i)
		default:
			of.unkeyed = append(of.unkeyed, i)
		}
	}
	put := func(events []int, at *cell, err error) {
		for _, i := range events {
			cells[i], errs[i] = at, err
		}
	}
	for _, name := range names {
		of := queues[name]
		var err error
		if of.placed, err = g.place(c, r, name); err != nil {
			put(slices.Concat(of.keyed, of.grouped, of.unkeyed), nil, err)
		}
		switch {
		case r.Context().Err() != nil:
			return r.Context().Err()
		case err != nil && (isAtomic || isOfCaller(err)):
			return err
		case err == nil && len(of.keyed) > 0:
			keys := make([]insertKey, len(of.keyed))
			for n, i := range of.keyed {
				keys[n] = insertKey{targets[i].key, targets[i].group}
			}
			found, why := g.keyCells(c, r, of.placed, keys)
			for n, i := range of.keyed {
				if cells[i], errs[i] = found[n], why[n]; isOfCaller(why[n]) {
					return why[n]
				}
			}
		}
		if err == nil {
			for _, i := range of.grouped {
				cells[i], errs[i] = g.groupCell(of.placed, targets[i].group)
			}
		}
	}
	for _, hasChoice := range []bool{false, true} { // what has a choice comes last
		for _, name := range names {
			of := queues[name]
			if of.placed != nil && len(of.unkeyed) > 0 && hasChoice == (len(of.placed.Cells) != 1) {
				at, err := g.turnAmong(of.placed, cells)
				put(of.unkeyed, at, err)
			}
		}
	}
	for i, at := range cells {
		switch {
		case errs[i] == nil:
			b.shares.add(at, i)
		case isAtomic:
			return errs[i]
		default:
			b.failed[i] = errs[i]
		}
	}
	if len(queues) == 1 {
		c.queue = targets[0].queue
	}
	return nil
}

// isOfCaller reports whether err is an answer that is about the caller and not about an event: who is not known, may not do this, or has done it too often.
func isOfCaller(err error) bool {
	return isAnswer(err, http.StatusUnauthorized) || isAnswer(err, http.StatusForbidden) || isAnswer(err, http.StatusTooManyRequests)
}

// turnAmong is turnCell, but prefers a cell that others of a batch go to.
func (g *Gateway) turnAmong(p *placement, used []*cell) (*cell, error) {
	usable := g.usable(p.Cells)
	for _, at := range used {
		if at != nil && slices.Contains(usable, at) {
			return at, nil
		}
	}
	return g.turnCell(p.Queue, p.Cells)
}

// answerBatch has each cell insert its share, and answers with the results of all events, in their order. It is refused as a whole if nobody takes any of them.
func (g *Gateway) answerBatch(c *call, r *http.Request, b *batch) error {
	all := make(results, len(b.elements))
	size := int64(len(all)) * resultSize
	for _, one := range b.shares {
		size += int64(b.size(one.elements))
	}
	if !g.takeMemory(c, size) { // before anything is done, as what is done has to be answered
		return noMemory()
	}
	parts := g.askEach(r.Context(), c, b.shares.cells(), func(at *cell) *http.Request { return b.request(c, r, b.shares.of(at).elements) })
	var refusal *answered // the first
	refused := 0
	for n, one := range b.shares {
		answer, err := readResults(parts[n], len(one.elements))
		switch no := refusalOf(err); {
		case err == nil:
			all.put(one.elements, answer)
		case no != nil: // one event that the cell cannot take is enough: within a cell a request is taken or refused
			refused++
			no = one.pointTo(no, "events")
			all.set(one.elements, failureOf(no, one.at), nil)
			if refusal == nil {
				refusal = no
			}
		default:
			one.isMissing = true
			all.set(one.elements, failureOf(err, one.at), nil)
		}
	}
	for i, err := range b.failed {
		all.set([]int{i}, failureOf(err, nil), nil)
		if refusal == nil {
			refusal = refusalOf(err)
		}
	}
	if refused == len(b.shares) && refusal != nil {
		return refusal
	}
	if r.Context().Err() != nil {
		return r.Context().Err()
	}
	c.missing(b.shares.missing())
	all.answer(c)
	return nil
}

// request returns the part of the call that is about some of the events.
func (b *batch) request(c *call, r *http.Request, elements []int) *http.Request {
	return c.partOf(r, http.MethodPost, "/events/batch", b.query, b.with(elements))
}

// refusalOf returns the answer of a cell that has refused its whole share, because of one of its events or for a reason of its own; nil if err is another one. Nothing was
// done.
func refusalOf(err error) *answered {
	whole, ok := errors.AsType[*answered](err)
	if !ok || whole.status >= http.StatusInternalServerError || whole.status == http.StatusTooManyRequests {
		return nil
	}
	return whole
}
