// Package trace makes spans of what happens to events, by OpenTelemetry's semantic conventions for messaging, and sends them to a collector over OTLP/HTTP. It also
// reads and writes the trace contexts of requests and events, which need no collector. It knows neither SQL nor the services.
//
// A nil *Tracer makes no span and allocates nothing: that is what there is unless a collector is configured. See docs/observability.md and docs/decisions/024-traces.md.
package trace
