package workloads

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// Snapshot is a steady load beside a session that holds an old snapshot, as a forgotten transaction or a long
// backup does: nothing that dies meanwhile can be cleaned away.
type Snapshot struct {
	Rate        float64       `name:"rate" default:"2000" placeholder:"N" help:"Events posted per second, on a schedule."`
	Before      time.Duration `name:"before" default:"60s" help:"How long to measure before."`
	Hold        time.Duration `name:"hold" default:"10m" help:"How long the snapshot is held."`
	After       time.Duration `name:"after" default:"60s" help:"How long to measure after."`
	Posters     int           `name:"posters" default:"32" placeholder:"N" help:"How many clients post."`
	Connections int           `name:"connections" default:"32" placeholder:"N" help:"How many clients claim and ack."`
}

func (*Snapshot) name() string { return "snapshot" }

func (w *Snapshot) check(cfg Config) error {
	if err := needDatabase(cfg, "snapshot holds a transaction open"); err != nil {
		return err
	}
	if w.Rate <= 0 {
		return Invalidf("--rate: got %g; takes events per second, more than zero", w.Rate)
	}
	for flag, d := range map[string]time.Duration{"--before": w.Before, "--hold": w.Hold, "--after": w.After} {
		if err := checkDuration(flag, d); err != nil {
			return err
		}
	}
	if err := checkNumber("--posters", w.Posters, 1, maxWorkers); err != nil {
		return err
	}
	return checkNumber("--connections", w.Connections, 1, maxWorkers)
}

// claimWait is how long a claim of a steady load waits for an event.
const claimWait = time.Second

func (w *Snapshot) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	queue, times := s.newQueue(), newBirths()
	post := postRequest(srv.at, queue, s.payload)
	claim := claimRequest(srv.at, queue, 1, "", claimWait)
	plan := newSchedule(w.Rate, false)
	poster := func(ctx context.Context, w *worker) {
		for ctx.Err() == nil {
			intended, ok := plan.wait(ctx, w)
			if !ok {
				return
			}
			if w.post(ctx, post, intended) {
				times.born(w.shard, w.posted, intended)
			}
		}
	}
	claimer := func(ctx context.Context, w *worker) {
		for ctx.Err() == nil {
			leases, ok := w.claim(ctx, claim, claimWait)
			if ok && len(leases) > 0 && w.ack(ctx, leases[0]) {
				times.died(w.shard, leases[0].id, time.Now())
			}
		}
	}
	result, err := s.measure(ctx, trial{
		label: fmt.Sprintf("%g/s", w.Rate), server: srv, queue: queue,
		tasks:  append(repeat(w.Posters, poster), repeat(w.Connections, claimer)...),
		warmup: s.cfg.Warmup, duration: w.Before + w.Hold + w.After, series: true,
		during: func(ctx context.Context) error {
			if !pause(ctx, s.cfg.Warmup+w.Before) {
				return nil
			}
			return holdSnapshot(ctx, srv.db, w.Hold)
		},
	})
	if err != nil {
		return err
	}
	s.report.add(result)
	w.judge(s.report, result)
	return nil
}

// judge compares the phases of the series.
func (w *Snapshot) judge(r *Report, result *Result) {
	begin, end := w.Before.Seconds(), (w.Before + w.Hold).Seconds()
	result.marks = []float64{begin, end}
	phases := []struct {
		name     string
		from, to float64
	}{
		{"before", 0, begin},
		{"hold", begin, end},
		{"last tenth of hold", end - w.Hold.Seconds()/10, end},
		{"after", end, end + w.After.Seconds() + 1},
	}
	rates := map[string]float64{}
	for _, phase := range phases {
		var lives, seconds float64
		var claimP99, lifeP99 []float64
		last := 0.0
		for _, at := range result.Series {
			if middle := (last + at.Second) / 2; middle >= phase.from && middle < phase.to {
				lives += float64(at.Lives)
				seconds += at.Second - last
				claimP99, lifeP99 = append(claimP99, at.ClaimP99), append(lifeP99, at.LifeP99)
			}
			last = at.Second
		}
		if seconds == 0 {
			continue
		}
		rates[phase.name] = lives / seconds
		name := strings.ReplaceAll(phase.name, " ", "_")
		result.Values[name+"_lives_per_s"] = lives / seconds
		result.Values[name+"_claim_p99_ms"] = median(claimP99)
		result.Values[name+"_life_p99_ms"] = median(lifeP99)
	}
	for _, phase := range phases[1:] {
		if rate, ok := rates[phase.name]; ok && rates["before"] > 0 {
			r.atLeast(phase.name+" over before", rate/rates["before"], flatBar)
		}
	}
}

// holdSnapshot keeps a transaction open that has seen the table.
func holdSnapshot(ctx context.Context, db *database, d time.Duration) error {
	conn, err := db.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, snapshotStatement); err != nil {
			return err
		}
		pause(ctx, d)
		return nil
	})
}

// births pairs the intended time of an event's post with the time of its ack, whichever is known first: a claim may be
// answered before the post is.
type births struct {
	mu    sync.Mutex
	times map[int64]time.Time
}

func newBirths() *births { return &births{times: map[int64]time.Time{}} }

func (b *births) born(s *shard, id int64, at time.Time) {
	if end, ok := b.pair(id, at); ok {
		s.done(living, end.Sub(at), 1)
	}
}

func (b *births) died(s *shard, id int64, at time.Time) {
	if begin, ok := b.pair(id, at); ok {
		s.done(living, at.Sub(begin), 1)
	}
}

func (b *births) pair(id int64, at time.Time) (other time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if other, ok = b.times[id]; ok {
		delete(b.times, id)
	} else {
		b.times[id] = at
	}
	return other, ok
}

func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
