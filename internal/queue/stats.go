package queue

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
)

// statsColumns are those of agent.queue_stats, in the order of QueueStats.
const statsColumns = `queue, ready, scheduled, leased, oldest_ready_age, done_lately, expired_lately, estimated, paused`

// Queues describes the queues that hold an event, waiting or in history, or have a policy, by name. It fails with ErrBadCursor or
// ErrQueryTimeout.
func (s *Service) Queues(ctx context.Context, p QueuesParams) (QueuesPage, error) {
	after, err := pg.ParseCursor("queues", p.Cursor)
	if err != nil {
		return QueuesPage{}, err
	}
	limit := pageSize(p.Limit)
	var page QueuesPage
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select `+statsColumns+` from agent.queue_stats(nullif($1, interval '0'), coalesce($2, ''), $3)`, p.Lately, after.Name, limit+1)
		var err error
		page.Queues, err = pgx.CollectRows(rows, pgx.RowToStructByPos[QueueStats])
		return err
	})
	if err != nil {
		return QueuesPage{}, wrap("counting queues", err)
	}
	if len(page.Queues) > limit {
		page.Queues = page.Queues[:limit]
		page.Next = pg.Cursor{Listing: "queues", Name: &page.Queues[limit-1].Queue}.String()
	}
	return page, nil
}

// BusiestQueues describes up to limit queues, by name: those that hold a waiting event, or have a policy, or that this service has had to do with lately. When
// these are more, they are those that have been waiting longest or hold the most. It says of how many it leaves out, at least.
// It fails with ErrQueryTimeout.
func (s *Service) BusiestQueues(ctx context.Context, limit int) (queues []QueueStats, leftOut int64, err error) {
	var total int64
	err = s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `select name, total from agent.busiest_queues($1)`, limit)
		var names []string
		var name string
		if _, err := pgx.ForEachRow(rows, []any{&name, &total}, func() error {
			names = append(names, name)
			return nil
		}); err != nil {
			return err
		}
		leftOut = total - int64(len(names))
		known := make(map[string]bool, len(names))
		for _, name := range names {
			known[name] = true
		}
		for _, c := range s.Counters() {
			if len(names) < limit && c.Queue != OtherQueues && !known[c.Queue] {
				names = append(names, c.Queue)
			}
		}
		rows, _ = tx.Query(ctx, `select `+statsColumns+` from agent.queue_stats(null, _names => $1)`, names)
		var err error
		queues, err = pgx.CollectRows(rows, pgx.RowToStructByPos[QueueStats])
		return err
	})
	return queues, leftOut, wrap("counting queues", err)
}

// HistoryStats counts history per bucket, empty buckets included, oldest first. The caller
// keeps the number of buckets within MaxBuckets. It fails with ErrQueryTimeout.
func (s *Service) HistoryStats(ctx context.Context, p StatsParams) ([]StatsBucket, error) {
	var buckets []StatsBucket
	err := s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			select bucket, done, failed, expired, cancelled
			from agent.history_stats($1, $2, $3, nullif($4, ''))`, p.Bucket, p.From, p.To, p.Queue)
		var err error
		buckets, err = pgx.CollectRows(rows, pgx.RowToStructByPos[StatsBucket])
		return err
	})
	return buckets, wrap("counting history", err)
}
