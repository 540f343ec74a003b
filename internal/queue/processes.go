package queue

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/loop"
)

const (
	// reportInterval is the time between two reports of this process's metrics.
	reportInterval = 5 * time.Second
	// processLife is how long a process counts as living after its last report.
	processLife = 6 * reportInterval
	// goodbyeTimeout bounds each of the statements that a process sends as it ends. None of them is worth waiting for longer.
	goodbyeTimeout = 2 * time.Second
)

// processName tells people which process this is.
func processName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
}

// metrics returns this process's metrics by category.
func (s *Service) metrics() (categories, values []string) {
	var sum Counters
	for _, c := range s.Counters() {
		sum.add(&c)
	}
	for _, m := range []struct {
		category string
		value    string
	}{
		{MetricVersion, s.cfg.SchemaVersion},
		{MetricStarted, s.started.UTC().Format(time.RFC3339Nano)},
		{MetricWaiting, strconv.Itoa(s.waiting())},
		{MetricPosted, strconv.FormatInt(sum.Inserted, 10)},
		{MetricClaimed, strconv.FormatInt(sum.Claimed, 10)},
		{MetricAcked, strconv.FormatInt(sum.Acked, 10)},
		{MetricNacked, strconv.FormatInt(sum.Nacked, 10)},
		{MetricFailed, strconv.FormatInt(sum.Failed, 10)},
		{MetricExpired, strconv.FormatInt(sum.Expired, 10)},
		{MetricReleased, strconv.FormatInt(sum.Released, 10)},
	} {
		categories, values = append(categories, m.category), append(values, m.value)
	}
	return categories, values
}

// waiting returns how many claims wait.
func (s *Service) waiting() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.dispatchers {
		d.mu.Lock()
		n += len(d.waiters)
		d.mu.Unlock()
	}
	return n
}

// report tells the database of this process's metrics.
func (s *Service) report(ctx context.Context) error {
	categories, values := s.metrics()
	_, err := s.loops.Exec(ctx, `select agent.report_process($1, $2, $3, $4)`, s.name, processName(), categories, values)
	return wrap("reporting this process's metrics", err)
}

// reportLoop reports until ctx ends, takes out processes that died without a word, and then this one.
func (s *Service) reportLoop(ctx context.Context) error {
	for {
		err := s.report(ctx)
		if err == nil {
			_, err = s.loops.Exec(ctx, `select agent.prune_processes(_alive => $1)`, processLife)
		}
		if err != nil && ctx.Err() == nil {
			s.cfg.Logger.Warn().Err(err).Msg("this process's metrics could not be reported; the next report is due as usual")
		}
		if !loop.Pause(ctx, loop.Jittered(reportInterval)) {
			break
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbyeTimeout)
	defer cancel()
	if _, err := s.loops.Exec(ctx, `select agent.prune_processes($1, $2)`, s.name, processLife); err != nil {
		s.cfg.Logger.Warn().Err(err).Msg("this process could not take itself out of the list: it leaves that by itself")
	}
	return nil
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
