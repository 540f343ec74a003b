package http

import (
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/queued/queued/internal/cloudevents"
	"github.com/queued/queued/internal/queue"
)

// A cloudEventBody is a body that is written as CloudEvents for those who accept them.
type cloudEventBody interface {
	// cloudEventType is the media type of that, of one event or of a batch.
	cloudEventType() string
	appendCloudEvents(b []byte) []byte
}

// A cloudEventPage is one that has something else to say, which has no place among CloudEvents: fields of the header of a call of u.
type cloudEventPage interface {
	setHeader(h http.Header, u *url.URL)
}

func (*event) cloudEventType() string          { return cloudevents.MediaType }
func (*publishedEvent) cloudEventType() string { return cloudevents.MediaType }
func (eventList) cloudEventType() string       { return cloudevents.BatchMediaType }
func (eventPage) cloudEventType() string       { return cloudevents.BatchMediaType }
func (*logPage) cloudEventType() string        { return cloudevents.BatchMediaType }

// appendCloudEvents appends the event as a CloudEvent, with its bookkeeping as extensions.
func (e *event) appendCloudEvents(b []byte) []byte { return e.appendCloudEvent(b) }

// appendCloudEvent is appendCloudEvents with the cursor that goes on after the event in a listing, and the time that this is in the order of; empty: without.
func (e *event) appendCloudEvent(b []byte) []byte {
	at := func(t *time.Time) string {
		if t == nil {
			return ""
		}
		text, _ := timestamp(*t).AppendText(nil) // it never fails
		return string(text)
	}
	out := cloudevents.OutgoingOf(e.ID, e.Queue, e.Source, e.Type, e.EventTS, payloadOf(e.Payload), e.Meta)
	out.Extensions = []cloudevents.Extension{
		{Name: "queuedid", Value: strconv.FormatInt(e.ID, 10)},
		{Name: "queuedqueue", Value: e.Queue},
		{Name: "queuedstate", Value: string(e.State)},
		{Name: "queuedoutcome", Value: string(e.Outcome)},
		{Name: "queuedreceipt", Value: e.Receipt},
		{Name: "queuedattempts", Value: max(e.Attempts, 0)},
		{Name: "queuedpriority", Value: e.Priority},
		{Name: "queuedvt", Value: at(&e.VT)},
		{Name: "queuedexpiresat", Value: at(e.ExpiresAt)},
		{Name: "queuedfinishedat", Value: at(e.FinishedAt)},
		{Name: "queuedkey", Value: e.IdempotencyKey},
		{Name: "queuedgroup", Value: e.Group},
		{Name: "queuedworker", Value: e.Worker},
		{Name: "queuedresult", Value: string(appendValue(nil, e.Result))},
		{Name: "queuedunreadable", Value: unreadableOf(e.Payload)},
	}
	if e.MaxAttempts != nil && *e.MaxAttempts >= 1 {
		out.Extensions = append(out.Extensions, cloudevents.Extension{Name: "queuedmaxattempts", Value: *e.MaxAttempts})
	}
	if e.LastError != nil {
		out.Extensions = append(out.Extensions, cloudevents.Extension{Name: "queuedlasterror", Value: *e.LastError})
	}
	return cloudevents.Append(b, &out)
}

func (es eventList) appendCloudEvents(b []byte) []byte {
	return appendList(b, len(es), func(b []byte, i int) []byte { return (*event)(&es[i]).appendCloudEvents(b) })
}

func (p eventPage) appendCloudEvents(b []byte) []byte {
	return appendList(b, len(p.Events), func(b []byte, i int) []byte {
		return (*event)(&p.Events[i]).appendCloudEvent(b)
	})
}

func (p eventPage) setHeader(h http.Header, u *url.URL) {
	if p.Next != "" {
		linkNext(h, u, "cursor", p.Next)
	}
}

// linkNext sets a link to the same call with another parameter. It has a query only, so that it holds under any prefix of the path.
func linkNext(h http.Header, u *url.URL, name, value string) {
	query := u.Query()
	query.Set(name, value)
	h.Set("Link", "<?"+query.Encode()+`>; rel="next"`)
}

// appendCloudEvents appends the event as a CloudEvent. Its topic is the type of one that has come in otherwise.
func (e *publishedEvent) appendCloudEvents(b []byte) []byte {
	return cloudevents.Append(b, &cloudevents.Outgoing{
		ID: e.Position, Source: "/topics/" + url.PathEscape(e.Topic), Type: e.Topic, Time: e.PublishedAt, Payload: appendValue(nil, e.Event), Meta: e.Meta,
		Extensions: []cloudevents.Extension{
			{Name: "queuedposition", Value: strconv.FormatInt(e.Position, 10)},
			{Name: "queuedtopic", Value: e.Topic},
			{Name: "queuedkey", Value: e.Key},
		},
	})
}

// payloadOf is an event as data: null where it cannot be read.
func payloadOf(event []byte) []byte {
	if event == nil {
		return null
	}
	return appendValue(nil, event)
}

// unreadableOf is why an event cannot be read; empty if it can.
func unreadableOf(event []byte) string {
	if event == nil {
		return queue.Unreadable
	}
	return ""
}

func (p *logPage) appendCloudEvents(b []byte) []byte {
	return appendList(b, len(p.Events), func(b []byte, i int) []byte { return (*publishedEvent)(&p.Events[i]).appendCloudEvents(b) })
}

// setHeader sets a link to the next page, and the gap.
func (p *logPage) setHeader(h http.Header, u *url.URL) {
	place := *u
	query := place.Query()
	query.Del("at")
	query.Del("last")
	place.RawQuery = query.Encode()
	linkNext(h, &place, "after", strconv.FormatInt(p.Next, 10))
	if p.Gap != nil {
		h.Set("Queued-Gap", "after="+strconv.FormatInt(p.Gap.After, 10)+", until="+strconv.FormatInt(p.Gap.Until, 10)+", reason="+string(p.Gap.Reason))
	}
}
