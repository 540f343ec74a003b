package schedule

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/queued/queued/internal/pg"
)

type (
	// Kind is how a schedule's times are given.
	Kind string
	// Status is the status of a schedule.
	Status string
	// Misfire decides on missed occurrences: those still due Config.MisfireGrace after their time. Occurrences that do not fire are recorded as skipped.
	Misfire string
	// Gap decides on a civil time that a zone leaves out. Rules that come within days follow real time: they have no such time, whatever it is.
	Gap string
	// Overlap decides on a civil time that a zone has twice. Rules that come within days have both.
	Overlap string
	// Leap decides on a yearly 29 February in a common year.
	Leap string
	// OccurrenceStatus is the status of an occurrence, which follows its event.
	OccurrenceStatus string
)

// The values of these types, as HTTP and SQL have them.
const (
	Once  Kind = "once"  // at one time
	RRule Kind = "rrule" // by a recurrence rule of RFC 5545
	Cron  Kind = "cron"  // by a cron expression

	Active    Status = "active"    // fires
	Paused    Status = "paused"    // does not fire until it is resumed
	Completed Status = "completed" // has no occurrence left, unless it is changed
	Cancelled Status = "cancelled" // deleted, or its owner was; final

	MisfireOnce Misfire = "once" // the latest of those missed fires now
	MisfireAll  Misfire = "all"  // each fires now, in order
	MisfireSkip Misfire = "skip" // none fires

	GapForward Gap = "forward" // later by the gap's length: 02:30 at 03:30
	GapNext    Gap = "next"    // at the gap's end: 02:30 at 03:00
	GapSkip    Gap = "skip"    // not at all

	OverlapFirst Overlap = "first"
	OverlapLast  Overlap = "last"

	LeapFeb28 Leap = "feb28"
	LeapMar1  Leap = "mar1"
	LeapSkip  Leap = "skip" // not at all

	OccurrencePending    OccurrenceStatus = "pending"    // its event waits in the queue
	OccurrenceProcessing OccurrenceStatus = "processing" // its event is leased
	OccurrenceCompleted  OccurrenceStatus = "completed"  // its event was acked
	OccurrenceFailed     OccurrenceStatus = "failed"     // its event failed for good, or expired
	OccurrenceCancelled  OccurrenceStatus = "cancelled"  // before its event was claimed
	OccurrenceSkipped    OccurrenceStatus = "skipped"    // missed, and not fired by the misfire policy
	OccurrencePublished  OccurrenceStatus = "published"  // to its topic
)

// Spec has the fields of a schedule that a caller decides.
type Spec struct {
	Name     string          // free text, empty: none
	Owner    string          // an owner's id, empty: none
	Queue    string          // of its events, empty: the default queue, or none with a Topic
	Topic    string          // its occurrences are published to; then it has no Queue, Type, Priority and Group
	Type     string          // of its events, empty: none
	Priority int32           // of its events, lower first
	Group    string          // of its events, at most 255 bytes; empty: none of their own
	Event    json.RawMessage // a JSON object, the payload of each event

	// At is the time of a schedule without RRule and Cron. With an RRule it is where the rule starts (DTSTART). A Cron has none.
	At    *Moment
	RRule string // a recurrence rule of RFC 5545, with or without the leading "RRULE:"
	Cron  string // five fields, or six with seconds in front, or @hourly, @daily, @weekly, @monthly, @yearly

	// Timezone is an IANA name; empty: the owner's. One of them is needed unless At is an instant.
	Timezone string
	Starts   *Moment // no occurrence before; nil: no bound
	Ends     *Moment // no occurrence after; nil: no bound
	Count    int     // completed after so many occurrences became events or were published; zero: no bound

	Misfire Misfire // empty: MisfireOnce
	Gap     Gap     // empty: GapForward
	Overlap Overlap // empty: OverlapFirst
	Leap    Leap    // empty: LeapFeb28
}

// Schedule is a schedule as it is stored. In its Spec the policies and either the queue or the topic are always set.
type Schedule struct {
	ID int64
	Spec
	Kind      Kind
	Zone      string // its own zone, or its owner's; "UTC" when At is an instant
	Status    Status
	Fired     int64      // occurrences that became events or were published, without those of RunNow
	Version   int64      // grows with each change by a caller, of the schedule or of its owner's zone
	NextLocal *time.Time // the civil time of the next occurrence; nil: there is none
	NextAt    *time.Time // the instant that it is resolved to
	CreatedAt time.Time
	UpdatedAt time.Time
	// StatusReason is why the service paused it, or why its row is invalid; empty: neither.
	StatusReason string
}

// Occurrence is one time of a schedule that has come, or was skipped.
type Occurrence struct {
	ScheduleID    int64
	NominalAt     time.Time // its civil time, which with ScheduleID is its key, unless the rule comes within days: then ScheduledFor is
	Manual        bool      `db:"is_manual"` // made by RunNow
	ScheduledFor  time.Time // the instant it was due
	Status        OccurrenceStatus
	EventID       *int64     // its event, or that event's latest copy if it was requeued; nil: none
	Topic         *string    // it was published to; nil: it was not
	FiredAt       *time.Time // when it became an event or was published
	ExecutedAt    *time.Time // when its event's last attempt ended
	FailureReason *string    // why it failed, was skipped or cancelled
	RetryCount    int32      // attempts after the first
}

// Instant is a time to come: the civil time and the instant that it is resolved to.
type Instant struct {
	Local time.Time
	UTC   time.Time
}

// Upcoming is an Instant of a schedule with what is special about it.
type Upcoming struct {
	Instant
	Note Note
}

// Note says what the clocks of a zone do with a civil time.
type Note string

const (
	// NoteSkipped is of a time that the clocks skip, as they go forward: the Gap policy has moved it.
	NoteSkipped Note = "skipped"
	// NoteRepeated is of a time that the clocks show twice, as they go back: the Overlap policy has chosen one of the two, or both come.
	NoteRepeated Note = "repeated"
)

// Owner is a person or thing whose schedules can follow their time zone.
type Owner struct {
	ID         string
	Timezone   string
	Attributes json.RawMessage // a JSON object
	Version    int64           // grows with each change
	CreatedAt  time.Time
	UpdatedAt  time.Time
}

// The errors of calls. Every error of this package that a caller can do something about wraps one of these; anything else is a fault of
// the system.
var (
	// ErrNotFound: no schedule has this id.
	ErrNotFound = errors.New("no such schedule")
	// ErrOwnerNotFound: no owner has this id.
	ErrOwnerNotFound = errors.New("no such owner")
	// ErrStale: the schedule or owner is not at the version that the call asked for.
	ErrStale = errors.New("not at this version")
	// ErrEnded: the schedule was cancelled, or is completed and has nothing to pause or resume.
	ErrEnded = errors.New("the schedule has ended")

	ErrKeyReused       = pg.ErrKeyReused       // the idempotency key belongs to another request
	ErrInvalid         = pg.ErrInvalid         // a value is refused; the error is an *InvalidError
	ErrNotDeclared     = pg.ErrNotDeclared     // nobody has made the queue, and Config.DeclaredOnly is set; the error is an *UndeclaredError
	ErrUnrepresentable = pg.ErrUnrepresentable // PostgreSQL cannot hold a value as it is
	ErrBadCursor       = pg.ErrBadCursor       // the cursor is not one that this listing returned
	ErrQueryTimeout    = pg.ErrQueryTimeout    // a listing or an expansion took longer than Config.QueryTimeout
	ErrUnavailable     = pg.ErrUnavailable     // the database cannot be used; whether a write was committed may be unknown
)

// InvalidError is a value that is refused, in words for the caller.
type InvalidError = pg.InvalidError

// UndeclaredError is why a schedule is refused that names a queue which is not declared: see Config.DeclaredOnly.
type UndeclaredError = pg.UndeclaredError

// errChanged: the schedule, or its owner, has changed since it was expanded. It is expanded again.
var errChanged = errors.New("changed since it was expanded")

// sqlstates are those that the functions of the schema raise about schedules, see sql/idempotent.
var sqlstates = pg.States{
	"QD004": ErrStale,
	"QD010": ErrNotFound,
	"QD011": ErrOwnerNotFound,
	"QD012": ErrEnded,
	"QD013": errChanged,
	"25P03": ErrUnavailable, // idle_in_transaction_session_timeout: this process was stopped for a while
}
