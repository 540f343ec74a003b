package http

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/topic"
)

// A streamFormat is how a stream is written. Each method appends to b.
type streamFormat interface {
	mediaType() string
	// position says that the stream has come to a position, and with retry, if it is not zero, after how long to come back when the stream ends. It
	// also keeps the connection in use.
	position(b []byte, position int64, retry time.Duration) []byte
	// end says after how long to come back.
	end(b []byte, retry time.Duration) []byte
	event(b []byte, e *topic.Entry) []byte
	gap(b []byte, g topic.Gap) []byte
}

// eventStream is the format of Server-Sent Events (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type eventStream struct {
	payloadOnly bool // data is the event as it was published, without its envelope
}

func (eventStream) mediaType() string { return "text/event-stream" }

// position has no data, so that a browser notes the id and tells the page nothing. The comment is for people who look at the stream.
func (eventStream) position(b []byte, position int64, retry time.Duration) []byte {
	b = append(b, ": position\n"...)
	if retry > 0 {
		b = appendRetry(b, retry)
	}
	return append(appendID(b, position), '\n')
}

func (eventStream) end(b []byte, retry time.Duration) []byte {
	return append(appendRetry(b, retry), '\n')
}

func appendRetry(b []byte, retry time.Duration) []byte {
	return append(strconv.AppendInt(append(b, "retry: "...), retry.Milliseconds(), 10), '\n')
}

func (f eventStream) event(b []byte, e *topic.Entry) []byte {
	if !f.payloadOnly {
		return append(b, e.Encoded(envelopeFrame)...)
	}
	return appendFrame(b, e.Position, e.Topic, payloadOf(e.Event.Event))
}

// gap has the id of its end, so that nobody is told twice.
func (eventStream) gap(b []byte, g topic.Gap) []byte {
	return appendFrame(b, g.Until, "gap", appendGap(nil, g))
}

// ndjson is one JSON value a line: an event in its envelope, {"gap": {…}}, or {"position": …} alone.
type ndjson struct{}

func (ndjson) mediaType() string { return "application/x-ndjson" }

func (ndjson) position(b []byte, position int64, _ time.Duration) []byte {
	o := object(append(b, '{'))
	o.int("position", position)
	return append(o, "}\n"...)
}

func (ndjson) end(b []byte, _ time.Duration) []byte { return b }

// event takes the envelope out of the frame, which streams share.
func (ndjson) event(b []byte, e *topic.Entry) []byte {
	frame := e.Encoded(envelopeFrame)
	_, data, _ := bytes.Cut(frame, []byte("\ndata: "))
	return append(b, data[:len(data)-1]...)
}

func (ndjson) gap(b []byte, g topic.Gap) []byte { return append(appendGap(b, g), '\n') }

func appendGap(b []byte, g topic.Gap) []byte {
	o := object(append(b, '{'))
	o = gap(g).appendJSON(o.name("gap"))
	return append(o, '}')
}

// envelopeFrame returns the frame of an event in its envelope. JSON without blanks has no line breaks, so the data are one line.
func envelopeFrame(e *topic.Entry) []byte {
	data := make([]byte, 0, len(e.Event.Event)+len(e.Meta)+len(e.Topic)+len(e.Key)+128)
	if e.Matched != nil {
		data = (&matchedEvent{Event: e.Event, Matched: e.Matched}).appendJSON(data)
	} else {
		data = (*publishedEvent)(&e.Event).appendJSON(data)
	}
	return appendFrame(make([]byte, 0, len(data)+len(e.Topic)+48), e.Position, e.Topic, data)
}

// appendFrame appends an event of Server-Sent Events. Its name has no line breaks; data may have any.
func appendFrame(b []byte, id int64, name string, data []byte) []byte {
	b = append(append(append(appendID(b, id), "event: "...), name...), '\n')
	for {
		end := bytes.IndexAny(data, "\r\n")
		if end < 0 {
			break
		}
		b = append(append(append(b, "data: "...), data[:end]...), '\n')
		if bytes.HasPrefix(data[end:], []byte("\r\n")) {
			end++
		}
		data = data[end+1:]
	}
	return append(append(append(b, "data: "...), data...), "\n\n"...)
}

func appendID(b []byte, id int64) []byte {
	return append(strconv.AppendInt(append(b, "id: "...), id, 10), '\n')
}

var errNotAcceptable = problem.InField(problem.InvalidParameter, "Accept", "must allow text/event-stream or application/x-ndjson")

// streamFormatFor returns the format that a request with this header prefers: Server-Sent Events unless it prefers the other one.
func streamFormatFor(header http.Header, payloadOnly bool) (streamFormat, error) {
	accept := strings.Join(header.Values("Accept"), ",")
	if accept == "" {
		accept = "*/*"
	}
	events, lines := request.Acceptance(accept, "text/event-stream"), request.Acceptance(accept, "application/x-ndjson")
	switch {
	case events == 0 && lines == 0:
		return nil, errNotAcceptable
	case events >= lines:
		return eventStream{payloadOnly}, nil
	case payloadOnly:
		return nil, errPayloadLines
	default:
		return ndjson{}, nil
	}
}

var errPayloadLines = problem.InField(problem.InvalidParameter, "?data", "must be omitted for application/x-ndjson: a line needs its envelope to be told from others")
