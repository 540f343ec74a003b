package http

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

type listQueuesResponse struct {
	Queues []queueStats `json:"queues"`
	Next   *string      `json:"next"` // null on the last page
}

type queueStats struct {
	Queue          string         `json:"queue"`
	Ready          int64          `json:"ready"`
	Scheduled      int64          `json:"scheduled"`
	Waiting        int64          `json:"waiting"`
	Leased         int64          `json:"leased"`
	OldestReadyAge *time.Duration `json:"oldest_ready_age"` // null when none is ready
	DoneLately     int64          `json:"done_last_hour"`
	FailedLately   int64          `json:"failed_last_hour"`
	ExpiredLately  int64          `json:"expired_last_hour"`
	Estimated      bool           `json:"estimated"`
	Paused         bool           `json:"paused"`
	DeadLettersOf  []string       `json:"dead_letters_of"` // the first hundred of those that the caller may use
}

func queueStatsOf(q queue.QueueStats) queueStats {
	if q.OldestReadyAge != nil {
		q.OldestReadyAge = new(q.OldestReadyAge.Round(time.Millisecond))
	}
	return queueStats(q)
}

type listQueuesRequest struct {
	paging
	NameContains string   `query:"name_contains" validate:"max=128"` // empty: any name
	Queues       []string `restrict:"allowed_queues"`
}

func (s *Server) listQueues(r *http.Request, req listQueuesRequest) (reply, error) {
	page, err := s.svc.Queues(r.Context(), queue.QueuesParams{
		Lately: time.Hour, Limit: req.Limit, Cursor: req.Cursor, Queues: req.Queues, NameContains: req.NameContains,
	})
	return reply{body: listQueuesResponse{convert(page.Queues, queueStatsOf), nextOf(page.Next)}}, err
}

// A policy is a queue.Policy in a request and in a response. A setting that is null is left to the calls, or to the service.
type policy struct {
	MaxAttempts  *int           `json:"max_attempts" null:"nil" validate:"min=1,max=2147483647"`
	InvisibleFor *time.Duration `json:"invisible_for" null:"nil" validate:"min=1us,max=8760h"`
	Backoff      *backoff       `json:"backoff" null:"nil"`
	Paused       bool           `json:"paused"`
	Retention    *time.Duration `json:"history_retention" null:"nil" validate:"min=1s,max=876000h"`
	DeadLetter   *deadLetter    `json:"dead_letter" null:"nil"`
	Delay        *time.Duration `json:"delay" null:"nil" validate:"min=0s,max=87600h"`
	Wait         *time.Duration `json:"wait" null:"nil" validate:"min=0s,max=60s"`
	GroupFrom    *string        `json:"group_from" null:"nil" validate:"min=1,max=1024"`
	Flow         *flow          `json:"flow" null:"nil"`
}

// A flow is that of a policy: see queue.Flow.
type flow struct {
	Concurrency *int            `json:"concurrency" null:"nil" validate:"min=1,max=10000"`
	Total       *int            `json:"total" null:"nil" validate:"min=1,max=10000"`
	Order       bool            `json:"order"`
	OnFailed    *queue.OnFailed `json:"on_failed" null:"nil" validate:"oneof=continue block"`
	Rate        *claimRate      `json:"rate" null:"nil"`
	Fair        bool            `json:"fair"`
}

func (f *flow) params() *queue.Flow {
	if f == nil {
		return nil
	}
	return &queue.Flow{Concurrency: f.Concurrency, Total: f.Total, Order: f.Order, OnFailed: f.OnFailed, Rate: f.Rate.params(), Fair: f.Fair}
}

func flowOf(f *queue.Flow) *flow {
	if f == nil {
		return nil
	}
	return &flow{f.Concurrency, f.Total, f.Order, f.OnFailed, claimRateOf(f.Rate), f.Fair}
}

// A claimRate is a queue.Rate in a request and in a response.
type claimRate struct {
	Limit  int           `json:"limit" validate:"required,min=1,max=10000"`
	Period time.Duration `json:"period" validate:"required,min=10ms,max=24h"`
	Burst  int           `json:"burst" default:"1" validate:"min=1,max=10000"`
}

func (r *claimRate) params() *queue.Rate { return (*queue.Rate)(r) }

func claimRateOf(r *queue.Rate) *claimRate { return (*claimRate)(r) }

// A deadLetter is that of a policy: see queue.DeadLetter.
type deadLetter struct {
	Queue string `json:"queue" validate:"required,queue,unreserved" log:"dead_letter_queue" restrict:"queue"`
}

// A backoff is that of a policy: see queue.Backoff.
type backoff struct {
	Kind   queue.BackoffKind `json:"kind" validate:"required,oneof=constant linear exponential"`
	Base   time.Duration     `json:"base" validate:"required,min=0s,max=87600h"`
	Factor *float64          `json:"factor" null:"nil" validate:"min=1,max=1000"`
	Max    *time.Duration    `json:"max" null:"nil" validate:"min=0s,max=87600h"`
	Jitter float64           `json:"jitter" validate:"min=0,max=1"`
}

type putQueueRequest struct {
	Name        string        `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	IfMatch     *precondition `header:"If-Match"`
	IfNoneMatch *absence      `header:"If-None-Match"`
	policy
}

func (p *policy) params(name string) queue.Policy {
	return queue.Policy{
		Queue:        name,
		MaxAttempts:  p.MaxAttempts,
		InvisibleFor: p.InvisibleFor,
		Backoff:      (*queue.Backoff)(p.Backoff),
		Paused:       p.Paused,
		Retention:    p.Retention,
		DeadLetter:   (*queue.DeadLetter)(p.DeadLetter),
		Delay:        p.Delay,
		Wait:         p.Wait,
		GroupFrom:    p.GroupFrom,
		Flow:         p.Flow.params(),
	}
}

type policyResponse struct {
	Queue string `json:"queue"`
	policy
	Version   *int64     `json:"version"` // null: there is no policy
	UpdatedAt *time.Time `json:"updated_at"`
}

func policyOf(p queue.Policy) policyResponse {
	body := policyResponse{p.Queue, policy{
		p.MaxAttempts, p.InvisibleFor, (*backoff)(p.Backoff), p.Paused, p.Retention, (*deadLetter)(p.DeadLetter), p.Delay, p.Wait, p.GroupFrom, flowOf(p.Flow),
	}, nil, p.UpdatedAt}
	if p.Version != 0 {
		body.Version = &p.Version
	}
	return body
}

// replyOfPolicy answers with a policy. A queue without one has no version.
func replyOfPolicy(p queue.Policy, body any) reply {
	rep := reply{body: body}
	if p.Version != 0 {
		rep.etag = etagOf(p.Version)
	}
	return rep
}

func (s *Server) putQueue(r *http.Request, req putQueueRequest) (reply, error) {
	only := queue.Precondition{Versions: req.IfMatch.versions(), Exists: req.IfMatch.isAny(), Absent: req.IfNoneMatch != nil}
	p, err := s.svc.PutPolicy(r.Context(), req.params(req.Name), only)
	return replyOfPolicy(p, policyOf(p)), err
}

// A changeQueueRequest changes settings of a policy: Changes has those of a patchQueueRequest that change.
type changeQueueRequest struct {
	openQueueRequest
	IfMatch *precondition   `header:"If-Match"`
	Changes json.RawMessage `body:"changes"`
}

type patchQueueRequest struct {
	openQueueRequest
	IfMatch *precondition `header:"If-Match"`
	policy
}

// patchQueue returns the handler that changes settings of a policy, and leaves the others as they are. If others change the policy meanwhile, it reads that again and changes it
// once more: each time somebody has got something done.
func (s *Server) patchQueue(lim bind.Limits) func(*http.Request, changeQueueRequest) (reply, error) {
	binding := bind.New[patchQueueRequest](lim)
	return func(r *http.Request, req changeQueueRequest) (reply, error) {
		for {
			before, err := s.svc.GetPolicy(r.Context(), req.Name)
			if err != nil {
				return reply{}, err
			}
			patched := patchQueueRequest{req.openQueueRequest, req.IfMatch, policyOf(before).policy}
			deadLetters := ""
			if before.DeadLetter != nil {
				deadLetters = before.DeadLetter.Queue
			}
			if err := binding.Merge(req.Changes, &patched); err != nil { // which changes what before points to, too
				return reply{}, err
			}
			named := patched
			if named.DeadLetter != nil && named.DeadLetter.Queue == deadLetters {
				named.DeadLetter = nil // it stays, whether the caller may use it or not
			}
			if err := s.restrict(r, binding, &named); err != nil { //nolint:contextcheck // what it looks up, it does with the context of r
				return reply{}, err
			}
			only := queue.Precondition{Versions: req.IfMatch.versions(), Exists: req.IfMatch.isAny()}
			isAnother := only.Versions != nil && !slices.Contains(only.Versions, before.Version) || only.Exists && before.Version == 0
			switch {
			case isAnother: // than the caller means: it is refused
			case before.Version == 0:
				only = queue.Precondition{Absent: true}
			default:
				only = queue.Precondition{Versions: []int64{before.Version}}
			}
			p, err := s.svc.PutPolicy(r.Context(), patched.params(req.Name), only)
			if !errors.Is(err, queue.ErrStale) || isAnother {
				return replyOfPolicy(p, policyOf(p)), s.explainUndeclared(r, &patched, err)
			}
		}
	}
}

type queueRequest struct {
	Name string `path:"name" validate:"queue" log:"queue" restrict:"queue"`
}

// A queueResponse is a policy, and the counts that queueStats has.
type queueResponse struct {
	policyResponse
	Ready          int64          `json:"ready"`
	Scheduled      int64          `json:"scheduled"`
	Waiting        int64          `json:"waiting"`
	Leased         int64          `json:"leased"`
	OldestReadyAge *time.Duration `json:"oldest_ready_age"`
	DoneLately     int64          `json:"done_last_hour"`
	FailedLately   int64          `json:"failed_last_hour"`
	ExpiredLately  int64          `json:"expired_last_hour"`
	Estimated      bool           `json:"estimated"`
	DeadLettersOf  []string       `json:"dead_letters_of"`
}

func (s *Server) getQueue(r *http.Request, req queueRequest) (reply, error) {
	queues, _ := allowed(r)
	p, counts, err := s.svc.Queue(r.Context(), req.Name, time.Hour, queues)
	c := queueStatsOf(counts)
	err = s.requireIfEmpty(r, req.Name, counts.Events(), err)
	return replyOfPolicy(p, queueResponse{
		policyOf(p), c.Ready, c.Scheduled, c.Waiting, c.Leased, c.OldestReadyAge, c.DoneLately, c.FailedLately, c.ExpiredLately, c.Estimated, c.DeadLettersOf,
	}), err
}

// An openQueueRequest is about a queue that is not the service's own.
type openQueueRequest struct {
	Name string `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
}

// A pauseQueueRequest pauses or resumes a queue.
type pauseQueueRequest struct{ openQueueRequest }

// changeQueue is the handler of a call that changes a queue's policy and returns it.
func (s *Server) changeQueue(change func(context.Context, string) error) func(*http.Request, pauseQueueRequest) (reply, error) {
	return func(r *http.Request, req pauseQueueRequest) (reply, error) {
		if err := change(r.Context(), req.Name); err != nil {
			return reply{}, err
		}
		p, err := s.svc.GetPolicy(r.Context(), req.Name)
		return replyOfPolicy(p, policyOf(p)), err
	}
}

func (s *Server) purgeQueue(r *http.Request, req openQueueRequest) (reply, error) {
	purged, err := s.svc.Purge(r.Context(), req.Name)
	logOf(r).add("events", purged)
	return countOf("purged", purged), s.requireIfEmpty(r, req.Name, purged, err)
}

type deleteQueueRequest struct {
	Name    string        `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Purge   bool          `query:"purge"`
	IfMatch *precondition `header:"If-Match"`
}

// deleteQueue deletes a queue. Who may use some queues and topics alone is not told who uses the queue: these may have names that others gave them.
func (s *Server) deleteQueue(r *http.Request, req deleteQueueRequest) (reply, error) {
	purged, err := s.svc.Delete(r.Context(), req.Name, req.Purge, req.IfMatch.versions())
	logOf(r).add("events", purged)
	if refused, ok := errors.AsType[*queue.RefusedError](err); ok {
		err = problem.New(problem.Of(err).Type, explainRefusal(refused, logOf(r).grant.IsRestricted()))
	}
	return countOf("purged", purged), err
}

// explainRefusal returns why a queue was not deleted, and the next step.
func explainRefusal(refused *queue.RefusedError, isRestricted bool) string {
	switch {
	case errors.Is(refused, queue.ErrQueueNotEmpty):
		return "The queue has events: " + refused.Detail + ". Send ?purge=true to move them into history as cancelled, or move them to another queue first."
	case errors.Is(refused, queue.ErrQueueLeased):
		return "Events of the queue are under a lease: " + refused.Detail + ". Pause the queue, wait until they are finished or their leases end, and delete it then."
	case isRestricted:
		return "Schedules, sources, subscriptions or policies of other queues name the queue. Delete them, or have them name another queue."
	}
	return "These name the queue: " + refused.Detail + ". Delete them, or have them name another queue."
}

type moveEventsRequest struct {
	Name  string   `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	To    string   `json:"to" validate:"required,queue,unreserved" log:"to" restrict:"queue"`
	Types []string `json:"types" validate:"max=100,dive,min=1,max=255"` // empty: of any type
	Limit int      `json:"limit" validate:"min=1,max=2147483647"`
}

// Check implements bind.Checker.
func (req *moveEventsRequest) Check(report func(field, detail string)) {
	if req.To == req.Name {
		report("to", "must be another queue")
	}
}

func (s *Server) moveEvents(r *http.Request, req moveEventsRequest) (reply, error) {
	moved, err := s.svc.Move(r.Context(), req.Name, req.To, req.Types, req.Limit)
	logOf(r).add("events", moved)
	return countOf("moved", moved), s.requireIfEmpty(r, req.Name, moved, err)
}

type runQueueRequest struct {
	Name       string   `path:"name" validate:"queue,unreserved" log:"queue" restrict:"queue"`
	Types      []string `json:"types" validate:"max=100,dive,min=1,max=255"` // empty: of any type
	NackedOnly bool     `json:"nacked_only"`
	Limit      int      `json:"limit" validate:"min=1,max=2147483647"`
}

func (s *Server) runQueue(r *http.Request, req runQueueRequest) (reply, error) {
	run, err := s.svc.RunQueue(r.Context(), queue.RunParams{Queue: req.Name, Types: req.Types, NackedOnly: req.NackedOnly, Limit: req.Limit})
	logOf(r).add("events", run)
	return countOf("run", run), s.requireIfEmpty(r, req.Name, run, err)
}

type listExecutionsRequest struct {
	Type   *string `query:"type" validate:"max=255"` // empty: events without a type
	Worker *string `query:"worker" validate:"max=255"`
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

func (s *Server) listExecutions(r *http.Request, req listExecutionsRequest) (reply, error) {
	executions, err := s.svc.Executions(r.Context(), req.Type, req.Worker)
	return listOf("executions", executions, executionOf), err
}

// A process is one running service and its counts since its start.
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
	// A process of another version may report other metrics: one that is not there, or no number, counts as zero.
	count := func(category string) int64 {
		n, _ := strconv.ParseInt(p.Metrics[category], 10, 64)
		return n
	}
	out := process{
		ID:            p.ID,
		Process:       p.Name,
		Version:       p.Metrics[queue.MetricVersion],
		Posted:        count(queue.MetricInserted),
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

func (s *Server) listProcesses(r *http.Request, _ noRequest) (reply, error) {
	processes, err := s.svc.Processes(r.Context())
	return listOf("processes", processes, processOf), err
}
