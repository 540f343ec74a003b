package gateway

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
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

var groupListing = &listing{list: "groups", compare: ascending, names: members{name: "group", cursor: "cursor", hidden: []string{"cursor"}}, join: joinGroups}

// groupRules join what several cells say of one group: events that came before its queue was placed elsewhere are still where it was.
var groupRules = rules{"waiting": sum, "admitted": sum, "leased": sum, "scheduled": sum, "oldest_at": earliest, "next_at": earliest, "blocked_by": first}

// listGroups is for the groups of the queue in the path: by name, or those with the longest lines.
func listGroups(g *Gateway, c *call, r *http.Request) error {
	queue := pathValue(r, "name")
	cells, err := g.cellsOf(queue)
	if err != nil {
		return err
	}
	c.queue = queue
	if r.URL.Query().Has("sort") {
		g.answerFrom(c, cells, r, func(r *http.Request) error {
			return g.answerJoined(c, r, cells, r.URL.Query(), func(parts []statedPart) (*object, error) { return joinLongest(r.URL.Query(), parts) })
		})
		return nil
	}
	g.answerFrom(c, cells, r, func(r *http.Request) error { return g.answerListing(c, r, groupListing, cells) })
	return nil
}

// joinLongest joins the groups with the longest lines of each cell.
func joinLongest(query url.Values, parts []statedPart) (*object, error) {
	rows, _, err := joinRows(parts, "groups", func(row *object) string { return row.text("group") }, joinGroup)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(rows, func(a, b *object) int {
		return cmp.Or(cmp.Compare(b.int("waiting"), a.int("waiting")), strings.Compare(a.text("group"), b.text("group")))
	})
	all := joined(rules{}, parts)
	all.setList("groups", cut(rows, query, defaultPage))
	return all, nil
}

// joinGroups makes one element of those that a group has on several cells. What is set for it is what is set on the first one that has something.
func joinGroups(_ *Gateway, elements []element, _ []*cell) ([]byte, error) {
	var joined *object
	for i := range elements {
		part, err := parseObject(elements[i].appendTo(nil))
		if err != nil {
			return nil, err
		}
		if joined == nil {
			joined = part
			continue
		}
		joinGroup(joined, part)
	}
	return joined.appendTo(nil), nil
}

// joinGroup adds what another cell says of a group.
func joinGroup(into, other *object) {
	if into.get("version") == nil { // nothing is set there
		for _, name := range []string{"concurrency", "rate", "paused", "held_until", "version", "updated_at"} {
			if value := other.get(name); value != nil {
				into.set(name, value)
			}
		}
	}
	groupRules.join(into, other)
}

// first takes what the first cell says.
func first(a, _ jsontext.Value) jsontext.Value { return a }
