package http

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

type claimRequest struct {
	claimOptions
	HeaderWorker string `header:"X-Worker" validate:"min=1,max=255"`
}

// claimOptions are the options in the body of a claim.
type claimOptions struct {
	Queue        string         `json:"queue" default:"default" validate:"queue,claimable" log:"queue" restrict:"queue"`
	Limit        int            `json:"limit" default:"1" validate:"min=1,max=1000"`
	MaxAttempts  int            `json:"max_attempts" validate:"min=1,max=2147483647"` // not given: the service's own
	InvisibleFor time.Duration  `json:"invisible_for" validate:"min=1us,max=8760h"`   // not given: the queue's own
	Wait         *time.Duration `json:"wait" validate:"min=0s,max=60s"`               // not given: the queue's own, see resolveWait
	Order        queue.Order    `json:"order" default:"fifo" validate:"oneof=fifo random"`
	Types        []string       `json:"types" validate:"max=100,dive,min=1,max=255"` // empty: of any type
	ExcludeIDs   []int64        `json:"exclude_ids" validate:"max=1000,dive,min=1"`
	Worker       string         `json:"worker" validate:"min=1,max=255"`
	Acks         []ackItem      `json:"acks"` // to be acked before
}

// Check implements bind.Checker.
func (req *claimRequest) Check(report func(field, detail string)) {
	if req.Worker != "" && req.HeaderWorker != "" && req.Worker != req.HeaderWorker {
		report("worker", "must be the same as the header X-Worker")
	}
}

// resolveWait implements policyWaiting.
func (req *claimRequest) resolveWait(ctx context.Context, s *Server) error {
	if req.Wait != nil {
		return nil
	}
	if wait, isKnown := s.svc.KnownPolicyWait(req.Queue); isKnown {
		req.Wait = &wait
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	wait, err := s.svc.PolicyWait(ctx, req.Queue)
	req.Wait = &wait
	return err
}

func (req *claimRequest) waits() time.Duration { return *req.Wait }

// release undoes claims that their client never received.
func (s *Server) release(ctx context.Context, log *accessLog, claimed []queue.Event) {
	if err := s.svc.Release(ctx, queue.LeasesOf(claimed)); err != nil {
		log.err = err // the leases end by themselves
		return
	}
	log.add("released", len(claimed))
}

func (s *Server) claim(r *http.Request, req claimRequest) (reply, error) {
	log := logOf(r)
	req.Worker = cmp.Or(req.Worker, req.HeaderWorker)
	began := time.Now()
	var acks []queue.Ack
	var results []queue.AckResult
	if len(req.Acks) > 0 {
		acks, results = s.acksOf(r, req.Acks)
		log.add("acks", len(req.Acks))
	}
	acked, claimed, err := s.svc.AckAndClaim(r.Context(), acks, queue.ClaimParams{
		Queue: req.Queue, Limit: req.Limit, MaxAttempts: req.MaxAttempts, InvisibleFor: req.InvisibleFor, Wait: *req.Wait, Order: req.Order,
		Types: req.Types, ExcludeIDs: req.ExcludeIDs, Worker: req.Worker,
	})
	if s.cfg.Tracer.IsOn() && len(acks) > 0 {
		s.traceAcks(r, began, acks, acked, err)
	}
	s.traceClaim(r, req.Queue, req.Limit > 1, began, claimed, err)
	log.add("events", len(claimed))
	rep := reply{body: eventList(claimed)}
	if len(req.Acks) > 0 && err == nil {
		rep.body = ackedAndClaimed{claimed, convert(mergeAcked(results, acked), ackResultOf)}
	}
	if len(claimed) > 0 {
		rep.undo = func(ctx context.Context) { s.release(ctx, log, claimed) }
	}
	return rep, err
}

// leaseOf is the lease that a request is about: of an event that the caller may use, which the statement itself makes sure of.
func leaseOf(r *http.Request, id int64, receipt string) queue.Lease {
	queues, _ := allowed(r)
	return queue.Lease{ID: id, Receipt: receipt, Queues: queues}
}

type ackRequest struct {
	ID      int64  `path:"id" validate:"min=1" log:"id" restrict:"statement"`
	Receipt string `query:"receipt" validate:"min=1,max=256"` // not given: any lease
}

func (s *Server) ack(r *http.Request, req ackRequest) (reply, error) {
	_, err := s.ackOne(r, queue.Ack{Lease: leaseOf(r, req.ID, req.Receipt)})
	return noContent, err
}

func (s *Server) ackOne(r *http.Request, ack queue.Ack) (queue.AckResult, error) {
	if err := s.mayAck(r, ack.Receipt); err != nil {
		return queue.AckResult{}, err
	}
	began := time.Now()
	ack.WantsTrace = s.cfg.Tracer.IsOn()
	result := queue.AckResult{ID: ack.ID}
	results, err := s.svc.Ack(r.Context(), []queue.Ack{ack})
	if err == nil {
		result, err = results[0], results[0].Err
	}
	if ack.WantsTrace {
		s.traceSettling(r, "ack", false, began, []int64{ack.ID}, []queue.EventTrace{result.Trace}, result.Outcome, err)
	}
	return result, err
}

type ackWithResultRequest struct {
	ID      int64      `path:"id" validate:"min=1" log:"id" restrict:"statement"`
	Receipt string     `json:"receipt" validate:"min=1,max=256"` // not given: any lease
	Result  bind.Value `json:"result"`
}

type ackWithResultResponse struct {
	ID      int64         `json:"id"`
	Outcome queue.Outcome `json:"outcome"`
}

func (s *Server) ackWithResult(r *http.Request, req ackWithResultRequest) (reply, error) {
	acked, err := s.ackOne(r, queue.Ack{Lease: leaseOf(r, req.ID, req.Receipt), Result: []byte(req.Result)})
	return reply{body: ackWithResultResponse{ID: req.ID, Outcome: acked.Outcome}}, err
}

// mayAck returns the problem of a caller that acks without a receipt, whoever works on the event, and does not manage.
func (s *Server) mayAck(r *http.Request, receipt string) error {
	if grant := logOf(r).grant; receipt == "" && grant != nil && !grant.Has(access.Manage) {
		p := s.forbid(r, problem.Required{Scope: string(access.Manage)})
		p.Detail = "An ack without a receipt needs a key with the scope manage."
		return p
	}
	return nil
}

type ackBatchRequest struct {
	Events []ackItem `json:"events" validate:"required,min=1"`
}

type ackItem struct {
	ID      int64      `json:"id" validate:"required,min=1" restrict:"statement"`
	Receipt string     `json:"receipt" validate:"min=1,max=256"`
	Result  bind.Value `json:"result"`
}

// An ackResult is how acking this event alone would have been answered.
type ackResult struct {
	ID     int64  `json:"id"`
	Status int    `json:"status"`
	Code   string `json:"code,omitzero"`
}

func ackResultOf(acked queue.AckResult) ackResult {
	if acked.Err == nil {
		return ackResult{ID: acked.ID, Status: http.StatusNoContent}
	}
	t := problem.Of(acked.Err).Type
	return ackResult{ID: acked.ID, Status: t.Status, Code: t.Code}
}

func (s *Server) ackBatch(r *http.Request, req ackBatchRequest) (reply, error) {
	logOf(r).add("events", len(req.Events))
	began := time.Now()
	acks, results := s.acksOf(r, req.Events)
	acked, err := s.svc.Ack(r.Context(), acks)
	if s.cfg.Tracer.IsOn() {
		s.traceAcks(r, began, acks, acked, err)
	}
	if err != nil {
		return reply{}, err
	}
	return listOf("results", mergeAcked(results, acked), ackResultOf), nil
}

// acksOf returns the acks that the caller may make, and the results of all, with the errors of the others.
func (s *Server) acksOf(r *http.Request, items []ackItem) (acks []queue.Ack, results []queue.AckResult) {
	results = make([]queue.AckResult, len(items))
	for i, item := range items {
		results[i] = queue.AckResult{ID: item.ID, Err: s.mayAck(r, item.Receipt)}
		if results[i].Err == nil {
			acks = append(acks, queue.Ack{Lease: leaseOf(r, item.ID, item.Receipt), Result: []byte(item.Result), WantsTrace: s.cfg.Tracer.IsOn()})
		}
	}
	return acks, results
}

// mergeAcked puts the results of the acks that were made among those of all, and returns these.
func mergeAcked(results, acked []queue.AckResult) []queue.AckResult {
	for i := range results {
		if results[i].Err == nil {
			results[i], acked = acked[0], acked[1:]
		}
	}
	return results
}

type nackRequest struct {
	ID        int64          `path:"id" validate:"min=1" log:"id" restrict:"statement"`
	Receipt   string         `json:"receipt" validate:"required,min=1,max=256"`
	Delay     *time.Duration `json:"delay" validate:"min=0s,max=87600h"` // not given: the queue's own
	Error     string         `json:"error" validate:"max=65536"`
	Retryable *bool          `json:"retryable"`
	Final     bool           `json:"final"`
	HoldGroup *time.Duration `json:"hold_group" validate:"min=0s,max=87600h"`
}

// A nackResponse has a vt when the event is back in its queue, and an outcome when it is not.
type nackResponse struct {
	ID        int64         `json:"id"`
	VT        *timestamp    `json:"vt,omitzero"`
	Exhausted bool          `json:"exhausted,omitzero"`
	Outcome   queue.Outcome `json:"outcome,omitzero"`
}

func (s *Server) nack(r *http.Request, req nackRequest) (reply, error) {
	began, wantsTrace := time.Now(), s.cfg.Tracer.IsOn()
	result, err := s.svc.Nack(r.Context(), queue.NackParams{
		Lease:      leaseOf(r, req.ID, req.Receipt),
		Delay:      req.Delay,
		Error:      req.Error,
		Retryable:  req.Retryable,
		Final:      req.Final,
		HoldGroup:  req.HoldGroup,
		WantsTrace: wantsTrace,
	})
	if wantsTrace {
		s.traceSettling(r, "nack", false, began, []int64{req.ID}, []queue.EventTrace{result.Trace}, result.Outcome, err)
	}
	resp := nackResponse{ID: req.ID, Exhausted: result.IsExhausted, Outcome: result.Outcome}
	if result.Outcome == "" {
		resp.VT = (*timestamp)(&result.VT)
	}
	return reply{body: resp}, err
}

type extendRequest struct {
	ID           int64         `path:"id" validate:"min=1" log:"id" restrict:"statement"`
	Receipt      string        `json:"receipt" validate:"required,min=1,max=256"`
	InvisibleFor time.Duration `json:"invisible_for" validate:"min=1us,max=8760h"` // not given: the queue's own
}

type extendResponse struct {
	ID int64     `json:"id"`
	VT timestamp `json:"vt"`
}

func (s *Server) extend(r *http.Request, req extendRequest) (reply, error) {
	vt, err := s.svc.Extend(r.Context(), leaseOf(r, req.ID, req.Receipt), req.InvisibleFor)
	return reply{body: extendResponse{ID: req.ID, VT: timestamp(vt)}}, err
}

type extendBatchRequest struct {
	Events       []extendItem  `json:"events" validate:"required,min=1"`
	InvisibleFor time.Duration `json:"invisible_for" validate:"min=1us,max=8760h"` // of those that give none; not given: the queue's own
}

type extendItem struct {
	ID           int64         `json:"id" validate:"required,min=1" restrict:"statement"`
	Receipt      string        `json:"receipt" validate:"required,min=1,max=256"`
	InvisibleFor time.Duration `json:"invisible_for" validate:"min=1us,max=8760h"`
}

// A leaseResult is how a call about this event alone would have been answered.
type leaseResult struct {
	ID     int64      `json:"id"`
	Status int        `json:"status"`
	VT     *timestamp `json:"vt,omitzero"`
	Code   string     `json:"code,omitzero"`
}

func leaseResultOf(result queue.LeaseResult) leaseResult {
	if result.Err == nil {
		return leaseResult{ID: result.ID, Status: http.StatusOK, VT: (*timestamp)(&result.VT)}
	}
	t := problem.Of(result.Err).Type
	return leaseResult{ID: result.ID, Status: t.Status, Code: t.Code}
}

func (s *Server) extendBatch(r *http.Request, req extendBatchRequest) (reply, error) {
	logOf(r).add("events", len(req.Events))
	queues, _ := allowed(r)
	extends := make([]queue.Extend, len(req.Events))
	for i, item := range req.Events {
		extends[i] = queue.Extend{Lease: queue.Lease{ID: item.ID, Receipt: item.Receipt}, InvisibleFor: cmp.Or(item.InvisibleFor, req.InvisibleFor)}
	}
	results, err := s.svc.ExtendEach(r.Context(), extends, queues)
	return listOf("results", results, leaseResultOf), err
}

type releaseRequest struct {
	ID      int64         `path:"id" validate:"min=1" log:"id" restrict:"statement"`
	Receipt string        `json:"receipt" validate:"required,min=1,max=256"`
	Delay   time.Duration `json:"delay" validate:"min=0s,max=87600h"`
}

type releaseResponse struct {
	ID int64     `json:"id"`
	VT timestamp `json:"vt"`
}

func (s *Server) releaseEvent(r *http.Request, req releaseRequest) (reply, error) {
	queues, _ := allowed(r)
	results, err := s.svc.ReleaseEach(r.Context(), []queue.Lease{{ID: req.ID, Receipt: req.Receipt}}, req.Delay, queues)
	if err != nil {
		return reply{}, err
	}
	return reply{body: releaseResponse{ID: req.ID, VT: timestamp(results[0].VT)}}, results[0].Err
}

type releaseBatchRequest struct {
	Events []releaseItem `json:"events" validate:"required,min=1"`
	Delay  time.Duration `json:"delay" validate:"min=0s,max=87600h"`
}

type releaseItem struct {
	ID      int64  `json:"id" validate:"required,min=1" restrict:"statement"`
	Receipt string `json:"receipt" validate:"required,min=1,max=256"`
}

func (s *Server) releaseBatch(r *http.Request, req releaseBatchRequest) (reply, error) {
	logOf(r).add("events", len(req.Events))
	queues, _ := allowed(r)
	leases := make([]queue.Lease, len(req.Events))
	for i, item := range req.Events {
		leases[i] = queue.Lease{ID: item.ID, Receipt: item.Receipt}
	}
	results, err := s.svc.ReleaseEach(r.Context(), leases, req.Delay, queues)
	return listOf("results", results, leaseResultOf), err
}
