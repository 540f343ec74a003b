package workloads

import (
	"context"
	"slices"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Publish is publications, one at a time and many in each request, each in turns with inserts into a queue that take as many. Two readers with pages of
// different sizes read the log: beside the first turns, which do not count, and to its end when all is done. Nothing may be lost or come twice, and
// both must see the same order.
type Publish struct {
	Connections int           `default:"64" most:"50000" placeholder:"N" help:"How many clients send single events."`
	Batch       int           `default:"100" most:"1000" placeholder:"N" help:"Events in each request of the others."`
	Batches     int           `default:"4" most:"50000" placeholder:"N" help:"How many clients send batches."`
	Rounds      int           `default:"5" placeholder:"N" help:"How many turns each load gets."`
	Duration    time.Duration `default:"10s" help:"How long each load is measured, all turns together."`
}

func (*Publish) name() string { return "publish" }

func (*Publish) check(cfg Config) error { return needDatabase(cfg) }

// posting is clients that send the same request again and again.
type posting struct {
	*turns
	clients *load.Clients
	request load.InsertRequest
}

func (w *Publish) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	queue, topic := s.newQueue(), s.newQueue()
	inserted, published := load.NewAccount(), load.NewAccount()
	readers, err := newLogReaders(ctx, srv.target, topic, published)
	if err != nil {
		return err
	}
	defer readers.close()
	open := func(label string, n int, request load.InsertRequest, a *load.Account) (*posting, error) {
		clients, err := load.Open(ctx, srv.target, queue, n, a)
		return &posting{turns: newTurns(label), clients: clients, request: request}, err
	}
	var postings []*posting
	for _, p := range []struct {
		label   string
		n       int
		request load.InsertRequest
		account *load.Account
	}{
		{"POST /events", w.Connections, srv.target.InsertRequest(queue, s.payload), inserted},
		{"POST /topics/{topic}", w.Connections, srv.target.PublishRequest(topic, s.payload), published},
		{"POST /events/batch", w.Batches, srv.target.InsertBatchRequest(queue, s.payload, w.Batch), inserted},
		{"POST /publish", w.Batches, srv.target.PublishBatchRequest(topic, s.payload, w.Batch), published},
	} {
		posting, err := open(p.label, p.n, p.request, p.account)
		if err != nil {
			return err
		}
		defer posting.clients.Close()
		postings = append(postings, posting)
	}
	if err := w.takeTurns(ctx, s, srv, postings, readers); err != nil {
		return err
	}
	for _, p := range postings {
		s.add(p.result(true))
	}
	s.compare("single over posts", postings[1].over(postings[0].turns))
	s.compare("batch over posts", postings[3].over(postings[2].turns))
	s.compare("single, processor time over posts", postings[1].costOver(postings[0].turns))
	s.compare("batch, processor time over posts", postings[3].costOver(postings[2].turns))
	return w.account(ctx, s, srv, queue, inserted, readers)
}

func (w *Publish) takeTurns(ctx context.Context, s *session, srv *server, postings []*posting, readers *logReaders) error {
	counters := newTurnReader(srv)
	duration := w.Duration / time.Duration(w.Rounds)
	for round := range w.Rounds + 1 {
		stop := func() error { return nil }
		if round == 0 {
			stop = readers.follow(ctx)
		}
		for pair := range slices.Chunk(postings, 2) {
			order := slices.Clone(pair)
			if round%2 == 1 {
				slices.Reverse(order)
			}
			for _, p := range order {
				s.progress.show("round %d of %d: %s", round, w.Rounds, p.label)
				if err := p.turn(ctx, counters, min(s.cfg.Warmup, duration/4), duration, round > 0); err != nil {
					_ = stop()
					return err
				}
			}
		}
		if err := stop(); err != nil {
			return err
		}
	}
	return nil
}

// turn sends for so long after a warm-up.
func (p *posting) turn(ctx context.Context, counters *turnReader, warmup, duration time.Duration, counts bool) error {
	defer p.clients.Work(ctx, func(ctx context.Context, c *load.Client) { c.Insert(ctx, p.request, time.Time{}) })()
	if !load.Pause(ctx, warmup) {
		return ctx.Err()
	}
	p.clients.Meter.Take()
	before, err := counters.read(ctx)
	if err != nil {
		return err
	}
	if !load.Pause(ctx, duration) {
		return ctx.Err()
	}
	sent := p.clients.Meter.Take()
	after, err := counters.read(ctx)
	if err == nil && counts {
		p.add(sent, sent.Events[load.Insert], before, after)
	}
	return err
}

// account adds up the events inserted by the rows there are, and those published by the events that the readers find.
func (w *Publish) account(ctx context.Context, s *session, srv *server, queue string, inserted *load.Account, readers *logReaders) error {
	s.progress.show("reading the log to its end")
	balance, err := readers.finish(ctx)
	if err != nil {
		return err
	}
	s.add(&report.Result{Label: "read from the log", Balance: &balance})
	var existing int64
	if err := srv.db.conn.QueryRow(ctx, countQueueStatement, queue).Scan(&existing); err != nil {
		return err
	}
	inQueue := inserted.BalanceOf(existing)
	s.add(&report.Result{Label: "in the queue", Balance: &inQueue})
	return nil
}

// logReaders are two readers of the same part of the log, with pages of different sizes. Events that the first has read count as acked in the account of
// the published ones.
type logReaders struct {
	target    *load.Target
	both      []*load.LogReader
	published *load.Account
}

// newLogReaders connects readers of a topic, from the head of the log on. They must be closed.
func newLogReaders(ctx context.Context, t *load.Target, topic string, published *load.Account) (*logReaders, error) {
	r := &logReaders{target: t, published: published}
	head, err := t.Head(ctx)
	if err != nil {
		return nil, err
	}
	for _, limit := range []int{1000, 137} {
		reader, err := t.ReadLog(ctx, "topic="+topic, limit, head)
		if err != nil {
			r.close()
			return nil, err
		}
		r.both = append(r.both, reader)
	}
	return r, nil
}

func (r *logReaders) close() {
	for _, reader := range r.both {
		reader.Close()
	}
}

// each is called by a reader with every position.
func (r *logReaders) each(reader int) func(position int64) {
	if reader > 0 {
		return nil
	}
	return func(position int64) {
		r.published.Claimed(position)
		r.published.Acked(position)
	}
}

// follow has the readers read beside the publishers, until stop is called.
func (r *logReaders) follow(ctx context.Context) (stop func() error) {
	const pause = 5 * time.Millisecond // of a reader that is level
	following, cancel := context.WithCancel(ctx)
	ended := make(chan error, len(r.both))
	for i, reader := range r.both {
		go func() {
			var err error
			for following.Err() == nil && err == nil {
				if _, err = reader.Page(r.each(i)); err == nil && reader.IsLevel() {
					load.Pause(following, pause)
				}
			}
			ended <- err
		}()
	}
	return func() (err error) {
		cancel()
		for range r.both {
			if failed := <-ended; failed != nil {
				err = failed
			}
		}
		return err
	}
}

// finish reads to the end of the log, compares the readers, and adds up the published events.
func (r *logReaders) finish(ctx context.Context) (load.Balance, error) {
	head, err := r.target.Head(ctx)
	if err != nil {
		return load.Balance{}, err
	}
	for i, reader := range r.both {
		if err := reader.CatchUp(ctx, head, r.each(i)); err != nil {
			return load.Balance{}, err
		}
	}
	if err := r.both[0].SameOrder(&r.both[1].Order); err != nil {
		return load.Balance{}, err
	}
	return r.published.Balance(func(int64) (bool, error) { return false, nil })
}
