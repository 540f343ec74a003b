package http

import (
	"cmp"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/queue"
)

// A redrive as it goes over the wire. What was not given is absent.
type redrive struct {
	ID         int64              `json:"id"`
	Queue      string             `json:"queue,omitzero"`
	Filter     historyFilter      `json:"filter"`
	To         string             `json:"to,omitzero"`
	Rate       float64            `json:"rate,omitzero"`
	State      queue.RedriveState `json:"state"`
	Reason     string             `json:"reason,omitzero"`
	Matched    int64              `json:"matched"`
	Estimate   bool               `json:"estimate"`
	Requeued   int64              `json:"requeued"`
	Skipped    int64              `json:"skipped"`
	CreatedAt  time.Time          `json:"created_at"`
	UpdatedAt  time.Time          `json:"updated_at"`
	FinishedAt *time.Time         `json:"finished_at,omitzero"`
}

func redriveOf(r queue.Redrive) redrive {
	return redrive{
		ID:         r.ID,
		Queue:      r.DeadLetterQueue,
		Filter:     historyFilterOf(&r.HistoryFilter),
		To:         r.ToQueue,
		Rate:       r.Rate,
		State:      r.State,
		Reason:     r.Reason,
		Matched:    r.Matched,
		Estimate:   r.IsEstimate,
		Requeued:   r.Requeued,
		Skipped:    r.Skipped,
		CreatedAt:  r.CreatedAt,
		UpdatedAt:  r.UpdatedAt,
		FinishedAt: r.FinishedAt,
	}
}

type createRedriveRequest struct {
	Queue     string         `json:"queue" validate:"queue,unreserved" log:"dead_letter_queue" restrict:"queue,any"`
	Filter    historyFilter  `json:"filter"`
	To        string         `json:"to" validate:"queue,unreserved" log:"to" restrict:"method"`
	Rate      float64        `json:"rate" validate:"min=0,max=1000000"`
	DryRun    bool           `json:"dry_run"`
	Key       string         `json:"idempotency_key" validate:"min=1,max=255"`
	HeaderKey idempotencyKey `header:"Idempotency-Key" validate:"min=1,max=255"`

	Queues []string `restrict:"allowed_queues"`
}

// Check refuses a request without a filter: an empty POST sent by mistake must not requeue all of history.
func (req *createRedriveRequest) Check(report func(field, detail string)) {
	f := &req.Filter
	switch {
	case req.Key != "" && req.HeaderKey != "" && req.Key != string(req.HeaderKey):
		report("idempotency_key", "must be the same as the header Idempotency-Key")
	case req.Queue == "" && f.isZero():
		report("filter", "must have at least one of queue, outcome, from, to, finished_from, finished_to, contains, type, source, worker, min_duration, meta, cause; or give the queue of the dead letters")
	case req.Queue != "" && (f.Queue != "" || f.Outcome != "" || f.Worker != "" || f.Cause != "" || f.MinDuration != nil || f.FinishedFrom != nil || f.FinishedTo != nil):
		report("filter", "must have none but from, to, contains, type, source and meta for the dead letters of a queue")
	case req.Queue != "" && req.To == req.Queue:
		report("to", "must be another queue")
	case req.Queue == "" && req.To == queue.Origin:
		report("to", "must not be origin, which is for the dead letters of a queue; without it each event goes to its own queue")
	}
}

// restrict refuses a target that the caller may not use. Where each dead letter came from is looked at as it goes.
func (req *createRedriveRequest) restrict(c *caller) error {
	if req.To == "" || req.To == queue.Origin {
		return nil
	}
	return c.queue(req.To, pointerTo("#/to"))
}

func (req *createRedriveRequest) usedQueues(use func(name, pointer string)) {
	if req.To != "" && req.To != queue.Origin {
		use(req.To, "#/to")
	}
}

type countedRedrive struct {
	Matched  int64 `json:"matched"`
	Estimate bool  `json:"estimate"`
}

func (s *Server) createRedrive(r *http.Request, req createRedriveRequest) (reply, error) {
	p := queue.RedriveParams{
		HistoryFilter:   req.Filter.params(nil, req.Queues),
		DeadLetterQueue: req.Queue,
		ToQueue:         req.To,
		Rate:            req.Rate,
		IdempotencyKey:  cmp.Or(req.Key, string(req.HeaderKey)),
	}
	if req.DryRun {
		matched, isEstimate, err := s.svc.CountRedrive(r.Context(), p)
		return reply{body: countedRedrive{matched, isEstimate}}, err
	}
	made, isDeduplicated, err := s.svc.CreateRedrive(r.Context(), p)
	if err != nil {
		return reply{}, err
	}
	logOf(r).add("redrive", made.ID)
	rep := created(redriveOf(made), "/redrives/"+strconv.FormatInt(made.ID, 10), isDeduplicated)
	if !isDeduplicated {
		rep.status = http.StatusAccepted
	}
	return rep, nil
}

type listRedrivesRequest struct {
	State queue.RedriveState `query:"state" validate:"oneof=running paused cancelled done failed"`
	paging
	Queues []string `restrict:"allowed_queues"`
}

type listRedrivesResponse struct {
	Redrives []redrive `json:"redrives"`
	Next     *string   `json:"next"` // null on the last page
}

func (s *Server) listRedrives(r *http.Request, req listRedrivesRequest) (reply, error) {
	page, err := s.svc.Redrives(r.Context(), queue.RedrivesParams{
		State: req.State, Limit: req.Limit, Cursor: req.Cursor, Queues: req.Queues,
	})
	return reply{body: listRedrivesResponse{convert(page.Redrives, redriveOf), nextOf(page.Next)}}, err
}

type redriveRequest struct {
	ID int64 `path:"id" validate:"min=1" log:"redrive" restrict:"statement"`
}

// aboutRedrive is the handler of a call about a redrive, which it returns.
func (s *Server) aboutRedrive(call func(context.Context, int64, []string) (queue.Redrive, error)) func(*http.Request, redriveRequest) (reply, error) {
	return func(r *http.Request, req redriveRequest) (reply, error) {
		queues, _ := allowed(r)
		found, err := call(r.Context(), req.ID, queues)
		return reply{body: redriveOf(found)}, err
	}
}
