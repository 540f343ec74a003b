package queue

import (
	"cmp"
	"context"

	"github.com/jackc/pgx/v5"
)

// Requeue copies one event of history back into its queue and returns the copy's id. It fails with ErrNotFound.
func (s *Service) Requeue(ctx context.Context, id int64) (int64, error) {
	var (
		copied int64
		queue  string
	)
	err := s.row(ctx, `select id, queue from agent.requeue_event($1, _notify => false)`, []any{id}, &copied, &queue)
	if err != nil {
		return 0, wrap("requeueing an event", err)
	}
	s.counters.add(queue, func(c *Counters) { c.Requeued++ })
	s.wake(map[string]bool{queue: true})
	return copied, nil
}

// RequeueMatching requeues by filter. It fails with ErrQueryTimeout, and then has requeued nothing.
func (s *Service) RequeueMatching(ctx context.Context, p RequeueParams) (RequeueResult, error) {
	requeued := make(map[string]int64)
	var result RequeueResult
	err := s.bounded(ctx, func(tx pgx.Tx) error {
		rows, _ := tx.Query(ctx, `
			select queue, matched, requeued
			from agent.requeue_events(nullif($1, ''), nullif($2, ''), $3, $4, $5, $6, $7, $8, _notify => false,
				_type => nullif($9, ''), _source => nullif($10, ''), _worker => nullif($11, ''), _min_duration => $12)`,
			p.Queue, string(p.Outcome), p.From, p.To, jsonArg(p.Contains), p.ID, min(cmp.Or(p.Limit, MaxBatch), MaxBatch), p.DryRun,
			p.Type, p.Source, p.Worker, p.MinDuration)
		var (
			queue      string
			matched, n int64
		)
		_, err := pgx.ForEachRow(rows, []any{&queue, &matched, &n}, func() error {
			result.Matched += matched
			result.Requeued += n
			requeued[queue] = n
			return nil
		})
		return err
	})
	if err != nil {
		return RequeueResult{}, wrap("requeueing events", err)
	}
	touched := make(map[string]bool)
	for queue, n := range requeued {
		if n > 0 {
			s.counters.add(queue, func(c *Counters) { c.Requeued += n })
			touched[queue] = true
		}
	}
	s.wake(touched)
	return result, nil
}
