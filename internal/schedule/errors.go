package schedule

import (
	"errors"
	"fmt"

	"github.com/queued/queued/internal/pg"
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
	ErrKeyReused = pg.ErrKeyReused
	// ErrEnded: the schedule was cancelled, or is completed and has nothing to pause or resume.
	ErrEnded = errors.New("the schedule has ended")
	// ErrInvalid: a value is refused; the error is an *InvalidError.
	ErrInvalid = pg.ErrInvalid
	// ErrUnrepresentable: PostgreSQL cannot hold a value as it is.
	ErrUnrepresentable = pg.ErrUnrepresentable
	// ErrBadCursor: the cursor is not one that this listing returned.
	ErrBadCursor = pg.ErrBadCursor
	// ErrQueryTimeout: the statement took longer than Config.QueryTimeout.
	ErrQueryTimeout = pg.ErrQueryTimeout
	// ErrUnavailable: the database could not be reached, the connection broke, or it has no room; whether a
	// write was committed may be unknown.
	ErrUnavailable = pg.ErrUnavailable
)

// InvalidError is a value that is refused, in words for the caller.
type InvalidError = pg.InvalidError

// sqlstates are what the functions of the schema raise about schedules (sql/idempotent/021-schedule.sql).
var sqlstates = pg.States{
	"QD004": ErrStale,
	"QD010": ErrNotFound,
	"QD011": ErrOwnerNotFound,
	"QD012": ErrEnded,
	"QD013": errChanged,
	"25P03": ErrUnavailable, // idle_in_transaction_session_timeout: this process stood still
}

// errChanged: what a plan was made from is not as it was. The plan is made anew.
var errChanged = errors.New("changed since it was planned")

// wrap says what was being done, and turns what PostgreSQL says into the errors above. One that was turned before stays as it is.
func wrap(doing string, err error) error {
	if errors.Is(err, ErrQueryTimeout) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return sqlstates.Wrap(doing, err)
}
