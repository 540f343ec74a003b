package http

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/webhook"
)

// restrict holds a request to what its caller may use, as its tags restrict say, each of which names a kind of thing:
//
//	queue           a queue; without one, the call is about all of them. With the option any, it is a filter that may be left out; with default, it may be
//	                left out for the queue default; with unless=Topic, the field counts only when Topic is not given
//	topic           a topic; without one, the call is about all of them. With the option optional, it may be left out
//	topics          patterns of topics, all of whose topics the call reads; none: all. With the option own, none stands for those that the caller may
//	                use; with narrow, for all but the service's own, if the caller may use these
//	filters         filters of a subscription, whose topics have tags of their own; without any, it gets whatever is published for it alone
//	event           the id of an event that the call only looks at
//	schedule        the id of a schedule that the call only looks at
//	position        the position of an event in the log
//	source          the name of a source. With the option new, it may be that of none
//	subscription    the name of a subscription. With the option new, it may be that of none; with publish, it may be left out
//	statement       an id; the statement of the call finds only what the caller may use. A look-up before would be about what may have changed since:
//	                events are moved between queues
//	method          the method of a restrictable looks at it
//	-               no name of anything that is used
//	allowed_queues  not in the request: set to the patterns of the queues that the caller may use
//	allowed_topics  … of the topics
//
// What is named by a queue or a topic that the caller may not use is refused with Forbidden. What has an id or another name is then answered as if it did not
// exist. A request whose tags say nothing, and that is not restrictable, is refused, except on routes that any key may call.
func (s *Server) restrict(r *http.Request, binding *bind.Binding, req any) error {
	log := logOf(r)
	if log.grant == nil || !log.grant.IsRestricted() || log.scope == public || log.scope == anyKey {
		return nil
	}
	c := &caller{log.grant, s, r}
	byMethod, hasMethod := req.(restrictable)
	if !hasMethod && !binding.IsRestrictable() {
		return c.forbidAll()
	}
	if hasMethod {
		if err := byMethod.restrict(c); err != nil {
			return err
		}
	}
	if err := binding.Uses(req, c.checkName); err != nil {
		return err
	}
	var asked []string // the subscriptions that a batch publishes to: each is looked up once
	return binding.Uses(req, func(u *bind.Use) error {
		if u.Kind == "subscription" && u.Has("publish") {
			if slices.Contains(asked, u.Text()) {
				return nil
			}
			asked = append(asked, u.Text())
		}
		return c.lookUp(u)
	})
}

// A restrictable is a request about which tags cannot say all.
type restrictable interface {
	// restrict does what tags cannot say, before they are looked at: it narrows the request to what the caller may use, and fails when it names anything else.
	restrict(c *caller) error
}

// mustBeRestrictable panics on a request whose tags leave something to a method or to a field that it does not have.
func mustBeRestrictable(binding *bind.Binding, req any) {
	needs := make(map[string]bool)
	binding.Tags(func(r *bind.Restriction) {
		needs[r.Kind] = true
		needs["any"] = needs["any"] || r.Has("any")
	})
	_, hasMethod := req.(restrictable)
	switch {
	case needs["method"] && !hasMethod:
		panic(fmt.Sprintf("%T has the tag restrict:\"method\" without the method", req))
	case needs["any"] && !needs["allowed_queues"]:
		panic(fmt.Sprintf("%T has a filter for queues without a field for those that are allowed", req))
	}
}

// checkName returns the problem with a part of a request that names a queue or topics which the caller may not use, and narrows what asks for whatever there is.
func (c *caller) checkName(u *bind.Use) error {
	switch u.Kind {
	case "queue":
		name := u.Text()
		switch {
		case name == "" && u.Has("any"):
			return nil
		case name == "" && u.Has("default"):
			name = queue.Default
		case name == "":
			return c.forbidAll()
		}
		return c.queue(name, u.Pointer)
	case "topic":
		name := u.Text()
		switch {
		case name == "" && u.Has("optional"):
			return nil
		case name == "":
			return c.forbidAll()
		}
		return c.topic(name, u.Pointer)
	case "topics":
		patterns, _ := u.Value.Interface().([]string)
		switch {
		case len(patterns) == 0 && u.Has("own"):
			patterns = c.Topics()
		case u.Has("narrow"):
			patterns = c.narrow(patterns)
		}
		u.Value.Set(reflect.ValueOf(patterns))
		return c.topics(patterns, u.Pointer)
	case "filters":
		if u.Value.Len() == 0 {
			return c.topics(c.narrow(nil), u.Pointer)
		}
	case "allowed_queues":
		u.Value.Set(reflect.ValueOf(c.Queues()))
	case "allowed_topics":
		u.Value.Set(reflect.ValueOf(c.Topics()))
	}
	return nil
}

// lookUp returns the problem with a part of a request that stands for what the caller may not use.
func (c *caller) lookUp(u *bind.Use) error {
	switch u.Kind {
	case "queue", "topic", "topics", "filters", "allowed_queues", "allowed_topics": // see checkName
		return nil
	case "statement", "method", "-":
		return nil
	case "event":
		return c.event(u.Value.Int())
	case "schedule":
		_, err := c.schedule(u.Value.Int())
		return err
	case "position":
		return c.position(u.Value.Int())
	case "source":
		if u.Has("new") {
			return c.newSource(u.Text())
		}
		return c.source(u.Text())
	case "subscription":
		switch {
		case u.Has("publish"):
			return c.publishTo(u.Text())
		case u.Has("new"):
			return c.newSubscription(u.Text())
		}
		return c.subscription(u.Text())
	}
	return c.forbidAll()
}

// forbidAll returns the problem with a call about all queues and topics.
func (c *caller) forbidAll() error {
	return c.s.forbid(c.r, problem.Required{Queue: "*", Topic: "**"})
}

// queue returns the problem of a request that names a queue which the caller may not use. pointer says where.
func (c *caller) queue(name string, pointer func() string) error {
	if c.AllowsQueue(name) {
		return nil
	}
	p := c.s.forbid(c.r, problem.Required{Queue: name})
	p.Errors = []problem.FieldError{{Pointer: pointer(), Detail: "is a queue that the key may not use"}}
	return p
}

// topic returns the problem of a request that names a topic, or a pattern of topics, of which the caller may not use all. pointer says where.
func (c *caller) topic(pattern string, pointer func() string) error {
	if c.AllowsTopic(pattern) {
		return nil
	}
	p := c.s.forbid(c.r, problem.Required{Topic: pattern})
	p.Errors = []problem.FieldError{{Pointer: pointer(), Detail: "is not within the topics that the key may use"}}
	return p
}

// topics is topic for the patterns of a filter; none: all topics.
func (c *caller) topics(patterns []string, pointer func() string) error {
	if len(patterns) == 0 && !c.AllowsTopics(nil) {
		p := c.s.forbid(c.r, problem.Required{Topic: "**"})
		p.Errors = []problem.FieldError{{Pointer: pointer(), Detail: "is required, as the key may not use all topics"}}
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
		return c.topic(topicName, pointerTo("#/topic"))
	}
	if queueName == "" {
		queueName = queue.Default
	}
	return c.queue(queueName, pointerTo("#/queue"))
}

// allowed returns the patterns of the queues and topics that the caller of a request may use; nil: all.
func allowed(r *http.Request) (queues, topics []string) {
	grant := logOf(r).grant
	if !grant.IsRestricted() {
		return nil, nil
	}
	return grant.Queues(), grant.Topics()
}

// pointerTo returns a function that returns a pointer.
func pointerTo(pointer string) func() string { return func() string { return pointer } }

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

// newSource is source for the name of one that is to be: it may be that of none. It fails with webhook.ErrNotFound for that of others, which cannot be taken.
func (c *caller) newSource(name string) error {
	err := c.source(name)
	if errors.Is(err, webhook.ErrNotFound) {
		_, err = c.s.sources.Get(c.r.Context(), name)
		if err == nil {
			return webhook.ErrNotFound
		}
		if errors.Is(err, webhook.ErrNotFound) {
			return nil
		}
	}
	return err
}

// newSubscription returns the problem with the name of a subscription that is to be, if there is one that the caller may not use.
func (c *caller) newSubscription(name string) error {
	isAllowed, err := c.s.topics.SubscriptionAllowed(c.r.Context(), name, c.Queues(), c.Topics())
	switch {
	case errors.Is(err, topic.ErrSubscriptionNotFound):
		return nil
	case err == nil && !isAllowed:
		return c.forbidAll()
	}
	return err
}

// position returns topic.ErrPositionNotFound for an event of the log whose topic, which never changes, the caller may not use.
func (c *caller) position(position int64) error {
	e, err := c.s.topics.Get(c.r.Context(), position)
	if err == nil && !c.AllowsTopic(e.Topic) {
		err = topic.ErrPositionNotFound
	}
	return err
}

func (req *rawBodyRequest) restrict(c *caller) error {
	err := c.event(req.ID)
	if errors.Is(err, queue.ErrNotFound) {
		return queue.ErrNoRawBody // as for an event that there is not
	}
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
		if err := c.queue(queueName, pointerTo("#/queue")); err != nil {
			return err
		}
	}
	if req.Topic != nil {
		topicName = *req.Topic
	}
	return c.target(queueName, topicName)
}

// restrict lets everybody try a filter on events of their own. The last events of the log are of all topics.
func (req *matchRequest) restrict(c *caller) error {
	if req.Last > 0 {
		return c.topics(nil, pointerTo("#/last"))
	}
	return nil
}
