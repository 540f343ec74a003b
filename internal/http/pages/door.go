package pages

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// A Door lets viewers in: it knows keys and sessions. It is safe for concurrent use.
type Door interface {
	// Admit returns who makes a request for a page with the token of a session; empty: with none. The request counts: for the log, the metrics, and the rate limit of the key.
	// It fails with ErrUnauthorized, ErrExpired, ErrRevoked or a *RateLimitedError; any other error says that it is not known whether the token is good.
	Admit(r *http.Request, token string) (Viewer, error)
	// Look is Admit for what does not count.
	Look(ctx context.Context, token string) (Viewer, error)
	// LogIn begins a session with the text of a key, and returns its token and when it ends. The token is empty where nobody needs a key. It fails as Admit does, and with
	// ErrLookUps.
	LogIn(ctx context.Context, key string) (token string, until time.Time, err error)
	// LogOut ends a session. It may be repeated.
	LogOut(ctx context.Context, token string) error
}

// A Viewer is who looks at pages: the rights of a key, or of those who need none.
type Viewer interface {
	// KeyID returns the id of the key; empty: it is in no database, or there is none.
	KeyID() string
	// KeyName returns the name of the key; empty as KeyID.
	KeyName() string
	// IsOpen reports whether nobody needs a key.
	IsOpen() bool
	// Has reports whether the viewer may make calls of a scope.
	Has(scope string) bool
	// Watch returns a context that ends with ctx, or within seconds after the session has ended, or its key was changed. The caller calls cancel when it is done.
	Watch(ctx context.Context) (watched context.Context, cancel context.CancelFunc)
	// Rights returns what viewers with the same rights have in common: it can be compared, and is another one after a change of the key.
	Rights() any
}

// The errors of a Door.
var (
	// ErrUnauthorized: the text is that of no key, or of no session, or of one that has ended.
	ErrUnauthorized = errors.New("no such key")
	// ErrExpired: the key, or its text, has expired.
	ErrExpired = errors.New("the key has expired")
	// ErrRevoked: the key was revoked.
	ErrRevoked = errors.New("the key was revoked")
	// ErrLookUps: so many unknown keys were sent that this one was not looked up.
	ErrLookUps = errors.New("too many unknown keys")
)

// A RateLimitedError is returned for a key that has logged in, or has made requests, more often than it may.
type RateLimitedError struct{ Retry time.Duration }

// Error implements error.
func (*RateLimitedError) Error() string { return "too many requests" }

// The scopes of keys that pages ask for.
const (
	scopeRead   = "read"
	scopeManage = "manage"
	scopeAdmin  = "admin"
)

// rightsOf returns what viewers with the same rights as this one have in common; nil: they have all.
func rightsOf(viewer Viewer) any {
	if viewer == nil {
		return nil
	}
	return viewer.Rights()
}
