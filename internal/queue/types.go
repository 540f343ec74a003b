package queue

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/queued/queued/internal/pg"
)

// Default is the queue an event goes to when none is named.
const Default = "default"

// State is where a waiting event stands. It is derived from vt and the claims, never stored.
type State string

// The states of an event that is still in its queue.
const (
	Ready        State = "ready"     // claimable now
	Scheduled    State = "scheduled" // vt is ahead and nobody holds a lease
	Leased       State = "leased"    // claimed, and the lease still runs
	AwaitingTurn State = "waiting"   // due, but it has to wait for its turn in its group: see Flow
)

// Outcome is how an event left its queue.
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
	ID             int64
	Queue          string
	EventTS        time.Time       // as the insert said, else the payload's own event_ts, else EnqueuedAt
	EnqueuedAt     time.Time       // when it was inserted
	Attempts       int32           // claims so far
	VT             time.Time       // when it can be claimed, or could if its group had a free slot
	Claimed        []time.Time     // when each attempt began
	Payload        json.RawMessage `db:"event"` // nil: it cannot be read, see Unreadable
	LastError      *string         // of the latest nack
	RequeuedFrom   *int64          // the id in history that it was copied from
	DeadLetterOf   *int64          // the id in history of the event that it is the dead letter of
	Type, Source   string          // empty: not said
	Priority       int32           // lower first
	IdempotencyKey string          `db:"key"`       // empty: none
	Group          string          `db:"group_key"` // empty: none
	MaxAttempts    *int32          // claims at most, by the event's own account
	ExpiresAt      *time.Time      // nil: never
	Worker         string          // who has, or had, the latest lease; empty: not said
	ErrorCount     int32           // attempts that ended without success; zero on events that were just claimed: see Get
	Occurrence     json.RawMessage // the occurrence of a schedule that the event is: a JSON object, or nil
	Meta           json.RawMessage // metadata that its sender gave beside the payload: a JSON object, or nil
	Publication    json.RawMessage // the publication that a subscription has delivered: a JSON object, or nil
	Receipt        string          // the proof of the claim that returned this event; empty but on claimed events
	State          State           // empty in history
	BlockedBy      *Block          `db:"-"` // of an event in the state AwaitingTurn that was asked for by its id: what its group waits for; nil: its turn comes with the next claim

	// In history only.
	Outcome    Outcome
	FinishedAt *time.Time
	Retryable  *bool           // whether another attempt might have succeeded, by the last nack's account; nil: not said
	Result     json.RawMessage // of the ack; nil: none
	Processing *time.Duration  // how long the last attempt took; nil unless Done or Failed
	RequeuedAs *int64          // the id of the latest copy of this event that went back into a queue
	// DeadLetteredAs is the id of its dead letter; nil: it has none.
	DeadLetteredAs *int64
}

// Unreadable is why an event of history has no payload. The text of a payload is bounded when it is inserted; that of rows written into history by
// hand is not.
const Unreadable = "the event cannot be read: its JSON is too long as text, or nested too deeply"

// Lease names a claimed event and the receipt of its claim. With an empty receipt a call is about whatever lease there is.
type Lease struct {
	ID      int64
	Receipt string
	Queues  []string // an event of a queue that none of these patterns stands for is not found; nil: all queues
}

// Page is one page of a listing. Next is the cursor of the following page, empty at the end.
type Page struct {
	Events []Event
	Next   string
}

// InsertParams is one event to insert.
type InsertParams struct {
	Event json.RawMessage // a JSON object
	Queue string          // empty: Default
	Delay time.Duration   // from now until the event can be claimed; not negative; zero: the delay of the queue's policy, if it has one
	VT    *time.Time      // when the event can be claimed, instead of a delay

	Type           string     // the kind of work, up to 255 characters; empty: none
	Source         string     // where it comes from, up to 255 characters; empty: not said
	Priority       int32      // lower first
	IdempotencyKey string     // unique within the queue, up to 255 characters; empty: none
	MaxAttempts    int        // claims at most, whatever the queue's policy or a claim says; zero: not said
	ExpiresAt      *time.Time // not to be claimed from here on; nil: never

	Group string // 1 to 255 bytes, see Flow; empty: none

	EventTS     *time.Time      // the event's time, at most ten years ago or a day ahead; nil: the payload's event_ts, or now
	OnDuplicate OnDuplicate     // how another request with the IdempotencyKey is answered; empty: Match
	KeyFor      time.Duration   // how long the IdempotencyKey is remembered; zero: Config.KeyRetention
	KeyUntil    KeyUntil        // what ends the IdempotencyKey, instead of KeyFor; empty: time alone
	MaxWait     time.Duration   // with Replace and Supersede: how long after the first insert the event is due at the latest, whatever its delay; zero: its delay says
	KeyScope    string          // keys of different scopes never stand for the same event, up to 255 characters; empty: none
	Meta        json.RawMessage // goes along with the event: a JSON object of up to MaxMeta bytes; nil: none
	// VerifiedSource is the source that has verified who sent the event, whose name Meta has as verified_source; empty: none has, and Meta must not say so.
	VerifiedSource string
	Raw            *RawBody // the bytes that it came in as, to be kept if it is inserted; nil: they are not
	// IsAccepted says that what names the queue was accepted earlier, such as a source: the queue need not be declared.
	IsAccepted bool
	// AtOnce says that a Delay of zero is none, whatever the queue's policy says.
	AtOnce bool
}

// A RawBody is the bytes that an event came in as.
type RawBody struct {
	Body      []byte
	MediaType string        // as its sender called it, up to 255 characters; empty: it did not
	Keep      time.Duration // for how long it is kept, up to 3,650 days; to insert it
	KeptUntil time.Time     // until when it is kept, once it has been read
}

// MaxMeta is how long the metadata of an event or a publication may be, in bytes of JSON as PostgreSQL writes it, with blanks after colons and
// commas.
const MaxMeta = 16 << 10

// OnDuplicate says how a request is answered whose idempotency key stands for an event already.
type OnDuplicate string

// The ways to answer such a request.
const (
	Match OnDuplicate = "match" // it is answered as the first was if it says the same, Meta aside; else it fails with ErrKeyReused
	First OnDuplicate = "first" // it is answered as the first was, whatever it says
	// Replace: an event that nobody has claimed takes the place of the first one, under its id. One that was claimed and waits again is cancelled for it, one that is leased is
	// left alone, and where the first one has ended, the event is inserted.
	Replace OnDuplicate = "replace"
	// Supersede is Replace, but that one that is leased is cancelled, too: its receipt is lost.
	Supersede OnDuplicate = "supersede"
)

// isReplacing reports whether the request may take the place of an event.
func (d OnDuplicate) isReplacing() bool { return d == Replace || d == Supersede }

// KeyUntil says what ends an idempotency key.
type KeyUntil string

// What ends an idempotency key.
const (
	UntilClaimed  KeyUntil = "claimed"  // the first claim of its event, unless it is released
	UntilFinished KeyUntil = "finished" // the end of its event, which goes into history
)

// Inserted is the result of one InsertParams.
type Inserted struct {
	ID           int64
	Queue        string
	VT           time.Time
	Deduplicated bool // the key stood for this event already: nothing was inserted
}

// An InsertResult is what became of one of several events that were inserted each on its own.
type InsertResult struct {
	Inserted
	Err error // why it was not inserted; nil: it was
}

// ClaimParams says which events to claim and for how long.
type ClaimParams struct {
	Queue        string        // empty: Default
	Limit        int           // events at most; zero: 1
	MaxAttempts  int           // events already claimed this often are left alone, unless they or the queue's policy say otherwise; zero: Config.MaxAttempts
	InvisibleFor time.Duration // the length of the lease; zero: the queue's policy, or DefaultInvisibleFor
	Wait         time.Duration // how long to hold on for the first event; zero: not at all
	Order        Order         // within a priority; empty: FIFO
	Types        []string      // events of these types only; empty: whatever the type
	ExcludeIDs   []int64       // none of these events
	Worker       string        // who claims, up to 255 characters; empty: not said
}

// Ack acks one claimed event.
type Ack struct {
	Lease
	Result json.RawMessage // kept in history; nil: none

	WantsTrace bool // see AckResult.Trace
}

// An EventTrace is the trace context in the metadata of an event, as it was written there, and the queue of the event; zero: they were not asked for, or there is no event.
type EventTrace struct {
	Queue, Parent, State string
}

// AckResult is the result of an Ack for one lease.
type AckResult struct {
	ID      int64
	Outcome Outcome // Done or Cancelled when Err is nil
	Err     error   // nil, ErrNotFound or ErrLeaseLost
	Trace   EventTrace
}

// NackParams nacks one claimed event.
type NackParams struct {
	Lease
	Delay     *time.Duration // from now until the event can be claimed again; not negative; nil: as the queue's policy says, or at once
	Error     string         // kept as the event's last error; empty: the last one stays
	Final     bool           // move it to history as Failed instead
	Retryable *bool          // whether another attempt might succeed; false: move it to history as Failed; nil: not said
	HoldGroup *time.Duration // for how long nothing of the event's group is handed out; a longer hold stays; nil: it is, and so it is if the event has none

	WantsTrace bool // see NackResult.Trace
}

// NackResult says where a nacked event went: Outcome is Failed after a final nack, or one on the last attempt that the
// event or its queue's policy allows, otherwise empty and VT says when the event can be claimed again. IsExhausted says that it is
// not, though it waits: neither of the two says how often it may be claimed, and Config.MaxAttempts are used up. A sweep expires it.
type NackResult struct {
	VT          time.Time
	Outcome     Outcome
	IsExhausted bool
	Trace       EventTrace
}

// SweepParams says which events an explicit sweep expires.
type SweepParams struct {
	MaxAttempts int            // expire events claimed this often; zero: Config.MaxAttempts
	MaxVTAge    *time.Duration // expire events claimable for longer; nil: by attempts alone
	Queue       string         // empty: every queue
}

// ListParams filters the events that wait.
type ListParams struct {
	Queue  string // empty: every queue
	State  State  // empty: every state
	Group  string // of the Queue, which must be given with it; empty: any, and none
	Limit  int    // zero: DefaultPage
	Cursor string // a Page.Next, or empty for the first page

	Contains, Meta json.RawMessage // JSON objects that the event and its metadata contain, as jsonb's @> has it; nil: any
	Queues         []string        // only queues that one of these patterns stands for: a name, or the beginning of one before *; nil: all
}

// HistoryFilter selects events in history; zero fields select everything.
type HistoryFilter struct {
	Queue    string
	Outcome  Outcome
	From, To *time.Time // bounds of event_ts: From inclusive, To exclusive

	// FinishedFrom and FinishedTo are bounds of finished_at: FinishedFrom inclusive, FinishedTo exclusive.
	FinishedFrom, FinishedTo *time.Time

	Contains json.RawMessage // a JSON object the event contains, as jsonb's @> has it
	ID       *int64

	Type, Source, Worker string
	MinDuration          *time.Duration  // how long the last attempt took at least; only Done and Failed events have that
	Cause                string          // of the last error of those that Failed or Expired, as a Cause.Text; empty: any
	Meta                 json.RawMessage // a JSON object the event's metadata contains
	Queues               []string        // patterns as in ListParams; nil: all
}

// HistoryParams asks for one page of history, newest event_ts first.
type HistoryParams struct {
	HistoryFilter
	Limit  int    // zero: DefaultPage
	Cursor string // a Page.Next, or empty for the first page
}

// StatsParams asks for counts of history per time bucket.
type StatsParams struct {
	Bucket   time.Duration // at least a second; aligned to the epoch
	From, To time.Time     // bounds of event_ts: From inclusive, To exclusive
	Queue    string        // empty: every queue
	Queues   []string      // patterns as in ListParams; nil: all
}

// StatsBucket counts the events of history whose event_ts lies in [Start, Start + bucket).
type StatsBucket struct {
	Start                            time.Time
	Done, Failed, Expired, Cancelled int64
}

// RequeueParams puts events of history back by filter, oldest first. Events that were
// requeued before are passed over, so that a repeated call goes on where the last one stopped.
type RequeueParams struct {
	HistoryFilter
	Limit  int  // events at most; zero: MaxBatch
	DryRun bool // count only
}

// RequeueResult says how many events matched the filter and how many of them went back.
type RequeueResult struct {
	Matched, Requeued int64
}

// The kinds of Backoff.
const (
	Constant    BackoffKind = "constant"    // Base each time
	Linear      BackoffKind = "linear"      // Base, and Factor times Base more each time
	Exponential BackoffKind = "exponential" // Base, and Factor times as long each time
)

// BackoffKind says how a delay grows from attempt to attempt.
type BackoffKind string

// Backoff says how long an event waits after an attempt that was nacked.
type Backoff struct {
	Kind   BackoffKind
	Base   time.Duration  // the delay after the first attempt
	Factor *float64       // 1 to 1000; nil: 2 for Exponential, else 1
	Max    *time.Duration // the longest delay; nil: ten years
	Jitter float64        // the share, 0 to 1, of the delay by which it varies either way
}

// Policy has the settings of a queue. Each field that is nil leaves it to the calls, and to the service's defaults.
type Policy struct {
	Queue        string
	MaxAttempts  *int           // claims of an event at most, unless the event has its own
	InvisibleFor *time.Duration // the length of a lease when the claim does not say
	Backoff      *Backoff       // nil: a nacked event is claimable again at once
	Paused       bool           // takes events and hands out none
	Retention    *time.Duration // how long history is kept, by event_ts; nil: as Config.Retention says
	DeadLetter   *DeadLetter    // where its events go, besides history, that end as Failed or Expired; nil: nowhere
	Delay        *time.Duration // of inserts that say neither a delay nor a vt
	Wait         *time.Duration // of claims that do not say, up to MaxWait: see PolicyWait
	GroupFrom    *string        // a JSON pointer to the group of events that come without one, in their payloads; nil: they have none
	Flow         *Flow          // nil: any number of events may be leased at once
	Version      int64          // another one after each change; zero: the queue has no policy
	UpdatedAt    *time.Time     // nil: the queue has no policy
}

// DeadLetter says what becomes of events that end as Failed or Expired.
type DeadLetter struct {
	Queue string // where their dead letters go; it has no dead letters of its own
}

// Flow limits which events are leased at once. The limits hold at every instant, whoever claims; a change takes no lease from anybody.
type Flow struct {
	Concurrency *int      `db:"flow_concurrency"` // of each group, 1 to MaxConcurrency; nil: any number
	Total       *int      `db:"flow_total"`       // of the queue, 1 to MaxConcurrency; nil: any number
	Order       bool      `db:"flow_order"`       // of a group, only the first unfinished event can be claimed, by id
	OnFailed    *OnFailed `db:"flow_on_failed"`   // of groups in order; nil: ContinueOnFailed, or there is no order
	Rate        *Rate     `db:"-"`                // of the claims of each group; nil: any number
	Fair        bool      `db:"flow_fair"`        // groups take turns, the least recently served one first; events without a group are one
}

// Rate limits how many events of a group are claimed in any window of time: Burst, and Limit more in each Period. Retries count; claims that are released do not, unless there was a later one.
type Rate struct {
	Limit  int           // 1 to MaxConcurrency
	Period time.Duration // 10 ms to 24 h
	Burst  int           // 1 to MaxConcurrency
}

// rateColumns is a Rate as rows have it.
type rateColumns struct {
	RateLimit  *int
	RatePeriod *time.Duration
	RateBurst  *int
}

func (c *rateColumns) rate() *Rate {
	if c.RateLimit == nil || c.RatePeriod == nil || c.RateBurst == nil {
		return nil
	}
	return &Rate{*c.RateLimit, *c.RatePeriod, *c.RateBurst}
}

// object returns the rate as SQL takes it; nil: none.
func (r *Rate) object() map[string]any {
	if r == nil {
		return nil
	}
	object := map[string]any{"limit": r.Limit, "burst": r.Burst}
	putInterval(object, "period", &r.Period)
	return object
}

// What becomes of a group in order when one of its events ends without success: it fails, or it expires after it was claimed.
const (
	ContinueOnFailed OnFailed = "continue" // the next one has its turn
	BlockOnFailed    OnFailed = "block"    // none has, until that one is requeued into its place, or the group is unblocked
)

// OnFailed says what becomes of a group in order behind an event that failed.
type OnFailed string

// MaxConcurrency is the highest limit that a Flow may have.
const MaxConcurrency = 10_000

// Precondition is the state that a change is meant for. Every state meets the zero value.
type Precondition struct {
	Versions []int64 // it has one of these; nil: any
	Exists   bool    // there is one
	Absent   bool    // there is none
}

// Attempt is one claim of an event and how it ended.
type Attempt struct {
	Number    int32  `db:"attempt"`
	Worker    string // empty: not said
	StartedAt time.Time
	EndedAt   *time.Time // nil: it is running
	Outcome   AttemptOutcome
	Error     *string
}

// AttemptOutcome is how an attempt ended.
type AttemptOutcome string

// The outcomes of an attempt.
const (
	AttemptRunning    AttemptOutcome = "running"
	AttemptDone       AttemptOutcome = "done"
	AttemptFailed     AttemptOutcome = "failed"      // nacked, and the event went to history
	AttemptNacked     AttemptOutcome = "nacked"      // nacked, to be tried again
	AttemptLeaseEnded AttemptOutcome = "lease_ended" // nobody finished it in time
)

// Execution is the statistics of the work on one type by one worker, each empty where unnamed. Only attempts that ended as Done count.
type Execution struct {
	Type, Worker                             string
	Cycles                                   int64
	Latest, Average, Fastest, Longest, Total time.Duration
	LatestAt                                 time.Time
}

// Process is one running service, with its metrics by category: see the constants Metric….
type Process struct {
	ID, Name  string
	UpdatedAt time.Time
	Metrics   map[string]string
}

// The categories of a Process's metrics. Counts are since its start.
const (
	MetricVersion  = "version"
	MetricStarted  = "started_at" // RFC 3339
	MetricWaiting  = "waiting"    // claims that wait now
	MetricInserted = "posted"
	MetricClaimed  = "claimed"
	MetricAcked    = "acked"
	MetricNacked   = "nacked"
	MetricFailed   = "failed"
	MetricExpired  = "expired"
	MetricReleased = "released"
	MetricPusher   = "pusher" // true: it pushes
)

// A LeaseResult is the result of ReleaseEach or ExtendEach for one lease.
type LeaseResult struct {
	ID  int64
	VT  time.Time // from when the event can be claimed, or until when it is leased
	Err error     // nil, ErrNotFound or ErrLeaseLost
}

// RunParams says which of the events that wait for their time are to be claimable now.
type RunParams struct {
	Queue      string
	Types      []string // events of these types only; none: whatever the type
	NackedOnly bool     // only those that wait after a nack: events that their senders have delayed stay as they are
	Limit      int      // events at most; zero: all
}

// QueuesParams asks for one page of the queues, by name.
type QueuesParams struct {
	Lately time.Duration // finished events are counted over this time; zero: not at all
	Limit  int           // zero: DefaultPage
	Cursor string        // a QueuesPage.Next, or empty for the first page
	Queues []string      // patterns as in ListParams; nil: all

	NameContains string // only queues with this in their names, in upper or lower case; empty: all
}

// QueuesPage is one page of the queues. Next is the cursor of the following page, empty at the end.
type QueuesPage struct {
	Queues []QueueStats
	Next   string
}

// QueueStats describes one queue.
type QueueStats struct {
	Queue            string
	Ready, Scheduled int64
	Waiting          int64 // in the state AwaitingTurn
	Leased           int64
	OldestReadyAge   *time.Duration // how long the longest-waiting ready event has been claimable; nil: none is
	DoneLately       int64          // left as done lately
	FailedLately     int64          // left as failed lately
	ExpiredLately    int64          // left as expired lately
	Estimated        bool           // there is so much that some of the counts are estimates
	Paused           bool           // it hands out nothing: see Pause
	DeadLettersOf    []string       // the queues whose dead letters it takes, by name; the first hundred
}

// Events counts the events of the queue, whatever their state.
func (q *QueueStats) Events() int64 { return q.Ready + q.Scheduled + q.Waiting + q.Leased }

// The errors of calls. Every error of this package that a caller can do something about wraps one of these; anything else is a fault of the
// system. ErrLocked and ErrOverloaded are ErrUnavailable, too, and nothing was written.
var (
	ErrNoRawBody       = errors.New("no raw body is kept of this event")
	ErrNotFound        = errors.New("no such event")                                  // no event has this id, in the queue or in history, as the call says
	ErrLeaseLost       = errors.New("the lease was lost")                             // the receipt is not that of the latest claim, was released, or the event has left its queue
	ErrStale           = errors.New("the version is not the one that was asked for")  // a precondition is not met
	ErrLeased          = errors.New("the event is leased")                            // a call is for events that nobody has a lease on
	ErrEnded           = errors.New("the event has left its queue")                   // it is in history
	ErrRequeued        = errors.New("a copy of the event is in a queue, or done")     // the error is a *RequeuedError
	ErrQueueNotFound   = errors.New("no such queue")                                  // it has neither a policy nor a push nor an event
	ErrQueueNotEmpty   = errors.New("the queue has events")                           // the error is a *RefusedError
	ErrQueueInUse      = errors.New("the queue is in use")                            // schedules, sources, subscriptions or other queues name it; the error is a *RefusedError
	ErrQueueLeased     = errors.New("the queue has events under a lease")             // the error is a *RefusedError
	ErrDeadLetterChain = errors.New("a dead-letter queue has dead letters")           // a policy would give a dead-letter queue dead letters of its own
	ErrIDsExhausted    = pg.ErrIDsExhausted                                           // there are no more ids for events
	ErrNotDeclared     = pg.ErrNotDeclared                                            // it has no policy, and Config.DeclaredOnly wants one; the error is an *UndeclaredError
	ErrRedriveNotFound = errors.New("no such redrive")                                // or it is about queues of others
	ErrRedriveEnded    = errors.New("the redrive has ended")                          // it is done, was cancelled, or has failed
	ErrTooManyRedrives = errors.New("too many redrives")                              // that the caller has created run, are paused or have failed
	ErrKeyReused       = pg.ErrKeyReused                                              // the idempotency key stands for an event with another payload or other options
	ErrKeyLeft         = pg.ErrKeyLeft                                                // the idempotency key was left to another cell, which the queue is placed on
	ErrInvalid         = pg.ErrInvalid                                                // the database refused a value; the error is an *InvalidError
	ErrUnrepresentable = pg.ErrUnrepresentable                                        // PostgreSQL cannot hold the event as it is
	ErrBadCursor       = pg.ErrBadCursor                                              // the cursor is not one that this listing returned
	ErrQueryTimeout    = pg.ErrQueryTimeout                                           // the statement took longer than Config.QueryTimeout
	ErrUnavailable     = pg.ErrUnavailable                                            // no connection, a broken one, or no room; whether a write was committed may be unknown
	ErrOutdated        = errors.New("the schema has moved beyond this program")       // processes of its version cannot run on it
	ErrNotSynchronous  = errors.New("commits wait for no synchronous standby")        // and Config.RequireSync wants them to
	ErrLocked          = pg.ErrLocked                                                 // another transaction holds a lock that the call needs, and did not end in time
	ErrOverloaded      = fmt.Errorf("%w: too many calls wait for it", ErrUnavailable) // more than the service takes in
)

// InvalidError is a value the database refused, in words for the caller.
type InvalidError = pg.InvalidError

// RefusedError is why a queue cannot be deleted: Unwrap is ErrQueueNotEmpty, ErrQueueInUse or ErrQueueLeased.
type RefusedError struct {
	Err    error
	Detail string // how many events there are, how many are leased, or who uses the queue
}

func (e *RefusedError) Error() string { return e.Err.Error() + ": " + e.Detail }

// Unwrap makes errors.Is work.
func (e *RefusedError) Unwrap() error { return e.Err }

// RequeuedError is why an event is not requeued: Unwrap is ErrRequeued.
type RequeuedError struct {
	Copy int64 // what the event, or its copy, was requeued as
}

func (e *RequeuedError) Error() string { return fmt.Sprintf("%v: %d", ErrRequeued, e.Copy) }

// Unwrap makes errors.Is work.
func (e *RequeuedError) Unwrap() error { return ErrRequeued }

// UndeclaredError is why a call is refused that names a queue which is not declared: see Config.DeclaredOnly.
type UndeclaredError = pg.UndeclaredError

// sqlstates are those that the functions of the schema raise about events (sql/idempotent/001-event.sql).
var sqlstates = pg.States{
	"QD001": ErrLeaseLost,
	"QD002": ErrNotFound,
	"QD004": ErrStale,
	"QD006": ErrLeased,
	"QD007": ErrEnded,
	"QD008": ErrRequeued,
	"QD060": ErrQueueNotFound,
	"QD061": ErrQueueNotEmpty,
	"QD062": ErrQueueInUse,
	"QD063": ErrQueueLeased,
	"QD065": ErrDeadLetterChain,
	"QD066": ErrRedriveNotFound,
	"QD067": ErrRedriveEnded,
	"QD068": ErrTooManyRedrives,
}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }
