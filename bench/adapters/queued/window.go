package main

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The window of latencies: so many histograms, each of so long a time.
const (
	windowSlots = 15
	windowSlot  = 2 * time.Second
	windowTime  = windowSlots * windowSlot
)

// maxLatency is the longest latency that is told from longer ones.
const maxLatency = time.Hour

// window is the distribution of the latencies of the last 30 seconds, in histograms whose memory does not depend on how many there were.
type window struct {
	mu    sync.Mutex
	slots *hdrhistogram.WindowedHistogram
	since time.Time // when the current histogram began
}

func newWindow(now time.Time) *window {
	return &window{slots: hdrhistogram.NewWindowed(windowSlots, 1, maxLatency.Microseconds(), 3), since: now}
}

// add adds a latency. Clocks may differ: one that is negative is 0.
func (w *window) add(now time.Time, latency time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advance(now)
	_ = w.slots.Current.RecordValue(min(max(latency, 0), maxLatency).Microseconds()) // it is within the bounds
}

// percentiles returns those of the window, in milliseconds; 0 where it is empty.
func (w *window) percentiles(now time.Time, wanted ...float64) []float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.advance(now)
	all := w.slots.Merge()
	found := make([]float64, len(wanted))
	for i, p := range wanted {
		if all.TotalCount() > 0 {
			found[i] = float64(all.ValueAtQuantile(p)) / 1000
		}
	}
	return found
}

// advance begins new histograms until the current one is that of now.
func (w *window) advance(now time.Time) {
	for n := 0; now.Sub(w.since) >= windowSlot; n++ {
		if n == windowSlots { // all of them are empty
			w.since = now
			return
		}
		w.slots.Rotate()
		w.since = w.since.Add(windowSlot)
	}
}
