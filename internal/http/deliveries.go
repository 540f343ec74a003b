package http

import (
	"cmp"
	"net"
	"net/http"
	"time"

	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/webhook"
)

// A pushDelivery is an attempt to push an event as it goes over the wire.
type pushDelivery struct {
	ID            int64               `json:"id"`
	At            time.Time           `json:"at"`
	Outcome       push.AttemptOutcome `json:"outcome"`
	EventID       int64               `json:"event_id"`
	Type          string              `json:"type,omitzero"`
	Attempt       int32               `json:"attempt"`
	Status        int                 `json:"status,omitzero"` // not there: no answer came
	MS            int64               `json:"ms"`
	Error         string              `json:"error,omitzero"`
	Excerpt       string              `json:"excerpt,omitzero"`
	NextAttemptAt *time.Time          `json:"next_attempt_at,omitzero"`
	SendAgain     *string             `json:"send_again"`
}

type listPushDeliveriesRequest struct {
	Name    string              `path:"name" validate:"queue" log:"queue" restrict:"queue"`
	Status  int                 `query:"status" validate:"min=100,max=599"`
	Outcome push.AttemptOutcome `query:"outcome" validate:"oneof=delivered retried failed held lease_lost"`
	Event   int64               `query:"event" validate:"min=1"`
	From    *time.Time          `query:"from"`
	To      *time.Time          `query:"to"`
	paging
}

// Check implements bind.Checker.
func (req *listPushDeliveriesRequest) Check(report func(field, detail string)) {
	checkSpan(req.From, req.To, report)
}

type listPushDeliveriesResponse struct {
	Deliveries []pushDelivery `json:"deliveries"`
	Next       *string        `json:"next"`
	Dropped    int64          `json:"dropped"`
	DroppedAt  *time.Time     `json:"dropped_at,omitzero"`
}

func (s *Server) listPushDeliveries(r *http.Request, req listPushDeliveriesRequest) (reply, error) {
	page, err := s.pushes.Attempts(r.Context(), push.AttemptsParams{
		Queue: req.Name, Status: req.Status, Outcome: req.Outcome, Event: req.Event, From: req.From, To: req.To, Limit: req.Limit, Cursor: req.Cursor,
	})
	deliveries := convert(page.Attempts, func(a push.Attempt) pushDelivery {
		d := pushDelivery{
			ID: a.ID, At: a.At, Outcome: a.Outcome, EventID: a.EventID, Type: a.Type, Attempt: a.Number, Status: a.Status, MS: a.MS, Error: a.Error, Excerpt: a.Body,
			NextAttemptAt: a.NextAt,
		}
		if a.SendAgain != "" {
			d.SendAgain = &a.SendAgain
		}
		return d
	})
	return reply{body: listPushDeliveriesResponse{deliveries, nextOf(page.Next), page.Dropped, page.DroppedAt}}, err
}

// A sourceDelivery is a delivery of a source as it goes over the wire.
type sourceDelivery struct {
	ID        int64     `json:"id"`
	At        time.Time `json:"at"`
	Result    string    `json:"result"`
	Code      string    `json:"code,omitzero"`
	Status    int       `json:"status"`
	MS        int64     `json:"ms"`
	Address   string    `json:"address,omitzero"`
	RequestID string    `json:"request_id,omitzero"`
	EventID   *int64    `json:"event_id,omitzero"`
	Position  *int64    `json:"position,omitzero"`
	Events    int       `json:"events"`
	Key       string    `json:"key,omitzero"`
	Size      *int64    `json:"size,omitzero"` // not there: the body was not read
	Excerpt   string    `json:"excerpt,omitzero"`
}

type listSourceDeliveriesRequest struct {
	Name   string     `path:"name" validate:"queue" log:"source" restrict:"source"`
	Result string     `query:"result" validate:"oneof=received duplicate challenge rejected invalid rate_limited paused failed"`
	From   *time.Time `query:"from"`
	To     *time.Time `query:"to"`
	paging
}

// Check implements bind.Checker.
func (req *listSourceDeliveriesRequest) Check(report func(field, detail string)) {
	checkSpan(req.From, req.To, report)
}

type listSourceDeliveriesResponse struct {
	Deliveries []sourceDelivery `json:"deliveries"`
	Next       *string          `json:"next"`
	Dropped    int64            `json:"dropped"`
	DroppedAt  *time.Time       `json:"dropped_at,omitzero"`
}

func (s *Server) listSourceDeliveries(r *http.Request, req listSourceDeliveriesRequest) (reply, error) {
	page, err := s.sources.Deliveries(r.Context(), webhook.DeliveriesParams{
		Source: req.Name, Result: req.Result, From: req.From, To: req.To, Limit: req.Limit, Cursor: req.Cursor,
	})
	deliveries := convert(page.Deliveries, func(d webhook.LoggedDelivery) sourceDelivery {
		return sourceDelivery{
			d.ID, d.At, d.Result, d.Code, d.Status, d.MS, d.Address, d.RequestID, d.EventID, d.Position, d.Events, d.Key, d.Size, d.Body,
		}
	})
	return reply{body: listSourceDeliveriesResponse{deliveries, nextOf(page.Next), page.Dropped, page.DroppedAt}}, err
}

// logDelivery has the log of a source know of a delivery that was answered.
func (s *Server) logDelivery(r *http.Request, answered *webhook.Answered) {
	log := logOf(r)
	answered.RequestID, answered.Began, answered.Status, answered.Code = log.id, log.began, cmp.Or(log.status, http.StatusOK), log.code
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		answered.Address = host
	}
	s.sources.Log(answered)
}
