//go:build unix

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// pushTimeout is that of the pushes of this scenario: leases are 15 s longer.
const pushTimeout = 5 * time.Second

// An endpoint is where events are pushed to. It notes how often each came, and which came while it was being worked on.
type endpoint struct {
	mu     sync.Mutex
	came   map[string]int
	active map[string]bool
	twice  []string
}

// ServeHTTP implements http.Handler.
func (e *endpoint) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	id := r.Header.Get("Webhook-Id")
	e.mu.Lock()
	if e.active[id] {
		e.twice = append(e.twice, id)
	}
	e.active[id] = true
	e.came[id]++
	e.mu.Unlock()
	pause(20 * time.Millisecond) // the work
	e.mu.Lock()
	delete(e.active, id)
	e.mu.Unlock()
	w.WriteHeader(http.StatusNoContent)
}

// forget has the time pass, in the database, after which a process that was killed counts as dead and its leases have ended.
func forget(t *testing.T, server *Server, killed *queued) {
	t.Helper()
	n := query[int](t, server.AdminURL(), `
		with dead as (select distinct m.id from agent.process_metric m where m.process like '%:' || $1::text)
		, reports as (update agent.process_metric m set updated_at = m.updated_at - interval '30 seconds' from dead d where m.id = d.id returning 1)
		, leases as (update agent.event e set vt = clock_timestamp() from dead d where e.worker = 'push:' || d.id and e.vt > clock_timestamp() and e.nacked_at is null returning 1)
		select (select count(*) from dead)::int + 0 * ((select count(*) from reports) + (select count(*) from leases))::int`, strconv.Itoa(killed.process.cmd.Process.Pid))
	if n != 1 {
		t.Fatalf("%d processes have reported with the id of the one that was killed", n)
	}
}

// underWay returns which events are being worked on.
func (e *endpoint) underWay() map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.active)
}

func (e *endpoint) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.came)
}

// TestPushesGoOnWhenAProcessIsKilled kills one of two processes while both push. The long form waits until the process counts as dead, which takes 30 s.
func TestPushesGoOnWhenAProcessIsKilled(t *testing.T) {
	t.Parallel()
	const queues, each = 16, 150
	server := Start(t, Config{})
	environ := []string{"QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets"}
	victim, survivor := startQueued(t, unmodified, server.URL(), environ...), startQueued(t, unmodified, server.URL(), environ...)
	e := &endpoint{came: make(map[string]int), active: make(map[string]bool)}
	receiver := httptest.NewServer(e)
	t.Cleanup(receiver.Close)
	for i := range queues {
		survivor.send(http.MethodPut, fmt.Sprintf("/queues/q%d/push", i), fmt.Sprintf(`{"url":%q,"timeout":%q,"max_in_flight":4}`, receiver.URL, pushTimeout))
	}
	owners := func() (n int) {
		return query[int](t, server.AdminURL(), `
			select count(distinct e.worker)::int from agent.event_hist e where e.worker like 'push:%'`)
	}
	insert := func() {
		for i := range queues {
			events := strings.Repeat(fmt.Sprintf(`{"event":{},"queue":"q%d"},`, i), each)
			survivor.send(http.MethodPost, "/events/batch", `{"events":[`+strings.TrimSuffix(events, ",")+`]}`)
		}
	}
	insert()
	await(t, "both push", func() bool { return owners() == 2 })
	insert()
	came := e.count()
	await(t, "they push on", func() bool { return e.count() > came+20 })
	victim.kill()
	killed := time.Now()
	if form() == shortForm {
		before := e.underWay()
		await(t, "what was under way is done", func() bool {
			now := e.underWay()
			maps.DeleteFunc(now, func(id string, _ bool) bool { return !before[id] })
			return len(now) == 0
		})
		forget(t, server, victim)
	}
	await(t, "everything has come", func() bool { return e.count() == 2*queues*each })
	t.Logf("everything had come %s after the kill", time.Since(killed).Round(time.Millisecond))
	await(t, "everything is done", func() bool {
		return query[int](t, server.AdminURL(), `select count(*)::int from agent.event_hist e where e.outcome = 'done'`) == 2*queues*each
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	repeated := 0
	for _, n := range e.came {
		repeated += n - 1
	}
	t.Logf("%d events came again", repeated)
	if len(e.twice) > 0 {
		t.Errorf("%d events were delivered twice at a time: %v", len(e.twice), e.twice)
	}
	if most := queues * 4; repeated > most {
		t.Errorf("%d events came again, of which at most %d were in flight", repeated, most)
	}
}

// await waits until something is so, for the longest time that a kill may cost, on a busy machine.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); pause(100 * time.Millisecond) {
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("not within 3 minutes: %s", what)
		}
	}
}

// send makes a request that must succeed.
func (q *queued) send(method, path, body string) {
	q.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+q.addr+path, strings.NewReader(body))
	if err != nil {
		q.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		q.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, _ := io.ReadAll(res.Body)
	if res.StatusCode >= http.StatusMultipleChoices || !json.Valid(text) {
		q.t.Fatalf("%s %s: HTTP %d %s", method, path, res.StatusCode, text)
	}
}
