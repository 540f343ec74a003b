//go:build unix

package faults

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// noHeaderTimeout is the broken build of this file.
var noHeaderTimeout = build{name: "no limit on how long a request's header may take", edits: []edit{
	{"internal/http/server.go", "ReadHeaderTimeout: 10 * time.Second,", "ReadHeaderTimeout: time.Hour,"},
	{"internal/http/server.go", "ReadTimeout:       bodyTime,", "ReadTimeout:       time.Hour,"},
}}

// slowloris opens connections that send their headers byte by byte. Other connections must be served meanwhile, and the slow ones
// must be closed.
func slowloris(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	if _, err := exec.LookPath("slowhttptest"); err != nil {
		t.Fatal("this test needs slowhttptest (for example `apt-get install slowhttptest`)")
	}
	connections := rounds // a round is a connection
	server := Start(t, Config{})
	q := startQueued(t, b, server.URL())
	d := startLoad(t, l, q)
	d.awaitInserts(20)
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	const lasts = "15" // seconds: longer than the header timeout
	attack := exec.CommandContext(ctx, "slowhttptest", "-H", "-c", strconv.Itoa(connections), "-r", strconv.Itoa(max(50, connections/4)), "-i", "2", "-l", lasts, "-x", "10",
		"-v", "0", "-u", "http://"+q.addr+"/events")
	attack.SysProcAttr = &syscall.SysProcAttr{}
	var out bytes.Buffer
	attack.Stdout, attack.Stderr = &out, &out
	attacker, err := startProcess(attack)
	if err != nil {
		t.Fatal(err)
	}
	// One slow connection of the test itself, because slowhttptest does not report when its connections are closed.
	closed := make(chan time.Duration, 1)
	go func() {
		began := time.Now()
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", q.addr)
		if err != nil {
			closed <- 0
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte("POST /events HTTP/1.1\r\nHost: x\r\nX-Slow: "))
		_ = conn.SetReadDeadline(began.Add(30 * time.Second))
		_, _ = bytes.NewBuffer(nil).ReadFrom(conn)
		closed <- time.Since(began)
	}()
	probes, failed := 0, 0
	var slowest time.Duration
	for attacker.running() {
		began := time.Now()
		status, _, err := q.get("/readyz", 10*time.Second)
		slowest = max(slowest, time.Since(began))
		if probes++; err != nil || status != http.StatusOK {
			failed++
		}
		pause(100 * time.Millisecond)
	}
	if failed > 0 {
		l.violated("/readyz failed %d of %d times during slow connections", failed, probes)
	}
	took := <-closed
	if took > 25*time.Second {
		l.violated("a connection without the end of its header was still open after %v", took)
	}
	t.Logf("%d slow connections: %d calls of /readyz, the slowest in %v; a slow connection was closed after %v", connections, probes, slowest, took)
	d.finish(server.AdminURL())
}

func TestSlowConnectionsAreClosedAndDoNotDelayOthers(t *testing.T) {
	t.Parallel()
	runScenario(t, slowloris, 200, 1000)
}

func TestBrokenBuildWithoutHeaderTimeoutIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, slowloris, noHeaderTimeout, 50)
}
