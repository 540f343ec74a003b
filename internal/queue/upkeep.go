package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// An upkeepTask is done now and then, in steps, each in a short transaction of its own. One that fails
// stops no other.
type upkeepTask struct {
	name string
	do   func(context.Context) error
}

// upkeepTasks are the tasks of this service.
func (s *Service) upkeepTasks() []upkeepTask {
	tasks := []upkeepTask{{"partitions", s.prepareHistory}}
	if s.cfg.Retention > 0 {
		tasks = append(tasks, upkeepTask{"retention", s.dropOldHistory})
	}
	return append(tasks,
		upkeepTask{"queue_history", func(ctx context.Context) error { return s.deleteBatches(ctx, `select agent.prune_history($1)`) }},
		upkeepTask{"keys", func(ctx context.Context) error { return s.deleteBatches(ctx, `select agent.prune_keys($1)`) }},
		upkeepTask{"executions", s.oneStep(`select agent.prune_executions()`)},
		upkeepTask{"former_functions", s.oneStep(`select agent.drop_former_functions()`)},
	)
}

// upkeep is what is known of the tasks.
type upkeep struct {
	again []string // tasks that failed in the last round; the loop's

	mu     sync.Mutex
	byTask map[string]*UpkeepStats
}

// UpkeepStats describes a task of upkeep.
type UpkeepStats struct {
	Task     string
	Failures int64     // of this process
	Done     time.Time // when any process last did it to its end, by this process's clock
}

// note counts a failure of a task (or nil), and when it was last done, if that is known.
func (u *upkeep) note(task string, err error, done time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.byTask == nil {
		u.byTask = make(map[string]*UpkeepStats)
	}
	stats := u.byTask[task]
	if stats == nil {
		stats = &UpkeepStats{Task: task}
		u.byTask[task] = stats
	}
	if err != nil {
		stats.Failures++
	}
	if !done.IsZero() {
		stats.Done = done
	}
}

// Upkeep describes the tasks of upkeep that this service has come to, by name.
func (s *Service) Upkeep() []UpkeepStats {
	s.upkeep.mu.Lock()
	defer s.upkeep.mu.Unlock()
	all := make([]UpkeepStats, 0, len(s.upkeep.byTask))
	for _, task := range slices.Sorted(maps.Keys(s.upkeep.byTask)) {
		all = append(all, *s.upkeep.byTask[task])
	}
	return all
}

// doUpkeep does all tasks, or, after some have failed, these.
func (s *Service) doUpkeep(ctx context.Context) error {
	var failed []error
	var again []string
	for _, task := range s.upkeepTasks() {
		if len(s.upkeep.again) > 0 && !slices.Contains(s.upkeep.again, task.name) {
			continue
		}
		err := task.do(ctx)
		if err == nil {
			_, err = s.loops.Exec(ctx, `select agent.record_upkeep($1)`, task.name)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.upkeep.note(task.name, err, time.Time{})
		if err != nil {
			again = append(again, task.name)
			failed = append(failed, wrap(task.name, err))
		}
	}
	s.upkeep.again = again
	s.checkUpkeep(ctx)
	return errors.Join(failed...)
}

// checkUpkeep looks how long ago each task was last done, by whatever process, and says so when that is too long.
func (s *Service) checkUpkeep(ctx context.Context) {
	type done struct {
		Task string
		Age  time.Duration
	}
	rows, _ := s.loops.Query(ctx, `select task, age from agent.list_upkeep()`)
	all, err := pg.Collect[done](rows)
	if err != nil {
		if ctx.Err() == nil {
			s.cfg.Logger.Warn().Err(wrap("looking after upkeep", err)).Msg("when upkeep was last done is not known")
		}
		return
	}
	own := s.upkeepTasks()
	for _, done := range all {
		if !slices.ContainsFunc(own, func(task upkeepTask) bool { return task.name == done.Task }) {
			continue
		}
		s.upkeep.note(done.Task, nil, time.Now().Add(-done.Age))
		if done.Age > upkeepSuspended {
			s.cfg.Logger.Warn().Str("task", done.Task).Str("age", done.Age.Round(time.Second).String()).
				Msg("upkeep is suspended: no process has done this task for long")
		}
	}
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

// oneStep returns what runs a statement as the one step of a task.
func (s *Service) oneStep(sql string) func(context.Context) error {
	return func(ctx context.Context) error {
		return s.steps(ctx, func() (bool, error) {
			_, err := s.loops.Exec(ctx, sql)
			return true, err
		})
	}
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
			s.logUpkeep(action, name)
		}
		return false, err
	})
}

func (s *Service) logUpkeep(action, name string) {
	s.cfg.Logger.Info().Str("action", action).Str("what", name).Msg("history upkeep")
}

// dropOldHistory drops what is older than the retention: chunks or partitions each by itself, and what is in the default partition in batches.
func (s *Service) dropOldHistory(ctx context.Context) error {
	rows, _ := s.loops.Query(ctx, `select o from agent.old_history($1) o`, s.cfg.Retention)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		err := s.steps(ctx, func() (gone bool, err error) {
			err = s.loops.QueryRow(ctx, `select agent.drop_history($1, $2)`, name, s.cfg.Retention).Scan(&gone)
			return gone, err
		})
		if err != nil {
			failed = append(failed, fmt.Errorf("dropping %s: %w", name, err)) // the others go all the same
			continue
		}
		s.logUpkeep("dropped", name)
	}
	failed = append(failed, s.deleteBatches(ctx, `select agent.delete_old_history($2, $1)`, s.cfg.Retention))
	return errors.Join(failed...)
}

// deleteBatches runs a statement that deletes up to $1 rows and returns how many it did, until these are fewer.
func (s *Service) deleteBatches(ctx context.Context, sql string, args ...any) error {
	args = append([]any{upkeepBatch}, args...)
	return s.steps(ctx, func() (bool, error) {
		var n int64
		err := s.loops.QueryRow(ctx, sql, args...).Scan(&n)
		return n < upkeepBatch, err
	})
}
