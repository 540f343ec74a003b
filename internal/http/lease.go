package http

import (
	"net/http"
	"time"

	"github.com/queued/queued/internal/queue"
)

type ackRequest struct {
	ID      int64  `path:"id" validate:"min=1"`
	Receipt string `query:"receipt" validate:"min=1,max=256"` // not given: whatever the lease
}

func (s *Server) ack(r *http.Request, req ackRequest) (nothing, error) {
	recordOf(r).note("id", req.ID)
	results, err := s.svc.Ack(r.Context(), []queue.Lease{{ID: req.ID, Receipt: req.Receipt}})
	if err != nil {
		return nothing{}, err
	}
	return nothing{}, results[0].Err
}

type ackBatchRequest struct {
	Events []ackItem `json:"events" validate:"required,min=1"`
}

type ackItem struct {
	ID      int64  `json:"id" validate:"required,min=1"`
	Receipt string `json:"receipt" validate:"min=1,max=256"`
}

type ackBatchResponse struct {
	Results []ackResult `json:"results"`
}

// An ackResult is how acking this event alone would have been answered.
type ackResult struct {
	ID     int64  `json:"id"`
	Status int    `json:"status"`
	Code   string `json:"code,omitzero"`
}

func (s *Server) ackBatch(r *http.Request, req ackBatchRequest) (ackBatchResponse, error) {
	recordOf(r).note("events", len(req.Events))
	leases := make([]queue.Lease, len(req.Events))
	for i, item := range req.Events {
		leases[i] = queue.Lease{ID: item.ID, Receipt: item.Receipt}
	}
	results, err := s.svc.Ack(r.Context(), leases)
	if err != nil {
		return ackBatchResponse{}, err
	}
	resp := ackBatchResponse{Results: make([]ackResult, len(results))}
	for i, result := range results {
		resp.Results[i] = ackResult{ID: result.ID, Status: http.StatusNoContent}
		if result.Err != nil {
			kind := problemOf(result.Err).kind
			resp.Results[i].Status, resp.Results[i].Code = kind.status, kind.code
		}
	}
	return resp, nil
}

type nackRequest struct {
	ID      int64         `path:"id" validate:"min=1"`
	Receipt string        `json:"receipt" validate:"required,min=1,max=256"`
	Delay   time.Duration `json:"delay" default:"0s" validate:"min=0s,max=87600h"`
	Error   string        `json:"error" validate:"max=65536"`
	Final   bool          `json:"final"`
}

// A nackResponse has a vt when the event is back in its queue, and an outcome when it is not.
type nackResponse struct {
	ID      int64         `json:"id"`
	VT      *timestamp    `json:"vt,omitzero"`
	Outcome queue.Outcome `json:"outcome,omitzero"`
}

func (s *Server) nack(r *http.Request, req nackRequest) (nackResponse, error) {
	recordOf(r).note("id", req.ID)
	result, err := s.svc.Nack(r.Context(), queue.NackParams{
		Lease: queue.Lease{ID: req.ID, Receipt: req.Receipt},
		Delay: req.Delay,
		Error: req.Error,
		Final: req.Final,
	})
	resp := nackResponse{ID: req.ID, Outcome: result.Outcome}
	if result.Outcome == "" {
		resp.VT = (*timestamp)(&result.VT)
	}
	return resp, err
}

type extendRequest struct {
	ID           int64         `path:"id" validate:"min=1"`
	Receipt      string        `json:"receipt" validate:"required,min=1,max=256"`
	InvisibleFor time.Duration `json:"invisible_for" default:"10m" validate:"min=1us,max=8760h"`
}

type extendResponse struct {
	ID int64     `json:"id"`
	VT timestamp `json:"vt"`
}

func (s *Server) extend(r *http.Request, req extendRequest) (extendResponse, error) {
	recordOf(r).note("id", req.ID)
	vt, err := s.svc.Extend(r.Context(), queue.Lease{ID: req.ID, Receipt: req.Receipt}, req.InvisibleFor)
	return extendResponse{ID: req.ID, VT: timestamp(vt)}, err
}
