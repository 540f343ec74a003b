package suite

import (
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/bench/workloads"
)

func TestReportBecomesNumbers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		report  workloads.Report
		numbers []number
	}{
		"one result": {
			report: workloads.Report{Results: []*workloads.Result{{
				Label: "64 connections", LivesPerS: 1200.5, Latency: map[string]workloads.Latency{"life": {P50: 1.5, P99: 9}},
				CPU:      &workloads.CPU{ClientPerLife: 1, ServerPerLife: 2, ServerRSS: 1 << 20},
				Database: &workloads.Database{WALPerLife: 900, CommitsPerLife: 0.5},
				Errors:   map[string]int64{"a": 1, "b": 2}, Values: map[string]float64{"wait_ms": 3},
			}}},
			numbers: []number{
				{"single.64", 1200.5, "lives/s"},
				{"single.64 life p50", 1.5, "ms"},
				{"single.64 life p99", 9, "ms"},
				{"single.64 client's processor", 1, "µs/life"},
				{"single.64 server's processor", 2, "µs/life"},
				{"single.64 server's memory", 1, "MiB"},
				{"single.64 WAL", 900, "B/life"},
				{"single.64 commits", 0.5, "/life"},
				{"single.64 wait_ms", 3, ""},
				{"single.64 errors", 3, ""},
			},
		},
		"several results and their ratios": {
			report: workloads.Report{
				Results: []*workloads.Result{{Label: "1 B", LivesPerS: 10}, {Label: "1 KB", LivesPerS: 9}},
				Ratios:  map[string]workloads.Ratio{"rate": {Value: 0.9}, "p99": {Value: 1.1}, "seen": {Value: 2}},
			},
			numbers: []number{
				{"single.64 (1 B)", 10, "lives/s"},
				{"single.64 (1 KB)", 9, "lives/s"},
				{"single.64: p99", 1.1, ""},
				{"single.64: rate", 0.9, ""},
				{"single.64: seen", 2, ""},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := numbersOf("single.64", &test.report); !slices.Equal(got.numbers, test.numbers) {
				t.Errorf("numbers: got %v", got.numbers)
			}
		})
	}
}

func TestPartsHaveTheirArgumentsAndTheDurationIfTheyTakeIt(t *testing.T) {
	t.Parallel()
	for _, w := range allWorkloads {
		if _, err := w.parse(3 * time.Second); err != nil {
			t.Errorf("%s: %s", w.name, err)
		}
	}
	batch, err := (&workload{args: "batch --batch 7", timed: true}).parse(3 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := *batch.(*workloads.Batch), (workloads.Batch{Batch: []int{7}, Connections: []int{4}, Duration: 3 * time.Second}); !slices.Equal(got.Batch, want.Batch) ||
		!slices.Equal(got.Connections, want.Connections) || got.Duration != want.Duration {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestOnlyTakesNamesAndTheirBeginnings(t *testing.T) {
	t.Parallel()
	cfg := &Config{Only: []string{"floor", "river.copy", "single"}}
	for part, want := range map[string]bool{
		"floor.one": true, "floor.batch": true, "river.copy": true, "river.bench": false, "single.64": true, "batch": false, "floors": false,
	} {
		if got := cfg.wants(part); got != want {
			t.Errorf("%s: got %t", part, got)
		}
	}
}

func TestPeerWithoutScriptsIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := peer("pgbench", "nobody", "nobody.sql"); err == nil {
		t.Error("taken")
	}
}
