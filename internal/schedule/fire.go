package schedule

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// fireBatch is how many schedules fire in one transaction at most.
	fireBatch = 1000
	// simpleSteps is how many steps of a rule are taken for its next time while schedules are locked: ten years of days. What takes more is
	// planned without a lock.
	simpleSteps = 4000
	// lockedTime is how long schedules are planned while they are locked. The rest of them are planned without a lock.
	lockedTime = 250 * time.Millisecond
	// catchUp is how many occurrences of one schedule that was missed are gone through in one transaction, and
	// catchUpBatch of all of them; plannedBatch is of how many schedules.
	catchUp      = 1000
	catchUpBatch = 10_000
	plannedBatch = 100
	// plannedTime is how long schedules are planned without a lock before others that are due are looked for.
	plannedTime = time.Second
	// fireTimeout bounds a statement of the firing loop, or a few.
	fireTimeout = 10 * time.Second
	// postponement is how long a schedule that could not be planned in time is left alone.
	postponement = 10 * time.Second
	// shortestRest is the least time between two looks, so that what is due meanwhile fires together.
	shortestRest = 10 * time.Millisecond
	// postponedRest is that time while there are schedules that are due and postponed.
	postponedRest = 100 * time.Millisecond
)

// due is a schedule whose time has come.
type due struct {
	row
	now     time.Time
	isPlain bool // what comes next is simply what comes next in local time
	line    line
}

// batch is what agent.fire_schedules is to do.
type batch struct {
	scheduleIDs  []int64
	nominals     []time.Time
	scheduledFor []time.Time
	statuses     []string
	ids          []int64
	nextLocals   []*time.Time
	nextAts      []*time.Time

	// What those of ids were when they were planned, where they were not locked.
	versions   []int64
	plannedAts []*time.Time
	fired      []int64
}

// occurrence adds one that fires, or is skipped.
func (b *batch) occurrence(id int64, at Instant, fires bool) {
	status := "skipped"
	if fires {
		status = "fired"
	}
	b.scheduleIDs = append(b.scheduleIDs, id)
	b.nominals = append(b.nominals, at.Local)
	b.scheduledFor = append(b.scheduledFor, at.UTC)
	b.statuses = append(b.statuses, status)
}

// next sets when a schedule is due next; nil: never.
func (b *batch) next(id int64, local, at *time.Time) {
	b.ids = append(b.ids, id)
	b.nextLocals = append(b.nextLocals, local)
	b.nextAts = append(b.nextAts, at)
}

// run returns how many events came of it.
func (b *batch) run(ctx context.Context, q querier) (n int64, err error) {
	err = q.QueryRow(ctx, `select agent.fire_schedules($1, $2, $3, $4, $5, $6, $7)`,
		b.scheduleIDs, b.nominals, b.scheduledFor, b.statuses, b.ids, b.nextLocals, b.nextAts).Scan(&n)
	return n, err
}

// runPlanned does what was planned for schedules that are not locked, and returns those that are still as they were: nothing was done to the others.
func (b *batch) runPlanned(ctx context.Context, q querier) (fired []int64, err error) {
	if len(b.ids) == 0 {
		return nil, nil
	}
	err = q.QueryRow(ctx, `select agent.fire_schedules_if_unchanged($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		b.scheduleIDs, b.nominals, b.scheduledFor, b.statuses, b.ids, b.nextLocals, b.nextAts, b.versions, b.plannedAts, b.fired).Scan(&fired)
	return fired, err
}

// fire turns schedules that are due into events: of up to limit those that are in time, as nearly all are, in one short transaction, and then
// the others, those that are in time first, for as long as plannedTime. With a grace (nil: none) it looks only for those that are due for no longer. It
// returns the schedules it had to do with.
func (s *Service) fire(ctx context.Context, limit int, grace *time.Duration) (ids []int64, err error) {
	ids, rest, err := s.fireDue(ctx, limit, grace)
	if err != nil {
		return ids, err
	}
	slices.SortStableFunc(rest, func(a, b *due) int { return compareBool(s.isMissed(a.now, *a.NextAt), s.isMissed(b.now, *b.NextAt)) })
	return ids, s.firePlanned(ctx, rest)
}

// compareBool has false come before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

// fireDue fires what is due and simple, in one transaction, and returns the others beside all that it had to do with. What cannot fire it pauses.
func (s *Service) fireDue(ctx context.Context, limit int, grace *time.Duration) (ids []int64, rest []*due, err error) {
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	var (
		b      batch
		faulty = make(map[int64]string)
		now    time.Time // by the database's clock, when it was
		asked  time.Time // by this one's
	)
	err = pgx.BeginFunc(ctx, s.loops, func(tx pgx.Tx) error {
		asked = time.Now()
		dues, err := lockDue(ctx, tx, limit, grace)
		if err != nil || len(dues) == 0 {
			return err
		}
		now = dues[0].now
		var sound []*due
		for _, d := range dues {
			ids = append(ids, d.ID)
			if d.line, err = d.row.line(); err != nil {
				faulty[d.ID] = reason(err)
				continue
			}
			sound = append(sound, d)
		}
		if rest, err = s.fireSimple(ctx, tx, &b, sound); err != nil {
			return err
		}
		if len(b.ids) == 0 {
			return nil
		}
		n, err := b.run(ctx, tx)
		if err == nil {
			s.cfg.Logger.Debug().Int64("events", n).Int("schedules", len(b.ids)).Msg("fired")
		}
		return err
	})
	if err != nil {
		return ids, nil, wrap("firing schedules", err)
	}
	s.counters.add(&b, nil, now.Add(time.Since(asked)))
	return ids, rest, s.park(ctx, faulty)
}

// firePlanned fires schedules that take planning: those that were missed, whose zone's clocks change, whose rule takes long to follow. None of
// them is locked meanwhile; what has changed by the time it is stored is left for later. Nothing that is wrong with one keeps the others from firing.
func (s *Service) firePlanned(ctx context.Context, dues []*due) error {
	begun := time.Now()
	for len(dues) > 0 && time.Since(begun) < plannedTime {
		var (
			b      batch
			budget = catchUpBatch
			faulty = make(map[int64]string)
		)
		for len(dues) > 0 && len(b.ids) < plannedBatch && budget > 0 && time.Since(begun) < plannedTime {
			d := dues[0]
			dues = dues[1:]
			if s.isPostponed(d.ID) {
				continue
			}
			before := len(b.scheduleIDs)
			err := s.plan(ctx, func(ctx context.Context) error { return s.planDue(ctx, s.loops, &b, d, max(1, min(catchUp, budget))) })
			switch {
			case err == nil:
				budget -= len(b.scheduleIDs) - before
			case ctx.Err() != nil:
				return ctx.Err()
			case isFault(err):
				faulty[d.ID] = reason(err)
			case errors.Is(err, ErrQueryTimeout):
				s.postpone(d.ID)
				s.cfg.Logger.Error().Err(err).Int64("schedule_id", d.ID).Stringer("after", postponement).Msg("a schedule could not be planned in time; it is tried again")
			default:
				return err
			}
		}
		if err := s.storePlanned(ctx, &b, faulty); err != nil {
			return err
		}
		if err := s.park(ctx, faulty); err != nil {
			return err
		}
	}
	return nil
}

// storePlanned fires what was planned: all with one statement, or, where that is refused, each by itself. Those that are refused then it adds to faulty.
func (s *Service) storePlanned(ctx context.Context, b *batch, faulty map[int64]string) error {
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	fired, err := b.runPlanned(ctx, s.loops)
	if err == nil {
		s.counters.add(b, append([]int64{}, fired...), time.Now()) // of what was missed the lateness need not be exact
		return nil
	}
	if err = wrap("firing schedules", err); !isFault(err) {
		return err
	}
	if len(b.ids) == 1 {
		faulty[b.ids[0]] = reason(err)
		return nil
	}
	for i := range b.ids {
		if err := s.storePlanned(ctx, b.only(i), faulty); err != nil {
			return err
		}
	}
	return nil
}

// only returns the part of a batch that is about one of its schedules.
func (b *batch) only(i int) *batch {
	one := &batch{
		ids: b.ids[i : i+1], nextLocals: b.nextLocals[i : i+1], nextAts: b.nextAts[i : i+1],
		versions: b.versions[i : i+1], plannedAts: b.plannedAts[i : i+1], fired: b.fired[i : i+1],
	}
	for j, id := range b.scheduleIDs {
		if id == b.ids[i] {
			one.occurrence(id, Instant{b.nominals[j], b.scheduledFor[j]}, b.statuses[j] == "fired")
		}
	}
	return one
}

// planDue adds to b what becomes of a schedule that is due, of up to n of its occurrences. It fails with an *InvalidError when it cannot fire.
func (s *Service) planDue(ctx context.Context, q querier, b *batch, d *due, n int) error {
	steps := newSteps(ctx)
	if d.isUnplanned {
		plan := &draft{row: d.row}
		if err := q.QueryRow(ctx, `select at, floor from agent.expansion_start($1)`, d.Zone).Scan(&plan.at, &plan.floor); err != nil {
			return wrap("planning", err)
		}
		if err := plan.planAfter(ctx, q, steps, *d.NextLocal); err != nil {
			return err
		}
		b.next(d.ID, plan.NextLocal, plan.NextAt)
	} else {
		at := position{local: *d.NextLocal} // of the next occurrence among the others
		var floor time.Time
		if err := q.QueryRow(ctx, `select at, floor from agent.schedule_position($1)`, d.ID).Scan(&at.at, &floor); err != nil {
			return wrap("planning", err)
		}
		next, err := following(ctx, q, steps, d.line, at, floor, n)
		if err != nil {
			return err
		}
		s.settle(b, d, next, len(next) < n)
	}
	b.versions = append(b.versions, d.Version)
	b.plannedAts = append(b.plannedAts, d.NextAt)
	b.fired = append(b.fired, d.Fired)
	return nil
}

// park pauses schedules that cannot fire, each with its reason.
func (s *Service) park(ctx context.Context, faulty map[int64]string) error {
	if len(faulty) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	ids, reasons := make([]int64, 0, len(faulty)), make([]string, 0, len(faulty))
	for id, reason := range faulty {
		ids, reasons = append(ids, id), append(reasons, reason)
	}
	rows, _ := s.loops.Query(ctx, `select agent.pause_faulty_schedules($1, $2)`, ids, reasons)
	parked, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range parked {
		s.cfg.Logger.Error().Int64("schedule_id", id).Str("reason", faulty[id]).Msg("a schedule cannot fire, and is paused until it is resumed")
	}
	s.counters.addFaulty(len(parked))
	return wrap("pausing schedules", err)
}

// reason is an error in words for those who look at a schedule that was paused for it.
func reason(err error) string {
	var invalid *InvalidError
	if errors.As(err, &invalid) {
		return strings.TrimPrefix(invalid.Error(), ": ")
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Message
	}
	return err.Error()
}

// postpone leaves a schedule alone for a while.
func (s *Service) postpone(id int64) {
	s.postponedMu.Lock()
	defer s.postponedMu.Unlock()
	s.postponed[id] = time.Now().Add(postponement)
}

func (s *Service) isPostponed(id int64) bool {
	s.postponedMu.Lock()
	defer s.postponedMu.Unlock()
	until, ok := s.postponed[id]
	return ok && time.Now().Before(until)
}

// hasPostponed reports whether there are any, and forgets those whose time has come.
func (s *Service) hasPostponed() bool {
	s.postponedMu.Lock()
	defer s.postponedMu.Unlock()
	for id, until := range s.postponed {
		if !time.Now().Before(until) {
			delete(s.postponed, id)
		}
	}
	return len(s.postponed) > 0
}

// lockDue locks schedules that are due.
func lockDue(ctx context.Context, q querier, limit int, grace *time.Duration) ([]*due, error) {
	rows, _ := q.Query(ctx, `select d.now, d.is_plain, d.fault, `+columns("(d.schedule)")+` from agent.lock_due_schedules($1, $2) d`, limit, grace)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*due, error) {
		var (
			d     due
			sc    scanner
			fault *string
		)
		if err := row.Scan(append([]any{&d.now, &d.isPlain, &fault}, sc.fields()...)...); err != nil {
			return nil, err
		}
		d.row = sc.result()
		d.now = d.now.UTC()
		if fault != nil {
			d.fault = *fault
		}
		return &d, nil
	})
}

// fireSimple fires those that are in time and whose next time is simply the next of their rule, as nearly all are, with one statement for
// all. It returns the others.
func (s *Service) fireSimple(ctx context.Context, q querier, b *batch, dues []*due) (rest []*due, err error) {
	var (
		simple []*due
		times  []localTime
	)
	begun := time.Now()
	for _, d := range dues {
		if !d.isPlain || d.isUnplanned || s.isMissed(d.now, *d.NextAt) || time.Since(begun) > lockedTime {
			rest = append(rest, d)
			continue
		}
		next, ok, err := d.line.rule.after(ctx, *d.NextLocal, simpleSteps)
		if err != nil {
			rest = append(rest, d)
			continue
		}
		if e := d.line.ends.local(); !ok || e != nil && next.After(*e) {
			b.occurrence(d.ID, Instant{*d.NextLocal, *d.NextAt}, true)
			b.next(d.ID, nil, nil)
			continue
		}
		simple = append(simple, d)
		times = append(times, localTime{&d.line, next})
	}
	if len(simple) == 0 {
		return rest, nil
	}
	answers, err := resolve(ctx, q, times)
	if err != nil {
		return nil, err
	}
	for i, d := range simple {
		r := answers[i]
		ends := d.line.ends.instant()
		if r.fault != nil || r.at == nil || r.isShifted || r.isKnown || !r.at.After(d.now) || ends != nil && r.at.After(*ends) {
			rest = append(rest, d)
			continue
		}
		b.occurrence(d.ID, Instant{*d.NextLocal, *d.NextAt}, true)
		b.next(d.ID, &times[i].at, r.at)
	}
	return rest, nil
}

// isMissed reports whether an occurrence is so late that the misfire policy decides.
func (s *Service) isMissed(now, at time.Time) bool { return now.Sub(at) > s.cfg.MisfireGrace }

// settle decides what becomes of the occurrences of d that are due: its next one and those of following that are not to come. isAll says
// that no more follow.
func (s *Service) settle(b *batch, d *due, following []Instant, isAll bool) {
	dues := []Instant{{*d.NextLocal, *d.NextAt}}
	for len(following) > 0 && !following[0].UTC.After(d.now) {
		dues = append(dues, following[0])
		following = following[1:]
	}
	var next *Instant
	switch {
	case len(following) > 0:
		next = &following[0]
	case !isAll: // the last one waits for the next transaction, which knows what follows
		next = &dues[len(dues)-1]
		dues = dues[:len(dues)-1]
	}

	left := int64(math.MaxInt64)
	if d.Count > 0 {
		left = int64(d.Count) - d.Fired
	}
	for i, at := range dues {
		fires := true
		if s.isMissed(d.now, at.UTC) {
			switch d.Misfire {
			case MisfireSkip:
				fires = false
			case MisfireAll:
			default: // only the latest of those that were missed
				if i+1 < len(dues) {
					fires = !s.isMissed(d.now, dues[i+1].UTC)
				} else {
					fires = next == nil || !s.isMissed(d.now, next.UTC)
				}
			}
		}
		if fires && left == 0 {
			next = nil
			break
		}
		if fires {
			left--
		}
		b.occurrence(d.ID, at, fires)
	}
	if next == nil {
		b.next(d.ID, nil, nil)
		return
	}
	b.next(d.ID, &next.Local, &next.UTC)
}

// fireLoop fires what is due until ctx ends.
func (s *Service) fireLoop(ctx context.Context) error {
	limit := fireBatch
	alone := 0 // how many schedules are to fire alone, as one of them could not
	isBehind := false
	for {
		if isBehind { // what has been missed takes its time; what has not should not be
			if _, err := s.fire(ctx, fireBatch, &s.cfg.MisfireGrace); err != nil && ctx.Err() == nil {
				s.cfg.Logger.Error().Err(err).Msg("what is due could not be fired; it is tried again")
			}
		}
		ids, err := s.fire(ctx, limit, nil)
		rest := time.Duration(0)
		isBehind = len(ids) == fireBatch
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && isFault(err) && len(ids) > 1:
			limit, alone = 1, len(ids)
		case err != nil && isFault(err) && len(ids) == 1:
			if err := s.park(ctx, map[int64]string{ids[0]: reason(err)}); err != nil {
				rest = s.cfg.PollInterval
			}
		case err != nil:
			s.cfg.Logger.Error().Err(err).Msg("what is due could not be fired; it is tried again")
			rest = s.cfg.PollInterval
		case s.hasPostponed():
			rest = postponedRest
		case len(ids) < limit:
			rest = s.untilDue(ctx)
		}
		if alone--; alone <= 0 {
			limit = fireBatch
		}
		if rest > 0 && !s.rest(ctx, rest) {
			return nil
		}
	}
}

// isFault reports whether an error is of a schedule's own making, and will come again: data that PostgreSQL or this package refuses.
func isFault(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return errors.Is(err, ErrInvalid)
	}
	for _, class := range []string{"22", "23", "54", "P0", "QD"} {
		if strings.HasPrefix(pgErr.Code, class) {
			return true
		}
	}
	return false
}

// untilDue returns how long there is nothing to do as far as is known, PollInterval at most.
func (s *Service) untilDue(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	var wait *time.Duration
	if err := s.loops.QueryRow(ctx, `select agent.next_due()`).Scan(&wait); err != nil || wait == nil {
		return s.cfg.PollInterval
	}
	return max(shortestRest, min(*wait, s.cfg.PollInterval))
}

// rest waits for d, or until something may be due, and reports whether ctx goes on.
func (s *Service) rest(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	case <-s.wakes:
	}
	return true
}

// wake has the firing loop look at once.
func (s *Service) wake() {
	select {
	case s.wakes <- struct{}{}:
	default:
	}
}
