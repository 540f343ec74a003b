// Package workloads loads a queued server and measures what it does.
//
// What is counted is the whole life of an event: POST /events, POST /claim, DELETE /events/{id} with the receipt. A
// client is a goroutine with one keep-alive connection. Client and server mostly share a machine, so the client
// writes prepared bytes and reads answers in place; its own CPU time is reported beside the server's.
//
// Every run is on a queue of its own and is followed by a clean-up that finishes what is left. Then each event must be
// accounted for by its id: none lost, none finished twice, none claimed twice while leased. A run that breaks
// this fails with ErrBroken.
//
// The report is one JSON object:
//
//	{
//	  "workload": "single",
//	  "started": "2026-01-02T15:04:05Z",
//	  "machine": {"cpus": 2, "os": "linux/amd64", "go": "go1.26.0", "postgres": "17.1", "queued": "0.1.0"},
//	  "settings": {…},                      the workload's, by the names of its flags
//	  "results": [{
//	    "label": "64 connections",          what tells this result from the others
//	    "seconds": 10.0,                    the time measured, without the warm-up
//	    "lives": 43210, "lives_per_s": 4321.0,  acks with 2xx in that time
//	    "events": {"post": …, "claim": …, "ack": …},
//	    "requests": {…}, "empty_claims": 0,
//	    "errors": {"claim 503 database_unavailable": 1},
//	    "latency_ms": {"post": {"count", "mean", "p50", "p90", "p99", "p99_9", "max"}, …, "life": …},
//	    "cpu": {"client_us_per_life", "server_us_per_life", "server_rss_bytes"},
//	    "database": {"wal_bytes_per_life", "commits_per_life"},
//	    "account": {"posted", "acked", "remaining", "unknown", "lost", "acked_twice", …},
//	    "series": [{"second": 0, "lives": 4300, "claim_p99_ms": 9.1, …}],
//	    "values": {"name": 1.5}             what only this workload measures; the unit ends the name
//	  }],
//	  "ratios": {"name": {"value": 0.97, "bar": 0.9, "bar_is": "least", "ok": true}}
//	}
//
// A claim that waits is timed with its wait. "lag" among the latencies is how late the client itself was with what a
// schedule asked of it; it is part of the post's latency. WAL is that of the whole PostgreSQL server; sessions report their
// commits up to a second late.
//
// Whatever was not measured is left out. A ratio without a bar is there to be looked at.
package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrBroken is wrapped when events were lost or handed out twice.
var ErrBroken = errors.New("the events do not add up")

// Config is what every workload is told.
type Config struct {
	URL    string // the server to measure; empty: one is started on a database of its own, made and dropped at DatabaseURL
	APIKey string // what the server wants; empty: nothing

	// DatabaseURL is the database behind URL, to look into; or, without URL, a database on a server where
	// this user may create others. Empty, with URL: what only the database knows is not measured.
	DatabaseURL string

	Program string   // the queued that serves where there is no URL
	Environ []string // what it inherits, as "NAME=value"

	Warmup  time.Duration // how long each run goes on before it counts
	Payload int           // bytes of an event, at least 16

	JSON     string // file for the report; empty: none
	Plot     string // folder for charts; empty: none
	Quiet    bool   // no progress
	Terminal bool   // Progress is a terminal

	Output   io.Writer // the tables
	Progress io.Writer // lines while it runs
}

// Workload is one kind of load: a pointer to one of this package's types.
type Workload interface {
	name() string
	check(cfg Config) error
	run(ctx context.Context, s *session) error
}

// Run runs a workload, writes its report and returns it, as far as it got even when it fails or ctx ends. It fails with
// ErrBroken when events do not add up, and with an *InvalidError when cfg or w make no sense.
func Run(ctx context.Context, cfg Config, w Workload) (report *Report, err error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	if err := w.check(cfg); err != nil {
		return nil, err
	}
	s := &session{cfg: cfg, payload: newPayload(cfg.Payload), report: newReport(cfg, w)}
	if cfg.URL == "" {
		if s.cluster, err = newCluster(cfg.DatabaseURL); err != nil {
			return nil, err
		}
	}
	s.progress = newProgress(cfg)
	err = w.run(ctx, s)
	s.progress.end()
	if broken := s.report.broken(); broken != nil {
		err = errors.Join(err, broken)
	}
	// What there is has to come out first, and then the servers: stopping them may take a while.
	err = errors.Join(err, s.publish())
	return s.report, errors.Join(err, s.close(ctx))
}

// Commands are all workloads, as subcommands of a command line.
type Commands struct {
	Single     Single   `cmd:"" help:"Whole lives of single events: post, claim, ack."`
	Batch      Batch    `cmd:"" help:"Whole lives of many events per request."`
	Idle       Idle     `cmd:"" help:"One lone request at a time, beside the same in SQL."`
	Depth      Depth    `cmd:"" help:"Claims from a deep backlog, beside a shallow one."`
	Piles      Piles    `cmd:"" help:"Claims beside events that are delayed, leased or in another queue."`
	Snapshot   Snapshot `cmd:"" help:"A steady load beside a session that holds an old snapshot."`
	Claimers   Claimers `cmd:"" help:"Many clients that wait for events, busy and idle."`
	Wakeup     Wakeup   `cmd:"" help:"How long a waiting claim takes to hear of an event."`
	Soak       Soak     `cmd:"" help:"Millions of lives: does the rate stay, what do the tables grow to."`
	PayloadCmd Payload  `cmd:"" name:"payload" help:"Events of several sizes, and what each step writes."`
	Memory     Memory   `cmd:"" help:"The server's memory under several loads."`
}

// InvalidError is a mistake in what was asked for.
type InvalidError struct{ text string }

func (e *InvalidError) Error() string { return e.text }

// Invalidf makes an InvalidError.
func Invalidf(format string, args ...any) error {
	return &InvalidError{text: fmt.Sprintf(format, args...)}
}

// Check fails with an *InvalidError when c makes no sense.
func (c Config) Check() error {
	const most = 1 << 20
	switch {
	case c.Payload < minPayload || c.Payload > most:
		return Invalidf("--payload: got %d; takes bytes from %d to %d", c.Payload, minPayload, most)
	case c.Warmup < 0:
		return Invalidf("--warmup: got %s; takes a duration, not negative", c.Warmup)
	case c.URL == "" && c.DatabaseURL == "":
		return Invalidf("there is neither a server nor a database to measure: give --url, or --database-url, or run it through make bench")
	case c.URL == "" && c.APIKey != "":
		return Invalidf("--api-key: a key is for the server at --url, and there is none; the server that is started here wants no key")
	}
	return nil
}
