package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// lockEvents locks agent.event until unlock is called: inserts wait. The holder is the session that has the lock.
func lockEvents(t *testing.T, b env) (holder *pgx.Conn, unlock func()) {
	t.Helper()
	conn := pgtest.Connect(t, b.url)
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.event in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	return conn, func() {
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// insertOne inserts one event and sends the call's error, or nil, on the channel.
func insertOne(ctx context.Context, b env, payload string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := b.Insert(ctx, []queue.InsertParams{{Event: json.RawMessage(payload)}})
		done <- err
	}()
	return done
}

func TestConcurrentInsertsShareCommits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const calls = 200
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			in, err := b.Insert(t.Context(), []queue.InsertParams{
				{Event: fmt.Appendf(nil, `{"call":%d,"part":0}`, i)}, {Event: fmt.Appendf(nil, `{"call":%d,"part":1}`, i)},
			})
			if err != nil || len(in) != 2 {
				t.Errorf("insert returned %+v, %v", in, err)
				return
			}
			for part, e := range in {
				if got := b.get(t, e.ID); string(got.Payload) != fmt.Sprintf(`{"call": %d, "part": %d}`, i, part) {
					t.Errorf("call %d got for its event %d the id %d, which has the payload %s", i, part, e.ID, got.Payload)
				}
			}
		})
	}
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `select count(distinct xmin::text) from agent.event`); n >= calls {
		t.Errorf("%d calls made %d commits", calls, n)
	}
}

func TestBadEventInAGroupCommitFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	holder, unlock := lockEvents(t, b)
	first := insertOne(t.Context(), b, `{"first":true}`)
	awaitLockWait(t, b, holder)
	const calls, bad = 100, 37
	var done [calls]<-chan error
	for i := range calls {
		payload := `{"ok":true}`
		if i == bad {
			payload = `{"bad":"\u0000"}`
		}
		done[i] = insertOne(t.Context(), b, payload)
	}
	unlock()
	if err := <-first; err != nil {
		t.Error(err)
	}
	for i := range calls {
		if err := <-done[i]; (i == bad) != errors.Is(err, queue.ErrUnrepresentable) || (i != bad && err != nil) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != calls {
		t.Errorf("%d events are stored, want %d", n, calls)
	}
}

func TestCancelledInsertDoesNotCancelOthersInItsCommit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	holder, unlock := lockEvents(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := insertOne(ctx, b, `{"n":1}`)
	awaitLockWait(t, b, holder)
	other := insertOne(t.Context(), b, `{"n":2}`)
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled call: %v", err)
	}
	unlock()
	if err := <-other; err != nil {
		t.Errorf("the other call of the commit: %v", err)
	}
}

func TestLostConnectionFailsEveryInsertOfTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	holder, unlock := lockEvents(t, b)
	lost := insertOne(t.Context(), b, `{"n":1}`)
	pid := awaitLockWait(t, b, holder)
	b.exec(t, `select pg_terminate_backend($1)`, pid)
	if err := <-lost; !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("the call whose connection was lost: %v", err)
	}
	later := insertOne(t.Context(), b, `{"n":2}`)
	unlock()
	if err := <-later; err != nil {
		t.Errorf("a later call: %v", err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events are stored, want 1", n)
	}
}

func TestCloseWaitsForTheRunningCommit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	holder, unlock := lockEvents(t, b)
	call := insertOne(t.Context(), b, `{"n":1}`)
	awaitLockWait(t, b, holder)
	closed := make(chan error, 1)
	go func() { closed <- b.Close(context.Background()) }()
	unlock()
	if err := <-call; err != nil {
		t.Errorf("the insert: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events are stored, want 1", n)
	}
}

func TestConcurrentAcksOfTheSameEventsAgree(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 50)
	claimed := b.claim(t, queue.ClaimParams{Limit: 50}, 50)
	forth, back := make([]queue.Lease, 50), make([]queue.Lease, 50)
	for i, e := range claimed {
		forth[i], back[49-i] = lease(e), lease(e)
	}
	other := anotherService(t, b.url, nil) // another process, whose acks conflict with this one's
	var all sync.WaitGroup
	for i := range 20 {
		for _, s := range []*queue.Service{b.Service, other} {
			all.Go(func() {
				leases := [][]queue.Lease{forth, back}[i%2]
				results, err := s.Ack(t.Context(), acks(leases...))
				if err != nil {
					t.Error(err)
				}
				for j, r := range results {
					if r.ID != leases[j].ID || r.Outcome != queue.Done || r.Err != nil {
						t.Errorf("ack of %d returned %+v", leases[j].ID, r)
					}
				}
			})
		}
	}
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 50 {
		t.Errorf("history has %d events, want 50", n)
	}
}
