package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// workload is one of `queued bench`, which starts the servers it needs, on databases of their own.
type workload struct {
	name  string // the part's
	about string
	args  []string // of `queued bench`, the workload's name first
	timed bool     // it takes --duration; the others know how long they need
}

var workloads = []workload{
	{"single.64", "whole lives one by one over HTTP, 64 connections", []string{"single", "--connections", "64"}, true},
	{"single.256", "whole lives one by one over HTTP, 256 connections", []string{"single", "--connections", "256"}, true},
	{"batch", "whole lives by the hundred over HTTP, 4 connections", []string{"batch", "--batch", "100", "--connections", "4"}, true},
	{"idle", "a request to an idle server, against its statement alone", []string{"idle"}, false},
	{"depth", "rate and latency with 1,000 and with 1,000,000 events waiting", []string{"depth"}, false},
	{"piles", "the rate beside piles of delayed, leased and deleted events", []string{"piles"}, false},
	{"snapshot", "the rate beside a session that holds an old snapshot", []string{"snapshot", "--rate", "1000", "--before", "20s", "--hold", "90s", "--after", "20s"}, false},
	{"claimers", "the rate with few and with many claimers, and claims that wait", []string{"claimers"}, true},
	{"wakeup", "how soon a waiting claim has a new event", []string{"wakeup"}, false},
	{"soak", "whether the rate lasts", []string{"soak", "--lives", "1000000"}, false},
	{"payload", "rates and WAL at several sizes of events", []string{"payload"}, true},
	{"memory", "resident memory under full load, and with many waiting claims", []string{"memory"}, true},
}

// queuedParts makes a part of each workload.
func queuedParts(program string) []part {
	var parts []part
	for _, w := range workloads {
		parts = append(parts, part{
			name:    w.name,
			about:   w.about,
			command: "queued bench " + strings.Join(w.args, " "),
			run: func(ctx context.Context, db database, duration time.Duration) (outcome, error) {
				if err := db.server.settle(ctx); err != nil {
					return outcome{}, err
				}
				return w.run(ctx, program, db.url, duration)
			},
		})
	}
	return parts
}

// stopLimit is how long an interrupted `queued bench` has to stop its servers and drop their databases.
const stopLimit = time.Minute

func (w *workload) run(ctx context.Context, program, databaseURL string, duration time.Duration) (outcome, error) {
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "report.json")
	args := slices.Concat([]string{"bench"}, w.args, []string{"--database-url", databaseURL, "--json", file, "--quiet"})
	if w.timed {
		args = append(args, "--duration", duration.String())
	}
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // Built from this repository, or named by the operator.
	cmd.Env = []string{}                              // its servers run with the defaults
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopLimit
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return outcome{}, fmt.Errorf("queued bench: %w; it said:\n%s", err, tail(output.String()))
	}
	body, err := os.ReadFile(file) //nolint:gosec // In the folder just made.
	if errors.Is(err, os.ErrNotExist) {
		return outcome{}, fmt.Errorf("queued bench reported nothing; it said:\n%s", tail(output.String()))
	}
	if err != nil {
		return outcome{}, err
	}
	return parseReport(w.name, body)
}
