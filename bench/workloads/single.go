package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/queued/queued/bench/load"
)

// Single is single events, each client doing insert, claim and ack in turn.
type Single struct {
	Connections []int         `default:"64" most:"50000" placeholder:"N" help:"How many clients; a list such as 1,8,64 measures each."`
	Duration    time.Duration `default:"10s" help:"How long each measurement takes, after the warm-up."`
	Rate        float64       `placeholder:"N" help:"Insert N events a second (an open loop); latency counts from the planned time."`
	Poisson     bool          `help:"With --rate: at random times, as independent clients would, instead of evenly."`
	AckByClaim  bool          `help:"Ack each event with the claim of the next one, in one request."`
}

func (*Single) name() string { return "single" }

func (w *Single) check(Config) error {
	if w.Poisson && w.Rate == 0 {
		return Invalidf("--poisson: it needs a --rate")
	}
	return nil
}

func (w *Single) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, n := range w.Connections {
		label := plural(n, "connection")
		var arrivals *load.Arrivals
		if w.Rate > 0 {
			label = fmt.Sprintf("%s at %g/s", label, w.Rate)
			arrivals = load.NewArrivals(w.Rate, w.Poisson)
		}
		run := s.singles(n, arrivals)
		if w.AckByClaim {
			run = s.singlesAckedByClaims(n, arrivals)
		}
		result, err := s.measure(ctx, measurement{label: label, server: srv, clients: []clients{run}, duration: w.Duration})
		if err != nil {
			return err
		}
		s.add(result)
	}
	return nil
}

// singles are clients that take one event after the other from insert to ack: as fast as possible, or as arrivals (nil: none) have planned.
func (s *session) singles(n int, arrivals *load.Arrivals) clients {
	return clients{n, func(srv *server, queue string) cycle {
		insert, claim := srv.target.InsertRequest(queue, s.payload), srv.target.ClaimRequest(queue, 1, "", 0)
		return func(ctx context.Context, c *load.Client) {
			begin, ok := insertNext(ctx, c, insert, arrivals)
			if !ok {
				return
			}
			if leases, _ := c.Claim(ctx, claim); len(leases) > 0 && c.Ack(ctx, leases[0]) {
				c.Add(load.EndToEnd, time.Since(begin), 1)
			}
		}
	}}
}

// insertNext inserts an event, at once or when arrivals (nil: none) say, and returns from when its life counts.
func insertNext(ctx context.Context, c *load.Client, insert load.InsertRequest, arrivals *load.Arrivals) (begin time.Time, ok bool) {
	begin = time.Now()
	if arrivals != nil {
		if begin, ok = arrivals.Wait(ctx, c); !ok {
			return begin, false
		}
	}
	_, ok = c.Insert(ctx, insert, begin)
	return begin, ok
}

// singlesAckedByClaims are singles that ack each event with the claim of the next one. A life ends with that.
func (s *session) singlesAckedByClaims(n int, arrivals *load.Arrivals) clients {
	return clients{n, func(srv *server, queue string) cycle {
		insert, claim := srv.target.InsertRequest(queue, s.payload), srv.target.ClaimRequest(queue, 1, "", 0)
		return func(ctx context.Context, c *load.Client) {
			if begin, ok := insertNext(ctx, c, insert, arrivals); ok {
				c.AckAndClaim(ctx, claim, begin)
			}
		}
	}}
}

// Batch is many events in each request: POST /events/batch, POST /claim, POST /ack.
type Batch struct {
	Batch       []int         `default:"100" most:"1000" placeholder:"N" help:"Events in each request; a list measures each."`
	Connections []int         `default:"4" most:"50000" placeholder:"N" help:"How many clients, each with one connection; a list measures each."`
	Duration    time.Duration `default:"10s" help:"How long each measurement takes, after the warm-up."`
}

func (*Batch) name() string { return "batch" }

func (*Batch) check(Config) error { return nil }

func (w *Batch) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, size := range w.Batch {
		for _, n := range w.Connections {
			result, err := s.measure(ctx, measurement{
				label: fmt.Sprintf("%s × %d", plural(n, "connection"), size), server: srv, clients: []clients{s.batches(n, size)}, duration: w.Duration,
			})
			if err != nil {
				return err
			}
			s.add(result)
		}
	}
	return nil
}

// batches are clients that take many events at once from insert to ack.
func (s *session) batches(n, size int) clients {
	return clients{n, func(srv *server, queue string) cycle {
		insert, claim := srv.target.InsertBatchRequest(queue, s.payload, size), srv.target.ClaimRequest(queue, size, "", 0)
		return func(ctx context.Context, c *load.Client) {
			begin := time.Now()
			if _, ok := c.Insert(ctx, insert, begin); !ok {
				return
			}
			if leases, _ := c.Claim(ctx, claim); len(leases) > 0 && c.AckBatch(ctx, leases) {
				c.Add(load.EndToEnd, time.Since(begin), len(leases))
			}
		}
	}}
}
