package schedule

import (
	"context"
	"time"
)

// Fire fires up to limit schedules that are due, in one transaction, and returns them.
func Fire(ctx context.Context, s *Service, limit int) ([]int64, error) { return s.fire(ctx, limit) }

// LocalTimes returns up to n times of a recurrence rule from a time on, where it starts at start.
func LocalTimes(text string, start time.Time, leap Leap, from time.Time, n int) ([]time.Time, error) {
	rec, err := parseRecurrence(text)
	if err != nil {
		return nil, err
	}
	r, err := rec.starting(start, leap, rec.until.local())
	if err != nil {
		return nil, err
	}
	return r.times(from, n), nil
}

// CronTimes returns up to n times of a cron expression from a time on.
func CronTimes(text string, from time.Time, n int) ([]time.Time, error) {
	r, err := parseCron(text)
	if err != nil {
		return nil, err
	}
	return r.times(from, n), nil
}

func (r *rule) times(from time.Time, n int) (times []time.Time) {
	next := r.from(from)
	for len(times) < n {
		t, ok := next()
		if !ok {
			break
		}
		times = append(times, t)
	}
	return times
}
