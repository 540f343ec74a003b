package timerslack

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// standard is what Linux gives a process, in nanoseconds: another value was chosen by somebody.
const standard = 50_000

// marker is in the environment of a program that was started again, so that it never is twice. Its value is the name that the process had, as ps and pgrep show it.
const marker = "QUEUED_TIMER_SLACK_SET"

const (
	program = "/proc/self/exe"
	name    = "/proc/self/comm"
)

// Raise sets the slack of the whole process, and starts the program again for that, with the same arguments, environment, name and process id: threads that are there, such as sysmon's, keep theirs, and
// what comes after exec has that of the thread which calls it. So it is to be called before anything else. It does nothing if the slack is not Linux's own, or if it cannot be changed,
// or if the file that runs is not the one that was called: an emulator, such as qemu, or a loader would take the arguments for its own.
func Raise() {
	if had, isSet := os.LookupEnv(marker); isSet { //nolint:forbidigo // as below
		_ = os.Unsetenv(marker)
		_ = os.WriteFile(name, []byte(had), 0) // exec has named it exe
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != standard {
		return
	}
	had, err := os.ReadFile(name)
	if err != nil || !isItself() {
		return
	}
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(Slack.Nanoseconds()), 0, 0, 0) != nil {
		return
	}
	environ := append(os.Environ(), marker+"="+strings.TrimSuffix(string(had), "\n")) //nolint:forbidigo // which the program is started with again
	if syscall.Exec(program, os.Args, environ) != nil {                               //nolint:gosec // it is this program; it does not return unless it fails
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, standard, 0, 0, 0)
	}
}

// isItself reports whether the file that runs is the one that the arguments name.
func isItself() bool {
	path, err := exec.LookPath(os.Args[0])
	if err != nil {
		return false
	}
	called, err := os.Stat(path) //nolint:gosec // nothing is read of it
	if err != nil {
		return false
	}
	running, err := os.Stat(program)
	return err == nil && os.SameFile(called, running)
}
