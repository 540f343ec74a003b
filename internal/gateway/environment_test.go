package gateway

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

// waitTimeout bounds every wait of a test. It is long, for a busy machine and the race detector.
const waitTimeout = time.Minute

// gatewayKey is the key of the gateway in tests, and callerKey that of a caller who may publish.
const (
	gatewayKey = "the-key-of-the-gateway"
	callerKey  = "the-key-of-a-caller"
	managerKey = "the-key-of-a-manager" // who may not publish
)

// A fakeCell answers as a cell does, as far as the gateway asks by itself, and everything else as a test says.
type fakeCell struct {
	t        *testing.T
	number   int
	server   *httptest.Server
	mux      *http.ServeMux
	keys     *fakeKeys
	settings *fakeSettings
	queues   atomic.Pointer[[]string] // with events
	// waiting has the answers to claims of the gateway's own, of queued.forward.<cell>, by the queue.
	waiting map[string]chan string

	mu         sync.Mutex
	seen       []string // "METHOD path" of the calls that are no look-ups of the gateway
	asked      int      // how often it was asked about a caller
	listed     []listed
	kept       time.Duration // that keys are remembered for
	placements map[string]placement
	version    int64
	epoch      string
	changed    chan struct{}
	isFrozen   chan struct{}    // not nil: nothing is answered until it is closed
	pageSize   int              // of listings of placements; 0: one page has all
	beforePage func(n int) bool // called before the page after n placements, and whether that is answered; nil: all are

	override atomic.Pointer[override] // not nil: what is answered to all calls but the look-ups of the gateway
}

// An override is an answer.
type override struct {
	status int
	body   string
}

func newFakeCell(t *testing.T, number int) *fakeCell {
	t.Helper()
	f := &fakeCell{t: t, number: number, mux: http.NewServeMux(), keys: newFakeKeys(), settings: newFakeSettings(), waiting: make(map[string]chan string), placements: make(map[string]placement), changed: make(chan struct{})}
	f.mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"status":"ok"}`) })
	f.mux.HandleFunc("GET /cell", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+gatewayKey {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		f.keys.mu.Lock()
		defer f.keys.mu.Unlock()
		_, _ = fmt.Fprintf(w, `{"cell":%d,"epoch":"%d"}`, f.number, f.keys.epoch)
	})
	f.mux.HandleFunc("GET /placements", f.listPlacements)
	f.mux.HandleFunc("GET /cell/queues", func(w http.ResponseWriter, _ *http.Request) {
		names := []string{}
		if held := f.queues.Load(); held != nil {
			names = *held
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"queues": names, "next": nil})
	})
	f.mux.HandleFunc("GET /cell/keys", f.keys.list)
	f.mux.HandleFunc("PUT /cell/keys", f.keys.put)
	f.mux.HandleFunc("GET /cell/settings", f.settings.list)
	f.mux.HandleFunc("PUT /cell/settings", f.settings.put)
	f.mux.HandleFunc("POST /queues/{name}/placement", f.place)
	f.mux.HandleFunc("PUT /queues/{name}/placement", f.place)
	f.mux.HandleFunc("GET /queues/{name}/placement", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		_ = json.NewEncoder(w).Encode(f.placements[r.PathValue("name")])
	})
	f.mux.HandleFunc("GET /keys/self", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.asked++
		f.mu.Unlock()
		switch r.Header.Get("Authorization") {
		case "Bearer " + callerKey:
			_, _ = io.WriteString(w, `{"scopes":["publish"]}`)
		case "Bearer " + gatewayKey:
			_, _ = io.WriteString(w, `{"scopes":["admin"]}`)
		case "Bearer metrics":
			_, _ = io.WriteString(w, `{"scopes":["metrics"]}`)
		case "Bearer metrics of a queue":
			_, _ = io.WriteString(w, `{"scopes":["metrics"],"queues":["q"],"topics":null}`)
		default:
			refuseCaller(w, r)
		}
	})
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.claimForwarded(w, r) {
			return
		}
		f.mu.Lock()
		frozen := f.isFrozen
		if !slices.Contains([]string{"/livez", "/cell", "/cell/keys", "/cell/settings", "/cell/queues", "/placements", "/keys/self"}, r.URL.Path) && !strings.HasPrefix(r.URL.Path, "/cell/queues/") {
			f.seen = append(f.seen, r.Method+" "+r.URL.Path)
		}
		f.mu.Unlock()
		if frozen != nil {
			select {
			case <-frozen:
			case <-r.Context().Done():
			}
		}
		if instead := f.override.Load(); instead != nil && !slices.Contains([]string{"/livez", "/cell", "/placements"}, r.URL.Path) {
			w.WriteHeader(instead.status)
			_, _ = io.WriteString(w, instead.body)
			return
		}
		f.mux.ServeHTTP(w, r)
	}))
	f.server.Listener = listenApart(t)
	f.server.Start()
	t.Cleanup(f.stop)
	return f
}

// stop has the cell go away. It takes no connection any more before its connections are closed, or a gateway could come back meanwhile with a call that waits.
func (f *fakeCell) stop() {
	_ = f.server.Listener.Close()
	f.server.CloseClientConnections()
	f.server.Close()
}

// addresses are how many listenApart has given out.
var addresses atomic.Uint32

// listenApart listens on a loopback address of its own: the port of a cell that a test has closed must not become that of a cell of another test, whose gateway would find
// it there. Systems that have one loopback address alone go without.
func listenApart(t *testing.T) net.Listener {
	t.Helper()
	n := addresses.Add(1)
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", fmt.Sprintf("127.1.%d.%d:0", n>>8, n&255))
	if err != nil {
		listener, err = config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	}
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// refuseCaller answers as a server does that does not know the key.
func refuseCaller(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
	w.Header().Set("Www-Authenticate", "Bearer")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = fmt.Fprintf(w, `{"code":"unauthorized","request_id":%q}`, r.Header.Get("X-Request-Id"))
}

// claimForwarded answers a claim of the gateway's own, and reports whether r is one.
func (f *fakeCell) claimForwarded(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodPost || r.URL.Path != "/claim" {
		return false
	}
	text, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(text))
	var claim struct{ Queue, Wait string }
	if json.Unmarshal(text, &claim) != nil || !strings.HasPrefix(claim.Queue, "queued.forward.") {
		return false
	}
	wait, _ := time.ParseDuration(claim.Wait)
	select {
	case events := <-f.waiting[claim.Queue]:
		_, _ = io.WriteString(w, events)
	case <-time.After(wait):
		_, _ = io.WriteString(w, `{"events":[]}`)
	case <-r.Context().Done():
	}
	return true
}

// listPlacements answers with the placements beyond after_version, and waits for one.
func (f *fakeCell) listPlacements(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.URL.Query().Get("after_version"), 10, 64)
	isNext := r.URL.Query().Has("cursor")
	if isNext {
		after, _ = strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64)
	}
	if f.beforePage != nil && isNext && !f.beforePage(int(after)) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	late := time.After(wait)
	for {
		f.mu.Lock()
		page := placementsPage{Placements: []*placement{}, Version: f.version, Epoch: f.epoch, Cells: append([]listed{}, f.listed...), KeptMS: f.kept.Milliseconds()}
		page.Complete = !isNext && (after == 0 || after > f.version || r.URL.Query().Get("epoch") != f.epoch)
		if page.Complete {
			after = 0
		}
		for _, p := range f.placements {
			if p.Version > after {
				page.Placements = append(page.Placements, &p)
			}
		}
		slices.SortFunc(page.Placements, func(a, b *placement) int { return cmp.Compare(a.Version, b.Version) })
		if f.pageSize > 0 && len(page.Placements) > f.pageSize {
			page.Placements = page.Placements[:f.pageSize]
			next := itoa(page.Placements[f.pageSize-1].Version)
			page.Next = &next
		}
		changed := f.changed
		f.mu.Unlock()
		if !isNext && page.Version == after && !page.Complete && wait > 0 {
			select {
			case <-changed:
				continue
			case <-late:
			case <-r.Context().Done():
				return
			}
		}
		_ = json.NewEncoder(w).Encode(page)
		return
	}
}

// place places a queue unless it is placed: by POST for callers who may publish, and by PUT for those who manage.
func (f *fakeCell) place(w http.ResponseWriter, r *http.Request) {
	switch key := r.Header.Get("Authorization"); {
	case key == "Bearer "+managerKey && r.Method == http.MethodPost:
		w.WriteHeader(http.StatusForbidden)
		return
	case key != "Bearer "+callerKey && key != "Bearer "+managerKey:
		refuseCaller(w, r)
		return
	}
	var asked struct {
		Cell  int
		Cells []int
	}
	_ = json.NewDecoder(r.Body).Decode(&asked)
	if asked.Cells == nil {
		asked.Cells = []int{asked.Cell}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	name := r.PathValue("name")
	p, isPlaced := f.placements[name]
	switch {
	case !isPlaced && r.Header.Get("If-Match") != "":
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	case !isPlaced:
		p = f.set(placement{Queue: name, Cells: asked.Cells})
	case r.Header.Get("If-None-Match") == "*", r.Header.Get("If-Match") == noVersion:
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	case r.Method == http.MethodPut:
		p = f.set(placement{Queue: name, Cells: asked.Cells, Former: []former{{Cells: p.Cells, Since: time.Now()}}, Past: p.Past})
	}
	w.Header().Set("Etag", strconv.Quote(strconv.FormatInt(p.Version, 10)))
	_ = json.NewEncoder(w).Encode(p)
}

// set sets a placement under the next version. The caller holds mu.
func (f *fakeCell) set(p placement) placement {
	f.version++
	p.Version = f.version
	f.placements[p.Queue] = p
	close(f.changed)
	f.changed = make(chan struct{})
	return p
}

// list has the cell list others for gateways.
func (f *fakeCell) list(cells ...listed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listed = cells
	f.version++
	close(f.changed)
	f.changed = make(chan struct{})
}

// put sets a placement.
func (f *fakeCell) put(p placement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set(p)
}

// freeze has the cell answer nothing until thaw is called.
func (f *fakeCell) freeze() (thaw func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	frozen := make(chan struct{})
	f.isFrozen = frozen
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		close(frozen)
		f.isFrozen = nil
	})
}

// calls returns what the cell was asked, besides the look-ups of the gateway.
func (f *fakeCell) calls() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.seen)
}

// answers has the cell answer a pattern with a body.
func (f *fakeCell) answers(pattern string, status int, body string) {
	f.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	})
}

// A logBuffer has the lines of a log.
type logBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (b *logBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// An environment is a gateway in front of cells, and a client.
type environment struct {
	t       *testing.T
	gateway *Gateway
	server  *httptest.Server
	url     string
	log     *logBuffer
	client  *http.Client
}

// setup starts a gateway in front of cells, and returns once it can use them and knows the placements. change changes its settings, if it is not nil.
func setup(t *testing.T, change func(*Config), cells ...*fakeCell) *environment {
	t.Helper()
	return setupPrepared(t, change, nil, cells...)
}

// setupPrepared is setup that calls prepare, unless it is nil, before the gateway runs.
func setupPrepared(t *testing.T, change func(*Config), prepare func(*Gateway), cells ...*fakeCell) *environment {
	t.Helper()
	e := startPrepared(t, change, prepare, cells...)
	e.until("the cells can be used", func() bool {
		return !slices.ContainsFunc(cells, func(f *fakeCell) bool { return !e.gateway.cell(f.number).isUp() }) && e.gateway.ready() == nil
	})
	return e
}

// start starts a gateway in front of cells.
func start(t *testing.T, change func(*Config), cells ...*fakeCell) *environment {
	t.Helper()
	return startPrepared(t, change, nil, cells...)
}

func startPrepared(t *testing.T, change func(*Config), prepare func(*Gateway), cells ...*fakeCell) *environment {
	t.Helper()
	e := &environment{t: t, log: new(logBuffer)}
	cfg := Config{Key: gatewayKey, Cells: map[int]*url.URL{}, Logger: zerolog.New(e.log), LogAll: true}
	for _, f := range cells {
		u, err := url.Parse(f.server.URL)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Cells[f.number] = u
	}
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	e.gateway = g
	if prepare != nil {
		prepare(g)
	}
	server := httptest.NewUnstartedServer(g.Handler())
	own := g.HTTPServer()
	server.Config.ReadTimeout, server.Config.WriteTimeout, server.Config.ErrorLog = own.ReadTimeout, own.WriteTimeout, own.ErrorLog
	server.Start()
	e.server, e.url = server, server.URL
	ctx, cancel := context.WithCancel(context.Background())
	running := make(chan struct{})
	go func() {
		defer close(running)
		g.Run(ctx)
	}()
	e.client = &http.Client{Transport: &http.Transport{DisableCompression: true, ExpectContinueTimeout: waitTimeout, MaxIdleConnsPerHost: 100}, Timeout: waitTimeout}
	t.Cleanup(func() {
		e.client.CloseIdleConnections()
		g.Close()
		cancel()
		<-running
		server.Close()
		if t.Failed() {
			t.Logf("the log of the gateway:\n%s", e.log)
		}
	})
	return e
}

// until waits until state is true, which no signal announces; what describes it.
func (e *environment) until(what string, state func() bool) {
	e.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(waitTimeout); !state(); {
		select {
		case <-tick.C:
		case <-late:
			e.t.Fatalf("timed out: %s\n%s", what, e.log)
		}
	}
}

// An answer is a response.
type answer struct {
	status int
	header http.Header
	body   string
}

// request returns a request of the caller, with header fields as "Name: value".
func (e *environment) request(method, path, body string, fields ...string) *http.Request {
	e.t.Helper()
	req, err := http.NewRequestWithContext(e.t.Context(), method, e.url+path, strings.NewReader(body))
	if err != nil {
		e.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+callerKey)
	for _, field := range fields {
		name, value, _ := strings.Cut(field, ": ")
		req.Header.Set(name, value)
	}
	return req
}

// call makes a call and returns the answer.
func (e *environment) call(method, path, body string, fields ...string) answer {
	e.t.Helper()
	return e.send(e.request(method, path, body, fields...))
}

// send sends a request and returns the answer.
func (e *environment) send(req *http.Request) answer {
	e.t.Helper()
	resp, err := e.client.Do(req)
	if err != nil {
		e.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		e.t.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

// want makes a call whose answer must have a status and contain a text.
func (e *environment) want(status int, text, method, path, body string, fields ...string) answer {
	e.t.Helper()
	got := e.call(method, path, body, fields...)
	if got.status != status || !strings.Contains(got.body, text) {
		e.t.Errorf("%s %s %s answered %d %s, want %d %s", method, path, body, got.status, got.body, status, text)
	}
	return got
}

// wantProblem makes a call that the gateway must refuse, about a cell, -1: about none.
func (e *environment) wantProblem(problem problemType, about int, method, path, body string) {
	e.t.Helper()
	got := e.call(method, path, body)
	var doc document
	if err := json.Unmarshal([]byte(got.body), &doc); err != nil {
		e.t.Fatalf("%s %s answered %d %s: %v", method, path, got.status, got.body, err)
	}
	number := -1
	if doc.Cell != nil {
		number = *doc.Cell
	}
	if got.status != problem.status || doc.Code != problem.code || number != about || doc.RequestID != got.header.Get("X-Request-Id") || doc.Detail == "" ||
		got.header.Get("Content-Type") != "application/problem+json" || (got.header.Get("Retry-After") == "") == (got.status == http.StatusServiceUnavailable) {
		e.t.Errorf("%s %s answered %d %v %s, want %d %s about cell %d", method, path, got.status, got.header, got.body, problem.status, problem.code, about)
	}
}

// sortedKeys returns the keys of a map in order.
func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
