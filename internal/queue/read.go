package queue

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// eventColumns are the columns of an Event.
const eventColumns = `id, queue, event_ts, enqueued_at, attempts, coalesce(turn_vt, vt) as vt, claimed, event, last_error, requeued_from, state, outcome, finished_at,
	requeued_as, type, source, priority, key, max_attempts, expires_at, worker, error_count, occurrence, retryable, result, processing,
	meta, publication, dead_letter_of, dead_lettered_as, group_key`

// Get returns one event, in its queue or in history. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Event, error) {
	e, err := shortCall(ctx, &s.pools, pg.CollectOne[Event], `select `+eventColumns+` from agent.get_event($1)`, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Event{}, ErrNotFound
	}
	return e, wrap("getting an event", err)
}

// RawBody returns the bytes that an event came in as. It fails with ErrNoRawBody.
func (s *Service) RawBody(ctx context.Context, id int64) (RawBody, error) {
	raw, err := shortCall(ctx, &s.pools, pg.CollectOne[RawBody], `select body, media_type, kept_until from agent.get_raw_body($1)`, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return RawBody{}, ErrNoRawBody
	}
	return raw, wrap("getting a raw body", err)
}

// Attempts returns every attempt at an event, in its queue or in history, in their order. It fails with ErrNotFound.
func (s *Service) Attempts(ctx context.Context, id int64) ([]Attempt, error) {
	attempts, err := shortCall(ctx, &s.pools, pg.Collect[Attempt],
		`select attempt, worker, started_at, ended_at, outcome, error from agent.list_attempts($1)`, id)
	return attempts, wrap("listing attempts", err)
}

// List returns waiting events by (vt, id). It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (Page, error) {
	return s.page(ctx, "list", p.Cursor, p.Limit,
		`select `+eventColumns+`, is_beyond, vt as position from agent.list_events(nullif($4, ''), nullif($5, ''), $1, $2, $3, $6, $7, $8, $9, nullif($10, ''))`,
		p.Queue, string(p.State), pg.JSONArg(p.Contains), pg.JSONArg(p.Meta), p.Queues, maxCommitBytes, p.Group)
}

// History returns one page of history. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) History(ctx context.Context, p HistoryParams) (Page, error) {
	return s.page(ctx, "history", p.Cursor, p.Limit,
		`select `+eventColumns+`, is_beyond, event_ts as position from agent.list_history(nullif($4, ''), nullif($5, ''), $6, $7, $8, $9, $1, $2, $3,
			nullif($10, ''), nullif($11, ''), nullif($12, ''), $13, $14, $15, $16, $17, $18, nullif($19, ''))`,
		p.Queue, string(p.Outcome), p.From, p.To, pg.JSONArg(p.Contains), p.ID, p.Type, p.Source, p.Worker, p.MinDuration, pg.JSONArg(p.Meta), p.Queues, maxCommitBytes,
		p.FinishedFrom, p.FinishedTo, p.Cause)
}

// page runs a listing, whose first arguments are how many events to return, and the time and the id of the last event of the page before. Its column
// position is the time that it is ordered by. A page holds fewer events when their payloads would be more than maxCommitBytes: the first of those
// that it has no room for is_beyond.
func (s *Service) page(ctx context.Context, listing, cursor string, limit int, sql string, args ...any) (page Page, err error) {
	type listed struct {
		Event
		IsBeyond bool
		Position pg.Timestamp
	}
	after, err := pg.ParseCursor(listing, cursor)
	if err != nil {
		return page, err
	}
	var found []listed
	size, bytes := pg.PageSize(limit), 0
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sql, append([]any{size + 1, after.At, after.ID}, args...)...)
		for e, err := range pg.Each[listed](rows) {
			if err != nil {
				return err
			}
			found = append(found, e)
			if bytes += len(e.Payload) + len(e.Result) + len(e.Meta) + len(e.Publication); len(found) > 1 && (e.IsBeyond || bytes > maxCommitBytes) {
				size = min(size, len(found)-1)
				break
			}
		}
		return rows.Err() // of the rows after the break: without it the error would be that of a commit which cannot be
	})
	if err != nil {
		return page, wrap("listing events", err)
	}
	found, page.Next = pg.Cut(found, size, listing, func(e *listed) pg.Cursor { return pg.Cursor{At: &e.Position, ID: &e.ID} })
	page.Events = slices.Grow(page.Events, len(found))
	for i := range found {
		page.Events = append(page.Events, found[i].Event)
	}
	return page, nil
}

// statsColumns are the columns of QueueStats.
const statsColumns = `queue, ready, scheduled, waiting, leased, oldest_ready_age, done_lately, failed_lately, expired_lately, estimated, paused, dead_letters_of`

// Queues describes the queues that hold an event, waiting or in history, or have a policy, by name. It fails with ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) Queues(ctx context.Context, p QueuesParams) (page QueuesPage, err error) {
	page.Queues, page.Next, err = pg.ReadPage("queues", p.Cursor, p.Limit, func(after pg.Cursor, n int) ([]QueueStats, error) {
		return collect[QueueStats](ctx, s, `select `+statsColumns+` from agent.queue_stats(nullif($1, interval '0'), coalesce($2, ''), $3, _queues => $4, _name_contains => nullif($5, ''))`,
			p.Lately, after.Name, n, p.Queues, p.NameContains)
	}, func(q *QueueStats) pg.Cursor { return pg.Cursor{Name: &q.Queue} })
	return page, wrap("counting queues", err)
}

// collect runs a listing or count.
func collect[T any](ctx context.Context, s *Service, sql string, args ...any) (all []T, err error) {
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, sql, args...)
		all, err = pg.Collect[T](rows)
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
	busiest, err := collect[busy](ctx, s, `select name, total from agent_service.busiest_queues($1)`, limit)
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
	buckets, err := collect[StatsBucket](ctx, s, `
		select bucket as start, done, failed, expired, cancelled
		from agent.history_stats($1, $2, $3, nullif($4, ''), $5)`,
		p.Bucket, p.From, p.To, p.Queue, p.Queues)
	return buckets, wrap("counting history", err)
}

// QueuesOf returns the queues of events, waiting or in history, by id; those that there are not are left out.
func (s *Service) QueuesOf(ctx context.Context, ids []int64) (map[int64]string, error) {
	type eventQueue struct {
		ID    int64
		Queue string
	}
	found, err := shortCall(ctx, &s.pools, pg.Collect[eventQueue], `select id, queue from agent_service.event_queues($1)`, ids)
	queues := make(map[int64]string, len(found))
	for _, e := range found {
		queues[e.ID] = e.Queue
	}
	return queues, wrap("looking for the queues of events", err)
}
