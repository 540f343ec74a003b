package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// An ended is the answer of a WaitEvent.
type ended struct {
	event queue.Event
	err   error
	took  time.Duration
}

// waitEvent waits for the end of an event in a goroutine, and returns once it waits.
func (b env) waitEvent(ctx context.Context, t *testing.T, id int64) <-chan ended {
	t.Helper()
	before, began := b.EndWaits(), time.Now()
	answer := make(chan ended, 1)
	go func() {
		e, err := b.WaitEvent(ctx, id, queue.MaxWait)
		answer <- ended{e, err, time.Since(began)}
	}()
	eventually(t, "the call waits", func() bool { return b.EndWaits() == before+1 })
	return answer
}

// want fails the test unless the wait has ended with this outcome, before its time.
func (e ended) want(t *testing.T, outcome queue.Outcome) {
	t.Helper()
	if e.err != nil || e.event.Outcome != outcome || e.took > queue.MaxWait/2 {
		t.Errorf("the wait ended after %v with the outcome %q and %v, want %q at once", e.took, e.event.Outcome, e.err, outcome)
	}
}

func TestEndOfAnEventInTheSameProcessWakesThoseWhoWait(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	queue.NeverLookForEnds(b.Service)
	b.insertN(t, "", 3)

	claimed := b.claimOne(t)
	first, second := b.waitEvent(t.Context(), t, claimed.ID), b.waitEvent(t.Context(), t, claimed.ID)
	if _, err := b.Ack(t.Context(), []queue.Ack{{Lease: lease(claimed), Result: []byte(`{"pages":3}`)}}); err != nil {
		t.Fatal(err)
	}
	for _, answer := range []<-chan ended{first, second} {
		got := <-answer
		got.want(t, queue.Done)
		var result struct{ Pages int }
		if err := json.Unmarshal(got.event.Result, &result); err != nil || result.Pages != 3 {
			t.Errorf("the result is %s", got.event.Result)
		}
	}

	claimed = b.claimOne(t)
	answer := b.waitEvent(t.Context(), t, claimed.ID)
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(claimed), Error: "no paper", Final: true}); err != nil {
		t.Fatal(err)
	}
	(<-answer).want(t, queue.Failed)

	claimed = b.claimOne(t)
	answer = b.waitEvent(t.Context(), t, claimed.ID)
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(claimed), Delay: new(time.Duration)}); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-answer:
		t.Errorf("a nack that is not the last ended the wait: %+v, %v", got.event, got.err)
	case <-time.After(10 * time.Millisecond):
	}
	if _, err := b.Ack(t.Context(), []queue.Ack{{Lease: queue.Lease{ID: claimed.ID}}}); err != nil { // without a receipt, while it waits
		t.Fatal(err)
	}
	(<-answer).want(t, queue.Cancelled)
}

func TestEndOfAnEventElsewhereIsSeenByThoseWhoWait(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		end  func(t *testing.T, b env, id int64)
		want queue.Outcome
	}{
		"ack of another service": {func(t *testing.T, b env, id int64) {
			t.Helper()
			if _, err := anotherService(t, b.url, nil).Ack(t.Context(), acks(queue.Lease{ID: id})); err != nil {
				t.Error(err)
			}
		}, queue.Cancelled},
		"SQL": {func(t *testing.T, b env, id int64) {
			t.Helper()
			b.exec(t, `select agent.delete_event($1)`, id)
		}, queue.Cancelled},
		"purge": {func(t *testing.T, b env, _ int64) {
			t.Helper()
			if n, err := b.Purge(t.Context(), queue.Default); err != nil || n != 1 {
				t.Errorf("purged %d events; %v", n, err)
			}
		}, queue.Cancelled},
		"deletion of the queue": {func(t *testing.T, b env, _ int64) {
			t.Helper()
			if _, err := b.Delete(t.Context(), queue.Default, true, nil); err != nil {
				t.Error(err)
			}
		}, queue.Cancelled},
		"sweep": {func(t *testing.T, b env, _ int64) {
			t.Helper()
			b.exec(t, `update agent.event set expires_at = now() - interval '1 s'`)
			if n, err := b.Sweep(t.Context(), queue.SweepParams{}); err != nil || n != 1 {
				t.Errorf("swept %d events; %v", n, err)
			}
		}, queue.Expired},
		"ack after a move": {func(t *testing.T, b env, id int64) {
			t.Helper()
			if n, err := b.Move(t.Context(), queue.Default, "other", nil, 0); err != nil || n != 1 {
				t.Errorf("moved %d events; %v", n, err)
			}
			b.exec(t, `select agent.delete_event($1)`, id)
		}, queue.Cancelled},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			id := b.insert(t, "", `{}`)[0]
			answer := b.waitEvent(t.Context(), t, id)
			of.end(t, b, id)
			(<-answer).want(t, of.want)
			eventually(t, "nothing looks for ends any more", func() bool { return !queue.LooksForEnds(b.Service) })
		})
	}
}

func TestWaitForAnEventThatThereIsNotFailsAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if _, err := b.WaitEvent(t.Context(), 4711, queue.MaxWait); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("got %v", err)
	}
	// One that is gone from history, too, when the wait ends.
	id := b.insert(t, "", `{}`)[0]
	answer := b.waitEvent(t.Context(), t, id)
	b.exec(t, `delete from agent.event`)
	if got := <-answer; !errors.Is(got.err, queue.ErrNotFound) {
		t.Errorf("got %+v", got)
	}
}

func TestWaitForAnEventIsAnsweredWithTheEventAsItIsWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insert(t, "", `{}`)[0]
	for _, wait := range []time.Duration{0, 50 * time.Millisecond} {
		if e, err := b.WaitEvent(t.Context(), id, wait); err != nil || e.ID != id || e.Outcome != "" || e.State != queue.Ready {
			t.Errorf("after %v: %+v, %v", wait, e, err)
		}
	}
	b.ack(t, queue.Lease{ID: id})
	began := time.Now()
	if e, err := b.WaitEvent(t.Context(), id, queue.MaxWait); err != nil || e.Outcome != queue.Cancelled || time.Since(began) > queue.MaxWait/2 {
		t.Errorf("of an event that has ended: %+v, %v", e, err)
	}
}

func TestWaitForAnEventEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx, leave := context.WithCancel(t.Context())
	answer := b.waitEvent(ctx, t, b.insert(t, "", `{}`)[0])
	leave()
	if got := <-answer; !errors.Is(got.err, context.Canceled) {
		t.Errorf("got %v", got.err)
	}
	if n := b.EndWaits(); n != 0 {
		t.Errorf("%d callers wait", n)
	}
}

func TestDrainAnswersThoseWhoWaitForAnEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insert(t, "", `{}`)[0]
	answer := b.waitEvent(t.Context(), t, id)
	b.Drain()
	(<-answer).want(t, "")
	began := time.Now()
	if e, err := b.WaitEvent(t.Context(), id, queue.MaxWait); err != nil || e.ID != id || time.Since(began) > queue.MaxWait/2 {
		t.Errorf("a later call got %+v, %v after %v", e, err, time.Since(began))
	}
}

func TestThoseWhoWaitForAnEventLearnThatTheDatabaseCannotBeAsked(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insert(t, "", `{}`)[0]
	answer := b.waitEvent(t.Context(), t, id)
	b.exec(t, `alter function agent_service.find_ended rename to find_ended_of_nobody`)
	if got := <-answer; got.err == nil || got.took > queue.MaxWait/2 {
		t.Errorf("got %+v", got)
	}
}

// Acks at about the time at which a call begins to wait are not missed.
func TestNoEndOfAnEventIsMissed(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	b := setup(t, nil)
	queue.NeverLookForEnds(b.Service)
	const events = 500
	ids := b.insertN(t, "", events)
	var all sync.WaitGroup
	for i, id := range ids {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		all.Go(func() {
			began := time.Now()
			e, err := b.WaitEvent(t.Context(), id, queue.MaxWait)
			ended{e, err, time.Since(began)}.want(t, queue.Cancelled)
		})
		all.Go(func() {
			for range r.IntN(200) {
				runtime.Gosched()
			}
			if _, err := b.Ack(t.Context(), acks(queue.Lease{ID: id})); err != nil {
				t.Error(err)
			}
		})
		if i%20 == 19 {
			all.Wait()
		}
	}
	all.Wait()
}

// However many wait, there is one look for all of them at a time, and none when nobody waits.
func TestThoseWhoWaitForEventsShareOneLook(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		create sequence public.looks;
		create sequence public.reads;
		alter function agent_service.find_ended rename to find_ended_uncounted;
		create function agent_service.find_ended(_ids int8[]) returns setof int8 language sql security definer
		as $$ select nextval('public.looks'); select agent_service.find_ended_uncounted(_ids) $$;
		alter function agent.get_event rename to get_event_uncounted;
		create function agent.get_event(_id int8) returns setof agent.look language sql security definer
		as $$ select nextval('public.reads'); select * from agent.get_event_uncounted(_id) $$;
		grant execute on function agent_service.find_ended, agent.get_event to public`)
	const waiters = 1_000
	ids := b.insertN(t, "", waiters)
	calls := func(sequence string) (n int) {
		return pgtest.Query[int](t, b.sql, `select case when is_called then last_value else 0 end from public.`+sequence)
	}
	began := time.Now()
	var all sync.WaitGroup
	ends := make([]ended, waiters)
	for i, id := range ids {
		all.Go(func() {
			e, err := b.WaitEvent(t.Context(), id, queue.MaxWait)
			ends[i] = ended{e, err, time.Since(began)}
		})
	}
	eventually(t, "all wait and were looked for", func() bool { return calls("reads") >= waiters && calls("looks") > 10 })
	if n := calls("reads"); n != waiters {
		t.Errorf("%d calls waited, and read events %d times", waiters, n)
	}
	if n, most := calls("looks"), int(time.Since(began)/(150*time.Millisecond))+1; n > most {
		t.Errorf("there were %d looks in %v, want %d at most", n, time.Since(began), most)
	}
	waited := time.Since(began)
	if n, err := b.Purge(t.Context(), queue.Default); err != nil || n != waiters {
		t.Errorf("purged %d events; %v", n, err)
	}
	all.Wait()
	for _, e := range ends {
		e.took -= waited
		e.want(t, queue.Cancelled)
	}
	eventually(t, "nothing looks for ends any more", func() bool { return !queue.LooksForEnds(b.Service) })
}
