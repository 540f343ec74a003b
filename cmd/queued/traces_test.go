package main

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// A traceCollector receives spans over OTLP/HTTP.
type traceCollector struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	spans    []*otlp.Span
	resource map[string]string
}

// collectTraces starts a collector that answers each request as answer does (nil: it takes all).
func collectTraces(t *testing.T, answer http.HandlerFunc) *traceCollector {
	t.Helper()
	c := &traceCollector{t: t}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if answer != nil {
			answer(w, r)
			return
		}
		c.take(r)
		w.Header().Set("Content-Type", "application/x-protobuf")
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *traceCollector) take(r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			c.t.Error(err)
			return
		}
		body = unzipped
	}
	text, err := io.ReadAll(body)
	var export collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(text, &export)
	}
	if err != nil || r.URL.Path != "/v1/traces" {
		c.t.Errorf("%s got %d bytes: %v", r.URL.Path, len(text), err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range export.GetResourceSpans() {
		c.resource = attributesOf(of.GetResource().GetAttributes())
		for _, scope := range of.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
}

func attributesOf(all []*common.KeyValue) map[string]string {
	values := make(map[string]string)
	for _, a := range all {
		if v, isText := a.GetValue().GetValue().(*common.AnyValue_StringValue); isText {
			values[a.GetKey()] = v.StringValue
		} else {
			values[a.GetKey()] = fmt.Sprint(a.GetValue().GetIntValue())
		}
	}
	return values
}

// named returns the spans of a name, as soon as there are n of them.
func (c *traceCollector) named(name string, n int) []*otlp.Span {
	c.t.Helper()
	var found []*otlp.Span
	until(c.t, fmt.Sprintf("there are %d spans %q", n, name), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		found = slices.DeleteFunc(slices.Clone(c.spans), func(s *otlp.Span) bool { return s.GetName() != name })
		return len(found) >= n
	})
	if len(found) > n {
		c.t.Errorf("there are %d spans %q, want %d", len(found), name, n)
	}
	return found
}

func idOf(b []byte) string { return hex.EncodeToString(b) }

// wantSpan fails the test unless a span is a part of the given trace, below a parent, and has these attributes.
func wantSpan(t *testing.T, s *otlp.Span, parent string, kind otlp.Span_SpanKind, attributes map[string]string) {
	t.Helper()
	if idOf(s.GetTraceId()) != givenTrace || idOf(s.GetParentSpanId()) != parent || s.GetKind() != kind {
		t.Errorf("%s is %s in the trace %s below %q, want %s in %s below %q", s.GetName(), s.GetKind(), idOf(s.GetTraceId()), idOf(s.GetParentSpanId()), kind, givenTrace, parent)
	}
	got := attributesOf(s.GetAttributes())
	for name, want := range attributes {
		if got[name] != want {
			t.Errorf("%s: the attribute %s is %q, want %q", s.GetName(), name, got[name], want)
		}
	}
	if s.GetEndTimeUnixNano() < s.GetStartTimeUnixNano() {
		t.Errorf("%s ended before it began", s.GetName())
	}
}

const (
	givenTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	givenSpan  = "00f067aa0ba902b7"
)

// exportSoon has spans exported at once.
const exportSoon = "OTEL_BSP_SCHEDULE_DELAY=20"

func TestOneTraceGoesFromTheInsertThroughClaimAndAckAndPush(t *testing.T) {
	t.Parallel()
	c := collectTraces(t, nil)
	received := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		received <- r.Header.Get("Traceparent") + " " + r.Header.Get("Tracestate")
	}))
	t.Cleanup(receiver.Close)
	p := setup(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, exportSoon, "OTEL_SERVICE_NAME=orders-queue", "OTEL_RESOURCE_ATTRIBUTES=deployment.environment.name=test,service.name=lost",
		"QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_PUSH_ALLOW=127.0.0.1")

	given := []string{"Traceparent: 00-" + givenTrace + "-" + givenSpan + "-01", "Tracestate: vendor=1"}
	id := fmt.Sprint(p.want(201, "POST", "/events?queue=orders", `{"n":1}`, given...).decode(t)["id"])
	server := c.named("POST /events", 1)[0]
	wantSpan(t, server, givenSpan, otlp.Span_SPAN_KIND_SERVER, map[string]string{
		"http.request.method": "POST", "http.route": "/events", "http.response.status_code": "201",
	})
	send := c.named("send orders", 1)[0]
	wantSpan(t, send, idOf(server.GetSpanId()), otlp.Span_SPAN_KIND_PRODUCER, map[string]string{
		"messaging.system": "queued", "messaging.operation.type": "send", "messaging.operation.name": "insert", "messaging.destination.name": "orders", "messaging.message.id": id,
	})
	if send.GetTraceState() != "vendor=1" {
		t.Errorf("the trace state is %q", send.GetTraceState())
	}

	// A worker that knows nothing of traces: its claim and its ack are a part of the event's.
	claimed := p.want(200, "POST", "/claim", `{"queue":"orders"}`).decode(t)["events"].([]any)[0].(map[string]any)
	carried := fmt.Sprintf("00-%s-%s-01", givenTrace, idOf(send.GetSpanId()))
	if meta, _ := claimed["meta"].(map[string]any); meta["traceparent"] != carried || meta["tracestate"] != "vendor=1" {
		t.Errorf("the claim has the metadata %v, want the trace %s", meta, carried)
	}
	wantSpan(t, c.named("receive orders", 1)[0], idOf(send.GetSpanId()), otlp.Span_SPAN_KIND_CLIENT, map[string]string{
		"messaging.operation.type": "receive", "messaging.operation.name": "claim", "messaging.message.id": id,
	})
	p.want(204, "DELETE", fmt.Sprintf("/events/%s?receipt=%s", id, claimed["receipt"]), "")
	wantSpan(t, c.named("settle orders", 1)[0], idOf(send.GetSpanId()), otlp.Span_SPAN_KIND_CLIENT, map[string]string{
		"messaging.operation.type": "settle", "messaging.operation.name": "ack", "messaging.message.id": id, "queued.outcome": "done",
	})

	// The receiver of a push gets the context of the push, in the trace of the event.
	p.want(201, "PUT", "/queues/hooks/push", `{"url":"`+receiver.URL+`/secret-path"}`)
	id = fmt.Sprint(p.want(201, "POST", "/events?queue=hooks", `{"n":2}`, given...).decode(t)["id"])
	send = c.named("send hooks", 1)[0]
	push := c.named("push hooks", 1)[0]
	wantSpan(t, push, idOf(send.GetSpanId()), otlp.Span_SPAN_KIND_CLIENT, map[string]string{
		"messaging.operation.type": "send", "messaging.operation.name": "push", "messaging.message.id": id, "queued.outcome": "delivered",
		"server.address": "127.0.0.1", "http.response.status_code": "200",
	})
	if got, want := <-received, fmt.Sprintf("00-%s-%s-01 vendor=1", givenTrace, idOf(push.GetSpanId())); got != want {
		t.Errorf("the receiver got the trace %q, want %q", got, want)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resource["service.name"] != "orders-queue" || c.resource["deployment.environment.name"] != "test" || c.resource["service.version"] == "" {
		t.Errorf("the resource is %v", c.resource)
	}
	if text := fmt.Sprint(c.spans); strings.Contains(text, "secret-path") {
		t.Error("a span has the path of an endpoint, which may be a secret")
	}
}

func TestSpansOfManyEventsLinkToTheirProducers(t *testing.T) {
	t.Parallel()
	c := collectTraces(t, nil)
	p := setup(t, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+c.URL+"/v1/traces", exportSoon)
	const other = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	p.want(201, "POST", "/events/batch", `{"events":[{"event":{},"queue":"a","meta":{"traceparent":"`+other+`"}},{"event":{},"queue":"a"},{"event":{},"queue":"a","meta":{"traceparent":"nonsense"}}]}`)
	send := c.named("send a", 1)[0]
	if n := attributesOf(send.GetAttributes())["messaging.batch.message_count"]; n != "3" || len(send.GetParentSpanId()) != 0 {
		t.Errorf("the span of a batch has %s events and the parent %q", n, idOf(send.GetParentSpanId()))
	}
	linksOf := func(s *otlp.Span) (all []string) {
		for _, l := range s.GetLinks() {
			all = append(all, idOf(l.GetSpanId()))
		}
		slices.Sort(all)
		return all
	}
	if got := linksOf(send); !slices.Equal(got, []string{"b7ad6b7169203331"}) {
		t.Errorf("the span of a batch has the links %q", got)
	}

	claimed := p.want(200, "POST", "/claim", `{"queue":"a","limit":10}`, "Traceparent: 00-"+givenTrace+"-"+givenSpan+"-01").decode(t)["events"].([]any)
	server := c.named("POST /claim", 1)[0]
	receive := c.named("receive a", 1)[0]
	wantSpan(t, receive, idOf(server.GetSpanId()), otlp.Span_SPAN_KIND_CLIENT, map[string]string{"messaging.batch.message_count": "3"})
	want := []string{"b7ad6b7169203331", idOf(send.GetSpanId())}
	slices.Sort(want)
	if got := linksOf(receive); !slices.Equal(got, want) {
		t.Errorf("the span of a claim has the links %q, want %q", got, want)
	}
	var acks []string
	for _, e := range claimed[:2] {
		acks = append(acks, fmt.Sprintf(`{"id":%v,"receipt":%q}`, e.(map[string]any)["id"], e.(map[string]any)["receipt"]))
	}
	p.want(200, "POST", "/ack", `{"events":[`+strings.Join(append(acks, `{"id":4711,"receipt":"x"}`), ",")+`]}`)
	settle := c.named("settle", 1)[0] // 4711 is in no queue
	if got := linksOf(settle); !slices.Equal(got, want) {
		t.Errorf("the span of an ack has the links %q, want %q", got, want)
	}
	last := claimed[2].(map[string]any)
	p.want(200, "POST", fmt.Sprintf("/events/%v/nack", last["id"]), fmt.Sprintf(`{"receipt":%q,"final":true}`, last["receipt"]))
	if got := attributesOf(c.named("settle a", 1)[0].GetAttributes()); got["messaging.operation.name"] != "nack" || got["queued.outcome"] != "failed" {
		t.Errorf("the span of a nack has the attributes %v", got)
	}
	// What finds nothing, and what is no part of a trace, has no span. An error is one of the span.
	p.want(200, "POST", "/claim", `{"queue":"a"}`)
	p.want(200, "GET", "/queues", "")
	p.want(409, "DELETE", fmt.Sprintf("/events/%v?receipt=x", last["id"]), "")
	if s := c.named("settle", 2)[1]; s.GetStatus().GetCode() != otlp.Status_STATUS_CODE_ERROR || attributesOf(s.GetAttributes())["error.type"] != "lease_lost" {
		t.Errorf("a lost lease has the status %v and the attributes %v", s.GetStatus(), s.GetAttributes())
	}
	c.named("receive a", 1)
	c.named("GET /queues", 0)
	p.want(201, "POST", "/topics/order.placed", `{}`)
	c.named("send order.placed", 1)
}

func TestCollectorThatFailsHarmsNothing(t *testing.T) {
	t.Parallel()
	hanging := make(chan struct{})
	for name, answer := range map[string]http.HandlerFunc{
		"refuses": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusBadRequest) },
		"hangs": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-hanging
		},
	} {
		c := collectTraces(t, answer)
		p := setup(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, exportSoon, "OTEL_BSP_MAX_QUEUE_SIZE=16", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=8", "OTEL_TRACES_SAMPLER=nonsense")
		for range 200 {
			p.want(201, "POST", "/events", `{}`)
		}
		if got := p.want(200, "GET", "/metrics", "").body; !strings.Contains(got, "\nqueued_trace_spans_total 200\n") || !strings.Contains(got, "\nqueued_trace_spans_exported_total 0\n") {
			t.Errorf("%s: the metrics do not count 200 spans of which none was taken", name)
		}
		if name == "refuses" {
			p.waitForLine("the log says that traces fail", func(line string) bool { return strings.Contains(line, "traces: events are not affected") })
		}
		began := time.Now()
		p.signal(syscall.SIGTERM)
		if code := p.wait(); code != 0 || time.Since(began) > waitTimeout/2 {
			t.Errorf("%s: the program ended with %d after %s", name, code, time.Since(began))
		}
		if name == "hangs" && !strings.Contains(p.output(), "the latest spans are lost") {
			t.Error("hangs: the log does not say that spans are lost")
		}
	}
	close(hanging)
}

func TestSpansAreSentAtTheStop(t *testing.T) {
	t.Parallel()
	c := collectTraces(t, nil)
	p := setup(t, "OTEL_EXPORTER_OTLP_ENDPOINT="+c.URL, "OTEL_BSP_SCHEDULE_DELAY=3600000", "OTEL_TRACES_SAMPLER=parentbased_always_off")
	p.want(201, "POST", "/events", `{"not":"sampled"}`)
	given := "00-" + givenTrace + "-" + givenSpan + "-01"
	p.want(201, "POST", "/events", `{}`, "Traceparent: "+given)
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("the program ended with %d", code)
	}
	c.named("send default", 1)
}

func TestWithoutACollectorTheContextOfTheRequestGoesOn(t *testing.T) {
	t.Parallel()
	p := setup(t)
	given := "00-" + givenTrace + "-" + givenSpan + "-00"
	for _, headers := range [][]string{{"Traceparent: " + given, "Tracestate: a=1"}, {"Traceparent: nonsense"}, nil} {
		p.want(201, "POST", "/events", `{}`, headers...)
	}
	p.want(201, "POST", "/events/batch", `{"events":[{"event":{}},{"event":{},"meta":{"a":1}}]}`, "Traceparent: "+given)
	for i, want := range []string{given + " a=1", " ", " ", given + " ", given + " "} {
		meta, _ := p.claimOne()["meta"].(map[string]any)
		parent, _ := meta["traceparent"].(string)
		state, _ := meta["tracestate"].(string)
		if parent+" "+state != want {
			t.Errorf("event %d has the trace %q, want %q", i, parent+" "+state, want)
		}
	}
}

func TestSettingsOfTracesThatCannotBeUsedFailTheStart(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ setting, want string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT=localhost:4318", "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf"},
		{"OTEL_TRACES_EXPORTER=zipkin", "OTEL_TRACES_EXPORTER: must be otlp or none"},
	} {
		var stderr bytes.Buffer
		environ := []string{"QUEUED_DATABASE_URL=postgres://127.0.0.1:1/", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=", "OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318"}
		if code := run(t.Context(), []string{"serve"}, append([]string{c.setting}, environ...), strings.NewReader(""), io.Discard, &stderr); code != exitUsage ||
			!strings.Contains(stderr.String(), c.want) {
			t.Errorf("%s: exit code %d, %s", c.setting, code, &stderr)
		}
	}
}
