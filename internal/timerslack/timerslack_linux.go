package timerslack

import (
	"os"
	"runtime"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// standard is what Linux gives a process, in nanoseconds: another value was chosen by somebody.
const standard = 50_000

// marker is in the environment of a program that was started again, so that it never is twice.
const marker = "QUEUED_TIMER_SLACK_SET=1"

// Raise sets the slack of the whole process, and starts the program again for that, with the same arguments, environment and process id: threads that are there, such as sysmon's, keep theirs, and
// what comes after exec has that of the thread which calls it. So it is to be called before anything else. It does nothing if the slack is not Linux's own, or if it cannot be changed.
func Raise() {
	environ := os.Environ() //nolint:forbidigo // which the program is started with again
	if i := slices.Index(environ, marker); i >= 0 {
		_ = os.Unsetenv(marker[:len(marker)-len("=1")])
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if slack, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || slack != standard {
		return
	}
	if unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(Slack.Nanoseconds()), 0, 0, 0) != nil {
		return
	}
	if syscall.Exec("/proc/self/exe", os.Args, append(environ, marker)) != nil { //nolint:gosec // it is this program; it does not return unless it fails
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, standard, 0, 0, 0)
	}
}
