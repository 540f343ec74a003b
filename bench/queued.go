package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// workload is one of `queued bench`, run against a `queued serve` of its own.
type workload struct {
	name  string // the end of the part's name
	about string
	args  []string // of `queued bench`, the workload's name first
	timed bool     // it takes --duration
}

// queuedRun is the program under test and the workloads it is put under.
type queuedRun struct{ program string }

func (q *queuedRun) parts() []part {
	var parts []part
	for _, w := range workloads {
		parts = append(parts, part{
			name:    "queued." + w.name,
			about:   w.about,
			command: "queued bench " + strings.Join(w.args, " "),
			run: func(ctx context.Context, db database, duration time.Duration) (outcome, error) {
				return q.run(ctx, w, db, duration)
			},
		})
	}
	return parts
}

func (q *queuedRun) run(ctx context.Context, w workload, db database, duration time.Duration) (outcome, error) {
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	serving, err := q.serve(ctx, db.url, dir)
	if err != nil {
		return outcome{}, err
	}
	defer serving.stop()
	if err := db.server.settle(ctx); err != nil {
		return outcome{}, err
	}
	report := filepath.Join(dir, "report.json")
	args := slices.Concat([]string{"bench"}, w.args, []string{"--url", serving.url, "--database-url", db.url, "--json", report})
	if w.timed {
		args = append(args, "--duration", duration.String())
	}
	cmd := exec.CommandContext(ctx, q.program, args...) //nolint:gosec // Built from this repository, or named by the operator.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	ran := cmd.Run()
	body, err := os.ReadFile(report) //nolint:gosec // In the folder just made.
	if err != nil {
		return outcome{}, fmt.Errorf("queued bench: %w; it said:\n%s", errors.Join(ran, err), tail(output.String()))
	}
	// With a report, an exit code other than 0 says that a bar was missed, which the report says as well.
	got, err := parseReport("queued."+w.name, body)
	if err != nil {
		return outcome{}, fmt.Errorf("%w; it said:\n%s", errors.Join(ran, err), tail(output.String()))
	}
	var exit *exec.ExitError
	if ran != nil && (!errors.As(ran, &exit) || slices.IndexFunc(got.verdicts, func(v verdict) bool { return !v.ok }) < 0) {
		return got, fmt.Errorf("queued bench: %w; it said:\n%s", ran, tail(output.String()))
	}
	return got, nil
}

// serving is a running `queued serve`.
type serving struct {
	url   string
	cmd   *exec.Cmd
	log   string // its file
	ended chan struct{}
}

// serve starts the program on a database, with its own defaults, and returns when it is ready.
func (q *queuedRun) serve(ctx context.Context, databaseURL, dir string) (*serving, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	s := &serving{url: "http://" + address, log: filepath.Join(dir, "serve.log"), ended: make(chan struct{})}
	log, err := os.Create(s.log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	// No context: stop ends it, in order.
	s.cmd = exec.CommandContext(context.WithoutCancel(ctx), q.program, "serve") //nolint:gosec // As above.
	s.cmd.Env = []string{"QUEUED_DATABASE_URL=" + databaseURL, "QUEUED_LISTEN=" + address}
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C ends the load first
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = s.cmd.Wait() // what matters is in its log
		close(s.ended)
	}()
	if err := s.waitUntilReady(ctx); err != nil {
		s.stop()
		said, _ := os.ReadFile(s.log)
		return nil, fmt.Errorf("queued serve: %w; it said:\n%s", err, tail(string(said)))
	}
	return s, nil
}

// freeAddress returns a loopback address that nobody listened on just now.
func freeAddress(ctx context.Context) (string, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return listener.Addr().String(), listener.Close()
}

func (s *serving) waitUntilReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
		if err != nil {
			return err
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-tick.C:
		case <-s.ended:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("it did not become ready: %w", ctx.Err())
		}
	}
}

// stop ends the server: asked first, forced after half a minute.
func (s *serving) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}
