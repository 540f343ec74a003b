package http

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/trace"
)

// traceRequests makes spans of requests that are a part of a trace, once their caller is known. Webhooks have none: who sends them is known later.
func (s *Server) traceRequests(next http.Handler) http.Handler {
	if !s.cfg.Tracer.IsOn() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l := logOf(r)
		if request.IsHealth(r.URL.Path) || isWebhook(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		var span trace.Span
		l.ctx.Context.Context, span = s.cfg.Tracer.StartServer(l.ctx.Context.Context, r.Header) // within the context of r, which has no copy
		if span.IsZero() {
			next.ServeHTTP(w, r)
			return
		}
		isAnswered := false
		defer func() {
			status := l.status
			if !isAnswered { // it panicked
				status = http.StatusInternalServerError
			}
			span.EndServer(request.KnownMethod(r.Method), r.Pattern, status)
		}()
		next.ServeHTTP(w, r)
		isAnswered = true
	})
}

// A sending is the trace of a call that inserts or publishes events.
type sending struct {
	context trace.Context // for events that have none of their own; zero: there is none
	span    trace.Span
}

// startSending starts the trace of a call about n events; of returns the queue or the topic of each, and its metadata.
func (s *Server) startSending(r *http.Request, name string, isBatch bool, n int, of func(i int) (destination string, meta json.RawMessage)) sending {
	from := trace.OfHeader(r.Header)
	if !s.cfg.Tracer.IsOn() {
		return sending{context: from}
	}
	messages := make([]trace.Message, n)
	shared := ""
	for i := range messages {
		destination, meta := of(i)
		messages[i].Context = trace.OfMeta(meta)
		switch {
		case i == 0:
			shared = destination
		case shared != destination:
			shared = ""
		}
	}
	span := s.cfg.Tracer.Start(trace.Within(r.Context(), from), &trace.Operation{Kind: trace.Send, Name: name, Destination: shared, Messages: messages, IsBatch: isBatch})
	return sending{span.Context(), span}
}

// end ends the trace. id is the id or the position of the event, zero for a batch.
func (t sending) end(id int64, err error) {
	if id != 0 {
		t.span.SetMessage(id)
	}
	t.span.End(failureOf(err))
}

// insertTraced inserts events as one call, with the trace of the request.
func (s *Server) insertTraced(r *http.Request, isBatch bool, params []queue.InsertParams) ([]queue.Inserted, error) {
	sent := s.startInserting(r, isBatch, params)
	inserted, err := s.svc.Insert(r.Context(), params)
	id := int64(0)
	if err == nil && !isBatch {
		id = inserted[0].ID
	}
	sent.end(id, err)
	return inserted, err
}

// startInserting starts the trace of a call that inserts, and gives the events their trace contexts.
func (s *Server) startInserting(r *http.Request, isBatch bool, params []queue.InsertParams) sending {
	sent := s.startSending(r, "insert", isBatch, len(params), func(i int) (string, json.RawMessage) { return params[i].Queue, params[i].Meta })
	for i := range params {
		params[i].Meta = sent.context.InMeta(params[i].Meta)
	}
	return sent
}

// publishTraced publishes events as one call, with the trace of the request.
func (s *Server) publishTraced(r *http.Request, isBatch bool, publications []topic.Publication) ([]topic.Published, error) {
	sent := s.startPublishing(r, isBatch, publications)
	published, err := s.topics.Publish(r.Context(), publications)
	position := int64(0)
	if err == nil && !isBatch {
		position = published[0].Position
	}
	sent.end(position, err)
	return published, err
}

// startPublishing starts the trace of a call that publishes, and gives the events their trace contexts.
func (s *Server) startPublishing(r *http.Request, isBatch bool, publications []topic.Publication) sending {
	sent := s.startSending(r, "publish", isBatch, len(publications), func(i int) (string, json.RawMessage) { return publications[i].Topic, publications[i].Meta })
	for i := range publications {
		publications[i].Meta = sent.context.InMeta(publications[i].Meta)
	}
	return sent
}

// sendingDelivery returns the trace of a webhook, which begins once its sender is known: see webhook.Delivery.
func (s *Server) sendingDelivery(r *http.Request) func(isTopic bool, destination string, isBatch bool, metas []json.RawMessage) func(int64, error) {
	return func(isTopic bool, destination string, isBatch bool, metas []json.RawMessage) func(int64, error) {
		name := "insert"
		if isTopic {
			name = "publish"
		}
		sent := s.startSending(r, name, isBatch, len(metas), func(i int) (string, json.RawMessage) { return destination, metas[i] })
		for i := range metas {
			metas[i] = sent.context.InMeta(metas[i])
		}
		return sent.end
	}
}

// traceClaim makes the span of a claim that began at a time, unless it has found nothing.
func (s *Server) traceClaim(r *http.Request, name string, isBatch bool, began time.Time, claimed []queue.Event, err error) {
	if !s.cfg.Tracer.IsOn() || len(claimed) == 0 && err == nil {
		return
	}
	messages := make([]trace.Message, len(claimed))
	for i := range claimed {
		messages[i] = trace.Message{ID: claimed[i].ID, Context: trace.OfMeta(claimed[i].Meta)}
	}
	s.cfg.Tracer.Start(trace.Within(r.Context(), trace.OfHeader(r.Header)), &trace.Operation{
		Kind: trace.Receive, Name: "claim", Destination: name, Messages: messages, IsBatch: isBatch, Start: began,
	}).End(failureOf(err))
}

// traceSettling makes the span of a call about claimed events that began at a time: traces are those of the events, by id. A batch has no outcome, and
// no error of its elements.
func (s *Server) traceSettling(r *http.Request, name string, isBatch bool, began time.Time, ids []int64, traces []queue.EventTrace, outcome queue.Outcome, err error) {
	messages := make([]trace.Message, len(ids))
	shared := ""
	for i, t := range traces {
		messages[i] = trace.Message{ID: ids[i], Context: trace.Of(t.Parent, t.State)}
		switch {
		case i == 0:
			shared = t.Queue
		case shared != t.Queue:
			shared = ""
		}
	}
	span := s.cfg.Tracer.Start(trace.Within(r.Context(), trace.OfHeader(r.Header)), &trace.Operation{
		Kind: trace.Settle, Name: name, Destination: shared, Messages: messages, IsBatch: isBatch, Start: began,
	})
	if outcome != "" {
		span.SetOutcome(string(outcome))
	}
	span.End(failureOf(err))
}

// traceAcks makes the span of a batch of acks.
func (s *Server) traceAcks(r *http.Request, began time.Time, acks []queue.Ack, acked []queue.AckResult, err error) {
	ids, traces := make([]int64, len(acks)), make([]queue.EventTrace, len(acks))
	for i := range acks {
		ids[i] = acks[i].ID
		if err == nil {
			traces[i] = acked[i].Trace
		}
	}
	s.traceSettling(r, "ack", true, began, ids, traces, "", err)
}

// failureOf is the code of the problem that an error is answered with; empty: there is no error.
func failureOf(err error) string {
	if err == nil {
		return ""
	}
	return problem.Of(err).Type.Code
}
