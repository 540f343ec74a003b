package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"
)

// A queue was on other cells when some idempotency keys were first used. Inserts under keys go where they went until no gateway can have missed that the queue is placed elsewhere;
// after that, a key is asked for on these cells before it is used on another one. A cell that does not know it leaves it to the other: what comes there under it from a
// gateway that goes by an older placement is refused. See docs/decisions/025-cells.md.

// asked are cells that are asked for keys of inserts elsewhere in a time.
type asked struct {
	Cells cellSet   `json:"cells"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// askedAt returns those that are asked at a time.
func (p *placement) askedAt(now time.Time) []asked {
	var found []asked
	for _, a := range p.Asked {
		if !now.Before(a.Since) && now.Before(a.Until) {
			found = append(found, a)
		}
	}
	return found
}

// staleAfter is for how many retentions of keys home may not have confirmed the placements when keys are used by them: those that a queue's keys stay where they are and
// are asked for there, from when it is placed elsewhere.
const staleAfter = 2

// checkFresh fails if the placements are so old that keys may be used elsewhere already without that this gateway is known of.
func (g *Gateway) checkFresh() error {
	retention := time.Duration(g.placements.keyRetention.Load())
	if _, _, known := g.placements.state(); retention > 0 && time.Since(known) > staleAfter*retention {
		return away(home, "Home, cell 0, has not confirmed for so long where queues are placed that an idempotency key may be used on another cell by now. Nothing was done; retry.", nil)
	}
	return nil
}

// keyCells returns the cells that inserts into a placed queue under keys go to, or why there is none, a *problem or an *answered.
func (g *Gateway) keyCells(c *call, r *http.Request, p *placement, keys []insertKey) (cells []*cell, errs []error) {
	cells, errs = make([]*cell, len(keys)), make([]error, len(keys))
	now := time.Now()
	fail := func(err error) {
		for i := range errs {
			if errs[i] == nil {
				errs[i] = err
			}
		}
	}
	if err := g.checkFresh(); err != nil {
		fail(err)
		return cells, errs
	}
	set, sets := g.keyedSets(p, now)
	for i, key := range keys {
		cells[i], errs[i] = g.keyCell(p.Queue, key.hashed(), set)
	}
	if len(sets) == 0 {
		return cells, errs
	}
	isFound := make([]bool, len(keys))
	for _, before := range sets {
		byCell := map[*cell][]int{}
		for i, key := range keys {
			if isFound[i] || errs[i] != nil {
				continue
			}
			at, err := g.keyCell(p.Queue, key.hashed(), before)
			if err != nil {
				errs[i] = err
			} else if at != cells[i] {
				byCell[at] = append(byCell[at], i)
			}
		}
		for at, which := range byCell {
			events, err := g.leaveKeys(c, r, at, p.Queue, keys, which)
			for n, i := range which {
				switch {
				case err != nil:
					errs[i] = err
				case events[n] != nil:
					cells[i], isFound[i] = at, true // which answers as it has answered the first
				}
			}
		}
	}
	return cells, errs
}

// leaveKeys asks a cell, in the name of the caller of r, which events were inserted there under some of the keys, and has it leave the others. What it says of the caller's rights is an *answered.
func (g *Gateway) leaveKeys(c *call, r *http.Request, at *cell, queue string, keys []insertKey, which []int) ([]*int64, error) {
	ctx, cancel := context.WithTimeout(r.Context(), placeTime)
	defer cancel()
	header := callerHeader(r)
	header["Content-Type"], header["X-Request-Id"] = []string{"application/json"}, []string{c.id}
	asked := make([]string, len(which))
	for n, i := range which {
		asked[n] = keys[i].key
	}
	body, err := json.Marshal(map[string][]string{"keys": asked})
	if err != nil {
		return nil, err
	}
	detail := "Cell " + at.label + " is needed for this call, because the idempotency key may have been used there before the queue was placed elsewhere, and "
	if !at.isUp() {
		return nil, away(at.number, detail+"cannot be used. Nothing was done; retry.", nil)
	}
	leave, err := g.takePlace(&at.calls, at, c.holder)
	if err != nil {
		return nil, err
	}
	defer leave()
	var left struct {
		Events []*int64 `json:"events"`
	}
	err = at.do(ctx, http.MethodPost, "/cell/queues/"+url.PathEscape(queue)+"/keys", header, bytes.NewReader(body), &left)
	switch {
	case isOfCaller(err):
		return nil, err
	case ctx.Err() != nil && err != nil, err == nil && len(left.Events) != len(which):
		return nil, away(at.number, detail+"does not answer. Nothing was done; retry.", err)
	case isAnswer(err, http.StatusUnprocessableEntity): // the cell that gets the insert says what is wrong with the key
		return make([]*int64, len(which)), nil
	case err != nil:
		return nil, away(at.number, detail+"does not answer. Nothing was done; retry.", err)
	}
	return left.Events, nil
}
