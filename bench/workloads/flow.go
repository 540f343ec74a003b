package workloads

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Flow is what limits of groups cost: events of many groups beside events of none, one group that is in order, whose workers wait for each other, and a steady load of groups beside
// a session that holds an old snapshot. Each part has queues of its own on one server.
type Flow struct {
	Connections int           `default:"4" most:"1000" placeholder:"N" help:"How many clients take batches from insert to ack."`
	Batch       int           `default:"100" most:"1000" placeholder:"N" help:"Events in each request."`
	Groups      int           `default:"1000" placeholder:"N" help:"How many groups there are."`
	Waiting     int           `default:"1000000" least:"0" most:"100000000" placeholder:"N" help:"How many events wait in one more group, which is full."`
	Rounds      int           `default:"5" placeholder:"N" help:"How many turns each load gets."`
	Duration    time.Duration `default:"10s" help:"How long each load is measured, all turns together."`
	Posters     int           `default:"4" placeholder:"N" help:"How many clients insert into one group."`
	Workers     int           `default:"8" placeholder:"N" help:"How many clients work on one group."`
	Handovers   int           `default:"200" placeholder:"N" help:"How often a worker goes on with a group from another one."`
	Rate        float64       `default:"500" placeholder:"N" help:"Events inserted a second beside the snapshot, as planned."`
	Before      time.Duration `default:"60s" help:"How long to measure before the snapshot."`
	Hold        time.Duration `default:"10m" least:"0" help:"How long the snapshot is held; 0s leaves that part out."`
}

func (*Flow) name() string { return "flow" }

func (w *Flow) check(cfg Config) error {
	var invalid error
	if w.Groups < w.Batch {
		invalid = Invalidf("--groups: got %d; expected at least as many as the events of a batch, %d", w.Groups, w.Batch)
	}
	return errors.Join(invalid, needOwnServers(cfg))
}

// slots is the concurrency of the groups.
const slots = 5

// noLimits is the flow of a queue without limits.
const noLimits = "null"

// groupNames are the names of n groups.
func groupNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("g%d", i)
	}
	return names
}

// A flowLoad is batches of one kind of events, on a queue of its own.
type flowLoad struct {
	*turns
	queue, flow string
	isGrouped   bool
	waiting     int // events that wait in a full group
	clients     *load.Clients
}

func (w *Flow) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	for _, part := range []func(context.Context, *session, *server) error{w.lives, w.hot, w.posts, w.handOver, w.held} {
		if err := part(ctx, s, srv); err != nil {
			return err
		}
	}
	return nil
}

// lives measures what the events of groups take from insert to ack, beside those of none.
func (w *Flow) lives(ctx context.Context, s *session, srv *server) error {
	concurrency := fmt.Sprintf(`{"concurrency":%d}`, slots)
	loads := []*flowLoad{
		{turns: newTurns("no group"), flow: noLimits},
		{turns: newTurns("groups without limits"), flow: noLimits, isGrouped: true},
		{turns: newTurns("concurrency"), flow: concurrency, isGrouped: true},
		{turns: newTurns("order"), flow: `{"order":true}`, isGrouped: true},
		{turns: newTurns("rate"), flow: `{"rate":{"limit":10000,"period":"1s","burst":1000}}`, isGrouped: true},
		{turns: newTurns("turns"), flow: `{"fair":true}`, isGrouped: true},
	}
	if w.Waiting > 0 {
		loads = append(loads, &flowLoad{turns: newTurns(fmt.Sprintf("concurrency beside %d waiting", w.Waiting)), flow: concurrency, isGrouped: true, waiting: w.Waiting})
	}
	for _, l := range loads {
		l.queue = s.newQueue()
		if err := srv.target.Limit(ctx, l.queue, l.flow); err != nil {
			return err
		}
		if err := s.fillGroup(ctx, srv, l.queue, l.waiting); err != nil {
			return err
		}
		var err error
		if l.clients, err = load.Open(ctx, srv.target, l.queue, w.Connections, load.NewAccount()); err != nil {
			return err
		}
		defer l.clients.Close()
	}
	err := w.inTurns(len(loads), func(i int, counts bool) error {
		l := loads[i]
		s.progress.show("%s", l.label)
		return w.turn(ctx, s, srv, l.turns, l.clients, w.batches(s, srv, l), counts)
	})
	if err != nil {
		return err
	}
	plain := loads[0]
	for i, l := range loads {
		result := l.result(true)
		if result.Balance, err = s.drain(ctx, srv, l.queue, l.clients.Account); err != nil {
			return err
		}
		s.add(result)
		if i > 0 {
			s.compare(l.label+": processor time over no group", l.servingCost()/plain.servingCost())
		}
		if l.waiting > 0 {
			s.compare("rate beside those that wait over that without", l.over(loads[2].turns))
		}
	}
	return nil
}

// servingCost is the processor time that an event takes at the server and PostgreSQL, in microseconds.
func (t *turns) servingCost() float64 {
	return float64((t.spent.server + t.sql).Microseconds()) / float64(max(t.events, 1))
}

// fillGroup has n events wait in a group that is full of leases.
func (s *session) fillGroup(ctx context.Context, srv *server, queue string, n int) error {
	if n == 0 {
		return nil
	}
	if err := s.load(ctx, srv, groupStatement, queue, n, load.NewAccount()); err != nil {
		return err
	}
	return srv.leaseAll(ctx, queue, min(n, slots))
}

// batches are clients that take events by the batch from insert to ack, each batch of other groups than the one before.
func (w *Flow) batches(s *session, srv *server, l *flowLoad) cycle {
	inserts := []load.InsertRequest{srv.target.InsertBatchRequest(l.queue, s.payload, w.Batch)}
	if l.isGrouped {
		inserts = inserts[:0]
		for batch := range slices.Chunk(groupNames(w.Groups/w.Batch*w.Batch), w.Batch) {
			inserts = append(inserts, srv.target.InsertOfGroupsRequest(l.queue, batch, s.payload))
		}
	}
	claim := srv.target.ClaimRequest(l.queue, w.Batch, "", 0)
	var next atomic.Int64
	return func(ctx context.Context, c *load.Client) {
		begin := time.Now()
		if _, ok := c.Insert(ctx, inserts[int(next.Add(1))%len(inserts)], begin); !ok {
			return
		}
		if leases, _ := c.Claim(ctx, claim); len(leases) > 0 && c.AckBatch(ctx, leases) {
			c.Add(load.EndToEnd, time.Since(begin), len(leases))
		}
	}
}

// inTurns runs n loads in turns, every other time in the reverse order. The first round does not count: it warms up.
func (w *Flow) inTurns(n int, turn func(i int, counts bool) error) error {
	for round := range w.Rounds + 1 {
		for i := range n {
			if round%2 == 1 {
				i = n - 1 - i
			}
			if err := turn(i, round > 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn has clients work for a while. What they ack counts.
func (w *Flow) turn(ctx context.Context, s *session, srv *server, t *turns, clients *load.Clients, run cycle, counts bool) error {
	reader, duration := newTurnReader(srv), w.Duration/time.Duration(w.Rounds)
	stop := clients.Work(ctx, run)
	defer stop()
	if !load.Pause(ctx, min(s.cfg.Warmup, duration/4)) {
		return ctx.Err()
	}
	clients.Meter.Take()
	before, err := reader.read(ctx)
	if err != nil {
		return err
	}
	if !load.Pause(ctx, duration) {
		return ctx.Err()
	}
	sent := clients.Meter.Take()
	after, err := reader.read(ctx)
	if err == nil && counts {
		t.add(sent, sent.Events[load.Ack], before, after)
	}
	return err
}

// hot measures how fast several workers get through one group that is in order, beside one worker that takes as many events one after the other from a queue without groups.
func (w *Flow) hot(ctx context.Context, s *session, srv *server) error {
	const mostPerS = 10_000 // more than one worker can do
	events := int(mostPerS*w.Duration.Seconds()*2) + mostPerS
	sides := []*flowLoad{{turns: newTurns("one worker, no group"), flow: noLimits}, {turns: newTurns("one group in order, " + plural(w.Workers, "worker")), flow: `{"order":true}`, isGrouped: true}}
	for _, l := range sides {
		l.queue = s.newQueue()
		if err := srv.target.Limit(ctx, l.queue, l.flow); err != nil {
			return err
		}
		workers, statement := 1, readyStatement
		if l.isGrouped {
			workers, statement = w.Workers, groupStatement
		}
		var err error
		if l.clients, err = load.Open(ctx, srv.target, l.queue, workers, load.NewAccount()); err != nil {
			return err
		}
		defer l.clients.Close()
		if err := s.load(ctx, srv, statement, l.queue, events, l.clients.Account); err != nil {
			return err
		}
	}
	err := w.inTurns(len(sides), func(i int, counts bool) error {
		l := sides[i]
		s.progress.show("%s", l.label)
		return w.turn(ctx, s, srv, l.turns, l.clients, workOn(srv, l.queue), counts)
	})
	if err != nil {
		return err
	}
	s.compare("one group in order over one worker", sides[1].over(sides[0].turns))
	for _, l := range sides {
		if err := w.finish(ctx, s, srv, l.queue, l.clients.Account, l.result(true)); err != nil {
			return err
		}
	}
	return nil
}

// finish adds a result with the balance of its queue, whose limits end first: its events are many, and claimed by one client.
func (*Flow) finish(ctx context.Context, s *session, srv *server, queue string, a *load.Account, result *report.Result) (err error) {
	if err := srv.target.Limit(ctx, queue, noLimits); err != nil {
		return err
	}
	result.Balance, err = s.drain(ctx, srv, queue, a)
	s.add(result)
	return err
}

// workOn is a client that claims events one by one, waiting for them, and acks them. It ends with a whole cycle: the lease of a claim that is cut off may stay, and stop a group.
func workOn(srv *server, queue string) cycle {
	claim := srv.target.ClaimRequest(queue, 1, "", time.Second)
	return func(ctx context.Context, c *load.Client) {
		ctx = context.WithoutCancel(ctx)
		if leases, _ := c.Claim(ctx, claim); len(leases) > 0 {
			c.Ack(ctx, leases[0])
		}
	}
}

// posts measures several clients that insert into one group, beside workers: none must be kept waiting for the others.
func (w *Flow) posts(ctx context.Context, s *session, srv *server) error {
	queue := s.newQueue()
	if err := srv.target.Limit(ctx, queue, fmt.Sprintf(`{"concurrency":%d}`, slots)); err != nil {
		return err
	}
	clients, err := load.Open(ctx, srv.target, queue, w.Posters+w.Workers, load.NewAccount())
	if err != nil {
		return err
	}
	defer clients.Close()
	insert, work := srv.target.InsertOfGroupRequest(queue, "hot", s.payload), workOn(srv, queue)
	posted := make(map[*load.Client]*atomic.Int64, w.Posters)
	for _, c := range clients.All[:w.Posters] {
		posted[c] = new(atomic.Int64)
	}
	t := newTurns(fmt.Sprintf("one group, %s", plural(w.Posters, "poster")))
	if err := w.turn(ctx, s, srv, t, clients, func(ctx context.Context, c *load.Client) {
		if n := posted[c]; n == nil {
			work(ctx, c)
		} else if _, ok := c.Insert(ctx, insert, time.Time{}); ok {
			n.Add(1)
		}
	}, true); err != nil {
		return err
	}
	var counts []int64
	for _, n := range posted {
		counts = append(counts, n.Load())
	}
	result := t.result(true)
	result.Values["posted_least"], result.Values["posted_most"] = float64(slices.Min(counts)), float64(slices.Max(counts))
	s.compare("least over most that a poster of one group has inserted", float64(slices.Min(counts))/float64(max(slices.Max(counts), 1)))
	return w.finish(ctx, s, srv, queue, clients.Account, result)
}

// handOver measures how soon a worker gets the next event of a group in order when another one acks: from the sending of the ack to the response of the claim that waits, in the
// same process and in another one, beside a bare commit.
func (w *Flow) handOver(ctx context.Context, s *session, srv *server) error {
	second, err := s.startSecond(ctx, srv)
	if err != nil {
		return err
	}
	commit := load.NewHistogram()
	conn := srv.db.conn
	if _, err := conn.Exec(ctx, likeStatement); err != nil {
		return fmt.Errorf("a table to time a commit on: %w", err)
	}
	for range w.Handovers {
		began := time.Now()
		if _, err := conn.Exec(ctx, likeInsert, string(s.payload), "bench"); err != nil {
			return err
		}
		commit.Add(time.Since(began))
	}
	bare := commit.Latency()
	s.add(&report.Result{Label: "bare commit", Latency: map[string]load.Latency{"commit": bare}})
	for _, side := range []struct {
		label string
		other *server
	}{{"hand-over in one process", srv}, {"hand-over between two processes", second}} {
		s.progress.show("%s", side.label)
		times, acks, queue, account, err := w.handOvers(ctx, s, srv, side.other)
		if err != nil {
			return fmt.Errorf("%s: %w", side.label, err)
		}
		latency, acked := times.Latency(), acks.Latency()
		s.compare(side.label+", p50 over a commit", latency.P50/bare.P50)
		s.compare(side.label+", p50 over its ack", latency.P50/acked.P50)
		if err := w.finish(ctx, s, srv, queue, account, &report.Result{Label: side.label, Latency: map[string]load.Latency{"ack": acked, "ack to claim": latency}}); err != nil {
			return err
		}
	}
	return nil
}

// handOvers has two workers, one at each of two servers, work on a group in turns: each claims again once the other one has an event. It returns how long a worker waits for its event, from the sending of the other one's
// ack on, and how long the acks take.
func (w *Flow) handOvers(ctx context.Context, s *session, first, second *server) (times, acks load.Histogram, queue string, account *load.Account, err error) {
	const warmups = 5
	queue, account, times, acks = s.newQueue(), load.NewAccount(), load.NewHistogram(), load.NewHistogram()
	fail := func(err error) (load.Histogram, load.Histogram, string, *load.Account, error) {
		return times, acks, queue, account, err
	}
	if err := first.target.Limit(ctx, queue, `{"order":true}`); err != nil {
		return fail(err)
	}
	if err := s.load(ctx, first, groupStatement, queue, w.Handovers+warmups+1, account); err != nil {
		return fail(err)
	}
	var workers [2]*load.Client
	var claims [2]load.ClaimRequest
	for i, srv := range []*server{first, second} {
		clients, err := load.Open(ctx, srv.target, queue, 1, account)
		if err != nil {
			return fail(err)
		}
		defer clients.Close()
		workers[i], claims[i] = clients.All[0], srv.target.ClaimRequest(queue, 1, "", longWait)
	}
	leases, _ := workers[0].Claim(ctx, claims[0])
	for n := range w.Handovers + warmups {
		if len(leases) != 1 {
			return fail(fmt.Errorf("a claim got %d events of a group in order, want the next one", len(leases)))
		}
		from, to := workers[n%2], workers[(n+1)%2]
		var got []load.Lease
		var at time.Time
		var claiming sync.WaitGroup
		claiming.Go(func() {
			got, _ = to.Claim(ctx, claims[(n+1)%2])
			at = time.Now()
		})
		if !load.Pause(ctx, 10*time.Millisecond) { // so that the claim waits
			claiming.Wait()
			return fail(ctx.Err())
		}
		began := time.Now()
		acked := from.Ack(ctx, leases[0])
		took := time.Since(began)
		claiming.Wait()
		if !acked {
			return fail(errors.New("an ack failed"))
		}
		if n >= warmups {
			times.Add(at.Sub(began))
			acks.Add(took)
		}
		leases = got
	}
	if len(leases) == 1 && !workers[w.Handovers%2].Ack(ctx, leases[0]) {
		return fail(errors.New("the last ack failed"))
	}
	return times, acks, queue, account, nil
}

// held measures a steady load of groups beside a session that holds an old snapshot.
func (w *Flow) held(ctx context.Context, s *session, srv *server) error {
	if w.Hold == 0 {
		return nil
	}
	const clients = 32
	result, err := s.measure(ctx, measurement{
		label: fmt.Sprintf("groups at %g/s", w.Rate), server: srv, clients: s.steady(w.Rate, clients, clients, w.Groups), duration: w.Before + w.Hold,
		prepare: func(ctx context.Context, queue string) error {
			return srv.target.Limit(ctx, queue, fmt.Sprintf(`{"concurrency":%d}`, slots))
		},
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
	s.comparePhases(result, []phase{{"before", 0, begin}, {"hold", begin, end}, {"last tenth of hold", end - w.Hold.Seconds()/10, end}})
	return nil
}
