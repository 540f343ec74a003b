package workloads

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/load"
	"github.com/queued/queued/bench/report"
)

// Adapters is job queues side by side, by their adapters for postgresql-job-queue-benchmarking: programs that insert and work jobs on a database, as their environment
// says, and write samples. They take turns, in an order that changes from round to round, each on a new database of one PostgreSQL, which is started here: it is killed, too.
type Adapters struct {
	Adapters []string `placeholder:"NAME=FILE" help:"Adapters, each a program; without any that of queued, which is built."`
	Parts    []string `default:"max,held,worker,postgres" placeholder:"PART" help:"What is measured: max (as many jobs as go), held (a steady rate, and beside a transaction that is held), worker and postgres (killed)."`
	Rounds   int      `default:"1" placeholder:"N" help:"How many turns each adapter gets with each part."`

	Workers     int           `default:"32" most:"10000" placeholder:"N" help:"How many jobs an adapter works at a time (WORKER_COUNT)."`
	Batch       int           `default:"128" placeholder:"N" help:"How many jobs an adapter inserts at once, at most (PRODUCER_BATCH_MAX)."`
	WorkMillis  int           `default:"1" least:"0" placeholder:"N" help:"How long each job takes, in milliseconds (JOB_WORK_MS)."`
	Rate        int           `default:"300" placeholder:"N" help:"Jobs a second, in all parts but max (PRODUCER_RATE)."`
	Depth       int           `default:"1000" placeholder:"N" help:"How many jobs are kept waiting in the part max (TARGET_DEPTH)."`
	SampleEvery time.Duration `default:"1s" help:"Time between samples, in whole seconds (SAMPLE_EVERY_S)."`

	Clean    time.Duration `default:"10s" help:"How long the part max takes, after the warm-up."`
	Before   time.Duration `default:"10s" help:"How long the steady rate goes on, after the warm-up, before a transaction is held or something is killed."`
	Hold     time.Duration `default:"20s" help:"How long the transaction is held."`
	After    time.Duration `default:"10s" help:"How long the steady rate goes on afterwards."`
	Recovery time.Duration `default:"30s" help:"How long the steady rate goes on after a kill."`
	Drain    time.Duration `default:"2m" help:"How long the jobs left may take that the kill has caught, when no more are inserted."`
}

func (*Adapters) name() string { return "adapters" }

// adapterParts are the parts by their names.
var adapterParts = map[string]func(*Adapters, context.Context, *adapterTurn) error{
	"max": (*Adapters).measureMost, "held": (*Adapters).measureHeld, "worker": (*Adapters).killWorker, "postgres": (*Adapters).killPostgres,
}

func (w *Adapters) check(cfg Config) error {
	for _, adapter := range w.Adapters {
		if name, file, _ := strings.Cut(adapter, "="); name == "" || file == "" {
			return Invalidf("--adapters: got %q; expected NAME=FILE", adapter)
		}
	}
	for _, part := range w.Parts {
		if adapterParts[part] == nil {
			return Invalidf("--parts: got %q; expected max, held, worker or postgres, separated by commas", part)
		}
	}
	if w.SampleEvery%time.Second != 0 {
		return Invalidf("--sample-every: got %s; expected whole seconds", w.SampleEvery)
	}
	return needOwnServers(cfg)
}

// adapterSide is one of the adapters.
type adapterSide struct{ name, program string }

// adapterTurn is one part of one adapter: a process on a new database.
type adapterTurn struct {
	*session
	label    string // of the part and the adapter
	side     adapterSide
	server   *ownPostgres
	postgres *Postgres
	url      string // of the database
	control  string
	settings []string
	adapter  *adapterProcess
}

// adapterTables are the tables of the report, in order.
const (
	ratesTable = iota
	killsTable
)

func (w *Adapters) run(ctx context.Context, s *session) (err error) {
	var sides []adapterSide
	for _, adapter := range w.Adapters {
		name, program, _ := strings.Cut(adapter, "=")
		path, err := filepath.Abs(program)
		if err != nil {
			return err
		}
		sides = append(sides, adapterSide{name, path})
	}
	if len(sides) == 0 {
		program, remove, err := buildAdapter(ctx)
		if err != nil {
			return err
		}
		defer remove()
		sides = []adapterSide{{"queued", program}}
	}
	server, err := startPostgres(ctx, 0, s.cancel)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close()) }()
	postgres, err := NewPostgres(server.url)
	if err != nil {
		return err
	}
	if err := postgres.Describe(ctx, &s.report.Machine); err != nil {
		return err
	}
	s.report.Tables = []report.Table{
		ratesTable: {
			Head: []string{
				"part", "adapter", "jobs/s", "inserted/s", "claim p50 ms", "p95", "p99", "waiting", "dead rows", "adapter µs", "its server µs", "PostgreSQL µs", "all µs",
			},
			Texts: 2, Note: "Processor time is for each job that was done; that of the adapter is without the server that it may have started.",
		},
		killsTable: {
			Head: []string{
				"killed", "adapter", "jobs", "lost", "inserted twice", "done", "failed", "left", "worked again", "at the rate after s", "all done after s", "stopped in s",
			},
			Texts: 2, Note: "Lost are jobs whose insert was confirmed and that the database does not have; left are those that are neither done nor failed in the end.",
		},
	}
	var versions []string
	var lost error
	for round := range w.Rounds {
		for _, part := range w.Parts {
			for _, side := range sides {
				t := &adapterTurn{session: s, label: part, side: side, server: server, postgres: postgres}
				if w.Rounds > 1 {
					t.label = fmt.Sprintf("%s %d", part, round+1)
				}
				version, err := w.turn(ctx, t, part)
				if version != "" && !slices.Contains(versions, version) {
					versions = append(versions, version)
					s.report.Machine.Queued = strings.Join(versions, ", ")
				}
				switch {
				case ctx.Err() != nil:
					return ctx.Err()
				case errors.Is(err, report.ErrBroken):
					lost = errors.Join(lost, fmt.Errorf("%s: %w", side.name, err))
				case err != nil: // a finding about this adapter; the others go on
					s.report.Failures = append(s.report.Failures, fmt.Sprintf("%s, %s: %s", t.label, side.name, err))
				}
			}
		}
		slices.Reverse(sides)
	}
	if n := len(s.report.Failures); n > 0 {
		return errors.Join(lost, fmt.Errorf("%s could not be measured", plural(n, "part")))
	}
	return lost
}

// buildAdapter builds the adapter of queued from this module. remove removes the program.
func buildAdapter(ctx context.Context) (program string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return "", nil, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	program = filepath.Join(dir, "adapter")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/queued/queued/bench/adapters/queued") //nolint:gosec // a folder of our own
	if output, err := cmd.CombinedOutput(); err != nil {
		remove()
		return "", nil, fmt.Errorf("building the adapter (run this in bench/, or give --adapters): %w\n%s", err, output)
	}
	return program, remove, nil
}

// turn runs one part of one adapter on a new database and returns what the adapter calls itself.
func (w *Adapters) turn(ctx context.Context, t *adapterTurn, part string) (version string, err error) {
	t.progress.show("%s: starting %s", t.label, t.side.name)
	name, url, err := t.postgres.Create(ctx)
	if err != nil {
		return "", err
	}
	t.url = url
	defer func() { err = errors.Join(err, t.postgres.Drop(ctx, name)) }()
	if err := t.postgres.Checkpoint(ctx); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "queued-bench-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	t.control = filepath.Join(dir, "rate")
	if err := writeRate(t.control, 0); err != nil {
		return "", err
	}
	mode := "fixed"
	if part == "max" {
		mode = "depth-target"
	}
	t.settings = []string{
		"QUEUED_BENCH_PROGRAM=" + t.cfg.Program, "PRODUCER_MODE=" + mode, "PRODUCER_RATE=0",
		"PRODUCER_BATCH_MAX=" + strconv.Itoa(w.Batch), "TARGET_DEPTH=" + strconv.Itoa(w.Depth), "WORKER_COUNT=" + strconv.Itoa(w.Workers),
		"JOB_PAYLOAD_BYTES=" + strconv.Itoa(t.cfg.Payload), "JOB_WORK_MS=" + strconv.Itoa(w.WorkMillis), "SAMPLE_EVERY_S=" + strconv.Itoa(int(w.SampleEvery.Seconds())),
	}
	if err := t.start(ctx); err != nil {
		return "", err
	}
	version = strings.TrimSpace(t.adapter.system + " " + t.adapter.version)
	err = adapterParts[part](w, ctx, t)
	if err != nil {
		_ = t.adapter.process.kill()
	}
	return version, err
}

// start starts the adapter.
func (t *adapterTurn) start(ctx context.Context) (err error) {
	// That it ends by itself is found out by whoever waits for it, and is a finding, not the end of the run.
	t.adapter, err = startAdapter(ctx, t.side.program, t.control, t.url, t.cfg.Environ, t.settings, func(error) {})
	return err
}

// measureMost measures as many jobs as go.
func (w *Adapters) measureMost(ctx context.Context, t *adapterTurn) error {
	if err := t.pause(ctx, t.cfg.Warmup); err != nil {
		return err
	}
	if err := w.observe(ctx, t, t.label, w.Clean); err != nil {
		return err
	}
	_, err := t.adapter.stop()
	return err
}

// measureHeld measures a steady rate before, while and after a transaction is held.
func (w *Adapters) measureHeld(ctx context.Context, t *adapterTurn) error {
	if err := w.atRate(ctx, t, t.cfg.Warmup); err != nil {
		return err
	}
	if err := w.observe(ctx, t, t.label+": before", w.Before); err != nil {
		return err
	}
	if err := w.holding(ctx, t); err != nil {
		return err
	}
	if err := w.observe(ctx, t, t.label+": after", w.After); err != nil {
		return err
	}
	_, err := t.adapter.stop()
	return err
}

// holding measures while a transaction that has written is idle.
func (w *Adapters) holding(ctx context.Context, t *adapterTurn) (err error) {
	conn, err := connect(ctx, t.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if _, err := conn.Exec(ctx, "begin; select pg_current_xact_id()"); err != nil {
		return err
	}
	const lastPart = 5 // the last fifth is measured apart: the first jobs notice nothing
	last := w.Hold / lastPart
	if err := w.observe(ctx, t, t.label+": meanwhile", w.Hold-last); err != nil {
		return err
	}
	return w.observe(ctx, t, t.label+": last fifth", last)
}

// atRate sets the rate, once the adapter writes samples, and waits.
func (w *Adapters) atRate(ctx context.Context, t *adapterTurn, d time.Duration) error {
	if _, err := t.adapter.nextTick(ctx, w.SampleEvery); err != nil {
		return err
	}
	if err := t.adapter.setRate(float64(w.Rate)); err != nil {
		return err
	}
	return t.pause(ctx, d)
}

// pause waits as long as the adapter runs.
func (t *adapterTurn) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.adapter.process.ended:
		return t.adapter.process.failure()
	case <-timer.C:
		return nil
	}
}

// latencyWindow is the time that percentiles of adapters are about.
const latencyWindow = 30 * time.Second

// observe measures for so long, from one sample to another, and adds a row to the table.
func (w *Adapters) observe(ctx context.Context, t *adapterTurn, label string, d time.Duration) error {
	t.progress.show("%s: %s, for %s", label, t.side.name, d)
	begin, err := t.adapter.nextTick(ctx, w.SampleEvery)
	if err != nil {
		return err
	}
	all, children := t.adapter.cpu()
	sql := t.server.cpu()
	if err := t.pause(ctx, d-w.SampleEvery/2); err != nil { // the next sample is the last
		return err
	}
	if _, err = t.adapter.nextTick(ctx, w.SampleEvery); err != nil {
		return err
	}
	allAfter, childrenAfter := t.adapter.cpu()
	sql = t.server.cpu() - sql
	all, children = allAfter-all, childrenAfter-children
	ticks := t.adapter.since(begin)
	seconds := ticks[len(ticks)-1].at.Sub(begin).Seconds()
	done, inserted := jobsOf(completionRate, begin, ticks), jobsOf(enqueueRate, begin, ticks)
	row := []string{label, t.side.name}
	add := func(what string, value float64, digits int) {
		row = append(row, strconv.FormatFloat(value, 'f', digits, 64))
		t.report.AddNumber(0, fmt.Sprintf("%s, %s, %s", t.side.name, label, what), value, "")
	}
	add("jobs/s", done/seconds, 0)
	add("inserted/s", inserted/seconds, 0)
	for _, metric := range claimMetrics {
		add(metric, percentileOf(metric, begin, ticks), 1)
	}
	add("waiting", ticks[len(ticks)-1].values[queueDepth], 0)
	dead, err := t.deadRows(ctx)
	if err != nil {
		return err
	}
	add("dead rows", dead, 0)
	for _, used := range []struct {
		what string
		time time.Duration
	}{{"adapter", all - children}, {"its server", children}, {"PostgreSQL", sql}, {"all", all + sql}} {
		add(used.what+" µs/job", float64(used.time.Microseconds())/max(done, 1), 0)
	}
	t.report.Tables[ratesTable].Rows = append(t.report.Tables[ratesTable].Rows, row)
	return nil
}

// jobsOf sums up a rate over ticks.
func jobsOf(metric string, begin time.Time, ticks []tick) (jobs float64) {
	for _, t := range ticks {
		jobs += t.values[metric] * t.at.Sub(begin).Seconds()
		begin = t.at
	}
	return jobs
}

// percentileOf is the median of a percentile, of the ticks whose window has nothing of what was before; if there is none, the last one's.
func percentileOf(metric string, begin time.Time, ticks []tick) float64 {
	var values []float64
	for _, t := range ticks {
		if t.at.Sub(begin) >= latencyWindow {
			values = append(values, t.values[metric])
		}
	}
	if len(values) == 0 {
		return ticks[len(ticks)-1].values[metric]
	}
	return report.Median(values)
}

// deadRows is how many dead rows PostgreSQL knows of in the database.
func (t *adapterTurn) deadRows(ctx context.Context) (dead float64, err error) {
	return dead, t.query(ctx, "select coalesce(sum(n_dead_tup), 0)::float8 from pg_stat_user_tables", &dead)
}

// query runs a statement that returns one row.
func (t *adapterTurn) query(ctx context.Context, statement string, out ...any) (err error) {
	conn, err := connect(ctx, t.url)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return conn.QueryRow(ctx, statement).Scan(out...)
}

// adapterJobs are, by system, all jobs of a database: their ids, which grow, the number that their producer gave them, how often they were begun, and whether they are done, failed
// or left. Adapters number what they insert from 0, in order, and an insert that failed leaves no gap.
var adapterJobs = map[string]string{
	"queued": `select id, (event ->> 'seq')::int8 as seq, attempts, 'left' as state from agent.event
		union all select id, (event ->> 'seq')::int8, attempts, case outcome when 'done' then 'done' else 'failed' end from agent.event_hist`,
	"river": `select id, (args ->> 'seq')::int8 as seq, attempt as attempts,
		case when state = 'completed' then 'done' when state in ('discarded', 'cancelled') then 'failed' else 'left' end as state from river_job`,
}

// killWorker kills the adapter, with what it has started, and starts it again at once.
func (w *Adapters) killWorker(ctx context.Context, t *adapterTurn) error {
	return w.kill(ctx, t, func(context.Context) (int64, error) {
		if err := t.adapter.process.kill(); err != nil {
			return 0, err
		}
		last, err := t.lastID(ctx)
		if err == nil {
			err = t.start(ctx)
		}
		return last, err
	})
}

// lastID is the id of the last job, once no session of the adapter that was killed is left.
func (t *adapterTurn) lastID(ctx context.Context) (last int64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stopLimit, fmt.Errorf("sessions of the killed adapter are left after %s", stopLimit))
	defer cancel()
	for {
		var sessions int
		err := t.query(ctx, "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'", &sessions)
		if err != nil {
			return 0, err
		}
		if sessions == 0 {
			return last, t.query(ctx, "select coalesce(max(id), 0) from ("+adapterJobs[t.adapter.system]+") jobs", &last)
		}
		if !load.Pause(ctx, pollInterval) {
			return 0, context.Cause(ctx)
		}
	}
}

// killPostgres kills PostgreSQL, and starts it again at once.
func (w *Adapters) killPostgres(ctx context.Context, t *adapterTurn) error {
	return w.kill(ctx, t, func(ctx context.Context) (int64, error) {
		return -1, t.server.crash(ctx, t.cancel)
	})
}

// kill measures what comes of a kill, which returns when what was killed runs again: the id of the last job of a producer that was killed, or -1.
func (w *Adapters) kill(ctx context.Context, t *adapterTurn, kill func(context.Context) (int64, error)) error {
	if adapterJobs[t.adapter.system] == "" {
		return fmt.Errorf("how the jobs of %s are counted is not known here", t.adapter.system)
	}
	if err := w.atRate(ctx, t, t.cfg.Warmup+w.Before); err != nil {
		return err
	}
	t.progress.show("%s: killed, %s", t.label, t.side.name)
	killed := time.Now()
	last, err := kill(ctx)
	if err != nil {
		return err
	}
	if err := t.pause(ctx, w.Recovery); err != nil {
		return err
	}
	recovered := "-"
	for _, tick := range t.adapter.since(killed.Add(w.SampleEvery)) { // the first tick may be of before
		if tick.values[completionRate] >= 0.9*float64(w.Rate) {
			recovered = fmt.Sprintf("%.0f", tick.at.Sub(killed).Seconds())
			break
		}
	}
	if err := w.drain(ctx, t); err != nil {
		return err
	}
	drained := time.Since(killed)
	stopped, err := t.adapter.stop()
	if err != nil {
		return err
	}
	balance, err := t.balance(ctx, last)
	if err != nil {
		return err
	}
	row := []string{t.label, t.side.name}
	for i, what := range []string{"jobs", "lost", "inserted twice", "done", "failed", "left", "worked again"} {
		row = append(row, strconv.FormatInt(balance[i], 10))
		t.report.AddNumber(0, fmt.Sprintf("%s, %s killed, %s", t.side.name, t.label, what), float64(balance[i]), "")
	}
	all := "-"
	if left := balance[5]; left == 0 {
		all = fmt.Sprintf("%.0f", drained.Seconds())
	}
	row = append(row, recovered, all, fmt.Sprintf("%.1f", stopped.Seconds()))
	t.report.Tables[killsTable].Rows = append(t.report.Tables[killsTable].Rows, row)
	return lostJobs(balance[1])
}

// lostJobs is an error if there are any.
func lostJobs(n int64) error {
	if n == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", report.ErrBroken, plural(int(n), "job"))
}

// drain has the adapter insert no more, and waits until no job is left, or for so long.
func (w *Adapters) drain(ctx context.Context, t *adapterTurn) error {
	t.progress.show("%s: no more jobs for %s", t.label, t.side.name)
	if err := t.adapter.setRate(0); err != nil {
		return err
	}
	for {
		at, err := t.adapter.nextTick(ctx, w.SampleEvery)
		if err != nil {
			return err
		}
		if ticks := t.adapter.since(at.Add(-time.Nanosecond)); ticks[len(ticks)-1].values[enqueueRate] == 0 {
			break
		}
	}
	for began := time.Now(); time.Since(began) < w.Drain; {
		var left int
		err := t.query(ctx, "select count(*) from ("+adapterJobs[t.adapter.system]+") jobs where state = 'left'", &left)
		if err != nil || left == 0 {
			return err
		}
		if err := t.pause(ctx, time.Second/2); err != nil {
			return err
		}
	}
	return nil
}

// balance counts the jobs of the database: all, those that are lost, those that are there twice, done, failed and left, and those that were begun more than once. last is
// the id of the last job of the first of two producers; -1: there was one.
func (t *adapterTurn) balance(ctx context.Context, last int64) (counts [7]int64, err error) {
	conn, err := connect(ctx, t.url)
	if err != nil {
		return counts, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	rows, err := conn.Query(ctx, `with numbered as (select *, id <= $1 as is_first from (`+adapterJobs[t.adapter.system]+`) jobs)
		select count(*), max(seq) + 1 - count(distinct seq), count(*) - count(distinct seq),
			count(*) filter (where state = 'done'), count(*) filter (where state = 'failed'), count(*) filter (where state = 'left'), count(*) filter (where attempts > 1)
		from numbered group by is_first`, last)
	if err != nil {
		return counts, err
	}
	var of [7]int64
	_, err = pgx.ForEachRow(rows, []any{&of[0], &of[1], &of[2], &of[3], &of[4], &of[5], &of[6]}, func() error {
		for i, n := range of {
			counts[i] += n
		}
		return nil
	})
	return counts, err
}
