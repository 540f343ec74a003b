package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// In each round keyClients insert under one key at once, and a process is killed every roundsToKill rounds.
const (
	keyRounds    = 200
	keyClients   = 20
	roundsToKill = 20
)

// poster inserts events and repeats each request until there is a response.
type poster struct {
	t      *testing.T
	client *http.Client
	addrs  []string // of the servers
	broken atomic.Int64
}

// post returns the status and the body of the first response to an insert under key.
func (p *poster) post(key, event string) (int, string) {
	for at := rand.IntN(len(p.addrs)); p.t.Context().Err() == nil; at = (at + 1) % len(p.addrs) {
		req, err := http.NewRequestWithContext(p.t.Context(), http.MethodPost, "http://"+p.addrs[at]+"/events?queue=orders", strings.NewReader(event))
		if err != nil {
			p.t.Error(err)
			return 0, ""
		}
		req.Header.Set("Idempotency-Key", key)
		res, err := p.client.Do(req)
		if err != nil { // killed in the middle, or not there: nothing is known, so ask again
			p.broken.Add(1)
			continue
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if err == nil && res.StatusCode != http.StatusServiceUnavailable {
			return res.StatusCode, string(body)
		}
		p.broken.Add(1)
	}
	return 0, ""
}

// round has all clients insert the same event under the same key, and calls among after the first response.
func (p *poster) round(n int, among func()) (statuses map[int]int, bodies map[string]int) {
	statuses, bodies = make(map[int]int), make(map[string]int)
	var mu sync.Mutex
	var clients sync.WaitGroup
	first := make(chan struct{}, keyClients)
	for range keyClients {
		clients.Go(func() {
			status, body := p.post(fmt.Sprintf(`"order-%d"`, n), fmt.Sprintf(`{"order":%d}`, n))
			first <- struct{}{}
			mu.Lock()
			defer mu.Unlock()
			statuses[status]++
			bodies[body]++
		})
	}
	<-first
	among()
	clients.Wait()
	return statuses, bodies
}

// Twenty clients insert under one key at once, 200 times, through two processes, one of which is killed repeatedly: each key inserts one
// event, and all responses are the same.
func TestConcurrentInsertsUnderOneKeyInsertOneEventThroughSIGKILL(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	environ := []string{"QUEUED_DATABASE_URL=" + db.ServiceURL}
	servers := []*program{serve(t, nil, environ...), serve(t, nil, environ...)}
	transport := &http.Transport{MaxIdleConnsPerHost: keyClients}
	defer transport.CloseIdleConnections()
	p := &poster{t: t, client: &http.Client{Transport: transport, Timeout: waitTimeout}, addrs: []string{servers[0].addr, servers[1].addr}}
	for n := range keyRounds {
		killed := n%roundsToKill == roundsToKill/2
		statuses, bodies := p.round(n, func() {
			if killed {
				servers[1].signal(syscall.SIGKILL)
				servers[1].wait()
				servers[1] = serve(t, nil, append(environ, "QUEUED_LISTEN="+p.addrs[1])...)
			}
		})
		made := statuses[http.StatusCreated]
		if made+statuses[http.StatusOK] != keyClients || made > 1 || made == 0 && !killed { // who made it may have died before saying so
			t.Errorf("round %d: the answers were %v", n, statuses)
		}
		if len(bodies) != 1 {
			t.Errorf("round %d: clients were told %v", n, bodies)
		}
	}
	if p.broken.Load() == 0 {
		t.Error("no call was broken: nothing was put to the test")
	}
	t.Logf("%d calls were broken", p.broken.Load())

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, db.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var events, orders int
	if err := conn.QueryRow(ctx, `select count(*), count(distinct event ->> 'order') from agent.event`).Scan(&events, &orders); err != nil {
		t.Fatal(err)
	}
	if events != keyRounds || orders != keyRounds {
		t.Errorf("there are %d events of %d orders, want %d of each", events, orders, keyRounds)
	}
}
