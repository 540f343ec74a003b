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
)

// A forwarding is a home that has events wait for cell 1, and what it is told of them.
type forwarding struct {
	mu   sync.Mutex
	told []string // "ack id result" or "nack id"
}

func newForwarding(home *fakeCell) *forwarding {
	f := &forwarding{}
	home.waiting["queued.forward.1"] = make(chan string, 10)
	home.mux.HandleFunc("POST /ack", func(w http.ResponseWriter, r *http.Request) {
		var asked struct {
			Events []struct {
				ID      int64
				Receipt string
				Result  json.RawMessage
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, e := range asked.Events {
			f.told = append(f.told, fmt.Sprintf("ack %d %s %s", e.ID, e.Receipt, e.Result))
		}
		_, _ = io.WriteString(w, `{"events":[]}`)
	})
	home.mux.HandleFunc("POST /events/{id}/nack", func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.told = append(f.told, fmt.Sprintf("nack %s %s", r.PathValue("id"), text))
	})
	return f
}

// wait waits until home was told of n events, and returns what.
func (f *forwarding) wait(e *environment, n int) []string {
	e.t.Helper()
	e.until("home is told", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.told) >= n
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	told := slices.Sorted(slices.Values(f.told))
	f.told = nil
	return told
}

// claimed is the answer to a claim of events with these ids.
func claimed(extra string, ids ...int) string {
	var all []string
	for _, id := range ids {
		all = append(all, fmt.Sprintf(`{"id":%d,"receipt":"r%d","event":{"n":12345678901234567890},"publication":{"forward":{"queue":"q"}}%s}`, id, id, extra))
	}
	return `{"events":[` + strings.Join(all, ",") + `]}`
}

func TestEventsThatWaitAtHomeAreBroughtToTheirCell(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	f := newForwarding(home)
	home.mux.HandleFunc("GET /events/{id}/raw", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("id") == "4" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Expires", "Tue, 01 Jan 2999 00:00:00 GMT")
		_, _ = io.WriteString(w, "as it came")
	})
	var mu sync.Mutex
	inserts, fails := []string{}, 1
	known := map[int64]bool{}
	one.mux.HandleFunc("POST /cell/events", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		inserts = append(inserts, string(text))
		var asked struct {
			Events []struct{ ID int64 }
		}
		_ = json.Unmarshal(text, &asked)
		if strings.Contains(string(text), `{"id":8,`) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		var results []string
		for _, e := range asked.Events {
			switch {
			case e.ID == 9:
				results = append(results, `{"forwarded":9,"result":"refused","detail":"it is bad"}`)
			case known[e.ID]:
				results = append(results, fmt.Sprintf(`{"forwarded":%d,"id":%d,"result":"known"}`, e.ID, 100+e.ID))
			default:
				known[e.ID] = true
				results = append(results, fmt.Sprintf(`{"forwarded":%d,"id":%d,"result":"inserted"}`, e.ID, 100+e.ID))
			}
		}
		if fails > 0 { // the outcome is unknown
			fails--
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"events":[`+strings.Join(results, ",")+`]}`)
	})
	e := setup(t, nil, home, one)

	home.waiting["queued.forward.1"] <- claimed("", 1, 2)
	if got := f.wait(e, 2); !slices.Equal(got, []string{`ack 1 r1 {"cell":1,"id":101}`, `ack 2 r2 {"cell":1,"id":102}`}) {
		t.Errorf("home was told %v", got)
	}
	mu.Lock()
	if len(inserts) != 2 || inserts[0] != inserts[1] || !strings.Contains(inserts[0], "12345678901234567890") || strings.Contains(inserts[0], "raw") {
		t.Errorf("inserted %v", inserts)
	}
	inserts = nil
	mu.Unlock()

	// Events of sources come with their bodies.
	home.waiting["queued.forward.1"] <- claimed(`,"meta":{"verified_source":"github"}`, 3, 4)
	f.wait(e, 2)
	mu.Lock()
	if len(inserts) != 1 || strings.Count(inserts[0], `"raw":{"body":"YXMgaXQgY2FtZQ==","media_type":"text/plain","kept_until":"2999-01-01T00:00:00Z"}`) != 1 {
		t.Errorf("inserted %v", inserts)
	}
	mu.Unlock()

	// What the cell does not take, by itself or as a request, keeps nothing else from going there.
	home.waiting["queued.forward.1"] <- claimed("", 5, 9, 6, 8, 7)
	got := f.wait(e, 5)
	if len(got) != 5 || got[0][:5] != "ack 5" || got[2][:5] != "ack 7" || !strings.Contains(got[3], "nack 8") || !strings.Contains(got[3], "413") ||
		!strings.Contains(got[4], "nack 9") || !strings.Contains(got[4], "it is bad") || !strings.Contains(got[4], `"delay":"1m"`) {
		t.Errorf("home was told %v", got)
	}
	if got := e.call("GET", "/metrics", "", "Authorization: Bearer metrics").body; !strings.Contains(got, `queued_gateway_forwarded_total{cell="1"} 5`) {
		t.Error("the metrics do not say that 5 were inserted and seen to be")
	}
}

func TestEventsWaitAtHomeWhileTheirCellIsAway(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	f := newForwarding(home)
	one.mux.HandleFunc("POST /cell/events", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"events":[{"forwarded":1,"id":101,"result":"inserted"}]}`)
	})
	thaw := one.freeze()
	defer thaw()
	e := start(t, nil, home, one)
	e.until("home is used", func() bool { return e.gateway.cell(0).isUp() })
	home.waiting["queued.forward.1"] <- claimed("", 1)
	e.until("a look at the cell was missed", func() bool {
		return strings.Contains(e.log.String(), "the cell cannot be used") || e.gateway.ready() == nil
	})
	if len(home.waiting["queued.forward.1"]) == 0 {
		t.Error("events were claimed for a cell that is away")
	}
	thaw()
	f.wait(e, 1)
}
