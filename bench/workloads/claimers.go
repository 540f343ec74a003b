package workloads

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Claimers is many clients that claim with a wait from one queue, which others fill as fast as it is emptied; and the
// cost of many waiting claims while nothing comes.
type Claimers struct {
	Claimers []int         `default:"1,8,64,256,512,1024" placeholder:"N" help:"How many clients claim and ack; a list measures each."`
	Duration time.Duration `default:"10s" help:"How long each measurement takes, after the warm-up."`
	Feeders  int           `default:"2" placeholder:"N" help:"How many clients insert, 100 events at a time."`
	Waiting  int           `least:"0" default:"1024" placeholder:"N" help:"How many claims wait on an empty queue for the idle cost; 0 leaves that out."`
}

func (*Claimers) name() string { return "claimers" }

func (w *Claimers) check(Config) error {
	return enoughFiles(max(w.Waiting, slices.Max(w.Claimers)+w.Feeders))
}

// longWait is the longest that the server lets a claim wait.
const longWait = time.Minute

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
		s.add(result)
		best = max(best, result.EventsPerS)
	}
	if len(w.Claimers) > 1 {
		for i, n := range w.Claimers {
			s.compare(plural(n, "claimer")+" over the best", s.results[i].EventsPerS/best)
		}
	}
	if w.Waiting == 0 {
		return nil
	}
	// Sessions report their commits up to 10 s late (since PostgreSQL 15, when they turn idle), so those of the busy
	// time would be counted here: a database of its own has none of them, and a server that was given has to wait.
	if srv.process != nil {
		if srv, err = s.serve(ctx); err != nil {
			return err
		}
	} else if srv.db != nil {
		s.progress.show("waiting for the database to count what was done")
		load.Pause(ctx, 11*time.Second)
	}
	result, err := s.measure(ctx, measurement{
		label: fmt.Sprintf("%d waiting, nothing comes", w.Waiting), server: srv, clients: []clients{waits(w.Waiting)}, duration: w.Duration,
	})
	if err != nil {
		return err
	}
	restateAsIdle(result)
	s.add(result)
	return nil
}

// feed measures n claimers at full speed.
func (w *Claimers) feed(ctx context.Context, s *session, srv *server, n int) (*report.Result, error) {
	const batch = 100
	// The feeders stay ahead, by enough that no claimer waits for long and by so little that the backlog is shallow.
	var stock atomic.Int64
	ahead := int64(2*n + 10*batch)
	room := make(chan struct{}, 1)
	feeders := clients{w.Feeders, func(srv *server, queue string) cycle {
		insert := srv.target.InsertBatchRequest(queue, s.payload, batch)
		return func(ctx context.Context, c *load.Client) {
			if stock.Load() > ahead {
				select {
				case <-room:
				case <-ctx.Done():
				}
				return
			}
			stock.Add(batch)
			if _, ok := c.Insert(ctx, insert, time.Time{}); !ok {
				stock.Add(-batch)
			}
		}
	}}
	claimers := clients{n, func(srv *server, queue string) cycle {
		claim := srv.target.ClaimRequest(queue, 1, "", longWait)
		return func(ctx context.Context, c *load.Client) {
			leases, _ := c.Claim(ctx, claim)
			if len(leases) == 0 {
				return
			}
			if stock.Add(-1) <= ahead {
				select {
				case room <- struct{}{}:
				default:
				}
			}
			c.Ack(ctx, leases[0])
		}
	}}
	return s.measure(ctx, measurement{label: plural(n, "claimer"), server: srv, clients: []clients{claimers, feeders}, duration: w.Duration})
}

// waits are clients each of whose claims wait for as long as they may.
func waits(n int) clients {
	return clients{n, func(srv *server, queue string) cycle {
		claim := srv.target.ClaimRequest(queue, 1, "", longWait)
		return func(ctx context.Context, c *load.Client) {
			c.Claim(ctx, claim)
		}
	}}
}
