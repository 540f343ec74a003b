// Package groupcommit commits the operations of concurrent callers in shared transactions.
//
// A commit starts when a writer is free, and takes the operations that have gathered since the last one began: a lone operation waits for no
// other, and many share one round trip and one commit. A caller is answered when its operation is committed, or has failed.
//
// Goroutines: up to Config.Writers writers, each of which ends when nothing waits, and one for each operation that is committed apart. All state
// is the Committer's, under one mutex, which is held during no call of a Config function. docs/decisions/004-group-commit.md has the measurements.
package groupcommit

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/queued/queued/internal/timelimit"
)

// Verdict is the meaning of a commit's error for its operations.
type Verdict int

// The verdicts.
const (
	Failed      Verdict = iota // all of them have failed; whether they were written may be unknown
	Unavailable                // the same, because the database did not answer: operations that wait fail, too, when that took HangThreshold
	Rejected                   // nothing was written because of some of them: the halves are committed by themselves, until the bad one fails alone
	LostRace                   // nothing was written because other transactions hold locks that some of them need: these are committed apart
)

// Config holds the settings of a Committer. Every field but Join is required.
type Config[O Operation] struct {
	Writers           int           // commits at once, at most
	WriterItems       int           // how many items must wait for a second or further writer to start
	MaxItems          int           // of operations that share a commit
	MaxBytes          int           // of operations that share a commit; a larger operation has a commit to itself
	MaxPending        int           // operations without an answer, at most
	MaxPendingBytes   int           // their bytes, at most
	Timeout           time.Duration // of a commit
	HangThreshold     time.Duration // see Unavailable
	Commit            func(ctx context.Context, ops []O) error
	CommitApart       func(ctx context.Context, op O) error  // commits an operation that lost a race, and may wait for locks
	Contended         func(ctx context.Context, ops []O) []O // those of a commit that lost a race which need a lock; none: all of them
	Join              func(ops []O) []O                      // further operations to commit with ops; nil: none
	Judge             func(error) Verdict                    // the meaning of an error of Commit
	Overloaded        error                                  // the error of Do beyond MaxPending or MaxPendingBytes
	Closed            error                                  // the error of Do and Start after Close
	BehindUnavailable error                                  // the error of operations that wait behind a commit that hung
}

// Operation is the unit that a caller has committed, all or nothing: a pointer to a struct that embeds a Ticket.
type Operation interface {
	comparable
	ticket() *Ticket
}

// Ticket is a Committer's state of an operation. It is good for one commit.
type Ticket struct {
	items, bytes int
	done         chan error // of capacity one: answering never blocks
}

// NewTicket returns the ticket of an operation of so many items and bytes. Both count against the bounds of a commit.
func NewTicket(items, bytes int) Ticket {
	return Ticket{items: items, bytes: bytes, done: make(chan error, 1)}
}

func (t *Ticket) ticket() *Ticket { return t }

// Wait returns the error that the operation failed with, once it has an answer. It may be called once.
func (t *Ticket) Wait() error { return <-t.done }

// Refuse answers an operation that Start has not started.
func (t *Ticket) Refuse(err error) { t.done <- err }

// Committer commits operations. It is safe for concurrent use.
type Committer[O Operation] struct {
	cfg  Config[O]
	work sync.WaitGroup

	mu           sync.Mutex
	waiting      []O // in order of arrival
	waitingItems int
	pending      int // operations without an answer: waiting, being committed, or apart
	pendingBytes int
	writers      int // at work
	closed       bool
}

// New returns a Committer. Close it.
func New[O Operation](cfg Config[O]) *Committer[O] { return &Committer[O]{cfg: cfg} }

// Do commits an operation and returns the error that it failed with. It fails at once with Config.Overloaded or Config.Closed. When ctx ends
// first it fails with ctx's error, and the operation may be committed or not.
func (c *Committer[O]) Do(ctx context.Context, op O) error {
	if err := c.add(true, op); err != nil {
		return err
	}
	return c.Await(ctx, op)
}

// Start has operations committed, in one transaction if they are few, however much is pending. Their tickets are answered. It fails with
// Config.Closed, and then has started none.
func (c *Committer[O]) Start(ops ...O) error { return c.add(false, ops...) }

// Admit fails with Config.Overloaded where Do would, for an operation that the caller is about to start.
func (c *Committer[O]) Admit(op O) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.overload(1, op.ticket().bytes)
}

// overload returns the error of so many further operations, with so many bytes, if there are too many. The caller holds mu.
func (c *Committer[O]) overload(operations, bytes int) error {
	if c.pending > 0 && (c.pending+operations > c.cfg.MaxPending || c.pendingBytes+bytes > c.cfg.MaxPendingBytes) {
		return fmt.Errorf("%w: %d operations with %d bytes are pending", c.cfg.Overloaded, c.pending, c.pendingBytes)
	}
	return nil
}

// Await returns the error that an operation failed with that was started. When ctx ends first it fails with ctx's error, and the operation may be
// committed or not.
func (c *Committer[O]) Await(ctx context.Context, op O) error {
	failure, err := timelimit.Receive(ctx, op.ticket().done)
	if err != nil {
		c.withdraw(op)
		return err
	}
	return failure
}

func (c *Committer[O]) add(bounded bool, ops ...O) error {
	items, bytes := size(ops)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.cfg.Closed
	}
	if bounded {
		if err := c.overload(len(ops), bytes); err != nil {
			return err
		}
	}
	c.pending += len(ops)
	c.pendingBytes += bytes
	c.waiting = append(c.waiting, ops...)
	c.waitingItems += items
	if c.writers == 0 || c.writers < c.cfg.Writers && c.waitingItems >= c.cfg.WriterItems {
		c.writers++
		c.work.Go(c.write)
	}
	return nil
}

func size[O Operation](ops []O) (items, bytes int) {
	for _, op := range ops {
		items += op.ticket().items
		bytes += op.ticket().bytes
	}
	return items, bytes
}

// withdraw removes an operation that waits. One that is being committed stays.
func (c *Committer[O]) withdraw(op O) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.waiting, op); i >= 0 {
		c.waiting = slices.Delete(c.waiting, i, i+1)
		c.waitingItems -= op.ticket().items
		c.removePending(op)
	}
}

// removePending takes an operation off the pending ones. The caller holds mu.
func (c *Committer[O]) removePending(op O) {
	c.pending--
	c.pendingBytes -= op.ticket().bytes
}

// Waiting returns how many operations wait for a writer, and how many writers are at work.
func (c *Committer[O]) Waiting() (operations, writers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting), c.writers
}

// Close refuses further operations, and waits until the others have been answered.
func (c *Committer[O]) Close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.work.Wait()
}

// write commits until nothing waits.
func (c *Committer[O]) write() {
	for ops := c.next(); len(ops) > 0; ops = c.next() {
		c.commit(ops)
	}
}

// next takes the operations of the next commit: those that have waited longest, within the bounds. When there is none, the writer has ended.
func (c *Committer[O]) next() []O {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, items, bytes := 0, 0, 0
	for _, op := range c.waiting {
		t := op.ticket()
		if n > 0 && (items+t.items > c.cfg.MaxItems || bytes+t.bytes > c.cfg.MaxBytes) {
			break
		}
		n, items, bytes = n+1, items+t.items, bytes+t.bytes
	}
	ops := slices.Clone(c.waiting[:n])
	c.waiting = slices.Delete(c.waiting, 0, n)
	c.waitingItems -= items
	if n == 0 {
		c.writers--
	}
	return ops
}

// commit commits operations and answers them.
func (c *Committer[O]) commit(ops []O) {
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
	defer cancel()
	ops = c.join(ops)
	began := time.Now()
	err := c.cfg.Commit(ctx, ops)
	verdict := Failed
	if err != nil {
		verdict = c.cfg.Judge(err)
	}
	switch {
	case verdict == LostRace:
		c.separate(ctx, ops)
	case verdict == Rejected && len(ops) > 1:
		half := len(ops) / 2
		c.commit(slices.Clip(ops[:half])) // operations that join it must not overwrite the others
		c.commit(ops[half:])
	default:
		c.answer(ops, err)
		if verdict == Unavailable && time.Since(began) > c.cfg.HangThreshold {
			c.failWaiting()
		}
	}
}

// join adds the operations that go along with ops.
func (c *Committer[O]) join(ops []O) []O {
	if c.cfg.Join == nil {
		return ops
	}
	more := c.cfg.Join(ops)
	_, bytes := size(more)
	c.mu.Lock()
	c.pending += len(more)
	c.pendingBytes += bytes
	c.mu.Unlock()
	return append(ops, more...)
}

// separate has the contended ones of a commit's operations committed apart, and goes on with the others.
func (c *Committer[O]) separate(ctx context.Context, ops []O) {
	apart := c.cfg.Contended(ctx, ops)
	if len(apart) == 0 {
		apart = ops
	}
	for _, op := range apart {
		c.work.Go(func() { //nolint:contextcheck // it has a time of its own
			ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
			defer cancel()
			c.answer([]O{op}, c.cfg.CommitApart(ctx, op))
		})
	}
	rest := slices.DeleteFunc(slices.Clone(ops), func(op O) bool { return slices.Contains(apart, op) })
	if len(rest) > 0 {
		c.commit(rest)
	}
}

// failWaiting fails every operation that waits: behind a commit that hung, none would fare better.
func (c *Committer[O]) failWaiting() {
	c.mu.Lock()
	waiting := c.waiting
	c.waiting, c.waitingItems = nil, 0
	c.mu.Unlock()
	c.answer(waiting, c.cfg.BehindUnavailable)
}

// answer ends operations with the result of their commit.
func (c *Committer[O]) answer(ops []O, err error) {
	c.mu.Lock()
	for _, op := range ops {
		c.removePending(op)
	}
	c.mu.Unlock()
	for _, op := range ops {
		op.ticket().done <- err
	}
}
