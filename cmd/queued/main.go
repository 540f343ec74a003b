// Command queued is a durable event queue with an HTTP/JSON API, on PostgreSQL.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/cli"
)

// The exit codes of every command.
const (
	exitOK          = 0
	exitFailure     = 1   // something failed while running
	exitUsage       = 2   // the command line or a setting is wrong
	exitInterrupted = 130 // a signal ended it before it was done; shells report this for SIGINT
)

// signalGrace is the time after the first stop signal in which further ones are ignored: a process manager that signals a group of
// processes may send each of them two at once.
const signalGrace = 500 * time.Millisecond

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		for first := time.Now(); time.Since(first) < signalGrace; {
			<-signals
		}
		os.Exit(exitInterrupted)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr)) //nolint:forbidigo // from here on it is a parameter
}

// run runs the command that args name until it is done or ctx ends, and returns the exit code. environ has "NAME=value" strings.
func run(ctx context.Context, args, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	env := &cliEnv{isBare: len(args) == 0, environ: environ, stdin: stdin, stdout: stdout, stderr: stderr}
	err := runCommand(ctx, args, env)
	code := cli.ExitCode(err)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return code
	case errors.As(err, new(*usageError)):
		code = exitUsage
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || env.isClient && errors.As(err, new(*url.Error))):
		code, err = exitInterrupted, errors.New("interrupted")
	}
	text := err.Error()
	if env.isClient {
		text = env.client.Describe(err, env.inputs)
	}
	if text != "" {
		_, _ = fmt.Fprintf(stderr, "queued: %s\n", cli.PrintableLines(redact(text)))
	}
	return code
}

// cliEnv is the environment of a command: arguments, variables, input and output of its process.
type cliEnv struct {
	isBare         bool // there are no arguments
	environ        []string
	stdin          io.Reader
	stdout, stderr io.Writer

	// Known once the command is parsed: whether it is one of package cli, and its flags and arguments, as [cli.InputsOf] has them.
	isClient bool
	inputs   []string
	client   *cli.Env // of commands of package cli
	// onDatabase: the command works on the database, not with a server.
	onDatabase bool
}

// errReported is the error of a command that has logged its failure.
var errReported = errors.New("failed; see the log")

// usageError is an error in the command line or the settings.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}

// runCommand parses args and the environment and runs the command.
func runCommand(ctx context.Context, args []string, env *cliEnv) error {
	env.client = &cli.Env{Environ: env.environ, Stdin: env.stdin, Stdout: env.stdout, Stderr: env.stderr, Now: time.Now}
	defer env.client.End()
	line, err := parseLine(ctx, args, env)
	if err != nil {
		return err
	}
	if line.exited {
		return nil
	}
	parsed, reader := line.parsed, line.reader
	if err := reader.finish(parsed); err != nil {
		return err
	}
	if err := errors.Join(cli.CheckValues(parsed), reader.checkDatabase()); err != nil {
		return err
	}
	env.isClient = cli.Has(parsed.Selected())
	env.inputs = cli.InputsOf(parsed)
	if command := parsed.Selected(); command.Parent != nil && command.Parent.Name == "keys" {
		if env.onDatabase, err = usesDatabase(reader, env.client); err != nil {
			return err
		}
	}
	if env.onDatabase {
		return parsed.Run()
	}
	if err := cli.UseContext(parsed, env.client, func(flag string) string { return reader.names[flag] }); err != nil {
		return err
	}
	return parsed.Run()
}

// isConsole reports whether log lines on w are formatted for people.
func (s *logSettings) isConsole(w io.Writer) bool {
	return s.LogFormat == "console" || s.LogFormat != "json" && cli.IsTerminal(w)
}

// format returns a writer that formats log lines for w.
func (s *logSettings) format(w io.Writer) io.Writer {
	if !s.isConsole(w) {
		return w
	}
	return zerolog.ConsoleWriter{
		Out:     w,
		NoColor: !cli.IsTerminal(w),
		FormatTimestamp: func(timestamp any) string {
			text, _ := timestamp.(string)
			return strings.TrimSuffix(strings.Replace(text, "T", " ", 1), "Z")
		},
	}
}

// logger returns a logger to w, which format has returned, with times in UTC, to the millisecond.
func (s *logSettings) logger(w io.Writer, now func() time.Time) zerolog.Logger {
	level, _ := zerolog.ParseLevel(s.LogLevel) // which is one of its choices
	addTime := zerolog.HookFunc(func(e *zerolog.Event, _ zerolog.Level, _ string) {
		e.Str(zerolog.TimestampFieldName, now().UTC().Format("2006-01-02T15:04:05.000Z"))
	})
	return zerolog.New(w).Level(level).Hook(addTime)
}
