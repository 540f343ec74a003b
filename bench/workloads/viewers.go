package workloads

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/bench/load"
)

// Viewers is a steady load while people have pages at /ui/ open: the overview, the list of queues, one queue, the history and the fleet, in turn.
type Viewers struct {
	Tabs        int           `least:"1" most:"1000" default:"50" placeholder:"N" help:"How many pages are open."`
	Queues      int           `least:"0" most:"10000" default:"1000" placeholder:"N" help:"How many other queues have an event and some history."`
	History     int           `least:"0" most:"100000000" default:"1000000" placeholder:"N" help:"How many events have ended in these queues, within a day."`
	Rate        float64       `default:"1000" placeholder:"N" help:"Events of the steady load inserted a second, as planned."`
	Before      time.Duration `default:"60s" help:"How long to measure before the pages are opened."`
	Open        time.Duration `default:"60s" help:"How long they are open."`
	After       time.Duration `default:"30s" help:"How long to measure after they are closed."`
	Inserters   int           `default:"16" placeholder:"N" help:"How many clients insert."`
	Connections int           `default:"16" placeholder:"N" help:"How many clients claim and ack."`
}

func (*Viewers) name() string { return "viewers" }

func (w *Viewers) check(cfg Config) error {
	if w.Rate == 0 {
		return Invalidf("--rate: got 0; expected events a second")
	}
	return needDatabase(cfg)
}

func (w *Viewers) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	if err := w.load(ctx, s, srv); err != nil {
		return err
	}
	var updates atomic.Int64
	var used [3]time.Duration // processor time of the server in each phase
	result, err := s.measure(ctx, measurement{
		label: fmt.Sprintf("%g/s, %s", w.Rate, plural(w.Tabs, "open page")), server: srv,
		clients: s.steady(w.Rate, w.Inserters, w.Connections, 0), duration: w.Before + w.Open + w.After,
		during: func(ctx context.Context) error {
			load.Pause(ctx, s.cfg.Warmup)
			for i, phase := range []func(context.Context) error{
				func(ctx context.Context) error { load.Pause(ctx, w.Before); return nil },
				func(ctx context.Context) error { return w.view(ctx, srv, &updates) },
				func(ctx context.Context) error { load.Pause(ctx, w.After-time.Second); return nil },
			} {
				before, _, err := srv.usage(ctx)
				if err != nil {
					return err
				}
				if err := phase(ctx); err != nil {
					return err
				}
				after, _, err := srv.usage(ctx)
				if err != nil {
					return err
				}
				used[i] = after - before
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	s.add(result)
	open := w.Before + w.Open
	s.comparePhases(result, []phase{
		{"before", 0, w.Before.Seconds()}, {"open", w.Before.Seconds(), open.Seconds()}, {"after", open.Seconds(), (open + w.After).Seconds() + 1},
	})
	result.Values["before_server_cpu_percent"] = 100 * used[0].Seconds() / w.Before.Seconds()
	result.Values["open_server_cpu_percent"] = 100 * used[1].Seconds() / w.Open.Seconds()
	result.Values["updates_a_page_and_second"] = float64(updates.Load()) / float64(w.Tabs) / w.Open.Seconds()
	s.comparePhase(result, "open", "claim_p99_ms", "end_to_end_p99_ms")
	return nil
}

// load fills the other queues.
func (w *Viewers) load(ctx context.Context, s *session, srv *server) error {
	if w.Queues == 0 {
		return nil
	}
	if _, err := srv.db.conn.Exec(ctx, waitingInQueuesStatement, string(s.payload), w.Queues); err != nil {
		return fmt.Errorf("loading queues: %w", err)
	}
	for done := 0; done < w.History; done += loadChunk {
		s.progress.show("loading %d of %d ended events", done, w.History)
		if _, err := srv.db.conn.Exec(ctx, endedInQueuesStatement, string(s.payload), w.Queues, min(loadChunk, w.History-done)); err != nil {
			return fmt.Errorf("loading ended events: %w", err)
		}
	}
	_, err := srv.db.conn.Exec(ctx, checkpointStatement)
	return err
}

// view has the pages open for their time, and counts how often they were brought up to date.
func (w *Viewers) view(ctx context.Context, srv *server, updates *atomic.Int64) error {
	ctx, stop := context.WithTimeoutCause(ctx, w.Open, nil)
	defer stop()
	pages := []string{"", "queues", "queues/" + queueOf(1), "history", "fleet"}
	errs := make(chan error, w.Tabs)
	var viewing sync.WaitGroup
	defer viewing.Wait()
	for tab := range w.Tabs {
		page, err := srv.target.OpenPage(ctx, pages[tab%len(pages)])
		if err != nil {
			stop()
			return err
		}
		end := context.AfterFunc(ctx, page.Close)
		viewing.Go(func() {
			defer end()
			for {
				if err := page.Next(); err != nil {
					if ctx.Err() == nil {
						errs <- err
					}
					return
				}
				updates.Add(1)
			}
		})
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-errs:
		stop()
		return err
	}
}

// queueOf names one of the other queues.
func queueOf(n int) string { return fmt.Sprintf("view-%d", n) }
