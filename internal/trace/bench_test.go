package trace_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/queued/queued/internal/trace"
)

// untraced does what a call about one event does with its trace when no collector is configured.
func untraced(t *trace.Tracer, header http.Header, meta json.RawMessage) {
	if t.IsOn() {
		panic("it is not")
	}
	span := t.Start(nil, nil) //nolint:staticcheck // nothing is done with them
	span.SetMessage(1)
	span.SetOutcome("done")
	span.End("")
	_ = trace.OfHeader(header).InMeta(meta)
}

func TestNothingIsAllocatedWithoutACollector(t *testing.T) { //nolint:paralleltest // allocations of others would count
	header := http.Header{"Content-Type": {"application/json"}}
	if n := testing.AllocsPerRun(100, func() { untraced(nil, header, nil) }); n != 0 {
		t.Errorf("%f allocations", n)
	}
	meta := json.RawMessage(`{"a":1}`)
	if n := testing.AllocsPerRun(100, func() { _ = trace.OfMeta(meta) }); n != 0 {
		t.Errorf("%f allocations to find that metadata have no context", n)
	}
}

func BenchmarkWithoutACollector(b *testing.B) {
	header := http.Header{"Content-Type": {"application/json"}}
	b.ReportAllocs()
	for b.Loop() {
		untraced(nil, header, nil)
	}
}
