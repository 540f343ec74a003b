package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfigIsRefusedWithAClearError(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Config{
		{},
		{URL: "localhost:8080"},
		{URL: "ftp://localhost"},
		{URL: "http://"},
		{URL: "http://user@localhost"},
		{URL: "http://localhost/?a=b"},
		{URL: "http://localhost", Key: "a\nb"},
		{URL: "http://localhost", MaxResponse: -1},
		{URL: "http://[::1"},
	} {
		if c, err := New(cfg); err == nil || c != nil || !strings.HasPrefix(err.Error(), "client: ") {
			t.Errorf("New(%+v) = %v, %v", cfg, c, err)
		}
	}
}

func TestRequestsHaveTheKeyAndThePathOfTheURL(t *testing.T) {
	t.Parallel()
	var got http.Header
	var path string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got, path = r.Header, r.URL.String()
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(srv.Close)
	c := newClient(t, Config{URL: srv.URL + "/queued/", Key: "secret", UserAgent: "shop"})
	if _, err := c.GetQueue(t.Context(), "a/b"); err != nil {
		t.Fatal(err)
	}
	if path != "/queued/queues/a%2Fb" || got.Get("Authorization") != "Bearer secret" || got.Get("User-Agent") != "shop" {
		t.Errorf("%s %v", path, got)
	}
}

func TestErrorsSayWhatTheServerSaid(t *testing.T) {
	t.Parallel()
	c := answering(t, Config{RetryFor: -1}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events/1":
			problem(w, http.StatusConflict, "lease_lost")
		case "/events/2":
			http.Error(w, "gone fishing", http.StatusBadGateway)
		case "/events/3":
			w.Header().Set("Retry-After", "7")
			problem(w, http.StatusTooManyRequests, "rate_limited")
		}
	})
	err := c.Ack(t.Context(), 1, "r")
	e, ok := errors.AsType[*Error](err)
	if !ok || !errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrCursorLost) {
		t.Errorf("%v", err)
	}
	if want := "DELETE /events/1: 409 lease_lost: so it is (request R1)"; e.Error() != want {
		t.Errorf("%q, want %q", e, want)
	}
	err = c.Ack(t.Context(), 2, "r")
	if e, ok := errors.AsType[*Error](err); !ok || e.Status != http.StatusBadGateway || e.Code != "" || e.Detail != "gone fishing" {
		t.Errorf("%v", err)
	}
	if _, err := c.Insert(t.Context(), NewEvent{Payload: json.RawMessage(`{"a":`)}); err == nil || !strings.HasPrefix(err.Error(), "client: the payload: ") {
		t.Errorf("%v", err)
	}
	if !errors.Is(&Error{Status: http.StatusBadRequest}, ErrInvalid) || !errors.Is(&Error{Status: http.StatusUnprocessableEntity}, ErrInvalid) {
		t.Error("bad requests are not ErrInvalid")
	}
	err = c.Ack(t.Context(), 3, "r")
	if e, ok := errors.AsType[*Error](err); !ok || !errors.Is(err, ErrRateLimited) || e.RetryAfter != 7*time.Second {
		t.Errorf("%v", err)
	}
}

// A call that may be made twice is made again after any failure that can pass, and the rest only when they certainly were not made.
func TestOnlyWhatMayBeRepeatedIsRepeated(t *testing.T) {
	t.Parallel()
	type call func(context.Context, *Client) error
	repeatable := call(func(ctx context.Context, c *Client) error {
		_, err := c.Insert(ctx, NewEvent{Payload: struct{}{}})
		return err
	})
	once := call(func(ctx context.Context, c *Client) error {
		_, err := c.Requeue(ctx, 1)
		return err
	})
	drop := func(w http.ResponseWriter) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.Close()
	}
	fail := func(status int, code string) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { problem(w, status, code) }
	}
	tests := []struct {
		name       string
		call       call
		fail       func(http.ResponseWriter)
		isRepeated bool
	}{
		{"an insert after a broken connection", repeatable, drop, true},
		{"an insert after 503", repeatable, fail(503, "database_unavailable"), true},
		{"an insert after 504 of a proxy", repeatable, fail(504, ""), true},
		{"an insert after 429", repeatable, fail(429, "rate_limited"), true},
		{"an insert after 422", repeatable, fail(422, "validation_failed"), false},
		{"an insert after 500", repeatable, fail(500, "internal"), false},
		{"a requeue after a broken connection", once, drop, false},
		{"a requeue after 503 database_unavailable", once, fail(503, "database_unavailable"), false},
		{"a requeue after 503 overloaded", once, fail(503, "overloaded"), true},
		{"a requeue after 503 locked", once, fail(503, "locked"), true},
		{"a requeue after 503 not_ready", once, fail(503, "not_ready"), true},
		{"a requeue after 429", once, fail(429, "rate_limited"), true},
		{"a query that took too long", func(ctx context.Context, c *Client) error {
			_, err := c.HistoryStats(ctx, HistoryStatsParams{})
			return err
		}, fail(503, "query_timeout"), false},
		{"a conditional change after a broken connection", func(ctx context.Context, c *Client) error {
			return c.DeleteSchedule(ctx, 1, 2)
		}, drop, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			c := answering(t, Config{RetryFor: waitTimeout}, func(w http.ResponseWriter, _ *http.Request) {
				if calls.Add(1) == 1 {
					test.fail(w)
					return
				}
				_, _ = io.WriteString(w, `{"id":1}`)
			})
			err := test.call(t.Context(), c)
			if isRepeated := calls.Load() == 2; isRepeated != test.isRepeated || (err == nil) != test.isRepeated {
				t.Errorf("%d calls, error %v; is to be repeated: %t", calls.Load(), err, test.isRepeated)
			}
		})
	}
}

func TestCallsThatNeverReachedTheServerAreRepeated(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	_ = listener.Close() // nobody is there
	tried := make(chan struct{}, 100)
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case tried <- struct{}{}:
		default:
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c := newClient(t, Config{URL: "http://" + addr, HTTPClient: &http.Client{Transport: transport}, RetryFor: waitTimeout})
	done := make(chan error, 1)
	go func() {
		_, err := c.Requeue(soon(t), 1)
		done <- err
	}()
	for range 3 {
		<-tried
	}
	if listener, err = net.Listen("tcp", addr); err != nil {
		t.Skipf("somebody else has taken the port: %v", err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":7}`) })}
	go func() { _ = srv.Serve(listener) }()
	t.Cleanup(func() { _ = srv.Close() })
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestRetryAfterIsKept(t *testing.T) {
	t.Parallel()
	var first time.Time
	c := answering(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		if first.IsZero() {
			first = time.Now()
			w.Header().Set("Retry-After", "1")
			problem(w, http.StatusServiceUnavailable, "overloaded")
			return
		}
		_, _ = io.WriteString(w, `{"version":"1","go":"1"}`)
	})
	if _, err := c.ShowVersion(t.Context()); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(first); waited < time.Second {
		t.Errorf("came back after %v", waited)
	}
}

func TestRetriesEndInTime(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	handler := func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		problem(w, http.StatusServiceUnavailable, "overloaded")
	}
	c := answering(t, Config{RetryFor: time.Second}, handler)
	if err := c.Readyz(t.Context()); !errors.Is(err, ErrUnavailable) || calls.Load() < 2 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
	c = answering(t, Config{RetryFor: -1}, handler)
	calls.Store(0)
	if err := c.Readyz(t.Context()); !errors.Is(err, ErrUnavailable) || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

// Pauses grow to a bound, and are never the same.
func TestPausesGrowAndVary(t *testing.T) {
	t.Parallel()
	pauses := make(map[time.Duration]bool)
	for try := range 40 {
		p := pauseBefore(try, nil)
		if p < minPause/2 || p > maxPause || try > 10 && p < maxPause/2 {
			t.Errorf("the pause before try %d is %v", try, p)
		}
		pauses[p] = true
	}
	if len(pauses) < 30 {
		t.Errorf("only %d different pauses", len(pauses))
	}
}

func TestATryThatIsNotAnsweredEndsInTime(t *testing.T) {
	t.Parallel()
	c := answering(t, Config{Timeout: 50 * time.Millisecond, RetryFor: -1}, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	_, err := c.Claim(t.Context(), ClaimParams{})
	if !errors.Is(err, errNoAnswer) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func TestResponsesAreBounded(t *testing.T) {
	t.Parallel()
	c := answering(t, Config{MaxResponse: 100}, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stream" {
			_, _ = io.WriteString(w, "data: ")
		}
		for { // for as long as somebody reads
			if _, err := io.WriteString(w, strings.Repeat("x", 100)); err != nil {
				return
			}
		}
	})
	if _, err := c.ShowVersion(t.Context()); !errors.Is(err, ErrResponseTooLarge) {
		t.Errorf("%v", err)
	}
	for _, err := range c.Stream(t.Context(), StreamParams{}) {
		if !errors.Is(err, ErrResponseTooLarge) {
			t.Errorf("%v", err)
		}
	}
}

func TestAResponseThatIsNoJSONIsAnError(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	c := answering(t, Config{}, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		_, _ = io.WriteString(w, "<html>Please log in to the hotel's network</html>")
	})
	if _, err := c.ShowVersion(t.Context()); !errors.Is(err, errNotJSON) || calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, calls.Load())
	}
}

// An insert whose answer is lost is repeated under one key, and is stored once.
func TestInsertsWhoseAnswerIsLostAreStoredOnce(t *testing.T) {
	t.Parallel()
	s := serve(t)
	lossy := &losingTransport{next: new(http.Transport)}
	t.Cleanup(lossy.next.CloseIdleConnections)
	c := newClient(t, Config{URL: s.url, HTTPClient: &http.Client{Transport: lossy}, RetryFor: waitTimeout})
	ctx := soon(t)

	lossy.lose()
	inserted, err := c.Insert(ctx, NewEvent{Queue: "q", Payload: map[string]int{"n": 1}})
	if err != nil || !inserted.Replayed || inserted.Queue != "q" {
		t.Fatalf("%+v, %v", inserted, err)
	}
	lossy.lose()
	ids, err := c.InsertBatch(ctx, []NewEvent{{Queue: "q", Payload: struct{}{}}, {Queue: "q", Payload: struct{}{}}})
	if err != nil || len(ids) != 2 {
		t.Fatalf("%v, %v", ids, err)
	}
	lossy.lose()
	published, err := c.Publish(ctx, NewPublication{Topic: "order.placed", Payload: struct{}{}})
	if err != nil || !published.Replayed {
		t.Fatalf("%+v, %v", published, err)
	}
	lossy.lose()
	positions, err := c.PublishBatch(ctx, []NewPublication{{Topic: "order.placed", Payload: struct{}{}}, {Topic: "order.paid", Payload: struct{}{}}})
	if err != nil || len(positions) != 2 {
		t.Fatalf("%v, %v", positions, err)
	}
	lossy.lose()
	if _, err := c.CreateSchedule(ctx, NewSchedule{Payload: struct{}{}, Cron: "@yearly", Timezone: "UTC"}); err != nil {
		t.Fatal(err)
	}

	if got := count(t, c.ListEvents(ctx, EventFilter{Queue: "q"})); got != 3 {
		t.Errorf("%d events, want 3", got)
	}
	if got := count(t, c.Log(ctx, ReadParams{From: Earliest})); got != 3 {
		t.Errorf("%d events in the log, want 3", got)
	}
	if got := count(t, c.ListSchedules(ctx, ScheduleFilter{})); got != 1 {
		t.Errorf("%d schedules, want 1", got)
	}
}

func count[T any](t *testing.T, items func(func(T, error) bool)) (n int) {
	t.Helper()
	for _, err := range items {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

// losingTransport loses answers: the server has carried out the request, and the client is told that the connection broke.
type losingTransport struct {
	next *http.Transport
	mu   sync.Mutex

	isLosing bool
}

// lose loses the next answer.
func (l *losingTransport) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isLosing = true
}

func (l *losingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.isLosing {
		l.isLosing = false
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		return nil, io.ErrUnexpectedEOF
	}
	return resp, err
}

func TestNumbersBeyondTwoToThe53Survive(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	const large = 9_007_199_254_740_993 // 2^53 + 1
	inserted, err := c.Insert(ctx, NewEvent{Payload: json.RawMessage(`{"n":9007199254740993}`), Meta: json.RawMessage(`{"m":9007199254740995}`)})
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := c.Claim(ctx, ClaimParams{})
	if err != nil || len(claimed) != 1 {
		t.Fatalf("%v, %v", claimed, err)
	}
	var typed struct{ N int64 }
	var loose map[string]any
	if err := errors.Join(claimed[0].Decode(&typed), claimed[0].Decode(&loose)); err != nil {
		t.Fatal(err)
	}
	if typed.N != large || fmt.Sprint(loose["n"]) != fmt.Sprint(large) || !strings.Contains(string(claimed[0].Meta), "9007199254740995") {
		t.Errorf("%d, %v, %s", typed.N, loose, claimed[0].Meta)
	}
	outcome, err := c.AckWithResult(ctx, inserted.ID, claimed[0].Receipt, map[string]int64{"n": large})
	if err != nil || outcome != OutcomeDone {
		t.Fatalf("%s, %v", outcome, err)
	}
	e, err := c.GetEvent(ctx, inserted.ID)
	if err != nil || string(e.Result) != `{"n":9007199254740993}` && string(e.Result) != `{"n": 9007199254740993}` {
		t.Errorf("%s, %v", e.Result, err)
	}
}

// Every call, once, against the server.
func TestLifeOfAnEvent(t *testing.T) {
	t.Parallel()
	c := setup(t)
	ctx := soon(t)
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.PutQueue(ctx, "q", QueueSettings{MaxAttempts: 4, InvisibleFor: time.Minute, Backoff: &Backoff{Kind: "exponential", Base: time.Hour}})
	fatal(err)
	policy, err := c.GetQueue(ctx, "q")
	fatal(err)
	want := QueueSettings{MaxAttempts: 4, InvisibleFor: time.Minute, Backoff: &Backoff{Kind: "exponential", Base: time.Hour, Factor: 2}}
	if diff := cmp.Diff(want, policy.Settings()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	ids, err := c.InsertBatch(ctx, []NewEvent{
		{Queue: "q", Type: "a", Payload: map[string]string{"html": "<&>"}, Key: "one", EventTS: time.Now().Add(-time.Hour), Priority: -1},
		{Queue: "q", Payload: struct{}{}, Delay: time.Hour, MaxAttempts: 1},
		{Queue: "q", Payload: struct{}{}, VT: time.Now().Add(time.Hour), ExpiresAt: time.Now().Add(2 * time.Hour), Source: "shop"},
	})
	fatal(err)
	claimed, err := c.Claim(ctx, ClaimParams{Queue: "q", Limit: 10, Wait: time.Second, Types: []string{"a"}, Worker: "w", Order: "random"})
	fatal(err)
	if len(claimed) != 1 || claimed[0].ID != ids[0] || claimed[0].Worker != "w" || claimed[0].Key != "one" || claimed[0].Priority != -1 {
		t.Fatalf("%+v", claimed)
	}
	first := claimed[0].Receipt
	vt, err := c.Extend(ctx, ids[0], first, 2*time.Hour)
	fatal(err)
	if !vt.After(claimed[0].VT) {
		t.Errorf("extended from %v to %v", claimed[0].VT, vt)
	}
	delay := time.Duration(0)
	nacked, err := c.Nack(ctx, ids[0], NackParams{Receipt: first, Delay: &delay, Error: "no luck"})
	fatal(err)
	if nacked.Outcome != "" || nacked.VT.IsZero() {
		t.Errorf("%+v", nacked)
	}
	claimed, err = c.Claim(ctx, ClaimParams{Queue: "q", Wait: 20 * time.Second})
	fatal(err)
	if err := c.Ack(ctx, ids[0], first); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("an ack with the receipt of an earlier claim: %v", err)
	}
	results, err := c.AckBatch(ctx, []Ack{{ID: ids[0], Receipt: claimed[0].Receipt, Result: json.RawMessage(`{"ok":true}`)}, {ID: 1 << 60}})
	fatal(err)
	if results[0].Err() != nil || !errors.Is(results[1].Err(), ErrNotFound) {
		t.Errorf("%+v", results)
	}
	attempts, err := c.ListAttempts(ctx, ids[0])
	fatal(err)
	if len(attempts) != 2 || attempts[0].Outcome != "nacked" || attempts[0].Error != "no luck" || attempts[1].EndedAt == nil {
		t.Errorf("%+v", attempts)
	}
	done, err := c.GetEvent(ctx, ids[0])
	fatal(err)
	if done.Outcome != OutcomeDone || done.ProcessingMS == nil || *done.ErrorCount != 1 || done.LastError != "no luck" {
		t.Errorf("%+v", done)
	}
	if _, err := c.GetEvent(ctx, 1<<60); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
	for e, err := range c.ListHistory(ctx, HistoryFilter{Queue: "q", Outcome: OutcomeDone, From: time.Now().Add(-2 * time.Hour), MinDuration: time.Microsecond, Contains: json.RawMessage(`{"html":"<&>"}`)}) {
		fatal(err)
		if e.ID != ids[0] {
			t.Errorf("%+v", e)
		}
	}
	kept, err := c.Insert(ctx, NewEvent{Queue: "raw", Payload: json.RawMessage(`{"b": 1, "a": "<2>"}`), KeepRaw: time.Hour})
	fatal(err)
	if body, err := c.GetRawBody(ctx, kept.ID); err != nil || string(body) != `{"b": 1, "a": "<2>"}` {
		t.Errorf("%s, %v", body, err)
	}
	copied, err := c.Requeue(ctx, ids[0])
	fatal(err)
	matched, err := c.RequeueMatching(ctx, RequeueParams{HistoryFilter: HistoryFilter{Queue: "q"}, DryRun: true, Limit: 5})
	fatal(err)
	if copied == 0 || matched != (Requeued{}) {
		t.Errorf("%d, %+v", copied, matched)
	}
	buckets, err := c.HistoryStats(ctx, HistoryStatsParams{Queue: "q", Bucket: 24 * time.Hour})
	fatal(err)
	sum := 0
	for _, b := range buckets {
		sum += b.Done
	}
	if sum != 1 {
		t.Errorf("%+v", buckets)
	}
	states := map[string]int{}
	for e, err := range c.ListEvents(ctx, EventFilter{Queue: "q", PageSize: 1}) {
		fatal(err)
		states[e.State]++
	}
	if diff := cmp.Diff(map[string]int{StateReady: 1, StateScheduled: 2}, states); diff != "" {
		t.Error(diff)
	}
	for q, err := range c.ListQueues(ctx) {
		fatal(err)
		if q.Queue == "q" && (q.Ready != 1 || q.Scheduled != 2 || q.OldestReadyAge <= 0) {
			t.Errorf("%+v", q)
		}
	}
	for _, call := range []func(context.Context, string) (Policy, error){c.PauseQueue, c.ResumeQueue} {
		_, err := call(ctx, "q")
		fatal(err)
	}
	if expired, err := c.Sweep(ctx, SweepParams{Queue: "q", MaxVTAge: -1}); err != nil || expired != 0 {
		t.Errorf("%d, %v", expired, err)
	}
	if moved, err := c.MoveEvents(ctx, "q", MoveParams{To: "elsewhere", Limit: 1}); err != nil || moved != 1 {
		t.Errorf("%d, %v", moved, err)
	}
	if purged, err := c.PurgeQueue(ctx, "q"); err != nil || purged != 2 {
		t.Errorf("%d, %v", purged, err)
	}
	if _, err := c.ListExecutions(ctx, ExecutionFilter{}); err != nil {
		t.Error(err)
	}
	if processes, err := c.ListProcesses(ctx); err != nil || len(processes) != 1 {
		t.Errorf("%+v, %v", processes, err)
	}
	if err := errors.Join(c.Livez(ctx), c.Readyz(ctx)); err != nil {
		t.Error(err)
	}
	var raw json.RawMessage
	resp, err := c.Do(ctx, Request{Path: "/version"}, &raw)
	if err != nil || resp.Status != http.StatusOK || !json.Valid(raw) {
		t.Errorf("%+v, %s, %v", resp, raw, err)
	}
}
