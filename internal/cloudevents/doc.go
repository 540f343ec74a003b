// Package cloudevents decodes and encodes CloudEvents, in all modes of their HTTP binding, and says which rules a request breaks and where. It reads and
// writes the trace context that they have, too (https://github.com/cloudevents/spec/blob/main/cloudevents/extensions/distributed-tracing.md).
// It is pure: it knows of HTTP header fields only.
//
// # Files
//
//	decode.go  requests into events; the rules, and which of them are broken
//	encode.go  events of a queue or a topic as CloudEvents
//	trace.go   the trace context of a request or an event, where it is valid
package cloudevents
