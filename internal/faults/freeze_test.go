//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// workerAddr is an environment variable with the address of a queued. With it, the test binary runs as a worker.
const workerAddr = "QUEUED_FAULTS_WORKER"

// workerLine is a line of a worker's output: a claimed event, an acked one, or an unexpected status.
type workerLine struct {
	Claimed *lease `json:"claimed,omitempty"`
	Acked   *lease `json:"acked,omitempty"`
	Status  int    `json:"status,omitempty"` // unexpected
}

// runWorker claims and acks until its parent ends, and prints a line for each.
func runWorker(addr string) {
	client := &http.Client{Timeout: answerLimit}
	out := json.NewEncoder(os.Stdout)
	call := func(method, path, body string, answer any) int {
		req, err := http.NewRequestWithContext(context.Background(), method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			return 0
		}
		req.Header.Set("Content-Type", "application/json")
		if body == "" {
			req.Body = http.NoBody
		}
		res, err := client.Do(req)
		if err != nil {
			return 0
		}
		defer func() { _ = res.Body.Close() }()
		if answer != nil && res.StatusCode == http.StatusOK && json.NewDecoder(res.Body).Decode(answer) != nil {
			return 0
		}
		return res.StatusCode
	}
	for {
		var claim struct{ Events []*lease }
		status := call(http.MethodPost, "/claim", `{"limit":20,"wait":"200ms","invisible_for":"`+leaseTime.String()+`","max_attempts":100000}`, &claim)
		if status != http.StatusOK {
			pause(50 * time.Millisecond)
		}
		for _, l := range claim.Events {
			_ = out.Encode(workerLine{Claimed: l})
		}
		for _, l := range claim.Events {
			pause(20 * time.Millisecond) // its work
			switch status := call(http.MethodDelete, fmt.Sprintf("/events/%d?receipt=%s", l.ID, l.Receipt), "", nil); status {
			case http.StatusNoContent:
				_ = out.Encode(workerLine{Acked: l})
			case 0, http.StatusConflict, http.StatusServiceUnavailable:
			default:
				_ = out.Encode(workerLine{Status: status})
			}
		}
	}
}

// startWorker runs a worker in its own process and records its output in the ledger. It ends with the test.
func startWorker(t *testing.T, l *ledger, q *queued) *process {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), program)
	cmd.Env = append(os.Environ(), workerAddr+"="+q.addr)
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = writer
	worker, err := startProcess(cmd)
	_ = writer.Close()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewScanner(reader)
		for lines.Scan() {
			var line workerLine
			switch {
			case json.Unmarshal(lines.Bytes(), &line) != nil: // truncated, because the worker was killed
			case line.Claimed != nil:
				l.claimed([]*lease{line.Claimed})
			case line.Acked != nil:
				l.ackSucceeded(line.Acked)
			default:
				l.violated("a worker's ack returned %d", line.Status)
			}
		}
	}()
	t.Cleanup(func() {
		if err := worker.kill(); err != nil {
			t.Error(err)
		}
		<-read
		_ = reader.Close()
	})
	return worker
}

// freeze stops a worker and a queued for longer than a lease, and resumes them.
func freeze(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, server.URL())}
	b.breakDatabase(t, server)
	frozen := []*process{startWorker(t, l, servers[0]), startWorker(t, l, servers[1])}
	d := startLoad(t, l, servers...)
	for i := range rounds {
		d.awaitInserts(20)
		stopped := []*process{frozen[i%2]}
		if i%2 == 1 {
			stopped = append(stopped, servers[0].process)
		}
		for _, p := range stopped {
			if err := p.signalTree(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
		pause(3 * time.Second) // leases end
		for _, p := range stopped {
			if err := p.signalTree(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.awaitInserts(20)
	for _, worker := range frozen { // others claim their events again
		if err := worker.kill(); err != nil {
			t.Fatal(err)
		}
	}
	d.finish(server.AdminURL())
}

func TestNothingIsDoneTwiceByFrozenWorkersAndProcesses(t *testing.T) {
	t.Parallel()
	runScenario(t, freeze, 2, 20)
}

func TestBrokenBuildWithUnfencedAckIsCaughtByFrozenWorkers(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, freeze, ackUnfenced, 4)
}
