package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/groupcommit"
	"github.com/queued/queued/internal/pg"
)

const (
	// commitTimeout bounds one group commit. It is less than a request may take, so that those who wait behind it can still be answered.
	commitTimeout = 10 * time.Second
	// hangThreshold is how long a commit must have taken before it found the database unavailable for those who wait behind it to fail as
	// well. A database that refuses at once may be back at the next try.
	hangThreshold = time.Second
	// maxCommitBytes bounds the payloads that calls share a commit with, as a batch over HTTP is bounded unless configured otherwise, and
	// those that one claim or one page returns.
	maxCommitBytes = 8 << 20
	// commitLockTimeout is how long a commit waits for a row that another transaction has locked. The operations that may have to wait for it are
	// then committed apart, so that the others do not wait with them.
	commitLockTimeout = 100 * time.Millisecond
	// secondWriterThreshold is how many events must wait for a second writer to be worth its while: two with half as much each do less than one.
	secondWriterThreshold = 100
	// maxPendingOperations is how many calls may wait to be written; Config.MaxPendingBytes bounds their bytes.
	maxPendingOperations = 20_000
	// itemOverhead is the memory of an event or an ack besides its payload, in bytes, about.
	itemOverhead = 128
)

// operation is the part of one call in a group commit: its inserts, its acks, a claim, or statements of another package.
type operation struct {
	groupcommit.Ticket
	inserts   []InsertParams
	acks      []Ack
	claim     *claim
	joint     joinable // nil: none
	needsLock bool     // joint does, see JointTicket

	// Its results, to be read once it has an answer: in the order of inserts and acks.
	inserted []Inserted
	acked    []AckResult
	err      error // why its committed result could not be read, or its commit was not confirmed; nil: it could, and was
	commit   span  // in which it was committed
	isApart  bool  // it lost a race, and was committed on its own

	waiter *waiter // whose claim comes after its acks; nil: nobody's
}

// span is from when a commit began to when it ended, in the order of all beginnings and ends of this process. Its zero value is before all.
type span struct{ began, ended int64 }

// covers reports whether what another commit has written was there for the statements of this one, or was written before these by itself.
func (c span) covers(o span) bool { return c.began > o.ended || c.began == o.began }

// LeaveKeys leaves idempotency keys of a queue to another cell, which the queue is placed on now, but for those that stand for events here: it returns the ids of these, nil for
// the others, in the order of the keys. Inserts here under the others fail with ErrKeyLeft from then on, for as long as keys are kept. It may be repeated. It fails with an *InvalidError.
func (s *Service) LeaveKeys(ctx context.Context, queue string, keys []string) (events []*int64, err error) {
	err = s.short(ctx, func(pool *pg.Pool) error {
		rows, _ := pool.Query(ctx, `select event_id from agent_service.leave_keys($1, $2, $3)`, queue, keys, s.cfg.KeyRetention)
		events, err = pgx.CollectRows(rows, pgx.RowTo[*int64])
		return err
	})
	return events, wrap("leaving keys to another cell", err)
}

// Insert inserts all of events or, on any error, none; results are in the order of events. It fails with an *InvalidError, ErrKeyReused, an *UndeclaredError or
// ErrUnrepresentable, with ErrOverloaded, and with ErrUnavailable or ctx's error when it is unknown whether the events were inserted.
func (s *Service) Insert(ctx context.Context, events []InsertParams) ([]Inserted, error) {
	if len(events) == 0 {
		return nil, nil
	}
	if s.declared != nil {
		if err := s.RequireQueues(ctx, requiredQueues(events)...); err != nil {
			return nil, err
		}
	}
	bytes := len(events) * itemOverhead
	for i := range events {
		bytes += len(events[i].Event) + len(events[i].Meta)
		if raw := events[i].Raw; raw != nil {
			bytes += len(raw.Body)
		}
	}
	op := &operation{Ticket: groupcommit.NewTicket(len(events), bytes), inserts: events}
	asked := time.Now()
	if err := s.write(ctx, op); err != nil {
		return nil, s.noteRefusal(asked, err)
	}
	return op.inserted, nil
}

// InsertEach inserts each of events on its own; results are in the order of events. One that is refused, with an error that Insert has, leaves the others alone. All of them are
// one operation as long as none is refused: then those that are are found by halves. It fails, with an error of Insert's, when nothing was inserted because of none of them.
func (s *Service) InsertEach(ctx context.Context, events []InsertParams) ([]InsertResult, error) {
	return ByHalves(events, func(events []InsertParams) ([]InsertResult, error) {
		inserted, err := s.Insert(ctx, events)
		results := make([]InsertResult, len(inserted))
		for i := range inserted {
			results[i].Inserted = inserted[i]
		}
		return results, err
	}, func(err error) InsertResult { return InsertResult{Err: err} })
}

// ByHalves has do make something of all items, or of none. Where it refuses some, with an error of Insert's that says so, these are found by halves, and refused makes their results. It
// fails with an error of do when nothing was made because of none of them.
func ByHalves[T, R any](items []T, do func([]T) ([]R, error), refused func(error) R) ([]R, error) {
	results, err := do(items)
	switch {
	case err == nil:
		return results, nil
	case !isRefused(err):
		return nil, err
	case len(items) == 1:
		return []R{refused(err)}, nil
	}
	results = make([]R, 0, len(items))
	for _, half := range [][]T{items[:len(items)/2], items[len(items)/2:]} {
		of, err := ByHalves(half, do, refused)
		if err != nil { // of the others something may be made, so each has its result
			of = slices.Repeat([]R{refused(err)}, len(half))
		}
		results = append(results, of...)
	}
	return results, nil
}

// isRefused reports whether nothing was written because of one of several events.
func isRefused(err error) bool {
	return pg.Rejected(err) && !pg.LostRace(err) || errors.Is(err, ErrUnrepresentable)
}

// Ack acks each of acks on its own: events go into history as Done, or as Cancelled where nobody ever claimed the event. Results are in the order of
// acks. A repeated ack with the receipt that succeeded succeeds again, and leaves the result in history as it is. It fails with an
// *InvalidError, ErrUnrepresentable, ErrOverloaded or ErrUnavailable.
func (s *Service) Ack(ctx context.Context, acks []Ack) ([]AckResult, error) {
	if len(acks) == 0 {
		return nil, nil
	}
	op := newAcks(acks)
	if err := s.write(ctx, op); err != nil {
		return nil, err
	}
	return op.acked, nil
}

// newAcks returns the operation of acks.
func newAcks(acks []Ack) *operation {
	bytes := len(acks) * itemOverhead
	for i := range acks {
		bytes += len(acks[i].Result)
	}
	return &operation{Ticket: groupcommit.NewTicket(len(acks), bytes), acks: acks}
}

// write has an operation committed that is no claim.
func (s *Service) write(ctx context.Context, op *operation) error {
	return s.written(ctx, op, s.commits.Do(ctx, op))
}

// written returns the error of an operation that was answered with err.
func (s *Service) written(ctx context.Context, op *operation, err error) error {
	switch {
	case err == nil && op.err != nil:
		if !errors.Is(op.err, pg.ErrUnconfirmed) {
			s.cfg.Logger.Error().Func(failure.Of(op.err)).Msg("what a transaction has committed cannot be answered")
		}
		return op.err
	case err != nil && errors.Is(err, ctx.Err()):
		return wrap("writing to the queue", err)
	}
	return err
}

// newCommitter returns the group commit of inserts, acks and claims. Claims are never refused because others are pending: there are few
// of them, and they make the backlog smaller.
func (s *Service) newCommitter() *groupcommit.Committer[*operation] {
	soloCommitSlots := make(chan struct{}, max(1, s.calls.Config().MaxConns/2)) // half of the connections are left to other calls
	return groupcommit.New(groupcommit.Config[*operation]{
		Writers:         int(s.writers.Config().MaxConns),
		WriterItems:     secondWriterThreshold,
		MaxItems:        MaxBatch,
		MaxBytes:        maxCommitBytes,
		MaxPending:      maxPendingOperations,
		MaxPendingBytes: s.cfg.MaxPendingBytes,
		Timeout:         commitTimeout,
		HangThreshold:   hangThreshold,
		Commit: func(ctx context.Context, ops []*operation) error {
			return s.commit(ctx, s.writers, ops)
		},
		CommitApart: func(ctx context.Context, op *operation) error {
			return s.short(ctx, func(pool *pg.Pool) error {
				if pool == s.calls {
					select {
					case soloCommitSlots <- struct{}{}:
						defer func() { <-soloCommitSlots }()
					case <-ctx.Done():
						return wrap("writing to the queue", ctx.Err())
					}
				}
				op.isApart = true
				if w := op.waiter; w != nil { // others are to have what is claimed for it meanwhile
					w.dispatcher.leave(w) //nolint:contextcheck // what is claimed must be released
				}
				return s.commit(ctx, pool, []*operation{op})
			})
		},
		Contended: s.contended,
		Join:      s.takeOffers,
		Judge: func(err error) groupcommit.Verdict {
			switch {
			case pg.LostRace(err):
				return groupcommit.LostRace
			case pg.Rejected(err):
				return groupcommit.Rejected
			case errors.Is(err, ErrUnavailable):
				return groupcommit.Unavailable
			}
			return groupcommit.Failed
		},
		Overloaded: ErrOverloaded,
		Closed:     fmt.Errorf("writing to the queue: %w", pg.ErrClosed),
		BehindUnavailable: fmt.Errorf("writing to the queue: %w: it did not answer an earlier commit in time, and nothing of this call was written",
			ErrUnavailable),
	})
}

// contended returns the operations with an ack of an event that another transaction has locked. When there is none, or it cannot be known, these are
// all that may have to wait for a lock: those with acks, those with keys, which another transaction may be using for the first time, and where queues have to be
// declared those with inserts, whose queue another transaction may be deleting.
func (s *Service) contended(ctx context.Context, ops []*operation) []*operation {
	byEvent := make(map[int64][]*operation)
	for _, op := range ops {
		for i := range op.acks {
			byEvent[op.acks[i].ID] = append(byEvent[op.acks[i].ID], op)
		}
	}
	var contended []*operation
	if len(byEvent) > 0 {
		rows, _ := s.writers.Query(ctx, `select agent_service.locked_events($1)`, slices.Collect(maps.Keys(byEvent)))
		locked, _ := pgx.CollectRows(rows, pgx.RowTo[int64]) // none after an error
		for _, id := range locked {
			for _, op := range byEvent[id] {
				if !slices.Contains(contended, op) {
					contended = append(contended, op)
				}
			}
		}
	}
	if len(contended) > 0 {
		return contended
	}
	return slices.DeleteFunc(slices.Clone(ops), func(op *operation) bool {
		return len(op.acks) == 0 && !op.needsLock && !slices.ContainsFunc(op.inserts, func(e InsertParams) bool {
			return e.IdempotencyKey != "" || s.declared != nil && !e.IsAccepted
		})
	})
}
