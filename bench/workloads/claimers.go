package workloads

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Claimers is many clients that claim with a wait from one queue, which others fill as fast as it is emptied; and what
// many waiting claims cost while nothing comes.
type Claimers struct {
	Claimers []int         `name:"claimers" default:"1,8,64,256,512,1024" sep:"," placeholder:"N" help:"How many clients claim and ack, one event at a time; a list measures each."`
	Duration time.Duration `name:"duration" default:"10s" help:"How long each measurement takes, after the warm-up."`
	Feeders  int           `name:"feeders" default:"2" placeholder:"N" help:"How many clients post, 100 events at a time."`
	Waiting  int           `name:"waiting" default:"1024" placeholder:"N" help:"How many claims wait on an empty queue for the idle cost; 0 leaves that out."`
}

func (*Claimers) name() string { return "claimers" }

func (w *Claimers) check(Config) error {
	if err := checkList("--claimers", w.Claimers, 1, maxWorkers); err != nil {
		return err
	}
	if err := checkNumber("--feeders", w.Feeders, 1, 1000); err != nil {
		return err
	}
	if err := checkNumber("--waiting", w.Waiting, 0, maxWorkers); err != nil {
		return err
	}
	if err := checkFiles(max(w.Waiting, maxOf(w.Claimers)+w.Feeders)); err != nil {
		return err
	}
	return checkDuration("--duration", w.Duration)
}

const (
	feedBatch = 100
	// longWait is the longest that the server lets a claim wait.
	longWait = time.Minute
)

func (w *Claimers) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	var best float64
	for _, n := range w.Claimers {
		result, err := w.feed(ctx, s, srv, n)
		if err != nil {
			return err
		}
		s.report.add(result)
		best = max(best, result.LivesPerS)
	}
	for i, n := range w.Claimers {
		if len(w.Claimers) == 1 {
			break
		}
		s.report.compare(plural(n, "claimer")+" over the best", s.report.Results[i].LivesPerS/best)
	}
	if w.Waiting == 0 {
		return nil
	}
	// Sessions report their commits up to 10 s late (since PostgreSQL 15, when they turn idle), so those of the busy
	// time would be counted here: a database of its own has none of them, and a server that was given has to wait.
	if srv.child != nil {
		if srv, err = s.serve(ctx); err != nil {
			return err
		}
	} else if srv.db != nil {
		s.progress.say("letting the database count what has been")
		pause(ctx, reportDelay)
	}
	result, err := w.idle(ctx, s, srv)
	if err != nil {
		return err
	}
	s.report.add(result)
	return nil
}

// reportDelay is how late sessions report, and a little more.
const reportDelay = 11 * time.Second

// feed measures n claimers at full speed.
func (w *Claimers) feed(ctx context.Context, s *session, srv *server, n int) (*Result, error) {
	queue := s.newQueue()
	batch := batchRequest(srv.at, queue, s.payload, feedBatch)
	claim := claimRequest(srv.at, queue, 1, "", longWait)
	// The feeders stay ahead, by enough that no claimer waits for long and by so little that the backlog is shallow.
	var stock atomic.Int64
	ahead := int64(2*n + 10*feedBatch)
	room := make(chan struct{}, 1)
	feeder := func(ctx context.Context, w *worker) {
		for ctx.Err() == nil {
			if stock.Load() > ahead {
				select {
				case <-room:
				case <-ctx.Done():
				}
				continue
			}
			stock.Add(feedBatch)
			if !w.postBatch(ctx, batch, feedBatch, time.Time{}) {
				stock.Add(-feedBatch)
			}
		}
	}
	claimer := func(ctx context.Context, w *worker) {
		defer context.AfterFunc(ctx, w.interrupt)()
		for ctx.Err() == nil {
			leases, ok := w.claim(ctx, claim, longWait)
			if !ok || len(leases) == 0 {
				continue
			}
			if stock.Add(-1) <= ahead {
				select {
				case room <- struct{}{}:
				default:
				}
			}
			w.ack(ctx, leases[0])
		}
	}
	result, err := s.measure(ctx, trial{
		label: plural(n, "claimer"), server: srv, queue: queue,
		tasks:  append(repeat(n, claimer), repeat(w.Feeders, feeder)...),
		warmup: s.cfg.Warmup, duration: w.Duration, series: s.cfg.Plot != "",
	})
	if result != nil {
		result.x, result.axis = float64(n), "claimers"
	}
	return result, err
}

// idle measures what waiting claims cost while there is nothing to claim.
func (w *Claimers) idle(ctx context.Context, s *session, srv *server) (*Result, error) {
	queue := s.newQueue()
	result, err := s.measure(ctx, trial{
		label: fmt.Sprintf("%d waiting, nothing comes", w.Waiting), server: srv, queue: queue, tasks: repeat(w.Waiting, s.waits(srv, queue)),
		warmup: s.cfg.Warmup, duration: w.Duration,
	})
	if err != nil {
		return nil, err
	}
	result.idle(srv.db != nil)
	return result, nil
}

// waits has a claim wait for as long as it may, and then another.
func (s *session) waits(srv *server, queue string) task {
	claim := claimRequest(srv.at, queue, 1, "", longWait)
	return func(ctx context.Context, w *worker) {
		defer context.AfterFunc(ctx, w.interrupt)()
		for ctx.Err() == nil {
			w.claim(ctx, claim, longWait)
		}
	}
}

// idle restates costs per life, of which there were none, as costs per second.
func (r *Result) idle(hasDatabase bool) {
	r.Values["server_cpu_percent"] = r.CPU.ServerPerLife / 1e6 / r.Seconds * 100
	r.Values["client_cpu_percent"] = r.CPU.ClientPerLife / 1e6 / r.Seconds * 100
	r.Values["server_rss_mib"] = float64(r.CPU.ServerRSS) / (1 << 20)
	if hasDatabase {
		r.Values["commits_per_s"] = r.Database.CommitsPerLife / r.Seconds // a statement outside a transaction commits
		r.Values["wal_bytes_per_s"] = r.Database.WALPerLife / r.Seconds
	}
	r.Seconds, r.CPU, r.Database = 0, nil, nil
}

func maxOf(list []int) (most int) {
	for _, n := range list {
		most = max(most, n)
	}
	return most
}
