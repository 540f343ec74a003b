package queue_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/queued/queued/internal/queue"
)

// insertWhileWaiting inserts events in one call while a claim waits, and returns what the claim and the insert returned.
func insertWhileWaiting(t *testing.T, b env, p queue.ClaimParams, events ...queue.InsertParams) (claimed []queue.Event, inserted []queue.Inserted) {
	t.Helper()
	p.Wait = queue.MaxWait
	done := make(chan []queue.Event, 1)
	go func() {
		defer close(done)
		events, err := b.Claim(t.Context(), p)
		if err != nil {
			t.Error(err)
		}
		done <- events
	}()
	awaitWaitingClaim(t, b, "")
	inserted, err := b.Insert(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	return <-done, inserted
}

func TestInsertedEventGoesToAWaitingClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	claimed, inserted := insertWhileWaiting(t, b, queue.ClaimParams{InvisibleFor: time.Hour},
		queue.InsertParams{Event: json.RawMessage(`{"b": 1e2, "a": "x"}`)})
	if len(claimed) != 1 || claimed[0].ID != inserted[0].ID {
		t.Fatalf("claimed %+v of %+v", claimed, inserted)
	}
	e := claimed[0]
	if string(e.Payload) != `{"a": "x", "b": 100}` {
		t.Errorf("the payload is %s", e.Payload)
	}
	stored := b.get(t, e.ID)
	if stored.State != queue.Leased || stored.Attempts != 1 || e.Attempts != 1 || len(e.Claimed) != 1 || !stored.Claimed[0].Equal(e.Claimed[0]) ||
		!stored.VT.Equal(e.VT) || !e.VT.Equal(e.Claimed[0].Add(time.Hour)) || !stored.EventTS.Equal(e.EventTS) || !stored.EnqueuedAt.Equal(e.EnqueuedAt) {
		t.Errorf("claimed %+v, stored %+v", e, stored)
	}
	if !inserted[0].VT.Equal(e.EnqueuedAt) {
		t.Errorf("the insert returned the vt %v, but the event was inserted at %v", inserted[0].VT, e.EnqueuedAt)
	}
	if c := b.Counters(); len(c) != 1 || c[0].Inserted != 1 || c[0].Claimed != 1 {
		t.Errorf("counted %+v", c)
	}
	if got := b.ack(t, lease(e)); got.Err != nil || got.Outcome != queue.Done {
		t.Errorf("acked: %+v", got)
	}
}

func TestWaitingClaimGetsNoMoreThanItsLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	var events []queue.InsertParams
	for range 5 {
		events = append(events, queue.InsertParams{Event: json.RawMessage(`{}`)})
	}
	events[0].Delay = time.Hour
	claimed, inserted := insertWhileWaiting(t, b, queue.ClaimParams{Limit: 2}, events...)
	if len(claimed) != 2 || claimed[0].ID != inserted[1].ID || claimed[1].ID != inserted[2].ID {
		t.Fatalf("claimed %+v of %+v", claimed, inserted)
	}
	for i, want := range []queue.State{queue.Scheduled, queue.Leased, queue.Leased, queue.Ready, queue.Ready} {
		if got := b.get(t, inserted[i].ID); got.State != want {
			t.Errorf("event %d is %s, want %s", i, got.State, want)
		}
	}
	if rest := b.claim(t, queue.ClaimParams{Limit: 9}, 2); rest[0].ID != inserted[3].ID || rest[1].ID != inserted[4].ID {
		t.Errorf("the rest is %+v", rest)
	}
}
