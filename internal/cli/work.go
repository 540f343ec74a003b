package cli

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/queued/queued/client"
)

// WorkCmd claims events and runs a command for each.
type WorkCmd struct {
	address     `embed:""`
	Queue       string        `short:"q" default:"default" help:"The queue to work on."`
	Exec        string        `required:"" placeholder:"COMMAND" help:"The command to run for each event, by the shell. It gets the event on standard input."`
	Concurrency int           `short:"c" default:"1" placeholder:"N" min:"1" help:"How many events to work on at a time (default 1)."`
	Lease       time.Duration `short:"l" default:"1m" min:"1s" max:"8760h" help:"How long an event is held without a sign of life of this worker, which extends it at each third of that time. It is no limit of the work (default 1m)."`
	Timeout     time.Duration `placeholder:"DURATION" min:"0s" help:"How long a command may take; then it is ended and the event is nacked. No limit if it is not given."`
	Grace       time.Duration `default:"30s" min:"0s" help:"How long commands may go on after SIGTERM or SIGINT (default 30s)."`
	Type        []string      `short:"t" sep:"none" help:"Only events of this type; can be repeated."`
	MaxAttempts int           `placeholder:"N" min:"1" max:"2147483647" help:"Leave out events that were claimed so often."`
	Verbose     bool          `short:"v" help:"Say of each event how it ended and how long it took."`
	Worker      string        `help:"A name for this worker; the host's name and the process id if it is not given."`
}

// Help returns the text below the usage.
func (*WorkCmd) Help() string {
	return examples(
		`queued work -q mail --exec './send.sh' -c 8`,
		`queued work -q images --exec 'jq -r .url | xargs curl -sf -o "$QUEUED_ID.jpg"' --timeout 10m`,
	) + `
The command gets the event on standard input, and QUEUED_ID, QUEUED_TYPE, QUEUED_ATTEMPT, QUEUED_RECEIPT and
TRACEPARENT in its environment. Its exit code says what becomes of the event:

    0      ack; standard output, if it is JSON, is the result
    65     fail for good
    75     retry, after the backoff of the queue
    other  retry, too; the end of standard error is kept with the event
`
}

// Run works until it is told to stop.
func (c *WorkCmd) Run(ctx context.Context, env *Env) error {
	if strings.TrimSpace(c.Exec) == "" { // such as the spaces around a variable that is not set
		return usagef("--exec must not be empty; want the command to run for each event")
	}
	if program := missingProgram(ctx, c.Exec); program != "" {
		return usagef("--exec: there is no program %q; the event is on its standard input, and the command is run by the shell", program)
	}
	conn, err := c.client()
	if err != nil {
		return err
	}
	defer conn.Close()
	out := &sharedWriter{w: env.Stderr}
	logger := slog.New(slog.NewTextHandler(out, nil))
	grace := c.Grace
	if grace == 0 {
		grace = -1 // which is none for package client
	}
	t := &tally{logger: logger, isVerbose: c.Verbose, ends: make(map[client.End]int), begun: make(map[string]time.Time)}
	w := conn.NewWorker(client.WorkerConfig{
		Queue: c.Queue, Concurrency: c.Concurrency, Lease: c.Lease, Grace: grace, Types: c.Type, MaxAttempts: c.MaxAttempts,
		Name: c.Worker, Logger: logger, OnEnd: t.ended,
	})
	x := &executor{command: c.Exec, timeout: c.Timeout, environ: childEnviron(env.Environ), out: out}
	client.Handle(w, "", func(ctx context.Context, j client.Job[json.RawMessage]) (any, error) {
		t.begin(j.Event)
		return x.run(ctx, j.Event)
	})
	logger.Info("working", "queue", c.Queue, "concurrency", c.Concurrency, "pid", os.Getpid())
	told := make(chan struct{})
	isUntold := context.AfterFunc(ctx, func() {
		defer close(told)
		logger.Info("stopping: nothing more is claimed; a second signal ends it at once", "grace", c.Grace)
	})
	began := time.Now()
	err = w.Run(ctx)
	if !isUntold() {
		<-told
	}
	logger.Info("stopped", t.summary(time.Since(began))...)
	return err
}

// A tally counts how the work on events has ended.
type tally struct {
	logger    *slog.Logger
	isVerbose bool

	mu    sync.Mutex
	ends  map[client.End]int
	begun map[string]time.Time // by receipt
	busy  time.Duration        // of all commands together
}

// begin notes that a command begins.
func (t *tally) begin(e client.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun[e.Receipt] = time.Now()
}

// ended notes how the work on an event has ended.
func (t *tally) ended(e client.Ended) {
	t.mu.Lock()
	var took time.Duration
	if began, ok := t.begun[e.Event.Receipt]; ok {
		took = time.Since(began)
	}
	delete(t.begun, e.Event.Receipt)
	end := e.End
	if end == client.EndExhausted { // which has failed, too
		end = client.EndFailed
	}
	t.ends[end]++
	t.busy += took
	t.mu.Unlock()
	if t.isVerbose {
		t.logger.Info(string(e.End), "queue", e.Event.Queue, "id", e.Event.ID, "type", e.Event.Type, "attempt", e.Event.Attempts, "took", took.Round(time.Millisecond))
	}
}

// summary returns the counts, for the log.
func (t *tally) summary(elapsed time.Duration) (attributes []any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, end := range []client.End{client.EndDone, client.EndFailed, client.EndRetried, client.EndGivenBack} {
		attributes = append(attributes, strings.ReplaceAll(string(end), " ", "_"), t.ends[end])
	}
	for _, end := range []client.End{client.EndLost, client.EndUnknown} {
		if n := t.ends[end]; n > 0 {
			attributes = append(attributes, string(end), n)
		}
	}
	return append(attributes, "seconds", seconds(elapsed), "busy_seconds", seconds(t.busy))
}

// seconds returns a duration in seconds, to a tenth.
func seconds(d time.Duration) float64 { return d.Round(100 * time.Millisecond).Seconds() }

// sharedWriter lets several goroutines write, a line or more at a time.
type sharedWriter struct {
	mu sync.Mutex
	w  interface{ Write([]byte) (int, error) }
}

// Write implements io.Writer.
func (s *sharedWriter) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(b)
}
