//go:build unix

package clienttest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/pgtest"
)

const (
	fireWorkers = 4
	fireBatch   = 100
	fireLimit   = 5 * time.Minute // the long form takes half a minute on two idle cores, and twice as long beside other tests
)

// fireScale returns how many jobs there are, and how often the server is killed meanwhile.
func fireScale() (jobs, kills int) {
	if pgtest.IsNightly() {
		return 10_000, 20
	}
	return 2000, 4
}

// A ledger has what the workers report.
type ledger struct {
	t     *testing.T
	mu    sync.Mutex
	runs  map[int64]int             // by event, how often a handler began
	acked map[int64]map[string]bool // by event, the receipts whose ack was accepted
	lost  int                       // acks that were refused
	more  chan struct{}             // closed when an ack is accepted, and then another
}

// read reads the lines of a worker.
func (l *ledger) read(lines io.Reader) {
	for scanner := bufio.NewScanner(lines); scanner.Scan(); {
		var id int64
		var receipt string
		var n, status int
		line := scanner.Text()
		l.mu.Lock()
		if _, err := fmt.Sscanf(line, "run %d %d", &id, &n); err == nil {
			l.runs[id]++
		} else if _, err := fmt.Sscanf(line, "ack %d %s %d", &id, &receipt, &status); err != nil {
			l.t.Errorf("a worker wrote %q", line)
		} else if status != 204 {
			l.lost++
		} else {
			if l.acked[id] == nil {
				l.acked[id] = make(map[string]bool)
			}
			l.acked[id][receipt] = true
			close(l.more)
			l.more = make(chan struct{})
		}
		l.mu.Unlock()
	}
}

// await waits until so many events are acked, and reports whether they were in time.
func (l *ledger) await(ctx context.Context, want int) bool {
	for {
		l.mu.Lock()
		got, more := len(l.acked), l.more
		l.mu.Unlock()
		if got >= want {
			return true
		}
		select {
		case <-more:
		case <-ctx.Done():
			l.t.Errorf("only %d of %d events are acked", got, want)
			return false
		}
	}
}

// A process is a worker process.
type process struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	ended  chan struct{}
}

// startWorker starts a worker process, until the end of the test.
func startWorker(t *testing.T, url string, l *ledger) *process {
	t.Helper()
	p := &process{cmd: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), workerEnv+"="+url)
	p.cmd.Stderr = &p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		l.read(stdout)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
	})
	return p
}

// freeze stops the process until others have taken over all that it holds. It reports false if it holds nothing.
func (p *process) freeze(ctx context.Context, t *testing.T, conn *pgx.Conn) (held bool) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	defer p.signal(t, syscall.SIGCONT)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		var holds bool
		err := conn.QueryRow(ctx, `select exists (select from agent.event where worker = $1)`, fmt.Sprint(p.cmd.Process.Pid)).Scan(&holds)
		if err != nil || !holds {
			if err != nil && ctx.Err() == nil {
				t.Errorf("looking for leases: %v", err)
			}
			return held
		}
		held = true
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return held
}

func (p *process) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Errorf("sending %s to a worker: %v", sig, err)
	}
}

// While the server is killed again and again and workers are stopped for longer than their leases, events are inserted and worked on: each is
// acked once, and none is lost or stored twice.
func TestEachJobIsAckedOnceUnderKills(t *testing.T) {
	t.Parallel()
	began := time.Now()
	jobs, kills := fireScale()
	s := serve(t, "QUEUED_MAX_ATTEMPTS=1000")
	ctx, cancel := context.WithTimeout(t.Context(), fireLimit)
	defer cancel()
	l := &ledger{t: t, runs: make(map[int64]int), acked: make(map[int64]map[string]bool), more: make(chan struct{})}
	workers := make([]*process, fireWorkers)
	for i := range workers {
		workers[i] = startWorker(t, s.url, l)
	}

	working, done := context.WithCancel(ctx)
	var disturbers sync.WaitGroup
	c := newClient(t, client.Config{URL: s.url, RetryFor: waitTimeout, Timeout: 5 * time.Second})
	disturbers.Go(func() {
		// No large backlog: what a frozen worker held waits behind it.
		for n := 0; n < jobs && l.await(ctx, n-5*fireBatch); n += fireBatch {
			events := make([]client.NewEvent, fireBatch)
			for i := range events {
				events[i] = client.NewEvent{Queue: fireQueue, Type: "fire", Payload: fireJob{n + i}}
			}
			if _, err := c.InsertBatch(ctx, events); err != nil {
				t.Errorf("inserting: %v", err)
				return
			}
		}
	})
	db := s.cellOf(fireQueue).db
	conn := pgtest.Connect(t, db.URL)
	freezes := 0
	disturbers.Go(func() {
		for i := 0; working.Err() == nil; i++ {
			if workers[i%fireWorkers].freeze(working, t, conn) {
				freezes++
			}
			sleep(working, 20*time.Millisecond) // time to work
		}
	})
	for kill := 0; kill < kills && l.await(ctx, (kill+1)*jobs/(kills+1)); kill++ {
		s.kill()
		s.restart()
	}
	l.await(ctx, jobs)
	done()
	disturbers.Wait()

	for i, p := range workers {
		p.signal(t, syscall.SIGTERM)
		select {
		case <-p.ended:
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("worker %d ended with %d: %s", i, code, &p.stderr)
			}
		case <-ctx.Done():
			t.Errorf("worker %d did not stop", i)
		}
	}
	l.judge(t, jobs)
	l.judgeDatabase(t, pgtest.Connect(t, db.URL), jobs) // the other session may have been cut off in a statement
	t.Logf("%v, %d kills, %d freezes, %d acks refused", time.Since(began).Round(time.Millisecond), kills, freezes, l.lost)
}

// judge checks what the workers have reported.
func (l *ledger) judge(t *testing.T, jobs int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	again := 0
	for id, receipts := range l.acked {
		if len(receipts) != 1 {
			t.Errorf("event %d was acked under %d receipts: %v", id, len(receipts), receipts)
		}
		if l.runs[id] == 0 {
			t.Errorf("event %d was acked, and no handler has worked on it", id)
		}
		if l.runs[id] > 1 {
			again++
		}
	}
	if len(l.acked) != jobs {
		t.Errorf("%d events were acked, want %d", len(l.acked), jobs)
	}
	if again == 0 || l.lost == 0 {
		t.Errorf("%d events were worked on again, and %d acks refused: nothing was put to the test", again, l.lost)
	}
	t.Logf("%d events were worked on again", again)
}

// judgeDatabase checks what is stored.
func (l *ledger) judgeDatabase(t *testing.T, conn *pgx.Conn, jobs int) {
	t.Helper()
	got := pgtest.Query[string](t, conn, `
		select format('%s wait, %s in history, %s done, %s ids, %s jobs, %s results', (select count(*) from agent.event), count(*)
		, count(*) filter (where outcome = 'done'), count(distinct id), count(distinct event ->> 'N')
		, count(*) filter (where result = event))
		from agent.event_hist`)
	want := strings.ReplaceAll("0 wait, # in history, # done, # ids, # jobs, # results", "#", fmt.Sprint(jobs))
	if got != want {
		t.Errorf("%s; want %s", got, want)
	}
}
