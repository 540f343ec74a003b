package topic

import (
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// The errors of this package besides those of package pg.
var (
	// ErrPositionNotFound: the log has no event at this position, or no more.
	ErrPositionNotFound = errors.New("no event of the log has this position")
	// ErrDraining: the service is about to stop.
	ErrDraining = errors.New("the service is draining")
	// ErrStale: the subscription, or the settings, have changed since the version that the change was meant for.
	ErrStale = errors.New("it has another version")
	// ErrSubscriptionNotFound: there is no subscription of this name.
	ErrSubscriptionNotFound = errors.New("no subscription has this name")
	// ErrFilterNotFound: the subscription has no filter of this name.
	ErrFilterNotFound = errors.New("no filter of the subscription has this name")
	// ErrCursorLost: the cursor can be committed no more: another one was committed in its place, a seek or a lease came in between, its lease has
	// ended, or the subscription was made anew.
	ErrCursorLost = errors.New("the cursor is lost")
	// ErrWrongDelivery: the call is for subscriptions that are delivered into queues, or for those that are not.
	ErrWrongDelivery = errors.New("the subscription is delivered otherwise")
)

// InvalidError is the error of a value that is refused.
type InvalidError = pg.InvalidError

// An Event is an event of the log.
type Event struct {
	Position     int64
	PublishedAt  time.Time
	Topic        string
	Event        json.RawMessage
	Meta         json.RawMessage // nil: none
	Key          string          // empty: none
	Subscription string          // the only one that gets it; empty: all who read
}

// An Entry is an event of the log in the hands of all who follow it: nobody may change it.
type Entry struct {
	Event
	Matched []string // the filters of the subscription that want it, maybe none; nil: it was not read for a subscription
	once    sync.Once
	encoded []byte
}

// Encoded returns the event as encode encodes it. It is encoded once for all who follow the log, so they all have to pass the same function, and nobody
// may change the result.
func (e *Entry) Encoded(encode func(*Entry) []byte) []byte {
	e.once.Do(func() { e.encoded = encode(e) })
	return e.encoded
}

// A Publication is an event to publish. All but Topic and Event may be zero.
type Publication struct {
	Topic          string
	Event          json.RawMessage
	Meta           json.RawMessage // a JSON object
	Key            string
	IdempotencyKey string
	KeyFor         time.Duration     // how long the IdempotencyKey is remembered; zero: that of the queue service, its Config.KeyRetention
	KeyScope       string            // idempotency keys of different scopes never stand for the same publication; empty: none
	Subscription   string            // the only one that gets it
	VerifiedSource string            // the source that has verified who sent it, whose name Meta has as verified_source; empty: none has, and Meta must not say so
	OnDuplicate    queue.OnDuplicate // how another publication with the IdempotencyKey is answered; empty: Match, with Meta compared, too
}

// Published is the result of a Publication.
type Published struct {
	Position     int64
	PublishedAt  time.Time
	Deduplicated bool // its idempotency key was known: this is the result of the first one
}

// A PublishResult is what became of one of several publications that were published each on its own.
type PublishResult struct {
	Published
	Err error // why it was not published; nil: it was
}

// Delayed is a publication that waits.
type Delayed struct {
	ID           int64 // of its event in the queue DelayedQueue
	At           time.Time
	Deduplicated bool
	Published    *Published // the event was published at once before under this idempotency key, and nothing waits; else nil
}

// A Gap is a part of the log that is missing: events that were, or may have been, published after After, up to and including Until.
type Gap struct {
	After, Until int64
	Reason       GapReason
}

// GapReason says why a part of the log is missing.
type GapReason string

const (
	// GapRetention says that retention has dropped events before they were read.
	GapRetention GapReason = "retention"
	// GapLost says that After was given out by a server that has lost the positions that it gave out since, or by the original of a restored or cloned database.
	GapLost GapReason = "lost"
	// GapBeyondHead says that After was never given out by this log. Reading goes on after Until, which is the head, before After.
	GapBeyondHead GapReason = "beyond_head"
)

// A Page is a part of the log, in order.
type Page struct {
	Events []Event
	Next   int64 // read on after this position: nothing that matches lies between the last event and it
	Head   int64 // the log was complete up to here
	Gap    *Gap  // nil: nothing is missing
}

// ReadParams say which events to read. All fields may be zero.
type ReadParams struct {
	After  int64         // the position to read on from; zero: the beginning
	Filter *match.Filter // nil: all events
	Topics []string      // names of topics, which make reading cheaper if Filter takes no others; nil: not known
	Limit  int           // events at most; zero: pg.DefaultPage
	Wait   time.Duration // how long to wait for the first event; zero: not at all
}

// LastParams say which events to read at the end of the log.
type LastParams struct {
	Filter *match.Filter // nil: all events
	Topics []string      // as in ReadParams
	N      int           // events
}

// FollowParams say which events to follow. All fields may be zero.
type FollowParams struct {
	After  int64         // the position to go on from; zero: the beginning
	Filter *match.Filter // nil: all events
	Topics []string      // as in ReadParams
}

// A Batch is the next part of the log, in order: first the gap, if there is one, then events.
type Batch struct {
	Entries []*Entry
	Next    int64 // nothing else that matches lies up to there
	Gap     *Gap  // nil: nothing is missing
}

// StreamStats describe the streams of a service.
type StreamStats struct {
	Open      int64 // streams
	Behind    int64 // those of them that read from the database or wait for that
	TailBytes int   // memory of the newest events, about, which all streams share
}

// A Topic is a topic with events in the log.
type Topic struct {
	Name         string `db:"topic"`
	Events       int64
	LastPosition int64
	LastAt       time.Time
}

// TopicPage is a page of topics, by name.
type TopicPage struct {
	Topics []Topic
	Next   string // cursor of the next page; empty: this is the last one
}

// Settings are the settings of the log, the same for all processes.
type Settings struct {
	Retention       time.Duration // how long a closed segment is kept at least
	Hold            time.Duration // how long at most, while a subscription needs it
	SegmentInterval time.Duration // the age at which a segment is closed
	SegmentSize     int64         // events at which a segment is closed
	Version         int64
	UpdatedAt       time.Time
}

// SettingsChange changes settings; nil: as it is.
type SettingsChange struct {
	Retention, Hold, SegmentInterval *time.Duration
	SegmentSize                      *int64
}

// Holder is the transaction that has held the head of the log for longest.
type Holder struct {
	PID      *int32 // nil: a prepared transaction
	Prepared *string
	Position int64 // events after it cannot be read yet
	Age      time.Duration
	Query    *string
}

// sqlstates are those that the functions of the schema raise about the log.
var sqlstates = pg.States{
	"QD004": ErrStale,
	"QD020": ErrSubscriptionNotFound,
	"QD021": ErrCursorLost,
	"QD022": ErrFilterNotFound,
	"QD023": ErrWrongDelivery,
}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }
