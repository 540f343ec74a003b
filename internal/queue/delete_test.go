package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// Events that are inserted while their queue is deleted again and again are all there in the end: in history as cancelled, or in the queue.
func TestNoEventIsLostWhoseQueueIsDeletedMeanwhile(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	const writers, each = 4, 50
	var inserted atomic.Int64
	var writing, deleting sync.WaitGroup
	done := make(chan struct{})
	for range writers {
		writing.Go(func() {
			for range each {
				if _, err := b.Insert(t.Context(), []queue.InsertParams{{Queue: "work", Event: json.RawMessage(`{}`)}}); err != nil {
					t.Error(err)
					return
				}
				inserted.Add(1)
			}
		})
	}
	deleted := 0
	deleting.Go(func() {
		for {
			_, err := b.Delete(t.Context(), "work", true, nil)
			switch {
			case err == nil:
				deleted++
			case !errors.Is(err, queue.ErrQueueNotFound) && !errors.Is(err, queue.ErrQueueLeased):
				t.Error(err)
				return
			}
			select {
			case <-done:
				if deleted > 0 { // else no deletion has come between two inserts: one comes after all of them
					return
				}
			default:
			}
		}
	})
	writing.Wait()
	close(done)
	deleting.Wait()
	n := pgtest.Query[int](t, b.sql, `select (select count(*) from agent.event) + (select count(*) from agent.event_hist where outcome = 'cancelled')`)
	if n != int(inserted.Load()) || deleted == 0 {
		t.Errorf("%d events are left of %d, after %d deletions", n, inserted.Load(), deleted)
	}
}

// A deletion waits for a put of the queue's push, and then takes it along: no push is left without its policy.
func TestDeletionTakesThePushThatIsPutMeanwhile(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: "work", MaxAttempts: new(3), Backoff: &queue.Backoff{Kind: queue.Constant}}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Connect(t, b.url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	_, err = tx.Exec(t.Context(), `select agent_service.put_push('work', 'https://example.com', 'standard', '15s', 10, null, null, '{}', '120h', null, null, '\x00')`)
	if err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := b.Delete(t.Context(), "work", false, nil)
		deleted <- err
	}()
	eventually(t, "the deletion waits", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`) == 1
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, b.sql, `select (select count(*) from agent.push) + (select count(*) from agent.push_secret) + (select count(*) from agent.push_state) + (select count(*) from agent.queue)`); n != 0 {
		t.Errorf("%d rows of the queue are left", n)
	}
}

// A deletion and a change of the queue's push, which also updates the policy, lock the push first: neither waits for the other with a lock that the other needs.
func TestDeletionAndAChangeOfThePushDoNotWaitForEachOther(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent_service.put_push('work', 'https://example.com', 'standard', '15s', 10, null, null, '{}', '120h', null, null, '\x00')`)
	b.exec(t, `update agent.push_state set opened_at = now()`)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select from agent.push for share`); err != nil { // as the change does
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() {
		_, err := b.Delete(t.Context(), "work", false, nil)
		deleted <- err
	}()
	eventually(t, "the deletion waits", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database()`) == 1
	})
	if _, err := tx.Exec(t.Context(), `set local lock_timeout = '10s'`); err != nil {
		t.Fatal(err)
	}
	var epoch *int64
	err = tx.QueryRow(t.Context(), `select agent_service.record_push_change('work', epoch, false, null, 0, null, null, null, null) from agent.push_state`).Scan(&epoch)
	if err != nil || epoch == nil {
		t.Errorf("the change has the epoch %v, %v", epoch, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if n := pgtest.Query[int](t, b.sql, `select (select count(*) from agent.push) + (select count(*) from agent.queue)`); n != 0 {
		t.Errorf("%d rows of the queue are left", n)
	}
}

// An event that another transaction works on is neither lost nor waited for.
func TestQueueIsNotDeletedWhileATransactionHasAnEvent(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	if _, err := b.Insert(t.Context(), []queue.InsertParams{{Queue: "work", Event: json.RawMessage(`{}`)}, {Queue: "work", Event: json.RawMessage(`{}`)}}); err != nil {
		t.Fatal(err)
	}
	conn := pgtest.Connect(t, b.url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `select from agent.claim_event(_queue => 'work')`); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Delete(t.Context(), "work", true, nil); !errors.Is(err, queue.ErrQueueLeased) {
		t.Errorf("got %v, want %v", err, queue.ErrQueueLeased)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Delete(t.Context(), "work", true, nil); !errors.Is(err, queue.ErrQueueLeased) {
		t.Errorf("got %v, want %v", err, queue.ErrQueueLeased)
	}
	b.exec(t, `update agent.event set vt = now()`)
	if _, err := b.Delete(t.Context(), "work", true, nil); err != nil {
		t.Error(err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where queue = 'work' and outcome = 'cancelled'`); n != 2 {
		t.Errorf("%d events are in history, want 2", n)
	}
}

func TestLargeQueueIsDeletedInSteps(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.insert_events(array(select '{}'::jsonb from generate_series(1, 2500)), array(select 'work' from generate_series(1, 2500)))`)
	purged, err := b.Delete(t.Context(), "work", true, nil)
	if err != nil || purged != 2500 {
		t.Errorf("purged %d events, %v", purged, err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

func TestDeletionOfALargeQueueThatIsRefusedMovesNothing(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.insert_events(array(select '{}'::jsonb from generate_series(1, 1500)), array(select 'work' from generate_series(1, 1500)))`)
	b.exec(t, `select agent.put_queue('work', '{}')`)
	if _, err := b.Delete(t.Context(), "work", true, []int64{1}); !errors.Is(err, queue.ErrStale) {
		t.Errorf("of another version: %v", err)
	}
	b.claim(t, queue.ClaimParams{Queue: "work", InvisibleFor: time.Hour}, 1)
	if _, err := b.Delete(t.Context(), "work", true, nil); !errors.Is(err, queue.ErrQueueLeased) {
		t.Errorf("with a lease: %v", err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 0 {
		t.Errorf("%d events are in history", n)
	}
}

func TestQueueIsDeletedFromSQL(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.insert_events(array(select '{}'::jsonb from generate_series(1, 1500)), array(select 'work' from generate_series(1, 1500)))`)
	b.exec(t, `select agent.put_queue('work', '{}')`)
	if n := pgtest.Query[int](t, b.sql, `select purged::int from agent.delete_queue('work', true) where is_deleted`); n != 1500 {
		t.Errorf("%d events were purged, want 1500", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.queue`); n != 0 {
		t.Error("the policy is left")
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.audit where action = 'queue.delete' and target = 'work'`); n != 1 {
		t.Errorf("the audit has %d deletions, want 1", n)
	}
}
