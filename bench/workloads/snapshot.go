package workloads

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Snapshot is a steady load beside a session that holds an old snapshot, as a forgotten transaction or a long
// backup does: no row that dies meanwhile can be removed.
type Snapshot struct {
	Rate        float64       `default:"2000" placeholder:"N" help:"Events inserted a second, as planned."`
	Before      time.Duration `default:"60s" help:"How long to measure before."`
	Hold        time.Duration `default:"10m" help:"How long the snapshot is held."`
	After       time.Duration `default:"60s" help:"How long to measure after."`
	Inserters   int           `default:"32" placeholder:"N" help:"How many clients insert."`
	Connections int           `default:"32" placeholder:"N" help:"How many clients claim and ack."`
}

func (*Snapshot) name() string { return "snapshot" }

func (w *Snapshot) check(cfg Config) error {
	if w.Rate == 0 {
		return Invalidf("--rate: got 0; expected events a second")
	}
	return needDatabase(cfg)
}

func (w *Snapshot) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	result, err := s.measure(ctx, measurement{
		label: fmt.Sprintf("%g/s", w.Rate), server: srv, clients: s.steady(w.Rate, w.Inserters, w.Connections, 0),
		duration: w.Before + w.Hold + w.After,
		during: func(ctx context.Context) error {
			if !load.Pause(ctx, s.cfg.Warmup+w.Before) {
				return nil
			}
			return holdSnapshot(ctx, srv.db, w.Hold)
		},
	})
	if err != nil {
		return err
	}
	s.add(result)
	begin, end := w.Before.Seconds(), (w.Before + w.Hold).Seconds()
	s.comparePhases(result, []phase{
		{"before", 0, begin},
		{"hold", begin, end},
		{"last tenth of hold", end - w.Hold.Seconds()/10, end},
		{"after", end, end + w.After.Seconds() + 1},
	})
	return nil
}

// steady are clients that insert events at a rate, of so many groups in turns (0: of none), and others that claim and ack them.
func (s *session) steady(rate float64, inserters, connections, groups int) []clients {
	arrivals := load.NewArrivals(rate, false)
	pairs := pairing{times: map[int64]time.Time{}}
	inserting := clients{inserters, func(srv *server, queue string) cycle {
		inserts := []load.InsertRequest{srv.target.InsertRequest(queue, s.payload)}
		if groups > 0 {
			inserts = inserts[:0]
			for _, group := range groupNames(groups) {
				inserts = append(inserts, srv.target.InsertOfGroupRequest(queue, group, s.payload))
			}
		}
		var next atomic.Int64
		return func(ctx context.Context, c *load.Client) {
			planned, ok := arrivals.Wait(ctx, c)
			if !ok {
				return
			}
			if ids, ok := c.Insert(ctx, inserts[int(next.Add(1))%len(inserts)], planned); ok {
				if acked, ok := pairs.add(ids[0], planned); ok {
					c.Add(load.EndToEnd, acked.Sub(planned), 1)
				}
			}
		}
	}}
	claiming := clients{connections, func(srv *server, queue string) cycle {
		claim := srv.target.ClaimRequest(queue, 1, "", time.Second)
		return func(ctx context.Context, c *load.Client) {
			if leases, _ := c.Claim(ctx, claim); len(leases) > 0 && c.Ack(ctx, leases[0]) {
				acked := time.Now()
				if planned, ok := pairs.add(leases[0].ID, acked); ok {
					c.Add(load.EndToEnd, acked.Sub(planned), 1)
				}
			}
		}
	}}
	return []clients{inserting, claiming}
}

// A phase is a part of a series, in seconds from its beginning.
type phase struct {
	name     string
	from, to float64
}

// comparePhases compares the phases of a series with the first one. The marks of the series are where the second one begins and ends.
func (s *session) comparePhases(result *report.Result, phases []phase) {
	var before float64
	for i, phase := range phases {
		var events, seconds, last float64
		var claimP99, endToEndP99 []float64
		for _, at := range result.Series {
			if middle := (last + at.Second) / 2; middle >= phase.from && middle < phase.to {
				events += float64(at.Events)
				seconds += at.Second - last
				claimP99, endToEndP99 = append(claimP99, at.ClaimP99), append(endToEndP99, at.EndToEndP99)
			}
			last = at.Second
		}
		if seconds == 0 {
			continue
		}
		rate, name := events/seconds, strings.ReplaceAll(phase.name, " ", "_")
		result.Values[name+"_events_per_s"] = rate
		result.Values[name+"_claim_p99_ms"] = report.Median(claimP99)
		result.Values[name+"_end_to_end_p99_ms"] = report.Median(endToEndP99)
		switch {
		case i == 0:
			before = rate
		case before > 0:
			s.compare(phase.name+" over before", rate/before)
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
		load.Pause(ctx, d)
		return nil
	})
}

// pairing pairs the planned time of an event's insert with the time of its ack, whichever is known first: a claim may be
// answered before the insert is.
type pairing struct {
	mu    sync.Mutex
	times map[int64]time.Time
}

// add returns the other time if it is known.
func (p *pairing) add(id int64, at time.Time) (other time.Time, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if other, ok = p.times[id]; ok {
		delete(p.times, id)
	} else {
		p.times[id] = at
	}
	return other, ok
}
