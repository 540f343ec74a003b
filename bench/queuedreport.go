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
	Results []queuedResult `json:"results"`
	Ratios  map[string]struct {
		Value float64 `json:"value"`
	} `json:"ratios"`
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

// parseReport makes numbers of a report's results and ratios, named after the part. A rate is named like the part itself; where
// there are several results, their labels tell them apart. The bars of queued bench are not looked at: those of this command
// are of all rounds.
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
		got.numbers = append(got.numbers, number{partName + ": " + name, report.Ratios[name].Value, ""})
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
