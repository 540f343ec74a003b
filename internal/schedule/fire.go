package schedule

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pg"
)

const (
	// fireBatch is how many schedules fire in one transaction at most.
	fireBatch = 1000
	// simpleSteps is how many steps of a rule are taken for its next time while schedules are locked: ten years of days. A rule that takes more is
	// expanded without a lock.
	simpleSteps = 4000
	// lockedTime is how long schedules are expanded while they are locked. The rest of them are expanded without a lock.
	lockedTime = 250 * time.Millisecond
	// unlockedTime is how long schedules are expanded without a lock before others that are due are looked for.
	unlockedTime = time.Second
	// unlockedBatch is how many of these are stored in one transaction, with maxMissed occurrences each, and maxMissedBatch in all.
	unlockedBatch  = 100
	maxMissed      = 1000
	maxMissedBatch = 10_000
	// fireTimeout bounds a statement of the firing loop, or a few.
	fireTimeout = 10 * time.Second
	// postponement is how long a schedule that could not be expanded in time is left alone.
	postponement = 10 * time.Second
	// minPause is the least time between two looks, so that schedules due meanwhile fire together.
	minPause = 10 * time.Millisecond
	// postponedPause is that time while there are schedules that are due and postponed.
	postponedPause = 100 * time.Millisecond
)

// due is a schedule whose time has come.
type due struct {
	row
	Now     time.Time // by the database's clock
	IsPlain bool      // no change of the zone's offset is near: its next occurrence is the next time of its series
}

// firing is the result of a schedule that is due.
type firing struct {
	*due
	occurrences []firedOccurrence
	next        *Instant // when it is due next; nil: never
}

// firedOccurrence is one that fires, or is recorded as skipped.
type firedOccurrence struct {
	Instant
	isSkipped bool
}

// fireAll fires the schedules that are due. While they are more than fire at once, those in time do not wait for those missed, nor do the ones stop
// when the others fail.
func (s *Service) fireAll(ctx context.Context) error {
	if s.isNoneDue && !s.isBehind { // unless there is a new one, which untilDue finds
		return nil
	}
	var inTime error
	if s.isBehind {
		_, inTime = s.fire(ctx, &s.cfg.MisfireGrace)
	}
	ids, err := s.fire(ctx, nil)
	s.isBehind = len(ids) == fireBatch
	if len(ids) > 0 {
		pg.Worked(ctx)
	}
	return errors.Join(inTime, err)
}

// untilDue returns how long nothing is due as far as is known, about PollInterval at most.
func (s *Service) untilDue(ctx context.Context) time.Duration {
	// Those whose time has come are forgotten.
	maps.DeleteFunc(s.postponed, func(_ int64, until time.Time) bool { return !time.Now().Before(until) })
	s.isNoneDue = false
	switch {
	case len(s.postponed) > 0:
		return postponedPause
	case s.isBehind:
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	var wait *time.Duration
	err := s.loops.QueryRow(ctx, `select agent_service.next_due()`).Scan(&wait)
	s.isNoneDue = err == nil && (wait == nil || *wait > s.cfg.PollInterval)
	if err != nil || wait == nil {
		return pg.Jittered(s.cfg.PollInterval)
	}
	return max(minPause, min(*wait, pg.Jittered(s.cfg.PollInterval)))
}

// fire fires schedules that are due and returns their ids: of up to fireBatch those that are in time, as nearly all are, in one short transaction, and then
// the others for as long as unlockedTime, those that are in time first. With a grace (nil: none) it takes only those that are due for no longer.
func (s *Service) fire(ctx context.Context, grace *time.Duration) (ids []int64, err error) {
	ids, rest, err := s.fireLocked(ctx, grace)
	if err != nil {
		return ids, err
	}
	var inTime, missed []*due
	for _, d := range rest {
		if s.isMissed(d.Now, *d.NextAt) {
			missed = append(missed, d)
		} else {
			inTime = append(inTime, d)
		}
	}
	return ids, s.fireUnlocked(ctx, append(inTime, missed...))
}

// fireLocked fires schedules that are due and simple, in one transaction, and pauses those that cannot fire. It returns the ids of all that are due, and those not simple.
func (s *Service) fireLocked(ctx context.Context, grace *time.Duration) (ids []int64, rest []*due, err error) {
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	var (
		valid   []*due
		firings []firing
		faulty  = make(map[int64]string)
		locked  time.Time // when they were locked by the database's clock
		asked   time.Time // and by this process's
	)
	err = pgx.BeginFunc(ctx, s.loops, func(tx pgx.Tx) error {
		asked = time.Now()
		dues, err := lockDue(ctx, tx, grace)
		if err != nil || len(dues) == 0 {
			return err
		}
		locked = dues[0].Now
		for _, d := range dues {
			ids = append(ids, d.ID)
			if err := d.parse(); err != nil {
				faulty[d.ID] = reason(err)
				continue
			}
			valid = append(valid, d)
		}
		if firings, rest, err = s.simpleFirings(ctx, tx, valid); err != nil || len(firings) == 0 {
			return err
		}
		var events int64
		err = tx.QueryRow(ctx, `select agent_service.fire_schedules($1, $2, $3, $4, $5, $6, $7)`, fireArguments(firings)...).Scan(&events)
		if err == nil {
			s.cfg.Logger.Debug().Int64("events", events).Int("schedules", len(firings)).Msg("fired")
		}
		return err
	})
	switch {
	case err != nil && isFault(err) && len(valid) > 0: // of one of them: each is expanded and stored by itself
		rest, firings = valid, nil
	case err != nil:
		return ids, nil, wrap("firing schedules", err)
	}
	s.counters.add(firings, locked.Add(time.Since(asked)))
	return ids, rest, s.pauseFaulty(ctx, faulty)
}

// lockDue locks schedules that are due.
func lockDue(ctx context.Context, q querier, grace *time.Duration) ([]*due, error) {
	rows, _ := q.Query(ctx, `
		select d.now, d.is_plain, d.fault, `+columns+`
		from agent_service.lock_due_schedules($1, $2) d, lateral (select (d.schedule).*) s`, fireBatch, grace)
	found, err := pg.Collect[due](rows)
	dues := make([]*due, len(found))
	for i := range found {
		dues[i] = &found[i]
		dues[i].complete()
		dues[i].Now = dues[i].Now.UTC()
	}
	return dues, err
}

// simpleFirings returns the firings of those that are in time and whose next occurrence is simply the next time of their series, as nearly all are, and
// the others as rest. It resolves all of them with one statement.
func (s *Service) simpleFirings(ctx context.Context, q querier, dues []*due) (firings []firing, rest []*due, err error) {
	var (
		simple []*due
		times  []civilTime
	)
	begun := time.Now()
	for _, d := range dues {
		if !d.IsPlain || d.IsUnplanned || s.isMissed(d.Now, *d.NextAt) || time.Since(begun) > lockedTime {
			rest = append(rest, d)
			continue
		}
		next, ok, err := d.series.after(ctx, *d.NextLocal, simpleSteps)
		switch ends := d.Ends.local(); {
		case err != nil:
			rest = append(rest, d)
		case !ok || ends != nil && next.After(*ends):
			firings = append(firings, d.fires(nil))
		default:
			simple = append(simple, d)
			times = append(times, civilTime{&d.row, next})
		}
	}
	resolutions, err := resolve(ctx, q, times)
	if err != nil {
		return nil, nil, err
	}
	for i, d := range simple {
		r, ends := resolutions[i], d.lastInstant()
		if r.Fault != nil || r.At == nil || r.IsShifted || r.IsKnown || !r.At.After(d.Now) || ends != nil && r.At.After(*ends) {
			rest = append(rest, d)
			continue
		}
		firings = append(firings, d.fires(&Instant{times[i].at, *r.At}))
	}
	return firings, rest, nil
}

// fires returns the firing of the next occurrence alone.
func (d *due) fires(next *Instant) firing {
	return firing{d, []firedOccurrence{{Instant: Instant{*d.NextLocal, *d.NextAt}}}, next}
}

// fireUnlocked fires schedules that take longer to expand: those that were missed, are near a change of their zone's offset, or have a rule of many steps.
// None of them is locked meanwhile; one that has changed by the time its firing is stored is left for later. One that cannot fire is paused, and the others
// fire nevertheless.
func (s *Service) fireUnlocked(ctx context.Context, dues []*due) error {
	begun := time.Now()
	for len(dues) > 0 && time.Since(begun) < unlockedTime {
		var firings []firing
		budget := maxMissedBatch
		faulty := make(map[int64]string)
		for len(dues) > 0 && len(firings) < unlockedBatch && budget > 0 && time.Since(begun) < unlockedTime {
			d := dues[0]
			dues = dues[1:]
			if time.Now().Before(s.postponed[d.ID]) {
				continue
			}
			err := s.expand(ctx, s.loops, func(e *expander) error {
				f, err := s.expandDue(e, d, min(maxMissed, budget))
				if err == nil {
					firings = append(firings, f)
					budget -= len(f.occurrences)
				}
				return err
			})
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return ctx.Err()
			case isFault(err):
				faulty[d.ID] = reason(err)
			case errors.Is(err, ErrQueryTimeout):
				s.postponed[d.ID] = time.Now().Add(postponement)
				s.cfg.Logger.Error().Err(err).Int64("schedule_id", d.ID).Stringer("after", postponement).Msg("a schedule could not be expanded in time; it is tried again")
			default:
				return err
			}
		}
		if err := s.storeFirings(ctx, firings, faulty); err != nil {
			return err
		}
		if err := s.pauseFaulty(ctx, faulty); err != nil {
			return err
		}
	}
	return nil
}

// expandDue returns the firing of a schedule that is due, of up to n of its occurrences. It fails with an *InvalidError when it cannot fire.
func (s *Service) expandDue(e *expander, d *due, n int) (firing, error) {
	if err := d.parse(); err != nil {
		return firing{}, err
	}
	if d.IsUnplanned {
		next := &draft{row: d.row}
		if err := e.plan(next); err != nil || next.NextAt == nil {
			return firing{due: d}, err
		}
		return firing{due: d, next: &Instant{*next.NextLocal, *next.NextAt}}, nil
	}
	at := Instant{Local: *d.NextLocal} // of the next occurrence among the others
	var floor time.Time
	if err := e.q.QueryRow(e.ctx, `select at, floor from agent_service.schedule_position($1)`, d.ID).Scan(&at.UTC, &floor); err != nil {
		return firing{}, wrap("expanding", err)
	}
	following, err := e.following(&d.row, at, floor, n)
	if err != nil {
		return firing{}, err
	}
	return s.applyMisfire(d, following, len(following) < n), nil
}

// applyMisfire decides which occurrences of d fire: its next one and those of following that are due as well. isAll says that no more follow.
func (s *Service) applyMisfire(d *due, following []Instant, isAll bool) firing {
	dues := []Instant{{*d.NextLocal, *d.NextAt}}
	for len(following) > 0 && !following[0].UTC.After(d.Now) {
		dues = append(dues, following[0])
		following = following[1:]
	}
	f := firing{due: d}
	switch {
	case len(following) > 0:
		f.next = &following[0]
	case !isAll: // the last one waits for the next transaction, which knows the one after it
		f.next = &dues[len(dues)-1]
		dues = dues[:len(dues)-1]
	}

	left := int64(math.MaxInt64)
	if d.Count > 0 {
		left = int64(d.Count) - d.Fired
	}
	for i, at := range dues {
		later := f.next
		if i+1 < len(dues) {
			later = &dues[i+1]
		}
		isSkipped := false
		if s.isMissed(d.Now, at.UTC) {
			switch d.Misfire {
			case MisfireSkip:
				isSkipped = true
			case MisfireAll:
			default: // only the latest of those that were missed fires
				isSkipped = later != nil && s.isMissed(d.Now, later.UTC)
			}
		}
		if !isSkipped {
			if left == 0 {
				f.next = nil
				break
			}
			left--
		}
		f.occurrences = append(f.occurrences, firedOccurrence{at, isSkipped})
	}
	return f
}

// isMissed reports whether an occurrence is so late that the misfire policy decides.
func (s *Service) isMissed(now, at time.Time) bool { return now.Sub(at) > s.cfg.MisfireGrace }

// storeFirings stores firings that were expanded without a lock: all with one statement, or, where that fails for one of them, each by itself. Those that fail then are
// added to faulty.
func (s *Service) storeFirings(ctx context.Context, firings []firing, faulty map[int64]string) error {
	if len(firings) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	stored, err := storeUnlocked(ctx, s.loops, firings)
	switch err = wrap("firing schedules", err); {
	case err == nil:
		fired := slices.DeleteFunc(firings, func(f firing) bool { return !slices.Contains(stored, f.ID) })
		s.counters.add(fired, time.Now()) // the lateness of missed occurrences need not be exact
	case !isFault(err):
		return err
	case len(firings) == 1:
		faulty[firings[0].ID] = reason(err)
	default:
		for i := range firings {
			if err := s.storeFirings(ctx, firings[i:i+1], faulty); err != nil {
				return err
			}
		}
	}
	return nil
}

// storeUnlocked fires schedules that are not locked, and returns those that have not changed since they were read: nothing is done to the others.
func storeUnlocked(ctx context.Context, q querier, firings []firing) (fired []int64, err error) {
	var (
		versions, counts []int64
		nextAts          []*time.Time
	)
	for _, f := range firings {
		versions, nextAts, counts = append(versions, f.Version), append(nextAts, f.NextAt), append(counts, f.Fired)
	}
	err = q.QueryRow(ctx, `select agent_service.fire_schedules_if_unchanged($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		append(fireArguments(firings), versions, nextAts, counts)...).Scan(&fired)
	return fired, err
}

// fireArguments returns the arrays that agent_service.fire_schedules takes.
func fireArguments(firings []firing) []any {
	var (
		scheduleIDs, ids      []int64
		nominalAts, scheduled []time.Time
		statuses              []string
		nextLocals, nextAts   []*time.Time
	)
	for _, f := range firings {
		for _, o := range f.occurrences {
			status := "fired"
			if o.isSkipped {
				status = "skipped"
			}
			scheduleIDs, nominalAts, scheduled, statuses = append(scheduleIDs, f.ID), append(nominalAts, o.Local), append(scheduled, o.UTC), append(statuses, status)
		}
		var nextLocal, nextAt *time.Time
		if f.next != nil {
			nextLocal, nextAt = &f.next.Local, &f.next.UTC
		}
		ids, nextLocals, nextAts = append(ids, f.ID), append(nextLocals, nextLocal), append(nextAts, nextAt)
	}
	return []any{scheduleIDs, nominalAts, scheduled, statuses, ids, nextLocals, nextAts}
}

// pauseFaulty pauses schedules that cannot fire, each with its reason.
func (s *Service) pauseFaulty(ctx context.Context, reasons map[int64]string) error {
	if len(reasons) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fireTimeout)
	defer cancel()
	var ids []int64
	var texts []string
	for id, text := range reasons {
		ids, texts = append(ids, id), append(texts, text)
	}
	rows, _ := s.loops.Query(ctx, `select agent_service.pause_faulty_schedules($1, $2)`, ids, texts)
	paused, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	for _, id := range paused {
		s.cfg.Logger.Error().Int64("schedule_id", id).Str("reason", reasons[id]).Msg("a schedule cannot fire, and is paused until it is resumed")
	}
	s.counters.addFaulty(len(paused))
	return wrap("pausing schedules", err)
}

// isFault reports whether an error comes from the data of a schedule, and will come again: PostgreSQL or this package refuses it.
func isFault(err error) bool {
	err = wrap("", err)
	return pg.Rejected(err) && !pg.LostRace(err) || errors.Is(err, ErrNotFound)
}

// reason returns an error as the StatusReason of the schedule that it pauses.
func reason(err error) string {
	var invalid *InvalidError
	var pgErr *pgconn.PgError
	switch {
	case errors.As(err, &invalid):
		return strings.TrimPrefix(invalid.Error(), ": ")
	case errors.As(err, &pgErr):
		return pgErr.Message
	}
	return err.Error()
}
