package schedule

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Patch changes a schedule and returns it. When its times change, the next one is found anew from now on; in another zone it is the same local
// time, which comes now if it is over there and has not come yet. It fails with ErrNotFound, ErrStale, ErrEnded and an *InvalidError.
func (s *Service) Patch(ctx context.Context, p PatchParams) (Schedule, error) {
	var changed Schedule
	err := s.inTx(ctx, "changing a schedule", func(tx pgx.Tx) error {
		before, err := one(ctx, tx, `select `+columns("s")+` from agent.lock_schedule($1, $2, nullif($3, '')) s`, p.ID, p.IfVersion, p.Timezone)
		if err != nil {
			return err
		}
		if before.Status == Cancelled {
			return ErrEnded
		}
		spec := p.apply(before.Spec)
		d, err := prepare(ctx, tx, spec, nil)
		if err != nil {
			return err
		}
		d.ID, d.Fired = before.ID, before.Fired
		switch {
		case p.changesTimes() || before.NextAt == nil && p.Count != nil:
			err = d.planFirst(ctx, tx)
		case d.Zone != before.Zone || d.Gap != before.Gap || d.Overlap != before.Overlap:
			err = d.move(ctx, tx, before)
		default:
			d.NextLocal, d.NextAt, d.lastLocal = before.NextLocal, before.NextAt, before.lastLocal
		}
		if err != nil {
			return err
		}
		if d.Count > 0 && d.Fired >= int64(d.Count) {
			d.NextLocal, d.NextAt = nil, nil
		}
		record, err := d.record()
		if err != nil {
			return err
		}
		after, err := one(ctx, tx, `select `+columns("s")+` from agent.update_schedule($1, $2) s`, p.ID, record)
		changed = after.Schedule
		return err
	})
	return changed, err
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

// move resolves the next occurrence of before anew, as agent.move_schedules does.
func (d *draft) move(ctx context.Context, q querier, before row) error {
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
	at := answers[0].at
	if ends := d.Ends.instant(); at == nil || ends != nil && at.After(*ends) {
		return d.planAfter(ctx, q, *before.NextLocal)
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
func (d *draft) planAfter(ctx context.Context, q querier, local time.Time) error {
	if after := local.Add(time.Microsecond); after.After(d.floor) {
		d.floor = after
	}
	return d.planFirst(ctx, q)
}

// Pause has nothing come of a schedule until it is resumed. Repeated it changes nothing. It fails with ErrNotFound and ErrEnded.
func (s *Service) Pause(ctx context.Context, id int64) (Schedule, error) {
	r, err := one(ctx, s.pool, `select `+columns("s")+` from agent.pause_schedule($1) s`, id)
	return r.Schedule, wrap("pausing a schedule", err)
}

// Resume ends a pause. What was missed is up to the misfire policy. Repeated it changes nothing. It fails with ErrNotFound and ErrEnded.
func (s *Service) Resume(ctx context.Context, id int64) (Schedule, error) {
	r, err := one(ctx, s.pool, `select `+columns("s")+` from agent.resume_schedule($1) s`, id)
	return r.Schedule, wrap("resuming a schedule", err)
}

// Delete cancels a schedule for good; it stays to be looked at. The occurrence it waited for is recorded as cancelled, and those of its events
// that nobody ever claimed go to history as cancelled. Repeated it changes nothing. It fails with ErrNotFound, and with ErrStale
// when ifVersion (nil: any) is not the schedule's version.
func (s *Service) Delete(ctx context.Context, id int64, ifVersion *int64) error {
	_, err := s.pool.Exec(ctx, `select agent.delete_schedule($1, $2)`, id, ifVersion)
	return wrap("deleting a schedule", err)
}
