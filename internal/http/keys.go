package http

import (
	stdjson "encoding/json"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// A keyBody is a key as it goes over the wire, without its text.
type keyBody struct {
	ID            string         `json:"id"`
	Name          string         `json:"name"`
	Scopes        []access.Scope `json:"scopes"`
	Queues        patterns       `json:"queues"`
	Topics        patterns       `json:"topics"`
	RateLimit     *rateLimit     `json:"rate_limit,omitempty"`
	Status        string         `json:"status"`
	ExpiresAt     *time.Time     `json:"expires_at,omitempty"`
	PreviousUntil *time.Time     `json:"previous_until,omitempty"`
	RevokedAt     *time.Time     `json:"revoked_at,omitempty"`
	LastUsedAt    *time.Time     `json:"last_used_at,omitempty"`
	Version       int64          `json:"version"`
	CreatedAt     time.Time      `json:"created_at"`
	UpdatedAt     time.Time      `json:"updated_at"`
}

// patterns are those of the queues or topics that a key may use: null for all.
type patterns []string

// MarshalJSONTo implements json.MarshalerTo.
func (p patterns) MarshalJSONTo(enc *jsontext.Encoder) error {
	if p == nil {
		return enc.WriteToken(jsontext.Null)
	}
	return json.MarshalEncode(enc, []string(p))
}

// A rateLimit is an access.Rate in a request and in a response.
type rateLimit struct {
	PerSecond float64 `json:"per_second" validate:"required,min=0.001,max=1000000"`
	Burst     int     `json:"burst" validate:"min=1,max=1000000"` // not given: the requests of one second
}

func (l *rateLimit) rate() *access.Rate {
	if l == nil {
		return nil
	}
	burst := l.Burst
	if burst == 0 {
		burst = int(math.Ceil(l.PerSecond))
	}
	return &access.Rate{PerSecond: l.PerSecond, Burst: burst}
}

func (s *Server) keyBodyOf(k access.Key) keyBody {
	body := keyBody{
		ID: k.ID, Name: k.Name, Scopes: k.Scopes, Queues: k.Queues, Topics: k.Topics, Status: s.access.Status(&k), ExpiresAt: k.ExpiresAt, PreviousUntil: k.PreviousUntil,
		RevokedAt: k.RevokedAt, LastUsedAt: k.LastUsedAt, Version: k.Version, CreatedAt: k.CreatedAt, UpdatedAt: k.UpdatedAt,
	}
	if k.Rate != nil {
		body.RateLimit = &rateLimit{k.Rate.PerSecond, k.Rate.Burst}
	}
	return body
}

func (s *Server) replyOfKey(k access.Key) reply {
	return reply{body: s.keyBodyOf(k), etag: etagOf(k.Version)}
}

// A newKeyBody is a key with its text, which nobody gets to see again.
type newKeyBody struct {
	keyBody
	Key string `json:"key"`
}

type createKeyRequest struct {
	Name      string         `json:"name" validate:"required,min=1,max=255"`
	Scopes    []access.Scope `json:"scopes" validate:"required,min=1,max=6,dive,oneof=publish claim read manage metrics admin"`
	Queues    []string       `json:"queues" validate:"max=256,dive,min=1,max=128" restrict:"-"`
	Topics    []string       `json:"topics" validate:"max=256,dive,min=1,max=255" restrict:"-"`
	ExpiresAt *time.Time     `json:"expires_at"`
	RateLimit *rateLimit     `json:"rate_limit"`
}

// errFirstKey is the problem with a first key that could make no other.
var errFirstKey = problem.InField(problem.ValidationFailed, "#/scopes", "must have admin for the first key: from then on every call needs a key, and with another one nobody could manage keys")

func (s *Server) createKey(r *http.Request, req createKeyRequest) (reply, error) {
	p := access.CreateParams{
		Name: req.Name, Scopes: req.Scopes, Queues: req.Queues, Topics: req.Topics, ExpiresAt: req.ExpiresAt, Rate: req.RateLimit.rate(),
		IsFirst: logOf(r).grant.IsOpen,
	}
	if p.IsFirst && !slices.Contains(req.Scopes, access.Admin) {
		return reply{}, errFirstKey
	}
	k, text, err := s.access.Create(r.Context(), p)
	if err != nil {
		return reply{}, err
	}
	rep := created(newKeyBody{s.keyBodyOf(k), text}, "/keys/"+k.ID, false)
	rep.etag = etagOf(k.Version)
	return rep, nil
}

type listKeysResponse struct {
	Keys []keyBody `json:"keys"`
	Next *string   `json:"next"`
}

func (s *Server) listKeys(r *http.Request, req paging) (reply, error) {
	page, err := s.access.List(r.Context(), req.Limit, req.Cursor)
	return reply{body: listKeysResponse{convert(page.Keys, s.keyBodyOf), nextOf(page.Next)}}, err
}

type keyRequest struct {
	ID string `path:"id" validate:"min=1,max=64"`
}

func (s *Server) getKey(r *http.Request, req keyRequest) (reply, error) {
	k, err := s.access.Get(r.Context(), req.ID)
	return s.replyOfKey(k), err
}

// A selfResponse is the rights of a caller.
type selfResponse struct {
	ID     *string        `json:"id"`     // null: the key is in the configuration, or none is needed
	Scopes []access.Scope `json:"scopes"` // those of the caller
	Queues patterns       `json:"queues"`
	Topics patterns       `json:"topics"`
	Key    *keyBody       `json:"key,omitempty"`
}

func (s *Server) getOwnKey(r *http.Request, _ noRequest) (reply, error) {
	grant := logOf(r).grant
	self := selfResponse{Scopes: grant.Scopes(), Queues: grant.Queues(), Topics: grant.Topics()}
	if self.Scopes == nil {
		self.Scopes = access.Scopes
	}
	if grant.KeyID != "" {
		k, err := s.access.Get(r.Context(), grant.KeyID)
		if err != nil {
			return reply{}, err
		}
		body := s.keyBodyOf(k)
		self.ID, self.Key = &grant.KeyID, &body
	}
	return reply{body: self}, nil
}

type patchKeyRequest struct {
	ID        string          `path:"id" validate:"min=1,max=64"`
	IfMatch   *precondition   `header:"If-Match"`
	Name      *string         `json:"name" validate:"min=1,max=255"`
	Scopes    *[]access.Scope `json:"scopes" validate:"min=1,max=6,dive,oneof=publish claim read manage metrics admin"`
	Queues    *[]string       `json:"queues" null:"zero" validate:"max=256,dive,min=1,max=128" restrict:"-"`
	Topics    *[]string       `json:"topics" null:"zero" validate:"max=256,dive,min=1,max=255" restrict:"-"`
	ExpiresAt **time.Time     `json:"expires_at" null:"zero"`
	RateLimit **rateLimit     `json:"rate_limit" null:"zero"`
}

// mayChangeKey refuses callers who have no key, as the server knows of none yet. If this one is there all the same, made by another process seconds ago, whoever
// learned its id could take it away.
func (s *Server) mayChangeKey(r *http.Request, id string) error {
	if !logOf(r).grant.IsOpen {
		return nil
	}
	_, err := s.access.Get(r.Context(), id)
	if err == nil {
		err = challenge(r, access.ErrUnauthorized)
	}
	return err
}

func (s *Server) patchKey(r *http.Request, req patchKeyRequest) (reply, error) {
	if err := s.mayChangeKey(r, req.ID); err != nil {
		return reply{}, err
	}
	change := access.Change{Name: req.Name, Scopes: req.Scopes, Queues: req.Queues, Topics: req.Topics, ExpiresAt: req.ExpiresAt}
	if req.RateLimit != nil {
		change.Rate = new((*req.RateLimit).rate())
	}
	k, err := s.access.Update(r.Context(), req.ID, change, req.IfMatch.versions())
	return s.replyOfKey(k), err
}

type rotateKeyRequest struct {
	ID    string        `path:"id" validate:"min=1,max=64"`
	Grace time.Duration `json:"grace" default:"24h" validate:"min=0s,max=8760h"`
}

func (s *Server) rotateKey(r *http.Request, req rotateKeyRequest) (reply, error) {
	if err := s.mayChangeKey(r, req.ID); err != nil {
		return reply{}, err
	}
	k, text, err := s.access.Rotate(r.Context(), req.ID, req.Grace)
	return reply{body: newKeyBody{s.keyBodyOf(k), text}, etag: etagOf(k.Version)}, err
}

func (s *Server) revokeKey(r *http.Request, req keyRequest) (reply, error) {
	if err := s.mayChangeKey(r, req.ID); err != nil {
		return reply{}, err
	}
	return noContent, s.access.Revoke(r.Context(), req.ID)
}

type listAuditRequest struct {
	Actor  string     `query:"actor" validate:"min=1,max=255"`
	Action string     `query:"action" validate:"min=1,max=255"`
	Target string     `query:"target" validate:"min=1,max=255"`
	From   *time.Time `query:"from"`
	To     *time.Time `query:"to"`
	exportPaging
}

// Check implements bind.Checker.
func (req *listAuditRequest) Check(report func(field, detail string)) {
	checkSpan(req.From, req.To, report)
}

func (req *listAuditRequest) params() access.AuditParams {
	return access.AuditParams{
		Actor: req.Actor, Action: req.Action, Target: req.Target, From: req.From, To: req.To, Limit: req.Limit, Cursor: req.Cursor,
	}
}

// An action is an entry of the audit.
type action struct {
	ID     int64              `json:"id"`
	At     time.Time          `json:"at"`
	Actor  string             `json:"actor"`
	Role   string             `json:"role"`
	Action string             `json:"action"`
	Target string             `json:"target"`
	Detail stdjson.RawMessage `json:"detail,omitempty"`
}

type listAuditResponse struct {
	Actions []action `json:"actions"`
	Next    *string  `json:"next"`
}

func (s *Server) listAudit(r *http.Request, req listAuditRequest) (reply, error) {
	page, err := s.access.Audit(r.Context(), req.params())
	return reply{body: listAuditResponse{convert(page.Actions, func(a access.Entry) action { return action(a) }), nextOf(page.Next)}}, err
}
