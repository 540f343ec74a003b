package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// numbered returns lines with the events from first to last.
func numbered(first, last int) string {
	var text strings.Builder
	for i := first; i <= last; i++ {
		fmt.Fprintf(&text, "{\"order\":{\"id\":%d}}\n", i)
	}
	return text.String()
}

// fileOf writes a file of events.
func fileOf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantNumbers fails the test unless each event up to the last is in the queue once.
func (p *program) wantNumbers(queue string, last int) {
	p.t.Helper()
	seen := make(map[string]int)
	for _, event := range p.cli("events", "-q", queue, "-n", "0").events() {
		seen[string(event.Event)]++
	}
	for line := range strings.Lines(numbered(1, last)) {
		if n := seen[strings.TrimSpace(line)]; n != 1 {
			p.t.Fatalf("%s is in the queue %d times, want once", strings.TrimSpace(line), n)
		}
	}
	if len(seen) != last {
		p.t.Errorf("%d different events are in the queue, want %d", len(seen), last)
	}
}

// piped is a post whose standard input stays open.
type piped struct {
	cmd    *exec.Cmd
	input  io.WriteCloser
	stderr bytes.Buffer
}

// postPiped starts a post of what is written to its standard input.
func (p *program) postPiped(args ...string) *piped {
	p.t.Helper()
	post := &piped{cmd: exec.CommandContext(p.t.Context(), binary(p.t), append([]string{"post", "-f", "-"}, args...)...)}
	post.cmd.Env = []string{"QUEUED_URL=http://" + p.addr, raceSettings()}
	post.cmd.Stderr = &post.stderr
	var err error
	if post.input, err = post.cmd.StdinPipe(); err != nil {
		p.t.Fatal(err)
	}
	if err := post.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	return post
}

// wait returns the exit code of a post that ends by itself.
func (post *piped) wait(t *testing.T) int {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		_ = post.cmd.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(waitTimeout):
		_ = post.cmd.Process.Kill()
		<-ended
		t.Fatalf("the post did not end in time\n%s", post.stderr.String())
	}
	return post.cmd.ProcessState.ExitCode()
}

// write writes lines to the standard input of a post.
func (post *piped) write(t *testing.T, text string) {
	t.Helper()
	if _, err := io.WriteString(post.input, text); err != nil {
		t.Fatalf("%v\n%s", err, post.stderr.String())
	}
}

// untilStored waits until the queue mail has so many events.
func (p *program) untilStored(n int) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%d events are stored", n), func() bool {
		page := p.want(http.StatusOK, http.MethodGet, fmt.Sprintf("/events?queue=mail&limit=%d", n), "")
		return strings.Count(page.body, `"enqueued_at"`) == n
	})
}

func TestFileThatIsPostedAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	path := fileOf(t, "\n"+numbered(1, 1500)+"  \n"+strings.TrimSuffix(numbered(1501, 2500), "\n"))
	for range 2 {
		got := p.cli("post", "-q", "field", "-f", path, "--key-field", "/order/id").want(0)
		if !strings.Contains(got.stdout, `"events":2500,`) || !strings.Contains(got.stderr, "100 % of the file") {
			t.Errorf("posting wrote %s%s", got.stdout, got.stderr)
		}
	}
	p.wantNumbers("field", 2500)
	for range 2 {
		p.cli("post", "-q", "line", "-f", path, "--key-prefix", "import", "--batch", "100", "--parallel", "2").want(0)
	}
	p.wantNumbers("line", 2500)
}

func TestPostOfAFileGoesOnAfterSIGKILL(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	text := numbered(1, 6000)
	post := p.postPiped("-q", "mail", "--key-field", "/order/id", "--batch", "50")
	post.write(t, text[:len(text)/2])
	p.untilStored(1)
	if err := post.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	post.wait(t)
	p.cli("post", "-q", "mail", "-f", fileOf(t, text), "--key-field", "/order/id").want(0)
	p.wantNumbers("mail", 6000)
}

func TestPostOfAFileOutlastsAServerThatIsKilled(t *testing.T) {
	t.Parallel()
	environ := []string{"QUEUED_DATABASE_URL=" + pgtest.New(t).ServiceURL}
	p := serve(t, nil, environ...)
	post := p.postPiped("-q", "mail", "--batch", "50", "--retry-for", waitTimeout.String())
	post.write(t, numbered(1, 3000))
	p.untilStored(1)
	p.signal(syscall.SIGKILL)
	p.wait()
	rest := make(chan error, 1)
	go func() { // which the post reads once the server takes more
		_, err := io.WriteString(post.input, numbered(3001, 6000))
		rest <- errors.Join(err, post.input.Close())
	}()
	p = serve(t, nil, append(environ, "QUEUED_LISTEN="+p.addr)...)
	if code, err := post.wait(t), <-rest; code != 0 || err != nil {
		t.Fatalf("the post ended with %d, %v\n%s", code, err, post.stderr.String())
	}
	p.wantNumbers("mail", 6000)
}

func TestInterruptedPostSaysHowToGoOn(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	post := p.postPiped("-q", "mail", "--batch", "100", "--parallel", "1")
	post.write(t, numbered(1, 250))
	p.untilStored(200)
	if err := post.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if code := post.wait(t); code != exitInterrupted {
		t.Errorf("it ended with %d, want %d", code, exitInterrupted)
	}
	switch said := post.stderr.String(); {
	case strings.Contains(said, "add --skip 200;"):
	case strings.Contains(said, "lines up to 100 are stored") && strings.Contains(said, "of the next 100 lines some may be stored"):
		return // the signal came before the answer of the second batch
	default:
		t.Errorf("it said\n%s", said)
	}
	p.cli("post", "-q", "mail", "-f", fileOf(t, numbered(1, 250)), "--skip", "200").want(0)
	p.wantNumbers("mail", 250)
}

func TestWrongLineIsNamedAndThoseBeforeAreStored(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_MAX_BODY=4096")
	for line, says := range map[string]string{
		`{"order":`:                       "events.ndjson:4: the event is not JSON",
		`[{"order":{"id":4}}]`:            "events.ndjson:4: the event is not a JSON object",
		`{"order":{"id":null}}`:           "events.ndjson:4: the event has neither a text nor a number at /order/id",
		`{"order":{}}`:                    "events.ndjson:4: the event has nothing at /order/id",
		`{"order":4}`:                     "events.ndjson:4: the event has nothing at /order/id",
		`{"order":{"id":""}}`:             "events.ndjson:4: the event has a text of 0 characters at /order/id",
		`{"order":{"id":4},"a":"\u0000"}`: "events.ndjson:4: ", // refused by the server
	} {
		path := fileOf(t, numbered(1, 3)+line+"\n"+numbered(5, 5))
		p.cli("post", "-f", path, "--key-field", "/order/id", "--batch", "1", "--parallel", "1").wantError(1, says)
	}
	p.wantNumbers("default", 3)
	first := fileOf(t, "x\n"+numbered(2, 3))
	for _, args := range [][]string{{"post", "-f", first}, {"post", "-f", first, "--key-field", "/n"}, {"publish", "a.b", "-f", first}} {
		failed := p.cli(args...)
		failed.wantError(1, ":1: the event is not JSON")
		if !strings.Contains(failed.stderr, "nothing was ") || strings.Contains(failed.stderr, "to go on") {
			t.Errorf("%q said\n%s", args, failed.stderr)
		}
	}
	path := fileOf(t, numbered(1, 3)+"x\n"+numbered(5, 8))
	p.cli("post", "-f", path, "--key-prefix", "other", "-q", "other", "--batch", "2").wantError(1, "lines up to 3 are stored")
	p.cli("post", "-f", path, "--key-prefix", "other", "-q", "other", "--skip", "4").want(0)
	if n := len(p.cli("events", "-q", "other").events()); n != 7 {
		t.Errorf("%d events are stored, want 7", n)
	}
}

func TestBatchThatIsTooLargeForTheServerIsHalved(t *testing.T) {
	t.Parallel()
	p := setupFront(t, "QUEUED_MAX_BODY=8192", "QUEUED_MAX_BATCH_BODY=65536")
	long := strings.Repeat("x", 4000)
	text := strings.ReplaceAll(numbered(1, 100), `"id"`, `"text":"`+long+`","id"`)
	p.cli("post", "-f", fileOf(t, text), "--key-field", "/order/id").want(0)
	if n := len(p.cli("events", "-n", "0").events()); n != 100 {
		t.Errorf("%d events are stored, want 100", n)
	}
	p.cli("post", "-f", fileOf(t, numbered(1, 2)+`{"text":"`+strings.Repeat(long, 20)+`"}`)).wantError(1, "events.ndjson:3: ")
}

// What says something of an idempotency key needs one: without it each event would be another one.
func TestPostRefusesOptionsOfKeysWithoutAKey(t *testing.T) {
	t.Parallel()
	p := setupFront(t)
	for _, option := range [][]string{{"--on-duplicate", "replace"}, {"--key-until", "finished"}, {"--max-wait", "1m"}} {
		if said := p.cli(append([]string{"post", `{"n":1}`}, option...)...).want(2).stderr; !strings.Contains(said, option[0]+" says what becomes of an idempotency key") {
			t.Errorf("%s: %s", option[0], said)
		}
	}
	p.cli("post", `{"n":1}`, "--idempotency-key", "k", "--on-duplicate", "replace", "--key-until", "finished", "--max-wait", "1m", "--delay", "1h").want(0)
}
