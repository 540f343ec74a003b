// Command run runs a command with a PostgreSQL for its tests:
//
//	go run ./internal/pgtest/run -flavour timescale -- go test ./...
//
// One server serves everything that the command starts, and ends with it. The exit code is the command's.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/queued/queued/internal/pgtest"
)

const usage = `usage: run [-flavour plain|timescale] [-durable] [-optional] [-keep] -- COMMAND [ARGUMENT...]

Starts a PostgreSQL, runs the command with QUEUED_TEST_DATABASE_URL naming it, and stops it.
Where QUEUED_TEST_DATABASE_URL is set already, that server is used if it is of the flavour,
and otherwise the command is left out.

`

func main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

// options is the command line.
type options struct {
	flavour  string
	durable  bool
	optional bool
	keep     bool
	command  []string
}

func run(args []string, stderr io.Writer) int {
	var opts options
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&opts.flavour, "flavour", pgtest.Plain, "which PostgreSQL: plain, or timescale (in a container, its image built when needed)")
	flags.BoolVar(&opts.durable, "durable", false, "start a server that keeps its commits through a crash, to measure on")
	flags.BoolVar(&opts.optional, "optional", false, "where the server cannot be had, say so, leave the command out and exit with 0; not when CI=true")
	flags.BoolVar(&opts.keep, "keep", false, "when the command fails, keep the server with the failed tests' databases until interrupted")
	flags.Usage = func() {
		_, _ = io.WriteString(stderr, usage)
		flags.PrintDefaults()
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		return 2
	}
	opts.command = flags.Args()
	if len(opts.command) == 0 {
		flags.Usage()
		return 2
	}

	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	r := &runner{
		options:   opts,
		ownServer: os.Getenv(pgtest.EnvURL),
		ci:        os.Getenv("CI") == "true",
		signals:   signals,
		stderr:    stderr,
	}
	return r.run()
}

// runner is one run of the command.
type runner struct {
	options
	ownServer string // URL of a server that is there already; empty: start one
	ci        bool   // nothing may be left out
	signals   <-chan os.Signal
	stderr    io.Writer

	interrupted bool // while the server was starting
}

// interrupted is the exit code for a signal that came before the command was there to get it.
const interrupted = 130

func (r *runner) say(format string, args ...any) {
	_, _ = fmt.Fprintf(r.stderr, "pgtest: "+format+"\n", args...)
}

func (r *runner) run() int {
	server, err := r.server()
	var other *otherFlavourError
	switch {
	case err == nil:
	case r.interrupted:
		return interrupted
	case !r.ci && (r.optional || errors.As(err, &other)):
		r.leftOut(err)
		return 0
	default:
		r.say("no %s PostgreSQL: %s", r.flavour, err)
		return 1
	}

	code := r.runCommand(server)
	if code != 0 && r.keep && r.ownServer == "" {
		r.say("kept until you press Ctrl-C: psql %q", server.URL)
		<-r.signals
	}
	if err := stop(server); err != nil {
		r.say("stopping the server: %s", err)
		code = max(code, 1)
	}
	return code
}

// leftOut makes sure that nobody takes what was not run for what passed.
func (r *runner) leftOut(why error) {
	line := strings.Repeat("#", 78)
	_, _ = fmt.Fprintf(r.stderr, "\n%s\n# NOT RUN on the %s flavour: %s\n#\n# because: %s\n%s\n\n",
		line, r.flavour, strings.Join(r.command, " "),
		strings.ReplaceAll(strings.TrimSpace(why.Error()), "\n", "\n#          "), line)
}
