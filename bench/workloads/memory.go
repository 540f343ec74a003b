package workloads

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// Memory is what the server's resident memory grows to under several loads. Go gives memory back slowly, so each load
// gets a new server where servers are started; one that was given keeps what the loads before have left.
type Memory struct {
	Connections []int         `name:"connections" default:"64,256" sep:"," placeholder:"N" help:"How many clients live one life at a time; a list measures each."`
	Waiting     int           `name:"waiting" default:"10000" placeholder:"N" help:"How many claims wait on an empty queue; 0 leaves that out."`
	Large       int           `name:"large" default:"65536" placeholder:"BYTES" help:"The size of events in batches near the limits: posts of up to 8 MiB, claims of 1,000 events; 0 leaves that out."`
	Batches     int           `name:"batches" default:"4" placeholder:"N" help:"How many clients send such batches."`
	Duration    time.Duration `name:"duration" default:"10s" help:"How long each measurement takes, after the warm-up."`
}

func (*Memory) name() string { return "memory" }

func (w *Memory) check(Config) error {
	if err := checkList("--connections", w.Connections, 1, maxWorkers); err != nil {
		return err
	}
	if err := checkNumber("--waiting", w.Waiting, 0, maxWorkers); err != nil {
		return err
	}
	if w.Large != 0 {
		if err := checkNumber("--large", w.Large, minPayload, 1<<20); err != nil {
			return err
		}
	}
	if err := checkNumber("--batches", w.Batches, 1, 1000); err != nil {
		return err
	}
	if err := checkFiles(max(w.Waiting, maxOf(w.Connections))); err != nil {
		return err
	}
	return checkDuration("--duration", w.Duration)
}

func (w *Memory) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	_, rss, err := srv.serverUsage(ctx)
	if err != nil {
		return err
	}
	start := newResult("at the start")
	start.Values["server_rss_mib"] = float64(rss) / (1 << 20)
	s.report.add(start)
	for i, n := range w.Connections {
		if i > 0 {
			if srv, err = s.renew(ctx, srv); err != nil {
				return err
			}
		}
		queue := s.newQueue()
		if _, err := w.sample(ctx, s, trial{
			label: plural(n, "connection"), server: srv, queue: queue, tasks: repeat(n, s.singles(srv, queue, nil)),
		}); err != nil {
			return err
		}
	}
	if w.Waiting > 0 {
		if srv, err = s.renew(ctx, srv); err != nil {
			return err
		}
		queue := s.newQueue()
		result, err := w.sample(ctx, s, trial{
			label: fmt.Sprintf("%d waiting", w.Waiting), server: srv, queue: queue, tasks: repeat(w.Waiting, s.waits(srv, queue)),
		})
		if err != nil {
			return err
		}
		result.idle(srv.db != nil)
	}
	if w.Large > 0 {
		if srv, err = s.renew(ctx, srv); err != nil {
			return err
		}
		queue := s.newQueue()
		s.payload = newPayload(w.Large)
		if _, err := w.sample(ctx, s, trial{
			label: fmt.Sprintf("batches of %d B", w.Large), server: srv, queue: queue, tasks: repeat(w.Batches, w.large(s, srv, queue)),
		}); err != nil {
			return err
		}
	}
	return nil
}

// renew replaces a server that was started here by a new one, on a new database.
func (s *session) renew(ctx context.Context, srv *server) (*server, error) {
	if srv.child == nil {
		return srv, nil
	}
	if err := s.release(ctx, srv); err != nil {
		return nil, err
	}
	return s.serve(ctx)
}

// large posts as many events as go into one request, and as soon as there are 1,000 claims and acks them at once.
func (w *Memory) large(s *session, srv *server, queue string) task {
	size := max(1, min(maxBatch, (8<<20-1024)/(len(s.payload)+len(queue)+32)))
	post := batchRequest(srv.at, queue, s.payload, size)
	claim := claimRequest(srv.at, queue, maxBatch, "", 0)
	var stock atomic.Int64
	return func(ctx context.Context, w *worker) {
		for ctx.Err() == nil {
			if w.postBatch(ctx, post, size, time.Time{}) {
				stock.Add(int64(size))
			}
			if stock.Add(-maxBatch) < 0 { // another one may have been faster
				stock.Add(maxBatch)
				continue
			}
			leases, ok := w.claim(ctx, claim, 0)
			stock.Add(int64(maxBatch - len(leases)))
			if ok && len(leases) > 0 {
				w.ackBatch(ctx, leases)
			}
		}
	}
}

// rssInterval is how often a server's memory is looked at.
const rssInterval = 100 * time.Millisecond

// sample measures a trial and the most memory that the server had meanwhile.
func (w *Memory) sample(ctx context.Context, s *session, t trial) (*Result, error) {
	t.warmup, t.duration, t.series = s.cfg.Warmup, w.Duration, s.cfg.Plot != ""
	interval := rssInterval
	if t.server.child == nil {
		interval = time.Second // each look is a page that the server writes
	}
	var most atomic.Int64
	t.during = func(ctx context.Context) error {
		for pause(ctx, interval) {
			_, rss, err := t.server.serverUsage(ctx)
			if err != nil {
				return err
			}
			most.Store(max(most.Load(), rss))
		}
		return nil
	}
	result, err := s.measure(ctx, t)
	if err != nil {
		return nil, err
	}
	result.Values["server_rss_max_mib"] = float64(most.Load()) / (1 << 20)
	s.report.add(result)
	return result, nil
}
