package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// comparison is claims on several databases that differ in one thing. Each variant has a database and a server process of
// its own: two queues in one table would share the parts to be compared. They take turns within each round, in changing
// order, so that other work of the machine hits all alike.
type comparison struct {
	*session
	connections int
	rounds      int
	claims      int // events that a turn claims one by one; in hundreds it is five times as many
	variants    []*variant
}

// variant is one database of a comparison.
type variant struct {
	label   string
	server  *server
	queue   string
	clients *load.Clients
	sql     []*pgx.Conn // one for each client
	samples map[string]*sample
	pages   map[string]load.Histogram // of /queues and /metrics
	errors  map[string]int64
}

// sample is the measurements of a variant in one mode, over all rounds.
type sample struct {
	counts *load.Counts
	took   time.Duration
	rates  []float64 // of each round
}

// claimMode is a way to claim.
type claimMode struct {
	name  string
	limit int
	order string
	sql   bool // agent.claim_event(), not HTTP
}

var claimModes = []claimMode{
	{name: "fifo", limit: 1, order: "fifo"},
	{name: "fifo_100", limit: 100, order: "fifo"},
	{name: "random", limit: 1, order: "random"},
	{name: "random_100", limit: 100, order: "random"},
	{name: "sql_claim_event", limit: 1, sql: true},
}

// addVariant makes a variant: a server on a new database that prepare puts into the state to be measured.
func (c *comparison) addVariant(ctx context.Context, label string, prepare func(v *variant) error) error {
	srv, err := c.serve(ctx)
	if err != nil {
		return err
	}
	v := &variant{
		label: label, server: srv, queue: c.newQueue(), samples: map[string]*sample{},
		pages: map[string]load.Histogram{"/queues": load.NewHistogram(), "/metrics": load.NewHistogram()}, errors: map[string]int64{},
	}
	if v.clients, err = load.Open(ctx, srv.target, v.queue, c.connections, load.NewAccount()); err != nil {
		return err
	}
	c.variants = append(c.variants, v)
	for range c.connections {
		conn, err := srv.db.connect(ctx)
		if err != nil {
			return err
		}
		v.sql = append(v.sql, conn)
	}
	if _, err := srv.db.conn.Exec(ctx, vacuumOffStatement); err != nil {
		return fmt.Errorf("turning autovacuum off: %w", err)
	}
	return prepare(v)
}

// run measures the variants and reports each, with ratios to the first.
func (c *comparison) run(ctx context.Context) error {
	c.progress.show("writing out what was loaded")
	for _, v := range c.variants {
		// Else it would be written during the first turns, and the variant that has more would pay for it. Not every
		// user may ask for this; then the rounds have to even it out.
		_, _ = v.server.db.conn.Exec(ctx, checkpointStatement)
	}
	for _, mode := range claimModes {
		for round := range c.rounds + 1 {
			order := slices.Clone(c.variants)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, v := range order {
				c.progress.show("%s, %s: round %d of %d", mode.name, v.label, round, c.rounds)
				if err := c.turn(ctx, v, mode, round > 0); err != nil { // round 0 warms up
					return fmt.Errorf("%s, %s: %w", mode.name, v.label, err)
				}
			}
		}
	}
	for round := range c.rounds + 1 {
		for _, v := range c.variants {
			if err := v.timePages(ctx, round > 0); err != nil {
				return err
			}
		}
	}
	for _, v := range c.variants {
		if err := c.conclude(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// turn claims as many events as were put in just before, so that the backlog stays.
func (c *comparison) turn(ctx context.Context, v *variant, mode claimMode, counts bool) error {
	n := c.claims
	if mode.limit > 1 {
		n *= 5
	}
	if err := c.load(ctx, v.server, readyStatement, v.queue, n, v.clients.Account); err != nil {
		return err
	}
	v.clients.Meter.Take()
	var leases load.Leases
	var took time.Duration
	var err error
	if mode.sql {
		took, err = v.claimInSQL(ctx, n, &leases)
	} else {
		took, err = v.clients.ClaimAll(ctx, mode.limit, mode.order, n, &leases)
	}
	if err != nil {
		return err
	}
	if counts {
		if v.samples[mode.name] == nil {
			v.samples[mode.name] = &sample{counts: load.NewCounts()}
		}
		sample, claimed := v.samples[mode.name], v.clients.Meter.Take()
		sample.took += took
		sample.rates = append(sample.rates, float64(claimed.Events[load.Claim])/took.Seconds())
		sample.counts.Add(claimed)
	}
	_, err = v.clients.AckAll(ctx, &leases, maxBatch)
	return err
}

// claimInSQL claims n events one by one with agent.claim_event(), over as many sessions as there are connections.
func (v *variant) claimInSQL(ctx context.Context, n int, leases *load.Leases) (time.Duration, error) {
	quota := load.NewQuota(n)
	var mu sync.Mutex
	var failure error
	free := slices.Clone(v.sql)
	took, err := v.clients.RunAll(ctx, func(c *load.Client) {
		mu.Lock()
		conn := free[len(free)-1]
		free = free[:len(free)-1]
		mu.Unlock()
		for quota.Take(1) == 1 && ctx.Err() == nil {
			var l load.Lease
			begin := time.Now()
			if err := conn.QueryRow(ctx, claimOneStatement, v.queue).Scan(&l.ID, &l.Receipt); err != nil {
				mu.Lock()
				failure = fmt.Errorf("agent.claim_event: %w", err)
				mu.Unlock()
				return
			}
			c.Add(load.Claim, time.Since(begin), 1)
			v.clients.Account.Claimed(l.ID)
			leases.Add(l)
		}
	})
	return took, errors.Join(err, failure)
}

// timePages times the pages that count the events.
func (v *variant) timePages(ctx context.Context, counts bool) error {
	for path, times := range v.pages {
		begin := time.Now()
		_, err := v.server.target.Get(ctx, path)
		var status *load.StatusError
		switch {
		case errors.As(err, &status): // counting took longer than the server allows, which is a finding, too
			v.errors[err.Error()]++
		case err != nil:
			return err
		}
		if counts {
			times.Add(time.Since(begin))
		}
	}
	return nil
}

// conclude reports a variant and accounts for its events.
func (c *comparison) conclude(ctx context.Context, v *variant) error {
	first := c.variants[0]
	for _, mode := range claimModes {
		sample := v.samples[mode.name]
		claimed := float64(sample.counts.Events[load.Claim])
		c.add(&report.Result{
			Label: v.label + ", " + mode.name, Latency: latencies(sample.counts),
			Errors: sample.counts.Errors, EmptyClaims: sample.counts.EmptyClaims,
			Values: map[string]float64{"claims_per_s": claimed / sample.took.Seconds(), "claimed": claimed},
		})
		if v != first {
			// The median of the rounds' ratios, so that a round which something else disturbed does not decide.
			ratios := make([]float64, len(sample.rates))
			for i := range ratios {
				ratios[i] = sample.rates[i] / first.samples[mode.name].rates[i]
			}
			c.compare(fmt.Sprintf("%s: %s over %s", mode.name, v.label, first.label), report.Median(ratios))
		}
	}
	result := &report.Result{Label: v.label, Latency: map[string]load.Latency{}, Errors: v.errors}
	for path, times := range v.pages {
		l := times.Latency()
		result.Latency["GET "+path] = l
		if v != first {
			c.compare(fmt.Sprintf("GET %s: %s over %s", path, v.label, first.label), l.P50/first.pages[path].Latency().P50)
		}
	}
	var existing int64
	if err := v.server.db.conn.QueryRow(ctx, countStatement).Scan(&existing); err != nil {
		return err
	}
	balance := v.clients.Account.BalanceOf(existing)
	result.Balance = &balance
	c.add(result)
	return nil
}

// close ends the connections.
func (c *comparison) close(ctx context.Context) {
	for _, v := range c.variants {
		v.clients.Close()
		for _, conn := range v.sql {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}
}
