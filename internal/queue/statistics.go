package queue

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
)

// Counters counts events of one queue.
type Counters struct {
	Queue                                                                                         string
	Inserted, Claimed, Released, Acked, Nacked, Failed, Expired, Requeued, DeadLettered, Redriven int64
	Waits                                                                                         Durations // from when events were due to their first claim
	Processing                                                                                    Durations // from the last claim of events to their ack, or to the nack that ended them
}

// add adds the counts of another one.
func (c *Counters) add(o *Counters) {
	c.Inserted += o.Inserted
	c.Claimed += o.Claimed
	c.Released += o.Released
	c.Acked += o.Acked
	c.Nacked += o.Nacked
	c.Failed += o.Failed
	c.Expired += o.Expired
	c.Requeued += o.Requeued
	c.Redriven += o.Redriven
	c.DeadLettered += o.DeadLettered
	c.Waits.add(&o.Waits)
	c.Processing.add(&o.Processing)
}

const (
	// maxCounted is how many queues have counters of their own: those that something happened in the latest.
	maxCounted = 500
	// OtherQueues stands for all queues that have no counters of their own any more. A queue of this name is counted among them.
	OtherQueues = "other"
)

// counters counts events by queue since the service was opened.
type counters struct {
	mu      sync.Mutex
	byQueue map[string]*counted
	others  Counters // the counts of those that were dropped
	adds    int64    // how often something was added
}

type counted struct {
	Counters
	used int64 // the latest of counters.adds
}

// add adds to the counts of a queue.
func (c *counters) add(queue string, done *Counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if queue == OtherQueues {
		c.addOthers(done)
		return
	}
	if c.byQueue == nil {
		c.byQueue = make(map[string]*counted)
	}
	n := c.byQueue[queue]
	if n == nil {
		n = &counted{Counters: Counters{Queue: queue}}
		c.byQueue[queue] = n
	}
	n.add(done)
	c.adds++
	n.used = c.adds
	if len(c.byQueue) <= maxCounted {
		return
	}
	oldest := n
	for _, other := range c.byQueue {
		if other.used < oldest.used {
			oldest = other
		}
	}
	delete(c.byQueue, oldest.Queue)
	c.addOthers(&oldest.Counters)
}

// addOthers adds to the counts of the queues that have none of their own. The caller holds mu.
func (c *counters) addOthers(done *Counters) {
	c.others.add(done)
	c.others.Queue = OtherQueues
}

// forget counts a queue among the others from now on.
func (c *counters) forget(queue string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.byQueue[queue]; n != nil {
		delete(c.byQueue, queue)
		c.addOthers(&n.Counters)
	}
}

// Counters returns the counts of this service since it was opened, by queue. The 500 queues that it has counted for the latest are there by
// themselves, the others together as OtherQueues: one that comes back counts from zero again.
func (s *Service) Counters() []Counters {
	s.counters.mu.Lock()
	defer s.counters.mu.Unlock()
	all := make([]Counters, 0, len(s.counters.byQueue)+1)
	if s.counters.others.Queue != "" {
		all = append(all, s.counters.others)
	}
	for _, n := range s.counters.byQueue {
		all = append(all, n.Counters)
	}
	slices.SortFunc(all, func(a, b Counters) int { return strings.Compare(a.Queue, b.Queue) })
	return all
}

const (
	// recordInterval is the time between two updates of this process's statistics of executions. Until then they are kept here, and then taken
	// along by an ack.
	recordInterval = time.Second
	// reportInterval is the time between two reports of this process's metrics.
	reportInterval = 5 * time.Second
	// processLife is how long a process counts as living after its last report.
	processLife = 6 * reportInterval
	// finalTimeout bounds each of the statements that a process sends as it ends.
	finalTimeout = 2 * time.Second
)

// executionKey names a row of the statistics of executions.
type executionKey struct{ typ, worker string }

// executionSum is the sum of attempts that ended well, to be added to a row of the statistics.
type executionSum struct {
	cycles                          int64
	total, fastest, longest, latest time.Duration
}

// addExecution adds attempts that ended later than those that sums has of the key.
func addExecution(sums map[executionKey]*executionSum, key executionKey, later executionSum) {
	sum := sums[key]
	if sum == nil {
		sums[key] = &later
		return
	}
	sum.cycles += later.cycles
	sum.total += later.total
	sum.fastest = min(sum.fastest, later.fastest)
	sum.longest = max(sum.longest, later.longest)
	sum.latest = later.latest
}

// executions are those that the database does not know of yet.
type executions struct {
	mu      sync.Mutex
	sums    map[executionKey]*executionSum
	written time.Time
}

// add counts executions.
func (e *executions) add(sums map[executionKey]*executionSum) {
	if len(sums) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sums == nil {
		e.sums = make(map[executionKey]*executionSum)
	}
	for key, sum := range sums {
		addExecution(e.sums, key, *sum)
	}
}

// take returns the sums to write, or nil when some were taken within interval.
func (e *executions) take(interval time.Duration) map[executionKey]*executionSum {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.sums) == 0 || time.Since(e.written) < interval {
		return nil
	}
	sums := e.sums
	e.sums, e.written = nil, time.Now()
	return sums
}

// restore takes back sums that could not be written.
func (e *executions) restore(sums map[executionKey]*executionSum) {
	if len(sums) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, later := range e.sums {
		addExecution(sums, key, *later)
	}
	e.sums = sums
}

const recordSQL = `select agent_service.record_executions($1, $2, $3, $4, $5, $6, $7, $8)`

func (s *Service) recordArgs(sums map[executionKey]*executionSum) []any {
	var (
		types, workers                  []string
		total, fastest, longest, latest []time.Duration
		cycles                          []int64
	)
	for key, sum := range sums {
		types, workers = append(types, key.typ), append(workers, key.worker)
		total, fastest, longest, latest = append(total, sum.total), append(fastest, sum.fastest), append(longest, sum.longest), append(latest, sum.latest)
		cycles = append(cycles, sum.cycles)
	}
	return []any{types, workers, total, s.name, cycles, fastest, longest, latest}
}

// record writes the statistics of executions, unless that was done within interval. It outlives ctx's cancellation, for limit at most: a write that is cut off may be committed all the
// same, and its sums would be added twice.
func (s *Service) record(ctx context.Context, interval, limit time.Duration) error {
	sums := s.executions.take(interval)
	if len(sums) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	if _, err := s.loops.Exec(ctx, recordSQL, s.recordArgs(sums)...); err != nil {
		s.executions.restore(sums)
		return wrap("recording executions", err)
	}
	return nil
}

// recordLeft writes the statistics that no ack took along.
func (s *Service) recordLeft(ctx context.Context) error {
	return s.record(ctx, 2*recordInterval, s.cfg.QueryTimeout)
}

// recordLast writes the statistics that are left.
func (s *Service) recordLast(ctx context.Context) {
	if err := s.record(ctx, 0, finalTimeout); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the statistics of the latest executions are lost")
	}
}

// Executions returns the statistics of executions by type and worker, of one type or worker only unless that is nil. Executions of other
// processes are there about two seconds after their end at most.
func (s *Service) Executions(ctx context.Context, typ, worker *string) ([]Execution, error) {
	if err := s.record(ctx, 0, s.cfg.QueryTimeout); err != nil {
		return nil, err
	}
	all, err := shortCall(ctx, &s.pools, pg.Collect[Execution], `
		select type, worker, cycles, latest, average, fastest, longest, total, latest_at
		from agent.list_executions($1, $2)`, typ, worker)
	return all, wrap("reading the statistics of executions", err)
}

// report writes this process's metrics to the database.
func (s *Service) report(ctx context.Context) error {
	var sum Counters
	for _, c := range s.Counters() {
		sum.add(&c)
	}
	var categories, values []string
	for category, value := range map[string]any{
		MetricVersion:  s.cfg.SchemaVersion,
		MetricStarted:  s.started.UTC().Format(time.RFC3339Nano),
		MetricWaiting:  s.waiting(),
		MetricInserted: sum.Inserted,
		MetricClaimed:  sum.Claimed,
		MetricAcked:    sum.Acked,
		MetricNacked:   sum.Nacked,
		MetricFailed:   sum.Failed,
		MetricExpired:  sum.Expired,
		MetricReleased: sum.Released,
		MetricPusher:   s.isPusher.Load(),
	} {
		categories, values = append(categories, category), append(values, fmt.Sprint(value))
	}
	_, err := s.loops.Exec(ctx, `select agent_service.report_process($1, $2, $3, $4)`, s.name, s.processName(), categories, values)
	return wrap("reporting this process's metrics", err)
}

// processName tells people which process this is.
func (s *Service) processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// Name returns the id of this service among the Processes.
func (s *Service) Name() string { return s.name }

// ReportPusher has this service reported as one that pushes, or as one that does so no more: see package push.
func (s *Service) ReportPusher(ctx context.Context, isPusher bool) error {
	s.isPusher.Store(isPusher)
	return s.report(ctx)
}

// pruneProcesses prunes the processes that no longer report.
func (s *Service) pruneProcesses(ctx context.Context) error {
	_, err := s.loops.Exec(ctx, `select agent_service.prune_processes(_alive => $1)`, processLife)
	return wrap("pruning processes", err)
}

// endReports prunes this process, although ctx has ended.
func (s *Service) endReports(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalTimeout)
	defer cancel()
	if _, err := s.loops.Exec(ctx, `select agent_service.prune_processes($1, $2)`, s.name, processLife); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("could not remove this process from the list of processes: its entry expires by itself")
	}
}

// Processes returns the processes that live, this one as it stands.
func (s *Service) Processes(ctx context.Context) ([]Process, error) {
	if err := s.report(ctx); err != nil {
		return nil, err
	}
	rows, _ := s.loops.Query(ctx, `select id, process, category, value, updated_at from agent.list_processes($1)`, processLife)
	var (
		all             []Process
		p               Process
		category, value string
	)
	_, err := pgx.ForEachRow(rows, []any{&p.ID, &p.Name, &category, &value, &p.UpdatedAt}, func() error {
		if len(all) == 0 || all[len(all)-1].ID != p.ID {
			p.Metrics = make(map[string]string)
			all = append(all, p)
		}
		all[len(all)-1].Metrics[category] = value
		return nil
	})
	return all, wrap("listing processes", err)
}
