package suite

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

//go:embed floor peers
var scripts embed.FS

// scripted is a queue in SQL that pgbench drives: queued's own functions without queued, which are the floor under it, or a
// peer.
type scripted struct {
	name    string // the beginning of its parts' names
	dir     string // of its scripts, in this module
	pgbench string
	load    func(ctx context.Context, db database) error // makes its schema
}

// load is one script and how it is run.
type load struct {
	name    string // the end of the part's name
	about   string
	script  string
	clients int
	lives   float64 // that one run of the script makes
}

// One by one and in batches, the same for the floor and each peer. A peer may lack any script.
var loads = []load{
	{"one", "whole lives one by one, in SQL", "one.sql", 8, 1},
	{"silent", "whole lives one by one, in SQL, waking nobody", "silent.sql", 8, 1},
	{"random", "whole lives one by one, in SQL, claimed at random", "random.sql", 8, 1},
	{"batch", "whole lives by the hundred, in SQL", "batch.sql", 4, 100},
	{"batch2", "whole lives by the hundred, in SQL, with 2 clients", "batch.sql", 2, 100},
}

func (s *scripted) parts() []part {
	var parts []part
	for _, l := range loads {
		if _, err := scripts.ReadFile(s.dir + "/" + l.script); err != nil {
			continue
		}
		bench := pgbench{program: s.pgbench, script: "bench/suite/" + s.dir + "/" + l.script, clients: l.clients}
		parts = append(parts, part{
			name:    s.name + "." + l.name,
			about:   l.about,
			command: fmt.Sprintf("pgbench -n -M prepared -c %d -f %s", bench.clients, bench.script),
			run: func(ctx context.Context, db database, duration time.Duration) (outcome, error) {
				return s.run(ctx, l, db, duration)
			},
		})
	}
	return parts
}

func (s *scripted) run(ctx context.Context, l load, db database, duration time.Duration) (outcome, error) {
	if err := s.load(ctx, db); err != nil {
		return outcome{}, err
	}
	seed, err := scripts.ReadFile(s.dir + "/seed.sql")
	if err != nil {
		return outcome{}, err
	}
	if err := db.server.execScript(ctx, db.name, string(seed)); err != nil {
		return outcome{}, fmt.Errorf("seed.sql: %w", err)
	}
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	script, err := scripts.ReadFile(s.dir + "/" + l.script)
	if err != nil {
		return outcome{}, err
	}
	path := filepath.Join(dir, l.script)
	if err := os.WriteFile(path, script, 0o600); err != nil {
		return outcome{}, err
	}
	if err := db.server.settle(ctx); err != nil {
		return outcome{}, err
	}
	bench := pgbench{program: s.pgbench, url: db.url, script: path, clients: l.clients, duration: duration}
	tps, err := bench.run(ctx)
	if err != nil {
		return outcome{}, err
	}
	return outcome{numbers: []number{{s.name + "." + l.name, tps * l.lives, "lives/s"}}}, nil
}

// floor is queued's own SQL without queued. program makes the schema.
func floor(pgbench, program string) *scripted {
	return &scripted{name: "floor", dir: "floor", pgbench: pgbench, load: func(ctx context.Context, db database) error {
		return migrate(ctx, program, db.url)
	}}
}

// peer is a queue whose SQL the user has.
func peer(pgbench, name, path string) (*scripted, error) {
	s := &scripted{name: name, dir: "peers/" + name, pgbench: pgbench}
	if _, err := scripts.ReadDir(s.dir); err != nil {
		return nil, fmt.Errorf("--peer %s: there are no scripts for it in bench/suite/%s", name, s.dir)
	}
	s.load = func(ctx context.Context, db database) error {
		body, err := os.ReadFile(path) //nolint:gosec // The operator names it.
		if err != nil {
			return err
		}
		if err := db.server.execScript(ctx, db.name, string(body)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	return s, nil
}

// migrate makes queued's schema with the program itself.
func migrate(ctx context.Context, program, url string) error {
	cmd := exec.CommandContext(ctx, program, "migrate")
	cmd.Env = []string{"QUEUED_DATABASE_URL=" + url}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("queued migrate: %w; it said:\n%s", err, tail(output.String()))
	}
	return nil
}
