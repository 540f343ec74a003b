package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

const (
	// upkeepSuspended is how long a task may not have been done by any process before that is logged.
	upkeepSuspended = 3 * time.Hour
	// upkeepTries is how often a step is tried that would have to wait for a lock, or for another process that does it.
	upkeepTries = 30
	// upkeepBatch is how many rows one statement deletes, so that each commit stays short.
	upkeepBatch = 1000
)

// UpkeepStats describes a task of upkeep.
type UpkeepStats struct {
	Task     string
	Failures int64     // of this process
	Done     time.Time // when any process last did it to its end, by this process's clock; zero: not known
}

// An upkeepTask is done now and then, in steps, each in a short transaction of its own. One that fails stops no other.
type upkeepTask struct {
	UpkeepStats // guarded by upkeep.mu
	do          func(context.Context) error
	hasFailed   bool // the last time; the loop's
}

// upkeep is the tasks of this service.
type upkeep struct {
	tasks []*upkeepTask
	mu    sync.Mutex
}

func (s *Service) addUpkeepTasks() {
	add := func(name string, do func(context.Context) error) {
		s.upkeep.tasks = append(s.upkeep.tasks, &upkeepTask{UpkeepStats: UpkeepStats{Task: name}, do: do})
	}
	add("partitions", s.prepareHistory)
	if s.cfg.Retention > 0 {
		add("retention", s.dropOldHistory)
	}
	add("queue_history", s.deleteBatches(`select agent.prune_history($1)`))
	add("keys", s.deleteBatches(`select agent.prune_keys($1)`))
	add("raw_bodies", s.deleteBatches(`select agent.prune_raw_bodies($1)`))
	add("redrives", s.deleteBatches(`select agent.prune_redrives($1)`))
	add("queue_samples", s.deleteBatches(`select agent.prune_queue_samples($1)`))
	add("deliveries", s.deleteBatches(`select agent.prune_deliveries($1)`))
	add("groups", s.pruneGroups)
	add("executions", s.oneStep(`select agent.prune_executions()`))
}

// Upkeep describes the tasks of upkeep.
func (s *Service) Upkeep() (all []UpkeepStats) {
	s.upkeep.mu.Lock()
	defer s.upkeep.mu.Unlock()
	for _, task := range s.upkeep.tasks {
		all = append(all, task.UpkeepStats)
	}
	return all
}

// doUpkeep does all tasks, or, after some have failed, these.
func (s *Service) doUpkeep(ctx context.Context) error {
	isRetry := slices.ContainsFunc(s.upkeep.tasks, func(task *upkeepTask) bool { return task.hasFailed })
	var failed []error
	for _, task := range s.upkeep.tasks {
		if isRetry && !task.hasFailed {
			continue
		}
		err := task.do(ctx)
		if err == nil {
			_, err = s.loops.Exec(ctx, `select agent.record_upkeep($1)`, task.Task)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if task.hasFailed = err != nil; err != nil {
			failed = append(failed, wrap(task.Task, err))
			s.upkeep.mu.Lock()
			task.Failures++
			s.upkeep.mu.Unlock()
		}
	}
	return errors.Join(append(failed, s.checkUpkeep(ctx))...)
}

// checkUpkeep looks how long ago each task was last done, by whatever process, and says so when that is too long.
func (s *Service) checkUpkeep(ctx context.Context) error {
	rows, _ := s.loops.Query(ctx, `select task, age from agent.list_upkeep()`)
	ages := make(map[string]time.Duration)
	var (
		name string
		age  time.Duration
	)
	if _, err := pgx.ForEachRow(rows, []any{&name, &age}, func() error { ages[name] = age; return nil }); err != nil {
		return wrap("looking when upkeep was last done", err)
	}
	s.upkeep.mu.Lock()
	defer s.upkeep.mu.Unlock()
	for _, task := range s.upkeep.tasks {
		age, isKnown := ages[task.Task]
		if !isKnown {
			continue
		}
		task.Done = time.Now().Add(-age)
		if age > upkeepSuspended {
			s.cfg.Logger.Warn().Str("task", task.Task).Str("age", age.Round(time.Second).String()).
				Msg("upkeep is suspended: no process has done this task for long")
		}
	}
	return nil
}

// steps runs the steps of a task until one is the last. It repeats a step that would have to wait, and pauses after each for as long as it took, to
// leave the database to others.
func (s *Service) steps(ctx context.Context, step func() (isLast bool, err error)) error {
	tries := 1
	for {
		start := time.Now()
		isLast, err := step()
		pause := time.Since(start)
		switch {
		case pg.LostRace(err) && tries < upkeepTries:
			tries++
			pause = pg.Jittered(s.cfg.UpkeepStepRetry)
		case err != nil || isLast:
			return err
		default:
			tries = 1
		}
		if !pg.Pause(ctx, pause) {
			return ctx.Err()
		}
	}
}

// oneStep returns a function that runs a statement as the one step of a task.
func (s *Service) oneStep(sql string) func(context.Context) error {
	return func(ctx context.Context) error {
		return s.steps(ctx, func() (bool, error) {
			_, err := s.loops.Exec(ctx, sql)
			return true, err
		})
	}
}

// deleteBatches returns a function that runs a statement, which deletes up to $1 rows and returns how many it did, until these are fewer.
func (s *Service) deleteBatches(sql string, args ...any) func(context.Context) error {
	args = append([]any{upkeepBatch}, args...)
	return func(ctx context.Context) error {
		return s.steps(ctx, func() (bool, error) {
			var n int64
			err := s.loops.QueryRow(ctx, sql, args...).Scan(&n)
			return n < upkeepBatch, err
		})
	}
}

// pruneGroups removes the groups that have nothing.
func (s *Service) pruneGroups(ctx context.Context) error {
	var queue, key string
	return s.steps(ctx, func() (bool, error) {
		err := s.loops.QueryRow(ctx, `select queue, key from agent_service.prune_groups($1, $2, $3)`, queue, key, upkeepBatch).Scan(&queue, &key)
		if errors.Is(err, pgx.ErrNoRows) {
			return true, nil
		}
		return false, err
	})
}

// prepareHistory has partitions ready for the weeks around now.
func (s *Service) prepareHistory(ctx context.Context) error {
	return s.steps(ctx, func() (bool, error) {
		var action, name string
		err := s.loops.QueryRow(ctx, `select action, name from agent.prepare_history()`).Scan(&action, &name)
		if errors.Is(err, pgx.ErrNoRows) {
			return true, nil
		}
		if err == nil && action == "made" {
			s.cfg.Logger.Info().Str("partition", name).Msg("made a partition of history")
		}
		return false, err
	})
}

// dropOldHistory drops history older than the retention: chunks or partitions each by itself, and rows of the default partition in batches.
func (s *Service) dropOldHistory(ctx context.Context) error {
	rows, _ := s.loops.Query(ctx, `select o from agent.old_history($1) o`, s.cfg.Retention)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	failed := []error{err}
	for _, name := range names {
		err := s.steps(ctx, func() (gone bool, err error) {
			err = s.loops.QueryRow(ctx, `select agent.drop_history($1, $2)`, name, s.cfg.Retention).Scan(&gone)
			return gone, err
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("dropping %s: %w", name, err)) // the others go all the same
		} else {
			s.cfg.Logger.Info().Str("partition", name).Msg("dropped a partition of history")
		}
	}
	failed = append(failed, s.deleteBatches(`select agent.delete_old_history($2, $1)`, s.cfg.Retention)(ctx))
	return errors.Join(failed...)
}
