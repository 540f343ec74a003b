package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Redrive is a steady load beside a redrive of many events that have failed, which go into another queue and wait there.
type Redrive struct {
	Events      int           `least:"100" most:"100000000" default:"1000000" placeholder:"N" help:"How many failed events are redriven."`
	RedriveRate float64       `default:"5000" placeholder:"N" help:"How many of them a second."`
	Rate        float64       `default:"1000" placeholder:"N" help:"Events of the steady load inserted a second, as planned."`
	Before      time.Duration `default:"60s" help:"How long to measure before."`
	After       time.Duration `default:"30s" help:"How long to measure after."`
	Inserters   int           `default:"16" placeholder:"N" help:"How many clients insert."`
	Connections int           `default:"16" placeholder:"N" help:"How many clients claim and ack."`
}

func (*Redrive) name() string { return "redrive" }

func (w *Redrive) check(cfg Config) error {
	if w.Rate == 0 || w.RedriveRate == 0 {
		return Invalidf("--rate and --redrive-rate: got %g and %g; expected events a second", w.Rate, w.RedriveRate)
	}
	return needDatabase(cfg)
}

func (w *Redrive) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	failed, again := s.newQueue(), s.newQueue()
	for done := 0; done < w.Events; {
		s.progress.show("loading %d of %d failed events", done, w.Events)
		var n int
		if err := srv.db.conn.QueryRow(ctx, failedStatement, string(s.payload), failed, min(loadChunk, w.Events-done)).Scan(&n); err != nil {
			return fmt.Errorf("loading failed events: %w", err)
		}
		done += n
	}
	if _, err := srv.db.conn.Exec(ctx, checkpointStatement); err != nil {
		return err
	}

	planned := time.Duration(float64(w.Events) / w.RedriveRate * float64(time.Second))
	limit := 2*planned + 10*time.Second
	over := make(chan struct{})
	var took time.Duration
	result, err := s.measure(ctx, measurement{
		label: fmt.Sprintf("%g/s beside %d redriven at %g/s", w.Rate, w.Events, w.RedriveRate), server: srv,
		clients: s.steady(w.Rate, w.Inserters, w.Connections, 0), duration: w.Before + limit + w.After,
		over: over,
		during: func(ctx context.Context) (err error) {
			if !load.Pause(ctx, s.cfg.Warmup+w.Before) {
				return nil
			}
			if took, err = w.redrive(ctx, srv, failed, again, limit); err != nil {
				return err
			}
			load.Pause(ctx, w.After)
			close(over)
			return nil
		},
	})
	if err != nil {
		return err
	}
	s.add(result)
	result.Values["redriven_per_s"] = float64(w.Events) / took.Seconds()
	s.comparePhases(result, []phase{
		{"before", 0, w.Before.Seconds()},
		{"redrive", w.Before.Seconds(), (w.Before + took).Seconds()},
		{"after", (w.Before + took).Seconds(), (w.Before + took + w.After).Seconds() + 1},
	})
	s.comparePhase(result, "redrive", "claim_p99_ms", "end_to_end_p99_ms") // that of claims has the wait for an event in it
	s.compare("rate over the one asked for", float64(w.Events)/took.Seconds()/w.RedriveRate)
	return w.account(ctx, s, srv, again)
}

// redrive has the failed events posted into another queue, and returns how long that took.
func (w *Redrive) redrive(ctx context.Context, srv *server, from, to string, limit time.Duration) (time.Duration, error) {
	began := time.Now()
	id, err := srv.target.Redrive(ctx, from, to, w.RedriveRate)
	if err != nil {
		return 0, err
	}
	for {
		events, hasEnded, err := srv.target.Redriven(ctx, id)
		switch {
		case err != nil:
			return 0, err
		case hasEnded:
			return time.Since(began), nil
		case time.Since(began) > limit:
			return 0, fmt.Errorf("the redrive has posted %d events in %s, and goes on", events, limit)
		}
		if !load.Pause(ctx, 200*time.Millisecond) {
			return 0, context.Cause(ctx)
		}
	}
}

// account adds up what was redriven: each event has to be in the queue, and once.
func (w *Redrive) account(ctx context.Context, s *session, srv *server, queue string) error {
	var events, originals int64
	if err := srv.db.conn.QueryRow(ctx, countRedrivenStatement, queue).Scan(&events, &originals); err != nil {
		return fmt.Errorf("counting what was redriven: %w", err)
	}
	s.add(&report.Result{Label: "redriven", Balance: &load.Balance{
		Inserted: int64(w.Events), Acked: originals, Lost: max(int64(w.Events)-originals, 0), InsertedTwice: events - originals,
	}})
	return nil
}
