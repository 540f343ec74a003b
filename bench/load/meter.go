package load

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Step is a kind of request that is timed.
type Step int

// The requests; from the intended time of an event's insert to the response to its ack; and how late
// an idle client began an insert that arrivals had planned, which is part of the insert's latency.
const (
	Insert Step = iota
	Claim
	Ack
	EndToEnd
	StartDelay
	steps
)

var stepNames = [steps]string{"insert", "claim", "ack", "end to end", "start delay"}

func (s Step) String() string { return stepNames[s] }

// Steps are all steps, in order.
func Steps() []Step { return []Step{Insert, Claim, Ack, EndToEnd, StartDelay} }

// maxShards bounds the memory of the histograms: further clients share.
const maxShards = 16

// maxMicros is the longest time that a histogram tells from longer ones, in µs.
const maxMicros = int64(10 * time.Minute / time.Microsecond)

// Histogram is a distribution of times with a precision of 0.1 %.
type Histogram struct{ h *hdrhistogram.Histogram }

// NewHistogram makes an empty one.
func NewHistogram() Histogram { return Histogram{hdrhistogram.New(1, maxMicros, 3)} }

// Add adds a time.
func (h Histogram) Add(d time.Duration) {
	_ = h.h.RecordValue(min(max(d.Microseconds(), 0), maxMicros))
}

// Latency is a distribution, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	Max   float64 `json:"max"`
}

// Latency summarizes the distribution.
func (h Histogram) Latency() Latency {
	at := func(percent float64) float64 { return float64(h.h.ValueAtQuantile(percent)) / 1000 }
	return Latency{
		Count: h.h.TotalCount(), Mean: h.h.Mean() / 1000,
		P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: float64(h.h.Max()) / 1000,
	}
}

// Counts is the counts over some time.
type Counts struct {
	Events      [steps]int64
	Times       [steps]Histogram // of requests
	EmptyClaims int64
	Errors      map[string]int64
}

// NewCounts makes empty ones.
func NewCounts() *Counts {
	c := &Counts{Errors: map[string]int64{}}
	for s := range c.Times {
		c.Times[s] = NewHistogram()
	}
	return c
}

// Add adds another's.
func (c *Counts) Add(o *Counts) {
	for s := range c.Times {
		c.Events[s] += o.Events[s]
		if o.Times[s].h.TotalCount() > 0 {
			c.Times[s].h.Merge(o.Times[s].h)
		}
	}
	c.EmptyClaims += o.EmptyClaims
	for what, n := range o.Errors {
		c.Errors[what] += n
	}
}

func (c *Counts) reset() {
	for s := range c.Times {
		if c.Times[s].h.TotalCount() > 0 {
			c.Times[s].h.Reset()
		}
	}
	c.Events, c.EmptyClaims = [steps]int64{}, 0
	clear(c.Errors)
}

// Meter gathers the counts and times of the clients of one run.
type Meter struct{ shards []*shard }

// shard is where a client counts; mostly it is alone there, so the lock costs little.
type shard struct {
	mu     sync.Mutex
	counts *Counts
}

func newMeter(clients int) *Meter {
	m := &Meter{shards: make([]*shard, min(max(clients, 1), maxShards))}
	for i := range m.shards {
		m.shards[i] = &shard{counts: NewCounts()}
	}
	return m
}

func (s *shard) add(step Step, took time.Duration, events int) {
	s.mu.Lock()
	s.counts.Events[step] += int64(events)
	if step == Claim && events == 0 {
		s.counts.EmptyClaims++
	}
	s.counts.Times[step].Add(took)
	s.mu.Unlock()
}

func (s *shard) fail(what string) {
	const most = 50 // different texts; those of others could be endless
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.counts.Errors[what]; !known && len(s.counts.Errors) >= most {
		what = "others"
	}
	s.counts.Errors[what]++
}

// Take returns everything since the last Take.
func (m *Meter) Take() *Counts {
	sum := NewCounts()
	for _, s := range m.shards {
		s.mu.Lock()
		sum.Add(s.counts)
		s.counts.reset()
		s.mu.Unlock()
	}
	return sum
}

// Acked returns the events that were acked since the last Take.
func (m *Meter) Acked() (n int64) {
	for _, s := range m.shards {
		s.mu.Lock()
		n += s.counts.Events[Ack]
		s.mu.Unlock()
	}
	return n
}
