package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

type welcome struct{ To string }

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

// insert inserts events into the queue "q".
func insert(t *testing.T, c *Client, events ...NewEvent) []int64 {
	t.Helper()
	for i := range events {
		events[i].Queue = "q"
		if events[i].Payload == nil {
			events[i].Payload = struct{}{}
		}
	}
	ids, err := c.InsertBatch(soon(t), events)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// finished waits until an event is in history.
func finished(t *testing.T, c *Client, id int64) Event {
	t.Helper()
	return eventWhen(t, c, id, "it is in history", func(e Event) bool { return e.Outcome != "" })
}

// eventWhen waits until an event is as isSo says.
func eventWhen(t *testing.T, c *Client, id int64, what string, isSo func(Event) bool) Event {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := soon(t); ; {
		e, err := c.GetEvent(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if isSo(e) {
			return e
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("timed out until %s: %+v", what, e)
		}
	}
}

func TestHandlersGetTheirPayloadAndTheirResultsAreStored(t *testing.T) {
	t.Parallel()
	c := setup(t)
	w := c.NewWorker(WorkerConfig{Queue: "q", Name: "w1"})
	Handle(w, "mail.welcome", func(_ context.Context, j Job[welcome]) (any, error) {
		if j.Queue != "q" || j.Attempts != 1 || j.Receipt == "" || !json.Valid(j.Event.Payload) {
			t.Errorf("%+v", j)
		}
		return map[string]string{"sent to": j.Payload.To}, nil
	})
	Handle(w, "", func(_ context.Context, j Job[map[string]any]) (any, error) { return j.Payload["n"], nil })
	ids := insert(t, c, NewEvent{Type: "mail.welcome", Payload: welcome{"ada"}}, NewEvent{Type: "other", Payload: json.RawMessage(`{"n":9007199254740993}`)}, NewEvent{})
	stop := run(t, w)
	for i, want := range []string{`{"sentto":"ada"}`, `9007199254740993`, ``} {
		e := finished(t, c, ids[i])
		if got := strings.ReplaceAll(string(e.Result), " ", ""); e.Outcome != OutcomeDone || got != want || e.Worker != "w1" {
			t.Errorf("%s, result %q, want %q, by %q", e.Outcome, got, want, e.Worker)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestErrorsOfHandlersDecideWhatBecomesOfTheEvent(t *testing.T) {
	t.Parallel()
	c := setup(t)
	if _, err := c.PutQueue(soon(t), "q", QueueSettings{Backoff: &Backoff{Kind: "constant", Base: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("no such mailbox")
	w := c.NewWorker(WorkerConfig{Queue: "q"})
	Handle(w, "fails", func(context.Context, Job[welcome]) (any, error) { return nil, cause })
	Handle(w, "final", func(context.Context, Job[welcome]) (any, error) { return nil, fmt.Errorf("sending: %w", Final(cause)) })
	Handle(w, "later", func(context.Context, Job[welcome]) (any, error) { return nil, RetryIn(10*time.Hour, cause) })
	Handle(w, "panics", func(context.Context, Job[welcome]) (any, error) { panic("oh \x00 no \xff") })
	Handle(w, "exits", func(context.Context, Job[welcome]) (any, error) { runtime.Goexit(); return nil, nil })
	Handle(w, "large", func(context.Context, Job[welcome]) (any, error) { return strings.Repeat("x", 65<<10), nil })
	Handle(w, "unencodable", func(context.Context, Job[welcome]) (any, error) { return func() {}, nil })
	Handle(w, "unstorable", func(context.Context, Job[welcome]) (any, error) { return "\x00", nil })
	Handle(w, "misfit", func(context.Context, Job[welcome]) (any, error) { return nil, nil })
	Handle(w, "never", func(context.Context, Job[welcome]) (any, error) { return nil, RetryIn(math.MaxInt64, cause) })
	Handle(w, "long", func(context.Context, Job[welcome]) (any, error) {
		return nil, Final(errors.New(strings.Repeat("é", 60<<10)))
	})
	if !errors.Is(Final(cause), cause) || !errors.Is(RetryIn(0, cause), cause) || Final(nil).Error() == "" {
		t.Error("the error of the handler is not wrapped")
	}
	run(t, w)
	for _, test := range []struct {
		kind, outcome, err string
		delay              time.Duration
	}{
		{"fails", "", "no such mailbox", time.Hour},
		{"final", OutcomeFailed, "sending: no such mailbox", 0},
		{"later", "", "no such mailbox", 10 * time.Hour},
		{"never", "", "no such mailbox", maxDelay},
		{"panics", "", "panic: oh \uFFFD no \uFFFD\n\ngoroutine ", time.Hour},
		{"exits", "", "runtime.Goexit", time.Hour},
		{"large", OutcomeFailed, "the work is done, but its result of 66562 bytes", 0},
		{"unencodable", OutcomeFailed, "the work is done, but its result cannot be encoded", 0},
		{"unstorable", OutcomeFailed, "the work is done, but the server refused its result", 0},
		{"misfit", "", "the payload does not fit client.welcome", time.Hour},
		{"long", OutcomeFailed, strings.Repeat("é", 32<<10), 0},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			payload := `{"To":"ada"}`
			if test.kind == "misfit" {
				payload = `{"To":5}`
			}
			id := insert(t, c, NewEvent{Type: test.kind, Payload: json.RawMessage(payload)})[0]
			e := eventWhen(t, c, id, "it was nacked", func(e Event) bool { return e.LastError != "" })
			if e.Outcome != test.outcome || !strings.Contains(e.LastError, test.err) {
				t.Errorf("outcome %q, error %.200q", e.Outcome, e.LastError)
			}
			if test.kind == "final" && (e.Retryable == nil || *e.Retryable) {
				t.Error("a final error is stored as retryable")
			}
			if left := time.Until(e.VT); test.delay > 0 && (left < test.delay/2 || left > test.delay) {
				t.Errorf("comes back in %v, want %v", left, test.delay)
			}
		})
	}
}

// A worker leaves events alone that it has no handler for: no attempt is used up.
func TestEventsOfOtherTypesAreLeftToOtherWorkers(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ids := insert(t, c, NewEvent{Type: "other"}, NewEvent{}, NewEvent{Type: "mine"})
	w := c.NewWorker(WorkerConfig{Queue: "q"})
	Handle(w, "mine", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	run(t, w)
	finished(t, c, ids[2])
	for _, id := range ids[:2] {
		if e, err := c.GetEvent(soon(t), id); err != nil || e.State != StateReady || e.Attempts != 0 {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// With more types than a claim can name, events without a handler wait for another worker.
func TestEventsOfUnknownTypesWaitForAnotherWorker(t *testing.T) {
	t.Parallel()
	c := setup(t)
	id := insert(t, c, NewEvent{Type: "other"})[0]
	w := c.NewWorker(WorkerConfig{Queue: "q"})
	for i := range maxTypes + 1 {
		Handle(w, fmt.Sprint(i), func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	}
	run(t, w)
	e := eventWhen(t, c, id, "it was nacked", func(e Event) bool { return e.LastError != "" })
	if e.State != StateScheduled || !strings.Contains(e.LastError, `no handler for the type "other"`) {
		t.Errorf("%+v", e)
	}
}

func TestNoMoreThanConcurrencyRunAtATime(t *testing.T) {
	t.Parallel()
	c := setup(t)
	var running, most atomic.Int32
	full, release := make(chan struct{}), make(chan struct{})
	w := c.NewWorker(WorkerConfig{Queue: "q", Concurrency: 3})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); n > old && !most.CompareAndSwap(old, n); old = most.Load() {
		}
		if n == 3 {
			select {
			case <-full:
			default:
				close(full)
			}
		}
		<-release
		return nil, nil
	})
	ids := insert(t, c, make([]NewEvent, 12)...)
	run(t, w)
	<-full
	leased := 0
	for _, err := range c.ListEvents(soon(t), EventFilter{Queue: "q", State: StateLeased}) {
		if err != nil {
			t.Fatal(err)
		}
		leased++
	}
	close(release)
	for _, id := range ids {
		finished(t, c, id)
	}
	if most.Load() != 3 || leased != 3 {
		t.Errorf("%d handlers ran at a time, and %d events were leased; want 3", most.Load(), leased)
	}
}

// A lease is extended for as long as the handler works, however short it is.
func TestLeasesAreExtendedWhileHandlersWork(t *testing.T) {
	t.Parallel()
	c := setup(t)
	const lease = 2 * time.Second
	beats := make(chan struct{}, 100)
	spy := newClient(t, Config{URL: c.base, HTTPClient: &http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := c.http.Transport.RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/extend") && resp.StatusCode == http.StatusOK {
			beats <- struct{}{}
		}
		return resp, err
	})}})
	w := spy.NewWorker(WorkerConfig{Queue: "q", Lease: lease})
	Handle(w, "", func(ctx context.Context, _ Job[struct{}]) (any, error) {
		for range 5 { // longer than one lease
			select {
			case <-beats:
			case <-ctx.Done():
				return nil, Final(context.Cause(ctx))
			}
		}
		return nil, nil
	})
	id := insert(t, c, NewEvent{})[0]
	run(t, w)
	if e := finished(t, c, id); e.Outcome != OutcomeDone || e.Attempts != 1 {
		t.Errorf("%+v", e)
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

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
			_ = json.NewEncoder(w).Encode(claimedEvents{events})
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

// A bad result fails its own event, and not those that are acked with it.
func TestOneBadResultFailsAlone(t *testing.T) {
	t.Parallel()
	c := setup(t)
	w := c.NewWorker(WorkerConfig{Queue: "q", Concurrency: 20})
	var together sync.WaitGroup
	together.Add(20)
	Handle(w, "", func(_ context.Context, j Job[struct{ Bad bool }]) (any, error) {
		together.Done()
		together.Wait() // so that most go into one batch
		if j.Payload.Bad {
			return "\x00", nil
		}
		return "fine", nil
	})
	events := make([]NewEvent, 20)
	events[7].Payload = map[string]bool{"bad": true}
	ids := insert(t, c, events...)
	run(t, w)
	for i, id := range ids {
		want := OutcomeDone
		if i == 7 {
			want = OutcomeFailed
		}
		if e := finished(t, c, id); e.Outcome != want {
			t.Errorf("event %d is %s: %s", i, e.Outcome, e.LastError)
		}
	}
}

func TestStopLetsHandlersFinish(t *testing.T) {
	t.Parallel()
	c := setup(t)
	started, release := make(chan int64, 2), make(chan struct{})
	w := c.NewWorker(WorkerConfig{Queue: "q", Concurrency: 1})
	Handle(w, "", func(ctx context.Context, j Job[struct{}]) (any, error) {
		started <- j.ID
		<-release
		return "done", ctx.Err()
	})
	ids := insert(t, c, NewEvent{}, NewEvent{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	claimed := <-started
	cancel()
	close(release)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, id := range ids {
		e, err := c.GetEvent(soon(t), id)
		if err != nil || id == claimed && e.Outcome != OutcomeDone || id != claimed && (e.State != StateReady || e.Attempts != 0) {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// After the grace, contexts end, and what is left can be claimed at once by others.
func TestStopGivesBackWhatIsLeftAfterTheGrace(t *testing.T) {
	t.Parallel()
	c := setup(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var started sync.WaitGroup
	started.Add(2)
	w := c.NewWorker(WorkerConfig{Queue: "q", Grace: -1})
	Handle(w, "", func(ctx context.Context, j Job[struct{ Deaf bool }]) (any, error) {
		started.Done()
		if j.Payload.Deaf {
			<-release
			return "far too late", nil
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrStopping) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
		return nil, ctx.Err()
	})
	ids := insert(t, c, NewEvent{Payload: map[string]bool{"deaf": true}}, NewEvent{})
	stop := run(t, w)
	started.Wait()
	if err := stop(); err == nil || !strings.Contains(err.Error(), "1 handlers ignore the end") {
		t.Errorf("%v", err)
	}
	for _, id := range ids {
		e, err := c.GetEvent(soon(t), id)
		if err != nil || e.State != StateReady || !strings.Contains(e.LastError, "the worker stopped") {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

func TestRunReturnsWhenTheServerRefusesIt(t *testing.T) {
	t.Parallel()
	s := serve(t, "QUEUED_API_KEY=secret-of-the-tests")
	var log lockedBuffer
	w := newClient(t, Config{URL: s.url, Key: "wrong"}).NewWorker(WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := w.Run(t.Context()); err == nil {
		t.Error("a worker without handlers runs")
	}
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	if err := w.Run(t.Context()); !errors.Is(err, ErrUnauthorized) {
		t.Errorf("%v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a second handler of a type is taken")
			}
		}()
		Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	}()
}

// A worker outlives its server.
func TestWorkerGoesOnWhenTheServerComesBack(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.client()
	w := c.NewWorker(WorkerConfig{Queue: "q"})
	working, release := make(chan struct{}, 1), make(chan struct{})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) {
		working <- struct{}{}
		<-release
		return nil, nil
	})
	ids := insert(t, c, NewEvent{})
	run(t, w)
	<-working
	s.kill()
	close(release)
	s.restart()
	if e := finished(t, c, ids[0]); e.Outcome != OutcomeDone || e.Attempts != 1 {
		t.Errorf("%+v", e)
	}
	id := insert(t, c, NewEvent{})[0]
	finished(t, c, id)
}

func TestLogsSayWhatWentWrong(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(soon(t))
	defer cancel()
	var log lockedBuffer
	w := newClient(t, Config{URL: "http://127.0.0.1:1"}).NewWorker(WorkerConfig{Logger: slog.New(slog.NewTextHandler(io.MultiWriter(&log, writerFunc(cancel)), nil))})
	Handle(w, "", func(context.Context, Job[struct{}]) (any, error) { return nil, nil })
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "claiming failed") {
		t.Errorf("logged %q", log.String())
	}
}

// writerFunc is called when something is written.
type writerFunc func()

func (f writerFunc) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}
