package workloads

import (
	"context"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Idle is one lone request at a time on one connection, with a pause between, beside the same statements sent to the
// database directly: the time that HTTP and the service add when nothing else goes on.
type Idle struct {
	Rounds int           `default:"80" placeholder:"N" help:"How many events, each over HTTP and in SQL."`
	Pause  time.Duration `least:"0" default:"20ms" help:"The pause before each request."`
}

func (*Idle) name() string { return "idle" }

func (*Idle) check(cfg Config) error { return needDatabase(cfg) }

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
	queue, sqlQueue := s.newQueue(), s.newQueue()
	clients, err := load.Open(ctx, srv.target, queue, 1, load.NewAccount())
	if err != nil {
		return err
	}
	defer clients.Close()

	client := clients.All[0]
	insert, claim := srv.target.InsertRequest(queue, s.payload), srv.target.ClaimRequest(queue, 1, "", 0)
	var leases []load.Lease
	var id int64
	var receipt string
	steps := []struct {
		step load.Step
		http func()
		sql  func() error
	}{
		{
			load.Insert,
			func() { client.Insert(ctx, insert, time.Time{}) },
			func() error { return sqlInsert(ctx, conn, sqlQueue, string(s.payload)) },
		},
		{
			load.Claim,
			func() { leases, _ = client.Claim(ctx, claim) },
			func() (err error) { id, receipt, err = sqlClaim(ctx, conn, sqlQueue); return err },
		},
		{
			load.Ack,
			func() {
				if len(leases) > 0 {
					client.Ack(ctx, leases[0])
				}
			},
			func() error { return sqlAck(ctx, conn, id, receipt) },
		},
	}
	// Step by step in turn, so that other work of the machine hits both.
	const warmups = 5 // connections, plans and caches
	inSQL := load.NewCounts()
	var begin time.Time
	for round := range w.Rounds + warmups {
		s.progress.show("round %d of %d", round, w.Rounds)
		if round == warmups {
			clients.Meter.Take()
			inSQL, begin = load.NewCounts(), time.Now()
		}
		for _, step := range steps {
			if !load.Pause(ctx, w.Pause) {
				return ctx.Err()
			}
			step.http()
			if !load.Pause(ctx, w.Pause) {
				return ctx.Err()
			}
			begin := time.Now()
			if err := step.sql(); err != nil {
				return err
			}
			inSQL.Times[step.step].Add(time.Since(begin))
		}
	}
	took, overHTTP := time.Since(begin), clients.Meter.Take()
	result := &report.Result{Label: "one at a time", Latency: latencies(overHTTP), Errors: overHTTP.Errors, Values: map[string]float64{
		"rounds_per_s": float64(w.Rounds) / took.Seconds(),
	}}
	for _, step := range steps {
		name, sql := step.step.String(), inSQL.Times[step.step].Latency()
		result.Latency["SQL "+name] = sql
		s.compare(name+"_http_minus_sql_p50_ms", result.Latency[name].P50-sql.P50)
	}
	s.add(result)
	result.Balance, err = s.drain(ctx, srv, queue, clients.Account)
	return err
}
