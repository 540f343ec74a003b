package workloads

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Memory is how far the server's resident memory grows under several loads. Go gives memory back slowly, so each load
// gets a new server where servers are started; one that was given keeps the memory of the loads before.
type Memory struct {
	Connections []int         `default:"64,256" placeholder:"N" help:"Clients with one event at a time; a list measures each."`
	Waiting     int           `least:"0" default:"10000" placeholder:"N" help:"Claims that wait on an empty queue; 0 leaves that out."`
	Large       int           `least:"0" most:"1048576" default:"65536" placeholder:"BYTES" help:"Size of events in batches near the limits; 0 leaves these out."`
	Batches     int           `default:"4" placeholder:"N" help:"How many clients send such batches."`
	Duration    time.Duration `default:"10s" help:"How long each measurement takes, after the warm-up."`
}

func (*Memory) name() string { return "memory" }

func (w *Memory) check(Config) error {
	if w.Large > 0 && w.Large < minPayload {
		return Invalidf("--large: got %d; expected bytes from %d", w.Large, minPayload)
	}
	return enoughFiles(max(w.Waiting, slices.Max(w.Connections)))
}

func (w *Memory) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	_, rss, err := srv.usage(ctx)
	if err != nil {
		return err
	}
	s.add(&report.Result{Label: "at the start", Values: map[string]float64{"server_rss_mib": float64(rss) / (1 << 20)}})

	for _, n := range w.Connections {
		if _, err := w.measure(ctx, s, plural(n, "connection"), s.singles(n, nil)); err != nil {
			return err
		}
	}
	if w.Waiting > 0 {
		result, err := w.measure(ctx, s, fmt.Sprintf("%d waiting", w.Waiting), waits(w.Waiting))
		if err != nil {
			return err
		}
		restateAsIdle(result)
	}
	if w.Large > 0 {
		s.payload = newPayload(w.Large)
		if _, err := w.measure(ctx, s, fmt.Sprintf("batches of %d B", w.Large), w.largeBatches(s)); err != nil {
			return err
		}
	}
	return nil
}

// measure measures clients on a new server, and the most memory that the server had meanwhile.
func (w *Memory) measure(ctx context.Context, s *session, label string, c clients) (*report.Result, error) {
	srv, err := s.renew(ctx, s.opened[len(s.opened)-1])
	if err != nil {
		return nil, err
	}
	interval := 100 * time.Millisecond
	if srv.process == nil {
		interval = time.Second // each look is a page that the server writes
	}
	var most atomic.Int64
	result, err := s.measure(ctx, measurement{
		label: label, server: srv, clients: []clients{c}, duration: w.Duration,
		during: func(ctx context.Context) error {
			for load.Pause(ctx, interval) {
				_, rss, err := srv.usage(ctx)
				if err != nil {
					return err
				}
				most.Store(max(most.Load(), rss))
			}
			return nil
		},
	})
	if err != nil {
		return nil, err
	}
	result.Values["server_rss_max_mib"] = float64(most.Load()) / (1 << 20)
	s.add(result)
	return result, nil
}

// largeBatches are clients that insert as many events as go into one request, and as soon as there are 1,000 claim and ack them at once.
func (w *Memory) largeBatches(s *session) clients {
	return clients{w.Batches, func(srv *server, queue string) cycle {
		size := max(1, min(maxBatch, (8<<20-1024)/(len(s.payload)+len(queue)+32)))
		insert, claim := srv.target.InsertBatchRequest(queue, s.payload, size), srv.target.ClaimRequest(queue, maxBatch, "", 0)
		var stock atomic.Int64
		return func(ctx context.Context, c *load.Client) {
			if _, ok := c.Insert(ctx, insert, time.Time{}); ok {
				stock.Add(int64(size))
			}
			if stock.Add(-maxBatch) < 0 { // another one may have been faster
				stock.Add(maxBatch)
				return
			}
			leases, _ := c.Claim(ctx, claim)
			stock.Add(int64(maxBatch - len(leases)))
			if len(leases) > 0 {
				c.AckBatch(ctx, leases)
			}
		}
	}}
}
