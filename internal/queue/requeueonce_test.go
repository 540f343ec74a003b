package queue_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// runRedrive makes the steps of a redrive, until it is done.
func (b env) runRedrive(t *testing.T, r queue.Redrive) queue.Redrive {
	t.Helper()
	for r.State == queue.RedriveRunning {
		b.exec(t, `select agent_service.redrive_step('test')`)
		var err error
		if r, err = b.GetRedrive(t.Context(), r.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// comeBack are the ways in which an event of the queue mail that failed, and whose dead letter waits, comes back. Each returns the id that it has then.
var comeBack = map[string]func(t *testing.T, b env, id int64) int64{
	"requeued by id": func(t *testing.T, b env, id int64) int64 {
		t.Helper()
		copied, err := b.Requeue(t.Context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		return copied
	},
	"requeued by filter": func(t *testing.T, b env, id int64) int64 {
		t.Helper()
		if r, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Failed, ID: &id}}); err != nil || r.Requeued != 1 {
			t.Fatal(r, err)
		}
		return *b.get(t, id).RequeuedAs
	},
	"redriven": func(t *testing.T, b env, id int64) int64 {
		t.Helper()
		b.runRedrive(t, b.redrive(t, queue.RedriveParams{HistoryFilter: queue.HistoryFilter{Queue: "mail", Outcome: queue.Failed}}))
		return *b.get(t, id).RequeuedAs
	},
	"its dead letter redriven": func(t *testing.T, b env, id int64) int64 {
		t.Helper()
		b.runRedrive(t, b.redrive(t, queue.RedriveParams{DeadLetterQueue: deadQueue}))
		return *b.get(t, *b.get(t, id).DeadLetteredAs).RequeuedAs
	},
	"its dead letter moved": func(t *testing.T, b env, id int64) int64 {
		t.Helper()
		if n := pgtest.Query[int64](t, b.sql, `select agent.move_events($1, 'mail')`, deadQueue); n != 1 {
			t.Fatalf("%d events were moved", n)
		}
		return *b.get(t, id).DeadLetteredAs
	},
}

// wantNoOther fails the test unless nothing requeues an event, its dead letter, or what these came back as, while that is in a queue, or done.
func (b env) wantNoOther(t *testing.T, when string, id, living int64) {
	t.Helper()
	before := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event`)
	for _, filter := range []queue.HistoryFilter{{Queue: "mail", Outcome: queue.Failed}, {ID: &id}} {
		if r, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: filter}); err != nil || r.Matched != 0 || r.Requeued != 0 {
			t.Errorf("%s, a filter has %+v, %v", when, r, err)
		}
	}
	for _, p := range []queue.RedriveParams{{HistoryFilter: queue.HistoryFilter{Queue: "mail", Outcome: queue.Failed}}, {DeadLetterQueue: deadQueue}} {
		made := b.redrive(t, p)
		if r := b.runRedrive(t, made); made.Matched != 0 || r.Requeued != 0 {
			t.Errorf("%s, a redrive of %+v has matched %d and requeued %d", when, p, made.Matched, r.Requeued)
		}
	}
	_, err := b.Requeue(t.Context(), id, nil)
	if requeued, ok := errors.AsType[*queue.RequeuedError](err); !ok || requeued.Copy != living || !errors.Is(err, queue.ErrRequeued) {
		t.Errorf("%s, by its id: %v; want the copy %d", when, err, living)
	}
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event`); n != before {
		t.Errorf("%s, %d events wait instead of %d", when, n, before)
	}
}

// However an event came back, nothing else makes another copy of it as long as that one is in a queue, and once it is done.
func TestAnEventIsNotRequeuedBesideItsCopy(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for way, comesBack := range comeBack {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := setupDead(t, queue.Policy{}, nil)
			b.insert(t, "mail", `{}`)
			id := b.nackFinally(t)
			living := comesBack(t, b, id)
			b.wantNoOther(t, "while the copy waits", id, living)
			l := b.leaseOn(t)
			if l.ID != living {
				t.Fatalf("claimed %d, want %d", l.ID, living)
			}
			b.wantNoOther(t, "while the copy is leased", id, living)
			b.ack(t, l)
			b.wantNoOther(t, "when the copy is done", id, living)
			if again, err := b.Requeue(t.Context(), living, nil); err != nil || again == living {
				t.Errorf("the copy itself: %d, %v", again, err)
			}
		})
	}
}

// A dead letter that was moved to where events are worked on, and back, is one again, and its event has not come back.
func TestADeadLetterThatIsMovedBackIsRedriven(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.insert(t, "mail", `{}`)
	id := b.nackFinally(t)
	comeBack["its dead letter moved"](t, b, id)
	if as := b.get(t, id).RequeuedAs; as == nil {
		t.Error("the event has not come back")
	}
	b.exec(t, `select agent.move_events('mail', $1)`, deadQueue)
	if as := b.get(t, id).RequeuedAs; as != nil {
		t.Errorf("the event has come back as %d", *as)
	}
	if r := b.runRedrive(t, b.redrive(t, queue.RedriveParams{DeadLetterQueue: deadQueue})); r.Requeued != 1 {
		t.Errorf("the redrive is %+v", r)
	}
}

func TestAnEventIsRequeuedAgainWhenItsCopyHasFailed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "mail", `{}`)
	id := b.nackFinally(t)
	copies := []int64{id}
	for range 3 { // of the event itself, whose latest copy has failed each time
		copied, err := b.Requeue(t.Context(), id, nil)
		if err != nil {
			t.Fatal(err)
		}
		if failed := b.nackFinally(t); failed != copied {
			t.Fatalf("%d has failed, want %d", failed, copied)
		}
		copies = append(copies, copied)
	}
	// What the copy was requeued as in its turn counts.
	latest, err := b.Requeue(t.Context(), copies[3], nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, failed := range []int64{id, copies[3]} {
		if _, err := b.Requeue(t.Context(), failed, nil); err == nil || err.Error() != (&queue.RequeuedError{Copy: latest}).Error() {
			t.Errorf("requeueing %d: %v, want the copy %d", failed, err, latest)
		}
	}
	b.exec(t, `update agent.event_hist set requeued_as = $1 where id = $2`, id, copies[3]) // a circle
	if _, err := b.Requeue(t.Context(), id, nil); err != nil {
		t.Error(err)
	}
}

// Of calls at once that would requeue an event, and of those that would send its dead letter back, one does.
func TestAnEventIsRequeuedOnceByCallsAtOnce(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	for range 10 {
		b.insert(t, "mail", `{}`)
		id := b.nackFinally(t)
		var work sync.WaitGroup
		for range 3 {
			work.Go(func() {
				if _, err := b.Requeue(t.Context(), id, nil); err != nil && !errors.Is(err, queue.ErrRequeued) {
					t.Error(err)
				}
			})
		}
		work.Go(func() {
			if _, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Outcome: queue.Failed}}); err != nil {
				t.Error(err)
			}
		})
		made := b.redrive(t, queue.RedriveParams{DeadLetterQueue: deadQueue})
		work.Wait()
		b.runRedrive(t, made)
		if back := b.claim(t, queue.ClaimParams{Queue: "mail", Limit: 10}, 1); len(back) == 1 {
			b.ack(t, lease(back[0]))
		}
		if _, err := b.Purge(t.Context(), deadQueue); err != nil {
			t.Fatal(err)
		}
	}
}

// The ack of an event that has expired, and came back meanwhile, counts as long as nobody has claimed what it came back as, which is cancelled then.
func TestLateAckCancelsWhatTheEventWasRequeuedAs(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for way, comesBack := range comeBack {
		if way == "requeued by filter" || way == "redriven" {
			comesBack = comeBack["requeued by id"] // those filter by what failed
		}
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			b := setupDead(t, queue.Policy{}, nil)
			b.insert(t, "mail", `{}`, `{}`)
			l := b.expire(t)
			b.exec(t, `update agent.event set vt = vt + interval '1 hour' where queue = 'mail'`) // the other one is for later
			living := comesBack(t, b, l.ID)
			for range 2 {
				if r := b.ack(t, l); r.Err != nil || r.Outcome != queue.Done {
					t.Fatalf("the ack returned %+v", r)
				}
			}
			if e := b.get(t, l.ID); e.Outcome != queue.Done || e.RequeuedAs != nil || e.DeadLetteredAs != nil {
				t.Errorf("history has %s", describe(e))
			}
			if e := b.get(t, living); e.Outcome != queue.Cancelled {
				t.Errorf("what it came back as is %s", describe(e))
			}
			if left := pgtest.Query[[]string](t, b.sql, `select array_agg(queue) from agent.event`); !slices.Equal(left, []string{"mail"}) {
				t.Errorf("there are events in %v", left)
			}

			b.exec(t, `update agent.event set vt = now()`)
			l = b.expire(t)
			comesBack(t, b, l.ID)
			taken := b.leaseOn(t)
			for range 2 {
				if r := b.ack(t, l); !errors.Is(r.Err, queue.ErrLeaseLost) {
					t.Fatalf("the ack of an event that somebody works on anew returned %+v", r)
				}
				if r := b.ack(t, taken); r.Outcome != queue.Done {
					t.Fatalf("the ack of the copy returned %+v", r)
				}
			}
			if e := b.get(t, l.ID); e.Outcome != queue.Expired {
				t.Errorf("history has %s", describe(e))
			}
		})
	}
}

// If only one of the dead letter and the copy of an event can be withdrawn, neither is.
func TestLateAckWithdrawsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setupDead(t, queue.Policy{}, nil)
	b.insert(t, "mail", `{}`)
	l := b.expire(t)
	copied, err := b.Requeue(t.Context(), l.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	dead := b.claim(t, queue.ClaimParams{Queue: deadQueue}, 1)[0]
	if r := b.ack(t, l); !errors.Is(r.Err, queue.ErrLeaseLost) {
		t.Fatalf("the ack returned %+v", r)
	}
	if e := b.get(t, copied); e.State != queue.Ready {
		t.Errorf("the copy is %s", describe(e))
	}
	b.ack(t, lease(dead))
}

// Of the ack of an event that has expired and its requeueing, one holds: either it is done, and no copy waits, or one does, and the ack is refused.
func TestLateAckAndRequeueExcludeEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const rounds, each = 5, 20
	for range rounds {
		b.insertN(t, "mail", each)
		events := b.claim(t, queue.ClaimParams{Queue: "mail", Limit: each}, each)
		b.exec(t, `update agent.event set vt = now() - interval '1 ms' where attempts > 0`)
		if n, err := b.Sweep(t.Context(), queue.SweepParams{MaxAttempts: 1}); n != each || err != nil {
			t.Fatalf("the sweep expired %d, %v", n, err)
		}
		var acked [each]bool
		var work sync.WaitGroup
		work.Go(func() {
			for i, e := range events {
				r, err := b.Ack(t.Context(), acks(lease(e)))
				if err != nil || r[0].Err != nil && !errors.Is(r[0].Err, queue.ErrLeaseLost) {
					t.Errorf("the ack returned %+v, %v", r, err)
					return
				}
				acked[i] = r[0].Err == nil
			}
		})
		work.Go(func() {
			for i := range events {
				e := &events[each-1-i] // they meet in the middle
				if _, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{ID: &e.ID, Outcome: queue.Expired}}); err != nil {
					t.Errorf("requeueing: %v", err)
				}
				if i%2 == 0 {
					if _, err := b.Claim(t.Context(), queue.ClaimParams{Queue: "mail", Limit: 1}); err != nil {
						t.Errorf("claiming: %v", err)
					}
				}
			}
		})
		work.Wait()
		for i, e := range events {
			copies := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where requeued_from = $1`, e.ID)
			if got := b.get(t, e.ID); acked[i] != (got.Outcome == queue.Done) || acked[i] != (copies == 0) {
				t.Errorf("acked: %v, %d copies wait; history has %s", acked[i], copies, describe(got))
			}
		}
		b.exec(t, `delete from agent.event`)
	}
}
