package queue_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// joined is an operation of another package: its statement, and what came of it.
type joined struct {
	queue.JointTicket
	sql         string
	transaction int64
	unreadOnce  error // that the first answer cannot be read
}

// jointOf returns a Joint that runs the statement of each operation, and on committed those that were.
func jointOf(b env, committed chan<- []*joined) *queue.Joint[*joined] {
	return queue.NewJoint(b.Service, func(tx queue.QueryFunc, ops []*joined) func() {
		for _, op := range ops {
			tx(op.sql, nil, func(r *pg.RowReader) {
				if err := r.Read(&op.transaction); err != nil {
					op.Unreadable(err)
				}
			}, func() {
				switch {
				case op.unreadOnce != nil:
					op.Unreadable(op.unreadOnce)
					op.unreadOnce = nil
				case op.transaction == 0:
					op.Unanswered()
				}
			})
		}
		return func() { committed <- ops }
	})
}

func TestOperationsOfOtherPackagesShareTheCommitsOfOneAnother(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const calls = 3 // of each of two kinds
	committed := make(chan []*joined, 2*calls+1)
	first, second := jointOf(b, committed), jointOf(b, committed)
	g := blockCommits(t, b)
	blocking := g.blockFirst(t) // has the writer, so that the others gather
	ops, done := make([]joined, 2*calls), make(chan error, 2*calls)
	for i := range ops {
		ops[i] = joined{JointTicket: queue.JointTicket{Items: 1}, sql: `select pg_current_xact_id()::text::bigint`}
		joint := first
		if i%2 == 1 {
			joint = second
		}
		go func() { done <- joint.Do(t.Context(), &ops[i]) }()
	}
	awaitPending(t, b, len(ops))
	g.unblock(t, 1)
	for range ops {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if err := <-blocking; err != nil {
		t.Error(err)
	}
	for i := range ops {
		if ops[i].transaction == 0 || ops[i].transaction != ops[0].transaction {
			t.Errorf("operation %d is committed in transaction %d, the first in %d", i, ops[i].transaction, ops[0].transaction)
		}
	}
	if len(committed) != 2 {
		t.Fatalf("the operations of 2 kinds are passed on %d times", len(committed))
	}
	for range 2 {
		if own := <-committed; len(own) != calls {
			t.Errorf("%d operations are passed on together, want %d", len(own), calls)
		}
	}
}

// An operation that waits for a lock is committed apart, and the others of its commit are tried again, together: what the first try has found counts no more.
func TestOperationThatWaitsForALockLeavesTheOthersTogether(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `create table public.locked as select 1 as n`)
	b.exec(t, `grant select, update on public.locked to public`)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select from public.locked for update`); err != nil {
		t.Fatal(err)
	}
	committed := make(chan []*joined, 3)
	joint := jointOf(b, committed)
	g := blockCommits(t, b)
	blocking := g.blockFirst(t)
	const current = `select pg_current_xact_id()::text::bigint`
	ops := []joined{
		{sql: current, unreadOnce: errors.New("read wrongly")},
		{sql: current},
		{sql: current + ` from public.locked for update`, JointTicket: queue.JointTicket{NeedsLock: true}},
	}
	done := make([]chan error, len(ops))
	for i := range ops { // one after another, so that the one that waits comes last
		ops[i].Items, done[i] = 1, make(chan error, 1)
		go func() { done[i] <- joint.Do(t.Context(), &ops[i]) }()
		awaitPending(t, b, i+1)
	}
	g.unblock(t, 1)
	for _, answer := range []<-chan error{blocking, done[0], done[1]} {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
	if ops[0].transaction != ops[1].transaction {
		t.Errorf("those that wait for no lock are committed in the transactions %d and %d, want one", ops[0].transaction, ops[1].transaction)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-done[2]; err != nil || ops[2].transaction == 0 || ops[2].transaction == ops[0].transaction {
		t.Errorf("the one that waits is committed in the transaction %d, the others in %d: %v", ops[2].transaction, ops[0].transaction, err)
	}
}

// The statements of other packages come after the inserts, acks and claims of their commit: locks that they take are held for the commit alone.
func TestOperationsOfOtherPackagesComeLastInTheirCommit(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `grant select on agent.event to public`)
	joint := jointOf(b, make(chan []*joined, 1))
	g := blockCommits(t, b)
	blocking := g.blockFirst(t)
	op, done := joined{JointTicket: queue.JointTicket{Items: 1}, sql: `select count(*) from agent.event where queue = 'same'`}, make(chan error, 2)
	go func() { done <- joint.Do(t.Context(), &op) }()
	awaitPending(t, b, 1)
	go func() {
		_, err := b.Insert(t.Context(), []queue.InsertParams{{Queue: "same", Event: []byte(`{}`)}})
		done <- err
	}()
	awaitPending(t, b, 2)
	g.unblock(t, 1)
	for _, answer := range []<-chan error{blocking, done, done} {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
	if op.transaction != 1 {
		t.Errorf("the statement sees %d events that were inserted in its commit, want 1", op.transaction)
	}
}

func TestOperationsOfOtherPackagesFailAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	errRefused := errors.New("division by zero")
	cases := []struct {
		sql     string
		want    error
		commits bool
	}{
		{`select 1::bigint`, nil, true},
		{`select 1 / (select 0)::bigint`, errRefused, false},
		{`select 1::bigint where false`, queue.ErrUnavailable, true}, // no answer
		{`select 'x'`, queue.ErrUnavailable, true},                   // an answer of another type
		{`select 2::bigint`, nil, true},
	}
	committed := make(chan []*joined, len(cases))
	joint := jointOf(b, committed)
	g := blockCommits(t, b)
	blocking := g.blockFirst(t)
	ops, done := make([]joined, len(cases)), make([]chan error, len(cases))
	for i, c := range cases {
		ops[i], done[i] = joined{JointTicket: queue.JointTicket{Items: 1}, sql: c.sql}, make(chan error, 1)
		go func() { done[i] <- joint.Do(t.Context(), &ops[i]) }()
	}
	inserted := insertOne(t.Context(), b, `{}`)
	awaitPending(t, b, len(cases)+1)
	g.unblock(t, 1)
	for _, answer := range []<-chan error{blocking, inserted} {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
	for i, c := range cases {
		err := <-done[i]
		if pgErr, isRefused := errors.AsType[*pgconn.PgError](err); isRefused && pgErr.Code == "22012" {
			err = errRefused
		}
		if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", c.sql, err, c.want)
		}
	}
	passedOn := make(map[*joined]int)
	for len(committed) > 0 {
		for _, op := range <-committed {
			passedOn[op]++
		}
	}
	for i, c := range cases {
		if n := passedOn[&ops[i]]; n != 0 && !c.commits || n != 1 && c.commits {
			t.Errorf("%s is passed on %d times as committed", c.sql, n)
		}
	}
}
