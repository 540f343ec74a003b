package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/cli"
	"github.com/queued/queued/internal/gateway"
	"github.com/queued/queued/internal/gatewaytest"
	server "github.com/queued/queued/internal/http"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// waitTimeout bounds every wait of a test. It is long, for a busy machine.
const waitTimeout = 2 * time.Minute

// An environment is a server with a database of its own.
type environment struct {
	t      *testing.T
	url    string
	access *access.Service
	*client.Client
}

// setup starts a server without keys, or several cells and a gateway in front of them, until the end of the test.
func setup(t *testing.T) *environment {
	t.Helper()
	base, keys := startCell(t, 0)
	if n := gatewaytest.Cells(t); n > 0 {
		urls := []string{base}
		for number := 1; number < n; number++ {
			url, _ := startCell(t, number)
			urls = append(urls, url)
		}
		cfg := gateway.Config{Version: "1.2.3"}
		if n > 1 {
			cfg.Key = gatewaytest.Key
		}
		base = gatewaytest.Start(t, cfg, false, urls...).URL
	}
	c, err := client.New(client.Config{URL: base})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return &environment{t: t, url: base, access: keys, Client: c}
}

// placeAtHome places queues at home, where there are several cells.
func (h *environment) placeAtHome(queues ...string) {
	h.t.Helper()
	for _, queue := range queues {
		if gatewaytest.Cells(h.t) < 2 {
			break
		}
		if _, err := h.PlaceNewQueue(h.t.Context(), queue, 0); err != nil {
			h.t.Fatal(err)
		}
	}
}

// startCell starts a server of the cell of this number, with a database of its own, and returns its URL and its keys.
func startCell(t *testing.T, number int) (string, *access.Service) {
	t.Helper()
	db, err := pg.Open(t.Context(), pg.Config{URL: pgtest.New(t).ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	queues, err := queue.Open(t.Context(), queue.Config{Database: db, SweepInterval: -1, MaxConns: 4, QueryTimeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, queues.Run, queues.Close)
	schedules, err := schedule.Open(t.Context(), schedule.Config{Database: db, QueryTimeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, schedules.Run, schedules.Close)
	topics, err := topic.Open(t.Context(), topic.Config{Database: db, Queue: queues, QueryTimeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, topics.Run, topics.Close)
	keys, err := access.Open(t.Context(), access.Config{Database: db, QueryTimeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, keys.Run, keys.Close)
	cells, err := cell.Open(t.Context(), cell.Config{Database: db, Number: number, QueryTimeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	keepRunning(t, cells.Run, cells.Close)
	listener := httptest.NewUnstartedServer(nil)
	cfg := server.Config{
		Service: queues, Schedules: schedules, Topics: topics, Access: keys, Cells: cells, RequestTimeout: waitTimeout, Version: "1.2.3", Logger: zerolog.Nop(),
	}
	listener.Config = server.New(cfg).HTTPServer()
	if gatewaytest.Cells(t) > 1 { // the first key of a test must not keep the gateway out
		if cfg.Access, err = access.Open(t.Context(), access.Config{Database: db, QueryTimeout: waitTimeout, Key: gatewaytest.Key}); err != nil {
			t.Fatal(err)
		}
		keepRunning(t, cfg.Access.Run, cfg.Access.Close)
		listener.Config.Handler = gatewaytest.Admit(listener.Config.Handler, server.New(cfg).Handler(), keys)
	}
	listener.Start()
	t.Cleanup(listener.Close)
	return listener.URL, keys
}

// keepRunning runs a service until the test ends, and then closes it.
func keepRunning(t *testing.T, run, closeService func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	running := make(chan error, 1)
	go func() { running <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-running; err != nil {
			t.Errorf("running the service: %v", err)
		}
		if err := closeService(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
}

// A command is one that runs, or has ended.
type command struct {
	t              *testing.T
	args           []string
	stdout, stderr lockedBuffer
	code           int
	ended          chan struct{}
}

// start starts a command with these arguments, which ends with ctx, and whose standard input and variables these are. The variables of this process do not count.
func start(ctx context.Context, t *testing.T, stdin string, environ []string, args ...string) *command {
	t.Helper()
	c := &command{t: t, args: args, ended: make(chan struct{})}
	env := &cli.Env{Environ: environ, Stdin: strings.NewReader(stdin), Stdout: &c.stdout, Stderr: &c.stderr, Now: time.Now}
	go func() {
		defer close(c.ended)
		defer env.End()
		err := execute(ctx, env, args)
		c.code = cli.ExitCode(err)
		if err != nil {
			_, _ = c.stderr.Write([]byte(env.Describe(err, nil)))
		}
	}()
	return c
}

// keysCmd is the commands of keys, as the program has them for a server.
type keysCmd struct {
	List   keysOf[cli.KeysList, *cli.KeysList]   `cmd:"" default:"withargs"`
	Create keysOf[cli.KeyCreate, *cli.KeyCreate] `cmd:""`
	Rotate keysOf[cli.KeyRotate, *cli.KeyRotate] `cmd:""`
	Revoke keysOf[cli.KeyRevoke, *cli.KeyRevoke] `cmd:""`
}

// keysOf is a command about the keys of a server.
type keysOf[C any, P interface {
	*C
	KeysOfServer(env *cli.Env) (cli.KeyStore, func(), error)
	Manage(ctx context.Context, env *cli.Env, keys cli.KeyStore) error
}] struct {
	Command C `embed:""`
}

func (c *keysOf[C, P]) Run(ctx context.Context, env *cli.Env) error {
	keys, end, err := P(&c.Command).KeysOfServer(env)
	if err != nil {
		return err
	}
	defer end()
	return P(&c.Command).Manage(ctx, env, keys)
}

// execute parses the arguments and runs the command.
func execute(ctx context.Context, env *cli.Env, args []string) error {
	type commands struct {
		Keys         keysCmd `cmd:""`
		cli.Commands `embed:""`
	}
	grammar := any(new(commands))
	if part := cli.Part[commands](args[0]); part != nil {
		grammar = part
	}
	parser, err := kong.New(grammar, kong.TypeMapper(reflect.TypeFor[time.Duration](), cli.DurationMapper), kong.TypeMapper(reflect.TypeFor[time.Time](), cli.TimeMapper),
		kong.Bind(env), kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		return err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return err
	}
	if err := cli.CheckValues(parsed); err != nil {
		return err
	}
	given := make(map[string]string)
	for _, path := range parsed.Path {
		if path.Flag != nil {
			given[path.Flag.Name] = "--" + path.Flag.Name
		}
	}
	if err := cli.UseContext(parsed, env, func(flag string) string { return given[flag] }); err != nil {
		return err
	}
	return parsed.Run()
}

// want waits until the command has ended, and fails the test unless that is with the exit code.
func (c *command) want(code int) *command {
	c.t.Helper()
	select {
	case <-c.ended:
	case <-time.After(waitTimeout):
		c.t.Fatalf("%q does not end:\n%s%s", c.args, c.stdout.String(), c.stderr.String())
	}
	if c.code != code {
		c.t.Fatalf("%q ended with %d, want %d\n%s%s", c.args, c.code, code, c.stdout.String(), c.stderr.String())
	}
	return c
}

// seen is what tests look at of what a command has written.
type seen struct {
	ID       int64           `json:"id"`
	Name     string          `json:"name"`
	Queue    string          `json:"queue"`
	Receipt  string          `json:"receipt"`
	Topic    string          `json:"topic"`
	Position int64           `json:"position"`
	Event    json.RawMessage `json:"event"`
	URL      string          `json:"url"`
	HasKey   bool            `json:"has_key"`
}

// lines returns the JSON lines of standard output.
func (c *command) lines() (all []seen) {
	c.t.Helper()
	decoder := json.NewDecoder(strings.NewReader(c.stdout.String()))
	for decoder.More() {
		var one seen
		if err := decoder.Decode(&one); err != nil {
			c.t.Fatalf("%q wrote %s: %v", c.args, c.stdout.String(), err)
		}
		all = append(all, one)
	}
	return all
}

// run runs a command with the server until it ends.
func (h *environment) run(args ...string) *command { return h.runWith("", args...) }

// runWith is run with a standard input.
func (h *environment) runWith(stdin string, args ...string) *command {
	h.t.Helper()
	c := start(h.t.Context(), h.t, stdin, nil, append(args, "--url", h.url)...)
	select {
	case <-c.ended:
	case <-time.After(waitTimeout):
		h.t.Fatalf("%q does not end:\n%s%s", c.args, c.stdout.String(), c.stderr.String())
	}
	return c
}

// until waits until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitTimeout); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to this: %s", what)
		}
	}
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
