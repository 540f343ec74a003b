package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// pgbench is one run of the program.
type pgbench struct {
	program  string
	url      string
	script   string // the file's path
	clients  int
	duration time.Duration
}

func (p *pgbench) args() []string {
	return []string{
		"--no-vacuum",
		"--protocol", "prepared",
		"--client", strconv.Itoa(p.clients),
		"--jobs", strconv.Itoa(min(p.clients, runtime.NumCPU())),
		"--time", strconv.Itoa(max(1, int(p.duration.Seconds()))),
		"--file", p.script,
	}
}

// run returns how often the script ran in a second.
func (p *pgbench) run(ctx context.Context) (float64, error) {
	cmd := exec.CommandContext(ctx, p.program, append(p.args(), p.url)...) //nolint:gosec // The operator names the program.
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("pgbench: %w; it said:\n%s", err, tail(stderr.String()))
	}
	tps, err := parseTPS(stdout.String())
	if err != nil {
		return 0, fmt.Errorf("%w; it said:\n%s\n%s", err, tail(stdout.String()), tail(stderr.String()))
	}
	return tps, nil
}

// The report of pgbench 14 and later.
var (
	tpsLine    = regexp.MustCompile(`(?m)^tps = ([0-9.]+) \(without initial connection time\)$`)
	failedLine = regexp.MustCompile(`(?m)^number of failed transactions: ([0-9]+)`)
)

// parseTPS reads pgbench's report. A transaction that failed makes it an error: then the rest measured something else.
func parseTPS(report string) (float64, error) {
	if failed := failedLine.FindStringSubmatch(report); failed != nil && failed[1] != "0" {
		return 0, fmt.Errorf("pgbench: %s transactions failed", failed[1])
	}
	found := tpsLine.FindStringSubmatch(report)
	if found == nil {
		return 0, errors.New("pgbench reported no rate")
	}
	return strconv.ParseFloat(found[1], 64)
}

// tail returns the last lines of what a program said.
func tail(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
