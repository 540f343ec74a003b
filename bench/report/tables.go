package report

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/queued/queued/bench/load"
)

// Table is rows under a head.
type Table struct {
	Head  []string   `json:"head"`
	Rows  [][]string `json:"rows"`
	Texts int        `json:"-"` // how many columns hold text; the others hold numbers, and cells beyond the head text again
	Note  string     `json:"note,omitempty"`
}

// tables are the report for people. A workload that was run alone is shown in detail.
func (r *Report) tables() []Table {
	if len(r.Parts) == 1 && r.Rounds == 1 {
		return append([]Table{r.rates(), r.latencies(), r.values(), r.bars()}, r.Tables...)
	}
	numbers := Table{Head: []string{"number", "median", "least", "greatest", "unit"}, Texts: 1}
	for _, n := range r.Numbers {
		numbers.Rows = append(numbers.Rows, []string{n.Name, figure(n.Median), figure(n.Min), figure(n.Max), n.Unit})
	}
	return []Table{numbers, r.bars()}
}

func (r *Report) bars() Table {
	t := Table{Head: []string{"ratio", "median", "least", "greatest", "wanted", "goal", "verdict"}, Texts: 1}
	for _, b := range r.Ratios {
		t.Rows = append(t.Rows, []string{b.Name, figure(b.Median), figure(b.Min), figure(b.Max), b.Bar, b.Goal, b.Verdict})
	}
	return t
}

// rates is a row for each measured run.
func (r *Report) rates() Table {
	t := Table{
		Head:  []string{"", "events/s", "inserts/s", "claims/s", "acks/s", "empty", "errors", "client µs", "server µs", "all µs", "WAL B", "commits", "RSS MiB"},
		Texts: 1, Note: "CPU (client, server, all of this machine), WAL and commits are per event; the rates count events, not requests.",
	}
	for _, result := range r.Results {
		if result.Seconds == 0 {
			continue
		}
		row := []string{result.Label, fmt.Sprintf("%.0f", result.EventsPerS)}
		for _, step := range []load.Step{load.Insert, load.Claim, load.Ack} {
			row = append(row, fmt.Sprintf("%.0f", float64(result.Events[step.String()])/result.Seconds))
		}
		row = append(row, fmt.Sprint(result.EmptyClaims), fmt.Sprint(result.errors()),
			fmt.Sprintf("%.0f", result.CPU.ClientPerEvent), fmt.Sprintf("%.0f", result.CPU.ServerPerEvent), fmt.Sprintf("%.0f", result.CPU.MachinePerEvent))
		if result.Database != nil {
			row = append(row, fmt.Sprintf("%.0f", result.Database.WALPerEvent), fmt.Sprintf("%.3f", result.Database.CommitsPerEvent))
		} else {
			row = append(row, "-", "-")
		}
		t.Rows = append(t.Rows, append(row, fmt.Sprintf("%.0f", float64(result.CPU.ServerRSS)/(1<<20))))
	}
	return t
}

// latencies is a row for each step of each run.
func (r *Report) latencies() Table {
	t := Table{Head: []string{"ms", "", "p50", "p90", "p99", "p99.9", "max"}, Texts: 2}
	for _, result := range r.Results {
		label := result.Label
		for _, name := range sortedSteps(result.Latency) {
			l := result.Latency[name]
			t.Rows = append(t.Rows, []string{label, name, figure(l.P50), figure(l.P90), figure(l.P99), figure(l.P999), figure(l.Max)})
			label = ""
		}
	}
	return t
}

// values is the measurements of only some workloads, and the numbers that compare results.
func (r *Report) values() Table {
	t := Table{Head: []string{"", "value", ""}, Texts: 2}
	for _, result := range r.Results {
		label := result.Label
		for _, name := range sortedKeys(result.Values) {
			t.Rows = append(t.Rows, []string{label, name, figure(result.Values[name])})
			label = ""
		}
	}
	for _, n := range r.Numbers {
		if of, found := strings.CutPrefix(n.Name, r.Parts[0].Name+": "); found {
			t.Rows = append(t.Rows, []string{"", of, figure(n.Median)})
		}
	}
	return t
}

// notes are further facts about the numbers.
func (r *Report) notes() []string {
	var notes []string
	for _, result := range r.Results {
		for _, what := range sortedKeys(result.Errors) {
			notes = append(notes, fmt.Sprintf("%s: %d × %s", result.Label, result.Errors[what], what))
		}
	}
	var inserted, remaining int64
	balances := 0
	for _, result := range r.Results {
		if b := result.Balance; b != nil {
			balances++
			inserted += b.Inserted
			remaining += b.Remaining
		}
	}
	switch {
	case balances == 0:
	case r.Broken() != nil:
		notes = append(notes, "EVENTS WERE LOST OR HANDED OUT TWICE: see the error")
	default:
		note := fmt.Sprintf("%d events inserted: none lost, none handed out twice", inserted)
		if remaining > 0 {
			note += fmt.Sprintf(" (%d of them still exist)", remaining)
		}
		notes = append(notes, note)
	}
	if len(r.Disturbed) > 0 {
		notes = append(notes, fmt.Sprintf("DISTURBED: the machine was busy with something else before %d runs of parts", len(r.Disturbed)))
		notes = append(notes, r.Disturbed...)
	}
	for _, failure := range r.Failures {
		notes = append(notes, "FAILED: "+failure)
	}
	return notes
}

func (r *Report) unsafe() string {
	if len(r.Machine.Unsafe) == 0 {
		return ""
	}
	return fmt.Sprintf("NOT DURABLE: %s. These numbers mean nothing.", strings.Join(r.Machine.Unsafe, ", "))
}

// Text writes the report for a terminal.
func (r *Report) Text(w io.Writer) {
	m := r.Machine
	say := func(lines ...string) {
		for _, line := range lines {
			_, _ = fmt.Fprintln(w, line)
		}
	}
	if unsafe := r.unsafe(); unsafe != "" {
		say(unsafe)
	}
	say(fmt.Sprintf("queued %s on %d CPUs, %s, PostgreSQL %s", m.Queued, m.Cores, m.System, m.PostgreSQL), "")
	for _, t := range r.tables() {
		if len(t.Rows) == 0 {
			continue
		}
		aligned := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		for _, row := range append([][]string{t.Head}, t.Rows...) {
			_, _ = fmt.Fprintln(aligned, strings.Join(row, "\t"))
		}
		_ = aligned.Flush()
		if t.Note != "" {
			say(t.Note)
		}
		say("")
	}
	say(r.notes()...)
}

// Markdown writes the report for a page.
func (r *Report) Markdown(w io.Writer) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	if unsafe := r.unsafe(); unsafe != "" {
		say("**%s**\n", unsafe)
	}
	say("Measured %s, in %d rounds, the parts in turns, %s each.\n", r.Started.Format("2006-01-02 15:04 MST"), r.Rounds, cmp.Or(r.Duration, "as long as needed"))
	m := r.Machine
	var settings []string
	for _, name := range sortedKeys(m.Settings) {
		settings = append(settings, fmt.Sprintf("`%s = %s`", name, m.Settings[name]))
	}
	parts := Table{Head: []string{"part", "measures", "by"}, Texts: 3}
	for _, p := range r.Parts {
		parts.Rows = append(parts.Rows, []string{p.Name, p.About, p.Command})
	}
	machine := Table{Head: []string{"machine", ""}, Texts: 2, Rows: [][]string{
		{"processor", fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)},
		{"memory", fmt.Sprintf("%.1f GiB", float64(m.MemoryMiB)/1024)},
		{"PostgreSQL", m.PostgreSQL},
		{"TimescaleDB", m.TimescaleDB},
		{"settings other than the defaults", strings.Join(settings, ", ")},
		{"queued, Go", fmt.Sprintf("%s, %s, %s", m.Queued, m.Go, m.System)},
	}}
	for _, t := range append(append([]Table{machine}, r.tables()...), parts) {
		if len(t.Rows) == 0 {
			continue
		}
		rule := make([]string, len(t.Head))
		for i := range rule {
			rule[i] = "---"
			if i >= t.Texts {
				rule[i] = "---:"
			}
		}
		for _, row := range append([][]string{t.Head, rule}, t.Rows...) {
			cells := make([]string, len(row))
			for i, cell := range row {
				cells[i] = strings.NewReplacer("|", `\|`, "\n", " ").Replace(cell)
			}
			say("| %s |", strings.Join(cells, " | "))
		}
		say("")
		if t.Note != "" {
			say("%s\n", t.Note)
		}
	}
	for _, note := range r.notes() {
		say("- %s", note)
	}
}

// figure writes a value with as many digits as are of use.
func figure(v float64) string {
	digits := 0
	switch abs := math.Abs(v); {
	case abs < 10:
		digits = 3
	case abs < 100:
		digits = 2
	case abs < 1000:
		digits = 1
	}
	return strconv.FormatFloat(v, 'f', digits, 64)
}
