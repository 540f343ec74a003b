package http

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/queued/queued/internal/queue"
)

type claimRequest struct {
	Queue        string        `json:"queue" default:"default" validate:"queue"`
	Limit        int           `json:"limit" default:"1" validate:"min=1,max=1000"`
	MaxAttempts  int           `json:"max_attempts" validate:"min=1,max=2147483647"` // not given: the service's own
	InvisibleFor time.Duration `json:"invisible_for" validate:"min=1us,max=8760h"`   // not given: the queue's own
	Wait         time.Duration `json:"wait" default:"0s" validate:"min=0s,max=60s"`
	Order        string        `json:"order" default:"fifo" validate:"oneof=fifo random"`
	Types        []string      `json:"types" validate:"max=100,dive,min=1,max=255"` // empty: whatever the type
	ExcludeIDs   []int64       `json:"exclude_ids" validate:"max=1000,dive,min=1"`
	Worker       string        `json:"worker" validate:"min=1,max=255"`
	HeaderWorker string        `header:"X-Worker" validate:"min=1,max=255"`
}

func (req claimRequest) check(report func(field, detail string)) {
	if req.Worker != "" && req.HeaderWorker != "" && req.Worker != req.HeaderWorker {
		report("worker", "is another worker than the header X-Worker")
	}
}

func (req claimRequest) waits() time.Duration { return req.Wait }

type claimResponse struct {
	Events []event `json:"events"`

	svc     *queue.Service
	claimed []queue.Event
}

// releaseTime bounds giving back what nobody waits for any more.
const releaseTime = 10 * time.Second

// recall gives the claims back, their attempts not counted.
func (resp claimResponse) recall(ctx context.Context) {
	if len(resp.claimed) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTime)
	defer cancel()
	leases := make([]queue.Lease, len(resp.claimed))
	for i, e := range resp.claimed {
		leases[i] = queue.Lease{ID: e.ID, Receipt: e.Receipt}
	}
	rec := ctx.Value(recordKey{}).(*record)
	if err := resp.svc.Release(ctx, leases); err != nil {
		rec.err = err // the leases run out by themselves
		return
	}
	rec.note("released", len(leases))
}

func (s *Server) claim(r *http.Request, req claimRequest) (claimResponse, error) {
	rec := recordOf(r)
	rec.note("queue", req.Queue)
	claimed, err := s.svc.Claim(r.Context(), queue.ClaimParams{
		Queue:        req.Queue,
		Limit:        req.Limit,
		MaxAttempts:  req.MaxAttempts,
		InvisibleFor: req.InvisibleFor,
		Wait:         req.Wait,
		Order:        queue.Order(req.Order),
		Types:        req.Types,
		ExcludeIDs:   req.ExcludeIDs,
		Worker:       cmp.Or(req.Worker, req.HeaderWorker),
	})
	rec.note("events", len(claimed))
	return claimResponse{Events: eventsOf(claimed), svc: s.svc, claimed: claimed}, err
}
