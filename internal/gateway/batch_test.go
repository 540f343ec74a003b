package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A batchCell has what came to a cell in batches.
type batchCell struct {
	*fakeCell

	mu       sync.Mutex
	requests []string // the query of each
	names    []string // of the events that were inserted, in order
}

// batchable has a cell take batches of events {"n":NAME}, as a server does: it refuses all of a batch with an event that is called bad, and one that is called used by
// itself.
func batchable(f *fakeCell) *batchCell {
	b := &batchCell{fakeCell: f}
	f.mux.HandleFunc("POST /events/batch", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		var body struct {
			Events []struct {
				Queue string
				Event struct{ N string }
			}
			Extra string
		}
		if err := json.Unmarshal(text, &body); err != nil || len(body.Events) == 0 {
			refuseBatch(w, "#/events")
			return
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		b.requests = append(b.requests, r.URL.RawQuery)
		for i, e := range body.Events {
			if e.Event.N == "bad" || strings.HasPrefix(e.Queue, "queued.") {
				refuseBatch(w, fmt.Sprintf("#/events/%d/type", i))
				return
			}
			if e.Event.N == "forbidden" {
				w.WriteHeader(http.StatusForbidden)
				_, _ = fmt.Fprintf(w, `{"code":"forbidden","detail":"no","errors":[{"pointer":"#/events/%d/queue","detail":"no"}]}`, i)
				return
			}
		}
		results := []any{}
		for _, e := range body.Events {
			if e.Event.N == "used" {
				results = append(results, map[string]any{"status": 422, "code": "idempotency_key_reused", "detail": "used"})
				continue
			}
			b.names = append(b.names, e.Event.N)
			results = append(results, map[string]any{"status": 201, "id": int64(f.number)<<idBits + int64(len(b.names)), "queue": e.Queue})
		}
		if r.URL.Query().Get("atomic") != "false" {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"ids":[1]}`)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
	})
	return b
}

func refuseBatch(w http.ResponseWriter, pointer string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusUnprocessableEntity)
	_, _ = fmt.Fprintf(w, `{"code":"validation_failed","detail":"%[1]s: wrong.","errors":[{"pointer":%[1]q,"detail":"wrong"}]}`, pointer)
}

func (b *batchCell) came() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.names)
}

// events returns the body of a batch of "queue name" or "queue name key" events.
func eventsOf(elements ...string) string {
	texts := make([]string, len(elements))
	for i, element := range elements {
		f := append(strings.Fields(element), "")
		texts[i] = fmt.Sprintf(`{"queue":%q,"event":{"n":%q}}`, f[0], f[1])
		if f[2] != "" {
			texts[i] = fmt.Sprintf(`{"key":%q,"queue":%q,"event":{"n":%q}}`, f[2], f[0], f[1])
		}
	}
	return `{"events":[` + strings.Join(texts, ", ") + `]}`
}

// resultsOf returns "status code cell" of each result.
func resultsOf(t *testing.T, got answer) []string {
	t.Helper()
	var body struct {
		Results []struct {
			ID     int64
			Status int
			Code   string
			Cell   *int
		}
	}
	if err := json.Unmarshal([]byte(got.body), &body); err != nil || got.status != http.StatusOK {
		t.Fatalf("answered %d %s: %v", got.status, got.body, err)
	}
	texts := make([]string, len(body.Results))
	for i, one := range body.Results {
		texts[i] = fmt.Sprint(one.Status)
		if one.Code != "" {
			texts[i] += " " + one.Code
		}
		if one.Cell != nil {
			texts[i] += fmt.Sprint(" ", *one.Cell)
		}
		if one.Status < 300 {
			texts[i] += fmt.Sprint(" on ", one.ID>>idBits)
		}
	}
	return texts
}

func wantTexts(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// batchCells starts a gateway in front of three cells, with the queues zero, one and two on them.
func batchCells(t *testing.T, change func(*Config)) (*environment, []*batchCell) {
	t.Helper()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	var cells []*batchCell
	for i, name := range []string{"zero", "one", "two"} {
		cells = append(cells, batchable(fakes[i]))
		fakes[0].put(placement{Queue: name, Cells: []int{i}})
	}
	return setup(t, change, fakes...), cells
}

func TestBatchOfOneCellIsPassedOnAsItIs(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	e.want(201, `{"ids":[1]}`, "POST", "/events/batch", eventsOf("two a", "two b"))
	e.want(200, "results", "POST", "/events/batch?atomic=false", eventsOf("two c"))
	wantTexts(t, "the cell got", cells[2].came(), "a", "b", "c")
	for _, body := range []string{`{"events":[]}`, `{"events":[{"queue":7}]}`, `{"events":[{"queue":"queued."}]}`, `{"events":[1]}`, `{"events":null}`, "", "{", `{"events":[{}]}x`} {
		e.want(422, "validation_failed", "POST", "/events/batch", body) // which home says
	}
	wantTexts(t, "home got", cells[0].came())
}

func TestBatchOfSeveralCellsHasToBeOfSingleInserts(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	got := e.want(422, "cells 0, 1 and 2", "POST", "/events/batch", eventsOf("two a", "one b", "zero c"))
	e.wantProblem(batchNotAtomic, -1, "POST", "/events/batch?atomic=true", eventsOf("two a", "one b"))
	for i := range cells {
		wantTexts(t, "inserted", cells[i].came())
	}
	if !strings.Contains(got.body, `"batch_not_atomic"`) {
		t.Errorf("answered %s", got.body)
	}
	got = e.call("POST", "/events/batch?atomic=false", eventsOf("two a", "one b", "zero c", "two d", "one used", "zero e"))
	wantTexts(t, "results", resultsOf(t, got), "201 on 2", "201 on 1", "201 on 0", "201 on 2", "422 idempotency_key_reused", "201 on 0")
	wantTexts(t, "cell 0", cells[0].came(), "c", "e")
	wantTexts(t, "cell 1", cells[1].came(), "b")
	wantTexts(t, "cell 2", cells[2].came(), "a", "d")
	if got.header.Get(unavailableHeader) != "" || got.header.Get("X-Request-Id") == "" || got.header.Get("Content-Type") != "application/json" {
		t.Errorf("answered with %v", got.header)
	}
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestBatchPlacesNewQueuesInTheNameOfItsCaller(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	elements := []string{}
	for i := range 20 {
		elements = append(elements, fmt.Sprintf("new-%d e%d", i, i))
	}
	got := resultsOf(t, e.call("POST", "/events/batch?atomic=false", eventsOf(elements...)))
	for i := range 20 {
		if want := fmt.Sprint("201 on ", e.gateway.chooseFor(fmt.Sprint("new-", i)).number); got[i] != want {
			t.Errorf("new-%d: %s, want %s", i, got[i], want)
		}
	}
	e.want(401, "unauthorized", "POST", "/events/batch?atomic=false", eventsOf("other a", "another b"), "Authorization: Bearer wrong")
	home := cells[0]
	home.fakeCell.mu.Lock()
	defer home.fakeCell.mu.Unlock()
	if len(home.placements) != 23 {
		t.Errorf("%d placements, want 23", len(home.placements))
	}
}

func TestCellThatIsAwayFailsItsEventsOfABatchAlone(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	cells[1].stop()
	body := eventsOf("two a", "one b", "zero c", "one d")
	got := e.call("POST", "/events/batch?atomic=false", body) // the cell may not count as away yet, and a connection whose end is not noticed leaves the outcome unknown
	for i, result := range resultsOf(t, got) {
		want := map[int][]string{0: {"201 on 2"}, 2: {"201 on 0"}}[i]
		if i%2 == 1 {
			want = []string{"503 cell_unavailable 1", "502 outcome_unknown 1"}
		}
		if !slices.Contains(want, result) {
			t.Errorf("result %d: %s, want one of %q", i, result, want)
		}
	}
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	got = e.call("POST", "/events/batch?atomic=false", body)
	wantTexts(t, "results", resultsOf(t, got), "201 on 2", "503 cell_unavailable 1", "201 on 0", "503 cell_unavailable 1")
	if got.header.Get(unavailableHeader) != "1" {
		t.Errorf("answered with %v", got.header)
	}
	if !strings.Contains(got.body, "Nothing was done") {
		t.Errorf("answered %s", got.body)
	}
}

func TestCellThatGoesAwayLeavesTheOutcomeOfItsEventsOpen(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "zero", Cells: []int{0}})
	home.put(placement{Queue: "one", Cells: []int{1}})
	batchable(home)
	times := 0
	one.mux.HandleFunc("POST /events/batch", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		times++
		if times == 1 {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"results":[]}`) // fewer than there are events
	})
	e := setup(t, nil, home, one)
	for range 2 {
		got := e.call("POST", "/events/batch?atomic=false", eventsOf("one a", "zero b"))
		wantTexts(t, "results", resultsOf(t, got), "502 outcome_unknown 1", "201 on 0")
		if got.header.Get(unavailableHeader) != "1" {
			t.Errorf("answered with %v", got.header)
		}
	}
	if times != 2 {
		t.Errorf("the cell was asked %d times for 2 batches", times)
	}
}

func TestEventThatItsCellRefusesLeavesOtherCellsAlone(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	got := e.call("POST", "/events/batch?atomic=false", eventsOf("two first", "one a", "one bad", "one b"))
	wantTexts(t, "results", resultsOf(t, got), "201 on 2", "422 validation_failed", "422 validation_failed", "422 validation_failed")
	wantTexts(t, "cell 1", cells[1].came())
	// All say where the one is in the list that the caller has sent.
	if n := strings.Count(got.body, `"#/events/2/type: wrong."`); n != 3 || got.header.Get(unavailableHeader) != "" {
		t.Errorf("%d results say which event is wrong, want 3: %s; %v", n, got.body, got.header)
	}
	// Nothing is done if no cell takes any of them, and the answer is as of one server.
	refused := e.want(422, `"#/events/3/type"`, "POST", "/events/batch?atomic=false", eventsOf("two x", "two x", "one y", "two bad", "one bad"))
	if !strings.Contains(refused.body, `"validation_failed"`) || !strings.Contains(refused.body, `"#/events/3/type: wrong."`) || refused.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("answered %s", refused.body)
	}
	wantTexts(t, "cell 2", cells[2].came(), "first")
}

// Nobody can have the gateway make a thousand calls with one that its caller may not make.
func TestBatchThatItsCallerMayNotInsertIsACallOfEachCell(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	strange := "Authorization: Bearer wrong"
	var elements []string
	for i := range 999 {
		elements = append(elements, []string{"one", "two"}[i%2]+" forbidden")
	}
	asked := func() (n int) {
		for _, at := range cells {
			n += len(at.calls())
		}
		return n
	}
	e.want(403, `"#/events/0/queue"`, "POST", "/events/batch?atomic=false", eventsOf(elements...))
	if n := asked(); n != 2 {
		t.Errorf("%d calls, want 2", n)
	}
	got := resultsOf(t, e.call("POST", "/events/batch?atomic=false", eventsOf(append(elements, "zero a")...)))
	if n := asked(); n != 5 || got[0] != "403 forbidden" || got[998] != "403 forbidden" || got[999] != "201 on 0" {
		t.Errorf("%d calls, want 5; %s, %s, %s", n, got[0], got[998], got[999])
	}
	for i := range elements {
		elements[i] = fmt.Sprintf("new-%d a", i)
	}
	e.want(401, "unauthorized", "POST", "/events/batch?atomic=false", eventsOf(elements...), strange)
	if n := asked(); n != 6 { // home is asked to place the first
		t.Errorf("%d calls, want 6", n)
	}
}

func TestKeyedEventsOfABatchGoWhereTheirKeysAre(t *testing.T) {
	t.Parallel()
	e, cells := batchCells(t, nil)
	cells[0].put(placement{Queue: "moved", Cells: []int{2}, Keys: &keys{cellSet{1}, time.Now().Add(time.Hour)}})
	e.until("the gateway knows", func() bool { p, _ := e.gateway.placements.get("moved"); return p != nil })
	got := e.call("POST", "/events/batch?atomic=false", eventsOf("moved a k1", "moved b", "moved c k2"))
	wantTexts(t, "results", resultsOf(t, got), "201 on 1", "201 on 2", "201 on 1")
	e.want(422, "cells 1 and 2", "POST", "/events/batch", eventsOf("moved a k1", "moved b"))
	e.want(201, "", "POST", "/events/batch", eventsOf("moved d k4", "moved e k5"))
}

func TestBatchesAreBounded(t *testing.T) {
	t.Parallel()
	e, _ := batchCells(t, func(cfg *Config) { cfg.MaxBodyMemory = 3 << 20 })
	long := `{"events":[{"queue":"one","event":{"n":"` + strings.Repeat("x", 1<<20) + `"}},{"queue":"two","event":{"n":"b"}}]}`
	wantTexts(t, "results", resultsOf(t, e.call("POST", "/events/batch?atomic=false", long)), "201 on 1", "201 on 2")
	e.wantProblem(bodyTooLarge, -1, "POST", "/events/batch", strings.Repeat(" ", DefaultMaxBody+1))
	e.wantProblem(overloaded, -1, "POST", "/events/batch?atomic=false", strings.Replace(long, "b", strings.Repeat("b", 1<<20), 1)) // with its parts
	e.until("nothing is held", func() bool { return e.gateway.memoryInUse() == 0 })
}

func TestListThatIsLongerThanServersTakeGoesToHomeAsItIs(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	for _, path := range []string{"/events/batch", "/ack", "/extend", "/release"} {
		fakes[0].mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			var body struct{ Events []json.RawMessage }
			_ = json.NewDecoder(r.Body).Decode(&body)
			_, _ = fmt.Fprintf(w, "home got %d", len(body.Events))
		})
		for _, f := range fakes[1:] {
			f.mux.HandleFunc("POST "+path, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintf(w, "cell %d got some", f.number) })
		}
	}
	fakes[0].put(placement{Queue: "one", Cells: []int{1}})
	fakes[0].put(placement{Queue: "two", Cells: []int{2}})
	e := setup(t, nil, fakes...)
	events, ids := make([]string, maxElements+1), make([]string, maxElements+1)
	for i := range events {
		events[i], ids[i] = []string{"one a", "two b"}[i%2], fmt.Sprint(i%2+1, " ", i+1)
	}
	for _, query := range []string{"", "?atomic=true", "?atomic=false"} { // as one server refuses it, which looks at its length first
		e.want(200, "home got 1001", "POST", "/events/batch"+query, eventsOf(events...))
	}
	for _, path := range []string{"/ack", "/extend", "/release"} {
		e.want(200, "home got 1001", "POST", path, heldOf(ids...))
	}
	for _, f := range fakes[1:] {
		if got := f.calls(); len(got) > 0 {
			t.Errorf("cell %d got %v", f.number, got)
		}
	}
	e.wantProblem(batchNotAtomic, -1, "POST", "/events/batch", eventsOf(events[1:]...))
}

func TestListsAreReadAndSplit(t *testing.T) {
	t.Parallel()
	list, ok := parseList([]byte(` { "a" : [1, {}], "\u0065vents" : [ {"id":1} , {"x":"]"} ], "b": "}" } `), "events")
	if !ok || len(list.elements) != 2 || string(list.elements[1]) != `{"x":"]"}` {
		t.Fatalf("%t %q", ok, list.elements)
	}
	if got := string(list.with([]int{1})); got != `{"events":[{"x":"]"}],"a":[1, {}],"b":"}"}` || list.size([]int{1}) < len(got) {
		t.Errorf("the second alone is %s, size %d", got, list.size([]int{1}))
	}
	for _, body := range []string{``, `[]`, `{"events":[{}],"events":[{}]}`, `{"events":[{}]} {}`, `{"events":{}}`, `{"x":1}`, `{"events":[{},1]}`, `{"events":[{"a":1,"a":2}]}`} {
		if _, ok := parseList([]byte(body), "events"); ok {
			t.Errorf("%s was read", body)
		}
	}
}
