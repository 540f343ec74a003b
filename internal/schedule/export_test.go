package schedule

import (
	"context"
	"time"
)

// Fire fires up to limit schedules that are due, as far as there is time, and returns them.
func Fire(ctx context.Context, s *Service, limit int) ([]int64, error) {
	return s.fire(ctx, limit, nil)
}

// MaxSteps is the budget of one call.
const MaxSteps = maxSteps

// Times are times of a rule, and what it took to find them.
type Times struct {
	All   []time.Time
	Steps int // that were taken
}

// LocalTimes returns up to n times of a recurrence rule from a time on, where it starts at start.
func LocalTimes(ctx context.Context, text string, start time.Time, leap Leap, from time.Time, n int) (Times, error) {
	rec, err := parseRecurrence(text)
	if err != nil {
		return Times{}, err
	}
	r := rec.starting(start, leap, rec.until.local())
	return r.times(ctx, "rrule", rec.option.Count, from, n)
}

// CronTimes returns up to n times of a cron expression from a time on.
func CronTimes(ctx context.Context, text string, from time.Time, n int) (Times, error) {
	r, err := parseCron(text)
	if err != nil {
		return Times{}, err
	}
	return r.times(ctx, "cron", 0, from, n)
}

func (r *rule) times(ctx context.Context, field string, count int, from time.Time, n int) (times Times, err error) {
	s := newSteps(ctx)
	defer func() { times.Steps = maxSteps - s.left }()
	if err := r.check(s, field, count); err != nil {
		return times, err
	}
	next := r.from(s, from)
	for len(times.All) < n {
		t, ok, err := next()
		if err != nil {
			return times, fieldOf(err, field)
		}
		if !ok {
			break
		}
		times.All = append(times.All, t)
	}
	return times, nil
}
