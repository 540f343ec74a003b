package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// task is what one worker does until ctx ends.
type task func(ctx context.Context, w *worker)

// trial is one measured run: workers on a server and a queue, each at its task.
type trial struct {
	label    string
	server   *server
	queue    string
	tasks    []task // one per worker
	warmup   time.Duration
	duration time.Duration
	series   bool                                  // keep what each second was like
	until    func(*meter) bool                     // ends it before duration, when not nil; asked a few times a second
	during   func(ctx context.Context) error       // runs beside the workers, when not nil
	second   func(ctx context.Context, at *Second) // adds to a second of the series, when not nil
	ledger   *ledger                               // of an earlier trial on the same queue; nil: a new one
}

// checkInterval is how often a run looks after itself.
const checkInterval = 100 * time.Millisecond

// measure runs a trial and returns what was measured. It is the report's business to judge it.
func (s *session) measure(ctx context.Context, t trial) (*Result, error) {
	if t.ledger == nil {
		t.ledger = newLedger()
	}
	workers, err := hire(ctx, t.server, t.queue, len(t.tasks), t.ledger)
	if err != nil {
		return nil, err
	}
	defer workers.close()
	result, err := s.watch(ctx, t, workers)
	if err != nil {
		if result != nil { // hours may have gone into it
			result.Label += " (not finished)"
			s.report.add(result)
		}
		return nil, err
	}
	account, err := s.settle(ctx, t)
	if err != nil {
		return nil, fmt.Errorf("cleaning up after %s: %w", t.label, err)
	}
	result.Account = &account
	return result, nil
}

// watch lets the workers work through warm-up and measured time, and stops them.
func (s *session) watch(ctx context.Context, t trial, hired *crew) (*Result, error) {
	working, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	// The workers end when they are told to; nothing returns before they have.
	defer running.Wait()
	defer stop()
	for i, do := range t.tasks {
		running.Go(func() { do(working, hired.workers[i]) })
	}
	failed := make(chan error, 1)
	if t.during != nil {
		running.Go(func() {
			if err := t.during(working); err != nil && working.Err() == nil {
				failed <- err
			}
		})
	}
	w := &watcher{session: s, trial: t, meter: hired.meter, failed: failed}
	if err := w.pass(ctx, time.Now().Add(t.warmup), nil); err != nil {
		return nil, err
	}
	hired.meter.take()
	before, err := t.server.read(ctx)
	if err != nil {
		return nil, err
	}
	w.result = newResult(t.label)
	w.total = newTally()
	w.began = before.at
	passed := w.pass(ctx, before.at.Add(t.duration), t.until)
	w.total.add(hired.meter.take())
	took := time.Since(before.at)
	after, err := t.server.read(context.WithoutCancel(ctx))
	if err != nil {
		return nil, cmp.Or(passed, err)
	}
	w.result.fill(w.total, took, before, after, t.server.db != nil)
	return w.result, passed
}

// watcher passes the time of a trial.
type watcher struct {
	*session
	trial  trial
	meter  *meter
	failed <-chan error

	began  time.Time // of the measured time; zero during the warm-up
	result *Result
	total  *tally
}

// pass waits until a time, or until enough says so, noting what each second was like.
func (w *watcher) pass(ctx context.Context, end time.Time, enough func(*meter) bool) error {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	timer := time.NewTimer(time.Until(end))
	defer timer.Stop()
	next := time.Now().Add(time.Second)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-w.failed:
			return err
		case <-w.trial.server.died():
			return w.trial.server.child.failure()
		case <-timer.C:
			w.note(ctx, true)
			return nil
		case now := <-tick.C:
			if enough != nil && enough(w.meter) {
				w.note(ctx, true)
				return nil
			}
			if now.Before(next) {
				continue
			}
			next = next.Add(time.Second)
			w.note(ctx, false)
		}
	}
}

// note ends a second of the series and shows how it goes.
func (w *watcher) note(ctx context.Context, last bool) {
	if w.began.IsZero() || !w.trial.series {
		w.progress.counted(w.trial.label, w.meter.events(acking)+w.done(), w.began)
		return
	}
	t := w.meter.take()
	w.total.add(t)
	at := newSecond(time.Since(w.began), t)
	if n := len(w.result.Series); last && n > 0 && at.Second-w.result.Series[n-1].Second < 0.5 {
		// What is left over is no second of its own.
		w.result.Series[n-1].Lives += at.Lives
		w.result.Series[n-1].Second = at.Second
		return
	}
	if w.trial.second != nil {
		w.trial.second(ctx, &at)
	}
	w.result.Series = append(w.result.Series, at)
	w.progress.counted(w.trial.label, w.done(), w.began)
}

// done is the lives that have been taken from the meter so far.
func (w *watcher) done() int64 {
	if w.total == nil {
		return 0
	}
	return w.total.events[acking]
}

// settle finishes what a trial has left in its queue and accounts for every event.
func (s *session) settle(ctx context.Context, t trial) (Account, error) {
	w := newWorker(t.server.at, t.queue, newMeter(1), 0, t.ledger)
	defer w.close()
	claim := claimRequest(t.server.at, t.queue, 1000, "", 0)
	for failures := 0; ; {
		if err := ctx.Err(); err != nil {
			return Account{}, err
		}
		if err := t.server.alive(); err != nil {
			return Account{}, err
		}
		leases, ok := w.claim(ctx, claim, 0)
		if ok && len(leases) > 0 {
			ok = w.ackBatch(ctx, leases)
		} else if ok {
			break
		}
		if !ok {
			if failures++; failures > 10 {
				return Account{}, fmt.Errorf("what is left in the queue %s cannot be finished: %v", t.queue, w.shard.tally.errors)
			}
		}
	}
	return t.ledger.settle(func(id int64) (bool, error) {
		_, err := t.server.get(ctx, fmt.Sprintf("/events/%d", id))
		var refused *statusError
		if errors.As(err, &refused) && refused.status == 404 {
			return false, nil
		}
		return err == nil, err
	})
}
