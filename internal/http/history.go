package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/queued/queued/internal/queue"
)

// A filter selects events of history, in a query or in a body.
type filter struct {
	Queue       string          `json:"queue" validate:"queue" restrict:"queue,any"`
	Outcome     queue.Outcome   `json:"outcome" validate:"oneof=done failed expired cancelled"`
	From        *time.Time      `json:"from"`
	To          *time.Time      `json:"to"`
	Contains    json.RawMessage `json:"contains"`
	ID          *int64          `json:"id" validate:"min=1" restrict:"statement"`
	Type        string          `json:"type" validate:"min=1,max=255"`
	Source      string          `json:"source" validate:"min=1,max=255"`
	Worker      string          `json:"worker" validate:"min=1,max=255"`
	MinDuration *time.Duration  `json:"min_duration" validate:"min=0s,max=87600h"`
	Meta        json.RawMessage `json:"meta"`
	Queues      []string        `restrict:"allowed_queues"`
}

// Check implements bind.Checker.
func (f *filter) Check(report func(field, detail string)) { checkSpan(f.From, f.To, report) }

// checkSpan refuses a span of time in which nothing can be.
func checkSpan(from, to *time.Time, report func(field, detail string)) {
	if from != nil && to != nil && !from.Before(*to) {
		report("from", "must be before to")
	}
}

type listHistoryRequest struct {
	filter `in:"query"`
	exportPaging
}

func (s *Server) listHistory(r *http.Request, req listHistoryRequest) (reply, error) {
	page, err := s.historyPage(r, req)
	return reply{body: eventPage(page)}, err
}

func (s *Server) historyPage(r *http.Request, req listHistoryRequest) (queue.Page, error) {
	filter := queue.HistoryFilter(req.filter)
	page, err := s.svc.History(r.Context(), queue.HistoryParams{HistoryFilter: filter, Limit: req.Limit, Cursor: req.Cursor})
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
}

// span is the time asked for: until now, and a day of it, unless said otherwise.
func (req *historyStatsRequest) span() (from, to time.Time) {
	to = time.Now().UTC()
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
	return created(map[string]int64{"id": id}, eventPath(id), false), err
}

type requeueMatchingRequest struct {
	filter
	Limit  int  `json:"limit" default:"1000" validate:"min=1,max=1000"`
	DryRun bool `json:"dry_run"`
}

// Check refuses a request without a filter: an empty POST sent by mistake must not requeue all of history.
func (req *requeueMatchingRequest) Check(report func(field, detail string)) {
	if reflect.ValueOf(req.filter).IsZero() {
		report("", "must have a filter: at least one of queue, outcome, from, to, contains, id, type, source, worker, min_duration, meta")
	}
	req.filter.Check(report)
}

type requeueMatchingResponse struct {
	Matched  int64 `json:"matched"`
	Requeued int64 `json:"requeued"`
}

func (s *Server) requeueMatching(r *http.Request, req requeueMatchingRequest) (reply, error) {
	filter := queue.HistoryFilter(req.filter)
	result, err := s.svc.RequeueMatching(r.Context(), queue.RequeueParams{HistoryFilter: filter, Limit: req.Limit, DryRun: req.DryRun})
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
