// Package workloads loads queued servers in several ways and measures them.
//
// An event is inserted, claimed and acked: POST /events, POST /claim, DELETE /events/{id} with the receipt. Acked events
// are counted. Every run is on a queue of its own, and is followed by claims and acks of the events left. Then each event must be
// accounted for by its id: none lost, none acked twice, none claimed twice while leased. A run that breaks
// this fails with report.ErrBroken.
//
// A claim that waits is timed with its wait. WAL is that of the whole PostgreSQL server; sessions report their
// commits up to a second late.
package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/bench/report"
)

// Config is the settings of a measurement, for every workload.
type Config struct {
	URL    string // the server to measure; empty: servers are started, on databases of their own, made and dropped at DatabaseURL
	APIKey string // the key that the server at URL requires; empty: none

	// DatabaseURL is the database behind URL, to look into; or, without URL, a database on a server where
	// this user may create others. Empty, with URL: values that only the database knows are not measured.
	DatabaseURL string

	Program string   // the queued that serves where there is no URL
	Environ []string // the variables that it inherits, as "NAME=value"

	Warmup  time.Duration // how long each run goes on before it counts
	Payload int           // bytes of an event, at least 16

	Progress io.Writer // lines while it runs; nil: none
	Terminal bool      // Progress is a terminal
}

// Workload is one kind of load: a pointer to one of this package's types.
type Workload interface {
	name() string
	check(cfg Config) error
	run(ctx context.Context, s *session) error
}

// Commands are all workloads, as subcommands of a command line.
type Commands struct {
	Single      Single      `cmd:"" help:"Insert, claim and ack single events."`
	Batch       Batch       `cmd:"" help:"The same with many events in each request."`
	Idle        Idle        `cmd:"" help:"One lone request at a time, beside the same in SQL."`
	Depth       Depth       `cmd:"" help:"Claims from a deep backlog, beside a shallow one."`
	Unclaimable Unclaimable `cmd:"" help:"Claims beside events that are delayed, leased or in another queue."`
	Snapshot    Snapshot    `cmd:"" help:"A steady load beside a session that holds an old snapshot."`
	Claimers    Claimers    `cmd:"" help:"Many clients that wait for events, busy and idle."`
	Wakeup      Wakeup      `cmd:"" help:"How soon a waiting claim gets an event."`
	Soak        Soak        `cmd:"" help:"Millions of events: whether the rate lasts, and how large the tables get."`
	PayloadCmd  Payload     `cmd:"" name:"payload" help:"Events of several sizes, and what each step writes."`
	Memory      Memory      `cmd:"" help:"The server's memory under several loads."`
	Publish     Publish     `cmd:"" help:"Publications, in turns with inserts; each is accounted for by two readers of the log."`
	Fanout      Fanout      `cmd:"" help:"A log that is delivered into queues, from its beginning and as it grows."`
	HeldLog     HeldLog     `cmd:"" name:"heldlog" help:"Publishing and reading beside a session that holds an old snapshot."`
	Catchup     Catchup     `cmd:"" help:"Reading a log from its beginning, over HTTP and in SQL."`
	Stream      Stream      `cmd:"" help:"How soon streams have what is published, how much many of them get, and their memory."`
	Push        Push        `cmd:"" help:"A queue that pushes its events to a receiver."`
	Cells       Cells       `cmd:"" help:"Cells behind a gateway beside one, each PostgreSQL held to a share of the processors."`
	Adapters    Adapters    `cmd:"" help:"Job queues side by side, by their adapters for postgresql-job-queue-benchmarking: rates, a held transaction, kills."`
	Flow        Flow        `cmd:"" help:"What limits and the order of groups cost, beside events of no group."`
	Compare     Compare     `cmd:"" help:"Several programs side by side, in turns: single events and batches."`
}

// Run runs a workload and returns its report, as far as it got even when it fails or ctx ends. It fails with
// report.ErrBroken when events do not add up, and with an *InvalidError when cfg or w make no sense.
func Run(ctx context.Context, cfg Config, w Workload) (*report.Report, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	settings, err := settingsOf(w)
	if err != nil {
		return nil, err
	}
	if err := w.check(cfg); err != nil {
		return nil, err
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &session{
		cfg: cfg, payload: newPayload(cfg.Payload), progress: progress{w: cfg.Progress, terminal: cfg.Terminal},
		report: report.New(1, 0, report.Part{Name: w.name()}), cancel: cancel,
	}
	s.report.Settings = settings
	settings["warmup"], settings["payload"] = cfg.Warmup.String(), cfg.Payload
	if cfg.URL == "" {
		if s.postgres, err = NewPostgres(cfg.DatabaseURL); err != nil {
			return nil, err
		}
	}
	err = w.run(working, s)
	s.progress.end()
	if errors.Is(err, context.Canceled) {
		err = context.Cause(working) // a server may have ended by itself
	}
	for _, result := range s.results {
		s.report.Add(w.name(), 0, len(s.results) == 1, result)
	}
	for _, c := range s.comparisons {
		s.report.AddNumber(0, w.name()+": "+c.name, c.value, "")
	}
	return s.report, errors.Join(err, s.report.Broken(), s.close(ctx))
}

// settingsOf is a workload's fields by their flags' names. It refuses numbers outside of the tags least (1 if there is none) and most, and
// durations that are not more than zero.
func settingsOf(w Workload) (map[string]any, error) {
	const maxNumber = 1_000_000 // unless a tag says otherwise
	words := regexp.MustCompile(`([a-z])([A-Z])`)
	settings := map[string]any{}
	v := reflect.ValueOf(w).Elem()
	for i := range v.NumField() {
		field := v.Type().Field(i)
		flag := strings.ToLower(words.ReplaceAllString(field.Name, "$1-$2"))
		settings[flag] = v.Field(i).Interface()
		least, most := tagNumber(field, "least", 1), tagNumber(field, "most", maxNumber)
		var numbers []int
		switch value := settings[flag].(type) {
		case time.Duration:
			settings[flag] = value.String()
			if value < time.Duration(least) {
				return nil, Invalidf("--%s: got %s; expected a duration such as 10s, more than zero", flag, value)
			}
			continue
		case float64:
			if value < 0 {
				return nil, Invalidf("--%s: got %g; expected a number, not negative", flag, value)
			}
			continue
		case int:
			numbers = []int{value}
		case []int:
			if numbers = value; len(value) == 0 {
				return nil, Invalidf("--%s: got nothing; expected whole numbers from %d to %d, separated by commas", flag, least, most)
			}
		}
		for _, n := range numbers {
			if n < least || n > most {
				return nil, Invalidf("--%s: got %d; expected whole numbers from %d to %d", flag, n, least, most)
			}
		}
	}
	return settings, nil
}

func tagNumber(field reflect.StructField, tag string, otherwise int) int {
	if n, err := strconv.Atoi(field.Tag.Get(tag)); err == nil {
		return n
	}
	return otherwise
}

// InvalidError is a mistake in the settings of a measurement.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

// Invalidf makes an InvalidError.
func Invalidf(format string, args ...any) error {
	return &InvalidError{text: fmt.Sprintf(format, args...)}
}

// Check fails with an *InvalidError when c makes no sense.
func (c Config) Check() error {
	switch {
	case c.Payload < minPayload || c.Payload > 1<<20:
		return Invalidf("--payload: got %d; expected bytes from %d to %d", c.Payload, minPayload, 1<<20)
	case c.Warmup < 0:
		return Invalidf("--warmup: got %s; expected a duration, not negative", c.Warmup)
	case c.URL == "" && c.DatabaseURL == "":
		return Invalidf("neither a server nor a database to measure: give --url or --database-url, or run it with make bench, which starts a PostgreSQL")
	case c.URL == "" && c.APIKey != "":
		return Invalidf("--api-key: the key is for the server at --url, which is missing; the servers that are started here require none")
	}
	return nil
}

// maxBatch is the most events that the server takes at once.
const maxBatch = 1000

// needDatabase refuses a server whose database is not known.
func needDatabase(cfg Config) error {
	if cfg.URL != "" && cfg.DatabaseURL == "" {
		return Invalidf("this workload needs SQL: with --url, give the --database-url of that server, too")
	}
	return nil
}

// needOwnServers refuses a server that was given.
func needOwnServers(cfg Config) error {
	if cfg.URL != "" {
		return Invalidf("this workload starts servers of its own: leave --url out; --database-url says on which PostgreSQL")
	}
	return nil
}

// enoughFiles refuses more connections than this process, and a server that it starts, may open. Where the limit is not known, the
// connections themselves will tell.
func enoughFiles(connections int) error {
	const others = 64 // files that a process has open besides its connections
	if most, isKnown := maxOpenFiles(); isKnown && uint64(connections)+others > most {
		return Invalidf("%d connections: a process may have %d files open, and each connection is one; raise that (ulimit -Hn %d) or measure fewer",
			connections, most, connections+others)
	}
	return nil
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
