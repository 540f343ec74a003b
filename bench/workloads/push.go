package workloads

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Push is a queue that pushes its events to a receiver in this program: a backlog, as fast as it goes, and then one event at a time, from the
// sending of its insert to its arrival.
type Push struct {
	Events   int           `default:"20000" placeholder:"N" help:"How many events the backlog has."`
	InFlight int           `most:"1000" default:"100" placeholder:"N" help:"How many requests may be in flight."`
	Rounds   int           `default:"200" placeholder:"N" help:"How many events are inserted one at a time."`
	Gap      time.Duration `default:"50ms" help:"How long after one event the next is inserted."`
}

func (*Push) name() string { return "push" }

func (*Push) check(cfg Config) error { return needOwnServers(cfg) }

// arrivals is the receiver: it counts how often each event arrives, by its webhook-id.
type arrivals struct {
	mu    sync.Mutex
	times map[string]int
	came  chan time.Time
}

// ServeHTTP implements http.Handler.
func (a *arrivals) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	_, _ = io.Copy(io.Discard, r.Body) // as a receiver does
	a.mu.Lock()
	a.times[r.Header.Get("Webhook-Id")]++
	a.mu.Unlock()
	a.came <- at
	w.WriteHeader(http.StatusNoContent)
}

// await returns the times of the first and of the last of n arrivals.
func (a *arrivals) await(ctx context.Context, n int) (first, last time.Time, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longWait, fmt.Errorf("fewer than %d events arrived within %s", n, longWait))
	defer cancel()
	for i := range n {
		select {
		case last = <-a.came:
			if i == 0 {
				first = last
			}
		case <-ctx.Done():
			return first, last, context.Cause(ctx)
		}
	}
	return first, last, nil
}

func (w *Push) run(ctx context.Context, s *session) (err error) {
	s.cfg.Environ = append(append([]string{}, s.cfg.Environ...), "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-only-this-run-has")
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	a := &arrivals{times: make(map[string]int), came: make(chan time.Time, w.Events+w.Rounds)}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	receiver := &http.Server{Handler: a, ReadHeaderTimeout: longWait}
	serving := make(chan error, 1)
	go func() { serving <- receiver.Serve(listener) }()
	defer func() {
		err = errors.Join(err, receiver.Close())
		if ended := <-serving; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
	}()

	queue := s.newQueue()
	s.progress.show("inserting %d events", w.Events)
	if _, err := srv.db.conn.Exec(ctx, readyStatement, string(s.payload), queue, w.Events); err != nil {
		return fmt.Errorf("inserting: %w", err)
	}
	s.progress.show("pushing %d events", w.Events)
	if err := srv.target.Push(ctx, queue, "http://"+listener.Addr().String(), w.InFlight); err != nil {
		return err
	}
	first, last, err := a.await(ctx, w.Events)
	if err != nil {
		return err
	}
	took := last.Sub(first)
	s.add(&report.Result{Label: "backlog", Values: map[string]float64{"pushed, events/s": float64(w.Events-1) / took.Seconds()}})

	clients, err := load.Open(ctx, srv.target, queue, 1, load.NewAccount())
	if err != nil {
		return err
	}
	defer clients.Close()
	times := load.NewHistogram()
	request := srv.target.InsertRequest(queue, s.payload)
	const warmups = 5
	for round := range w.Rounds + warmups {
		s.progress.show("round %d of %d", round, w.Rounds)
		if !load.Pause(ctx, w.Gap) {
			return ctx.Err()
		}
		begin := time.Now()
		if _, ok := clients.All[0].Insert(ctx, request, time.Time{}); !ok {
			return fmt.Errorf("the insert failed: %v", clients.Meter.Take().Errors)
		}
		_, at, err := a.await(ctx, 1)
		if err != nil {
			return err
		}
		if round >= warmups {
			times.Add(at.Sub(begin))
		}
	}
	balance := &load.Balance{Inserted: int64(w.Events + w.Rounds + warmups)}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, n := range a.times {
		balance.Acked++
		balance.AckedTwice += int64(n - 1)
	}
	balance.Lost = balance.Inserted - balance.Acked
	s.add(&report.Result{Label: "idle", Latency: map[string]load.Latency{"insert to arrival": times.Latency()}, Balance: balance})
	return nil
}
