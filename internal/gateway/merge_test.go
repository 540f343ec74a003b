package gateway

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A fakeRow is an element of a listing of a fake cell.
type fakeRow struct {
	key  string // the time that the cell's listing is in the order of, beside the id
	id   int64
	text string // its members, without braces and cursor
}

// A fakeListing has the rows of a listing of one cell, in their order.
type fakeListing struct {
	list string
	rows []fakeRow

	mu    sync.Mutex
	calls []url.Values
	// broken says of each answer, if it is not nil, whether it breaks off, and after how many elements.
	broken func() (after int, isBroken bool)
}

// serve answers as a server does: pages with cursors, which are the places in the list.
func (l *fakeListing) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	l.mu.Lock()
	l.calls = append(l.calls, query)
	broken := l.broken
	l.mu.Unlock()
	limit, _ := strconv.Atoi(cmp.Or(query.Get("limit"), "100"))
	from := 0
	if cursor := query.Get("cursor"); cursor != "" {
		place, err := strconv.Atoi(strings.TrimPrefix(cursor, l.list+"@"))
		if err != nil {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"code":"invalid_cursor"}`)
			return
		}
		from = place
	}
	isCE := strings.Contains(r.Header.Get("Accept"), "cloudevents")
	to := min(from+limit, len(l.rows))
	cursorOf := func(i int) string { return fmt.Sprintf("%s@%d", l.list, i) }
	if isCE && to < len(l.rows) {
		w.Header().Set("Link", `<?cursor=`+cursorOf(to)+`>; rel="next"`)
	}
	if isCE {
		_, _ = io.WriteString(w, "[")
	} else {
		_, _ = fmt.Fprintf(w, `{%q:[`, l.list)
	}
	after, isBroken := 0, false
	if broken != nil {
		after, isBroken = broken()
	}
	for i := from; i < to; i++ {
		if isBroken && i-from == after {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		if i > from {
			_, _ = io.WriteString(w, ",")
		}
		row := l.rows[i]
		switch {
		case isCE:
			_, _ = fmt.Fprintf(w, `{"specversion":"1.0","id":"%d","queuedcursor":%q,"queuedeventts":%q,"queuedid":"%[1]d","queuedvt":%[3]q}`, row.id, cursorOf(i+1), row.key)
		case query.Get("cursors") == "true":
			_, _ = fmt.Fprintf(w, `{%s,"cursor":%q}`, row.text, cursorOf(i+1))
		default:
			_, _ = fmt.Fprintf(w, `{%s}`, row.text)
		}
	}
	switch {
	case isCE:
		_, _ = io.WriteString(w, "]\n")
	case to < len(l.rows):
		_, _ = fmt.Fprintf(w, `],"next":%q}`, cursorOf(to))
	default:
		_, _ = io.WriteString(w, `],"next":null}`)
	}
}

// asked returns how often the listing was asked for.
func (l *fakeListing) asked() []url.Values {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.calls)
}

// A merging is a listing over several fake cells.
type merging struct {
	*environment
	path, list string
	cells      []*fakeCell
	parts      []*fakeListing
	all        []fakeRow // of all cells, in the order that one server gives
}

// newMerging distributes rows over n cells.
func newMerging(t *testing.T, n int, path, list string, rows []fakeRow, isDescending bool) *merging {
	t.Helper()
	m := &merging{path: path, list: list, all: slices.Clone(rows)}
	order := func(a, b fakeRow) int {
		compared := cmp.Or(strings.Compare(strings.TrimSuffix(a.key, "Z"), strings.TrimSuffix(b.key, "Z")), cmp.Compare(a.id, b.id))
		if isDescending {
			return -compared
		}
		return compared
	}
	slices.SortFunc(m.all, order)
	for i := range n {
		f := newFakeCell(t, i)
		part := &fakeListing{list: list}
		for _, row := range m.all {
			if int(row.id>>idBits) == i {
				part.rows = append(part.rows, row)
			}
		}
		f.mux.HandleFunc("GET "+path, part.serve)
		m.cells, m.parts = append(m.cells, f), append(m.parts, part)
	}
	m.environment = setup(t, nil, m.cells...)
	return m
}

// A mergedPage is an answer of the gateway to a listing.
type mergedPage struct {
	Events, Schedules, Redrives, Queues []map[string]any
	Next                                *string
	UnavailableCells                    []int `json:"unavailable_cells"`
}

func (p *mergedPage) elements() []map[string]any {
	return slices.Concat(p.Events, p.Schedules, p.Redrives, p.Queues)
}

// page reads one page.
func (m *merging) page(limit int, cursor string) (mergedPage, answer) {
	m.t.Helper()
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		query.Set("cursor", cursor)
	}
	got := m.call("GET", m.path+"?"+query.Encode(), "")
	var page mergedPage
	if got.status == http.StatusOK {
		if err := json.Unmarshal([]byte(got.body), &page); err != nil {
			m.t.Fatalf("%s: %v", got.body, err)
		}
		if page.UnavailableCells == nil || strings.Contains(got.body, `"cursor"`) {
			m.t.Fatalf("got %s", got.body)
		}
	}
	return page, got
}

// read reads pages from a cursor on to the end, each with a limit that limits says, and returns the ids.
func (m *merging) read(cursor string, limits func() int) (ids []int64) {
	m.t.Helper()
	for {
		limit := limits()
		page, got := m.page(limit, cursor)
		if got.status != http.StatusOK {
			m.t.Fatalf("a page answered %d %s", got.status, got.body)
		}
		elements := page.elements()
		for _, e := range elements {
			ids = append(ids, int64(e["id"].(float64)))
		}
		if page.Next == nil {
			return ids
		}
		if len(elements) != limit {
			m.t.Fatalf("a page of %d that is not the last has %d", limit, len(elements))
		}
		cursor = *page.Next
	}
}

func idsOf(rows []fakeRow) []int64 {
	ids := make([]int64, len(rows))
	for i := range rows {
		ids[i] = rows[i].id
	}
	return ids
}

// randomRows returns n rows over cells, in a few places in time, so that many are at the same.
func randomRows(random *rand.Rand, n, cells int, member string) []fakeRow {
	rows := make([]fakeRow, n)
	seen := map[int64]bool{}
	for i := range rows {
		number := random.IntN(cells)
		if random.IntN(3) > 0 {
			number = random.IntN(number + 1) // some have more than others
		}
		id := int64(number)<<idBits + 1 + random.Int64N(1<<20)
		for seen[id] {
			id++
		}
		seen[id] = true
		key := fmt.Sprintf("2026-02-%02dT00:00:%02d%sZ", 1+random.IntN(2), random.IntN(3), []string{"", ".5", ".51", ".000001"}[random.IntN(4)])
		rows[i] = fakeRow{key, id, fmt.Sprintf(`"id":%d,"text":"%s \"} ]","%s":%q`, id, strings.Repeat("x", random.IntN(50)), member, key)}
	}
	return rows
}

func TestPagesOverCellsAreTheListingOfOneServer(t *testing.T) {
	t.Parallel()
	for _, listing := range []struct {
		path, list, member string
		isDescending       bool
	}{
		{"/events", "events", "vt", false}, {"/history", "events", "event_ts", true}, {"/schedules", "schedules", "created_at", false}, {"/redrives", "redrives", "created_at", true},
	} {
		t.Run(listing.path, func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 1))
			for n := 2; n <= 5; n++ {
				rows := randomRows(random, random.IntN(400), n, listing.member)
				m := newMerging(t, n, listing.path, listing.list, rows, listing.isDescending)
				for _, most := range []int{1, 7, 60, 1000} {
					if most == 1 && len(rows) > 60 {
						continue
					}
					got := m.read("", func() int { return 1 + random.IntN(most) })
					if !slices.Equal(got, idsOf(m.all)) {
						t.Errorf("seed %d, %d cells, pages of up to %d: got %v, want %v", seed, n, most, got, idsOf(m.all))
					}
				}
			}
		})
	}
}
