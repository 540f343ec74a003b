package push

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/seal"
)

// A Format is the form of the body of a request.
type Format string

// The formats.
const (
	Standard    Format = "standard"    // {"type", "timestamp", "data"}, of Standard Webhooks
	CloudEvents Format = "cloudevents" // a CloudEvent in structured mode
	Event       Format = "event"       // the event itself
)

// A Status is the state of a push.
type Status string

// The statuses.
const (
	StatusEnabled  Status = "enabled"  // it pushes
	StatusHeld     Status = "held"     // the endpoint has asked for a pause
	StatusOpen     Status = "open"     // the endpoint fails: one event is tried from time to time
	StatusDisabled Status = "disabled" // it pushes nothing until Enable
)

// A Rate bounds the requests to an endpoint.
type Rate struct {
	PerSecond float64
	Burst     int
}

// A Push has the fields that may be shown of the push of a queue.
type Push struct {
	Queue         string
	URL           string
	Format        Format
	HeaderNames   []string
	Timeout       time.Duration
	MaxInFlight   int
	Rate          *Rate `db:"-"` // nil: there is no limit
	FinalStatuses []int
	DisableAfter  time.Duration

	Status         Status
	Failures       int        // in a row
	FailingSince   *time.Time // the first of them
	LastFailureAt  *time.Time
	LastError      *string
	LastSuccessAt  *time.Time
	RetryAt        *time.Time // nothing is pushed before
	DisabledAt     *time.Time
	DisabledReason *string
	Secrets        []Secret `db:"-"` // the current one first

	Version   int64
	CreatedAt time.Time
	UpdatedAt time.Time
}

// A Secret has the fields that may be shown of a secret that requests are signed with.
type Secret struct {
	CreatedAt time.Time  `json:"created_at"`
	LiveUntil *time.Time `json:"live_until"` // nil: it is the current one
}

// PutParams say where the events of a queue are pushed to, and how.
type PutParams struct {
	Queue         string
	URL           string
	Format        Format
	Headers       map[string]string // further fields of requests; nil: those that there are stay; empty: none
	Timeout       time.Duration     // of one request
	MaxInFlight   int               // requests at a time
	Rate          *Rate             // nil: there is no limit
	FinalStatuses []int             // after which an event is not tried again
	DisableAfter  time.Duration     // of failing

	IfVersions []int64 // it has one of these versions; nil: any, or there is none
	IfExists   bool    // there is one
	IfAbsent   bool    // there is none
}

// A TestResult is the result of a test event.
type TestResult struct {
	Status  int // zero: there was no answer
	Took    time.Duration
	Excerpt string // the beginning of the body of the answer
	Error   string // why there was no answer
}

// IsDelivered reports whether the endpoint has taken the test event.
func (r TestResult) IsDelivered() bool { return egress.Response{Status: r.Status}.OK() }

// TestTimeout bounds the timeout of a test event.
const TestTimeout = 10 * time.Second

// TestType is the type of test events.
const TestType = "queued.push.test"

// The errors of this package besides those of packages pg and seal.
var (
	// ErrNotFound: the queue has no push.
	ErrNotFound = errors.New("the queue has no push")
	// ErrStale: the push has changed since the version that a change was meant for.
	ErrStale = errors.New("the push has another version")
	// ErrSealed: the secrets of the push cannot be opened here.
	ErrSealed = seal.ErrSealed
	// ErrNoSealer: there is no key to seal secrets with.
	ErrNoSealer = errors.New("there is no key to seal secrets with")
)

// TestLimitError is the error of a test event that has not been sent because there were too many.
type TestLimitError struct{ RetryIn time.Duration }

func (e *TestLimitError) Error() string {
	return "too many test events: retry in " + e.RetryIn.String()
}

// InvalidError is the error of a value that is refused.
type InvalidError = pg.InvalidError

// sqlstates are those that the functions of the schema raise about pushes.
var sqlstates = pg.States{
	"QD004": ErrStale,
	"QD050": ErrNotFound,
}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }

// infoColumns are those of an infoRow.
const infoColumns = `queue, url, format, header_names, timeout, max_in_flight, rate_per_second, rate_burst, final_statuses, disable_after, status, failures, failing_since,
	last_failure_at, last_error, last_success_at, retry_at, disabled_at, disabled_reason, secrets, version, created_at, updated_at`

// An infoRow is a Push as the database has it.
type infoRow struct {
	Push
	RatePerSecond *float64
	RateBurst     *int
	SecretList    json.RawMessage `db:"secrets"`
}

func (r *infoRow) push() (Push, error) {
	r.Rate = rateOf(r.RatePerSecond, r.RateBurst)
	err := json.Unmarshal(r.SecretList, &r.Secrets)
	return r.Push, err
}

func rateOf(perSecond *float64, burst *int) *Rate {
	if perSecond == nil || burst == nil {
		return nil
	}
	return &Rate{*perSecond, *burst}
}
