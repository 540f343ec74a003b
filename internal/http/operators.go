package http

import (
	"net/http"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/queue"
)

type historyErrorsRequest struct {
	Queue string     `query:"queue" validate:"queue" restrict:"queue,any"`
	Type  string     `query:"type" validate:"min=1,max=255"`
	From  *time.Time `query:"from"`
	To    *time.Time `query:"to"`

	FinishedFrom *time.Time `query:"finished_from"`
	FinishedTo   *time.Time `query:"finished_to"`

	Limit int `query:"limit" default:"20" validate:"min=1,max=100"`

	Queues []string `restrict:"allowed_queues"`
}

// Check implements bind.Checker.
func (req *historyErrorsRequest) Check(report func(field, detail string)) {
	checkSpan(req.From, req.To, report)
	checkFinished(req.FinishedFrom, req.FinishedTo, report)
}

// A cause is what the errors of some failures have in common.
type cause struct {
	Cause   string       `json:"cause"`
	Count   int64        `json:"count"`
	Queues  []string     `json:"queues"`
	Types   []string     `json:"types"`
	FirstAt timestamp    `json:"first_at"`
	LastAt  timestamp    `json:"last_at"`
	Example causeExample `json:"example"`
}

// A causeExample is one event with a cause, and its error.
type causeExample struct {
	ID        int64  `json:"id"`
	Error     string `json:"error"`
	Truncated bool   `json:"truncated"`
}

func causeOf(c queue.Cause) cause {
	return cause{
		Cause: c.Text, Count: c.Count, Queues: append([]string{}, c.Queues...), Types: append([]string{}, c.Types...),
		FirstAt: timestamp(c.FirstAt), LastAt: timestamp(c.LastAt), Example: causeExample{c.ExampleID, c.ExampleError, c.ExampleTruncated},
	}
}

type historyErrorsResponse struct {
	Errors   []cause `json:"errors"`
	Causes   int     `json:"causes"` // with those beyond the limit
	LookedAt int64   `json:"looked_at"`
	Complete bool    `json:"complete"`
}

func (s *Server) historyErrors(r *http.Request, req historyErrorsRequest) (reply, error) {
	found, err := s.svc.Causes(r.Context(), queue.CausesParams(req))
	err = s.requireIfEmpty(r, req.Queue, found.LookedAt, err)
	return reply{body: historyErrorsResponse{convert(found.Causes, causeOf), found.Total, found.LookedAt, found.Complete}}, err
}

type listWorkersRequest struct {
	Lately time.Duration `query:"lately" default:"1h" validate:"min=1s,max=24h"`
	Limit  int           `query:"limit" default:"100" validate:"min=1,max=1000"`

	Queues []string `restrict:"allowed_queues"`
}

// A worker is what is known of the claims that name it.
type worker struct {
	Worker     string        `json:"worker"` // empty: claims without a name
	Queues     []string      `json:"queues"`
	Leases     int64         `json:"leases"`
	Oldest     *oldestLease  `json:"oldest_lease"`
	Ended      int64         `json:"ended"`
	Failed     int64         `json:"failed"`
	AverageMS  *milliseconds `json:"average_ms"`
	LongestMS  *milliseconds `json:"longest_ms"`
	LastSeenAt timestamp     `json:"last_seen_at"`
}

// oldestLease is the one of the leases of a worker that was claimed first.
type oldestLease struct {
	ClaimedAt timestamp `json:"claimed_at"`
	EndsAt    timestamp `json:"ends_at"`
}

func workerOf(w queue.Worker) worker {
	out := worker{
		Worker: w.Name, Queues: append([]string{}, w.Queues...), Leases: w.Leases, Ended: w.Ended, Failed: w.Failed,
		AverageMS: (*milliseconds)(w.Average), LongestMS: (*milliseconds)(w.Longest), LastSeenAt: timestamp(w.LastSeenAt),
	}
	if w.OldestClaimedAt != nil && w.OldestEndsAt != nil {
		out.Oldest = &oldestLease{timestamp(*w.OldestClaimedAt), timestamp(*w.OldestEndsAt)}
	}
	return out
}

type listWorkersResponse struct {
	Workers      []worker  `json:"workers"`
	Total        int64     `json:"total"` // with those beyond the limit
	CountedSince timestamp `json:"counted_since"`
	Complete     bool      `json:"complete"`
}

func (s *Server) listWorkers(r *http.Request, req listWorkersRequest) (reply, error) {
	found, err := s.svc.Workers(r.Context(), queue.WorkersParams(req))
	return reply{body: listWorkersResponse{convert(found.Workers, workerOf), found.Total, timestamp(found.CountedSince), found.Complete}}, err
}

type listHoldersRequest struct {
	Queues []string `restrict:"allowed_queues"`
}

// A listedHolder is something that holds others back. What says nothing about its kind is absent.
type listedHolder struct {
	Kind           string     `json:"kind"`
	What           string     `json:"what"`
	Advice         string     `json:"advice"`
	Since          *timestamp `json:"since,omitzero"`
	Queue          string     `json:"queue,omitzero"`
	EventID        int64      `json:"event_id,omitzero"`
	Worker         string     `json:"worker,omitzero"`
	PID            int32      `json:"pid,omitzero"`
	Name           string     `json:"name,omitzero"`
	Role           string     `json:"role,omitzero"`
	Application    string     `json:"application,omitzero"`
	Database       string     `json:"database,omitzero"`
	State          string     `json:"state,omitzero"`
	QueryStartedAt *timestamp `json:"query_started_at,omitzero"`
	Query          string     `json:"query,omitzero"`
	Events         int64      `json:"events,omitzero"`
	OfKind         int64      `json:"of_kind"`
}

func listedHolderOf(h queue.Holder) listedHolder {
	return listedHolder{
		Kind: h.Kind, What: h.What, Advice: h.Advice, Since: (*timestamp)(h.Since), Queue: h.Queue, EventID: h.EventID, Worker: h.Worker, PID: h.PID,
		Name: h.Name, Role: h.Role, Application: h.Application, Database: h.Database, State: h.State, QueryStartedAt: (*timestamp)(h.QueryStartedAt),
		Query: h.Query, Events: h.Events, OfKind: h.OfKind,
	}
}

type listHoldersResponse struct {
	Holders  []listedHolder `json:"holders"`
	Complete bool           `json:"complete"`
}

func (s *Server) listHolders(r *http.Request, req listHoldersRequest) (reply, error) {
	grant := logOf(r).grant
	found, err := s.svc.Holders(r.Context(), req.Queues, grant == nil || grant.Has(access.Admin))
	answer := listHoldersResponse{Holders: convert(found, listedHolderOf), Complete: true}
	for i := range found {
		answer.Complete = answer.Complete && found[i].IsComplete
	}
	return reply{body: answer}, err
}
