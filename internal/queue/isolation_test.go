package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// A call that waits, overloads the service or cannot be read does not affect other calls.

// expiredLease returns the lease of an event that a sweep has expired.
func expiredLease(t *testing.T, b env) queue.Lease {
	t.Helper()
	b.insert(t, "", `{}`)
	l := lease(b.claimOne(t))
	b.endLease(t, l.ID)
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1}); n != 1 || err != nil {
		t.Fatalf("the sweep expired %d, %v", n, err)
	}
	return l
}

func TestAckAfterASweepSucceeds(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	l := expiredLease(t, b)
	stale := queue.Lease{ID: l.ID, Receipt: strings.Replace(l.Receipt, ".1.", ".2.", 1)}
	if r := b.ack(t, stale); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Errorf("the ack with another receipt returned %+v", r)
	}
	if r := b.ack(t, queue.Lease{ID: l.ID}); !errors.Is(r.Err, queue.ErrNotFound) {
		t.Errorf("the unconditional ack of an expired event returned %+v", r)
	}
	for range 2 { // the second repeats the first
		results, err := b.Ack(t.Context(), []queue.Ack{{Lease: l, Result: json.RawMessage(`{"a":1}`)}})
		if err != nil || results[0].Err != nil || results[0].Outcome != queue.Done {
			t.Fatalf("the ack returned %+v, %v", results, err)
		}
	}
	if e := b.get(t, l.ID); e.Outcome != queue.Done || string(e.Result) != `{"a": 1}` {
		t.Errorf("history has %+v", e)
	}
	if attempts, err := b.Attempts(t.Context(), l.ID); err != nil || len(attempts) != 1 || attempts[0].Outcome != "done" {
		t.Errorf("the attempts are %+v, %v", attempts, err)
	}
}

func TestAckAfterAFinalNackIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{}`)
	l := lease(b.claimOne(t))
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: l, Final: true}); err != nil {
		t.Fatal(err)
	}
	if r := b.ack(t, l); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Errorf("the ack returned %+v", r)
	}
}

func TestAckBehindAnotherCallReportsTheStateItLeft(t *testing.T) {
	t.Parallel()
	for finish, want := range map[string]string{
		`select agent.delete_expired_events(1)`:              "1 done, 2 done",
		`select agent.nack_event(2, $$%s$$, _final => true)`: "1 done, 2 lease_lost",
		`select agent.delete_event(2)`:                       "1 done, 2 done",
	} {
		b := setup(t, nil)
		b.insertN(t, "", 2)
		first, second := b.claimOne(t), b.claimOne(t)
		b.endLease(t, second.ID)
		tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select from agent.event where id = 1 for update`); err != nil {
			t.Fatal(err)
		}
		acking := pgtest.Connect(t, b.url)
		answered := make(chan string, 1)
		go func() {
			var answer string
			err := acking.QueryRow(t.Context(), `
				select string_agg(id || ' ' || status, ', ' order by id) from agent.delete_events(array[1, 2], array[$1, $2])`,
				first.Receipt, second.Receipt).Scan(&answer)
			answered <- fmt.Sprint(answer, errorText(err))
		}()
		awaitLockWait(t, b, tx.Conn())
		if strings.Contains(finish, "%s") {
			finish = fmt.Sprintf(finish, second.Receipt)
		}
		b.exec(t, finish)
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := <-answered; got != want {
			t.Errorf("during %s: got %s, want %s", finish, got, want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestUnreadableResultFailsOnlyItsOwnCall(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "acked", 2)
	held := b.claim(t, queue.ClaimParams{Queue: "acked", Limit: 2}, 2)
	b.insert(t, "claimed", `{"n":1}`)
	b.exec(t, `alter function agent_service.ack_events rename to finish_events_as_it_is`)
	b.exec(t, `
		create function agent_service.ack_events(_ids int8[], _receipts text[] default null, _results jsonb[] default null, _allowed text[] default null,
			_attempts int4[] default null, _hashes bytea[] default null)
		returns table (ord int8, status text, queue text, repeated boolean, type text, worker text, took interval, ready_vt timestamptz)
		language sql volatile set search_path to pg_catalog, pg_temp
		as $$ select f.ord, case _ids[f.ord] when 1 then 'odd' else f.status end, f.queue, f.repeated, f.type, f.worker, f.took, f.ready_vt
			from agent_service.finish_events_as_it_is(_ids, _receipts, _results, _allowed, _attempts, _hashes) f $$`)
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	var (
		all                                 sync.WaitGroup
		oddErr, ackErr, insertErr, claimErr error
		acked                               []queue.AckResult
		claimed                             []queue.Event
	)
	all.Go(func() { _, oddErr = b.Ack(t.Context(), acks(lease(held[0]))) })
	all.Go(func() { acked, ackErr = b.Ack(t.Context(), acks(lease(held[1]))) })
	all.Go(func() { _, insertErr = b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`)}}) })
	all.Go(func() { claimed, claimErr = b.Claim(t.Context(), queue.ClaimParams{Queue: "claimed"}) })
	awaitPending(t, b, 4)
	g.unblock(t, 1)
	all.Wait()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if !errors.Is(oddErr, queue.ErrUnavailable) {
		t.Errorf("the ack with an unreadable result: %v, want ErrUnavailable", oddErr)
	}
	if ackErr != nil || len(acked) != 1 || acked[0].Outcome != queue.Done {
		t.Errorf("another ack returned %+v, %v", acked, ackErr)
	}
	if insertErr != nil {
		t.Errorf("another insert: %v", insertErr)
	}
	if claimErr != nil || len(claimed) != 1 {
		t.Errorf("another claim: %+v, %v", claimed, claimErr)
	}
}

func TestUnreadableClaimIsReleased(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "odd", `{"n":1}`, `{"n":2}`)
	b.exec(t, `alter function agent_service.claim_from_watermarks rename to take_events_as_it_is`)
	columns := func(priority string) string {
		return `id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, nacked_at, last_error, requeued_from, type, source, ` + priority +
			`, key, max_attempts, expires_at, worker, past_attempts, occurrence, meta, publication, claim_token, text_size, dead_letter_of, prior_vt, slot, group_key`
	}
	b.exec(t, `
		create function agent_service.claim_from_watermarks(_queue text, _limit int4, _max_attempts int4, _invisible_for interval, _order text,
			_types text[] default null, _exclude_ids int8[] default null, _workers text[] default null, _lanes int4[] default null,
			_lane_types text[] default null, _marks timestamptz[] default null, _max_bytes int8 default null, _hashes bytea default null, _sweep_max_attempts int4 default null)
		returns table (id int8, event_ts timestamptz, attempts int4, vt timestamptz, claimed timestamptz[], event jsonb, queue text, enqueued_at timestamptz
		, nacked_at timestamptz, last_error text, requeued_from int8
		, type text, source text, priority text, key text, max_attempts int4, expires_at timestamptz, worker text, past_attempts jsonb, occurrence jsonb
		, meta jsonb, publication jsonb, claim_token text, text_size int4, dead_letter_of int8, prior_vt timestamptz, slot int4, group_key text)
		language sql volatile set search_path to pg_catalog, pg_temp
		as $$ select `+columns(`case when event ->> 'n' = '1' then 'none' else priority::text end`)+` from agent_service.take_events_as_it_is(_queue, _limit, _max_attempts, _invisible_for, _order,
			_types, _exclude_ids, _workers, _lanes, _lane_types, _marks, _max_bytes, _hashes) $$`)
	if events, err := b.Claim(t.Context(), queue.ClaimParams{Queue: "odd", Limit: 2}); !errors.Is(err, queue.ErrUnavailable) {
		t.Fatalf("the claim returned %+v, %v", events, err)
	}
	eventually(t, "the claimed event is released", func() bool {
		return pgtest.Query[bool](t, b.sql, `select bool_and(attempts = 0 and vt <= now()) from agent.event`)
	})
}

func TestClaimsOfDifferentTypesShareTransactions(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	const kinds = 40
	var all sync.WaitGroup
	for i := range kinds {
		all.Go(func() {
			events, err := b.Claim(t.Context(), queue.ClaimParams{Types: []string{fmt.Sprint(i)}, Wait: time.Minute})
			if err != nil || len(events) != 1 || events[0].Type != fmt.Sprint(i) {
				t.Errorf("the claim of type %d returned %+v, %v", i, events, err)
			}
		})
	}
	eventually(t, "all claims wait", func() bool { return queue.Waiting(b.Service) == kinds })
	b.exec(t, `select from agent.insert_events(array_fill('{}'::jsonb, array[$1::int]), _options => (select array_agg(jsonb_build_object('type', (n - 1)::text)) from generate_series(1, $1::int) n))`, kinds)
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `select count(distinct xmin::text) from agent.event`); n > kinds/4 {
		t.Errorf("the claims used %d transactions, want them to share some", n)
	}
}

func TestOverloadIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxPendingBytes = 4000 })
	g := blockCommits(t, b)
	held := g.blockFirst(t)
	payload := fmt.Sprintf(`{"a":%q}`, strings.Repeat("x", 2000))
	waits := insertOne(t.Context(), b, payload)
	awaitPending(t, b, 1)
	if err := <-insertOne(t.Context(), b, payload); !errors.Is(err, queue.ErrOverloaded) {
		t.Errorf("the insert above the limit: %v, want ErrOverloaded", err)
	}
	refused := []queue.Ack{{Lease: queue.Lease{ID: 1}, Result: json.RawMessage(payload)}}
	if _, _, err := b.AckAndClaim(t.Context(), refused, queue.ClaimParams{Queue: "empty"}); !errors.Is(err, queue.ErrOverloaded) {
		t.Errorf("the claim with an ack above the limit: %v, want ErrOverloaded", err)
	}
	claimed := make(chan error, 1)
	go func() {
		_, err := b.Claim(t.Context(), queue.ClaimParams{Queue: "empty"})
		claimed <- err
	}()
	awaitPending(t, b, 2)
	g.unblock(t, 1)
	if err := <-claimed; err != nil {
		t.Errorf("the claim above the limit: %v", err)
	}
	for _, done := range []<-chan error{held, waits} {
		if err := <-done; err != nil {
			t.Errorf("the insert below the limit: %v", err)
		}
	}
	if err := <-insertOne(t.Context(), b, payload); err != nil {
		t.Errorf("the insert afterwards: %v", err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 3 {
		t.Errorf("%d events are stored, want 3", n)
	}
}

func TestSearchesDoNotDelayLeaseCallsAndHealthChecks(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.QueryTimeout = time.Minute })
	b.insert(t, "", `{}`)
	l := lease(b.claimOne(t))
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `lock table agent.event_hist in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var searches sync.WaitGroup
	ended := make(chan struct{})
	for range 20 {
		searches.Go(func() {
			_, _ = b.History(ctx, queue.HistoryParams{HistoryFilter: queue.HistoryFilter{Contains: json.RawMessage(`{"a":1}`)}})
		})
	}
	go func() { searches.Wait(); close(ended) }()
	awaitLockWait(t, b, tx.Conn())
	if _, err := b.Extend(t.Context(), l, time.Hour); err != nil {
		t.Errorf("extend: %v", err)
	}
	if err := b.CheckReady(t.Context()); err != nil {
		t.Errorf("the health check: %v", err)
	}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: l}); err != nil {
		t.Errorf("nack: %v", err)
	}
	if _, err := b.Get(t.Context(), l.ID); err != nil {
		t.Errorf("get: %v", err)
	}
	select {
	case <-ended:
		t.Error("the searches ended before the other calls")
	default:
	}
	cancel()
	<-ended
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestStaleReceiptIsRefusedWithoutWaitingForALock(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	held, tx := lockEvent(t, b)
	stale := queue.Lease{ID: held.ID, Receipt: held.Receipt + "1"}
	for name, call := range map[string]func() error{
		"nack":   func() error { _, err := b.Nack(t.Context(), queue.NackParams{Lease: stale}); return err },
		"extend": func() error { _, err := b.Extend(t.Context(), stale, time.Hour); return err },
		"ack":    func() error { return b.ack(t, stale).Err },
	} {
		if err := call(); !errors.Is(err, queue.ErrLeaseLost) {
			t.Errorf("%s: %v, want ErrLeaseLost", name, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestLockedEventDelaysNoOtherLease(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.LockTimeout = time.Second })
	b.insert(t, "", `{}`)
	free := lease(b.claimOne(t))
	held, tx := lockEvent(t, b)
	const calls = 10
	var waiting sync.WaitGroup
	answers := make(chan error, calls)
	for range calls {
		waiting.Go(func() {
			_, err := b.Nack(t.Context(), queue.NackParams{Lease: held})
			answers <- err
		})
	}
	awaitLockWait(t, b, tx.Conn())
	for range 10 {
		if _, err := b.Extend(t.Context(), free, time.Hour); err != nil {
			t.Errorf("extend during the nacks: %v", err)
		}
	}
	if n := len(answers); n == calls {
		t.Error("the nacks did not wait")
	}
	waiting.Wait()
	for range calls {
		if err := <-answers; !errors.Is(err, queue.ErrLocked) {
			t.Fatalf("a nack of the locked event: %v, want ErrLocked", err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: held}); err != nil {
		t.Errorf("the nack afterwards: %v", err)
	}
}

func TestKeyInUseDelaysOnlyItsOwnInsert(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	mixedCalls := newMixedCalls(t, b)
	g := blockCommits(t, b)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.insert_event('{"by":"sql"}', _key => 'k')`); err != nil {
		t.Fatal(err)
	}
	first := g.blockFirst(t)
	keyed := make(chan error, 1)
	go func() {
		_, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{"by":"sql"}`), IdempotencyKey: "k"}})
		keyed <- err
	}()
	mixedCalls.call(t.Context(), b)
	awaitPending(t, b, mixedCalls.calls()+1)
	g.unblock(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	mixedCalls.all.Wait()
	mixedCalls.check(t, b)
	select {
	case err := <-keyed:
		t.Errorf("the insert under the key in use returned %v", err)
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-keyed; err != nil {
		t.Errorf("the insert under the key: %v", err)
	}
}

func TestServiceOverridesTheDatabasesTimeoutAndIsolation(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin := pgtest.Connect(t, db.AdminURL)
	for _, setting := range []string{"statement_timeout = '1ms'", "default_transaction_isolation = 'serializable'", "default_transaction_deferrable = on"} {
		name := pgx.Identifier{admin.Config().Database}.Sanitize()
		if _, err := admin.Exec(t.Context(), `alter database `+name+` set `+setting); err != nil {
			t.Fatal(err)
		}
	}
	b := env{Service: anotherService(t, db.URL, nil), url: db.URL, sql: admin}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`)}}); err != nil {
				t.Error(err)
			}
			events, err := b.Claim(t.Context(), queue.ClaimParams{Wait: time.Minute})
			if err != nil || len(events) != 1 {
				t.Errorf("claimed %+v, %v", events, err)
				return
			}
			if r := b.ack(t, lease(events[0])); r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	all.Wait()
}

func TestLockedQueueDelaysNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.LockTimeout = time.Second })
	tx, err := b.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.pause_queue('locked')`); err != nil {
		t.Fatal(err)
	}
	const calls = 16
	var waiting sync.WaitGroup
	answers := make(chan error, calls)
	for range calls {
		waiting.Go(func() { answers <- b.Resume(t.Context(), "locked") })
	}
	awaitLockWait(t, b, tx.Conn())
	for range 10 {
		if err := b.Pause(t.Context(), "free"); err != nil {
			t.Errorf("pausing another queue: %v", err)
		}
		if _, err := b.Purge(t.Context(), "free"); err != nil {
			t.Errorf("purging another queue: %v", err)
		}
	}
	if n := len(answers); n == calls {
		t.Error("the calls about the locked queue did not wait")
	}
	waiting.Wait()
	for range calls {
		if err := <-answers; !errors.Is(err, queue.ErrLocked) {
			t.Fatalf("resuming the locked queue: %v, want ErrLocked", err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
