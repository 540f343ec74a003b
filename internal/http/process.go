package http

import (
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/queue"
)

type listProcessesRequest struct{}

type listProcessesResponse struct {
	Processes []process `json:"processes"`
}

// A process is one running service and what it counted since its start.
type process struct {
	ID            string        `json:"id"`
	Process       string        `json:"process"`
	Version       string        `json:"version"`
	StartedAt     *timestamp    `json:"started_at"` // null, as is uptime_ms, until it is reported
	UptimeMS      *milliseconds `json:"uptime_ms"`
	Posted        int64         `json:"posted"`
	Claimed       int64         `json:"claimed"`
	Acked         int64         `json:"acked"`
	Nacked        int64         `json:"nacked"`
	Failed        int64         `json:"failed"`
	Expired       int64         `json:"expired"`
	Released      int64         `json:"released"`
	WaitingClaims int64         `json:"waiting_claims"`
	UpdatedAt     timestamp     `json:"updated_at"`
}

func processOf(p queue.Process) process {
	// A process of another version may report other metrics: what is not there, or no number, counts as nothing.
	count := func(category string) int64 {
		n, _ := strconv.ParseInt(p.Metrics[category], 10, 64)
		return n
	}
	out := process{
		ID:            p.ID,
		Process:       p.Name,
		Version:       p.Metrics[queue.MetricVersion],
		Posted:        count(queue.MetricPosted),
		Claimed:       count(queue.MetricClaimed),
		Acked:         count(queue.MetricAcked),
		Nacked:        count(queue.MetricNacked),
		Failed:        count(queue.MetricFailed),
		Expired:       count(queue.MetricExpired),
		Released:      count(queue.MetricReleased),
		WaitingClaims: count(queue.MetricWaiting),
		UpdatedAt:     timestamp(p.UpdatedAt),
	}
	if started, err := time.Parse(time.RFC3339, p.Metrics[queue.MetricStarted]); err == nil {
		up := milliseconds(max(0, p.UpdatedAt.Sub(started)))
		out.StartedAt, out.UptimeMS = (*timestamp)(&started), &up
	}
	return out
}

func (s *Server) listProcesses(r *http.Request, _ listProcessesRequest) (listProcessesResponse, error) {
	processes, err := s.svc.Processes(r.Context())
	resp := listProcessesResponse{Processes: make([]process, len(processes))}
	for i, p := range processes {
		resp.Processes[i] = processOf(p)
	}
	return resp, err
}
