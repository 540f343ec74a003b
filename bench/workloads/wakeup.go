package workloads

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Wakeup is how soon a waiting claim gets an event: from the sending of the insert to the claim's response.
type Wakeup struct {
	Rounds  int           `default:"100" placeholder:"N" help:"How many events each path gets."`
	Gap     time.Duration `default:"50ms" help:"About how long after one event the next is inserted."`
	URL2    string        `name:"url2" placeholder:"URL" help:"With --url: a second server on the same database, to claim at."`
	Waiters int           `default:"4" placeholder:"N" help:"How many claims wait on each queue."`
}

func (*Wakeup) name() string { return "wakeup" }

func (w *Wakeup) check(cfg Config) error {
	if w.URL2 != "" && cfg.URL == "" {
		return Invalidf("--url2: the second server needs a first one (--url)")
	}
	return nil
}

// path is one way for an event to reach a waiting claim; or, without waiters, a commit to compare with.
type path struct {
	label   string
	waiters *waiters
	times   load.Histogram
	insert  func(ctx context.Context) error
	stop    func()
}

func (w *Wakeup) run(ctx context.Context, s *session) error {
	paths, err := w.paths(ctx, s)
	defer func() {
		for _, p := range paths {
			p.stop()
		}
	}()
	if err != nil {
		return err
	}
	const warmups = 5
	for round := range w.Rounds + warmups {
		s.progress.show("round %d of %d", round, w.Rounds)
		for _, p := range paths {
			gap := w.Gap/2 + time.Duration(rand.Int64N(int64(w.Gap))) //nolint:gosec // a load, not a secret
			if !load.Pause(ctx, gap) {
				return ctx.Err()
			}
			begin := time.Now()
			end, err := p.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", p.label, err)
			}
			if round >= warmups {
				p.times.Add(end.Sub(begin))
			}
		}
	}
	commit := paths[len(paths)-1].times.Latency()
	for _, p := range paths {
		result := &report.Result{Label: p.label}
		l := p.times.Latency()
		s.add(result)
		if p.waiters == nil {
			result.Latency = map[string]load.Latency{"commit": l}
			continue
		}
		result.Latency = map[string]load.Latency{"insert to claim": l}
		if result.Balance, err = s.drain(ctx, p.waiters.server, p.waiters.queue, p.waiters.clients.Account); err != nil {
			return err
		}
		if paths[len(paths)-1].waiters == nil {
			s.compare(p.label+" p50 over a commit", l.P50/commit.P50)
		}
	}
	return nil
}

// run inserts an event and returns when the claim was answered with it.
func (p *path) run(ctx context.Context) (time.Time, error) {
	if err := p.insert(ctx); err != nil || p.waiters == nil {
		return time.Now(), err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, longWait, fmt.Errorf("no waiting claim was answered within %s", longWait))
	defer cancel()
	select {
	case at := <-p.waiters.claims:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

// paths are those that can be measured with the URLs and databases given; the last one is the commit, where the database is known. Those that were made are
// returned with an error, too.
func (w *Wakeup) paths(ctx context.Context, s *session) (paths []*path, err error) {
	first, err := s.serve(ctx)
	if err != nil {
		return nil, err
	}
	second := first
	switch {
	case w.URL2 != "":
		second, err = s.attach(ctx, w.URL2)
	case first.process != nil:
		second, err = s.startSecond(ctx, first)
	}
	if err != nil {
		return nil, err
	}
	add := func(label string, claims *server) (*path, error) {
		wt, err := s.startWaiters(ctx, claims, w.Waiters)
		if err != nil {
			return nil, err
		}
		p := &path{label: label, waiters: wt, times: load.NewHistogram(), stop: wt.stop}
		p.insert = func(ctx context.Context) error { return wt.insert(ctx, first, s.payload) }
		paths = append(paths, p)
		return p, nil
	}
	if _, err := add("same process", first); err != nil {
		return paths, err
	}
	if second != first {
		if _, err := add("two processes", second); err != nil {
			return paths, err
		}
	}
	if first.db == nil {
		return paths, nil
	}
	inSQL, err := add("SQL", first)
	if err != nil {
		return paths, err
	}
	conn := first.db.conn
	inSQL.insert = func(ctx context.Context) error {
		var id int64
		if err := conn.QueryRow(ctx, insertOneStatement, string(s.payload), inSQL.waiters.queue).Scan(&id); err != nil {
			return err
		}
		inSQL.waiters.clients.Account.Inserted(id)
		return nil
	}
	// A bare commit: one row, inserted into a table like the queue's.
	if _, err := conn.Exec(ctx, likeStatement); err != nil {
		return paths, fmt.Errorf("a table to time a commit on: %w", err)
	}
	return append(paths, &path{
		label: "bare commit", times: load.NewHistogram(),
		insert: func(ctx context.Context) error {
			_, err := conn.Exec(ctx, likeInsert, string(s.payload), "bench")
			return err
		},
		stop: func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			_, _ = conn.Exec(ctx, likeDropStatement) // it may be gone with its database
		},
	}), nil
}

// waiters are claims that wait on a queue of their own, and ack their events.
type waiters struct {
	server   *server
	queue    string
	clients  *load.Clients
	inserter *load.Clients  // one client, from the first insert on
	claims   chan time.Time // when each was answered with an event
	stop     func()
}

// startWaiters has n claims wait. They must be stopped.
func (s *session) startWaiters(ctx context.Context, srv *server, n int) (*waiters, error) {
	wt := &waiters{server: srv, queue: s.newQueue(), claims: make(chan time.Time, n)}
	var err error
	if wt.clients, err = load.Open(ctx, srv.target, wt.queue, n, load.NewAccount()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	claim := srv.target.ClaimRequest(wt.queue, 1, "", longWait)
	var running sync.WaitGroup
	for _, c := range wt.clients.All {
		running.Go(func() {
			for ctx.Err() == nil {
				leases, _ := c.Claim(ctx, claim)
				if len(leases) == 0 {
					continue
				}
				select {
				case wt.claims <- time.Now():
				default: // an event that came twice, which the account has
				}
				c.Ack(ctx, leases[0])
			}
		})
	}
	wt.stop = func() {
		cancel()
		running.Wait()
		wt.clients.Close()
		if wt.inserter != nil {
			wt.inserter.Close()
		}
	}
	return wt, nil
}

// insert inserts an event at a server over HTTP, for these waiters.
func (wt *waiters) insert(ctx context.Context, at *server, payload []byte) error {
	if wt.inserter == nil {
		clients, err := load.Open(ctx, at.target, wt.queue, 1, wt.clients.Account)
		if err != nil {
			return err
		}
		wt.inserter = clients
	}
	if _, ok := wt.inserter.All[0].Insert(ctx, at.target.InsertRequest(wt.queue, payload), time.Time{}); !ok {
		return fmt.Errorf("the insert failed: %v", wt.inserter.Meter.Take().Errors)
	}
	return nil
}
