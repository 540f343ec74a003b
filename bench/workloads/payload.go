package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Payload is events of several sizes: rates, and the bytes that each step of an event writes.
type Payload struct {
	Sizes       []int         `least:"16" most:"1048576" default:"100,1024,65536" placeholder:"BYTES" help:"The sizes of events to measure."`
	Duration    time.Duration `default:"10s" help:"How long each measurement takes, after the warm-up."`
	Connections int           `default:"64" placeholder:"N" help:"How many clients insert, claim and ack one event at a time."`
	Batches     int           `default:"4" placeholder:"N" help:"How many clients do so with many at once."`
	Batch       int           `most:"1000" default:"100" placeholder:"N" help:"Events in each request of the latter; fewer beyond 7 MiB."`
	Events      int           `default:"2000" placeholder:"N" help:"How many events go through each step alone, to see what that step writes."`
}

func (*Payload) name() string { return "payload" }

func (*Payload) check(Config) error { return nil }

func (w *Payload) run(ctx context.Context, s *session) error {
	const maxBytes = 7 << 20 // of a batch: the server takes 8 MiB
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, size := range w.Sizes {
		s.payload = newPayload(size)
		for _, mode := range []struct {
			label          string
			batch, clients int
		}{{"single", 1, w.Connections}, {"batch", max(1, min(w.Batch, maxBytes/size)), w.Batches}} {
			run := s.singles(mode.clients, nil)
			if mode.label == "batch" {
				run = s.batches(mode.clients, mode.batch)
			}
			result, err := s.measure(ctx, measurement{
				label: fmt.Sprintf("%d B, %s", size, mode.label), server: srv, clients: []clients{run}, duration: w.Duration,
			})
			if err != nil {
				return err
			}
			s.add(result)
			if err := w.stepsAlone(ctx, s, srv, result, mode.clients, mode.batch); err != nil {
				return err
			}
		}
	}
	first := s.results[:2]
	for i, result := range s.results[2:] {
		s.compare(fmt.Sprintf("%s over %s", result.Label, first[i%2].Label), result.EventsPerS/first[i%2].EventsPerS)
	}
	return nil
}

// stepsAlone takes events through insert, claim and ack one step at a time, and notes the cost of each for an event.
func (w *Payload) stepsAlone(ctx context.Context, s *session, srv *server, result *report.Result, n, size int) error {
	queue := s.newQueue()
	opened, err := load.Open(ctx, srv.target, queue, n, load.NewAccount())
	if err != nil {
		return err
	}
	defer opened.Close()
	var leases load.Leases
	for _, step := range []struct {
		name string
		run  func() (time.Duration, error)
	}{
		{"insert", func() (time.Duration, error) { return opened.InsertAll(ctx, s.payload, size, w.Events) }},
		{"claim", func() (time.Duration, error) { return opened.ClaimAll(ctx, size, "", w.Events, &leases) }},
		{"ack", func() (time.Duration, error) { return opened.AckAll(ctx, &leases, size) }},
	} {
		s.progress.show("%s: each step alone: %s", result.Label, step.name)
		before, err := srv.read(ctx)
		if err != nil {
			return err
		}
		took, err := step.run()
		if err != nil {
			return err
		}
		after, err := srv.read(ctx)
		if err != nil {
			return err
		}
		result.Values[step.name+"_alone_per_s"] = float64(w.Events) / took.Seconds()
		if srv.db != nil {
			result.Values[step.name+"_alone_wal_bytes"] = float64(after.wal-before.wal) / float64(w.Events)
		}
	}
	balance, err := s.drain(ctx, srv, queue, opened.Account)
	if err == nil && !balance.OK() { // else the one of the run before stands for both
		result.Balance = balance
	}
	return err
}
