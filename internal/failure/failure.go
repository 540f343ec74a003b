// Package failure limits how often the log says that the same operation failed for the same reason. While the database is away or its disk is
// full, each request and each pass of a loop fails, thousands a second, and one line a second says as much.
//
// A line that says so has the field Field; see Of. A Limiter, which the lines pass through, writes one of each kind a second and counts the
// others. Lines without the field are facts about one thing, such as a schedule that was paused, and are all written.
package failure

import (
	"cmp"
	"errors"
	"io"
	"syscall"

	"github.com/rs/zerolog"
)

// Field is the field of a line that has the reason of the failure: few words that are the same each time, such as a SQLSTATE, and never the
// text of an error. Together with its level and its message it makes the line's kind.
const Field = "kind"

// Of returns a function that adds err to a line, with the reason for it, for zerolog.Event.Func.
func Of(err error) func(*zerolog.Event) {
	return func(e *zerolog.Event) { e.Err(err).Str(Field, cmp.Or(Reason(err), "other")) }
}

// Reason returns the part of err that is the same each time that something fails so: the SQLSTATE, else the error of the operating system, "timeout"
// or "EOF". It is empty when err has none of these.
func Reason(err error) string {
	if answer, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err); ok {
		return answer.SQLState()
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number.Error()
	}
	timeout, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err)
	switch {
	case ok && timeout.Timeout():
		return "timeout"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "EOF"
	default:
		return ""
	}
}
