package http

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
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
// response against the contract. Behind a gateway in front of several cells it is home, and the client calls the gateway.
type environment struct {
	*client
	db     *pgtest.DB
	svc    *queue.Service
	others []*environment // the other cells, by their numbers; they have no client of their own

	database  *pg.Database
	schedules *schedule.Service
	topics    *topic.Service
	access    *access.Service
	pushes    *push.Service
	sources   *webhook.Service
	cells     *cell.Service
	srv       *Server
	cfg       Config // of srv
	sharedKey string // the key that is stored nowhere, if there is one

	forGateway *access.Service // of the server that the gateway of several cells calls; nil: it calls srv
	log        *logBuffer
	raw        *http.Transport // what the client sends with, without the contract
}

// settings configure the server; the zero value is a server without an API key, sweeps and upkeep of the queue.
type settings struct {
	http  func(*Config)
	queue func(*queue.Config)
	plans func(*schedule.Config)
	keys  func(*access.Config)
	push  func(*push.Config)
	cell  func(*cell.Config)
	seen  map[string]bool // records the responses seen, if not nil

	sources func(*webhook.Config)

	beside *environment // has the databases; nil: new ones
	server func(*Server, *http.Server)
	http2  bool // over TLS; false: HTTP/1.1 without TLS
}

// busyTimeout bounds calls of tests: on a busy machine they take longer than users would wait.
const busyTimeout = time.Minute

// setup starts a server without an API key, sweeps and upkeep of the queue.
func setup(t *testing.T) *environment {
	t.Helper()
	return setupWith(t, settings{})
}

// setupWith starts a server with these settings.
func setupWith(t *testing.T, set settings) *environment {
	t.Helper()
	log := new(logBuffer)
	h, home := startCell(t, set, 0, log)
	base, transport := home.URL, new(http.Transport)
	if set.http2 {
		transport = home.Client().Transport.(*http.Transport)
	}
	own := []string{base}
	if n := gatewaytest.Cells(t); n > 0 {
		for number := 1; number < n; number++ {
			other, listener := startCell(t, set, number, log)
			h.others, own = append(h.others, other), append(own, listener.URL)
		}
		cfg := h.cfg
		front := gatewaytest.Start(t, gateway.Config{
			Key: h.keyOfGateway(), TLS: transport.TLSClientConfig, Version: cfg.Version, Logger: cfg.Logger, LogAll: cfg.LogAll,
			VerifyClient: cfg.VerifyClient, LoopbackOnly: cfg.LoopbackOnly, Hosts: cfg.Hosts,
		}, set.http2, own...)
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
		own:  own,
		http: &http.Client{Transport: newConform(t, transport, set.seen), CheckRedirect: noRedirect},
	}
	return h
}

// startCell starts a server, of the cell of this number unless set says otherwise.
func startCell(t *testing.T, set settings, number int, log *logBuffer) (*environment, *httptest.Server) {
	t.Helper()
	h := &environment{log: log, client: &client{t: t}}
	if set.beside != nil {
		h.db = set.beside.all()[number].db
	} else {
		h.db = pgtest.New(t)
	}
	db, err := pg.Open(t.Context(), pg.Config{URL: h.db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	h.database = db
	ccfg := cell.Config{Database: db, Number: number, QueryTimeout: busyTimeout}
	if set.cell != nil && number == 0 {
		set.cell(&ccfg)
	}
	if h.cells, err = cell.Open(t.Context(), ccfg); err != nil {
		t.Fatal(err)
	}
	keepRunning(t, h.cells.Run, h.cells.Close)
	qcfg := queue.Config{Database: db, SweepInterval: -1, UpkeepInterval: -1, MaxConns: 4, QueryTimeout: busyTimeout}
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
	h.cfg, h.sharedKey = cfg, acfg.Key
	h.srv = New(cfg)
	listener := httptest.NewUnstartedServer(nil)
	listener.Config = h.srv.HTTPServer()
	h.admitGateway(listener.Config)
	if set.server != nil {
		set.server(h.srv, listener.Config)
	}
	if set.http2 {
		listener.EnableHTTP2 = true
		listener.StartTLS()
	} else {
		listener.Start()
	}
	t.Cleanup(listener.Close)
	return h, listener
}

// admitGateway has the server of one of several cells take gatewaytest.Key, too, unless it has a key that gateways can have. Tests begin with servers that anyone may
// call, and then make a first key, after which a gateway without one is refused.
func (h *environment) admitGateway(server *http.Server) {
	h.t.Helper()
	if gatewaytest.Cells(h.t) < 2 || h.sharedKey != "" {
		return
	}
	keys, err := access.Open(h.t.Context(), access.Config{Database: h.database, QueryTimeout: busyTimeout, Key: gatewaytest.Key})
	if err != nil {
		h.t.Fatal(err)
	}
	keepRunning(h.t, keys.Run, keys.Close)
	h.forGateway = keys
	cfg := h.cfg
	cfg.Access = keys
	server.Handler = gatewaytest.Admit(server.Handler, New(cfg).Handler(), h.access)
	if h.cells.Number() == 0 {
		server.Handler = gatewaytest.Spread(server.Handler, h.cells)
	}
}

// keyOfGateway returns an admin key for a gateway: that which is stored nowhere, unless there is none and the database of a single cell has keys already.
func (h *environment) keyOfGateway() string {
	h.t.Helper()
	if h.sharedKey != "" {
		return h.sharedKey
	}
	if gatewaytest.Cells(h.t) > 1 {
		return gatewaytest.Key
	}
	page, err := h.access.List(h.t.Context(), 1, "")
	if err != nil {
		h.t.Fatal(err)
	}
	if len(page.Keys) == 0 {
		return ""
	}
	_, text, err := h.access.Create(h.t.Context(), access.CreateParams{Name: "gateway", Scopes: []access.Scope{access.Admin}})
	if err != nil {
		h.t.Fatal(err)
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

// all returns every cell, by their numbers: this one, and those behind the same gateway.
func (h *environment) all() []*environment { return append([]*environment{h}, h.others...) }

// atHome returns the environment without the other cells, for statements about what is at home alone, or that make something, and for what home says of itself.
func (h *environment) atHome() *environment { return h.cell(0) }

// cell returns one of the cells, with a client that calls the gateway.
func (h *environment) cell(number int) *environment {
	alone := *h.all()[number]
	alone.others = nil
	c := *h.client
	c.own = c.own[number : number+1]
	alone.client = &c
	return &alone
}

// cellOf returns the cell that a queue is on, for statements about it. A queue that is placed nowhere is placed.
func (h *environment) cellOf(queue string) *environment {
	h.t.Helper()
	if len(h.others) == 0 {
		return h
	}
	placed, err := h.cells.Placement(h.t.Context(), queue)
	if errors.Is(err, cell.ErrNotPlaced) {
		h.placeOn(1, queue)
		return h.cell(1)
	}
	if err != nil {
		h.t.Fatalf("the queue %s: %v", queue, err)
	}
	if placed.Cells == nil { // all
		return h.atHome()
	}
	return h.cell(placed.Cells[0])
}

// placeOn places queues on a cell, where there are several: those that events go between have to be on one, as nothing brings events from cell to cell; and at home ids begin
// with 1.
func (h *environment) placeOn(number int, queues ...string) {
	h.t.Helper()
	for _, queue := range queues {
		if len(h.others) == 0 {
			break
		}
		if _, err := h.cells.Place(h.t.Context(), cell.PlaceParams{Queue: queue, Cells: cell.Set{number}, IfAbsent: true}); err != nil {
			h.t.Fatal(err)
		}
	}
}

// drain has every server and its queue drain.
func (h *environment) drain() {
	for _, at := range h.all() {
		at.srv.Drain()
		at.svc.Drain()
	}
}

// sql runs a statement in the test's database; of several cells, in each of them. A task of upkeep that the service is at is done after that.
func (h *environment) sql(statement string, args ...any) {
	h.t.Helper()
	for _, at := range h.all() {
		conn := at.connect()
		h.eventually("nobody else is at it", func() bool {
			_, err := conn.Exec(h.t.Context(), statement, args...)
			if err != nil && !isLocked(err) {
				h.t.Fatalf("%s: %v", statement, err)
			}
			return err == nil
		})
		_ = conn.Close(h.t.Context())
	}
}

// isLocked reports whether a statement has failed because somebody else has a lock that it does not wait for.
func isLocked(err error) bool {
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return ok && refused.Code == "55P03"
}

// count returns the number that a query returns; of several cells, the sum of theirs.
func (h *environment) count(query string, args ...any) (sum int) {
	h.t.Helper()
	for _, at := range h.all() {
		var n int
		conn := at.connect()
		if err := conn.QueryRow(h.t.Context(), query, args...).Scan(&n); err != nil {
			h.t.Fatalf("%s: %v", query, err)
		}
		_ = conn.Close(h.t.Context())
		sum += n
	}
	return sum
}

// connect returns a connection to the test's database; of several cells, to that of home.
func (h *environment) connect() *pgx.Conn {
	h.t.Helper()
	conn, err := pgx.Connect(h.t.Context(), h.db.URL)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(h.t.Context())) })
	return conn
}

// eventually waits until a condition holds that no signal announces, and fails the test after busyTimeout.
func (h *environment) eventually(what string, holds func() bool) {
	h.t.Helper()
	for deadline := time.After(busyTimeout); !holds(); {
		select {
		case <-deadline:
			h.t.Fatalf("timed out waiting until %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// A client calls the server.
type client struct {
	t      *testing.T
	url    string
	own    []string // the URLs of the servers, home first, for what each process says of itself; behind a gateway, which says other things, url is none of them
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
	if isOfProcess(path) && len(c.own) > 0 {
		base = c.own[0]
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

// isOfProcess reports whether each process answers a path for itself.
func isOfProcess(path string) bool { return path == "/metrics" || path == "/readyz" }

// try makes a call that does not have to match the contract. What several processes say of themselves is one after the other in the answer.
func (c *client) try(method, path, body string) answer {
	c.t.Helper()
	got := c.tryOnce(method, path, body)
	if path == "/metrics" && got.status == http.StatusOK && method == http.MethodGet && len(c.own) > 1 {
		for _, url := range c.own[1:] {
			other := *c
			other.own = []string{url}
			got.body += "\n" + other.tryOnce(method, path, body).body
		}
	}
	return got
}

func (c *client) tryOnce(method, path, body string) answer {
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
	Group        string          `json:"group"`

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
	return c.claimOneBy("")
}

// claimOneBy is claimOne with a body.
func (c *client) claimOneBy(body string) seenEvent {
	c.t.Helper()
	events := c.claim(body)
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
	late := time.After(30 * time.Second)
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
		case <-late:
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
