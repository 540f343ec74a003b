// Package suite measures queued, the database without it, and its peers side by side, on one database server
// in one run, and judges ratios of that run by bars.
package suite

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/bench/report"
	"github.com/queued/queued/bench/workloads"
)

// Config is the settings of a measurement, by the flags of its command.
type Config struct {
	Rounds   int               `default:"3" placeholder:"N" help:"How often each part is run; the parts take turns."`
	Duration time.Duration     `default:"10s" help:"How long one run of a part takes, without its preparation; some parts take as long as they need."`
	Only     []string          `placeholder:"PART" help:"Run these parts alone: names, or the first words of names, such as floor,river.copy,single."`
	Peers    map[string]string `name:"peer" placeholder:"NAME=FILE" help:"Measure a peer too: its SQL to load, with the scripts of suite/peers/NAME."`
	Pgbench  string            `default:"pgbench" placeholder:"FILE" help:"The program pgbench."`

	AllowUnsafe bool `help:"Measure on a server that may lose commits, too; the report says so."`
}

// part is one thing to measure.
type part struct {
	report.Part // numbers are named after it
	run         func(ctx context.Context, m *measuring) error
}

// measuring is a run of a part in a round.
type measuring struct {
	postgres *workloads.Postgres
	target   workloads.Config
	duration time.Duration
	report   *report.Report
	round    int
}

func (c *Config) check(target workloads.Config) error {
	switch {
	case c.Rounds < 1:
		return workloads.Invalidf("--rounds: got %d; expected a whole number from 1 on", c.Rounds)
	case c.Duration < time.Second:
		return workloads.Invalidf("--duration: got %s; expected a duration of at least 1s", c.Duration)
	case target.URL != "":
		return workloads.Invalidf("the suite starts servers of its own: leave --url out; --database-url says on which PostgreSQL")
	}
	return nil
}

// wants reports whether a part was asked for: by its name, or by the whole words it begins with.
func (c *Config) wants(part string) bool {
	return len(c.Only) == 0 || slices.ContainsFunc(c.Only, func(only string) bool {
		return part == only || strings.HasPrefix(part, only+".")
	})
}

// Run runs every wanted part in every round, in turns, so that a disturbance of the machine for a while disturbs them all.
// Parts that fail are in the error; the report holds the others.
func (c *Config) Run(ctx context.Context, target workloads.Config) (*report.Report, error) {
	if err := c.check(target); err != nil {
		return nil, err
	}
	say := func(string, ...any) {}
	if progress := target.Progress; progress != nil {
		say = func(format string, args ...any) { _, _ = fmt.Fprintf(progress, format+"\n", args...) }
	}
	parts, err := c.parts(target)
	if err != nil {
		return nil, err
	}
	postgres, err := workloads.NewPostgres(target.DatabaseURL)
	if err != nil {
		return nil, err
	}
	r := report.New(c.Rounds, c.Duration)
	for _, p := range parts {
		r.Parts = append(r.Parts, p.Part)
	}
	if err := postgres.Describe(ctx, &r.Machine); err != nil {
		return nil, fmt.Errorf("the database server: %w", err)
	}
	if len(r.Machine.Unsafe) > 0 && !c.AllowUnsafe {
		return nil, fmt.Errorf("this server may lose commits (%s), so what is measured on it means nothing; --allow-unsafe measures all the same",
			strings.Join(r.Machine.Unsafe, ", "))
	}
	target.Progress, target.Environ = nil, nil // its servers run with the defaults
	for round := range c.Rounds {
		for _, p := range parts {
			say("round %d of %d: %s", round+1, c.Rounds, p.Name)
			if busy := report.BusyShare(ctx); busy > 0.1 {
				r.Disturbed = append(r.Disturbed, fmt.Sprintf("round %d: %s: %.0f %% of the processors were busy before it began", round+1, p.Name, 100*busy))
				say("  %s", r.Disturbed[len(r.Disturbed)-1])
			}
			err := postgres.Checkpoint(ctx)
			if err == nil {
				err = p.run(ctx, &measuring{postgres: postgres, target: target, duration: c.Duration, report: r, round: round})
			}
			if ctx.Err() != nil {
				return r, ctx.Err()
			}
			if err != nil {
				r.Failures = append(r.Failures, fmt.Sprintf("round %d: %s: %s", round+1, p.Name, err))
				say("  failed: %s", err)
			}
		}
	}
	r.Judge(report.Bars)
	for _, name := range append([]string{"xmin"}, slices.Sorted(maps.Keys(c.Peers))...) {
		r.Judge(report.PeerBars(name))
	}
	if len(r.Failures) > 0 {
		return r, fmt.Errorf("%d runs failed", len(r.Failures))
	}
	return r, nil
}

func (c *Config) parts(target workloads.Config) ([]part, error) {
	all := slices.Concat(floor(c.Pgbench, target.Program).parts(), xmin(c.Pgbench).parts(), riverParts(), []part{matchPart()})
	for _, w := range workloadParts {
		all = append(all, w.part())
	}
	for _, name := range slices.Sorted(maps.Keys(c.Peers)) {
		p, err := peer(c.Pgbench, name, c.Peers[name])
		if err != nil {
			return nil, err
		}
		all = append(all, p.parts()...)
	}
	wanted := slices.DeleteFunc(all, func(p part) bool { return !c.wants(p.Name) })
	if len(wanted) == 0 {
		return nil, workloads.Invalidf("--only: got %q; expected parts such as floor, river.copy or single", strings.Join(c.Only, ","))
	}
	return wanted, nil
}

// workload is one of package workloads, which starts the servers it needs, on databases of their own.
type workload struct {
	name  string // the part's
	about string
	args  string // of the command line, the workload's name first
	timed bool   // it has a flag --duration
}

var workloadParts = []workload{
	{"single.64", "single events over HTTP, 64 connections", "single --connections 64", true},
	{"single.256", "single events over HTTP, 256 connections", "single --connections 256", true},
	{"next.64", "single events, each acked with the claim of the next one, 64 connections", "single --connections 64 --ack-by-claim", true},
	{"batch", "batches of 100 events over HTTP, 4 connections", "batch --batch 100 --connections 4", true},
	{"idle", "a request to an idle server, beside its statement alone", "idle", false},
	{"depth", "rate and latency with 1,000 and with 1,000,000 events waiting", "depth", false},
	{"unclaimable", "the rate beside events that are delayed, leased, or in another queue", "unclaimable", false},
	{"snapshot", "the rate beside a session that holds an old snapshot", "snapshot --rate 1000 --before 20s --hold 90s --after 20s", false},
	{"claimers", "the rate with few and with many claimers, and claims that wait", "claimers", true},
	{"wakeup", "how soon a waiting claim has a new event", "wakeup", false},
	{"soak", "whether the rate lasts", "soak --events 1000000", false},
	{"payload", "rates and WAL at several sizes of events", "payload", true},
	{"publish", "publications over HTTP in turns with inserts, single and by the hundred", "publish", true},
	{"heldlog", "publishing and reading beside a session that holds an old snapshot", "heldlog --before 20s --hold 90s --after 20s --window 5s", false},
	{"fanout", "a log of 100,000 events delivered into queues", "fanout", false},
	{"catchup", "a log of 300,000 events read from its beginning", "catchup", false},
	{"stream", "how soon a stream has what is published, 1,000 streams that get all of it, and the memory of 10,000", "stream", true},
	{"flow", "what limits and the order of groups cost, beside events of no group", "flow --before 20s --hold 60s", true},
	{"memory", "resident memory under full load, and with many waiting claims", "memory", true},
}

func (w *workload) part() part {
	return part{
		Part: report.Part{Name: w.name, About: w.about, Command: "queued-bench " + w.args},
		run: func(ctx context.Context, m *measuring) error {
			workload, err := w.parse(m.duration)
			if err != nil {
				return err
			}
			measured, err := workloads.Run(ctx, m.target, workload)
			if measured != nil {
				m.report.Merge(w.name, m.round, measured)
			}
			return err
		},
	}
}

// parse makes the workload of its arguments.
func (w *workload) parse(duration time.Duration) (workloads.Workload, error) {
	args := strings.Fields(w.args)
	if w.timed {
		args = append(args, "--duration", duration.String())
	}
	parser, err := kong.New(new(workloads.Commands))
	if err != nil {
		return nil, err
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return nil, err
	}
	return parsed.Selected().Target.Addr().Interface().(workloads.Workload), nil
}
