package clienttest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/gateway"
	"github.com/queued/queued/internal/gatewaytest"
	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(workerEnv); url != "" {
		os.Exit(runWorkerProcess(url))
	}
	code := pgtest.Run(m)
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// waitTimeout bounds every wait of a test. It is long, for a busy machine and the race detector.
const waitTimeout = 2 * time.Minute

// built is the program under test.
var built struct {
	once sync.Once
	dir  string
	err  error
}

// program returns the path of the built program, which exists until the last test has ended.
func program(tb testing.TB) string {
	tb.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "queued-client-"); built.err != nil { //nolint:usetesting // it outlives the test
			return
		}
		cmd := exec.Command("go", "build", "-o", filepath.Join(built.dir, "queued"), "github.com/queued/queued/cmd/queued")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("building the program: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		tb.Fatal(built.err)
	}
	return filepath.Join(built.dir, "queued")
}

// A server is a running program on a database of its own. It keeps its address when it is started again. Behind a gateway in front of several cells it is home.
type server struct {
	tb      testing.TB
	program string
	environ []string
	addr    string // that it listens at
	url     string // that clients call: of the server, or of a gateway in front of it
	db      *pgtest.DB
	others  []*server // the other cells, by their numbers
	cmd     *exec.Cmd
	ended   chan struct{}
	log     *lockedBuffer
}

// serve starts the program and returns when it serves, until the end of the test.
func serve(tb testing.TB, environ ...string) *server {
	tb.Helper()
	s := serveCell(tb, 0, environ)
	if n := gatewaytest.Cells(tb); n > 0 {
		urls := []string{s.url}
		for number := 1; number < n; number++ {
			other := serveCell(tb, number, environ)
			s.others, urls = append(s.others, other), append(urls, other.url)
		}
		s.url = gatewaytest.Start(tb, gateway.Config{Key: valueOf(environ, "QUEUED_API_KEY"), LoopbackOnly: true}, false, urls...).URL
	}
	return s
}

// serveCell starts the program as the cell of this number.
func serveCell(tb testing.TB, number int, environ []string) *server {
	tb.Helper()
	s := &server{tb: tb, program: program(tb), db: pgtest.New(tb), log: new(lockedBuffer)}
	s.environ = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Join(os.TempDir(), "nobody-has-this-home"), "QUEUED_DATABASE_URL=" + s.db.ServiceURL,
		"QUEUED_LOG_FORMAT=json", "QUEUED_MAX_CONNS=4", fmt.Sprintf("QUEUED_CELL=%d", number),
	}, environ...)
	s.start("127.0.0.1:0")
	s.url = "http://" + s.addr
	tb.Cleanup(func() {
		s.kill()
		if tb.Failed() {
			log := s.log.String()
			tb.Logf("the end of the server's log:\n%s", log[max(0, len(log)-5000):])
		}
	})
	return s
}

// cellOf returns the server that a queue is on. A queue that is placed nowhere is placed.
func (s *server) cellOf(queue string) *server {
	s.tb.Helper()
	if len(s.others) == 0 {
		return s
	}
	placed, err := s.client().PlaceNewQueue(s.tb.Context(), queue, len(s.others))
	if err != nil {
		s.tb.Fatal(err)
	}
	if cells := placed.Cells; len(cells) == 1 && cells[0] > 0 {
		return s.others[cells[0]-1]
	}
	return s
}

// valueOf returns the value of a variable, empty if it is not there.
func valueOf(environ []string, name string) string {
	for _, variable := range environ {
		if value, found := strings.CutPrefix(variable, name+"="); found {
			return value
		}
	}
	return ""
}

// start starts the program and returns when it serves.
func (s *server) start(listen string) {
	s.tb.Helper()
	s.cmd = exec.Command(s.program)
	s.cmd.Args = append(s.cmd.Args, "serve")
	s.cmd.Env = append([]string{"QUEUED_LISTEN=" + listen}, s.environ...)
	reader, writer, err := os.Pipe()
	if err != nil {
		s.tb.Fatal(err)
	}
	s.cmd.Stderr = writer
	if err := s.cmd.Start(); err != nil {
		s.tb.Fatal(err)
	}
	_ = writer.Close()
	serving := make(chan string, 1)
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		defer func() { _ = reader.Close() }()
		lines := bufio.NewScanner(io.TeeReader(reader, s.log))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var line struct{ Message, Addr string }
			if json.Unmarshal(lines.Bytes(), &line) == nil && line.Message == "serving" {
				serving <- line.Addr
			}
		}
		_ = cmd.Wait()
	}(s.cmd, s.ended)
	select {
	case addr := <-serving:
		s.addr = addr
	case <-s.ended:
		s.tb.Fatalf("the server has ended: %s", s.log)
	case <-time.After(waitTimeout):
		s.tb.Fatal("the server did not start in time")
	}
}

// kill kills the program, that of each cell, and waits for its end.
func (s *server) kill() {
	for _, at := range append(s.others, s) {
		_ = at.cmd.Process.Kill()
		<-at.ended
	}
}

// restart starts what was killed again at its address.
func (s *server) restart() {
	s.tb.Helper()
	for _, at := range append(s.others, s) {
		at.start(at.addr)
	}
}

// client returns a client of the server, which is closed at the end of the test.
func (s *server) client() *client.Client { return newClient(s.tb, client.Config{URL: s.url}) }

func newClient(tb testing.TB, cfg client.Config) *client.Client {
	tb.Helper()
	c, err := client.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// setup starts a server and returns a client of it.
func setup(t *testing.T) *client.Client {
	t.Helper()
	return serve(t).client()
}

// lockedBuffer is a buffer that many goroutines can use.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// soon returns a context that ends with the test, or after waitTimeout.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	t.Cleanup(cancel)
	return ctx
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
