package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// The size of the invariants test.
const (
	fireEvents   = 5_000
	fireClaimers = 16
	fireLease    = "1500ms"
)

// lease is one claim as its client saw it. Times are the database's.
type lease struct {
	ID       int64       `json:"id"`
	Attempts int         `json:"attempts"`
	Receipt  string      `json:"receipt"`
	VT       time.Time   `json:"vt"`
	Claimed  []time.Time `json:"claimed"`

	ended *time.Time // when it was given back before its time, at the earliest
}

// history records the responses to all clients.
type history struct {
	mu       sync.Mutex
	leases   map[int64][]*lease
	finished map[int64]map[string]bool // by event, the receipts whose ack succeeded
	all      chan struct{}             // closed when every event was finished
}

func (h *history) claimed(l *lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leases[l.ID] = append(h.leases[l.ID], l)
}

func (h *history) acked(l *lease) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.finished[l.ID] == nil {
		h.finished[l.ID] = make(map[string]bool)
		if len(h.finished) == fireEvents {
			close(h.all)
		}
	}
	h.finished[l.ID][l.Receipt] = true
}

// claimer is a worker that sometimes abandons its events, is late with them, or nacks them.
type claimer struct {
	t       *testing.T
	history *history
	client  *http.Client
	rand    *rand.Rand
	addrs   []string // of the servers
	zombies []*lease // work of earlier lives, whose leases have most likely ended
}

// call sends a request to one server after the other until there is a response.
func (c *claimer) call(ctx context.Context, method, path string, body, out any) int {
	var text []byte
	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			c.t.Error(err)
			return 0
		}
	}
	for ctx.Err() == nil {
		addr := c.addrs[c.rand.IntN(len(c.addrs))]
		req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+path, bytes.NewReader(text))
		if err != nil {
			c.t.Error(err)
			return 0
		}
		res, err := c.client.Do(req)
		if err != nil {
			continue // killed in the middle, or not there: nothing is known, so ask again
		}
		answer, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err != nil || res.StatusCode == http.StatusServiceUnavailable {
			continue
		}
		if out != nil && res.StatusCode < 300 {
			if err := json.Unmarshal(answer, out); err != nil {
				c.t.Errorf("%s %s answered %s", method, path, answer)
			}
		}
		return res.StatusCode
	}
	return 0
}

func (c *claimer) work(ctx context.Context) {
	for ctx.Err() == nil {
		wait, leave := ctx, func() {}
		if c.rand.IntN(20) == 0 { // hangs up in the middle of the claim
			wait, leave = context.WithTimeout(ctx, time.Duration(c.rand.IntN(3000))*time.Microsecond)
		}
		var claim struct{ Events []*lease }
		c.call(wait, http.MethodPost, "/claim", map[string]any{
			"limit": 1 + c.rand.IntN(40), "wait": "300ms", "invisible_for": fireLease, "max_attempts": 1000,
			"order": []string{"fifo", "random"}[c.rand.IntN(2)],
		}, &claim)
		leave()
		for _, l := range claim.Events {
			c.history.claimed(l)
		}
		c.finish(ctx, claim.Events)
	}
}

// finish acks, nacks or abandons a claimed event.
func (c *claimer) finish(ctx context.Context, leases []*lease) {
	var batch []*lease
	for _, l := range leases {
		path := fmt.Sprintf("/events/%d", l.ID)
		switch chance := c.rand.IntN(100); {
		case chance < 4: // dies: never heard of again
		case chance < 8: // is so slow that it comes back in another life
			c.zombies = append(c.zombies, l)
		case chance < 14:
			given := l.Claimed[len(l.Claimed)-1] // not before it was claimed, at least
			l.ended = &given
			c.refusedOr(http.StatusOK, l, c.call(ctx, http.MethodPost, path+"/nack", map[string]any{"receipt": l.Receipt, "error": "no luck"}, nil))
		case chance < 40:
			if c.refusedOr(http.StatusNoContent, l, c.call(ctx, http.MethodDelete, path+"?receipt="+l.Receipt, nil, nil)) {
				c.history.acked(l)
			}
		default:
			batch = append(batch, l)
		}
	}
	if len(c.zombies) > 20 {
		batch, c.zombies = append(batch, c.zombies...), nil
	}
	c.ack(ctx, batch)
}

func (c *claimer) ack(ctx context.Context, batch []*lease) {
	if len(batch) == 0 {
		return
	}
	events := make([]map[string]any, len(batch))
	for i, l := range batch {
		events[i] = map[string]any{"id": l.ID, "receipt": l.Receipt}
	}
	var out struct {
		Results []struct{ Status int }
	}
	if c.call(ctx, http.MethodPost, "/ack", map[string]any{"events": events}, &out) != http.StatusOK {
		return // the test is over
	}
	for i, r := range out.Results {
		if c.refusedOr(http.StatusNoContent, batch[i], r.Status) {
			c.history.acked(batch[i])
		}
	}
}

// refusedOr reports whether a call on a lease succeeded. The only error allowed is that the lease is lost.
func (c *claimer) refusedOr(granted int, l *lease, status int) bool {
	if status != granted && status != http.StatusConflict && status != 0 {
		c.t.Errorf("a call on the lease %s was answered %d", l.Receipt, status)
	}
	return status == granted
}

// With two processes, one of which is killed repeatedly, and sixteen claimers that abandon events, hang up, are late and nack, no event is
// lost, acked twice, or leased twice at a time.
func TestInvariantsHoldUnderKillsAndLateWorkers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	environ := []string{"QUEUED_DATABASE_URL=" + db.ServiceURL, "QUEUED_MAX_ATTEMPTS=1000"}
	servers := []*program{serve(t, nil, environ...), serve(t, nil, environ...)}
	addrs := []string{servers[0].addr, servers[1].addr}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)

	h := &history{leases: make(map[int64][]*lease), finished: make(map[int64]map[string]bool), all: make(chan struct{})}
	post := &claimer{t: t, history: h, client: http.DefaultClient, rand: rand.New(rand.NewPCG(seed, 0)), addrs: addrs[:1]}
	for range fireEvents / 1000 {
		events := make([]map[string]any, 1000)
		for i := range events {
			events[i] = map[string]any{"event": map[string]any{"n": i}}
		}
		if status := post.call(t.Context(), http.MethodPost, "/events/batch", map[string]any{"events": events}, nil); status != http.StatusCreated {
			t.Fatalf("posting was answered %d", status)
		}
	}

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var claimers sync.WaitGroup
	transport := &http.Transport{MaxIdleConnsPerHost: fireClaimers}
	for i := range fireClaimers {
		c := &claimer{
			t: t, history: h, client: &http.Client{Transport: transport, Timeout: 20 * time.Second},
			rand: rand.New(rand.NewPCG(seed, uint64(i+1))), addrs: addrs,
		}
		claimers.Go(func() { c.work(ctx) })
	}
	for range 3 {
		before := h.count()
		until(t, "more events are finished", func() bool { return h.count() > before+500 || h.done() })
		servers[1].signal(syscall.SIGKILL)
		servers[1].wait()
		servers[1] = serve(t, nil, append(environ, "QUEUED_LISTEN="+addrs[1])...)
	}
	for finished := -1; !h.done() && h.count() > finished; { // a busy machine takes its time, but gets on
		finished = h.count()
		select {
		case <-h.all:
		case <-time.After(waitTimeout):
		}
	}
	if !h.done() {
		t.Errorf("only %d of %d events are finished, and no further one was for %v", h.count(), fireEvents, waitTimeout)
	}
	stop()
	claimers.Wait()
	transport.CloseIdleConnections()
	http.DefaultClient.CloseIdleConnections()
	h.judge(t)
	judgeDatabase(t, db.URL)
}

func (h *history) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.finished)
}

func (h *history) done() bool { return h.count() == fireEvents }

// judge checks the recorded responses against the invariants.
func (h *history) judge(t *testing.T) {
	t.Helper()
	retried := 0
	for id, receipts := range h.finished {
		if len(receipts) != 1 {
			t.Errorf("event %d was finished by %d leases: %v", id, len(receipts), receipts)
		}
	}
	for id, leases := range h.leases {
		slices.SortFunc(leases, func(a, b *lease) int { return a.Attempts - b.Attempts })
		for i, l := range leases[1:] {
			retried++
			before := leases[i]
			end := before.VT
			if before.ended != nil {
				end = *before.ended
			}
			if begin := l.Claimed[len(l.Claimed)-1]; before.Attempts == l.Attempts || begin.Before(end) {
				t.Errorf("event %d was leased as %s from %v although %s lasted until %v", id, l.Receipt, begin, before.Receipt, end)
			}
		}
	}
	if retried == 0 {
		t.Error("no event was ever claimed again: nothing was put to the test")
	}
	t.Logf("%d events, %d further claims of the same event", len(h.leases), retried)
}

// judgeDatabase checks the database against the invariants.
func judgeDatabase(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var waiting, done, ids int
	err = conn.QueryRow(t.Context(), `
		select (select count(*) from agent.event)
		, (select count(*) from agent.event_hist where outcome = 'done')
		, (select count(distinct id) from agent.event_hist)`).Scan(&waiting, &done, &ids)
	if err != nil {
		t.Fatal(err)
	}
	if waiting != 0 || done != fireEvents || ids != fireEvents {
		t.Errorf("%d events wait, history has %d done and %d ids; want 0, %d, %d", waiting, done, ids, fireEvents, fireEvents)
	}
}
