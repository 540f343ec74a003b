//go:build unix

package clienttest

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

// The workers of examples/ are run where their interpreters are installed.
func TestWorkersInOtherLanguagesExtendAndAreFenced(t *testing.T) {
	t.Parallel()
	for _, script := range []struct {
		file, worker string
		command      []string
		needs        []string // further programs
	}{
		{"worker.py", "python-", []string{"python3"}, nil},
		{"worker.mjs", "node-", []string{"node"}, nil},
		{"worker.sh", "bash-", []string{"bash"}, []string{"curl", "jq"}},
	} {
		t.Run(script.file, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile("../../examples/" + script.file)
			if err != nil {
				t.Fatal(err)
			}
			if lines := bytes.Count(text, []byte("\n")); lines >= 60 {
				t.Errorf("%d lines, want fewer than 60", lines)
			}
			for _, name := range append(script.needs, script.command[0]) {
				if _, err := exec.LookPath(name); err != nil {
					t.Skipf("%s is not installed", name)
				}
			}
			runScript(t, append(script.command, "../../examples/"+script.file), script.worker)
		})
	}
}

func runScript(t *testing.T, command []string, worker string) {
	t.Helper()
	s := serve(t, "QUEUED_API_KEY=secret-of-the-tests")
	c := newClient(t, client.Config{URL: s.url, Key: "secret-of-the-tests"})
	ids := insert(t, c, client.NewEvent{Payload: map[string]string{"to": "Ä \"&<>'"}}, client.NewEvent{Payload: map[string]string{"fail": "no luck"}, MaxAttempts: 1},
		client.NewEvent{Payload: map[string]int{"sleep": 4}})

	cmd := exec.Command(command[0], command[1:]...)
	var output lockedBuffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Env = append(os.Environ(), "QUEUED_URL="+s.url, "QUEUED_KEY=secret-of-the-tests", "QUEUE=q", "LEASE=2")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it may have children
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the worker wrote:\n%s", &output)
		}
	})

	if e := finished(t, c, ids[0]); e.Outcome != client.OutcomeDone || string(e.Result) != `{"worked on":{"to":"Ä \"&<>'"}}` || !strings.HasPrefix(e.Worker, worker) {
		t.Errorf("%s by %s, result %s", e.Outcome, e.Worker, e.Result)
	}
	if e := finished(t, c, ids[1]); e.Outcome != client.OutcomeFailed || !strings.Contains(e.LastError, "no luck") {
		t.Errorf("%s, error %s", e.Outcome, e.LastError)
	}
	if e := finished(t, c, ids[2]); e.Outcome != client.OutcomeDone || e.Attempts != 1 {
		t.Errorf("work that took two leases: %s after %d attempts", e.Outcome, e.Attempts)
	}

	// The worker is stopped until somebody else has its event.
	id := insert(t, c, client.NewEvent{Payload: map[string]int{"sleep": 600}})[0]
	eventWhen(t, c, id, "it is leased", func(e client.Event) bool { return e.State == client.StateLeased })
	signalGroup(t, cmd, syscall.SIGSTOP)
	taken, err := c.Claim(soon(t), client.ClaimParams{Queue: "q", Wait: client.MaxWait, InvisibleFor: time.Hour})
	if err != nil || len(taken) != 1 || taken[0].ID != id || taken[0].Attempts != 2 {
		t.Fatalf("%+v, %v", taken, err)
	}
	signalGroup(t, cmd, syscall.SIGCONT)
	awaitText(t, &output, "409")
	if err := c.Ack(soon(t), id, taken[0].Receipt); err != nil {
		t.Errorf("the ack of the new owner: %v", err)
	}

	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the worker ended: %v", err)
		}
	case <-time.After(waitTimeout):
		t.Error("the worker did not stop")
	}
}

func signalGroup(t *testing.T, cmd *exec.Cmd, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(-cmd.Process.Pid, sig); err != nil {
		t.Fatal(err)
	}
}

// awaitText waits until the output has a text.
func awaitText(t *testing.T, output *lockedBuffer, text string) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := soon(t); !strings.Contains(output.String(), text); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the worker did not write %q:\n%s", text, output)
		}
	}
}
