package ui

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/client"
)

// LogIn is the page of the log-in.
type LogIn struct {
	To string // the path under /ui/ that it leads to
}

// Keys is the page of all keys.
type Keys struct {
	Keys  []client.AccessKey
	Pager Pager
}

// KeyForm is the form of a new key, or (with an ID) the page of one.
type KeyForm struct {
	client.AccessKey
	Nonce   string // of a form that may be sent once
	IsFirst bool   // nobody needs a key yet
	IsOwn   bool   // it is that of the viewer
}

// IssuedKey is a key whose text is shown this once.
type IssuedKey struct {
	client.IssuedKey
	IsFirst   bool // from now on everybody needs a key
	IsRotated bool // it had another text before
	IsKept    bool // which is taken for some time
}

// A ScopeText says what a scope is for.
type ScopeText struct{ Scope, Text string }

// Scopes returns all scopes.
func (*KeyForm) Scopes() []ScopeText {
	return []ScopeText{
		{client.ScopePublish, "insert events, publish"},
		{client.ScopeClaim, "claim events and finish them, read subscriptions"},
		{client.ScopeRead, "look at everything but keys and the audit, as on these pages"},
		{client.ScopeManage, "change queues, schedules, subscriptions and sources; requeue, purge"},
		{client.ScopeMetrics, "read the metrics"},
		{client.ScopeAdmin, "everything, keys and the audit included"},
	}
}

// Has reports whether the key has a scope.
func (f *KeyForm) Has(scope string) bool { return slices.Contains(f.AccessKey.Scopes, scope) }

// IsRestricted reports whether the key may use only some queues and topics.
func (f *KeyForm) IsRestricted() bool { return f.Queues != nil || f.Topics != nil }

// Lines returns patterns as they are entered, each on a line.
func (*KeyForm) Lines(patterns []string) string { return strings.Join(patterns, "\n") }

// patternsText says which queues or topics a key may use.
func patternsText(patterns []string) string {
	switch {
	case patterns == nil:
		return "all"
	case len(patterns) == 0:
		return "none"
	}
	return strings.Join(patterns, ", ")
}

// Expires is when the key ends, as it is entered; empty: never.
func (f *KeyForm) Expires() string {
	if f.ExpiresAt.IsZero() {
		return ""
	}
	return f.ExpiresAt.UTC().Format(time.RFC3339Nano)
}

// PerSecond and Burst are the rate limit, as they are entered; empty: there is none.
func (f *KeyForm) PerSecond() string {
	if f.RateLimit == nil {
		return ""
	}
	return strconv.FormatFloat(f.RateLimit.PerSecond, 'f', -1, 64)
}

// Burst is how many requests may come at once; see PerSecond.
func (f *KeyForm) Burst() string {
	if f.RateLimit == nil {
		return ""
	}
	return strconv.Itoa(f.RateLimit.Burst)
}

// Audit is the page of the audit.
type Audit struct {
	Filter  url.Values // as it was entered: actor, action, target, from and to
	Actions []client.AuditedAction
	Pager   Pager
}

// Export returns the path of a file of all actions that the filter lets through.
func (a *Audit) Export(format string) string {
	query := url.Values{}
	for _, name := range []string{"actor", "action", "target", "from", "to"} {
		if value := a.Filter.Get(name); value != "" {
			query.Set(name, value)
		}
	}
	return "audit." + format + "?" + query.Encode()
}

// IsFiltered reports whether there is a filter.
func (a *Audit) IsFiltered() bool { return strings.Contains(a.Export(""), "=") }

// auditPages are the pages of what actions are done to, by the noun before the dot in the action.
var auditPages = map[string]string{
	"event": "events", "filter": "subscriptions", "history": "queues", "key": "keys", "push": "queues", "queue": "queues", "redrive": "redrives", "schedule": "schedules",
	"session": "keys", "source": "sources", "subscription": "subscriptions",
}

// actorPath returns the path under /ui/ of the page of an actor; empty: it has none.
func actorPath(actor string) string {
	if id, ok := strings.CutPrefix(actor, "key:"); ok {
		return "keys/" + url.PathEscape(id)
	}
	return ""
}

// targetPath returns the path under /ui/ of the page of what an action was done to; empty: it has none.
func targetPath(a client.AuditedAction) string {
	noun, verb, _ := strings.Cut(a.Action, ".")
	page := auditPages[noun]
	isGone := verb == "delete" && noun != "push" && noun != "filter"
	if page == "" || isGone || a.Target == "" || a.Target == "*" || page == "keys" && len(a.Target) != 8 {
		return ""
	}
	return page + "/" + url.PathEscape(a.Target)
}
