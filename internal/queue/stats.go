package queue

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Queues describes every queue that holds an event, waiting or in history, or has a policy, by name. What has finished
// is counted over the time lately; zero: not at all. It fails with ErrQueryTimeout.
func (s *Service) Queues(ctx context.Context, lately time.Duration) ([]QueueStats, error) {
	var queues []QueueStats
	err := s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			select queue, ready, scheduled, leased, oldest_ready_age, done_lately, expired_lately, estimated, paused
			from agent.queue_stats(nullif($1, interval '0'))`, lately)
		var err error
		queues, err = pgx.CollectRows(rows, pgx.RowToStructByPos[QueueStats])
		return err
	})
	return queues, wrap("counting queues", err)
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
