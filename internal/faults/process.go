//go:build unix

package faults

import (
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

// startProcess starts cmd. On Linux, cmd ends with this process.
func startProcess(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, ended: make(chan struct{})}
	tieToParent(cmd.SysProcAttr)
	started := make(chan error, 1)
	go func() {
		// A child that is tied to its parent gets its signal when the thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// tree is the process and its children.
func (p *process) tree() []int {
	return append([]int{p.cmd.Process.Pid}, children(p.cmd.Process.Pid)...)
}

// signalTree sends sig to the process, and then to its children, until no new ones are found.
func (p *process) signalTree(sig syscall.Signal) error {
	sent := map[int]bool{}
	for {
		found := false
		for _, pid := range p.tree() {
			if sent[pid] {
				continue
			}
			sent[pid], found = true, true
			if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("send %s to process %d: %w", sig, pid, err)
			}
		}
		if !found {
			return nil
		}
	}
}

// kill ends the process and its children at once, and waits until all are gone.
func (p *process) kill() error {
	if !p.running() {
		return nil
	}
	deadline := time.Now().Add(time.Minute)
	// A child forked after the list was made would survive its parent: a stopped process forks none.
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	for !isStopped(p.cmd.Process.Pid) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not stop", p.cmd.Process.Pid)
		}
		pause(time.Millisecond)
	}
	pids := p.tree()
	if err := p.signalTree(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	for _, pid := range pids {
		for !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d was killed but still exists", pid)
			}
			_ = syscall.Kill(pid, syscall.SIGKILL)
			pause(5 * time.Millisecond)
		}
	}
	return nil
}

// stop sends sig to the process and waits until it is gone, killing it when it takes too long.
func (p *process) stop(sig syscall.Signal, limit time.Duration) error {
	if !p.running() {
		return nil
	}
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.ended:
		return nil
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("%s did not end within %v of %s", p.cmd.Path, limit, sig), p.kill())
	}
}

// pause waits between polls of another process's state.
func pause(d time.Duration) { <-time.After(d) }
