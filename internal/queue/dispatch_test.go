package queue_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/queued/queued/internal/queue"
)

// checkOnTime fails the test unless an event was claimed after its delay, and not much later.
func checkOnTime(t *testing.T, e queue.Event, delay time.Duration) {
	t.Helper()
	if late := e.Claimed[0].Sub(e.EnqueuedAt) - delay; late < 0 || late > 5*time.Second {
		t.Errorf("event %d was claimed %v after its vt", e.ID, late)
	}
}

func TestScheduledEventsAreClaimedOnTimeWhileAClaimWaits(t *testing.T) {
	t.Parallel()
	for name, lookAheadTime := range map[string]time.Duration{"that waits for looks ahead": time.Hour, "that does not": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, func(c *queue.Config) {
				neverPolls(c)
				c.LookAheadTime = lookAheadTime
			})
			delays := []time.Duration{300 * time.Millisecond, 50 * time.Millisecond, 150 * time.Millisecond}
			var in []queue.Inserted
			got := whileWaiting(t, b, queue.ClaimParams{}, func() {
				params := make([]queue.InsertParams, len(delays))
				for i, d := range delays {
					params[i] = queue.InsertParams{Event: json.RawMessage(`{}`), Delay: d}
				}
				var err error
				if in, err = b.Insert(t.Context(), params); err != nil {
					t.Error(err)
				}
			})
			if len(got) != 1 || len(in) != 3 {
				t.Fatalf("inserted %+v, claimed %+v", in, got)
			}
			for range 2 {
				got = append(got, b.claim(t, queue.ClaimParams{Wait: queue.MaxWait}, 1)...)
			}
			checkIDs(t, got, []int64{in[1].ID, in[2].ID, in[0].ID})
			for i, d := range []time.Duration{delays[1], delays[2], delays[0]} {
				checkOnTime(t, got[i], d)
			}
		})
	}
}

func TestEventScheduledBySQLIsClaimedOnTime(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitListening(t, b)
	got := whileWaiting(t, b, queue.ClaimParams{}, func() {
		b.exec(t, `select agent.insert_event('{}', _delay => '100 ms')`)
	})
	if len(got) != 1 {
		t.Fatalf("claimed %+v", got)
	}
	checkOnTime(t, got[0], 100*time.Millisecond)
}

// transactions returns how many transactions the service has begun so far, about.
func transactions(b env) int64 { return b.PoolStats().Acquires }

// awaitTold waits until the service is told of everything that becomes claimable: notifications arrive, and what comes without one is looked for.
func awaitTold(t *testing.T, b env) {
	t.Helper()
	eventually(t, "the service is told of everything", func() bool { return queue.IsTold(b.Service) })
}

// startWaiting starts a claim in each of these queues and returns when they all wait for inserts.
func startWaiting(t *testing.T, b env, queues []string) (answers <-chan []queue.Event) {
	t.Helper()
	ch := make(chan []queue.Event, len(queues))
	for _, q := range queues {
		go func() {
			events, err := b.Claim(t.Context(), queue.ClaimParams{Queue: q, Wait: queue.MaxWait})
			if err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
			ch <- events
		}()
	}
	for _, q := range queues {
		awaitWaitingClaim(t, b, q)
	}
	return ch
}

func TestOneStatementPollsForAllQueuesInWhichClaimsWait(t *testing.T) {
	t.Parallel()
	const poll = 50 * time.Millisecond
	b := setup(t, func(c *queue.Config) { c.PollInterval = poll })
	runService(t, b.Service)
	awaitTold(t, b)
	queues := make([]string, 100)
	for i := range queues {
		queues[i] = fmt.Sprint("idle-", i)
	}
	answers := startWaiting(t, b, queues)
	start, before := time.Now(), transactions(b)
	delayed, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: queues[7], Delay: 2 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	got := <-answers
	polls := int64(time.Since(start) / (poll * 3 / 4))
	// On a busy machine claims look once more after they began to wait. A poll of each queue would take a hundred times as many.
	if made := transactions(b) - before; made > polls+2*int64(len(queues)) {
		t.Errorf("%d claims that wait in as many queues took %d transactions in %v, and there was time for %d polls", len(queues), made, time.Since(start), polls)
	}
	if len(got) != 1 || got[0].ID != delayed[0].ID {
		t.Fatalf("claimed %+v", got)
	}
	checkOnTime(t, got[0], 2*time.Second)
}

func TestClaimsWaitForWhatNobodyNotifiesOf(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.PollInterval = 20 * time.Millisecond })
	runService(t, b.Service)
	awaitTold(t, b)
	id := b.insert(t, "", `{}`)[0]
	b.claim(t, queue.ClaimParams{InvisibleFor: time.Hour}, 1)
	b.exec(t, `select agent.pause_queue('paused')`)
	b.exec(t, `insert into agent.event (event, queue) values ('{}', 'paused')`)

	answers := startWaiting(t, b, []string{queue.Default, "paused", "plain"})
	b.exec(t, `update agent.event set vt = clock_timestamp() where id = $1`, id) // the lease ends
	if got := <-answers; len(got) != 1 || got[0].Attempts != 2 {
		t.Errorf("claimed %+v", got)
	}
	b.exec(t, `insert into agent.event (event, queue) values ('{}', 'plain')`)
	if got := <-answers; len(got) != 1 || got[0].Queue != "plain" {
		t.Errorf("claimed %+v", got)
	}
	b.exec(t, `update agent.queue set paused = false`)
	if got := <-answers; len(got) != 1 || got[0].Queue != "paused" {
		t.Errorf("claimed %+v", got)
	}
}

func TestLeaseThatBeginsWhileAClaimWaitsIsTakenOverWhenItEnds(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.PollInterval = 20 * time.Millisecond })
	runService(t, b.Service)
	awaitTold(t, b)
	answers := startWaiting(t, b, []string{queue.Default})
	b.exec(t, `with e as (insert into agent.event (event, vt) values ('{}', clock_timestamp() + '1 s') returning id) select id from e`)
	got := <-answers
	if len(got) != 1 {
		t.Fatalf("claimed %+v", got)
	}
	if early := got[0].Claimed[0].Sub(got[0].EnqueuedAt); early < time.Second {
		t.Errorf("claimed %v after it was inserted", early)
	}
}

func TestClaimsThatFollowEachOtherInAnIdleQueueCostNoTransaction(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]int{"beside another one": 1, "alone": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, neverPolls)
			runService(t, b.Service)
			awaitTold(t, b)
			if others > 0 {
				startWaiting(t, b, []string{queue.Default})
			} else {
				b.claim(t, queue.ClaimParams{Wait: time.Second}, 0)
			}
			const claims, rounds = 100, 20
			made := int64(0)
			for range rounds { // on a busy machine the loops make many while the claims last: one quick round tells
				before := transactions(b)
				for range claims {
					b.claim(t, queue.ClaimParams{Wait: time.Millisecond}, 0)
				}
				if made = transactions(b) - before; made <= claims/2 {
					return
				}
			}
			t.Errorf("%d claims took %d transactions, and as many in each round before", claims, made)
		})
	}
}

func TestClaimThatAsksForSomethingElseLooksForItself(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	runService(t, b.Service)
	awaitTold(t, b)
	b.exec(t, `insert into agent.event (event, type) values ('{}', 'other')`)
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		_, _ = b.Claim(t.Context(), queue.ClaimParams{Types: []string{"mine"}, Wait: queue.MaxWait})
	}()
	awaitWaitingClaim(t, b, "")
	b.claim(t, queue.ClaimParams{Types: []string{"other"}, Wait: queue.MaxWait}, 1)
	b.claim(t, queue.ClaimParams{Types: []string{"mine"}}, 0) // it does not wait, so it asks
	b.Drain()
	<-waiting
}

func TestWaitersLookForThemselvesWhenThePollForAllFails(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.PollInterval = 20 * time.Millisecond })
	runService(t, b.Service)
	awaitTold(t, b)
	answers := startWaiting(t, b, []string{queue.Default})
	b.exec(t, `alter function agent_service.next_vts rename to next_vts_of_nobody`)
	b.exec(t, `insert into agent.event (event) values ('{}')`)
	if got := <-answers; len(got) != 1 {
		t.Errorf("claimed %+v", got)
	}
}
