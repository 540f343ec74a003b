package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// server is the "queued serve" that this program has started.
type server struct {
	url   string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended
	read  chan struct{} // closed when all that it has logged was passed on
}

// environOf is the environment of queued: that of this program, and what the harness says in other words.
func environOf(cfg settings) []string {
	own := func(variable string) bool { return strings.HasPrefix(variable, "QUEUED_BENCH_") } // queued would warn of it
	environ := append(slices.DeleteFunc(slices.Clone(cfg.environ), own),
		"QUEUED_DATABASE_URL="+cfg.databaseURL, "QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json", "QUEUED_SHUTDOWN_TIMEOUT=1s")
	if cfg.maxConns != "" {
		environ = append(environ, "QUEUED_MAX_CONNS="+cfg.maxConns)
	}
	return environ
}

// migrate runs "queued migrate".
func migrate(ctx context.Context, cfg settings, stderr io.Writer) error {
	cmd := exec.CommandContext(ctx, cfg.program, "migrate") //nolint:gosec // it is what the user measures
	cmd.Env, cmd.Stderr = environOf(cfg), stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("migrating: %w", err)
	}
	return nil
}

// serve starts queued on the database, which it migrates, and returns when it serves. What it logs goes to stderr.
func serve(ctx context.Context, cfg settings, stderr io.Writer) (*server, error) {
	cmd := exec.Command(cfg.program, "serve") //nolint:gosec,noctx // it is what the user measures; it is stopped in order, not killed with a context
	cmd.Env, cmd.SysProcAttr = environOf(cfg), serverAttributes()
	log, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, ended: make(chan struct{}), read: make(chan struct{})}
	started := make(chan error, 1)
	serving := make(chan string, 1)
	go func() {
		// A process that is tied to its parent is signalled when the thread that made it ends, and Go ends threads as it likes.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(s.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			<-s.read       // Wait closes the pipe
			_ = cmd.Wait() // how it ended is in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting queued (QUEUED_BENCH_PROGRAM says where it is): %w", err)
	}
	go func() {
		defer close(s.read)
		passOn(log, stderr, serving)
	}()
	select {
	case s.url = <-serving:
		return s, nil
	case <-s.ended:
		return nil, s.failure()
	case <-ctx.Done():
		s.stop(time.Now().Add(stopLimit))
		return nil, ctx.Err()
	}
}

// passOn copies lines from a server's log, and sends the URL that it serves at.
func passOn(log io.Reader, stderr io.Writer, serving chan<- string) {
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadBytes('\n')
		_, _ = stderr.Write(line)
		if bytes.Contains(line, []byte(`"serving"`)) {
			var entry struct{ Message, URL string }
			if json.Unmarshal(line, &entry) == nil && entry.Message == "serving" {
				select {
				case serving <- entry.URL:
				default:
				}
			}
		}
		if err != nil {
			return
		}
	}
}

func (s *server) failure() error {
	return fmt.Errorf("queued serve ended by itself (%s); its log says why", s.cmd.ProcessState)
}

// stop ends the server in order, and kills it when that takes until the deadline; zero: [stopLimit] from now.
func (s *server) stop(deadline time.Time) {
	if deadline.IsZero() {
		deadline = time.Now().Add(stopLimit)
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		_ = s.cmd.Process.Kill() // it has ended, or the system knows no such signal
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-timer.C:
		_ = s.cmd.Process.Kill()
		<-s.ended
	}
}
