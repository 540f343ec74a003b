package http

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// endpoint makes a route of a handler: it decodes and validates the request as the tags of Req
// say (see plan), calls handle, encodes what comes back, and only then writes.
func endpoint[Req, Resp any](s *Server, lim limits, handle func(*http.Request, Req) (Resp, error)) http.HandlerFunc {
	plan := planOf[Req]()
	return func(w http.ResponseWriter, r *http.Request) {
		var req Req
		if err := plan.decode(w, r, lim, &req); err != nil {
			fail(w, r, err)
			return
		}
		limit := s.cfg.RequestTimeout
		if req, ok := any(req).(waiting); ok {
			limit += req.waits()
		}
		// The time of the body's arrival is bounded by the server's read timeout, and does not count.
		ctx, cancel := context.WithTimeout(r.Context(), limit)
		defer cancel()
		resp, err := handle(r.WithContext(ctx), req)
		if err != nil {
			fail(w, r, err)
			return
		}
		s.reply(w, r, resp)
	}
}

// waiting is a request that asks to be held for so long before it is answered.
type waiting interface{ waits() time.Duration }

// nothing is the response of a call that answers 204.
type nothing struct{}

// created is a response that answers 201 and says where the new thing is.
type created interface{ location() string }

// found is a created response of a call that may find that what it makes was there before, which is answered 200.
type found interface{ existed() bool }

// replayable is a created response of a call that a key makes safe to repeat. A repetition is answered 200, and says so.
type replayable interface{ replayed() bool }

// versioned is a response about something that has a version, which callers may send back as If-Match.
type versioned interface{ version() int64 }

// recalled is a response that carries something which must not be lost: when it cannot be
// delivered, recall takes it back. ctx may have ended.
type recalled interface{ recall(ctx context.Context) }

// reply answers r with resp.
func (s *Server) reply(w http.ResponseWriter, r *http.Request, resp any) {
	err := deliver(w, r, resp)
	if err == nil {
		return
	}
	if resp, ok := resp.(recalled); ok {
		resp.recall(r.Context())
	}
	recordOf(r).note("undelivered", err.Error())
	if recordOf(r).status == 0 {
		fail(w, r, err)
	}
}

// passThrough leaves the payloads of events as the database returned them, but for blanks.
var passThrough = json.JoinOptions(
	jsontext.PreserveRawStrings(true),
	jsontext.AllowDuplicateNames(true), // it returns none, so there is no need to look
	jsontext.AllowInvalidUTF8(true),
)

// encode appends resp as JSON, and a line's end for whoever reads it in a terminal.
func encode(b []byte, resp any) ([]byte, error) {
	if resp, ok := resp.(appender); ok {
		return append(resp.appendJSON(b), '\n'), nil
	}
	body := bytes.NewBuffer(b)
	err := json.MarshalWrite(body, resp, passThrough)
	body.WriteByte('\n')
	return body.Bytes(), err
}

// Values of headers that many answers share. Nobody may change them.
var (
	noStore  = []string{"no-store"}
	jsonType = []string{"application/json"}
	noSniff  = []string{"nosniff"}
	noPage   = []string{"default-src 'none'; frame-ancestors 'none'"}
)

// deliver writes resp, and fails when it knows that the client did not get it. It cannot
// always know: bytes that the kernel took may still be lost on the way.
func deliver(w http.ResponseWriter, r *http.Request, resp any) error {
	h := w.Header()
	h["Cache-Control"] = noStore
	if _, ok := resp.(nothing); ok {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	buffer := bodies.Get().(*[]byte)
	body, err := encode((*buffer)[:0], resp)
	defer func() {
		if cap(body) <= maxPooled {
			*buffer = body
			bodies.Put(buffer)
		}
	}()
	if err != nil {
		return err
	}
	if err := r.Context().Err(); err != nil {
		return err
	}
	h["Content-Type"] = jsonType
	h.Set("Content-Length", strconv.Itoa(len(body)))
	status := http.StatusOK
	if resp, ok := resp.(created); ok {
		status = http.StatusCreated
		if at := resp.location(); at != "" {
			h.Set("Location", at)
		}
	}
	if resp, ok := resp.(found); ok && resp.existed() {
		status = http.StatusOK
	}
	if resp, ok := resp.(replayable); ok && resp.replayed() {
		status = http.StatusOK
		h.Set("Idempotency-Replayed", "true")
	}
	if resp, ok := resp.(versioned); ok {
		h.Set("ETag", entityTag(resp.version()))
	}
	w.WriteHeader(status)
	if _, err := w.Write(body); err != nil {
		return err
	}
	// Flushing brings out the error of a connection that broke while the answer was being made.
	return http.NewResponseController(w).Flush()
}
