package gateway

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// evenRows returns n rows for each of cells, in turns.
func evenRows(n, cells int, member string) []fakeRow {
	var rows []fakeRow
	for i := range n {
		for number := range cells {
			id := int64(number)<<idBits + int64(i) + 1
			key := fmt.Sprintf("2026-02-03T00:%02d:%02dZ", i/60, i%60)
			rows = append(rows, fakeRow{key, id, fmt.Sprintf(`"id":%d,%q:%q`, id, member, key)})
		}
	}
	return rows
}

func TestPageNamesTheCellsWhosePartIsMissingAndGoesOnThereLater(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 3, "/history", "events", evenRows(50, 3, "event_ts"), true)
	first, got := m.page(30, "")
	if len(first.Events) != 30 || len(first.UnavailableCells) != 0 || got.header.Get(unavailableHeader) != "" {
		t.Fatalf("got %s", got.body)
	}
	thaw := m.cells[2].freeze()
	m.until("cell 2 is away", func() bool { return !m.gateway.cell(2).isUp() })
	ids := []int64{}
	add := func(page mergedPage) {
		for _, e := range page.Events {
			ids = append(ids, int64(e["id"].(float64)))
		}
	}
	add(first)
	next := first.Next
	for range 2 {
		page, got := m.page(30, *next)
		if !slices.Equal(page.UnavailableCells, []int{2}) || got.header.Get(unavailableHeader) != "2" || page.Next == nil {
			t.Fatalf("without cell 2: got %v %s", got.header, got.body)
		}
		add(page)
		next = page.Next
	}
	// The others have 20 left.
	page, _ := m.page(1000, *next)
	if len(page.Events) != 20 || page.Next == nil {
		t.Fatalf("the rest of the others is %d, and next %v", len(page.Events), page.Next)
	}
	add(page)
	m.wantProblem(cellUnavailable, 2, "GET", "/history?cursor="+*page.Next, "")
	thaw()
	m.until("cell 2 is back", func() bool { return m.gateway.cell(2).isUp() })
	ids = append(ids, m.read(*page.Next, func() int { return 15 })...)
	slices.Sort(ids)
	want := idsOf(m.all)
	slices.Sort(want)
	if !slices.Equal(ids, want) {
		t.Errorf("all pages have %d elements, %v, want %v", len(ids), ids, want)
	}
	if scraped := m.call("GET", "/metrics", "", "Authorization: Bearer "+gatewayKey).body; !strings.Contains(scraped, `queued_gateway_missing_parts_total{cell="2"} 3`) ||
		!strings.Contains(scraped, `queued_gateway_merged_answers_total{route="/history"}`) {
		t.Error("the metrics do not count missing parts")
	}
}

func TestPartThatBreaksOffIsAskedForAgainAndNothingIsRepeated(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 3, "/events", "events", evenRows(40, 3, "vt"), false)
	random := rand.New(rand.NewPCG(rand.Uint64(), 2))
	var breaks atomic.Int32
	for _, part := range m.parts {
		part.broken = func() (int, bool) { // the second answer is whole
			isBroken := breaks.Add(1)%2 == 1
			return 3, isBroken
		}
	}
	if got := m.read("", func() int { return 1 + random.IntN(50) }); !slices.Equal(got, idsOf(m.all)) {
		t.Errorf("got %v, want %v", got, idsOf(m.all))
	}
	if breaks.Load() < 4 {
		t.Errorf("%d answers broke off", breaks.Load())
	}
}

func TestCellThatBreaksOffAtOnceIsNamedInThePage(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 2, "/events", "events", evenRows(40, 2, "vt"), false)
	isBroken := atomic.Bool{}
	isBroken.Store(true)
	m.parts[1].broken = func() (int, bool) { return 0, isBroken.Load() }
	page, got := m.page(60, "")
	if len(page.Events) != 40 || !slices.Equal(page.UnavailableCells, []int{1}) || page.Next == nil {
		t.Fatalf("got %s", got.body)
	}
	isBroken.Store(false)
	if rest := m.read(*page.Next, func() int { return 9 }); !slices.Equal(rest, idsOf(m.parts[1].rows)) {
		t.Errorf("the rest is %v", rest)
	}
}

func TestPageOverCellsIsRefusedAsACellRefusesIt(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 3, "/events", "events", evenRows(3, 3, "vt"), false)
	for _, test := range []struct {
		statuses []int
		want     int
		code     string
	}{
		{[]int{0, 403, 0}, 403, "c403"},
		{[]int{0, 429, 503}, 429, "c429"},
		{[]int{404, 404, 404}, 404, "c404"},
		{[]int{0, 404, 404}, 200, ""},
		{[]int{404, 503, 404}, 200, ""},
		{[]int{0, 500, 0}, 200, ""},
		{[]int{503, 503, 500}, 503, "cell_unavailable"},
	} {
		for number, status := range test.statuses {
			m.cells[number].override.Store(nil)
			if status > 0 {
				m.cells[number].override.Store(&override{status, fmt.Sprintf(`{"code":"c%d"}`, status)})
			}
		}
		page, got := m.page(100, "")
		if got.status != test.want || !strings.Contains(got.body, test.code) {
			t.Errorf("%v: answered %d %s", test.statuses, got.status, got.body)
		}
		if got.status != 200 {
			continue
		}
		var away []int
		elements := 0
		for number, status := range test.statuses {
			if status >= 500 {
				away = append(away, number)
			} else if status == 0 {
				elements += 3
			}
		}
		if !slices.Equal(page.UnavailableCells, away) || len(page.Events) != elements || (page.Next == nil) != (away == nil) {
			t.Errorf("%v: answered %s", test.statuses, got.body)
		}
	}
	for _, f := range m.cells {
		f.override.Store(nil)
	}
	m.wantProblem(invalidCursor, -1, "GET", "/events?cursor=xyz", "")
	m.wantProblem(invalidCursor, -1, "GET", "/events?cursor=eyJjZWxscyI6eyI5OTkiOm51bGx9fQ", "")
	m.want(400, "invalid_cursor", "GET", "/events?cursor="+places{1: {cursor: "of another listing"}}.String(), "")
	asked := len(m.parts[1].asked())
	m.want(200, "", "GET", "/events?limit=0", "") // it is home's to refuse that
	if len(m.parts[1].asked()) != asked {
		t.Error("a limit that is none went to another cell than home")
	}
}

func TestElementsHaveCursorsOverCellsOnRequest(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 3, "/events", "events", evenRows(10, 3, "vt"), false)
	var page mergedPage
	got := m.call("GET", "/events?limit=20&cursors=true", "")
	if err := json.Unmarshal([]byte(got.body), &page); err != nil || len(page.Events) != 20 {
		t.Fatalf("got %s, %v", got.body, err)
	}
	for i, e := range page.Events {
		if rest := m.read(e["cursor"].(string), func() int { return 100 }); !slices.Equal(rest, idsOf(m.all)[i+1:]) {
			t.Errorf("after element %d there are %v", i, rest)
		}
	}
}

func TestCloudEventsOverCellsLinkToTheNextPage(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 3, "/history", "events", evenRows(30, 3, "event_ts"), true)
	var ids []string
	for path := "/history?limit=25"; path != ""; {
		got := m.call("GET", path, "", "Accept: "+cloudEventBatch)
		var events []map[string]string
		if err := json.Unmarshal([]byte(got.body), &events); err != nil || got.header.Get("Content-Type") != cloudEventBatch {
			t.Fatalf("got %v %s: %v", got.header, got.body, err)
		}
		for _, e := range events {
			if e["queuedcursor"] != "" || e["queuedeventts"] != "" || e["queuedvt"] == "" {
				t.Fatalf("got %v", e)
			}
			ids = append(ids, e["id"])
		}
		link, isNext := strings.CutSuffix(strings.TrimPrefix(got.header.Get("Link"), "<"), `>; rel="next"`)
		if path = ""; isNext {
			path = "/history" + link
		}
	}
	var want []string
	for _, row := range m.all {
		want = append(want, itoa(row.id))
	}
	if !slices.Equal(ids, want) {
		t.Errorf("got %v, want %v", ids, want)
	}
}

func TestCellsAreAskedForTheirShareOfAPage(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 4, "/history", "events", evenRows(100, 4, "event_ts"), true)
	if page, _ := m.page(100, ""); len(page.Events) != 100 {
		t.Fatalf("got %d", len(page.Events))
	}
	for number, part := range m.parts {
		if asked := part.asked(); len(asked) != 1 || asked[0].Get("limit") != "36" || asked[0].Get("cursors") != "true" {
			t.Errorf("cell %d was asked %v", number, asked)
		}
	}
}

func TestPageOverCellsIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	rows := evenRows(10, 2, "vt")
	for i := range rows {
		rows[i].text += `,"event":"` + strings.Repeat("x", 1<<20) + `"`
	}
	m := newMerging(t, 2, "/events", "events", rows, false)
	var got []int64
	for cursor := ""; ; {
		page, answer := m.page(1000, cursor)
		if len(answer.body) > maxPageBytes+1<<10 || len(page.Events) == 0 {
			t.Fatalf("a page has %d bytes and %d elements", len(answer.body), len(page.Events))
		}
		for _, e := range page.Events {
			got = append(got, int64(e["id"].(float64)))
		}
		if page.Next == nil {
			break
		}
		cursor = *page.Next
	}
	if !slices.Equal(got, idsOf(m.all)) {
		t.Errorf("got %v, want %v", got, idsOf(m.all))
	}
}

func TestExportOverCellsHasAllRowsInOrder(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 3, "/history", "events", evenRows(900, 3, "event_ts"), true)
	got := m.call("GET", "/history?format=ndjson", "")
	lines := strings.Split(strings.TrimSpace(got.body), "\n")
	if len(lines) != len(m.all)+1 || lines[len(lines)-1] != fmt.Sprintf(`{"end":{"rows":%d}}`, len(m.all)) || !strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment") {
		t.Fatalf("%d lines, the last %s", len(lines), lines[len(lines)-1])
	}
	for i, row := range m.all {
		if lines[i] != "{"+row.text+"}" {
			t.Fatalf("line %d is %s, want %s", i, lines[i], row.text)
		}
	}
	records, err := csv.NewReader(strings.NewReader(m.call("GET", "/history", "", "Accept: text/csv").body)).ReadAll()
	if err != nil || len(records) != len(m.all)+2 || records[1][0] != itoa(m.all[0].id) || records[len(records)-1][1] != fmt.Sprint(len(m.all)) {
		t.Errorf("%d records, %v", len(records), err)
	}
	// With a limit it says where to go on.
	cut := strings.Split(strings.TrimSpace(m.call("GET", "/history?format=ndjson&limit=1500", "").body), "\n")
	var end struct {
		End struct {
			Rows int
			Next string
		}
	}
	if err := json.Unmarshal([]byte(cut[len(cut)-1]), &end); err != nil || end.End.Rows != 1500 || len(cut) != 1501 {
		t.Fatalf("%d lines, the last %s: %v", len(cut), cut[len(cut)-1], err)
	}
	rest := strings.Split(m.call("GET", "/history?format=ndjson&cursor="+end.End.Next, "").body, "\n")
	if rest[0] != lines[1500] || len(rest) != len(m.all)-1500+2 {
		t.Errorf("the rest has %d lines, the first %s", len(rest), rest[0])
	}
}

func TestExportOverCellsThatLosesACellDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 2, "/history", "events", evenRows(3000, 2, "event_ts"), true)
	var answers atomic.Int32
	m.parts[1].broken = func() (int, bool) { return 0, answers.Add(1) > 2 }
	for _, format := range []string{"csv", "ndjson"} {
		answers.Store(0)
		resp, err := m.client.Do(m.request("GET", "/history?format="+format, ""))
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil || resp.Trailer.Get("Export-Rows") != "" || strings.Contains(string(text), "#end") || strings.Contains(string(text), `{"end"`) {
			t.Errorf("%s: an export that lost a cell ends with %.200s, %v", format, text[max(0, len(text)-200):], err)
		}
		if isSaid := strings.Contains(string(text), `{"error":{`); isSaid != (format == "ndjson") {
			t.Errorf("%s: it says why: %v", format, isSaid)
		}
	}
	thaw := m.cells[1].freeze()
	defer thaw()
	m.until("cell 1 is away", func() bool { return !m.gateway.cell(1).isUp() })
	m.wantProblem(cellUnavailable, 1, "GET", "/history?format=csv", "")
}

func TestQueueOnSeveralCellsIsOneRow(t *testing.T) {
	t.Parallel()
	row := func(name string, ready int, age string, isPaused bool, dead string) fakeRow {
		return fakeRow{name, 0, fmt.Sprintf(`"queue":%q,"ready":%d,"scheduled":1,"waiting":4,"leased":0,"oldest_ready_age":%s,"done_last_hour":2,"expired_last_hour":0,"estimated":%v,"paused":%v,"dead_letters_of":[%s]`,
			name, ready, age, ready > 5, isPaused, dead)}
	}
	parts := [][]fakeRow{
		{row("a", 1, "null", false, ""), row("both", 3, `"1m0s"`, true, `"x","y"`), row("d", 1, "null", false, "")},
		{row("b", 1, "null", false, "")},
		{row("both", 6, `"1h0m0s"`, false, `"x","b"`), row("c", 1, "null", false, "")},
	}
	m := newMerging(t, 3, "/queues", "queues", nil, false)
	for i, part := range m.parts {
		part.rows = parts[i]
	}
	m.cells[0].put(placement{Queue: "both", Cells: cellSet{2, 0}})
	m.until("the placement is known", func() bool { p, _ := m.gateway.placements.get("both"); return p != nil })
	for _, limit := range []int{1, 2, 100} {
		var names []string
		for cursor := ""; ; {
			page, _ := m.page(limit, cursor)
			for _, q := range page.Queues {
				names = append(names, q["queue"].(string))
				if q["queue"] != "both" {
					continue
				}
				text, _ := json.Marshal(q)
				if want := `{"dead_letters_of":["b","x","y"],"done_last_hour":4,"estimated":true,"expired_last_hour":0,"leased":0,"oldest_ready_age":"1h0m0s","paused":false,"queue":"both","ready":9,"scheduled":2,"waiting":8}`; string(text) != want {
					t.Errorf("got %s, want %s", text, want)
				}
			}
			if page.Next == nil {
				break
			}
			cursor = *page.Next
		}
		if !slices.Equal(names, []string{"a", "b", "both", "c", "d"}) {
			t.Errorf("pages of %d have %v", limit, names)
		}
	}
}

func TestQueueOnSeveralCellsHasThePolicyOfTheFirst(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	for i, f := range fakes {
		f.mux.HandleFunc("GET /queues/{name}", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", fmt.Sprintf(`"%d"`, i))
			_, _ = fmt.Fprintf(w, `{"queue":%q,"max_attempts":%d,"version":%[2]d,"ready":%d,"oldest_ready_age":"%ds"}`, r.PathValue("name"), i, 10*i, i)
		})
	}
	fakes[0].put(placement{Queue: "wide", Cells: cellSet{2}, Former: []former{{Cells: cellSet{1}}}})
	e := setup(t, nil, fakes...)
	got := e.want(200, `{"queue":"wide","max_attempts":2,"version":2,"ready":30,"oldest_ready_age":"2s","unavailable_cells":[]}`, "GET", "/queues/wide", "")
	if got.header.Get("ETag") != `"2"` {
		t.Errorf("the ETag is %s", got.header.Get("ETag"))
	}
	thaw := fakes[1].freeze()
	defer thaw()
	e.until("cell 1 is away", func() bool { return !e.gateway.cell(1).isUp() })
	e.want(200, `"ready":20,"oldest_ready_age":"2s","unavailable_cells":[1]}`, "GET", "/queues/wide", "")
}

func TestCellThatFreezesWhileItAnswersIsNamedInThePage(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 2, "/events", "events", evenRows(5, 2, "vt"), false)
	begun := make(chan struct{})
	freezing := answersPath(t, m, "/schedules", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"schedules":[{"id":35184372088833,"created_at":"2026-02-03T00:00:00Z","cursor":"1"},`)
		_ = http.NewResponseController(w).Flush()
		close(begun)
		<-r.Context().Done()
	})
	go func() {
		<-begun
		freezing.freeze()
	}()
	got := m.want(200, `"unavailable_cells":[1]`, "GET", "/schedules", "")
	if !strings.HasPrefix(got.body, `{"schedules":[{"id":35184372088833,"created_at":"2026-02-03T00:00:00Z"}],"next":"`) {
		t.Errorf("got %s", got.body)
	}
}

// answersPath has the last cell of m answer a path, and the others with an empty list. It returns that cell.
func answersPath(t *testing.T, m *merging, path string, answer http.HandlerFunc) *fakeCell {
	t.Helper()
	last := m.cells[len(m.cells)-1]
	for _, f := range m.cells {
		if f == last {
			f.mux.HandleFunc("GET "+path, answer)
			continue
		}
		part := &fakeListing{list: strings.TrimPrefix(path, "/")}
		f.mux.HandleFunc("GET "+path, part.serve)
	}
	return last
}

func TestPageIsWrittenAsItIsRead(t *testing.T) {
	t.Parallel()
	m := newMerging(t, 2, "/events", "events", nil, false)
	seen := make(chan struct{})
	answersPath(t, m, "/schedules", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"schedules":[`)
		for i := range 20 {
			_, _ = fmt.Fprintf(w, `{"id":%d,"created_at":"2026-02-03T00:00:00Z","text":%q,"cursor":"%[1]d"},`, i+1, strings.Repeat("x", 10_000))
		}
		_ = http.NewResponseController(w).Flush()
		select { // the rest comes once the client has the beginning
		case <-seen:
		case <-r.Context().Done():
			return
		}
		_, _ = io.WriteString(w, `{"id":99,"created_at":"2026-02-03T00:00:00Z","cursor":"99"}],"next":null}`)
	})
	resp, err := m.client.Do(m.request("GET", "/schedules?limit=1000", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if _, err := io.ReadFull(resp.Body, make([]byte, 100_000)); err != nil {
		t.Fatal(err)
	}
	close(seen)
	if rest, err := io.ReadAll(resp.Body); err != nil || !strings.HasSuffix(string(rest), `{"id":99,"created_at":"2026-02-03T00:00:00Z"}],"next":null,"unavailable_cells":[]}`+"\n") {
		t.Errorf("the rest is %.200s, %v", rest, err)
	}
}
