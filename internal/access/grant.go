package access

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/pg"
)

// A Grant is the rights of a caller. Grants of a key are shared by its calls, and nobody may change them.
type Grant struct {
	KeyID   string // of the key; empty: it is the one of the configuration, or the caller needs none
	KeyName string // of the key; empty as KeyID is
	IsOpen  bool   // callers need no key
	// KeyVersion is that of the key, which is another one after each change; 0 where KeyID is empty.
	KeyVersion int64

	actor          string
	scopes         []Scope
	queues, topics []string // patterns; nil: all
	counted        *usage   // nil: nobody counts
	logIns         *rate.Limiter

	ended context.Context //nolint:containedctx // it ends when the key is changed, with the cause
	until time.Time       // when it expires by itself, by the service's clock; zero: never
	svc   *Service

	session *[sha256.Size]byte // of one that was let in by a session: the hash of its token
	ofKey   *Grant             // of one that was let in by a session: that of its key

	match  json.RawMessage    // of a token: a match that the events have to meet, too
	signer ed25519.PrivateKey // of one that signs tokens without a key of its own
}

// Has reports whether the caller may make calls of a scope.
func (g *Grant) Has(scope Scope) bool {
	return g.scopes == nil || slices.Contains(g.scopes, scope) || slices.Contains(g.scopes, Admin)
}

// Scopes returns the scopes, nil for all.
func (g *Grant) Scopes() []Scope { return g.scopes }

// IsRestricted reports whether there are queues or topics that the caller may not use.
func (g *Grant) IsRestricted() bool { return g != nil && g.queues != nil }

// Queues returns the patterns of the queues that the caller may use; nil: all.
func (g *Grant) Queues() []string { return g.queues }

// Topics returns the patterns of the topics that the caller may use; nil: all.
func (g *Grant) Topics() []string { return g.topics }

// Match returns the match that the caller's events have to meet, too, as package match reads it; nil: none.
func (g *Grant) Match() json.RawMessage { return g.match }

// AllowsQueue reports whether the caller may use a queue. The service's own are for callers without restrictions.
func (g *Grant) AllowsQueue(name string) bool {
	if !g.IsRestricted() {
		return true
	}
	return !strings.HasPrefix(name, "queued.") && slices.ContainsFunc(g.queues, func(pattern string) bool {
		beginning, isPrefix := strings.CutSuffix(pattern, "*")
		return isPrefix && strings.HasPrefix(name, beginning) || name == pattern
	})
}

// AllowsTopic reports whether the caller may use a topic, or all topics that a pattern stands for.
func (g *Grant) AllowsTopic(pattern string) bool {
	return g.topics == nil || slices.ContainsFunc(g.topics, func(allowed string) bool { return match.TopicWithin(pattern, allowed) })
}

// AllowsTopics reports whether the caller may use all topics that the patterns stand for; none: all there are, with the service's own, which
// no pattern of a key stands for together with others.
func (g *Grant) AllowsTopics(patterns []string) bool {
	if g.topics == nil {
		return true
	}
	return len(patterns) > 0 && !slices.ContainsFunc(patterns, func(p string) bool { return !g.AllowsTopic(p) })
}

// Watch returns a context that ends with ctx, or as soon as this process knows that the caller may not go on: context.Cause then says why.
// That is within seconds of a change of the key, or the end of the session, in any process. The caller calls cancel when it is done.
func (g *Grant) Watch(ctx context.Context) (watched context.Context, cancel context.CancelFunc) {
	if g == nil || g.ended == nil {
		return context.WithCancel(ctx)
	}
	watched, cancelWith := context.WithCancelCause(ctx)
	stop := context.AfterFunc(g.ended, func() { cancelWith(context.Cause(g.ended)) })
	leave := func() {}
	if g.session != nil {
		leave = g.svc.sessions.watch(*g.session, cancelWith)
	}
	var expiry *time.Timer
	if !g.until.IsZero() {
		expiry = time.AfterFunc(g.until.Sub(g.svc.now()), func() { cancelWith(ErrExpired) })
	}
	return watched, func() {
		stop()
		leave()
		if expiry != nil {
			expiry.Stop()
		}
		cancelWith(context.Canceled)
	}
}

// OfKey returns the grant of the caller's key, which all sessions of the key share: callers with the same one have the same rights. The grant of a key that is
// changed is another one.
func (g *Grant) OfKey() *Grant {
	if g == nil || g.ofKey == nil {
		return g
	}
	return g.ofKey
}

// Actor returns the name that the audit has for the caller; empty, as that of nil: the role of the session.
func (g *Grant) Actor() string {
	if g == nil {
		return ""
	}
	return g.actor
}

// Acting returns a context whose calls the audit records in the name of the caller.
func (g *Grant) Acting(ctx context.Context) context.Context {
	if g.Actor() == "" {
		return ctx
	}
	return pg.WithActor(ctx, g.actor)
}

// normalize returns the restrictions of a key as a Grant has them: nil for a key that may use all.
func normalize(queues, topics []string) (q, t []string) {
	if queues == nil && topics == nil || slices.Contains(queues, "*") && slices.Contains(topics, "**") {
		return nil, nil
	}
	return append([]string{}, queues...), append([]string{}, topics...)
}
