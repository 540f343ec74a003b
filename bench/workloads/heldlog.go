package workloads

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// HeldLog is publishing and reading as fast as they go, in windows, beside a session that holds an old snapshot for a part of the time: no row that
// dies meanwhile can be removed. Clients publish over HTTP, a session publishes in SQL, two readers read the log, and one reads by a subscription and commits
// each page. Nothing may be lost or come twice, and all readers must see the same order.
type HeldLog struct {
	Before      time.Duration `default:"2m" help:"How long to measure before."`
	Hold        time.Duration `default:"10m" help:"How long the snapshot is held."`
	After       time.Duration `default:"1m" help:"How long to measure after."`
	Window      time.Duration `default:"10s" help:"How long one window takes; rates are medians of windows."`
	Connections int           `default:"16" most:"50000" placeholder:"N" help:"How many clients publish."`
}

func (*HeldLog) name() string { return "heldlog" }

func (*HeldLog) check(cfg Config) error { return needDatabase(cfg) }

func (w *HeldLog) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	topic, published := s.newQueue(), load.NewAccount()
	readers, err := newLogReaders(ctx, srv.target, topic, published)
	if err != nil {
		return err
	}
	defer readers.close()
	subscription, err := srv.target.Subscribe(ctx, topic, topic, maxBatch)
	if err != nil {
		return err
	}
	defer subscription.Close()
	clients, err := load.Open(ctx, srv.target, topic, w.Connections, published)
	if err != nil {
		return err
	}
	defer clients.Close()

	working, stop := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop(nil)
	begin := func(work func(context.Context) error) {
		running.Go(func() {
			if err := work(working); err != nil && working.Err() == nil {
				stop(err)
			}
		})
	}
	request := srv.target.PublishRequest(topic, s.payload)
	for _, c := range clients.All {
		begin(func(ctx context.Context) error {
			for ctx.Err() == nil {
				c.Insert(ctx, request, time.Time{})
			}
			return nil
		})
	}
	var inSQL, committed atomic.Int64
	begin(func(ctx context.Context) error {
		return publishInSQL(ctx, srv.db, topic+".sql", string(s.payload), &inSQL)
	})
	begin(func(ctx context.Context) error { return readAndCommit(ctx, subscription, &committed) })
	stopReaders := readers.follow(ctx)
	err = w.phases(working, s, srv, clients, begin, &inSQL, &committed)
	stop(nil)
	running.Wait()
	if stopped := stopReaders(); err == nil {
		err = stopped
	}
	if err != nil {
		return err
	}
	s.progress.show("reading the log to its end")
	balance, err := readers.finish(ctx)
	for n := 1; err == nil && n > 0; {
		n, err = subscription.Page()
	}
	if err == nil {
		err = readers.both[0].SameOrder(&subscription.Order)
	}
	s.add(&report.Result{Label: "read from the log", Balance: &balance})
	return err
}

// phases measures before, while and after the snapshot is held.
func (w *HeldLog) phases(
	ctx context.Context, s *session, srv *server, clients *load.Clients, begin func(func(context.Context) error), inSQL, committed *atomic.Int64,
) error {
	if !load.Pause(ctx, s.cfg.Warmup) {
		return context.Cause(ctx)
	}
	counters := newTurnReader(srv)
	var measured []*turns
	for _, phase := range []struct {
		label string
		takes time.Duration
	}{{"before", w.Before}, {"hold", w.Hold - w.Hold/10}, {"last tenth of hold", w.Hold / 10}, {"after", w.After}} {
		if phase.label == "hold" {
			begin(func(ctx context.Context) error { return holdSnapshot(ctx, srv.db, w.Hold) })
		}
		t, sqlBefore, committedBefore := newTurns(phase.label), inSQL.Load(), committed.Load()
		for left := phase.takes; left > 0; left -= w.Window {
			s.progress.show("%s: %s left", phase.label, left)
			if err := window(ctx, t, clients.Meter, counters, min(w.Window, left)); err != nil {
				return err
			}
		}
		result := t.result(true)
		result.Values["median_window_events_per_s"], result.Values["least_window_events_per_s"] = report.Median(t.rates), slices.Min(t.rates)
		result.Values["sql_events_per_s"] = float64(inSQL.Load()-sqlBefore) / result.Seconds
		result.Values["committed_events_per_s"] = float64(committed.Load()-committedBefore) / result.Seconds
		if err := srv.db.addLogSizes(ctx, result.Values); err != nil {
			return err
		}
		s.add(result)
		measured = append(measured, t)
	}
	// Over a quarter of an hour machines become slower or faster, too: the cost of the snapshot shows against the runs before and after it.
	before, after := measured[0], measured[len(measured)-1]
	unheld := (report.Median(before.rates) + report.Median(after.rates)) / 2
	for _, t := range measured[1:] {
		s.compare(t.label+" over before", report.Median(t.rates)/report.Median(before.rates))
		s.compare(t.label+", processor time over before", t.costOver(before))
		if t != after {
			s.compare(t.label+" over before and after", report.Median(t.rates)/unheld)
		}
	}
	return nil
}

// window measures publishers that are at work for so long.
func window(ctx context.Context, t *turns, meter *load.Meter, counters *turnReader, d time.Duration) error {
	meter.Take()
	before, err := counters.read(ctx)
	if err != nil {
		return err
	}
	if !load.Pause(ctx, d) {
		return context.Cause(ctx)
	}
	sent := meter.Take()
	after, err := counters.read(ctx)
	if err == nil {
		t.add(sent, sent.Events[load.Insert], before, after)
	}
	return err
}

// publishInSQL publishes one event after the other, each in a transaction of its own.
func publishInSQL(ctx context.Context, db *database, topic, payload string, published *atomic.Int64) error {
	conn, err := db.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	for ctx.Err() == nil {
		if _, err := conn.Exec(ctx, publishStatement, topic, payload); err != nil {
			return fmt.Errorf("publishing in SQL: %w", err)
		}
		published.Add(1)
	}
	return nil
}

// readAndCommit reads by a subscription until ctx ends.
func readAndCommit(ctx context.Context, r *load.SubscriptionReader, committed *atomic.Int64) error {
	const pause = 5 * time.Millisecond // of a reader that is level
	for ctx.Err() == nil {
		n, err := r.Page()
		if err != nil {
			return err
		}
		committed.Add(int64(n))
		if n == 0 {
			load.Pause(ctx, pause)
		}
	}
	return nil
}

// addLogSizes adds to values how large the log is, and how many dead rows publishing and reading have left.
func (db *database) addLogSizes(ctx context.Context, values map[string]float64) error {
	var log, logDead, other, otherDead float64
	if err := db.conn.QueryRow(ctx, logSizesStatement).Scan(&log, &logDead, &other, &otherDead); err != nil {
		return fmt.Errorf("asking for the sizes of the tables: %w", err)
	}
	values["log_mib"], values["log_dead_rows"], values["other_tables_mib"], values["other_dead_rows"] = log, logDead, other, otherDead
	return nil
}
