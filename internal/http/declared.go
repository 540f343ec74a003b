package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

// A queueUser is a request that names queues which something goes into or is claimed from, or which something else is to name. They have to be declared where
// the server is set so.
type queueUser interface {
	// usedQueues calls use with each queue, and where the request names it.
	usedQueues(use func(name, pointer string))
}

func (req *insertRequest) usedQueues(use func(name, pointer string)) { use(req.Queue, "?queue") }

func (req *insertBatchRequest) usedQueues(use func(name, pointer string)) {
	for i := range req.Events {
		use(req.Events[i].Queue, fmt.Sprintf("#/events/%d/queue", i))
	}
}

func (req *postCloudEventsRequest) usedQueues(use func(name, pointer string)) {
	if req.Topic == "" {
		use(cmp.Or(req.Queue, queue.Default), "?queue")
	}
}

func (req *claimRequest) usedQueues(use func(name, pointer string)) { use(req.Queue, "#/queue") }

func (req *moveEventsRequest) usedQueues(use func(name, pointer string)) { use(req.To, "#/to") }

func (req *pauseQueueRequest) usedQueues(use func(name, pointer string)) { use(req.Name, "{name}") }

func (p *policy) usedQueues(use func(name, pointer string)) {
	if p.DeadLetter != nil {
		use(p.DeadLetter.Queue, "#/dead_letter/queue")
	}
}

func (req *putGroupRequest) usedQueues(use func(name, pointer string)) { use(req.Name, "{name}") }

func (req *putPushRequest) usedQueues(use func(name, pointer string)) { use(req.Name, "{name}") }

func (req *createScheduleRequest) usedQueues(use func(name, pointer string)) {
	if req.Topic == "" {
		use(cmp.Or(req.Queue, queue.Default), "#/queue")
	}
}

func (req *patchScheduleRequest) usedQueues(use func(name, pointer string)) {
	if req.Queue != nil {
		use(*req.Queue, "#/queue")
	}
}

func (req *putSourceRequest) usedQueues(use func(name, pointer string)) {
	if req.Queue != "" {
		use(req.Queue, "#/queue")
	}
}

func (req *putSubscriptionRequest) usedQueues(use func(name, pointer string)) {
	if req.Deliver != nil {
		use(req.Deliver.Queue, "#/deliver/queue")
	}
}

// requireQueues refuses a request for queues that are not declared, if they have to be.
func (s *Server) requireQueues(r *http.Request, req any) error {
	user, ok := req.(queueUser)
	if !ok || !s.svc.IsDeclaredOnly() {
		return nil
	}
	var names []string
	user.usedQueues(func(name, _ string) {
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	})
	ctx, cancel := context.WithTimeout(r.Context(), s.cfg.RequestTimeout)
	defer cancel()
	return s.svc.RequireQueues(ctx, names...)
}

// requireIfEmpty returns err, or refuses a queue (empty: any) that is not declared and of which n things were found, none: a wrong name must not look like that of
// an empty queue. What is in a queue that nobody has made can be read and moved out of it.
func (s *Server) requireIfEmpty(r *http.Request, name string, n int64, err error) error {
	if err != nil || name == "" || n > 0 || !s.svc.IsDeclaredOnly() {
		return err
	}
	return s.svc.RequireQueues(r.Context(), name)
}

// explainUndeclared makes an error about a queue that is not declared a problem that says where the request names the queue, and what was meant
// probably. It returns other errors as they are.
func (s *Server) explainUndeclared(r *http.Request, req any, err error) error {
	undeclared, ok := errors.AsType[*queue.UndeclaredError](err)
	if !ok {
		return err
	}
	name := undeclared.Queue
	p := problem.New(problem.QueueNotDeclared, fmt.Sprintf("Nobody has made the queue %q, and this server takes declared queues alone (QUEUED_QUEUES).", name))
	grant := logOf(r).grant
	if nearest := s.svc.NearestQueue(name, grant.AllowsQueue); nearest != "" {
		p.Detail += fmt.Sprintf(" Did you mean %q?", nearest)
	}
	p.Detail += fmt.Sprintf(" Make a queue with PUT /queues/%s, or with: queued queue set %s", name, name)
	if user, ok := req.(queueUser); ok {
		user.usedQueues(func(used, pointer string) {
			if used == name && len(p.Errors) == 0 {
				p.Errors = []problem.FieldError{{Pointer: pointer, Detail: "is a queue that nobody has made"}}
			}
		})
	}
	return p
}
