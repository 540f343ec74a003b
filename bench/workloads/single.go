package workloads

import (
	"context"
	"fmt"
	"time"
)

// Single is whole lives of single events, each worker doing post, claim and ack in turn.
type Single struct {
	Connections []int         `name:"connections" default:"64" sep:"," placeholder:"N" help:"How many clients, each with one connection; a list such as 1,8,64 measures each."`
	Duration    time.Duration `name:"duration" default:"10s" help:"How long each measurement takes, after the warm-up."`
	Rate        float64       `name:"rate" placeholder:"N" help:"Begin N lives per second on a schedule (an open loop) instead of as many as go; latency then counts from the time on the schedule."`
	Poisson     bool          `name:"poisson" help:"With --rate: begin them at random times, as independent clients would, instead of evenly."`
}

func (*Single) name() string { return "single" }

func (w *Single) check(Config) error {
	if err := checkList("--connections", w.Connections, 1, maxWorkers); err != nil {
		return err
	}
	if w.Rate < 0 {
		return Invalidf("--rate: got %g; takes lives per second, more than zero", w.Rate)
	}
	if w.Poisson && w.Rate == 0 {
		return Invalidf("--poisson: arrivals need a --rate")
	}
	return checkDuration("--duration", w.Duration)
}

func (w *Single) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, n := range w.Connections {
		label := plural(n, "connection")
		if w.Rate > 0 {
			label = fmt.Sprintf("%s at %g/s", label, w.Rate)
		}
		queue := s.newQueue()
		result, err := s.measure(ctx, trial{
			label: label, server: srv, queue: queue, tasks: repeat(n, s.singles(srv, queue, newSchedule(w.Rate, w.Poisson))),
			warmup: s.cfg.Warmup, duration: w.Duration, series: s.cfg.Plot != "",
		})
		if err != nil {
			return err
		}
		result.x, result.axis = float64(n), "connections"
		s.report.add(result)
	}
	return nil
}

// singles lives whole lives, one event after the other: as fast as it goes, or as the schedule has it.
func (s *session) singles(srv *server, queue string, plan *schedule) task {
	post := postRequest(srv.at, queue, s.payload)
	claim := claimRequest(srv.at, queue, 1, "", 0)
	return func(ctx context.Context, w *worker) {
		for ctx.Err() == nil {
			var intended time.Time
			if plan != nil {
				var ok bool
				if intended, ok = plan.wait(ctx, w); !ok {
					return
				}
			}
			begin := orNow(intended)
			if !w.post(ctx, post, intended) {
				continue
			}
			leases, ok := w.claim(ctx, claim, 0)
			if !ok || len(leases) == 0 {
				continue
			}
			if w.ack(ctx, leases[0]) {
				w.shard.done(living, time.Since(begin), 1)
			}
		}
	}
}
