// Package suite measures queued, what the database could do without it, and its peers side by side, on one database server
// in one run, and judges ratios of that run by bars.
package suite

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/bench/workloads"
)

// Config is what to measure, by the flags of its command.
type Config struct {
	Rounds   int               `default:"3" placeholder:"N" help:"How often each part is run; the parts take turns."`
	Duration time.Duration     `default:"10s" help:"How long one run of a part takes, without its preparation; some parts take what they need."`
	Only     []string          `sep:"," placeholder:"PART" help:"Run these parts alone: names, or the first words of names, such as floor,river.copy,single."`
	Peers    map[string]string `name:"peer" placeholder:"NAME=FILE" help:"Measure a peer too: its SQL to load, with the scripts of suite/peers/NAME."`
	Pgbench  string            `default:"pgbench" placeholder:"FILE" help:"The program pgbench."`
	Careless bool              `help:"Measure on a server that may lose commits, too; the report says so."`
}

// MissedError says that everything was measured and a bar was missed.
type MissedError struct{}

func (MissedError) Error() string { return "a bar was missed" }

func (c *Config) check(target workloads.Config) error {
	switch {
	case c.Rounds < 1:
		return workloads.Invalidf("--rounds: got %d; takes a whole number from 1 on", c.Rounds)
	case c.Duration < time.Second:
		return workloads.Invalidf("--duration: got %s; takes a duration of at least 1s", c.Duration)
	case target.URL != "":
		return workloads.Invalidf("suite: it starts servers of its own, so leave --url out; --database-url says on which PostgreSQL")
	}
	return nil
}

// wants reports whether a part was asked for: by its name, or by the whole words it begins with.
func (c *Config) wants(part string) bool {
	return len(c.Only) == 0 || slices.ContainsFunc(c.Only, func(only string) bool {
		return part == only || strings.HasPrefix(part, only+".")
	})
}

// Run measures target's program and writes the results, to the folder out too unless that is empty. It fails with a MissedError
// when a bar was missed.
func (c *Config) Run(ctx context.Context, target workloads.Config, out string) error {
	if err := c.check(target); err != nil {
		return err
	}
	stdout := target.Output
	target.Quiet, target.Output, target.JSON, target.Plot, target.Environ = true, io.Discard, "", "", nil // its servers run with the defaults
	results, err := c.measure(ctx, target)
	if results != nil {
		writeTable(stdout, results)
		if out != "" {
			err = errors.Join(err, writeFiles(out, results))
		}
	}
	switch {
	case err != nil:
		return err
	case results.missed():
		return MissedError{}
	}
	return nil
}

func (c *Config) parts(target workloads.Config) ([]part, error) {
	all := slices.Concat(floor(c.Pgbench, target.Program).parts(), riverParts(), queuedParts(target))
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		p, err := peer(c.Pgbench, name, c.Peers[name])
		if err != nil {
			return nil, err
		}
		all = append(all, p.parts()...)
	}
	wanted := slices.DeleteFunc(all, func(p part) bool { return !c.wants(p.name) })
	if len(wanted) == 0 {
		return nil, workloads.Invalidf("--only: got %q; takes parts such as floor, river.copy or single", strings.Join(c.Only, ","))
	}
	return wanted, nil
}
