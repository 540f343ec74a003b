package schedule

import (
	"cmp"
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// one returns the only row of a statement that selects columns().
func one(ctx context.Context, q querier, sql string, args ...any) (row, error) {
	rows, _ := q.Query(ctx, sql, args...)
	return pgx.CollectExactlyOneRow(rows, scanRow)
}

// Get returns one schedule. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Schedule, error) {
	r, err := one(ctx, s.pool, `select `+columns("s")+` from agent.get_schedule($1) s`, id)
	return r.Schedule, wrap("getting a schedule", err)
}

// List returns one page of schedules. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (Page, error) {
	listing := "schedules"
	if p.DueBefore != nil {
		listing = "due"
	}
	after, err := parseCursor(listing, p.Cursor)
	if err != nil {
		return Page{}, err
	}
	var (
		afterAt *time.Time
		afterID *int64
	)
	if after != nil {
		afterAt, afterID = after.At, &after.ID
	}
	limit := pageSize(p.Limit)
	var found []row
	err = s.bounded(ctx, "listing schedules", func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select `+columns("s")+` from agent.list_schedules(nullif($1, ''), nullif($2, ''), nullif($3, ''), $4, $5, $6, $7) s`,
			p.Owner, p.Queue, string(p.Status), p.DueBefore, limit+1, afterAt, afterID)
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
			next := cursor{Listing: listing, ID: last.ID}
			if p.DueBefore != nil {
				next.At = last.NextAt
			}
			page.Next = next.String()
			break
		}
		page.Schedules = append(page.Schedules, r.Schedule)
	}
	return page, nil
}

// occurrenceColumns are the columns of agent.list_occurrences and agent.run_schedule, in scanOccurrence's order.
const occurrenceColumns = `schedule_id, nominal_at, is_manual, scheduled_for, status, event_id, fired_at, executed_at, failure_reason, retry_count`

func scanOccurrence(row pgx.CollectableRow) (o Occurrence, err error) {
	err = row.Scan(&o.ScheduleID, &o.NominalAt, &o.Manual, &o.ScheduledFor, &o.Status, &o.EventID, &o.FiredAt, &o.ExecutedAt, &o.FailureReason, &o.RetryCount)
	return o, err
}

// Occurrences returns a schedule's occurrences: one page of those that have come or were passed over, and those to come. It fails with
// ErrNotFound, ErrBadCursor or ErrQueryTimeout.
func (s *Service) Occurrences(ctx context.Context, p OccurrencesParams) (Occurrences, error) {
	before, err := parseCursor("occurrences", p.Cursor)
	if err != nil {
		return Occurrences{}, err
	}
	var beforeLocal *time.Time
	if before != nil {
		beforeLocal = before.At
	}
	limit := pageSize(p.Limit)
	var result Occurrences
	err = s.bounded(ctx, "listing occurrences", func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select `+occurrenceColumns+` from agent.list_occurrences($1, $2, $3)`, p.ID, limit+1, beforeLocal)
		past, err := pgx.CollectRows(rows, scanOccurrence)
		if err != nil {
			return err
		}
		if len(past) > limit {
			past = past[:limit]
			result.Next = cursor{Listing: "occurrences", At: &past[limit-1].NominalAt}.String()
		}
		result.Past = past
		if p.Upcoming > 0 {
			result.Upcoming, err = upcoming(ctx, tx, p.ID, min(p.Upcoming, MaxUpcoming))
		}
		return err
	})
	if err != nil {
		return Occurrences{}, err
	}
	return result, nil
}

// upcoming returns up to n occurrences that a schedule still waits for.
func upcoming(ctx context.Context, q querier, id int64, n int) ([]Instant, error) {
	r, err := one(ctx, q, `select `+columns("s")+` from agent.get_schedule($1) s`, id)
	if err != nil || r.NextAt == nil {
		return nil, err
	}
	if r.Count > 0 {
		n = min(n, r.Count-int(r.Fired))
	}
	l, err := r.line()
	if err != nil {
		return nil, err
	}
	var floor time.Time
	if err := q.QueryRow(ctx, `select agent.local_floor($1, $2)`, r.NextAt, r.Zone).Scan(&floor); err != nil {
		return nil, err
	}
	first := Instant{Local: *r.NextLocal, UTC: r.NextAt.UTC()}
	rest, err := following(ctx, q, l, position{first.UTC, first.Local}, floor, max(1, n-1))
	return append([]Instant{first}, rest...)[:min(cmp.Or(n, 1), len(rest)+1)], err
}

// RunNow has an extra occurrence of a schedule now, whatever its times. It fails with ErrNotFound, and with ErrEnded
// when the schedule is cancelled.
func (s *Service) RunNow(ctx context.Context, id int64) (Occurrence, error) {
	rows, _ := s.pool.Query(ctx, `select `+occurrenceColumns+` from agent.run_schedule($1)`, id)
	o, err := pgx.CollectExactlyOneRow(rows, scanOccurrence)
	return o, wrap("running a schedule", err)
}
