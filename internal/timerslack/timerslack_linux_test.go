package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

const role = "TIMERSLACK_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "chosen":
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 70_000, 0, 0, 0)
		if os.Getenv("chosen") == "" {
			_ = os.Setenv("chosen", "1")
			_ = unix.Exec("/proc/self/exe", os.Args, os.Environ())
		}
		fallthrough
	case "raised":
		Raise()
		report()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// report prints the process id, the arguments, the slack of some threads, and what is left of the marker.
func report() {
	var threads sync.WaitGroup
	var locked sync.WaitGroup
	locked.Add(4)
	slacks := make([]int, 4)
	for i := range slacks {
		threads.Go(func() {
			runtime.LockOSThread() // a thread each
			locked.Done()
			locked.Wait()
			slacks[i], _ = unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		})
	}
	threads.Wait()
	_, _ = fmt.Fprintln(os.Stdout, os.Getpid(), os.Args[1:], slacks, os.Getenv(role), strings.Contains(strings.Join(os.Environ(), "\n"), "TIMER_SLACK_SET"))
}

func TestSlackIsThatOfAllThreads(t *testing.T) {
	t.Parallel()
	for name, slack := range map[string]string{"raised": "1000000", "chosen": "70000"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "one", "two words")
		cmd.Env = append(os.Environ(), role+"="+name)
		out, err := cmd.CombinedOutput()
		want := fmt.Sprintf("%d [one two words] [%s] %s false\n", cmd.Process.Pid, strings.TrimSpace(strings.Repeat(slack+" ", 4)), name)
		if err != nil || string(out) != want {
			t.Errorf("%s: got %v, %q; want %q", name, err, out, want)
		}
	}
}
