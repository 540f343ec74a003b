package report

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	gochart "github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"
)

const (
	chartWidth  = 900
	chartHeight = 480
	logFrom     = 20 // the ratio of the greatest to the least value of a parameter from which the axis is logarithmic
	pointsUpTo  = 20 // how many values a line may have for each to be marked

	headHeight   = 50
	legendHeight = 18
	legendLeft   = 60
	legendWidth  = 200 // of an entry
	legendPerRow = (chartWidth - legendLeft) / legendWidth
)

// palette is Okabe and Ito's, which the colour-blind can tell apart.
func palette() []drawing.Color {
	return []drawing.Color{
		drawing.ColorFromHex("0072b2"), drawing.ColorFromHex("d55e00"), drawing.ColorFromHex("009e73"),
		drawing.ColorFromHex("cc79a7"), drawing.ColorFromHex("e69f00"), drawing.ColorFromHex("56b4e9"),
	}
}

// chart is lines over one axis.
type chart struct {
	file, title, x, y string
	lines             []line
	marks             []float64 // places on the x axis where something changed
	log               bool      // the x axis
}

type line struct {
	name string
	x, y []float64
}

// writeCharts draws the results that have an axis: time, or a parameter. Rounds of several parts have no charts.
func (r *Report) writeCharts(dir string) error {
	if len(r.Parts) != 1 || r.Rounds != 1 {
		return nil
	}
	for _, c := range append(r.overTime(), r.overParameter()...) {
		if err := c.write(dir); err != nil {
			return fmt.Errorf("writing the chart %s: %w", c.file, err)
		}
	}
	return nil
}

// overTime is the series, one chart for each quantity and a line for each result.
func (r *Report) overTime() (charts []chart) {
	value := func(name string) func(at Second, _ float64) (float64, bool) {
		return func(at Second, _ float64) (float64, bool) { v, ok := at.Values[name]; return v, ok }
	}
	part := r.Parts[0].Name
	for _, quantity := range []struct {
		file, title, y string
		of             func(at Second, length float64) (float64, bool)
	}{
		{"rate", "events per second", "events/s", func(at Second, length float64) (float64, bool) { return float64(at.Events) / length, true }},
		{"claim-p99", "p99 of claims", "ms", func(at Second, _ float64) (float64, bool) { return at.ClaimP99, true }},
		{"end-to-end-p99", "p99 end to end", "ms", func(at Second, _ float64) (float64, bool) { return at.EndToEndP99, at.EndToEndP99 > 0 }},
		{"event-size", "agent.event with its indexes", "MiB", value("event_total_mib")},
		{"history-size", "agent.event_hist with its indexes", "MiB", value("history_total_mib")},
		{"dead-rows", "dead rows of agent.event", "rows", value("event_dead_rows")},
	} {
		c := chart{file: part + "-" + quantity.file, title: part + ": " + quantity.title, x: "seconds", y: quantity.y}
		for _, result := range r.Results {
			l := line{name: result.Label}
			last := 0.0
			for _, at := range result.Series {
				if y, ok := quantity.of(at, max(at.Second-last, 0.001)); ok {
					l.x, l.y = append(l.x, at.Second), append(l.y, y)
				}
				last = at.Second
			}
			if len(l.x) > 1 {
				c.lines = append(c.lines, l)
				c.marks = result.Marks
			}
		}
		if len(c.lines) > 0 {
			charts = append(charts, c)
		}
	}
	return charts
}

// overParameter is the rates over the parameter that the results differ in.
func (r *Report) overParameter() []chart {
	part := r.Parts[0].Name
	c := chart{file: part + "-by-parameter", title: part + ": events per second", y: "events/s"}
	var all []float64
	for _, result := range r.Results {
		if result.X == 0 {
			continue
		}
		rate := result.EventsPerS
		if rate == 0 {
			rate = result.Values["claims_per_s"]
		}
		i := slices.IndexFunc(c.lines, func(l line) bool { return l.name == result.Curve })
		if i < 0 {
			i = len(c.lines)
			c.lines = append(c.lines, line{name: result.Curve})
		}
		c.lines[i].x, c.lines[i].y = append(c.lines[i].x, result.X), append(c.lines[i].y, rate)
		c.x = result.Axis
		all = append(all, result.X)
	}
	if len(all) == 0 || slices.Min(all) == slices.Max(all) {
		return nil
	}
	c.log = slices.Max(all)/slices.Min(all) > logFrom
	return []chart{c}
}

func (c chart) write(dir string) error {
	top, ticks := 0.0, []float64{}
	for _, l := range c.lines {
		top = max(top, slices.Max(l.y))
		ticks = append(ticks, l.x...)
	}
	scale := ticksUpTo(max(top, 0.001))
	top = scale[len(scale)-1].Value
	grid := gochart.Style{StrokeColor: drawing.ColorFromHex("e0e0e0"), StrokeWidth: 1}
	drawn := gochart.Chart{
		Width: chartWidth, Height: chartHeight,
		Background: gochart.Style{Padding: gochart.Box{Top: headHeight + c.legendRows()*legendHeight, Left: 40, Right: 30, Bottom: 20}},
		XAxis:      gochart.XAxis{Name: c.x, ValueFormatter: shortValue},
		YAxis: gochart.YAxis{
			Name: c.y, AxisType: gochart.YAxisSecondary, ValueFormatter: shortValue, GridMajorStyle: grid,
			Range: &gochart.ContinuousRange{Min: 0, Max: top}, Ticks: scale,
		},
		YAxisSecondary: gochart.YAxis{Style: gochart.Hidden()},
	}
	if !c.log {
		drawn.XAxis.Ticks = ticksUpTo(slices.Max(ticks)) // the axis ends at the last of them
	} else {
		slices.Sort(ticks)
		drawn.XAxis.Range = &gochart.LogarithmicRange{}
		for _, x := range slices.Compact(ticks) {
			drawn.XAxis.Ticks = append(drawn.XAxis.Ticks, gochart.Tick{Value: x, Label: shortValue(x)})
		}
	}
	for i, l := range c.lines {
		style := lineStyle(i)
		if len(l.x) <= pointsUpTo {
			style.DotColor, style.DotWidth = style.StrokeColor, 3
		}
		drawn.Series = append(drawn.Series, gochart.ContinuousSeries{Name: l.name, Style: style, XValues: l.x, YValues: l.y})
	}
	drawn.Elements = []gochart.Renderable{c.head}
	for _, x := range c.marks {
		drawn.Series = append(drawn.Series, gochart.ContinuousSeries{
			Style:   gochart.Style{StrokeColor: drawing.ColorFromHex("606060"), StrokeWidth: 1, StrokeDashArray: []float64{4, 4}},
			XValues: []float64{x, x}, YValues: []float64{0, top},
		})
	}
	file, err := os.Create(filepath.Join(dir, c.file+".svg")) //nolint:gosec // the user names the folder
	if err != nil {
		return err
	}
	err = drawn.Render(gochart.SVG, file)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	return err
}

// shortValue labels an axis.
func shortValue(v any) string {
	f, _ := v.(float64)
	if f >= 100 || f == math.Trunc(f) {
		return strconv.FormatFloat(f, 'f', 0, 64)
	}
	return strconv.FormatFloat(f, 'f', 1, 64)
}

// ticksUpTo is places from 0 to at least top, at round numbers.
func ticksUpTo(top float64) []gochart.Tick {
	const about = 6
	step := math.Pow(10, math.Floor(math.Log10(top/about)))
	for _, factor := range []float64{1, 2, 5, 10} {
		if step*factor >= top/about {
			step *= factor
			break
		}
	}
	var ticks []gochart.Tick
	for i := 0; ; i++ {
		v := float64(i) * step
		ticks = append(ticks, gochart.Tick{Value: v, Label: strconv.FormatFloat(v, 'g', 8, 64)})
		if v >= top {
			return ticks
		}
	}
}

// lineStyle is how the i-th line looks.
func lineStyle(i int) gochart.Style {
	colours := palette()
	style := gochart.Style{StrokeColor: colours[i%len(colours)], StrokeWidth: 2}
	if i >= len(colours) {
		style.StrokeDashArray = []float64{5, 3}
	}
	return style
}

// legendRows is how many rows of names there are: none for a single line, which the title is enough for.
func (c chart) legendRows() int {
	if len(c.lines) < 2 {
		return 0
	}
	return (len(c.lines) + legendPerRow - 1) / legendPerRow
}

// head writes the title and the names of the lines. The library's own legends lie over the title or the lines.
func (c chart) head(r gochart.Renderer, _ gochart.Box, defaults gochart.Style) {
	const titleSize, nameSize, titleBase, sample, gap = 13, 9, 28, 24, 6
	r.ClearTextRotation() // the name of the y axis leaves it behind
	write := func(text string, size float64, x, y int) {
		r.SetFont(defaults.GetFont())
		r.SetFontColor(drawing.ColorFromHex("303030"))
		r.SetFontSize(size)
		r.Text(text, x, y)
	}
	write(c.title, titleSize, legendLeft, titleBase)
	if c.legendRows() == 0 {
		return
	}
	for i, l := range c.lines {
		x, y := legendLeft+i%legendPerRow*legendWidth, headHeight+i/legendPerRow*legendHeight
		style := lineStyle(i)
		r.SetStrokeColor(style.StrokeColor)
		r.SetStrokeWidth(style.StrokeWidth)
		r.SetStrokeDashArray(style.StrokeDashArray)
		r.MoveTo(x, y-nameSize/2)
		r.LineTo(x+sample, y-nameSize/2)
		r.Stroke()
		write(l.name, nameSize, x+sample+gap, y)
	}
}
