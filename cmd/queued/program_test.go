package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for a signal of the program before it gives up on it: long,
// for a machine that runs many of these at once under the race detector.
const patience = 2 * time.Minute

// program is a running queued, or something that runs beside it, with what it has said so far.
type program struct {
	t      *testing.T
	cmd    *exec.Cmd
	addr   string // where it serves; known once it is serving
	ended  chan struct{}
	stdout bytes.Buffer // to be read after ended

	mu    sync.Mutex
	said  []string      // lines of standard error
	heard chan struct{} // closed at the next line, and then another
}

// startProgram starts the program with args, and environ on top of what every test needs. It is
// stopped at the end of the test.
func startProgram(t *testing.T, args, environ []string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(binary(t), args...)}
	p.cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(os.TempDir(), "nobody-has-this-home"),
		"QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json", "QUEUED_MAX_CONNS=4",
	}, environ...)
	p.cmd.Stdout = &p.stdout
	p.start()
	return p
}

// startBeside starts another program with a few variables of its own. All that it writes is heard. It and what it has started are
// stopped at the end of the test.
func startBeside(t *testing.T, environ []string, name string, args ...string) *program {
	t.Helper()
	p := &program{t: t, cmd: exec.Command(name, args...)}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, environ...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.start()
	return p
}

// start starts the program, to be stopped at the end of the test.
func (p *program) start() {
	t := p.t
	t.Helper()
	p.ended, p.heard = make(chan struct{}), make(chan struct{})
	// A pipe of our own: exec's would have to be read to its end before Wait, and whatever the
	// program leaves running could hold it open.
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
	listened := make(chan struct{})
	go func() {
		defer close(listened)
		defer func() { _ = reader.Close() }()
		lines := bufio.NewReader(reader)
		for {
			line, err := lines.ReadString('\n')
			if line != "" {
				p.hear(strings.TrimSuffix(line, "\n"))
			}
			if err != nil {
				return
			}
		}
	}()
	go func() {
		_ = p.cmd.Wait()
		<-listened
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("%s said:\n%s", strings.Join(p.cmd.Args[1:], " "), p.output())
		}
	})
}

// serve starts the program and returns when it serves.
func serve(t *testing.T, args []string, environ ...string) *program {
	t.Helper()
	p := startProgram(t, args, environ)
	p.addr, _ = p.waitFor("serving")["addr"].(string)
	return p
}

func (p *program) hear(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = append(p.said, line)
	close(p.heard)
	p.heard = make(chan struct{})
}

// output is everything the program has written to standard error.
func (p *program) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.said, "\n")
}

// waitFor returns the fields of the first log line with this message, once there is one.
func (p *program) waitFor(message string) map[string]any {
	p.t.Helper()
	var fields map[string]any
	p.waitForLine(message, func(line string) bool {
		fields = nil
		return json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message
	})
	return fields
}

// waitForLine returns when the program has written a line that is the one, which is called what.
func (p *program) waitForLine(what string, isTheOne func(line string) bool) {
	p.t.Helper()
	late := time.After(patience)
	for from := 0; ; {
		p.mu.Lock()
		said, heard := p.said, p.heard
		p.mu.Unlock()
		for ; from < len(said); from++ {
			if isTheOne(said[from]) {
				return
			}
		}
		select {
		case <-heard:
			continue
		case <-late:
			p.t.Fatalf("the program did not say %q", what)
		case <-p.ended: // and then has said all it ever will
		}
		p.mu.Lock()
		over := len(p.said) == from
		p.mu.Unlock()
		if over {
			p.t.Fatalf("the program ended (%s) and never said %q", p.cmd.ProcessState, what)
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
	case <-time.After(patience):
		p.t.Fatal("the program does not end")
		return 0
	}
}

// stop ends the program in any case.
func (p *program) stop() {
	select {
	case <-p.ended:
		return
	default:
	}
	if p.cmd.SysProcAttr != nil { // the leader of a group
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGTERM)
	} else {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// answer is what the program answered to a request.
type answer struct {
	status int
	body   string
}

// decode returns the answer's body as JSON.
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
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	res, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, string(text)}, err
}

// want sends one request and returns the answer, which must have the status.
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

// until polls state, which has no way to tell when it becomes true, and which is called what.
func until(t *testing.T, what string, state func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); !state(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// claimOne claims the one event there is.
func (p *program) claimOne() map[string]any {
	p.t.Helper()
	events, _ := p.want(http.StatusOK, http.MethodPost, "/claim", "{}").decode(p.t)["events"].([]any)
	if len(events) != 1 {
		p.t.Fatalf("claimed %d events, want 1", len(events))
	}
	event, _ := events[0].(map[string]any)
	return event
}
