package queue

import (
	"encoding/json"
	"time"
)

// Default is the queue an event goes to when none is named.
const Default = "default"

// State is where a waiting event stands. It is derived from vt and the claims, never stored.
type State string

// The states of an event that is still in its queue.
const (
	Ready     State = "ready"     // claimable now
	Scheduled State = "scheduled" // vt is ahead and nobody holds a lease
	Leased    State = "leased"    // claimed, and the lease still runs
)

// Outcome is what became of an event that left its queue.
type Outcome string

// The outcomes history records.
const (
	Done      Outcome = "done"      // acked by a worker
	Failed    Outcome = "failed"    // nacked for good
	Expired   Outcome = "expired"   // swept: attempts used up, or over age
	Cancelled Outcome = "cancelled" // deleted before anyone claimed it
)

// Order says which of the claimable events a claim takes.
type Order string

// The orders a claim may ask for.
const (
	FIFO   Order = "fifo"   // oldest vt first
	Random Order = "random" // from a random place, so that many workers spread out
)

// Event is one event with its bookkeeping, in its queue or in history.
type Event struct {
	ID         int64
	Queue      string
	EventTS    time.Time // the payload's own event_ts, else the time it was enqueued
	EnqueuedAt time.Time
	Attempts   int32 // claims so far
	VT         time.Time
	Claimed    []time.Time // when each attempt began
	Payload    json.RawMessage
	LastError  *string // what the latest nack said
	// RequeuedFrom is the id in history this event was copied from.
	RequeuedFrom *int64

	Type, Source string // empty: not said
	Priority     int32  // lower first
	Key          string // idempotency key; empty: none
	MaxAttempts  *int32 // claims at most, by the event's own account
	ExpiresAt    *time.Time
	Worker       string // who has, or had, the latest lease; empty: not said
	// ErrorCount is how many attempts ended without success. It is zero on events that were just claimed: see Get.
	ErrorCount int32
	// Occurrence is the occurrence of a schedule that the event is: a JSON object, or nil.
	Occurrence json.RawMessage

	// Receipt proves the claim that returned this event; empty but on claimed events.
	Receipt string

	// State is set on an event in its queue, empty on one in history.
	State State

	// Outcome, FinishedAt and RequeuedAs are set on an event in history only.
	Outcome    Outcome
	FinishedAt *time.Time
	// Retryable is whether another attempt might have succeeded, by the last nack's account; nil: not said.
	Retryable *bool
	// Result is what the ack said; nil: nothing.
	Result json.RawMessage
	// Processing is how long the last attempt took; nil unless Done or Failed.
	Processing *time.Duration
	// RequeuedAs is the id of the latest copy of this event that went back into a queue.
	RequeuedAs *int64
}

// Lease names a claimed event and the receipt of its claim. An empty receipt stands for
// whatever lease there is: the call is then unconditional.
type Lease struct {
	ID      int64
	Receipt string
}

// Page is one page of a listing. Next is the cursor of the following page, empty at the end.
type Page struct {
	Events []Event
	Next   string
}
