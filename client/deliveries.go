package client

import (
	"context"
	"iter"
	"time"
)

// A PushDeliveryFilter says which attempts to push the events of a queue. Its zero value is all.
type PushDeliveryFilter struct {
	// Status is that of the answer of the endpoint.
	Status int `query:"status"`
	// Outcome is "delivered", "retried", "failed", "held" or "lease_lost".
	Outcome string `query:"outcome"`
	// Event is the id of an event.
	Event int64 `query:"event"`
	// From, inclusive, and To, exclusive, bound the time.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// PageSize is how many attempts one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// A PushDelivery is an attempt to push an event.
type PushDelivery struct {
	// ID tells the attempt from the others of its queue.
	ID int64 `json:"id"`
	// At is when the request began.
	At time.Time `json:"at"`
	// Outcome is "delivered"; "retried", when the event waits for its next attempt; "failed", when it is in history as failed; "held", when the endpoint asked for a
	// pause; or "lease_lost", when the event may be sent again.
	Outcome string `json:"outcome"`
	EventID int64  `json:"event_id"`
	// Type is that of the event.
	Type string `json:"type,omitzero"`
	// Attempt is the number of the attempt of the event.
	Attempt int `json:"attempt"`
	// Status is that of the answer; 0: none came, and Error says why.
	Status int `json:"status,omitzero"`
	// MS is how long the request took, in milliseconds.
	MS    int64  `json:"ms"`
	Error string `json:"error,omitzero"`
	// Excerpt is the beginning of the body of the answer.
	Excerpt string `json:"excerpt,omitzero"`
	// NextAttemptAt is when the event was due again, as known after the attempt; zero: not at a known time.
	NextAttemptAt time.Time `json:"next_attempt_at,omitzero"`
	// SendAgain is "requeue" if [Client.Requeue] sends the event again; "run" if [Client.RunEvent] does; empty: neither does now.
	SendAgain string `json:"send_again"`
}

// A PushDeliveryPage is a page of the log of a push.
type PushDeliveryPage struct {
	Deliveries []PushDelivery `json:"deliveries"`
	// Next is nil if there are no more.
	Next *string `json:"next"`
	// Dropped counts the attempts that were not logged because there were too many.
	Dropped int64 `json:"dropped"`
	// DroppedAt is when that was noted for the last time; zero: it never was.
	DroppedAt time.Time `json:"dropped_at,omitzero"`
}

// ListPushDeliveries returns the logged attempts to push the events of a queue, latest first. An error is the last thing it returns: [ErrNotFound] if the
// queue does not push.
func (c *Client) ListPushDeliveries(ctx context.Context, queue string, filter PushDeliveryFilter) iter.Seq2[PushDelivery, error] {
	return listOf(ctx, c, pushPath(queue, "/deliveries"), filter, func(p PushDeliveryPage) page[PushDelivery] { return page[PushDelivery]{p.Deliveries, p.Next} })
}

// GetPushDeliveries returns the latest page of the log of a push, and how much the log lacks. It fails with [ErrNotFound] if the queue does not push.
func (c *Client) GetPushDeliveries(ctx context.Context, queue string, filter PushDeliveryFilter) (PushDeliveryPage, error) {
	var found PushDeliveryPage
	_, err := c.Do(ctx, Request{Path: pushPath(queue, "/deliveries"), Query: queryOf(filter)}, &found)
	return found, err
}

// A SourceDeliveryFilter says which deliveries of a source. Its zero value is all.
type SourceDeliveryFilter struct {
	// Result is "received", "duplicate", "challenge", "rejected", "invalid", "rate_limited", "paused" or "failed".
	Result string `query:"result"`
	// From, inclusive, and To, exclusive, bound the time.
	From time.Time `query:"from"`
	To   time.Time `query:"to"`
	// PageSize is how many deliveries one request asks for, up to 1,000; 0: 100.
	PageSize int `query:"limit"`
}

// A SourceDelivery is a delivery that has come in from a source.
type SourceDelivery struct {
	// ID tells the delivery from the others of its source.
	ID int64 `json:"id"`
	// At is when the request began.
	At time.Time `json:"at"`
	// Result is one of those of SourceDeliveryFilter.
	Result string `json:"result"`
	// Code says why it was refused.
	Code string `json:"code,omitzero"`
	// Status is the one that was answered.
	Status int `json:"status"`
	// MS is how long it took, in milliseconds.
	MS int64 `json:"ms"`
	// Address is that of the connection.
	Address   string `json:"address,omitzero"`
	RequestID string `json:"request_id,omitzero"`
	// EventID is the first event of the delivery, and Position where that is in the log; nil: there is none, or it is in the other.
	EventID  *int64 `json:"event_id,omitzero"`
	Position *int64 `json:"position,omitzero"`
	// Events is how many events it has become.
	Events int `json:"events"`
	// Key is the idempotency key of the first event.
	Key string `json:"key,omitzero"`
	// Size of the body in bytes; nil: it was not read.
	Size *int64 `json:"size,omitzero"`
	// Excerpt is the beginning of the body of a delivery that was refused, without what looks like a secret.
	Excerpt string `json:"excerpt,omitzero"`
}

// A SourceDeliveryPage is a page of the log of a source.
type SourceDeliveryPage struct {
	Deliveries []SourceDelivery `json:"deliveries"`
	// Next is nil if there are no more.
	Next *string `json:"next"`
	// Dropped counts the deliveries that were not logged because there were too many.
	Dropped int64 `json:"dropped"`
	// DroppedAt is when that was noted for the last time; zero: it never was.
	DroppedAt time.Time `json:"dropped_at,omitzero"`
}

// ListSourceDeliveries returns the logged deliveries of a source, latest first. An error is the last thing it returns: [ErrNotFound] if there is no such source.
func (c *Client) ListSourceDeliveries(ctx context.Context, source string, filter SourceDeliveryFilter) iter.Seq2[SourceDelivery, error] {
	return listOf(ctx, c, "/sources/"+escape(source)+"/deliveries", filter,
		func(p SourceDeliveryPage) page[SourceDelivery] { return page[SourceDelivery]{p.Deliveries, p.Next} })
}

// GetSourceDeliveries returns the latest page of the log of a source, and how much the log lacks. It fails with [ErrNotFound] if there is no such source.
func (c *Client) GetSourceDeliveries(ctx context.Context, source string, filter SourceDeliveryFilter) (SourceDeliveryPage, error) {
	var found SourceDeliveryPage
	_, err := c.Do(ctx, Request{Path: "/sources/" + escape(source) + "/deliveries", Query: queryOf(filter)}, &found)
	return found, err
}
