package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/topic"
)

// A subscribedFilter is a filter of a subscription in a request.
type subscribedFilter struct {
	filterBody
	ExpiresAfter *time.Duration `json:"expires_after" validate:"min=1s,max=87600h"`
}

// of returns the filter under a name. at is where it is in the body.
func (f *subscribedFilter) of(name, at string) (topic.SubscriptionFilter, error) {
	compiled, err := f.parse(at)
	return topic.SubscriptionFilter{Name: name, Topics: f.Topics, Match: f.Match, ExpiresAfter: f.ExpiresAfter, Filter: compiled}, err
}

// A namedFilter is a filter of a list.
type namedFilter struct {
	Name string `json:"name" validate:"queue" restrict:"-"`
	subscribedFilter
}

// A filterResponse is a filter of a subscription in a response.
type filterResponse struct {
	Name         string          `json:"name"`
	Topics       []string        `json:"topics,omitempty"`
	Match        json.RawMessage `json:"match,omitempty"`
	ExpiresAfter *time.Duration  `json:"expires_after,omitempty"`
	ExpiresAt    *time.Time      `json:"expires_at,omitempty"`
}

func filterOf(f topic.SubscriptionFilter) filterResponse {
	return filterResponse{f.Name, f.Topics, f.Match, f.ExpiresAfter, f.ExpiresAt}
}

// A lagBody is how far a subscription is behind.
type lagBody struct {
	Events  int64   `json:"events"`
	Seconds float64 `json:"seconds"`
}

// lagOf rounds to milliseconds.
func lagOf(events int64, seconds float64) lagBody {
	return lagBody{events, math.Round(seconds*1000) / 1000}
}

// A deliveryBody says where the events of a subscription go.
type deliveryBody struct {
	Queue     string `json:"queue" validate:"required,queue,unreserved" restrict:"queue"`
	Type      string `json:"type,omitempty" validate:"min=1,max=255"`
	Priority  int32  `json:"priority" validate:"min=-2147483648,max=2147483647"`
	GroupFrom string `json:"group_from,omitempty" validate:"min=1,max=1024"`
}

// A subscriptionBody is a subscription in a listing.
type subscriptionBody struct {
	Name         string         `json:"name"`
	State        string         `json:"state"`
	Position     int64          `json:"position"`
	Head         int64          `json:"head"`
	Lag          lagBody        `json:"lag"`
	Gaps         int64          `json:"gaps"`
	HeldUntil    *time.Time     `json:"held_until,omitempty"`
	Deliver      *deliveryBody  `json:"deliver,omitempty"`
	Waiting      *int64         `json:"waiting,omitempty"`
	Replays      *int64         `json:"replays,omitempty"`
	Start        int64          `json:"start"`
	MaxWaiting   int            `json:"max_waiting"`
	ExpiresAfter *time.Duration `json:"expires_after,omitempty"`
	ExpiresAt    *time.Time     `json:"expires_at,omitempty"`
	FilterCount  int64          `json:"filter_count"`
	Version      int64          `json:"version"`
	CreatedAt    time.Time      `json:"created_at"`
	UpdatedAt    time.Time      `json:"updated_at"`
}

func subscriptionOf(s topic.Subscription) subscriptionBody {
	body := subscriptionBody{
		Name: s.Name, State: stateOf(&s), Position: s.Position, Head: s.Head, Lag: lagOf(s.LagEvents, s.LagSeconds), Gaps: s.Gaps, HeldUntil: s.LeasedUntil,
		Start: s.StartPosition, MaxWaiting: s.MaxWaiting, ExpiresAfter: s.ExpiresAfter, ExpiresAt: s.ExpiresAt, FilterCount: s.FilterCount, Version: s.Version,
		CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt,
	}
	if d := s.Deliver; d != nil {
		body.Deliver, body.Waiting, body.Replays = &deliveryBody{d.Queue, d.Type, d.Priority, d.GroupFrom}, &s.Waiting, &s.Replays
	}
	return body
}

// stateOf returns the state of a subscription.
func stateOf(s *topic.Subscription) string {
	switch {
	case s.IsPaused:
		return "paused"
	case s.Deliver == nil || s.LagEvents == 0:
		return "active"
	case s.Waiting >= int64(s.MaxWaiting):
		return "full"
	case !s.IsInStep:
		return "catching_up"
	}
	return "active"
}

// A subscriptionResponse is a subscription with its filters.
type subscriptionResponse struct {
	subscriptionBody
	Filters []filterResponse `json:"filters"`
}

// replyOfSubscription is the reply with a subscription as it is now.
func (s *Server) replyOfSubscription(ctx context.Context, name string) (reply, error) {
	sub, err := s.topics.Subscription(ctx, name)
	sub.FilterCount = int64(len(sub.Filters))
	return reply{body: subscriptionResponse{subscriptionOf(sub), convert(sub.Filters, filterOf)}, etag: etagOf(sub.Version)}, err
}

type putSubscriptionRequest struct {
	Name         string         `path:"name" validate:"queue" log:"subscription" restrict:"subscription,new"`
	IfMatch      *precondition  `header:"If-Match"`
	Filters      []namedFilter  `json:"filters" validate:"required" restrict:"filters"`
	Start        bind.Value     `json:"start"`
	MaxWaiting   int            `json:"max_waiting" default:"10000" validate:"min=1,max=1000000000"`
	ExpiresAfter *time.Duration `json:"expires_after" validate:"min=1s,max=87600h"`
	Deliver      *deliveryBody  `json:"deliver"`
}

// Check implements bind.Checker.
func (req *putSubscriptionRequest) Check(report func(field, detail string)) {
	seen := make(map[string]bool)
	for i, f := range req.Filters {
		name := f.nameAt(i)
		if seen[name] {
			report(fmt.Sprintf("filters/%d/name", i), "must be different from the names of the other filters, not "+bind.Quote(name))
		}
		seen[name] = true
	}
}

// nameAt returns the name of the filter at a place of the list: filters without a name are named by their place.
func (f *namedFilter) nameAt(i int) string {
	if f.Name == "" {
		return "filter-" + strconv.Itoa(i+1)
	}
	return f.Name
}

func (s *Server) putSubscription(r *http.Request, req putSubscriptionRequest) (reply, error) {
	filters, err := compileFilters(r.Context(), req.Filters)
	if err != nil {
		return reply{}, err
	}
	var start int64
	if req.Start == nil {
		start, err = s.endOfLog(r.Context(), "latest")
	} else {
		start, err = s.placeOf(r.Context(), "#/start", req.Start)
	}
	if err != nil {
		return reply{}, err
	}
	p := topic.PutSubscriptionParams{
		Name: req.Name, Filters: filters, Start: start, MaxWaiting: req.MaxWaiting, ExpiresAfter: req.ExpiresAfter,
		IfVersions: req.IfMatch.versions(), IfExists: req.IfMatch.isAny(),
	}
	if d := req.Deliver; d != nil {
		p.Deliver = &topic.Delivery{Queue: d.Queue, Type: d.Type, Priority: d.Priority, GroupFrom: d.GroupFrom}
	}
	isNew, err := s.topics.PutSubscription(r.Context(), p)
	if err != nil {
		return reply{}, inPlace("#/start", err)
	}
	rep, err := s.replyOfSubscription(r.Context(), req.Name)
	rep.location = "/subscriptions/" + req.Name
	if isNew {
		rep.status = http.StatusCreated
	}
	return rep, err
}

// placeOf returns the position that a member of a body stands for: earliest, latest, a position, or a time.
func (s *Server) placeOf(ctx context.Context, pointer string, value bind.Value) (int64, error) {
	var position int64
	var text string
	if err := json.Unmarshal(value, &position); err == nil && position >= 0 && string(value) != "null" {
		return position, nil
	}
	if err := json.Unmarshal(value, &text); err == nil {
		if text == "earliest" || text == "latest" {
			return s.endOfLog(ctx, text)
		}
		if at, err := time.Parse(time.RFC3339, text); err == nil && at.UTC().Year() >= 1 && at.UTC().Year() <= 9999 {
			return s.topics.PositionAt(ctx, at.UTC())
		}
	}
	return 0, problem.InField(problem.ValidationFailed, pointer, `must be a position (an integer, 0 or more), earliest, latest, or an RFC 3339 time such as "2026-02-03T04:05:06Z"`)
}

// inPlace makes the problem with a position one of its member.
func inPlace(pointer string, err error) error {
	if invalid, ok := errors.AsType[*topic.InvalidError](err); ok && invalid.Field == "after" {
		return problem.InField(problem.ValidationFailed, pointer, invalid.Detail)
	}
	return err
}

type subscriptionRequest struct {
	Name string `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
}

func (s *Server) getSubscription(r *http.Request, req subscriptionRequest) (reply, error) {
	return s.replyOfSubscription(r.Context(), req.Name)
}

type listSubscriptionsResponse struct {
	Subscriptions []subscriptionBody `json:"subscriptions"`
	Next          *string            `json:"next"`
}

type listSubscriptionsRequest struct {
	paging
	Queues []string `restrict:"allowed_queues"`
	Topics []string `restrict:"allowed_topics"`
}

func (s *Server) listSubscriptions(r *http.Request, req listSubscriptionsRequest) (reply, error) {
	page, err := s.topics.Subscriptions(r.Context(), req.Limit, req.Cursor, req.Queues, req.Topics)
	return reply{body: listSubscriptionsResponse{convert(page.Subscriptions, subscriptionOf), nextOf(page.Next)}}, err
}

type deleteSubscriptionRequest struct {
	Name    string        `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	IfMatch *precondition `header:"If-Match"`
}

func (s *Server) deleteSubscription(r *http.Request, req deleteSubscriptionRequest) (reply, error) {
	return noContent, s.topics.DeleteSubscription(r.Context(), req.Name, req.IfMatch.versions())
}

// changeSubscription is the handler of a call that changes a subscription and returns it.
func (s *Server) changeSubscription(change func(context.Context, string) error) func(*http.Request, subscriptionRequest) (reply, error) {
	return func(r *http.Request, req subscriptionRequest) (reply, error) {
		if err := change(r.Context(), req.Name); err != nil {
			return reply{}, err
		}
		return s.replyOfSubscription(r.Context(), req.Name)
	}
}

type putFilterRequest struct {
	Name   string `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	Filter string `path:"filter" validate:"queue" log:"filter" restrict:"-"`
	subscribedFilter
}

func (s *Server) putFilter(r *http.Request, req putFilterRequest) (reply, error) {
	f, err := req.of(req.Filter, "")
	if err != nil {
		return reply{}, err
	}
	return reply{body: filterOf(f)}, s.topics.PutFilter(r.Context(), req.Name, f)
}

type filterRequest struct {
	Name   string `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	Filter string `path:"filter" validate:"queue" log:"filter" restrict:"-"`
}

func (s *Server) deleteFilter(r *http.Request, req filterRequest) (reply, error) {
	return noContent, s.topics.DeleteFilter(r.Context(), req.Name, req.Filter)
}

type readSubscriptionRequest struct {
	Name  string        `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	After string        `json:"after" validate:"min=1,max=1024"`
	Limit int           `json:"limit" default:"100" validate:"min=1,max=1000"`
	Wait  time.Duration `json:"wait" validate:"min=0s,max=1m"`
	Lease time.Duration `json:"lease" validate:"min=1s,max=24h"`
}

func (req *readSubscriptionRequest) waits() time.Duration { return req.Wait }

func (s *Server) readSubscription(r *http.Request, req readSubscriptionRequest) (reply, error) {
	page, err := s.topics.ReadSubscription(r.Context(), req.Name, topic.SubscribedParams{After: req.After, Limit: req.Limit, Wait: req.Wait, Lease: req.Lease})
	if err != nil {
		return reply{}, err
	}
	grant := logOf(r).grant
	page.Events = slices.DeleteFunc(page.Events, func(e topic.MatchedEvent) bool { return !mayRead(grant, e.Topic) })
	logOf(r).add("events", len(page.Events))
	logOf(r).mayRefuse = true // they are read again
	return reply{body: (*subscribedPage)(&page)}, nil
}

// mayRead reports whether a caller that may use a subscription may read its events of a topic. Events of others may be in it all the same: those published for it
// alone, and those that its filters want since they were changed while the call waited.
func mayRead(grant *access.Grant, name string) bool {
	return !grant.IsRestricted() || grant.AllowsTopic(name)
}

// A subscribedPage is the result of a read of a subscription.
type subscribedPage topic.SubscribedPage

func (p *subscribedPage) appendJSON(b []byte) []byte {
	b = append(b, `{"events":[`...)
	for i := range p.Events {
		if i > 0 {
			b = append(b, ',')
		}
		b = (*matchedEvent)(&p.Events[i]).appendJSON(b)
	}
	o := object(append(b, ']'))
	o.text("cursor", p.Cursor)
	lag, _ := json.Marshal(lagOf(p.Lag.Events, p.Lag.Seconds)) // finite numbers always encode
	o = append(o.name("lag"), lag...)
	if p.Gap != nil {
		o = gap(*p.Gap).appendJSON(o.name("gap"))
	}
	o.time("leased_until", p.LeasedUntil)
	o.time("held_until", p.HeldUntil)
	if p.IsPaused {
		o = append(o.name("paused"), "true"...)
	}
	return append(o, '}')
}

type commitCursorRequest struct {
	Name   string `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	Cursor string `json:"cursor" validate:"required,min=1,max=1024"`
}

func (s *Server) commitCursor(r *http.Request, req commitCursorRequest) (reply, error) {
	position, err := s.topics.Commit(r.Context(), req.Name, req.Cursor)
	logOf(r).add("position", position)
	return countOf("position", position), err
}

type seekSubscriptionRequest struct {
	Name string     `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	To   bind.Value `json:"to" validate:"required"`
}

func (s *Server) seekSubscription(r *http.Request, req seekSubscriptionRequest) (reply, error) {
	position, err := s.placeOf(r.Context(), "#/to", req.To)
	if err != nil {
		return reply{}, err
	}
	position, missing, err := s.topics.Seek(r.Context(), req.Name, position)
	return reply{body: &soughtPosition{position, missing}}, inPlace("#/to", err)
}

// A soughtPosition is where a subscription goes on, with the gap that leads there, if there is one.
type soughtPosition struct {
	position int64
	gap      *topic.Gap
}

func (p *soughtPosition) appendJSON(b []byte) []byte {
	o := object(append(b, '{'))
	o.int("position", p.position)
	if p.gap != nil {
		o = gap(*p.gap).appendJSON(o.name("gap"))
	}
	return append(o, '}')
}

type replaySubscriptionRequest struct {
	Name   string     `path:"name" validate:"queue" log:"subscription" restrict:"subscription"`
	From   bind.Value `json:"from" validate:"required"`
	To     bind.Value `json:"to"`
	DryRun bool       `json:"dry_run"`
}

func (s *Server) replaySubscription(r *http.Request, req replaySubscriptionRequest) (reply, error) {
	from, err := s.placeOf(r.Context(), "#/from", req.From)
	if err != nil {
		return reply{}, err
	}
	to, err := s.endOfLog(r.Context(), "latest")
	if req.To != nil {
		to, err = s.placeOf(r.Context(), "#/to", req.To)
	}
	if err != nil {
		return reply{}, err
	}
	if to < from {
		return reply{}, problem.InField(problem.ValidationFailed, "#/to", "must not be before from")
	}
	events, err := s.topics.Replay(r.Context(), req.Name, from, to, req.DryRun)
	logOf(r).add("events", events)
	return countOf("events", events), inPlace("#/from", err)
}
