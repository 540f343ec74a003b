package suite

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/queued/queued/bench/report"
)

// Settings of River's own benchmark (`river bench`, which cannot be imported), which it found best for itself.
const (
	riverBatch        = 5_000  // jobs in one insert
	riverBacklog      = 75_000 // jobs kept waiting; the clock starts when they are there
	riverWorkers      = 2_000
	riverCooldown     = 2 * time.Millisecond
	riverPollInterval = 20 * time.Millisecond
	riverRefill       = 250 * time.Millisecond // how long a filled backlog is left alone
)

type riverJob struct {
	Num int `json:"num"`
}

// Kind implements river.JobArgs.
func (riverJob) Kind() string { return "benchmark" }

type riverWorker struct {
	river.WorkerDefaults[riverJob]
}

// Work implements river.Worker.
func (*riverWorker) Work(context.Context, *river.Job[riverJob]) error { return nil }

// riverRun is one measurement of River: one client that inserts jobs in batches and works them, as its benchmark does.
type riverRun struct {
	client *river.Client[pgx.Tx]
	copies bool // insert with COPY (InsertManyFast) rather than with InsertMany, as the benchmark does

	inserted atomic.Int64
	worked   atomic.Int64
	last     atomic.Int64 // when the latest job was completed: nanoseconds since the epoch
}

// riverRates are jobs a second, and what one costs.
type riverRates struct {
	reported float64 // as River's benchmark counts: from when the workers start, with the first jobs inserted by then
	whole    float64 // from when the first job is inserted
	cost     float64 // processor time of everything on this machine for each job, in microseconds, while about as many are inserted as are worked
}

func measureRiver(ctx context.Context, url string, copies bool, duration time.Duration) (riverRates, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return riverRates{}, err
	}
	defer pool.Close()
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, nil)
	if err != nil {
		return riverRates{}, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return riverRates{}, fmt.Errorf("river's migrations: %w", err)
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &riverWorker{})
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown:     riverCooldown,
		FetchPollInterval: riverPollInterval,
		Logger:            slog.New(slog.DiscardHandler),
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
		Workers:           workers,
	})
	if err != nil {
		return riverRates{}, err
	}
	r := &riverRun{client: client, copies: copies}
	return r.run(ctx, duration)
}

func (r *riverRun) run(ctx context.Context, duration time.Duration) (riverRates, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A job counts when it is completed in the database, which the subscription tells, not when its worker returns.
	completed, unsubscribe := r.client.SubscribeConfig(&river.SubscribeConfig{
		ChanSize: riverBacklog, // so that none is dropped
		Kinds:    []river.EventKind{river.EventKindJobCompleted},
	})
	defer unsubscribe()
	go r.count(ctx, completed)

	began := time.Now()
	if err := r.fill(ctx); err != nil {
		return riverRates{}, err
	}
	started, busy := time.Now(), report.BusyTime()
	if err := r.client.Start(ctx); err != nil {
		return riverRates{}, err
	}
	refill := make(chan error, 1)
	refilling, stopRefill := context.WithTimeout(ctx, duration)
	defer stopRefill()
	go func() { refill <- r.refill(refilling) }()

	err := <-refill
	worked, last := r.worked.Load(), time.Unix(0, r.last.Load())
	busy = report.BusyTime() - busy
	stopping, giveUp := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer giveUp()
	err = errors.Join(err, ctx.Err(), r.client.StopAndCancel(stopping))
	if err == nil && worked == 0 {
		err = errors.New("river worked no job")
	}
	return riverRates{
		reported: float64(worked) / last.Sub(started).Seconds(),
		whole:    float64(worked) / last.Sub(began).Seconds(),
		cost:     float64(busy.Microseconds()) / max(float64(worked), 1),
	}, err
}

func (r *riverRun) count(ctx context.Context, completed <-chan *river.Event) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-completed:
			if event == nil {
				return
			}
			r.last.Store(time.Now().UnixNano())
			r.worked.Add(1)
		}
	}
}

// fill inserts jobs until the backlog is full.
func (r *riverRun) fill(ctx context.Context) error {
	for r.inserted.Load()-r.worked.Load() < riverBacklog {
		batch := make([]river.InsertManyParams, riverBatch)
		for i := range batch {
			batch[i].Args = riverJob{Num: int(r.inserted.Load()) + i}
		}
		var err error
		if r.copies {
			_, err = r.client.InsertManyFast(ctx, batch)
		} else {
			_, err = r.client.InsertMany(ctx, batch)
		}
		if err != nil {
			return fmt.Errorf("inserting jobs: %w", err)
		}
		r.inserted.Add(riverBatch)
	}
	return nil
}

// refill keeps the backlog full until ctx ends.
func (r *riverRun) refill(ctx context.Context) error {
	tick := time.NewTicker(riverRefill)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := r.fill(ctx); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

func riverParts() []part {
	return []part{
		riverPart("river.bench", "River's own benchmark: jobs inserted by InsertMany, worked, completed", false),
		riverPart("river.copy", "the same, jobs inserted by COPY (InsertManyFast)", true),
	}
}

func riverPart(name, about string, copies bool) part {
	return part{
		Part: report.Part{Name: name, About: about, Command: "River " + riverVersion() + " through its client, as river bench does"},
		run: func(ctx context.Context, m *measuring) (err error) {
			database, url, err := m.postgres.Create(ctx)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, m.postgres.Drop(ctx, database)) }()
			rates, err := measureRiver(ctx, url, copies, m.duration)
			if err == nil {
				m.report.AddNumber(m.round, name, rates.reported, "jobs/s")
				m.report.AddNumber(m.round, name+".whole", rates.whole, "jobs/s")
				m.report.AddNumber(m.round, name+" machine CPU", rates.cost, "µs/job")
			}
			return err
		},
	}
}

func riverVersion() string {
	info, ok := debug.ReadBuildInfo()
	if ok {
		for _, dep := range info.Deps {
			if dep.Path == "github.com/riverqueue/river" {
				return dep.Version
			}
		}
	}
	return "(unknown version)"
}
