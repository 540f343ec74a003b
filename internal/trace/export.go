package trace

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// Config holds the settings of a Tracer.
type Config struct {
	Getenv     func(name string) string // of the variables of OpenTelemetry; the SDK itself reads those of the process
	Version    string                   // of the program
	InstanceID string                   // tells this process from others
	Warn       func(error)              // is told of settings that are not used
}

// IsConfigured reports whether a collector is: by OTEL_EXPORTER_OTLP_ENDPOINT or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, unless OTEL_SDK_DISABLED or OTEL_TRACES_EXPORTER
// says otherwise. It fails for values that cannot be used; the error names the variable.
func IsConfigured(getenv func(string) string) (bool, error) {
	const all, traces = "OTEL_EXPORTER_OTLP_", "OTEL_EXPORTER_OTLP_TRACES_"
	either := func(suffix string) (name, value string) {
		for _, prefix := range []string{traces, all} {
			if value := strings.TrimSpace(getenv(prefix + suffix)); value != "" {
				return prefix + suffix, value
			}
		}
		return "", ""
	}
	name, endpoint := either("ENDPOINT")
	exporter := strings.TrimSpace(getenv("OTEL_TRACES_EXPORTER"))
	if endpoint == "" || strings.EqualFold(strings.TrimSpace(getenv("OTEL_SDK_DISABLED")), "true") || exporter == "none" {
		return false, nil
	}
	if exporter != "" && exporter != "otlp" {
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER: must be otlp or none, not %q", exporter)
	}
	u, err := url.Parse(endpoint)
	if err != nil || !slices.Contains([]string{"http", "https"}, u.Scheme) || u.Hostname() == "" {
		return false, fmt.Errorf("%s: must be a URL such as http://localhost:4318", name) // which may hold a password
	}
	if name, protocol := either("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return false, fmt.Errorf("%s: must be http/protobuf, not %q; its port is 4318 on most collectors", name, protocol)
	}
	return true, nil
}

// Open returns a Tracer that sends its spans to the collector that the process's variables name. What it sends is bounded: while the collector does not take it, spans
// are dropped, and nobody waits. Close it.
func Open(ctx context.Context, cfg Config) (*Tracer, error) {
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("preparing the export of traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(
			attribute.String("service.name", system), attribute.String("service.version", cfg.Version), attribute.String("service.instance.id", cfg.InstanceID)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil { // some of OTEL_RESOURCE_ATTRIBUTES cannot be read
		cfg.Warn(fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err))
	}
	t := new(Tracer)
	t.provider = sdk.NewTracerProvider(
		sdk.WithResource(about), sdk.WithSpanProcessor(endCounter{&t.counts}), sdk.WithBatcher(countingExporter{exporter, &t.counts}))
	t.tracer = t.provider.Tracer("github.com/queued/queued")
	return t, nil
}

// Close sends the spans that are left, as long as ctx lasts, and ends the Tracer.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	err := t.provider.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("the collector did not take the latest spans in time")
	}
	return err
}

// counts are those of the spans of a Tracer.
type counts struct{ ended, exported, failed atomic.Int64 }

// Counts returns how many sampled spans have ended, were taken by the collector, and were refused by it or never reached it. The others wait, or were dropped because
// too many waited.
func (t *Tracer) Counts() (ended, exported, failed int64) {
	return t.counts.ended.Load(), t.counts.exported.Load(), t.counts.failed.Load()
}

// An endCounter counts spans as they end.
type endCounter struct{ counts *counts }

// OnStart implements sdk.SpanProcessor.
func (endCounter) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd implements sdk.SpanProcessor.
func (c endCounter) OnEnd(s sdk.ReadOnlySpan) {
	if s.SpanContext().IsSampled() {
		c.counts.ended.Add(1)
	}
}

// Shutdown implements sdk.SpanProcessor.
func (endCounter) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdk.SpanProcessor.
func (endCounter) ForceFlush(context.Context) error { return nil }

// A countingExporter counts what becomes of spans.
type countingExporter struct {
	sdk.SpanExporter

	counts *counts
}

// ExportSpans implements sdk.SpanExporter.
func (e countingExporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err != nil {
		e.counts.failed.Add(int64(len(spans)))
	} else {
		e.counts.exported.Add(int64(len(spans)))
	}
	return err
}
