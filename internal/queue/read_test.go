package queue_test

import (
	"context"
	"errors"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// A migration, or whoever makes a partition or chunk of history, locks a table for a moment: that is no reason to refuse a read.
func TestReadsWaitForALockOfAnotherTransaction(t *testing.T) {
	t.Parallel()
	for name, read := range map[string]func(ctx context.Context, s *queue.Service, id int64) error{
		"event": func(ctx context.Context, s *queue.Service, id int64) error {
			_, err := s.Get(ctx, id)
			return err
		},
		"raw body": func(ctx context.Context, s *queue.Service, id int64) error {
			if _, err := s.RawBody(ctx, id); !errors.Is(err, queue.ErrNoRawBody) {
				return err
			}
			return nil
		},
		"attempts": func(ctx context.Context, s *queue.Service, id int64) error {
			_, err := s.Attempts(ctx, id)
			return err
		},
		"queues of events": func(ctx context.Context, s *queue.Service, id int64) error {
			_, err := s.QueuesOf(ctx, []int64{id})
			return err
		},
		"policy": func(ctx context.Context, s *queue.Service, _ int64) error {
			_, err := s.GetPolicy(ctx, queue.Default)
			return err
		},
		"declared queues": func(ctx context.Context, s *queue.Service, _ int64) error {
			return s.RequireQueues(ctx, queue.Default)
		},
		"executions": func(ctx context.Context, s *queue.Service, _ int64) error {
			_, err := s.Executions(ctx, nil, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(cfg *queue.Config) { cfg.DeclaredOnly = true })
			b.policy(t, queue.Policy{})
			id := b.insert(t, "", `{}`)[0]
			service := anotherService(t, b.url, func(cfg *queue.Config) { cfg.DeclaredOnly = true }) // which remembers no queue

			holder := pgtest.Connect(t, b.url)
			tx, err := holder.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), `
				lock table agent.event, agent.event_hist, agent.raw_body, agent.queue, agent.execution in access exclusive mode`); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- read(t.Context(), service, id) }()
			isDone := false
			eventually(t, "the read has waited for the lock ten times as long as on the connections of short calls", func() bool {
				select {
				case err = <-done:
					isDone = true
				default:
				}
				return isDone || pgtest.Query[bool](t, b.sql, `
					select exists (select from pg_catalog.pg_stat_activity
						where $1::int = any (pg_catalog.pg_blocking_pids(pid)) and clock_timestamp() - query_start > interval '100 ms')`, holder.PgConn().PID())
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !isDone {
				err = <-done
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}
