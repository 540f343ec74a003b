package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// run runs a worker until the end of the test, or until stop, which returns what Run returned.
func run(t *testing.T, w *Worker) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(waitTimeout):
			t.Error("Run did not return in time")
			return nil
		}
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// Who has lost the lease is told so through the context, at once.
func TestContextEndsWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	var claims, extends atomic.Int32
	acked := make(chan struct{})
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/claim" && claims.Add(1) == 1:
			_, _ = io.WriteString(w, `{"events":[{"id":1,"receipt":"r","event":{}}]}`)
		case r.URL.Path == "/events/1/extend" && extends.Add(1) == 1:
			problem(w, http.StatusConflict, "lease_lost")
		case r.URL.Path == "/events/1/extend": // it would go on for ever
			_, _ = io.WriteString(w, `{"id":1,"vt":"2026-02-03T04:05:06Z"}`)
		case r.URL.Path == "/ack":
			_, _ = io.WriteString(w, `{"results":[{"id":1,"status":409,"code":"lease_lost"}]}`)
			close(acked)
		default:
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		}
	})
	w := c.NewWorker(WorkerConfig{Lease: time.Second})
	Handle(w, "", func(ctx context.Context, _ Job[struct{}]) (any, error) {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
		return "too late", nil
	})
	stop := run(t, w)
	<-acked
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// A worker that cannot reach the server cannot know whether it has the lease, so the handler's context ends with it.
func TestContextEndsWhenTheLeaseCannotBeExtended(t *testing.T) {
	t.Parallel()
	var claims atomic.Int32
	acked := make(chan struct{})
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/claim" && claims.Add(1) == 1:
			_, _ = io.WriteString(w, `{"events":[{"id":1,"receipt":"r","event":{}}]}`)
		case r.URL.Path == "/ack":
			_, _ = io.WriteString(w, `{"results":[{"id":1,"status":204}]}`)
			close(acked)
		default:
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		}
	})
	w := c.NewWorker(WorkerConfig{Lease: 300 * time.Millisecond})
	Handle(w, "", func(ctx context.Context, _ Job[struct{}]) (any, error) {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrLeaseLost) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
		return nil, nil
	})
	run(t, w)
	<-acked // the fence decides
}

// An answer that this process reads long after it was sent, because it was stopped meanwhile, may be of a lease that others have taken over:
// the worker asks before it works.
func TestLateAnswersAreCheckedBeforeTheWork(t *testing.T) {
	t.Parallel()
	var claims, extends atomic.Int32
	given := make(chan struct{})
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/claim" && claims.Add(1) == 1:
			_, _ = io.Copy(io.Discard, r.Body)
			_ = sleep(r.Context(), 1500*time.Millisecond) // longer than the wait and a third of the lease
			_, _ = io.WriteString(w, `{"events":[{"id":1,"receipt":"r","event":{}}]}`)
		case r.URL.Path == "/events/1/extend":
			extends.Add(1)
			problem(w, http.StatusConflict, "lease_lost")
		case r.URL.Path == "/events/1/nack":
			problem(w, http.StatusConflict, "lease_lost")
			close(given)
		default:
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		}
	})
	w := c.NewWorker(WorkerConfig{Lease: 3 * time.Second, Wait: time.Millisecond})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) {
		t.Error("the handler works on an event that somebody else has")
		return nil, nil
	})
	run(t, w)
	<-given
	if extends.Load() == 0 {
		t.Error("the lease was not checked")
	}
}

// With a backlog, a claim waits for more slots than the first that is free, but not for long.
func TestClaimsWithABacklogWaitForMoreSlots(t *testing.T) {
	t.Parallel()
	const slots = 3
	newRun := func(busy int) *workerRun {
		return &workerRun{Worker: &Worker{cfg: WorkerConfig{Concurrency: slots}}, freed: make(chan struct{}, 1), busy: busy}
	}
	r := newRun(slots)
	free := make(chan int)
	go func() { free <- r.awaitSlots(t.Context(), time.Hour, time.Time{}) }()
	for range slots {
		r.mu.Lock()
		r.busy--
		r.mu.Unlock()
		wake(r.freed)
	}
	if n := <-free; n != slots {
		t.Errorf("with a backlog, the next claim is of %d slots, want all %d", n, slots)
	}
	if n := newRun(slots-1).awaitSlots(t.Context(), time.Millisecond, time.Time{}); n != 1 {
		t.Errorf("when the others stay busy, the next claim is of %d slots, want the one that is free", n)
	}
	if n := newRun(slots-1).awaitSlots(t.Context(), 0, time.Time{}); n != 1 {
		t.Errorf("without a backlog, the next claim is of %d slots, want the one that is free", n)
	}
	for _, claim := range []struct {
		asked, got int
		took, want time.Duration
	}{{3, 3, time.Millisecond, time.Millisecond}, {3, 3, time.Minute, maxGather}, {3, 2, time.Minute, 0}, {1, 0, time.Minute, 0}} {
		if gather := gatherFor(claim.asked, claim.got, claim.took); gather != claim.want {
			t.Errorf("after a claim that has asked for %d events, got %d and took %s, the next one waits for %s, want %s", claim.asked, claim.got, claim.took, gather, claim.want)
		}
	}
}

func TestNoMoreIsClaimedThanThereAreFreeSlotsWhereThatIsWanted(t *testing.T) {
	t.Parallel()
	for _, isWanted := range []bool{false, true} {
		r := &workerRun{Worker: &Worker{cfg: WorkerConfig{Concurrency: 2, ClaimForFreeSlots: isWanted}}, worked: time.Millisecond}
		if n := r.aheadFor(10 * time.Millisecond); isWanted != (n == 0) {
			t.Errorf("ClaimForFreeSlots %t: %d are claimed ahead", isWanted, n)
		}
	}
}

// With a backlog of events that take less time than a claim, more are claimed than there are slots. No more are worked on at a time for that, and those that have no slot in time, because
// handlers take longer than they did, are released.
func TestQuickEventsAreClaimedAheadAndReleasedWhenTheyHaveToWait(t *testing.T) {
	t.Parallel()
	const slots = 4
	var last, running atomic.Int64
	ahead, released := make(chan struct{}), make(chan int, 1)
	areAhead := sync.OnceFunc(func() { close(ahead) })
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/claim":
			var body struct{ Limit int64 }
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Limit > (1+maxAhead)*slots {
				t.Errorf("a claim of %d events, %v", body.Limit, err)
			}
			select {
			case <-ahead:
				<-r.Context().Done()
				return
			case <-time.After(20 * time.Millisecond): // what a claim takes
			}
			if body.Limit == (1+maxAhead)*slots {
				areAhead()
			}
			events := make([]json.RawMessage, body.Limit)
			for i := range events {
				events[i] = fmt.Appendf(nil, `{"id":%d,"receipt":"r","event":{}}`, last.Add(1))
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"events": events})
		case "/release":
			var body releaseBatchRequest
			_ = json.NewDecoder(r.Body).Decode(&body)
			results := make([]LeaseResult, len(body.Events))
			for i, e := range body.Events {
				results[i] = LeaseResult{ID: e.ID, Status: http.StatusOK}
			}
			_ = json.NewEncoder(w).Encode(leaseResults{results})
			released <- len(results)
		default:
			ackAll(w, r)
		}
	})
	w := c.NewWorker(WorkerConfig{Concurrency: slots, Grace: -1})
	Handle(w, "", func(ctx context.Context, _ Job[struct{}]) (any, error) {
		if n := running.Add(1); n > slots {
			t.Errorf("%d handlers run at a time, and there are %d slots", n, slots)
		}
		defer running.Add(-1)
		select {
		case <-ahead:
			<-ctx.Done()
			return nil, context.Cause(ctx)
		default:
			return "quick", nil
		}
	})
	stop := run(t, w)
	select {
	case n := <-released:
		if n != maxAhead*slots {
			t.Errorf("%d events were released, want the %d that were claimed ahead", n, maxAhead*slots)
		}
	case <-time.After(waitTimeout):
		t.Error("no events were claimed ahead, or they are kept from others although no slot is free")
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// After a claim that got fewer events than it asked for, the next one waits for the interval; after one that got all, or none, it does not.
func TestClaimsKeepTheirInterval(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		interval time.Duration
		answers  []int // events, of the two that are asked for
	}{"after some": {300 * time.Millisecond, []int{1, 0, 1}}, "after all or none": {time.Hour, []int{2, 0, 2}}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkInterval(t, tc.interval, tc.answers)
		})
	}
}

func checkInterval(t *testing.T, interval time.Duration, answers []int) {
	t.Helper()
	var at []time.Time // when a claim was answered; the next one came
	enough := make(chan struct{})
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/ack" {
			ackAll(w, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not seen
		at = append(at, time.Now())
		if len(at)/2 == len(answers) {
			close(enough)
			<-r.Context().Done()
			return
		}
		events := make([]Event, answers[len(at)/2])
		for i := range events {
			events[i] = Event{ID: int64(len(at)*10 + i), Receipt: "r", Payload: json.RawMessage("{}")}
		}
		at = append(at, time.Now())
		_ = json.NewEncoder(w).Encode(claimedEvents{Events: events})
	})
	w := c.NewWorker(WorkerConfig{Concurrency: 2, ClaimForFreeSlots: true, ClaimInterval: interval, Wait: time.Nanosecond})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	stop := run(t, w)
	<-enough
	if err := stop(); err != nil {
		t.Error(err)
	}
	for i, events := range answers {
		if waited := at[2*i+2].Sub(at[2*i+1]); events == 1 && waited < interval {
			t.Errorf("claim %d, which got %d of 2 events, was followed by the next one after %s, want %s", i+1, events, waited, interval)
		}
	}
}

// An ack that is alone is sent at once, and those that come meanwhile are sent together.
func TestAcksGatherWhileOneIsOnItsWay(t *testing.T) {
	t.Parallel()
	const jobs = 50
	var mu sync.Mutex
	var batches []int
	first, others, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	claims, acked := 0, 0
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/claim":
			if claims++; claims > 1 {
				_, _ = io.Copy(io.Discard, r.Body) // else the end of the connection is not seen
				<-r.Context().Done()
				return
			}
			events := make([]Event, jobs)
			for i := range events {
				events[i] = Event{ID: int64(i + 1), Receipt: "r", Payload: json.RawMessage("{}")}
			}
			_ = json.NewEncoder(w).Encode(claimedEvents{Events: events})
		case "/ack":
			var body ackBatchRequest
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Error(err)
			}
			mu.Lock()
			batches = append(batches, len(body.Events))
			n := len(batches)
			mu.Unlock()
			results := make([]AckResult, len(body.Events))
			for i, e := range body.Events {
				results[i] = AckResult{ID: e.ID, Status: 204}
			}
			if n == 1 {
				close(first)
				<-others
			}
			_ = json.NewEncoder(w).Encode(ackResults{results})
			if acked += len(results); acked == jobs {
				close(done)
			}
		}
	})
	var returned sync.WaitGroup
	returned.Add(jobs - 1)
	w := c.NewWorker(WorkerConfig{Concurrency: jobs + 1})
	Handle(w, "", func(_ context.Context, j Job[struct{}]) (any, error) {
		if j.ID > 1 {
			<-first
			returned.Done()
		}
		return nil, nil
	})
	stop := run(t, w)
	returned.Wait()
	close(others)
	<-done
	if err := stop(); err != nil {
		t.Error(err)
	}
	if batches[0] != 1 || len(batches) > jobs/2 {
		t.Errorf("batches of %v acks", batches)
	}
}

// ackAll answers that all events of a batch are acked.
func ackAll(w http.ResponseWriter, r *http.Request) {
	var body ackBatchRequest
	_ = json.NewDecoder(r.Body).Decode(&body)
	results := make([]AckResult, len(body.Events))
	for i, e := range body.Events {
		results[i] = AckResult{ID: e.ID, Status: 204}
	}
	_ = json.NewEncoder(w).Encode(ackResults{results})
}

// The leases that are due are extended with one call; who has lost one is told so, and nobody else.
func TestLeasesAreExtendedWithOneCall(t *testing.T) {
	t.Parallel()
	var claims, extends atomic.Int32
	again := make(chan struct{})
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/claim" && claims.Add(1) == 1:
			_, _ = io.WriteString(w, `{"events":[{"id":1,"receipt":"a","event":{}},{"id":2,"receipt":"b","event":{}},{"id":3,"receipt":"c","event":{}}]}`)
		case r.URL.Path == "/extend":
			var body extendBatchRequest
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.InvisibleFor != duration(time.Second) {
				t.Errorf("%+v, %v", body, err)
			}
			n := extends.Add(1)
			if n == 1 && len(body.Events) != 3 {
				t.Errorf("the first call extends %+v", body.Events)
			}
			var results []LeaseResult
			for _, e := range body.Events {
				if e.ID == 2 {
					results = append(results, LeaseResult{ID: 2, Status: 409, Code: "lease_lost"})
				} else {
					results = append(results, LeaseResult{ID: e.ID, Status: 200, VT: time.Now().Add(time.Second)})
				}
			}
			_ = json.NewEncoder(w).Encode(leaseResults{results})
			if n == 5 { // beyond the length of the leases
				close(again)
			}
		case r.URL.Path == "/ack":
			ackAll(w, r)
		default:
			if strings.HasPrefix(r.URL.Path, "/events/") {
				t.Errorf("%s was called", r.URL.Path)
			}
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		}
	})
	w := c.NewWorker(WorkerConfig{Lease: time.Second})
	var handled sync.WaitGroup
	handled.Add(3)
	Handle(w, "", func(ctx context.Context, j Job[struct{}]) (any, error) {
		defer handled.Done()
		select {
		case <-again:
			if j.ID == 2 {
				t.Error("a lost lease goes on")
			}
		case <-ctx.Done():
			if j.ID != 2 || !errors.Is(context.Cause(ctx), ErrLeaseLost) {
				t.Errorf("the context of event %d ended with %v", j.ID, context.Cause(ctx))
			}
			<-again
		}
		return nil, nil
	})
	stop := run(t, w)
	handled.Wait()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// An event that no handler has begun when the worker stops is given back without an attempt.
func TestWhatIsNotBegunWhenTheWorkerStopsIsReleased(t *testing.T) {
	t.Parallel()
	var claims atomic.Int32
	extending, claiming, stopping, released := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	// Both the heartbeat and the start of the work may extend the lease, and a call without an answer in time is repeated.
	extends, stops, releases := sync.OnceFunc(func() { close(extending) }), sync.OnceFunc(func() { close(stopping) }), sync.OnceFunc(func() { close(released) })
	claimsAgain := sync.OnceFunc(func() { close(claiming) })
	c := answering(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/claim":
			_, _ = io.Copy(io.Discard, r.Body)
			if claims.Add(1) > 1 {
				claimsAgain()
				<-r.Context().Done()
				stops()
				return
			}
			_ = sleep(r.Context(), 1500*time.Millisecond) // so that the lease is extended before the work
			_, _ = io.WriteString(w, `{"events":[{"id":1,"receipt":"r","event":{}}]}`)
		case "/events/1/extend":
			extends()
			<-stopping
			_ = sleep(r.Context(), 500*time.Millisecond) // until the grace, which is none, is over
			_, _ = io.WriteString(w, `{"id":1,"vt":"2026-02-03T04:05:06Z"}`)
		case "/release":
			var body releaseBatchRequest
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Events) != 1 || body.Events[0] != (Held{1, "r"}) {
				t.Errorf("%+v, %v", body, err)
			}
			_, _ = io.WriteString(w, `{"results":[{"id":1,"status":200,"vt":"2026-02-03T04:05:06Z"}]}`)
			releases()
		default:
			t.Errorf("%s was called", r.URL.Path)
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		}
	})
	w := c.NewWorker(WorkerConfig{Lease: 3 * time.Second, Wait: time.Millisecond, Grace: -1})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) {
		t.Error("the handler begins although the worker stops")
		return nil, nil
	})
	stop := run(t, w)
	<-extending
	<-claiming // whose end lets the extends be answered
	if err := stop(); err != nil {
		t.Error(err)
	}
	<-released
}

func TestLogsSayOnceWhatWentWrong(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	var log lockedBuffer
	var claims atomic.Int32
	c := answering(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		switch n := claims.Add(1); {
		case n <= 3:
			problem(w, http.StatusServiceUnavailable, "not_ready")
		case n <= 5:
			problem(w, http.StatusServiceUnavailable, "database_unavailable")
		case n == 6:
			panic(http.ErrAbortHandler) // no answer
		case n == 7:
			_, _ = io.WriteString(w, `{"events":[]}`)
		case n <= 9:
			problem(w, http.StatusServiceUnavailable, "not_ready")
		default:
			cancel()
		}
	})
	w := c.NewWorker(WorkerConfig{Wait: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	var said []string
	for line := range strings.Lines(log.String()) {
		for _, what := range []string{"not_ready", "database_unavailable", "EOF", "works again"} {
			if strings.Contains(line, what) {
				said = append(said, what)
			}
		}
	}
	if want := []string{"not_ready", "database_unavailable", "EOF", "works again", "not_ready"}; !slices.Equal(said, want) {
		t.Errorf("logged %q, want %q:\n%s", said, want, log.String())
	}
}
