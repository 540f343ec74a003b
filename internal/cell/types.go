package cell

import (
	"errors"
	"fmt"
	"time"

	"github.com/queued/queued/internal/pg"
)

// Home is the number of the cell that has what there is once.
const Home = 0

// Last is the greatest number that a cell may have.
const Last = 255

// ErrOther is why a process does not start: the database is another cell. The error is an *OtherCellError.
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

// The errors about placements.
var (
	// ErrNotHome: the call is for home, and this is another cell.
	ErrNotHome = errors.New("the cell is not home")
	// ErrNotPlaced: the queue is placed nowhere yet, or was deleted.
	ErrNotPlaced = errors.New("the queue is not placed")
	// ErrStale: the placement is not at the version that was asked for.
	ErrStale = errors.New("the placement has another version")
	// ErrNotListed: the cell is not among those that gateways are told of.
	ErrNotListed = errors.New("the cell is not listed")
	// ErrInUse: queues are on the cell, or were and may have events there still, or idempotency keys that were used there count. The error is an *InUseError.
	ErrInUse = errors.New("the cell is in use")
)

// An InUseError is why a cell stays on the list.
type InUseError struct {
	Placed    int64      `json:"placed"`     // queues that are on it
	Former    int64      `json:"former"`     // queues that were on it and may have events there still
	KeysUntil *time.Time `json:"keys_until"` // inserts with an idempotency key go there, or ask it for the key, until then; nil: none do
}

func (e *InUseError) Error() string {
	text := fmt.Sprintf("%v: %d queues are placed there, and %d were", ErrInUse, e.Placed, e.Former)
	if e.KeysUntil != nil {
		text += ", and keys count there until " + e.KeysUntil.Format(time.RFC3339)
	}
	return text
}

// Unwrap makes errors.Is(err, ErrInUse) true.
func (e *InUseError) Unwrap() error { return ErrInUse }

// sqlstates are those that the functions of the schema raise about cells.
var sqlstates = pg.States{
	"QD004": ErrStale,
	"QD070": ErrNotHome,
	"QD071": ErrNotPlaced,
	"QD072": ErrInUse,
	"QD073": ErrNotListed,
}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }

// A Cell is what is known of this database as one of several.
type Cell struct {
	Number  int
	FirstID int64 // that it gives out
	LastID  int64
	IDsLeft int64 // of events, schedules or redrives, whichever has the fewest left

	PlacementVersion int64 // of the latest change of placements; at home
	KeysVersion      int64 // of the latest change of keys
	// Epoch is that of both versions: those of another one are not to be compared with them, as some may be lost.
	Epoch string
}

// IsHome reports whether it is the cell that has what there is once.
func (c Cell) IsHome() bool { return c.Number == Home }

// A Listed is a cell that gateways are told of.
type Listed struct {
	Cell      int
	URL       *string // of its servers; nil: gateways have it from their settings
	TakesNew  bool    // new queues may be placed there, and those that are on all cells go there
	UpdatedAt time.Time
	Placed    int64 // queues that are on it; those on all cells are not counted
	Former    int64 // queues that were on it and may have events there still
}

// A Followed is what gateways follow of a cell that is listed.
type Followed struct {
	Cell     int
	URL      *string
	TakesNew bool
	Turns    []Turn // in order
}

// A Turn is a change of whether a cell takes new queues.
type Turn struct {
	At       time.Time `json:"at"`
	TakesNew bool      `json:"takes_new"`
}

// A Set is numbers of cells, in ascending order; nil: all that take new queues.
type Set []int

// A Placement says which cells a queue is on.
type Placement struct {
	Queue    string
	Cells    Set       // that new events go to
	PlacedAt time.Time // since when they do
	Former   []Former  // that it was placed on before, and that may hold some of its events still
	// KeysUntil is until when inserts with an idempotency key go to KeysCells, where they went before; nil: they go where all others go.
	KeysUntil *time.Time
	KeysCells Set
	Past      Set // that it was on before, whether Former still or empty: they have history of it
	// Asked are those that may know idempotency keys still, when inserts go elsewhere.
	Asked []Asked
	// IsFirstUse: the first call about the queue has placed it, and nobody else since.
	IsFirstUse bool
	IsRemoved  bool
	UpdatedAt  time.Time
	Version    int64
}

// Asked is cells that inserts with an idempotency key went to until Since, and that are asked for the key of each before it is inserted elsewhere, until Until.
type Asked struct {
	Cells Set       `json:"cells"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// Former is cells that a queue was placed on until a time.
type Former struct {
	Cells Set       `json:"cells"`
	Since time.Time `json:"since"` // since when new events go elsewhere
}

// PlaceParams say where to place a queue.
type PlaceParams struct {
	Queue   string
	Cells   Set
	KeysNow bool // inserts with an idempotency key go there at once, too, and do not meet those before
	// IfVersions are versions of which the placement must have one; nil: any. It must exist with IfExists, and must not with IfAbsent.
	IfVersions []int64
	IfExists   bool
	IfAbsent   bool
	IsFirstUse bool // by the first call about the queue
}

// PlacementsParams say which placements to list.
type PlacementsParams struct {
	AfterVersion int64  // only those that have changed since; zero: all
	Epoch        string // of AfterVersion; empty: it is not known
	Limit        int
	Cursor       string   // of another page; AfterVersion, Epoch and Wait do not count then
	Queues       []string // patterns of the queues; nil: all
	Wait         time.Duration
}

// A PlacementsPage is placements by their versions.
type PlacementsPage struct {
	Placements []Placement
	Cells      []Followed // that are listed; on the first page
	Changes
}

// Changes is what a page of a listing of changes has besides its elements.
type Changes = pg.Changes
