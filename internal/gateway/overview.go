package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// The overview of the queues, as servers have it.
const (
	defaultOverview = 50
	maxOverview     = 200  // queues of a page
	maxOverviewRead = 2000 // queues that each cell is asked for, at most, in pages
)

var figureRules = rules{
	"ready": sum, "scheduled": sum, "waiting": sum, "leased": sum, "oldest_ready_age_ms": largest, "estimated": either, "done": sum, "failed": sum, "expired": sum, "cancelled": sum,
	"wait_bins": joinBins, "processing_bins": joinBins, "ready_series": joinSeriesOfCounts,
}

// queuesOverview is for statistics of the queues of all cells: a page of them, and all together.
func queuesOverview(g *Gateway, c *call, r *http.Request) error {
	g.answerFrom(c, g.cells(), r, func(r *http.Request) error { return g.answerOverview(c, r) })
	return nil
}

// answerOverview reads as many queues of each cell as may be on the page, joins those that are on several cells, and cuts out the page.
func (g *Gateway) answerOverview(c *call, r *http.Request) error {
	given := r.URL.Query()
	limit, isLimit := limitOf(given, defaultOverview, maxOverview)
	offset, isOffset := 0, true
	if given.Has("offset") {
		var err error
		offset, err = strconv.Atoi(given.Get("offset"))
		isOffset = err == nil && offset >= 0 && offset <= 1_000_000 && len(given["offset"]) == 1
	}
	if !isLimit || !isOffset {
		return g.answerFromHome(c, r) // which says what is wrong
	}
	if offset+limit > maxOverviewRead {
		return refuse(notOverCells, "Over several cells the overview has the first %d queues: %d were to be left out. Narrow it by name_contains, or ask the cells themselves.", maxOverviewRead, offset)
	}
	query := r.URL.Query()
	seriesQuery(query)
	query.Set("limit", strconv.Itoa(maxOverview))
	query.Del("offset")
	said, err := g.statementsOf(c, r, g.cells(), query)
	if err != nil {
		return err
	}
	read := &overviewRead{gateway: g, byName: make(map[string]*queueRows)}
	if err := read.add(said.parts); err != nil {
		return err
	}
	for from := maxOverview; from < offset+limit; from += maxOverview {
		if err := read.more(c, r, query, from, said); err != nil {
			return err
		}
	}
	all, err := read.joined(said.parts, given)
	if err != nil {
		return err
	}
	rows := read.sorted(given.Get("order"), keepsBins(given))
	all.setList("queues", rows[min(offset, len(rows)):min(offset+limit, len(rows))])
	slices.Sort(said.away)
	g.answerObject(c, slices.Compact(said.away), all)
	return nil
}

// queueRows are what cells say of one queue.
type queueRows struct {
	cells []*cell
	rows  []*object
}

// overviewRead is what was read of an overview.
type overviewRead struct {
	gateway *Gateway
	byName  map[string]*queueRows
	twice   int64 // rows of queues that another cell has, too
}

// add adds the queues of parts.
func (o *overviewRead) add(parts []statedPart) error {
	for i := range parts {
		list, err := parts[i].body.list("queues")
		if err != nil {
			return fmt.Errorf("cell %s: queues: %w", parts[i].at.label, err)
		}
		for _, row := range list {
			name := row.text("queue")
			known := o.byName[name]
			if known == nil {
				known = new(queueRows)
				o.byName[name] = known
			} else if !slices.Contains(known.cells, parts[i].at) {
				o.twice++
			}
			if !slices.Contains(known.cells, parts[i].at) { // it may have moved from one page to the next
				known.cells, known.rows = append(known.cells, parts[i].at), append(known.rows, row)
			}
		}
	}
	return nil
}

// more reads the queues from one on, of the cells that have so many. Those that go away meanwhile are noted in said.
func (o *overviewRead) more(c *call, r *http.Request, query url.Values, from int, said *statements) error {
	var cells []*cell
	for i := range said.parts {
		if at := said.parts[i].at; said.parts[i].body.int("total") > int64(from) && !slices.Contains(said.away, at.number) {
			cells = append(cells, at)
		}
	}
	if len(cells) == 0 {
		return nil
	}
	query.Set("offset", strconv.Itoa(from))
	next, err := o.gateway.statementsOf(c, r, cells, query)
	p, isProblem := errors.AsType[*problem](err)
	switch {
	case isProblem && p.code == cellUnavailable.code:
		for _, at := range cells {
			said.away = append(said.away, at.number)
		}
		return nil
	case err != nil:
		return err
	}
	said.away = append(said.away, next.away...)
	return o.add(next.parts)
}

// joined returns what parts say of all queues together.
func (o *overviewRead) joined(parts []statedPart, query url.Values) (*object, error) {
	outcomes, err := joinBuckets(parts, "outcomes", outcomeRules, nil)
	if err != nil {
		return nil, err
	}
	totals, err := joinMember(parts, "totals", figureRules)
	if err != nil {
		return nil, err
	}
	all := joinBounds(parts, rules{"total": sum})
	all.set("total", fmt.Append(nil, all.int("total")-o.twice))
	setPercentiles(totals, keepsBins(query))
	all.set("totals", totals.appendTo(nil))
	all.setList("outcomes", outcomes)
	return all, nil
}

// sorted returns the queues in an order of the overview. What is said of one as a whole is of the cell that has its policy.
func (o *overviewRead) sorted(order string, keepsBins bool) []*object {
	rows := make([]*object, 0, len(o.byName))
	for name, known := range o.byName {
		lead := o.gateway.leading(name, known.cells)
		row := known.rows[lead]
		for i, other := range known.rows {
			if i != lead {
				figureRules.join(row, other)
			}
		}
		if len(known.rows) > 1 {
			setPercentiles(row, keepsBins)
		} else if !keepsBins {
			row.remove("wait_bins")
			row.remove("processing_bins")
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b *object) int {
		byCount, byAge := 0, 0
		switch order {
		case "", "failed":
			byCount = cmp.Compare(b.int("failed")+b.int("expired"), a.int("failed")+a.int("expired"))
			byAge = compareAges(a, b)
		case "waiting":
			byCount = cmp.Compare(b.int("ready")+b.int("waiting"), a.int("ready")+a.int("waiting"))
		case "oldest":
			byAge = compareAges(a, b)
		}
		return cmp.Or(byCount, byAge, strings.Compare(a.text("queue"), b.text("queue")))
	})
	return rows
}

// compareAges compares queues by their oldest ready events: those without one come last.
func compareAges(a, b *object) int {
	isNone, isNoneToo := a.get("oldest_ready_age_ms") == nil, b.get("oldest_ready_age_ms") == nil
	switch {
	case isNone && isNoneToo:
		return 0
	case isNone:
		return 1
	case isNoneToo:
		return -1
	}
	return cmp.Compare(b.float("oldest_ready_age_ms"), a.float("oldest_ready_age_ms"))
}

// joinSeriesOfCounts adds lists of counts, each of which may be null.
func joinSeriesOfCounts(a, b jsontext.Value) jsontext.Value {
	var left, right []*int64
	if json.Unmarshal(a, &left) != nil || json.Unmarshal(b, &right) != nil {
		return a
	}
	if len(right) > len(left) {
		left, right = right, left
	}
	for i, n := range right {
		switch {
		case n == nil:
		case left[i] == nil:
			left[i] = n
		default:
			left[i] = new(*left[i] + *n)
		}
	}
	text, err := json.Marshal(left)
	if err != nil {
		panic(err) // integers always encode
	}
	return text
}
