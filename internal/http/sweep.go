package http

import (
	"net/http"
	"time"

	"github.com/queued/queued/internal/queue"
)

type sweepRequest struct {
	MaxAttempts int            `json:"max_attempts" validate:"min=1,max=2147483647"` // not given: the service's own
	MaxVTAge    *time.Duration `json:"max_vt_age" default:"1h" null:"true" validate:"min=0s,max=87600h"`
	Queue       string         `json:"queue" validate:"queue"`
}

type sweepResponse struct {
	Expired int64 `json:"expired"`
}

func (s *Server) sweep(r *http.Request, req sweepRequest) (sweepResponse, error) {
	expired, err := s.svc.Sweep(r.Context(), queue.SweepParams{
		MaxAttempts: req.MaxAttempts,
		MaxVTAge:    req.MaxVTAge,
		Queue:       req.Queue,
	})
	recordOf(r).note("events", expired)
	return sweepResponse{Expired: expired}, err
}
