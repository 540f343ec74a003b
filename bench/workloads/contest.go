package workloads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// contest is claims on several databases that differ in one thing. Each side has a database and a server process of
// its own: two queues in one table would share what is to be compared. They take turns within each round, in changing
// order, so that what else the machine does hits all alike.
type contest struct {
	*session
	sides       []*side
	connections int
	rounds      int
	claims      int // events that a turn claims, over HTTP one by one; in hundreds it is five times as many
}

// side is one database of a contest.
type side struct {
	label  string
	server *server
	queue  string
	ledger *ledger
	crew   *crew
	sql    []*pgx.Conn
	heats  map[string]*heat
	x      float64           // what the sides differ in, for charts
	looks  map[string]*tally // of /queues and /metrics
}

// heat is what a side did in one discipline, over all rounds.
type heat struct {
	tally *tally
	took  time.Duration
	rates []float64 // of each round
}

// discipline is a way to claim.
type discipline struct {
	name  string
	limit int
	order string
	sql   bool // agent.claim_event(), not HTTP
}

func disciplines() []discipline {
	return []discipline{
		{name: "fifo", limit: 1, order: "fifo"},
		{name: "fifo_100", limit: 100, order: "fifo"},
		{name: "random", limit: 1, order: "random"},
		{name: "random_100", limit: 100, order: "random"},
		{name: "sql_claim_event", limit: 1, sql: true},
	}
}

// enter makes a side: a server on a new database that prepare puts into the state to be measured.
func (c *contest) enter(ctx context.Context, label string, prepare func(ctx context.Context, s *side) error) error {
	srv, err := c.serve(ctx)
	if err != nil {
		return err
	}
	s := &side{
		label: label, server: srv, queue: c.newQueue(), ledger: newLedger(), heats: map[string]*heat{}, looks: map[string]*tally{},
	}
	if _, err := srv.db.conn.Exec(ctx, vacuumOffStatement); err != nil {
		return fmt.Errorf("turning autovacuum off: %w", err)
	}
	if err := prepare(ctx, s); err != nil {
		return err
	}
	if s.crew, err = hire(ctx, srv, s.queue, c.connections, s.ledger); err != nil {
		return err
	}
	c.sides = append(c.sides, s)
	for range c.connections {
		conn, err := srv.db.connect(ctx)
		if err != nil {
			return err
		}
		s.sql = append(s.sql, conn)
	}
	return nil
}

// run lets the sides compete and reports each, with ratios to the first.
func (c *contest) run(ctx context.Context, which []discipline, bar float64) error {
	c.progress.say("writing out what was loaded")
	for _, s := range c.sides {
		// Else it would be written during the first turns, and the side that has more would pay for it. Not every
		// user may ask for this; then the rounds have to even it out.
		_, _ = s.server.db.conn.Exec(ctx, checkpointStatement)
	}
	for _, d := range which {
		for round := range c.rounds + 1 {
			sides := slices.Clone(c.sides)
			if round%2 == 1 {
				slices.Reverse(sides)
			}
			for _, s := range sides {
				c.progress.say("%s, %s: round %d of %d", d.name, s.label, round, c.rounds)
				if err := c.turn(ctx, s, d, round > 0); err != nil { // round 0 warms up
					return fmt.Errorf("%s, %s: %w", d.name, s.label, err)
				}
			}
		}
	}
	for round := range c.rounds + 1 {
		for _, s := range c.sides {
			if err := s.look(ctx, round > 0); err != nil {
				return err
			}
		}
	}
	for _, s := range c.sides {
		if err := c.conclude(ctx, s, which, bar); err != nil {
			return err
		}
	}
	return nil
}

// turn claims as many events as were put in just before, so that what was there stays.
func (c *contest) turn(ctx context.Context, s *side, d discipline, counts bool) error {
	n := c.claims
	if d.limit > 1 {
		n *= 5
	}
	if err := c.load(ctx, s.server, readyStatement, s.queue, n, s.ledger); err != nil {
		return err
	}
	s.crew.meter.take()
	var held holding
	var took time.Duration
	var err error
	if d.sql {
		took, err = s.claimSQL(ctx, n, &held)
	} else {
		request := func(limit int) []byte { return claimRequest(s.server.at, s.queue, limit, d.order, 0) }
		took, err = s.crew.claimAll(ctx, request, d.limit, n, &held)
	}
	if err != nil {
		return err
	}
	if counts {
		h := s.heats[d.name]
		if h == nil {
			h = &heat{tally: newTally()}
			s.heats[d.name] = h
		}
		t := s.crew.meter.take()
		h.took += took
		h.rates = append(h.rates, float64(t.events[claiming])/took.Seconds())
		h.tally.add(t)
	}
	_, err = s.crew.ackAll(ctx, &held, maxBatch)
	return err
}

// claimSQL claims n events one by one with agent.claim_event(), over as many sessions as there are connections.
func (s *side) claimSQL(ctx context.Context, n int, held *holding) (time.Duration, error) {
	tickets := newTickets(n)
	var mu sync.Mutex
	var failure error
	free := slices.Clone(s.sql)
	took, err := s.crew.sprint(ctx, func(ctx context.Context, w *worker) {
		mu.Lock()
		conn := free[len(free)-1]
		free = free[:len(free)-1]
		mu.Unlock()
		for tickets.take(1) == 1 && ctx.Err() == nil {
			var l lease
			begin := time.Now()
			err := conn.QueryRow(ctx, claimOneStatement, s.queue).Scan(&l.id, &l.receipt)
			if err != nil {
				mu.Lock()
				failure = err
				mu.Unlock()
				return
			}
			w.shard.done(claiming, time.Since(begin), 1)
			s.ledger.claim(l.id)
			held.keep([]lease{l})
		}
	})
	if err == nil && failure != nil {
		err = fmt.Errorf("agent.claim_event: %w", failure)
	}
	return took, err
}

// look times the pages that count what is there.
func (s *side) look(ctx context.Context, counts bool) error {
	for _, path := range []string{"/queues", "/metrics"} {
		begin := time.Now()
		_, err := s.server.get(ctx, path)
		took := time.Since(begin)
		if s.looks[path] == nil {
			s.looks[path] = newTally()
		}
		var refused *statusError
		switch {
		case errors.As(err, &refused): // counting took longer than the server allows, which is a finding, too
			s.looks[path].errors[err.Error()]++
		case err != nil:
			return err
		}
		if counts {
			_ = s.looks[path].lag.RecordValue(took.Microseconds())
		}
	}
	return nil
}

// conclude reports a side and accounts for its events.
func (c *contest) conclude(ctx context.Context, s *side, which []discipline, bar float64) error {
	first := c.sides[0]
	for _, d := range which {
		h := s.heats[d.name]
		result := newResult(s.label + ", " + d.name)
		claimed := h.tally.events[claiming]
		result.Latency = map[string]Latency{"claim": latencyOf(h.tally.latency[claiming])}
		result.Values["claims_per_s"] = h.rate()
		result.Values["claimed"] = float64(claimed)
		result.x, result.axis, result.line = s.x, "events waiting", d.name
		result.Errors, result.EmptyClaims = h.tally.errors, h.tally.empty
		c.report.add(result)
		if s != first {
			c.report.atLeast(fmt.Sprintf("%s: %s over %s", d.name, s.label, first.label), h.over(first.heats[d.name]), bar)
		}
	}
	result := newResult(s.label)
	result.Latency, result.Errors = map[string]Latency{}, map[string]int64{}
	for path, t := range s.looks {
		maps.Copy(result.Errors, t.errors)
		l := latencyOf(t.lag)
		result.Latency["GET "+path] = l
		if s != first {
			c.report.compare(fmt.Sprintf("GET %s: %s over %s", path, s.label, first.label), l.P50/latencyOf(first.looks[path].lag).P50)
		}
	}
	var remaining int64
	if err := s.server.db.conn.QueryRow(ctx, countStatement).Scan(&remaining); err != nil {
		return err
	}
	account := s.ledger.count(remaining)
	result.Account = &account
	c.report.add(result)
	return nil
}

func (h *heat) rate() float64 { return float64(h.tally.events[claiming]) / h.took.Seconds() }

// over is the rate by the other's: the median of the rounds' ratios, so that a round which something else disturbed
// does not decide.
func (h *heat) over(other *heat) float64 {
	ratios := make([]float64, len(h.rates))
	for i := range ratios {
		ratios[i] = h.rates[i] / other.rates[i]
	}
	return median(ratios)
}

// close ends the sides and their servers.
func (c *contest) close(ctx context.Context) {
	for _, s := range c.sides {
		s.crew.close()
		for _, conn := range s.sql {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}
}
