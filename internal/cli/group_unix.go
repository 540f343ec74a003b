//go:build unix

package cli

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// shellCommand returns a command that the shell runs.
func shellCommand(command string) *exec.Cmd {
	return exec.Command("/bin/sh", "-c", command) //nolint:gosec,noctx // the user's own command; executor.run ends it with its group
}

// missingProgram returns the first word of a command, if that is the name of a program which the shell does not find.
func missingProgram(ctx context.Context, command string) string {
	words := strings.Fields(command)
	if len(words) == 0 {
		return " "
	}
	if strings.ContainsAny(words[0], "|&;<>()$`\\\"'*?[]#~=%{}!") { // only the shell understands these
		return ""
	}
	if exec.CommandContext(ctx, "/bin/sh", "-c", `command -v -- "$1"`, "sh", words[0]).Run() == nil || ctx.Err() != nil { //nolint:gosec // the user's own command
		return ""
	}
	return words[0]
}

// ownGroup puts a command that has not started into a process group of its own, so that it and its children can be ended together, and so
// that signals of a terminal are for this process alone.
func ownGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	dieWithParent(cmd.SysProcAttr)
}

// terminateGroup asks the group of a process to end.
func terminateGroup(process *os.Process) { _ = syscall.Kill(-process.Pid, syscall.SIGTERM) }

// killGroup kills the group of a process.
func killGroup(process *os.Process) { _ = syscall.Kill(-process.Pid, syscall.SIGKILL) }
