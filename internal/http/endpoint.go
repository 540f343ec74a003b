package http

import (
	"bytes"
	"context"
	"net/http"
	"strconv"
	"sync"
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

// appender is a response that writes its JSON itself: those of the calls that a busy client makes for each
// event. What it writes is what json.Marshal makes of it, as a test holds.
type appender interface {
	appendJSON(b []byte) []byte
}

// bodies are buffers for responses.
var bodies = sync.Pool{New: func() any { return new([]byte) }}

// maxPooled is the largest buffer worth keeping.
const maxPooled = 64 << 10

func (e *event) appendJSON(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"id":`...), e.ID, 10)
	b = appendText(append(b, `,"queue":`...), e.Queue)
	if e.State != "" {
		b = appendText(append(b, `,"state":`...), string(e.State))
	}
	if e.Outcome != "" {
		b = appendText(append(b, `,"outcome":`...), string(e.Outcome))
	}
	b = e.appendJob(b)
	b = appendTime(append(b, `,"event_ts":`...), e.EventTS)
	b = appendTime(append(b, `,"enqueued_at":`...), e.EnqueuedAt)
	b = strconv.AppendInt(append(b, `,"attempts":`...), int64(e.Attempts), 10)
	b = appendTime(append(b, `,"vt":`...), e.VT)
	b = e.Claimed.appendTo(append(b, `,"claimed":`...))
	if e.Worker != "" {
		b = appendText(append(b, `,"worker":`...), e.Worker)
	}
	b = e.appendVerdict(b)
	if e.Occurrence != nil {
		b = appendCompact(append(b, `,"occurrence":`...), e.Occurrence)
	}
	if e.RequeuedFrom != nil {
		b = strconv.AppendInt(append(b, `,"requeued_from":`...), *e.RequeuedFrom, 10)
	}
	if e.RequeuedAs != nil {
		b = strconv.AppendInt(append(b, `,"requeued_as":`...), *e.RequeuedAs, 10)
	}
	b = appendCompact(append(b, `,"event":`...), e.Event)
	if e.Receipt != "" {
		b = appendText(append(b, `,"receipt":`...), e.Receipt)
	}
	return append(b, '}')
}

// appendJob appends what the event was posted with, beside its payload.
func (e *event) appendJob(b []byte) []byte {
	if e.Status != "" {
		b = appendText(append(b, `,"status":`...), string(e.Status))
	}
	if e.Type != "" {
		b = appendText(append(b, `,"type":`...), e.Type)
	}
	if e.Source != "" {
		b = appendText(append(b, `,"source":`...), e.Source)
	}
	b = strconv.AppendInt(append(b, `,"priority":`...), int64(e.Priority), 10)
	if e.Key != "" {
		b = appendText(append(b, `,"key":`...), e.Key)
	}
	if e.MaxAttempts != nil {
		b = strconv.AppendInt(append(b, `,"max_attempts":`...), int64(*e.MaxAttempts), 10)
	}
	if e.ExpiresAt != nil {
		b = appendTime(append(b, `,"expires_at":`...), *e.ExpiresAt)
	}
	return b
}

// appendVerdict appends what came of the attempts.
func (e *event) appendVerdict(b []byte) []byte {
	if e.FirstAttemptedAt != nil {
		b = appendTime(append(b, `,"first_attempted_at":`...), *e.FirstAttemptedAt)
	}
	if e.LastAttemptedAt != nil {
		b = appendTime(append(b, `,"last_attempted_at":`...), *e.LastAttemptedAt)
	}
	if e.FinishedAt != nil {
		b = appendTime(append(b, `,"finished_at":`...), *e.FinishedAt)
	}
	if e.ProcessingMS != nil {
		b = e.ProcessingMS.appendTo(append(b, `,"processing_ms":`...))
	}
	if e.Result != nil {
		b = appendCompact(append(b, `,"result":`...), e.Result)
	}
	if e.LastError != nil {
		b = appendText(append(b, `,"last_error":`...), *e.LastError)
	}
	if e.ErrorCount != nil {
		b = strconv.AppendInt(append(b, `,"error_count":`...), int64(*e.ErrorCount), 10)
	}
	if e.Retryable != nil {
		b = strconv.AppendBool(append(b, `,"retryable":`...), *e.Retryable)
	}
	return b
}

func appendEvents(b []byte, events []event) []byte {
	b = append(b, '[')
	for i := range events {
		if i > 0 {
			b = append(b, ',')
		}
		b = events[i].appendJSON(b)
	}
	return append(b, ']')
}

func (resp claimResponse) appendJSON(b []byte) []byte {
	return append(appendEvents(append(b, `{"events":`...), resp.Events), '}')
}

func (resp pageResponse) appendJSON(b []byte) []byte {
	b = append(appendEvents(append(b, `{"events":`...), resp.Events), `,"next":`...)
	if resp.Next == nil {
		return append(b, `null}`...)
	}
	return append(appendText(b, *resp.Next), '}')
}

func (resp insertResponse) appendJSON(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"id":`...), resp.ID, 10)
	b = appendText(append(b, `,"queue":`...), resp.Queue)
	return append(appendTime(append(b, `,"vt":`...), resp.VT), '}')
}

func (resp insertBatchResponse) appendJSON(b []byte) []byte {
	b = append(b, `{"ids":[`...)
	for i, id := range resp.IDs {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return append(b, `]}`...)
}

func (resp ackBatchResponse) appendJSON(b []byte) []byte {
	b = append(b, `{"results":[`...)
	for i, r := range resp.Results {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(append(b, `{"id":`...), r.ID, 10)
		b = strconv.AppendInt(append(b, `,"status":`...), int64(r.Status), 10)
		if r.Code != "" {
			b = appendText(append(b, `,"code":`...), r.Code)
		}
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

func appendTime(b []byte, t timestamp) []byte {
	b, _ = t.AppendText(append(b, '"')) // it never fails
	return append(b, '"')
}

// appendText appends text, which is valid UTF-8, as a JSON string.
func appendText(b []byte, text string) []byte {
	b, err := jsontext.AppendQuote(b, text)
	if err != nil { // the database holds no such text
		return b
	}
	return b
}

// appendCompact appends a JSON value without the blanks between its tokens. They are the only blanks outside of
// strings, and the value is valid: it comes from the database.
func appendCompact(b []byte, value []byte) []byte {
	inString := false
	start := 0
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case c == '"':
			inString = !inString
		case inString && c == '\\':
			i++
		case !inString && (c == ' ' || c == '\n' || c == '\t' || c == '\r'):
			b = append(b, value[start:i]...)
			start = i + 1
		}
	}
	return append(b, value[start:]...)
}
