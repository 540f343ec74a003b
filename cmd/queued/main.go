// Command queued is a durable event queue with an HTTP/JSON front door, on PostgreSQL.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// The exit codes of every command.
const (
	exitOK          = 0
	exitFailure     = 1   // something failed while running
	exitUsage       = 2   // the command line or a setting is wrong
	exitInterrupted = 130 // a signal ended it before it was done; what shells report for SIGINT
)

// signalEcho is how soon after the first stop signal another one is taken for its echo.
const signalEcho = 500 * time.Millisecond

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		// Whoever asks twice does not want to wait for the rest of the shutdown. But what stops a
		// group of processes may signal each of them twice at once, and means it once.
		for asked := time.Now(); time.Since(asked) < signalEcho; {
			<-signals
		}
		os.Exit(exitInterrupted)
	}()
	os.Exit(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)) //nolint:forbidigo // from here on it is a parameter
}

// run parses args and environ ("NAME=value" strings), runs the command they name until it is
// done or ctx ends, and returns the exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	proc := &process{environ: environ, stdout: stdout, stderr: stderr}
	err := proc.run(ctx, args)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errReported):
		return exitFailure
	case errors.As(err, &usage):
		_, _ = fmt.Fprintf(stderr, "queued: %s\n", redact(err.Error()))
		return exitUsage
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		_, _ = fmt.Fprintln(stderr, "queued: interrupted")
		return exitInterrupted
	default:
		_, _ = fmt.Fprintf(stderr, "queued: %s\n", redact(err.Error()))
		return exitFailure
	}
}

// process is what a command sees of the process it runs in.
type process struct {
	environ        []string
	stdout, stderr io.Writer
}

// errReported ends a command whose failure stands in the log already.
var errReported = errors.New("failed; see the log")

// usageError is a mistake of whoever started the program.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

func usagef(format string, args ...any) error {
	return &usageError{text: fmt.Sprintf(format, args...)}
}
