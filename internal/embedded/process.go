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

	"github.com/rs/zerolog"
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
	started := make(chan error, 1)
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
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
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
	if err := p.signal(syscall.SIGINT); err != nil {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-ctx.Done():
	}
	late := fmt.Errorf("PostgreSQL was shut down at once, without waiting any longer for an orderly end: %w", ctx.Err())
	for _, sig := range []syscall.Signal{syscall.SIGQUIT, syscall.SIGKILL} {
		if err := p.signal(sig); err != nil {
			return errors.Join(late, err)
		}
		select {
		case <-p.ended:
			return late
		case <-time.After(immediateShutdownTimeout):
		}
	}
	return fmt.Errorf("PostgreSQL (process %d) did not end after SIGKILL: %w", p.pid(), ctx.Err())
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to PostgreSQL (process %d): %w", sig, p.pid(), err)
	}
	return nil
}

// runToEnd runs a program that must not outlive this process, and returns its output.
func runToEnd(cmd *exec.Cmd) ([]byte, error) {
	runtime.LockOSThread() // see startProcess
	defer runtime.UnlockOSThread()
	signalWithParent(cmd.SysProcAttr, syscall.SIGKILL)
	// The process group includes the programs that this one starts.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.CombinedOutput()
}

// stopOrphans ends the PostgreSQL that a killed process has left running on the directory, whose lock the caller holds. It returns the
// process id that remains in postmaster.pid, 0 when the last server was shut down.
func (d dataDir) stopOrphans(ctx context.Context, log zerolog.Logger) (stale int, err error) {
	if pid := d.postmasterPID(); pid > 1 && isPostmasterOf(ctx, pid, d.pg()) {
		log.Warn().Int("pid", pid).Msg("stopping a PostgreSQL that was left running on this data directory")
		if err := d.stopOrphan(ctx, pid); err != nil {
			return 0, err
		}
	}
	// Busy sessions outlive a postmaster that was killed.
	for _, pid := range clusterProcesses(d.pg()) {
		log.Warn().Int("pid", pid).Msg("stopping a PostgreSQL session that was left running on this data directory")
		if err := kill(pid, syscall.SIGQUIT); err != nil {
			return 0, err
		}
	}
	return d.postmasterPID(), nil
}

// stopOrphan stops a postmaster that is no child of this process.
func (d dataDir) stopOrphan(ctx context.Context, pid int) error {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGQUIT} {
		if err := kill(pid, sig); err != nil {
			return err
		}
		for deadline := time.Now().Add(immediateShutdownTimeout); time.Now().Before(deadline); {
			if !isPostmasterOf(ctx, pid, d.pg()) {
				return nil
			}
			if err := pause(ctx, 20*time.Millisecond); err != nil {
				return fmt.Errorf("waiting for PostgreSQL (process %d), left running on %s, to end: %w", pid, d, err)
			}
		}
	}
	return fmt.Errorf("PostgreSQL (process %d) was left running on %s and did not end after SIGQUIT: kill it and start again", pid, d)
}

func kill(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to PostgreSQL (process %d), which was left running: %w", sig, pid, err)
	}
	return nil
}

// postmasterPID returns the process id in postmaster.pid, 0 when there is none.
func (d dataDir) postmasterPID() int {
	pid, err := strconv.Atoi(d.postmasterLine(1))
	if err != nil || pid < 0 {
		return 0
	}
	return pid
}

// isReady reports whether postmaster.pid says that the server, or one before it, accepts connections.
func (d dataDir) isReady() bool { return d.postmasterLine(8) == "ready" }

// postmasterLine returns a line of postmaster.pid, counted from 1, empty when there is none.
func (d dataDir) postmasterLine(number int) string {
	text, _ := os.ReadFile(filepath.Join(d.pg(), "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if number > len(lines) {
		return ""
	}
	return strings.TrimSpace(lines[number-1])
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
