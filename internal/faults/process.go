//go:build unix

package faults

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
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

// tree is a process and its children.
func tree(pid int) []int { return append([]int{pid}, children(pid)...) }

// signalTree sends sig to the process, and then to its children, until no new ones are found.
func (p *process) signalTree(sig syscall.Signal) error { return signalTree(p.cmd.Process.Pid, sig) }

func signalTree(pid int, sig syscall.Signal) error {
	sent := map[int]bool{}
	for {
		found := false
		for _, pid := range tree(pid) {
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
	return killTree(p.cmd.Process.Pid, p.ended)
}

// killTree ends a process and its children at once, and waits until all are gone. ended is closed when the process was reaped; nil: others reap it.
func killTree(pid int, ended <-chan struct{}) error {
	deadline := time.Now().Add(time.Minute)
	// A child forked after the list was made would survive its parent: a stopped process forks none.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", syscall.SIGSTOP, pid, err)
	}
	for !isStopped(pid) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not stop", pid)
		}
		pause(time.Millisecond)
	}
	pids := tree(pid)
	if err := signalTree(pid, syscall.SIGKILL); err != nil {
		return err
	}
	if ended != nil {
		<-ended
	}
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

// lastLines returns the end of a file.
func lastLines(path string, n int) string {
	text, _ := os.ReadFile(path) //nolint:gosec // a log of the test's own
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
