package http

import (
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/queue"
)

// An event as it goes over the wire. State is there while it waits, outcome and what follows
// once it is in history, receipt when it was just claimed.
type event struct {
	ID           int64          `json:"id"`
	Queue        string         `json:"queue"`
	State        queue.State    `json:"state,omitzero"`
	Outcome      queue.Outcome  `json:"outcome,omitzero"`
	EventTS      timestamp      `json:"event_ts"`
	EnqueuedAt   timestamp      `json:"enqueued_at"`
	Attempts     int32          `json:"attempts"`
	VT           timestamp      `json:"vt"`
	Claimed      []timestamp    `json:"claimed"`
	FinishedAt   *timestamp     `json:"finished_at,omitzero"`
	LastError    *string        `json:"last_error,omitzero"`
	RequeuedFrom *int64         `json:"requeued_from,omitzero"`
	RequeuedAs   *int64         `json:"requeued_as,omitzero"`
	Event        jsontext.Value `json:"event"`
	Receipt      string         `json:"receipt,omitzero"`
}

func eventOf(e queue.Event) event {
	return event{
		ID:           e.ID,
		Queue:        e.Queue,
		State:        e.State,
		Outcome:      e.Outcome,
		EventTS:      timestamp(e.EventTS),
		EnqueuedAt:   timestamp(e.EnqueuedAt),
		Attempts:     e.Attempts,
		VT:           timestamp(e.VT),
		Claimed:      timestamps(e.Claimed),
		FinishedAt:   (*timestamp)(e.FinishedAt),
		LastError:    e.LastError,
		RequeuedFrom: e.RequeuedFrom,
		RequeuedAs:   e.RequeuedAs,
		Event:        jsontext.Value(e.Payload),
		Receipt:      e.Receipt,
	}
}

func eventsOf(es []queue.Event) []event {
	out := make([]event, len(es))
	for i, e := range es {
		out[i] = eventOf(e)
	}
	return out
}

type insertRequest struct {
	Event jsontext.Value `body:"event"`
	Queue string         `query:"queue" default:"default" validate:"queue"`
	Delay *time.Duration `query:"delay" validate:"min=0s,max=87600h"`
	VT    *time.Time     `query:"vt"`
}

func (req insertRequest) check(report func(field, detail string)) {
	if req.Delay != nil && req.VT != nil {
		report("vt", "may not be given along with delay")
	}
}

func (req insertRequest) params() queue.InsertParams {
	p := queue.InsertParams{Event: []byte(req.Event), Queue: req.Queue, VT: req.VT}
	if req.Delay != nil {
		p.Delay = *req.Delay
	}
	return p
}

type insertResponse struct {
	ID    int64     `json:"id"`
	Queue string    `json:"queue"`
	VT    timestamp `json:"vt"`
}

func (resp insertResponse) location() string { return eventPath(resp.ID) }

func eventPath(id int64) string { return "/events/" + strconv.FormatInt(id, 10) }

func (s *Server) insert(r *http.Request, req insertRequest) (insertResponse, error) {
	recordOf(r).note("queue", req.Queue)
	inserted, err := s.svc.Insert(r.Context(), []queue.InsertParams{req.params()})
	if err != nil {
		return insertResponse{}, err
	}
	e := inserted[0]
	recordOf(r).note("id", e.ID)
	return insertResponse{ID: e.ID, Queue: e.Queue, VT: timestamp(e.VT)}, nil
}

type insertBatchRequest struct {
	Events []batchItem `json:"events" validate:"required,min=1"`
}

// A batchItem is what insertRequest is, with everything in the body.
type batchItem struct {
	Event jsontext.Value `json:"event" validate:"required"`
	Queue string         `json:"queue" default:"default" validate:"queue"`
	Delay *time.Duration `json:"delay" validate:"min=0s,max=87600h"`
	VT    *time.Time     `json:"vt"`
}

func (item batchItem) check(report func(field, detail string)) { insertRequest(item).check(report) }

type insertBatchResponse struct {
	IDs []int64 `json:"ids"`
}

func (insertBatchResponse) location() string { return "" } // there are many

func (s *Server) insertBatch(r *http.Request, req insertBatchRequest) (insertBatchResponse, error) {
	recordOf(r).note("events", len(req.Events))
	params := make([]queue.InsertParams, len(req.Events))
	for i, item := range req.Events {
		params[i] = insertRequest(item).params()
	}
	inserted, err := s.svc.Insert(r.Context(), params)
	if err != nil {
		return insertBatchResponse{}, err
	}
	ids := make([]int64, len(inserted))
	for i, e := range inserted {
		ids[i] = e.ID
	}
	return insertBatchResponse{IDs: ids}, nil
}

// A pageResponse is one page of a listing. Next is null on the last one.
type pageResponse struct {
	Events []event `json:"events"`
	Next   *string `json:"next"`
}

func pageOf(p queue.Page) pageResponse {
	resp := pageResponse{Events: eventsOf(p.Events)}
	if p.Next != "" {
		resp.Next = &p.Next
	}
	return resp
}

// paging is what every listing takes.
type paging struct {
	Limit  int    `name:"limit" default:"100" validate:"min=1,max=1000"`
	Cursor string `name:"cursor" validate:"min=1,max=1024"`
}

type listEventsRequest struct {
	Queue  string `query:"queue" validate:"queue"`
	State  string `query:"state" validate:"oneof=ready scheduled leased"`
	paging `in:"query"`
}

func (s *Server) listEvents(r *http.Request, req listEventsRequest) (pageResponse, error) {
	page, err := s.svc.List(r.Context(), queue.ListParams{
		Queue:  req.Queue,
		State:  queue.State(req.State),
		Limit:  req.Limit,
		Cursor: req.Cursor,
	})
	return pageOf(page), err
}

type getEventRequest struct {
	ID int64 `path:"id" validate:"min=1"`
}

func (s *Server) getEvent(r *http.Request, req getEventRequest) (event, error) {
	recordOf(r).note("id", req.ID)
	e, err := s.svc.Get(r.Context(), req.ID)
	return eventOf(e), err
}
