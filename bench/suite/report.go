package suite

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// figure writes a value with as many digits as it deserves.
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

// writeTable writes the results for a terminal.
func writeTable(w io.Writer, r *results) {
	if len(r.Machine.Careless) > 0 {
		_, _ = fmt.Fprintf(w, "\nNOT DURABLE: %s. These numbers mean nothing.\n", strings.Join(r.Machine.Careless, ", "))
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprint(t, "\nnumber\tmedian\tleast\tgreatest\tunit\n")
	for _, s := range r.Numbers {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", s.Name, figure(s.Median), figure(s.Min), figure(s.Max), s.Unit)
	}
	if len(r.Bars) > 0 {
		_, _ = fmt.Fprint(t, "\t\t\t\t\nbar\tmedian\tleast\tgreatest\twanted\tgoal\tverdict\n")
	}
	for _, b := range r.Bars {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", b.Name, figure(b.Median), figure(b.Min), figure(b.Max), b.Bar, b.Goal, b.Verdict)
	}
	_ = t.Flush()
	if len(r.Disturbed) > 0 {
		_, _ = fmt.Fprintf(w, "\nDISTURBED: the machine was busy with something else before %d runs of parts\n", len(r.Disturbed))
	}
	for _, failure := range r.Failures {
		_, _ = fmt.Fprintf(w, "FAILED: %s\n", failure)
	}
}

// writeFiles writes results.json and results.md to a folder, which is made.
func writeFiles(dir string, r *results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // Results are for everyone.
		return err
	}
	body, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(body, '\n'), 0o644); err != nil { //nolint:gosec // As above.
		return err
	}
	var md strings.Builder
	writeMarkdown(&md, r)
	return os.WriteFile(filepath.Join(dir, "results.md"), []byte(md.String()), 0o644) //nolint:gosec // As above.
}

// writeMarkdown writes the results for a page.
func writeMarkdown(w io.Writer, r *results) {
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	m := r.Machine
	if len(m.Careless) > 0 {
		say("**Not durable: %s. These numbers mean nothing.**\n", strings.Join(m.Careless, ", "))
	}
	say("Measured %s. Rounds: %d, the parts in turns; %s for each.\n", r.Started.Format("2006-01-02 15:04 MST"), r.Rounds, r.Duration)
	say("| machine | |\n| --- | --- |")
	say("| processor | %s, %d cores |", cell(m.CPU), m.Cores)
	say("| memory | %.1f GiB |", float64(m.MemoryMiB)/1024)
	say("| PostgreSQL | %s |", cell(m.PostgreSQL))
	if m.TimescaleDB != "" {
		say("| TimescaleDB | %s |", cell(m.TimescaleDB))
	}
	var settings []string
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		settings = append(settings, fmt.Sprintf("`%s = %s`", name, m.Settings[name]))
	}
	say("| settings other than the defaults | %s |", cell(strings.Join(settings, ", ")))
	say("| Go | %s, %s |\n", m.Go, m.System)

	if len(r.Bars) > 0 {
		say("| bar | wanted | goal | median | least | greatest | verdict |\n| --- | --- | --- | ---: | ---: | ---: | --- |")
		for _, b := range r.Bars {
			say("| %s | %s | %s | %s | %s | %s | %s |", cell(b.Name), cell(b.Bar), cell(b.Goal), figure(b.Median), figure(b.Min), figure(b.Max), b.Verdict)
		}
		say("")
	}
	say("| number | median | least | greatest | unit |\n| --- | ---: | ---: | ---: | --- |")
	for _, s := range r.Numbers {
		say("| `%s` | %s | %s | %s | %s |", s.Name, figure(s.Median), figure(s.Min), figure(s.Max), cell(s.Unit))
	}
	say("\n| part | measures | by |\n| --- | --- | --- |")
	for _, p := range r.Parts {
		say("| `%s` | %s | `%s` |", p.Name, cell(p.About), cell(p.Command))
	}
	if len(r.Disturbed) > 0 {
		say("\nThe machine was busy with something else:\n")
	}
	for _, note := range r.Disturbed {
		say("- %s", note)
	}
	for _, failure := range r.Failures {
		say("\nFailed: %s", failure)
	}
}

// cell makes a text fit a table's cell.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ").Replace(text)
}
