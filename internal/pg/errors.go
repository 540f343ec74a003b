// Package pg is what every service on the database has in common: the errors that PostgreSQL's become, listening for
// notifications, and statements with a time limit.
package pg

import (
	"errors"
	"fmt"
)

// What a call to the database can fail with, whatever it is about.
var (
	// ErrInvalid: a value is refused; the error is an *InvalidError.
	ErrInvalid = errors.New("invalid value")
	// ErrUnrepresentable: PostgreSQL cannot hold a value as it is.
	ErrUnrepresentable = errors.New("not representable in PostgreSQL")
	// ErrKeyReused: the idempotency key stands for another request.
	ErrKeyReused = errors.New("the idempotency key stands for another request")
	// ErrBadCursor: the cursor is not one that this listing returned.
	ErrBadCursor = errors.New("not a cursor of this listing")
	// ErrQueryTimeout: the statement took longer than its time limit.
	ErrQueryTimeout = errors.New("the query took too long")
	// ErrUnavailable: the database could not be reached, the connection broke, or it has no room; whether a
	// write was committed may be unknown.
	ErrUnavailable = errors.New("the database is unavailable")
	// ErrUnconfirmed: the transaction is committed on the primary, but the wait for its synchronous standby was cancelled. Should the standby be
	// promoted, it may be lost. It is an ErrUnavailable, as its outcome is unknown.
	ErrUnconfirmed = fmt.Errorf("%w: the commit was not confirmed by the synchronous standby", ErrUnavailable)
	// ErrLocked: the transaction waited too long for what another one holds, or lost against it in another way; nothing was written. It
	// is an ErrUnavailable.
	ErrLocked = fmt.Errorf("%w: locked by another transaction", ErrUnavailable)
	// ErrClosed is what a call gets that comes after Close. It is an ErrUnavailable.
	ErrClosed = fmt.Errorf("%w: the service is closed", ErrUnavailable)
)

// InvalidError is a value that is refused, in words for the caller.
type InvalidError struct {
	Field  string // the offending field as the HTTP API names it, empty when unknown
	Detail string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Detail }

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Unwrap() error { return ErrInvalid }
