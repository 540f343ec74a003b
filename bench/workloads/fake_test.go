package workloads

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeQueue answers like a queue with faults that a real one should never have. Zero values: none.
type fakeQueue struct {
	loseEvery   int           // forgets the n-th event after it has said that it has it
	repeatEvery int           // gives every n-th event to two claims
	stall       time.Duration // how long the first post takes
	key         string        // wanted of every call

	mu      sync.Mutex
	last    int64
	waiting []int64
	done    map[int64]bool
	stalled bool
}

func (q *fakeQueue) serve(t *testing.T) (url string) {
	t.Helper()
	q.done = map[int64]bool{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /readyz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, `{"version":"1.2.3"}`) })
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprint(w, "process_cpu_seconds_total 1.5\nprocess_resident_memory_bytes 1.048576e+06\n")
	})
	mux.HandleFunc("POST /events", q.post)
	mux.HandleFunc("POST /claim", q.claim)
	mux.HandleFunc("POST /ack", q.ackMany)
	mux.HandleFunc("DELETE /events/{id}", func(w http.ResponseWriter, r *http.Request) {
		var id int64
		_, _ = fmt.Sscan(r.PathValue("id"), &id)
		q.finish(id)
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /events/{id}", func(w http.ResponseWriter, r *http.Request) {
		var id int64
		_, _ = fmt.Sscan(r.PathValue("id"), &id)
		q.mu.Lock()
		defer q.mu.Unlock()
		if !q.done[id] {
			w.WriteHeader(http.StatusNotFound)
		}
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q.key != "" && r.Header.Get("Authorization") != "Bearer "+q.key {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func (q *fakeQueue) post(w http.ResponseWriter, _ *http.Request) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stalled && q.stall > 0 {
		q.stalled = true
		timer := time.NewTimer(q.stall)
		<-timer.C
	}
	q.last++
	if q.loseEvery == 0 || q.last%int64(q.loseEvery) != 0 {
		q.waiting = append(q.waiting, q.last)
	}
	if q.repeatEvery > 0 && q.last%int64(q.repeatEvery) == 0 {
		q.waiting = append(q.waiting, q.last)
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"id":%d,"queue":"q","vt":"2026-01-02T15:04:05Z"}`, q.last)
}

func (q *fakeQueue) claim(w http.ResponseWriter, r *http.Request) {
	var request struct{ Limit int }
	_ = json.NewDecoder(r.Body).Decode(&request)
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(request.Limit, len(q.waiting))
	var events []string
	for _, id := range q.waiting[:n] {
		events = append(events, fmt.Sprintf(`{"id":%d,"event":{"d":"x"},"receipt":"1-r%d"}`, id, id))
	}
	q.waiting = q.waiting[n:]
	_, _ = fmt.Fprintf(w, `{"events":[%s]}`, strings.Join(events, ","))
}

func (q *fakeQueue) ackMany(w http.ResponseWriter, r *http.Request) {
	var request struct{ Events []struct{ ID int64 } }
	_ = json.NewDecoder(r.Body).Decode(&request)
	var results []string
	for _, e := range request.Events {
		q.finish(e.ID)
		results = append(results, fmt.Sprintf(`{"id":%d,"status":204}`, e.ID))
	}
	_, _ = fmt.Fprintf(w, `{"results":[%s]}`, strings.Join(results, ","))
}

func (q *fakeQueue) finish(id int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.done[id] = true
}
