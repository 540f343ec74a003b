package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// Scopes of a key.
const (
	ScopePublish = "publish" // insert and publish
	ScopeClaim   = "claim"   // claim, ack, nack and extend; read and commit subscriptions
	ScopeRead    = "read"    // look at everything
	ScopeManage  = "manage"  // change queues, schedules and subscriptions; requeue, sweep, purge
	ScopeMetrics = "metrics" // read metrics
	ScopeAdmin   = "admin"   // all of these, and keys and the audit
)

// A NewKey is a key to create. Name and Scopes are required.
type NewKey struct {
	// Name tells people the purpose of the key.
	Name string `json:"name"`
	// Scopes are the kinds of calls that it may make, such as [ScopePublish].
	Scopes []string `json:"scopes"`
	// Queues and Topics are those that it may use: names, or patterns, as "orders.*". With only one of them it may use nothing of the other; with
	// neither, everything.
	Queues []string `json:"queues,omitzero"`
	Topics []string `json:"topics,omitzero"`
	// ExpiresAt is when it ends; zero: never.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// RateLimit is how many requests it may make in each process; nil: no limit.
	RateLimit *RateLimit `json:"rate_limit,omitzero"`
}

// A RateLimit bounds the requests of a key.
type RateLimit struct {
	PerSecond float64 `json:"per_second"`
	// Burst is how many may come at once; 0: those of a second.
	Burst int `json:"burst,omitzero"`
}

// An AccessKey is a key without its text.
type AccessKey struct {
	// ID is the eight characters after "qk_" in its text.
	ID     string   `json:"id"`
	Name   string   `json:"name"`
	Scopes []string `json:"scopes"`
	// Queues and Topics are what it may use; nil: everything.
	Queues    []string   `json:"queues"`
	Topics    []string   `json:"topics"`
	RateLimit *RateLimit `json:"rate_limit,omitzero"`
	// Status is "active", "expired" or "revoked".
	Status    string    `json:"status"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	// PreviousUntil is until when the text before the latest rotation is accepted.
	PreviousUntil time.Time `json:"previous_until,omitzero"`
	RevokedAt     time.Time `json:"revoked_at,omitzero"`
	// LastUsedAt is when it was used last, to the minute.
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	// Version grows with every change.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
}

// An IssuedKey is a key with its text.
type IssuedKey struct {
	AccessKey
	// Key is the text, which goes into Config.Key. It is not shown again.
	Key string `json:"key"`
}

// CreateKey creates a key. An uncertain call is not repeated: list the keys, and revoke one whose text was lost.
func (c *Client) CreateKey(ctx context.Context, k NewKey) (IssuedKey, error) {
	var issued IssuedKey
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/keys", Body: k}, &issued)
	return issued, err
}

// ListKeys returns the keys by id; revoked ones for 90 days more. An error is the last thing it returns.
func (c *Client) ListKeys(ctx context.Context) iter.Seq2[AccessKey, error] {
	return listOf(ctx, c, "/keys", largePages, func(p keyPage) page[AccessKey] { return page[AccessKey]{p.Keys, p.Next} })
}

type keyPage struct {
	Keys []AccessKey `json:"keys"`
	Next *string     `json:"next"`
}

// An OwnKey is the rights of the caller.
type OwnKey struct {
	// ID is nil if the key is the server's QUEUED_API_KEY, or callers need none.
	ID     *string  `json:"id"`
	Scopes []string `json:"scopes"`
	// Queues and Topics are what it may use; nil: everything.
	Queues []string   `json:"queues"`
	Topics []string   `json:"topics"`
	Key    *AccessKey `json:"key,omitzero"`
}

// GetOwnKey returns the rights of the client's key.
func (c *Client) GetOwnKey(ctx context.Context) (OwnKey, error) {
	var k OwnKey
	_, err := c.Do(ctx, Request{Path: "/keys/self"}, &k)
	return k, err
}

// GetKey returns a key, or [ErrNotFound].
func (c *Client) GetKey(ctx context.Context, id string) (AccessKey, error) {
	var k AccessKey
	_, err := c.Do(ctx, Request{Path: "/keys/" + escape(id)}, &k)
	return k, err
}

// PatchKey changes the fields of a key that patch has, by their names in JSON, such as "scopes"; nil removes a value. If ifVersion is not 0, it
// changes that version or returns [ErrPreconditionFailed].
func (c *Client) PatchKey(ctx context.Context, id string, ifVersion int64, patch map[string]any) (AccessKey, error) {
	var k AccessKey
	_, err := c.Do(ctx, Request{
		Method: http.MethodPatch, Path: "/keys/" + escape(id), Header: ifMatch(ifVersion), Body: patch, Repeatable: ifVersion == 0,
	}, &k)
	return k, err
}

// RevokeKey revokes a key for ever: at once in the process that answers, within 5 seconds in all others.
func (c *Client) RevokeKey(ctx context.Context, id string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: "/keys/" + escape(id)}, nil)
	return err
}

// RotateKey gives a key another text. The text before is accepted for grace more; 0: 24 hours, negative: not at all. An uncertain call is not
// repeated: rotate again.
func (c *Client) RotateKey(ctx context.Context, id string, grace time.Duration) (IssuedKey, error) {
	var body rotateRequest
	if grace != 0 {
		d := duration(max(0, grace))
		body.Grace = &d
	}
	var issued IssuedKey
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/keys/" + escape(id) + "/rotate", Body: body}, &issued)
	return issued, err
}

type rotateRequest struct {
	Grace *duration `json:"grace,omitzero"`
}

// An AuditFilter says which actions of the audit. Its zero value is all.
type AuditFilter struct {
	// Actor is "key:" and the id of a key, "QUEUED_API_KEY", or a role of the database.
	Actor string `query:"actor"`
	// Action is one such as "key.create", or the beginning of several before a "*".
	Action string `query:"action"`
	// Target is the object of the action, such as the name of a queue.
	Target string `query:"target"`
	// From, inclusive, and To, exclusive, bound the time.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// PageSize is how many actions one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// An AuditedAction is an action and its actor.
type AuditedAction struct {
	ID    int64     `json:"id"`
	At    time.Time `json:"at"`
	Actor string    `json:"actor"`
	// Role is that of the database session.
	Role   string `json:"role"`
	Action string `json:"action"`
	Target string `json:"target"`
	// Detail is a JSON object; nil: there is nothing else to know.
	Detail json.RawMessage `json:"detail,omitzero"`
}

// ListAudit returns the audited actions, latest first. An error is the last thing it returns.
func (c *Client) ListAudit(ctx context.Context, filter AuditFilter) iter.Seq2[AuditedAction, error] {
	return listOf(ctx, c, "/audit", filter, func(p auditPage) page[AuditedAction] { return page[AuditedAction]{p.Actions, p.Next} })
}

type auditPage struct {
	Actions []AuditedAction `json:"actions"`
	Next    *string         `json:"next"`
}
