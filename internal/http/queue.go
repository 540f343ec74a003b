package http

import (
	"net/http"
	"time"
)

type listQueuesRequest struct{}

type listQueuesResponse struct {
	Queues []queueStats `json:"queues"`
}

type queueStats struct {
	Queue           string  `json:"queue"`
	Ready           int64   `json:"ready"`
	Scheduled       int64   `json:"scheduled"`
	Leased          int64   `json:"leased"`
	OldestReadyAge  *string `json:"oldest_ready_age"` // a duration; null when none is ready
	DoneLastHour    int64   `json:"done_last_hour"`
	ExpiredLastHour int64   `json:"expired_last_hour"`
	Estimated       bool    `json:"estimated"`
	Paused          bool    `json:"paused"`
}

func (s *Server) listQueues(r *http.Request, _ listQueuesRequest) (listQueuesResponse, error) {
	stats, err := s.svc.Queues(r.Context(), time.Hour)
	resp := listQueuesResponse{Queues: make([]queueStats, len(stats))}
	for i, q := range stats {
		resp.Queues[i] = queueStats{
			Queue:           q.Queue,
			Ready:           q.Ready,
			Scheduled:       q.Scheduled,
			Leased:          q.Leased,
			DoneLastHour:    q.DoneLately,
			ExpiredLastHour: q.ExpiredLately,
			Estimated:       q.Estimated,
			Paused:          q.Paused,
		}
		if q.OldestReadyAge != nil {
			age := q.OldestReadyAge.Round(time.Millisecond).String()
			resp.Queues[i].OldestReadyAge = &age
		}
	}
	return resp, err
}
