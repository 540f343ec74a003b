//go:build linux

package doctest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// isComplete says whether bash takes a text as whole commands.
func isComplete(text string) bool {
	cmd := exec.Command("bash", "-n")
	cmd.Stdin = strings.NewReader(text + "\n")
	return cmd.Run() == nil
}

// A shell is a bash that runs the commands of a page.
type shell struct {
	t     *testing.T
	dir   string
	input io.Writer
	lines chan string // what it prints
	count int
}

// commandLimit bounds a command. It is long, for a busy machine.
const commandLimit = time.Minute

// startShell starts a bash in a directory. Whatever it has started ends with the test.
func startShell(t *testing.T, dir string, environ []string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "--noprofile")
	cmd.Dir, cmd.Env = dir, environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	input, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	reader, writer := terminal(t)
	cmd.Stdout, cmd.Stderr = writer, writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	s := &shell{t: t, dir: dir, input: input, lines: make(chan string, 1000)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(s.lines)
		lines := bufio.NewReader(reader)
		for {
			line, err := lines.ReadString('\n')
			if line != "" {
				s.lines <- strings.TrimSuffix(line, "\n")
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
		go func() {
			for range s.lines { // so that the reader ends
			}
		}()
		<-read
		_ = reader.Close()
	})
	return s
}

// terminal returns both ends of a terminal, which is what readers run the commands in. It changes nothing of what is written.
func terminal(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(int(reader.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	writer, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := unix.IoctlGetTermios(int(writer.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	settings.Oflag &^= unix.OPOST
	settings.Lflag &^= unix.ECHO
	if err := unix.IoctlSetTermios(int(writer.Fd()), unix.TCSETS, settings); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(int(writer.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: 120}); err != nil {
		t.Fatal(err)
	}
	return reader, writer
}

// run runs commands, and returns the lines that they print and their exit code.
func (s *shell) run(text string) (lines []string, code string, err error) {
	s.count++
	file := filepath.Join(s.dir, fmt.Sprintf(".command-%d", s.count))
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		return nil, "", err
	}
	end := fmt.Sprintf("\x01%d ", s.count)
	// Output without a newline at its end stays apart from the mark.
	if _, err := fmt.Fprintf(s.input, ". %s </dev/null; printf '\\n%s%%d\\n' \"$?\"\n", file, end); err != nil {
		return nil, "", err
	}
	limit := time.NewTimer(commandLimit)
	defer limit.Stop()
	for {
		select {
		case line, isOpen := <-s.lines:
			if !isOpen {
				return lines, "", errors.New("the shell has ended")
			}
			if code, isEnd := strings.CutPrefix(line, end); isEnd {
				for len(lines) > 0 && lines[len(lines)-1] == "" {
					lines = lines[:len(lines)-1]
				}
				return lines, code, nil
			}
			lines = append(lines, onTerminal(line))
		case <-limit.C:
			return lines, "", fmt.Errorf("it has not ended within %s", commandLimit)
		}
	}
}

// onTerminal returns what a terminal shows of a line: the text after the last carriage return, as each report of progress is written over the one before.
func onTerminal(line string) string {
	line = strings.TrimRight(line, "\r")
	return line[strings.LastIndexByte(line, '\r')+1:]
}

// A server is a running queued, which serves a page.
type server struct{ addr string }

// serve starts the program and returns when it serves, until the end of the test.
func serve(t *testing.T, program, dir string, environ []string) server {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "serve")
	cmd.Dir, cmd.Env, cmd.Stderr = dir, environ, writer
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	serving := make(chan string, 1)
	ended := make(chan struct{})
	var log bytes.Buffer
	go func() {
		defer close(ended)
		defer func() { _ = reader.Close() }()
		lines := bufio.NewScanner(io.TeeReader(reader, &log))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if _, after, ok := strings.Cut(lines.Text(), `"addr":"`); ok && strings.Contains(after, `"message":"serving"`) {
				addr, _, _ := strings.Cut(after, `"`)
				serving <- addr
			}
		}
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			text := log.String()
			t.Logf("the end of the server's log:\n%s", text[max(0, len(text)-3000):])
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), commandLimit)
	defer cancel()
	select {
	case addr := <-serving:
		return server{addr}
	case <-ended:
		t.Fatalf("the server has ended:\n%s", &log)
	case <-ctx.Done():
		t.Fatal("the server did not start in time")
	}
	return server{}
}
