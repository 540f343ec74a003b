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

// eventually waits until what it is told of is so.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("in vain waited until %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("waited until %s, when the test ended", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// gates holds up commits at events of the form {"gate": n} until gate n is opened. It is no lock that they wait for: a
// commit gives up on those soon.
type gates struct {
	b   env
	sql *pgx.Conn
}

func withGates(t *testing.T, b env) gates {
	t.Helper()
	b.exec(t, `create table public.gate (n int)`)
	b.exec(t, `
		create function public.wait_at_gate() returns trigger language plpgsql as $$
		begin
			while not exists (select from public.gate g where g.n = (new.event ->> 'gate')::int) loop
				perform pg_catalog.pg_sleep(0.002);
			end loop;
			return new;
		end $$`)
	b.exec(t, `create trigger gate before insert on agent.event for each row when (new.event ? 'gate') execute function public.wait_at_gate()`)
	return gates{b, pgtest.Connect(t, b.url)}
}

func (g gates) open(t *testing.T, n int) {
	t.Helper()
	if _, err := g.sql.Exec(t.Context(), `insert into public.gate values ($1)`, n); err != nil {
		t.Fatal(err)
	}
}

// heldUp returns the backend that waits at a gate, once there is one and nothing else waits for it to be started.
func (g gates) heldUp(t *testing.T) (pid int) {
	t.Helper()
	eventually(t, "a commit waits at a gate", func() bool {
		p := pgtest.Query[*int](t, g.sql, `
			select max(pid) from pg_catalog.pg_stat_activity
			where datname = pg_catalog.current_database() and application_name = 'queued' and wait_event = 'PgSleep'`)
		if p != nil {
			pid = *p
		}
		calls, _ := queue.Gathered(g.b.Service)
		return p != nil && calls == 0
	})
	return pid
}

// shut holds up a commit at gate 1, so that what is called afterwards gathers behind it.
func (g gates) shut(t *testing.T) <-chan error {
	t.Helper()
	first := insertOne(t.Context(), g.b, `{"gate":1}`)
	g.heldUp(t)
	return first
}

// gathered returns when so many calls wait for a writer.
func gathered(t *testing.T, b env, calls int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d calls wait for a writer", calls), func() bool {
		waiting, _ := queue.Gathered(b.Service)
		return waiting >= calls
	})
}

// mixedCalls is many calls of all kinds at once: inserts, acks, and one claim from each of some queues. There are few enough for
// one writer.
type mixedCalls struct {
	inserts, acks, claims int

	leases  []queue.Lease // to be acked, one by each call
	waiting []int64       // one in each of the claims' queues

	all      sync.WaitGroup
	inserted []queue.Inserted
	acked    []queue.AckResult
	claimed  [][]queue.Event
	errs     []error // of inserts, acks, claims, in this order
}

// prepare makes what the mixedCalls is going to ack and claim.
func prepare(t *testing.T, b env) *mixedCalls {
	t.Helper()
	c := &mixedCalls{inserts: 36, acks: 36, claims: 20}
	b.postN(t, "acks", c.acks)
	for _, e := range b.take(t, queue.ClaimParams{Queue: "acks", Limit: c.acks}, c.acks) {
		c.leases = append(c.leases, lease(e))
	}
	for i := range c.claims {
		c.waiting = append(c.waiting, b.post(t, fmt.Sprintf("q%d", i), `{}`)...)
	}
	c.inserted = make([]queue.Inserted, c.inserts)
	c.acked = make([]queue.AckResult, c.acks)
	c.claimed = make([][]queue.Event, c.claims)
	c.errs = make([]error, c.calls())
	return c
}

func (c *mixedCalls) calls() int { return c.inserts + c.acks + c.claims }

// call makes all calls. Insert i is of the payload {"n": i}.
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

// succeeded fails the test unless every call did what it was to do, once.
func (c *mixedCalls) succeeded(t *testing.T, b env) {
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
			t.Errorf("insert %d is there %d times", i, n)
		}
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where id = $1 and event = jsonb_build_object('n', $2::int)`, in.ID, i); n != 1 {
			t.Errorf("insert %d was told the id %d, which is another event's", i, in.ID)
		}
	}
	for i, r := range c.acked {
		if r.ID != c.leases[i].ID || r.Outcome != queue.Done || r.Err != nil {
			t.Errorf("ack of %d answered %+v", c.leases[i].ID, r)
		}
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where id = $1`, c.leases[i].ID); n != 1 {
			t.Errorf("acked event %d is in history %d times", c.leases[i].ID, n)
		}
	}
	for i, events := range c.claimed {
		if len(events) != 1 || events[0].ID != c.waiting[i] || events[0].Attempts != 1 {
			t.Errorf("claim %d got %+v", i, events)
			continue
		}
		if e := b.get(t, c.waiting[i]); e.Attempts != 1 || e.State != queue.Leased {
			t.Errorf("after claim %d its event is %+v", i, e)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'acks'`); n != 0 {
		t.Errorf("%d acked events are still there", n)
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
		"insert into no queue": func(ctx context.Context, b env) error {
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
			c := prepare(t, b)
			g := withGates(t, b)
			first := g.shut(t)
			bad := make(chan error, 1)
			go func() { bad <- makeBad(t.Context(), b) }()
			c.call(t.Context(), b)
			gathered(t, b, c.calls()+1)
			g.open(t, 1)
			if err := <-first; err != nil {
				t.Error(err)
			}
			if err := <-bad; !errors.Is(err, queue.ErrUnrepresentable) && !errors.Is(err, queue.ErrInvalid) {
				t.Errorf("the bad call: %v", err)
			}
			c.all.Wait()
			c.succeeded(t, b)
		})
	}
}

// locked returns the lease of an event that some session keeps locked, and that session.
func locked(t *testing.T, b env) (queue.Lease, pgx.Tx) {
	t.Helper()
	b.post(t, "", `{}`)
	held := lease(b.takeOne(t))
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

// acking acks one lease and returns what came of it, when something has, on the channel.
func acking(t *testing.T, b env, l queue.Lease) <-chan ackAnswer {
	t.Helper()
	done := make(chan ackAnswer, 1)
	go func() {
		results, err := b.Ack(t.Context(), acks(l))
		done <- ackAnswer{results, err}
	}()
	return done
}

func TestLockedEventHoldsUpNobodyButItsAck(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	mixedCalls := prepare(t, b)
	held, tx := locked(t, b)
	g := withGates(t, b)
	first := g.shut(t)
	waiting := acking(t, b, held)
	mixedCalls.call(t.Context(), b)
	gathered(t, b, mixedCalls.calls()+1)
	g.open(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	mixedCalls.all.Wait()
	mixedCalls.succeeded(t, b)
	for range 3 { // once it waits by itself, it costs the others nothing
		b.post(t, "", `{}`)
		if r := b.ack(t, lease(b.takeOne(t))); r.Err != nil {
			t.Errorf("ack beside the one that waits answered %+v", r)
		}
	}
	blocked(t, b.sql)
	select {
	case a := <-waiting:
		t.Errorf("the ack of the locked event answered %+v", a)
	default:
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a := <-waiting; a.err != nil || len(a.results) != 1 || a.results[0] != (queue.AckResult{ID: held.ID, Outcome: queue.Done}) {
		t.Errorf("the ack answered %+v", a)
	}
}

func TestAckThatWaitedForALockSeesWhatTheHolderDid(t *testing.T) {
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
		held, tx := locked(t, b)
		waiting := acking(t, b, held)
		blocked(t, b.sql)
		if _, err := tx.Exec(t.Context(), c.holder, held.ID); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		c.want.ID = held.ID
		if a := <-waiting; a.err != nil || len(a.results) != 1 || a.results[0] != c.want {
			t.Errorf("after %s the ack answered %+v, want %+v", c.holder, a, c.want)
		}
	}
}

func TestManyLockedEventsLeaveRoomForOtherCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxConns = 3 })
	const many = 5
	b.postN(t, "", many+1)
	claimed := b.take(t, queue.ClaimParams{Limit: many + 1}, many+1)
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
				t.Errorf("ack of an event that was locked answered %+v, %v", results, err)
			}
		})
	}
	eventually(t, "the acks wait by themselves", func() bool {
		_, writers := queue.Gathered(b.Service)
		return alone.Load() == many && writers == 0
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := b.Nack(ctx, queue.NackParams{Lease: lease(claimed[many])}); err != nil {
		t.Errorf("a nack beside them: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

func TestLostConnectionInAMixedCommitIsToldToAll(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := prepare(t, b)
	g := withGates(t, b)
	first := g.shut(t)
	last := insertOne(t.Context(), b, `{"gate":2}`)
	c.call(t.Context(), b)
	gathered(t, b, c.calls()+1)
	g.open(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	b.exec(t, `select pg_terminate_backend($1)`, g.heldUp(t))
	c.all.Wait()
	for i, err := range append(c.errs, <-last) {
		if !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue in ('new', 'default')`); n != 1 {
		t.Errorf("%d events were stored, want the one of the commit before", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 0 {
		t.Errorf("%d events were acked", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue like 'q%' and attempts > 0`); n != 0 {
		t.Errorf("%d events were claimed", n)
	}
	c.call(t.Context(), b)
	c.all.Wait()
	c.succeeded(t, b)
}

func TestCallersWhoLeaveBeforeTheirCommitChangeNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	leavers, c := prepare(t, b), &mixedCalls{inserts: 10}
	c.inserted, c.errs = make([]queue.Inserted, c.inserts), make([]error, c.inserts)
	g := withGates(t, b)
	first := g.shut(t)
	ctx, cancel := context.WithCancel(t.Context())
	leavers.call(ctx, b)
	gathered(t, b, leavers.calls())
	cancel()
	leavers.all.Wait()
	for i, err := range leavers.errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("call %d of those who left: %v", i, err)
		}
	}
	c.call(t.Context(), b)
	g.open(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	c.all.Wait()
	c.succeededInserts(t, b)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`); n != 0 {
		t.Errorf("%d events were acked", n)
	}
	nothingLeased(t, b, leavers.claims)
}

// succeededInserts fails the test unless all inserts are there, and no other ones.
func (c *mixedCalls) succeededInserts(t *testing.T, b env) {
	t.Helper()
	for i, err := range c.errs[:c.inserts] {
		if err != nil {
			t.Errorf("insert %d: %v", i, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'new'`); n != c.inserts {
		t.Errorf("%d events are there, want %d", n, c.inserts)
	}
}

// nothingLeased waits until none of so many events of the claims' queues is leased or counted.
func nothingLeased(t *testing.T, b env, events int) {
	t.Helper()
	eventually(t, "no claim of those who left is left", func() bool {
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue like 'q%' and vt <= now() and attempts = 0 and claimed = '{}'`) == events
	})
}

func TestCallersWhoLeaveDuringTheirFlushLeaveNothingLeased(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	leavers, c := prepare(t, b), &mixedCalls{inserts: 10}
	c.inserted, c.errs = make([]queue.Inserted, c.inserts), make([]error, c.inserts)
	g := withGates(t, b)
	first := g.shut(t)
	last := insertOne(t.Context(), b, `{"gate":2}`)
	ctx, cancel := context.WithCancel(t.Context())
	leavers.call(ctx, b)
	gathered(t, b, leavers.calls()+1)
	g.open(t, 1)
	if err := <-first; err != nil {
		t.Error(err)
	}
	g.heldUp(t)
	cancel()
	leavers.all.Wait()
	for i, err := range leavers.errs {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("call %d of those who left: %v", i, err)
		}
	}
	b.exec(t, `update agent.event set queue = 'leavers' where queue = 'new'`)
	g.open(t, 2)
	if err := <-last; err != nil {
		t.Errorf("the neighbour: %v", err)
	}
	b.exec(t, `update agent.event set queue = 'leavers' where queue = 'new'`)
	c.call(t.Context(), b)
	c.all.Wait()
	c.succeededInserts(t, b)
	nothingLeased(t, b, leavers.claims)
}

// refused fails the test unless every kind of call fails with ErrUnavailable.
func refused(t *testing.T, s *queue.Service) {
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
		"requeue": func() error { _, err := s.Requeue(ctx, 1); return err },
		"ready":   func() error { return s.CheckReady(ctx) },
	} {
		if err := call(); !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s of a service that is closed: %v", name, err)
		}
	}
}

func TestCloseAnswersEveryCallAndLosesNone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := prepare(t, b)
	c.claims, c.claimed = 0, nil // Close waits for those first of all
	g := withGates(t, b)
	first := g.shut(t)
	c.call(t.Context(), b)
	gathered(t, b, c.calls())
	closed := make(chan error, 1)
	go func() { closed <- b.Close(context.Background()) }()
	eventually(t, "no more calls are taken", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, err := b.Ack(ctx, acks(queue.Lease{ID: 1}))
		return errors.Is(err, pg.ErrClosed)
	})
	g.open(t, 1)
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
	if err := <-first; err != nil {
		t.Error(err)
	}
	c.all.Wait()
	refused(t, b.Service)
	c.succeeded(t, env{Service: anotherService(t, b.url, nil), url: b.url, sql: b.sql})
}

func TestCloseAmongCallsAcknowledgesNothingThatIsMissing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.postN(t, "old", 500)
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
						t.Errorf("a call beside Close: %v", err)
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
	refused(t, b.Service)
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where id = any($1)`, inserted); n != len(inserted) || n == 0 {
		t.Errorf("%d of %d inserts are there", n, len(inserted))
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where id = any($1)`, acked); n != len(acked) || n == 0 {
		t.Errorf("%d of %d acks are in history", n, len(acked))
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
					t.Errorf("insert %d of a call answered %+v, the one before %+v", i, in[i], in[max(i-1, 0)])
				}
			}
		})
	}
	all.Wait()
	if n := pgtest.Query[int](t, b.sql, `
		select count(*)
		from (select event ->> 'call', (event ->> 'n')::int, row_number() over (partition by event ->> 'call' order by id) - 1 from agent.event) e (call, n, at)
		where n = at`); n != calls*events {
		t.Errorf("%d of %d events are in the place their call gave them", n, calls*events)
	}
}

func TestAcksInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	url := db.URL
	b := env{url: url, sql: pgtest.Connect(t, db.AdminURL)}
	// Found out before the waiting is given up.
	b.exec(t, `do $$ begin execute pg_catalog.format('alter database %I set deadlock_timeout = ''5 ms''', pg_catalog.current_database()); end $$`)
	b.Service = anotherService(t, url, nil)
	other := anotherService(t, b.url, nil)
	// Whoever is the first of the week makes history's chunk, for which TimescaleDB locks the table in between.
	b.postN(t, "", 1)
	b.ack(t, lease(b.takeOne(t)))
	const events, callers, rounds = 300, 16, 4
	for range rounds {
		b.postN(t, "", events)
		leases := make([]queue.Lease, events)
		for i, e := range b.take(t, queue.ClaimParams{Limit: events}, events) {
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
							t.Errorf("ack of %d answered %+v", chunk[j].ID, r)
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
	// A session counts its deadlocks when it ends at the latest.
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
