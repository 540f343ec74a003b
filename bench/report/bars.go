package report

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Bar is a ratio of two numbers of the same round, or one number, and queued's promise about it.
type Bar struct {
	part  string // whose numbers it judges
	name  string // $1 stands for the match of the first group of value
	value string // a regular expression for the names of whole numbers; each that fits is judged
	of    []string
	// of are the names of the numbers that the value is divided by, with $1 too: the greatest that was measured counts. None: the value itself is judged.

	least, most float64 // one of them; neither: shown for comparison
	goal        float64 // wanted beyond least; 0: nothing
}

// Bars are the promises of queued.
var Bars = []Bar{
	{part: "single.64", name: "single, 64 connections ÷ one-by-one floor", value: `single\.64`, of: []string{"floor.one"}, least: 2.5},
	{part: "single.256", name: "single, 256 connections ÷ one-by-one floor", value: `single\.256`, of: []string{"floor.one"}, least: 3, goal: 4},
	{part: "next.64", name: "single, acked with the next claim ÷ by itself, processor time", value: `next\.64 machine CPU`, of: []string{"single.64 machine CPU"}, most: 0.9},
	{part: "batch", name: "batch ÷ River", value: `batch`, of: []string{"river.bench", "river.copy"}, least: 1, goal: 1.5},
	{part: "river.bench", name: "River ÷ batch, by processor time", value: `river\.bench machine CPU`, of: []string{"batch machine CPU"}, least: 1, goal: 1.6},
	{part: "river.copy", name: "River by COPY ÷ batch, by processor time", value: `river\.copy machine CPU`, of: []string{"batch machine CPU"}, least: 1, goal: 1.6},
	{part: "batch", name: "batch ÷ batch floor", value: `batch`, of: []string{"floor.batch", "floor.batch2"}, least: 0.5, goal: 0.67},

	{part: "idle", name: "idle: what HTTP adds to a lone $1, ms", value: `idle: (insert|claim|ack)_http_minus_sql_p50_ms`, most: 1},

	// 1.25 times as slow is 0.8 of the rate.
	{part: "depth", name: "depth: $1, rate at 1,000,000 ÷ at 1,000", value: `depth: (\w+): 1000000 waiting over 1000 waiting`, least: 0.8},
	{
		part: "depth", name: "depth: $1, p99 at 1,000,000 ÷ at 1,000", value: `depth \(1000000 waiting, (\w+)\) claim p99`,
		of: []string{"depth (1000 waiting, $1) claim p99"}, most: 1.25,
	},
	{part: "depth", name: "depth: GET $1 at 1,000,000, p99 in ms", value: `depth \(1000000 waiting\) GET (\S+) p99`, most: 50},

	{part: "unclaimable", name: "unclaimable: rate beside $1 ÷ without", value: `unclaimable: (\w+: .+) over without .+`, least: 0.95},

	{part: "snapshot", name: "snapshot: rate while it is held ÷ before", value: `snapshot: hold over before`, least: 0.9},
	{part: "snapshot", name: "snapshot: rate in the last tenth of it ÷ before", value: `snapshot: last tenth of hold over before`, least: 0.9},
	{part: "snapshot", name: "snapshot: rate after ÷ before", value: `snapshot: after over before`, least: 0.9},
	{
		part: "snapshot", name: "snapshot: p99 end to end while it is held ÷ before", value: `snapshot hold_end_to_end_p99_ms`,
		of: []string{"snapshot before_end_to_end_p99_ms"}, most: 2,
	},
	{
		part: "snapshot", name: "snapshot: p99 end to end after ÷ before", value: `snapshot after_end_to_end_p99_ms`,
		of: []string{"snapshot before_end_to_end_p99_ms"}, most: 2,
	},

	{part: "claimers", name: "claimers: rate at 512 ÷ the best", value: `claimers: 512 claimers over the best`, least: 0.9},
	// One process polls a queue about once in a second, however many wait; every one of 1,024 polling on its own would be hundreds.
	{part: "claimers", name: "claimers: commits/s while 1,024 wait in vain", value: `claimers \(1024 waiting, nothing comes\) commits_per_s`, most: 20},

	{part: "wakeup", name: "wakeup: $1, p50 ÷ a commit", value: `wakeup: (.+) p50 over a commit`, most: 2},
	{part: "wakeup", name: "wakeup: $1, p99 in ms", value: `wakeup \((.+)\) insert to claim p99`, most: 10},

	{part: "soak", name: "soak: rate of the last tenth ÷ of the first", value: `soak: last tenth over first tenth`, least: 0.97},

	{part: "publish", name: "publish: single ÷ single inserts", value: `publish: single over posts`, least: 1},
	{part: "publish", name: "publish: batch ÷ batches of inserts", value: `publish: batch over posts`, least: 0.9},

	{part: "heldlog", name: "heldlog: publications/s while a snapshot is held ÷ before and after", value: `heldlog: hold over before and after`, least: 0.95},
	{part: "heldlog", name: "heldlog: publications/s in the last tenth of it ÷ before and after", value: `heldlog: last tenth of hold over before and after`, least: 0.95},

	{part: "fanout", name: "fanout: events/s, $1", value: `fanout \((.+, one queue)\)`, least: 12_000},

	{part: "catchup", name: "catchup: events/s over HTTP", value: `catchup \(HTTP\)`, least: 100_000},

	{part: "stream", name: "stream: publish to $1, p50 in ms", value: `stream \(idle, (.+)\) publish to stream p50`, most: 5},
	{part: "stream", name: "stream: publish to $1, p99 in ms", value: `stream \(idle, (.+)\) publish to stream p99`, most: 20},
	{part: "stream", name: "stream: events/s that each of 1,000 streams got", value: `stream \(1000 streams\)`, least: 100},
	{part: "stream", name: "stream: MiB with 10,000 idle streams", value: `stream \(10000 idle streams\) server_rss_mib`, most: 400},

	{part: "match", name: "match: events/s with 10,000 filters", value: `match \(10000 filters\)`, least: 200_000},
	{part: "match", name: "match: rate with 100,000 filters ÷ with 10,000", value: `match \(100000 filters\)`, of: []string{"match (10000 filters)"}, least: 0.5},

	{part: "flow", name: "flow: $1 ÷ no group, processor time", value: `flow: (concurrency|concurrency beside \d+ waiting): processor time over no group`, most: 2.2},
	{part: "flow", name: "flow: $1 ÷ no group, processor time", value: `flow: (order): processor time over no group`, most: 2.5},
	{part: "flow", name: "flow: $1 ÷ no group, processor time", value: `flow: (rate|turns): processor time over no group`, most: 4},
	{part: "flow", name: "flow: rate beside events that wait ÷ without", value: `flow: rate beside those that wait over that without`, least: 0.95},
	{part: "flow", name: "flow: one group in order ÷ one worker, rate", value: `flow: one group in order over one worker`, least: 0.7},
	{part: "flow", name: "flow: least ÷ most that a poster of one group has inserted", value: `flow: least over most that a poster of one group has inserted`, least: 0.5},
	{part: "flow", name: "flow: $1, p50 ÷ a commit", value: `flow: (hand-over .+), p50 over a commit`, most: 2},
	{part: "flow", name: "flow: rate while a snapshot is held ÷ before", value: `flow: hold over before`, least: 0.9},
	{part: "flow", name: "flow: rate in the last tenth of it ÷ before", value: `flow: last tenth of hold over before`, least: 0.9},

	{part: "memory", name: "memory: MiB at full load, $1", value: `memory \((\d+ connections)\) server_rss_max_mib`, most: 64},
}

// PeerBars compare with a peer of the suite, and judge nothing.
func PeerBars(peer string) []Bar {
	one, batches := []string{peer + ".one"}, []string{peer + ".batch", peer + ".batch2"}
	return []Bar{
		{part: peer + ".one", name: "one-by-one floor ÷ " + peer, value: `floor\.one`, of: one},
		{part: peer + ".batch", name: "batch floor ÷ " + peer, value: `floor\.batch`, of: batches},
		{part: peer + ".one", name: "single, 64 connections ÷ " + peer, value: `single\.64`, of: one},
		{part: peer + ".one", name: "single, 256 connections ÷ " + peer, value: `single\.256`, of: one},
		{part: peer + ".batch", name: "batch ÷ " + peer, value: `batch`, of: batches},
		{part: peer + ".publish", name: "publish, single ÷ " + peer, value: `publish \(POST /topics/{topic}\)`, of: []string{peer + ".publish"}},
		{part: peer + ".publish", name: "publish floor, single ÷ " + peer, value: `floor\.publish`, of: []string{peer + ".publish"}},
		{part: peer + ".publish_batch", name: "publish, batch ÷ " + peer, value: `publish \(POST /publish\)`, of: []string{peer + ".publish_batch"}},
		{part: peer + ".publish_batch", name: "publish floor, batch ÷ " + peer, value: `floor\.publish_batch`, of: []string{peer + ".publish_batch"}},
		{part: peer + ".read", name: "catchup over HTTP ÷ " + peer, value: `catchup \(HTTP\)`, of: []string{peer + ".read"}},
		{part: peer + ".read", name: "read floor ÷ " + peer, value: `floor\.read`, of: []string{peer + ".read"}},
		{part: peer + ".match", name: "match with 10,000 filters ÷ " + peer, value: `match \(10000 filters\)`, of: []string{peer + ".match"}},
	}
}

// ProgramBars compare the rates, times and costs of one program with those of another, and judge nothing.
func ProgramBars(part, program, other string) []Bar {
	this, that := regexp.QuoteMeta(fmt.Sprintf("%s (%s)", part, program)), fmt.Sprintf("%s (%s)", part, other)
	over := fmt.Sprintf("%s ÷ %s", program, other)
	return []Bar{
		{part: part, name: part + ": events/s, " + over, value: this, of: []string{that}},
		{part: part, name: part + ": $1, " + over, value: this + " (.+ p50|.+ p99|server CPU|server memory|WAL|commits)", of: []string{that + " $1"}},
	}
}

// Ratio is a bar in all rounds.
type Ratio struct {
	Name   string     `json:"name"`
	Bar    string     `json:"bar,omitempty"`  // empty: for comparison only
	Goal   string     `json:"goal,omitempty"` // beyond the bar
	Rounds []*float64 `json:"rounds"`
	Spread
	Verdict string `json:"verdict"`
}

// Verdicts on a bar.
const (
	verdictHeld     = "held"
	verdictGoal     = "held, the goal too"
	verdictMissed   = "missed"
	verdictPartly   = "missed in some rounds"
	verdictUnsure   = "not measured in all rounds"
	verdictUnjudged = "for comparison"
)

// ErrMissed says that a bar was missed.
var ErrMissed = errors.New("a bar was missed")

// Missed is ErrMissed when any bar was not held.
func (r *Report) Missed() error {
	for _, ratio := range r.Ratios {
		if !slices.Contains([]string{verdictHeld, verdictGoal, verdictUnjudged}, ratio.Verdict) {
			return ErrMissed
		}
	}
	return nil
}

// Judge adds the ratios of bars whose parts were measured.
func (r *Report) Judge(bars []Bar) {
	for _, b := range bars {
		r.Ratios = append(r.Ratios, b.judge(r)...)
	}
}

// judged tells a bar from a comparison.
func (b *Bar) judged() bool { return b.least != 0 || b.most != 0 }

func (b *Bar) judge(r *Report) []*Ratio {
	value := regexp.MustCompile("^(?:" + b.value + ")$")
	var all []*Ratio
	for _, n := range r.Numbers {
		found := value.FindStringSubmatch(n.Name)
		if found == nil {
			continue
		}
		group := ""
		if len(found) > 1 {
			group = found[1]
		}
		if ratio := b.judgeNumber(r, n, group); ratio != nil {
			all = append(all, ratio)
		}
	}
	if len(all) == 0 && b.judged() && b.wasAsked(r) {
		// Its parts were run and do not have the numbers: nobody may take that for a bar that is held.
		all = append(all, b.conclude(b.name, make([]*float64, r.Rounds)))
	}
	return all
}

// Parts are those that the bar needs: the one that it judges, and those that it is divided by, any of which will do.
func (b *Bar) Parts() []string {
	parts := []string{b.part}
	for _, of := range b.of {
		part, _, _ := strings.Cut(of, " ")
		parts = append(parts, part)
	}
	return parts
}

// wasAsked reports whether both sides were run, in a suite, with the arguments that the bar is for.
func (b *Bar) wasAsked(r *Report) bool {
	ran := func(part string) bool {
		return slices.ContainsFunc(r.Parts, func(p Part) bool { return p.Name == part && r.Settings == nil })
	}
	parts := b.Parts()
	return ran(parts[0]) && (len(parts) == 1 || slices.ContainsFunc(parts[1:], ran))
}

// judgeNumber judges one number, of whose name the first group is group. It returns nil where there is nothing to compare it with.
func (b *Bar) judgeNumber(r *Report, n *Number, group string) *Ratio {
	fill := func(text string) string { return strings.ReplaceAll(text, "$1", group) }
	rounds := make([]*float64, r.Rounds)
	measured := false
	for round, value := range n.Rounds {
		divisor := 1.0
		if len(b.of) > 0 {
			divisor = 0
			for _, name := range b.of {
				if other := r.number(fill(name)); other != nil && other.Rounds[round] != nil {
					divisor = max(divisor, *other.Rounds[round])
				}
			}
		}
		measured = measured || divisor > 0
		if value != nil && divisor > 0 {
			ratio := *value / divisor
			rounds[round] = &ratio
		}
	}
	if !measured {
		return nil
	}
	return b.conclude(fill(b.name), rounds)
}

// conclude makes the verdict. A bar is held when it is in every round.
func (b *Bar) conclude(name string, rounds []*float64) *Ratio {
	ratio := &Ratio{Name: name, Rounds: rounds, Spread: spreadOf(rounds)}
	switch {
	case b.least != 0:
		ratio.Bar = fmt.Sprintf("≥ %g", b.least)
	case b.most != 0:
		ratio.Bar = fmt.Sprintf("≤ %g", b.most)
	}
	if b.goal != 0 {
		ratio.Goal = fmt.Sprintf("≥ %g", b.goal)
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
		ratio.Verdict = verdictUnjudged
	case measured > 0 && held == 0:
		ratio.Verdict = verdictMissed
	case held < measured:
		ratio.Verdict = verdictPartly
	case measured < len(rounds):
		ratio.Verdict = verdictUnsure
	case beyond == measured:
		ratio.Verdict = verdictGoal
	default:
		ratio.Verdict = verdictHeld
	}
	return ratio
}
