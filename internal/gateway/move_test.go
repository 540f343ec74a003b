package gateway

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestQueueIsMovedOnceTheCellThatItComesToHasItsSettings(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	fakes[0].put(placement{Queue: "q", Cells: []int{1}})
	e := setup(t, nil, fakes...)
	manager := "Authorization: Bearer " + managerKey
	// Set at home itself, and not by a call of this gateway.
	fakes[0].settings.set("q", `{"max_attempts":5}`)
	got := e.call("PUT", "/queues/q/placement", `{"cells":[2]}`, manager)
	if got.status != http.StatusOK || !strings.Contains(got.body, `"cells":[2]`) || got.header.Get("Etag") != `"2"` {
		t.Errorf("got %d %v %s", got.status, got.header, got.body)
	}
	if has := fakes[2].settings.get("q"); has != `{"max_attempts":5}` {
		t.Errorf("the cell that the queue has come to has it set to %q", has)
	}
	if p, _ := e.gateway.placements.get("q"); p == nil || !slices.Equal(p.Cells, cellSet{2}) {
		t.Errorf("the gateway that has moved the queue goes by %+v", p)
	}
	fakes[1].settings.fail(http.StatusServiceUnavailable)
	fakes[0].settings.set("q", `{"max_attempts":6}`)
	e.want(http.StatusServiceUnavailable, "cannot be placed on cell 1", "PUT", "/queues/q/placement", `{"cells":[1,2]}`, manager)
	fakes[0].answers("GET /cells", http.StatusOK, `{"cells":[{"cell":8,"url":null,"takes_new":true},{"cell":9,"url":"http://127.0.0.1:1","takes_new":true}]}`)
	for _, path := range []string{"/queues/new/placement", "/cells/0/queues/new/placement"} {
		e.want(http.StatusUnprocessableEntity, "knows no cell 77", "POST", path, `{"cell":77}`, "Authorization: Bearer "+callerKey)
	}
	e.want(http.StatusUnauthorized, "unauthorized", "POST", "/queues/new/placement", `{"cell":77}`, "Authorization: Bearer nobody")
	e.want(http.StatusUnprocessableEntity, "knows no cell 7", "PUT", "/queues/q/placement", `{"cells":[1,7]}`, manager)
	e.want(http.StatusUnprocessableEntity, "knows no cell 8", "PUT", "/queues/q/placement", `{"cells":[8]}`, manager)
	e.want(http.StatusServiceUnavailable, "does not know cell 9 yet", "PUT", "/queues/q/placement", `{"cells":[9]}`, manager)
	defer fakes[1].freeze()()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	e.want(http.StatusServiceUnavailable, "cannot be placed on cell 1", "PUT", "/queues/other/placement", `{"cells":[1]}`, manager)
	fakes[0].mu.Lock()
	defer fakes[0].mu.Unlock()
	if p := fakes[0].placements["q"]; !slices.Equal(p.Cells, cellSet{2}) || len(fakes[0].placements) != 1 {
		t.Errorf("the placements are %+v", fakes[0].placements)
	}
}

func TestFormerCellsThatAreEmptyAreTakenOut(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	long := time.Now().Add(-time.Hour)
	fakes[0].put(placement{Queue: "empty", Cells: []int{0}, Former: []former{{Cells: []int{1}, Since: long}}})
	fakes[0].put(placement{Queue: "full", Cells: []int{0}, Former: []former{{Cells: []int{1}, Since: long}}})
	fakes[0].put(placement{Queue: "late", Cells: []int{0}, Former: []former{{Cells: []int{1}, Since: time.Now().Add(time.Hour)}}})
	fakes[0].put(placement{Queue: "keyed", Cells: []int{0}, Former: []former{{Cells: []int{1}, Since: long}}, Keys: &keys{[]int{1}, time.Now().Add(time.Hour)}})
	fakes[0].put(placement{Queue: "all", Cells: []int{0}, Former: []former{{Cells: nil, Since: long}}})
	fakes[0].put(placement{Queue: "part", Cells: []int{0}, Former: []former{{Cells: []int{1, 2}, Since: long}}})
	for _, f := range fakes[1:] {
		f.mux.HandleFunc("GET /queues/{name}", func(w http.ResponseWriter, r *http.Request) {
			switch queue := r.PathValue("name"); {
			case queue == "full":
				_, _ = io.WriteString(w, `{"ready":0,"scheduled":0,"waiting":1,"leased":0,"estimated":false}`)
			case queue == "part" && f.number == 2:
				_, _ = io.WriteString(w, `{"ready":0,"scheduled":0,"waiting":0,"leased":1,"estimated":false}`)
			case queue == "all":
				w.WriteHeader(http.StatusNotFound)
			default:
				_, _ = io.WriteString(w, `{"ready":0,"scheduled":0,"leased":0,"estimated":false}`)
			}
		})
	}
	var mu sync.Mutex
	said := map[string]string{}
	fakes[0].mux.HandleFunc("POST /queues/{name}/placement/drained", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		said[r.PathValue("name")] = string(body) + r.Header.Get("If-Match")
		w.WriteHeader(http.StatusPreconditionFailed)
	})
	e := setup(t, func(cfg *Config) { cfg.emptyEvery = 10 * time.Millisecond }, fakes...)
	want := map[string]string{"empty": `{"cells":[1]}"1"`, "all": `{"cells":"all"}"5"`, "part": `{"cells":[1]}"6"`}
	rounds := func() int { return len(fakes[2].calls()) }
	e.until("it is said which are empty", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(said) >= len(want)
	})
	before := rounds()
	e.until("the others were looked at, too", func() bool { return rounds() > before+20 })
	mu.Lock()
	defer mu.Unlock()
	if len(said) != len(want) {
		t.Errorf("said %v, want %v", said, want)
	}
	for queue, text := range want {
		if said[queue] != text {
			t.Errorf("of %s was said %q, want %q", queue, said[queue], text)
		}
	}
}
