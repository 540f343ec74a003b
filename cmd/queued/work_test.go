//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// work starts queued work on the queue "default" of p, with a command for the shell, in which DIR is a directory of the test.
func (p *program) work(dir, command string, args ...string) *program {
	p.t.Helper()
	args = append([]string{"work", "--exec", strings.ReplaceAll(command, "DIR", dir)}, args...)
	w := startProgram(p.t, args, []string{"QUEUED_URL=http://" + p.addr})
	w.waitForLine("working", func(line string) bool { return strings.Contains(line, "msg=working") })
	return w
}

// post1 inserts an event and returns its id.
func (p *program) post1(event string) int64 {
	p.t.Helper()
	id, _ := p.want(http.StatusCreated, http.MethodPost, "/events", event).decode(p.t)["id"].(float64)
	return int64(id)
}

// event returns an event by its id.
func (p *program) event(id int64) map[string]any {
	p.t.Helper()
	return p.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/events/%d", id), "").decode(p.t)
}

// awaitOutcome waits until an event has left its queue, and returns it.
func (p *program) awaitOutcome(id int64, outcome string) (event map[string]any) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("event %d is %s", id, outcome), func() bool {
		event = p.event(id)
		return event["outcome"] == outcome
	})
	return event
}

// awaitFile waits until a command has written a file, and returns its lines.
func awaitFile(t *testing.T, path string) (lines []string) {
	t.Helper()
	until(t, "the command wrote "+filepath.Base(path), func() bool {
		content, err := os.ReadFile(path)
		lines = strings.Fields(string(content))
		return err == nil && strings.HasSuffix(string(content), "\n")
	})
	return lines
}

// awaitEnd waits until processes have ended.
func awaitEnd(t *testing.T, pids []string) {
	t.Helper()
	for _, text := range pids {
		pid, err := strconv.Atoi(text)
		if err != nil || pid < 2 {
			t.Fatalf("the process id is %q", text)
		}
		until(t, "process "+text+" ended", func() bool {
			if stat, err := os.ReadFile("/proc/" + text + "/stat"); err == nil {
				_, state, _ := strings.Cut(string(stat), ") ")
				return strings.HasPrefix(state, "Z") // nobody may wait for an orphan in a container
			}
			return syscall.Kill(pid, 0) != nil
		})
	}
}

// letGo lets a command go on that waits for a file: while [ ! -e DIR/go ]; do sleep 0.05; done.
func letGo(t *testing.T, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	waitToGo = `while [ ! -e DIR/go ]; do sleep 0.05; done; `
	// pids has a command write its process id and that of a child that goes on for long.
	pids = `sleep 1000 & echo $$ $! >DIR/pids; `
)

func TestExitCodeOfTheCommandDecides(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	ids := map[string]int64{}
	for _, event := range []string{`{"code":0}`, `{"code":65}`, `{"code":75}`, `{"code":3}`, `{"code":"kill"}`} {
		ids[event] = p.post1(event)
	}
	w := p.work(t.TempDir(), `read -r event; echo "sorry, $event" >&2; printf '{"got": %s}' "$event"
		case $event in *kill*) kill -9 $$;; esac; exit "$(printf %s "$event" | tr -dc 0-9)"`, "--max-attempts", "1", "-c", "2")
	done := p.awaitOutcome(ids[`{"code":0}`], "done")
	if got, _ := json.Marshal(done["result"]); string(got) != `{"got":{"code":0}}` {
		t.Errorf("the result is %s", got)
	}
	if done["attempts"] != 1.0 {
		t.Errorf("it took %v attempts", done["attempts"])
	}
	failed := p.awaitOutcome(ids[`{"code":65}`], "failed")
	if failed["last_error"] != `exit status 65: sorry, {"code":65}` {
		t.Errorf("after 65 the error is %q", failed["last_error"])
	}
	for event, want := range map[string]string{
		`{"code":75}`: `exit status 75: sorry, {"code":75}`, `{"code":3}`: `exit status 3: sorry, {"code":3}`,
		`{"code":"kill"}`: `signal: killed: sorry, {"code":"kill"}`,
	} {
		until(t, event+" waits again", func() bool { return p.event(ids[event])["last_error"] == want })
		if got := p.event(ids[event]); got["state"] != "ready" {
			t.Errorf("%s is %v", event, got)
		}
	}
	w.waitForLine("standard error", func(line string) bool { return line == fmt.Sprintf(`event %d: sorry, {"code":3}`, ids[`{"code":3}`]) })
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestCommandGetsTheEventAndItsAttempt(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	posted := p.want(http.StatusCreated, http.MethodPost, `/events?type=mail.welcome&meta={"traceparent":"`+trace+`"}`, `{"text":"<b>&\u00e9 1234567890123456789012"}`).decode(t)
	id := int64(posted["id"].(float64))
	p.work(t.TempDir(), `printf '{"id":"%s","type":"%s","attempt":"%s","receipt":"%s","trace":"%s","event":%s}' `+
		`"$QUEUED_ID" "$QUEUED_TYPE" "$QUEUED_ATTEMPT" "$QUEUED_RECEIPT" "$TRACEPARENT" "$(cat)"`)
	result, _ := p.awaitOutcome(id, "done")["result"].(map[string]any)
	receipt, _ := result["receipt"].(string)
	if result["id"] != fmt.Sprint(id) || result["type"] != "mail.welcome" || result["attempt"] != "1" || result["trace"] != trace ||
		!strings.HasPrefix(receipt, fmt.Sprint(id)+".") || fmt.Sprint(result["event"]) != "map[text:<b>&é 1234567890123456789012]" {
		t.Errorf("the command got %v", result)
	}
}

func TestOutputThatIsNoJSONIsNoResult(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	plain := p.post1(`{"n":1}`)
	w := p.work(t.TempDir(), `echo "sent 1 mail"`)
	if event := p.awaitOutcome(plain, "done"); event["result"] != nil {
		t.Errorf("the result is %v", event["result"])
	}
	w.waitForLine("its output", func(line string) bool { return line == fmt.Sprintf("event %d: sent 1 mail", plain) })
	w.stop()
	large := p.post1(`{"n":2}`)
	p.work(t.TempDir(), `printf '"%070000d"' 1`)
	if event := p.awaitOutcome(large, "done"); event["result"] != nil {
		t.Errorf("the result has %d bytes", len(fmt.Sprint(event["result"])))
	}
}

func TestOnlyTheEndOfStandardErrorIsKept(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	id := p.post1(`{}`)
	p.work(t.TempDir(), `i=0; while [ $i -lt 3000 ]; do echo "line $i" >&2; i=$((i+1)); done; exit 65`)
	text, _ := p.awaitOutcome(id, "failed")["last_error"].(string)
	if !strings.HasSuffix(text, "line 2999") || len(text) > 2<<10+len("exit status 65: ") || len(text) < 2000 {
		t.Errorf("the error has %d bytes: %q", len(text), text)
	}
}

func TestLeaseIsExtendedWhileTheCommandRuns(t *testing.T) {
	t.Parallel()
	p, dir := setupFront(t), t.TempDir()
	id := p.post1(`{}`)
	p.work(dir, waitToGo, "--lease", "3s")
	// Three changes of vt, a second apart, take longer than the lease.
	seen := map[any]bool{}
	until(t, "the lease was extended three times", func() bool {
		if event := p.event(id); event["state"] == "leased" {
			seen[event["vt"]] = true
		}
		return len(seen) > 4
	})
	letGo(t, dir)
	if event := p.awaitOutcome(id, "done"); event["attempts"] != 1.0 {
		t.Errorf("it took %v attempts", event["attempts"])
	}
}

func TestCommandAndItsChildrenAreKilledWhenTheLeaseIsLost(t *testing.T) {
	t.Parallel()
	p, dir := setupFront(t), t.TempDir()
	id := p.post1(`{}`)
	w := p.work(dir, `trap "" TERM; `+pids+`wait`, "--lease", "1s")
	running := awaitFile(t, filepath.Join(dir, "pids"))
	p.want(http.StatusNoContent, http.MethodDelete, fmt.Sprintf("/events/%d", id), "") // without a receipt: whoever has it
	w.waitForLine("the lease is lost", func(line string) bool { return strings.Contains(line, "the lease is lost") })
	awaitEnd(t, running)
	next := p.post1(`{}`) // the worker goes on
	until(t, "the next event is leased", func() bool { return p.event(next)["state"] == "leased" })
}

func TestCommandThatTakesTooLongIsEnded(t *testing.T) {
	t.Parallel()
	p, dir := setupFront(t), t.TempDir()
	id := p.post1(`{}`)
	p.work(dir, `trap "" TERM; `+pids+`echo working >&2; wait`, "--timeout", "500ms", "--max-attempts", "1")
	running := awaitFile(t, filepath.Join(dir, "pids"))
	awaitEnd(t, running)
	until(t, "the event waits again", func() bool {
		return p.event(id)["last_error"] == "the command took longer than 500ms and was ended: working"
	})
}

func TestSIGTERMDrainsTheCommands(t *testing.T) {
	t.Parallel()
	p, dir := setupFront(t), t.TempDir()
	first := p.post1(`{}`)
	w := p.work(dir, `echo $$ >DIR/started; `+waitToGo+`echo '"done"'`)
	awaitFile(t, filepath.Join(dir, "started"))
	second := p.post1(`{}`)
	w.signal(syscall.SIGTERM)
	w.waitForLine("stopping", func(line string) bool { return strings.Contains(line, "stopping: nothing more is claimed") })
	letGo(t, dir)
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if event := p.awaitOutcome(first, "done"); event["result"] != "done" {
		t.Errorf("the result is %v", event["result"])
	}
	if event := p.event(second); event["state"] != "ready" || event["attempts"] != 0.0 {
		t.Errorf("the event that came later is %v", event)
	}
}

func TestEventsAreGivenBackWhenTheGraceIsOver(t *testing.T) {
	t.Parallel()
	p, dir := setupFront(t), t.TempDir()
	id := p.post1(`{}`)
	w := p.work(dir, pids+`wait`, "--grace", "100ms", "--lease", "1h")
	running := awaitFile(t, filepath.Join(dir, "pids"))
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	awaitEnd(t, running)
	if event := p.event(id); event["state"] != "ready" || !strings.Contains(fmt.Sprint(event["last_error"]), "the worker stopped") {
		t.Errorf("the event is %v", event)
	}
}

// TestWorkerThatWasStoppedCannotAck stops a worker until its lease has ended and another one has the event.
func TestWorkerThatWasStoppedCannotAck(t *testing.T) {
	t.Parallel()
	p, dir, other := setupFront(t), t.TempDir(), t.TempDir()
	id := p.post1(`{}`)
	stopped := p.work(dir, pids+`wait`, "--lease", "1s")
	running := awaitFile(t, filepath.Join(dir, "pids"))
	stopped.signal(syscall.SIGSTOP)
	t.Cleanup(func() { _ = stopped.cmd.Process.Signal(syscall.SIGCONT) })
	p.work(other, `echo $$ >DIR/started; `+waitToGo+`echo '"by the other"'`)
	awaitFile(t, filepath.Join(other, "started")) // which says that the first lease has ended
	stopped.signal(syscall.SIGCONT)
	awaitEnd(t, running)
	if event := p.event(id); event["state"] != "leased" || event["attempts"] != 2.0 {
		t.Errorf("while the other one works, the event is %v", event)
	}
	letGo(t, other)
	if event := p.awaitOutcome(id, "done"); event["result"] != "by the other" {
		t.Errorf("the result is %v", event["result"])
	}
}

func TestEventOfAKilledWorkerIsWorkedOnAgain(t *testing.T) {
	t.Parallel()
	p, dir, other := setupFront(t), t.TempDir(), t.TempDir()
	id := p.post1(`{}`)
	killed := p.work(dir, `echo $$ >DIR/pids; exec sleep 1000`, "--lease", "1s")
	running := awaitFile(t, filepath.Join(dir, "pids"))
	t.Cleanup(func() {
		if pid, err := strconv.Atoi(running[0]); err == nil && runtime.GOOS != "linux" {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	killed.signal(syscall.SIGKILL)
	killed.wait()
	if runtime.GOOS == "linux" {
		awaitEnd(t, running) // its command does not outlive it
	}
	p.work(other, `true`)
	if event := p.awaitOutcome(id, "done"); event["attempts"] != 2.0 {
		t.Errorf("it took %v attempts", event["attempts"])
	}
}

func TestWrongWorkIsAUsageError(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`there is no program "./no-such-program.sh"`: {"--exec", "./no-such-program.sh --now"},
		"--concurrency is 0":                         {"--exec", "true", "-c", "0"},
		"--lease is 10ms":                            {"--exec", "true", "--lease", "10ms"},
		"--exec":                                     {"-q", "mail"},
	} {
		code, _, stderr := runHere(t, append([]string{"work"}, args...), nil)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit code %d, %q, want %q", args, code, stderr, want)
		}
	}
}

func TestWorkWithAWrongKeyFails(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_API_KEY=the-right-key-of-tests")
	w := startProgram(t, []string{"work", "--exec", "true", "--key", "wrong"}, []string{"QUEUED_URL=http://" + p.addr})
	if code := w.wait(); code != exitFailure || !strings.Contains(w.output(), "Unauthorized") {
		t.Errorf("exit code %d, %q", code, w.output())
	}
}

func TestWorkSaysWhatItDid(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	dir := t.TempDir()
	var failed int64
	for _, code := range []int{0, 0, 65} {
		failed = p.post1(fmt.Sprintf(`{"code":%d}`, code))
	}
	p.want(http.StatusOK, http.MethodPut, "/queues/default", `{"backoff":{"kind":"constant","base":"1h"}}`)
	p.post1(`{"code":75}`)
	last := p.post1(`{"code":"wait"}`)
	w := p.work(dir, `read -r event; case $event in *wait*) echo >DIR/begun; sleep 1000;; esac; exit "$(printf %s "$event" | tr -dc 0-9)"`, "-v", "--grace", "0s", "-c", "1")
	awaitFile(t, filepath.Join(dir, "begun"))
	w.waitForLine("the fourth event", func(line string) bool { return strings.Contains(line, "msg=retried") })
	w.signal(syscall.SIGTERM)
	if code := w.wait(); code != exitOK {
		t.Errorf("it ended with %d", code)
	}
	if said := w.output(); strings.Count(said, "msg=done queue=default id=") != 2 || !strings.Contains(said, fmt.Sprintf("msg=failed queue=default id=%d ", failed)) ||
		!strings.Contains(said, fmt.Sprintf(`msg="given back" queue=default id=%d `, last)) || !strings.Contains(said, "msg=stopped done=2 failed=1 retried=1 given_back=1 seconds=") {
		t.Errorf("it said\n%s", said)
	}
	quiet := p.work(t.TempDir(), "true", "-t", "none")
	quiet.signal(syscall.SIGTERM)
	if quiet.wait(); strings.Contains(quiet.output(), "msg=done") || !strings.Contains(quiet.output(), "msg=stopped done=0") {
		t.Errorf("without -v it said\n%s", quiet.output())
	}
}

func TestWorkSaysThatAnEventHasNoAttemptsLeft(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_MAX_ATTEMPTS=1", "QUEUED_SWEEP_INTERVAL=off")
	id := p.post1(`{}`)
	w := p.work(t.TempDir(), `exit 75`, "-v")
	w.waitForLine("the end of the event", func(line string) bool {
		return strings.Contains(line, fmt.Sprintf(`msg="failed, no attempts left" queue=default id=%d `, id))
	})
	w.signal(syscall.SIGTERM)
	if w.wait(); !strings.Contains(w.output(), "msg=stopped done=0 failed=1 retried=0 ") {
		t.Errorf("it said\n%s", w.output())
	}
	other := p.post1(`{}`)
	w = p.work(t.TempDir(), `exit 75`, "-v", "--max-attempts", "2") // which claims it again
	w.waitForLine("the first attempt", func(line string) bool {
		return strings.Contains(line, fmt.Sprintf(`msg=retried queue=default id=%d `, other))
	})
	w.waitForLine("the second attempt", func(line string) bool {
		return strings.Contains(line, "no attempts left") && strings.Contains(line, "attempt=2")
	})
	w.signal(syscall.SIGTERM)
	w.wait()
}
