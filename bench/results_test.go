package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// measured makes the results of as many rounds as values has, in which each number of parts had these values; a negative one stands
// for a failure.
func measured(t *testing.T, values map[string][]float64) *results {
	t.Helper()
	r := &results{}
	for _, all := range values {
		r.Rounds = max(r.Rounds, len(all))
	}
	for name, all := range values {
		for round, value := range all {
			if value >= 0 {
				r.add(round, outcome{numbers: []number{{name, value, "lives/s"}}})
			}
		}
	}
	return r
}

func TestBarIsHeldOnlyWhenItIsInEveryRound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		batch, river []float64
		want         string // empty: no bar is shown
		missed       bool
	}{
		"every round":              {[]float64{120, 130, 110}, []float64{100, 100, 100}, verdictHeld, false},
		"exactly":                  {[]float64{100}, []float64{100}, verdictHeld, false},
		"the goal in every round":  {[]float64{150, 160}, []float64{100, 100}, verdictGoal, false},
		"the goal in one round":    {[]float64{150, 110}, []float64{100, 100}, verdictHeld, false},
		"one round of three":       {[]float64{120, 90, 120}, []float64{100, 100, 100}, verdictPartly, true},
		"no round":                 {[]float64{90, 80}, []float64{100, 100}, verdictMissed, true},
		"one round failed":         {[]float64{120, -1, 120}, []float64{100, 100, 100}, verdictUnsure, true},
		"the other side failed":    {[]float64{120, 120}, []float64{100, -1}, verdictUnsure, true},
		"rounds are not mixed":     {[]float64{100, 1000}, []float64{10, 2000}, verdictPartly, true},
		"part was not asked for":   {nil, []float64{100}, "", false},
		"nothing to compare it to": {[]float64{120}, nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			values := map[string][]float64{}
			if test.batch != nil {
				values["batch"] = test.batch
			}
			if test.river != nil {
				values["river.bench"] = test.river
			}
			r := measured(t, values)
			r.compare([]bar{{"batch ÷ River", "batch", []string{"river.bench", "river.copy"}, 1, 1.5}})
			got := ""
			if len(r.Bars) > 0 {
				got = r.Bars[0].Verdict
			}
			if got != test.want || r.missed() != test.missed {
				t.Errorf("got %q, missed %t; want %q, %t", got, r.missed(), test.want, test.missed)
			}
		})
	}
}

func TestRatioIsToTheGreatestOfTheOtherSide(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"batch": {300, 300}, "river.bench": {100, 200}, "river.copy": {150, 100}})
	r.compare([]bar{{"batch ÷ River", "batch", []string{"river.bench", "river.copy"}, 1, 1.5}})
	if got := r.Bars[0]; *got.Rounds[0] != 2 || *got.Rounds[1] != 1.5 {
		t.Errorf("got %v and %v", *got.Rounds[0], *got.Rounds[1])
	}
}

func TestPeersAreForComparisonOnly(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"floor.one": {1}, "pgmq.one": {100}})
	r.compare(peerBars("pgmq"))
	if len(r.Bars) != 1 || r.Bars[0].Verdict != verdictUnjudged || r.missed() {
		t.Errorf("got %+v", r.Bars)
	}
}

func TestVerdictsOfAProgramAreHeldOnlyInEveryRound(t *testing.T) {
	t.Parallel()
	r := &results{Rounds: 2}
	r.add(0, outcome{verdicts: []verdict{{"depth: fifo rate", 1.1, "≤ 1.25", true}, {"depth: p99", 1, "≤ 1.25", true}}})
	r.add(1, outcome{verdicts: []verdict{{"depth: fifo rate", 1.3, "≤ 1.25", false}, {"depth: p99", 1, "≤ 1.25", true}}})
	if got := [2]string{r.Bars[0].Verdict, r.Bars[1].Verdict}; got != [2]string{verdictPartly, verdictHeld} {
		t.Errorf("got %q", got)
	}
	if !r.missed() {
		t.Error("not missed")
	}
}

func TestEveryBarIsOfPartsThatExist(t *testing.T) {
	t.Parallel()
	parts := map[string]bool{}
	cfg := &config{}
	all, err := partsOf(cfg, "queued")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		parts[p.name] = true
	}
	for _, b := range bars {
		for _, name := range append(b.of, b.value) {
			if !parts[name] {
				t.Errorf("%s: there is no part %s", b.name, name)
			}
		}
	}
}

func TestResultsAreWrittenWithEveryNumberAndBar(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"batch": {300, -1}, "river.bench": {100, 100}})
	r.Machine = machine{CPU: "a | b", PostgreSQL: "17.1", Settings: map[string]string{"max_connections": "200"}}
	r.compare(bars)
	var md, table strings.Builder
	writeMarkdown(&md, r)
	writeTable(&table, r)
	for _, want := range []string{`a \| b`, "`max_connections = 200`", "| `batch` | 300.0 |", "| batch ÷ River | ≥ 1 | ≥ 1.5 | 3.000 |", verdictUnsure} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("not in results.md: %s\n%s", want, md.String())
		}
	}
	for _, want := range []string{"batch", "batch ÷ River", verdictUnsure} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("not in the table: %s\n%s", want, table.String())
		}
	}
	body, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(body), `"rounds":[300,null]`) {
		t.Errorf("got %s, %v", body, err)
	}
}

func TestCarelessServerIsSaidInEveryOutput(t *testing.T) {
	t.Parallel()
	r := &results{Machine: machine{Careless: []string{"fsync = off"}}}
	var md, table strings.Builder
	writeMarkdown(&md, r)
	writeTable(&table, r)
	for _, out := range []string{md.String(), table.String()} {
		if !strings.Contains(out, "fsync = off") {
			t.Errorf("got %s", out)
		}
	}
}
