package gateway

import "net/http"

// Which cells have a part of a listing.

// merged is for a listing of which the cells that cells names have a part. That of one cell is passed on as it is, unless it goes on where one of several cells ended.
func merged(choose func(r *http.Request) *listing, cells func(g *Gateway, r *http.Request) ([]*cell, error)) chooser {
	return func(g *Gateway, c *call, r *http.Request) error {
		found, err := cells(g, r)
		if err != nil {
			return err
		}
		c.queue = queryOf(r, "queue", "")
		g.answerFrom(c, found, r, func(r *http.Request) error { return g.answerListing(c, r, choose(r), found) })
		return nil
	}
}

// answerFrom has a call answered by the only one of cells, or by answer if there are several.
func (g *Gateway) answerFrom(c *call, cells []*cell, r *http.Request, answer func(r *http.Request) error) {
	if len(cells) == 1 && !isMergedCursor(queryOf(r, "cursor", "")) {
		c.target = cells[0]
		return
	}
	c.answer = answer
}

// isMergedCursor reports whether a cursor is that of a page of several cells.
func isMergedCursor(cursor string) bool {
	_, err := parsePlaces(cursor)
	return cursor != "" && err == nil
}

// always returns a function that returns one listing.
func always(list *listing) func(*http.Request) *listing {
	return func(*http.Request) *listing { return list }
}

// schedulesIn returns the listing of schedules in the order that r asks for.
func schedulesIn(r *http.Request) *listing {
	if r.URL.Query().Has("due_before") {
		return dueScheduleListing
	}
	return scheduleListing
}

// everywhere returns all cells.
func everywhere(g *Gateway, _ *http.Request) ([]*cell, error) { return g.cells(), nil }

// waitingCells returns the cells where events of the queue in the query may wait.
func waitingCells(g *Gateway, r *http.Request) ([]*cell, error) {
	return g.cellsOf(queryOf(r, "queue", ""))
}

// pastCells returns the cells where events of the queue in the query may have ended.
func pastCells(g *Gateway, r *http.Request) ([]*cell, error) {
	return g.cellsEver(queryOf(r, "queue", ""))
}

// listHistory is for what has ended: by id in its cell, else in all that have a part.
func listHistory(g *Gateway, c *call, r *http.Request) error {
	if id := queryOf(r, "id", ""); id != "" {
		return g.toCellOf(c, id)
	}
	found, err := pastCells(g, r)
	if err != nil {
		return err
	}
	c.queue = queryOf(r, "queue", "")
	g.answerFrom(c, found, r, func(r *http.Request) error { return g.answerHistory(c, r, found) })
	return nil
}
