package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a child and the one goroutine that waits for it.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when the child is gone and reaped
}

// startProcess starts cmd from a thread of its own that lives as long as the child: on Linux a
// child tied to its parent gets its signal when the thread that made it ends, and Go ends threads as it likes.
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
			_ = cmd.Wait() // what it says is in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// state says how the child ended.
func (p *process) state() string { return p.cmd.ProcessState.String() }

// stop ends a postmaster: a fast shutdown, an immediate one when ctx ends before that is done,
// and the hard way when even that does not help.
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
		case <-time.After(quitLimit):
		}
	}
	return fmt.Errorf("PostgreSQL (process %d) does not end, not even killed: %w", p.pid(), ctx.Err())
}

func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %s to PostgreSQL (process %d): %w", sig, p.pid(), err)
	}
	return nil
}

// runToEnd runs a program that must not outlive this one, and returns all it wrote.
func runToEnd(cmd *exec.Cmd) ([]byte, error) {
	// See startProcess for why the thread matters.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tieToParent(cmd.SysProcAttr, syscall.SIGKILL)
	// The group: the programs that this one has started.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	return cmd.CombinedOutput()
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
