package workloads

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Cells is events from insert to ack, many in each request, through a gateway in front of several cells, in turns with the same through a gateway in front of one of
// them. Each cell has a PostgreSQL of its own, held to a share of the processors, so that a machine with few of them shows what more databases are worth: the rest has to
// be enough for the gateways, the servers and the clients. Then, if asked for and with nothing held, clients of the other cells are measured while one cell does not answer.
type Cells struct {
	Cells       int           `default:"4" least:"2" most:"16" placeholder:"N" help:"How many cells."`
	Share       float64       `default:"0.25" placeholder:"N" help:"How many processors each PostgreSQL may use (needs Linux, and root or a delegated control group); 0: as many as it likes."`
	Connections int           `default:"4" most:"1000" placeholder:"N" help:"How many clients for each cell."`
	Batch       int           `default:"100" most:"1000" placeholder:"N" help:"Events in each request."`
	Rounds      int           `default:"5" placeholder:"N" help:"How many turns one cell and all of them get."`
	Duration    time.Duration `default:"10s" help:"How long each turn takes, after the warm-up."`
	AwayRate    float64       `default:"0" placeholder:"N" help:"Events a second on each cell, one by one, while the last cell answers and while it does not; 0 leaves that out."`
}

func (*Cells) name() string { return "cells" }

func (w *Cells) check(cfg Config) error {
	if w.Share > 0 && w.Share < 0.05 {
		return Invalidf("--share: got %g; expected 0, or 0.05 processors or more", w.Share)
	}
	return errors.Join(needOwnServers(cfg), enoughFiles((w.Cells+1)*w.Connections))
}

// fleet is cells, and two gateways in front of them: one that knows the first cell alone, and one that knows all.
type fleet struct {
	postgres []*ownPostgres
	cells    []*server
	one, all *server
}

func (w *Cells) run(ctx context.Context, s *session) (err error) {
	f := new(fleet)
	defer func() { err = errors.Join(err, f.close(ctx)) }()
	if err := f.start(ctx, s, w.Cells, w.Share); err != nil {
		return err
	}
	one, err := w.newLoad(ctx, s, f, "one cell", f.one, f.cells[:1])
	if err != nil {
		return err
	}
	defer one.close()
	all, err := w.newLoad(ctx, s, f, fmt.Sprintf("%d cells", w.Cells), f.all, f.cells)
	if err != nil {
		return err
	}
	defer all.close()
	both := []*cellsLoad{one, all}
	for round := range w.Rounds {
		for _, l := range both {
			s.progress.show("round %d of %d: %s", round+1, w.Rounds, l.label)
			if err := l.turn(ctx, s.cfg.Warmup, w.Duration); err != nil {
				return err
			}
		}
		slices.Reverse(both)
	}
	for _, l := range []*cellsLoad{one, all} {
		result := l.result(false)
		l.fill(result)
		if result.Balance, err = l.balance(ctx, s); err != nil {
			return err
		}
		s.add(result)
	}
	s.compare(fmt.Sprintf("%d cells over one", w.Cells), all.over(one.turns))
	s.compare(fmt.Sprintf("%d cells over one, processor time for each event", w.Cells), all.costOver(one.turns))
	if w.AwayRate > 0 {
		if err := w.measureAway(ctx, s, f); err != nil {
			return err
		}
	}
	return nil
}

// start starts the cells and the gateways.
func (f *fleet) start(ctx context.Context, s *session, cells int, share float64) error {
	var list []string
	for number := range cells {
		s.progress.show("starting cell %d", number)
		postgres, err := startPostgres(ctx, share, s.cancel)
		if err != nil {
			return err
		}
		f.postgres = append(f.postgres, postgres)
		// The cells are alike from the first turn on, with as much as a migration takes.
		err = postgres.freely(func() error {
			cell, err := startAt(ctx, s, "serve", fmt.Sprintf("QUEUED_CELL=%d", number), "QUEUED_DATABASE_URL="+postgres.url)
			if err == nil {
				f.cells = append(f.cells, cell)
				cell.db, err = openDatabase(ctx, postgres.url)
			}
			return err
		})
		if err != nil {
			return err
		}
		list = append(list, fmt.Sprintf("%d=http://%s", number, f.cells[number].target.Address))
	}
	if err := s.describe(ctx, f.cells[0]); err != nil {
		return err
	}
	var err error
	if f.one, err = startGateway(ctx, s, list[:1]); err == nil {
		f.all, err = startGateway(ctx, s, list)
	}
	return err
}

// startGateway starts a gateway in front of cells and returns when it uses all of them.
func startGateway(ctx context.Context, s *session, list []string) (*server, error) {
	srv, err := startAt(ctx, s, "gateway", "QUEUED_CELLS="+strings.Join(list, ","))
	if err != nil {
		return nil, err
	}
	if err := awaitCells(ctx, srv, len(list)); err != nil {
		return nil, errors.Join(err, srv.process.stop())
	}
	return srv, nil
}

// awaitCells returns when a gateway uses so many cells.
func awaitCells(ctx context.Context, gateway *server, cells int) error {
	waiting, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the gateway does not use all cells within %s", startLimit))
	defer cancel()
	for {
		_, err := gateway.target.Get(waiting, "/readyz")
		var body []byte
		if err == nil {
			body, err = gateway.target.Get(waiting, "/metrics")
		}
		if err == nil && isUpAll(body, cells) {
			return nil
		}
		if !load.Pause(waiting, pollInterval) {
			return errors.Join(context.Cause(waiting), err)
		}
	}
}

// isUpAll reports whether a gateway's metrics say that it uses so many cells.
func isUpAll(metrics []byte, cells int) bool {
	for line := range bytes.Lines(metrics) {
		if bytes.HasPrefix(line, []byte("queued_cell_up{")) && bytes.HasSuffix(bytes.TrimSpace(line), []byte(" 1")) {
			cells--
		}
	}
	return cells == 0
}

// startAt starts a command of the program.
func startAt(ctx context.Context, s *session, command string, settings ...string) (*server, error) {
	p, url, err := startCommand(ctx, s.cfg.Program, command, s.cfg.Environ, settings, s.cancel)
	if err != nil {
		return nil, err
	}
	target, err := load.NewTarget(url, "")
	if err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return &server{target: target, process: p}, nil
}

// close ends everything, whether or not ctx has ended.
func (f *fleet) close(ctx context.Context) (err error) {
	for _, srv := range append([]*server{f.one, f.all}, f.cells...) {
		if srv == nil {
			continue
		}
		if srv.db != nil {
			srv.db.close(ctx)
		}
		err = errors.Join(err, srv.process.stop())
	}
	for _, p := range f.postgres {
		err = errors.Join(err, p.close())
	}
	return err
}

// cellsLoad is clients that take events from insert to ack on some cells, with a queue on each.
type cellsLoad struct {
	*turns
	fleet       *fleet
	through     *server
	cells       []*server
	queues      []string
	on          []*load.Clients // by cell
	cycles      []cycle         // by cell
	gateway     time.Duration   // processor time, of all turns
	periods     int64           // of the groups of all PostgreSQL servers of these cells
	usedUp      int64           // those of them in which the share was used up
	postgresCPU []time.Duration // by cell
}

// newLoad connects the clients, which must be closed. The queues are placed on their cells.
func (w *Cells) newLoad(ctx context.Context, s *session, f *fleet, label string, through *server, cells []*server) (*cellsLoad, error) {
	l := &cellsLoad{turns: newTurns(label), fleet: f, through: through, cells: cells, postgresCPU: make([]time.Duration, len(cells))}
	for number := range cells {
		queue := s.newQueue()
		if len(cells) > 1 {
			if err := through.target.Place(ctx, queue, number); err != nil {
				l.close()
				return nil, err
			}
		}
		clients, err := load.Open(ctx, through.target, queue, w.Connections, load.NewAccount())
		if err != nil {
			l.close()
			return nil, err
		}
		l.queues, l.on = append(l.queues, queue), append(l.on, clients)
		l.cycles = append(l.cycles, s.batches(w.Connections, w.Batch).on(through, queue))
	}
	return l, nil
}

func (l *cellsLoad) close() {
	for _, clients := range l.on {
		clients.Close()
	}
}

// usage is counters of a moment.
type usage struct {
	turnReading
	gateway         time.Duration
	postgres        []time.Duration // by cell
	periods, usedUp int64
}

func (l *cellsLoad) usage(ctx context.Context) (u usage, err error) {
	for number, cell := range l.cells {
		used, rss, err := cell.usage(ctx)
		if err != nil {
			return u, err
		}
		u.server += used
		u.rss += rss
		postgres := l.fleet.postgres[number]
		u.postgres = append(u.postgres, postgres.cpu())
		u.sql += u.postgres[number]
		if postgres.group != nil {
			periods, usedUp := postgres.group.throttled()
			u.periods, u.usedUp = u.periods+periods, u.usedUp+usedUp
		}
	}
	if u.gateway, _, err = l.through.usage(ctx); err != nil {
		return u, err
	}
	u.server += u.gateway
	u.client, u.at = load.OwnCPU(), time.Now()
	return u, nil
}

// turn has the clients work for so long after a warm-up.
func (l *cellsLoad) turn(ctx context.Context, warmup, duration time.Duration) error {
	for number, clients := range l.on {
		defer clients.Work(ctx, l.cycles[number])()
	}
	if !load.Pause(ctx, warmup) {
		return ctx.Err()
	}
	l.take()
	before, err := l.usage(ctx)
	if err != nil {
		return err
	}
	if !load.Pause(ctx, duration) {
		return ctx.Err()
	}
	counts := l.take()
	after, err := l.usage(ctx)
	if err != nil {
		return err
	}
	l.add(counts, counts.Events[load.Ack], before.turnReading, after.turnReading)
	l.gateway += after.gateway - before.gateway
	l.periods, l.usedUp = l.periods+after.periods-before.periods, l.usedUp+after.usedUp-before.usedUp
	for number := range l.postgresCPU {
		l.postgresCPU[number] += after.postgres[number] - before.postgres[number]
	}
	return nil
}

// take returns everything since the last take, of all cells.
func (l *cellsLoad) take() *load.Counts {
	sum := load.NewCounts()
	for _, clients := range l.on {
		sum.Add(clients.Meter.Take())
	}
	return sum
}

// fill adds what only this workload measures: which of the processes has used what, and whether PostgreSQL was held back, which the ratio relies on.
func (l *cellsLoad) fill(result *report.Result) {
	result.Values["gateway_us_per_event"] = float64(l.gateway.Microseconds()) / float64(max(l.events, 1))
	for number, used := range l.postgresCPU {
		result.Values[fmt.Sprintf("postgresql_%d_cores", number)] = used.Seconds() / result.Seconds
	}
	if l.periods > 0 {
		result.Values["postgresql_held_back_percent"] = float64(l.usedUp) / float64(l.periods) * 100
	}
}

// balance claims and acks the events left, and adds up those of all cells.
func (l *cellsLoad) balance(ctx context.Context, s *session) (*load.Balance, error) {
	sum := new(load.Balance)
	for number, queue := range l.queues {
		s.progress.show("accounting for the events of %s", queue)
		b, err := s.drain(ctx, l.through, queue, l.on[number].Account)
		if err != nil {
			return nil, err
		}
		sum.Add(*b)
	}
	return sum, nil
}

// free lets each PostgreSQL use as many processors as it likes.
func (f *fleet) free() error {
	for _, postgres := range f.postgres {
		if postgres.group == nil {
			continue
		}
		if err := postgres.group.hold(0); err != nil {
			return err
		}
	}
	return nil
}
