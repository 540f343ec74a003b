package gateway

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// An idList is a call about events by their ids, each on its own.
type idList struct {
	*listBody
	member string // of the caller's body, which the list is in
	path   string
	query  url.Values
	ids    []jsontext.Value // as they came
	shares shares
	failed map[int]error // why ids have no cell: a *problem

	isRepeatable bool // all have receipts: a repetition has the results of the first
}

// bodyIDs is for calls about the events in the body. Where all are of one cell, that gets the call as it is.
func bodyIDs(g *Gateway, c *call, r *http.Request) error {
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	l, isReadable := g.readIDs(r, body, "events", r.URL.Path)
	switch {
	case !isReadable:
		return toHome(g, c, r) // which refuses all of it, before a cell does something with its share
	case len(l.shares) == 0:
		return l.failed[0]
	}
	if c.target = l.only(); c.target == nil {
		c.answer = func(r *http.Request) error { return g.answerIDs(c, r, l) }
	}
	return nil
}

// readIDs reads the body of r with a list of events in a member, which cells get at a path, and finds the cell of each. It reports whether it could: if not, no cell takes any of it, and home
// says what is wrong.
func (g *Gateway) readIDs(r *http.Request, body []byte, member, path string) (l *idList, isReadable bool) {
	list, isReadable := parseList(body, member)
	query, err := url.ParseQuery(r.URL.RawQuery)
	if !isReadable || err != nil || len(r.Header["Content-Encoding"]) > 0 {
		return nil, false
	}
	l = &idList{listBody: list, member: member, path: path, query: query, ids: make([]jsontext.Value, len(list.elements)), failed: map[int]error{}, isRepeatable: true}
	for i, element := range l.elements {
		var members struct {
			ID      jsontext.Value `json:"id"`
			Receipt jsontext.Value `json:"receipt"`
		}
		isReceipt := func() bool { return len(members.Receipt) == 0 || members.Receipt.Kind() == '"' }
		if !decode(element, &members) || !isID(members.ID) || !isReceipt() {
			return nil, false
		}
		l.ids[i], l.isRepeatable = members.ID, l.isRepeatable && len(members.Receipt) > len(`""`)
		at, err := g.cellOfID(string(members.ID))
		if err != nil {
			l.failed[i] = err
			continue
		}
		l.shares.add(at, i)
	}
	return l, true
}

// only returns the cell that all events are of; nil: they are of several, or some have none.
func (l *idList) only() *cell {
	if len(l.shares) != 1 || len(l.failed) > 0 {
		return nil
	}
	return l.shares[0].at
}

// answerIDs answers with the results of all events, in their order.
func (g *Gateway) answerIDs(c *call, r *http.Request, l *idList) error {
	all, err := g.askIDs(c, r, l)
	if err != nil {
		return err
	}
	c.missing(l.shares.missing())
	all.answer(c)
	return nil
}

// askIDs makes the call of each cell with its share, and returns the results of all events, in their order. All of these calls can be repeated: if a cell refuses its
// share, which it does because of what an element is and not of what becomes of it, that is the answer: an *answered.
func (g *Gateway) askIDs(c *call, r *http.Request, l *idList) (results, error) {
	all := make(results, len(l.elements))
	size := int64(len(all)) * resultSize
	for _, one := range l.shares {
		size += int64(l.size(one.elements))
	}
	if !g.takeMemory(c, size) { // before anything is done, as what is done has to be answered
		return nil, noMemory()
	}
	parts := g.askEach(r.Context(), c, l.shares.cells(), func(at *cell) *http.Request {
		return c.partOf(r, http.MethodPost, l.path, l.query, l.with(l.shares.of(at).elements))
	})
	idOf := func(element int) json.RawMessage { return json.RawMessage(l.ids[element]) }
	var refusal *answered // the first
	for n, one := range l.shares {
		answer, err := readResults(parts[n], len(one.elements))
		no, isAnswer := errors.AsType[*answered](err)
		switch {
		case err == nil:
			all.put(one.elements, answer)
		case !isAnswer || no.status >= http.StatusInternalServerError:
			one.isMissing = true
			all.set(one.elements, failureOf(err, one.at), idOf)
		case refusal == nil:
			refusal = one.pointTo(no, l.member)
		}
	}
	for i, err := range l.failed {
		all.set([]int{i}, failureOf(err, nil), idOf)
	}
	switch {
	case r.Context().Err() != nil:
		return nil, r.Context().Err()
	case refusal != nil:
		return nil, refusal
	}
	return all, nil
}

// isID reports whether a JSON value can be the id of an event.
func isID(value jsontext.Value) bool {
	id, err := strconv.ParseInt(string(value), 10, 64)
	return err == nil && id > 0
}
