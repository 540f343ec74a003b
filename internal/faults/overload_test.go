//go:build unix

package faults

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// unboundedPending is the broken build of this file.
var unboundedPending = build{name: "no limit on calls that wait for the database", edits: []edit{
	{"internal/groupcommit/groupcommit.go", "c.pending+operations > c.cfg.MaxPending || c.pendingBytes+bytes > c.cfg.MaxPendingBytes", "false"},
	{"internal/groupcommit/groupcommit.go", "time.Since(began) > c.cfg.HangThreshold", "time.Since(began) > time.Hour"},
	{"internal/http/server.go", "const DefaultRequestTimeout = 15 * time.Second", "const DefaultRequestTimeout = time.Hour"},
	{"cmd/queued/serve.go", "RequestTimeout: c.RequestTimeout,", "RequestTimeout: time.Hour,"},
}}

const (
	refusalLimit = 20 * time.Second // for a request: 15 s, and 5 s for a busy machine
	memoryLimit  = 400 << 20        // for the process, in bytes: includes bodies that are being read
)

// overload freezes the database and sends more than queued may hold in memory. Every request must get a 503 with Retry-After in time; the
// memory of the process must stay bounded; and it must serve again once the database does. A round is a batch of a megabyte and an insert.
func overload(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	q := startQueued(t, b, server.URL())
	batch := `{"events":[{"event":{"a":"` + strings.Repeat("x", 1<<20-200) + `"}}]}`
	client := http.Client{Transport: &http.Transport{MaxConnsPerHost: 0, DisableKeepAlives: true}, Timeout: refusalLimit}
	server.Freeze()
	var (
		all     sync.WaitGroup
		mu      sync.Mutex
		answers = map[string]int{}
		slowest time.Duration
	)
	send := func(path, body string) {
		began := time.Now()
		res, err := client.Post("http://"+q.addr+path, "application/json", strings.NewReader(body))
		took := time.Since(began)
		mu.Lock()
		defer mu.Unlock()
		slowest = max(slowest, took)
		if err != nil {
			answers["none"]++
			l.violated("a request was not answered within %v: %v", refusalLimit, err)
			return
		}
		text, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		answers[strconv.Itoa(res.StatusCode)]++
		if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
			l.violated("with the database frozen, a request returned %d %s", res.StatusCode, bytes.TrimSpace(text))
		}
	}
	for range rounds {
		all.Go(func() { send("/events/batch", batch) })
		all.Go(func() { send("/events", `{}`) })
	}
	all.Wait()
	peak := memoryPeak(t, q.process.cmd.Process.Pid)
	if peak > memoryLimit {
		l.violated("the process took %d MiB", peak>>20)
	}
	if status, body, err := q.get("/livez", refusalLimit); status != http.StatusOK {
		l.violated("/livez: %d %s %v", status, body, err)
	}
	server.Unfreeze()
	back := q.awaitReady(startLimit)
	t.Logf("%d batches and %d inserts: statuses %v, the slowest after %v; %d MiB at most; ready %v after the database", rounds, rounds, answers, slowest, peak>>20, back)
	d := startLoad(t, l, q)
	d.awaitInserts(20)
	d.finish(server.AdminURL())
}

// memoryPeak returns the peak resident memory of a process, in bytes.
func memoryPeak(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

func TestEveryRequestIsAnsweredWhileDatabaseIsFrozen(t *testing.T) {
	t.Parallel()
	runScenario(t, overload, 100, 400)
}

func TestBrokenBuildWithUnboundedPendingIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, overload, unboundedPending, 300)
}
