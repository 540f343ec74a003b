package http

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// A binned is statistics with bins.
type binned struct {
	Done           int64
	WaitP50MS      *float64   `json:"wait_p50_ms"`
	WaitP95MS      *float64   `json:"wait_p95_ms"`
	WaitBins       [][2]int64 `json:"wait_bins"`
	ProcessingBins [][2]int64 `json:"processing_bins"`
}

// check makes sure that the bins have every event, and that the percentiles are of them.
func (b *binned) check(t *testing.T, what string) {
	t.Helper()
	for share, got := range map[float64]*float64{0.5: b.WaitP50MS, 0.95: b.WaitP95MS} {
		if got == nil { // the overview has one of them
			continue
		}
		var total, soFar int64
		for _, bin := range b.WaitBins {
			total += bin[1]
		}
		want := 0.0
		for _, bin := range b.WaitBins {
			if soFar += bin[1]; float64(soFar) >= float64(total)*share {
				if want = 1; bin[0] > 0 {
					want = math.Round(1000*math.Pow(1.1, float64(bin[0]))/1.05) / 1000
				}
				break
			}
		}
		if total != b.Done || math.Abs(*got-want) > 0.0011 {
			t.Errorf("%s: percentile %v of %v is %v, want %v", what, share, b.WaitBins, *got, want)
		}
	}
	var processed int64
	for _, bin := range b.ProcessingBins {
		processed += bin[1]
	}
	if processed != b.Done || b.WaitP95MS == nil {
		t.Errorf("%s: %d events have %v", what, b.Done, b.ProcessingBins)
	}
}

func TestStatisticsHaveTheDurationsOfPercentilesByBins(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "q")
	const events = 12
	for range events {
		h.call("POST", "/events?queue=q", "{}").want(201)
	}
	h.sql("update agent.event set enqueued_at = now() - make_interval(secs => 0.05 * id * id)") // so they have waited for that long
	for range events {
		e := h.claimOneBy(`{"queue":"q"}`)
		h.call("DELETE", fmt.Sprintf("/events/%d", e.ID), "").want(204)
	}
	series := decode[struct {
		Totals  binned
		Buckets []binned
	}](h.call("GET", "/queues/q/stats?bins=true", "").want(200))
	if series.Totals.Done != events {
		t.Fatalf("%d are done", series.Totals.Done)
	}
	series.Totals.check(t, "totals")
	inBuckets := int64(0)
	for _, b := range series.Buckets {
		if b.Done > 0 {
			b.check(t, "a bucket")
		}
		for _, bin := range b.WaitBins {
			inBuckets += bin[1]
		}
	}
	if inBuckets != events {
		t.Errorf("the buckets have %d durations", inBuckets)
	}
	overview := decode[struct{ Queues []binned }](h.call("GET", "/stats/queues?bins=true", "").want(200))
	overview.Queues[0].check(t, "the overview")
	for _, path := range []string{"/queues/q/stats", "/stats/queues?bins=false"} {
		if plain := h.call("GET", path, "").want(200).body; strings.Contains(plain, "_bins") {
			t.Errorf("%s has bins that nobody asked for: %s", path, plain)
		}
	}
}
