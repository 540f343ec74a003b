package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// setupDeclared is setup with a service that takes declared queues alone, and one declared queue.
func setupDeclared(t *testing.T) env {
	t.Helper()
	b := setup(t, declaredOnly)
	b.declare(t, "work")
	return b
}

func declaredOnly(cfg *queue.Config) { cfg.DeclaredOnly = true }

func (b env) declare(t *testing.T, name string) {
	t.Helper()
	if _, err := b.PutPolicy(t.Context(), queue.Policy{Queue: name}, queue.Precondition{}); err != nil {
		t.Fatal(err)
	}
}

// wantUndeclared fails the test unless err is about this queue.
func wantUndeclared(t *testing.T, doing, name string, err error) {
	t.Helper()
	undeclared, ok := errors.AsType[*queue.UndeclaredError](err)
	if !ok || undeclared.Queue != name || !errors.Is(err, queue.ErrNotDeclared) {
		t.Errorf("%s failed with %v, want that %s is not declared", doing, err, name)
	}
}

func insertInto(queues ...string) []queue.InsertParams {
	params := make([]queue.InsertParams, len(queues))
	for i, name := range queues {
		params[i] = queue.InsertParams{Event: json.RawMessage(`{}`), Queue: name}
	}
	return params
}

func TestOnlyDeclaredQueuesTakeEvents(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	if _, err := b.Insert(t.Context(), insertInto("work", "work")); err != nil {
		t.Error(err)
	}
	_, err := b.Insert(t.Context(), insertInto("work", "works"))
	wantUndeclared(t, "an insert", "works", err)
	_, err = b.Insert(t.Context(), insertInto("")) // that is default, which nobody has made either
	wantUndeclared(t, "an insert without a queue", "default", err)
	wantUndeclared(t, "a claim", "works", b.RequireQueues(t.Context(), "work", "works"))
	_, err = b.Move(t.Context(), "work", "works", nil, 0)
	wantUndeclared(t, "a move", "works", err)
	wantUndeclared(t, "a pause", "works", b.Pause(t.Context(), "works"))
	wantUndeclared(t, "the end of a pause", "works", b.Resume(t.Context(), "works"))
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 2 {
		t.Errorf("there are %d events, want 2", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.queue`); n != 1 {
		t.Errorf("there are %d queues, want 1", n)
	}
	for doing, params := range map[string]queue.InsertParams{
		"what was accepted earlier": {Event: json.RawMessage(`{}`), Queue: "earlier", IsAccepted: true},
		"the service itself":        {Event: json.RawMessage(`{}`), Queue: "queued.own"},
	} {
		if _, err := b.Insert(t.Context(), []queue.InsertParams{params}); err != nil {
			t.Errorf("an insert by %s: %v", doing, err)
		}
	}
	// What is in a queue that is not declared can be taken out of it.
	if n, err := b.Move(t.Context(), "earlier", "work", nil, 0); err != nil || n != 1 {
		t.Errorf("moved %d events out of a queue that is not declared: %v", n, err)
	}
	other := anotherService(t, b.url, nil)
	if _, err := other.Insert(t.Context(), insertInto("works")); err != nil {
		t.Errorf("a process that takes any queue: %v", err)
	}
}

func TestOnlyDeclaredQueuesAreRequeuedInto(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	ids := b.insert(t, "work", `{}`, `{}`)
	id := ids[1]
	if n, err := b.Delete(t.Context(), "work", true, nil); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	_, err := b.Requeue(t.Context(), id, nil)
	wantUndeclared(t, "a requeue", "work", err)
	_, err = b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Queue: "work"}})
	wantUndeclared(t, "a requeue by filter", "work", err)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events were requeued", n)
	}
	b.declare(t, "work")
	if r, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{ID: &ids[0]}}); err != nil || r.Requeued != 1 {
		t.Error(r, err)
	}
	if _, err := b.Requeue(t.Context(), id, nil); err != nil {
		t.Error(err)
	}
}

// An insert that only the database can refuse, because the process still takes its queue for declared, fails alone: those that share its group commit do not.
func TestInsertIntoADeletedQueueFailsAlone(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	b.declare(t, "gone")
	b.exec(t, `delete from agent.queue where name = 'gone'`) // nobody is notified
	blocked, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocked.Exec(t.Context(), `lock table agent.queue in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	var inserting sync.WaitGroup
	var refused, inserted atomic.Int64
	for i := range 40 {
		name := "work"
		if i%10 == 0 {
			name = "gone"
		}
		inserting.Go(func() {
			_, err := b.Insert(t.Context(), insertInto(name))
			switch {
			case err == nil && name == "work":
				inserted.Add(1)
			case errors.Is(err, queue.ErrNotDeclared) && name == "gone":
				refused.Add(1)
			default:
				t.Errorf("an insert into %s: %v", name, err)
			}
		})
	}
	if err := blocked.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	inserting.Wait()
	n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue = 'work'`)
	if inserted.Load() != 36 || refused.Load() != 4 || n != 36 {
		t.Errorf("%d inserts succeeded, %d were refused, and there are %d events", inserted.Load(), refused.Load(), n)
	}
	wantUndeclared(t, "what follows", "gone", b.RequireQueues(t.Context(), "gone"))
}

// A refusal may come late, when the queue was declared meanwhile.
func TestRefusalFromBeforeTheDeclarationIsForgotten(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	before := time.Now()
	b.declare(t, "new")
	queue.NoteUndeclared(b.Service, "new", before)
	if _, err := b.Insert(t.Context(), insertInto("new")); err != nil {
		t.Error(err)
	}
	queue.NoteUndeclared(b.Service, "new", time.Now())
	wantUndeclared(t, "a check after a later refusal", "new", b.RequireQueues(t.Context(), "new"))
}

// A queue is declared and deleted again and again by one process, while others insert into it: each insert is either in history, or was refused, and no event is
// left in a queue that is not declared.
func TestNoEventIsLeftInAQueueThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	other := anotherService(t, b.url, declaredOnly)
	var inserted, refused atomic.Int64
	var working sync.WaitGroup
	done := make(chan struct{})
	for i := range 8 {
		svc := []*queue.Service{b.Service, other}[i%2]
		working.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				_, err := svc.Insert(t.Context(), insertInto("work", "work"))
				switch {
				case err == nil:
					inserted.Add(2)
				case errors.Is(err, queue.ErrNotDeclared):
					refused.Add(1)
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	for range 30 {
		b.declare(t, "work")
		other.ForgetQueue("work") // as a notification would have it
		if _, err := b.Insert(t.Context(), insertInto("work")); err != nil {
			t.Error(err)
		}
		inserted.Add(1)
		for {
			_, err := b.Delete(t.Context(), "work", true, nil)
			if err == nil {
				break
			}
			if !errors.Is(err, queue.ErrQueueLeased) && !errors.Is(err, queue.ErrUnavailable) {
				t.Fatal(err)
			}
		}
		if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 0 {
			t.Fatalf("%d events are left in a queue that was deleted", n)
		}
	}
	close(done)
	working.Wait()
	events := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`)
	history := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist where outcome = 'cancelled'`)
	if events != 0 || history != int(inserted.Load()) || refused.Load() == 0 {
		t.Errorf("%d events are left, and %d in history of %d; %d inserts were refused", events, history, inserted.Load(), refused.Load())
	}
}

func TestUnknownNamesCostABoundedNumberOfStatements(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	statements := queue.CountLookUps(b.Service)
	began := time.Now()
	const names, callers = 10_000, 500
	var next atomic.Int64
	var calling sync.WaitGroup
	for range callers {
		calling.Go(func() {
			for i := next.Add(1); i <= names; i = next.Add(1) {
				name := fmt.Sprintf("unknown-%d", i)
				if _, err := b.Insert(t.Context(), insertInto(name)); !errors.Is(err, queue.ErrNotDeclared) {
					t.Errorf("an insert into %s: %v", name, err)
				}
			}
		})
	}
	calling.Wait()
	took := time.Since(began)
	if most := int64(took/queue.LookUpGap) + 1; statements.Load() > most || statements.Load() > names/50 {
		t.Errorf("%d names took %d statements in %v", names, statements.Load(), took)
	}
	t.Logf("%d statements in %v", statements.Load(), took)
	before := statements.Load()
	for range 1000 { // one that was just refused
		wantUndeclared(t, "another call", "unknown-10000", b.RequireQueues(t.Context(), "unknown-10000"))
	}
	if n := statements.Load() - before; n > int64(time.Since(began)/time.Second)+1 {
		t.Errorf("a name that is known to be unknown took %d statements", n)
	}
}

func TestDeclarationTakesEffectInEveryProcess(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	other := anotherService(t, b.url, declaredOnly)
	wantUndeclared(t, "a claim", "new", other.RequireQueues(t.Context(), "new"))
	b.declare(t, "new")
	// Nobody tells the other process, which is not running: it looks again after a second.
	for began := time.Now(); ; pg.Pause(t.Context(), 10*time.Millisecond) {
		_, err := other.Insert(t.Context(), insertInto("new"))
		if err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			t.Fatal(err)
		}
	}
	// A deletion that nobody was told of is seen by the next verification.
	b.exec(t, `delete from agent.queue where name = 'new'`)
	if err := other.RequireQueues(t.Context(), "new"); err != nil {
		t.Errorf("before the verification: %v", err)
	}
	queue.VerifyDeclared(t, other)
	wantUndeclared(t, "a claim", "new", other.RequireQueues(t.Context(), "new"))
}

func TestNearestQueueIsOneThatMayBeNamed(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	for _, name := range []string{"orders", "order", "secret-orders", "x"} {
		b.declare(t, name)
	}
	for wrong, want := range map[string]string{"odrers": "orders", "orderss": "orders", "ordr": "order", "secret-order": "secret-orders", "y": "", "invoices": ""} {
		wantUndeclared(t, "a claim", wrong, b.RequireQueues(t.Context(), wrong))
		if got := b.NearestQueue(wrong, func(string) bool { return true }); got != want {
			t.Errorf("the nearest to %s is %q, want %q", wrong, got, want)
		}
	}
	if got := b.NearestQueue("secret-order", func(name string) bool { return name == "x" }); got != "" {
		t.Errorf("%q is suggested to somebody who may not name it", got)
	}
}

func TestNearestQueueKnowsWhatThisProcessHasDeclared(t *testing.T) {
	t.Parallel()
	b := setupDeclared(t)
	all := func(string) bool { return true }
	wantUndeclared(t, "a claim", "first", b.RequireQueues(t.Context(), "first"))
	b.declare(t, "orders")
	wantUndeclared(t, "a claim", "ordres", b.RequireQueues(t.Context(), "ordres"))
	if got := b.NearestQueue("ordres", all); got != "orders" {
		t.Errorf("the nearest to ordres is %q, want orders", got)
	}
	if got := b.NearestQueue("orders", all); got != "" {
		t.Errorf("the nearest to orders, as if it was deleted, is %q", got)
	}
}

func TestProcessWarnsOfUndeclaredQueuesThatAreNamedFromBefore(t *testing.T) {
	t.Parallel()
	var log logBuffer
	b := setup(t, func(cfg *queue.Config) {
		cfg.DeclaredOnly = true
		cfg.Logger = zerolog.New(&log)
	})
	b.declare(t, "work")
	b.exec(t, `
		insert into agent.schedule (queue, event, kind, at_instant, zone, next_local, next_at)
		select unnest(array['works', 'works', 'work']), '{}', 'once', now(), 'UTC', now() at time zone 'UTC', now()`)
	b.exec(t, `insert into agent.source (name, kind, queue, secrets, dedup_for, tolerance) values ('shop', 'token', 'orders', array[''::bytea], '1 h', '5 min')`)
	runService(t, b.Service)
	eventually(t, "the log names each", func() bool {
		return strings.Contains(log.String(), `"queue":"works","users":2,"one_of_them":"schedule `) &&
			strings.Contains(log.String(), `"queue":"orders","users":1,"one_of_them":"source shop"`)
	})
	if strings.Contains(log.String(), `"queue":"work"`) {
		t.Errorf("the log names a queue that is declared: %s", log.String())
	}
}
