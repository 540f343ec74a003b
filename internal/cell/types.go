package cell

import (
	"errors"
	"fmt"

	"github.com/queued/queued/internal/pg"
)

// Home is the number of the cell that has what there is once.
const Home = 0

// Last is the greatest number that a cell may have.
const Last = 255

// ErrOther: the database is another cell; the error is an *OtherCellError.
var ErrOther = errors.New("the database is another cell")

// OtherCellError is why a process does not start.
type OtherCellError struct {
	Asked, Found int
	HasIDs       bool // the database is no cell yet, but has given out ids as cell 0
}

func (e *OtherCellError) Error() string {
	if e.HasIDs {
		return fmt.Sprintf("QUEUED_CELL is %d, and the database has given out ids as cell %d, which it stays: "+
			"use a new database for cell %[1]d, or start with QUEUED_CELL=%d", e.Asked, e.Found)
	}
	return fmt.Sprintf("QUEUED_CELL is %d, and the database is cell %d, which it was made at its first start and stays: "+
		"start with QUEUED_CELL=%[2]d, or use another database for cell %[1]d", e.Asked, e.Found)
}

// Unwrap makes errors.Is(err, ErrOther) true.
func (e *OtherCellError) Unwrap() error { return ErrOther }

// sqlstates are those that the functions of the schema raise about cells.
var sqlstates = pg.States{}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }

// A Cell is what is known of this database as one of several.
type Cell struct {
	Number  int
	FirstID int64 // that it gives out
	LastID  int64
	IDsLeft int64 // of events, schedules or redrives, whichever has the fewest left
}

// IsHome reports whether it is the cell that has what there is once.
func (c Cell) IsHome() bool { return c.Number == Home }
