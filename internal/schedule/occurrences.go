package schedule

import (
	"context"
	"errors"
	"time"

	"github.com/queued/queued/internal/pg"
)

// OccurrencesParams selects a schedule's occurrences.
type OccurrencesParams struct {
	ID       int64
	Limit    int    // past ones at most; zero: DefaultPage
	Cursor   string // an Occurrences.Next, or empty for the latest
	Upcoming int    // how many of those to come; zero: none; MaxUpcoming at most
}

// Occurrences are the past ones of a schedule, latest first, and those to come as far as they are known today, soonest first. Next is the cursor of the
// following page of the past, empty at the end.
type Occurrences struct {
	Past     []Occurrence
	Next     string
	Upcoming []Upcoming
}

// occurrenceColumns are the columns of an Occurrence.
const occurrenceColumns = `schedule_id, nominal_at, is_manual, scheduled_for, status, event_id, topic, fired_at, executed_at, failure_reason, retry_count`

// Occurrences returns a schedule's occurrences: one page of those that have come or were skipped, and those to come. It fails with ErrNotFound, ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) Occurrences(ctx context.Context, p OccurrencesParams) (result Occurrences, err error) {
	type listed struct {
		Occurrence
		Exact pg.Timestamp // what they are in the order of
	}
	past, next, err := pg.ReadPage("occurrences", p.Cursor, p.Limit, func(before pg.Cursor, n int) ([]listed, error) {
		return list[listed](ctx, s, "listing occurrences",
			`select `+occurrenceColumns+`, key_at at time zone 'UTC' as exact
			from agent.list_occurrences($1, $2, $3::timestamptz at time zone 'UTC')`, p.ID, n, before.At)
	}, func(o *listed) pg.Cursor { return pg.Cursor{At: &o.Exact} })
	if err != nil {
		return result, err
	}
	result.Next = next
	for i := range past {
		result.Past = append(result.Past, past[i].Occurrence)
	}
	if p.Upcoming <= 0 {
		return result, nil
	}
	r, err := s.row(ctx, "listing occurrences to come", `agent.get_schedule($1) s`, p.ID)
	if err == nil && r.NextAt != nil && !r.IsUnplanned {
		err = s.expand(ctx, s.pool, func(e *expander) error {
			instants, err := e.upcoming(&r, min(p.Upcoming, MaxUpcoming))
			if err == nil {
				result.Upcoming, err = e.noted(&r, instants)
			}
			return err
		})
		if errors.Is(err, ErrInvalid) { // of a schedule that cannot be expanded none is known
			err = nil
		}
	}
	return result, wrap("listing occurrences to come", err)
}

// LastOccurrences returns the last occurrence of each of these schedules that has one in the past, by the id of the schedule. It fails with ErrQueryTimeout.
func (s *Service) LastOccurrences(ctx context.Context, ids ...int64) (map[int64]Occurrence, error) {
	found, err := list[Occurrence](ctx, s, "looking for last occurrences", `select `+occurrenceColumns+` from agent.last_occurrences($1)`, ids)
	last := make(map[int64]Occurrence, len(found))
	for i := range found {
		last[found[i].ScheduleID] = found[i]
	}
	return last, err
}

// upcoming returns up to n occurrences of a schedule to come, from its next one on.
func (e *expander) upcoming(r *row, n int) ([]Instant, error) {
	if r.Count > 0 {
		n = min(n, r.Count-int(r.Fired))
	}
	if err := r.parse(); err != nil {
		return nil, err
	}
	first := Instant{Local: *r.NextLocal, UTC: r.NextAt.UTC()}
	if n <= 1 {
		return []Instant{first}, nil
	}
	_, floor, err := e.start(r.Zone, r.NextAt)
	if err != nil {
		return nil, err
	}
	rest, err := e.following(r, first, floor, n-1)
	return append([]Instant{first}, rest...), err
}

// RunNow makes an extra occurrence of a schedule now, whatever its times. It fails with ErrNotFound, with ErrEnded when the schedule is cancelled, with an
// *InvalidError when the server does not know its zone any more, and with an *UndeclaredError when it is completed and its queue was deleted since.
func (l Limited) RunNow(ctx context.Context, id int64) (Occurrence, error) {
	sql := `select ` + occurrenceColumns + ` from agent.run_schedule($1, $2, $3)`
	if l.s.cfg.DeclaredOnly {
		sql += ` where agent_service.require_queue_of_schedule($1)`
	}
	return one[Occurrence](ctx, l.s, "running a schedule", sql, id, l.queues, l.topics)
}

const (
	// pruneInterval is how often old occurrences are pruned.
	pruneInterval = time.Hour
	// pruneBlocks is how much of their table one transaction goes through: some 2 MB, or about 20,000 of them.
	pruneBlocks = 256
	// prunePause is the time between two of these transactions, for others.
	prunePause = 20 * time.Millisecond
)

// pruneAll prunes old occurrences for the service itself.
func (s *Service) pruneAll(ctx context.Context) error {
	pruned, err := s.Prune(ctx)
	if pruned > 0 {
		s.cfg.Logger.Info().Int64("occurrences", pruned).Msg("pruned old occurrences")
	}
	return err
}

// Prune deletes the occurrences that were due longer ago than Config.Retention, in short transactions, and returns how many. Run calls it at its start
// and hourly. Without a Retention it does nothing.
func (s *Service) Prune(ctx context.Context) (pruned int64, err error) {
	if s.cfg.Retention <= 0 {
		return 0, nil
	}
	for block := int64(0); ; block += pruneBlocks {
		var n *int64
		err := s.loops.QueryRow(ctx, `select agent_service.prune_occurrences($1, $2, $3)`, s.cfg.Retention, block, pruneBlocks).Scan(&n)
		if err != nil {
			return pruned, wrap("pruning occurrences", err)
		}
		if n == nil {
			return pruned, nil
		}
		if pruned += *n; *n > 0 && !pg.Pause(ctx, prunePause) {
			return pruned, ctx.Err()
		}
	}
}
