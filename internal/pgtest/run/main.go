//go:build unix

// Command run runs a command with a PostgreSQL for its tests:
//
//	go run ./internal/pgtest/run -flavour timescale -- go test ./...
//
// One server serves everything that the command starts, and ends with it. The exit code is the command's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/queued/queued/internal/pgtest"
)

const usage = `usage: run [-flavour plain|timescale] [-durable] [-optional] [-keep] -- COMMAND [ARGUMENT...]

Starts a PostgreSQL, runs the command with QUEUED_TEST_DATABASE_URL naming it, and stops it.
Where QUEUED_TEST_DATABASE_URL is set already, that server is used if it is of the flavour,
and otherwise the command is skipped.

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
	flags.BoolVar(&opts.optional, "optional", false, "where no server can be started, skip the command and exit with 0; not when CI=true")
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
	ownServer string // URL of a running server; empty: start one
	ci        bool   // nothing may be skipped
	signals   <-chan os.Signal
	stderr    io.Writer

	interrupt syscall.Signal // the last signal before the command's end; zero: none
}

func (r *runner) print(format string, args ...any) {
	_, _ = fmt.Fprintf(r.stderr, "pgtest: "+format+"\n", args...)
}

// run returns the exit code: the command's, or after a signal that it ignored, and before it was started, 128 and the signal's number, as shells
// have it. So an interrupt also stops the make that runs this.
func (r *runner) run() int {
	server, err := r.server()
	switch {
	case err == nil:
	case r.interrupt != 0:
		return 128 + int(r.interrupt)
	case !r.ci && (r.optional || errors.Is(err, errOtherFlavour)):
		r.reportSkipped(err)
		return 0
	default:
		r.print("no %s PostgreSQL: %s", r.flavour, err)
		return 1
	}

	code := r.runCommand(server)
	if code == 0 && r.interrupt != 0 {
		code = 128 + int(r.interrupt)
	}
	if code != 0 && r.interrupt == 0 && r.keep && r.ownServer == "" {
		r.print("kept until you press Ctrl-C: psql %q", server.URL)
		<-r.signals
	}
	if err := stop(server); err != nil {
		r.print("stopping the server: %s", err)
		code = max(code, 1)
	}
	return code
}

// runCommand runs the command to its end on the server, passing signals on, and returns its exit code.
func (r *runner) runCommand(server *pgtest.Server) int {
	// Without a context: signals are passed on instead.
	cmd := exec.CommandContext(context.Background(), r.command[0], r.command[1:]...) //nolint:gosec // Running it is the purpose of this program.
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), pgtest.EnvURL+"="+server.URL, pgtest.EnvFlavour+"="+server.Flavour)
	if r.ownServer == "" && !r.keep {
		cmd.Env = append(cmd.Env, pgtest.EnvLifetime+"="+pgtest.LifetimeOfTests)
	}
	// In a group of its own the command and its children get each signal once, from here: a terminal's Ctrl-C as well as one that was sent to this
	// process alone.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		r.print("%s", err)
		return 1
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case sig := <-r.signals:
			r.interrupt = sig.(syscall.Signal)
			_ = syscall.Kill(-cmd.Process.Pid, r.interrupt) // fails when it has ended
		case err := <-ended:
			return r.exitCode(err)
		}
	}
}

func (r *runner) exitCode(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &exit):
		r.print("%s", err)
		return 1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// reportSkipped makes plain that the tests were not run.
func (r *runner) reportSkipped(why error) {
	line := strings.Repeat("#", 78)
	_, _ = fmt.Fprintf(r.stderr, "\n%s\n# NOT RUN on the %s flavour: %s\n#\n# because: %s\n%s\n\n",
		line, r.flavour, strings.Join(r.command, " "),
		strings.ReplaceAll(strings.TrimSpace(why.Error()), "\n", "\n#          "), line)
}
