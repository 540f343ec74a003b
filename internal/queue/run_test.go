package queue_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// insertLater inserts an event that waits for its time and returns its id.
func (b env) insertLater(t *testing.T, p queue.InsertParams) int64 {
	t.Helper()
	if p.Event == nil {
		p.Event = []byte(`{}`)
	}
	if p.Delay == 0 {
		p.Delay = time.Hour
	}
	inserted, err := b.Insert(t.Context(), []queue.InsertParams{p})
	if err != nil {
		t.Fatal(err)
	}
	return inserted[0].ID
}

func (b env) runQueue(t *testing.T, p queue.RunParams) int64 {
	t.Helper()
	if p.Queue == "" {
		p.Queue = queue.Default
	}
	n, err := b.RunQueue(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestScheduledEventIsClaimableOnceItIsRun(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	scheduled := b.insertLater(t, queue.InsertParams{})
	other := b.insertLater(t, queue.InsertParams{})
	before := now(t, b.sql)
	vt, err := b.RunEvent(t.Context(), scheduled, nil)
	if err != nil || vt.Before(before) || vt.After(now(t, b.sql)) {
		t.Errorf("it is claimable from %v on, %v", vt, err)
	}
	again, err := b.RunEvent(t.Context(), scheduled, nil)
	if err != nil || !again.Equal(vt) {
		t.Errorf("run again it is claimable from %v on, %v; want %v", again, err, vt)
	}
	e := b.claim(t, queue.ClaimParams{Limit: 10}, 1)[0]
	if e.ID != scheduled || e.Attempts != 1 {
		t.Errorf("claimed %+v, want event %d", e, scheduled)
	}
	if _, err := b.RunEvent(t.Context(), scheduled, nil); !errors.Is(err, queue.ErrLeased) {
		t.Errorf("running a leased event: %v", err)
	}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Delay: new(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.RunEvent(t.Context(), scheduled, []string{"other"}); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("running an event of a queue of others: %v", err)
	}
	if _, err := b.RunEvent(t.Context(), scheduled, []string{queue.Default}); err != nil {
		t.Error(err)
	}
	e = b.claim(t, queue.ClaimParams{Limit: 10}, 1)[0]
	b.ack(t, lease(e))
	if _, err := b.RunEvent(t.Context(), scheduled, nil); !errors.Is(err, queue.ErrEnded) {
		t.Errorf("running an event that is done: %v", err)
	}
	if _, err := b.RunEvent(t.Context(), scheduled, []string{"other"}); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("running an event in the history of others: %v", err)
	}
	if _, err := b.RunEvent(t.Context(), other+1000, nil); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("running an event that there is not: %v", err)
	}
	b.exec(t, `insert into agent.event (event, queue, vt) values ('{}', 'queued.publish', now() + interval '1 hour')`)
	var invalid *queue.InvalidError
	if _, err := b.RunEvent(t.Context(), pgtest.Query[int64](t, b.sql, `select max(id) from agent.event`), nil); !errors.As(err, &invalid) {
		t.Errorf("running a publication: %v", err)
	}
}

func TestQueueIsRunInTheOrderOfItsTimesAndLeavesTheRest(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ready := b.insert(t, "", `{}`)[0]
	leased := b.claim(t, queue.ClaimParams{InvisibleFor: time.Hour}, 1)[0]
	if leased.ID != ready {
		t.Fatal(leased)
	}
	elsewhere := b.insertLater(t, queue.InsertParams{Queue: "elsewhere"})
	var want []int64
	for _, priority := range []int32{-3, 0, 7} {
		var lane []int64
		for i := range 4 {
			lane = append(lane, b.insertLater(t, queue.InsertParams{Priority: priority, Delay: time.Duration(10-i) * time.Minute}))
		}
		slices.Reverse(lane) // the later they were inserted, the sooner they are due
		want = append(want, lane...)
	}
	if n := b.runQueue(t, queue.RunParams{Limit: 5}); n != 5 {
		t.Errorf("%d events were run, want 5", n)
	}
	if n := b.runQueue(t, queue.RunParams{}); n != 7 {
		t.Errorf("%d events were run, want 7", n)
	}
	if n := b.runQueue(t, queue.RunParams{}); n != 0 {
		t.Errorf("%d events were run that are claimable", n)
	}
	var got []int64
	for _, e := range b.claim(t, queue.ClaimParams{Limit: 100}, len(want)) {
		got = append(got, e.ID)
	}
	if !slices.Equal(got, want) {
		t.Errorf("claimed %v, want %v", got, want)
	}
	if state := pgtest.Query[string](t, b.sql, `select state from agent.get_event($1)`, elsewhere); state != "scheduled" {
		t.Errorf("an event of another queue is %s", state)
	}
	b.ack(t, lease(leased))
}

func TestQueueIsRunInManyTransactionsWithoutAGap(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		insert into agent.event (event, queue, priority, vt)
		select jsonb_build_object('n', n), 'default', n % 3, now() + interval '1 hour' + case when n % 2 = 0 then interval '0' else n * interval '1 s' end
		from generate_series(1, 7500) n`)
	if n := b.runQueue(t, queue.RunParams{Limit: 2500}); n != 2500 {
		t.Errorf("%d events were run, want 2500", n)
	}
	if n := b.runQueue(t, queue.RunParams{}); n != 5000 {
		t.Errorf("%d events were run, want 5000", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where vt > clock_timestamp()`); n != 0 {
		t.Errorf("%d events are scheduled still", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event e where (e.event ->> 'n')::int % 2 = 1 and exists (
		select from agent.event o where o.priority = e.priority and (o.event ->> 'n')::int % 2 = 1 and (o.event ->> 'n')::int > (e.event ->> 'n')::int and (o.vt, o.id) < (e.vt, e.id))`); n != 0 {
		t.Errorf("%d events come after others that were due later", n)
	}
}

func TestOnlyEventsThatWereNackedAreRunIfAskedFor(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertLater(t, queue.InsertParams{Type: "a"})
	b.insert(t, "", `{}`)
	nacked := b.claim(t, queue.ClaimParams{}, 1)[0]
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(nacked), Delay: new(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if n := b.runQueue(t, queue.RunParams{NackedOnly: true, Types: []string{"a"}}); n != 0 {
		t.Errorf("%d events were run that are of another type or were never nacked", n)
	}
	if n := b.runQueue(t, queue.RunParams{NackedOnly: true}); n != 1 {
		t.Errorf("%d events were run, want the one that was nacked", n)
	}
	if e := b.claim(t, queue.ClaimParams{Limit: 10}, 1)[0]; e.ID != nacked.ID || e.Attempts != 2 {
		t.Errorf("claimed %+v", e)
	}
	if n := b.runQueue(t, queue.RunParams{Types: []string{"a"}}); n != 1 {
		t.Errorf("%d events of the type were run, want 1", n)
	}
	b.claim(t, queue.ClaimParams{Types: []string{"a"}}, 1)
	for _, p := range []queue.RunParams{{Queue: "no name"}, {Queue: "queued.publish"}} {
		if _, err := b.RunQueue(t.Context(), p); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("running the queue %q: %v", p.Queue, err)
		}
	}
}

func TestQueueIsRunWithoutTheEventsThatOthersHaveLocked(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	locked, free := b.insertLater(t, queue.InsertParams{}), b.insertLater(t, queue.InsertParams{})
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from agent.event where id = $1 for update`, locked); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if n, err := b.RunQueue(ctx, queue.RunParams{Queue: queue.Default}); err != nil || n != 1 {
		t.Errorf("%d events were run, %v; want the one that nobody has locked", n, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[int64]queue.State{locked: queue.Scheduled, free: queue.Ready} {
		if e := b.get(t, id); e.State != want {
			t.Errorf("event %d is %s, want %s", id, e.State, want)
		}
	}
}

// A worker that fails at once must not keep a run going: each of its nacks schedules the event again.
func TestEventsThatFailAtOnceAreRunOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const n = 3000
	b.exec(t, `insert into agent.event (event, vt) select '{}', now() + interval '1 second' * (3600 + n) from generate_series(1, $1) n`, n)
	worker := anotherService(t, b.url, nil)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			events, err := worker.Claim(ctx, queue.ClaimParams{Limit: 100, MaxAttempts: 1000})
			if err != nil && ctx.Err() == nil {
				failed <- err
				return
			}
			for _, e := range events {
				_, _ = worker.Nack(ctx, queue.NackParams{Lease: lease(e), Delay: new(2 * time.Hour)})
			}
		}
		failed <- nil
	}()
	if run := b.runQueue(t, queue.RunParams{}); run != n {
		t.Errorf("%d events were run, want %d", run, n)
	}
	cancel()
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

func TestClaimsThatWaitGetWhatIsRunInAnyProcess(t *testing.T) {
	t.Parallel()
	b := withWatermarks(t, always)
	awaitListening(t, b)
	beside := anotherService(t, b.url, func(c *queue.Config) {
		neverPolls(c)
		c.WatermarkInterval, c.WatermarkScanTime = time.Hour, always
	})
	runService(t, beside)
	for name, run := range map[string]func(id int64) error{ //nolint:paralleltest // they claim from one queue
		"the event, here": func(id int64) error { _, err := b.RunEvent(t.Context(), id, nil); return err },
		"the queue, here": func(int64) error {
			_, err := b.RunQueue(t.Context(), queue.RunParams{Queue: queue.Default})
			return err
		},
		"the event, elsewhere": func(id int64) error { _, err := beside.RunEvent(t.Context(), id, nil); return err },
		"the queue, elsewhere": func(int64) error {
			_, err := beside.RunQueue(t.Context(), queue.RunParams{Queue: queue.Default})
			return err
		},
		"the event, by SQL": func(id int64) error { b.exec(t, `select agent.run_event($1)`, id); return nil },
		"the queue, by SQL": func(int64) error { b.exec(t, `select agent.run_queue('default')`); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			id := b.insertLater(t, queue.InsertParams{Priority: 3})
			raiseWatermark(t, b, now(t, b.sql).Add(-time.Second))
			claimed := make(chan error, 1)
			go func() {
				events, err := b.Claim(t.Context(), queue.ClaimParams{Wait: queue.MaxWait})
				if err == nil && (len(events) != 1 || events[0].ID != id) {
					err = fmt.Errorf("claimed %+v", events)
				}
				if err == nil {
					b.ack(t, lease(events[0]))
				}
				claimed <- err
			}()
			eventually(t, "a claim waits", func() bool { return queue.Waiting(b.Service) == 1 })
			if err := run(id); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-claimed:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Error("the claim waits still")
			}
		})
	}
}

func TestEventsOfAPausedQueueThatAreRunAreClaimableWhenItIsResumed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertLater(t, queue.InsertParams{})
	id := b.insertLater(t, queue.InsertParams{})
	if err := b.Pause(t.Context(), queue.Default); err != nil {
		t.Fatal(err)
	}
	if _, err := b.RunEvent(t.Context(), id, nil); err != nil {
		t.Error(err)
	}
	if n := b.runQueue(t, queue.RunParams{}); n != 1 {
		t.Errorf("%d events were run, want 1", n)
	}
	b.claim(t, queue.ClaimParams{Limit: 10}, 0)
	if err := b.Resume(t.Context(), queue.Default); err != nil {
		t.Fatal(err)
	}
	b.claim(t, queue.ClaimParams{Limit: 10}, 2)
}
