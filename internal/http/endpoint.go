package http

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/request"
)

// A reply is the answer of a handler. The zero value is 200 with the body null.
type reply struct {
	status       int // zero: 200
	body         any
	location     string // path of the thing created; empty: no Location
	etag         string
	deduplicated bool // the request was a repetition of one that was answered before
	undo         func(context.Context)
}

// noContent is the reply of a call without a result.
var noContent = reply{status: http.StatusNoContent}

// created is the reply of a call that created the thing at location, or that did when it was first made.
func created(body any, location string, deduplicated bool) reply {
	status := http.StatusCreated
	if deduplicated {
		status = http.StatusOK
	}
	return reply{status: status, body: body, location: location, deduplicated: deduplicated}
}

// etagOf is the ETag of a version.
func etagOf(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// handler makes a route of handle: it reads and validates the request as the tags of Req say (see bind.Binding), holds it to the queues and topics that the
// caller may use and to queues that exist, and calls handle, which answers, at once or bit by bit. An error of handle is answered when nothing else has been.
func handler[Req any](s *Server, lim bind.Limits, handle func(http.ResponseWriter, *http.Request, Req) error) boundHandler {
	binding := bind.New[Req](lim)
	mustBeRestrictable(binding, new(Req))
	return boundHandler{binding: binding, HandlerFunc: func(w http.ResponseWriter, r *http.Request) {
		var req Req
		if c, ok := any(&req).(interface{ setNow(at time.Time) }); ok {
			c.setNow(s.now())
		}
		err := binding.Decode(w, r, &logOf(r).body, &req)
		if err == nil {
			binding.Log(&req, logOf(r).add)
			err = s.restrict(r, binding, &req) //nolint:contextcheck // what it looks up, it does with the context of r
		}
		if err == nil {
			err = s.requireQueues(r, &req)
		}
		if err == nil {
			err = handle(w, r, req)
		}
		if err != nil {
			fail(w, r, s.explainUndeclared(r, &req, err))
		}
	}}
}

// now returns the time of the database, about.
func (s *Server) now() time.Time { return s.svc.Database().Now() }

// A clocked is a request, or a part of one, that counts from now. That is set before it is read.
type clocked struct{ now time.Time }

func (c *clocked) setNow(at time.Time) { c.now = at.UTC() }

// A boundHandler is the handler of a route whose requests a binding reads.
type boundHandler struct {
	http.HandlerFunc
	binding *bind.Binding
}

// endpoint makes a route of a handler that returns its answer, and that has a limited time for it. The answer is encoded before any of it is
// written.
func endpoint[Req any](s *Server, lim bind.Limits, handle func(*http.Request, Req) (reply, error)) boundHandler {
	return handler(s, lim, answering(s, handle))
}

// answering makes a handler that answers of one that returns its answer.
func answering[Req any](s *Server, handle func(*http.Request, Req) (reply, error)) func(http.ResponseWriter, *http.Request, Req) error {
	return func(w http.ResponseWriter, r *http.Request, req Req) error {
		limit := s.cfg.RequestTimeout
		log := logOf(r)
		if req, ok := any(&req).(policyWaiting); ok {
			if err := req.resolveWait(r.Context(), s); err != nil {
				return err
			}
		}
		var rep reply
		var err error
		// The time of the body's arrival is bounded by the server's read timeout, and does not count.
		if held, ok := any(&req).(waiting); ok && held.waits() > 0 {
			log.wait = held.waits()
			rep, err = s.handleWaiting(r, limit+log.wait, func(r *http.Request) (reply, error) { return handle(r, req) })
		} else {
			log.ctx.SetLimit(limit) // which the context of r then has: there is no copy
			defer log.ctx.End()
			rep, err = handle(r, req)
		}
		if err == nil {
			respond(w, r, rep)
		}
		return err
	}
}

// handleWaiting calls handle within a limit. Who waits is let go with the key.
func (*Server) handleWaiting(r *http.Request, limit time.Duration, handle func(*http.Request) (reply, error)) (reply, error) {
	watched, stop := logOf(r).grant.Watch(r.Context())
	defer stop()
	ctx, cancel := context.WithTimeout(watched, limit)
	defer cancel()
	rep, err := handle(r.WithContext(ctx))
	if cause := context.Cause(watched); err != nil && cause != nil && r.Context().Err() == nil {
		err = challenge(r, cause)
	}
	return rep, err
}

// withoutParameters makes a route of a handler that takes nothing: an unknown parameter is an error there, too.
func withoutParameters(s *Server, answer http.HandlerFunc) boundHandler {
	return handler(s, bind.Limits{}, func(w http.ResponseWriter, r *http.Request, _ noRequest) error {
		answer(w, r)
		return nil
	})
}

// waiting is a request that asks to be held for so long before it is answered.
type waiting interface{ waits() time.Duration }

// policyWaiting is a waiting request that leaves it to a queue's policy for how long, unless it says so.
type policyWaiting interface {
	// resolveWait sets for how long the request waits.
	resolveWait(ctx context.Context, s *Server) error
}

// respond answers r with rep. When the client did not get the answer, rep.undo undoes a claim that must not be lost with it.
func respond(w http.ResponseWriter, r *http.Request, rep reply) {
	err := write(w, r, &rep)
	if err == nil {
		return
	}
	if rep.undo != nil {
		rep.undo(logOf(r).client)
	}
	log := logOf(r)
	log.add("undelivered", err.Error())
	if log.status == 0 {
		fail(w, r, err)
	}
}

// Values of headers that many answers share. They are read only.
var (
	noStore  = []string{"no-store"}
	jsonType = []string{"application/json"}
	noSniff  = []string{"nosniff"}
	noPage   = []string{"default-src 'none'; frame-ancestors 'none'"}
)

// write writes rep, and fails when it knows that the client did not get it. It cannot always know: bytes that the kernel took may
// still be lost on the way.
func write(w http.ResponseWriter, r *http.Request, rep *reply) error {
	h := w.Header()
	h["Cache-Control"] = noStore
	if rep.status == http.StatusNoContent {
		w.WriteHeader(rep.status)
		return nil
	}
	buffer := bodies.Get().(*[]byte)
	var body []byte
	var err error
	media := jsonType
	if events, ok := rep.body.(cloudEventBody); ok && request.Prefers(r, events.cloudEventType()) {
		media = []string{events.cloudEventType()}
		body = append(events.appendCloudEvents((*buffer)[:0]), '\n')
		if page, ok := events.(cloudEventPage); ok {
			page.setHeader(h, r.URL)
		}
	} else {
		body, err = encode((*buffer)[:0], rep.body)
	}
	defer func() {
		if cap(body) <= maxPooled {
			*buffer = body
			bodies.Put(buffer)
		}
	}()
	rep.body = nil // which is garbage while the client reads
	if err != nil {
		return err
	}
	if err := logOf(r).client.Err(); err != nil {
		return err
	}
	h["Content-Type"] = media
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	if rep.location != "" {
		h["Location"] = []string{rep.location}
	}
	if rep.deduplicated {
		h.Set("Idempotency-Replayed", "true")
	}
	if rep.etag != "" {
		h["Etag"] = []string{rep.etag}
	}
	if rep.undo != nil {
		logOf(r).mayRefuse = true
	}
	w.WriteHeader(max(rep.status, http.StatusOK))
	if _, err := w.Write(body); err != nil { //nolint:gosec // JSON, with its media type
		return err
	}
	if rep.undo == nil {
		return nil // net/http flushes; a failure of that needs no answer
	}
	// Flushing brings out the error of a connection that broke while the answer was being made.
	return http.NewResponseController(w).Flush()
}

// restTime is how long the unread rest of a body may go on arriving.
const restTime = time.Second

// dropBody gives up a body that is not read, before the answer. net/http reads the rest of a short one, so that its connection can be kept; a client that is
// not known yet must not take a connection by sending slowly.
func dropBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTime))
	}
}

// fail answers r with the problem that err is. When the client has gone, or has the beginning of another answer, it ends the request without one.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	log := logOf(r)
	if log.client.Err() != nil && !log.body.IsCutOff() { // the client cannot read an answer any more
		log.status = problem.ClientGone.Status
		panic(http.ErrAbortHandler)
	}
	p := problem.Of(err)
	if p.Type.Status >= http.StatusInternalServerError {
		log.err = err
	}
	if log.status != 0 { // half an answer must not look like a whole one
		panic(http.ErrAbortHandler)
	}
	log.code = p.Type.Code
	log.add("code", log.code)
	p.Write(w, log.id)
}
