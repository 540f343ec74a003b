package http

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/queued/queued/internal/cloudevents"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/topic"
)

// A postCloudEventsRequest is CloudEvents in structured, binary or batched mode, for a queue or for a topic. Options that an event has as attributes are not in
// the query.
type postCloudEventsRequest struct {
	Queue       string         `query:"queue" validate:"queue,unreserved" restrict:"queue,default,unless=Topic"`
	Topic       string         `query:"topic" validate:"topic" restrict:"topic,optional"`
	Delay       *time.Duration `query:"delay" validate:"min=0s,max=87600h"`
	VT          *time.Time     `query:"vt"`
	Priority    int32          `query:"priority" validate:"min=-2147483648,max=2147483647"`
	MaxAttempts int            `query:"max_attempts" validate:"min=1,max=2147483647"`
	ExpiresAt   *time.Time     `query:"expires_at"`
	KeepRaw     time.Duration  `query:"keep_raw" validate:"min=1s,max=87600h"`
	Sent        []byte         `bytes:"body"`
}

// Check implements bind.Checker.
func (req *postCloudEventsRequest) Check(report func(field, detail string)) {
	if req.Delay != nil && req.VT != nil {
		report("vt", "must not be given together with delay")
	}
	if req.Topic == "" {
		return
	}
	for field, isGiven := range map[string]bool{
		"queue": req.Queue != "", "delay": req.Delay != nil, "vt": req.VT != nil, "priority": req.Priority != 0, "max_attempts": req.MaxAttempts != 0,
		"expires_at": req.ExpiresAt != nil, "keep_raw": req.KeepRaw != 0,
	} {
		if isGiven {
			report(field, "must not be given together with topic")
		}
	}
}

// The problems of a request with CloudEvents as a whole.
var (
	errCloudEventKey = problem.InField(problem.InvalidParameter, "Idempotency-Key",
		"must not be sent; the source and the id of a CloudEvent are its key")
	errRawBatch = problem.InField(problem.InvalidParameter, "?keep_raw", "must not be given for a batch")
)

func (s *Server) postCloudEvents(r *http.Request, req postCloudEventsRequest) (reply, error) {
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		return reply{}, errCloudEventKey
	}
	if err := logOf(r).body.TakeDecoded(req.Sent); err != nil {
		return reply{}, bind.BodyError(err, s.cfg.MaxBatchBody)
	}
	in, isBatch, err := cloudevents.Decode(r.Header, req.Sent, s.cfg.MaxBatch)
	switch {
	case isBatch && req.KeepRaw != 0:
		return reply{}, errRawBatch
	case errors.Is(err, cloudevents.ErrTooMany):
		return reply{}, problem.InField(problem.BatchTooLarge, "#", fmt.Sprintf("must be at most %d elements long", s.cfg.MaxBatch))
	case err != nil:
		return reply{}, cloudEventRefused(err)
	case isBatch:
		logOf(r).add("events", len(in))
	}
	metas := make([]json.RawMessage, len(in))
	for i := range in {
		if metas[i], err = s.checkCloudEvent(&in[i]); err != nil {
			return reply{}, err
		}
	}
	if req.Topic != "" {
		logOf(r).add("topic", req.Topic)
		return s.publishCloudEvents(r, req.Topic, in, metas, isBatch)
	}
	req.Queue = cmp.Or(req.Queue, queue.Default)
	logOf(r).add("queue", req.Queue)
	return s.insertCloudEvents(r, req, in, metas, isBatch)
}

// cloudEventRefused is the problem with a request that cloudevents.Decode has refused.
func cloudEventRefused(err error) error {
	if invalid, ok := errors.AsType[*cloudevents.InvalidError](err); ok {
		return problem.InFields(problem.InvalidCloudEvent, convert(invalid.Violations, func(v cloudevents.Violation) problem.FieldError {
			return problem.FieldError{Pointer: v.Pointer, Detail: v.Detail}
		})...)
	}
	if errors.Is(err, cloudevents.ErrFormat) {
		_, expected, _ := strings.Cut(err.Error(), cloudevents.ErrFormat.Error()+": ")
		return problem.New(problem.UnsupportedMediaType, "The body is in a format of CloudEvents that is not understood: "+expected+".")
	}
	return err
}

// checkCloudEvent makes sure that an event can be stored, and returns its metadata.
func (s *Server) checkCloudEvent(e *cloudevents.Event) (meta json.RawMessage, err error) {
	const maxColumn = 255
	var bad problem.Fields
	for name, text := range map[string]string{"type": e.Type, "source": e.Source} {
		if n := utf8.RuneCountInString(text); n > maxColumn {
			bad.Add(e.Pointer(name), fmt.Sprintf("must be at most %d characters long, not %d", maxColumn, n))
		}
	}
	var encoded bytes.Buffer
	encoder := json.NewEncoder(&encoded)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e.Meta()); err != nil {
		return nil, err
	}
	meta = bytes.TrimSpace(encoded.Bytes())
	// PostgreSQL writes blanks after colons and commas: of the members of the metadata, and of the attributes.
	if n := len(meta) + 2*len(e.Attributes) - 1 + 2*len(e.Meta()) - 1; n > queue.MaxMeta {
		bad.Add(e.Pointer(""), fmt.Sprintf("must have attributes of at most %d bytes as metadata, not %d", queue.MaxMeta, n))
	}
	if err := bad.Err(problem.ValidationFailed); err != nil {
		return nil, err
	}
	if p, failed := errors.AsType[*problem.Problem](bind.CheckObject(e.Event, s.cfg.limits())); failed {
		return nil, inData(p, e)
	}
	return meta, nil
}

// inData makes the problem with an event one with the data that it has come from.
func inData(p *problem.Problem, e *cloudevents.Event) error {
	if len(p.Errors) == 0 {
		return problem.InField(p.Type, e.Pointer("data"), strings.TrimSuffix(p.Detail, "."))
	}
	return problem.InFields(p.Type, convert(p.Errors, func(f problem.FieldError) problem.FieldError {
		place := strings.TrimPrefix(f.Pointer, "#")
		if e.Shape != cloudevents.DataObject {
			place = strings.TrimPrefix(place, "/data")
		}
		return problem.FieldError{Pointer: e.Pointer("data") + place, Detail: f.Detail}
	})...)
}

func (s *Server) insertCloudEvents(r *http.Request, req postCloudEventsRequest, in []cloudevents.Event, metas []json.RawMessage, isBatch bool) (reply, error) {
	params := make([]queue.InsertParams, len(in))
	for i := range in {
		e := &in[i]
		p := queue.InsertParams{
			Event: e.Event, Queue: req.Queue, VT: req.VT, Type: e.Type, Source: e.Source, Priority: req.Priority, Group: e.Group(), IdempotencyKey: e.Key(), MaxAttempts: req.MaxAttempts,
			ExpiresAt: req.ExpiresAt, OnDuplicate: queue.First, Meta: metas[i],
		}
		if req.Delay != nil {
			p.Delay, p.AtOnce = *req.Delay, *req.Delay == 0
		}
		p.EventTS = e.EventTime()
		if req.KeepRaw != 0 {
			p.Raw = &queue.RawBody{Body: req.Sent, MediaType: mediaType(r), Keep: req.KeepRaw}
		}
		params[i] = p
	}
	inserted, err := s.insertTraced(r, isBatch, params)
	switch {
	case err != nil:
		return reply{}, delayRefused(timeRefused(err, in), func(_ int, option string) string { return "?" + option })
	case isBatch:
		return batchOf("ids", inserted, func(e queue.Inserted) (int64, bool) { return e.ID, e.Deduplicated }), nil
	}
	e := inserted[0]
	logOf(r).add("id", e.ID)
	return created(insertResponse(e), eventPath(e.ID), e.Deduplicated), nil
}

// timeRefused makes the problem with the time of an event, which the database has refused, one with its attribute.
func timeRefused(err error, in []cloudevents.Event) error {
	invalid, ok := errors.AsType[*queue.InvalidError](err)
	if !ok || invalid.Field != "event_ts" {
		return err
	}
	var bad problem.Fields
	now := time.Now() // which is only to tell which of them it was
	for i := range in {
		if at := in[i].EventTime(); at != nil && (len(in) == 1 || at.Before(now.AddDate(-10, 0, 0)) || at.After(now.AddDate(0, 0, 1))) {
			bad.Add(in[i].Pointer("time"), invalid.Detail)
		}
	}
	if len(bad) == 0 {
		return err
	}
	return bad.Err(problem.ValidationFailed)
}

func (s *Server) publishCloudEvents(r *http.Request, name string, in []cloudevents.Event, metas []json.RawMessage, isBatch bool) (reply, error) {
	publications := make([]topic.Publication, len(in))
	for i := range in {
		publications[i] = topic.Publication{Topic: name, Event: in[i].Event, Meta: metas[i], IdempotencyKey: in[i].Key(), OnDuplicate: queue.First}
	}
	published, err := s.publishTraced(r, isBatch, publications)
	switch {
	case err != nil:
		return reply{}, err
	case isBatch:
		return batchOf("positions", published, func(p topic.Published) (int64, bool) { return p.Position, p.Deduplicated }), nil
	}
	return s.published(r, name, published[0]), nil
}

// batchOf is the reply to a batch: a list under name of the events that it has inserted or published, or had before.
func batchOf[T any](name string, made []T, of func(T) (id int64, deduplicated bool)) reply {
	ids, deduplicated := make([]int64, len(made)), len(made) > 0
	for i, one := range made {
		id, wasMade := of(one)
		ids[i], deduplicated = id, deduplicated && wasMade
	}
	return created(map[string][]int64{name: ids}, "", deduplicated)
}
