package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// The errors of calls to the database. Services have further ones of their own, see States.
var (
	// ErrInvalid: a value is refused; the error is an *InvalidError.
	ErrInvalid = errors.New("invalid value")
	// ErrUnrepresentable: PostgreSQL cannot hold a value as it is.
	ErrUnrepresentable = errors.New("not representable in PostgreSQL")
	// ErrKeyLeft: the idempotency key was left to another cell.
	ErrKeyLeft = errors.New("the idempotency key was left to another cell")
	// ErrKeyReused: the idempotency key stands for another request.
	ErrKeyReused = errors.New("the idempotency key stands for another request")
	// ErrIDsExhausted: the database has given out all the ids that it may; nothing was written.
	ErrIDsExhausted = errors.New("the ids are exhausted")
	// ErrBadCursor: the cursor is not one that this listing returned.
	ErrBadCursor = errors.New("not a cursor of this listing")
	// ErrQueryTimeout: the statement took longer than its time limit.
	ErrQueryTimeout = errors.New("the query took too long")
	// ErrUnavailable: the database could not be reached, the connection broke, or it has no room. It may be unknown whether a write was
	// committed.
	ErrUnavailable = errors.New("the database is unavailable")
	// ErrUnconfirmed: the transaction is committed on the primary, but the wait for the synchronous standby was cancelled, and a failover
	// may lose it. It is an ErrUnavailable.
	ErrUnconfirmed = fmt.Errorf("%w: the commit was not confirmed by the synchronous standby", ErrUnavailable)
	// ErrLocked: the transaction waited too long for a lock, or was rolled back because of another one; nothing was written. It is an
	// ErrUnavailable.
	ErrLocked = fmt.Errorf("%w: locked by another transaction", ErrUnavailable)
	// ErrClosed: the call came after Close. It is an ErrUnavailable.
	ErrClosed = fmt.Errorf("%w: the service is closed", ErrUnavailable)
)

// InvalidError is the error of a value that is refused, for the caller of the API.
type InvalidError struct {
	Field  string // the offending field as the HTTP API names it, empty when unknown
	Detail string
}

func (e *InvalidError) Error() string { return e.Field + ": " + e.Detail }

// Unwrap makes errors.Is(err, ErrInvalid) true.
func (e *InvalidError) Unwrap() error { return ErrInvalid }

// States maps SQLSTATEs to the errors of a service.
type States map[string]error

// common maps SQLSTATEs to this package's errors. QD... are the schema's own
// (sql/idempotent/001-event.sql); the others are listed in appendix A of PostgreSQL's manual.
var common = States{
	"QD003": ErrInvalid,
	"QD005": ErrKeyReused,
	"QD064": ErrNotDeclared,
	"QD074": ErrKeyLeft,
	"22021": ErrUnrepresentable, // character_not_in_repertoire: not UTF-8
	"22P05": ErrUnrepresentable, // untranslatable_character: \u0000
	"22P02": ErrUnrepresentable, // invalid_text_representation: jsonb refuses the text
	"22003": ErrUnrepresentable, // numeric_value_out_of_range
	"54000": ErrUnrepresentable, // program_limit_exceeded: a jsonb too large
	"54001": ErrUnrepresentable, // statement_too_complex: a jsonb nested too deep
	"2200H": ErrIDsExhausted,    // sequence_generator_limit_exceeded
	"22008": ErrInvalid,         // datetime_field_overflow
	"57014": ErrQueryTimeout,    // query_canceled
	"57P01": ErrUnavailable,     // admin_shutdown
	"57P02": ErrUnavailable,     // crash_shutdown
	"57P03": ErrUnavailable,     // cannot_connect_now
	"57P05": ErrUnavailable,     // idle_session_timeout, where a pooler keeps sessionSettings out
	"53000": ErrUnavailable,     // insufficient_resources
	"53100": ErrUnavailable,     // disk_full
	"53200": ErrUnavailable,     // out_of_memory
	"53300": ErrUnavailable,     // too_many_connections
	"58030": ErrUnavailable,     // io_error
	"26000": ErrUnavailable,     // invalid_sql_statement_name: a pooler has switched the session of a prepared statement
	"42P05": ErrUnavailable,     // duplicate_prepared_statement: the same
	"55P03": ErrLocked,          // lock_not_available
	"40P01": ErrLocked,          // deadlock_detected
	"40001": ErrLocked,          // serialization_failure
	"25006": ErrUnavailable,     // read_only_sql_transaction: a standby, after a failover
}

// IsUnavailable reports whether Wrap would make an ErrUnavailable of err, which a later attempt may not meet.
func IsUnavailable(err error) bool { return errors.Is(States{}.Wrap("", err), ErrUnavailable) }

// Wrap returns an error that says what failed and wraps the error of own, or else of this package, for err. It is nil when err is.
func (own States) Wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	sentinel := own.sentinelOf(err)
	if sentinel == nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch {
		case errors.Is(sentinel, ErrInvalid):
			return fmt.Errorf("%s: %w", doing, &InvalidError{Field: pgErr.ColumnName, Detail: cmp.Or(pgErr.Detail, pgErr.Message)})
		case errors.Is(sentinel, ErrNotDeclared):
			return fmt.Errorf("%s: %w", doing, &UndeclaredError{Queue: pgErr.Detail})
		}
	}
	return fmt.Errorf("%s: %w: %w", doing, sentinel, err)
}

// sentinelOf returns the error of own, or else of this package, for err, and nil when there is none.
func (own States) sentinelOf(err error) error {
	pgErr, isAnswer := errors.AsType[*pgconn.PgError](err)
	switch {
	case errors.Is(err, puddle.ErrClosedPool):
		return ErrClosed
	case errors.As(err, new(*pgconn.ConnectError)): // with any SQLSTATE
		return ErrUnavailable
	case isAnswer:
		if strings.HasPrefix(pgErr.Code, "08") { // connection exceptions, which poolers raise, too
			return ErrUnavailable
		}
		return cmp.Or(own[pgErr.Code], common[pgErr.Code])
	case errors.Is(err, context.Canceled):
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, new(net.Error)), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, net.ErrClosed), pgconn.SafeToRetry(err):
		return ErrUnavailable
	}
	return nil
}

// HasNoRoom reports whether a transaction failed because the server's disk is full or does not work.
func HasNoRoom(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == "53100" || pgErr.Code == "58030")
}

// Rejected reports whether a transaction of several operations wrote nothing because of one of them, or of another transaction: the
// other operations may succeed without that one.
func Rejected(err error) bool {
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrKeyReused) || errors.Is(err, ErrKeyLeft) || errors.Is(err, ErrNotDeclared) || LostRace(err) {
		return true
	}
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || len(pgErr.Code) != 5 {
		return false
	}
	// Data exception, integrity constraint violation, program limit exceeded, raised by a trigger.
	return slices.Contains([]string{"22", "23", "54", "P0"}, pgErr.Code[:2])
}

// LostRace reports whether a transaction wrote nothing because of another one, or because it was cancelled: it may succeed when it is
// tried again.
func LostRace(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	// A statement_timeout of the role or the database, or an administrator, may have cancelled it.
	return ok && (errors.Is(common[pgErr.Code], ErrLocked) || errors.Is(common[pgErr.Code], ErrQueryTimeout)) || PartitionAttached(err)
}

// PartitionAttached reports whether a transaction wrote nothing because another one has attached a partition of history for a row that was
// to go into the default one.
func PartitionAttached(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pgErr.Code == "23514" && // check_violation
		pgErr.SchemaName == "agent" && strings.HasPrefix(pgErr.TableName, "event_hist_")
}
