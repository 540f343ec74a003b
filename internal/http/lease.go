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
	_, err := s.ackOne(r, queue.Ack{Lease: queue.Lease{ID: req.ID, Receipt: req.Receipt}})
	return nothing{}, err
}

func (s *Server) ackOne(r *http.Request, ack queue.Ack) (queue.AckResult, error) {
	results, err := s.svc.Ack(r.Context(), []queue.Ack{ack})
	if err != nil {
		return queue.AckResult{}, err
	}
	return results[0], results[0].Err
}

type ackWithResultRequest struct {
	ID      int64  `path:"id" validate:"min=1"`
	Receipt string `json:"receipt" validate:"min=1,max=256"` // not given: whatever the lease
	Result  result `json:"result"`
}

type ackWithResultResponse struct {
	ID      int64         `json:"id"`
	Outcome queue.Outcome `json:"outcome"`
}

func (s *Server) ackWithResult(r *http.Request, req ackWithResultRequest) (ackWithResultResponse, error) {
	recordOf(r).note("id", req.ID)
	acked, err := s.ackOne(r, queue.Ack{Lease: queue.Lease{ID: req.ID, Receipt: req.Receipt}, Result: []byte(req.Result)})
	return ackWithResultResponse{ID: req.ID, Outcome: acked.Outcome}, err
}

type ackBatchRequest struct {
	Events []ackItem `json:"events" validate:"required,min=1"`
}

type ackItem struct {
	ID      int64  `json:"id" validate:"required,min=1"`
	Receipt string `json:"receipt" validate:"min=1,max=256"`
	Result  result `json:"result"`
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
	acks := make([]queue.Ack, len(req.Events))
	for i, item := range req.Events {
		acks[i] = queue.Ack{Lease: queue.Lease{ID: item.ID, Receipt: item.Receipt}, Result: []byte(item.Result)}
	}
	results, err := s.svc.Ack(r.Context(), acks)
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
	ID        int64          `path:"id" validate:"min=1"`
	Receipt   string         `json:"receipt" validate:"required,min=1,max=256"`
	Delay     *time.Duration `json:"delay" validate:"min=0s,max=87600h"` // not given: the queue's own
	Error     string         `json:"error" validate:"max=65536"`
	Retryable *bool          `json:"retryable"`
	Final     bool           `json:"final"`
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
		Lease:     queue.Lease{ID: req.ID, Receipt: req.Receipt},
		Delay:     req.Delay,
		Error:     req.Error,
		Retryable: req.Retryable,
		Final:     req.Final,
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
	InvisibleFor time.Duration `json:"invisible_for" validate:"min=1us,max=8760h"` // not given: the queue's own
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
