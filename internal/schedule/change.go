package schedule

import (
	"context"
	"time"
)

// Patch changes a schedule and returns it. When its times change, the next one is found anew from now on; in another zone it is the same local
// time, which comes now if it is over there and has not come yet. It fails with ErrNotFound, ErrStale, ErrEnded and an *InvalidError.
func (s *Service) Patch(ctx context.Context, p PatchParams) (Schedule, error) {
	var changed row
	err := s.call(ctx, "changing a schedule", func(ctx context.Context) error {
		return replanned(ctx, func() error {
			var (
				before row
				nextAt *string // exactly, whatever it is
				record string
			)
			err := s.plan(ctx, func(ctx context.Context) (err error) {
				var sc scanner
				err = s.pool.QueryRow(ctx, `select s.next_at::text, `+columns("s")+` from agent.get_schedule($1) s`, p.ID).Scan(append([]any{&nextAt}, sc.fields()...)...)
				if err != nil {
					return err
				}
				before = sc.result()
				record, err = p.plan(ctx, s.pool, before)
				return err
			})
			if err != nil {
				return err
			}
			changed, err = one(ctx, s.pool, `select `+columns("s")+` from agent.update_schedule($1, $2, $3, $4::text::timestamptz, $5) s`,
				p.ID, record, before.Version, nextAt, before.Fired)
			return sqlstates.Wrap("storing it", err)
		})
	})
	if err != nil {
		return Schedule{}, err
	}
	return changed.Schedule, nil
}

// plan returns what agent.update_schedule is to make of a schedule.
func (p PatchParams) plan(ctx context.Context, q querier, before row) (string, error) {
	switch {
	case p.IfVersion != nil && *p.IfVersion != before.Version:
		return "", ErrStale
	case before.Status == Cancelled:
		return "", ErrEnded
	}
	steps := newSteps(ctx)
	d, err := prepare(ctx, q, steps, p.apply(before.Spec), nil)
	if err != nil {
		return "", err
	}
	d.ID, d.Fired = before.ID, before.Fired
	switch {
	case p.changesTimes() || before.NextAt == nil && p.Count != nil || before.fault != "":
		err = d.planFirst(ctx, q, steps)
	case d.Zone != before.Zone || d.Gap != before.Gap || d.Overlap != before.Overlap || before.isUnplanned:
		err = d.move(ctx, q, steps, before)
	default:
		d.NextLocal, d.NextAt, d.lastLocal = before.NextLocal, before.NextAt, before.lastLocal
	}
	if err != nil {
		return "", err
	}
	if d.Count > 0 && d.Fired >= int64(d.Count) {
		d.NextLocal, d.NextAt = nil, nil
	}
	return d.record()
}

// apply returns what spec becomes.
func (p PatchParams) apply(spec Spec) Spec {
	set(&spec.Name, p.Name)
	set(&spec.Queue, p.Queue)
	set(&spec.Type, p.Type)
	set(&spec.Priority, p.Priority)
	set(&spec.Event, p.Event)
	set(&spec.Timezone, p.Timezone)
	set(&spec.Starts, p.Starts)
	set(&spec.Ends, p.Ends)
	set(&spec.Count, p.Count)
	set(&spec.Misfire, p.Misfire)
	set(&spec.Gap, p.Gap)
	set(&spec.Overlap, p.Overlap)
	set(&spec.Leap, p.Leap)
	switch {
	case p.Cron != nil && *p.Cron != "":
		spec.RRule, spec.At = "", nil
	case p.RRule != nil && *p.RRule != "", p.At != nil && *p.At != nil:
		spec.Cron = ""
	}
	set(&spec.At, p.At)
	set(&spec.RRule, p.RRule)
	set(&spec.Cron, p.Cron)
	return spec
}

// set changes what is to change.
func set[T any](field, to *T) {
	if to != nil {
		*field = *to
	}
}

// changesTimes reports whether other local times may come of it.
func (p PatchParams) changesTimes() bool {
	return p.At != nil || p.RRule != nil || p.Cron != nil || p.Starts != nil || p.Ends != nil || p.Leap != nil
}

// move resolves the next occurrence of before anew, as agent_private.move_schedules does.
func (d *draft) move(ctx context.Context, q querier, s *steps, before row) error {
	if before.NextAt == nil {
		return nil
	}
	l, err := d.line()
	if err != nil {
		return err
	}
	answers, err := resolve(ctx, q, []localTime{{&l, *before.NextLocal}})
	if err != nil {
		return err
	}
	if fault := answers[0].fault; fault != nil {
		return &InvalidError{Field: "timezone", Detail: *fault}
	}
	at := answers[0].at
	if ends := d.Ends.instant(); at == nil || ends != nil && at.After(*ends) {
		return d.planAfter(ctx, q, s, *before.NextLocal)
	}
	if at.Before(d.at) {
		if at = &d.at; !before.NextAt.After(d.at) {
			at = before.NextAt
		}
	}
	d.NextLocal, d.NextAt = before.NextLocal, at
	return nil
}

// planAfter sets the first occurrence from now on of a later local time.
func (d *draft) planAfter(ctx context.Context, q querier, s *steps, local time.Time) error {
	if after := local.Add(time.Microsecond); after.After(d.floor) {
		d.floor = after
	}
	return d.planFirst(ctx, q, s)
}

// Pause has nothing come of a schedule until it is resumed. Repeated it changes nothing. It fails with ErrNotFound and ErrEnded.
func (s *Service) Pause(ctx context.Context, id int64) (Schedule, error) {
	return s.one(ctx, "pausing a schedule", `select `+columns("s")+` from agent.pause_schedule($1) s`, id)
}

// Resume ends a pause, whoever began it. What was missed is up to the misfire policy. Repeated it changes nothing. It fails with ErrNotFound and ErrEnded.
func (s *Service) Resume(ctx context.Context, id int64) (Schedule, error) {
	return s.one(ctx, "resuming a schedule", `select `+columns("s")+` from agent.resume_schedule($1) s`, id)
}

// Delete cancels a schedule for good; it stays to be looked at. The occurrence it waited for is recorded as cancelled, and those of its events
// that nobody ever claimed go to history as cancelled. Repeated it changes nothing. It fails with ErrNotFound, and with ErrStale
// when ifVersion (nil: any) is not the schedule's version.
func (s *Service) Delete(ctx context.Context, id int64, ifVersion *int64) error {
	return s.call(ctx, "deleting a schedule", func(ctx context.Context) error {
		_, err := s.pool.Exec(ctx, `select agent.delete_schedule($1, $2)`, id, ifVersion)
		return err
	})
}
