package workloads

import (
	"context"
	"fmt"
	"time"
)

// Payload is events of several sizes: rates, and what each step of a life writes.
type Payload struct {
	Sizes       []int         `name:"sizes" default:"100,1024,65536" sep:"," placeholder:"BYTES" help:"The sizes of events to measure."`
	Duration    time.Duration `name:"duration" default:"10s" help:"How long each measurement takes, after the warm-up."`
	Connections int           `name:"connections" default:"64" placeholder:"N" help:"How many clients live one life at a time."`
	Batches     int           `name:"batches" default:"4" placeholder:"N" help:"How many clients live many lives at once."`
	Batch       int           `name:"batch" default:"100" placeholder:"N" help:"Events per request of the latter; fewer where that would be more than 7 MiB."`
	Events      int           `name:"events" default:"2000" placeholder:"N" help:"How many events go through each step alone, to see what that step writes."`
}

func (*Payload) name() string { return "payload" }

func (w *Payload) check(Config) error {
	if err := checkList("--sizes", w.Sizes, minPayload, 1<<20); err != nil {
		return err
	}
	for flag, n := range map[string]int{"--connections": w.Connections, "--batches": w.Batches, "--events": w.Events} {
		if err := checkNumber(flag, n, 1, maxWorkers); err != nil {
			return err
		}
	}
	if err := checkNumber("--batch", w.Batch, 1, maxBatch); err != nil {
		return err
	}
	return checkDuration("--duration", w.Duration)
}

// batchBytes is what a batch may hold: the server takes 8 MiB.
const batchBytes = 7 << 20

func (w *Payload) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, size := range w.Sizes {
		s.payload = newPayload(size)
		batch := max(1, min(w.Batch, batchBytes/size))
		for _, mode := range []struct {
			label string
			tasks func(queue string) []task
			size  int
			n     int
		}{
			{"single", func(queue string) []task { return repeat(w.Connections, s.singles(srv, queue, nil)) }, 1, w.Connections},
			{"batch", func(queue string) []task { return repeat(w.Batches, s.batches(srv, queue, batch)) }, batch, w.Batches},
		} {
			queue := s.newQueue()
			result, err := s.measure(ctx, trial{
				label: fmt.Sprintf("%d B, %s", size, mode.label), server: srv, queue: queue, tasks: mode.tasks(queue),
				warmup: s.cfg.Warmup, duration: w.Duration, series: s.cfg.Plot != "",
			})
			if err != nil {
				return err
			}
			result.x, result.axis, result.line = float64(size), "bytes per event", mode.label
			s.report.add(result)
			if err := w.steps(ctx, s, srv, result, mode.n, mode.size); err != nil {
				return err
			}
		}
	}
	first := s.report.Results[:2]
	for i, result := range s.report.Results[2:] {
		s.report.compare(fmt.Sprintf("%s over %s", result.Label, first[i%2].Label), result.LivesPerS/first[i%2].LivesPerS)
	}
	return nil
}

// steps takes events through post, claim and ack one step at a time, and notes what each costs an event.
func (w *Payload) steps(ctx context.Context, s *session, srv *server, result *Result, n, size int) error {
	l, queue := newLedger(), s.newQueue()
	workers, err := hire(ctx, srv, queue, n, l)
	if err != nil {
		return err
	}
	defer workers.close()
	var held holding
	request := func(limit int) []byte { return claimRequest(srv.at, queue, limit, "", 0) }
	steps := []struct {
		name string
		do   func() (time.Duration, error)
	}{
		{"post", func() (time.Duration, error) { return workers.postAll(ctx, queue, s.payload, size, w.Events) }},
		{"claim", func() (time.Duration, error) { return workers.claimAll(ctx, request, size, w.Events, &held) }},
		{"ack", func() (time.Duration, error) { return workers.ackAll(ctx, &held, size) }},
	}
	for _, step := range steps {
		s.progress.say("%s: each step alone: %s", result.Label, step.name)
		before, err := srv.read(ctx)
		if err != nil {
			return err
		}
		took, err := step.do()
		if err != nil {
			return err
		}
		after, err := srv.read(ctx)
		if err != nil {
			return err
		}
		events := float64(w.Events)
		result.Values[step.name+"_alone_per_s"] = events / took.Seconds()
		if srv.db != nil {
			result.Values[step.name+"_alone_wal_bytes"] = float64(after.figures.wal-before.figures.wal) / events
		}
	}
	account, err := s.settle(ctx, trial{server: srv, queue: queue, ledger: l})
	if err != nil {
		return err
	}
	if !account.OK() { // else the one of the run before stands for both
		result.Account = &account
	}
	return nil
}
