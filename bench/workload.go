package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// workloads are those of `queued bench` that a bar hangs on, or that the documentation tells of.
var workloads = []workload{
	{"single.64", "whole lives one by one over HTTP, 64 connections", []string{"single", "--connections", "64"}, true},
	{"single.256", "whole lives one by one over HTTP, 256 connections", []string{"single", "--connections", "256"}, true},
	{"batch", "whole lives by the hundred over HTTP, 4 connections", []string{"batch", "--batch", "100", "--connections", "4"}, true},
	{"idle", "the latency of a request to an idle server, against its statement's", []string{"idle"}, true},
	{"depth", "rate and latency at 1,000 and 1,000,000 waiting events", []string{"depth"}, true},
	{"piles", "rate beside a million delayed, leased and deleted events", []string{"piles"}, true},
	{"snapshot", "rate beside a session that holds an old snapshot", []string{"snapshot"}, true},
	{"claimers", "rate with few and many claimers; waiting claims", []string{"claimers"}, true},
	{"wakeup", "how soon a waiting claim gets a new event", []string{"wakeup"}, true},
	{"soak", "whether the rate lasts", []string{"soak"}, false},
	{"payload", "rates and WAL at 100 B, 1 KB and 64 KB", []string{"payload"}, true},
	{"memory", "resident memory under full load, and with 10,000 waiting claims", []string{"memory"}, true},
}

// report is what `queued bench --json` writes.
type report struct {
	Results json.RawMessage `json:"results"`
	Ratios  map[string]struct {
		Value float64 `json:"value"`
		Bar   any     `json:"bar"`
		OK    bool    `json:"ok"`
	} `json:"ratios"`
}

// parseReport makes numbers of a report's results and verdicts of its ratios, all named after the part.
func parseReport(partName string, body []byte) (outcome, error) {
	var r report
	if err := json.Unmarshal(body, &r); err != nil {
		return outcome{}, fmt.Errorf("the report of queued bench: %w", err)
	}
	var got outcome
	for _, name := range slices.Sorted(maps.Keys(r.Ratios)) {
		ratio := r.Ratios[name]
		got.verdicts = append(got.verdicts, verdict{
			name:  strings.TrimPrefix(partName, "queued.") + ": " + name,
			value: ratio.Value,
			bar:   fmt.Sprint(ratio.Bar),
			ok:    ratio.OK,
		})
	}
	return got, nil
}
