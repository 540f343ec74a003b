package trace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// system is the value of messaging.system.
const system = "queued"

// maxLinks bounds the links of a span, as the SDK does unless told otherwise.
const maxLinks = 128

// A Tracer makes spans. It is safe for concurrent use; nil makes none.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	counts   counts
}

// IsOn reports whether spans are made.
func (t *Tracer) IsOn() bool { return t != nil }

// A Kind is what a span about events is about.
type Kind string

// The kinds.
const (
	Send    Kind = "send"    // events are inserted or published
	Receive Kind = "receive" // events are claimed or read
	Settle  Kind = "settle"  // events are acked or nacked
	Push    Kind = "push"    // an event is sent to an endpoint
)

// typeOf has the semantic conventions' messaging.operation.type of each kind, and the kind of its span. A push is a message on its way to a receiver, whose context
// the event was made with before: such spans are those of a client.
var typeOf = map[Kind]struct {
	operation string
	span      trace.SpanKind
}{
	Send: {"send", trace.SpanKindProducer}, Receive: {"receive", trace.SpanKindClient}, Settle: {"settle", trace.SpanKindClient}, Push: {"send", trace.SpanKindClient},
}

// A Message is an event of an operation. A zero ID is not known yet.
type Message struct {
	ID      int64
	Context Context
}

// An Operation is what a span about events says of them.
type Operation struct {
	Kind        Kind
	Name        string    // what queued calls it: insert, claim, ack …
	Destination string    // the queue, the topic or the subscription; empty: there are several
	Messages    []Message // the events; for spans of many, those with a context become links
	IsBatch     bool      // the call takes many events, even if it has one
	Start       time.Time // zero: now
}

// Start starts the span of an operation within the span that ctx has. If that has none, a span about one event with a context is a part of the trace of the event.
func (t *Tracer) Start(ctx context.Context, o *Operation) Span {
	if t == nil {
		return Span{}
	}
	links := make([]trace.Link, 0, min(len(o.Messages), maxLinks))
	for i := range o.Messages {
		if m := &o.Messages[i]; len(links) < maxLinks {
			if of := m.Context.span(); of.IsValid() {
				links = append(links, trace.Link{SpanContext: of, Attributes: []attribute.KeyValue{messageID(m.ID)}})
			}
		}
	}
	if !trace.SpanContextFromContext(ctx).IsValid() && len(o.Messages) == 1 && len(links) == 1 {
		ctx, links = trace.ContextWithRemoteSpanContext(ctx, links[0].SpanContext), nil
	}
	about := typeOf[o.Kind]
	attributes := []attribute.KeyValue{
		attribute.String("messaging.system", system), attribute.String("messaging.operation.type", about.operation), attribute.String("messaging.operation.name", o.Name),
	}
	name := string(o.Kind)
	if o.Destination != "" {
		name += " " + o.Destination
		attributes = append(attributes, attribute.String("messaging.destination.name", o.Destination))
	}
	if o.IsBatch {
		attributes = append(attributes, attribute.Int("messaging.batch.message_count", len(o.Messages)))
	} else if len(o.Messages) == 1 && o.Messages[0].ID != 0 {
		attributes = append(attributes, messageID(o.Messages[0].ID))
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(about.span), trace.WithAttributes(attributes...), trace.WithLinks(links...)}
	if !o.Start.IsZero() {
		options = append(options, trace.WithTimestamp(o.Start))
	}
	_, span := t.tracer.Start(ctx, name, options...)
	return Span{span}
}

func messageID(id int64) attribute.KeyValue {
	return attribute.String("messaging.message.id", strconv.FormatInt(id, 10))
}

// StartServer starts the span of a request that is a part of another's trace, and returns a context for what is a part of it. A request without a trace has no span
// of its own: what it does to events has.
func (t *Tracer) StartServer(ctx context.Context, header http.Header) (context.Context, Span) {
	if t == nil {
		return ctx, Span{}
	}
	from := OfHeader(header).span()
	if !from.IsValid() {
		return ctx, Span{}
	}
	ctx, span := t.tracer.Start(trace.ContextWithRemoteSpanContext(ctx, from), "HTTP", trace.WithSpanKind(trace.SpanKindServer))
	return ctx, Span{span}
}

// Within returns a context in which spans are a part of what c is, unless ctx has a span already.
func Within(ctx context.Context, c Context) context.Context {
	if of := c.span(); of.IsValid() && !trace.SpanContextFromContext(ctx).IsValid() {
		return trace.ContextWithRemoteSpanContext(ctx, of)
	}
	return ctx
}

// A Span is one that has been started; the zero value is none.
type Span struct{ span trace.Span }

// IsZero reports whether there is no span.
func (s Span) IsZero() bool { return s.span == nil }

// Context returns the context that what comes of the span has. It is valid for spans that are not sampled, too.
func (s Span) Context() Context {
	if s.span == nil {
		return Context{}
	}
	of := s.span.SpanContext()
	return Context{"00-" + of.TraceID().String() + "-" + of.SpanID().String() + "-" + of.TraceFlags().String(), of.TraceState().String()}
}

// SetMessage says which event a span of one is about.
func (s Span) SetMessage(id int64) {
	if s.span != nil {
		s.span.SetAttributes(messageID(id))
	}
}

// SetOutcome says what became of the event, or of the request for it.
func (s Span) SetOutcome(outcome string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String("queued.outcome", outcome))
	}
}

// SetResponse says what an endpoint has answered, at a server of this name; a status of zero: nothing.
func (s Span) SetResponse(server string, status int) {
	if s.span == nil {
		return
	}
	s.span.SetAttributes(attribute.String("http.request.method", http.MethodPost), attribute.String("server.address", server))
	if status != 0 {
		s.span.SetAttributes(attribute.Int("http.response.status_code", status))
	}
}

// End ends the span. failure is the type of the error, such as the code of a problem; empty: there was none.
func (s Span) End(failure string) {
	if s.span == nil {
		return
	}
	if failure != "" {
		s.span.SetAttributes(attribute.String("error.type", failure))
		s.span.SetStatus(codes.Error, failure)
	}
	s.span.End()
}

// EndServer ends the span of a request that was answered with a status, on a route.
func (s Span) EndServer(method, route string, status int) {
	if s.span == nil {
		return
	}
	s.span.SetName(method)
	if route != "" {
		_, path, _ := strings.Cut(route, " ")
		s.span.SetName(method + " " + cmp.Or(path, route))
		s.span.SetAttributes(attribute.String("http.route", cmp.Or(path, route)))
	}
	s.span.SetAttributes(attribute.String("http.request.method", method), attribute.Int("http.response.status_code", status))
	if status >= http.StatusInternalServerError {
		s.span.SetAttributes(attribute.String("error.type", strconv.Itoa(status)))
		s.span.SetStatus(codes.Error, fmt.Sprint("HTTP ", status))
	}
	s.span.End()
}

// span returns the context as the SDK has it; one that is not valid for none.
func (c Context) span() trace.SpanContext {
	parts := strings.SplitN(c.Parent, "-", 5)
	if len(parts) < 4 {
		return trace.SpanContext{}
	}
	var of trace.SpanContextConfig
	var errs [3]error
	of.TraceID, errs[0] = trace.TraceIDFromHex(parts[1])
	of.SpanID, errs[1] = trace.SpanIDFromHex(parts[2])
	flags, err := strconv.ParseUint(parts[3], 16, 8)
	errs[2] = err
	if errors.Join(errs[:]...) != nil {
		return trace.SpanContext{}
	}
	of.TraceFlags, of.Remote = trace.TraceFlags(flags)&trace.FlagsSampled, true
	of.TraceState, _ = trace.ParseTraceState(c.State) // none if it cannot be read
	return trace.NewSpanContext(of)
}
