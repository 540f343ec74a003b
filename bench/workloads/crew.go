package workloads

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// crew is workers with their connections open.
type crew struct {
	server  *server
	meter   *meter
	ledger  *ledger
	workers []*worker
}

// hire opens the connections of n workers on a queue. The crew must be closed.
func hire(ctx context.Context, srv *server, queue string, n int, l *ledger) (*crew, error) {
	c := &crew{server: srv, meter: newMeter(n), ledger: l}
	for i := range n {
		w := newWorker(srv.at, queue, c.meter, i, l)
		if err := w.connect(ctx); err != nil {
			c.close()
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, n, err)
		}
		c.workers = append(c.workers, w)
	}
	return c, nil
}

func (c *crew) close() {
	for _, w := range c.workers {
		w.close()
	}
}

// sprint has every worker do something that ends by itself, and returns how long that took all of them.
func (c *crew) sprint(ctx context.Context, do func(ctx context.Context, w *worker)) (time.Duration, error) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-c.server.died():
			stop()
		case <-running.Done():
		}
	}()
	begin := time.Now()
	var group sync.WaitGroup
	for _, w := range c.workers {
		group.Go(func() { do(running, w) })
	}
	group.Wait()
	took := time.Since(begin)
	stop()
	<-watched
	if err := c.server.alive(); err != nil {
		return took, err
	}
	return took, ctx.Err()
}

// tickets are what the workers of a sprint share out.
type tickets struct{ left atomic.Int64 }

func newTickets(n int) *tickets {
	t := new(tickets)
	t.left.Store(int64(n))
	return t
}

// take returns how many of at most n there were left.
func (t *tickets) take(n int) int {
	return int(min(int64(n), max(0, t.left.Add(int64(-n))+int64(n))))
}

// holding is leases that are kept beyond the next request.
type holding struct {
	mu     sync.Mutex
	leases []lease
}

// keep copies leases.
func (h *holding) keep(leases []lease) {
	size := 0
	for _, l := range leases {
		size += len(l.receipt)
	}
	receipts := make([]byte, 0, size)
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range leases {
		from := len(receipts)
		receipts = append(receipts, l.receipt...)
		h.leases = append(h.leases, lease{id: l.id, receipt: receipts[from:len(receipts):len(receipts)]})
	}
}

// take removes up to n leases, which may be acked at leisure.
func (h *holding) take(n int) []lease {
	h.mu.Lock()
	defer h.mu.Unlock()
	n = min(n, len(h.leases))
	taken := h.leases[:n:n]
	h.leases = h.leases[n:]
	return taken
}

// claimAll shares out n events among the crew, by claims of up to limit, and keeps the leases. A claim that
// finds nothing is tried again as long as there should be something: other claims may just be passing over the same rows.
func (c *crew) claimAll(ctx context.Context, request func(limit int) []byte, limit, n int, kept *holding) (time.Duration, error) {
	const patience = 1000 // claims in a row without an event
	tickets := newTickets(n)
	whole := request(limit)
	return c.sprint(ctx, func(ctx context.Context, w *worker) {
		for want := tickets.take(limit); want > 0; want = tickets.take(limit) {
			for empty := 0; want > 0 && empty < patience && ctx.Err() == nil; {
				prepared := whole
				if want < limit {
					prepared = request(want)
				}
				leases, _ := w.claim(ctx, prepared, 0)
				kept.keep(leases)
				want -= len(leases)
				empty++
				if len(leases) > 0 {
					empty = 0
				}
			}
		}
	})
}

// ackAll finishes what is held, many at once, or each alone when size is 1.
func (c *crew) ackAll(ctx context.Context, held *holding, size int) (time.Duration, error) {
	return c.sprint(ctx, func(ctx context.Context, w *worker) {
		for leases := held.take(size); len(leases) > 0 && ctx.Err() == nil; leases = held.take(size) {
			if size == 1 {
				w.ack(ctx, leases[0])
			} else {
				w.ackBatch(ctx, leases)
			}
		}
	})
}

// postAll posts n events, size at a time.
func (c *crew) postAll(ctx context.Context, queue string, payload []byte, size, n int) (time.Duration, error) {
	tickets := newTickets(n)
	one := postRequest(c.server.at, queue, payload)
	many := batchRequest(c.server.at, queue, payload, size)
	return c.sprint(ctx, func(ctx context.Context, w *worker) {
		for want := tickets.take(size); want > 0 && ctx.Err() == nil; want = tickets.take(size) {
			switch {
			case size == 1:
				w.post(ctx, one, time.Time{})
			case want == size:
				w.postBatch(ctx, many, size, time.Time{})
			default:
				w.postBatch(ctx, batchRequest(c.server.at, queue, payload, want), want, time.Time{})
			}
		}
	})
}
