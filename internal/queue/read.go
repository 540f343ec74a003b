package queue

import (
	"cmp"
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// eventColumns are those of agent.look, in scanEvent's order.
const eventColumns = `id, queue, event_ts, enqueued_at, attempts, vt, claimed, event, last_error, requeued_from,
	coalesce(state, ''), coalesce(outcome, ''), finished_at, requeued_as,
	coalesce(type, ''), coalesce(source, ''), priority, coalesce(key, ''), max_attempts, expires_at, coalesce(worker, ''), error_count,
	occurrence, retryable, result, processing`

// scanEvent scans eventColumns, and what follows them into more.
func scanEvent(row pgx.CollectableRow, more ...any) (e Event, err error) {
	err = row.Scan(append([]any{
		&e.ID, &e.Queue, &e.EventTS, &e.EnqueuedAt, &e.Attempts, &e.VT, &e.Claimed, (*[]byte)(&e.Payload), &e.LastError, &e.RequeuedFrom,
		&e.State, &e.Outcome, &e.FinishedAt, &e.RequeuedAs,
		&e.Type, &e.Source, &e.Priority, &e.Key, &e.MaxAttempts, &e.ExpiresAt, &e.Worker, &e.ErrorCount,
		(*[]byte)(&e.Occurrence), &e.Retryable, (*[]byte)(&e.Result), &e.Processing,
	}, more...)...)
	return e, err
}

// Get returns one event, in its queue or in history. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Event, error) {
	rows, _ := s.calls.Query(ctx, `select `+eventColumns+` from agent.get_event($1)`, id)
	events, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Event, error) { return scanEvent(row) })
	if err == nil && len(events) == 0 {
		return Event{}, ErrNotFound
	}
	if err != nil {
		return Event{}, wrap("getting an event", err)
	}
	return events[0], nil
}

// Attempts returns every attempt at an event, in its queue or in history, in their order. It fails with ErrNotFound.
func (s *Service) Attempts(ctx context.Context, id int64) ([]Attempt, error) {
	rows, _ := s.calls.Query(ctx, `select attempt, coalesce(worker, ''), started_at, ended_at, outcome, error from agent.list_attempts($1)`, id)
	attempts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Attempt])
	return attempts, wrap("listing attempts", err)
}

// List returns waiting events by (vt, id). It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (Page, error) {
	after, err := pg.ParseCursor("list", p.Cursor)
	if err != nil {
		return Page{}, err
	}
	limit := pageSize(p.Limit)
	return s.page(ctx, "list", limit,
		`select `+eventColumns+`, vt from agent.list_events(nullif($1, ''), nullif($2, ''), $3, $4, $5)`,
		p.Queue, string(p.State), limit+1, after.At, after.ID)
}

// History returns one page of history. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) History(ctx context.Context, p HistoryParams) (Page, error) {
	before, err := pg.ParseCursor("history", p.Cursor)
	if err != nil {
		return Page{}, err
	}
	limit := pageSize(p.Limit)
	return s.page(ctx, "history", limit,
		`select `+eventColumns+`, event_ts from agent.list_history(nullif($1, ''), nullif($2, ''), $3, $4, $5, $6, $7, $8, $9,
			nullif($10, ''), nullif($11, ''), nullif($12, ''), $13)`,
		p.Queue, string(p.Outcome), p.From, p.To, jsonArg(p.Contains), p.ID, limit+1, before.At, before.ID,
		p.Type, p.Source, p.Worker, p.MinDuration)
}

// page runs a listing that was asked for one event more than the page holds, to learn whether there is another page. The column after those of the
// event is the time that the listing is ordered by. A page holds fewer events when their payloads would be more than maxCommitBytes.
func (s *Service) page(ctx context.Context, listing string, limit int, sql string, args ...any) (Page, error) {
	var events []Event
	var last pg.Timestamp // where the page ends
	err := s.bounded(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, sql, args...)
		if err != nil {
			return err
		}
		defer rows.Close()
		for bytes := 0; len(events) <= limit && rows.Next(); {
			var at pg.Timestamp
			e, err := scanEvent(rows, &at)
			if err != nil {
				return err
			}
			if bytes += len(e.Payload) + len(e.Result); bytes > maxCommitBytes && len(events) > 0 {
				limit = len(events)
				e.Payload, e.Result = nil, nil
			}
			if len(events) < limit {
				last = at
			}
			events = append(events, e)
		}
		rows.Close()
		return rows.Err()
	})
	if err != nil {
		return Page{}, wrap("listing events", err)
	}
	if len(events) <= limit {
		return Page{Events: events}, nil
	}
	events = events[:limit]
	return Page{Events: events, Next: pg.Cursor{Listing: listing, At: &last, ID: &events[limit-1].ID}.String()}, nil
}

func pageSize(limit int) int { return min(cmp.Or(limit, DefaultPage), MaxPage) }

// jsonArg is a JSON argument for a statement: null when absent.
func jsonArg(v json.RawMessage) *string {
	if v == nil {
		return nil
	}
	return new(string(v))
}

// statsColumns are those of agent.queue_stats, in the order of QueueStats.
const statsColumns = `queue, ready, scheduled, leased, oldest_ready_age, done_lately, expired_lately, estimated, paused`

// Queues describes the queues that hold an event, waiting or in history, or have a policy, by name. It fails with ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) Queues(ctx context.Context, p QueuesParams) (page QueuesPage, err error) {
	after, err := pg.ParseCursor("queues", p.Cursor)
	if err != nil {
		return page, err
	}
	limit := pageSize(p.Limit)
	page.Queues, err = collect[QueueStats](ctx, s, `select `+statsColumns+` from agent.queue_stats(nullif($1, interval '0'), coalesce($2, ''), $3)`,
		p.Lately, after.Name, limit+1)
	if err != nil {
		return QueuesPage{}, wrap("counting queues", err)
	}
	if len(page.Queues) > limit {
		page.Queues = page.Queues[:limit]
		page.Next = pg.Cursor{Listing: "queues", Name: &page.Queues[limit-1].Queue}.String()
	}
	return page, nil
}

// collect runs a listing or count, and returns its rows as structs whose fields are its columns in order.
func collect[T any](ctx context.Context, s *Service, sql string, args ...any) (all []T, err error) {
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sql, args...)
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return all, err
}

// BusiestQueues describes up to limit queues, by name: those that hold a waiting event, or have a policy, or that this service has had to do with lately. When
// these are more, they are those that have been waiting longest or hold the most. It says of how many it leaves out, at least.
// It fails with ErrQueryTimeout.
func (s *Service) BusiestQueues(ctx context.Context, limit int) (queues []QueueStats, leftOut int64, err error) {
	type busy struct {
		Name  string
		Total int64
	}
	busiest, err := collect[busy](ctx, s, `select name, total from agent.busiest_queues($1)`, limit)
	if err != nil {
		return nil, 0, wrap("counting queues", err)
	}
	names := make([]string, 0, limit)
	known := make(map[string]bool, len(busiest))
	for _, b := range busiest {
		names = append(names, b.Name)
		known[b.Name] = true
		leftOut = b.Total - int64(len(busiest))
	}
	for _, c := range s.Counters() {
		if len(names) < limit && c.Queue != OtherQueues && !known[c.Queue] {
			names = append(names, c.Queue)
		}
	}
	queues, err = collect[QueueStats](ctx, s, `select `+statsColumns+` from agent.queue_stats(null, _names => $1)`, names)
	return queues, leftOut, wrap("counting queues", err)
}

// HistoryStats counts history per bucket, empty buckets included, oldest first. The caller keeps the number of buckets within MaxBuckets. It fails
// with ErrQueryTimeout.
func (s *Service) HistoryStats(ctx context.Context, p StatsParams) ([]StatsBucket, error) {
	buckets, err := collect[StatsBucket](ctx, s, `select bucket, done, failed, expired, cancelled from agent.history_stats($1, $2, $3, nullif($4, ''))`,
		p.Bucket, p.From, p.To, p.Queue)
	return buckets, wrap("counting history", err)
}
