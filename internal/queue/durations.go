package queue

import (
	"slices"
	"time"
)

// DurationBounds are the upper bounds of Durations: from an event that a waiting claim gets at once to a backlog of half a day.
var DurationBounds = [...]time.Duration{
	5 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2500 * time.Millisecond,
	5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 12 * time.Hour,
}

// Durations counts how often something took how long.
type Durations struct {
	// Counts has how often it took up to each of DurationBounds and longer than the bound before, and at the end how often it took longer than all of them.
	Counts [len(DurationBounds) + 1]int64
	Sum    float64 // seconds: a backlog of millions may have waited for centuries together
}

// observe counts one duration; a negative one, of a clock that was set back, as none.
func (d *Durations) observe(took time.Duration) {
	took = max(0, took)
	i, _ := slices.BinarySearch(DurationBounds[:], took)
	d.Counts[i]++
	d.Sum += took.Seconds()
}

func (d *Durations) add(o *Durations) {
	for i, n := range o.Counts {
		d.Counts[i] += n
	}
	d.Sum += o.Sum
}

// observeWait counts the time from when an event was due, before this claim at priorVT, to its first claim. Later claims wait for a backoff or a lease.
func (d *Durations) observeWait(e *Event, priorVT time.Time) {
	if e.Attempts != 1 || len(e.Claimed) == 0 {
		return
	}
	due := e.EnqueuedAt
	if priorVT.After(due) {
		due = priorVT
	}
	d.observe(e.Claimed[len(e.Claimed)-1].Sub(due))
}
