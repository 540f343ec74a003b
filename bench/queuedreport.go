package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// queuedReport is what `queued bench --json` writes, as far as it is read here; queued's internal/bench has all of it.
type queuedReport struct {
	Results []queuedResult         `json:"results"`
	Ratios  map[string]queuedRatio `json:"ratios"`
}

type queuedResult struct {
	Label     string           `json:"label"`
	LivesPerS float64          `json:"lives_per_s"`
	Errors    map[string]int64 `json:"errors"`
	Latency   map[string]struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"latency_ms"`
	CPU *struct {
		ClientPerLife float64 `json:"client_us_per_life"`
		ServerPerLife float64 `json:"server_us_per_life"`
		ServerRSS     float64 `json:"server_rss_bytes"`
	} `json:"cpu"`
	Database *struct {
		WALPerLife     float64 `json:"wal_bytes_per_life"`
		CommitsPerLife float64 `json:"commits_per_life"`
	} `json:"database"`
	Values map[string]float64 `json:"values"`
}

type queuedRatio struct {
	Value float64  `json:"value"`
	Bar   *float64 `json:"bar"`    // missing: nobody judges it
	BarIs string   `json:"bar_is"` // least or most
	OK    *bool    `json:"ok"`
}

// parseReport makes numbers of a report's results and verdicts of its ratios, named after the part. A rate is named like the
// part itself; where there are several results, their labels tell them apart.
func parseReport(partName string, body []byte) (outcome, error) {
	var report queuedReport
	if err := json.Unmarshal(body, &report); err != nil {
		return outcome{}, fmt.Errorf("the report of queued bench: %w", err)
	}
	if len(report.Results) == 0 {
		return outcome{}, errors.New("the report of queued bench has no results")
	}
	var got outcome
	for _, result := range report.Results {
		name := partName
		if len(report.Results) > 1 {
			name += " (" + result.Label + ")"
		}
		got.numbers = append(got.numbers, result.numbers(name)...)
	}
	for _, name := range slices.Sorted(maps.Keys(report.Ratios)) {
		ratio := report.Ratios[name]
		if (ratio.Bar == nil) != (ratio.OK == nil) || ratio.Bar != nil && ratio.BarIs != "least" && ratio.BarIs != "most" {
			return outcome{}, fmt.Errorf("the report of queued bench: the ratio %q has no clear bar", name)
		}
		v := verdict{name: partName + ": " + name, value: ratio.Value, ok: true}
		if ratio.Bar != nil {
			v.bar, v.ok = atLeast(*ratio.Bar), *ratio.OK
			if ratio.BarIs == "most" {
				v.bar = atMost(*ratio.Bar)
			}
		}
		got.verdicts = append(got.verdicts, v)
	}
	return got, nil
}

func (r *queuedResult) numbers(name string) []number {
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
		add("server's memory", r.CPU.ServerRSS/(1<<20), "MiB")
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
