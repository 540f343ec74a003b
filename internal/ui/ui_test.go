package ui

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html/template"
	"io"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/client"
)

func TestNumbersKeepAllTheirDigits(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]any{
		"0": 0, "999": 999, "1,000": 1000, "9,223,372,036,854,775,807": int64(math.MaxInt64), "−12,345": -12345, "–": (*int64)(nil), "47.6": 47.6, "0.15": 0.15,
	} {
		if got := number(n); got != want {
			t.Errorf("%v is written %q, want %q", n, got, want)
		}
	}
	if got, want := indent([]byte(`{"id":12345678901234567890.10}`)), "{\n  \"id\": 12345678901234567890.10\n}"; got != want {
		t.Errorf("JSON is written %q, want %q", got, want)
	}
}

func TestJSONIsWrittenWithoutEscapesForHTML(t *testing.T) {
	t.Parallel()
	if got, want := indent([]byte(`{"a":"\u003c\u0026\u003e \\u003c \u00e4"}`)), "{\n  \"a\": \"<&> \\\\u003c \\u00e4\"\n}"; got != want {
		t.Errorf("JSON is written %q, want %q", got, want)
	}
}

func TestRatesAreOfATimeInWhichThereIsAnEvent(t *testing.T) {
	t.Parallel()
	for want, perSecond := range map[string]float64{"none": 0, "6.1 an hour": 0.0017, "1 a minute": 1.0 / 60, "30 a minute": 0.5, "47.6 a second": 47.6} {
		if got := rate(perSecond); got != want {
			t.Errorf("%v events a second are written %q, want %q", perSecond, got, want)
		}
	}
}

func TestChartsSayWhyTheyAreEmpty(t *testing.T) {
	t.Parallel()
	at := []time.Time{time.Date(2026, 2, 3, 4, 5, 0, 0, time.UTC), time.Date(2026, 2, 3, 4, 6, 0, 0, time.UTC)}
	for name, c := range map[string]struct {
		chart template.HTML
		want  bool
	}{
		"no event":    {Bars([]Bucket{{At: at[0]}}), true},
		"an event":    {Bars([]Bucket{{At: at[0], Done: 1}}), false},
		"no point":    {Lines("Depth", at, Series{Points: []float64{math.NaN(), math.NaN()}}), true},
		"a point":     {Lines("Depth", at, Series{Points: []float64{math.NaN(), 0}}), false},
		"two columns": {Lines("Depth", at, Series{Points: []float64{3, 4}}), false},
	} {
		if got := strings.Contains(string(c.chart), `class="nothing"`); got != c.want {
			t.Errorf("%s: the chart says that it is empty: %t, want %t", name, got, c.want)
		}
	}
}

func TestAgesAreCoarse(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"< 1 s": 999 * time.Millisecond, "19 s": 19900 * time.Millisecond, "1 min": 119 * time.Second, "1 h": 7199 * time.Second, "3 d": 90 * time.Hour,
	} {
		if got := Age(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}

func TestTimesAreWrittenByTheirDistance(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for past, want := range map[time.Duration]string{
		0: "just now", 59 * time.Second: "just now", 5*time.Minute + 59*time.Second: "5 min ago", 26 * time.Hour: "1 d ago", 90 * 24 * time.Hour: "2025-11-05",
		-time.Second: "in &lt; 1 min", -2 * time.Hour: "in 2 h", -100 * 24 * time.Hour: "2026-05-14",
	} {
		if got := string(agoFrom(now.Add(-past), now)); !strings.Contains(got, ">"+want+"</time>") || !strings.Contains(got, ` UTC">`) {
			t.Errorf("%v ago is written %s, want %s", past, got, want)
		}
	}
	for _, none := range []any{time.Time{}, (*time.Time)(nil), nil} {
		if got := agoFrom(none, now); got != "–" {
			t.Errorf("no time is written %s", got)
		}
	}
}

func TestSharesAreWrittenWithTwoDigits(t *testing.T) {
	t.Parallel()
	for want, part := range map[string]int{"0 %": 0, "< 0.01 %": 1, "0.46 %": 460, "3.4 %": 3_449, "20 %": 19_830, "99 %": 99_400, "> 99 %": 99_999, "100 %": 100_000} {
		if got := percent(part, 100_000); got != want {
			t.Errorf("%d of 100,000 are written %s, want %s", part, got, want)
		}
	}
	if got := percent(0, 0); got != "–" {
		t.Errorf("none of none are written %s", got)
	}
}

func TestRunsSayWhereTheOffsetChanges(t *testing.T) {
	t.Parallel()
	at := func(local string, utc time.Time) client.Instant { return client.Instant{Local: local, UTC: utc} }
	march := time.Date(2026, 3, 28, 8, 0, 0, 0, time.UTC)
	runs := Runs([]client.Instant{at("2026-03-28T09:00:00", march), at("2026-03-29T09:00:00", march.Add(23*time.Hour)), at("2026-03-30T09:00:00", march.Add(47*time.Hour)), at("odd", march)})
	if runs[0].Offset != "UTC+01:00" || runs[0].Says != "" || runs[1].Offset != "UTC+02:00" || runs[1].Says == "" || runs[2].Says != "" || runs[3].Offset != "" {
		t.Errorf("got %+v", runs)
	}
	for want, d := range map[string]time.Duration{"UTC": 0, "UTC−03:30": -210 * time.Minute, "UTC+00:53:28": 53*time.Minute + 28*time.Second} {
		if got := offset(d); got != want {
			t.Errorf("%v is written %q, want %q", d, got, want)
		}
	}
}

func TestDurationsAreWrittenForPeople(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0 s": 0, "0.25 ms": 250 * time.Microsecond, "4 ms": 4 * time.Millisecond, "8.4 s": 8400 * time.Millisecond, "14 min": 14 * time.Minute,
		"14 min 5 s": 14*time.Minute + 5*time.Second, "2 h 5 min": 125 * time.Minute, "3 d 4 h": 76 * time.Hour, "36,500 d": 36500 * 24 * time.Hour,
	} {
		if got := Duration(d); got != want {
			t.Errorf("%d ns is written %q, want %q", d, got, want)
		}
	}
}

func TestLiveRegionsAreThePartsBetweenTheirMarks(t *testing.T) {
	t.Parallel()
	text := "a" + string(live("one")) + "<p>1</p>" + string(endLive("one")) + "b" + string(live("two")) + "" + string(endLive("two"))
	want := map[string]string{"one": "<p>1</p>", "two": ""}
	if got := LiveRegions([]byte(text)); !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestWhatIsShownCannotEndALivePart has a queue whose events have types that look like the mark.
func TestWhatIsShownCannotEndALivePart(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	hostile := string(endLive("events")) + "<b>"
	err := Render(&b, &Page{Name: "queue", Title: "q", Root: "../", View: &Queue{Window: Windows[0], Events: []client.Event{{ID: 1, Type: hostile}, {ID: 2, Type: "last"}}}})
	if err != nil {
		t.Fatal(err)
	}
	if region := LiveRegions(b.Bytes())["events"]; strings.Contains(region, "<b>") || !strings.Contains(region, "last") {
		t.Errorf("the part is %q", region)
	}
}

func TestChartsAreWellFormed(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 14, 0, 0, 0, time.UTC)
	var buckets []Bucket
	var times []time.Time
	points := make([]float64, 60)
	for i := range 60 {
		when := at.Add(time.Duration(i) * time.Minute)
		buckets = append(buckets, Bucket{At: when, Done: int64(i * 70), Failed: int64(i % 2)})
		times = append(times, when)
		points[i] = float64(i)
	}
	points[7] = math.NaN()
	for name, chart := range map[string]template.HTML{
		"bars": Bars(buckets), "one bar": Bars(buckets[:1]), "no event": Bars([]Bucket{{At: at}}),
		"lines": Lines("Depth", times, Series{Name: `<"ready">`, Class: "a", Points: points}, Series{Name: "leased", Class: "b", Points: points}),
		"spark": Spark(`from "3" to <48>`, points, true),
	} {
		decoder := xml.NewDecoder(strings.NewReader("<r>" + string(chart) + "</r>"))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v: %s", name, err, chart)
			}
		}
		if strings.Contains(string(chart), "NaN") || strings.Contains(string(chart), "style=") || chart == "" {
			t.Errorf("%s: %s", name, chart)
		}
	}
	if got := strings.Count(string(Bars(buckets)), `class="hit"`); got != 60+60+narrowBars {
		t.Errorf("%d bars are drawn, want 60 for wide and medium screens each and %d for narrow ones", got, narrowBars)
	}
}

func TestAxesEndAtRoundNumbers(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]float64{0: 1, 1: 1, 3: 4, 48: 50, 101: 200, 4812: 5000, 0.3: 0.4} {
		if got := ceiling(v); math.Abs(got-want) > want/1e9 {
			t.Errorf("an axis for %g ends at %g, want %g", v, got, want)
		}
	}
}

func TestNarrowChartsSayHowLongTheirBarsAre(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"1h": "3 minutes", "6h": "20 minutes", "24h": "75 minutes", "7d": "10 hours"} {
		w, _ := WindowOf(name)
		if got := w.NarrowEach(); got != want {
			t.Errorf("%s: a narrow chart has a bar each %s, want %s", name, got, want)
		}
	}
}
