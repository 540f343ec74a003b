package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// insertEvents inserts events and returns their ids.
func (b env) insertEvents(t *testing.T, events ...queue.InsertParams) []int64 {
	t.Helper()
	for i := range events {
		if events[i].Event == nil {
			events[i].Event = json.RawMessage(`{}`)
		}
	}
	inserted, err := b.Insert(t.Context(), events)
	if err != nil {
		t.Fatal(err)
	}
	ids := make([]int64, len(inserted))
	for i, in := range inserted {
		ids[i] = in.ID
	}
	return ids
}

func TestJobFieldsAreReturnedByEveryCall(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	expires := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	p := queue.InsertParams{Type: "mail", Source: "shop", Priority: -7, IdempotencyKey: "k", MaxAttempts: 9, ExpiresAt: &expires}
	id := b.insertEvents(t, p)[0]
	claimed := b.claim(t, queue.ClaimParams{Worker: "w1"}, 1)[0]
	waiting := b.get(t, id)
	if r := b.ack(t, lease(claimed)); r.Err != nil {
		t.Fatal(r.Err)
	}
	for name, e := range map[string]queue.Event{"claim": claimed, "get": waiting, "history": b.get(t, id)} {
		if e.Type != p.Type || e.Source != p.Source || e.Priority != p.Priority || e.IdempotencyKey != p.IdempotencyKey || e.MaxAttempts == nil || *e.MaxAttempts != 9 ||
			e.ExpiresAt == nil || !e.ExpiresAt.Equal(expires) || e.Worker != "w1" {
			t.Errorf("%s returned %+v", name, e)
		}
	}
	at := expires.Add(-2 * time.Hour)
	handed, _ := insertWhileWaiting(t, b, queue.ClaimParams{Worker: "w2", Types: []string{"mail"}}, queue.InsertParams{
		Event: json.RawMessage(`{"event_ts": 1}`), Type: "mail", Source: "shop", Priority: 3, MaxAttempts: 2, ExpiresAt: &expires,
		EventTS: &at, Meta: json.RawMessage(`{"b":1e2, "a":"x"}`),
	})
	if len(handed) != 1 {
		t.Fatalf("claimed %+v", handed)
	}
	stored := b.get(t, handed[0].ID)
	for name, e := range map[string]queue.Event{"hand-over": handed[0], "get": stored} {
		if e.Type != "mail" || e.Source != "shop" || e.Priority != 3 || *e.MaxAttempts != 2 || !e.ExpiresAt.Equal(expires) || e.Worker != "w2" ||
			!e.EventTS.Equal(at) || string(e.Meta) != `{"a": "x", "b": 100}` {
			t.Errorf("%s returned %+v", name, e)
		}
	}
}

func TestClaimsGoByPriorityThenVTThenID(t *testing.T) {
	t.Parallel()
	for _, typed := range []bool{false, true} {
		t.Run(fmt.Sprintf("typed=%t", typed), func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			early := time.Now().Add(-time.Hour)
			p := queue.ClaimParams{Limit: 4}
			types := []string{"", "", "", "", "", "", ""}
			if typed {
				p.Types = []string{"b", "a", "a"}
				types = []string{"a", "b", "a", "b", "a", "b", "a"}
			}
			ids := b.insertEvents(t,
				queue.InsertParams{Type: types[0], Priority: 5},
				queue.InsertParams{Type: types[1]},
				queue.InsertParams{Type: types[2]},
				queue.InsertParams{Type: types[3], VT: &early},
				queue.InsertParams{Type: types[4], Priority: -1},
				queue.InsertParams{Type: types[5], Priority: -2147483648},
				queue.InsertParams{Type: types[6], Priority: 2147483647},
			)
			checkIDs(t, b.claim(t, p, 4), []int64{ids[5], ids[4], ids[3], ids[1]})
			checkIDs(t, b.claim(t, p, 3), []int64{ids[2], ids[0], ids[6]})
		})
	}
}

func TestClaimOfTypesSkipsOtherTypes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertEvents(t, queue.InsertParams{}, queue.InsertParams{Type: "a"}, queue.InsertParams{Type: "b"}, queue.InsertParams{Type: "c"}, queue.InsertParams{Type: "b"})
	b.claim(t, queue.ClaimParams{Types: []string{"d"}, Limit: 9}, 0)
	checkIDs(t, b.claim(t, queue.ClaimParams{Types: []string{"b"}, Limit: 9}, 2), []int64{ids[2], ids[4]})
	if e := b.claim(t, queue.ClaimParams{Types: []string{"c", "a"}, Limit: 1, Order: queue.Random}, 1)[0]; e.Type != "a" && e.Type != "c" {
		t.Errorf("claimed %+v", e)
	}
	b.claim(t, queue.ClaimParams{Types: []string{"c", "a"}, Limit: 9, Order: queue.Random}, 1)
	checkIDs(t, b.claim(t, queue.ClaimParams{Limit: 9}, 1), []int64{ids[0]})
}

func TestRandomClaimsOfTypesFindEveryEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i := range 40 {
		vt := time.Now().Add(-time.Duration(i) * time.Second)
		b.insertEvents(t, queue.InsertParams{Type: []string{"a", "b"}[i%2], Priority: int32(i % 3), VT: &vt})
	}
	seen := map[int64]bool{}
	for range 40 {
		seen[b.claim(t, queue.ClaimParams{Types: []string{"a", "b"}, Order: queue.Random}, 1)[0].ID] = true
	}
	if len(seen) != 40 {
		t.Errorf("%d of 40 events were claimed", len(seen))
	}
}

func TestExcludedEventsAreNotClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertEvents(t, queue.InsertParams{Type: "a"}, queue.InsertParams{Type: "a"}, queue.InsertParams{Type: "a"})
	checkIDs(t, b.claim(t, queue.ClaimParams{ExcludeIDs: ids[:1]}, 1), ids[1:2])
	checkIDs(t, b.claim(t, queue.ClaimParams{ExcludeIDs: ids[:1], Types: []string{"a"}, Limit: 9}, 1), ids[2:])
	checkIDs(t, b.claim(t, queue.ClaimParams{}, 1), ids[:1])
}

func TestMaxAttemptsOfTheEventOverridesTheClaim(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertEvents(t, queue.InsertParams{MaxAttempts: 1}, queue.InsertParams{MaxAttempts: 5})
	for range 3 {
		b.claim(t, queue.ClaimParams{Limit: 9, MaxAttempts: 2}, 2)
		b.endLease(t, ids[1])
		b.exec(t, `update agent.event set attempts = 0 where id = $1`, ids[0])
		b.endLease(t, ids[0])
	}
	b.exec(t, `update agent.event set attempts = 1 where id = $1`, ids[0])
	checkIDs(t, b.claim(t, queue.ClaimParams{Limit: 9, MaxAttempts: 1}, 1), ids[1:])
	b.endLease(t, ids[1])
	if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 2}); err != nil || n != 1 {
		t.Errorf("swept %d, %v", n, err)
	}
	if e := b.get(t, ids[0]); e.Outcome != queue.Expired {
		t.Errorf("the event without an attempt left: %+v", e)
	}
	if e := b.get(t, ids[1]); e.State != queue.Ready {
		t.Errorf("the event with an attempt left: %+v", e)
	}
}

func TestEventIsNotClaimedAfterExpiresAtAndIsSwept(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	past := time.Now().Add(-time.Minute)
	ids := b.insertEvents(t, queue.InsertParams{ExpiresAt: &past, Type: "a"}, queue.InsertParams{Type: "a"}, queue.InsertParams{ExpiresAt: &past, Delay: time.Hour})
	b.claim(t, queue.ClaimParams{Limit: 9, Types: []string{"a"}}, 1)
	b.claim(t, queue.ClaimParams{Limit: 9}, 0)
	handed, _ := insertWhileWaiting(t, b, queue.ClaimParams{}, queue.InsertParams{Event: json.RawMessage(`{}`), ExpiresAt: &past}, queue.InsertParams{Event: json.RawMessage(`{}`)})
	if len(handed) != 1 || handed[0].ExpiresAt != nil {
		t.Errorf("claimed %+v", handed)
	}
	if n, err := b.Sweep(t.Context(), queue.SweepParams{}); err != nil || n != 3 {
		t.Errorf("swept %d, %v", n, err)
	}
	if e := b.get(t, ids[2]); e.Outcome != queue.Expired {
		t.Errorf("the event is %+v", e)
	}
}

func TestEachWorkerGetsTheEventsClaimedInItsName(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	const workers, each = 20, 3
	var all sync.WaitGroup
	for i := range workers {
		all.Go(func() {
			name := fmt.Sprint("worker ", i)
			events, err := b.Claim(t.Context(), queue.ClaimParams{Limit: each, Worker: name, Wait: queue.MaxWait})
			if err != nil || len(events) == 0 {
				t.Errorf("%s got %v, %v", name, events, err)
			}
			for _, e := range events {
				if e.Worker != name {
					t.Errorf("%s got an event claimed by %s", name, e.Worker)
				}
				if got, err := b.Get(t.Context(), e.ID); err != nil || got.Worker != name {
					t.Errorf("an event claimed by %s is stored with the worker %q, %v", name, got.Worker, err)
				}
			}
		})
	}
	eventually(t, "all claims wait", func() bool { return queue.Waiting(b.Service) == workers })
	for range workers * each {
		b.insertEvents(t, queue.InsertParams{})
	}
	all.Wait()
}

func TestPausedQueueAcceptsInsertsButNoClaims(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	other := anotherService(t, b.url, neverPolls)
	if err := other.Pause(t.Context(), queue.Default); err != nil {
		t.Fatal(err)
	}
	id := b.insertEvents(t, queue.InsertParams{Type: "a"})[0]
	b.claim(t, queue.ClaimParams{}, 0)
	b.claim(t, queue.ClaimParams{Types: []string{"a"}}, 0)
	done := make(chan []queue.Event, 1)
	go func() {
		events, err := b.Claim(t.Context(), queue.ClaimParams{Wait: queue.MaxWait, Limit: 2})
		if err != nil {
			t.Error(err)
		}
		done <- events
	}()
	awaitWaitingClaim(t, b, "")
	b.insertEvents(t, queue.InsertParams{}) // which is not claimed
	if e := b.get(t, id); e.State != queue.Ready {
		t.Errorf("the event is %s", e.State)
	}
	runService(t, b.Service)
	awaitListening(t, b)
	if err := other.Resume(t.Context(), queue.Default); err != nil {
		t.Fatal(err)
	}
	if events := <-done; len(events) != 2 {
		t.Errorf("claimed %+v", events)
	}
}

func TestPurgeCancelsEventsWithoutALease(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertEvents(t, queue.InsertParams{}, queue.InsertParams{}, queue.InsertParams{Delay: time.Hour}, queue.InsertParams{Queue: "other"})
	b.claimOne(t)
	if n, err := b.Purge(t.Context(), queue.Default); err != nil || n != 2 {
		t.Errorf("purged %d, %v", n, err)
	}
	for i, want := range []queue.Outcome{"", queue.Cancelled, queue.Cancelled, ""} {
		if e := b.get(t, ids[i]); e.Outcome != want {
			t.Errorf("event %d is %+v", i, e)
		}
	}
	if _, err := b.Purge(t.Context(), "no name"); !errors.Is(err, queue.ErrInvalid) {
		t.Error(err)
	}
}

func TestMoveTakesEventsWithoutALeaseToAnotherQueue(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertEvents(t, queue.InsertParams{}, queue.InsertParams{Type: "a", Priority: 3, IdempotencyKey: "k"}, queue.InsertParams{Delay: time.Hour}, queue.InsertParams{Queue: "other"})
	leased := b.claimOne(t)
	if n, err := b.Move(t.Context(), queue.Default, "there", []string{"a", "b"}, 0); err != nil || n != 1 {
		t.Errorf("moved %d, %v, want the one of type a", n, err)
	}
	if n, err := b.Move(t.Context(), queue.Default, "there", nil, 9); err != nil || n != 1 {
		t.Errorf("moved %d, %v, want the one that is scheduled", n, err)
	}
	for i, want := range []queue.Event{{Queue: "default", State: queue.Leased}, {Queue: "there", State: queue.Ready}, {Queue: "there", State: queue.Scheduled}, {Queue: "other", State: queue.Ready}} {
		if e := b.get(t, ids[i]); e.Queue != want.Queue || e.State != want.State {
			t.Errorf("event %d is in %s and %s, want %s and %s", i, e.Queue, e.State, want.Queue, want.State)
		}
	}
	if e := b.get(t, ids[1]); e.Type != "a" || e.Priority != 3 || e.IdempotencyKey != "k" {
		t.Errorf("it has changed: %+v", e)
	}
	b.ack(t, lease(leased))
	for _, wrong := range [][2]string{{"default", "default"}, {"no name", "a"}, {"a", "no name"}, {"a", "queued.publish"}, {"queued.publish", "a"}} {
		if _, err := b.Move(t.Context(), wrong[0], wrong[1], nil, 0); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("%q: %v, want ErrInvalid", wrong, err)
		}
	}
}

func TestMoveWakesClaimsThatWaitInAnyProcess(t *testing.T) {
	t.Parallel()
	b := setup(t, neverPolls)
	b.insert(t, "", `{}`)
	runService(t, b.Service)
	awaitListening(t, b)
	mover := anotherService(t, b.url, neverPolls)
	got := whileWaiting(t, b, queue.ClaimParams{Queue: "there"}, func() {
		if _, err := mover.Move(t.Context(), queue.Default, "there", nil, 0); err != nil {
			t.Error(err)
		}
	})
	if len(got) != 1 || got[0].Queue != "there" {
		t.Errorf("claimed %+v", got)
	}
}

func TestMoveOfMoreThanABatchIsWholeUpToItsLimit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `insert into agent.event (event) select '{}' from generate_series(1, 2500)`)
	for _, want := range []int64{1700, 800, 0} {
		if n, err := b.Move(t.Context(), queue.Default, "there", nil, 1700); err != nil || n != want {
			t.Errorf("moved %d, %v, want %d", n, err, want)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'there'`); n != 2500 {
		t.Errorf("%d are there, want 2500", n)
	}
}
