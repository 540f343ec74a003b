package report

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
)

// measured makes the results of as many rounds as values has, in which each number of parts had these values; a negative one stands
// for a failure.
func measured(t *testing.T, values map[string][]float64) *Report {
	t.Helper()
	r := &Report{}
	for _, all := range values {
		r.Rounds = max(r.Rounds, len(all))
	}
	for name, all := range values {
		for round, value := range all {
			if value >= 0 {
				r.AddNumber(round, name, value, "events/s")
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
			r.Judge([]Bar{{part: "batch", name: "batch ÷ River", value: "batch", of: []string{"river.bench", "river.copy"}, least: 1, goal: 1.5}})
			got := ""
			if len(r.Ratios) > 0 {
				got = r.Ratios[0].Verdict
			}
			if got != test.want || (r.Missed() != nil) != test.missed {
				t.Errorf("got %q, missed %t; want %q, %t", got, (r.Missed() != nil), test.want, test.missed)
			}
		})
	}
}

func TestRatioIsToTheGreatestOfTheOtherSide(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"batch": {300, 300}, "river.bench": {100, 200}, "river.copy": {150, 100}})
	r.Judge([]Bar{{part: "batch", name: "batch ÷ River", value: "batch", of: []string{"river.bench", "river.copy"}, least: 1, goal: 1.5}})
	if got := r.Ratios[0]; *got.Rounds[0] != 2 || *got.Rounds[1] != 1.5 {
		t.Errorf("got %v and %v", *got.Rounds[0], *got.Rounds[1])
	}
}

func TestPeersAreForComparisonOnly(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"floor.one": {1}, "pgmq.one": {100}})
	r.Judge(PeerBars("pgmq"))
	if len(r.Ratios) != 1 || r.Ratios[0].Verdict != verdictUnjudged || (r.Missed() != nil) {
		t.Errorf("got %+v", r.Ratios)
	}
}

func TestBarOfOneNumberIsHeldInEveryRound(t *testing.T) {
	t.Parallel()
	depth := Bar{part: "depth", name: "$1, ms", value: `depth GET (\S+) p99`, most: 50}
	for name, test := range map[string]struct {
		values map[string][]float64
		want   map[string]string
	}{
		"held":          {map[string][]float64{"depth GET /queues p99": {50, 2}}, map[string]string{"/queues, ms": verdictHeld}},
		"missed once":   {map[string][]float64{"depth GET /queues p99": {51, 2}}, map[string]string{"/queues, ms": verdictPartly}},
		"each by its":   {map[string][]float64{"depth GET /a p99": {60}, "depth GET /b p99": {6}}, map[string]string{"/a, ms": verdictMissed, "/b, ms": verdictHeld}},
		"whole names":   {map[string][]float64{"depth GET /queues p99 more": {2}}, map[string]string{"$1, ms": verdictUnsure}},
		"not found":     {map[string][]float64{"depth": {2}}, map[string]string{"$1, ms": verdictUnsure}},
		"failed always": {nil, map[string]string{"$1, ms": verdictUnsure}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := measured(t, test.values)
			r.Rounds = max(r.Rounds, 1)
			r.Parts = []Part{{Name: "depth"}}
			r.Judge([]Bar{depth})
			got := map[string]string{}
			for _, b := range r.Ratios {
				got[b.Name] = b.Verdict
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestBarOfAPartThatWasNotAskedForIsLeftOut(t *testing.T) {
	t.Parallel()
	r := &Report{Rounds: 1, Parts: []Part{{Name: "floor.one"}}}
	r.Judge(Bars)
	if len(r.Ratios) != 0 {
		t.Errorf("got %v", r.Ratios[0])
	}
}

func TestBarWhoseNumbersAreMissingIsNotHeld(t *testing.T) {
	t.Parallel()
	for _, b := range Bars {
		r := &Report{Rounds: 2, Parts: []Part{{Name: b.part}}}
		for _, of := range b.of {
			part, _, _ := strings.Cut(of, " ")
			r.Parts = append(r.Parts, Part{Name: part})
		}
		r.Judge([]Bar{b})
		if len(r.Ratios) != 1 || r.Ratios[0].Verdict != verdictUnsure || r.Missed() == nil {
			t.Errorf("%s: got %v", b.name, r.Ratios)
		}
	}
}

// The names as they came from a run; each is judged by so many bars.
func TestBarsFindTheNumbersOfTheWorkloads(t *testing.T) {
	t.Parallel()
	for want, names := range map[int][]string{
		0: {
			"single.64 end to end p99",
			"batch end to end p50",
			"idle insert p50",
			"depth (1000 waiting, fifo) claim p99",
			"depth (1000 waiting) GET /queues p99",
			"depth: GET /metrics: 1000000 waiting over 1000 waiting",
			"unclaimable: GET /queues: 100000 leased over without 100000 leased",
			"snapshot before_end_to_end_p99_ms",
			"claimers: 1 claimer over the best",
			"wakeup (bare commit) commit p99",
			"memory (10000 waiting) server_rss_max_mib",
			"memory (batches of 65536 B) server_rss_max_mib",
		},
		1: {
			"single.64",
			"single.256",
			"idle: insert_http_minus_sql_p50_ms",
			"depth (1000000 waiting, fifo) claim p99",
			"depth (1000000 waiting) GET /queues p99",
			"depth: sql_claim_event: 1000000 waiting over 1000 waiting",
			"unclaimable: random_100: 1000000 in another queue over without 1000000 in another queue",
			"snapshot: hold over before",
			"snapshot: last tenth of hold over before",
			"snapshot: after over before",
			"snapshot hold_end_to_end_p99_ms",
			"snapshot after_end_to_end_p99_ms",
			"claimers: 512 claimers over the best",
			"claimers (1024 waiting, nothing comes) commits_per_s",
			"wakeup: two processes p50 over a commit",
			"wakeup (two processes) insert to claim p99",
			"soak: last tenth over first tenth",
			"memory (64 connections) server_rss_max_mib",
		},
		2: {
			"batch",
		},
	} {
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := measured(t, map[string][]float64{
					name: {1}, "floor.one": {1}, "floor.batch": {1}, "river.bench": {1},
					"depth (1000 waiting, fifo) claim p99": {1}, "snapshot before_end_to_end_p99_ms": {1},
				})
				r.Judge(Bars)
				if len(r.Ratios) != want {
					t.Errorf("judged by %d bars", len(r.Ratios))
				}
			})
		}
	}
}

func TestRatioIsToTheNumberOfTheSameKind(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"at 9 (fifo)": {6}, "at 9 (random)": {8}, "at 1 (fifo)": {3}, "at 1 (random)": {2}})
	r.Judge([]Bar{{part: "p", name: "$1", value: `at 9 \((\w+)\)`, of: []string{"at 1 ($1)"}, most: 3}})
	got := map[string]float64{}
	for _, b := range r.Ratios {
		got[b.Name] = b.Median
	}
	if want := map[string]float64{"fifo": 2, "random": 4}; !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestResultsAreWrittenWithEveryNumberAndBar(t *testing.T) {
	t.Parallel()
	r := measured(t, map[string][]float64{"batch": {300, -1}, "river.bench": {100, 100}})
	r.Machine = Machine{CPU: "a | b", PostgreSQL: "17.1", Settings: map[string]string{"max_connections": "200"}}
	r.Judge(Bars)
	var md, table strings.Builder
	r.Markdown(&md)
	r.Text(&table)
	for _, want := range []string{`a \| b`, "`max_connections = 200`", "| batch | 300.0 |", "| batch ÷ River | 3.000 | 3.000 | 3.000 | ≥ 1 | ≥ 1.5 |", verdictUnsure} {
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
	r := &Report{Machine: Machine{Unsafe: []string{"fsync = off"}}}
	var md, table strings.Builder
	r.Markdown(&md)
	r.Text(&table)
	for _, out := range []string{md.String(), table.String()} {
		if !strings.Contains(out, "fsync = off") {
			t.Errorf("got %s", out)
		}
	}
}
