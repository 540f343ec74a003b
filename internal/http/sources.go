package http

import (
	stdjson "encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/webhook"
)

// A signatureBody is a webhook.Signature in a request and in a response.
type signatureBody struct {
	Header    string `json:"header" validate:"required,min=1,max=128"`
	Algorithm string `json:"algorithm" default:"sha256" validate:"oneof=sha256 sha512"`
	Encoding  string `json:"encoding" default:"hex" validate:"oneof=hex base64"`
	Prefix    string `json:"prefix,omitzero" validate:"max=128"`
	Timestamp string `json:"timestamp,omitzero" validate:"max=128"`
}

// A sourceBody is a source as it goes over the wire. Its secrets do not.
type sourceBody struct {
	Name           string         `json:"name"`
	Kind           webhook.Kind   `json:"kind"`
	Queue          string         `json:"queue,omitzero"`
	Topic          string         `json:"topic,omitzero"`
	Type           string         `json:"type,omitzero"`
	Key            string         `json:"key,omitzero"`
	EventTS        string         `json:"event_ts,omitzero"`
	Priority       string         `json:"priority,omitzero"`
	Group          string         `json:"group,omitzero"`
	Signature      *signatureBody `json:"signature,omitzero"`
	Header         string         `json:"header,omitzero"`
	SecretCount    int            `json:"secret_count"`
	DedupFor       time.Duration  `json:"dedup_for"`
	Tolerance      time.Duration  `json:"tolerance"`
	KeepRaw        *time.Duration `json:"keep_raw,omitzero"`
	Headers        []string       `json:"headers"`
	MaxBody        int            `json:"max_body,omitzero"`
	RateLimit      *rateLimit     `json:"rate_limit,omitzero"`
	Paused         bool           `json:"paused"`
	Received       int64          `json:"received"`
	Duplicates     int64          `json:"duplicates"`
	Rejected       int64          `json:"rejected"`
	LastReceivedAt *time.Time     `json:"last_received_at,omitzero"`
	LastRejected   *lastRejected  `json:"last_rejected,omitzero"`
	LastProblem    *lastProblem   `json:"last_problem,omitzero"`
	Version        int64          `json:"version"`
	CreatedAt      time.Time      `json:"created_at"`
	UpdatedAt      time.Time      `json:"updated_at"`
}

type lastRejected struct {
	At        time.Time `json:"at"`
	Code      string    `json:"code"`
	RequestID string    `json:"request_id"`
}

type lastProblem struct {
	At        time.Time `json:"at"`
	Detail    string    `json:"detail"`
	RequestID string    `json:"request_id"`
}

func sourceBodyOf(s webhook.Source) sourceBody {
	body := sourceBody{
		Name: s.Name, Kind: s.Kind, Queue: s.Queue, Topic: s.Topic, Type: s.Type, Key: s.Key, EventTS: s.EventTS, Priority: s.Priority, Group: s.Group, Header: s.Header,
		SecretCount: s.SecretCount, DedupFor: s.DedupFor, Tolerance: s.Tolerance, Headers: s.Headers, MaxBody: s.MaxBody, Paused: s.Paused,
		Received: s.Received, Duplicates: s.Duplicates, Rejected: s.Rejected, LastReceivedAt: s.LastReceivedAt,
		Version: s.Version, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
	if s.Signature != nil {
		body.Signature = new(signatureBody(*s.Signature))
	}
	if s.KeepRaw != 0 {
		body.KeepRaw = &s.KeepRaw
	}
	if s.Rate != nil {
		body.RateLimit = &rateLimit{s.Rate.PerSecond, s.Rate.Burst}
	}
	if r := s.LastRejected; r != nil {
		body.LastRejected = new(lastRejected(*r))
	}
	if p := s.LastProblem; p != nil {
		body.LastProblem = new(lastProblem(*p))
	}
	return body
}

type putSourceRequest struct {
	Name      string         `path:"name" validate:"queue" log:"source" restrict:"source,new"`
	IfMatch   *precondition  `header:"If-Match"`
	IfNone    *absence       `header:"If-None-Match"`
	Kind      webhook.Kind   `json:"kind" validate:"required,oneof=slack github stripe standard hmac token basic cloudevents"`
	Queue     string         `json:"queue" validate:"queue,unreserved" restrict:"queue,default,unless=Topic"`
	Topic     string         `json:"topic" validate:"topic" restrict:"topic,optional"`
	Type      string         `json:"type" validate:"max=1024"`
	Key       string         `json:"key" validate:"max=1024"`
	EventTS   string         `json:"event_ts" validate:"max=1024"`
	Priority  string         `json:"priority" validate:"max=1024"`
	Group     string         `json:"group" validate:"max=1024"`
	Signature *signatureBody `json:"signature"`
	Header    string         `json:"header" validate:"max=128"`
	Secrets   []string       `json:"secrets" validate:"min=1,max=5,dive,min=1,max=1024"`
	DedupFor  time.Duration  `json:"dedup_for" default:"168h" validate:"min=1s,max=87600h"`
	Tolerance time.Duration  `json:"tolerance" default:"5m" validate:"min=1s,max=24h"`
	KeepRaw   time.Duration  `json:"keep_raw" validate:"min=1s,max=87600h"`
	Headers   []string       `json:"headers" validate:"max=32,dive,min=1,max=128"`
	MaxBody   int            `json:"max_body" validate:"min=1,max=268435456"`
	RateLimit *rateLimit     `json:"rate_limit"`
	Paused    bool           `json:"paused"`
}

// Check implements bind.Checker.
func (req *putSourceRequest) Check(report func(field, detail string)) {
	switch {
	case req.Queue == "" && req.Topic == "":
		report("queue", "is required, or topic")
	case req.Queue != "" && req.Topic != "":
		report("topic", "must not be given beside queue")
	}
	if req.Topic != "" && req.KeepRaw != 0 {
		report("keep_raw", "is for a queue: the log keeps no raw bodies")
	}
	if req.Topic != "" && req.Priority != "" {
		report("priority", "is for a queue: the log has one order")
	}
	if req.Topic != "" && req.Group != "" {
		report("group", "is for a queue: the log has no groups")
	}
}

func (s *Server) putSource(r *http.Request, req putSourceRequest) (reply, error) {
	p := webhook.Params{
		Kind: req.Kind, Queue: req.Queue, Topic: req.Topic, Type: req.Type, Key: req.Key, EventTS: req.EventTS, Priority: req.Priority, Group: req.Group, Header: req.Header,
		Secrets: req.Secrets, DedupFor: req.DedupFor, Tolerance: req.Tolerance, KeepRaw: req.KeepRaw, Headers: req.Headers, MaxBody: req.MaxBody, Paused: req.Paused,
	}
	if req.Signature != nil {
		p.Signature = new(webhook.Signature(*req.Signature))
	}
	if rate := req.RateLimit.rate(); rate != nil {
		p.Rate = &webhook.Rate{PerSecond: rate.PerSecond, Burst: rate.Burst}
	}
	only := queue.Precondition{Versions: req.IfMatch.versions(), Exists: req.IfMatch.isAny(), Absent: req.IfNone != nil}
	put, isNew, err := s.sources.Put(r.Context(), req.Name, p, only)
	rep := reply{body: sourceBodyOf(put), etag: etagOf(put.Version), location: "/sources/" + put.Name}
	if isNew {
		rep.status = http.StatusCreated
	}
	return rep, err
}

type sourceRequest struct {
	Name string `path:"name" validate:"queue" log:"source" restrict:"source"`
}

func (s *Server) getSource(r *http.Request, req sourceRequest) (reply, error) {
	found, err := s.sources.Get(r.Context(), req.Name)
	return reply{body: sourceBodyOf(found), etag: etagOf(found.Version)}, err
}

type listSourcesRequest struct {
	paging
	Queues []string `restrict:"allowed_queues"`
	Topics []string `restrict:"allowed_topics"`
}

type listSourcesResponse struct {
	Sources []sourceBody `json:"sources"`
	Next    *string      `json:"next"`
}

func (s *Server) listSources(r *http.Request, req listSourcesRequest) (reply, error) {
	page, err := s.sources.List(r.Context(), req.Limit, req.Cursor, req.Queues, req.Topics)
	return reply{body: listSourcesResponse{convert(page.Sources, sourceBodyOf), nextOf(page.Next)}}, err
}

type deleteSourceRequest struct {
	Name    string        `path:"name" validate:"queue" log:"source" restrict:"source"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteSource(r *http.Request, req deleteSourceRequest) (reply, error) {
	return noContent, s.sources.Delete(r.Context(), req.Name, req.IfMatch.versions())
}

type testSourceRequest struct {
	Name    string             `path:"name" validate:"queue" log:"source" restrict:"source"`
	Headers stdjson.RawMessage `json:"headers"` // each a string, or a list of them
	Body    string             `json:"body"`
	Query   string             `json:"query" validate:"max=8192"`
	At      *time.Time         `json:"at"`

	header http.Header
	query  url.Values
}

// Check implements bind.Checker.
func (req *testSourceRequest) Check(report func(field, detail string)) {
	req.header = make(http.Header)
	if req.Headers != nil {
		var fields map[string]any
		if err := stdjson.Unmarshal(req.Headers, &fields); err != nil {
			report("headers", "must be an object of strings")
			return
		}
		for name, value := range fields {
			values, isList := value.([]any)
			if !isList {
				values = []any{value}
			}
			for _, v := range values {
				text, isText := v.(string)
				if !isText {
					report("headers", "must be an object of strings, or of lists of strings")
					return
				}
				req.header.Add(name, text)
			}
		}
	}
	var err error
	if req.query, err = url.ParseQuery(strings.TrimPrefix(req.Query, "?")); err != nil {
		report("query", "must be the query of a URL")
	}
}

// A testSourceResponse is the result that a delivery would have.
type testSourceResponse struct {
	Verified  bool             `json:"verified"`
	Rejected  *testRejection   `json:"rejected,omitzero"`
	Challenge string           `json:"challenge,omitzero"`
	Mapped    *mappedDelivery  `json:"mapped,omitzero"`
	Batch     []mappedDelivery `json:"batch,omitzero"` // in its place
}

type testRejection struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

// A mappedDelivery is the event that a delivery becomes.
type mappedDelivery struct {
	Event    stdjson.RawMessage `json:"event"`
	Type     string             `json:"type,omitzero"`
	Key      string             `json:"key,omitzero"`
	EventTS  *time.Time         `json:"event_ts,omitzero"`
	Priority int32              `json:"priority"`
	Group    string             `json:"group,omitzero"`
	Meta     map[string]any     `json:"meta,omitzero"`
	Problems []string           `json:"problems"`
}

func (s *Server) testSource(r *http.Request, req testSourceRequest) (reply, error) {
	d := webhook.Delivery{Header: req.header, Query: req.query, Body: []byte(req.Body), Check: s.checkEvent}
	var at time.Time
	if req.At != nil {
		at = *req.At
	}
	trial, err := s.sources.Test(r.Context(), req.Name, d, at)
	if err != nil {
		return reply{}, err
	}
	out := testSourceResponse{Verified: trial.Refusal == nil}
	switch {
	case isEncoded(req.header):
		out = testSourceResponse{Rejected: &testRejection{encodedCode, encodedDetail}}
	case trial.Refusal != nil:
		out.Rejected = &testRejection{trial.Refusal.Code, trial.Refusal.Reason}
	case trial.Err != nil:
		out.Rejected = &testRejection{"invalid_body", problemOfBody(trial.Err).Detail}
	case trial.IsBatch:
		out.Batch = convert(trial.Mapped, mappedOf)
	case trial.Mapped[0].Challenge != "":
		out.Challenge = trial.Mapped[0].Challenge
	default:
		out.Mapped = new(mappedOf(trial.Mapped[0]))
	}
	return reply{body: out}, nil
}

func mappedOf(m webhook.Mapped) mappedDelivery {
	out := mappedDelivery{Event: m.Event, Type: m.Type, Key: m.Key, Priority: m.Priority, Group: m.Group, Meta: m.Meta, Problems: m.Problems}
	if out.Problems == nil {
		out.Problems = []string{}
	}
	if !m.EventTS.IsZero() {
		out.EventTS = &m.EventTS
	}
	return out
}

// checkEvent returns the problem with an object that cannot be an event.
func (s *Server) checkEvent(event stdjson.RawMessage) error {
	return bind.CheckObject(event, s.cfg.limits())
}

// problemOfBody is the problem with a delivery that is from its source and cannot become an event.
func problemOfBody(err error) *problem.Problem {
	if refused, ok := errors.AsType[*problem.Problem](cloudEventRefused(err)); ok {
		return refused
	}
	if errors.Is(err, webhook.ErrBody) {
		return problem.New(problem.ValidationFailed, sentence(err.Error()))
	}
	return problem.Of(err)
}

// isWebhook reports whether a request is a delivery, which proves itself to its source, not by a key.
func isWebhook(path string) bool { return strings.HasPrefix(path, "/in/") }

// A receivedResponse is the answer to a delivery: where its event is, or those of a batch.
type receivedResponse struct {
	ID        *int64  `json:"id,omitzero"`
	Position  *int64  `json:"position,omitzero"`
	IDs       []int64 `json:"ids,omitzero"`
	Positions []int64 `json:"positions,omitzero"`
}

type challengeResponse struct {
	Challenge string `json:"challenge"`
}

// receive takes a delivery: any content type, any query, and of the body no more than the source allows. The log of the source gets what it answered.
func (s *Server) receive(w http.ResponseWriter, r *http.Request) {
	answered := webhook.Answered{Source: chi.URLParam(r, "name")}
	err := s.receiveDelivery(w, r, &answered)
	if answered.Err = err; err != nil {
		failDelivery(w, r, err)
	}
	s.logDelivery(r, &answered)
}

// failDelivery answers a delivery that is refused.
func failDelivery(w http.ResponseWriter, r *http.Request, err error) {
	if rejection, ok := errors.AsType[*webhook.RejectedError](err); ok {
		logOf(r).add("rejected", rejection.Code)
		logOf(r).add("reason", rejection.Reason)
		logOf(r).isQuiet = rejection.Retry > 0
	}
	fail(w, r, problemOfDelivery(err))
}

// problemOfDelivery returns the problem for the sender. The reason of a rejection is for the owner of the source alone.
func problemOfDelivery(err error) error {
	if limit, ok := errors.AsType[*webhook.RateError](err); ok {
		return problem.New(problem.RateLimited, "The source has made more deliveries than its rate limit allows in this process.").
			With("Retry-After", strconv.Itoa(int(limit.Retry/time.Second)))
	}
	if rejection, ok := errors.AsType[*webhook.RejectedError](err); ok {
		if rejection.Retry > 0 {
			return problem.New(problem.RateLimited, "The source has had too many deliveries without the proof that it asks for. The owner of the source sees why.").
				With("Retry-After", strconv.Itoa(int(rejection.Retry/time.Second)))
		}
		return problem.New(problem.WebhookRejected, "The delivery does not have the proof that the source asks for. The owner of the source sees why.").
			With("Www-Authenticate", "Webhook")
	}
	if bad, ok := errors.AsType[*webhook.BodyError](err); ok {
		return problemOfBody(bad.Err)
	}
	return err
}

func (s *Server) receiveDelivery(w http.ResponseWriter, r *http.Request, answered *webhook.Answered) error {
	log, name := logOf(r), answered.Source
	admission, err := s.sources.Admit(r.Context(), name, log.id)
	if !errors.Is(err, webhook.ErrNotFound) {
		log.add("source", name)
	}
	answered.Admission = admission
	isProven := false
	if err == nil {
		isProven, err = admission.VerifyHeader(r.Header)
	}
	if err != nil {
		dropBody(w, r)
		return err
	}
	if isEncoded(r.Header) {
		admission.Reject(encodedCode)
		dropBody(w, r)
		return problem.New(problem.UnsupportedMediaType, encodedDetail)
	}
	read, limit := log.body.ReadUnverified, admission.MaxBody(s.cfg.MaxBody)
	if isProven {
		read = log.body.Read
	}
	sent, err := read(s.bodies, w, r, limit)
	if err != nil {
		err = bind.BodyError(err, limit)
		if problem.Of(err).Type == problem.BodyTooLarge {
			admission.Reject(problem.BodyTooLarge.Code)
		}
		return err
	}
	answered.Body = sent
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		query = nil
	}
	result, err := admission.Receive(r.Context(), webhook.Delivery{
		Header: r.Header, Query: query, Body: sent, Check: s.checkEvent, Sending: s.sendingDelivery(r),
		Verified: func() error {
			log.body.Verified()
			return bind.BodyError(log.body.TakeDecoded(sent), limit)
		},
	})
	answered.Result = result
	if err != nil {
		return err
	}
	switch {
	case result.Challenge != "":
		respond(w, r, reply{body: challengeResponse{result.Challenge}})
	case admission.Kind() == webhook.Slack: // shows the answer to people
		log.add("event", append(result.IDs, result.Positions...)[0])
		w.Header()["Cache-Control"] = noStore
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", "0")
		if result.Deduplicated {
			w.Header().Set("Idempotency-Replayed", "true")
		}
		w.WriteHeader(http.StatusOK)
	default:
		out := receivedResponse{IDs: result.IDs, Positions: result.Positions}
		switch {
		case result.IsBatch:
			log.add("events", len(out.IDs)+len(out.Positions))
		case len(out.IDs) == 1:
			log.add("event", out.IDs[0])
			out = receivedResponse{ID: &out.IDs[0]}
		case len(out.Positions) == 1:
			log.add("position", out.Positions[0])
			out = receivedResponse{Position: &out.Positions[0]}
		}
		respond(w, r, reply{body: out, deduplicated: result.Deduplicated})
	}
	return nil
}

// isEncoded reports whether the body of a delivery has a coding, so that its bytes are not those that were signed.
func isEncoded(header http.Header) bool {
	coding := header.Get("Content-Encoding")
	return coding != "" && !strings.EqualFold(coding, "identity")
}

const (
	encodedCode   = "content_encoding"
	encodedDetail = "The body must be sent without Content-Encoding: it is verified as it comes in."
)

// A handshakeRequest is the header of a handshake.
type handshakeRequest struct {
	Origin string `header:"WebHook-Request-Origin" validate:"required,min=1,max=255"`
}

// shakeHands answers a sender of CloudEvents that asks whether it may deliver here:
// https://github.com/cloudevents/spec/blob/main/cloudevents/http-webhook.md#4-abuse-protection
func (s *Server) shakeHands(w http.ResponseWriter, r *http.Request) {
	admission, err := s.sources.Look(r.Context(), chi.URLParam(r, "name"))
	origin := r.Header.Get("Webhook-Request-Origin")
	if err == nil && (origin == "" || len(origin) > 255) {
		err = problem.InField(problem.InvalidParameter, "WebHook-Request-Origin", "must be given, as the handshake of CloudEvents does")
	}
	if err != nil {
		fail(w, r, problemOfDelivery(err))
		return
	}
	h := w.Header()
	h["Cache-Control"] = noStore
	h.Set("Allow", "POST, OPTIONS")
	h.Set("Webhook-Allowed-Origin", origin)
	rate := "*"
	if n := admission.RatePerMinute(); n > 0 {
		rate = strconv.Itoa(n)
	}
	h.Set("Webhook-Allowed-Rate", rate)
	h.Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}
