package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// cellsOfTest answers as a gateway in front of the cells 0 and 1 does, of which 1 is away until it is back. Events with odd ids are on 1.
type cellsOfTest struct {
	back chan struct{}

	mu      sync.Mutex
	events  []int64 // to be claimed
	settled map[int64]string
}

func (f *cellsOfTest) isBack() bool {
	select {
	case <-f.back:
		return true
	default:
		return false
	}
}

// has waits until an event was settled by a call.
func (f *cellsOfTest) has(t *testing.T, id int64, by string) {
	t.Helper()
	for limit := time.Now().Add(waitTimeout); ; {
		f.mu.Lock()
		got := f.settled[id]
		f.mu.Unlock()
		if got == by {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("event %d was settled by %q, want %q", id, got, by)
		}
		_ = sleep(t.Context(), time.Millisecond)
	}
}

func cellAway(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusServiceUnavailable)
	_, _ = fmt.Fprint(w, `{"status":503,"code":"cell_unavailable","cell":1}`)
}

func (f *cellsOfTest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Limit  int
		Events []struct{ ID int64 }
	}
	_ = json.NewDecoder(r.Body).Decode(&body)
	f.mu.Lock()
	defer f.mu.Unlock()
	var id int64
	_, nackErr := fmt.Sscanf(r.URL.Path, "/events/%d/nack", &id)
	switch {
	case r.URL.Path == "/claim":
		var events []map[string]any
		for n := min(body.Limit, len(f.events)); n > 0; n-- {
			events = append(events, map[string]any{"id": f.events[0], "receipt": "r", "event": map[string]any{"id": f.events[0]}})
			f.events = f.events[1:]
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"events": events})
	case r.URL.Path == "/ack":
		isOf := func(cell int64) bool {
			return !slices.ContainsFunc(body.Events, func(e struct{ ID int64 }) bool { return e.ID%2 != cell })
		}
		if isOf(1) && !f.isBack() {
			cellAway(w)
			return
		}
		var results []map[string]any
		for _, e := range body.Events {
			if e.ID%2 == 1 && !f.isBack() {
				results = append(results, map[string]any{"id": e.ID, "status": 503, "code": "cell_unavailable", "cell": 1})
				continue
			}
			f.settled[e.ID] = "ack"
			results = append(results, map[string]any{"id": e.ID, "status": 204})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
	case nackErr == nil && id%2 == 1 && !f.isBack():
		cellAway(w)
	case nackErr == nil:
		f.settled[id] = "nack"
		_, _ = fmt.Fprintf(w, `{"id":%d,"vt":"2026-02-03T04:05:06Z"}`, id)
	default:
		cellAway(w)
	}
}

func TestCellThatIsAwayHoldsUpNoAcksOfOthers(t *testing.T) {
	t.Parallel()
	const jobs = 60
	f := &cellsOfTest{back: make(chan struct{}), settled: map[int64]string{}}
	for id := range int64(jobs) {
		f.events = append(f.events, id+1)
	}
	c := answering(t, Config{}, f.ServeHTTP)
	var done atomic.Int32
	w := c.NewWorker(WorkerConfig{Concurrency: 20, OnEnd: func(e Ended) {
		if e.End != EndDone {
			t.Errorf("event %d: %s, %v", e.Event.ID, e.End, e.Err)
		}
		done.Add(1)
	}})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	stop := run(t, w)
	for id := int64(2); id <= jobs; id += 2 {
		f.has(t, id, "ack")
	}
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	_ = sleep(t.Context(), 50*time.Millisecond) // most likely it stops by now, and waits for the cell
	close(f.back)
	for id := int64(1); id <= jobs; id += 2 {
		f.has(t, id, "ack")
	}
	if err := <-stopped; err != nil || done.Load() != jobs {
		t.Errorf("%v; %d events are done, want %d", err, done.Load(), jobs)
	}
}

func TestNackOnACellThatIsAwayHoldsNoSlot(t *testing.T) {
	t.Parallel()
	f := &cellsOfTest{back: make(chan struct{}), settled: map[int64]string{}, events: []int64{1, 3, 2, 4}}
	c := answering(t, Config{}, f.ServeHTTP)
	w := c.NewWorker(WorkerConfig{Concurrency: 1})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, errors.New("it fails") })
	stop := run(t, w)
	f.has(t, 2, "nack")
	f.has(t, 4, "nack")
	close(f.back)
	f.has(t, 1, "nack")
	f.has(t, 3, "nack")
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestWorkerStopsWhileACellIsAway(t *testing.T) {
	t.Parallel()
	f := &cellsOfTest{back: make(chan struct{}), settled: map[int64]string{}, events: []int64{1, 2, 3}}
	c := answering(t, Config{}, f.ServeHTTP)
	ends := make(chan Ended, 10)
	w := c.NewWorker(WorkerConfig{Concurrency: 3, Grace: -1, OnEnd: func(e Ended) { ends <- e }})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	stop := run(t, w)
	f.has(t, 2, "ack")
	<-ends
	if err := stop(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if e := <-ends; e.End != EndUnknown || e.Event.ID%2 != 1 {
			t.Errorf("event %d: %s, %v", e.Event.ID, e.End, e.Err)
		}
	}
}
