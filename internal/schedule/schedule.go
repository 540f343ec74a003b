package schedule

import (
	"encoding/json"
	"time"
)

// Kind says how a schedule's times are given.
type Kind string

// The kinds of schedules.
const (
	Once  Kind = "once"  // at one time
	RRule Kind = "rrule" // by a recurrence rule of RFC 5545
	Cron  Kind = "cron"  // by a cron expression
)

// Status is where a schedule stands.
type Status string

// The statuses of a schedule.
const (
	Active    Status = "active"    // yields events
	Paused    Status = "paused"    // yields none until it is resumed
	Completed Status = "completed" // nothing more will come of it, unless it is changed
	Cancelled Status = "cancelled" // deleted, or its owner was; this is for good
)

// Misfire says what becomes of occurrences that were missed: those still due Config.MisfireGrace after their time.
type Misfire string

// The policies for missed occurrences. What does not fire is recorded as skipped.
const (
	MisfireOnce Misfire = "once" // the latest of those missed fires now
	MisfireAll  Misfire = "all"  // each fires now, in order
	MisfireSkip Misfire = "skip" // none fires
)

// Gap says when a local time comes that a zone leaves out.
type Gap string

// The policies for gaps.
const (
	GapForward Gap = "forward" // later by the gap's length: 02:30 at 03:30
	GapNext    Gap = "next"    // at the gap's end: 02:30 at 03:00
	GapSkip    Gap = "skip"    // not at all
)

// Overlap says when a local time comes that a zone has twice.
type Overlap string

// The policies for overlaps.
const (
	OverlapFirst Overlap = "first"
	OverlapLast  Overlap = "last"
)

// Leap says when a yearly 29 February comes in a common year.
type Leap string

// The policies for 29 February.
const (
	LeapFeb28 Leap = "feb28"
	LeapMar1  Leap = "mar1"
	LeapSkip  Leap = "skip" // not at all
)

// OccurrenceStatus is what became of an occurrence, following its event's life.
type OccurrenceStatus string

// The statuses of an occurrence.
const (
	OccurrencePending    OccurrenceStatus = "pending"    // its event waits in the queue
	OccurrenceProcessing OccurrenceStatus = "processing" // a worker has its event
	OccurrenceCompleted  OccurrenceStatus = "completed"  // its event was acked
	OccurrenceFailed     OccurrenceStatus = "failed"     // its event failed for good, or expired
	OccurrenceCancelled  OccurrenceStatus = "cancelled"  // before a worker had its event
	OccurrenceSkipped    OccurrenceStatus = "skipped"    // missed, and the misfire policy had it not fire
)

// Spec is what a schedule is made of.
type Spec struct {
	Name     string          // free text, empty: none
	Owner    string          // an owner's id, empty: none
	Queue    string          // where its events go, empty: the default queue
	Type     string          // of its events, empty: none
	Priority int32           // of its events, lower first
	Event    json.RawMessage // a JSON object, the payload of each event

	// At is the time of a schedule that is neither RRule nor Cron. With an RRule it is where the rule starts (DTSTART). A Cron has none.
	At    *Moment
	RRule string // a recurrence rule of RFC 5545, with or without the leading "RRULE:"
	Cron  string // five fields, or six with seconds in front, or @hourly, @daily, @weekly, @monthly, @yearly

	// Timezone is an IANA name; empty: the owner's. One of them is needed unless At is an instant.
	Timezone string
	Starts   *Moment // nothing comes before; nil: no bound
	Ends     *Moment // nothing comes after; nil: no bound
	Count    int     // as many occurrences become events, then it is completed; zero: no bound

	Misfire Misfire // empty: MisfireOnce
	Gap     Gap     // empty: GapForward
	Overlap Overlap // empty: OverlapFirst
	Leap    Leap    // empty: LeapFeb28
}

// Schedule is a schedule as it is stored. Of its Spec, the policies and the queue are set even where they were not given.
type Schedule struct {
	ID int64
	Spec
	Kind      Kind
	Zone      string // the zone it goes by: its own, or its owner's; "UTC" when At is an instant
	Status    Status
	Fired     int64      // occurrences that became events, extra ones not counted
	Version   int64      // grows with each change by a caller, of the schedule or of its owner's zone
	NextLocal *time.Time // the next occurrence's nominal local time, in UTC's clothes; nil: there is none
	NextAt    *time.Time // the instant that stands for now
	CreatedAt time.Time
	UpdatedAt time.Time
	// StatusReason is why the service paused it, or what its row holds that no schedule can; empty: neither.
	StatusReason string
}

// Occurrence is one time of a schedule that has come, or was passed over.
type Occurrence struct {
	ScheduleID    int64
	NominalAt     time.Time // local, in UTC's clothes; with ScheduleID it is the occurrence's key
	Manual        bool      // an extra one, by RunNow
	ScheduledFor  time.Time // the instant it was due
	Status        OccurrenceStatus
	EventID       *int64     // the event it became; nil: none. The latest copy, when that was requeued
	FiredAt       *time.Time // when it became an event
	ExecutedAt    *time.Time // when its event was finished, with success or not
	FailureReason *string    // why it failed, was skipped or cancelled
	RetryCount    int32      // attempts after the first
}

// Instant is a time to come: local, in UTC's clothes, and as an instant.
type Instant struct {
	Local time.Time
	UTC   time.Time
}

// Owner is somebody whose schedules can take their zone from them.
type Owner struct {
	ID         string
	Timezone   string
	Attributes json.RawMessage // a JSON object
	Version    int64           // grows with each change
	CreatedAt  time.Time
	UpdatedAt  time.Time
}
