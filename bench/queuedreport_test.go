package main

import (
	"slices"
	"testing"
)

func TestReportBecomesNumbers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		report  string
		numbers []number
		fails   bool
	}{
		"one result": {
			report: `{"results":[{"label":"64 connections","lives_per_s":1200.5,"latency_ms":{"life":{"p50":1.5,"p99":9}},
				"cpu":{"client_us_per_life":1,"server_us_per_life":2,"server_rss_bytes":1048576},
				"database":{"wal_bytes_per_life":900,"commits_per_life":0.5},"errors":{"a":1,"b":2},"values":{"wait_ms":3}}],"ratios":{}}`,
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
			report: `{"results":[{"label":"1 B","lives_per_s":10},{"label":"1 KB","lives_per_s":9}],
				"ratios":{"rate":{"value":0.9,"bar":0.95,"bar_is":"least","ok":false},"p99":{"value":1.1,"bar":1.25,"bar_is":"most","ok":true},"seen":{"value":2}}}`,
			numbers: []number{
				{"single.64 (1 B)", 10, "lives/s"},
				{"single.64 (1 KB)", 9, "lives/s"},
				{"single.64: p99", 1.1, ""},
				{"single.64: rate", 0.9, ""},
				{"single.64: seen", 2, ""},
			},
		},
		"no results": {report: `{"results":[],"ratios":{}}`, fails: true},
		"no JSON":    {report: `lives`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseReport("single.64", []byte(test.report))
			if (err != nil) != test.fails {
				t.Fatalf("got %v", err)
			}
			if !slices.Equal(got.numbers, test.numbers) {
				t.Errorf("numbers: got %v", got.numbers)
			}
		})
	}
}
