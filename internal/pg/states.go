package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/puddle/v2"
)

// States are the errors that a service has for SQLSTATEs of its own.
type States map[string]error

// common maps what PostgreSQL and the functions of the schema raise to this package's errors. QD... are the schema's own
// (sql/idempotent/002-lease.sql); the others are listed in appendix A of PostgreSQL's manual.
var common = States{
	"QD003": ErrInvalid,
	"QD005": ErrKeyReused,
	"22021": ErrUnrepresentable, // character_not_in_repertoire: not UTF-8
	"22P05": ErrUnrepresentable, // untranslatable_character: \u0000
	"22P02": ErrUnrepresentable, // invalid_text_representation: jsonb refuses the text
	"22003": ErrUnrepresentable, // numeric_value_out_of_range
	"54000": ErrUnrepresentable, // program_limit_exceeded: a jsonb too large
	"54001": ErrUnrepresentable, // statement_too_complex: a jsonb nested too deep
	"22008": ErrInvalid,         // datetime_field_overflow
	"57014": ErrQueryTimeout,    // query_canceled
	"57P01": ErrUnavailable,     // admin_shutdown
	"57P02": ErrUnavailable,     // crash_shutdown
	"57P03": ErrUnavailable,     // cannot_connect_now
	"53000": ErrUnavailable,     // insufficient_resources
	"53100": ErrUnavailable,     // disk_full
	"53200": ErrUnavailable,     // out_of_memory
	"53300": ErrUnavailable,     // too_many_connections
	"58030": ErrUnavailable,     // io_error
	"26000": ErrUnavailable,     // invalid_sql_statement_name: a pooler has led a prepared statement to another session
	"42P05": ErrUnavailable,     // duplicate_prepared_statement: the same
	"55P03": ErrLocked,          // lock_not_available
	"40P01": ErrLocked,          // deadlock_detected
	"40001": ErrLocked,          // serialization_failure
	"25006": ErrUnavailable,     // read_only_sql_transaction: a standby, after a failover
}

// IsUnavailable reports whether err says that the database could not be reached or had no room, so that it is worth trying again.
func IsUnavailable(err error) bool { return errors.Is(States{}.Wrap("", err), ErrUnavailable) }

// Wrap turns an error of pgx into one that wraps an error of own or of this package where there is a
// fitting one, and says what was being done. It is nil when err is.
func (own States) Wrap(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, puddle.ErrClosedPool) {
		return fmt.Errorf("%s: %w: %w", doing, ErrClosed, err)
	}
	var connErr *pgconn.ConnectError
	if errors.As(err, &connErr) { // whatever the server's reason
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		sentinel, known := own[pgErr.Code]
		if !known {
			sentinel, known = common[pgErr.Code]
		}
		if !known && strings.HasPrefix(pgErr.Code, "08") { // connection exceptions, and what poolers say
			sentinel, known = ErrUnavailable, true
		}
		switch {
		case !known:
			return fmt.Errorf("%s: %w", doing, err)
		case errors.Is(sentinel, ErrInvalid):
			return fmt.Errorf("%s: %w", doing, &InvalidError{Field: pgErr.ColumnName, Detail: cmp.Or(pgErr.Detail, pgErr.Message)})
		default:
			return fmt.Errorf("%s: %w: %w", doing, sentinel, err)
		}
	}
	if errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	var netErr net.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &netErr) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || pgconn.SafeToRetry(err) {
		return fmt.Errorf("%s: %w: %w", doing, ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// Rejected reports whether a transaction failed for what a part of it is, or against another transaction, and wrote nothing: others may succeed without
// that part.
func Rejected(err error) bool {
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrKeyReused) || LostRace(err) {
		return true
	}
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || len(pgErr.Code) != 5 {
		return false
	}
	switch pgErr.Code[:2] { // data exception, integrity constraint violation, program limit exceeded, raised by a trigger
	case "22", "23", "54", "P0":
		return true
	}
	return false
}

// LostRace reports whether a transaction failed because of another one, or was cancelled, and wrote nothing: it may succeed when it is tried again by itself.
func LostRace(err error) bool {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return false
	}
	switch pgErr.Code {
	case "23514": // check_violation: history got a partition for what was on its way into another one
		return pgErr.SchemaName == "agent" && strings.HasPrefix(pgErr.TableName, "event_hist_")
	case "55P03", // lock_not_available: it waited too long for a lock
		"40P01", // deadlock_detected
		"40001", // serialization_failure
		"57014": // query_canceled: by a statement_timeout of the role or the database, or by an administrator
		return true
	}
	return false
}
