package http

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/push"
)

// A pushBody is a push as it goes over the wire, without secrets.
type pushBody struct {
	Queue         string        `json:"queue"`
	URL           string        `json:"url"`
	Format        push.Format   `json:"format"`
	Headers       []string      `json:"headers"` // the names alone
	Timeout       time.Duration `json:"timeout"`
	MaxInFlight   int           `json:"max_in_flight"`
	Rate          *rateLimit    `json:"rate,omitempty"`
	FinalStatuses []int         `json:"final_statuses"`
	DisableAfter  time.Duration `json:"disable_after"`

	Status         push.Status  `json:"status"`
	Failures       int          `json:"failures"`
	FailingSince   *time.Time   `json:"failing_since,omitempty"`
	LastFailureAt  *time.Time   `json:"last_failure_at,omitempty"`
	LastError      *string      `json:"last_error,omitempty"`
	LastSuccessAt  *time.Time   `json:"last_success_at,omitempty"`
	RetryAt        *time.Time   `json:"retry_at,omitempty"`
	DisabledAt     *time.Time   `json:"disabled_at,omitempty"`
	DisabledReason *string      `json:"disabled_reason,omitempty"`
	Secrets        []secretBody `json:"secrets"`
	Version        int64        `json:"version"`
	CreatedAt      time.Time    `json:"created_at"`
	UpdatedAt      time.Time    `json:"updated_at"`
}

// A secretBody is a secret without its text.
type secretBody struct {
	CreatedAt time.Time  `json:"created_at"`
	LiveUntil *time.Time `json:"live_until,omitempty"`
}

func pushBodyOf(p push.Push) pushBody {
	body := pushBody{
		Queue: p.Queue, URL: p.URL, Format: p.Format, Headers: p.HeaderNames, Timeout: p.Timeout, MaxInFlight: p.MaxInFlight, FinalStatuses: p.FinalStatuses,
		DisableAfter: p.DisableAfter, Status: p.Status, Failures: p.Failures, FailingSince: p.FailingSince, LastFailureAt: p.LastFailureAt,
		LastError: p.LastError, LastSuccessAt: p.LastSuccessAt, RetryAt: p.RetryAt, DisabledAt: p.DisabledAt, DisabledReason: p.DisabledReason,
		Secrets: convert(p.Secrets, func(s push.Secret) secretBody { return secretBody(s) }), Version: p.Version, CreatedAt: p.CreatedAt, UpdatedAt: p.UpdatedAt,
	}
	if p.Rate != nil {
		body.Rate = &rateLimit{p.Rate.PerSecond, p.Rate.Burst}
	}
	return body
}

func replyOfPush(p push.Push, err error) (reply, error) {
	return reply{body: pushBodyOf(p), etag: etagOf(p.Version)}, err
}

// A newPushBody is a push with a secret that nobody gets to see again.
type newPushBody struct {
	pushBody
	Secret string `json:"secret"`
}

type putPushRequest struct {
	Name          string          `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	IfMatch       *precondition   `header:"If-Match"`
	IfNoneMatch   *absence        `header:"If-None-Match"`
	URL           string          `json:"url" validate:"required,min=1,max=2048"`
	Format        push.Format     `json:"format" default:"standard" validate:"oneof=standard cloudevents event"`
	Headers       json.RawMessage `json:"headers"`
	Timeout       time.Duration   `json:"timeout" default:"15s" validate:"min=1s,max=5m"`
	MaxInFlight   int             `json:"max_in_flight" default:"10" validate:"min=1,max=1000"`
	Rate          *rateLimit      `json:"rate"`
	FinalStatuses []int           `json:"final_statuses" validate:"max=100,dive,min=400,max=599"`
	DisableAfter  time.Duration   `json:"disable_after" default:"120h" validate:"min=12h,max=8760h"`
}

// headers returns the header fields of a request; nil: it has none.
func (req *putPushRequest) headers() (map[string]string, error) {
	if req.Headers == nil {
		return nil, nil
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(req.Headers, &members); err != nil {
		return nil, err
	}
	fields := make(map[string]string, len(members))
	var bad problem.Fields
	for name, value := range members {
		var text *string
		if json.Unmarshal(value, &text) != nil || text == nil {
			bad.Add("#/headers/"+name, "must be a string")
			continue
		}
		fields[name] = *text
	}
	return fields, bad.Err(problem.ValidationFailed)
}

func (s *Server) putPush(r *http.Request, req putPushRequest) (reply, error) {
	headers, err := req.headers()
	if err != nil {
		return reply{}, err
	}
	p := push.PutParams{
		Queue: req.Name, URL: req.URL, Format: req.Format, Headers: headers, Timeout: req.Timeout, MaxInFlight: req.MaxInFlight, FinalStatuses: req.FinalStatuses,
		DisableAfter: req.DisableAfter, IfVersions: req.IfMatch.versions(), IfExists: req.IfMatch.isAny(), IfAbsent: req.IfNoneMatch != nil,
	}
	if limit := req.Rate.rate(); limit != nil {
		p.Rate = &push.Rate{PerSecond: limit.PerSecond, Burst: limit.Burst}
	}
	put, secret, err := s.pushes.Put(r.Context(), p)
	if err != nil || secret == "" {
		rep, _ := replyOfPush(put, nil)
		return rep, err
	}
	rep := created(newPushBody{pushBodyOf(put), secret}, "/queues/"+req.Name+"/push", false)
	rep.etag = etagOf(put.Version)
	return rep, nil
}

func (s *Server) getPush(r *http.Request, req queueRequest) (reply, error) {
	return replyOfPush(s.pushes.Get(r.Context(), req.Name))
}

type deletePushRequest struct {
	Name    string        `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deletePush(r *http.Request, req deletePushRequest) (reply, error) {
	return noContent, s.pushes.Delete(r.Context(), req.Name, req.IfMatch.versions())
}

type rotatePushSecretRequest struct {
	Name string        `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Keep time.Duration `json:"keep" default:"24h" validate:"min=0s,max=8760h"`
}

func (s *Server) rotatePushSecret(r *http.Request, req rotatePushSecretRequest) (reply, error) {
	p, secret, err := s.pushes.RotateSecret(r.Context(), req.Name, req.Keep)
	return reply{body: newPushBody{pushBodyOf(p), secret}, etag: etagOf(p.Version)}, err
}

func (s *Server) enablePush(r *http.Request, req openQueueRequest) (reply, error) {
	return replyOfPush(s.pushes.Enable(r.Context(), req.Name))
}

type testPushRequest struct {
	Name string `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
}

// waits implements waiting: the endpoint has its own time.
func (testPushRequest) waits() time.Duration { return push.TestTimeout }

// A testPushResponse is the result of a test event.
type testPushResponse struct {
	Delivered bool    `json:"delivered"`
	Status    *int    `json:"status,omitempty"` // not there: no answer came
	MS        int64   `json:"ms"`
	Excerpt   *string `json:"excerpt,omitempty"`
	Error     *string `json:"error,omitempty"`
}

func (s *Server) testPush(r *http.Request, req testPushRequest) (reply, error) {
	result, err := s.pushes.Test(r.Context(), req.Name)
	if limit, ok := errors.AsType[*push.TestLimitError](err); ok {
		seconds := strconv.Itoa(max(1, int(math.Ceil(limit.RetryIn.Seconds()))))
		return reply{}, problem.New(problem.RateLimited, "This process has sent too many test events.").With("Retry-After", seconds)
	}
	body := testPushResponse{Delivered: result.IsDelivered(), MS: result.Took.Milliseconds()}
	if result.Status != 0 {
		body.Status, body.Excerpt = &result.Status, &result.Excerpt
	} else {
		body.Error = &result.Error
	}
	return reply{body: body}, err
}
