package trace_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/queued/queued/internal/trace"
)

const (
	parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	later  = "cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-\"what<comes>"
)

func TestContextsOfHeadersAndMetadataAreValidOrNone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		meta          string
		parent, state string
	}{
		{`{"traceparent":"` + parent + `"}`, parent, ""},
		{`{"a":1,"tracestate":"a=1","traceparent":"` + parent + `"}`, parent, "a=1"},
		{`{"traceparent":"` + parent + `","tracestate":"no state"}`, parent, ""},
		{`{"traceparent":"` + strings.ToUpper(parent) + `"}`, "", ""},
		{`{"traceparent":"00-00000000000000000000000000000000-00f067aa0ba902b7-01"}`, "", ""},
		{`{"traceparent":1,"tracestate":"a=1"}`, "", ""},
		{`{"traceparent":null}`, "", ""},
		{`{"traceparent":`, "", ""},
		{`{"tracestate":"a=1"}`, "", ""},
		{`["traceparent"]`, "", ""},
		{``, "", ""},
	} {
		if got := trace.OfMeta(json.RawMessage(c.meta)); got != (trace.Context{Parent: c.parent, State: c.state}) {
			t.Errorf("%s has the context %+v", c.meta, got)
		}
	}
	for _, c := range []struct {
		header http.Header
		want   trace.Context
	}{
		{http.Header{}, trace.Context{}},
		{http.Header{"Traceparent": {parent}, "Tracestate": {"a=1", "b=2"}}, trace.Context{Parent: parent, State: "a=1,b=2"}},
		{http.Header{"Traceparent": {parent, parent}}, trace.Context{}},
		{http.Header{"Traceparent": {"nonsense"}, "Tracestate": {"a=1"}}, trace.Context{}},
		{http.Header{"Tracestate": {"a=1"}}, trace.Context{}},
	} {
		if got := trace.OfHeader(c.header); got != c.want {
			t.Errorf("%v has the context %+v", c.header, got)
		}
	}
}

func TestMetadataGetAContextUnlessTheyHaveOne(t *testing.T) {
	t.Parallel()
	c := trace.Context{Parent: parent, State: "a=1"}
	const added = `"traceparent":"` + parent + `","tracestate":"a=1"`
	long := `{"a":"` + strings.Repeat("x", 8<<10) + `"}`
	for meta, want := range map[string]string{
		``:                           `{` + added + `}`,
		`{}`:                         `{` + added + `}`,
		" {\n}":                      `{` + added + `}`,
		` {"b":1.0, "a" : {"x":2}}`:  `{` + added + `,"b":1.0, "a" : {"x":2}}`,
		`{"traceparent":"nonsense"}`: `{"traceparent":"nonsense"}`,
		`{"tracestate":"b=1"}`:       `{"tracestate":"b=1"}`,
		`null`:                       `null`,
		`[]`:                         `[]`,
		`{`:                          `{`,
		long:                         long,
	} {
		if got := string(c.InMeta(json.RawMessage(meta))); got != want {
			t.Errorf("%q with a context is %q, want %q", meta, got, want)
		}
	}
	if got := (trace.Context{}).InMeta(nil); got != nil {
		t.Errorf("without a context there are the metadata %s", got)
	}
	written := trace.Context{Parent: later}.InMeta(json.RawMessage(`{"a":1}`))
	if got := trace.OfMeta(written); got.Parent != later {
		t.Errorf("%s has the context %+v, want %s", written, got, later)
	}
}

func TestSettingsOfTheCollectorAreChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		environ string // with blanks between
		isOn    bool
		err     string // a part; empty: none
	}{
		{"", false, ""},
		{"OTEL_SERVICE_NAME=a", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318", true, ""},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://collector/v1/traces OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 OTEL_TRACES_EXPORTER=none", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 OTEL_SDK_DISABLED=TRUE", false, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 OTEL_SDK_DISABLED=no OTEL_TRACES_EXPORTER=otlp", true, ""},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318 OTEL_TRACES_EXPORTER=zipkin", false, `OTEL_TRACES_EXPORTER: must be otlp or none, not "zipkin"`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318", false, "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://user:secret@:4318", false, "OTEL_EXPORTER_OTLP_ENDPOINT: must be a URL"},
		{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=unix:///x OTEL_EXPORTER_OTLP_ENDPOINT=http://a", false, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: must be a URL"},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317 OTEL_EXPORTER_OTLP_PROTOCOL=grpc", false, `OTEL_EXPORTER_OTLP_PROTOCOL: must be http/protobuf, not "grpc"`},
		{"OTEL_EXPORTER_OTLP_ENDPOINT=http://a OTEL_EXPORTER_OTLP_PROTOCOL=grpc OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf", true, ""},
	} {
		isOn, err := trace.IsConfigured(func(name string) string {
			for entry := range strings.FieldsSeq(c.environ) {
				if value, isIt := strings.CutPrefix(entry, name+"="); isIt {
					return value
				}
			}
			return ""
		})
		if isOn != c.isOn || (err == nil) != (c.err == "") || err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "secret")) {
			t.Errorf("%s: on %t, %v", c.environ, isOn, err)
		}
	}
}
