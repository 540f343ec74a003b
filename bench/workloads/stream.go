package workloads

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Stream is streams of the log: how soon one of an idle server has an event published at it, and one of another process; how much many streams get
// when each gets everything; and the memory of idle ones. No stream may miss anything, and all must see the same order.
type Stream struct {
	Rounds   int           `default:"200" placeholder:"N" help:"How many events are published to an idle server."`
	Gap      time.Duration `default:"30ms" help:"About how long after one of them the next is published."`
	Streams  int           `default:"1000" most:"50000" placeholder:"N" help:"How many streams get everything."`
	Batch    int           `default:"100" most:"1000" placeholder:"N" help:"Events that are published at once to them; the next follow when all have them."`
	Idle     int           `default:"10000" most:"50000" placeholder:"N" help:"How many streams are idle."`
	Duration time.Duration `default:"10s" help:"How long the many streams are measured."`
}

func (*Stream) name() string { return "stream" }

func (w *Stream) check(cfg Config) error {
	if err := needOwnServers(cfg); err != nil {
		return err
	}
	return enoughFiles(max(w.Streams, w.Idle))
}

func (w *Stream) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	if err := w.latency(ctx, s, srv); err != nil {
		return err
	}
	if err := w.fanOut(ctx, s, srv); err != nil {
		return err
	}
	return w.idle(ctx, s)
}

// listeners are streams of a topic that note their events.
type listeners struct {
	streams  []*load.Stream
	account  *load.Account // of the events of the first
	received atomic.Int64  // by all of them together
	wanted   atomic.Int64  // full is told when as many were received
	full     chan time.Time
	failed   chan error
	ended    chan struct{} // of each
	closing  atomic.Bool
}

// listen opens n streams. They must be closed.
func (s *session) listen(ctx context.Context, srv *server, topic string, n int, a *load.Account) (*listeners, error) {
	l := &listeners{account: a, full: make(chan time.Time, 1), failed: make(chan error, n), ended: make(chan struct{}, n)}
	for i := range n {
		s.progress.show("opening stream %d of %d", i+1, n)
		stream, err := srv.target.Follow(ctx, "topic="+topic)
		if err != nil {
			l.close()
			return nil, err
		}
		l.streams = append(l.streams, stream)
		go l.run(stream, i == 0)
	}
	return l, nil
}

func (l *listeners) run(stream *load.Stream, first bool) {
	defer func() { l.ended <- struct{}{} }()
	for {
		position, err := stream.Next()
		if err != nil {
			if !l.closing.Load() {
				l.failed <- err
			}
			return
		}
		if first {
			l.account.Claimed(position)
			l.account.Acked(position)
		}
		if l.received.Add(1) == l.wanted.Load() {
			l.full <- time.Now()
		}
	}
}

// expect has the next wait return when every stream has got so many events more.
func (l *listeners) expect(events int) { l.wanted.Add(int64(events * len(l.streams))) }

// wait returns when the last stream got the expected events.
func (l *listeners) wait(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, longWait, fmt.Errorf("%w: %d events did not reach their streams within %s",
		report.ErrBroken, l.wanted.Load()-l.received.Load(), longWait))
	defer cancel()
	select {
	case at := <-l.full:
		return at, nil
	case err := <-l.failed:
		return time.Time{}, err
	case <-ctx.Done():
		return time.Time{}, context.Cause(ctx)
	}
}

// balance compares the streams and adds up the published events.
func (l *listeners) balance() (load.Balance, error) {
	for _, other := range l.streams[1:] {
		if err := l.streams[0].SameOrder(&other.Order); err != nil {
			return load.Balance{}, err
		}
	}
	return l.account.Balance(func(int64) (bool, error) { return false, nil })
}

func (l *listeners) close() {
	l.closing.Store(true)
	for _, stream := range l.streams {
		stream.Close()
	}
	for range l.streams {
		<-l.ended
	}
}

// latency publishes now and then, with a stream at the same process and one at another.
func (w *Stream) latency(ctx context.Context, s *session, srv *server) error {
	second, err := s.startSecond(ctx, srv)
	if err != nil {
		return err
	}
	topic := s.newQueue()
	published, elsewhere := load.NewAccount(), load.NewAccount() // the second one only takes the events of the other stream
	clients, err := load.Open(ctx, srv.target, topic, 1, published)
	if err != nil {
		return err
	}
	defer clients.Close()
	here, err := s.listen(ctx, srv, topic, 1, published)
	if err != nil {
		return err
	}
	defer here.close()
	there, err := s.listen(ctx, second, topic, 1, elsewhere)
	if err != nil {
		return err
	}
	defer there.close()
	const warmups = 10
	sides := []struct {
		label string
		*listeners
		times load.Histogram
	}{{"idle, same process", here, load.NewHistogram()}, {"idle, two processes", there, load.NewHistogram()}}
	request := srv.target.PublishRequest(topic, s.payload)
	for round := range w.Rounds + warmups {
		s.progress.show("round %d of %d", round, w.Rounds)
		if !load.Pause(ctx, w.Gap/2+time.Duration(rand.Int64N(int64(w.Gap)))) { //nolint:gosec // a load, not a secret
			return ctx.Err()
		}
		for _, side := range sides {
			side.expect(1)
		}
		begin := time.Now()
		if _, ok := clients.All[0].Insert(ctx, request, begin); !ok {
			return fmt.Errorf("publishing failed: %v", clients.Meter.Take().Errors)
		}
		for _, side := range sides {
			at, err := side.wait(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", side.label, err)
			}
			if round >= warmups {
				side.times.Add(at.Sub(begin))
			}
		}
	}
	for _, side := range sides {
		result := &report.Result{Label: side.label, Latency: map[string]load.Latency{"publish to stream": side.times.Latency()}}
		if side.listeners == here {
			result.Latency["publish"] = clients.Meter.Take().Times[load.Insert].Latency()
			balance, err := side.balance()
			if err != nil {
				return err
			}
			result.Balance = &balance
		}
		s.add(result)
	}
	return here.streams[0].SameOrder(&there.streams[0].Order)
}

// fanOut publishes batch after batch to many streams.
func (w *Stream) fanOut(ctx context.Context, s *session, srv *server) error {
	topic, published := s.newQueue(), load.NewAccount()
	clients, err := load.Open(ctx, srv.target, topic, 1, published)
	if err != nil {
		return err
	}
	defer clients.Close()
	all, err := s.listen(ctx, srv, topic, w.Streams, published)
	if err != nil {
		return err
	}
	defer all.close()
	label, request := plural(w.Streams, "stream"), srv.target.PublishBatchRequest(topic, s.payload, w.Batch)
	publishFor := func(duration time.Duration) (events int64, err error) {
		for end := time.Now().Add(duration); events == 0 || time.Now().Before(end); events += int64(w.Batch) {
			s.progress.show("%s: %d events", label, events)
			all.expect(w.Batch)
			if _, ok := clients.All[0].Insert(ctx, request, time.Time{}); !ok {
				return 0, fmt.Errorf("publishing failed: %v", clients.Meter.Take().Errors)
			}
			if _, err := all.wait(ctx); err != nil {
				return 0, err
			}
		}
		return events, nil
	}
	if _, err := publishFor(s.cfg.Warmup); err != nil {
		return err
	}
	clients.Meter.Take()
	counters, measured := newTurnReader(srv), newTurns(label)
	before, err := counters.read(ctx)
	if err != nil {
		return err
	}
	events, err := publishFor(w.Duration)
	if err != nil {
		return err
	}
	after, err := counters.read(ctx)
	if err != nil {
		return err
	}
	measured.add(clients.Meter.Take(), events, before, after)
	result := measured.result(true)
	result.Values["deliveries_per_s"] = result.EventsPerS * float64(w.Streams)
	s.add(result)
	balance, err := all.balance()
	result.Balance = &balance
	return err
}

// idle looks at the memory of a new server with many streams of which none gets anything.
func (w *Stream) idle(ctx context.Context, s *session) error {
	srv, err := s.startOnNew(ctx, s.cfg.Program)
	if err != nil {
		return err
	}
	_, before, err := srv.usage(ctx)
	if err != nil {
		return err
	}
	all, err := s.listen(ctx, srv, s.newQueue(), w.Idle, load.NewAccount())
	if err != nil {
		return err
	}
	defer all.close()
	if !load.Pause(ctx, s.cfg.Warmup) {
		return ctx.Err()
	}
	_, rss, err := srv.usage(ctx)
	s.add(&report.Result{Label: plural(w.Idle, "idle stream"), Values: map[string]float64{
		"server_rss_mib": float64(rss) / (1 << 20), "server_rss_kib_per_stream": float64(rss-before) / (1 << 10) / float64(w.Idle),
	}})
	select {
	case failed := <-all.failed:
		err = errors.Join(err, failed)
	default:
	}
	return err
}
