package http

import (
	"net/http"
	"time"

	"github.com/queued/queued/internal/queue"
)

type putQueueRequest struct {
	Name         string         `path:"name" validate:"queue"`
	MaxAttempts  *int           `json:"max_attempts" null:"true" validate:"min=1,max=2147483647"`
	InvisibleFor *time.Duration `json:"invisible_for" null:"true" validate:"min=1us,max=8760h"`
	Backoff      *backoffMember `json:"backoff" null:"true"`
	Paused       bool           `json:"paused"`
	Retention    *time.Duration `json:"history_retention" null:"true" validate:"min=1s,max=876000h"`
}

// A backoffMember is how a policy has a backoff: see queue.Backoff.
type backoffMember struct {
	Kind   string         `json:"kind" validate:"required,oneof=constant linear exponential"`
	Base   time.Duration  `json:"base" validate:"required,min=0s,max=87600h"`
	Factor *float64       `json:"factor" null:"true" validate:"min=1,max=1000"`
	Max    *time.Duration `json:"max" null:"true" validate:"min=0s,max=87600h"`
	Jitter float64        `json:"jitter" validate:"min=0,max=1"`
}

func (req putQueueRequest) policy() queue.Policy {
	p := queue.Policy{
		Queue:        req.Name,
		MaxAttempts:  req.MaxAttempts,
		InvisibleFor: req.InvisibleFor,
		Paused:       req.Paused,
		Retention:    req.Retention,
	}
	if b := req.Backoff; b != nil {
		p.Backoff = &queue.Backoff{Kind: queue.BackoffKind(b.Kind), Base: b.Base, Factor: b.Factor, Max: b.Max, Jitter: b.Jitter}
	}
	return p
}

// A policyResponse is what a queue says of its events; null is what it leaves to the calls, or to the service.
type policyResponse struct {
	Queue        string         `json:"queue"`
	MaxAttempts  *int           `json:"max_attempts"`
	InvisibleFor *duration      `json:"invisible_for"`
	Backoff      *policyBackoff `json:"backoff"`
	Paused       bool           `json:"paused"`
	Retention    *duration      `json:"history_retention"`
	UpdatedAt    *timestamp     `json:"updated_at"`
}

type policyBackoff struct {
	Kind   queue.BackoffKind `json:"kind"`
	Base   duration          `json:"base"`
	Factor *float64          `json:"factor"`
	Max    *duration         `json:"max"`
	Jitter float64           `json:"jitter"`
}

func policyOf(p queue.Policy) policyResponse {
	resp := policyResponse{
		Queue:        p.Queue,
		MaxAttempts:  p.MaxAttempts,
		InvisibleFor: (*duration)(p.InvisibleFor),
		Paused:       p.Paused,
		Retention:    (*duration)(p.Retention),
		UpdatedAt:    (*timestamp)(p.UpdatedAt),
	}
	if b := p.Backoff; b != nil {
		resp.Backoff = &policyBackoff{Kind: b.Kind, Base: duration(b.Base), Factor: b.Factor, Max: (*duration)(b.Max), Jitter: b.Jitter}
	}
	return resp
}

func (s *Server) putQueue(r *http.Request, req putQueueRequest) (policyResponse, error) {
	recordOf(r).note("queue", req.Name)
	p, err := s.svc.PutPolicy(r.Context(), req.policy())
	return policyOf(p), err
}

type queueRequest struct {
	Name string `path:"name" validate:"queue"`
}

func (s *Server) getQueue(r *http.Request, req queueRequest) (policyResponse, error) {
	recordOf(r).note("queue", req.Name)
	p, err := s.svc.GetPolicy(r.Context(), req.Name)
	return policyOf(p), err
}

func (s *Server) pauseQueue(r *http.Request, req queueRequest) (policyResponse, error) {
	if err := s.svc.Pause(r.Context(), req.Name); err != nil {
		return policyResponse{}, err
	}
	return s.getQueue(r, req)
}

func (s *Server) resumeQueue(r *http.Request, req queueRequest) (policyResponse, error) {
	if err := s.svc.Resume(r.Context(), req.Name); err != nil {
		return policyResponse{}, err
	}
	return s.getQueue(r, req)
}

type purgeQueueResponse struct {
	Purged int64 `json:"purged"`
}

func (s *Server) purgeQueue(r *http.Request, req queueRequest) (purgeQueueResponse, error) {
	recordOf(r).note("queue", req.Name)
	purged, err := s.svc.Purge(r.Context(), req.Name)
	recordOf(r).note("events", purged)
	return purgeQueueResponse{Purged: purged}, err
}
