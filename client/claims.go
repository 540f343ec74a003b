package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// MaxWait is the longest time that a call can ask the server to wait for events.
const MaxWait = time.Minute

// ClaimParams say which events to claim. Its zero value is one event of the queue [DefaultQueue], without waiting.
type ClaimParams struct {
	// Queue is where to claim; empty: [DefaultQueue].
	Queue string `json:"queue,omitzero"`
	// Limit is how many events to claim at most, up to 1,000; 0: one. There can be fewer although more are claimable; only an empty answer
	// says that none is.
	Limit int `json:"limit,omitzero"`
	// InvisibleFor is the length of the lease, from a microsecond to a year; 0: as the queue's policy says, or else 10 minutes.
	InvisibleFor time.Duration `json:"invisible_for,omitzero"`
	// Wait is how long to wait for the first event, up to [MaxWait].
	Wait time.Duration `json:"wait"`
	// WaitByPolicy leaves it to the queue's policy for how long to wait. Each try of the call then has a time limit that is longer by [MaxWait].
	WaitByPolicy bool `json:"-"`
	// MaxAttempts leaves out events that were claimed so often, unless they or their queue say otherwise; 0: the server's setting.
	MaxAttempts int `json:"max_attempts,omitzero"`
	// Order is "fifo", the default, or "random", so that many workers spread out.
	Order string `json:"order,omitzero"`
	// Types limits the claim to some types, at most 100; none: all, and events without a type.
	Types []string `json:"types,omitzero"`
	// ExcludeIDs are events not to claim, at most 1,000.
	ExcludeIDs []int64 `json:"exclude_ids,omitzero"`
	// Worker is a name for the caller, which the event and its attempts have.
	Worker string `json:"worker,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (p ClaimParams) MarshalJSON() ([]byte, error) { return encodeJSON(claimRequest{p, nil}) }

type claimRequest struct {
	ClaimParams
	Acks []Ack `json:"acks,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (r claimRequest) MarshalJSON() ([]byte, error) {
	type plain ClaimParams
	var wait *duration // nil: it is not said
	if !r.WaitByPolicy {
		wait = (*duration)(&r.Wait)
	}
	return encodeJSON(struct {
		plain
		InvisibleFor duration  `json:"invisible_for,omitzero"`
		Wait         *duration `json:"wait,omitzero"`
		Acks         []Ack     `json:"acks,omitzero"`
	}{plain(r.ClaimParams), duration(r.InvisibleFor), wait, r.Acks})
}

// Claim claims events, by lowest priority, then oldest first. Until its VT nobody else can claim an event. It returns none, and no error, if
// nothing was claimable within Wait. When an answer is lost, its events can be claimed again when their leases have ended.
func (c *Client) Claim(ctx context.Context, p ClaimParams) ([]Event, error) {
	_, events, err := c.AckAndClaim(ctx, nil, p)
	return events, err
}

// AckAndClaim acks up to 1,000 events, each on its own, as [Client.AckBatch] does, and then claims, as [Client.Claim] does, with one request. It returns the results of the acks in the
// same order. The acks are done before the claim waits, and when an answer is lost they can be repeated.
func (c *Client) AckAndClaim(ctx context.Context, acks []Ack, p ClaimParams) ([]AckResult, []Event, error) {
	var claimed claimedEvents
	wait := p.Wait
	if p.WaitByPolicy {
		wait = MaxWait
	}
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/claim", Body: claimRequest{p, acks}, Wait: wait, Repeatable: true}, &claimed)
	if err == nil && len(claimed.Acks) != len(acks) {
		return nil, claimed.Events, fmt.Errorf("client: POST /claim: %w: %d results for %d acks", errNotJSON, len(claimed.Acks), len(acks))
	}
	return claimed.Acks, claimed.Events, err
}

type claimedEvents struct {
	Events []Event     `json:"events"`
	Acks   []AckResult `json:"acks,omitzero"`
}

// Ack moves an event into history as done, or as cancelled if it was never claimed. It returns [ErrLeaseLost] if the event was claimed again
// since the receipt. With an empty receipt it is unconditional. It can be repeated.
func (c *Client) Ack(ctx context.Context, id int64, receipt string) error {
	query := make(url.Values)
	if receipt != "" {
		query.Set("receipt", receipt)
	}
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: eventPath(id, ""), Query: query}, nil)
	return err
}

// AckWithResult is [Client.Ack], and stores the result in history: anything that encodes to at most 64 KiB of JSON. It returns the outcome.
func (c *Client) AckWithResult(ctx context.Context, id int64, receipt string, result any) (outcome string, err error) {
	text, err := encodeJSON(result)
	if err != nil {
		return "", fmt.Errorf("client: the result: %w", err)
	}
	var acked ackedEvent
	_, err = c.Do(ctx, Request{
		Method: http.MethodPost, Path: eventPath(id, "/ack"), Body: ackRequest{Receipt: receipt, Result: text}, Repeatable: true,
	}, &acked)
	return acked.Outcome, err
}

type ackRequest struct {
	Receipt string          `json:"receipt,omitzero"`
	Result  json.RawMessage `json:"result,omitzero"`
}

type ackedEvent struct {
	ID      int64  `json:"id"`
	Outcome string `json:"outcome"`
}

// An Ack is one event of [Client.AckBatch].
type Ack struct {
	ID int64 `json:"id"`
	// Receipt is of the claim; empty: the ack is unconditional.
	Receipt string `json:"receipt,omitzero"`
	// Result is stored in history; nil: none.
	Result json.RawMessage `json:"result,omitzero"`
}

// An AckResult is the result of [Client.AckBatch] for one event.
type AckResult struct {
	ID int64 `json:"id"`
	// Status is 204 if the event is in history, else 404 or 409; or 502 or 503 if the event is on a cell behind a gateway that is away.
	Status int `json:"status"`
	// Code says why it is not: "event_not_found" or "lease_lost", or "cell_unavailable" or the like.
	Code string `json:"code,omitzero"`
	// Detail and Cell are of an error of a cell behind a gateway.
	Detail string `json:"detail,omitzero"`
	Cell   *int   `json:"cell,omitzero"`
}

// Err returns nil if the event was acked, else an [*Error] that is [ErrLeaseLost], [ErrNotFound] or [ErrUnavailable].
func (r AckResult) Err() error { return resultError("/ack", r.ID, r.Status, r.Code, r.Detail, r.Cell) }

// resultError returns the error of a call about several events for one of them; nil if there is none.
func resultError(path string, id int64, status int, code, detail string, cell *int) error {
	if status < http.StatusBadRequest {
		return nil
	}
	about := fmt.Sprintf("event %d", id)
	if detail != "" {
		about += ": " + detail
	}
	return &Error{Status: status, Code: code, Method: http.MethodPost, Path: path, Detail: about, Cell: cell}
}

// AckBatch acks up to 1,000 events, each on its own, and returns the result of each in the same order. It can be repeated. Through a gateway, the events of a cell that is away
// have results that are [ErrUnavailable], unless there are no others.
func (c *Client) AckBatch(ctx context.Context, acks []Ack) ([]AckResult, error) {
	return c.ackBatch(ctx, acks, false)
}

// ackBatch is AckBatch. With cellsApart it fails at once if all events are of a cell behind a gateway that is away.
func (c *Client) ackBatch(ctx context.Context, acks []Ack, cellsApart bool) ([]AckResult, error) {
	var answer ackResults
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: "/ack", Body: ackBatchRequest{acks}, Repeatable: true, cellsApart: cellsApart}, &answer)
	if err == nil && len(answer.Results) != len(acks) {
		return nil, fmt.Errorf("client: POST /ack: %w: %d results for %d events", errNotJSON, len(answer.Results), len(acks))
	}
	return answer.Results, err
}

type ackBatchRequest struct {
	Events []Ack `json:"events"`
}

type ackResults struct {
	Results []AckResult `json:"results"`
}

// NackParams say how an attempt has failed.
type NackParams struct {
	// Receipt is of the claim. It is required.
	Receipt string `json:"receipt"`
	// Delay is how long from now the event becomes claimable again, at most ten years; nil: as the queue's backoff says, or else at once.
	Delay *time.Duration `json:"delay,omitzero"`
	// Error is why the attempt failed, at most 65,536 characters.
	Error string `json:"error,omitzero"`
	// Retryable is whether another attempt can succeed. False fails the event; nil: it is not known.
	Retryable *bool `json:"retryable,omitzero"`
	// Final fails the event, whether or not another attempt could succeed.
	Final bool `json:"final,omitzero"`
	// HoldGroup is for how long nothing of the event's group is handed out, up to ten years, unless it is held for longer; 0: it is, and so it is if the event has no group.
	HoldGroup time.Duration `json:"hold_group,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (p NackParams) MarshalJSON() ([]byte, error) {
	type plain NackParams
	return encodeJSON(struct {
		plain
		Delay     *duration `json:"delay,omitzero"`
		HoldGroup duration  `json:"hold_group,omitzero"`
	}{plain(p), (*duration)(p.Delay), duration(p.HoldGroup)})
}

// Nacked is the result of a nack.
type Nacked struct {
	ID int64 `json:"id"`
	// VT is when it becomes claimable again; zero if it has failed.
	VT time.Time `json:"vt,omitzero"`
	// Exhausted says that the event has no attempts left though it waits: neither it nor its queue's policy says how many it has, and those that the
	// server gives are used up. It is not claimed again, unless a claim allows more, and a sweep moves it into history as expired.
	Exhausted bool `json:"exhausted,omitzero"`
	// Outcome is [OutcomeFailed] if the event has left its queue, else empty.
	Outcome string `json:"outcome,omitzero"`
}

// Nack ends an attempt by failure: the event waits again, or goes into history as failed if that was asked for, or if no attempt is left. It
// returns [ErrLeaseLost] if the event was claimed again since. It can be repeated.
func (c *Client) Nack(ctx context.Context, id int64, p NackParams) (Nacked, error) {
	return c.nack(ctx, id, p, false)
}

// nack is Nack. With cellsApart it fails at once if the event is of a cell behind a gateway that is away.
func (c *Client) nack(ctx context.Context, id int64, p NackParams, cellsApart bool) (Nacked, error) {
	var nacked Nacked
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: eventPath(id, "/nack"), Body: p, Repeatable: true, cellsApart: cellsApart}, &nacked)
	return nacked, err
}

// Extend makes a lease end invisibleFor from now and returns when that is by the clock of the database; 0: as long as the queue's policy says,
// or else 10 minutes. It returns [ErrLeaseLost] if the event was claimed again since, or has left its queue.
func (c *Client) Extend(ctx context.Context, id int64, receipt string, invisibleFor time.Duration) (time.Time, error) {
	var extended extendedLease
	_, err := c.Do(ctx, Request{
		Method: http.MethodPost, Path: eventPath(id, "/extend"), Body: extendRequest{receipt, duration(invisibleFor)}, Repeatable: true,
	}, &extended)
	return extended.VT, err
}

type extendRequest struct {
	Receipt      string   `json:"receipt"`
	InvisibleFor duration `json:"invisible_for,omitzero"`
}

type extendedLease struct {
	ID int64     `json:"id"`
	VT time.Time `json:"vt"`
}

// A Held is a claimed event of [Client.ExtendBatch] or [Client.ReleaseBatch].
type Held struct {
	ID      int64  `json:"id"`
	Receipt string `json:"receipt"`
}

// A LeaseResult is the result of [Client.ExtendBatch] or [Client.ReleaseBatch] for one event.
type LeaseResult struct {
	ID int64 `json:"id"`
	// Status is 200 if the call has succeeded for the event, else 404 or 409; or 502 or 503 if the event is on a cell behind a gateway that is away.
	Status int `json:"status"`
	// VT is when the lease ends, or from when the event can be claimed.
	VT time.Time `json:"vt,omitzero"`
	// Code says why it has not succeeded: "event_not_found" or "lease_lost", or "cell_unavailable" or the like.
	Code string `json:"code,omitzero"`
	// Detail and Cell are of an error of a cell behind a gateway.
	Detail string `json:"detail,omitzero"`
	Cell   *int   `json:"cell,omitzero"`
}

// Err returns nil if the call has succeeded for the event, else an [*Error] that is [ErrLeaseLost], [ErrNotFound] or [ErrUnavailable].
func (r LeaseResult) Err() error {
	return resultError("/extend", r.ID, r.Status, r.Code, r.Detail, r.Cell)
}

type leaseResults struct {
	Results []LeaseResult `json:"results"`
}

// ExtendBatch extends up to 1,000 leases, each on its own, as [Client.Extend] does, and returns the result of each in the same order.
func (c *Client) ExtendBatch(ctx context.Context, held []Held, invisibleFor time.Duration) ([]LeaseResult, error) {
	return c.leases(ctx, "/extend", extendBatchRequest{extendsOf(held), duration(invisibleFor)}, len(held))
}

type extendBatchRequest struct {
	Events       []extendItem `json:"events"`
	InvisibleFor duration     `json:"invisible_for,omitzero"`
}

type extendItem struct {
	Held
	InvisibleFor duration `json:"invisible_for,omitzero"`
}

func extendsOf(held []Held) []extendItem {
	items := make([]extendItem, len(held))
	for i, h := range held {
		items[i].Held = h
	}
	return items
}

// Release gives a claimed event back without using up the attempt: it can be claimed again at once, or after delay. It is for events whose work
// has not begun. It returns from when the event can be claimed, and [ErrLeaseLost] if the event was claimed again since, or was given back.
func (c *Client) Release(ctx context.Context, id int64, receipt string, delay time.Duration) (time.Time, error) {
	var released extendedLease
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: eventPath(id, "/release"), Body: releaseRequest{receipt, duration(delay)}, Repeatable: true}, &released)
	return released.VT, err
}

type releaseRequest struct {
	Receipt string   `json:"receipt"`
	Delay   duration `json:"delay,omitzero"`
}

// ReleaseBatch gives up to 1,000 claimed events back, each on its own, as [Client.Release] does, and returns the result of each in the same order. Of events
// whose release was repeated, because its answer was lost, it says [ErrLeaseLost].
func (c *Client) ReleaseBatch(ctx context.Context, held []Held, delay time.Duration) ([]LeaseResult, error) {
	return c.leases(ctx, "/release", releaseBatchRequest{held, duration(delay)}, len(held))
}

type releaseBatchRequest struct {
	Events []Held   `json:"events"`
	Delay  duration `json:"delay,omitzero"`
}

// leases makes a call about n leases.
func (c *Client) leases(ctx context.Context, path string, body any, n int) ([]LeaseResult, error) {
	var answer leaseResults
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: path, Body: body, Repeatable: true}, &answer)
	if err == nil && len(answer.Results) != n {
		return nil, fmt.Errorf("client: POST %s: %w: %d results for %d events", path, errNotJSON, len(answer.Results), n)
	}
	return answer.Results, err
}

// SweepParams say which events to sweep.
type SweepParams struct {
	// Queue is where; empty: everywhere.
	Queue string `json:"queue,omitzero"`
	// MaxAttempts expires events that were claimed so often, unless they or their queue say otherwise; 0: the server's setting.
	MaxAttempts int `json:"max_attempts,omitzero"`
	// MaxVTAge expires events that have been claimable for longer; 0: an hour, negative: events of any age stay.
	MaxVTAge time.Duration `json:"max_vt_age,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (p SweepParams) MarshalJSON() ([]byte, error) {
	type plain SweepParams
	age := nullDuration(max(0, p.MaxVTAge))
	body := struct {
		plain
		MaxVTAge *nullDuration `json:"max_vt_age,omitzero"`
	}{plain: plain(p)}
	if p.MaxVTAge != 0 {
		body.MaxVTAge = &age
	}
	return encodeJSON(body)
}

// Sweep moves events that are exhausted or over age into history as expired, and returns how many. The server does so by itself every few
// seconds, but by age only if it is told to. An uncertain call is not repeated.
func (c *Client) Sweep(ctx context.Context, p SweepParams) (expired int, err error) {
	return sumOfCells(c, 0, func(at *Client, _ int) (int, error) {
		var swept sweptEvents
		_, err := at.Do(ctx, Request{Method: http.MethodPost, Path: "/sweep", Body: p}, &swept)
		return swept.Expired, err
	})
}

type sweptEvents struct {
	Expired int `json:"expired"`
}
