package main

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
)

func figure(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }

func writeTable(w io.Writer, r *results) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range r.Numbers {
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", s.Name, figure(s.Median), figure(s.Min), figure(s.Max), s.Unit)
	}
	_ = t.Flush()
}

func writeFiles(dir string, r *results) error { return nil }
