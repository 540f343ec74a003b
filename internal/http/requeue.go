package http

import (
	"net/http"

	"github.com/queued/queued/internal/queue"
)

type requeueRequest struct {
	ID int64 `path:"id" validate:"min=1"`
}

type requeueResponse struct {
	ID int64 `json:"id"` // of the copy that waits now
}

func (resp requeueResponse) location() string { return eventPath(resp.ID) }

func (s *Server) requeue(r *http.Request, req requeueRequest) (requeueResponse, error) {
	recordOf(r).note("id", req.ID)
	id, err := s.svc.Requeue(r.Context(), req.ID)
	return requeueResponse{ID: id}, err
}

type requeueMatchingRequest struct {
	filter `in:"json"`
	Limit  int  `json:"limit" default:"1000" validate:"min=1,max=1000"`
	DryRun bool `json:"dry_run"`
}

// check refuses a request without a filter: a stray empty POST must not bring back all of history.
func (req requeueMatchingRequest) check(report func(field, detail string)) {
	if req.empty() {
		report("", "must have a filter: one of queue, outcome, from, to, contains, id, type, source, worker, min_duration at least")
	}
	req.filter.check(report)
}

type requeueMatchingResponse struct {
	Matched  int64 `json:"matched"`
	Requeued int64 `json:"requeued"`
}

func (s *Server) requeueMatching(r *http.Request, req requeueMatchingRequest) (requeueMatchingResponse, error) {
	result, err := s.svc.RequeueMatching(r.Context(), queue.RequeueParams{
		HistoryFilter: req.params(),
		Limit:         req.Limit,
		DryRun:        req.DryRun,
	})
	recordOf(r).note("events", result.Requeued)
	return requeueMatchingResponse{Matched: result.Matched, Requeued: result.Requeued}, err
}
