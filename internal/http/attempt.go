package http

import (
	"net/http"

	"github.com/queued/queued/internal/queue"
)

type listAttemptsRequest struct {
	ID int64 `path:"id" validate:"min=1"`
}

type listAttemptsResponse struct {
	Attempts []attempt `json:"attempts"`
}

// An attempt is one claim of an event. It has no end while it runs.
type attempt struct {
	Attempt    int32                `json:"attempt"`
	Worker     string               `json:"worker,omitzero"`
	StartedAt  timestamp            `json:"started_at"`
	EndedAt    *timestamp           `json:"ended_at"`
	DurationMS *milliseconds        `json:"duration_ms"`
	Outcome    queue.AttemptOutcome `json:"outcome"`
	Error      *string              `json:"error,omitzero"`
}

func attemptOf(a queue.Attempt) attempt {
	out := attempt{
		Attempt:   a.Number,
		Worker:    a.Worker,
		StartedAt: timestamp(a.StartedAt),
		EndedAt:   (*timestamp)(a.EndedAt),
		Outcome:   a.Outcome,
		Error:     a.Error,
	}
	if a.EndedAt != nil {
		took := milliseconds(max(a.EndedAt.Sub(a.StartedAt), 0))
		out.DurationMS = &took
	}
	return out
}

func (s *Server) listAttempts(r *http.Request, req listAttemptsRequest) (listAttemptsResponse, error) {
	recordOf(r).note("id", req.ID)
	attempts, err := s.svc.Attempts(r.Context(), req.ID)
	resp := listAttemptsResponse{Attempts: make([]attempt, len(attempts))}
	for i, a := range attempts {
		resp.Attempts[i] = attemptOf(a)
	}
	return resp, err
}
