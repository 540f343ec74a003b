package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/client"
)

// The exit codes by which a command decides on its event. They are those of sysexits.h: EX_DATAERR and EX_TEMPFAIL. Any other code
// but 0 retries the event, as 75 does.
const exitFinal = 65

const (
	// maxResult is how much of standard output can be a result, in bytes; the server takes no more.
	maxResult = 64 << 10
	// maxErrorTail is how much of standard error is kept with an event, in bytes.
	maxErrorTail = 2 << 10
	// killDelay is the time from SIGTERM to SIGKILL. A worker that stops waits five seconds for its commands.
	killDelay = 2 * time.Second
	// outputDelay is how long to wait, after a command has ended, for processes that it has left running to close its output.
	outputDelay = time.Second
	// maxLine is the longest line of output that is passed on as one, in bytes.
	maxLine = 8 << 10
)

// An executor runs the command of a worker.
type executor struct {
	command string
	timeout time.Duration // 0: none
	environ []string
	out     io.Writer // gets the output of the commands that is no result, each line with the event's id
}

// run runs the command for an event. It returns the result that the command has written, or nil, and an error that says how it failed. When ctx
// ends because the lease is lost, it kills the command and everything in its process group at once; when the worker stops, or the timeout is over, it
// asks them to end before. A command that still ends with 0 has succeeded.
func (x *executor) run(ctx context.Context, e client.Event) (any, error) {
	// On Linux the command is killed with the thread that started it, so that it does not outlive this process: see ownGroup.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	lines := &prefixWriter{w: x.out, prefix: "event " + id(e.ID) + ": "}
	defer lines.flush()
	stdout := &headBuffer{limit: maxResult}
	stderr := &tailBuffer{limit: maxErrorTail}
	cmd := shellCommand(x.command)
	cmd.Stdin = bytes.NewReader(append(bytes.Clone(e.Payload), '\n'))
	cmd.Stdout, cmd.Stderr = stdout, io.MultiWriter(stderr, lines)
	cmd.Env = slices.Concat(x.environ, eventEnviron(e))
	cmd.WaitDelay = outputDelay
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("the command cannot be started: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var late <-chan time.Time
	if x.timeout > 0 {
		timer := time.NewTimer(x.timeout)
		defer timer.Stop()
		late = timer.C
	}
	var cause error
	var err error
	select {
	case err = <-ended:
	case <-ctx.Done():
		if cause = context.Cause(ctx); errors.Is(cause, client.ErrLeaseLost) {
			killGroup(cmd.Process)
			return nil, errors.Join(cause, <-ended)
		}
		err = endGroup(cmd.Process, ended)
	case <-late:
		cause = fmt.Errorf("the command took longer than %s and was ended", x.timeout)
		err = endGroup(cmd.Process, ended)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) { // which says that it has ended with 0
		return x.result(stdout, lines), nil
	}
	if cause == nil {
		cause = errors.New(cmd.ProcessState.String())
	}
	if text := strings.TrimSpace(stderr.String()); text != "" {
		cause = fmt.Errorf("%w: %s", cause, text)
	}
	if cmd.ProcessState.ExitCode() == exitFinal {
		cause = client.Final(cause)
	}
	return nil, cause
}

// result returns the result that a command has written, or nil. Other output is passed on.
func (x *executor) result(stdout *headBuffer, lines io.Writer) any {
	text := bytes.TrimSpace(stdout.kept)
	switch {
	case len(text) == 0:
		return nil
	case stdout.isCut:
		_, _ = fmt.Fprintf(lines, "its output of more than %d bytes is not kept as its result\n", maxResult)
		return nil
	case isStorable(text):
		return json.RawMessage(text)
	}
	_, _ = lines.Write(append(text, '\n'))
	return nil
}

// maxResultDepth is how deeply a result may be nested, in objects and lists; the server takes no more with the object that it puts the result into.
const maxResultDepth = 60

// isStorable reports whether text is one JSON value that the server can store.
func isStorable(text []byte) bool {
	in := jsontext.NewDecoder(bytes.NewReader(text)) // it refuses names that come twice, and halves of surrogate pairs
	for {
		token, err := in.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return in.StackDepth() == 0
		case err != nil, in.StackDepth() > maxResultDepth:
			return false
		}
		switch token.Kind() {
		case '"':
			if strings.ContainsRune(token.String(), 0) {
				return false
			}
		case '0':
			if _, err := strconv.ParseFloat(token.String(), 64); err != nil {
				return false
			}
		case '{', '}', '[', ']', 'n', 't', 'f':
		}
		if in.StackDepth() == 0 && len(bytes.TrimSpace(text[in.InputOffset():])) > 0 {
			return false // there is a second value
		}
	}
}

// endGroup asks a process and its group to end, kills them when they don't, and returns the error from ended.
func endGroup(process *os.Process, ended <-chan error) error {
	terminateGroup(process)
	timer := time.NewTimer(killDelay)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		killGroup(process)
		return <-ended
	}
}

// childEnviron returns the environment that all commands get: that of this process, without variables about one event.
func childEnviron(environ []string) []string {
	var kept []string
	for _, entry := range environ {
		if !strings.HasPrefix(entry, "TRACEPARENT=") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// traceparent is a trace context of W3C, of this or a later version.
var traceparent = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-|$)`)

// eventEnviron returns the variables about an event, which its command gets besides.
func eventEnviron(e client.Event) []string {
	environ := []string{
		"QUEUED_ID=" + id(e.ID), "QUEUED_TYPE=" + withoutNUL(e.Type), "QUEUED_ATTEMPT=" + strconv.Itoa(e.Attempts), "QUEUED_RECEIPT=" + e.Receipt,
	}
	var meta struct{ Traceparent string }
	if json.Unmarshal(e.Meta, &meta) == nil && traceparent.MatchString(meta.Traceparent) {
		environ = append(environ, "TRACEPARENT="+meta.Traceparent)
	}
	return environ
}

// withoutNUL returns a text as a variable can have it.
func withoutNUL(text string) string { return strings.ReplaceAll(text, "\x00", "") }

// headBuffer keeps the first bytes that are written.
type headBuffer struct {
	limit int
	kept  []byte
	isCut bool // there were more
}

// Write implements io.Writer.
func (b *headBuffer) Write(p []byte) (int, error) {
	n := min(len(p), b.limit-len(b.kept))
	b.kept = append(b.kept, p[:n]...)
	b.isCut = b.isCut || n < len(p)
	return len(p), nil
}

// tailBuffer keeps the last bytes that are written.
type tailBuffer struct {
	limit int
	kept  []byte
}

// Write implements io.Writer.
func (b *tailBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[max(0, len(p)-b.limit):]...)
	if excess := len(b.kept) - b.limit; excess > 0 {
		b.kept = append(b.kept[:0], b.kept[excess:]...)
	}
	return len(p), nil
}

// String returns the text kept. A character that was cut is left out.
func (b *tailBuffer) String() string { return strings.ToValidUTF8(string(b.kept), "") }

// prefixWriter writes whole lines, each after a prefix.
type prefixWriter struct {
	w      io.Writer
	prefix string
	line   []byte // that is not complete
}

// Write implements io.Writer.
func (p *prefixWriter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		part, rest, complete := bytes.Cut(b, []byte("\n"))
		p.line = append(p.line, part...)
		if b = rest; complete || len(p.line) >= maxLine {
			p.flush()
		}
	}
	return n, nil
}

// flush writes the incomplete line.
func (p *prefixWriter) flush() {
	if len(p.line) > 0 {
		_, _ = io.WriteString(p.w, p.prefix+printable(strings.ToValidUTF8(string(p.line), "\uFFFD"))+"\n") // output that nobody reads stops no work
	}
	p.line = p.line[:0]
}
