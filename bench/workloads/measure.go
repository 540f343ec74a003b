package workloads

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// cycle is the calls that one client makes again and again.
type cycle func(ctx context.Context, c *load.Client)

// clients are n clients that do the same, which on makes for a queue of a server.
type clients struct {
	n  int
	on func(srv *server, queue string) cycle
}

// measurement is one measured run of clients on a server, on a queue of its own.
type measurement struct {
	label    string
	server   *server
	clients  []clients
	duration time.Duration
	events   int64                                         // ends it before duration, when so many are acked; 0: never
	over     <-chan struct{}                               // ends it before duration, when closed; nil: never
	prepare  func(ctx context.Context, queue string) error // makes the queue ready, when not nil
	during   func(ctx context.Context) error               // runs beside the clients, when not nil
	second   func(ctx context.Context, at *report.Second)  // adds to a second of the series, when not nil
}

// isOver reports whether a measurement in which so many events were acked ends before its duration.
func (m *measurement) isOver(acked int64) bool {
	select {
	case <-m.over:
		return true
	default:
		return m.events > 0 && acked >= m.events
	}
}

// measure runs a measurement and returns its result.
func (s *session) measure(ctx context.Context, m measurement) (*report.Result, error) {
	queue, n := s.newQueue(), 0
	for _, c := range m.clients {
		n += c.n
	}
	if m.prepare != nil {
		if err := m.prepare(ctx, queue); err != nil {
			return nil, err
		}
	}
	opened, err := load.Open(ctx, m.server.target, queue, n, load.NewAccount())
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	result, err := s.observe(ctx, m, queue, opened)
	if err != nil {
		if result != nil { // hours may have gone into it
			result.Label += " (not finished)"
			s.add(result)
		}
		return nil, err
	}
	result.Balance, err = s.drain(ctx, m.server, queue, opened.Account)
	return result, err
}

// drain claims and acks the events left in a queue, and adds up all its events.
func (s *session) drain(ctx context.Context, srv *server, queue string, a *load.Account) (*load.Balance, error) {
	balance, err := load.Drain(ctx, srv.target, queue, a)
	if err != nil {
		return nil, fmt.Errorf("accounting for the events of %s: %w", queue, err)
	}
	return &balance, nil
}

// observe has the clients work through warm-up and measured time. The result is nil where nothing was measured.
func (s *session) observe(ctx context.Context, m measurement, queue string, opened *load.Clients) (*report.Result, error) {
	working, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait() // nothing returns before the clients have ended
	defer stop(nil)
	free := opened.All
	for _, c := range m.clients {
		run := c.on(m.server, queue)
		for _, client := range free[:c.n] {
			running.Go(func() {
				for working.Err() == nil {
					run(working, client)
				}
			})
		}
		free = free[c.n:]
	}
	if m.during != nil {
		running.Go(func() {
			if err := m.during(working); err != nil && working.Err() == nil {
				stop(err)
			}
		})
	}
	s.progress.show("%s: warming up", m.label)
	if !load.Pause(working, s.cfg.Warmup) {
		return nil, context.Cause(working)
	}
	opened.Meter.Take()
	before, err := m.server.read(ctx)
	if err != nil {
		return nil, err
	}
	result := &report.Result{Label: m.label, Values: map[string]float64{}}
	total := load.NewCounts()
	deadline := before.at.Add(m.duration)
	for end := before.at; end.Before(deadline) && working.Err() == nil && !m.isOver(total.Events[load.Ack]); {
		if end = end.Add(time.Second); deadline.Sub(end) < time.Second/2 {
			end = deadline // the remainder is no second of its own
		}
		load.Pause(working, time.Until(end))
		counts := opened.Meter.Take()
		total.Add(counts)
		at := newSecond(time.Since(before.at), counts)
		if m.second != nil {
			m.second(ctx, &at)
		}
		result.Series = append(result.Series, at)
		acked := total.Events[load.Ack]
		s.progress.show("%s: %.0f s, %d events, %.0f/s", m.label, at.Second, acked, float64(acked)/max(at.Second, 0.001))
	}
	failure := context.Cause(working)
	after, err := m.server.read(context.WithoutCancel(ctx))
	if failure == nil && err != nil {
		return nil, err
	}
	fill(result, total, before, after, m.server.db != nil)
	return result, failure
}

// fill sets the measurements of a run.
func fill(r *report.Result, counts *load.Counts, before, after reading, hasDatabase bool) {
	r.Seconds = after.at.Sub(before.at).Seconds()
	acked := counts.Events[load.Ack]
	r.EventsPerS = float64(acked) / r.Seconds
	r.Events, r.Latency = map[string]int64{}, latencies(counts)
	for _, step := range []load.Step{load.Insert, load.Claim, load.Ack} {
		r.Events[step.String()] = counts.Events[step]
	}
	r.EmptyClaims, r.Errors = counts.EmptyClaims, maps.Clone(counts.Errors)
	// A run of claims alone, or of inserts alone, has no acks: then it is those that are counted.
	events := float64(acked)
	if acked == 0 {
		events = float64(max(counts.Events[load.Insert], counts.Events[load.Claim], 1))
	}
	r.CPU = &report.CPU{
		ClientPerEvent:  float64((after.client - before.client).Microseconds()) / events,
		ServerPerEvent:  float64((after.server - before.server).Microseconds()) / events,
		MachinePerEvent: float64((after.machine - before.machine).Microseconds()) / events,
		ServerRSS:       after.rss,
	}
	if hasDatabase {
		r.Database = &report.Database{
			WALPerEvent:     float64(after.wal-before.wal) / events,
			CommitsPerEvent: float64(after.commits-before.commits) / events,
		}
	}
}

// latencies are those of the steps that were made.
func latencies(counts *load.Counts) map[string]load.Latency {
	all := map[string]load.Latency{}
	for _, step := range load.Steps() {
		if l := counts.Times[step].Latency(); l.Count > 0 {
			all[step.String()] = l
		}
	}
	return all
}

func newSecond(since time.Duration, counts *load.Counts) report.Second {
	p99 := func(step load.Step) float64 { return counts.Times[step].Latency().P99 }
	return report.Second{
		Second: since.Seconds(), Events: counts.Events[load.Ack],
		InsertP99: p99(load.Insert), ClaimP99: p99(load.Claim), AckP99: p99(load.Ack), EndToEndP99: p99(load.EndToEnd),
	}
}

// restateAsIdle turns costs per event, of which there were none, into costs per second.
func restateAsIdle(r *report.Result) {
	r.Values["server_cpu_percent"] = r.CPU.ServerPerEvent / 1e6 / r.Seconds * 100
	r.Values["client_cpu_percent"] = r.CPU.ClientPerEvent / 1e6 / r.Seconds * 100
	r.Values["server_rss_mib"] = float64(r.CPU.ServerRSS) / (1 << 20)
	if r.Database != nil {
		r.Values["commits_per_s"] = r.Database.CommitsPerEvent / r.Seconds // a statement outside a transaction commits
		r.Values["wal_bytes_per_s"] = r.Database.WALPerEvent / r.Seconds
	}
	r.Seconds, r.EventsPerS, r.CPU, r.Database = 0, 0, nil, nil
}
