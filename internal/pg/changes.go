package pg

import (
	"encoding/json"
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// Listings of changes: of placements, of keys and of settings of queues. Who follows them goes on from the version of an earlier listing. Versions belong to an epoch: those of another one cannot be
// compared, as changes may be lost.

// Changes is what a page of a listing of changes has besides its elements.
type Changes struct {
	Next string // cursor of the next page; empty: this is the last one
	// Version and Epoch of the first page are those to follow changes from when all pages are read.
	Version    int64
	Epoch      string
	IsComplete bool // the pages are all that there is: what the caller knows besides is not so any more
}

// BeginsAnew reports whether a listing of what has changed since a version (zero: it is not known) of an epoch (empty: it is not known) has to be of all that there is: the changes from oldest to those of c alone are
// remembered.
func (c *Changes) BeginsAnew(version int64, epoch string, oldest int64) bool {
	return version == 0 || version < oldest || version > c.Version || epoch != "" && epoch != c.Epoch
}

// A CopiesPage is copies of what is at home, for other cells.
type CopiesPage struct {
	Copies []json.RawMessage
	Changes
}

// A StaleCopiesError is why copies are not taken: they are of another epoch than those before. Who has asked home since knows which counts.
type StaleCopiesError struct{ Current string }

func (e *StaleCopiesError) Error() string { return "copies are taken of the epoch " + e.Current }

// StaleCopies returns the *StaleCopiesError that the schema has raised; nil: it has raised something else.
func StaleCopies(err error) error {
	if raised, ok := errors.AsType[*pgconn.PgError](err); ok && raised.Code == "QD075" {
		return &StaleCopiesError{raised.Detail}
	}
	return nil
}
