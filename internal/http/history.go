package http

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

// A historyFilter selects events of history: in a query, in a body, and in a response.
type historyFilter struct {
	Queue        string          `json:"queue,omitzero" validate:"queue" restrict:"queue,any"`
	Outcome      queue.Outcome   `json:"outcome,omitzero" validate:"oneof=done failed expired cancelled"`
	From         *time.Time      `json:"from,omitzero"`
	To           *time.Time      `json:"to,omitzero"`
	FinishedFrom *time.Time      `json:"finished_from,omitzero"`
	FinishedTo   *time.Time      `json:"finished_to,omitzero"`
	Contains     json.RawMessage `json:"contains,omitzero"`
	Type         string          `json:"type,omitzero" validate:"min=1,max=255"`
	Source       string          `json:"source,omitzero" validate:"min=1,max=255"`
	Worker       string          `json:"worker,omitzero" validate:"min=1,max=255"`
	MinDuration  *time.Duration  `json:"min_duration,omitzero" validate:"min=0s,max=87600h"`
	Meta         json.RawMessage `json:"meta,omitzero"`
	Cause        string          `json:"cause,omitzero" validate:"min=1,max=301"`
}

// isZero reports whether the filter selects everything.
func (f *historyFilter) isZero() bool { return reflect.ValueOf(*f).IsZero() }

// params returns the filter for one event (nil: any) and for a caller that may use some queues alone (nil: all).
func (f *historyFilter) params(id *int64, queues []string) queue.HistoryFilter {
	return queue.HistoryFilter{
		Queue: f.Queue, Outcome: f.Outcome, From: f.From, To: f.To, FinishedFrom: f.FinishedFrom, FinishedTo: f.FinishedTo, Contains: f.Contains, ID: id,
		Type: f.Type, Source: f.Source, Worker: f.Worker, MinDuration: f.MinDuration, Meta: f.Meta, Cause: f.Cause, Queues: queues,
	}
}

// historyFilterOf returns a filter as it goes over the wire.
func historyFilterOf(f *queue.HistoryFilter) historyFilter {
	return historyFilter{
		Queue: f.Queue, Outcome: f.Outcome, From: f.From, To: f.To, FinishedFrom: f.FinishedFrom, FinishedTo: f.FinishedTo, Contains: f.Contains,
		Type: f.Type, Source: f.Source, Worker: f.Worker, MinDuration: f.MinDuration, Meta: f.Meta, Cause: f.Cause,
	}
}

// Check implements bind.Checker.
func (f *historyFilter) Check(report func(field, detail string)) {
	checkSpan(f.From, f.To, report)
	checkFinished(f.FinishedFrom, f.FinishedTo, report)
}

// checkSpan refuses a span of time in which nothing can be.
func checkSpan(from, to *time.Time, report func(field, detail string)) {
	if from != nil && to != nil && !from.Before(*to) {
		report("from", "must be before to")
	}
}

// checkFinished is checkSpan for times of the end of events.
func checkFinished(from, to *time.Time, report func(field, detail string)) {
	checkSpan(from, to, func(string, string) { report("finished_from", "must be before finished_to") })
}

type listHistoryRequest struct {
	historyFilter `in:"query"`
	ID            *int64 `query:"id" validate:"min=1" restrict:"statement"`
	exportPaging

	Queues []string `restrict:"allowed_queues"`
}

func (s *Server) listHistory(r *http.Request, req listHistoryRequest) (reply, error) {
	page, err := s.historyPage(r, req)
	return reply{body: eventPage(page)}, err
}

func (s *Server) historyPage(r *http.Request, req listHistoryRequest) (queue.Page, error) {
	page, err := s.svc.History(r.Context(), queue.HistoryParams{
		HistoryFilter: req.params(req.ID, req.Queues), Limit: req.Limit, Cursor: req.Cursor,
	})
	if req.Cursor == "" {
		err = s.requireIfEmpty(r, req.Queue, int64(len(page.Events)), err)
	}
	return page, err
}

type historyStatsRequest struct {
	exportable
	Bucket time.Duration `query:"bucket" default:"1h" validate:"min=1s,max=8760h"`
	From   *time.Time    `query:"from"`
	To     *time.Time    `query:"to"`
	Queue  string        `query:"queue" validate:"queue" restrict:"queue,any"`

	Queues []string `restrict:"allowed_queues"`
	clocked
}

// span is the time asked for: until now, and a day of it, unless said otherwise.
func (req *historyStatsRequest) span() (from, to time.Time) {
	to = req.now
	if req.To != nil {
		to = *req.To
	}
	from = to.Add(-24 * time.Hour)
	if req.From != nil {
		from = *req.From
	}
	return from, to
}

// Check implements bind.Checker.
func (req *historyStatsRequest) Check(report func(field, detail string)) {
	from, to := req.span()
	if !from.Before(to) {
		checkSpan(&from, &to, report)
		return
	}
	// Buckets are aligned to the epoch: the first and the last may lie outside in part. Seconds, since
	// a Duration holds 292 years only.
	if n := float64(to.Unix()-from.Unix())/req.Bucket.Seconds() + 1; n > queue.MaxBuckets {
		report("bucket", fmt.Sprintf("is too short: from and to would be more than %d buckets apart", queue.MaxBuckets))
	}
}

// A bucket counts the events whose event_ts lies in the bucket's length of time from start on.
type bucket struct {
	Start     time.Time `json:"start"`
	Done      int64     `json:"done"`
	Failed    int64     `json:"failed"`
	Expired   int64     `json:"expired"`
	Cancelled int64     `json:"cancelled"`
}

func (s *Server) historyStats(r *http.Request, req historyStatsRequest) (reply, error) {
	stats, err := s.countHistory(r, req)
	return listOf("buckets", stats, func(b queue.StatsBucket) bucket { return bucket(b) }), err
}

func (s *Server) countHistory(r *http.Request, req historyStatsRequest) ([]queue.StatsBucket, error) {
	from, to := req.span()
	stats, err := s.svc.HistoryStats(r.Context(), queue.StatsParams{Bucket: req.Bucket, From: from, To: to, Queue: req.Queue, Queues: req.Queues})
	var events int64
	for _, b := range stats {
		events += b.Done + b.Failed + b.Expired + b.Cancelled
	}
	return stats, s.requireIfEmpty(r, req.Queue, events, err)
}

type requeueRequest struct {
	eventRequest `restrict:"statement"`
}

func (s *Server) requeue(r *http.Request, req requeueRequest) (reply, error) {
	queues, _ := allowed(r)
	id, err := s.svc.Requeue(r.Context(), req.ID, queues)
	if requeued, ok := errors.AsType[*queue.RequeuedError](err); ok {
		err = problem.New(problem.EventRequeued, fmt.Sprintf(
			"The event was requeued before, and its copy, the event %d, is in a queue, or done. To have its work done again, requeue that one once it has ended.", requeued.Copy))
	}
	return created(map[string]int64{"id": id}, eventPath(id), false), err
}

type requeueMatchingRequest struct {
	historyFilter
	ID     *int64 `json:"id" validate:"min=1" restrict:"statement"`
	Limit  int    `json:"limit" default:"1000" validate:"min=1,max=1000"`
	DryRun bool   `json:"dry_run"`

	Queues []string `restrict:"allowed_queues"`
}

// Check refuses a request without a filter: an empty POST sent by mistake must not requeue all of history.
func (req *requeueMatchingRequest) Check(report func(field, detail string)) {
	if req.isZero() && req.ID == nil {
		report("", "must have a filter: at least one of queue, outcome, from, to, finished_from, finished_to, contains, id, type, source, worker, min_duration, meta, cause")
	}
	req.historyFilter.Check(report)
}

type requeueMatchingResponse struct {
	Matched  int64 `json:"matched"`
	Requeued int64 `json:"requeued"`
}

func (s *Server) requeueMatching(r *http.Request, req requeueMatchingRequest) (reply, error) {
	result, err := s.svc.RequeueMatching(r.Context(), queue.RequeueParams{HistoryFilter: req.params(req.ID, req.Queues), Limit: req.Limit, DryRun: req.DryRun})
	logOf(r).add("events", result.Requeued)
	return reply{body: requeueMatchingResponse(result)}, s.requireIfEmpty(r, req.Queue, result.Matched, err)
}

type sweepRequest struct {
	MaxAttempts int            `json:"max_attempts" validate:"min=1,max=2147483647"` // not given: the service's own
	MaxVTAge    *time.Duration `json:"max_vt_age" default:"1h" null:"nil" validate:"min=0s,max=87600h"`
	Queue       string         `json:"queue" validate:"queue" restrict:"queue"`
}

func (s *Server) sweep(r *http.Request, req sweepRequest) (reply, error) {
	expired, err := s.svc.Sweep(r.Context(), queue.SweepParams(req))
	logOf(r).add("events", expired)
	return countOf("expired", expired), err
}
