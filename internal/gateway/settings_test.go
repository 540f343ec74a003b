package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// fakeSettings is what queues are set to on a fake cell.
type fakeSettings struct {
	mu      sync.Mutex
	change  int64
	byQueue map[string]fakeCopy
	copied  string // the epoch of copies
	status  int    // of a failure; zero: copies are taken
}

// A fakeCopy is a copy of what a queue is set to.
type fakeCopy struct {
	Queue  string          `json:"queue"`
	Change int64           `json:"change"`
	Policy json.RawMessage `json:"policy"`
}

func newFakeSettings() *fakeSettings { return &fakeSettings{byQueue: make(map[string]fakeCopy)} }

// set has a queue be set to a policy; null: to nothing.
func (s *fakeSettings) set(queue, policy string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.change++
	s.byQueue[queue] = fakeCopy{queue, s.change, json.RawMessage(policy)}
}

// get returns what a queue is set to.
func (s *fakeSettings) get(queue string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.byQueue[queue].Policy)
}

// fail has copies be answered with a status; zero: taken again.
func (s *fakeSettings) fail(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status = status
}

// list answers GET /cell/settings.
func (s *fakeSettings) list(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	query := r.URL.Query()
	page := copiesPage{Queues: []json.RawMessage{}, Version: s.change + 1, Epoch: "home", Complete: query.Get("epoch") != "home"}
	for queue, copied := range s.byQueue {
		isChanged := fmt.Sprint(copied.Change) >= query.Get("after_version") // of one digit
		if isAsked := query.Get("queue"); isAsked == queue || isAsked == "" && (page.Complete || isChanged) {
			text, _ := json.Marshal(copied)
			page.Queues = append(page.Queues, text)
		}
	}
	_ = json.NewEncoder(w).Encode(page)
}

// put answers PUT /cell/settings.
func (s *fakeSettings) put(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status != 0 {
		w.WriteHeader(s.status)
		return
	}
	var asked struct {
		Queues        []fakeCopy
		Epoch, Before string
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || asked.Epoch == "" {
		http.Error(w, fmt.Sprint("no epoch: ", err), http.StatusUnprocessableEntity)
		return
	}
	if s.copied != asked.Epoch && s.copied != asked.Before {
		_, _ = fmt.Fprintf(w, `{"queues":[],"epoch":%q}`, s.copied)
		return
	}
	s.copied = asked.Epoch
	for _, copied := range asked.Queues {
		s.byQueue[copied.Queue] = copied
	}
	_, _ = fmt.Fprintf(w, `{"queues":[],"epoch":%q}`, asked.Epoch)
}

func TestQueuesAreSetAtHomeAndOnAllCells(t *testing.T) {
	t.Parallel()
	fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)}
	fakes[0].put(placement{Queue: "q", Cells: []int{1}})
	fakes[0].settings.set("before", `{"max_attempts":3}`)
	status := http.StatusPreconditionFailed
	fakes[0].mux.HandleFunc("PUT /queues/q", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		if r.Header.Get("If-Match") != `"3"` || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer "+managerKey) {
			t.Errorf("home got %v", r.Header)
		}
		w.Header().Set("Etag", `"7"`)
		w.WriteHeader(status)
		if status == http.StatusOK {
			fakes[0].settings.set("q", string(text))
		}
	})
	e := setup(t, nil, fakes...)
	for _, f := range fakes[1:] {
		if got := f.settings.get("before"); got != `{"max_attempts":3}` {
			t.Errorf("cell %d is used with %q", f.number, got)
		}
	}
	put := func(body string) answer {
		return e.call("PUT", "/queues/q", body, `If-Match: "3"`, "Content-Type: application/json", "Authorization: Bearer "+managerKey)
	}
	if got := put(`{"max_attempts":5}`); got.status != status || fakes[1].settings.get("q") != "" {
		t.Errorf("answered %d, and cell 1 has %q", got.status, fakes[1].settings.get("q"))
	}
	status = http.StatusOK
	if got := put(`{"max_attempts":5}`); got.status != status || got.header.Get("Etag") != `"7"` || got.header.Get(unavailableHeader) != "" {
		t.Errorf("answered %d %v", got.status, got.header)
	}
	for _, f := range fakes[1:] {
		if got := f.settings.get("q"); got != `{"max_attempts":5}` {
			t.Errorf("cell %d has %q", f.number, got)
		}
	}
	// A cell that does not take it is named, and follows when it can.
	fakes[2].settings.fail(http.StatusServiceUnavailable)
	if got := put(`{"max_attempts":6}`); got.status != status || got.header.Get(unavailableHeader) != "2" || !e.gateway.cell(2).isUp() {
		t.Errorf("answered %d %v", got.status, got.header)
	}
	fakes[2].settings.fail(0)
	e.until("the cell is set", func() bool { return strings.Contains(fakes[2].settings.get("q"), "6") })
	// A queue that home alone holds is deleted in the same way.
	fakes[0].put(placement{Queue: "before", Cells: []int{0}})
	fakes[0].mux.HandleFunc("DELETE /queues/before", func(http.ResponseWriter, *http.Request) { fakes[0].settings.set("before", "null") })
	e.until("the gateway knows where it is", func() bool { p, _ := e.gateway.placements.get("before"); return p != nil })
	e.want(http.StatusOK, "", "DELETE", "/queues/before", "")
	for _, f := range fakes[1:] {
		if got := f.settings.get("before"); got != "null" {
			t.Errorf("once the queue is deleted cell %d has %q", f.number, got)
		}
	}
	// What is set at home itself comes, too.
	fakes[0].settings.set("q", "null")
	e.until("the cells follow", func() bool { return fakes[1].settings.get("q") == "null" && fakes[2].settings.get("q") == "null" })
}
