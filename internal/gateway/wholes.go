package gateway

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/request"
)

// Calls about all events of a queue, or of all queues, such as listings, statistics, exports and purges, are answered by the cell that holds the queue. Where several cells hold a part, the gateway
// says which and does nothing: the caller calls each below /cells/{number}/, as the command line and the Go client do.

// several returns the problem of a call that several cells have a part of.
func (g *Gateway) several(c *call, r *http.Request, cells []*cell) error {
	c.target = nil
	if err := g.checkKnownCaller(c, r); err != nil { // strangers are not told where queues are
		return err
	}
	numbers := make([]int, len(cells))
	for i, at := range cells {
		numbers[i] = at.number
	}
	p := refuse(severalCells, "The cells %s each have a part of this. Nothing was done: make the call of each, below /cells/{number}/. The command line and the Go client do that.", listNumbers(numbers))
	p.cells = numbers
	return p
}

// toHolder sets the target of a call about all events of a queue to the only cell that holds some; of an empty name, of any queue.
func (g *Gateway) toHolder(c *call, r *http.Request, queue string, holders func(*Gateway, string) ([]*cell, error)) error {
	c.target = g.home()
	if queue != "" && !isQueue(queue) { // home says what is wrong, and has the service's own
		return nil
	}
	c.queue = queue
	found, err := holders(g, queue)
	switch {
	case err != nil:
		return err
	case len(found) == 1:
		c.target = found[0]
		return nil
	}
	return g.several(c, r, found)
}

// ofAllQueues is for calls about all queues.
func ofAllQueues(g *Gateway, c *call, r *http.Request) error {
	return g.toHolder(c, r, "", (*Gateway).cellsOf)
}

// waitingInQuery is for calls about what waits in the queue in the query.
func waitingInQuery(g *Gateway, c *call, r *http.Request) error {
	return g.toHolder(c, r, queryOf(r, "queue", ""), (*Gateway).cellsOf)
}

// pastInQuery is for calls about what has ended in the queue in the query, or about one event by its id.
func pastInQuery(g *Gateway, c *call, r *http.Request) error {
	if id := queryOf(r, "id", ""); id != "" {
		return g.toCellOf(c, id)
	}
	return g.toHolder(c, r, queryOf(r, "queue", ""), (*Gateway).cellsEver)
}

// waitingInPath is for calls about what waits in the queue in the path.
func waitingInPath(g *Gateway, c *call, r *http.Request) error {
	return g.toHolder(c, r, pathValue(r, "name"), (*Gateway).cellsOf)
}

// pastInPath is for calls about what has ended in the queue in the path.
func pastInPath(g *Gateway, c *call, r *http.Request) error {
	return g.toHolder(c, r, pathValue(r, "name"), (*Gateway).cellsEver)
}

// inBody returns a chooser for calls about the queue in the body, or in the filter there, or about all queues; or about one event by its id.
func inBody(holders func(*Gateway, string) ([]*cell, error)) chooser {
	return func(g *Gateway, c *call, r *http.Request) error {
		body, err := g.peek(c, r, maxPeekBody)
		if err != nil {
			return err
		}
		var members struct {
			Queue  jsontext.Value `json:"queue"`
			ID     jsontext.Value `json:"id"`
			Filter struct {
				Queue jsontext.Value `json:"queue"`
			} `json:"filter"`
		}
		if !decode(body, &members) {
			return toHome(g, c, r) // which says what is wrong
		}
		if len(members.ID) > 0 {
			return g.toCellOf(c, string(members.ID))
		}
		queue, isText := textOf(members.Queue, "")
		if queue == "" && isText {
			queue, isText = textOf(members.Filter.Queue, "")
		}
		if !isText {
			return toHome(g, c, r)
		}
		return g.toHolder(c, r, queue, holders)
	}
}

// chooseMove is for events of a queue that go to another one. They stay on their cell, so a queue that is placed nowhere is placed there; of one that is placed elsewhere they are found there as
// stray events.
func chooseMove(g *Gateway, c *call, r *http.Request) error {
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	if err := waitingInPath(g, c, r); err != nil || c.queue == "" {
		return err
	}
	var members struct {
		To jsontext.Value `json:"to"`
	}
	if !decode(body, &members) {
		return nil // the cell says what is wrong
	}
	to, _ := textOf(members.To, "")
	if p, _ := g.placements.get(to); p != nil || !isQueue(to) {
		return nil
	}
	at := c.target
	_, err = g.placeOn(c, r, to, at.number)
	if c.target = at; isAnswer(err, http.StatusForbidden) {
		return nil // the cell says so, too, and of which member of the body
	}
	return err
}

// ofCellPattern is the pattern of all calls of one cell.
const ofCellPattern = "/cells/{number}/*"

// pagesPrefix is what the paths of pages begin with.
const pagesPrefix = "/ui/"

// passToCell passes a call below /cells/{number}/ on to that cell, with the caller's key and nothing added.
func (g *Gateway) passToCell(w http.ResponseWriter, r *http.Request) {
	c := callOf(r.Context())
	text := chi.URLParam(r, "number")
	number, err := strconv.Atoi(text)
	at := g.cell(number)
	switch {
	case c.only != nil: // the cell itself says that it has no such path
		g.routed(nil).ServeHTTP(w, r)
		return
	case err != nil || strconv.Itoa(number) != text || at == nil:
		c.route = &route{pattern: ofCellPattern}
		g.recognize(c, r)
		if err := g.checkKnownCaller(c, r); err != nil { // strangers are not told which cells there are
			g.fail(c, r, err)
			return
		}
		g.fail(c, r, refuse(cellNotFound, "The gateway knows no cell %q: GET /cells lists those that it knows.", text))
		return
	}
	c.only = at
	below := new(url.URL)
	*below = *r.URL
	below.Path, below.RawPath = strings.TrimPrefix(r.URL.Path, "/cells/"+text), strings.TrimPrefix(r.URL.RawPath, "/cells/"+text)
	r = r.WithContext(context.WithValue(r.Context(), chi.RouteCtxKey, (*chi.Context)(nil)))
	r.URL = below
	g.api.ServeHTTP(w, r)
}

// keepCookie leaves of the cookies of a request that which the log-in to the pages of its cell is in: those of other cells' pages, and of what else is served under the domain, are none of its business.
func (c *call) keepCookie(r *http.Request) {
	if r.Header["Cookie"] == nil {
		return
	}
	kept, err := r.Cookie(request.SessionCookie(c.target.number))
	delete(r.Header, "Cookie")
	if c.route != nil && c.route.isPage && err == nil {
		r.AddCookie(kept)
	}
}
