package http

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/match"
	"github.com/queued/queued/internal/topic"
)

// A logQuery says which events of the log a request wants, and from where on.
type logQuery struct {
	Topics []string        `query:"topic" validate:"max=256,dive,min=1,max=255" restrict:"topics,own"`
	Match  json.RawMessage `query:"match"`
	logPlace
}

// A logPlace says from where on a request wants events of the log.
type logPlace struct {
	After string     `query:"after" validate:"min=1,max=20" log:"after"`
	At    *time.Time `query:"at"`
}

// filter returns the filter of q, nil if it wants everything, and the names of its topics if it has no patterns.
func (q *logQuery) filter() (filter *match.Filter, names []string, err error) {
	if len(q.Topics) == 0 && q.Match == nil {
		return nil, nil, nil
	}
	if filter, err = match.Parse(q.Topics, q.Match); err != nil {
		return nil, nil, filterRefused(err, func(pointer string) string {
			part, rest, _ := strings.Cut(strings.TrimPrefix(pointer, "/"), "/")
			if part == "topics" {
				return "?topic"
			}
			return strings.TrimSuffix("?match#/"+rest, "#/")
		})
	}
	isPattern := func(name string) bool { return strings.Contains(name, "*") }
	if len(q.Topics) > 0 && !slices.ContainsFunc(q.Topics, isPattern) {
		names = q.Topics
	}
	return filter, names, nil
}

// filterRefused is the problem with a filter that match.Parse has refused.
func filterRefused(err error, pointerOf func(string) string) error {
	refused, ok := errors.AsType[*match.Error](err)
	if !ok {
		return err
	}
	return problem.InFields(problem.FilterRefused, convert(refused.Violations, func(v match.Violation) problem.FieldError {
		return problem.FieldError{Pointer: pointerOf(v.Pointer), Detail: v.Detail}
	})...)
}

// errAfterAndAt is the problem with two places to read from.
var errAfterAndAt = problem.InField(problem.InvalidParameter, "?at", "must not be given together with after")

// position returns the position to read on from; without any it is that of fallback, earliest or latest.
func (s *Server) position(ctx context.Context, place logPlace, fallback string) (int64, error) {
	after := place.After
	switch {
	case after != "" && place.At != nil:
		return 0, errAfterAndAt
	case place.At != nil:
		return s.topics.PositionAt(ctx, *place.At)
	case after == "":
		after = fallback
	}
	switch after {
	case "earliest", "latest":
		return s.endOfLog(ctx, after)
	}
	n, err := strconv.ParseInt(after, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != after {
		return 0, problem.InField(problem.InvalidParameter, "?after", "must be a position (an integer, 0 or more), earliest or latest")
	}
	return n, nil
}

// endOfLog returns the position before the earliest event that can be read, or that of the latest.
func (s *Server) endOfLog(ctx context.Context, which string) (int64, error) {
	first, head, err := s.topics.Bounds(ctx)
	if which == "earliest" {
		return first - 1, err
	}
	return head, err
}

type readLogRequest struct {
	logQuery
	Limit int           `query:"limit" default:"100" validate:"min=1,max=1000"`
	Wait  time.Duration `query:"wait" validate:"min=0s,max=1m"`
	Last  int           `query:"last" validate:"min=1,max=1000"` // 0: not the last ones
}

func (req *readLogRequest) waits() time.Duration { return req.Wait }

// A logPage is a part of the log.
type logPage struct {
	topic.Page
	headHeldBy *holder
	isComplete *bool // of the last events; nil: it is of others
}

// A holder is the transaction that keeps the events after Position from being read.
type holder struct {
	Position int64   `json:"position"`
	PID      *int32  `json:"pid,omitzero"`
	Prepared *string `json:"prepared,omitzero"`
	Age      string  `json:"age"`
	Query    *string `json:"query,omitzero"`
}

// holderAge is how long a transaction must have held the head for readers to be told.
const holderAge = time.Second

func (s *Server) readLog(r *http.Request, req readLogRequest) (reply, error) {
	filter, names, err := req.filter()
	if err != nil {
		return reply{}, err
	}
	if req.Last > 0 {
		return s.readLast(r, &req, topic.LastParams{Filter: filter, Topics: names, N: req.Last})
	}
	after, err := s.position(r.Context(), req.logPlace, "earliest")
	if err != nil {
		return reply{}, err
	}
	page, err := s.topics.Read(r.Context(), topic.ReadParams{After: after, Filter: filter, Topics: names, Limit: req.Limit, Wait: req.Wait})
	if err != nil {
		return reply{}, inQuery(err)
	}
	logOf(r).add("events", len(page.Events))
	out := logPage{Page: page}
	if len(page.Events) == 0 && !logOf(r).grant.IsRestricted() { // the query of a transaction is nothing for everybody
		if h, err := s.topics.Holder(r.Context()); err == nil && h != nil && h.Age >= holderAge {
			out.headHeldBy = &holder{h.Position, h.PID, h.Prepared, h.Age.Round(time.Millisecond).String(), h.Query}
		}
	}
	return reply{body: &out}, nil
}

// readLast is readLog for the last events.
func (s *Server) readLast(r *http.Request, req *readLogRequest, p topic.LastParams) (reply, error) {
	if req.After != "" || req.At != nil || req.Wait > 0 || r.URL.Query().Has("limit") {
		return reply{}, problem.InField(problem.InvalidParameter, "?last", "must not be given together with after, at, limit or wait")
	}
	page, isComplete, err := s.topics.ReadLast(r.Context(), p)
	if err != nil {
		return reply{}, err
	}
	logOf(r).add("events", len(page.Events))
	return reply{body: &logPage{Page: page, isComplete: &isComplete}}, nil
}

// inQuery makes the problem with a position one of its parameter.
func inQuery(err error) error {
	if invalid, ok := errors.AsType[*topic.InvalidError](err); ok && invalid.Field == "after" {
		return problem.InField(problem.InvalidParameter, "?after", invalid.Detail)
	}
	return err
}

func (p *logPage) appendJSON(b []byte) []byte {
	b = append(b, `{"events":[`...)
	for i := range p.Events {
		if i > 0 {
			b = append(b, ',')
		}
		b = (*publishedEvent)(&p.Events[i]).appendJSON(b)
	}
	o := object(append(b, ']'))
	o.int("next", p.Next)
	o.int("head", p.Head)
	if p.isComplete != nil {
		o = strconv.AppendBool(o.name("complete"), *p.isComplete)
	}
	if p.Gap != nil {
		o = gap(*p.Gap).appendJSON(o.name("gap"))
	}
	if p.headHeldBy != nil {
		held, _ := json.Marshal(p.headHeldBy) // strings and integers always encode
		o = append(o.name("held_by"), held...)
	}
	return append(o, '}')
}

// A gap is a part of the log that is missing.
type gap topic.Gap

func (g gap) appendJSON(b []byte) []byte {
	o := object(append(b, '{'))
	o.int("after", g.After)
	o.int("until", g.Until)
	o.text("reason", string(g.Reason))
	return append(o, '}')
}

// A publishedEvent is an event of the log as it goes over the wire.
type publishedEvent topic.Event

// A matchedEvent is one of a subscription.
type matchedEvent topic.MatchedEvent

func (e *matchedEvent) appendJSON(b []byte) []byte {
	o := (*publishedEvent)(&e.Event).appendMembers(append(b, '{'))
	b = append(o.name("matched"), '[')
	for i, name := range e.Matched {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendText(b, name)
	}
	return append(b, ']', '}')
}

func (e *publishedEvent) appendJSON(b []byte) []byte {
	return append(e.appendMembers(append(b, '{')), '}')
}

// appendMembers appends the members of the event to an object.
func (e *publishedEvent) appendMembers(o object) object {
	o.int("position", e.Position)
	o.text("topic", e.Topic)
	o.time("published_at", &e.PublishedAt)
	o.text("key", e.Key)
	o.value("meta", e.Meta)
	o.value("event", e.Event)
	return o
}

type positionRequest struct {
	Position int64 `path:"position" validate:"min=1" restrict:"position"`
}

func (s *Server) getPublished(r *http.Request, req positionRequest) (reply, error) {
	e, err := s.topics.Get(r.Context(), req.Position)
	return reply{body: (*publishedEvent)(&e)}, err
}

// logSettings are the settings of the log in a request and in a response.
type logSettings struct {
	Retention       time.Duration `json:"retention" default:"24h" validate:"min=1m,max=87600h"`
	Hold            time.Duration `json:"hold" default:"168h" validate:"min=1m,max=87600h"`
	SegmentInterval time.Duration `json:"segment_interval" default:"1h" validate:"min=1m,max=720h"`
	SegmentSize     int64         `json:"segment_size" default:"10000000" validate:"min=1000,max=1000000000"`
}

type logSettingsResponse struct {
	logSettings
	UpdatedAt time.Time `json:"updated_at"`
}

// replyOfSettings is the reply with the settings of the log.
func replyOfSettings(set topic.Settings) reply {
	return reply{
		body: logSettingsResponse{logSettings{set.Retention, set.Hold, set.SegmentInterval, set.SegmentSize}, set.UpdatedAt},
		etag: etagOf(set.Version),
	}
}

func (s *Server) getLogSettings(r *http.Request, _ noRequest) (reply, error) {
	set, err := s.topics.Settings(r.Context())
	return replyOfSettings(set), err
}

type putLogSettingsRequest struct {
	logSettings
	IfMatch *precondition `header:"If-Match"`
}

// Check implements bind.Checker.
func (req *putLogSettingsRequest) Check(report func(field, detail string)) {
	if req.Hold < req.Retention {
		report("hold", "must be at least the retention")
	}
}

func (s *Server) putLogSettings(r *http.Request, req putLogSettingsRequest) (reply, error) {
	set, err := s.topics.PutSettings(r.Context(), topic.SettingsChange{
		Retention: &req.Retention, Hold: &req.Hold, SegmentInterval: &req.SegmentInterval, SegmentSize: &req.SegmentSize,
	}, req.IfMatch.versions())
	return replyOfSettings(set), err
}
