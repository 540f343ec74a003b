package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/queued/queued/internal/gatewaytest"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/porttest"
)

// waitTimeout bounds every wait of a test. It is long, for a busy machine and the race detector.
const waitTimeout = 2 * time.Minute

// program is a running queued, or another program, with its output.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	addr   string // where it serves; known once it is serving
	ended  chan struct{}
	stdout bytes.Buffer // to be read after ended

	mu       sync.Mutex
	lines    []string      // lines of standard error
	nextLine chan struct{} // closed at the next line, and then another
}

// raceSettings is the variable by which make test has the race detector end a program at once: by default a program built with it sleeps for a second
// before it ends.
func raceSettings() string { return "GORACE=" + os.Getenv("GORACE") }

// startProgram starts queued with args and environ, until the end of the test.
func startProgram(t *testing.T, args, environ []string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary(t), args...)}
	p.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(os.TempDir(), "nobody-has-this-home"),
		"QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json", "QUEUED_MAX_CONNS=4", raceSettings(),
	}, environ...)
	p.cmd.Stdout = &p.stdout
	p.start()
	return p
}

// startBeside starts another program, and records its standard output, too. It and its children are stopped at the end of the test.
func startBeside(t *testing.T, environ []string, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(name, args...)}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), raceSettings()}, environ...)
	leadGroup(p.cmd)
	p.start()
	return p
}

// start starts the program, until the end of the test.
func (p *program) start() {
	t := p.t
	t.Helper()
	p.ended, p.nextLine = make(chan struct{}), make(chan struct{})
	// Not StderrPipe: it must be read to its end before Wait, and a child of the program could keep it open.
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stderr = writer
	if p.cmd.Stdout == nil {
		p.cmd.Stdout = writer
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		defer func() { _ = reader.Close() }()
		output := bufio.NewReader(reader)
		for {
			line, err := output.ReadString('\n')
			if line != "" {
				p.addLine(strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = p.cmd.Wait()
		<-copied
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("output of %s:\n%s", strings.Join(p.cmd.Args[1:], " "), p.output())
		}
	})
}

// setup serves a new database.
func setup(t *testing.T, environ ...string) *program {
	t.Helper()
	return serve(t, nil, append([]string{"QUEUED_DATABASE_URL=" + pgtest.New(t).ServiceURL}, environ...)...)
}

// setupFront is setup for tests of what callers see. With gatewaytest.Env the address of the program is that of a gateway in front of it, and of other cells.
func setupFront(t *testing.T, environ ...string) *program {
	t.Helper()
	p := setup(t, environ...)
	n := gatewaytest.Cells(t)
	if n == 0 {
		return p
	}
	cells := []string{"0=http://" + p.addr}
	for number := 1; number < n; number++ {
		other := setup(t, append(slices.Clone(environ), fmt.Sprintf("QUEUED_CELL=%d", number))...)
		cells = append(cells, fmt.Sprintf("%d=http://%s", number, other.addr))
	}
	settings := []string{"QUEUED_CELLS=" + strings.Join(cells, ",")}
	for _, variable := range environ {
		if key, isKey := strings.CutPrefix(variable, "QUEUED_API_KEY="); isKey {
			settings = append(settings, "QUEUED_KEY="+key)
		}
	}
	front := serve(t, []string{"gateway"}, settings...)
	until(t, "the gateway uses all cells", func() bool { return strings.Count(front.output(), "the cell can be used") >= n })
	front.wantReady()
	p.addr = front.addr
	return p
}

// placeAtHome places queues at home, where there are several cells: ids begin with 1 there.
func (p *program) placeAtHome(queues ...string) {
	p.t.Helper()
	for _, queue := range queues {
		if gatewaytest.Cells(p.t) > 1 {
			p.want(http.StatusOK, http.MethodPost, "/queues/"+queue+"/placement", `{"cell":0}`)
		}
	}
}

// serve starts queued and returns when it serves.
func serve(t *testing.T, args []string, environ ...string) *program {
	t.Helper()
	p := startProgram(t, args, environ)
	p.addr, _ = p.waitFor("serving")["addr"].(string)
	return p
}

func (p *program) addLine(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, line)
	close(p.nextLine)
	p.nextLine = make(chan struct{})
}

// output returns what the program has written to standard error.
func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// waitFor waits for a log line with a message and returns its fields.
func (p *program) waitFor(message string) map[string]any {
	p.t.Helper()
	var fields map[string]any
	p.waitForLine(message, func(line string) bool {
		fields = nil
		return json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message
	})
	return fields
}

// waitForLine waits for a line; what describes it.
func (p *program) waitForLine(what string, matches func(line string) bool) {
	p.t.Helper()
	late := time.After(waitTimeout)
	for from := 0; ; {
		p.mu.Lock()
		lines, nextLine := p.lines, p.nextLine
		p.mu.Unlock()
		for ; from < len(lines); from++ {
			if matches(lines[from]) {
				return
			}
		}
		select {
		case <-nextLine:
			continue
		case <-late:
			p.t.Fatalf("the program did not write the line %q", what)
		case <-p.ended: // its output is complete
		}
		p.mu.Lock()
		over := len(p.lines) == from
		p.mu.Unlock()
		if over {
			p.t.Fatalf("the program ended (%s) without the line %q", p.cmd.ProcessState, what)
		}
	}
}

// signal sends sig to the program.
func (p *program) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Errorf("sending %s: %v", sig, err)
	}
}

// wait returns the program's exit code, -1 when a signal ended it.
func (p *program) wait() int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(waitTimeout):
		p.t.Fatal("the program did not end in time")
		return 0
	}
}

// stop ends the program by SIGTERM, or by SIGKILL when that fails.
func (p *program) stop() {
	select {
	case <-p.ended:
		return
	default:
	}
	terminate(p.cmd)
	select {
	case <-p.ended:
	case <-time.After(waitTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// closedAddress returns an address on which nothing listens.
func closedAddress(t *testing.T) string {
	t.Helper()
	return "127.0.0.1:" + strconv.Itoa(porttest.Free(t))
}

// answer is a response.
type answer struct {
	status int
	body   string
	header http.Header
}

// decode decodes the body.
func (a answer) decode(t *testing.T) map[string]any {
	t.Helper()
	var out map[string]any
	if err := json.Unmarshal([]byte(a.body), &out); err != nil {
		t.Fatalf("%d %q: %v", a.status, a.body, err)
	}
	return out
}

// send sends one request over a connection of its own, with headers as "Name: value".
func (p *program) send(method, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(p.t.Context(), method, "http://"+p.addr+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		req.Header.Set(name, value)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: waitTimeout}
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, string(text), res.Header}, err
}

// want sends one request and returns its response, which must have the status.
func (p *program) want(status int, method, path, body string, headers ...string) answer {
	p.t.Helper()
	got, err := p.send(method, path, body, headers...)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	if got.status != status {
		p.t.Fatalf("%s %s answered %d %s, want %d", method, path, got.status, got.body, status)
	}
	return got
}

// until waits until state is true, which no signal announces; what describes it.
func until(t *testing.T, what string, state func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(waitTimeout); !state(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// wantReady waits until the program is ready. On a busy machine its first looks at the database may take longer than they may.
func (p *program) wantReady() {
	p.t.Helper()
	until(p.t, "the program is ready", func() bool {
		got, err := p.send(http.MethodGet, "/readyz", "")
		return err == nil && got.status == http.StatusOK
	})
}

// claimOne claims the only event.
func (p *program) claimOne() map[string]any {
	p.t.Helper()
	events, _ := p.want(http.StatusOK, http.MethodPost, "/claim", "{}").decode(p.t)["events"].([]any)
	if len(events) != 1 {
		p.t.Fatalf("claimed %d events, want 1", len(events))
	}
	event, _ := events[0].(map[string]any)
	return event
}
