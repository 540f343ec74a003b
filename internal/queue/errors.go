package queue

import (
	"errors"
	"fmt"

	"github.com/queued/queued/internal/pg"
)

// What a call can fail with. Every error of this package that a caller can do something about
// wraps one of these; anything else is a fault of the system.
var (
	// ErrNotFound: no event has this id (in the queue, or in history, as the call says).
	ErrNotFound = errors.New("no such event")
	// ErrLeaseLost: the receipt is not that of the event's latest claim, its lease was given back, or the event
	// has left its queue.
	ErrLeaseLost = errors.New("the lease was lost")
	// ErrKeyReused: the idempotency key stands for an event that was enqueued with another payload, or other options.
	ErrKeyReused = pg.ErrKeyReused
	// ErrInvalid: the database refused a value; the error is an *InvalidError.
	ErrInvalid = pg.ErrInvalid
	// ErrUnrepresentable: PostgreSQL cannot hold the event as it is.
	ErrUnrepresentable = pg.ErrUnrepresentable
	// ErrBadCursor: the cursor is not one that this listing returned.
	ErrBadCursor = pg.ErrBadCursor
	// ErrQueryTimeout: the statement took longer than Config.QueryTimeout.
	ErrQueryTimeout = pg.ErrQueryTimeout
	// ErrUnavailable: the database could not be reached, the connection broke, or it has no room; whether a
	// write was committed may be unknown.
	ErrUnavailable = pg.ErrUnavailable
	// ErrNotSynchronous: commits wait for no standby, and Config.RequireSync wants them to.
	ErrNotSynchronous = errors.New("commits wait for no synchronous standby")
	// ErrLocked: another transaction holds what the call needs, and did not end in time; nothing was written. It is an ErrUnavailable.
	ErrLocked = pg.ErrLocked
	// ErrOverloaded: more calls wait for the database than the service takes in; nothing was written. It is an ErrUnavailable.
	ErrOverloaded = fmt.Errorf("%w: too many calls wait for it", ErrUnavailable)
)

// InvalidError is a value the database refused, in words for the caller.
type InvalidError = pg.InvalidError

// sqlstates are what the functions of the schema raise about events (sql/idempotent/001-event.sql).
var sqlstates = pg.States{
	"QD001": ErrLeaseLost,
	"QD002": ErrNotFound,
}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }
