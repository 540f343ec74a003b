package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// awayLoad is clients that take events one by one from insert to ack at a steady rate, on each cell through one gateway.
type awayLoad struct {
	fleet  *fleet
	queues []string        // by cell
	on     []*load.Clients // by cell
	cycles []cycle         // by cell
}

// measureAway measures what the clients of the other cells see while the last one does not answer, in turns with all answering, and compares.
// The server of that cell is stopped where it is, which is worse than its end: connections to it stay open. Its clients go on calling.
func (w *Cells) measureAway(ctx context.Context, s *session, f *fleet) error {
	if err := f.free(); err != nil {
		return err
	}
	l := &awayLoad{fleet: f}
	defer l.close()
	for number := range f.cells {
		if err := w.addAway(ctx, s, l, number); err != nil {
			return err
		}
	}
	present, away := newTurns("other cells, none away"), newTurns("other cells, one away")
	order := []*turns{present, away}
	for round := range w.Rounds {
		for _, t := range order {
			s.progress.show("round %d of %d: %s", round+1, w.Rounds, t.label)
			if err := l.turn(ctx, t, s.cfg.Warmup, w.Duration, t == away); err != nil {
				return err
			}
		}
		slices.Reverse(order)
	}
	results := []*report.Result{present.result(false), away.result(false)}
	for _, result := range results {
		s.add(result)
	}
	for _, step := range []load.Step{load.Insert, load.Claim, load.Ack, load.EndToEnd} {
		name := step.String()
		s.compare(fmt.Sprintf("p99 of %s on other cells, one away over none", name), results[1].Latency[name].P99/results[0].Latency[name].P99)
	}
	balance := new(load.Balance)
	for number := range len(f.cells) - 1 {
		b, err := s.drain(ctx, f.all, l.queues[number], l.on[number].Account)
		if err != nil {
			return err
		}
		balance.Add(*b)
	}
	results[1].Balance = balance
	return nil
}

// addAway connects the clients of a cell.
func (w *Cells) addAway(ctx context.Context, s *session, l *awayLoad, number int) error {
	queue := s.newQueue()
	if err := l.fleet.all.target.Place(ctx, queue, number); err != nil {
		return err
	}
	clients, err := load.Open(ctx, l.fleet.all.target, queue, w.Connections, load.NewAccount())
	if err != nil {
		return err
	}
	l.queues, l.on = append(l.queues, queue), append(l.on, clients)
	l.cycles = append(l.cycles, s.singles(w.Connections, load.NewArrivals(w.AwayRate, false)).on(l.fleet.all, queue))
	return nil
}

func (l *awayLoad) close() {
	for _, clients := range l.on {
		clients.Close()
	}
}

// turn has the clients work for so long after a warm-up, and adds what those of all cells but the last have seen since. If isAway, the last cell stops as that begins, and
// goes on afterwards.
func (l *awayLoad) turn(ctx context.Context, t *turns, warmup, duration time.Duration, isAway bool) (err error) {
	for number, clients := range l.on {
		defer clients.Work(ctx, l.cycles[number])()
	}
	if !load.Pause(ctx, warmup) {
		return ctx.Err()
	}
	last := len(l.on) - 1
	if isAway {
		stopped := l.fleet.cells[last].process
		if err := stopped.freeze(); err != nil {
			return err
		}
		defer func() { // before the clients are waited for, which may be waiting for it
			if err = errors.Join(err, stopped.thaw()); err == nil {
				err = awaitCells(ctx, l.fleet.all, len(l.on))
			}
		}()
	}
	for _, clients := range l.on {
		clients.Meter.Take()
	}
	before, err := l.fleet.all.read(ctx)
	if err != nil {
		return err
	}
	if !load.Pause(ctx, duration) {
		return ctx.Err()
	}
	seen := load.NewCounts()
	for _, clients := range l.on[:last] {
		seen.Add(clients.Meter.Take())
	}
	after, err := l.fleet.all.read(ctx)
	if err == nil {
		t.add(seen, seen.Events[load.Ack], turnReading{reading: before}, turnReading{reading: after})
	}
	return err
}
