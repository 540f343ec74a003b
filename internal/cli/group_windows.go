package cli

import (
	"context"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// shellCommand returns a command that the shell runs.
func shellCommand(command string) *exec.Cmd {
	cmd := exec.Command("cmd.exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{CmdLine: `cmd.exe /d /s /c "` + command + `"`} // cmd.exe has rules of its own for quotes
	return cmd
}

// missingProgram returns the command if it is empty. Whether the shell finds its program is known only when it runs.
func missingProgram(_ context.Context, command string) string {
	if strings.TrimSpace(command) == "" {
		return " "
	}
	return ""
}

// ownGroup puts a command that has not started into a process group of its own, so that signals of the console are for this process alone.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr.CreationFlags = syscall.CREATE_NEW_PROCESS_GROUP }

// terminateGroup kills: Windows has nothing gentler for a process without a window.
func terminateGroup(process *os.Process) { killGroup(process) }

// killGroup kills a process and its children.
func killGroup(process *os.Process) {
	_ = exec.Command("taskkill", "/T", "/F", "/PID", strconv.Itoa(process.Pid)).Run()
}
