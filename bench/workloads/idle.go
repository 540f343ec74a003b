package workloads

import (
	"context"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/jackc/pgx/v5"
)

// Idle is one lone request at a time on one connection, with a pause between, beside the same statements said to the
// database directly: what HTTP and the service add when nothing else goes on.
type Idle struct {
	Rounds int           `name:"rounds" default:"80" placeholder:"N" help:"How many lives, each over HTTP and in SQL."`
	Pause  time.Duration `name:"pause" default:"20ms" help:"The pause before each request."`
}

func (*Idle) name() string { return "idle" }

func (w *Idle) check(cfg Config) error {
	if w.Pause < 0 {
		return Invalidf("--pause: got %s; takes a duration, not negative", w.Pause)
	}
	if err := needDatabase(cfg, "idle compares with plain SQL"); err != nil {
		return err
	}
	return checkNumber("--rounds", w.Rounds, 1, 1_000_000)
}

// idleBar is the most that HTTP and the service may add to a lone request, in ms.
const idleBar = 1.0

func (w *Idle) run(ctx context.Context, s *session) error {
	srv, err := s.serve(ctx)
	if err != nil {
		return err
	}
	conn, err := srv.db.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	queue, l := s.newQueue(), newLedger()
	one, err := hire(ctx, srv, queue, 1, l)
	if err != nil {
		return err
	}
	defer one.close()

	pair := idlePair{session: s, pause: w.Pause, worker: one.workers[0], conn: conn, queue: s.newQueue(), payload: string(s.payload)}
	const warmups = 5 // connections, plans and caches
	for range warmups {
		if err := pair.round(ctx, srv, queue); err != nil {
			return err
		}
	}
	one.meter.take()
	pair.reset()
	begin := time.Now()
	for i := range w.Rounds {
		s.progress.say("round %d of %d", i+1, w.Rounds)
		if err := pair.round(ctx, srv, queue); err != nil {
			return err
		}
	}
	took := time.Since(begin)
	total := one.meter.take()
	result := newResult("one at a time")
	result.Latency = map[string]Latency{}
	for k, name := range kindNames[:living] {
		overHTTP, inSQL := latencyOf(total.latency[k]), latencyOf(pair.sql[k])
		result.Latency[name], result.Latency["sql "+name] = overHTTP, inSQL
		s.report.atMost(name+"_http_minus_sql_p50_ms", overHTTP.P50-inSQL.P50, idleBar)
	}
	result.Values["rounds_per_s"] = float64(w.Rounds) / took.Seconds()
	result.Errors = total.errors
	account, err := s.settle(ctx, trial{server: srv, queue: queue, ledger: l})
	if err != nil {
		return err
	}
	result.Account = &account
	s.report.add(result)
	return nil
}

// idlePair lives a life over HTTP and one in SQL, step by step in turn, so that what else the machine does hits both.
type idlePair struct {
	*session
	pause   time.Duration
	worker  *worker
	conn    *pgx.Conn
	queue   string // of the lives in SQL
	payload string
	sql     [living]*hdrhistogram.Histogram
}

func (p *idlePair) reset() {
	for k := range p.sql {
		p.sql[k] = newHistogram()
	}
}

func (p *idlePair) round(ctx context.Context, srv *server, queue string) error {
	if p.sql[0] == nil {
		p.reset()
	}
	var leases []lease
	var id int64
	var receipt string
	steps := []struct {
		kind kind
		http func()
		sql  func() error
	}{
		{
			posting,
			func() { p.worker.post(ctx, postRequest(srv.at, queue, p.session.payload), time.Time{}) },
			func() (err error) { _, err = sqlPost(ctx, p.conn, p.queue, p.payload); return err },
		},
		{
			claiming,
			func() { leases, _ = p.worker.claim(ctx, claimRequest(srv.at, queue, 1, "", 0), 0) },
			func() (err error) { id, receipt, err = sqlClaim(ctx, p.conn, p.queue); return err },
		},
		{
			acking,
			func() {
				if len(leases) > 0 {
					p.worker.ack(ctx, leases[0])
				}
			},
			func() error { return sqlAck(ctx, p.conn, id, receipt) },
		},
	}
	for _, step := range steps {
		if !pause(ctx, p.pause) {
			return ctx.Err()
		}
		if err := srv.alive(); err != nil {
			return err
		}
		step.http()
		if !pause(ctx, p.pause) {
			return ctx.Err()
		}
		begin := time.Now()
		if err := step.sql(); err != nil {
			return err
		}
		_ = p.sql[step.kind].RecordValue(time.Since(begin).Microseconds())
	}
	return nil
}
