package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
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
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrLeaseLost) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrCursorLost) {
		t.Errorf("%v", err)
	}
	if want := "DELETE /events/1: 409 lease_lost: so it is (request R1)"; e.Error() != want {
		t.Errorf("%q, want %q", e, want)
	}
	err = c.Ack(t.Context(), 2, "r")
	if !errors.As(err, &e) || e.Status != http.StatusBadGateway || e.Code != "" || e.Detail != "gone fishing" {
		t.Errorf("%v", err)
	}
	if _, err := c.Insert(t.Context(), NewEvent{Payload: json.RawMessage(`{"a":`)}); err == nil || !strings.HasPrefix(err.Error(), "client: the payload: ") {
		t.Errorf("%v", err)
	}
	if !errors.Is(&Error{Status: http.StatusBadRequest}, ErrInvalid) || !errors.Is(&Error{Status: http.StatusUnprocessableEntity}, ErrInvalid) {
		t.Error("bad requests are not ErrInvalid")
	}
	err = c.Ack(t.Context(), 3, "r")
	if !errors.As(err, &e) || !errors.Is(err, ErrRateLimited) || e.RetryAfter != 7*time.Second {
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
		{"a requeue after 503 cell_unavailable", once, fail(503, "cell_unavailable"), true},
		{"a requeue after 502 outcome_unknown", once, fail(502, "outcome_unknown"), false},
		{"an insert after 502 outcome_unknown", repeatable, fail(502, "outcome_unknown"), true},
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
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":7}`) }))
	t.Cleanup(srv.Close)
	tried, isThere := make(chan struct{}, 100), make(chan struct{})
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case <-isThere:
		default:
			addr = "127.0.0.1:1" // a port that nobody uses any more
		}
		select {
		case tried <- struct{}{}:
		default:
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	c := newClient(t, Config{URL: srv.URL, HTTPClient: &http.Client{Transport: transport}, RetryFor: waitTimeout})
	done := make(chan error, 1)
	go func() {
		_, err := c.Requeue(soon(t), 1)
		done <- err
	}()
	for range 3 {
		<-tried
	}
	close(isThere)
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

// Keys of later times come later, and no two are the same.
func TestKeysAreInTheOrderOfTheirTimes(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	if a, b := keyAt(now), keyAt(now); a == b {
		t.Errorf("two keys are the same: %s", a)
	}
	for _, later := range []time.Duration{time.Millisecond, time.Second, 100 * 365 * 24 * time.Hour} {
		if a, b := keyAt(now), keyAt(now.Add(later)); a >= b {
			t.Errorf("the key %s is not after %s, which is %s earlier", b, a, later)
		}
	}
}

// permanentError is the error of a transport that knows that another try is in vain.
type permanentError struct{ error }

func (permanentError) Permanent() bool { return true }

// failingTransport fails every request.
type failingTransport struct {
	err   error
	tries atomic.Int32
}

func (f *failingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	f.tries.Add(1)
	return nil, f.err
}

func TestErrorOfATransportThatIsPermanentIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	refusal := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, c := range []struct {
		err       error
		onlyOnce  bool
		described string
	}{{permanentError{refusal}, true, "permanent"}, {refusal, false, "another"}} {
		transport := &failingTransport{err: c.err}
		err := newClient(t, Config{URL: "http://queued.example", HTTPClient: &http.Client{Transport: transport}, RetryFor: time.Second}).Readyz(t.Context())
		if tries := transport.tries.Load(); !errors.Is(err, c.err) || (tries == 1) != c.onlyOnce {
			t.Errorf("%s error: %v after %d tries", c.described, err, tries)
		}
	}
}
