package push

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// busyTimeout bounds what tests wait for: on a busy machine it takes longer than users would wait.
const busyTimeout = time.Minute

// A process is a queue service and a push service, as one queued has them.
type process struct {
	t *testing.T
	*Service
	queue *queue.Service
	stop  func() // ends Run and closes both; may be repeated
}

const sealingKey = "a key of more than sixteen bytes"

// start starts a process on a database.
func start(t *testing.T, db *pgtest.DB, configure ...func(*Config)) *process {
	t.Helper()
	connections, err := pg.Open(t.Context(), pg.Config{URL: db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), queue.Config{Database: connections, SweepInterval: -1, MaxConns: 7, QueryTimeout: busyTimeout, LockTimeout: busyTimeout})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := egress.NewGuard([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.NewSealer(sealingKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{
		Database: connections, Queue: q, Guard: guard, Sealer: sealer, Sender: egress.NewSender(egress.SenderConfig{Guard: guard, Version: "test"}),
		QueryTimeout: busyTimeout, BreakerPause: 10 * time.Millisecond, HoldPause: time.Millisecond, MaxPause: 20 * time.Millisecond, LeaseMargin: busyTimeout,
	}
	for _, set := range configure {
		set(&cfg)
	}
	s, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { _ = q.Run(ctx) })
	running.Go(func() { _ = s.Run(ctx) })
	p := &process{t: t, Service: s, queue: q}
	p.stop = sync.OnceFunc(func() {
		s.Drain()
		cancel()
		running.Wait()
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := q.Close(context.Background()); err != nil {
			t.Error(err)
		}
		cfg.Sender.Close()
	})
	t.Cleanup(p.stop)
	return p
}

// put sets a push to a receiver.
func (p *process) put(name string, r *receivingServer, change ...func(*PutParams)) (secret string) {
	p.t.Helper()
	params := PutParams{Queue: name, URL: r.URL, Format: Standard, Timeout: busyTimeout, MaxInFlight: 10, DisableAfter: 120 * time.Hour}
	for _, c := range change {
		c(&params)
	}
	_, secret, err := p.Put(p.t.Context(), params)
	if err != nil {
		p.t.Fatal(err)
	}
	r.trust(secret)
	return secret
}

// insert inserts events and returns their ids.
func (p *process) insert(events ...queue.InsertParams) []int64 {
	p.t.Helper()
	inserted, err := p.queue.Insert(p.t.Context(), events)
	if err != nil {
		p.t.Fatal(err)
	}
	ids := make([]int64, len(inserted))
	for i := range inserted {
		ids[i] = inserted[i].ID
	}
	return ids
}

// numbered returns n events of a queue.
func numbered(name string, n int) []queue.InsertParams {
	events := make([]queue.InsertParams, n)
	for i := range events {
		events[i] = queue.InsertParams{Queue: name, Event: json.RawMessage(fmt.Sprintf(`{"n":%d}`, i))}
	}
	return events
}

// event returns an event.
func (p *process) event(id int64) queue.Event {
	p.t.Helper()
	var e queue.Event
	until(p.t, fmt.Sprintf("event %d is read", id), func() (isRead bool) {
		var err error
		if e, err = p.queue.Get(p.t.Context(), id); err != nil && !errors.Is(err, queue.ErrLocked) { // by who makes a chunk of history
			p.t.Fatal(err)
		}
		return err == nil
	})
	return e
}

// until waits until something is so: it asks again and again.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), busyTimeout)
	defer cancel()
	for !is() {
		if !pg.Pause(ctx, 5*time.Millisecond) {
			t.Fatalf("not within %s: %s", busyTimeout, what)
		}
	}
}

// outcome waits until events have left their queue, and returns them.
func (p *process) outcome(want queue.Outcome, ids ...int64) []queue.Event {
	p.t.Helper()
	events := make([]queue.Event, len(ids))
	for i, id := range ids {
		until(p.t, fmt.Sprintf("event %d is %s", id, want), func() bool {
			events[i] = p.event(id)
			return events[i].Outcome != ""
		})
		if events[i].Outcome != want {
			last := ""
			if events[i].LastError != nil {
				last = *events[i].LastError
			}
			p.t.Fatalf("event %d is %s, want %s: %s", id, events[i].Outcome, want, last)
		}
	}
	return events
}

// status waits until the push of the queue mail has a status, and returns it.
func (p *process) status(want Status) (push Push) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("the push is %s", want), func() bool {
		var err error
		if push, err = p.Get(p.t.Context(), "mail"); err != nil {
			p.t.Fatal(err)
		}
		return push.Status == want
	})
	return push
}

// A call is a request that a receiver has got.
type call struct {
	id     string
	header http.Header
	body   []byte
	n      int // of the payload's member n
}

// A receivingServer is an endpoint. It verifies every signature.
type receivingServer struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	secrets []string
	calls   []call
	active  map[string]int
	answer  func(w http.ResponseWriter, c call)
	arrived chan call // if not nil: each call, when it begins
}

// receive starts a receiver. A nil answer is 204.
func receive(t *testing.T, answer func(w http.ResponseWriter, c call)) *receivingServer {
	t.Helper()
	r := &receivingServer{t: t, answer: answer, active: make(map[string]int)}
	r.Server = httptest.NewServer(r)
	t.Cleanup(r.Close)
	return r
}

// status answers all with a status.
func status(code int) func(http.ResponseWriter, call) {
	return func(w http.ResponseWriter, _ call) { w.WriteHeader(code) }
}

func (r *receivingServer) trust(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if secret != "" {
		r.secrets = append(r.secrets, secret)
	}
}

// takeAll has the receiver take whatever comes.
func (r *receivingServer) takeAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = nil
}

// ServeHTTP implements http.Handler.
func (r *receivingServer) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return // the sender has given up
	}
	c := call{id: req.Header.Get("Webhook-Id"), header: req.Header, body: body, n: -1}
	var content struct {
		N    *int
		Data struct{ N *int }
	}
	if json.Unmarshal(body, &content) == nil {
		if content.N != nil {
			c.n = *content.N
		} else if content.Data.N != nil {
			c.n = *content.Data.N
		}
	}
	r.mu.Lock()
	if !slices.ContainsFunc(r.secrets, func(s string) bool { return verifies(req.Header, body, s) }) {
		r.t.Errorf("the signature of %s is that of no secret", c.id)
	}
	if r.active[c.id]++; r.active[c.id] > 1 {
		r.t.Errorf("%s is delivered twice at a time", c.id)
	}
	r.calls = append(r.calls, c)
	answer, arrived := r.answer, r.arrived
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.active[c.id]--
		r.mu.Unlock()
	}()
	if arrived != nil {
		arrived <- c
	}
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, c)
}

// verifies checks a signature as the specification says, by code that is not the product's.
func verifies(header http.Header, body []byte, secret string) bool {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return false
	}
	mac := hmac.New(sha256.New, key)
	_, _ = fmt.Fprintf(mac, "%s.%s.%s", header.Get("webhook-id"), header.Get("webhook-timestamp"), body)
	return slices.Contains(strings.Fields(header.Get("webhook-signature")), "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// seen returns the calls so far.
func (r *receivingServer) seen() []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.calls)
}

// run runs a statement as the owner of the schema.
func run(t *testing.T, db *pgtest.DB, statement string) {
	t.Helper()
	if _, err := pgtest.Connect(t, db.URL).Exec(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// atOnce has the queue mail try again at once.
func (p *process) atOnce(attempts int) {
	p.t.Helper()
	if _, err := p.queue.PutPolicy(p.t.Context(), queue.Policy{Queue: "mail", MaxAttempts: &attempts, Backoff: &queue.Backoff{Kind: queue.Constant}}, queue.Precondition{}); err != nil {
		p.t.Fatal(err)
	}
}
