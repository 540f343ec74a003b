package suite

import (
	"slices"
	"testing"
	"time"
)

const pgbenchReport = `transaction type: bench/suite/floor/one.sql
scaling factor: 1
query mode: prepared
number of clients: 8
number of threads: 2
maximum number of tries: 1
duration: 10 s
number of transactions actually processed: 4356
number of failed transactions: 0 (0.000%)
latency average = 18.365 ms
initial connection time = 21.034 ms
tps = 435.604219 (without initial connection time)
`

func TestRateIsReadFromPgbenchsReport(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		report string
		want   float64
		fails  bool
	}{
		"a report":              {report: pgbenchReport, want: 435.604219},
		"nothing":               {report: "", fails: true},
		"the rate with connect": {report: "tps = 400 (including connections establishing)\n", fails: true},
		"failed transactions":   {report: "number of failed transactions: 3 (0.1%)\n" + pgbenchReport, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parseTPS(test.report)
			if got != test.want || (err != nil) != test.fails {
				t.Errorf("got %v, %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestPgbenchIsNotAskedForLessThanASecond(t *testing.T) {
	t.Parallel()
	args := pgbenchArgs("one.sql", 8, 300*time.Millisecond)
	if at := slices.Index(args, "--time"); args[at+1] != "1" {
		t.Errorf("got %q", args)
	}
}

func TestRatesAreReadFromTheBenchmarkOfMatching(t *testing.T) {
	t.Parallel()
	const output = `goos: linux
BenchmarkMatch/equality/1-2         	 2508212	       474.4 ns/op	   2131177 events/s	         1.000 matches/op	       0 B/op
BenchmarkMatch/equality/100000      	 1000000	      1149 ns/op	    8.6e+05 events/s	         1.000 matches/op	       0 B/op
BenchmarkMatch/prefix/1-2           	 2508212	       474.4 ns/op	   2131177 events/s
`
	if got, want := parseMatch([]byte(output)), []matchRate{{"1", 2131177}, {"100000", 860000}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
