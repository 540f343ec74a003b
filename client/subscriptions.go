package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"time"
)

// A SubscribedFilter says which events a subscription gets: those of one of its topics that also match.
type SubscribedFilter struct {
	// Name is the mark of the events that it has matched; empty: "filter-1" for the first, and so on.
	Name string `json:"name,omitzero"`
	LogFilter
	// ExpiresAfter deletes the filter when nobody has put it for so long; 0: never.
	ExpiresAfter time.Duration `json:"expires_after,omitzero"`
	// ExpiresAt is when that is. It is not sent.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (f SubscribedFilter) MarshalJSON() ([]byte, error) {
	type plain SubscribedFilter
	return encodeJSON(struct {
		plain
		ExpiresAfter duration `json:"expires_after,omitzero"`
	}{plain(f), duration(f.ExpiresAfter)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (f *SubscribedFilter) UnmarshalJSON(text []byte) error {
	type plain SubscribedFilter
	in := struct {
		*plain
		ExpiresAfter duration `json:"expires_after"`
	}{plain: (*plain)(f)}
	err := json.Unmarshal(text, &in)
	f.ExpiresAfter = time.Duration(in.ExpiresAfter)
	return err
}

// A Delivery is the queue into which the events of a subscription are inserted.
type Delivery struct {
	Queue    string `json:"queue"`
	Type     string `json:"type,omitzero"`
	Priority int32  `json:"priority,omitzero"`
	// GroupFrom is where the groups of the events are: "key", that of the publication; "topic"; or a JSON pointer into the payload, such as "/tenant".
	// Empty: they have none of their own.
	GroupFrom string `json:"group_from,omitzero"`
}

// SubscriptionSettings are those that [Client.PutSubscription] sets.
type SubscriptionSettings struct {
	// Filters say which events it gets: those that any of them wants. A zero filter wants all.
	Filters []SubscribedFilter `json:"filters"`
	// Deliver inserts its events into a queue; nil: it is read by [Client.ReadSubscription].
	Deliver *Delivery `json:"deliver,omitzero"`
	// Start is where a new subscription begins; zero: at [Latest].
	Start Place `json:"start,omitzero"`
	// MaxWaiting is how many events may be due in the queue, ready or waiting for their turn, before nothing more is delivered; 0: 10,000.
	MaxWaiting int `json:"max_waiting,omitzero"`
	// ExpiresAfter deletes the subscription when nobody has used it for so long; 0: it is durable.
	ExpiresAfter time.Duration `json:"expires_after,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (s SubscriptionSettings) MarshalJSON() ([]byte, error) {
	type plain SubscriptionSettings
	out := struct {
		plain
		Filters      []SubscribedFilter `json:"filters"`
		ExpiresAfter duration           `json:"expires_after,omitzero"`
	}{plain(s), make([]SubscribedFilter, len(s.Filters)), duration(s.ExpiresAfter)}
	for i, f := range s.Filters {
		f.ExpiresAt = time.Time{}
		out.Filters[i] = f
	}
	return encodeJSON(out)
}

// Lag is how far a subscription is behind.
type Lag struct {
	// Events is how many places of the log are after the position.
	Events int64 `json:"events"`
	// Seconds is how long ago the first of them was published.
	Seconds float64 `json:"seconds"`
}

// A Subscription is a named reader of the log.
type Subscription struct {
	Name string `json:"name"`
	// State is "active", "paused", "catching_up" or "full".
	State string `json:"state"`
	// Position is up to where everything is committed, Head up to where the log is complete.
	Position int64 `json:"position"`
	Head     int64 `json:"head"`
	Lag      Lag   `json:"lag"`
	// Gaps is how often retention dropped events before they were read.
	Gaps int64 `json:"gaps"`
	// HeldUntil is the end of the lease that somebody has; zero: nobody.
	HeldUntil time.Time `json:"held_until,omitzero"`
	Deliver   *Delivery `json:"deliver,omitzero"`
	// Waiting is how many events are due in the queue, ready or waiting for their turn, and Replays how many replays have not ended; nil without Deliver.
	Waiting *int64 `json:"waiting,omitzero"`
	Replays *int64 `json:"replays,omitzero"`
	// Start is where the subscription began.
	Start      int64 `json:"start"`
	MaxWaiting int   `json:"max_waiting"`
	// ExpiresAfter and ExpiresAt are zero if it is durable.
	ExpiresAfter time.Duration `json:"expires_after,omitzero"`
	ExpiresAt    time.Time     `json:"expires_at,omitzero"`
	FilterCount  int           `json:"filter_count"`
	// Version grows with every change of the filters or the settings.
	Version   int64     `json:"version"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// Filters are nil in listings.
	Filters []SubscribedFilter `json:"filters,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (s Subscription) MarshalJSON() ([]byte, error) {
	type plain Subscription
	return encodeJSON(struct {
		plain
		ExpiresAfter duration `json:"expires_after,omitzero"`
	}{plain(s), duration(s.ExpiresAfter)})
}

// UnmarshalJSON implements [json.Unmarshaler].
func (s *Subscription) UnmarshalJSON(text []byte) error {
	type plain Subscription
	in := struct {
		*plain
		ExpiresAfter duration `json:"expires_after"`
	}{plain: (*plain)(s)}
	err := json.Unmarshal(text, &in)
	s.ExpiresAfter = time.Duration(in.ExpiresAfter)
	return err
}

// ListSubscriptions returns subscriptions by name, without their filters. An error is the last thing it returns.
func (c *Client) ListSubscriptions(ctx context.Context) iter.Seq2[Subscription, error] {
	return listOf(ctx, c, "/subscriptions", largePages, func(p subscriptionPage) page[Subscription] {
		return page[Subscription]{p.Subscriptions, p.Next}
	})
}

type subscriptionPage struct {
	Subscriptions []Subscription `json:"subscriptions"`
	Next          *string        `json:"next"`
}

// GetSubscription returns a subscription, or [ErrNotFound].
func (c *Client) GetSubscription(ctx context.Context, name string) (Subscription, error) {
	return c.subscription(ctx, Request{Path: subscriptionPath(name, "")})
}

func (c *Client) subscription(ctx context.Context, req Request) (Subscription, error) {
	var s Subscription
	_, err := c.Do(ctx, req, &s)
	return s, err
}

// PutSubscription creates a subscription, or replaces its filters and settings; one that exists keeps its position. If ifVersion is not 0, it
// replaces that version or returns [ErrPreconditionFailed].
func (c *Client) PutSubscription(ctx context.Context, name string, settings SubscriptionSettings, ifVersion int64) (Subscription, error) {
	return c.subscription(ctx, Request{Method: http.MethodPut, Path: subscriptionPath(name, ""), Header: ifMatch(ifVersion), Body: settings})
}

// DeleteSubscription deletes a subscription. If ifVersion is not 0, it deletes that version or returns [ErrPreconditionFailed].
func (c *Client) DeleteSubscription(ctx context.Context, name string, ifVersion int64) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: subscriptionPath(name, ""), Header: ifMatch(ifVersion)}, nil)
	return err
}

// PutFilter adds a filter to a subscription, or replaces or renews the one of its name, which is required.
func (c *Client) PutFilter(ctx context.Context, subscription string, f SubscribedFilter) (SubscribedFilter, error) {
	var put SubscribedFilter
	path := subscriptionPath(subscription, "/filters/"+escape(f.Name))
	f.Name, f.ExpiresAt = "", time.Time{}
	_, err := c.Do(ctx, Request{Method: http.MethodPut, Path: path, Body: f}, &put)
	return put, err
}

// DeleteFilter deletes a filter of a subscription.
func (c *Client) DeleteFilter(ctx context.Context, subscription, filter string) error {
	_, err := c.Do(ctx, Request{Method: http.MethodDelete, Path: subscriptionPath(subscription, "/filters/"+escape(filter))}, nil)
	return err
}

// PauseSubscription makes a subscription get nothing until it is resumed.
func (c *Client) PauseSubscription(ctx context.Context, name string) (Subscription, error) {
	return c.subscription(ctx, Request{Method: http.MethodPost, Path: subscriptionPath(name, "/pause"), Repeatable: true})
}

// ResumeSubscription ends a pause.
func (c *Client) ResumeSubscription(ctx context.Context, name string) (Subscription, error) {
	return c.subscription(ctx, Request{Method: http.MethodPost, Path: subscriptionPath(name, "/resume"), Repeatable: true})
}

// SubscriptionRead says how to read a subscription.
type SubscriptionRead struct {
	// After is the cursor of an earlier read that is not committed yet, to read ahead; empty: after the position of the subscription.
	After string `json:"after,omitzero"`
	// Limit is how many events to read at most, up to 1,000; 0: 100.
	Limit int `json:"limit,omitzero"`
	// Wait is how long to wait for the first event, up to [MaxWait].
	Wait time.Duration `json:"wait,omitzero"`
	// Lease keeps the events from others for so long, from a second to a day, or until the cursor is committed; 0: it does not.
	Lease time.Duration `json:"lease,omitzero"`
}

// MarshalJSON implements [json.Marshaler].
func (p SubscriptionRead) MarshalJSON() ([]byte, error) {
	type plain SubscriptionRead
	return encodeJSON(struct {
		plain
		Wait  duration `json:"wait,omitzero"`
		Lease duration `json:"lease,omitzero"`
	}{plain(p), duration(p.Wait), duration(p.Lease)})
}

// A SubscribedPage is the result of a read of a subscription.
type SubscribedPage struct {
	Events []PublishedEvent `json:"events"`
	// Cursor is to be committed when the events are done; empty while the subscription is held or paused.
	Cursor string `json:"cursor,omitzero"`
	// Lag is how much is left after this page.
	Lag Lag `json:"lag"`
	// Gap is the part of the log that is missing before the events; nil: none.
	Gap *Gap `json:"gap,omitzero"`
	// LeasedUntil is the end of this read's lease, HeldUntil that of somebody else's; zero: there is none.
	LeasedUntil time.Time `json:"leased_until,omitzero"`
	HeldUntil   time.Time `json:"held_until,omitzero"`
	Paused      bool      `json:"paused,omitzero"`
}

// ReadSubscription returns the events after the position of a subscription. They are read again, by everybody who uses the name, until the
// cursor is committed.
func (c *Client) ReadSubscription(ctx context.Context, name string, p SubscriptionRead) (SubscribedPage, error) {
	var read SubscribedPage
	_, err := c.Do(ctx, Request{Method: http.MethodPost, Path: subscriptionPath(name, "/read"), Body: p, Wait: p.Wait, Repeatable: true}, &read)
	return read, err
}

// CommitCursor moves a subscription to the end of the page that the cursor came with, and returns that position; or it returns
// [ErrCursorLost] if somebody else has moved it. It can be repeated.
func (c *Client) CommitCursor(ctx context.Context, name, cursor string) (position int64, err error) {
	var p subscriptionPosition
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: subscriptionPath(name, "/commit"), Body: commitRequest{cursor}, Repeatable: true}, &p)
	return p.Position, err
}

type commitRequest struct {
	Cursor string `json:"cursor"`
}

type subscriptionPosition struct {
	Position int64 `json:"position"`
}

// SeekSubscription makes a subscription go on from another place, and returns its position: that of the head, where the place was never given out
// by this log. Its cursors are lost, so an uncertain call is not repeated.
func (c *Client) SeekSubscription(ctx context.Context, name string, to Place) (position int64, err error) {
	var p soughtPosition
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: subscriptionPath(name, "/seek"), Body: seekRequest{to}}, &p)
	return p.Position, err
}

type soughtPosition struct {
	subscriptionPosition
	Gap *Gap `json:"gap,omitzero"`
}

type seekRequest struct {
	To Place `json:"to"`
}

// A Replay is a part of the log to deliver again.
type Replay struct {
	// From is where it begins. It is required. To is where it ends; zero: at the end of the log.
	From Place `json:"from"`
	To   Place `json:"to,omitzero"`
	// DryRun only counts the events.
	DryRun bool `json:"dry_run,omitzero"`
}

// ReplaySubscription inserts a part of the log into the queue of a subscription once more, in the background, and returns how many events that
// are. An uncertain call is not repeated.
func (c *Client) ReplaySubscription(ctx context.Context, name string, r Replay) (events int64, err error) {
	var answer replayedEvents
	_, err = c.Do(ctx, Request{Method: http.MethodPost, Path: subscriptionPath(name, "/replay"), Body: r}, &answer)
	return answer.Events, err
}

type replayedEvents struct {
	Events int64 `json:"events"`
}

// StreamSubscription is [Client.Stream] of the events of a subscription. It begins at p.From, or else after the position of the subscription,
// which it does not move.
func (c *Client) StreamSubscription(ctx context.Context, name string, from Place) iter.Seq2[PublishedEvent, error] {
	return c.stream(ctx, subscriptionPath(name, "/stream"), StreamParams{From: from})
}

func subscriptionPath(name, call string) string { return "/subscriptions/" + escape(name) + call }
