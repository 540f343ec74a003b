//go:build unix

package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is a child process, with one goroutine that waits for its end.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the child has ended
}

// startProcess starts cmd from a thread that lives as long as the child: on Linux the signal of signalWithParent is sent when the
// thread that started the child ends.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // cmd.ProcessState has the result
		}
	}()
	return p, <-started
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// stop ends a postmaster by a fast shutdown, by an immediate one when ctx ends first, and at last by SIGKILL.
func (p *process) stop(ctx context.Context) error {
	var late error
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT, syscall.SIGKILL} {
		if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return errors.Join(late, fmt.Errorf("send %s to PostgreSQL (process %d): %w", sig, p.pid(), err))
		}
		select {
		case <-p.ended:
			return late
		case <-ctx.Done():
		}
		if late == nil {
			late = fmt.Errorf("PostgreSQL was shut down at once, without waiting any longer for an orderly end: %w", ctx.Err())
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), immediateShutdownTimeout)
		defer cancel()
	}
	return errors.Join(late, fmt.Errorf("PostgreSQL (process %d) did not end after SIGKILL", p.pid()))
}

// stopOrphans ends the PostgreSQL that a killed process has left running on the directory, whose lock the caller holds. It returns the
// process id that remains in postmaster.pid, 0 when the last server was shut down.
func (s *Server) stopOrphans(ctx context.Context) (stale int, err error) {
	if pid, _ := s.dir.postmaster(); pid > 1 && isPostmasterOf(ctx, pid, s.dir.pg()) {
		s.log.Warn().Int("pid", pid).Msg("stopping a PostgreSQL that was left running on this data directory")
		if err := s.stopOrphan(ctx, pid); err != nil {
			return 0, err
		}
	}
	// Busy sessions outlive a postmaster that was killed.
	for _, pid := range clusterProcesses(s.dir.pg()) {
		s.log.Warn().Int("pid", pid).Msg("stopping a PostgreSQL session that was left running on this data directory")
		if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return 0, fmt.Errorf("send SIGQUIT to PostgreSQL (process %d), which was left running: %w", pid, err)
		}
	}
	stale, _ = s.dir.postmaster()
	return stale, nil
}

// stopOrphan stops a postmaster that is no child of this process.
func (s *Server) stopOrphan(ctx context.Context, pid int) error {
	var err error
	timeout := strconv.Itoa(int(immediateShutdownTimeout.Seconds()))
	for _, mode := range []string{"fast", "immediate"} {
		_, err = s.account.run(ctx, "/", s.installation.program("pg_ctl"), "stop", "-D", s.dir.pg(), "-m", mode, "-t", timeout)
		if err == nil || !isPostmasterOf(ctx, pid, s.dir.pg()) { // or it has ended before pg_ctl looked
			return nil
		}
	}
	return fmt.Errorf("PostgreSQL (process %d) was left running on %s and cannot be stopped: kill it and start again: %w", pid, s.dir, err)
}

// postmaster returns the contents of postmaster.pid: the server's process id, 0 when there is none, and whether it accepts connections.
// After a crash the file is that of the server before.
func (d dataDir) postmaster() (pid int, ready bool) {
	text, _ := os.ReadFile(filepath.Join(d.pg(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if id, err := strconv.Atoi(strings.TrimSpace(lines[0])); err == nil {
		pid = max(id, 0)
	}
	return pid, len(lines) >= 8 && strings.TrimSpace(lines[7]) == "ready"
}

// pause waits, or fails when ctx ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
