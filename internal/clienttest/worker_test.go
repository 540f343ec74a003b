package clienttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

type welcome struct{ To string }

// run runs a worker until the end of the test, or until stop, which returns what Run returned.
func run(t *testing.T, w *client.Worker) (stop func() error) {
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
func insert(t *testing.T, c *client.Client, events ...client.NewEvent) []int64 {
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
func finished(t *testing.T, c *client.Client, id int64) client.Event {
	t.Helper()
	return eventWhen(t, c, id, "it is in history", func(e client.Event) bool { return e.Outcome != "" })
}

// eventWhen waits until an event is as isSo says.
func eventWhen(t *testing.T, c *client.Client, id int64, what string, isSo func(client.Event) bool) client.Event {
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
	w := c.NewWorker(client.WorkerConfig{Queue: "q", Name: "w1"})
	client.Handle(w, "mail.welcome", func(_ context.Context, j client.Job[welcome]) (any, error) {
		if j.Queue != "q" || j.Attempts != 1 || j.Receipt == "" || !json.Valid(j.Event.Payload) {
			t.Errorf("%+v", j)
		}
		return map[string]string{"sent to": j.Payload.To}, nil
	})
	client.Handle(w, "", func(_ context.Context, j client.Job[map[string]any]) (any, error) { return j.Payload["n"], nil })
	ids := insert(t, c, client.NewEvent{Type: "mail.welcome", Payload: welcome{"ada"}}, client.NewEvent{Type: "other", Payload: json.RawMessage(`{"n":9007199254740993}`)}, client.NewEvent{})
	stop := run(t, w)
	for i, want := range []string{`{"sentto":"ada"}`, `9007199254740993`, ``} {
		e := finished(t, c, ids[i])
		if got := strings.ReplaceAll(string(e.Result), " ", ""); e.Outcome != client.OutcomeDone || got != want || e.Worker != "w1" {
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
	if _, err := c.PutQueue(soon(t), "q", client.QueueSettings{Backoff: &client.Backoff{Kind: "constant", Base: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	cause := errors.New("no such mailbox")
	w := c.NewWorker(client.WorkerConfig{Queue: "q"})
	client.Handle(w, "fails", func(context.Context, client.Job[welcome]) (any, error) { return nil, cause })
	client.Handle(w, "final", func(context.Context, client.Job[welcome]) (any, error) {
		return nil, fmt.Errorf("sending: %w", client.Final(cause))
	})
	client.Handle(w, "later", func(context.Context, client.Job[welcome]) (any, error) {
		return nil, client.RetryIn(10*time.Hour, cause)
	})
	client.Handle(w, "holds", func(context.Context, client.Job[welcome]) (any, error) {
		return nil, fmt.Errorf("sending: %w", client.HoldGroup(3*time.Hour, client.RetryIn(2*time.Hour, cause)))
	})
	client.Handle(w, "panics", func(context.Context, client.Job[welcome]) (any, error) { panic("oh \x00 no \xff") })
	client.Handle(w, "exits", func(context.Context, client.Job[welcome]) (any, error) { runtime.Goexit(); return nil, nil })
	client.Handle(w, "large", func(context.Context, client.Job[welcome]) (any, error) { return strings.Repeat("x", 65<<10), nil })
	client.Handle(w, "unencodable", func(context.Context, client.Job[welcome]) (any, error) { return func() {}, nil })
	client.Handle(w, "unstorable", func(context.Context, client.Job[welcome]) (any, error) { return "\x00", nil })
	client.Handle(w, "misfit", func(context.Context, client.Job[welcome]) (any, error) { return nil, nil })
	client.Handle(w, "never", func(context.Context, client.Job[welcome]) (any, error) {
		return nil, client.RetryIn(math.MaxInt64, cause)
	})
	client.Handle(w, "long", func(context.Context, client.Job[welcome]) (any, error) {
		return nil, client.Final(errors.New(strings.Repeat("é", 60<<10)))
	})
	if !errors.Is(client.Final(cause), cause) || !errors.Is(client.RetryIn(0, cause), cause) || client.Final(nil).Error() == "" {
		t.Error("the error of the handler is not wrapped")
	}
	run(t, w)
	for _, test := range []struct {
		kind, outcome, err string
		delay              time.Duration
	}{
		{"fails", "", "no such mailbox", time.Hour},
		{"final", client.OutcomeFailed, "sending: no such mailbox", 0},
		{"later", "", "no such mailbox", 10 * time.Hour},
		{"never", "", "no such mailbox", 87600 * time.Hour},
		{"holds", "", "sending: no such mailbox", 2 * time.Hour},
		{"panics", "", "panic: oh \uFFFD no \uFFFD\n\ngoroutine ", time.Hour},
		{"exits", "", "runtime.Goexit", time.Hour},
		{"large", client.OutcomeFailed, "the work is done, but its result of 66562 bytes", 0},
		{"unencodable", client.OutcomeFailed, "the work is done, but its result cannot be encoded", 0},
		{"unstorable", client.OutcomeFailed, "the work is done, but the server refused its result", 0},
		{"misfit", "", "the payload does not fit clienttest.welcome", time.Hour},
		{"long", client.OutcomeFailed, strings.Repeat("é", 32<<10), 0},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			payload := `{"To":"ada"}`
			if test.kind == "misfit" {
				payload = `{"To":5}`
			}
			id := insert(t, c, client.NewEvent{Type: test.kind, Group: test.kind, Payload: json.RawMessage(payload)})[0]
			e := eventWhen(t, c, id, "it was nacked", func(e client.Event) bool { return e.LastError != "" })
			if e.Outcome != test.outcome || !strings.Contains(e.LastError, test.err) {
				t.Errorf("outcome %q, error %.200q", e.Outcome, e.LastError)
			}
			if g, err := c.GetGroup(soon(t), "q", test.kind); err != nil || (g.HeldUntil != nil) != (test.kind == "holds") {
				t.Errorf("the group is %+v: %v", g, err)
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
	ids := insert(t, c, client.NewEvent{Type: "other"}, client.NewEvent{}, client.NewEvent{Type: "mine"})
	w := c.NewWorker(client.WorkerConfig{Queue: "q"})
	client.Handle(w, "mine", func(context.Context, client.Job[struct{}]) (any, error) { return nil, nil })
	run(t, w)
	finished(t, c, ids[2])
	for _, id := range ids[:2] {
		if e, err := c.GetEvent(soon(t), id); err != nil || e.State != client.StateReady || e.Attempts != 0 {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

// With more types than a claim can name, events without a handler wait for another worker.
func TestEventsOfUnknownTypesWaitForAnotherWorker(t *testing.T) {
	t.Parallel()
	c := setup(t)
	id := insert(t, c, client.NewEvent{Type: "other"})[0]
	w := c.NewWorker(client.WorkerConfig{Queue: "q"})
	for i := range 101 { // a claim may name 100
		client.Handle(w, fmt.Sprint(i), func(context.Context, client.Job[struct{}]) (any, error) { return nil, nil })
	}
	run(t, w)
	e := eventWhen(t, c, id, "it was nacked", func(e client.Event) bool { return e.LastError != "" })
	if e.State != client.StateScheduled || !strings.Contains(e.LastError, `no handler for the type "other"`) {
		t.Errorf("%+v", e)
	}
}

func TestNoMoreThanConcurrencyRunAtATime(t *testing.T) {
	t.Parallel()
	c := setup(t)
	var running, most atomic.Int32
	full, release := make(chan struct{}), make(chan struct{})
	w := c.NewWorker(client.WorkerConfig{Queue: "q", Concurrency: 3})
	client.Handle(w, "", func(context.Context, client.Job[struct{}]) (any, error) {
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
	ids := insert(t, c, make([]client.NewEvent, 12)...)
	run(t, w)
	<-full
	leased := 0
	for _, err := range c.ListEvents(soon(t), client.EventFilter{Queue: "q", State: client.StateLeased}) {
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
	s := serve(t)
	c := s.client()
	const lease = 9 * time.Second // a third of it has to do for one call, on a busy machine
	beats := make(chan struct{}, 100)
	spy := newClient(t, client.Config{URL: s.url, HTTPClient: &http.Client{Transport: transportFunc(func(r *http.Request) (*http.Response, error) {
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && strings.HasSuffix(r.URL.Path, "/extend") && resp.StatusCode == http.StatusOK {
			beats <- struct{}{}
		}
		return resp, err
	})}})
	w := spy.NewWorker(client.WorkerConfig{Queue: "q", Lease: lease})
	client.Handle(w, "", func(ctx context.Context, _ client.Job[struct{}]) (any, error) {
		for range 4 { // longer than one lease
			select {
			case <-beats:
			case <-ctx.Done():
				return nil, client.Final(context.Cause(ctx))
			}
		}
		return nil, nil
	})
	id := insert(t, c, client.NewEvent{})[0]
	run(t, w)
	if e := finished(t, c, id); e.Outcome != client.OutcomeDone || e.Attempts != 1 {
		t.Errorf("%+v", e)
	}
}

type transportFunc func(*http.Request) (*http.Response, error)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A bad result fails its own event, and not those that are acked with it.
func TestOneBadResultFailsAlone(t *testing.T) {
	t.Parallel()
	c := setup(t)
	w := c.NewWorker(client.WorkerConfig{Queue: "q", Concurrency: 20})
	var together sync.WaitGroup
	together.Add(20)
	client.Handle(w, "", func(_ context.Context, j client.Job[struct{ Bad bool }]) (any, error) {
		together.Done()
		together.Wait() // so that most go into one batch
		if j.Payload.Bad {
			return "\x00", nil
		}
		return "fine", nil
	})
	events := make([]client.NewEvent, 20)
	events[7].Payload = map[string]bool{"bad": true}
	ids := insert(t, c, events...)
	run(t, w)
	for i, id := range ids {
		want := client.OutcomeDone
		if i == 7 {
			want = client.OutcomeFailed
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
	w := c.NewWorker(client.WorkerConfig{Queue: "q", Concurrency: 1})
	client.Handle(w, "", func(ctx context.Context, j client.Job[struct{}]) (any, error) {
		started <- j.ID
		<-release
		return "done", ctx.Err()
	})
	ids := insert(t, c, client.NewEvent{}, client.NewEvent{})
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
		if err != nil || id == claimed && e.Outcome != client.OutcomeDone || id != claimed && (e.State != client.StateReady || e.Attempts != 0) {
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
	w := c.NewWorker(client.WorkerConfig{Queue: "q", Grace: -1})
	client.Handle(w, "", func(ctx context.Context, j client.Job[struct{ Deaf bool }]) (any, error) {
		started.Done()
		if j.Payload.Deaf {
			<-release
			return "far too late", nil
		}
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), client.ErrStopping) {
			t.Errorf("the context ended with %v", context.Cause(ctx))
		}
		return nil, ctx.Err()
	})
	ids := insert(t, c, client.NewEvent{Payload: map[string]bool{"deaf": true}}, client.NewEvent{})
	stop := run(t, w)
	started.Wait()
	if err := stop(); err == nil || !strings.Contains(err.Error(), "1 handlers ignore the end") {
		t.Errorf("%v", err)
	}
	for _, id := range ids {
		e, err := c.GetEvent(soon(t), id)
		if err != nil || e.State != client.StateReady || !strings.Contains(e.LastError, "the worker stopped") {
			t.Errorf("%+v, %v", e, err)
		}
	}
}

func TestRunReturnsWhenTheServerRefusesIt(t *testing.T) {
	t.Parallel()
	s := serve(t, "QUEUED_API_KEY=secret-of-the-tests")
	var log lockedBuffer
	w := newClient(t, client.Config{URL: s.url, Key: "wrong"}).NewWorker(client.WorkerConfig{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err := w.Run(t.Context()); err == nil {
		t.Error("a worker without handlers runs")
	}
	client.Handle(w, "", func(context.Context, client.Job[struct{}]) (any, error) { return nil, nil })
	if err := w.Run(t.Context()); !errors.Is(err, client.ErrUnauthorized) {
		t.Errorf("%v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a second handler of a type is taken")
			}
		}()
		client.Handle(w, "", func(context.Context, client.Job[struct{}]) (any, error) { return nil, nil })
	}()
}

// A worker outlives its server.
func TestWorkerGoesOnWhenTheServerComesBack(t *testing.T) {
	t.Parallel()
	s := serve(t)
	c := s.client()
	w := c.NewWorker(client.WorkerConfig{Queue: "q"})
	working, release := make(chan struct{}, 1), make(chan struct{})
	client.Handle(w, "", func(context.Context, client.Job[struct{}]) (any, error) {
		working <- struct{}{}
		<-release
		return nil, nil
	})
	ids := insert(t, c, client.NewEvent{})
	run(t, w)
	<-working
	s.kill()
	close(release)
	s.restart()
	if e := finished(t, c, ids[0]); e.Outcome != client.OutcomeDone || e.Attempts != 1 {
		t.Errorf("%+v", e)
	}
	id := insert(t, c, client.NewEvent{})[0]
	finished(t, c, id)
}
