package queue_test

import (
	"errors"
	"testing"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// joined is an operation of another package: its statement, and what came of it.
type joined struct {
	queue.JointTicket
	sql         string
	transaction int64
	unread      error
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
				case op.unread != nil:
					op.Unreadable(op.unread)
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
	for range 2 {
		if own := <-committed; len(own) != calls {
			t.Errorf("%d operations are passed on together, want %d", len(own), calls)
		}
	}
}

func TestOperationsOfOtherPackagesFailAlone(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	committed := make(chan []*joined, 3)
	joint := jointOf(b, committed)
	for name, c := range map[string]struct {
		op      joined
		want    error
		commits bool
	}{
		"a statement that is refused": {joined{sql: `select 1 / (select 0)`}, nil, false},
		"no answer":                   {joined{sql: `select 1 where false`}, queue.ErrUnavailable, true},
		"an answer of another type":   {joined{sql: `select 'x'`}, queue.ErrUnavailable, true},
	} {
		c.op.Items = 1
		err := joint.Do(t.Context(), &c.op)
		if err == nil || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if c.commits {
			<-committed
		}
	}
	if len(committed) > 0 {
		t.Error("what was refused is passed on as committed")
	}
}
