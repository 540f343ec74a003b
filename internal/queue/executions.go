package queue

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

// recordInterval is the time between two updates of this process's statistics of executions. Until then they are kept here, and
// then taken along by an ack.
const recordInterval = time.Second

// execution is one attempt that ended well.
type execution struct {
	typ, worker string
	took        time.Duration
}

// executionKey names a row of the statistics.
type executionKey struct{ typ, worker string }

// executionSum is what a row of the statistics gains.
type executionSum struct {
	cycles                          int64
	total, fastest, longest, latest time.Duration
}

// add counts what ended later as well.
func (e *executionSum) add(later executionSum) {
	if e.cycles == 0 {
		*e = later
		return
	}
	e.cycles += later.cycles
	e.total += later.total
	e.fastest = min(e.fastest, later.fastest)
	e.longest = max(e.longest, later.longest)
	e.latest = later.latest
}

// executions are the executions that the database does not know of yet.
type executions struct {
	mu      sync.Mutex
	sums    map[executionKey]*executionSum
	written time.Time
}

// add counts executions.
func (e *executions) add(done []execution) {
	if len(done) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var key executionKey
	var sum *executionSum
	for _, d := range done {
		if k := (executionKey{d.typ, d.worker}); sum == nil || k != key { // most often they are of one kind
			key, sum = k, e.sum(k)
		}
		sum.add(executionSum{cycles: 1, total: d.took, fastest: d.took, longest: d.took, latest: d.took})
	}
}

// sum returns the sum of a key. The caller holds mu.
func (e *executions) sum(key executionKey) *executionSum {
	if e.sums == nil {
		e.sums = make(map[executionKey]*executionSum)
	}
	if e.sums[key] == nil {
		e.sums[key] = new(executionSum)
	}
	return e.sums[key]
}

// take returns what is to be written, or nothing when that was done within interval.
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

// restore takes back what could not be written.
func (e *executions) restore(sums map[executionKey]*executionSum) {
	if len(sums) == 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, earlier := range sums {
		if later := e.sums[key]; later != nil {
			earlier.add(*later)
		}
		*e.sum(key) = *earlier
	}
}

// queueRecord takes the statistics along with acks, when it is time to, and returns them.
func (fl *flush) queueRecord() map[executionKey]*executionSum {
	if !fl.acks {
		return nil
	}
	sums := fl.svc.executions.take(recordInterval)
	if len(sums) > 0 {
		fl.batch.Queue(recordSQL, fl.svc.recordArgs(sums)...)
	}
	return sums
}

const recordSQL = `select agent.record_executions($1, $2, $3, $4, $5, $6, $7, $8)`

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

// record writes the statistics, unless that was done within interval.
func (s *Service) record(ctx context.Context, interval time.Duration) error {
	sums := s.executions.take(interval)
	if len(sums) == 0 {
		return nil
	}
	if _, err := s.loops.Exec(ctx, recordSQL, s.recordArgs(sums)...); err != nil {
		s.executions.restore(sums)
		return wrap("recording executions", err)
	}
	return nil
}

// recordLoop writes the statistics that no ack took along, until ctx ends.
func (s *Service) recordLoop(ctx context.Context) error {
	for loop.Pause(ctx, recordInterval) {
		if err := s.record(ctx, 2*recordInterval); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn().Err(err).Msg("the statistics of executions could not be written; it is tried again")
		}
	}
	return nil
}

// recordLast writes the statistics that are left. It outlives ctx's cancellation.
func (s *Service) recordLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	if err := s.record(ctx, 0); err != nil {
		s.cfg.Logger.Warn().Err(err).Msg("the statistics of the latest executions are lost")
	}
}

// Executions returns the statistics of executions by type and worker, of one type or worker only unless that is nil. What other processes
// have finished is there about two seconds later at most.
func (s *Service) Executions(ctx context.Context, typ, worker *string) ([]Execution, error) {
	if err := s.record(ctx, 0); err != nil {
		return nil, err
	}
	rows, _ := s.calls.Query(ctx, `
		select type, worker, cycles, latest, average, fastest, longest, total, latest_at
		from agent.list_executions($1, $2)`, typ, worker)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e Execution, err error) {
		err = row.Scan(&e.Type, &e.Worker, &e.Cycles, &e.Latest, &e.Average, &e.Fastest, &e.Longest, &e.Total, &e.LatestAt)
		return e, err
	})
	return all, wrap("reading the statistics of executions", err)
}
