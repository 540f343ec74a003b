package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/bench"
)

// benchCmd measures a server: one that runs, or one that it starts.
type benchCmd struct {
	URL             string `name:"url" group:"bench-target" placeholder:"URL" help:"The server to measure, such as http://127.0.0.1:8080; without it one is started, on a database of its own."`
	APIKey          string `name:"api-key" group:"bench-target" type:"secret" placeholder:"KEY" help:"What the server wants as 'Authorization: Bearer KEY'."`
	APIKeyFile      string `name:"api-key-file" group:"bench-target" type:"path" placeholder:"FILE" help:"A file that holds the API key."`
	DatabaseURL     string `name:"database-url" group:"bench-target" type:"database-url" placeholder:"URL" default-note:"none: a private PostgreSQL that goes with the measurement" help:"With --url, the database behind that server, to look into. Without, where to make a database for the server that is started, and to drop it in the end."`
	DatabaseURLFile string `name:"database-url-file" group:"bench-target" type:"path" placeholder:"FILE" help:"A file that holds the database URL."`

	Warmup  time.Duration `name:"warmup" group:"bench-report" default:"2s" placeholder:"DURATION" help:"How long each measurement goes on before it counts."`
	Payload int           `name:"payload" group:"bench-report" default:"100" placeholder:"BYTES" help:"The size of an event."`
	JSON    string        `name:"json" group:"bench-report" placeholder:"FILE" help:"Write the report there as JSON, too."`
	Plot    string        `name:"plot" group:"bench-report" placeholder:"DIR" help:"Write charts there, as SVG."`
	Quiet   bool          `name:"quiet" group:"bench-report" short:"q" help:"Do not say how it goes."`

	Single     bench.Single   `cmd:"" help:"Whole lives of single events: post, claim, ack."`
	Batch      bench.Batch    `cmd:"" help:"Whole lives of many events per request."`
	Idle       bench.Idle     `cmd:"" help:"One lone request at a time, beside the same in SQL."`
	Depth      bench.Depth    `cmd:"" help:"Claims from a deep backlog, beside a shallow one."`
	Piles      bench.Piles    `cmd:"" help:"Claims beside events that are delayed, leased or in another queue."`
	Snapshot   bench.Snapshot `cmd:"" help:"A steady load beside a session that holds an old snapshot."`
	Claimers   bench.Claimers `cmd:"" help:"Many clients that wait for events, busy and idle."`
	Wakeup     bench.Wakeup   `cmd:"" help:"How long a waiting claim takes to hear of an event."`
	Soak       bench.Soak     `cmd:"" help:"Millions of lives: does the rate stay, what do the tables grow to."`
	PayloadCmd bench.Payload  `cmd:"" name:"payload" help:"Events of several sizes, and what each step writes."`
	Memory     bench.Memory   `cmd:"" help:"The server's memory under several loads."`
}

// Help follows the flags in --help.
func (benchCmd) Help() string {
	return `A life of an event is a post, a claim and an ack. Every workload counts lives, says what each request took, and accounts
for each event in the end; it exits with 1 when one was lost or handed out twice. "queued bench WORKLOAD --help"
shows what a workload takes.`
}

// Run runs the workload that was chosen.
func (c *benchCmd) Run(ctx context.Context, p *process, src *source, parsed *kong.Context) (err error) {
	workload, ok := parsed.Selected().Target.Addr().Interface().(bench.Workload)
	if !ok { // bench alone
		var names []string
		for _, command := range parsed.Selected().Children {
			names = append(names, command.Name)
		}
		return usagef("bench: which workload? It takes one of %s.\nRun \"queued bench --help\" to see what they are.", strings.Join(names, ", "))
	}
	cfg := bench.Config{
		URL: c.URL, Environ: p.environ, Warmup: c.Warmup, Payload: c.Payload,
		JSON: c.JSON, Plot: c.Plot, Quiet: c.Quiet, Terminal: isTerminal(p.stderr), Output: p.stdout, Progress: p.stderr,
	}
	if cfg.APIKey, err = src.secret("api-key", c.APIKey, c.APIKeyFile, parseSecret); err != nil {
		return err
	}
	if cfg.URL == "" && src.name("api-key") != "--api-key" {
		cfg.APIKey = "" // meant for a server that others ask
	}
	if cfg.Program, err = os.Executable(); err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	db, err := c.database(ctx, src, cfg.URL != "", zerolog.New(p.stderr).Level(zerolog.WarnLevel))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()
	cfg.DatabaseURL = db.url

	err = bench.Run(ctx, cfg, workload)
	var invalid *bench.InvalidError
	if errors.As(err, &invalid) {
		return usagef("%s", err)
	}
	return err
}

// database is the one that was named, or where one is needed a private one that is gone in the end.
func (c *benchCmd) database(ctx context.Context, src *source, hasServer bool, logger zerolog.Logger) (*benchDatabase, error) {
	where := databaseSettings{DatabaseURL: c.DatabaseURL, DatabaseURLFile: c.DatabaseURLFile}
	url, err := where.url(src)
	if err != nil {
		return nil, err
	}
	if url != "" || hasServer {
		return &benchDatabase{database: &database{url: url}}, nil
	}
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return nil, err
	}
	where.DataDir = filepath.Join(dir, "data")
	// PostgreSQL runs as another user when this is root.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // there is nothing in it but a folder
		return nil, err
	}
	db, err := where.open(ctx, src, logger)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	return &benchDatabase{database: db, dir: dir}, nil
}

// benchDatabase is a database that may have to go in the end, with the folder that it is in.
type benchDatabase struct {
	*database
	dir string
}

func (d *benchDatabase) close(ctx context.Context) error {
	err := d.database.close(ctx)
	if d.dir != "" {
		err = errors.Join(err, os.RemoveAll(d.dir))
	}
	return err
}
