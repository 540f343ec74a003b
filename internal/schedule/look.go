package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// one returns the only row of a statement that selects columns().
func one(ctx context.Context, q querier, sql string, args ...any) (row, error) {
	rows, _ := q.Query(ctx, sql, args...)
	return pgx.CollectExactlyOneRow(rows, scanRow)
}

// one returns the only schedule of a statement that selects columns().
func (s *Service) one(ctx context.Context, doing, sql string, args ...any) (Schedule, error) {
	var found row
	err := s.call(ctx, doing, func(ctx context.Context) (err error) {
		found, err = one(ctx, s.pool, sql, args...)
		return err
	})
	return found.Schedule, err
}

// Get returns one schedule. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Schedule, error) {
	return s.one(ctx, "getting a schedule", `select `+columns("s")+` from agent.get_schedule($1) s`, id)
}

// List returns one page of schedules. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (Page, error) {
	listing := "schedules"
	if p.DueBefore != nil {
		listing = "due"
	}
	after, err := pg.ParseCursor(listing, p.Cursor)
	if err != nil {
		return Page{}, err
	}
	limit := pageSize(p.Limit)
	var found []row
	err = s.bounded(ctx, "listing schedules", func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select `+columns("s")+` from agent.list_schedules(nullif($1, ''), nullif($2, ''), nullif($3, ''), $4, $5, $6, $7) s`,
			p.Owner, p.Queue, string(p.Status), p.DueBefore, limit+1, after.At, after.ID)
		var err error
		found, err = pgx.CollectRows(rows, scanRow)
		return err
	})
	if err != nil {
		return Page{}, err
	}
	var page Page
	for i, r := range found {
		if i == limit {
			last := found[limit-1]
			next := pg.Cursor{Listing: listing, ID: &last.ID}
			if p.DueBefore != nil {
				next.At = last.nextExact
			}
			page.Next = next.String()
			break
		}
		page.Schedules = append(page.Schedules, r.Schedule)
	}
	return page, nil
}

// occurrenceColumns are the columns of agent.list_occurrences and agent.run_schedule, in Occurrence.fields' order.
const occurrenceColumns = `schedule_id, nominal_at, is_manual, scheduled_for, status, event_id, fired_at, executed_at, failure_reason, retry_count`

func (o *Occurrence) fields() []any {
	return []any{&o.ScheduleID, &o.NominalAt, &o.Manual, &o.ScheduledFor, &o.Status, &o.EventID, &o.FiredAt, &o.ExecutedAt, &o.FailureReason, &o.RetryCount}
}

// Occurrences returns a schedule's occurrences: one page of those that have come or were passed over, and those to come. It fails with
// ErrNotFound, ErrBadCursor or ErrQueryTimeout.
func (s *Service) Occurrences(ctx context.Context, p OccurrencesParams) (Occurrences, error) {
	before, err := pg.ParseCursor("occurrences", p.Cursor)
	if err != nil {
		return Occurrences{}, err
	}
	limit := pageSize(p.Limit)
	var (
		result Occurrences
		r      row
	)
	err = s.bounded(ctx, "listing occurrences", func(ctx context.Context, tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select `+occurrenceColumns+`, nominal_at at time zone 'UTC' from agent.list_occurrences($1, $2, $3::timestamptz at time zone 'UTC')`,
			p.ID, limit+1, before.At)
		var last pg.Timestamp // where the page ends, exactly
		past, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (o Occurrence, err error) {
			var nominalAt pg.Timestamp
			err = row.Scan(append(o.fields(), &nominalAt)...)
			if limit--; limit >= 0 {
				last = nominalAt
			}
			return o, err
		})
		if err != nil {
			return err
		}
		if limit < 0 {
			past = past[:len(past)-1]
			result.Next = pg.Cursor{Listing: "occurrences", At: &last}.String()
		}
		result.Past = past
		r, err = one(ctx, tx, `select `+columns("s")+` from agent.get_schedule($1) s`, p.ID)
		return err
	})
	if err != nil {
		return Occurrences{}, err
	}
	if p.Upcoming > 0 {
		err := s.plan(ctx, func(ctx context.Context) (err error) {
			result.Upcoming, err = upcoming(ctx, s.pool, r, min(p.Upcoming, MaxUpcoming))
			return err
		})
		if err != nil && !errors.Is(err, ErrInvalid) { // of a schedule that can't be followed none is known
			return Occurrences{}, wrap("listing occurrences to come", err)
		}
	}
	return result, nil
}

// upcoming returns up to n occurrences that a schedule still waits for.
func upcoming(ctx context.Context, q querier, r row, n int) ([]Instant, error) {
	if r.NextAt == nil || r.isUnplanned {
		return nil, nil
	}
	if r.Count > 0 {
		n = min(n, r.Count-int(r.Fired))
	}
	l, err := r.line()
	if err != nil {
		return nil, err
	}
	first := Instant{Local: *r.NextLocal, UTC: r.NextAt.UTC()}
	if n <= 1 {
		return []Instant{first}, nil
	}
	var floor time.Time
	if err := q.QueryRow(ctx, `select floor from agent.expansion_start($1, $2)`, r.Zone, r.NextAt).Scan(&floor); err != nil {
		return nil, sqlstates.Wrap("planning", err)
	}
	rest, err := following(ctx, q, newSteps(ctx), l, position{first.UTC, first.Local}, floor, n-1)
	return append([]Instant{first}, rest...), err
}

// RunNow has an extra occurrence of a schedule now, whatever its times. It fails with ErrNotFound, with ErrEnded
// when the schedule is cancelled, and with an *InvalidError when the server does not know its zone any more.
func (s *Service) RunNow(ctx context.Context, id int64) (o Occurrence, err error) {
	err = s.call(ctx, "running a schedule", func(ctx context.Context) error {
		return s.pool.QueryRow(ctx, `select `+occurrenceColumns+` from agent.run_schedule($1)`, id).Scan(o.fields()...)
	})
	return o, err
}
