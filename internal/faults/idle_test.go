//go:build linux

package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// idleTime is how long the processor time of an idle service is measured.
	idleTime = 20 * time.Second
	// idleShare is the most that the service and its PostgreSQL may take then, together, of one processor: 0.6 to 1.1 % were measured on two
	// processors, as much after a fault as without one. In the short form, which other tests disturb, it is busyShare. A loop that does not wait
	// takes more than a whole processor.
	idleShare = 0.02
	busyShare = 0.15
	// settleTime is how long the service has after a fault until it is idle: reconnects, retries and the watches of the last readers are over then.
	settleTime = 12 * time.Second
	// clockTick is the unit of times in /proc: sysconf(_SC_CLK_TCK), which is 100 on all Linux systems.
	clockTick = 10 * time.Millisecond
)

// An idleService is a service with a follower of each kind, a push to an endpoint that fails, and a paused queue with limits. Nothing is inserted or published.
type idleService struct {
	t      *testing.T
	q      *queued
	pair   *Pair
	events sync.Map // of the followers: how many bytes each has got
}

func startIdle(t *testing.T) *idleService {
	t.Helper()
	s := &idleService{t: t, pair: StartPair(t, Asynchronous, Config{})}
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	t.Cleanup(failing.Close)
	s.q = startQueued(t, unmodified, s.pair.URL(), "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_SWEEP_INTERVAL=1m")
	for _, call := range []struct{ method, path, body string }{
		{http.MethodPut, "/queues/pushed/push", fmt.Sprintf(`{"url":%q}`, failing.URL)},
		{http.MethodPost, "/events?queue=pushed", `{}`},
		{http.MethodPut, "/queues/paused", `{"flow":{"concurrency":1}}`},
		{http.MethodPost, "/events?queue=paused&group=a", `{}`},
		{http.MethodPost, "/events?queue=paused&group=a", `{}`},
		{http.MethodPost, "/queues/paused/pause", ``},
		{http.MethodPost, "/events?queue=later&delay=10h", `{}`},
		{http.MethodPost, "/topics/a?delay=10h", `{}`},
		{http.MethodPost, "/schedules", `{"queue":"fired","event":{},"rrule":"FREQ=YEARLY","at":"2060-01-01T00:00:00","timezone":"UTC"}`},
		{http.MethodPut, "/subscriptions/read", `{"filters":[{"topics":["a"]}]}`},
		{http.MethodPut, "/subscriptions/delivered", `{"filters":[{"topics":["a"]}],"deliver":{"queue":"delivered"}}`},
		{http.MethodPut, "/subscriptions/expired", `{"filters":[{"topics":["a"]}],"expires_after":"10s"}`},
	} {
		s.q.mustAsk(call.method, call.path, call.body)
	}
	for range 3 {
		s.q.mustAsk(http.MethodPost, "/topics/a", `{}`)
	}
	return s
}

// follow has a follower of each kind wait until the test ends. Those whose request has ended make it again.
func (s *idleService) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	var following sync.WaitGroup
	s.t.Cleanup(func() { cancel(); following.Wait() })
	for _, call := range []struct{ method, path, body string }{
		{http.MethodGet, "/stream", ``},
		{http.MethodGet, "/stream?topic=nothing", ``},
		{http.MethodGet, "/subscriptions/read/stream", ``},
		{http.MethodGet, "/log?wait=60s&after=latest", ``},
		{http.MethodPost, "/subscriptions/read/read", `{"wait":"60s"}`},
		{http.MethodPost, "/subscriptions/expired/read", `{"wait":"60s"}`},
		{http.MethodPost, "/claim", `{"queue":"empty","wait":"60s"}`},
		{http.MethodPost, "/claim", `{"queue":"later","wait":"60s"}`},
		{http.MethodPost, "/claim", `{"queue":"paused","wait":"60s"}`},
		{http.MethodGet, "/events/1?wait=60s", ``},
	} {
		following.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, call.method, "http://"+s.q.addr+call.path, strings.NewReader(call.body))
				if err != nil {
					s.t.Error(err)
					return
				}
				req.Header.Set("Content-Type", "application/json")
				status := 0
				if res, err := http.DefaultClient.Do(req); err == nil {
					status = res.StatusCode
					_, _ = io.Copy(&counted{s, call.method + " " + call.path}, res.Body)
					_ = res.Body.Close()
				}
				if ctx.Err() == nil && status == http.StatusBadRequest {
					s.t.Errorf("%s %s: status %d", call.method, call.path, status)
					return
				}
				select {
				case <-ctx.Done():
				case <-time.After(5 * time.Second): // as clients that retry do
				}
			}
		})
	}
}

// counted notes that a follower has got something.
type counted struct {
	s    *idleService
	name string
}

// Write implements io.Writer.
func (c *counted) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("beacon")) {
		c.s.events.Store(c.name, true)
	}
	return len(b), nil
}

// awaitFollowers waits until each follower of the topic a has got a publication.
func (s *idleService) awaitFollowers() {
	s.t.Helper()
	s.events.Clear()
	want := []string{"GET /stream", "GET /subscriptions/read/stream", "GET /log?wait=60s&after=latest", "POST /subscriptions/read/read"}
	for began := time.Now(); ; pause(time.Second) {
		s.q.mustAsk(http.MethodPost, "/topics/a", `{"beacon":true}`)
		var missing []string
		for _, name := range want {
			if _, ok := s.events.Load(name); !ok {
				missing = append(missing, name)
			}
		}
		if len(missing) == 0 {
			return
		}
		if time.Since(began) > startLimit {
			s.t.Fatalf("these followers got nothing: %q", missing)
		}
	}
}

// processorTimes returns what a process and its children have taken so far, by their titles. That of the process includes children that have
// ended and were waited for.
func processorTimes(t *testing.T, root int) map[string]time.Duration {
	t.Helper()
	times := map[string]time.Duration{}
	for _, pid := range tree(root) {
		text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue // it has ended meanwhile; its parent has its time
		}
		title, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		name, _, _ := strings.Cut(string(title), "\x00")
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		for _, field := range fields[11:15] { // utime, stime, cutime and cstime of proc_pid_stat(5)
			ticks, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			times[fmt.Sprintf("%s (%d)", name, pid)] += time.Duration(ticks) * clockTick
		}
	}
	return times
}

// requireIdle fails the test if the service takes more than an idle one may.
func (s *idleService) requireIdle(when string) {
	s.t.Helper()
	s.awaitFollowers()
	pause(settleTime)
	service, database := s.q.process.cmd.Process.Pid, s.pair.Primary.process.cmd.Process.Pid
	began, before := time.Now(), processorTimes(s.t, service)
	maps.Copy(before, processorTimes(s.t, database))
	pause(idleTime)
	after := processorTimes(s.t, service)
	maps.Copy(after, processorTimes(s.t, database))
	took, total := time.Since(began), time.Duration(0)
	var parts []string
	for name, all := range after {
		if part := all - before[name]; part > 0 {
			total += part
			parts = append(parts, fmt.Sprintf("%v %s", part, name))
		}
	}
	slices.Sort(parts)
	share := total.Seconds() / took.Seconds()
	s.t.Logf("idle %s: %.1f %% of a processor, in %v: %s", when, 100*share, took.Round(time.Millisecond), strings.Join(parts, ", "))
	most := idleShare
	if form() == shortForm {
		most = busyShare
	}
	if share > most {
		s.t.Errorf("idle %s the service and PostgreSQL take %.1f %% of a processor, want at most %.0f %%", when, 100*share, 100*most)
	}
	for line := range strings.Lines(s.q.metrics()) {
		if strings.HasPrefix(line, "queued_loop_held_up_rounds_total{") && !strings.HasSuffix(strings.TrimSpace(line), " 0") {
			s.t.Errorf("idle %s a loop was held up: %s", when, line)
		}
	}
}

// The faults after which the service has to be idle again.
var idleAfter = []struct {
	name    string
	inShort bool
	fault   func(s *idleService)
}{
	{"nothing", false, func(*idleService) {}},
	{"a restart of PostgreSQL", true, func(s *idleService) { s.pair.Primary.Stop(); s.pair.Primary.Start() }},
	{"a crash of PostgreSQL", false, func(s *idleService) { s.pair.Primary.Kill(); s.pair.Primary.Start() }},
	{"a failover", false, func(s *idleService) { s.pair.Primary.Kill(); s.pair.Failover() }},
	{"a restart of queued", false, func(s *idleService) { s.q.kill(); s.q.start(); s.q.awaitReady(startLimit) }},
	{"a restore", false, func(s *idleService) { dumpToSameDatabase(s.t, s.pair.Primary)() }},
	{"a gap by retention", false, func(s *idleService) {
		s.pair.Primary.closeSegments(2)
		s.pair.Primary.Exec(ordinary, `select agent_service.drop_log_segment()`)
	}},
	{"the end of a subscription", false, func(s *idleService) { s.q.mustAsk(http.MethodDelete, "/subscriptions/expired", ``) }},
	{"a stop of the server for a while", false, func(s *idleService) { s.pair.Primary.Freeze(); pause(8 * time.Second); s.pair.Primary.Unfreeze() }},
}

// TestIdleServiceTakesNoProcessor measures idling after each fault, as a loop may be idle on a fresh database and not wait after it.
func TestIdleServiceTakesNoProcessor(t *testing.T) {
	t.Parallel()
	for _, after := range idleAfter {
		t.Run(after.name, func(t *testing.T) {
			t.Parallel()
			if !after.inShort {
				inLongForm(t)
			}
			s := startIdle(t)
			s.follow()
			s.awaitFollowers()
			after.fault(s)
			s.requireIdle("after " + after.name)
		})
	}
}
