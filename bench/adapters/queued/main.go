// Command queued is the adapter of queued for postgresql-job-queue-benchmarking, which compares job queues on PostgreSQL. It speaks that harness's protocol:
// settings come in as environment variables, samples go out on standard output as lines of JSON, logs on standard error. It starts "queued serve" on the
// database that it is given, and inserts and works with the Go client over HTTP, as a service that uses queued would. README.md says how to register it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/queued/queued/client"
)

// Limits of the end, which the harness wants within 5 seconds of the signal.
const (
	stopLimit   = 4500 * time.Millisecond // for everything, after which the program ends whatever still runs
	workLimit   = 3 * time.Second         // for the jobs that are worked on, with their acks
	handlerTime = time.Second             // for their handlers
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Environ(), os.Stdin, os.Stdout, os.Stderr)) //nolint:forbidigo,gocritic // from here on it is a parameter; nothing is left to stop
}

// run runs the scenario that environ names and returns the exit code: 0 when ctx has ended it, 2 for a wrong setting.
func run(ctx context.Context, environ []string, stdin io.Reader, stdout, stderr io.Writer) int {
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	cfg, err := settingsOf(environ)
	if err == nil {
		// The harness may send the producer's pace on standard input, too. What is not read would fill the pipe, and block the harness.
		go func() { _, _ = io.Copy(io.Discard, stdin) }()
		switch cfg.scenario {
		case "migrate_only":
			err = migrate(ctx, cfg, stderr)
		default:
			err = longHorizon(ctx, cfg, stdout, stderr, logger)
		}
	}
	var wrong *settingError
	switch {
	case errors.As(err, &wrong):
		_, _ = fmt.Fprintln(stderr, "queued adapter:", err)
		return 2
	case err != nil && ctx.Err() == nil:
		_, _ = fmt.Fprintln(stderr, "queued adapter:", err)
		return 1
	}
	return 0
}

// longHorizon inserts and works jobs until ctx ends.
func longHorizon(ctx context.Context, cfg settings, stdout, stderr io.Writer, logger *slog.Logger) error {
	srv, err := serve(ctx, cfg, stderr)
	if err != nil {
		return err
	}
	var ended time.Time // when everything has to have ended
	defer func() { srv.stop(ended) }()
	c, err := client.New(client.Config{URL: srv.url, UserAgent: "queued-adapter"})
	if err != nil {
		return err
	}
	defer c.Close()
	version, err := c.ShowVersion(ctx)
	if err != nil {
		return err
	}
	out := &output{w: stdout, instance: cfg.instance}
	if err := out.describe(cfg, version); err != nil {
		return err
	}
	b := &bench{cfg: cfg, client: c, out: out, logger: logger, latencies: newWindow(time.Now())}

	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var parts sync.WaitGroup
	parts.Go(func() { b.produce(running) })
	parts.Go(func() { b.pollDepth(running) })
	parts.Go(func() {
		if err := b.sample(running); err != nil {
			cancel(fmt.Errorf("writing samples: %w", err))
		}
	})
	parts.Go(func() {
		if err := b.work(running); err != nil {
			cancel(fmt.Errorf("working: %w", err))
		}
	})
	select {
	case <-srv.ended:
		cancel(srv.failure())
	case <-running.Done():
	}
	ended = time.Now().Add(stopLimit)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		parts.Wait()
	}()
	select {
	case <-stopped:
	case <-time.After(workLimit):
		logger.Warn("jobs are left without an ack: their leases have to end")
	}
	return context.Cause(running)
}
