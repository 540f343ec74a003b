package webhook

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/queued/queued/internal/pg"
)

// The errors of this package besides those of packages pg, queue and topic.
var (
	// ErrNotFound: there is no source with this name.
	ErrNotFound = errors.New("no source has this name")
	// ErrStale: the source has changed since the version that a change was meant for.
	ErrStale = errors.New("the source has another version")
	// ErrPaused: the source takes nothing now.
	ErrPaused = errors.New("the source is paused")
	// ErrSealing: there is no key for secrets, or the secrets of the source were sealed under another one.
	ErrSealing = errors.New("secrets cannot be sealed or opened")
	// ErrLookUps: so many unknown names were asked for that this one was not looked up. It is a pg.ErrUnavailable.
	ErrLookUps = errors.Join(errors.New("too many unknown sources"), pg.ErrUnavailable)
)

// InvalidError is the error of a value that is refused.
type InvalidError = pg.InvalidError

// A RateError is the error of a delivery beyond the rate limit of its source in this process.
type RateError struct{ Retry time.Duration }

// Error implements error.
func (e *RateError) Error() string {
	return fmt.Sprintf("beyond the rate limit of the source for %s", e.Retry)
}

// A RejectedError is the error of a delivery that is not proven to be from the source. Reason is for the source's owner, not for the sender.
type RejectedError struct {
	Code, Reason string
	Retry        time.Duration // zero, unless the source has had more of these than a process answers one by one
}

// Error implements error.
func (e *RejectedError) Error() string { return "the delivery was rejected: " + e.Reason }

// A BodyError is the error of a delivery that is from the source and cannot become an event.
type BodyError struct{ Err error }

// Error implements error.
func (e *BodyError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *BodyError) Unwrap() error { return e.Err }

// sqlstates are those that the functions of the schema raise about sources.
var sqlstates = pg.States{"QD004": ErrStale, "QD040": ErrNotFound}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }

// Defaults and bounds of sources.
const (
	DefaultDedupFor = 7 * 24 * time.Hour
	MaxSecrets      = 5
)

// Params are a source to put. Kind, and Queue or Topic, are required.
type Params struct {
	Kind  Kind
	Queue string // where its events go, or
	Topic string // where they are published

	Type, Key, EventTS, Priority, Group string // see Template; empty: those of the kind

	Signature *Signature    // of kind hmac
	Header    string        // of kind token; empty: Authorization
	Secrets   []string      // nil: those that the source has
	DedupFor  time.Duration // how long the key of a delivery is remembered; zero: DefaultDedupFor
	Tolerance time.Duration // how far the timestamp of a signature may be from now; zero: DefaultTolerance
	KeepRaw   time.Duration // how long the bytes of a delivery are kept; zero: not at all
	Headers   []string      // fields that are kept in the metadata
	MaxBody   int           // bytes; zero: the limit of all requests
	Rate      *Rate         // nil: there is no limit
	Paused    bool
}

// A Rate is how many deliveries a source may make.
type Rate struct {
	PerSecond float64
	Burst     int // deliveries at once
}

// A Source has the fields of a source that may be shown.
type Source struct {
	Name string
	Params
	SecretCount int // Params.Secrets is nil
	Version     int64
	CreatedAt   time.Time
	UpdatedAt   time.Time

	Received, Duplicates, Rejected int64 // duplicates are among the received
	LastReceivedAt                 *time.Time
	LastRejected                   *Rejection // nil: nothing was
	LastProblem                    *Problem   // nil: there was none
}

// A Rejection is the latest delivery that was refused.
type Rejection struct {
	At        time.Time
	Code      string
	RequestID string
}

// A Problem is the latest delivery whose event has a field that stayed empty, because its template met no value, or none that fits.
type Problem struct {
	At        time.Time
	Detail    string
	RequestID string
}

// A Page is a page of sources, by name.
type Page struct {
	Sources []Source
	Next    string // cursor of the next page; empty: this is the last one
}

// A Delivery is a request of a sender.
type Delivery struct {
	Header http.Header
	Query  url.Values
	Body   []byte
	// Verified is called once the sender is known, before anything is made of the body; nil: nothing is. When it fails, so does the delivery.
	Verified func() error
	// Sending is called before the events are inserted or published into a queue or a topic, and may change their metadata; what it returns is called afterwards, with the
	// id or the position of the event if it is no batch, else with 0. Nil: nothing is.
	Sending func(isTopic bool, destination string, isBatch bool, metas []json.RawMessage) (sent func(id int64, err error))
	// Check returns an error for an object that cannot be an event; nil: all can be.
	Check func(json.RawMessage) error
}

// A Result is the result of a delivery: one event, or those of a batch.
type Result struct {
	Challenge    string  // the answer of a new endpoint; empty: there are events
	IDs          []int64 // of the events; nil: they were published
	Positions    []int64 // of the events in the log
	IsBatch      bool
	Key          string // of the first event; empty: it has none
	Deduplicated bool   // the keys of all events were known: nothing was inserted
}

// A Trial is the result that a delivery would have.
type Trial struct {
	Refusal *Refusal // nil: it was verified
	Err     error    // why its body cannot become an event; nil: it can
	Mapped  []Mapped // the events that it would become
	IsBatch bool
}
