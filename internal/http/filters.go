package http

import (
	"encoding/json"
	"net/http"

	"github.com/queued/queued/internal/match"
)

// A filterBody is a filter in a body.
type filterBody struct {
	Topics []string        `json:"topics" validate:"min=1,max=256"`
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

type matchRequest struct {
	Filter filterBody   `json:"filter" validate:"required"`
	Events []matchEvent `json:"events" validate:"min=1"`
	Last   int          `json:"last" validate:"min=1,max=1000"`
}

// A matchEvent is an event to try a filter on.
type matchEvent struct {
	Topic string          `json:"topic" validate:"required,topic"`
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
	matched := convert(req.Events, func(e matchEvent) bool { return filter.Matches(e.Topic, e.Event) })
	return reply{body: matchResponse{Matched: matched}}, nil
}
