package ui

import (
	"fmt"
	"html/template"
	"math"
	"strings"
	"time"
)

// Charts are inline SVG with classes, never with colours of their own: the stylesheet has those, for light and dark. Each bar and point has a <title>, and
// behind each chart a template puts a table with the same numbers.

// A Bucket is one bar of a chart of outcomes: how many events ended from At on, for the width of the chart's buckets.
type Bucket struct {
	At                               time.Time
	Done, Failed, Expired, Cancelled int64
}

func (b *Bucket) bad() int64 { return b.Failed + b.Expired }

// A Series is a line of a chart.
type Series struct {
	Name   string
	Class  string // of the stylesheet: a, b, c or d
	Points []float64
	// Format writes a value, with its unit, for the axis and the titles; nil: as a count.
	Format func(float64) string
}

const (
	chartHeight = 132.0
	chartTop    = 10.0
	chartBottom = 110.0 // above it are the values, below it the times
	chartLeft   = 56.0
	wideChart   = 1128.0
	mediumChart = 688.0
	narrowChart = 328.0
	narrowBars  = 20 // a chart on a narrow screen is drawn anew with fewer bars
)

// Bars draws the outcomes of events over time, one bar a bucket, all of the same width: for wide and medium screens and, with fewer bars, for narrow
// ones. A drawing is not shrunk to fit, which would make its text small.
func Bars(buckets []Bucket) template.HTML {
	if len(buckets) == 0 {
		return ""
	}
	var b strings.Builder
	drawBars(&b, "wide", wideChart, buckets)
	drawBars(&b, "medium", mediumChart, buckets)
	drawBars(&b, "narrow", narrowChart, mergeBuckets(buckets, perNarrowBar(len(buckets))))
	return template.HTML(b.String()) //nolint:gosec // of numbers and times
}

// outcomeRows writes the rows of the table behind Bars.
func outcomeRows(buckets []Bucket) template.HTML {
	return rows(len(buckets), func(row int) []string {
		b := &buckets[row]
		return []string{string(exact(b.At)), number(b.Done), number(b.Failed), number(b.Expired), number(b.Cancelled)}
	})
}

// perNarrowBar is how many of so many buckets are one bar on a narrow screen.
func perNarrowBar(buckets int) int { return (buckets + narrowBars - 1) / narrowBars }

// mergeBuckets adds up each per buckets.
func mergeBuckets(buckets []Bucket, per int) (merged []Bucket) {
	for i, one := range buckets {
		if i%per == 0 {
			merged = append(merged, one)
			continue
		}
		m := &merged[len(merged)-1]
		m.Done, m.Failed, m.Expired, m.Cancelled = m.Done+one.Done, m.Failed+one.Failed, m.Expired+one.Expired, m.Cancelled+one.Cancelled
	}
	return merged
}

func drawBars(b *strings.Builder, class string, width float64, buckets []Bucket) {
	var most int64
	for i := range buckets {
		most = max(most, buckets[i].Done+buckets[i].bad())
	}
	top := ceiling(float64(most))
	openChart(b, class, width, "Events ended over time; the table below has the numbers")
	drawGrid(b, width, top, compact)
	if most == 0 {
		drawNothing(b, width, "no event ended")
	}
	step := (width - chartLeft) / float64(len(buckets))
	for i := range buckets {
		one := &buckets[i]
		x, w := chartLeft+float64(i)*step, max(step*0.84, 1)
		done, bad := height(float64(one.Done), top), height(float64(one.bad()), top)
		if one.bad() > 0 {
			bad = max(bad, 1.5) // one failure among thousands is seen, too
		}
		fmt.Fprintf(b, `<g><title>%s: %s done, %s failed, %s expired</title>`, one.At.UTC().Format("15:04"), number(one.Done), number(one.Failed), number(one.Expired))
		fmt.Fprintf(b, `<rect class="hit" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, x, chartTop, step, chartBottom-chartTop)
		if one.Done > 0 {
			fmt.Fprintf(b, `<rect class="done" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, x, chartBottom-done, w, done)
		}
		if bad > 0 {
			fmt.Fprintf(b, `<rect class="failed" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, x, max(chartBottom-done-bad, chartTop), w, bad)
		}
		b.WriteString(`</g>`)
	}
	times := make([]time.Time, len(buckets))
	for i := range buckets {
		times[i] = buckets[i].At
	}
	drawTimes(b, width, times)
	b.WriteString(`</svg>`)
}

// Lines draws values over time, a line each. NaN is a gap: nothing is known of that time.
func Lines(label string, times []time.Time, series ...Series) template.HTML {
	if len(times) == 0 || len(series) == 0 {
		return ""
	}
	var b strings.Builder
	drawLines(&b, "wide", wideChart, label, times, series)
	drawLines(&b, "medium", mediumChart, label, times, series)
	drawLines(&b, "narrow", narrowChart, label, times, series)
	return template.HTML(b.String()) //nolint:gosec // of numbers and times; the label is escaped
}

func drawLines(b *strings.Builder, class string, width float64, label string, times []time.Time, series []Series) {
	var most float64
	isKnown := false
	for _, s := range series {
		for _, v := range s.Points {
			if !math.IsNaN(v) {
				most, isKnown = max(most, v), true
			}
		}
	}
	top := ceiling(most)
	format := series[0].Format
	if format == nil {
		format = compact
	}
	openChart(b, class, width, label+"; the table below has the numbers")
	drawGrid(b, width, top, format)
	if !isKnown {
		drawNothing(b, width, "nothing is known of this time")
	}
	step := (width - chartLeft - 2) / float64(max(len(times)-1, 1))
	for _, s := range series {
		var path strings.Builder
		pen := "M"
		for i, v := range s.Points {
			if math.IsNaN(v) {
				pen = "M"
				continue
			}
			x, y := chartLeft+float64(i)*step, chartBottom-height(v, top)
			fmt.Fprintf(&path, "%s%.1f %.1f", pen, x, y)
			if pen == "M" && (i+1 == len(s.Points) || math.IsNaN(s.Points[i+1])) { // a point by itself is seen, too
				fmt.Fprintf(b, `<circle class="point %s" cx="%.1f" cy="%.1f" r="2.5"/>`, s.Class, x, y)
			}
			pen = "L"
		}
		fmt.Fprintf(b, `<path class="line %s" d="%s"/>`, s.Class, path.String())
	}
	for i, at := range times {
		fmt.Fprintf(b, `<g><title>%s:`, at.UTC().Format("15:04"))
		for j, s := range series {
			if j > 0 {
				b.WriteString(",")
			}
			text := "unknown"
			if i < len(s.Points) && !math.IsNaN(s.Points[i]) {
				if text = compactOr(s.Format)(s.Points[i]); s.Format == nil {
					text = number(int64(s.Points[i]))
				}
			}
			fmt.Fprintf(b, " %s %s", template.HTMLEscapeString(text), template.HTMLEscapeString(s.Name))
		}
		fmt.Fprintf(b, `</title><rect class="hit" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/></g>`, chartLeft+(float64(i)-0.5)*step, chartTop, step, chartBottom-chartTop)
	}
	drawTimes(b, width, times)
	b.WriteString(`</svg>`)
}

func compactOr(format func(float64) string) func(float64) string {
	if format == nil {
		return compact
	}
	return format
}

// Spark draws a small line without axes. label says from what to what it goes, for those who do not see it.
func Spark(label string, points []float64, isBad bool) template.HTML {
	if len(points) == 0 {
		return ""
	}
	const width, high = 96.0, 22.0
	var most float64
	for _, v := range points {
		if !math.IsNaN(v) {
			most = max(most, v)
		}
	}
	class := "spark"
	if isBad {
		class += " bad"
	}
	var path strings.Builder
	pen := "M"
	step := width / float64(max(len(points)-1, 1))
	for i, v := range points {
		if math.IsNaN(v) {
			pen = "M"
			continue
		}
		y := high - 2
		if most > 0 {
			y -= (high - 4) * v / most
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", pen, float64(i)*step, y)
		pen = "L"
	}
	return template.HTML(fmt.Sprintf(`<svg class="%s" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s"><path d="%s"/></svg>`, //nolint:gosec // the label is escaped
		class, width, high, template.HTMLEscapeString(label), path.String()))
}

func openChart(b *strings.Builder, class string, width float64, label string) {
	fmt.Fprintf(b, `<svg class="plot %s" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s">`, class, width, chartHeight, template.HTMLEscapeString(label))
}

// drawNothing says in the middle of a chart why it is empty.
func drawNothing(b *strings.Builder, width float64, text string) {
	fmt.Fprintf(b, `<text class="nothing" x="%.0f" y="%.0f" text-anchor="middle">%s</text>`, chartLeft+(width-chartLeft)/2, (chartTop+chartBottom)/2+4, text)
}

// drawGrid draws lines at nothing, at half and at the top of the axis.
func drawGrid(b *strings.Builder, width, top float64, format func(float64) string) {
	for _, share := range []float64{0, 0.5, 1} {
		if top == 1 && share == 0.5 {
			continue // there is no half of an event
		}
		y := chartBottom - share*(chartBottom-chartTop)
		fmt.Fprintf(b, `<line class="grid" x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f"/><text class="axis" x="%.0f" y="%.0f" text-anchor="end">%s</text>`,
			chartLeft, width, y, y, chartLeft-6, y+4, template.HTMLEscapeString(format(share*top)))
	}
}

// drawTimes writes the first time, the one in the middle, and the last.
func drawTimes(b *strings.Builder, width float64, times []time.Time) {
	layout := "15:04"
	if last := times[len(times)-1]; last.Sub(times[0]) > 24*time.Hour {
		layout = "Jan 2 15:04"
	}
	write := func(x float64, anchor string, at time.Time) {
		fmt.Fprintf(b, `<text class="axis" x="%.0f" y="127" text-anchor="%s">%s</text>`, x, anchor, at.UTC().Format(layout))
	}
	write(chartLeft, "start", times[0])
	if len(times) > 2 {
		write(chartLeft+(width-chartLeft)/2, "middle", times[len(times)/2])
	}
	if len(times) > 1 {
		write(width, "end", times[len(times)-1])
	}
}

// height is how high a value is drawn where the axis ends at top.
func height(v, top float64) float64 { return (chartBottom - chartTop) * v / top }

// ceiling returns where an axis ends that has the value v: the next of 1, 2, 2.5, 4, 5 or 10 times a power of ten, whose half is a round number, too.
func ceiling(v float64) float64 {
	if v <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, step := range []float64{1, 2, 4, 5, 6, 8, 10} {
		if v <= step*power {
			return max(step*power, math.SmallestNonzeroFloat64)
		}
	}
	return 10 * power
}

// compact writes a value for an axis: 950, 2.5k, 1.2M.
func compact(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= unit.size {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", v/unit.size), ".0") + unit.name
		}
	}
	return strings.TrimSuffix(strings.TrimRight(fmt.Sprintf("%.2f", v), "0"), ".")
}
