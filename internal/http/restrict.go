package http

import (
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/webhook"
)

// A restrictable is a request of which it is known what it uses. A caller that may use only some queues and topics gets no other request through, but
// those of routes that any key may call.
type restrictable interface {
	// restrict narrows the request to what the caller may use, where it asks for whatever there is, and fails when it names anything else: with
	// Forbidden for the name of a queue or a topic, and for what has an id or another name as if that did not exist.
	restrict(c *caller) error
}

// forbidAll returns the problem with a call about all queues and topics.
func (c *caller) forbidAll() error {
	return c.s.forbid(c.r, problem.Required{Queue: "*", Topic: "**"})
}

// queue returns the problem of a request that names a queue which the caller may not use. pointer says where.
func (c *caller) queue(name, pointer string) error {
	if c.AllowsQueue(name) {
		return nil
	}
	p := c.s.forbid(c.r, problem.Required{Queue: name})
	p.Errors = []problem.FieldError{{Pointer: pointer, Detail: "is a queue that the key may not use"}}
	return p
}

// filterQueue is queue for a filter, which may be left out.
func (c *caller) filterQueue(name, pointer string) (allowed []string, err error) {
	if name != "" {
		err = c.queue(name, pointer)
	}
	return c.Queues(), err
}

// topic returns the problem of a request that names a topic, or a pattern of topics, of which the caller may not use all. pointer says where.
func (c *caller) topic(pattern, pointer string) error {
	if c.AllowsTopic(pattern) {
		return nil
	}
	p := c.s.forbid(c.r, problem.Required{Topic: pattern})
	p.Errors = []problem.FieldError{{Pointer: pointer, Detail: "is not within the topics that the key may use"}}
	return p
}

// topics is topic for the patterns of a filter; none: all topics.
func (c *caller) topics(patterns []string, pointer string) error {
	if len(patterns) == 0 && !c.AllowsTopics(nil) {
		p := c.s.forbid(c.r, problem.Required{Topic: "**"})
		p.Errors = []problem.FieldError{{Pointer: pointer, Detail: "is required, as the key may not use all topics"}}
		return p
	}
	for _, pattern := range patterns {
		if err := c.topic(pattern, pointer); err != nil {
			return err
		}
	}
	return nil
}

// narrow has a filter for all topics ask for those that the caller may use, if that is all but the service's own.
func (c *caller) narrow(patterns []string) []string {
	if len(patterns) == 0 && slices.Contains(c.Topics(), "**") {
		return []string{"**"}
	}
	return patterns
}

// target returns the problem of a request whose events go to a topic, or else to a queue.
func (c *caller) target(queueName, topicName string) error {
	if topicName != "" {
		return c.topic(topicName, "#/topic")
	}
	if queueName == "" {
		queueName = queue.Default
	}
	return c.queue(queueName, "#/queue")
}

// allowed returns the patterns of the queues and topics that the caller of a request may use; nil: all.
func allowed(r *http.Request) (queues, topics []string) {
	grant := logOf(r).grant
	if !grant.IsRestricted() {
		return nil, nil
	}
	return grant.Queues(), grant.Topics()
}

// event returns queue.ErrNotFound for an event that the caller may not use. It is for calls that only look at the event.
func (c *caller) event(id int64) error {
	queues, err := c.s.svc.QueuesOf(c.r.Context(), []int64{id})
	if name, exists := queues[id]; err == nil && (!exists || !c.AllowsQueue(name)) {
		err = queue.ErrNotFound
	}
	return err
}

// schedule returns a schedule that the caller may use. For others it fails with schedule.ErrNotFound.
func (c *caller) schedule(id int64) (schedule.Schedule, error) {
	found, err := c.s.schedules.Get(c.r.Context(), id)
	if err == nil && !mayUse(c.Grant, &found.Spec) {
		err = schedule.ErrNotFound
	}
	return found, err
}

// mayUse reports whether a caller may use the topic or the queue that the events of a schedule go to.
func mayUse(grant *access.Grant, s *schedule.Spec) bool {
	switch {
	case !grant.IsRestricted():
		return true
	case s.Topic != "":
		return grant.AllowsTopic(s.Topic)
	}
	return grant.AllowsQueue(s.Queue)
}

// subscription returns topic.ErrSubscriptionNotFound for a subscription that the caller may not use.
func (c *caller) subscription(name string) error {
	isAllowed, err := c.s.topics.SubscriptionAllowed(c.r.Context(), name, c.Queues(), c.Topics())
	if err == nil && !isAllowed {
		err = topic.ErrSubscriptionNotFound
	}
	return err
}

// publishTo returns the problem of a publication for one subscription alone that the caller may not use, or that there is not.
func (c *caller) publishTo(subscription string) error {
	if subscription == "" {
		return nil
	}
	err := c.subscription(subscription)
	if errors.Is(err, topic.ErrSubscriptionNotFound) {
		return c.forbidAll()
	}
	return err
}

// source returns webhook.ErrNotFound for a source that the caller may not use: its events go to a queue or a topic of others.
func (c *caller) source(name string) error {
	found, err := c.s.sources.Get(c.r.Context(), name)
	if err == nil && (found.Topic != "" && !c.AllowsTopic(found.Topic) || found.Queue != "" && !c.AllowsQueue(found.Queue)) {
		err = webhook.ErrNotFound
	}
	return err
}

func (req *putSourceRequest) restrict(c *caller) error {
	if err := c.target(req.Queue, req.Topic); err != nil {
		return err
	}
	err := c.source(req.Name)
	if errors.Is(err, webhook.ErrNotFound) {
		// It is new, or of others, whose name cannot be taken.
		_, err = c.s.sources.Get(c.r.Context(), req.Name)
		if err == nil {
			return webhook.ErrNotFound
		}
		if errors.Is(err, webhook.ErrNotFound) {
			return nil
		}
	}
	return err
}

func (req *listSourcesRequest) restrict(c *caller) error { //nolint:unparam // it is a restrictable
	req.queues, req.topics = c.Queues(), c.Topics()
	return nil
}

func (req *sourceRequest) restrict(c *caller) error       { return c.source(req.Name) }
func (req *deleteSourceRequest) restrict(c *caller) error { return c.source(req.Name) }
func (req *testSourceRequest) restrict(c *caller) error   { return c.source(req.Name) }

func (req *insertRequest) restrict(c *caller) error { return c.queue(req.Queue, "?queue") }

func (req *insertBatchRequest) restrict(c *caller) error {
	for i := range req.Events {
		if err := c.queue(req.Events[i].Queue, fmt.Sprintf("#/events/%d/queue", i)); err != nil {
			return err
		}
	}
	return nil
}

func (req *listEventsRequest) restrict(c *caller) (err error) {
	req.allowed, err = c.filterQueue(req.Queue, "?queue")
	return err
}

func (req *eventRequest) restrict(c *caller) error { return c.event(req.ID) }

func (req *rawBodyRequest) restrict(c *caller) error {
	err := c.event(req.ID)
	if errors.Is(err, queue.ErrNotFound) {
		return queue.ErrNoRawBody // as for an event that there is not
	}
	return err
}

func (req *claimRequest) restrict(c *caller) error { return c.queue(req.Queue, "#/queue") }

// The statements of these calls find only what the caller may use. A look-up before would be about what may have changed since: events are
// moved between queues.
func (req *ackRequest) restrict(*caller) error            { return nil }
func (req *ackWithResultRequest) restrict(*caller) error  { return nil }
func (req *ackBatchRequest) restrict(*caller) error       { return nil }
func (req *nackRequest) restrict(*caller) error           { return nil }
func (req *extendRequest) restrict(*caller) error         { return nil }
func (req *requeueRequest) restrict(*caller) error        { return nil }
func (req *changeScheduleRequest) restrict(*caller) error { return nil }
func (req *deleteScheduleRequest) restrict(*caller) error { return nil }

func (req *sweepRequest) restrict(c *caller) error {
	if req.Queue == "" {
		return c.forbidAll()
	}
	return c.queue(req.Queue, "#/queue")
}

func (req *listHistoryRequest) restrict(c *caller) (err error) {
	req.Queues, err = c.filterQueue(req.Queue, "?queue")
	return err
}

func (req *requeueMatchingRequest) restrict(c *caller) (err error) {
	req.Queues, err = c.filterQueue(req.Queue, "#/queue")
	return err
}

func (req *historyStatsRequest) restrict(c *caller) (err error) {
	req.allowed, err = c.filterQueue(req.Queue, "?queue")
	return err
}

func (req *listQueuesRequest) restrict(c *caller) error { //nolint:unparam // it is a restrictable
	req.allowed = c.Queues()
	return nil
}

func (req *putQueueRequest) restrict(c *caller) error  { return c.queue(req.Name, "{name}") }
func (req *queueRequest) restrict(c *caller) error     { return c.queue(req.Name, "{name}") }
func (req *openQueueRequest) restrict(c *caller) error { return c.queue(req.Name, "{name}") }

func (req *putPushRequest) restrict(c *caller) error    { return c.queue(req.Name, "{name}") }
func (req *deletePushRequest) restrict(c *caller) error { return c.queue(req.Name, "{name}") }
func (req *testPushRequest) restrict(c *caller) error   { return c.queue(req.Name, "{name}") }

func (req *rotatePushSecretRequest) restrict(c *caller) error { return c.queue(req.Name, "{name}") }

func (req *moveEventsRequest) restrict(c *caller) error {
	if err := c.queue(req.Name, "{name}"); err != nil {
		return err
	}
	return c.queue(req.To, "#/to")
}

func (req *createScheduleRequest) restrict(c *caller) error { return c.target(req.Queue, req.Topic) }

func (req *previewScheduleRequest) restrict(c *caller) error { return c.target(req.Queue, req.Topic) }

func (req *listSchedulesRequest) restrict(c *caller) (err error) {
	req.queues, err = c.filterQueue(req.Queue, "?queue")
	req.topics = c.Topics()
	return err
}

func (req *scheduleRequest) restrict(c *caller) error {
	_, err := c.schedule(req.ID)
	return err
}

func (req *listOccurrencesRequest) restrict(c *caller) error {
	_, err := c.schedule(req.ID)
	return err
}

// restrict holds the schedule as it is and as it would be to what the caller may use.
func (req *patchScheduleRequest) restrict(c *caller) error {
	found, err := c.schedule(req.ID)
	if err != nil {
		return err
	}
	queueName, topicName := found.Queue, found.Topic
	if req.Queue != nil {
		queueName = *req.Queue
		if err := c.queue(queueName, "#/queue"); err != nil {
			return err
		}
	}
	if req.Topic != nil {
		topicName = *req.Topic
	}
	return c.target(queueName, topicName)
}

func (req *publishRequest) restrict(c *caller) error {
	if err := c.topic(req.Topic, "{topic}"); err != nil {
		return err
	}
	return c.publishTo(req.Subscription)
}

func (req *publishBatchRequest) restrict(c *caller) error {
	var subscriptions []string
	for i := range req.Events {
		if err := c.topic(req.Events[i].Topic, fmt.Sprintf("#/events/%d/topic", i)); err != nil {
			return err
		}
		if name := req.Events[i].Subscription; !slices.Contains(subscriptions, name) {
			subscriptions = append(subscriptions, name)
		}
	}
	for _, name := range subscriptions {
		if err := c.publishTo(name); err != nil {
			return err
		}
	}
	return nil
}

func (req *listTopicsRequest) restrict(c *caller) error { //nolint:unparam // it is a restrictable
	req.allowed = c.Topics()
	return nil
}

// restrict lets everybody try a filter on events of their own. The last events of the log are of all topics.
func (req *matchRequest) restrict(c *caller) error {
	if req.Last > 0 {
		return c.topics(nil, "#/last")
	}
	return nil
}

func (q *logQuery) restrict(c *caller) error {
	if len(q.Topics) == 0 && len(c.Topics()) > 0 {
		q.Topics = c.Topics()
	}
	return c.topics(q.Topics, "?topic")
}

// restrict looks at the topic of the event, which never changes.
func (req *positionRequest) restrict(c *caller) error {
	e, err := c.s.topics.Get(c.r.Context(), req.Position)
	if err == nil && !c.AllowsTopic(e.Topic) {
		err = topic.ErrPositionNotFound
	}
	return err
}

func (req *listSubscriptionsRequest) restrict(c *caller) error { //nolint:unparam // it is a restrictable
	req.queues, req.topics = c.Queues(), c.Topics()
	return nil
}

// restrict holds the subscription as it is, if it is, and as it would be to what the caller may use.
func (req *putSubscriptionRequest) restrict(c *caller) error {
	if req.Deliver != nil {
		if err := c.queue(req.Deliver.Queue, "#/deliver/queue"); err != nil {
			return err
		}
	}
	if len(req.Filters) == 0 { // it would get whatever is published for it alone
		if err := c.topics(c.narrow(nil), "#/filters"); err != nil {
			return err
		}
	}
	for i := range req.Filters {
		req.Filters[i].Topics = c.narrow(req.Filters[i].Topics)
		if err := c.topics(req.Filters[i].Topics, fmt.Sprintf("#/filters/%d/topics", i)); err != nil {
			return err
		}
	}
	isAllowed, err := c.s.topics.SubscriptionAllowed(c.r.Context(), req.Name, c.Queues(), c.Topics())
	switch {
	case errors.Is(err, topic.ErrSubscriptionNotFound):
		return nil
	case err == nil && !isAllowed:
		return c.forbidAll()
	}
	return err
}

func (req *putFilterRequest) restrict(c *caller) error {
	req.Topics = c.narrow(req.Topics)
	if err := c.topics(req.Topics, "#/topics"); err != nil {
		return err
	}
	return c.subscription(req.Name)
}

func (req *subscriptionRequest) restrict(c *caller) error       { return c.subscription(req.Name) }
func (req *deleteSubscriptionRequest) restrict(c *caller) error { return c.subscription(req.Name) }
func (req *filterRequest) restrict(c *caller) error             { return c.subscription(req.Name) }
func (req *readSubscriptionRequest) restrict(c *caller) error   { return c.subscription(req.Name) }
func (req *commitCursorRequest) restrict(c *caller) error       { return c.subscription(req.Name) }
func (req *seekSubscriptionRequest) restrict(c *caller) error   { return c.subscription(req.Name) }
func (req *replaySubscriptionRequest) restrict(c *caller) error { return c.subscription(req.Name) }
func (req *streamSubscriptionRequest) restrict(c *caller) error { return c.subscription(req.Name) }
