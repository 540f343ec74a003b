package gateway

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"
)

// A chooser sets the target of a call, or its claim. It is asked where there are several cells.
type chooser func(g *Gateway, c *call, r *http.Request) error

// idBits are those of an id below the number of its cell.
const idBits = 45

// maxCell is the highest number of a cell.
const maxCell = 255

// pathValue returns what stands for {name} in the path of r.
func pathValue(r *http.Request, name string) string {
	value := chi.URLParam(r, name)
	if r.URL.RawPath != "" { // then chi matches that, and its values are escaped
		value, _ = url.PathUnescape(value) // it was valid when it was parsed
	}
	return value
}

// queryOf returns the first value of a parameter, absent if there is none. Cells refuse what is malformed, and parameters that are given twice.
func queryOf(r *http.Request, name, absent string) string {
	if r.URL.RawQuery == "" {
		return absent
	}
	if values := r.URL.Query()[name]; len(values) > 0 {
		return values[0]
	}
	return absent
}

// isMalformed reports whether a query cannot be read as a whole.
func isMalformed(query string) bool {
	if !strings.ContainsAny(query, ";%") {
		return false
	}
	_, err := url.ParseQuery(query)
	return err != nil
}

// toHome is for what there is once.
func toHome(g *Gateway, c *call, _ *http.Request) error {
	c.target = g.home()
	return nil
}

// usesAtHome is for calls that set the queue in the path, which is done at home: they place it.
func usesAtHome(g *Gateway, c *call, r *http.Request) error {
	queue := pathValue(r, "name")
	if isQueue(queue) { // home says what is wrong with others
		c.queue = queue
		if _, err := g.place(c, r, queue); err != nil {
			return err
		}
	}
	return toHome(g, c, r)
}

// byID is for calls about what has an id: its cell is in it.
func byID(g *Gateway, c *call, r *http.Request) error {
	return g.toCellOf(c, pathValue(r, "id"))
}

// toCellOf sets the target to the cell that an id is of.
func (g *Gateway) toCellOf(c *call, text string) (err error) {
	c.target, err = g.cellOfID(text)
	return err
}

// cellOfID returns the cell that an id is of. One that is no id is for home, which says so, as is one of a cell that there is not.
func (g *Gateway) cellOfID(text string) (*cell, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	number := int(id >> idBits)
	if err != nil || number < 0 || number > maxCell {
		number = home
	}
	return g.cellOf(number)
}

// cellOf returns a cell. For one that this gateway was not told of it fails if queues are placed there; else nothing is, and home says so.
func (g *Gateway) cellOf(number int) (*cell, error) {
	if at := g.cell(number); at != nil {
		return at, nil
	}
	if _, _, known := g.placements.state(); known.IsZero() {
		return nil, away(number, "It is not known yet which cells there are, which home, cell 0, says. Nothing was done; retry.", nil)
	}
	if g.placements.names(number) {
		return nil, g.unknownCell(number)
	}
	return g.home(), nil
}

func (g *Gateway) unknownCell(number int) error {
	return away(number, "Cell "+strconv.Itoa(number)+" is needed for this call, and this gateway was not told of it (QUEUED_CELLS). Nothing was done.", nil)
}

// leadingCell returns the cell of a placement that answers about its push: the first one; home, of a queue that is on all.
func (g *Gateway) leadingCell(p *placement) (*cell, error) {
	if p.Cells == nil {
		return g.home(), nil
	}
	if at := g.cell(p.Cells[0]); at != nil {
		return at, nil
	}
	return nil, g.unknownCell(p.Cells[0])
}

// byPathQueue is for calls about the queue in the path: of its leading cell, or home if it is placed nowhere, where it may have been before there was a gateway.
func byPathQueue(g *Gateway, c *call, r *http.Request) error {
	queue := pathValue(r, "name")
	c.target = g.home()
	if !isQueue(queue) { // home says what is wrong, and has the service's own
		return nil
	}
	c.queue = queue
	p, err := g.placed(queue)
	if p != nil {
		c.target, err = g.leadingCell(p)
	}
	return err
}

// chooseInsert is for an event, with the queue in the query.
func chooseInsert(g *Gateway, c *call, r *http.Request) error {
	key, isKeyed := keyOf(r)
	return g.toInsert(c, r, queryOf(r, "queue", defaultQueue), insertKey{key, queryOf(r, "group", "")}, isKeyed)
}

// toInsert sets the target to the cell that a new event of a queue goes to, under a key if isKeyed. It places the queue.
func (g *Gateway) toInsert(c *call, r *http.Request, queue string, to insertKey, isKeyed bool) error {
	c.target = g.home()
	if !isQueue(queue) { // home says what is wrong
		return nil
	}
	c.queue = queue
	p, err := g.place(c, r, queue)
	switch {
	case err != nil:
	case !isKeyed && to.group != "":
		c.target, err = g.groupCell(p, to.group)
	case !isKeyed:
		c.target, err = g.turnCell(queue, p.Cells)
	default:
		cells, errs := g.keyCells(c, r, p, []insertKey{to})
		c.target, err = cells[0], errs[0]
	}
	return err
}
