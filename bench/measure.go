package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// measure runs every wanted part in every round, in turns, so that what disturbs the machine for a while disturbs them all.
// Parts that fail are in the error; the results hold the others.
func measure(ctx context.Context, cfg *config, progress io.Writer) (*results, error) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(progress, format+"\n", args...) }
	s := &server{url: cfg.databaseURL}
	if _, err := s.urlOf(""); err != nil {
		return nil, err
	}
	surroundings, err := lookAround(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("the database server: %w", err)
	}
	if len(surroundings.Careless) > 0 {
		if !cfg.careless {
			return nil, fmt.Errorf("this server may lose commits (%s): what is measured on it means nothing; --careless does it all the same",
				strings.Join(surroundings.Careless, ", "))
		}
		say("THIS SERVER MAY LOSE COMMITS: %s", strings.Join(surroundings.Careless, ", "))
	}
	program, remove, err := theProgram(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer remove()
	parts, err := partsOf(cfg, program)
	if err != nil {
		return nil, err
	}

	found := &results{
		Started: time.Now().UTC().Truncate(time.Second), Machine: surroundings, Rounds: cfg.rounds, Duration: cfg.duration.String(),
	}
	for _, p := range parts {
		found.Parts = append(found.Parts, about{p.name, p.about, p.command})
	}
	err = runRounds(ctx, cfg, s, parts, found, say)
	found.compare(bars)
	for _, file := range cfg.peers {
		found.compare(peerBars(file.name))
	}
	return found, err
}

// quiet is how busy the processors of a machine to measure on may be with something else.
const quiet = 0.1

// runRounds fills in the results. The error is that of a run cut short, or tells that parts have failed.
func runRounds(ctx context.Context, cfg *config, s *server, parts []part, found *results, say func(string, ...any)) error {
	for round := range cfg.rounds {
		for _, p := range parts {
			say("round %d of %d: %s", round+1, cfg.rounds, p.name)
			got, err := p.measureOnce(ctx, s, cfg.duration)
			if ctx.Err() != nil {
				return errors.New("interrupted: the results are incomplete")
			}
			if err != nil {
				say("  failed: %s", err)
				found.Failures = append(found.Failures, fmt.Sprintf("round %d: %s", round+1, err))
			}
			if got.busy > quiet {
				note := fmt.Sprintf("round %d: %s: %.0f %% of the processors were busy before it began", round+1, p.name, 100*got.busy)
				say("  %s", note)
				found.Disturbed = append(found.Disturbed, note)
			}
			for _, n := range got.numbers {
				say("  %-28s %12s %s", n.name, figure(n.value), n.unit)
			}
			found.add(round, got)
		}
	}
	if len(found.Failures) > 0 {
		return fmt.Errorf("%d runs failed", len(found.Failures))
	}
	return nil
}

func partsOf(cfg *config, program string) ([]part, error) {
	all := slices.Concat(floor(cfg.pgbench, program).parts(), riverParts(), queuedParts(program))
	for _, file := range cfg.peers {
		p, err := peer(cfg.pgbench, file)
		if err != nil {
			return nil, err
		}
		all = append(all, p.parts()...)
	}
	var wanted []part
	for _, p := range all {
		if cfg.wants(p.name) {
			wanted = append(wanted, p)
		}
	}
	if len(wanted) == 0 {
		return nil, fmt.Errorf("--only %s: there is no such part", strings.Join(cfg.only, ","))
	}
	return wanted, nil
}

// theProgram returns the path of the queued to measure, which remove removes if it was built for this run.
func theProgram(ctx context.Context, cfg *config) (path string, remove func(), err error) {
	if cfg.queued != "" {
		path, err := filepath.Abs(cfg.queued)
		return path, func() {}, err
	}
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	path = filepath.Join(dir, "queued")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", path, "./cmd/queued") //nolint:gosec // A folder of our own.
	cmd.Dir = ".."
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if output, err := cmd.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("building queued from the folder above (run this in bench/, or give --queued): %w\n%s", err, output)
	}
	return path, remove, nil
}
