package http

import (
	"net/http"

	"github.com/queued/queued/internal/queue"
)

type listExecutionsRequest struct {
	Type   *string `query:"type" validate:"max=255"` // empty: what has no type
	Worker *string `query:"worker" validate:"max=255"`
}

type listExecutionsResponse struct {
	Executions []execution `json:"executions"`
}

// An execution is the statistics of the work on one type by one worker.
type execution struct {
	Type      string       `json:"type"`
	Worker    string       `json:"worker"`
	Cycles    int64        `json:"cycles"`
	LastMS    milliseconds `json:"last_ms"`
	AverageMS milliseconds `json:"average_ms"`
	FastestMS milliseconds `json:"fastest_ms"`
	LongestMS milliseconds `json:"longest_ms"`
	TotalMS   milliseconds `json:"total_ms"`
	LastAt    timestamp    `json:"last_at"`
}

func executionOf(x queue.Execution) execution {
	return execution{
		Type:      x.Type,
		Worker:    x.Worker,
		Cycles:    x.Cycles,
		LastMS:    milliseconds(x.Latest),
		AverageMS: milliseconds(x.Average),
		FastestMS: milliseconds(x.Fastest),
		LongestMS: milliseconds(x.Longest),
		TotalMS:   milliseconds(x.Total),
		LastAt:    timestamp(x.LatestAt),
	}
}

func (s *Server) listExecutions(r *http.Request, req listExecutionsRequest) (listExecutionsResponse, error) {
	executions, err := s.svc.Executions(r.Context(), req.Type, req.Worker)
	resp := listExecutionsResponse{Executions: make([]execution, len(executions))}
	for i, x := range executions {
		resp.Executions[i] = executionOf(x)
	}
	return resp, err
}
