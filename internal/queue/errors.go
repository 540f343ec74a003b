package queue

import (
	"errors"
	"fmt"
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
	ErrKeyReused = errors.New("the idempotency key stands for another event")
	// ErrInvalid: the database refused a value; the error is an *InvalidError.
	ErrInvalid = errors.New("invalid value")
	// ErrUnrepresentable: PostgreSQL cannot hold the event as it is.
	ErrUnrepresentable = errors.New("not representable in PostgreSQL")
	// ErrBadCursor: the cursor is not one that this listing returned.
	ErrBadCursor = errors.New("not a cursor of this listing")
	// ErrQueryTimeout: the statement took longer than Config.QueryTimeout.
	ErrQueryTimeout = errors.New("the query took too long")
	// ErrUnavailable: the database could not be reached, the connection broke, or it has no room; whether a
	// write was committed may be unknown.
	ErrUnavailable = errors.New("the database is unavailable")
)

// errClosed is what a call gets that comes after Close.
var errClosed = fmt.Errorf("%w: the service is closed", ErrUnavailable)

// InvalidError is a value the database refused, in words for the caller.
type InvalidError struct {
	Field  string // the offending field as the HTTP API names it, empty when unknown
	Detail string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Detail }

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Unwrap() error { return ErrInvalid }
