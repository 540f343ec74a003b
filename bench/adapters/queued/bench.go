package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/queued/queued/client"
)

const (
	queueName = "bench"

	rateEvery = 100 * time.Millisecond // between looks at the rate
	lookEvery = time.Second            // between looks at the queue, which also counts what has ended in the last hour
)

// bench is a producer and a worker, and what they have done.
type bench struct {
	cfg       settings
	client    *client.Client
	out       *output
	logger    *slog.Logger
	latencies *window

	inserted, started, done atomic.Int64 // jobs
	rate                    atomic.Int64 // that the producer is asked for, jobs a second; 0: it goes by the depth
	depth                   atomic.Pointer[depth]
}

// depth is what waits in the queue, as of a look at it.
type depth struct {
	client.Queue
	inserted, started int64 // what this process had done by then
}

// job is the payload of an event.
type job struct {
	Seq     int64  `json:"seq"` // counts what one process has inserted, from 0; an insert that failed leaves no gap
	Padding string `json:"padding"`
}

// headBytes is the size of a job without its padding, about.
const headBytes = 32

// produce inserts jobs until ctx ends: at the rate, or so that the wanted number waits. A batch is inserted at a time, and none is begun after the end.
func (b *bench) produce(ctx context.Context) {
	padding := strings.Repeat("x", max(0, b.cfg.payload-headBytes))
	p := newPacer(time.Now())
	next := func() int { return b.missing() }
	if !b.cfg.isDepthTarget {
		var rate float64
		var looked time.Time
		next = func() int {
			now := time.Now()
			if now.Sub(looked) >= rateEvery {
				rate, looked = b.cfg.rateNow(), now
				b.rate.Store(int64(rate))
			}
			return p.due(now, rate, b.cfg.batchMax)
		}
	}
	for {
		for n := next(); n > 0 && ctx.Err() == nil; n = next() {
			b.insert(ctx, min(n, b.cfg.batchMax), padding)
		}
		if !pause(ctx, b.cfg.batchEvery) {
			return
		}
	}
}

// missing is how many jobs have to be inserted until the wanted number waits. What this process has inserted and begun since the last look at the queue is known without one.
func (b *bench) missing() int {
	d := b.depth.Load()
	if d == nil {
		return 0
	}
	waiting := int64(d.Ready) + b.inserted.Load() - d.inserted - (b.started.Load() - d.started)
	return int(int64(b.cfg.targetDepth) - waiting)
}

// insert inserts jobs with one call, which the client repeats under the same idempotency keys until it knows what became of it.
func (b *bench) insert(ctx context.Context, n int, padding string) {
	batch := make([]client.NewEvent, n)
	first := b.inserted.Load()
	for i := range batch {
		batch[i] = client.NewEvent{Queue: queueName, Payload: job{Seq: first + int64(i), Padding: padding}}
	}
	var err error
	if n == 1 {
		_, err = b.client.Insert(ctx, batch[0])
	} else {
		_, err = b.client.InsertBatch(ctx, batch)
	}
	if err != nil {
		if ctx.Err() == nil {
			b.logger.Warn("inserting failed", "jobs", n, "error", err)
		}
		return
	}
	b.inserted.Add(int64(n))
}

// work works jobs until ctx ends. A job is done when its ack is in the database.
func (b *bench) work(ctx context.Context) error {
	w := b.client.NewWorker(client.WorkerConfig{
		Queue: queueName, Concurrency: b.cfg.workers, ClaimInterval: b.cfg.claimEvery, Lease: b.cfg.lease, Grace: handlerTime, Logger: b.logger,
		OnEnd: func(e client.Ended) {
			if e.End == client.EndDone {
				b.done.Add(1)
			}
		},
	})
	client.Handle(w, "", func(ctx context.Context, j client.Job[job]) (any, error) {
		now := time.Now()
		b.started.Add(1)
		b.latencies.add(now, now.Sub(j.EnqueuedAt))
		if b.cfg.work > 0 && !pause(ctx, b.cfg.work) {
			return nil, context.Cause(ctx)
		}
		return nil, nil //nolint:nilnil // there is no result
	})
	return w.Run(ctx)
}

// pollDepth looks at the queue until ctx ends. A process that neither goes by the depth nor reports it does not look.
func (b *bench) pollDepth(ctx context.Context) {
	if b.cfg.instance != 0 && !b.cfg.isDepthTarget {
		return
	}
	for {
		d := &depth{inserted: b.inserted.Load(), started: b.started.Load()}
		var err error
		d.Queue, err = b.client.GetQueue(ctx, queueName)
		switch {
		case err == nil, errors.Is(err, client.ErrNotFound): // its first event makes it
			b.depth.Store(d)
		case ctx.Err() == nil:
			b.logger.Warn("asking for the depth failed", "error", err)
		}
		if !pause(ctx, lookEvery) {
			return
		}
	}
}

// pause waits for d and reports whether it passed before ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
