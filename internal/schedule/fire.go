package schedule

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// fireBatch is how many schedules fire in one transaction at most.
	fireBatch = 1000
	// catchUp is how many occurrences of one schedule that was missed are gone through in one transaction, and
	// catchUpBatch of all of them.
	catchUp      = 1000
	catchUpBatch = 10_000
	// shortestRest is the least time between two looks, so that what is due meanwhile fires together.
	shortestRest = 10 * time.Millisecond
)

// due is a schedule whose time has come, locked.
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

// fire turns up to limit schedules that are due into events, in one transaction. It returns the schedules it had to do with.
func (s *Service) fire(ctx context.Context, limit int) (ids []int64, err error) {
	var (
		b     batch
		now   time.Time // by the database's clock, when it was
		asked time.Time // by this one's
	)
	err = s.inTx(ctx, "firing schedules", func(tx pgx.Tx) error {
		asked = time.Now()
		dues, err := lockDue(ctx, tx, limit)
		if err != nil || len(dues) == 0 {
			return err
		}
		now = dues[0].now
		for i := range dues {
			ids = append(ids, dues[i].ID)
		}
		for i := range dues {
			if dues[i].line, err = dues[i].row.line(); err != nil {
				return err
			}
		}
		rest, err := s.fireSimple(ctx, tx, &b, dues)
		if err != nil {
			return err
		}
		budget := catchUpBatch
		for _, d := range rest {
			n := max(1, min(catchUp, budget))
			at := position{local: *d.NextLocal} // of the next occurrence among the others
			var floor time.Time
			if err := tx.QueryRow(ctx, `select at, floor from agent.schedule_position($1)`, d.ID).Scan(&at.at, &floor); err != nil {
				return err
			}
			next, err := following(ctx, tx, d.line, at, floor, n)
			if err != nil {
				return err
			}
			budget -= len(next)
			s.settle(&b, d, next, len(next) < n)
		}
		n, err := b.run(ctx, tx)
		if err == nil {
			s.cfg.Logger.Debug().Int64("events", n).Int("schedules", len(ids)).Msg("fired")
		}
		return err
	})
	if err == nil {
		s.counters.add(&b, now.Add(time.Since(asked)))
	}
	return ids, err
}

// lockDue locks schedules that are due.
func lockDue(ctx context.Context, q querier, limit int) ([]*due, error) {
	rows, _ := q.Query(ctx, `select d.now, d.is_plain, `+columns("(d.schedule)")+` from agent.due_schedules($1) d`, limit)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (*due, error) {
		var (
			d  due
			sc scanner
		)
		if err := row.Scan(append([]any{&d.now, &d.isPlain}, sc.fields()...)...); err != nil {
			return nil, err
		}
		d.row = sc.result()
		d.now = d.now.UTC()
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
	for _, d := range dues {
		if !d.isPlain || s.isMissed(d.now, *d.NextAt) {
			rest = append(rest, d)
			continue
		}
		next, ok := d.line.rule.from(d.NextLocal.Add(time.Microsecond))()
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
		if r.at == nil || r.isShifted || r.isKnown || !r.at.After(d.now) || ends != nil && r.at.After(*ends) {
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
	for {
		ids, err := s.fire(ctx, limit)
		rest := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && isFault(err) && len(ids) > 1:
			limit, alone = 1, len(ids)
		case err != nil && isFault(err) && len(ids) == 1:
			s.cfg.Logger.Error().Err(err).Int64("schedule_id", ids[0]).Msg("a schedule that could not fire is paused")
			if _, err := s.pool.Exec(ctx, `select agent.park_schedule($1)`, ids[0]); err != nil {
				rest = s.cfg.PollInterval
			}
		case err != nil:
			s.cfg.Logger.Error().Err(err).Msg("what is due could not be fired; it is tried again")
			rest = s.cfg.PollInterval
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
	var wait *time.Duration
	if err := s.pool.QueryRow(ctx, `select agent.next_due()`).Scan(&wait); err != nil || wait == nil {
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
