package http

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/topic"
)

type publishRequest struct {
	Topic        string          `path:"topic" validate:"topic" log:"topic" restrict:"topic"`
	Event        json.RawMessage `body:"event"`
	Key          string          `query:"key" validate:"min=1,max=255"`
	Subscription string          `query:"subscription" validate:"queue" restrict:"subscription,publish"`
	Delay        *time.Duration  `query:"delay" validate:"min=0s,max=87600h"`
	At           *time.Time      `query:"at"`
	HeaderKey    idempotencyKey  `header:"Idempotency-Key" validate:"min=1,max=255"`
}

// A publishResponse is the result of one publication.
type publishResponse struct {
	Position    int64     `json:"position"`
	Topic       string    `json:"topic"`
	PublishedAt time.Time `json:"published_at"`
}

// A delayedResponse is a publication that waits.
type delayedResponse struct {
	ID int64     `json:"id"`
	At time.Time `json:"at"`
}

// errDelayAndAt is the problem with two times for one publication.
var errDelayAndAt = problem.InField(problem.InvalidParameter, "?at", "must not be given together with delay")

func (s *Server) publish(r *http.Request, req publishRequest) (reply, error) {
	p := topic.Publication{
		Topic: req.Topic, Event: req.Event, Key: req.Key, IdempotencyKey: string(req.HeaderKey), Subscription: req.Subscription,
	}
	switch {
	case req.Delay != nil && req.At != nil:
		return reply{}, errDelayAndAt
	case req.Delay != nil || req.At != nil:
		one := []topic.Publication{p}
		sent := s.startPublishing(r, false, one)
		waits, err := s.topics.PublishLater(r.Context(), one[0], *cmp.Or(req.Delay, new(time.Duration)), req.At)
		sent.end(waits.ID, err)
		if err == nil && waits.Published != nil {
			return s.published(r, req.Topic, *waits.Published), nil
		}
		return reply{status: http.StatusAccepted, body: delayedResponse{waits.ID, waits.At}, location: eventPath(waits.ID), deduplicated: waits.Deduplicated}, err
	}
	published, err := s.publishTraced(r, false, []topic.Publication{p})
	if err != nil {
		return reply{}, err
	}
	return s.published(r, req.Topic, published[0]), nil
}

func (*Server) published(r *http.Request, name string, one topic.Published) reply {
	logOf(r).add("position", one.Position)
	return created(publishResponse{one.Position, name, one.PublishedAt}, "/log/"+strconv.FormatInt(one.Position, 10), one.Deduplicated)
}

type publishBatchRequest struct {
	Atomic bool          `query:"atomic" default:"true"`
	Events []publication `json:"events" validate:"required,min=1"`
}

// A publication is an element of a batch.
type publication struct {
	Topic          string            `json:"topic" validate:"required,topic" restrict:"topic"`
	Event          json.RawMessage   `json:"event" validate:"required"`
	Meta           json.RawMessage   `json:"meta"`
	Key            string            `json:"key" validate:"min=1,max=255"`
	IdempotencyKey string            `json:"idempotency_key" validate:"min=1,max=255"`
	Subscription   string            `json:"subscription" validate:"queue" restrict:"subscription,publish"`
	OnDuplicate    queue.OnDuplicate // not to be chosen here
	elementProblem
}

// IsSeparate implements bind.Separator.
func (req *publishBatchRequest) IsSeparate() bool { return !req.Atomic }

// errPublishKey is the problem with one idempotency key for many publications.
var errPublishKey = problem.InField(problem.InvalidParameter, "Idempotency-Key",
	"must not be sent with a batch; give each event a key of its own in its field idempotency_key")

func (s *Server) publishBatch(r *http.Request, req publishBatchRequest) (reply, error) {
	if len(r.Header.Values("Idempotency-Key")) > 0 {
		return reply{}, errPublishKey
	}
	logOf(r).add("events", len(req.Events))
	for i := range req.Events {
		if err := checkMeta(req.Events[i].Meta, fmt.Sprintf("#/events/%d/meta", i)); err != nil {
			return reply{}, err
		}
	}
	publications := convert(req.Events, func(p publication) topic.Publication {
		return topic.Publication{Topic: p.Topic, Event: p.Event, Meta: p.Meta, Key: p.Key, IdempotencyKey: p.IdempotencyKey, Subscription: p.Subscription}
	})
	if !req.Atomic {
		return s.publishEach(r, req.Events, publications)
	}
	published, err := s.publishTraced(r, true, publications)
	if err != nil {
		return reply{}, err
	}
	return batchOf("positions", published, func(p topic.Published) (int64, bool) { return p.Position, p.Deduplicated }), nil
}

// publishEach publishes the events of a batch each on its own, but those that are refused already.
func (s *Server) publishEach(r *http.Request, items []publication, publications []topic.Publication) (reply, error) {
	refused := func(place int) (topic.PublishResult, bool) {
		err := items[place].problem
		return topic.PublishResult{Err: err}, err != nil
	}
	results, err := doAccepted(publications, refused, func(accepted []topic.Publication) ([]topic.PublishResult, error) {
		sent := s.startPublishing(r, true, accepted)
		published, err := s.topics.PublishEach(r.Context(), accepted)
		sent.end(0, err)
		return published, err
	})
	if err != nil {
		return reply{}, err
	}
	of := make([]publishResult, len(results))
	for i := range results {
		of[i] = publishResultOf(publications[i].Topic, results[i])
	}
	return reply{body: map[string][]publishResult{"results": of}}, nil
}

// A publishResult is what became of one event of a batch that is not atomic.
type publishResult struct {
	Status      int        `json:"status"`
	Position    int64      `json:"position,omitzero"`
	Topic       string     `json:"topic,omitzero"`
	PublishedAt *timestamp `json:"published_at,omitzero"`
	Code        string     `json:"code,omitzero"`
	Detail      string     `json:"detail,omitzero"`
}

func publishResultOf(name string, result topic.PublishResult) publishResult {
	if result.Err != nil {
		p := problem.Of(result.Err)
		return publishResult{Status: p.Type.Status, Code: p.Type.Code, Detail: p.Detail}
	}
	status := http.StatusCreated
	if result.Deduplicated {
		status = http.StatusOK
	}
	return publishResult{Status: status, Position: result.Position, Topic: name, PublishedAt: (*timestamp)(&result.PublishedAt)}
}

// A topicBody is a topic in a listing.
type topicBody struct {
	Topic        string    `json:"topic"`
	Events       int64     `json:"events"`
	LastPosition int64     `json:"last_position"`
	LastAt       time.Time `json:"last_at"`
}

type listTopicsResponse struct {
	Topics []topicBody `json:"topics"`
	Next   *string     `json:"next"`
}

type listTopicsRequest struct {
	paging
	Topics []string `restrict:"allowed_topics"`
}

func (s *Server) listTopics(r *http.Request, req listTopicsRequest) (reply, error) {
	page, err := s.topics.Topics(r.Context(), req.Limit, req.Cursor, req.Topics)
	topics := convert(page.Topics, func(t topic.Topic) topicBody { return topicBody{t.Name, t.Events, t.LastPosition, t.LastAt} })
	return reply{body: listTopicsResponse{topics, nextOf(page.Next)}}, err
}
