package http

import (
	"net/http"
	"time"

	"github.com/queued/queued/internal/queue"
)

type listQueuesRequest struct {
	paging `in:"query"`
}

type listQueuesResponse struct {
	Queues []queueStats `json:"queues"`
	Next   *string      `json:"next"` // null on the last page
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

func (s *Server) listQueues(r *http.Request, req listQueuesRequest) (listQueuesResponse, error) {
	page, err := s.svc.Queues(r.Context(), queue.QueuesParams{Lately: time.Hour, Limit: req.Limit, Cursor: req.Cursor})
	resp := listQueuesResponse{Queues: make([]queueStats, len(page.Queues))}
	if page.Next != "" {
		resp.Next = &page.Next
	}
	for i, q := range page.Queues {
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
