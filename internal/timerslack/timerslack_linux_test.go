package timerslack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
			_ = unix.Exec(os.Args[0], os.Args, os.Environ())
		}
		fallthrough
	case "raised":
		Raise()
		report()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// report prints the process id, its name, the arguments, the slack of some threads, and what is left of the marker.
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
	called, _ := os.ReadFile("/proc/self/comm")
	_, _ = fmt.Fprintln(os.Stdout, os.Getpid(), strings.TrimSpace(string(called)), os.Args[1:], slacks, os.Getenv(role), strings.Contains(strings.Join(os.Environ(), "\n"), "TIMER_SLACK_SET"))
}

func TestSlackIsThatOfAllThreads(t *testing.T) {
	t.Parallel()
	for name, slack := range map[string]string{"raised": "1000000", "chosen": "70000"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "one", "two words")
		cmd.Env = append(os.Environ(), role+"="+name)
		out, err := cmd.CombinedOutput()
		want := fmt.Sprintf("%d %.15s [one two words] [%s] %s false\n", cmd.Process.Pid, filepath.Base(os.Args[0]), strings.TrimSpace(strings.Repeat(slack+" ", 4)), name)
		if err != nil || string(out) != want {
			t.Errorf("%s: got %v, %q; want %q", name, err, out, want)
		}
	}
}

// An emulator and a loader run as the file that exec would start: with arguments that are the program's.
func TestProgramThatAnotherRunsIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Args = []string{"/nowhere/queued", "one"}
	cmd.Env = append(os.Environ(), role+"=raised")
	out, err := cmd.CombinedOutput()
	want := fmt.Sprintf("%d %.15s [one] [%s] raised false\n", cmd.Process.Pid, filepath.Base(os.Args[0]), strings.TrimSpace(strings.Repeat(fmt.Sprint(standard, " "), 4)))
	if err != nil || string(out) != want {
		t.Errorf("got %v, %q; want %q", err, out, want)
	}
}
