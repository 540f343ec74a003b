package http

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/topic"
)

// A filterBody is a filter in a body.
type filterBody struct {
	Topics []string        `json:"topics" validate:"min=1,max=256" restrict:"topics,narrow"`
	Match  json.RawMessage `json:"match"`
}

// parse returns the filter. Its problems point into the body from at on, which is a JSON pointer.
func (f *filterBody) parse(at string) (*match.Filter, error) {
	filter, err := match.Parse(f.Topics, f.Match)
	if err != nil {
		return nil, filterRefused(err, func(pointer string) string { return "#" + at + pointer })
	}
	return filter, nil
}

// errFiltersTooSlow is the problem with filters or events that take longer than a request may.
var errFiltersTooSlow = problem.New(problem.Overloaded, "Filters were not compiled or compared with events within QUEUED_REQUEST_TIMEOUT. Nothing was written; send fewer at once, or retry.")

// goesOn fails when a request has ended: long loops call it between one filter or event and the next.
func goesOn(ctx context.Context) error {
	err := ctx.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		return errFiltersTooSlow
	}
	return err
}

// compileFilters returns the filters of a subscription, or a problem with as many reasons as one lists.
func compileFilters(ctx context.Context, all []namedFilter) ([]topic.SubscriptionFilter, error) {
	filters := make([]topic.SubscriptionFilter, len(all))
	var bad problem.Fields
	for i := range all {
		if err := goesOn(ctx); err != nil {
			return nil, err
		}
		var err error
		if filters[i], err = all[i].of(all[i].nameAt(i), fmt.Sprintf("/filters/%d", i)); err == nil {
			continue
		}
		refused, ok := errors.AsType[*problem.Problem](err)
		if !ok {
			return nil, err
		}
		for _, e := range refused.Errors {
			bad.Add(e.Pointer, e.Detail)
		}
		if len(bad) >= problem.MaxFieldErrors {
			break
		}
	}
	return filters, bad.Err(problem.FilterRefused)
}

type matchRequest struct {
	Filter filterBody   `json:"filter" validate:"required" restrict:"-"`
	Events []matchEvent `json:"events" validate:"min=1"`
	Last   int          `json:"last" validate:"min=1,max=1000" restrict:"method"`
}

// A matchEvent is an event to try a filter on.
type matchEvent struct {
	Topic string          `json:"topic" validate:"required,topic" restrict:"-"`
	Event json.RawMessage `json:"event" validate:"required"`
}

// Check implements bind.Checker.
func (req *matchRequest) Check(report func(field, detail string)) {
	if (req.Events == nil) == (req.Last == 0) {
		report("events", "must be given, or last, but not both")
	}
}

type matchResponse struct {
	Matched   []bool  `json:"matched"`
	Positions []int64 `json:"positions,omitempty"` // of the events of the log
}

func (s *Server) match(r *http.Request, req matchRequest) (reply, error) {
	filter, err := req.Filter.parse("/filter")
	if err != nil {
		return reply{}, err
	}
	if req.Last > 0 {
		positions, matched, err := s.topics.MatchLast(r.Context(), filter, req.Last)
		return reply{body: matchResponse{matched, positions}}, err
	}
	matched := make([]bool, len(req.Events))
	for i := range req.Events {
		if err := goesOn(r.Context()); err != nil {
			return reply{}, err
		}
		matched[i] = filter.Matches(req.Events[i].Topic, req.Events[i].Event)
	}
	return reply{body: matchResponse{Matched: matched}}, nil
}
