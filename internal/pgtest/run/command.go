package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"

	"github.com/queued/queued/internal/pgtest"
)

// runCommand runs the command to its end on the server, passing signals on, and returns its exit code:
// 128 and the signal's number when a signal ended it, as shells have it.
func (r *runner) runCommand(server *pgtest.Server) int {
	// No context: what would end it is passed on to it.
	cmd := exec.CommandContext(context.Background(), r.command[0], r.command[1:]...) //nolint:gosec // Running it is what this program is for.
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), pgtest.EnvURL+"="+server.URL, pgtest.EnvFlavour+"="+server.Flavour)
	if r.ownServer == "" && !r.keep {
		cmd.Env = append(cmd.Env, pgtest.EnvFate+"="+pgtest.FateEnds)
	}
	// A group of its own gets each signal once, from here, a terminal's Ctrl-C as well as one that was
	// sent to this process alone; and with it everything that the command has started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		r.say("%s", err)
		return 1
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-r.signals:
			_ = syscall.Kill(-cmd.Process.Pid, sig.(syscall.Signal)) // gone already: then ended says so
		case err := <-ended:
			return r.exitCode(err)
		}
	}
}

func (r *runner) exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		r.say("%s", err)
		return 1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}
