package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/queued/queued/internal/pgtest"
)

// terminal is a command that runs on a terminal of 110 characters.
type terminal struct {
	t       *testing.T
	cmd     *exec.Cmd
	control *os.File // the other side of the terminal
	ended   chan struct{}

	mu     sync.Mutex
	output bytes.Buffer
	grown  chan struct{} // closed when there is more output, and then another
}

// onTerminal starts a command of queued on a terminal, until the end of the test.
func onTerminal(t *testing.T, environ []string, args ...string) *terminal {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ioctl := func(request uintptr, argument unsafe.Pointer) {
		if _, _, failure := syscall.Syscall(syscall.SYS_IOCTL, control.Fd(), request, uintptr(argument)); failure != 0 {
			t.Fatal(failure)
		}
	}
	var number, locked int32
	size := [4]uint16{40, 110}
	ioctl(syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	ioctl(syscall.TIOCGPTN, unsafe.Pointer(&number))
	ioctl(syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	side, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &terminal{t: t, cmd: exec.CommandContext(ctx, binary(t), args...), control: control, ended: make(chan struct{}), grown: make(chan struct{})}
	x.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(os.TempDir(), "nobody-has-this-home"), "TERM=xterm", raceSettings()}, environ...)
	x.cmd.Stdin, x.cmd.Stdout, x.cmd.Stderr = side, side, side
	x.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := x.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = side.Close()
	go func() {
		defer close(x.ended)
		part := make([]byte, 4096)
		for {
			n, err := control.Read(part)
			x.mu.Lock()
			x.output.Write(part[:n])
			close(x.grown)
			x.grown = make(chan struct{})
			x.mu.Unlock()
			if err != nil { // the last process on the terminal has ended
				break
			}
		}
		_ = x.cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-x.ended
		_ = control.Close()
		if t.Failed() {
			t.Logf("on the terminal:\n%q", x.text())
		}
	})
	return x
}

// text returns everything that was written so far.
func (x *terminal) text() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.output.String()
}

// want waits until a text was written.
func (x *terminal) want(text string) {
	x.t.Helper()
	for {
		x.mu.Lock()
		has, grown := strings.Contains(x.output.String(), text), x.grown
		x.mu.Unlock()
		if has {
			return
		}
		select {
		case <-grown:
		case <-x.ended:
			if !strings.Contains(x.text(), text) {
				x.t.Fatalf("the command ended and has not written %q", text)
			}
			return
		case <-time.After(waitTimeout):
			x.t.Fatalf("it has not written %q", text)
		}
	}
}

// isEchoing reports whether the terminal shows what is typed.
func (x *terminal) isEchoing() bool {
	x.t.Helper()
	var settings syscall.Termios
	if _, _, failure := syscall.Syscall(syscall.SYS_IOCTL, x.control.Fd(), syscall.TCGETS, uintptr(unsafe.Pointer(&settings))); failure != 0 {
		x.t.Fatal(failure)
	}
	return settings.Lflag&syscall.ECHO != 0
}

// waitForEcho waits until the terminal shows what is typed, or no longer does.
func (x *terminal) waitForEcho(echo bool) {
	x.t.Helper()
	for deadline := time.Now().Add(waitTimeout); x.isEchoing() != echo; time.Sleep(time.Millisecond) { //nolint:forbidigo // a terminal tells nobody when its settings change
		if time.Now().After(deadline) {
			x.t.Fatal("the terminal's echo does not change")
		}
	}
}

// wait waits for the end of the command and returns its exit code.
func (x *terminal) wait() int {
	x.t.Helper()
	select {
	case <-x.ended:
	case <-time.After(waitTimeout):
		x.t.Fatal("the command does not end")
	}
	return x.cmd.ProcessState.ExitCode()
}

func TestTerminalSaysWithinASecondThatTheServerIsAway(t *testing.T) {
	t.Parallel()
	address := closedAddress(t)
	began := time.Now()
	x := onTerminal(t, []string{"QUEUED_URL=http://" + address}, "queues", "--retry-for", "1h")
	x.want("queued: no answer from http://" + address + " (QUEUED_URL): dial tcp " + address + ": connect: connection refused\r\n")
	t.Logf("it was said after %s", time.Since(began)) // which a busy machine delays
	x.want("waiting for the server: 1s of 1h0m0s (--retry-for); Ctrl-C ends it")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"queues":[],"next":null}`) })}
	defer func() { _ = server.Close() }()
	go func() { _ = server.Serve(listener) }()
	if code := x.wait(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	if _, last, _ := strings.Cut(x.text(), "waiting"); !strings.HasSuffix(last, " \rno queues yet; the first event makes one\r\n") {
		t.Errorf("at last it wrote %q", last)
	}
}

func TestTopOnATerminalGivesUpWhenItIsTold(t *testing.T) {
	t.Parallel()
	x := onTerminal(t, nil, "top", "--interval", "100ms", "--retry-for", "300ms", "--url", "http://"+closedAddress(t))
	if code := x.wait(); code != 1 {
		t.Errorf("it ended with %d", code)
	}
	if !strings.Contains(x.text(), "queued: no answer from the server") {
		t.Errorf("it said %q", x.text())
	}
}

func TestInterruptedWaitForTheServer(t *testing.T) {
	t.Parallel()
	x := onTerminal(t, []string{"QUEUED_URL=http://" + closedAddress(t)}, "queues", "--retry-for", "1h")
	x.want("waiting for the server")
	_ = x.cmd.Process.Signal(syscall.SIGINT)
	if code := x.wait(); code != exitInterrupted || !strings.HasSuffix(x.text(), "\rqueued: interrupted\r\n") {
		t.Errorf("it ended with %d: %q", code, x.text())
	}
}

func TestInterruptEndsACommandThatWaitsForInput(t *testing.T) {
	t.Parallel()
	p := setup(t)
	home := "XDG_CONFIG_HOME=" + t.TempDir()
	for _, tt := range []struct {
		args []string
		asks string
	}{
		{[]string{"queue", "delete", "mail"}, "[y/N] "},
		{[]string{"context", "set", "production", "--url", "http://" + p.addr, "--key", "-"}, "API key: "},
		{[]string{"sources", "put", "shop"}, "Ctrl-D"},
		{[]string{"publish", "orders", "-f", "-"}, "0 events published"},
	} {
		x := onTerminal(t, []string{"QUEUED_URL=http://" + p.addr, home}, tt.args...)
		before := x.isEchoing()
		x.want(tt.asks)
		if tt.args[0] == "context" {
			x.waitForEcho(false)
		}
		_ = x.cmd.Process.Signal(syscall.SIGINT)
		code := x.wait()
		if code != exitInterrupted || !strings.HasSuffix(x.text(), "queued: interrupted\r\n") {
			t.Errorf("%q ended with %d: %q", tt.args, code, x.text())
		}
		if !before || !x.isEchoing() {
			t.Errorf("%q leaves a terminal that does not show what is typed", tt.args)
		}
	}
}

func TestTerminalShowsAgesAndAPipeExactTimes(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.cli("post", "-q", "mail", "--delay", "1d2h", "{}").want(0)
	if piped := p.cli("events", "-o", "table").want(0).stdout; strings.Contains(piped, "in ") || !strings.Contains(piped, "Z ") {
		t.Errorf("a pipe gets\n%s", piped)
	}
	for _, line := range [][]string{{"events"}, {"events", "1"}} {
		x := onTerminal(t, []string{"QUEUED_URL=http://" + p.addr}, line...)
		if code := x.wait(); code != 0 || !strings.Contains(x.text(), "in 25h") {
			t.Errorf("%q ended with %d", line, code)
		}
	}
}

func TestBareQueuedOnATerminalSaysWhatItDoesAndWhereTheDataAre(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t).ServiceURL
	environ := []string{"QUEUED_LISTEN=127.0.0.1:0", "QUEUED_DATABASE_URL=" + db}
	const says = "queued: serving on 127.0.0.1:0, with the events in "
	x := onTerminal(t, environ)
	x.want("queued is ready at")
	_ = x.cmd.Process.Signal(syscall.SIGTERM)
	if x.wait(); !strings.HasPrefix(x.text(), says) || strings.Contains(x.text(), "private PostgreSQL") || strings.Count(x.text(), "queued: ") != 1 {
		t.Errorf("it said %q", x.text())
	}
	p := serve(t, nil, environ...)
	if p.stop(); strings.Contains(p.output(), says) {
		t.Errorf("without a terminal it said %s", p.output())
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	x = onTerminal(t, []string{"QUEUED_LISTEN=127.0.0.1:0", "QUEUED_DATA_DIR=" + filepath.Join(file, "below")})
	x.want("with the events in a private PostgreSQL whose data are in " + file)
	x.wait()
}
