package access

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/queued/queued/internal/pg"
)

// A Scope is a kind of calls.
type Scope string

// The scopes.
const (
	Publish Scope = "publish" // insert events, publish
	Claim   Scope = "claim"   // claim, and ack, nack and extend with a receipt; read subscriptions and commit
	Read    Scope = "read"    // look at everything but keys
	Manage  Scope = "manage"  // change queues, schedules, subscriptions, history
	Metrics Scope = "metrics"
	Admin   Scope = "admin" // everything, keys and the audit included
)

// Scopes are all scopes.
var Scopes = []Scope{Publish, Claim, Read, Manage, Metrics, Admin}

// The errors of this package besides those of package pg.
var (
	// ErrUnauthorized: the text is that of no key, or of no session, or of one that has ended.
	ErrUnauthorized = errors.New("no such key")
	// ErrExpired: the key, or its text, or the token, has expired.
	ErrExpired = errors.New("the key has expired")
	// ErrRevoked: the key was revoked.
	ErrRevoked = errors.New("the key was revoked")
	// ErrChanged: the rights of the key have changed since the caller was let in.
	ErrChanged = errors.New("the key was changed")
	// ErrRateLimited: the key has logged in, or has made requests, more often than it may in this process.
	ErrRateLimited = errors.New("too many log-ins")
	// ErrNotFound: there is no key with this id.
	ErrNotFound = errors.New("no key has this id")
	// ErrLastAdmin: there would be no live admin key any more.
	ErrLastAdmin = errors.New("the last admin key")
	// ErrInactive: the key was revoked, or has expired, and cannot be changed so.
	ErrInactive = errors.New("the key has ended")
	// ErrNotFirst: there has been a key, and the caller has none.
	ErrNotFirst = errors.New("there has been a key")
	// ErrStale: the key has changed since the version that a change was meant for.
	ErrStale = errors.New("the key has another version")
	// ErrLookUps: so many unknown keys or sessions were asked for that this one was not looked up. It is a pg.ErrUnavailable.
	ErrLookUps = errors.Join(errors.New("too many unknown keys"), pg.ErrUnavailable)
)

// InvalidError is the error of a value that is refused.
type InvalidError = pg.InvalidError

// sqlstates are those that the functions of the schema raise about keys.
var sqlstates = pg.States{
	"QD004": ErrStale,
	"QD030": ErrNotFound,
	"QD031": ErrLastAdmin,
	"QD032": ErrNotFirst,
	"QD033": ErrInactive,
}

func wrap(doing string, err error) error { return sqlstates.Wrap(doing, err) }

// A Key has the fields of a key that may be shown.
type Key struct {
	ID            string
	Name          string
	Scopes        []Scope
	Queues        []string // patterns; nil, as Topics then is: the key may use all
	Topics        []string
	Rate          *Rate      `db:"-"` // nil: there is no limit
	PreviousUntil *time.Time // until when the text before the latest rotation is accepted; nil: it was never rotated
	ExpiresAt     *time.Time // nil: never
	RevokedAt     *time.Time
	LastUsedAt    *time.Time // to the minute; nil: never
	Version       int64
	CreatedAt     time.Time
	UpdatedAt     time.Time
}

// A Rate is how many requests a key may make.
type Rate struct {
	PerSecond float64
	Burst     int // requests at once
}

// CreateParams are a key to create. Name and Scopes are required.
type CreateParams struct {
	Name      string
	Scopes    []Scope
	Queues    []string // patterns, see Key; nil while Topics are given: none
	Topics    []string
	ExpiresAt *time.Time
	Rate      *Rate
	IsFirst   bool // there must not have been a key before
}

// A Change changes a key; a setting whose field is nil stays. Pointers to zero values take Queues, Topics, ExpiresAt and Rate away.
type Change struct {
	Name      *string
	Scopes    *[]Scope
	Queues    *[]string
	Topics    *[]string
	ExpiresAt **time.Time
	Rate      **Rate
}

// A Page is a page of keys, by id.
type Page struct {
	Keys []Key
	Next string // cursor of the next page; empty: this is the last one
}

// An Entry is an action in the audit.
type Entry struct {
	ID     int64
	At     time.Time
	Actor  string // key:<id>, QUEUED_API_KEY, or a role of the database
	Role   string // of the session that did it
	Action string // <noun>.<verb>
	Target string
	Detail json.RawMessage // nil: none
}

// AuditParams select actions of the audit. All may be zero.
type AuditParams struct {
	Actor, Action, Target string // an action that ends with *: all that begin so
	From, To              *time.Time
	Limit                 int
	Cursor                string
}

// AuditPage is a page of the audit, the latest first.
type AuditPage struct {
	Actions []Entry
	Next    string
}
