package workloads

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	startLimit = 2 * time.Minute // for a server, with its migration, on a busy machine
	stopLimit  = time.Minute
	// drainInterval is how often the log of a started server is read. It writes a line per request; reading each at once
	// would cost the load generator a wake-up per request.
	drainInterval = 20 * time.Millisecond
	// logPipe holds what a server writes meanwhile.
	logPipe = 1 << 20
	// tailSize is how much of its log is kept for the case that it fails.
	tailSize = 4 << 10
)

// Build builds queued from its repository, the folder root. remove removes the program.
func Build(ctx context.Context, root string) (program string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	program = filepath.Join(dir, "queued")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", root, "-trimpath", "-o", program, "./cmd/queued") //nolint:gosec // a folder of our own
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("building queued from %s (run this in bench/, or give --program): %w\n%s", root, err, output)
	}
	return program, remove, nil
}

// child is a queued that this one has started.
type child struct {
	cmd   *exec.Cmd
	url   string
	ended chan struct{} // closed when it is gone and reaped

	mu   sync.Mutex
	tail []byte
}

// ownSettings are the variables that a started server does not inherit.
var ownSettings = []string{
	"QUEUED_DATABASE_URL", "QUEUED_DATABASE_URL_FILE", "QUEUED_DATA_DIR", "QUEUED_LISTEN", "QUEUED_API_KEY", "QUEUED_API_KEY_FILE",
	"QUEUED_LOG_FORMAT", "QUEUED_LOG_LEVEL",
}

// startChild starts a server on a database and returns when it serves. It has the settings that environ holds, and
// logs as it does by default.
func startChild(ctx context.Context, program string, environ []string, databaseURL string) (*child, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	enlarge(writer, logPipe)
	c := &child{cmd: exec.Command(program, "serve"), ended: make(chan struct{})} //nolint:noctx // this very program; it is stopped in order, not killed with a context
	for _, variable := range environ {
		if name, _, _ := strings.Cut(variable, "="); !slices.Contains(ownSettings, name) {
			c.cmd.Env = append(c.cmd.Env, variable)
		}
	}
	c.cmd.Env = append(c.cmd.Env, "QUEUED_DATABASE_URL="+databaseURL, "QUEUED_LISTEN=127.0.0.1:0", "QUEUED_LOG_FORMAT=json", "QUEUED_LOG_LEVEL=info")
	c.cmd.Stderr = writer
	// A group of its own: Ctrl-C in a terminal goes to the whole group, and the server has to outlive the clients.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	tieToParent(c.cmd.SysProcAttr)
	started := make(chan error, 1)
	go func() {
		// A child that is tied to its parent is signalled when the thread that made it ends, and Go ends threads as it likes.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.ended)
		err := c.cmd.Start()
		_ = writer.Close()
		started <- err
		if err == nil {
			_ = c.cmd.Wait() // how it ended is in cmd.ProcessState
		}
	}()
	if err := <-started; err != nil {
		_ = reader.Close()
		return nil, fmt.Errorf("starting a server: %w", err)
	}
	serving := make(chan string, 1)
	go c.drain(reader, serving)

	timer := time.NewTimer(startLimit)
	defer timer.Stop()
	select {
	case c.url = <-serving:
		return c, nil
	case <-c.ended:
		return nil, c.failure()
	case <-timer.C:
		err = fmt.Errorf("the server did not serve within %s; it said last:\n%s", startLimit, c.last())
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, c.stop())
}

// drain reads the log until the child's end, and tells serving the URL once it is there.
func (c *child) drain(reader *os.File, serving chan<- string) {
	defer func() { _ = reader.Close() }()
	buffer := make([]byte, logPipe)
	var pending []byte
	tick := time.NewTicker(drainInterval)
	defer tick.Stop()
	for {
		n, err := reader.Read(buffer)
		c.keep(buffer[:n])
		if serving != nil {
			pending = append(pending, buffer[:n]...)
			var url string
			if url, pending = servingURL(pending); url != "" {
				serving <- url
				serving, pending = nil, nil
			}
		}
		if err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-c.ended: // what is left is read at once
		}
	}
}

// keep adds what matters of the log to the tail: not the lines about requests that went well.
func (c *child) keep(log []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for line := range bytes.Lines(log) {
		if !bytes.Contains(line, []byte(`"message":"request"`)) || bytes.Contains(line, []byte(`"level":"error"`)) {
			c.tail = append(c.tail, line...)
		}
	}
	c.tail = c.tail[max(0, len(c.tail)-tailSize):]
}

// servingURL looks for the line that says that the server serves, and returns what follows the lines it has read.
func servingURL(log []byte) (url string, rest []byte) {
	for {
		line, tail, whole := bytes.Cut(log, []byte("\n"))
		if !whole {
			return "", log
		}
		var said struct{ Message, URL string }
		if json.Unmarshal(line, &said) == nil && said.Message == "serving" {
			return said.URL, tail
		}
		log = tail
	}
}

func (c *child) last() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(bytes.TrimSpace(c.tail))
}

// failure says how a child ended that was not told to.
func (c *child) failure() error {
	return fmt.Errorf("the server ended by itself (%s); it said last:\n%s", c.cmd.ProcessState, c.last())
}

// stop ends the child in order, and the hard way when that takes too long.
func (c *child) stop() error {
	select {
	case <-c.ended:
		return nil
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping the server: %w", err)
	}
	timer := time.NewTimer(stopLimit)
	defer timer.Stop()
	select {
	case <-c.ended:
		if !c.cmd.ProcessState.Success() {
			return fmt.Errorf("the server did not stop cleanly (%s); it said last:\n%s", c.cmd.ProcessState, c.last())
		}
		return nil
	case <-timer.C:
		_ = c.cmd.Process.Kill()
		<-c.ended
		return fmt.Errorf("the server did not stop within %s and was killed; it said last:\n%s", stopLimit, c.last())
	}
}
