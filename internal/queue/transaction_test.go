package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// commitBlocker delays commits of events of the form {"block": n} until unblock(n). They do not wait for a lock, because a
// commit gives up waiting for a lock soon. Each holds the advisory lock (1, n) until its transaction ends.
type commitBlocker struct {
	b   env
	sql *pgx.Conn
}

func blockCommits(t *testing.T, b env) commitBlocker {
	t.Helper()
	b.exec(t, `create table public.unblocked (n int)`)
	b.exec(t, `
		create function public.wait_until_unblocked() returns trigger language plpgsql as $$
		begin
			perform pg_catalog.pg_advisory_xact_lock_shared(1, (new.event ->> 'block')::int);
			while not exists (select from public.unblocked u where u.n = (new.event ->> 'block')::int) loop
				perform pg_catalog.pg_sleep(0.002);
			end loop;
			return new;
		end $$`)
	b.exec(t, `create trigger block before insert on agent.event for each row when (new.event ? 'block') execute function public.wait_until_unblocked()`)
	return commitBlocker{b, pgtest.Connect(t, b.url)}
}

func (g commitBlocker) unblock(t *testing.T, n int) {
	t.Helper()
	if _, err := g.sql.Exec(t.Context(), `insert into public.unblocked values ($1)`, n); err != nil {
		t.Fatal(err)
	}
}

// awaitBlocked waits until a commit is blocked and no other call is pending, and returns the backend of the commit.
func (g commitBlocker) awaitBlocked(t *testing.T) (pid int) {
	t.Helper()
	eventually(t, "a commit is blocked", func() bool {
		p := pgtest.Query[*int](t, g.sql, `
			select max(l.pid) from pg_catalog.pg_locks l
			where l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
			and l.locktype = 'advisory' and l.classid = 1 and l.objsubid = 2
			and not exists (select from public.unblocked u where u.n = l.objid::int8)`)
		if p != nil {
			pid = *p
		}
		calls, _ := queue.PendingCalls(g.b.Service)
		return p != nil && calls == 0
	})
	return pid
}

// blockFirst blocks a commit until unblock(1), so that later calls share the next commit.
func (g commitBlocker) blockFirst(t *testing.T) <-chan error {
	t.Helper()
	first := insertOne(t.Context(), g.b, `{"block":1}`)
	g.awaitBlocked(t)
	return first
}

// awaitPending returns when this many calls wait for a writer.
func awaitPending(t *testing.T, b env, calls int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d calls wait for a writer", calls), func() bool {
		waiting, _ := queue.PendingCalls(b.Service)
		return waiting >= calls
	})
}

// mixedCalls are many concurrent calls: inserts, acks, and one claim from each of several queues. There are few enough for
// one writer.
type mixedCalls struct {
	inserts, acks, claims int

	leases  []queue.Lease // to ack, one in each call
	waiting []int64       // one event in each queue that is claimed from

	all      sync.WaitGroup
	inserted []queue.Inserted
	acked    []queue.AckResult
	claimed  [][]queue.Event
	errs     []error // of inserts, acks, claims, in this order
}

// newMixedCalls inserts the events that the calls will ack and claim.
func newMixedCalls(t *testing.T, b env) *mixedCalls {
	t.Helper()
	c := &mixedCalls{inserts: 36, acks: 36, claims: 20}
	b.insertN(t, "acks", c.acks)
	for _, e := range b.claim(t, queue.ClaimParams{Queue: "acks", Limit: c.acks}, c.acks) {
		c.leases = append(c.leases, lease(e))
	}
	for i := range c.claims {
		c.waiting = append(c.waiting, b.insert(t, fmt.Sprintf("q%d", i), `{}`)...)
	}
	c.inserted = make([]queue.Inserted, c.inserts)
	c.acked = make([]queue.AckResult, c.acks)
	c.claimed = make([][]queue.Event, c.claims)
	c.errs = make([]error, c.calls())
	return c
}

func (c *mixedCalls) calls() int { return c.inserts + c.acks + c.claims }

// call starts all calls. Insert i has the payload {"n": i}.
func (c *mixedCalls) call(ctx context.Context, b env) {
	for i := range c.inserts {
		c.all.Go(func() {
			in, err := b.Insert(ctx, []queue.InsertParams{{Event: fmt.Appendf(nil, `{"n":%d}`, i), Queue: "new"}})
			if err == nil {
				c.inserted[i] = in[0]
			}
			c.errs[i] = err
		})
	}
	for i := range c.acks {
		c.all.Go(func() {
			results, err := b.Ack(ctx, acks(c.leases[i:i+1]...))
			if err == nil {
				c.acked[i] = results[0]
			}
			c.errs[c.inserts+i] = err
		})
	}
	for i := range c.claims {
		c.all.Go(func() {
			c.claimed[i], c.errs[c.inserts+c.acks+i] = b.Claim(ctx, queue.ClaimParams{Queue: fmt.Sprintf("q%d", i)})
		})
	}
}

// check fails the test unless every call succeeded and took effect exactly once.
func (c *mixedCalls) check(t *testing.T, b env) {
	t.Helper()
	for i, err := range c.errs {
		if err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if t.Failed() {
		return
	}
	for i, in := range c.inserted {
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'new' and event = jsonb_build_object('n', $1::int)`, i); n != 1 {
			t.Errorf("insert %d was stored %d times, want once", i, n)
		}
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where id = $1 and event = jsonb_build_object('n', $2::int)`, in.ID, i); n != 1 {
			t.Errorf("insert %d returned the id %d of another event", i, in.ID)
		}
	}
	for i, r := range c.acked {
		if r.ID != c.leases[i].ID || r.Outcome != queue.Done || r.Err != nil {
			t.Errorf("ack of %d returned %+v", c.leases[i].ID, r)
		}
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where id = $1`, c.leases[i].ID); n != 1 {
			t.Errorf("acked event %d is in history %d times, want once", c.leases[i].ID, n)
		}
	}
	for i, events := range c.claimed {
		if len(events) != 1 || events[0].ID != c.waiting[i] || events[0].Attempts != 1 {
			t.Errorf("claim %d got %+v", i, events)
			continue
		}
		if e := b.get(t, c.waiting[i]); e.Attempts != 1 || e.State != queue.Leased {
			t.Errorf("after claim %d, the event is %+v", i, e)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'acks'`); n != 0 {
		t.Errorf("%d acked events are still in the queue", n)
	}
}

func TestBadOperationInAMixedCommitFailsAlone(t *testing.T) {
	t.Parallel()
	for name, makeBad := range map[string]func(context.Context, env) error{
		"insert": func(ctx context.Context, b env) error {
			_, err := b.Insert(ctx, []queue.InsertParams{{Event: json.RawMessage(`{"n":1e400000}`)}})
			return err
		},
		"insert nested too deep": func(ctx context.Context, b env) error {
			deep := slices.Concat([]byte(`{"n":`), slices.Repeat([]byte("["), 50_000), slices.Repeat([]byte("]"), 50_000), []byte("}"))
			_, err := b.Insert(ctx, []queue.InsertParams{{Event: deep}})
			return err
		},
		"insert into an invalid queue": func(ctx context.Context, b env) error {
			_, err := b.Insert(ctx, []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: "a b"}})
			return err
		},
		"ack": func(ctx context.Context, b env) error {
			_, err := b.Ack(ctx, acks(queue.Lease{ID: 1, Receipt: "\xff"}))
			return err
		},
		"claim": func(ctx context.Context, b env) error {
			_, err := b.Claim(ctx, queue.ClaimParams{Queue: "\xff"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			c := newMixedCalls(t, b)
			g := blockCommits(t, b)
			first := g.blockFirst(t)
			bad := make(chan error, 1)
			go func() { bad <- makeBad(t.Context(), b) }()
			c.call(t.Context(), b)
			awaitPending(t, b, c.calls()+1)
			g.unblock(t, 1)
			if err := <-first; err != nil {
				t.Error(err)
			}
			if err := <-bad; !errors.Is(err, queue.ErrUnrepresentable) && !errors.Is(err, queue.ErrInvalid) {
				t.Errorf("the bad call: %v", err)
			}
			c.all.Wait()
			c.check(t, b)
		})
	}
}

// lockEvent returns the lease of an event and a transaction that holds a lock on the event.
func lockEvent(t *testing.T, b env) (queue.Lease, pgx.Tx) {
	t.Helper()
	b.insert(t, "", `{}`)
	held := lease(b.claimOne(t))
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select 1 from agent.event where id = $1 for update`, held.ID); err != nil {
		t.Fatal(err)
	}
	return held, tx
}

type ackAnswer struct {
	results []queue.AckResult
	err     error
}

// startAck acks one lease and sends the result on the channel.
func startAck(t *testing.T, b env, l queue.Lease) <-chan ackAnswer {
	t.Helper()
	done := make(chan ackAnswer, 1)
	go func() {
		results, err := b.Ack(t.Context(), acks(l))
		done <- ackAnswer{results, err}
	}()
	return done
}

func TestLockedEventDelaysOnlyItsOwnAck(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.LockTimeout = waitLimit }) // what happens beside the lock takes longer on a busy machine than the default
	mixedCalls := newMixedCalls(t, b)
	held, tx := lockEvent(t, b)
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	waiting := startAck(t, b, held)
	mixedCalls.call(t.Context(), b)
	awaitPending(t, b, mixedCalls.calls()+1)
	g.unblock(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	mixedCalls.all.Wait()
	mixedCalls.check(t, b)
	for range 3 { // the waiting ack is on its own by now and does not delay others
		b.insert(t, "", `{}`)
		if r := b.ack(t, lease(b.claimOne(t))); r.Err != nil {
			t.Errorf("ack during the waiting ack returned %+v", r)
		}
	}
	awaitLockWait(t, b, tx.Conn())
	select {
	case a := <-waiting:
		t.Errorf("the ack of the locked event returned %+v", a)
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-waiting; a.err != nil || len(a.results) != 1 || a.results[0] != (queue.AckResult{ID: held.ID, Outcome: queue.Done}) {
		t.Errorf("the ack returned %+v", a)
	}
}

func TestAckAfterALockWaitSeesTheHoldersChange(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, c := range []struct {
		holder string
		want   queue.AckResult
	}{
		{`select agent.delete_event($1)`, queue.AckResult{Outcome: queue.Done}},
		{`delete from agent.event where id = $1`, queue.AckResult{Err: queue.ErrNotFound}},
		{`update agent.event set attempts = attempts + 1, claimed = claimed || now() where id = $1`, queue.AckResult{Err: queue.ErrLeaseLost}},
	} {
		held, tx := lockEvent(t, b)
		waiting := startAck(t, b, held)
		awaitLockWait(t, b, tx.Conn())
		if _, err := tx.Exec(t.Context(), c.holder, held.ID); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want.ID = held.ID
		if a := <-waiting; a.err != nil || len(a.results) != 1 || a.results[0] != c.want {
			t.Errorf("after %s the ack returned %+v, want %+v", c.holder, a, c.want)
		}
	}
}

func TestManyLockedEventsDoNotBlockOtherCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxConns = 3 })
	const many = 5
	b.insertN(t, "", many+1)
	claimed := b.claim(t, queue.ClaimParams{Limit: many + 1}, many+1)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select 1 from agent.event where id <> $1 for update`, claimed[many].ID); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var alone atomic.Int32
	for _, e := range claimed[:many] {
		all.Go(func() {
			alone.Add(1)
			results, err := b.Ack(t.Context(), acks(lease(e)))
			if err != nil || results[0].Outcome != queue.Done {
				t.Errorf("ack of a locked event returned %+v, %v", results, err)
			}
		})
	}
	eventually(t, "the acks wait outside of the group commits", func() bool {
		_, writers := queue.PendingCalls(b.Service)
		return alone.Load() == many && writers == 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := b.Nack(ctx, queue.NackParams{Lease: lease(claimed[many])}); err != nil {
		t.Errorf("nack during the waiting acks: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

func TestLostConnectionFailsEveryCallOfAMixedCommit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := newMixedCalls(t, b)
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	last := insertOne(t.Context(), b, `{"block":2}`)
	c.call(t.Context(), b)
	awaitPending(t, b, c.calls()+1)
	g.unblock(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	b.exec(t, `select pg_terminate_backend($1)`, g.awaitBlocked(t))
	c.all.Wait()
	for i, err := range append(c.errs, <-last) {
		if !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue in ('new', 'default')`); n != 1 {
		t.Errorf("%d events were stored, want only the one of the previous commit", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 0 {
		t.Errorf("%d events were acked", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue like 'q%' and attempts > 0`); n != 0 {
		t.Errorf("%d events were claimed", n)
	}
	c.call(t.Context(), b)
	c.all.Wait()
	c.check(t, b)
}

func TestCallsCancelledBeforeTheirCommitChangeNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	leavers, c := newMixedCalls(t, b), &mixedCalls{inserts: 10}
	c.inserted, c.errs = make([]queue.Inserted, c.inserts), make([]error, c.inserts)
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	ctx, cancel := context.WithCancel(t.Context())
	leavers.call(ctx, b)
	awaitPending(t, b, leavers.calls())
	cancel()
	leavers.all.Wait()
	for i, err := range leavers.errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled call %d: %v", i, err)
		}
	}
	c.call(t.Context(), b)
	g.unblock(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	c.all.Wait()
	c.checkInserts(t, b)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 0 {
		t.Errorf("%d events were acked", n)
	}
	awaitNothingLeased(t, b, leavers.claims)
}

// checkInserts fails the test unless exactly the inserts of the calls are stored.
func (c *mixedCalls) checkInserts(t *testing.T, b env) {
	t.Helper()
	for i, err := range c.errs[:c.inserts] {
		if err != nil {
			t.Errorf("insert %d: %v", i, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'new'`); n != c.inserts {
		t.Errorf("%d events are stored, want %d", n, c.inserts)
	}
}

// awaitNothingLeased waits until none of this many events is leased and none of their attempts counts.
func awaitNothingLeased(t *testing.T, b env, events int) {
	t.Helper()
	eventually(t, "every cancelled claim is released", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue like 'q%' and vt <= now() and attempts = 0 and claimed = '{}'`) == events
	})
}

func TestClaimsCancelledDuringTheirCommitAreReleased(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	leavers, c := newMixedCalls(t, b), &mixedCalls{inserts: 10}
	c.inserted, c.errs = make([]queue.Inserted, c.inserts), make([]error, c.inserts)
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	last := insertOne(t.Context(), b, `{"block":2}`)
	ctx, cancel := context.WithCancel(t.Context())
	leavers.call(ctx, b)
	awaitPending(t, b, leavers.calls()+1)
	g.unblock(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	g.awaitBlocked(t)
	cancel()
	leavers.all.Wait()
	for i, err := range leavers.errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled call %d: %v", i, err)
		}
	}
	b.exec(t, `update agent.event set queue = 'leavers' where queue = 'new'`)
	g.unblock(t, 2)
	if err := <-last; err != nil {
		t.Errorf("the other call of the commit: %v", err)
	}
	b.exec(t, `update agent.event set queue = 'leavers' where queue = 'new'`)
	c.call(t.Context(), b)
	c.all.Wait()
	c.checkInserts(t, b)
	awaitNothingLeased(t, b, leavers.claims)
}

// checkUnavailable fails the test unless every kind of call fails with ErrUnavailable.
func checkUnavailable(t *testing.T, s *queue.Service) {
	t.Helper()
	ctx, l := t.Context(), queue.Lease{ID: 1, Receipt: "x"}
	for name, call := range map[string]func() error{
		"insert": func() error {
			_, err := s.Insert(ctx, []queue.InsertParams{{Event: json.RawMessage(`{}`)}})
			return err
		},
		"claim":   func() error { _, err := s.Claim(ctx, queue.ClaimParams{Wait: queue.MaxWait}); return err },
		"ack":     func() error { _, err := s.Ack(ctx, acks(l)); return err },
		"nack":    func() error { _, err := s.Nack(ctx, queue.NackParams{Lease: l}); return err },
		"extend":  func() error { _, err := s.Extend(ctx, l, time.Hour); return err },
		"release": func() error { return s.Release(ctx, []queue.Lease{l}) },
		"sweep":   func() error { _, err := s.Sweep(ctx, queue.SweepParams{}); return err },
		"get":     func() error { _, err := s.Get(ctx, 1); return err },
		"list":    func() error { _, err := s.List(ctx, queue.ListParams{}); return err },
		"queues": func() error {
			_, err := s.Queues(ctx, queue.QueuesParams{Lately: time.Hour, Limit: queue.MaxPage})
			return err
		},
		"requeue": func() error { _, err := s.Requeue(ctx, 1, nil); return err },
		"ready":   func() error { return s.CheckReady(ctx) },
	} {
		if err := call(); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s on a closed service: %v", name, err)
		}
	}
}

func TestCloseAnswersEveryCallAndLosesNone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := newMixedCalls(t, b)
	c.claims, c.claimed = 0, nil // Close waits for claims first
	g := blockCommits(t, b)
	first := g.blockFirst(t)
	c.call(t.Context(), b)
	awaitPending(t, b, c.calls())
	closed := make(chan error, 1)
	go func() { closed <- b.Close(context.Background()) }()
	eventually(t, "new calls are refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := b.Ack(ctx, acks(queue.Lease{ID: 1}))
		return errors.Is(err, pg.ErrClosed)
	})
	g.unblock(t, 1)
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	c.all.Wait()
	checkUnavailable(t, b.Service)
	c.check(t, env{Service: anotherService(t, b.url, nil), url: b.url, sql: b.sql})
}

func TestEveryCallAcknowledgedDuringCloseIsStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "old", 500)
	var (
		all      sync.WaitGroup
		mu       sync.Mutex
		inserted []int64
		acked    []int64
		begun    = make(chan struct{}, 16)
	)
	for range 16 {
		all.Go(func() {
			for i := 0; ; i++ {
				in, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`)}})
				if err == nil {
					mu.Lock()
					inserted = append(inserted, in[0].ID)
					mu.Unlock()
				}
				var got []queue.Event
				if err == nil {
					got, err = b.Claim(t.Context(), queue.ClaimParams{Queue: "old"})
				}
				for _, e := range got {
					var r []queue.AckResult
					if r, err = b.Ack(t.Context(), acks(lease(e))); err == nil {
						mu.Lock()
						acked = append(acked, r[0].ID)
						mu.Unlock()
					}
				}
				if err != nil {
					if !errors.Is(err, queue.ErrUnavailable) {
						t.Errorf("a call during Close: %v", err)
					}
					return
				}
				if i == 0 {
					begun <- struct{}{}
				}
			}
		})
	}
	for range 16 {
		<-begun
	}
	if err := b.Close(context.Background()); err != nil {
		t.Error(err)
	}
	checkUnavailable(t, b.Service)
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where id = any($1)`, inserted); n != len(inserted) || n == 0 {
		t.Errorf("%d of %d acknowledged inserts are stored", n, len(inserted))
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where id = any($1)`, acked); n != len(acked) || n == 0 {
		t.Errorf("%d of %d acknowledged acks are in history", n, len(acked))
	}
}

func TestInsertsOfOneCallKeepTheirOrder(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const calls, events = 50, 20
	var all sync.WaitGroup
	for c := range calls {
		all.Go(func() {
			params := make([]queue.InsertParams, events)
			for i := range params {
				params[i] = queue.InsertParams{Event: fmt.Appendf(nil, `{"call":%d,"n":%d}`, c, i), Queue: []string{"a", "b"}[i%2]}
			}
			in, err := b.Insert(t.Context(), params)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range in {
				if i > 0 && in[i].ID <= in[i-1].ID || in[i].Queue != params[i].Queue {
					t.Errorf("insert %d of a call returned %+v, the previous one %+v", i, in[i], in[max(i-1, 0)])
				}
			}
		})
	}
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `
		select count(*)
		from (select event ->> 'call', (event ->> 'n')::int, row_number() over (partition by event ->> 'call' order by id) - 1 from agent.event) e (call, n, at)
		where n = at`); n != calls*events {
		t.Errorf("%d of %d events are in the order of their call", n, calls*events)
	}
}

func TestAcksInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	url := db.URL
	b := env{url: url, sql: pgtest.Connect(t, db.AdminURL)}
	// Shorter than the lock timeout, so that deadlocks are detected.
	b.exec(t, `do $$ begin execute pg_catalog.format('alter database %I set deadlock_timeout = ''5 ms''', pg_catalog.current_database()); end $$`)
	b.Service = anotherService(t, url, nil)
	other := anotherService(t, b.url, nil)
	// The first ack of a week creates a chunk of history, for which TimescaleDB locks the table.
	b.insertN(t, "", 1)
	b.ack(t, lease(b.claimOne(t)))
	const events, callers, rounds = 300, 16, 4
	for range rounds {
		b.insertN(t, "", events)
		leases := make([]queue.Lease, events)
		for i, e := range b.claim(t, queue.ClaimParams{Limit: events}, events) {
			leases[i] = lease(e)
		}
		var all sync.WaitGroup
		for i := range callers {
			s := []*queue.Service{b.Service, other}[i%2]
			all.Go(func() {
				mine := slices.Clone(leases)
				rand.Shuffle(len(mine), func(i, j int) { mine[i], mine[j] = mine[j], mine[i] })
				for chunk := range slices.Chunk(mine, 16) {
					results, err := s.Ack(t.Context(), acks(chunk...))
					if err != nil {
						t.Error(err)
						return
					}
					for j, r := range results {
						if r.ID != chunk[j].ID || r.Outcome != queue.Done || r.Err != nil {
							t.Errorf("ack of %d returned %+v", chunk[j].ID, r)
						}
					}
				}
			})
		}
		all.Wait()
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != rounds*events+1 {
		t.Errorf("history has %d events, want %d", n, rounds*events+1)
	}
	// A session reports its deadlocks at the latest when it ends.
	for _, s := range []*queue.Service{b.Service, other} {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all sessions have ended", func() bool {
		return pgtest.Query[int](t, b.sql, `
			select count(*) from pg_catalog.pg_stat_activity where datname = pg_catalog.current_database() and application_name = 'queued'`) == 0
	})
	if n := pgtest.Query[int](t, b.sql, `select deadlocks from pg_catalog.pg_stat_database where datname = pg_catalog.current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
}
