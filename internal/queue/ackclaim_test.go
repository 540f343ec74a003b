package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// ackAndClaim acks a lease, and claims; it fails the test unless the ack succeeds and the claim gets want events.
func (b env) ackAndClaim(t *testing.T, l queue.Lease, p queue.ClaimParams, want int) []queue.Event {
	t.Helper()
	acked, events, err := b.AckAndClaim(t.Context(), acks(l), p)
	if err != nil {
		t.Fatal(err)
	}
	if len(acked) != 1 || acked[0].ID != l.ID || acked[0].Err != nil || acked[0].Outcome != queue.Done {
		t.Errorf("the ack of %d returned %+v", l.ID, acked)
	}
	if len(events) != want {
		t.Fatalf("claimed %+v, want %d", events, want)
	}
	return events
}

// A worker of an ordered group gets the next event with the ack of the one before, whether others wait or not.
func TestAClaimWithAcksGetsWhatTheyFree(t *testing.T) {
	t.Parallel()
	for name, othersWait := range map[string]bool{"alone": false, "beside a claim that waits": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, neverPolls)
			b.limit(t, "q", `{"order": true}`)
			ids := b.insertGrouped(t, "q", "g", "g", "g", "g", "g")
			held := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
			together := 0
			for i, id := range ids[1:] {
				ctx, leave := context.WithCancel(t.Context())
				var other sync.WaitGroup
				if othersWait { // for another type, so that it takes nothing away
					other.Go(func() {
						_, _ = b.Claim(ctx, queue.ClaimParams{Queue: "q", Types: []string{"none"}, Wait: queue.MaxWait})
					})
					awaitWaitingClaim(t, b, "q")
				}
				next := b.ackAndClaim(t, lease(held), queue.ClaimParams{Queue: "q"}, 1)[0]
				if next.ID != id {
					t.Errorf("ack %d was answered with event %d, want %d", i+1, next.ID, id)
				}
				if pgtest.Query[bool](t, b.sql, `select h.xmin = e.xmin from agent.event_hist h, agent.event e where h.id = $1 and e.id = $2`, held.ID, id) {
					together++
				}
				held = next
				leave()
				other.Wait()
			}
			if !othersWait && together != len(ids)-1 {
				t.Errorf("%d of %d acks were in one transaction with their claim", together, len(ids)-1)
			}
			b.ackAndClaim(t, lease(held), queue.ClaimParams{Queue: "q"}, 0)
		})
	}
}

func TestAcksAreDoneBeforeTheirClaimWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.insertN(t, "", 2)
	held := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	for _, e := range held { // the second one comes while nobody's claim is known to be in vain any more, or while one waits
		done := make(chan []queue.Event)
		go func() {
			defer close(done)
			done <- b.ackAndClaim(t, lease(e), queue.ClaimParams{Wait: queue.MaxWait}, 1)
		}()
		eventually(t, "the event is acked", func() bool { return b.get(t, e.ID).Outcome == queue.Done })
		awaitWaitingClaim(t, b, "")
		id := b.insert(t, "", `{}`)[0]
		if got := <-done; len(got) == 1 && got[0].ID != id {
			t.Errorf("claimed event %d, want %d", got[0].ID, id)
		}
	}
}

func TestAcksThatFailLeaveTheirClaimAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	ids := b.insertN(t, "", 3)
	held := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	lost := lease(held[0])
	lost.Receipt = "1.1.0000000000000000"
	acked, events, err := b.AckAndClaim(t.Context(), acks(lost, lease(held[1]), queue.Lease{ID: 1 << 40}), queue.ClaimParams{})
	if err != nil {
		t.Fatal(err)
	}
	checkIDs(t, events, ids[2:])
	if !errors.Is(acked[0].Err, queue.ErrLeaseLost) || acked[1].Err != nil || !errors.Is(acked[2].Err, queue.ErrNotFound) {
		t.Errorf("the acks returned %+v", acked)
	}
}

func TestAClaimWhoseAcksAreRefusedTakesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.insertN(t, "", 3)
	held := b.claim(t, queue.ClaimParams{Limit: 2}, 2)
	refused := acks(lease(held[0]), lease(held[1]))
	refused[1].Result = json.RawMessage(`"\u0000"`)
	for _, isAsleep := range []bool{false, true} {
		var other sync.WaitGroup
		ctx, leave := context.WithCancel(t.Context())
		if isAsleep {
			other.Go(func() { _, _ = b.Claim(ctx, queue.ClaimParams{Types: []string{"none"}, Wait: queue.MaxWait}) })
			awaitWaitingClaim(t, b, "")
		}
		_, events, err := b.AckAndClaim(t.Context(), refused, queue.ClaimParams{Wait: queue.MaxWait})
		if err == nil || len(events) > 0 {
			t.Errorf("got %+v, %v", events, err)
		}
		leave()
		other.Wait()
		for _, e := range held {
			if state := b.get(t, e.ID).State; state != queue.Leased {
				t.Errorf("event %d is %s", e.ID, state)
			}
		}
		eventually(t, "what was claimed is released", func() bool {
			return pgtest.Query[int](t, b.sql, `select count(*) from agent.event where attempts = 0`) == 1
		})
	}
}

func TestAClaimWithAcksEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.insertN(t, "", 1)
	held := lease(b.claimOne(t))
	ctx, leave := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, _, err := b.AckAndClaim(ctx, acks(held), queue.ClaimParams{Wait: queue.MaxWait})
		failed <- err
	}()
	awaitWaitingClaim(t, b, "")
	leave()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if got := b.ack(t, held); got.Err != nil { // repeated
		t.Errorf("the repeated ack: %+v", got)
	}
	b.insert(t, "", `{}`)
	if e := b.claimOne(t); e.Attempts != 1 {
		t.Errorf("claimed as attempt %d", e.Attempts)
	}
}

// Many workers ack and claim at once, some of whom leave: each event is worked on once, but for those whose worker has left.
func TestManyClaimsWithAcksLoseNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const events, workers = 300, 8
	b.insertN(t, "", events)
	var (
		all  sync.WaitGroup
		mu   sync.Mutex
		seen = make(map[int64]int)
	)
	for n := range workers {
		all.Go(func() {
			var held []queue.Ack
			for i := 0; ; i++ {
				ctx, leave := context.WithTimeout(t.Context(), time.Minute)
				if n == 0 && i%5 == 4 {
					leave() // its acks are repeated
				}
				acked, claimed, err := b.AckAndClaim(ctx, held, queue.ClaimParams{Limit: 2, Wait: time.Millisecond})
				hasLeft := ctx.Err() != nil
				leave()
				if err != nil {
					if !hasLeft {
						t.Error(err)
						return
					}
					continue
				}
				for _, a := range acked {
					if a.Err != nil {
						t.Errorf("an ack returned %+v", a)
					}
				}
				held = nil
				for _, e := range claimed {
					held = append(held, queue.Ack{Lease: lease(e)})
					mu.Lock()
					seen[e.ID]++
					mu.Unlock()
				}
				mu.Lock()
				isDone := len(seen) == events && len(held) == 0
				mu.Unlock()
				if isDone {
					return
				}
			}
		})
	}
	all.Wait()
	for id, n := range seen {
		if n != 1 {
			t.Errorf("event %d was worked on %d times", id, n)
		}
	}
	if left := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); left != 0 {
		t.Errorf("%d events are left", left)
	}
}

func TestAClosedServiceTakesNoClaimsWithAcks(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 1)
	held := lease(b.claimOne(t))
	if err := b.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.AckAndClaim(t.Context(), acks(held), queue.ClaimParams{}); err == nil {
		t.Error("there was no error")
	}
}

// An ack that has to wait for a lock is committed on its own: the claim is made after it, so that its leases are new, and others get the events meanwhile.
func TestAClaimWhoseAcksWaitForALockComesAfterThem(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.LockTimeout = waitLimit })
	held, tx := lockEvent(t, b)
	id := b.insert(t, "", `{}`)[0]
	done := make(chan []queue.Event)
	go func() {
		defer close(done)
		done <- b.ackAndClaim(t, held, queue.ClaimParams{}, 1)
	}()
	awaitLockWait(t, b, tx.Conn())
	others := b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)
	if err := b.Release(t.Context(), queue.LeasesOf(others)); err != nil {
		t.Fatal(err)
	}
	unlocked := pgtest.Query[time.Time](t, b.sql, `select pg_catalog.clock_timestamp()`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, e := range <-done {
		if e.ID != id || e.Attempts != 1 || e.Claimed[0].Before(unlocked) {
			t.Errorf("claimed %+v; want event %d, after %v", e, id, unlocked)
		}
	}
}

// So many acks are not in one transaction with the claim, and another writer may commit it before them.
func TestAClaimGetsWhatManyAcksFree(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.limit(t, "q", `{"order": true}`)
	inserted, err := b.Insert(t.Context(), []queue.InsertParams{{Queue: "q", Group: "g", Event: []byte(`{"block": 2}`)}, {Queue: "q", Group: "g", Event: []byte(`{}`)}})
	if err != nil {
		t.Fatal(err)
	}
	b.insertN(t, "others", queue.MaxBatch-1)
	var settled []queue.Lease
	for _, e := range slices.Concat(b.claim(t, queue.ClaimParams{Queue: "q"}, 1), b.claim(t, queue.ClaimParams{Queue: "others", Limit: queue.MaxBatch}, queue.MaxBatch-1)) {
		settled = append(settled, lease(e))
	}
	g := blockCommits(t, b)
	b.exec(t, `create trigger block before insert on agent.event_hist for each row when (new.event ? 'block') execute function public.wait_until_unblocked()`)
	first := g.blockFirst(t)
	done := make(chan []queue.Event)
	go func() {
		defer close(done)
		_, events, err := b.AckAndClaim(t.Context(), acks(settled...), queue.ClaimParams{Queue: "q"})
		if err != nil {
			t.Error(err)
		}
		done <- events
	}()
	eventually(t, "the acks are under way, and the claim waits", func() bool {
		waiting, writers := queue.PendingCalls(b.Service)
		return waiting == 1 && writers == 2
	})
	g.unblock(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	eventually(t, "the claim was made", func() bool {
		waiting, writers := queue.PendingCalls(b.Service)
		return waiting == 0 && writers == 1
	})
	g.unblock(t, 2)
	checkIDs(t, <-done, []int64{inserted[1].ID})
}
