package suite

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"

	"github.com/queued/queued/bench/report"
)

// matchPart runs the benchmark of the package that finds, among many filters, those that want an event. Nothing of the product is imported here,
// and over HTTP one filter at a time could be measured: so the benchmark does, by the go command, in the folder that the program is built from.
func matchPart() part {
	args := []string{"test", "-C", "..", "-run", "^$", "-bench", "^BenchmarkMatch$/^equality$", "./internal/match"}
	return part{
		Part: report.Part{
			Name: "match", About: "filters of one equality each, by processor time", Command: "go test -run '^$' -bench '^BenchmarkMatch$/^equality$' ./internal/match",
		},
		run: func(ctx context.Context, m *measuring) error {
			cmd := exec.CommandContext(ctx, "go", args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			output, err := cmd.Output()
			if err != nil {
				return fmt.Errorf("go test: %w; the end of its output:\n%s\n%s", err, tail(output), tail(stderr.Bytes()))
			}
			rates := parseMatch(output)
			if len(rates) == 0 {
				return fmt.Errorf("go test reported no rate; the end of its output:\n%s", tail(output))
			}
			for _, rate := range rates {
				m.report.AddNumber(m.round, fmt.Sprintf("match (%s filters)", rate.filters), rate.eventsPerS, "events/s")
			}
			return nil
		},
	}
}

// matchRate is how many events were matched in a second.
type matchRate struct {
	filters    string
	eventsPerS float64
}

// matchLine is a line of the benchmark's output.
var matchLine = regexp.MustCompile(`(?m)^BenchmarkMatch/equality/(\d+)(?:-\d+)?\s.*?\s([0-9.e+]+) events/s`)

func parseMatch(output []byte) (rates []matchRate) {
	for _, found := range matchLine.FindAllSubmatch(output, -1) {
		if rate, err := strconv.ParseFloat(string(found[2]), 64); err == nil {
			rates = append(rates, matchRate{string(found[1]), rate})
		}
	}
	return rates
}
