package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestHeadersArePassedOnAndThoseOfConnectionsAreNot(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	var got http.Header
	var host string
	home.mux.HandleFunc("POST /in/{name}", func(w http.ResponseWriter, r *http.Request) {
		got, host = r.Header.Clone(), r.Host
		w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
		w.Header().Set("Etag", `"3"`)
		w.Header().Set("Keep-Alive", "timeout=7")
		w.Header()["Set-Cookie"] = []string{"a=1", "b=2"}
		w.WriteHeader(http.StatusAccepted)
	})
	e := setup(t, nil, home)
	req := e.request("POST", "/in/shop?x=a;b&y=%zz", "{}")
	passed := map[string]string{
		"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "If-Match": `"1", W/"2"`, "Idempotency-Key": `"k\"1"`, "Last-Event-Id": "17",
		"Webhook-Signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", "X-Hub-Signature-256": "sha256=ab12", "Authorization": "Bearer some.key", "Accept-Encoding": "br",
	}
	for name, value := range passed {
		req.Header.Set(name, value)
	}
	removed := map[string]string{
		"Connection": "X-Mine, close", "X-Mine": "1", "Proxy-Authorization": "Basic eA==", "Keep-Alive": "timeout=5", "Te": "gzip",
	}
	for name, value := range removed {
		req.Header.Set(name, value)
	}
	req.Header.Set("X-Forwarded-For", "6.6.6.6")
	req.Header.Set("X-Forwarded-Host", "evil.example")
	req.Header.Set("Forwarded", "for=6.6.6.6")
	req.Host = "localhost:1"
	resp, err := e.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for name, value := range passed {
		if diff := cmp.Diff([]string{value}, got[name]); diff != "" {
			t.Errorf("%s (-sent +passed on)\n%s", name, diff)
		}
	}
	for name := range removed {
		if got[name] != nil {
			t.Errorf("%s was passed on: %q", name, got[name])
		}
	}
	if got.Get("X-Forwarded-For") != "127.0.0.1" || got.Get("X-Forwarded-Host") != "localhost:1" || got.Get("X-Forwarded-Proto") != "http" || got["Forwarded"] != nil {
		t.Errorf("the cell got %v as where the request came from", got)
	}
	if want := strings.TrimPrefix(home.server.URL, "http://"); host != want {
		t.Errorf("the cell got the host %q, want its own, %q", host, want)
	}
	if id := got.Get("X-Request-Id"); id == "" || resp.Header.Get("X-Request-Id") != id || len(resp.Header["X-Request-Id"]) != 1 {
		t.Errorf("the cell got the request id %q, the client %q", id, resp.Header["X-Request-Id"])
	} else {
		e.until("the call is logged", func() bool { return strings.Contains(e.log.String(), id) })
	}
	if resp.StatusCode != http.StatusAccepted || resp.Header.Get("Etag") != `"3"` || resp.Header.Get("Keep-Alive") != "" || len(resp.Header["Set-Cookie"]) != 2 {
		t.Errorf("the client got %d %v", resp.StatusCode, resp.Header)
	}
}

func TestPathsAndQueriesArePassedOnByteForByte(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	var got atomic.Pointer[string]
	home.mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) { got.Store(&r.RequestURI) })
	e := setup(t, nil, home)
	for _, path := range []string{"/queues/a%2Fb?x=1;2&y=%41", "/history?contains={%22a%22:1}&x", "/nothing/here", "/events/1?receipt=a+b%20c", "/?"} {
		e.want(200, "", "GET", path, "")
		if *got.Load() != path {
			t.Errorf("sent %q, passed on %q", path, *got.Load())
		}
	}
}

func TestBodyHasComeBeforeItsCallTakesAPlace(t *testing.T) {
	t.Parallel()
	home, other := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "q", Cells: []int{1}})
	other.mux.HandleFunc("POST /events", func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "%s of %d %v %s", text, r.ContentLength, r.Header["Expect"], r.Trailer.Get("X-Mine"))
	})
	e := setup(t, nil, home, other)
	reader, writer := io.Pipe()
	req := e.request("POST", "/events?queue=q", "", "Expect: 100-continue")
	req.Body, req.ContentLength, req.Trailer = reader, -1, http.Header{"X-Mine": nil}
	go func() {
		_, _ = io.WriteString(writer, "begin") // the client was asked for it
		e.until("the gateway has asked who calls", func() bool { home.mu.Lock(); defer home.mu.Unlock(); return home.asked > 0 })
		if at := e.gateway.cell(1); at.calls.inUse() > 0 || len(other.calls()) > 0 {
			t.Error("the call has a place before its body has come")
		}
		_, _ = io.WriteString(writer, "end")
		req.Trailer.Set("X-Mine", "trailing")
		_ = writer.Close()
	}()
	if got := e.send(req); got.status != 201 || got.body != "beginend of 8 [] " {
		t.Errorf("answered %d %q", got.status, got.body)
	}
	e.wantProblem(bodyTooLarge, -1, "POST", "/events?queue=q", strings.Repeat(" ", DefaultMaxBody+1))
}

func TestAnswersAreStreams(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	next := make(chan struct{})
	home.mux.HandleFunc("GET /history", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "one ")
		_ = http.NewResponseController(w).Flush()
		<-next
		_, _ = io.WriteString(w, "two")
		w.Header().Set("X-Sum", "7")
	})
	e := setup(t, nil, home)
	resp, err := e.client.Do(e.request("GET", "/history", ""))
	if err != nil {
		t.Fatal(err)
	}
	part := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, part); err != nil || string(part) != "one " {
		t.Errorf("read %q first, %v", part, err)
	}
	close(next)
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || string(body) != "two" || resp.Trailer.Get("X-Sum") != "7" {
		t.Errorf("%v, %q, trailer %v", err, body, resp.Trailer)
	}
}

// Nobody takes all places of a cell, or all memory of bodies: neither a caller whom nobody knows, nor one key.
func TestNobodyTakesAll(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	began, end := make(chan struct{}), make(chan struct{})
	hold := func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Held") != "" {
			began <- struct{}{}
			<-end
		}
		w.WriteHeader(http.StatusCreated)
	}
	home.mux.HandleFunc("POST /events", hold)
	home.mux.HandleFunc("POST /claim", hold)
	e := setup(t, func(cfg *Config) { cfg.MaxCalls, cfg.MaxWaits, cfg.MaxBodyMemory = 16, 16, 16<<20 }, home)
	var held, stalled sync.WaitGroup
	t.Cleanup(stalled.Wait)
	for _, path := range []string{"/events", "/claim"} {
		for key, share := range map[string]int{"unknown": 2, callerKey: 12} {
			caller := "Authorization: Bearer " + key
			for range share {
				held.Go(func() { e.want(201, "", "POST", path, "{}", caller, "X-Held: yes") })
				<-began
			}
			e.want(503, "of this caller", "POST", path, "{}", caller)
		}
		e.want(503, "of this caller", "POST", path, "{}", "Authorization: Bearer another that nobody knows")
		e.want(201, "", "POST", path, "{}", "Authorization: Bearer "+gatewayKey)
	}
	close(end)
	held.Wait()

	// Bodies that never come to their end give way to others: those of strangers, and those of two callers whom home knows.
	stall := func(key string, n int) {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(e.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		stalled.Go(func() { // it may be cut off meanwhile
			_, _ = fmt.Fprintf(conn, "POST /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", key, n, strings.Repeat(" ", n-1))
		})
	}
	for range 8 {
		stall("unknown", 7<<20)
		stall(callerKey, 7<<20)
		stall("metrics", 7<<20)
	}
	e.until("they take much", func() bool { return e.gateway.memoryInUse() > 8<<20 })
	long := strings.Repeat(" ", 1<<20)
	for _, key := range []string{"another that nobody knows", gatewayKey} {
		e.until("there is room for the body of "+key, func() bool {
			return e.call("POST", "/events", long, "Authorization: Bearer "+key).status == http.StatusCreated
		})
	}
}

// memoryInUse returns what bodies and answers take.
func (g *Gateway) memoryInUse() int64 {
	stats := g.budget.Stats()
	return stats.Verified + stats.Unverified + g.shares.inUse() + g.answers.inUse()
}

func TestStreamsAreFlushedAtOnceAndEndWithTheGateway(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	next := make(chan struct{})
	home.mux.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 2 {
			_, _ = fmt.Fprintf(w, "data: %d\n", i)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-next:
			case <-r.Context().Done():
			}
		}
		<-r.Context().Done()
	})
	e := setup(t, nil, home)
	resp, err := e.client.Do(e.request("GET", "/stream", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewReader(resp.Body)
	for i := range 2 {
		if line, err := lines.ReadString('\n'); err != nil || line != fmt.Sprintf("data: %d\n", i) {
			t.Fatalf("%q, %v", line, err)
		}
		next <- struct{}{}
	}
	e.gateway.Drain()
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("the stream ended with %q and %v, want its end", rest, err)
	}
}

func TestClaimWhoseClientGoesIsCancelledAtTheCell(t *testing.T) {
	t.Parallel()
	for _, cells := range []int{1, 2} {
		t.Run(fmt.Sprint(cells), func(t *testing.T) {
			t.Parallel()
			fakes := []*fakeCell{newFakeCell(t, 0), newFakeCell(t, 1)}[:cells]
			fakes[0].put(placement{Queue: "q", Cells: []int{0}})
			began, ended := make(chan struct{}), make(chan struct{})
			fakes[0].mux.HandleFunc("POST /claim", func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				close(began)
				<-r.Context().Done()
				close(ended)
			})
			e := setup(t, nil, fakes...)
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-began
				cancel()
			}()
			if _, err := e.client.Do(e.request("POST", "/claim", `{"queue":"q","wait":"60s"}`).WithContext(ctx)); err == nil { //nolint:bodyclose // there is none
				t.Error("the claim was answered")
			}
			select {
			case <-ended:
			case <-time.After(waitTimeout):
				t.Error("the claim was not cancelled at the cell")
			}
			e.until("the log has the claim", func() bool { return strings.Contains(e.log.String(), `"status":499`) })
			e.until("the cell holds nothing", func() bool { return e.gateway.cell(0).waiting.inUse() == 0 })
		})
	}
}

func TestCellHoldsAsManyCallsAsItMay(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	began, end := make(chan struct{}), make(chan struct{})
	hold := func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		began <- struct{}{}
		<-end
	}
	home.mux.HandleFunc("POST /sweep", hold)
	home.mux.HandleFunc("POST /claim", hold)
	e := setup(t, func(cfg *Config) { cfg.MaxCalls, cfg.MaxWaits = 1, 1 }, home)
	results := make(chan int, 2)
	for _, path := range []string{"/sweep", "/claim"} {
		go func() { results <- e.call("POST", path, "{}").status }()
		<-began
	}
	e.wantProblem(overloaded, -1, "GET", "/queues", "")
	e.wantProblem(overloaded, -1, "POST", "/claim", "{}")
	close(end)
	for range 2 {
		if got := <-results; got != 200 {
			t.Errorf("answered %d", got)
		}
	}
	e.want(404, "", "GET", "/queues", "")
}

// Each call that waits takes two files, one to its client and one to its cell.
func TestCallsThatWaitLeaveFilesForOthers(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	began, end := make(chan struct{}), make(chan struct{})
	home.mux.HandleFunc("POST /claim", func(http.ResponseWriter, *http.Request) {
		began <- struct{}{}
		<-end
	})
	home.answers("GET /queues", http.StatusOK, "{}")
	e := setup(t, func(cfg *Config) { cfg.files = 22 }, home)
	var waiting sync.WaitGroup
	for _, key := range []string{callerKey, callerKey, callerKey, callerKey, callerKey, callerKey, gatewayKey, gatewayKey} { // six are three quarters
		waiting.Go(func() { e.want(200, "", "POST", "/claim", "{}", "Authorization: Bearer "+key) })
		<-began
	}
	e.want(503, "files that it may open", "POST", "/claim", "{}", "Authorization: Bearer "+gatewayKey)
	e.want(200, "", "GET", "/queues", "")
	close(end)
	waiting.Wait()
}

func TestWantOfFilesSaysNothingOfACell(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}:        true,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.ENFILE)}:        true,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}: false,
	} {
		if got := isOutOfFiles(fmt.Errorf("GET /livez: %w", err)); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestCellThatIsAwayFailsAlone(t *testing.T) {
	t.Parallel()
	home, one, two := newFakeCell(t, 0), newFakeCell(t, 1), newFakeCell(t, 2)
	for _, f := range []*fakeCell{one, two} {
		home.put(placement{Queue: fmt.Sprintf("q%d", f.number), Cells: []int{f.number}})
		f.answers("POST /events", 201, fmt.Sprintf(`{"cell":%d}`, f.number))
		f.answers("GET /events/{id}", 200, fmt.Sprintf(`{"cell":%d}`, f.number))
	}
	home.answers("GET /topics", 200, "{}")
	e := setup(t, nil, home, one, two)
	id := func(number int64) string { return fmt.Sprintf("/events/%d", number<<45+17) }
	e.want(201, `"cell":1`, "POST", "/events?queue=q1", "{}")
	address := one.server.Listener.Addr().String()
	one.stop()
	e.until("the cell counts as away", func() bool { return !e.gateway.cell(1).isUp() })
	e.wantProblem(cellUnavailable, 1, "POST", "/events?queue=q1", "{}")
	e.wantProblem(cellUnavailable, 1, "POST", "/claim", `{"queue":"q1"}`)
	e.wantProblem(cellUnavailable, 1, "GET", id(1), "")
	e.want(201, `"cell":2`, "POST", "/events?queue=q2", "{}")
	e.want(200, `"cell":2`, "GET", id(2), "")
	e.want(200, "{}", "GET", "/topics", "")
	e.want(200, "ok", "GET", "/readyz", "")

	again := newFakeCell(t, 1)
	again.answers("POST /events", 201, `{"again":1}`)
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("the address of the cell is taken by somebody else: %v", err)
	}
	back := httptest.NewUnstartedServer(again.mux)
	back.Listener = listener
	back.Start()
	t.Cleanup(back.Close)
	e.until("the cell is back", func() bool { return e.gateway.cell(1).isUp() })
	e.want(201, "again", "POST", "/events?queue=q1", "{}")
}

func TestFrozenCellIsFoundOutAndItsCallsEnd(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "q", Cells: []int{1}})
	e := setup(t, nil, home, one)
	thaw := one.freeze()
	defer thaw()
	e.wantProblem(cellUnavailable, 1, "POST", "/claim", `{"queue":"q","wait":"60s"}`)
	e.wantProblem(cellUnavailable, 1, "POST", "/events?queue=q", "{}")
	e.want(200, "ok", "GET", "/readyz", "")
	thaw()
	e.until("the cell is back", func() bool { return e.gateway.cell(1).isUp() })
	e.want(404, "", "GET", "/queues/q", "")
}

func TestCellOfAnotherNumberIsNotUsed(t *testing.T) {
	t.Parallel()
	home, wrong := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "q", Cells: []int{1}})
	e := start(t, nil, home, wrong)
	e.until("the gateway is ready", func() bool { return e.gateway.ready() == nil })
	wrong.number = 7
	other := start(t, func(cfg *Config) {
		cfg.Cells[1], cfg.Cells[7] = mustParse(t, wrong.server.URL), mustParse(t, home.server.URL)
		delete(cfg.Cells, 7)
	}, home)
	other.until("the gateway is ready", func() bool { return other.gateway.ready() == nil })
	other.wantProblem(cellUnavailable, 1, "POST", "/events?queue=q", "{}")
	other.until("the log says it", func() bool { return strings.Contains(other.log.String(), "its URL leads to another cell: 7") })
	if strings.Contains(strings.Join(wrong.calls(), " "), "/events") {
		t.Errorf("the cell was used: %q", wrong.calls())
	}
}

func mustParse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestCellThatRefusesTheKeyIsNotUsed(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	e := start(t, func(cfg *Config) { cfg.Key = "another-key" }, home)
	e.until("the log says it", func() bool { return strings.Contains(e.log.String(), "it refuses the gateway's key") })
	e.wantProblem(cellUnavailable, 0, "GET", "/topics", "")
	if got := e.call("GET", "/readyz", "").status; got != 503 {
		t.Errorf("/readyz answered %d", got)
	}
}

func TestPlacedQueuesGoOnWithoutHome(t *testing.T) {
	t.Parallel()
	home, one := newFakeCell(t, 0), newFakeCell(t, 1)
	home.put(placement{Queue: "q", Cells: []int{1}})
	one.answers("POST /events", 201, "{}")
	one.answers("POST /claim", 200, `{"events":[]}`)
	e := setup(t, nil, home, one)
	home.stop()
	e.until("home counts as away", func() bool { return !e.gateway.cell(0).isUp() })
	e.want(201, "", "POST", "/events?queue=q", "{}")
	e.want(200, "events", "POST", "/claim", `{"queue":"q"}`)
	e.want(200, "events", "POST", "/claim", `{"queue":"new"}`) // which waits where it will be placed
	e.wantProblem(cellUnavailable, 0, "POST", "/events?queue=new", "{}")
	e.wantProblem(cellUnavailable, 0, "GET", "/topics", "")
	e.wantProblem(cellUnavailable, 0, "POST", "/topics/a", "{}")
	e.want(200, "ok", "GET", "/readyz", "")
	e.wantProblem(cellUnavailable, 0, "GET", "/version", "")
}

func TestConnectionThatWasRefusedIsTriedAgainOnce(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	home.mux.HandleFunc("POST /events", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	var dials atomic.Int32
	refusals := int32(1)
	e := setupPrepared(t, nil, func(g *Gateway) {
		transport := g.cell(0).transport
		transport.DisableKeepAlives = true
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			if ctx.Value(callKey{}) != nil && dials.Add(1) <= refusals {
				return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
			}
			return dial(ctx, network, address)
		}
	}, home)
	e.want(200, "the body", "POST", "/events", "the body")
	if n := dials.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
	dials.Store(0)
	refusals = 2
	e.wantProblem(cellUnavailable, 0, "POST", "/events", "the body")
	if n := dials.Load(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestCallOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	var posts, gets atomic.Int32
	abort := func(n *atomic.Int32) http.HandlerFunc {
		return func(_ http.ResponseWriter, r *http.Request) {
			n.Add(1)
			_, _ = io.ReadAll(r.Body)
			panic(http.ErrAbortHandler)
		}
	}
	home.mux.HandleFunc("POST /events", abort(&posts))
	home.mux.HandleFunc("GET /topics", abort(&gets))
	e := setup(t, nil, home)
	for range 3 {
		e.wantProblem(outcomeUnknown, 0, "POST", "/events", "{}")
	}
	if n := posts.Load(); n != 3 {
		t.Errorf("3 inserts were sent %d times", n)
	}
	e.wantProblem(cellUnavailable, 0, "GET", "/topics", "")
}

func TestAnswerThatBreaksOffDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	home.mux.HandleFunc("GET /history", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	e := setup(t, nil, home)
	resp, err := e.client.Do(e.request("GET", "/history", ""))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("read %q without an error", body)
	}
}

func TestDrainAnswersWaitingCallsAndFinishesOthers(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	began, end := make(chan struct{}), make(chan struct{})
	home.mux.HandleFunc("POST /claim", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		began <- struct{}{}
		<-r.Context().Done()
	})
	home.mux.HandleFunc("POST /sweep", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.ReadAll(r.Body)
		began <- struct{}{}
		<-end
		_, _ = io.WriteString(w, "swept")
	})
	e := setup(t, nil, home)
	claimed, swept := make(chan answer, 1), make(chan answer, 1)
	go func() { claimed <- e.call("POST", "/claim", "{}") }()
	<-began
	go func() { swept <- e.call("POST", "/sweep", "{}") }()
	<-began
	e.gateway.Drain()
	if got := <-claimed; got.status != 503 || !strings.Contains(got.body, `"not_ready"`) || got.header.Get("Retry-After") != "1" {
		t.Errorf("the claim was answered %d %s", got.status, got.body)
	}
	if got := e.call("GET", "/readyz", ""); got.status != 503 {
		t.Errorf("/readyz answered %d", got.status)
	}
	close(end)
	if got := <-swept; got.status != 200 || got.body != "swept" {
		t.Errorf("the sweep was answered %d %s", got.status, got.body)
	}
}

func TestMetricsAndVersionAreForThoseWhomHomeKnows(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	home.answers("GET /topics", 200, "{}")
	e := setup(t, func(cfg *Config) { cfg.Version = "1.2.3" }, home)
	e.call("GET", "/topics", "")
	e.want(401, "unauthorized", "GET", "/metrics", "", "Authorization: Bearer wrong")
	e.want(403, `"required":{"scope":"metrics"}`, "GET", "/metrics", "")
	e.want(403, `"required":{"queue":"*","topic":"**"}`, "GET", "/metrics", "", "Authorization: Bearer metrics of a queue")
	for range 2 {
		e.want(200, `queued_gateway_requests_total{cell="0",method="GET",route="/topics",status="200"} 1`, "GET", "/metrics", "", "Authorization: Bearer metrics")
	}
	e.want(200, `"version":"1.2.3"`, "GET", "/version", "")
	e.want(401, "unauthorized", "GET", "/version", "", "Authorization: Bearer wrong")
	home.mu.Lock()
	defer home.mu.Unlock()
	if home.asked != 8 { // each time, and before the call of /topics
		t.Errorf("home was asked %d times who calls", home.asked)
	}
}

func TestPagesOfOtherOriginsAreRefusedAndOwnOnesAreNot(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	protected := http.NewCrossOriginProtection().Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }))
	home.mux.Handle("POST /ui/login", protected)
	e := setup(t, nil, home)
	e.want(403, "cross_origin", "POST", "/ui/login", "", "Origin: https://evil.example")
	e.want(403, "cross_origin", "POST", "/ui/login", "", "Origin: "+home.server.URL)
	e.want(403, "cross_origin", "POST", "/ui/login", "", "Sec-Fetch-Site: cross-site")
	e.want(204, "", "POST", "/ui/login", "", "Origin: "+e.url)
	e.want(403, "cross_origin", "POST", "/ui/login", "", "Sec-Fetch-Site: cross-site", "Origin: https://evil.example", "Connection: Origin, sec-fetch-site")
	e.want(204, "", "POST", "/ui/login", "", "Origin: "+e.url, "Sec-Fetch-Site: same-origin")
}

func TestHostIsChecked(t *testing.T) {
	t.Parallel()
	home := newFakeCell(t, 0)
	e := setup(t, func(cfg *Config) { cfg.LoopbackOnly, cfg.Hosts = true, []string{"queue.example"} }, home)
	for host, want := range map[string]int{"evil.example": 421, "queue.example:80": 404, "[::1]:9": 404, "localhost": 404} {
		req := e.request("GET", "/topics", "")
		req.Host = host
		resp, err := e.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s answered %d, want %d", host, resp.StatusCode, want)
		}
	}
}
