package suite

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// bar is what queued promises of a number, or of the ratio of two numbers of the same round.
type bar struct {
	part  string // whose numbers it judges
	name  string // $1 stands for what the first group of value has matched
	value string // a regular expression for the names of whole numbers; each that fits is judged
	of    []string
	// of are the names of what the value is divided by, with $1 too: the greatest that was measured counts. None: the value itself is judged.

	least, most float64 // one of them; neither: shown for comparison
	goal        float64 // what we would like beyond least; 0: nothing
}

var bars = []bar{
	{part: "single.64", name: "single, 64 connections ÷ one-by-one floor", value: `single\.64`, of: []string{"floor.one"}, least: 2.5},
	{part: "single.256", name: "single, 256 connections ÷ one-by-one floor", value: `single\.256`, of: []string{"floor.one"}, least: 3, goal: 4},
	{part: "batch", name: "batch ÷ River", value: `batch`, of: []string{"river.bench", "river.copy"}, least: 1, goal: 1.5},
	{part: "batch", name: "batch ÷ batch floor", value: `batch`, of: []string{"floor.batch", "floor.batch2"}, least: 0.5, goal: 0.67},

	{part: "idle", name: "idle: what HTTP adds to a $1, ms", value: `idle: (post|claim|ack)_http_minus_sql_p50_ms`, most: 1},

	// 1.25 times as slow is 0.8 of the rate.
	{part: "depth", name: "depth: $1, rate at 1,000,000 ÷ at 1,000", value: `depth: (\w+): 1000000 waiting over 1000 waiting`, least: 0.8},
	{
		part: "depth", name: "depth: $1, p99 at 1,000,000 ÷ at 1,000", value: `depth \(1000000 waiting, (\w+)\) claim p99`,
		of: []string{"depth (1000 waiting, $1) claim p99"}, most: 1.25,
	},
	{part: "depth", name: "depth: GET $1 at 1,000,000, p99 in ms", value: `depth \(1000000 waiting\) GET (\S+) p99`, most: 50},

	{part: "piles", name: "piles: rate beside $1 ÷ without", value: `piles: (\w+: .+) over no pile beside .+`, least: 0.95},

	{part: "snapshot", name: "snapshot: rate while it is held ÷ before", value: `snapshot: hold over before`, least: 0.9},
	{part: "snapshot", name: "snapshot: rate in the last tenth of it ÷ before", value: `snapshot: last tenth of hold over before`, least: 0.9},
	{part: "snapshot", name: "snapshot: rate after ÷ before", value: `snapshot: after over before`, least: 0.9},
	{
		part: "snapshot", name: "snapshot: a life's p99 while it is held ÷ before", value: `snapshot hold_life_p99_ms`,
		of: []string{"snapshot before_life_p99_ms"}, most: 2,
	},
	{
		part: "snapshot", name: "snapshot: a life's p99 after ÷ before", value: `snapshot after_life_p99_ms`,
		of: []string{"snapshot before_life_p99_ms"}, most: 2,
	},

	{part: "claimers", name: "claimers: rate at 512 ÷ the best", value: `claimers: 512 claimers over the best`, least: 0.9},
	// One process polls a queue about once in a second, however many wait; every one of 1,024 polling on its own would be hundreds.
	{part: "claimers", name: "claimers: commits/s while 1,024 wait in vain", value: `claimers \(1024 waiting, nothing comes\) commits_per_s`, most: 20},

	{part: "wakeup", name: "wakeup: $1, p50 ÷ a commit", value: `wakeup: (\w+)_p50_over_a_commit`, most: 2},
	{part: "wakeup", name: "wakeup: $1, p99 in ms", value: `wakeup \((.+)\) to the claim p99`, most: 10},

	{part: "soak", name: "soak: rate of the last tenth ÷ of the first", value: `soak: last tenth over first tenth`, least: 0.97},

	{part: "memory", name: "memory: MiB at full load, $1", value: `memory \((\d+ connections)\) server_rss_max_mib`, most: 64},
}

// peerBars compare with a peer, which is no bar.
func peerBars(peer string) []bar {
	one, batches := []string{peer + ".one"}, []string{peer + ".batch", peer + ".batch2"}
	return []bar{
		{part: peer + ".one", name: "one-by-one floor ÷ " + peer, value: `floor\.one`, of: one},
		{part: peer + ".batch", name: "batch floor ÷ " + peer, value: `floor\.batch`, of: batches},
		{part: peer + ".one", name: "single, 64 connections ÷ " + peer, value: `single\.64`, of: one},
		{part: peer + ".one", name: "single, 256 connections ÷ " + peer, value: `single\.256`, of: one},
		{part: peer + ".batch", name: "batch ÷ " + peer, value: `batch`, of: batches},
	}
}

// judged tells a bar from a comparison.
func (b *bar) judged() bool { return b.least != 0 || b.most != 0 }

// judge judges all numbers that the bar is for.
func (b *bar) judge(r *results) []*ratio {
	value := regexp.MustCompile("^(?:" + b.value + ")$")
	var all []*ratio
	for _, s := range r.Numbers {
		found := value.FindStringSubmatch(s.Name)
		if found == nil {
			continue
		}
		one := ""
		if len(found) > 1 {
			one = found[1]
		}
		if judged := b.judgeOne(r, s, one); judged != nil {
			all = append(all, judged)
		}
	}
	if len(all) == 0 && b.judged() && b.asked(r) {
		// Its parts were run and do not have the numbers: nobody may take that for a bar that is held.
		all = append(all, b.conclude(b.name, make([]*float64, r.Rounds)))
	}
	return all
}

// asked tells whether both sides were asked for.
func (b *bar) asked(r *results) bool {
	return r.ran(b.part) && (len(b.of) == 0 || slices.ContainsFunc(b.of, func(name string) bool {
		part, _, _ := strings.Cut(name, " ")
		return r.ran(part)
	}))
}

// judgeOne judges one number, of whose name the first group is one. It returns nil where there is nothing to compare it with.
func (b *bar) judgeOne(r *results, s *series, one string) *ratio {
	fill := func(text string) string { return strings.ReplaceAll(text, "$1", one) }
	rounds := make([]*float64, r.Rounds)
	measured := false
	for round, value := range s.Rounds {
		divisor, ok := b.divisor(r, round, fill)
		measured = measured || ok
		if value != nil && ok {
			ratio := *value / divisor
			rounds[round] = &ratio
		}
	}
	if !measured {
		return nil
	}
	return b.conclude(fill(b.name), rounds)
}

func (b *bar) divisor(r *results, round int, fill func(string) string) (greatest float64, ok bool) {
	if len(b.of) == 0 {
		return 1, true
	}
	for _, name := range b.of {
		if s := r.series(fill(name)); s != nil && s.Rounds[round] != nil {
			greatest = max(greatest, *s.Rounds[round])
		}
	}
	return greatest, greatest > 0
}

// conclude makes the verdict. A bar is held when it is in every round.
func (b *bar) conclude(name string, rounds []*float64) *ratio {
	judged := &ratio{Name: name, Rounds: rounds, spread: spreadOf(rounds)}
	if b.least != 0 {
		judged.Bar = atLeast(b.least)
	}
	if b.most != 0 {
		judged.Bar = atMost(b.most)
	}
	if b.goal != 0 {
		judged.Goal = atLeast(b.goal)
	}
	measured, held, beyond := 0, 0, 0
	for _, value := range rounds {
		if value == nil {
			continue
		}
		measured++
		if b.least != 0 && *value >= b.least || b.most != 0 && *value <= b.most {
			held++
		}
		if b.goal != 0 && *value >= b.goal {
			beyond++
		}
	}
	switch {
	case !b.judged():
		judged.Verdict = verdictUnjudged
	case measured > 0 && held == 0:
		judged.Verdict = verdictMissed
	case held < measured:
		judged.Verdict = verdictPartly
	case measured < len(rounds):
		judged.Verdict = verdictUnsure
	case beyond == measured:
		judged.Verdict = verdictGoal
	default:
		judged.Verdict = verdictHeld
	}
	return judged
}

func atLeast(v float64) string { return "≥ " + strconv.FormatFloat(v, 'f', -1, 64) }
func atMost(v float64) string  { return "≤ " + strconv.FormatFloat(v, 'f', -1, 64) }
