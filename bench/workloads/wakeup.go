package workloads

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
)

// Wakeup is how long a waiting claim takes to hear of an event: from the sending of the post to the claim's answer.
type Wakeup struct {
	Rounds  int           `name:"rounds" default:"100" placeholder:"N" help:"How many events each way gets."`
	Gap     time.Duration `name:"gap" default:"50ms" help:"About how long after one event the next is posted."`
	URL2    string        `name:"url2" placeholder:"URL" help:"With --url: a second server on the same database, to post at one and claim at the other. Without --url both are started."`
	Waiters int           `name:"waiters" default:"4" placeholder:"N" help:"How many claims wait on each queue."`
}

func (*Wakeup) name() string { return "wakeup" }

func (w *Wakeup) check(cfg Config) error {
	if w.URL2 != "" && cfg.URL == "" {
		return Invalidf("--url2: the second server needs a first one (--url)")
	}
	if err := checkNumber("--rounds", w.Rounds, 1, 1_000_000); err != nil {
		return err
	}
	if err := checkNumber("--waiters", w.Waiters, 1, 10_000); err != nil {
		return err
	}
	return checkDuration("--gap", w.Gap)
}

func (w *Wakeup) run(ctx context.Context, s *session) error {
	first, err := s.serve(ctx)
	if err != nil {
		return err
	}
	second, err := s.second(ctx, first, w.URL2)
	if err != nil {
		return err
	}
	ways, end, err := w.prepare(ctx, s, first, second)
	defer end()
	if err != nil {
		return err
	}
	const warmups = 5
	for round := range w.Rounds + warmups {
		s.progress.say("round %d of %d", round, w.Rounds)
		for _, way := range ways {
			gap := w.Gap/2 + time.Duration(rand.Int64N(int64(w.Gap))) //nolint:gosec // a load, not a secret
			if !pause(ctx, gap) {
				return ctx.Err()
			}
			if err := first.alive(); err != nil {
				return err
			}
			took, err := way.once(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", way.label, err)
			}
			if round >= warmups {
				_ = way.times.RecordValue(took.Microseconds())
			}
		}
	}
	return w.judge(ctx, s, ways)
}

// way is one way for an event to reach a waiting claim.
type way struct {
	label string
	times *hdrhistogram.Histogram
	once  func(ctx context.Context) (time.Duration, error)
	trial *trial // to account for; nil: nothing to
}

func (w *Wakeup) prepare(ctx context.Context, s *session, first, second *server) (ways []*way, end func(), err error) {
	var ends []func()
	end = func() {
		for _, e := range ends {
			e()
		}
	}
	post := func(at *server, wt *waiting) (func(ctx context.Context) (time.Duration, error), error) {
		poster, err := hire(ctx, at, wt.queue, 1, wt.ledger)
		if err != nil {
			return nil, err
		}
		ends = append(ends, poster.close)
		request := postRequest(at.at, wt.queue, s.payload)
		return func(ctx context.Context) (time.Duration, error) {
			begin := time.Now()
			if !poster.workers[0].post(ctx, request, begin) {
				return 0, fmt.Errorf("the post failed: %v", poster.meter.take().errors)
			}
			return wt.answered(ctx, begin)
		}, nil
	}
	add := func(label string, claims *server, how func(*waiting) (func(context.Context) (time.Duration, error), error)) error {
		wt, err := s.wait(ctx, claims, w.Waiters)
		if err != nil {
			return err
		}
		ends = append(ends, wt.end)
		once, err := how(wt)
		if err != nil {
			return err
		}
		ways = append(ways, &way{
			label: label, times: newHistogram(), once: once,
			trial: &trial{label: label, server: claims, queue: wt.queue, ledger: wt.ledger},
		})
		return nil
	}
	if err := add("same process", first, func(wt *waiting) (func(context.Context) (time.Duration, error), error) {
		return post(first, wt)
	}); err != nil {
		return ways, end, err
	}
	if second != nil {
		if err := add("two processes", second, func(wt *waiting) (func(context.Context) (time.Duration, error), error) {
			return post(first, wt)
		}); err != nil {
			return ways, end, err
		}
	}
	if first.db == nil {
		return ways, end, nil
	}
	conn, err := first.db.connect(ctx)
	if err != nil {
		return ways, end, err
	}
	ends = append(ends, func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	if err := add("plain SQL", first, func(wt *waiting) (func(context.Context) (time.Duration, error), error) {
		return func(ctx context.Context) (time.Duration, error) {
			begin := time.Now()
			var id int64
			if err := conn.QueryRow(ctx, insertOneStatement, string(s.payload), wt.queue).Scan(&id); err != nil {
				return 0, err
			}
			wt.ledger.post(id)
			return wt.answered(ctx, begin)
		}, nil
	}); err != nil {
		return ways, end, err
	}
	commit, drop, err := bareCommit(ctx, conn, string(s.payload))
	if err != nil {
		return ways, end, err
	}
	ends = append([]func(){drop}, ends...) // before the connection
	ways = append(ways, &way{label: "bare commit", times: newHistogram(), once: commit})
	return ways, end, nil
}

// bareCommit times a one-row insert into a table like the queue's.
func bareCommit(ctx context.Context, conn *pgx.Conn, payload string) (once func(context.Context) (time.Duration, error), drop func(), err error) {
	var name string
	if err := conn.QueryRow(ctx, `select 'public.queued_bench_' || pg_backend_pid()`).Scan(&name); err != nil {
		return nil, nil, err
	}
	if _, err := conn.Exec(ctx, fmt.Sprintf(likeStatement, name)); err != nil {
		return nil, nil, fmt.Errorf("a table to time a commit on: %w", err)
	}
	once = func(ctx context.Context) (time.Duration, error) {
		begin := time.Now()
		_, err := conn.Exec(ctx, fmt.Sprintf(likeInsert, name), payload, "bench")
		return time.Since(begin), err
	}
	drop = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = conn.Exec(ctx, fmt.Sprintf(likeDropStatement, name)) // it may be gone with its database
	}
	return once, drop, nil
}

func (w *Wakeup) judge(ctx context.Context, s *session, ways []*way) error {
	var commit float64
	for _, way := range ways {
		if way.trial == nil {
			commit = latencyOf(way.times).P50
		}
	}
	for _, way := range ways {
		result := newResult(way.label)
		l := latencyOf(way.times)
		name := "to the claim"
		if way.trial == nil {
			name = "insert"
		}
		result.Latency = map[string]Latency{name: l}
		if way.trial != nil {
			account, err := s.settle(ctx, *way.trial)
			if err != nil {
				return err
			}
			result.Account = &account
			if commit > 0 {
				s.report.compare(strings.ReplaceAll(way.label, " ", "_")+"_p50_over_a_commit", l.P50/commit)
			}
		}
		s.report.add(result)
	}
	return nil
}

// second is another server on the same database: the one at url, or one that is started beside one that was; else nil.
func (s *session) second(ctx context.Context, first *server, url string) (*server, error) {
	switch {
	case url != "":
		return s.attach(ctx, url)
	case first.child == nil:
		return nil, nil
	}
	srv := new(server)
	s.opened = append([]*server{srv}, s.opened...) // to be stopped before the database is dropped
	return srv, s.start(ctx, srv, withDatabase(s.cluster.text, first.database))
}

// waiting is claims that wait on a queue and ack what they get.
type waiting struct {
	queue  string
	ledger *ledger
	claims chan time.Time // when each was answered with an event
	end    func()
}

// wait has n claims wait on a new queue.
func (s *session) wait(ctx context.Context, srv *server, n int) (*waiting, error) {
	wt := &waiting{queue: s.newQueue(), ledger: newLedger(), claims: make(chan time.Time, n)}
	workers, err := hire(ctx, srv, wt.queue, n, wt.ledger)
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	request := claimRequest(srv.at, wt.queue, 1, "", longWait)
	var group sync.WaitGroup
	for _, w := range workers.workers {
		group.Go(func() {
			defer context.AfterFunc(ctx, w.interrupt)()
			for ctx.Err() == nil {
				leases, ok := w.claim(ctx, request, longWait)
				if !ok || len(leases) == 0 {
					continue
				}
				select {
				case wt.claims <- time.Now():
				default: // nobody waits for it: an event that came twice, which the ledger has
				}
				w.ack(ctx, leases[0])
			}
		})
	}
	wt.end = sync.OnceFunc(func() {
		stop()
		group.Wait()
		workers.close()
	})
	return wt, nil
}

// answered returns the time from begin to the next answer with an event.
func (wt *waiting) answered(ctx context.Context, begin time.Time) (time.Duration, error) {
	timer := time.NewTimer(longWait)
	defer timer.Stop()
	select {
	case at := <-wt.claims:
		return at.Sub(begin), nil
	case <-timer.C:
		return 0, fmt.Errorf("no waiting claim was answered within %s", longWait)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}
