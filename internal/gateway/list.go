package gateway

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// A shownCell is a cell as home lists it, and whether this gateway can use it.
type shownCell struct {
	Cell      int        `json:"cell"`
	URL       *string    `json:"url"`
	TakesNew  bool       `json:"takes_new"`
	Placed    int64      `json:"placed"`
	Former    int64      `json:"former"`
	UpdatedAt *time.Time `json:"updated_at"` // nil: it is in the settings of this gateway alone
	State     string     `json:"state"`
	Why       string     `json:"why,omitempty"`
}

type shownCells struct {
	Cells []shownCell `json:"cells"`
}

// showCells answers with the cells that home lists and those of the settings, and whether each can be used.
func (g *Gateway) showCells(c *call, r *http.Request) {
	c.target = g.home()
	answer := g.ask(r.Context(), c, g.home(), c.partOf(r, http.MethodGet, "/cells", r.URL.Query(), nil))
	body, err := g.success(c, answer)
	if err != nil {
		g.fail(c, r, err)
		return
	}
	var shown shownCells
	if err := json.Unmarshal(body, &shown); err != nil {
		g.fail(c, r, fmt.Errorf("home's list of cells: %w", err))
		return
	}
	for _, at := range g.cells() {
		if !slices.ContainsFunc(shown.Cells, func(s shownCell) bool { return s.Cell == at.number }) {
			placed, former := g.placements.count(at.number)
			shown.Cells = append(shown.Cells, shownCell{Cell: at.number, TakesNew: true, Placed: placed, Former: former})
		}
	}
	slices.SortFunc(shown.Cells, func(a, b shownCell) int { return cmp.Compare(a.Cell, b.Cell) })
	for i := range shown.Cells {
		one := &shown.Cells[i]
		at := g.cell(one.Cell)
		if at == nil {
			one.State, one.Why = "away", "This gateway has no URL of it that can be used."
			continue
		}
		text := at.url.String()
		one.URL, one.State = &text, "up"
		if s := at.state.Load(); !s.usable {
			one.State, one.Why = "away", s.why
		}
	}
	answerJSON(c, shown)
}

// putCell has home list a cell, after the cell at the URL has said that it is the one.
func (g *Gateway) putCell(c *call, r *http.Request) {
	c.target = g.home()
	if err := g.checkListed(c, r); err != nil {
		g.fail(c, r, err)
		return
	}
	r, err := g.withKeysNow(c, r)
	if err != nil {
		g.fail(c, r, err)
		return
	}
	g.proxy.ServeHTTP(c, r)
}

// withKeysNow has a cell that is in the settings of this gateway, and is listed for the first time, be listed as one that was among all cells before.
func (g *Gateway) withKeysNow(c *call, r *http.Request) (*http.Request, error) {
	number, err := strconv.Atoi(pathValue(r, "number"))
	if at := g.given[number]; err != nil || at == nil || at.turns.Load() != nil {
		return r, nil //nolint:nilerr // home says what is wrong
	}
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return r, err
	}
	var members struct {
		TakesNew *bool          `json:"takes_new"`
		Keys     jsontext.Value `json:"keys"`
	}
	if !decode(body, &members) || len(members.Keys) > 0 || members.TakesNew != nil && !*members.TakesNew {
		return r, nil
	}
	if body, err = withMember(body, "keys", jsontext.Value(`"now"`)); err != nil {
		return r, err
	}
	r = withBody(r, body)
	r.Header = r.Header.Clone()
	r.Header["Content-Type"], r.Header["Content-Length"] = []string{"application/json"}, nil
	return r, nil
}

// checkListed makes sure that a cell which is to be listed is at its URL. What home would refuse, it leaves to home.
func (g *Gateway) checkListed(c *call, r *http.Request) error {
	body, err := g.peek(c, r, maxPeekBody)
	if err != nil {
		return err
	}
	if err := g.admit(c, r, "admin"); err != nil { // only for who may have the gateway ask URLs
		return err
	}
	var members struct {
		URL      jsontext.Value `json:"url"`
		TakesNew *bool          `json:"takes_new"`
	}
	text := pathValue(r, "number")
	number, err := strconv.Atoi(text)
	switch {
	case err != nil || number < 0 || number > maxCell || strconv.Itoa(number) != text || !decode(body, &members):
		return nil //nolint:nilerr // home says it
	case (members.TakesNew == nil || *members.TakesNew) && (len(members.URL) == 0 || members.URL.Kind() == 'n') && g.given[number] == nil:
		return refuse(validationFailed, "#/url: is needed, as cell %d is not in the settings of this gateway (QUEUED_CELLS).", number)
	case members.URL.Kind() != '"':
		return nil
	}
	text, _ = textOf(members.URL, "")
	base, err := ParseURL(text)
	if err != nil { // home may take it, and then no gateway could use the cell
		return refuse(validationFailed, "#/url: cannot be used: %s.", err)
	}
	at := newCell(&g.cfg, number, base, g.drain) //nolint:contextcheck // calls of it have contexts of their own
	defer at.transport.CloseIdleConnections()
	at.keyNow = func() string { return "" } // the gateway's own key is for cells that are listed: who knows who answers at this URL
	err = at.verify(r.Context(), callerHeader(r))
	switch wrong, isWrong := errors.AsType[*wrongCellError](err); {
	case err == nil:
		return nil
	case r.Context().Err() != nil:
		return context.Cause(r.Context())
	case isWrong && wrong.isRefusal:
		return refuse(validationFailed, "#/url: what answers there refuses the key of this call, with which it was asked whether it is cell %d. Make the call with an admin key that both home and the cell know: "+
			"create one at home, and give it to the cell as its QUEUED_API_KEY for as long as the cell is added.", number)
	case isWrong:
		return refuse(validationFailed, "#/url: a cell answers there that cannot be cell %d: %s.", number, wrong.detail)
	}
	return refuse(validationFailed, "#/url: cell %d does not answer there: %s.", number, err)
}

// deleteCell has home take a cell off the list that nothing is left on, as far as the cell says.
func (g *Gateway) deleteCell(c *call, r *http.Request) {
	c.target = g.home()
	if err := g.checkUnused(c, r); err != nil {
		g.fail(c, r, err)
		return
	}
	g.proxy.ServeHTTP(c, r)
}

// checkUnused makes sure that a cell which is to be taken off the list has nothing that would be out of reach then, and that home knows nothing of. What home would refuse, it leaves to home; and a
// cell that does not answer is taken off unseen.
func (g *Gateway) checkUnused(c *call, r *http.Request) error {
	number, err := strconv.Atoi(pathValue(r, "number"))
	if err != nil {
		return nil //nolint:nilerr // home says it
	}
	at := g.cell(number)
	if at == nil || at.turns.Load() == nil {
		return nil
	}
	if err := g.admit(c, r, "admin"); err != nil {
		return err
	}
	if placed, before := g.placements.count(number); placed+before > 0 {
		return nil // which home says
	}
	if g.given[number] != nil {
		return refuse(cellInUse, "The cell is in the settings of this gateway (QUEUED_CELLS), which would have it take new queues again. Take it out there first.")
	}
	if !at.isUp() {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), placeTime)
	defer cancel()
	var page struct {
		Queues []string `json:"queues"`
		Next   *string  `json:"next"`
	}
	if err := at.do(ctx, http.MethodGet, "/cell/queues?limit=1000", at.ownHeader(), nil, &page); err != nil {
		return away(number, "Cell "+at.label+" cannot be asked whether it has events. Nothing was done; retry. The same call at home itself takes it off the list in any case.", err)
	}
	queues := slices.DeleteFunc(page.Queues, func(queue string) bool { return !isQueue(queue) })
	if len(queues) > 0 {
		return refuse(cellInUse, "The cell has events of %s, which nobody would find any more. Have them worked or purged first. The same call at home itself takes it off the list in any case.", someOf(queues, page.Next != nil))
	}
	forwarded, err := g.countsOf(ctx, g.home(), fmt.Sprintf("queued.forward.%d", number))
	if err == nil && forwarded.events() > 0 {
		return refuse(cellInUse, "Home has events wait for the cell, in the queue queued.forward.%d. The same call at home itself takes it off the list in any case.", number)
	}
	return nil
}

// someOf names queues, of which there may be more.
func someOf(queues []string, isMore bool) string {
	switch n := len(queues); {
	case n == 1 && !isMore:
		return fmt.Sprintf("the queue %q", queues[0])
	case isMore:
		return fmt.Sprintf("more than %d queues, such as %q", n, queues[0])
	default:
		return fmt.Sprintf("%d queues, such as %q", n, queues[0])
	}
}
