package gateway

import (
	"bufio"
	"bytes"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"

	"github.com/queued/queued/internal/request"
)

// A listing over several cells is the merge of theirs: each cell has its part in order, and of the next elements of all, the one that comes first is written. What is read
// is one element of each cell at a time; what is written goes out as it comes.

// Pages of listings.
const (
	defaultPage  = 100     // elements, as servers have it
	maxPage      = 1000    // elements
	maxPageBytes = 8 << 20 // of elements, unless it has one alone: as servers have it
	writeBuffer  = 16 << 10
)

// cloudEventBatch is the media type of several CloudEvents.
const cloudEventBatch = "application/cloudevents-batch+json"

// unavailableMember is the member of a merged answer that names the cells whose part is missing.
const unavailableMember = "unavailable_cells"

// A listing is one of the API that can be merged.
type listing struct {
	list    string                   // the member of the answer that has the elements
	names   members                  // of an element
	events  *members                 // of an element as a CloudEvent; nil: it has no such form
	compare func(a, b *orderKey) int // the order
	// join makes one element of those that have the same name on several cells; nil: each is its own. cells are where the elements are.
	join func(g *Gateway, elements []element, cells []*cell) ([]byte, error)
}

func ascending(a, b *orderKey) int  { return a.compare(b) }
func descending(a, b *orderKey) int { return b.compare(a) }

// The listings that are merged.
var (
	eventListing = &listing{
		list: "events", compare: ascending,
		names:  members{time: "vt", id: "id", cursor: "cursor", hidden: []string{"cursor"}},
		events: &members{time: "queuedvt", id: "queuedid", cursor: "queuedcursor", hidden: []string{"queuedcursor", "queuedeventts"}},
	}
	historyListing = &listing{
		list: "events", compare: descending,
		names:  members{time: "event_ts", id: "id", cursor: "cursor", hidden: []string{"cursor"}},
		events: &members{time: "queuedeventts", id: "queuedid", cursor: "queuedcursor", hidden: []string{"queuedcursor", "queuedeventts"}},
	}
	scheduleListing    = &listing{list: "schedules", compare: ascending, names: members{time: "created_at", id: "id", cursor: "cursor", hidden: []string{"cursor"}}}
	dueScheduleListing = &listing{list: "schedules", compare: ascending, names: members{time: "next_at", id: "id", cursor: "cursor", hidden: []string{"cursor"}}}
	redriveListing     = &listing{list: "redrives", compare: descending, names: members{time: "created_at", id: "id", cursor: "cursor", hidden: []string{"cursor"}}}
	queueListing       = &listing{list: "queues", compare: ascending, names: members{name: "queue", cursor: "cursor", hidden: []string{"cursor"}}, join: joinQueues}
)

// firstPart returns how many elements each of n cells is asked for at first when a page has limit: its share, and a reserve of twice the deviation that chance gives the
// share. A cell that has more of the page is asked again.
func firstPart(limit, n int) int {
	share := float64(limit) / float64(n)
	return min(limit, int(math.Ceil(share+2*math.Sqrt(share)))+1)
}

// answerListing answers a listing, of which cells have a part.
func (g *Gateway) answerListing(c *call, r *http.Request, list *listing, cells []*cell) error {
	query := r.URL.Query()
	limit, isLimit := limitOf(query, defaultPage, maxPage)
	at, err := parsePlaces(query.Get("cursor"))
	withCursors, isFlag := flagOf(query, "cursors")
	if !isLimit || !isFlag || len(query["cursor"]) > 1 || query.Has("cursor") && query.Get("cursor") == "" {
		return g.answerFromHome(c, r) // which says what is wrong
	}
	if err != nil {
		return err
	}
	query.Del("limit")
	query.Del("cursor")
	m := &reading{g: g, c: c, r: r, list: list, query: query, names: &list.names}
	m.isCE = list.events != nil && request.Prefers(r, cloudEventBatch)
	if m.isCE {
		m.names = list.events
	}
	merged, err := m.begin(cells, at, func(n int) int { return firstPart(limit, n) })
	if err != nil {
		return err
	}
	defer merged.close()
	page := &page{merge: merged, limit: limit, withCursors: withCursors}
	if m.isCE {
		return page.writeCloudEvents()
	}
	return page.write()
}

// limitOf returns the parameter limit. It is not ok if that is none from 1 to most: a cell says what is wrong with it.
func limitOf(query url.Values, absent, most int) (limit int, ok bool) {
	if !query.Has("limit") {
		return absent, true
	}
	limit, err := strconv.Atoi(query.Get("limit"))
	return limit, err == nil && limit >= 1 && limit <= most && len(query["limit"]) == 1
}

// flagOf returns a parameter that is true or false.
func flagOf(query url.Values, name string) (value, ok bool) {
	if !query.Has(name) {
		return false, true
	}
	text := query.Get(name)
	return text == "true", (text == "true" || text == "false") && len(query[name]) == 1
}

// answerFromHome passes the call on to home.
func (g *Gateway) answerFromHome(c *call, r *http.Request) error {
	c.answer, c.target = nil, g.home()
	g.proxy.ServeHTTP(c, r)
	return nil
}

// A merge is the parts of a listing that cells have, in order together.
type merge struct {
	*reading
	sources []*source
	places  places // of cells that have no more, or are not asked
}

// begin asks cells for their parts of a listing from places on: first says for how many elements each of n. It fails if none of them answers, or one refuses the call.
func (m *reading) begin(cells []*cell, at places, first func(n int) int) (*merge, error) {
	merged := &merge{reading: m, places: at}
	for _, known := range cells {
		if place := at[known.number]; !place.ended {
			merged.sources = append(merged.sources, &source{at: known, place: place})
		}
	}
	if len(merged.sources) == 0 { // no cell checks the caller
		if err := m.g.checkKnownCaller(m.c, m.r); err != nil {
			return nil, err
		}
	}
	limit := first(max(len(merged.sources), 1))
	asked := make([]*cell, len(merged.sources))
	byCell := make(map[*cell]*source, len(asked))
	for i, s := range merged.sources {
		asked[i], byCell[s.at] = s.at, s
	}
	parts := m.g.askEach(m.r.Context(), m.c, asked, func(at *cell) *http.Request { return m.request(byCell[at].place, limit) })
	answers, err := m.g.answersOf(m.c, m.r, parts)
	if err != nil {
		return nil, err
	}
	for _, s := range merged.sources {
		switch p := answers.of(s.at); {
		case p != nil:
			m.open(s, p)
		case answers.isUnknownTo(s.at): // it has nothing of what is asked for
			s.place.ended = true
		default:
			s.isAway = true
		}
	}
	return merged, nil
}

// next returns the sources whose next element comes first: several only if the listing joins them. There is none at the end. rest is how many elements are still wanted,
// for which cells are asked whose part has run out.
func (m *merge) next(rest int) []*source {
	for _, s := range m.sources {
		for s.more && !s.isAway {
			s.more = false
			m.ask(s, rest)
		}
	}
	var first []*source
	for _, s := range m.sources {
		if !s.hasHead {
			continue
		}
		order := -1
		if len(first) > 0 {
			order = m.list.compare(&s.head.key, &first[0].head.key)
		}
		switch {
		case order < 0:
			first = append(first[:0], s)
		case order == 0 && m.list.join != nil:
			first = append(first, s)
		}
	}
	return first
}

// take moves on behind the next elements of sources.
func (m *merge) take(sources []*source) {
	for _, s := range sources {
		s.place.cursor = s.head.cursor
		m.advance(s)
	}
}

// cursor returns where the listing goes on, after the next elements of sources; empty: it does not.
func (m *merge) cursor(after []*source) string {
	at := places{}
	for number, place := range m.places {
		at[number] = place
	}
	isOver := true
	for _, s := range m.sources {
		at[s.at.number] = s.place
		isOver = isOver && s.place.ended
	}
	for _, s := range after {
		at[s.at.number] = place{cursor: s.head.cursor}
		isOver = false
	}
	if isOver {
		return ""
	}
	return at.String()
}

// away returns the numbers of the cells whose part is missing, or has broken off.
func (m *merge) away() []int {
	numbers := []int{}
	for _, s := range m.sources {
		if s.isAway {
			numbers = append(numbers, s.at.number)
		}
	}
	return numbers
}

func (m *merge) close() {
	for _, s := range m.sources {
		m.reading.close(s)
	}
	m.g.metrics.noteMissing(m.away())
}

// A page is one of a merged listing, on its way to the caller.
type page struct {
	*merge
	limit       int
	withCursors bool
	buffer      []byte // of an element
}

// write writes the page as it comes.
func (p *page) write() error {
	p.c.missing(p.away())
	p.c.begin("application/json")
	w := bufio.NewWriterSize(p.c, writeBuffer)
	_, _ = w.WriteString(`{"` + p.list.list + `":[`) // the last error counts
	if err := p.elements(w); err != nil {
		return err
	}
	next := "null"
	if cursor := p.cursor(nil); cursor != "" {
		next = `"` + cursor + `"`
	}
	_, _ = w.WriteString(`],"next":` + next + `,"` + unavailableMember + `":` + numbersText(p.away()) + "}\n")
	if err := w.Flush(); err != nil {
		return errClientGone
	}
	return nil
}

// writeCloudEvents writes the page once it is whole: its header has what is no CloudEvent.
func (p *page) writeCloudEvents() error {
	whole := &budgetBuffer{bodies: &p.g.bodies, call: p.c}
	_, _ = whole.Write([]byte{'['})
	if err := p.elements(whole); err != nil {
		return err
	}
	_, _ = whole.Write([]byte("]\n"))
	p.c.missing(p.away())
	if cursor := p.cursor(nil); cursor != "" {
		query := p.r.URL.Query()
		query.Set("cursor", cursor)
		p.c.Header().Set("Link", "<?"+query.Encode()+`>; rel="next"`)
	}
	p.c.begin(cloudEventBatch)
	_, _ = p.c.Write(whole.Bytes()) // a client that has gone misses this only
	return nil
}

// elements writes the elements of the page.
func (p *page) elements(w io.Writer) error {
	total, bytesWritten := 0, 0
	for total < p.limit {
		sources := p.next(p.limit - total)
		if len(sources) == 0 {
			break
		}
		text, err := p.text(sources)
		if err != nil {
			return err
		}
		if bytesWritten += len(text); total > 0 && bytesWritten > maxPageBytes {
			break
		}
		if total > 0 {
			_, err = w.Write([]byte{','})
		}
		if err == nil {
			_, err = w.Write(text)
		}
		if err != nil {
			return clientError(err)
		}
		p.take(sources)
		total++
	}
	if err := p.r.Context().Err(); err != nil {
		return err
	}
	p.g.metrics.merged.WithLabelValues(p.c.pattern()).Inc()
	return nil
}

// text returns the element that the next of sources are, for the caller.
func (p *page) text(sources []*source) ([]byte, error) {
	p.buffer = sources[0].head.appendTo(p.buffer[:0])
	text := p.buffer
	if len(sources) > 1 {
		elements, cells := make([]element, len(sources)), make([]*cell, len(sources))
		for i, s := range sources {
			elements[i], cells[i] = s.head, s.at
		}
		var err error
		if text, err = p.list.join(p.g, elements, cells); err != nil {
			return nil, err
		}
	}
	if p.withCursors {
		member := append([]byte(`,"`+p.names.cursor+`":"`), p.cursor(sources)...)
		text = bytes.Join([][]byte{text[:len(text)-1], member, []byte(`"}`)}, nil)
	}
	return text, nil
}

// numbersText returns numbers as JSON.
func numbersText(numbers []int) string {
	text := []byte{'['}
	for i, number := range numbers {
		if i > 0 {
			text = append(text, ',')
		}
		text = strconv.AppendInt(text, int64(number), 10)
	}
	return string(append(text, ']'))
}
