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
	path   string
	query  url.Values
	ids    []jsontext.Value // as they came; empty where there is none
	shares shares
	failed map[int]error // why ids have no cell: a *problem
}

// bodyIDs is for calls about the events in the body. Where all are of one cell, that gets the call as it is.
func bodyIDs(g *Gateway, c *call, r *http.Request) error {
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	list, isReadable := parseList(body)
	query, err := url.ParseQuery(r.URL.RawQuery)
	if !isReadable || err != nil || len(r.Header["Content-Encoding"]) > 0 {
		return toHome(g, c, r) // which says what is wrong
	}
	l := &idList{listBody: list, path: r.URL.Path, query: query, ids: make([]jsontext.Value, len(list.elements)), failed: map[int]error{}}
	for i, element := range l.elements {
		var members struct {
			ID      jsontext.Value `json:"id"`
			Receipt jsontext.Value `json:"receipt"`
		}
		isReceipt := func() bool { return len(members.Receipt) == 0 || members.Receipt.Kind() == '"' }
		if !decode(element, &members) || !isID(members.ID) || !isReceipt() {
			return toHome(g, c, r) // which refuses all of it, before a cell does something with its share
		}
		l.ids[i] = members.ID
		if err := g.toCellOf(c, string(members.ID)); err != nil {
			l.failed[i] = err
			continue
		}
		l.shares.add(c.target, i)
	}
	switch {
	case len(l.shares) == 0:
		return l.failed[0]
	case len(l.shares) == 1 && len(l.failed) == 0:
		c.target = l.shares[0].at
		return nil
	}
	c.target, c.answer = nil, func(r *http.Request) error { return g.answerIDs(c, r, l) }
	return nil
}

// answerIDs makes the call of each cell with its share, and answers with the results of all events, in their order. All of these calls can be repeated: if a cell refuses its
// share, which it does because of what an element is and not of what becomes of it, that is the answer.
func (g *Gateway) answerIDs(c *call, r *http.Request, l *idList) error {
	all := make(results, len(l.elements))
	size := int64(len(all)) * resultSize
	for _, one := range l.shares {
		size += int64(l.size(one.elements))
	}
	if !g.bodies.take(c, size) { // before anything is done, as what is done has to be answered
		return full("Bodies of requests take all the memory that they may in the gateway. Nothing was done; retry.")
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
			refusal = one.pointTo(no)
		}
	}
	for i, err := range l.failed {
		all.set([]int{i}, failureOf(err, nil), idOf)
	}
	switch {
	case r.Context().Err() != nil:
		return r.Context().Err()
	case refusal != nil:
		return refusal
	}
	c.missing(l.shares.missing())
	all.answer(c)
	return nil
}

// isID reports whether a JSON value can be the id of an event.
func isID(value jsontext.Value) bool {
	id, err := strconv.ParseInt(string(value), 10, 64)
	return err == nil && id > 0
}
