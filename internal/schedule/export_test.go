package schedule

import (
	"context"
	"time"
)

// Fire fires schedules that are due, as far as there is time, and returns them.
func Fire(ctx context.Context, s *Service) ([]int64, error) { return s.fire(ctx, nil) }

// FireBehind is a pass of the firing loop when more is due than fires at once.
func FireBehind(ctx context.Context, s *Service) error {
	s.isBehind = true
	return s.fireAll(ctx)
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
	return rec.series(start, leap, rec.until.local()).firstTimes(ctx, "rrule", rec.option.Count, from, n)
}

// CronTimes returns up to n times of a cron expression from a time on.
func CronTimes(ctx context.Context, text string, from time.Time, n int) (Times, error) {
	s, err := parseCron(text)
	if err != nil {
		return Times{}, err
	}
	return s.firstTimes(ctx, "cron", 0, from, n)
}

func (s *series) firstTimes(ctx context.Context, field string, count int, from time.Time, n int) (times Times, err error) {
	b := newBudget(ctx)
	defer func() { times.Steps = maxSteps - b.left }()
	if err := s.check(b, field, count); err != nil {
		return times, err
	}
	for at, err := range s.from(b, from) {
		if err != nil {
			return times, fieldOf(err, field)
		}
		if times.All = append(times.All, at); len(times.All) == n {
			break
		}
	}
	return times, nil
}
