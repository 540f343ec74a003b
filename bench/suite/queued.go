package suite

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/bench/workloads"
)

// workload is one of package workloads, which starts the servers it needs, on databases of their own.
type workload struct {
	name  string // the part's
	about string
	args  string // of the command line, the workload's name first
	timed bool   // it takes --duration; the others know how long they need
}

var allWorkloads = []workload{
	{"single.64", "whole lives one by one over HTTP, 64 connections", "single --connections 64", true},
	{"single.256", "whole lives one by one over HTTP, 256 connections", "single --connections 256", true},
	{"batch", "whole lives by the hundred over HTTP, 4 connections", "batch --batch 100 --connections 4", true},
	{"idle", "a request to an idle server, against its statement alone", "idle", false},
	{"depth", "rate and latency with 1,000 and with 1,000,000 events waiting", "depth", false},
	{"piles", "the rate beside piles of delayed, leased and deleted events", "piles", false},
	{"snapshot", "the rate beside a session that holds an old snapshot", "snapshot --rate 1000 --before 20s --hold 90s --after 20s", false},
	{"claimers", "the rate with few and with many claimers, and claims that wait", "claimers", true},
	{"wakeup", "how soon a waiting claim has a new event", "wakeup", false},
	{"soak", "whether the rate lasts", "soak --lives 1000000", false},
	{"payload", "rates and WAL at several sizes of events", "payload", true},
	{"memory", "resident memory under full load, and with many waiting claims", "memory", true},
}

// queuedParts makes a part of each workload.
func queuedParts(target workloads.Config) []part {
	var parts []part
	for _, w := range allWorkloads {
		parts = append(parts, part{
			name:    w.name,
			about:   w.about,
			command: "queued-bench " + w.args,
			run: func(ctx context.Context, db database, duration time.Duration) (outcome, error) {
				if err := db.server.settle(ctx); err != nil {
					return outcome{}, err
				}
				measured, err := w.parse(duration)
				if err != nil {
					return outcome{}, err
				}
				target.DatabaseURL = db.url
				report, err := workloads.Run(ctx, target, measured)
				if report == nil {
					return outcome{}, err
				}
				return numbersOf(w.name, report), err
			},
		})
	}
	return parts
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

// numbersOf makes numbers of a report's results and ratios, named after the part. A rate is named like the part itself; where
// there are several results, their labels tell them apart. The report's bars are not looked at: those of the suite
// are of all rounds.
func numbersOf(partName string, report *workloads.Report) outcome {
	var got outcome
	for _, result := range report.Results {
		name := partName
		if len(report.Results) > 1 {
			name += " (" + result.Label + ")"
		}
		got.numbers = append(got.numbers, resultNumbers(name, result)...)
	}
	for _, name := range slices.Sorted(maps.Keys(report.Ratios)) {
		got.numbers = append(got.numbers, number{partName + ": " + name, report.Ratios[name].Value, ""})
	}
	return got
}

func resultNumbers(name string, r *workloads.Result) []number {
	var all []number
	add := func(what string, value float64, unit string) {
		all = append(all, number{strings.TrimSpace(name + " " + what), value, unit})
	}
	if r.LivesPerS > 0 {
		add("", r.LivesPerS, "lives/s")
	}
	for _, kind := range slices.Sorted(maps.Keys(r.Latency)) {
		add(kind+" p50", r.Latency[kind].P50, "ms")
		add(kind+" p99", r.Latency[kind].P99, "ms")
	}
	if r.CPU != nil {
		add("client's processor", r.CPU.ClientPerLife, "µs/life")
		add("server's processor", r.CPU.ServerPerLife, "µs/life")
		add("server's memory", float64(r.CPU.ServerRSS)/(1<<20), "MiB")
	}
	if r.Database != nil {
		add("WAL", r.Database.WALPerLife, "B/life")
		add("commits", r.Database.CommitsPerLife, "/life")
	}
	for _, value := range slices.Sorted(maps.Keys(r.Values)) {
		add(value, r.Values[value], "") // the unit ends the name
	}
	var errs int64
	for _, n := range r.Errors {
		errs += n
	}
	if errs > 0 {
		add("errors", float64(errs), "")
	}
	return all
}
