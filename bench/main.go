// Command bench measures queued, what the database could do without it, and its peers side by side, on one database
// server in one run, and writes each of queued's bars as a ratio of that run:
//
//	go run . --database-url postgres://… --rounds 3 --duration 10s --out results
//
// README.md says what the numbers mean.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1 // a part could not be measured
	exitUsage   = 2
	exitMissed  = 3 // measured, and a bar was missed
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)) //nolint:forbidigo,gocritic // from here on it is a parameter; nothing is left to stop
}

// config is the command line.
type config struct {
	databaseURL string        // of a server on which databases can be made and dropped
	rounds      int           // how often each part is run
	duration    time.Duration // of one run of a part
	out         string        // the folder of the results; empty: none are written
	only        []string      // parts to run, or the beginnings of their names; empty: all
	peers       []peerFile
	queued      string // the program; empty: built from the parent folder
	pgbench     string
	careless    bool // measure on a server that may lose commits, too
}

// peerFile is a peer's SQL that the user has.
type peerFile struct{ name, path string }

func parse(args []string, getenv func(string) string, stderr io.Writer) (*config, error) {
	cfg := &config{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&cfg.databaseURL, "database-url", "", "the server: a superuser's `URL`; by default QUEUED_TEST_DATABASE_URL")
	flags.IntVar(&cfg.rounds, "rounds", 3, "run each part `N` times, in turns")
	flags.DurationVar(&cfg.duration, "duration", 10*time.Second, "how long one run of a part takes")
	flags.StringVar(&cfg.out, "out", "", "write results.json and results.md to this `folder`")
	flags.StringVar(&cfg.queued, "queued", "", "measure this `program`; by default one is built from the folder above")
	flags.StringVar(&cfg.pgbench, "pgbench", "pgbench", "the `program` pgbench")
	flags.BoolVar(&cfg.careless, "careless", false, "measure on a server that may lose commits, too; the results say so")
	flags.Func("only", "run these `parts` alone, comma-separated: a name or the beginning of one (floor, river.copy, single)", func(value string) error {
		cfg.only = append(cfg.only, strings.FieldsFunc(value, func(r rune) bool { return r == ',' })...)
		return nil
	})
	flags.Func("peer", "measure `name=file.sql` too: the SQL to load, with scripts of ours in peers/name", func(value string) error {
		name, path, found := strings.Cut(value, "=")
		if !found || name == "" || path == "" {
			return errors.New("want name=file.sql")
		}
		cfg.peers = append(cfg.peers, peerFile{name, path})
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	// Not as the flag's default, which --help shows, password and all.
	cfg.databaseURL = cmp.Or(cfg.databaseURL, getenv("QUEUED_TEST_DATABASE_URL"))
	switch {
	case flags.NArg() > 0:
		return nil, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case cfg.databaseURL == "":
		return nil, errors.New("no server: give --database-url, or run it through `make bench`")
	case cfg.rounds < 1:
		return nil, errors.New("--rounds must be at least 1")
	case cfg.duration < time.Second:
		return nil, errors.New("--duration must be at least 1s")
	}
	return cfg, nil
}

// wants tells whether a part was asked for: by its name, or by the whole words it begins with.
func (cfg *config) wants(part string) bool {
	return len(cfg.only) == 0 || slices.ContainsFunc(cfg.only, func(only string) bool {
		return part == only || strings.HasPrefix(part, only+".")
	})
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "bench:", err)
		return exitUsage
	}
	results, err := measure(ctx, cfg, stderr)
	if results != nil {
		writeTable(stdout, results)
		if cfg.out != "" {
			err = errors.Join(err, writeFiles(cfg.out, results))
		}
	}
	switch {
	case err != nil:
		_, _ = fmt.Fprintln(stderr, "bench:", err)
		return exitFailure
	case results.missed():
		return exitMissed
	}
	return exitOK
}
