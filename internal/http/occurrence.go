package http

import (
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/schedule"
)

// An occurrence of a schedule as it goes over the wire.
type occurrence struct {
	NominalAt     localTime                 `json:"nominal_at"`
	ScheduledFor  timestamp                 `json:"scheduled_for"`
	Manual        bool                      `json:"manual"`
	Status        schedule.OccurrenceStatus `json:"status"`
	EventID       *int64                    `json:"event_id,omitzero"`
	FiredAt       *timestamp                `json:"fired_at,omitzero"`
	ExecutedAt    *timestamp                `json:"executed_at,omitzero"`
	FailureReason *string                   `json:"failure_reason,omitzero"`
	RetryCount    int32                     `json:"retry_count"`
}

func occurrenceOf(o schedule.Occurrence) occurrence {
	return occurrence{
		NominalAt:     localTime(o.NominalAt),
		ScheduledFor:  timestamp(o.ScheduledFor),
		Manual:        o.Manual,
		Status:        o.Status,
		EventID:       o.EventID,
		FiredAt:       (*timestamp)(o.FiredAt),
		ExecutedAt:    (*timestamp)(o.ExecutedAt),
		FailureReason: o.FailureReason,
		RetryCount:    o.RetryCount,
	}
}

// An instant is a time to come.
type instant struct {
	Local localTime `json:"local"`
	UTC   timestamp `json:"utc"`
}

func instantsOf(found []schedule.Instant) []instant {
	out := make([]instant, len(found))
	for i, at := range found {
		out[i] = instant{localTime(at.Local), timestamp(at.UTC)}
	}
	return out
}

type listOccurrencesRequest struct {
	ID     int64 `path:"id" validate:"min=1"`
	N      int   `query:"n" default:"10" validate:"min=0,max=1000"`
	paging `in:"query"`
}

type listOccurrencesResponse struct {
	Occurrences []occurrence `json:"occurrences"`
	Upcoming    []instant    `json:"upcoming"`
	Next        *string      `json:"next"`
}

func (s *Server) listOccurrences(r *http.Request, req listOccurrencesRequest) (listOccurrencesResponse, error) {
	recordOf(r).note("schedule", req.ID)
	found, err := s.schedules.Occurrences(r.Context(), schedule.OccurrencesParams{
		ID:       req.ID,
		Limit:    req.Limit,
		Cursor:   req.Cursor,
		Upcoming: req.N,
	})
	resp := listOccurrencesResponse{
		Occurrences: make([]occurrence, len(found.Past)),
		Upcoming:    instantsOf(found.Upcoming),
		Next:        nextOf(found.Next),
	}
	for i, o := range found.Past {
		resp.Occurrences[i] = occurrenceOf(o)
	}
	return resp, err
}

// A runScheduleResponse is an occurrence that was made just now.
type runScheduleResponse struct {
	occurrence
}

func (resp runScheduleResponse) location() string {
	if resp.EventID == nil {
		return ""
	}
	return eventPath(*resp.EventID)
}

func (s *Server) runSchedule(r *http.Request, req scheduleRequest) (runScheduleResponse, error) {
	recordOf(r).note("schedule", req.ID)
	made, err := s.schedules.RunNow(r.Context(), req.ID)
	return runScheduleResponse{occurrenceOf(made)}, err
}

// A previewScheduleRequest is what createScheduleRequest is, and from when on to look at it.
type previewScheduleRequest struct {
	specification `in:"json"`
	Event         jsontext.Value `json:"event"`
	Key           string         `json:"idempotency_key" validate:"min=1,max=255"` // so that any schedule's body will do
	After         *time.Time     `json:"after"`
	N             int            `json:"n" default:"10" validate:"min=1,max=1000"`
}

type previewScheduleResponse struct {
	Instants []instant `json:"instants"`
}

func (s *Server) previewSchedule(r *http.Request, req previewScheduleRequest) (previewScheduleResponse, error) {
	found, err := s.schedules.Preview(r.Context(), schedule.PreviewParams{Spec: req.spec(req.Event), After: req.After, N: req.N})
	return previewScheduleResponse{Instants: instantsOf(found)}, err
}
