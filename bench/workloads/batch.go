package workloads

import (
	"context"
	"fmt"
	"time"
)

// Batch is whole lives of many events at once: POST /events/batch, POST /claim, POST /ack.
type Batch struct {
	Batch       []int         `name:"batch" default:"100" sep:"," placeholder:"N" help:"Events per request; a list measures each."`
	Connections []int         `name:"connections" default:"4" sep:"," placeholder:"N" help:"How many clients, each with one connection; a list measures each."`
	Duration    time.Duration `name:"duration" default:"10s" help:"How long each measurement takes, after the warm-up."`
}

func (*Batch) name() string { return "batch" }

func (w *Batch) check(Config) error {
	if err := checkList("--batch", w.Batch, 1, maxBatch); err != nil {
		return err
	}
	if err := checkList("--connections", w.Connections, 1, maxWorkers); err != nil {
		return err
	}
	return checkDuration("--duration", w.Duration)
}

func (w *Batch) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, size := range w.Batch {
		for _, n := range w.Connections {
			queue := s.newQueue()
			result, err := s.measure(ctx, trial{
				label: fmt.Sprintf("%s × %d", plural(n, "connection"), size), server: srv, queue: queue,
				tasks:  repeat(n, s.batches(srv, queue, size)),
				warmup: s.cfg.Warmup, duration: w.Duration, series: s.cfg.Plot != "",
			})
			if err != nil {
				return err
			}
			result.x, result.axis, result.line = float64(size), "events per request", plural(n, "connection")
			s.report.add(result)
		}
	}
	return nil
}

// batches lives whole lives, many events at once.
func (s *session) batches(srv *server, queue string, size int) task {
	post := batchRequest(srv.at, queue, s.payload, size)
	claim := claimRequest(srv.at, queue, size, "", 0)
	return func(ctx context.Context, w *worker) {
		for ctx.Err() == nil {
			begin := time.Now()
			if !w.postBatch(ctx, post, size, begin) {
				continue
			}
			leases, ok := w.claim(ctx, claim, 0)
			if !ok || len(leases) == 0 {
				continue
			}
			if w.ackBatch(ctx, leases) {
				w.shard.done(living, time.Since(begin), len(leases))
			}
		}
	}
}
