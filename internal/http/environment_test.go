package http

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/gateway"
	"github.com/queued/queued/internal/gatewaytest"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/webhook"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// An environment is a server with its own database, and a client that checks every
// response against the contract.
type environment struct {
	*client
	db  *pgtest.DB
	svc *queue.Service

	database  *pg.Database
	schedules *schedule.Service
	topics    *topic.Service
	access    *access.Service
	pushes    *push.Service
	sources   *webhook.Service
	cells     *cell.Service
	srv       *Server
	log       *logBuffer
	raw       *http.Transport // what the client sends with, without the contract
}

// settings configure the server; the zero value is a server without an API key and without sweeps.
type settings struct {
	http  func(*Config)
	queue func(*queue.Config)
	plans func(*schedule.Config)
	keys  func(*access.Config)
	push  func(*push.Config)
	cell  func(*cell.Config)
	seen  map[string]bool // records the responses seen, if not nil

	sources func(*webhook.Config)

	db     *pgtest.DB // nil: a new one
	server func(*Server, *http.Server)
	http2  bool // over TLS; false: HTTP/1.1 without TLS
}

// busyTimeout bounds calls of tests: on a busy machine they take longer than users would wait.
const busyTimeout = time.Minute

// setup starts a server without an API key and without sweeps.
func setup(t *testing.T) *environment {
	t.Helper()
	return setupWith(t, settings{})
}

// setupWith starts a server with these settings.
func setupWith(t *testing.T, set settings) *environment {
	t.Helper()
	h := &environment{db: set.db, log: new(logBuffer)}
	if h.db == nil {
		h.db = pgtest.New(t)
	}
	db, err := pg.Open(t.Context(), pg.Config{URL: h.db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	h.database = db
	ccfg := cell.Config{Database: db, QueryTimeout: busyTimeout}
	if set.cell != nil {
		set.cell(&ccfg)
	}
	if h.cells, err = cell.Open(t.Context(), ccfg); err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.cells.Run, h.cells.Close)
	qcfg := queue.Config{Database: db, SweepInterval: -1, MaxConns: 4, QueryTimeout: busyTimeout}
	if set.queue != nil {
		set.queue(&qcfg)
	}
	svc, err := queue.Open(t.Context(), qcfg)
	if err != nil {
		t.Fatal(err)
	}
	h.svc = svc
	keepRunning(t, svc.Run, svc.Close)
	scfg := schedule.Config{Database: db, QueryTimeout: busyTimeout, DeclaredOnly: svc.IsDeclaredOnly()}
	if set.plans != nil {
		set.plans(&scfg)
	}
	h.schedules, err = schedule.Open(t.Context(), scfg)
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.schedules.Run, h.schedules.Close)

	h.topics, err = topic.Open(t.Context(), topic.Config{Database: db, Queue: svc, QueryTimeout: busyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.topics.Run, h.topics.Close)

	acfg := access.Config{Database: db, QueryTimeout: busyTimeout}
	if set.keys != nil {
		set.keys(&acfg)
	}
	if h.access, err = access.Open(t.Context(), acfg); err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.access.Run, h.access.Close)

	guard, err := egress.NewGuard([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.NewSealer("a key that seals secrets")
	if err != nil {
		t.Fatal(err)
	}
	sender := egress.NewSender(egress.SenderConfig{Guard: guard, Version: "1.2.3"})
	t.Cleanup(sender.Close)
	pcfg := push.Config{Database: db, Queue: svc, Guard: guard, Sealer: sealer, Sender: sender, QueryTimeout: busyTimeout}
	if set.push != nil {
		set.push(&pcfg)
	}
	if h.pushes, err = push.Open(t.Context(), pcfg); err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.pushes.Run, h.pushes.Close)

	hcfg := webhook.Config{Database: db, Queue: svc, Topics: h.topics, Sealer: sealer, QueryTimeout: busyTimeout, TimeLimit: busyTimeout}
	if set.sources != nil {
		set.sources(&hcfg)
	}
	if h.sources, err = webhook.Open(t.Context(), hcfg); err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.sources.Run, h.sources.Close)

	cfg := Config{Service: svc, Schedules: h.schedules, Topics: h.topics, Access: h.access, Pushes: h.pushes, Sources: h.sources, Cells: h.cells, RequestTimeout: busyTimeout, Version: "1.2.3", Logger: zerolog.New(h.log).Level(zerolog.DebugLevel)}
	if set.http != nil {
		set.http(&cfg)
	}
	h.srv = New(cfg)
	listener := httptest.NewUnstartedServer(nil)
	listener.Config = h.srv.HTTPServer()
	if set.server != nil {
		set.server(h.srv, listener.Config)
	}
	transport := new(http.Transport)
	if set.http2 {
		listener.EnableHTTP2 = true
		listener.StartTLS()
		transport = listener.Client().Transport.(*http.Transport)
	} else {
		listener.Start()
	}
	t.Cleanup(listener.Close)
	base := listener.URL
	if gatewaytest.Cells(t) > 0 {
		front := gatewaytest.Start(t, gateway.Config{
			Key: keyOfGateway(t, h.access, acfg.Key), TLS: transport.TLSClientConfig, Version: cfg.Version, Logger: cfg.Logger, LogAll: cfg.LogAll,
			VerifyClient: cfg.VerifyClient, LoopbackOnly: cfg.LoopbackOnly, Hosts: cfg.Hosts,
		}, set.http2, base)
		base = front.URL
		if set.http2 {
			transport = front.Client().Transport.(*http.Transport)
		}
	}
	h.raw = transport
	t.Cleanup(transport.CloseIdleConnections)
	if set.seen == nil {
		set.seen = make(map[string]bool)
	}
	h.client = &client{
		t:    t,
		url:  base,
		own:  listener.URL,
		http: &http.Client{Transport: &conform{t: t, next: transport, seen: set.seen}, CheckRedirect: noRedirect},
	}
	return h
}

// keyOfGateway returns an admin key for a gateway: that which is stored nowhere, unless there is none and the database has keys already.
func keyOfGateway(t *testing.T, keys *access.Service, stored string) string {
	t.Helper()
	page, err := keys.List(t.Context(), 1, "")
	if err != nil {
		t.Fatal(err)
	}
	if stored != "" || len(page.Keys) == 0 {
		return stored
	}
	_, text, err := keys.Create(t.Context(), access.CreateParams{Name: "gateway", Scopes: []access.Scope{access.Admin}})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// keepRunning runs a service until the test ends, and then closes it.
func keepRunning(t *testing.T, run, closeService func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running := make(chan error, 1)
	go func() { running <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-running; err != nil {
			t.Errorf("running the service: %v", err)
		}
		if err := closeService(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// sql runs a statement in the test's database.
func (h *environment) sql(statement string, args ...any) {
	h.t.Helper()
	conn := h.connect()
	if _, err := conn.Exec(h.t.Context(), statement, args...); err != nil {
		h.t.Fatalf("%s: %v", statement, err)
	}
}

// count returns the number that a query returns.
func (h *environment) count(query string, args ...any) (n int) {
	h.t.Helper()
	conn := h.connect()
	if err := conn.QueryRow(h.t.Context(), query, args...).Scan(&n); err != nil {
		h.t.Fatalf("%s: %v", query, err)
	}
	return n
}

func (h *environment) connect() *pgx.Conn {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), h.db.URL)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(h.t.Context())) })
	return conn
}

// A client calls the server.
type client struct {
	t      *testing.T
	url    string
	own    string // the URL for what each process says of itself; differs from url behind a gateway, which says other things
	http   *http.Client
	header http.Header // of every request
}

// with returns a client that sends a header field with every request.
func (c *client) with(name, value string) *client {
	changed := *c
	changed.header = c.header.Clone()
	if changed.header == nil {
		changed.header = make(http.Header)
	}
	changed.header.Set(name, value)
	return &changed
}

// An answer is a complete response; its body is without the trailing newline.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

func (c *client) request(ctx context.Context, method, path, body string) *http.Request {
	c.t.Helper()
	base := c.url
	if c.own != "" && (path == "/metrics" || path == "/readyz") {
		base = c.own
	}
	r, err := http.NewRequestWithContext(ctx, method, base+path, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
		if strings.HasPrefix(path, "/cloudevents") {
			r.Header.Set("Content-Type", structured)
		}
	}
	for name, values := range c.header {
		r.Header[name] = values
		if name == "Host" {
			r.Host = values[0]
		}
	}
	return r
}

// try makes a call that does not have to match the contract.
func (c *client) try(method, path, body string) answer {
	c.t.Helper()
	resp, err := c.http.Do(c.request(c.t.Context(), method, path, body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	return answer{c.t, resp.StatusCode, resp.Header, strings.TrimSuffix(string(content), "\n")}
}

// call makes a call that must match the contract.
func (c *client) call(method, path, body string) answer {
	c.t.Helper()
	if err := checkRequest(c.request(c.t.Context(), method, path, body), []byte(body)); err != nil {
		c.t.Errorf("%s %s %s does not match the contract: %v", method, path, body, err)
	}
	return c.try(method, path, body)
}

// want fails the test unless the answer has this status.
func (a answer) want(status int) answer {
	a.t.Helper()
	if a.status != status {
		a.t.Fatalf("got %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// wantProblem fails the test unless the answer is a problem of this type.
func (a answer) wantProblem(k problem.Type) problem.Document {
	a.t.Helper()
	a.want(k.Status)
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		a.t.Fatalf("a problem has the content type %s: %s", got, a.body)
	}
	p := decode[problem.Document](a)
	if p.Code != k.Code || p.Status != k.Status || p.RequestID != a.header.Get("X-Request-Id") || p.Type != "urn:queued:problem:"+k.Code {
		a.t.Fatalf("got %s, want %s", a.body, k.Code)
	}
	return p
}

// decode decodes the answer's body.
func decode[T any](a answer) (v T) {
	a.t.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		a.t.Fatalf("%v: %s", err, a.body)
	}
	return v
}

// seenEvent is an event in a response.
type seenEvent struct {
	ID           int64           `json:"id"`
	Queue        string          `json:"queue"`
	State        string          `json:"state"`
	Outcome      string          `json:"outcome"`
	EventTS      time.Time       `json:"event_ts"`
	EnqueuedAt   time.Time       `json:"enqueued_at"`
	Attempts     int             `json:"attempts"`
	VT           time.Time       `json:"vt"`
	Claimed      []time.Time     `json:"claimed"`
	FinishedAt   *time.Time      `json:"finished_at"`
	LastError    *string         `json:"last_error"`
	RequeuedFrom *int64          `json:"requeued_from"`
	RequeuedAs   *int64          `json:"requeued_as"`
	Occurrence   map[string]any  `json:"occurrence"`
	Meta         map[string]any  `json:"meta"`
	Publication  map[string]any  `json:"publication"`
	Event        json.RawMessage `json:"event"`
	Receipt      string          `json:"receipt"`

	Type             string          `json:"type"`
	Source           string          `json:"source"`
	Priority         int             `json:"priority"`
	Key              string          `json:"key"`
	MaxAttempts      int             `json:"max_attempts"`
	ExpiresAt        *time.Time      `json:"expires_at"`
	Worker           string          `json:"worker"`
	Status           string          `json:"status"`
	Result           json.RawMessage `json:"result"`
	Retryable        *bool           `json:"retryable"`
	ErrorCount       *int            `json:"error_count"`
	FirstAttemptedAt *time.Time      `json:"first_attempted_at"`
	LastAttemptedAt  *time.Time      `json:"last_attempted_at"`
	ProcessingMS     *float64        `json:"processing_ms"`
}

type seenPage struct {
	Events []seenEvent `json:"events"`
	Next   *string     `json:"next"`
}

// insert inserts an event into the default queue and returns its id.
func (c *client) insert(event string) int64 {
	c.t.Helper()
	return decode[seenEvent](c.call("POST", "/events", event).want(201)).ID
}

// claim makes a claim with a body and returns the events.
func (c *client) claim(body string) []seenEvent {
	c.t.Helper()
	return decode[seenPage](c.call("POST", "/claim", body).want(200)).Events
}

// claimOne claims one event, and fails the test without one.
func (c *client) claimOne() seenEvent {
	c.t.Helper()
	events := c.claim("")
	if len(events) != 1 {
		c.t.Fatalf("claimed %d events, want 1", len(events))
	}
	return events[0]
}

// get returns an event from its queue or from history.
func (c *client) get(id int64) seenEvent {
	c.t.Helper()
	return decode[seenEvent](c.call("GET", fmt.Sprintf("/events/%d", id), "").want(200))
}

// logBuffer stores the log and can wait for lines.
type logBuffer struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{} // closed when the next line is written
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, string(bytes.TrimSpace(p)))
	if b.more != nil {
		close(b.more)
		b.more = nil
	}
	return len(p), nil
}

// wait waits for a line that contains all parts, and returns it.
func (b *logBuffer) wait(t *testing.T, parts ...string) string {
	t.Helper()
	for seen := 0; ; {
		b.mu.Lock()
		for ; seen < len(b.lines); seen++ {
			if holdsAll(b.lines[seen], parts) {
				defer b.mu.Unlock()
				return b.lines[seen]
			}
		}
		if b.more == nil {
			b.more = make(chan struct{})
		}
		more := b.more
		b.mu.Unlock()
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatalf("the test ended before the log had a line with %q", parts)
		case <-time.After(30 * time.Second):
			t.Fatalf("the log has no line with %q:\n%s", parts, b)
		}
	}
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Join(b.lines, "\n")
}

func holdsAll(line string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(line, part) {
			return false
		}
	}
	return true
}
