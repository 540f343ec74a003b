package queue_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// neverPolls configures a service whose waiters are only woken by events: its first poll is after an hour.
func neverPolls(c *queue.Config) { c.PollInterval = time.Hour }

func TestClaimTakesTheOldestVTFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertN(t, "", 4)
	b.exec(t, `update agent.event set vt = vt - interval '1 minute' where id = $1`, ids[2])
	got := b.claim(t, queue.ClaimParams{Limit: 10, InvisibleFor: time.Hour}, 4)
	checkIDs(t, got, []int64{ids[2], ids[0], ids[1], ids[3]})
	for _, e := range got {
		checkNear(t, "vt", e.VT, time.Now().Add(time.Hour))
		if e.Attempts != 1 || len(e.Claimed) != 1 || e.Queue != queue.Default || e.Receipt == "" {
			t.Errorf("claimed %+v", e)
		}
	}
	b.claim(t, queue.ClaimParams{Limit: 10}, 0)
}

func TestClaimReturnsPayloadsUnchanged(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "", `{"a":[1.50,"é\u2028😀",null,true],"b":{"c":12345678901234567890.000000000000000001}}`)
	var got, want any
	if err := json.Unmarshal(b.claimOne(t).Payload, &got); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(`{"a":[1.50,"é\u2028😀",null,true],"b":{"c":12345678901234567890.000000000000000001}}`), &want)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestClaimSkipsOtherQueuesAndExhaustedEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "other", `{}`)
	id := b.insert(t, "", `{}`)[0]
	b.exec(t, `update agent.event set attempts = 3 where id = $1`, id)
	b.claim(t, queue.ClaimParams{}, 0)
	b.claim(t, queue.ClaimParams{MaxAttempts: 4}, 1)
	b.claim(t, queue.ClaimParams{Queue: "other"}, 1)
}

func TestRandomClaimReachesEveryEventOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertN(t, "", 40)
	b.exec(t, `update agent.event set vt = vt - id * interval '1 s' where id % 2 = 0`)
	var order []int64
	for range ids {
		order = append(order, b.claim(t, queue.ClaimParams{Order: queue.Random}, 1)[0].ID)
	}
	b.claim(t, queue.ClaimParams{Order: queue.Random}, 0)
	sorted := slices.Sorted(slices.Values(order))
	if fmt.Sprint(sorted) != fmt.Sprint(ids) {
		t.Errorf("claimed %v, want all of %v", sorted, ids)
	}
	if fmt.Sprint(order) == fmt.Sprint(ids) {
		t.Error("forty random claims came in order of id")
	}
}

func TestRandomClaimWrapsAroundToReachItsLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 50)
	b.claim(t, queue.ClaimParams{Order: queue.Random, Limit: 50}, 50)
}

func TestClaimWithoutEventsReturnsEmptyWhenItsWaitEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	start := time.Now()
	b.claim(t, queue.ClaimParams{Wait: 50 * time.Millisecond}, 0)
	if d := time.Since(start); d < 50*time.Millisecond || d > 10*time.Second {
		t.Errorf("waited %v", d)
	}
}

// whileWaiting starts a waiting claim, calls then once the claim waits, and returns the events it claimed.
func whileWaiting(t *testing.T, b env, p queue.ClaimParams, then func()) []queue.Event {
	t.Helper()
	p.Wait = queue.MaxWait
	type result struct {
		events []queue.Event
		err    error
	}
	done := make(chan result, 1)
	go func() {
		events, err := b.Claim(t.Context(), p)
		done <- result{events, err}
	}()
	awaitWaitingClaim(t, b, p.Queue)
	then()
	select {
	case r := <-done:
		if r.err != nil {
			t.Fatal(r.err)
		}
		return r.events
	case <-time.After(30 * time.Second):
		t.Fatal("the waiting claim was not woken")
		return nil
	}
}

// awaitWaitingClaim returns when a claim has found nothing in a queue and waits for inserts.
func awaitWaitingClaim(t *testing.T, b env, q string) {
	t.Helper()
	eventually(t, "the claim waits for inserts", func() bool { return queue.Offers(b.Service, cmp.Or(q, queue.Default)) })
}

func TestWaitEndsWhenThisServiceInserts(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	if got := whileWaiting(t, b, queue.ClaimParams{}, func() { b.insert(t, "", `{}`) }); len(got) != 1 {
		t.Errorf("claimed %d events", len(got))
	}
}

func TestWaitEndsWhenAnotherServiceInserts(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	other := anotherService(t, b.url, neverPolls)
	runService(t, other)
	got := whileWaiting(t, b, queue.ClaimParams{}, func() {
		if _, err := other.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`)}}); err != nil {
			t.Error(err)
		}
	})
	if len(got) != 1 {
		t.Errorf("claimed %d events", len(got))
	}
}

func TestWaitEndsWhenSQLInserts(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	got := whileWaiting(t, b, queue.ClaimParams{Queue: "mail"}, func() {
		b.exec(t, `select agent.insert_event('{"by": "sql"}', 'mail')`)
	})
	if len(got) != 1 {
		t.Errorf("claimed %d events", len(got))
	}
}

func TestWaitEndsWhenPlainInsertIsFoundByPolling(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.PollInterval = 20 * time.Millisecond })
	got := whileWaiting(t, b, queue.ClaimParams{}, func() { b.exec(t, `insert into agent.event (event) values ('{}')`) })
	if len(got) != 1 {
		t.Errorf("claimed %d events", len(got))
	}
}

func TestWaitEndsWhenVTPasses(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Delay: 300 * time.Millisecond}}); err != nil {
		t.Fatal(err)
	}
	e := b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)[0]
	if late := e.Claimed[0].Sub(e.EnqueuedAt) - 300*time.Millisecond; late < 0 || late > 20*time.Second {
		t.Errorf("claimed %v after its vt", late)
	}
}

func TestWaitEndsWhenALeaseEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.insert(t, "", `{}`)
	b.claim(t, queue.ClaimParams{InvisibleFor: 200 * time.Millisecond}, 1)
	if e := b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)[0]; e.Attempts != 2 {
		t.Errorf("claimed as attempt %d", e.Attempts)
	}
}

func TestNackWakesWaitingClaims(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.insert(t, "", `{}`)
	e := b.claimOne(t)
	got := whileWaiting(t, b, queue.ClaimParams{}, func() {
		if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e)}); err != nil {
			t.Error(err)
		}
	})
	if len(got) != 1 {
		t.Errorf("claimed %d events", len(got))
	}
}

func TestReleaseIsToldToOtherProcesses(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	b.exec(t, `insert into agent.event (event) values ('{}')`) // which notifies nobody
	e := b.claimOne(t)
	listener := listen(t, b.url)
	if results, err := b.ReleaseEach(t.Context(), []queue.Lease{lease(e)}, 0, nil); err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, err := listener.WaitForNotification(ctx); err != nil || !strings.HasPrefix(n.Payload, queue.Default+"|") {
		t.Errorf("notified of %+v, %v", n, err)
	}
	if c := countersOf(b.Service, queue.Default); c.Released != 1 {
		t.Errorf("counted %+v, want one release", c)
	}
}

func TestDrainAnswersWaitingClaimsEmpty(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	if got := whileWaiting(t, b, queue.ClaimParams{}, b.Drain); len(got) != 0 {
		t.Errorf("claimed %d events", len(got))
	}
	b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 0) // returns at once, or the test times out
}

func TestCancelledClaimClaimsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := b.Claim(ctx, queue.ClaimParams{Wait: queue.MaxWait})
		done <- err
	}()
	awaitWaitingClaim(t, b, "")
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled claim: %v", err)
	}
	b.insert(t, "", `{}`)
	if e := b.claimOne(t); e.Attempts != 1 {
		t.Errorf("claimed as attempt %d", e.Attempts)
	}
}

func TestCancelledClaimsDoNotCountAsAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const events, rounds = 20, 60
	b.insertN(t, "", events)
	for i := range rounds { // cancel at different moments of the claim
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		got, err := b.Claim(ctx, queue.ClaimParams{Limit: events})
		if err == nil {
			leases := make([]queue.Lease, len(got))
			for j, e := range got {
				leases[j] = lease(e)
			}
			if err := b.Release(ctx, leases); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
	}
	// Releases continue after their calls are cancelled.
	deadline := time.Now().Add(30 * time.Second)
	for pgtest.Query[int](t, b.sql, `select count(*) from agent.event where vt <= now()`) < events {
		if time.Now().After(deadline) {
			t.Fatal("some events are still leased")
		}
	}
	for _, e := range b.claim(t, queue.ClaimParams{Limit: events}, events) {
		if e.Attempts != 1 || len(e.Claimed) != 1 {
			t.Errorf("event %d was claimed as attempt %d (%v)", e.ID, e.Attempts, e.Claimed)
		}
	}
}

func TestManyWaitersShareNewEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	const waiters = 200
	results := make(chan []queue.Event, waiters)
	for i := range waiters {
		go func() {
			events, err := b.Claim(t.Context(), queue.ClaimParams{Wait: queue.MaxWait, Limit: 1 + i%3, MaxAttempts: 3 + i%2})
			if err != nil {
				t.Error(err)
			}
			results <- events
		}()
	}
	posted := 0
	seen := make(map[int64]bool)
	for range waiters {
		// There is always an event that has not been claimed, so that some claim returns.
		if posted <= len(seen) {
			b.insertN(t, "", 5)
			posted += 5
		}
		events := <-results
		if len(events) == 0 {
			t.Error("a waiting claim returned no events")
		}
		for _, e := range events {
			if seen[e.ID] {
				t.Errorf("event %d was claimed twice", e.ID)
			}
			seen[e.ID] = true
		}
	}
}

func TestClaimEventForSQLWorkers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertN(t, "", 2)
	for range ids {
		rows, _ := b.sql.Query(t.Context(), `select e.id, e.attempts, e.vt > now() + interval '9 minutes' from agent.claim_event() e`)
		n := 0
		var id int64
		var attempts int
		var ahead bool
		if _, err := pgx.ForEachRow(rows, []any{&id, &attempts, &ahead}, func() error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		if n != 1 || attempts != 1 || !ahead || !slices.Contains(ids, id) {
			t.Errorf("claim_event returned %d rows; id %d, attempts %d, vt ahead: %v", n, id, attempts, ahead)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.claim_event()`); n != 0 {
		t.Errorf("claim_event on an empty queue returned %d rows", n)
	}
}

func TestExtremeTimesAreClaimedAndCountedCorrectly(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, vt := range []time.Time{time.Unix(0, 0), time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)} {
		if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), VT: &vt}}); err != nil {
			t.Fatal(err)
		}
	}
	queues, err := b.queues(t, time.Hour)
	if err != nil || len(queues) != 1 || queues[0].OldestReadyAge == nil || *queues[0].OldestReadyAge < 50*365*24*time.Hour {
		t.Errorf("%+v, %v", queues, err)
	}
	b.claim(t, queue.ClaimParams{Wait: 50 * time.Millisecond}, 1)
	b.claim(t, queue.ClaimParams{Wait: 50 * time.Millisecond}, 0)
}

func TestLargeWaitingClaimDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	got := whileWaiting(t, b, queue.ClaimParams{Limit: queue.MaxBatch}, func() {
		b.claim(t, queue.ClaimParams{}, 0) // returns at once, while the other claim waits
		b.insert(t, "", `{}`)
	})
	if len(got) != 1 {
		t.Errorf("claimed %d events", len(got))
	}
}
