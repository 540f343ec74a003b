package suite

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/bench/report"
	"github.com/queued/queued/bench/workloads"
)

//go:embed floor xmin peers
var scripts embed.FS

// scripted is a queue in SQL that pgbench drives: queued's own functions without queued, which are the floor under it, or a
// peer.
type scripted struct {
	name    string // the beginning of its parts' names
	dir     string // of its scripts, in this package
	pgbench string
	prepare func(ctx context.Context, p *workloads.Postgres, database string) error // makes its schema
}

// load is one script and how it is run.
type load struct {
	name    string // the end of the part's name
	about   string
	script  string
	clients int
	events  float64 // of one run of the script
}

// One by one and in batches, the same for the floor and each peer. A peer may lack any script.
var loads = []load{
	{"one", "single events in SQL", "one.sql", 8, 1},
	{"silent", "single events in SQL, without NOTIFY", "silent.sql", 8, 1},
	{"random", "single events in SQL, claimed at random", "random.sql", 8, 1},
	{"batch", "batches of 100 events in SQL", "batch.sql", 4, 100},
	{"batch2", "batches of 100 events in SQL, with 2 clients", "batch.sql", 2, 100},
	{"publish", "single publications in SQL", "publish.sql", 8, 1},
	{"publish_user", "single publications in SQL by the function for users", "publish_user.sql", 8, 1},
	{"publish_batch", "publications in SQL by the hundred", "publish_batch.sql", 4, 100},
	{"read", "a log read in SQL by pages of 1,000", "read.sql", 1, 1000},
	{"match", "publications in SQL by the thousand, and which of 10,000 subscriptions want each", "match.sql", 1, 1000},
}

func (s *scripted) parts() []part {
	var parts []part
	for _, l := range loads {
		script, err := scripts.ReadFile(s.dir + "/" + l.script)
		if err != nil {
			continue
		}
		parts = append(parts, part{
			Part: report.Part{
				Name: s.name + "." + l.name, About: l.about,
				Command: fmt.Sprintf("pgbench -n -M prepared -c %d -f bench/suite/%s/%s", l.clients, s.dir, l.script),
			},
			run: func(ctx context.Context, m *measuring) error { return s.run(ctx, m, l, script) },
		})
	}
	return parts
}

func (s *scripted) run(ctx context.Context, m *measuring, l load, script []byte) (err error) {
	name, url, err := m.postgres.Create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.postgres.Drop(ctx, name)) }()
	if err := s.prepare(ctx, m.postgres, name); err != nil {
		return err
	}
	for _, seed := range []string{"seed.sql", strings.TrimSuffix(l.script, ".sql") + ".seed.sql"} {
		statements, err := scripts.ReadFile(s.dir + "/" + seed)
		if errors.Is(err, fs.ErrNotExist) && seed != "seed.sql" {
			continue // most need no more
		} else if err != nil {
			return err
		}
		if err := m.postgres.Exec(ctx, name, string(statements)); err != nil {
			return fmt.Errorf("%s: %w", seed, err)
		}
	}
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	path := filepath.Join(dir, l.script)
	if err := os.WriteFile(path, script, 0o600); err != nil {
		return err
	}
	if err := m.postgres.Checkpoint(ctx); err != nil {
		return err
	}
	tps, err := runPgbench(ctx, s.pgbench, append(pgbenchArgs(path, l.clients, m.duration), url))
	if err == nil {
		m.report.AddNumber(m.round, s.name+"."+l.name, tps*l.events, "events/s")
	}
	return err
}

// floor is queued's own SQL without queued. program makes the schema.
func floor(pgbench, program string) *scripted {
	return &scripted{name: "floor", dir: "floor", pgbench: pgbench, prepare: func(ctx context.Context, p *workloads.Postgres, database string) error {
		cmd := exec.CommandContext(ctx, program, "migrate")
		cmd.Env = []string{"QUEUED_DATABASE_URL=" + p.URL(database)}
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("queued migrate: %w; the end of its output:\n%s", err, tail(output))
		}
		return nil
	}}
}

// xmin is a log whose readers stay behind the oldest transaction of the server. Its seed makes all of it.
func xmin(pgbench string) *scripted {
	return &scripted{name: "xmin", dir: "xmin", pgbench: pgbench, prepare: func(context.Context, *workloads.Postgres, string) error { return nil }}
}

// peer is a queue whose SQL is in the file path.
func peer(pgbench, name, path string) (*scripted, error) {
	s := &scripted{name: name, dir: "peers/" + name, pgbench: pgbench}
	if _, err := scripts.ReadDir(s.dir); err != nil {
		return nil, workloads.Invalidf("--peer %s: there are no scripts for it in bench/suite/%s", name, s.dir)
	}
	s.prepare = func(ctx context.Context, p *workloads.Postgres, database string) error {
		body, err := os.ReadFile(path) //nolint:gosec // the operator names it
		if err != nil {
			return err
		}
		if err := p.Exec(ctx, database, string(body)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	return s, nil
}

func pgbenchArgs(script string, clients int, duration time.Duration) []string {
	return []string{
		"--no-vacuum", "--protocol", "prepared", "--file", script,
		"--define", "after=0", // from where scripts that read a log go on
		"--client", strconv.Itoa(clients), "--jobs", strconv.Itoa(min(clients, runtime.NumCPU())),
		"--time", strconv.Itoa(max(1, int(duration.Seconds()))),
	}
}

// runPgbench returns how often the script ran in a second.
func runPgbench(ctx context.Context, program string, args []string) (float64, error) {
	cmd := exec.CommandContext(ctx, program, args...) //nolint:gosec // the operator names the program
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("pgbench: %w; the end of its output:\n%s", err, tail(stderr.Bytes()))
	}
	tps, err := parseTPS(stdout.String())
	if err != nil {
		return 0, fmt.Errorf("%w; the end of its output:\n%s\n%s", err, tail(stdout.Bytes()), tail(stderr.Bytes()))
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

// tail returns the last lines of a program's output.
func tail(output []byte) string {
	lines := strings.Split(strings.TrimSpace(string(output)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
