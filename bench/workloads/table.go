package workloads

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table writes the report for people.
func (r *Report) table(w io.Writer) {
	machine := fmt.Sprintf("%d CPUs, %s", r.Machine.CPUs, r.Machine.OS)
	if r.Machine.Postgres != "" {
		machine += ", PostgreSQL " + r.Machine.Postgres
	}
	_, _ = fmt.Fprintf(w, "%s: queued %s on %s\n\n", r.Workload, r.Machine.Queued, machine)
	r.rates(w)
	r.latencies(w)
	r.values(w)
	r.faults(w)
	r.ratios(w)
}

func newTable(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
}

// rates is a line per measured run.
func (r *Report) rates(w io.Writer) {
	table := newTable(w)
	row := func(cells ...string) { _, _ = fmt.Fprintln(table, strings.Join(cells, "\t")+"\t") }
	row("", "lives/s", "posts/s", "claims/s", "acks/s", "empty", "errors", "client µs", "server µs", "WAL B", "commits", "RSS MiB")
	some := false
	for _, result := range r.Results {
		if result.Seconds == 0 {
			continue
		}
		some = true
		cells := []string{result.Label, fmt.Sprintf("%.0f", result.LivesPerS)}
		for _, k := range []kind{posting, claiming, acking} {
			cells = append(cells, fmt.Sprintf("%.0f", result.perSecond(k)))
		}
		var faults int64
		for _, n := range result.Errors {
			faults += n
		}
		cells = append(cells, fmt.Sprint(result.EmptyClaims), fmt.Sprint(faults))
		cells = append(cells, fmt.Sprintf("%.0f", result.CPU.ClientPerLife), fmt.Sprintf("%.0f", result.CPU.ServerPerLife))
		if result.Database != nil {
			cells = append(cells, fmt.Sprintf("%.0f", result.Database.WALPerLife), fmt.Sprintf("%.3f", result.Database.CommitsPerLife))
		} else {
			cells = append(cells, "-", "-")
		}
		row(append(cells, fmt.Sprintf("%.0f", float64(result.CPU.ServerRSS)/(1<<20)))...)
	}
	if some {
		_ = table.Flush()
		_, _ = fmt.Fprintf(w, "CPU (client, server), WAL and commits are per life; the rates count events.\n\n")
	}
}

// latencies is a line per kind of request and run.
func (r *Report) latencies(w io.Writer) {
	table := newTable(w)
	_, _ = fmt.Fprintln(table, "ms\t\tp50\tp90\tp99\tp99.9\tmax\t")
	some := false
	for _, result := range r.Results {
		for i, name := range sortedLatencies(result.Latency) {
			some = true
			label := result.Label
			if i > 0 {
				label = ""
			}
			l := result.Latency[name]
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", label, name, ms(l.P50), ms(l.P90), ms(l.P99), ms(l.P999), ms(l.Max))
		}
	}
	if some {
		_ = table.Flush()
		_, _ = fmt.Fprintln(w)
	}
}

// sortedLatencies is the names of latencies, those of a life first and in its order.
func sortedLatencies(latencies map[string]Latency) []string {
	var names []string
	for _, name := range kindNames {
		if _, ok := latencies[name]; ok {
			names = append(names, name)
		}
	}
	for _, name := range sortedKeys(latencies) {
		known := false
		for _, k := range kindNames {
			known = known || k == name
		}
		if !known {
			names = append(names, name)
		}
	}
	return names
}

// values is what only some workloads measure.
func (r *Report) values(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	some := false
	for _, result := range r.Results {
		for i, name := range sortedKeys(result.Values) {
			some = true
			label := result.Label
			if i > 0 {
				label = ""
			}
			_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", label, name, short(result.Values[name]))
		}
	}
	if some {
		_ = table.Flush()
		_, _ = fmt.Fprintln(w)
	}
}

// faults lists what went wrong, and says that the events add up where they do.
func (r *Report) faults(w io.Writer) {
	var posted, remaining int64
	accounts, ok := 0, true
	for _, result := range r.Results {
		for _, what := range sortedKeys(result.Errors) {
			_, _ = fmt.Fprintf(w, "%s: %d × %s\n", result.Label, result.Errors[what], what)
		}
		if a := result.Account; a != nil {
			accounts++
			posted += a.Posted
			remaining += a.Remaining
			ok = ok && a.OK()
		}
	}
	switch {
	case accounts == 0:
	case ok:
		_, _ = fmt.Fprintf(w, "accounted for: %d events posted, none lost, none twice", posted)
		if remaining > 0 {
			_, _ = fmt.Fprintf(w, " (%d of them still there)", remaining)
		}
		_, _ = fmt.Fprintln(w)
	default:
		_, _ = fmt.Fprintln(w, "THE EVENTS DO NOT ADD UP: see the error")
	}
}

func (r *Report) ratios(w io.Writer) {
	if len(r.Ratios) == 0 {
		return
	}
	_, _ = fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, name := range sortedKeys(r.Ratios) {
		ratio := r.Ratios[name]
		verdict := ""
		if ratio.Bar != nil {
			verdict = fmt.Sprintf("at %s %s\t", ratio.BarIs, short(*ratio.Bar))
			if *ratio.OK {
				verdict += "ok"
			} else {
				verdict += "MISSED"
			}
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", name, short(ratio.Value), verdict)
	}
	_ = table.Flush()
}

// ms shows milliseconds with as many digits as are of use.
func ms(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// short shows a number with as many digits as are of use.
func short(v float64) string {
	switch {
	case v == float64(int64(v)) || v >= 10_000 || v <= -10_000:
		return fmt.Sprintf("%.0f", v)
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}
