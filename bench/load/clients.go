package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Clients are clients of one queue with a meter and an account in common.
type Clients struct {
	Meter   *Meter
	Account *Account
	All     []*Client
	target  *Target
	queue   string
}

// Open connects n clients to a queue. They must be closed.
func Open(ctx context.Context, t *Target, queue string, n int, a *Account) (*Clients, error) {
	c := &Clients{Meter: newMeter(n), Account: a, target: t, queue: queue}
	for i := range n {
		client := &Client{target: t, queue: queue, shard: c.Meter.shards[i%len(c.Meter.shards)], account: a}
		if err := client.connect(ctx); err != nil {
			c.Close()
			return nil, fmt.Errorf("connection %d of %d: %w", i+1, n, err)
		}
		c.All = append(c.All, client)
	}
	return c, nil
}

// Close closes the connections. The clients must not be in use.
func (c *Clients) Close() {
	for _, client := range c.All {
		client.close()
	}
}

// Work has every client run the same again and again until stop is called, which returns when all have ended.
func (c *Clients) Work(ctx context.Context, run func(ctx context.Context, client *Client)) (stop func()) {
	working, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for _, client := range c.All {
		group.Go(func() {
			for working.Err() == nil {
				run(working, client)
			}
		})
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// RunAll has every client run something that ends by itself, and returns how long that took all of them.
func (c *Clients) RunAll(ctx context.Context, run func(client *Client)) (time.Duration, error) {
	begin := time.Now()
	var group sync.WaitGroup
	for _, client := range c.All {
		group.Go(func() { run(client) })
	}
	group.Wait()
	return time.Since(begin), ctx.Err()
}

// Quota is a number that clients share out among them.
type Quota struct{ left atomic.Int64 }

// NewQuota makes a quota of n.
func NewQuota(n int) *Quota {
	q := new(Quota)
	q.left.Store(int64(n))
	return q
}

// Take returns how many of at most n there were left.
func (q *Quota) Take(n int) int { return int(min(int64(n), max(0, q.left.Add(int64(-n))+int64(n)))) }

// Leases are leases that are kept beyond a client's next request. They are safe for concurrent use.
type Leases struct {
	mu  sync.Mutex
	all []Lease
}

// Add adds copies of leases.
func (l *Leases) Add(leases ...Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, lease := range leases {
		l.all = append(l.all, Lease{ID: lease.ID, Receipt: append([]byte(nil), lease.Receipt...)})
	}
}

// Take removes up to n leases.
func (l *Leases) Take(n int) []Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	n = min(n, len(l.all))
	taken := l.all[:n:n]
	l.all = l.all[n:]
	return taken
}

// InsertAll inserts n events, size at a time.
func (c *Clients) InsertAll(ctx context.Context, payload []byte, size, n int) (time.Duration, error) {
	request := func(n int) InsertRequest {
		if size == 1 {
			return c.target.InsertRequest(c.queue, payload)
		}
		return c.target.InsertBatchRequest(c.queue, payload, n)
	}
	quota, whole := NewQuota(n), request(size)
	return c.RunAll(ctx, func(client *Client) {
		for want := quota.Take(size); want > 0 && ctx.Err() == nil; want = quota.Take(size) {
			prepared := whole
			if want < size {
				prepared = request(want)
			}
			client.Insert(ctx, prepared, time.Time{})
		}
	})
}

// ClaimAll claims n events, up to limit at a time in an order, and keeps the leases. A claim that
// finds nothing is tried again as long as there should be something: other claims may just have locked the same rows.
func (c *Clients) ClaimAll(ctx context.Context, limit int, order string, n int, kept *Leases) (time.Duration, error) {
	const maxEmpty = 1000 // claims in a row without an event
	quota, whole := NewQuota(n), c.target.ClaimRequest(c.queue, limit, order, 0)
	return c.RunAll(ctx, func(client *Client) {
		for want := quota.Take(limit); want > 0; want = quota.Take(limit) {
			for empty := 0; want > 0 && empty < maxEmpty && ctx.Err() == nil; empty++ {
				prepared := whole
				if want < limit {
					prepared = c.target.ClaimRequest(c.queue, want, order, 0)
				}
				if leases, _ := client.Claim(ctx, prepared); len(leases) > 0 {
					kept.Add(leases...)
					want -= len(leases)
					empty = -1
				}
			}
		}
	})
}

// AckAll acks all leases, size at a time.
func (c *Clients) AckAll(ctx context.Context, leases *Leases, size int) (time.Duration, error) {
	return c.RunAll(ctx, func(client *Client) {
		for some := leases.Take(size); len(some) > 0 && ctx.Err() == nil; some = leases.Take(size) {
			if size == 1 {
				client.Ack(ctx, some[0])
			} else {
				client.AckBatch(ctx, some)
			}
		}
	})
}

// Drain claims and acks the events left in a queue, and adds up all its events.
func Drain(ctx context.Context, t *Target, queue string, a *Account) (Balance, error) {
	const maxFailures = 10
	clients, err := Open(ctx, t, queue, 1, a)
	if err != nil {
		return Balance{}, err
	}
	defer clients.Close()
	client, claim := clients.All[0], t.ClaimRequest(queue, 1000, "", 0)
	for failures := 0; ; {
		if err := ctx.Err(); err != nil {
			return Balance{}, err
		}
		leases, ok := client.Claim(ctx, claim)
		if ok && len(leases) > 0 {
			ok = client.AckBatch(ctx, leases)
		} else if ok {
			break
		}
		if !ok {
			if failures++; failures > maxFailures {
				return Balance{}, fmt.Errorf("the rest of the queue %s cannot be claimed and acked: %v", queue, clients.Meter.Take().Errors)
			}
		}
	}
	return a.Balance(func(id int64) (bool, error) {
		_, err := t.Get(ctx, fmt.Sprintf("/events/%d", id))
		var status *StatusError
		if errors.As(err, &status) && status.Status == 404 {
			return false, nil
		}
		return err == nil, err
	})
}
