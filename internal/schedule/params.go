package schedule

import (
	"encoding/json"
	"time"
)

// CreateParams is a schedule to make.
type CreateParams struct {
	Spec
	// IdempotencyKey makes the call repeatable: the same Spec under the same key again returns the same schedule. Empty: none.
	IdempotencyKey string
}

// Created is what Create returns.
type Created struct {
	Schedule
	Replayed bool // an earlier call with the same key made it
}

// PatchParams changes the fields that are not nil. A pointer to a zero value takes the field back to its default; a pointer to a
// nil Moment takes that away.
//
// What gives the times belongs together: a new RRule ends the Cron, a new Cron ends the RRule and At, a new At ends the Cron, and an empty RRule leaves
// At alone, once.
type PatchParams struct {
	ID        int64
	IfVersion *int64 // the version it must have; nil: any

	Name     *string
	Queue    *string
	Type     *string
	Priority *int32
	Event    *json.RawMessage
	At       **Moment
	RRule    *string
	Cron     *string
	Timezone *string
	Starts   **Moment
	Ends     **Moment
	Count    *int
	Misfire  *Misfire
	Gap      *Gap
	Overlap  *Overlap
	Leap     *Leap
}

// ListParams filters schedules; zero fields select everything.
type ListParams struct {
	Owner     string
	Queue     string
	Status    Status
	DueBefore *time.Time // active ones whose next occurrence comes before; the page then is by NextAt, otherwise by ID
	Limit     int        // zero: DefaultPage
	Cursor    string     // a Page.Next of a call with the same filters, or empty for the first page
}

// Page is one page of schedules. Next is the cursor of the following page, empty at the end.
type Page struct {
	Schedules []Schedule
	Next      string
}

// OccurrencesParams asks for a schedule's occurrences.
type OccurrencesParams struct {
	ID       int64
	Limit    int    // past ones at most; zero: DefaultPage
	Cursor   string // an Occurrences.Next, or empty for the latest
	Upcoming int    // how many of those to come; zero: none; MaxUpcoming at most
}

// Occurrences are the past ones of a schedule, latest first, and those to come as far as that is known today, soonest
// first. Next is the cursor of the following page of the past, empty at the end.
type Occurrences struct {
	Past     []Occurrence
	Next     string
	Upcoming []Instant
}

// PreviewParams asks when a schedule would come, storing nothing.
type PreviewParams struct {
	Spec
	After *time.Time // instants after this one; nil: after now
	N     int        // instants at most; zero: 10; MaxUpcoming at most
}

// PutOwnerParams is an owner to make or replace.
type PutOwnerParams struct {
	ID         string
	Timezone   string          // an IANA name
	Attributes json.RawMessage // a JSON object; nil: {}
	IfVersion  *int64          // the version it must have; nil: any, or that there is none yet
}

// PutOwnerResult is what PutOwner returns.
type PutOwnerResult struct {
	Owner
	Created bool
	Moved   int64 // schedules whose next occurrence was resolved anew
}

// ListOwnersParams asks for owners by id.
type ListOwnersParams struct {
	Limit  int    // zero: DefaultPage
	Cursor string // an OwnerPage.Next, or empty for the first page
}

// OwnerPage is one page of owners. Next is the cursor of the following page, empty at the end.
type OwnerPage struct {
	Owners []Owner
	Next   string
}
