package http

import (
	"net/http"
	"strconv"
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

func queueStatsOf(q queue.QueueStats) queueStats {
	out := queueStats{
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
		out.OldestReadyAge = new(q.OldestReadyAge.Round(time.Millisecond).String())
	}
	return out
}

func (s *Server) listQueues(r *http.Request, req listQueuesRequest) (reply, error) {
	page, err := s.svc.Queues(r.Context(), queue.QueuesParams{Lately: time.Hour, Limit: req.Limit, Cursor: req.Cursor})
	return reply{body: listQueuesResponse{convert(page.Queues, queueStatsOf), nextOf(page.Next)}}, err
}

type putQueueRequest struct {
	Name         string         `path:"name" validate:"queue"`
	MaxAttempts  *int           `json:"max_attempts" null:"true" validate:"min=1,max=2147483647"`
	InvisibleFor *time.Duration `json:"invisible_for" null:"true" validate:"min=1us,max=8760h"`
	Backoff      *backoffMember `json:"backoff" null:"true"`
	Paused       bool           `json:"paused"`
	Retention    *time.Duration `json:"history_retention" null:"true" validate:"min=1s,max=876000h"`
}

// A backoffMember is how a policy has a backoff: see queue.Backoff.
type backoffMember struct {
	Kind   string         `json:"kind" validate:"required,oneof=constant linear exponential"`
	Base   time.Duration  `json:"base" validate:"required,min=0s,max=87600h"`
	Factor *float64       `json:"factor" null:"true" validate:"min=1,max=1000"`
	Max    *time.Duration `json:"max" null:"true" validate:"min=0s,max=87600h"`
	Jitter float64        `json:"jitter" validate:"min=0,max=1"`
}

func (req putQueueRequest) policy() queue.Policy {
	p := queue.Policy{
		Queue:        req.Name,
		MaxAttempts:  req.MaxAttempts,
		InvisibleFor: req.InvisibleFor,
		Paused:       req.Paused,
		Retention:    req.Retention,
	}
	if b := req.Backoff; b != nil {
		p.Backoff = &queue.Backoff{Kind: queue.BackoffKind(b.Kind), Base: b.Base, Factor: b.Factor, Max: b.Max, Jitter: b.Jitter}
	}
	return p
}

// A policyResponse is the policy of a queue. Null is what is left to the calls, or to the service.
type policyResponse struct {
	Queue        string         `json:"queue"`
	MaxAttempts  *int           `json:"max_attempts"`
	InvisibleFor *duration      `json:"invisible_for"`
	Backoff      *policyBackoff `json:"backoff"`
	Paused       bool           `json:"paused"`
	Retention    *duration      `json:"history_retention"`
	UpdatedAt    *timestamp     `json:"updated_at"`
}

type policyBackoff struct {
	Kind   queue.BackoffKind `json:"kind"`
	Base   duration          `json:"base"`
	Factor *float64          `json:"factor"`
	Max    *duration         `json:"max"`
	Jitter float64           `json:"jitter"`
}

func policyOf(p queue.Policy) policyResponse {
	resp := policyResponse{
		Queue:        p.Queue,
		MaxAttempts:  p.MaxAttempts,
		InvisibleFor: (*duration)(p.InvisibleFor),
		Paused:       p.Paused,
		Retention:    (*duration)(p.Retention),
		UpdatedAt:    (*timestamp)(p.UpdatedAt),
	}
	if b := p.Backoff; b != nil {
		resp.Backoff = &policyBackoff{Kind: b.Kind, Base: duration(b.Base), Factor: b.Factor, Max: (*duration)(b.Max), Jitter: b.Jitter}
	}
	return resp
}

func (s *Server) putQueue(r *http.Request, req putQueueRequest) (reply, error) {
	logOf(r).add("queue", req.Name)
	p, err := s.svc.PutPolicy(r.Context(), req.policy())
	return reply{body: policyOf(p)}, err
}

type queueRequest struct {
	Name string `path:"name" validate:"queue"`
}

func (s *Server) getQueue(r *http.Request, req queueRequest) (reply, error) {
	logOf(r).add("queue", req.Name)
	p, err := s.svc.GetPolicy(r.Context(), req.Name)
	return reply{body: policyOf(p)}, err
}

func (s *Server) pauseQueue(r *http.Request, req queueRequest) (reply, error) {
	if err := s.svc.Pause(r.Context(), req.Name); err != nil {
		return reply{}, err
	}
	return s.getQueue(r, req)
}

func (s *Server) resumeQueue(r *http.Request, req queueRequest) (reply, error) {
	if err := s.svc.Resume(r.Context(), req.Name); err != nil {
		return reply{}, err
	}
	return s.getQueue(r, req)
}

type purgeQueueResponse struct {
	Purged int64 `json:"purged"`
}

func (s *Server) purgeQueue(r *http.Request, req queueRequest) (reply, error) {
	logOf(r).add("queue", req.Name)
	purged, err := s.svc.Purge(r.Context(), req.Name)
	logOf(r).add("events", purged)
	return reply{body: purgeQueueResponse{Purged: purged}}, err
}

type listExecutionsRequest struct {
	Type   *string `query:"type" validate:"max=255"` // empty: what has no type
	Worker *string `query:"worker" validate:"max=255"`
}

type listExecutionsResponse struct {
	Executions []execution `json:"executions"`
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
	return reply{body: listExecutionsResponse{convert(executions, executionOf)}}, err
}

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
	return reply{body: listProcessesResponse{convert(processes, processOf)}}, err
}
