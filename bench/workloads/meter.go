package workloads

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// kind is what is timed: the requests, and a whole life from the post's intended time to the ack's answer.
type kind int

const (
	posting kind = iota
	claiming
	acking
	living
	kinds
)

var kindNames = [kinds]string{"post", "claim", "ack", "life"}

// maxShards bounds the memory of the histograms: workers beyond it share.
const maxShards = 16

// longest is the most that a histogram tells apart, in µs.
const longest = int64(10 * time.Minute / time.Microsecond)

// meter gathers what the workers of one run count and time.
type meter struct{ shards []*shard }

func newMeter(workers int) *meter {
	m := &meter{shards: make([]*shard, min(workers, maxShards))}
	for i := range m.shards {
		m.shards[i] = &shard{tally: newTally()}
	}
	return m
}

// shard is where a worker counts; mostly it is alone there, so the lock costs little.
type shard struct {
	mu    sync.Mutex
	tally *tally
}

// shardOf is where this worker counts.
func (m *meter) shardOf(worker int) *shard { return m.shards[worker%len(m.shards)] }

// done counts a request that went well and the events it was about.
func (s *shard) done(k kind, took time.Duration, events int) {
	s.mu.Lock()
	t := s.tally
	t.requests[k]++
	t.events[k] += int64(events)
	if k == claiming && events == 0 {
		t.empty++
	}
	_ = t.latency[k].RecordValue(min(max(took.Microseconds(), 0), longest))
	s.mu.Unlock()
}

// late counts how long after its intended time an idle worker sent a request.
func (s *shard) late(by time.Duration) {
	s.mu.Lock()
	_ = s.tally.lag.RecordValue(min(max(by.Microseconds(), 0), longest))
	s.mu.Unlock()
}

// failed counts a request that did not go well.
func (s *shard) failed(what string) {
	const most = 50 // texts of others' making could be endless
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.tally.errors[what]; !known && len(s.tally.errors) >= most {
		what = "others"
	}
	s.tally.errors[what]++
}

// take returns everything since the last take.
func (m *meter) take() *tally {
	sum := newTally()
	for _, s := range m.shards {
		s.mu.Lock()
		sum.add(s.tally)
		s.tally.reset()
		s.mu.Unlock()
	}
	return sum
}

// events returns the events of a kind since the last take.
func (m *meter) events(k kind) (n int64) {
	for _, s := range m.shards {
		s.mu.Lock()
		n += s.tally.events[k]
		s.mu.Unlock()
	}
	return n
}

// tally is what was counted over some time.
type tally struct {
	requests [kinds]int64
	events   [kinds]int64
	empty    int64
	errors   map[string]int64
	latency  [kinds]*hdrhistogram.Histogram // µs
	lag      *hdrhistogram.Histogram        // µs
}

func newTally() *tally {
	t := &tally{errors: map[string]int64{}, lag: newHistogram()}
	for k := range t.latency {
		t.latency[k] = newHistogram()
	}
	return t
}

// newHistogram tells values apart to 0.1 %.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, longest, 3) }

func (t *tally) add(o *tally) {
	for k := range t.latency {
		t.requests[k] += o.requests[k]
		t.events[k] += o.events[k]
		if o.requests[k] > 0 {
			t.latency[k].Merge(o.latency[k])
		}
	}
	if o.lag.TotalCount() > 0 {
		t.lag.Merge(o.lag)
	}
	t.empty += o.empty
	for what, n := range o.errors {
		t.errors[what] += n
	}
}

func (t *tally) reset() {
	for k := range t.latency {
		if t.requests[k] > 0 {
			t.latency[k].Reset()
		}
	}
	t.requests, t.events, t.empty = [kinds]int64{}, [kinds]int64{}, 0
	if t.lag.TotalCount() > 0 {
		t.lag.Reset()
	}
	clear(t.errors)
}
