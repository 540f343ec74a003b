package schedule

import (
	"errors"
	"fmt"
)

// What a call can fail with. Every error of this package that a caller can do something about
// wraps one of these; anything else is a fault of the system.
var (
	// ErrNotFound: no schedule has this id.
	ErrNotFound = errors.New("no such schedule")
	// ErrOwnerNotFound: no owner has this id.
	ErrOwnerNotFound = errors.New("no such owner")
	// ErrStale: the schedule or owner is not at the version that the call asked for.
	ErrStale = errors.New("not at this version")
	// ErrKeyReused: the idempotency key belongs to another request.
	ErrKeyReused = errors.New("the idempotency key was used for another request")
	// ErrEnded: the schedule was cancelled, or is completed and has nothing to pause or resume.
	ErrEnded = errors.New("the schedule has ended")
	// ErrInvalid: a value is refused; the error is an *InvalidError.
	ErrInvalid = errors.New("invalid value")
	// ErrUnrepresentable: PostgreSQL cannot hold a value as it is.
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

// InvalidError is a value that is refused, in words for the caller.
type InvalidError struct {
	Field  string // the offending field as the HTTP API names it, empty when unknown
	Detail string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Detail }

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Unwrap() error { return ErrInvalid }
