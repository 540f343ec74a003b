package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/queued/queued/internal/queue"
)

// countersOf returns the counts of a queue.
func (b env) countersOf(name string) queue.Counters {
	for _, c := range b.Counters() {
		if c.Queue == name {
			return c
		}
	}
	return queue.Counters{}
}

// total is how many durations were counted, and how many of them took an hour and longer.
func total(d queue.Durations) (n, long int64) {
	for i, count := range d.Counts {
		if n += count; i == len(queue.DurationBounds) || queue.DurationBounds[i] > time.Hour {
			long += count
		}
	}
	return n, long
}

func wantDurations(t *testing.T, what string, d queue.Durations, n, long int64) {
	t.Helper()
	if gotN, gotLong := total(d); gotN != n || gotLong != long {
		t.Errorf("%s: %d were counted, %d of them took over an hour; want %d and %d: %+v", what, gotN, gotLong, n, long, d)
	}
}

func TestWaitsAreCountedFromWhenEventsWereDueToTheirFirstClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "mail", `{"at":"once"}`, `{"at":"long ago"}`, `{"at":"a scheduled time"}`)
	b.exec(t, `update agent.event set enqueued_at = enqueued_at - interval '2 hours', vt = vt - interval '2 hours' where event->>'at' = 'long ago'`)
	// Enqueued two hours ago, and due just now.
	b.exec(t, `update agent.event set enqueued_at = enqueued_at - interval '2 hours', vt = now() where event->>'at' = 'a scheduled time'`)
	events := b.claim(t, queue.ClaimParams{Queue: "mail", Limit: 10}, 3)
	wantDurations(t, "first claims", b.countersOf("mail").Waits, 3, 1)
	if sum := b.countersOf("mail").Waits.Sum; sum < 7200 || sum > 8000 {
		t.Errorf("they waited for %.0f s in all", sum)
	}
	for _, e := range events {
		if _, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: e.ID, Receipt: e.Receipt}}); err != nil {
			t.Fatal(err)
		}
	}
	b.claim(t, queue.ClaimParams{Queue: "mail", Limit: 10}, 3)
	wantDurations(t, "second claims", b.countersOf("mail").Waits, 3, 1)

	// A claim that waits gets an event with its insert.
	waiting := make(chan []queue.Event, 1)
	go func() {
		events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "direct", Wait: time.Minute})
		waiting <- events
	}()
	b.insert(t, "direct", `{}`)
	if events := <-waiting; len(events) != 1 {
		t.Fatalf("claimed %d events", len(events))
	}
	wantDurations(t, "a claim that waited", b.countersOf("direct").Waits, 1, 0)
}

func TestProcessingIsCountedFromTheLastClaimToTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "mail", 4)
	events := b.claim(t, queue.ClaimParams{Queue: "mail", Limit: 4}, 4)
	b.exec(t, `update agent.event set claimed = array[claimed[1] - interval '2 hours'] where event->>'n' in ('1', '2')`)
	lease := func(i int) queue.Lease { return queue.Lease{ID: events[i].ID, Receipt: events[i].Receipt} }
	for range 2 { // a repeated ack is not counted again
		if _, err := b.Ack(t.Context(), []queue.Ack{{Lease: lease(0)}, {Lease: queue.Lease{ID: events[1].ID}}}); err != nil {
			t.Fatal(err)
		}
	}
	wantDurations(t, "acks", b.countersOf("mail").Processing, 2, 1)
	for range 2 {
		if r, err := b.Nack(t.Context(), queue.NackParams{Lease: queue.Lease{ID: events[3].ID, Receipt: events[3].Receipt}, Final: true}); err != nil || r.Outcome != queue.Failed {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	wantDurations(t, "a final nack", b.countersOf("mail").Processing, 3, 1)
	// An attempt that ends with another one to come is no end, and an event that nobody claimed has not been worked on.
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(2), Delay: new(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Ack(t.Context(), acks(queue.Lease{ID: b.insert(t, "mail", `{}`)[0]})); err != nil {
		t.Fatal(err)
	}
	wantDurations(t, "what has not ended, and was not claimed", b.countersOf("mail").Processing, 3, 1)
}

func TestQueueNamedOtherIsCountedAmongTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i := range 502 {
		name := queue.OtherQueues
		if i > 0 {
			name = fmt.Sprint("q", i)
		}
		b.insert(t, name, `{}`)
	}
	counters := b.Counters()
	seen := map[string]bool{}
	for _, c := range counters {
		if seen[c.Queue] {
			t.Errorf("there are two counts of %q", c.Queue)
		}
		seen[c.Queue] = true
	}
	if n := b.countersOf(queue.OtherQueues).Inserted; n != 2 || len(counters) != 501 {
		t.Errorf("%d queues have counters, and %d events were inserted into others; want 501 and 2", len(counters), n)
	}
}
