package cloudevents

import (
	"net/http"
	"regexp"
	"strings"
)

// traceParent is a traceparent of this version of the W3C's trace context, or of a later one, which may go on after a dash with any characters of a header field.
var traceParent = regexp.MustCompile(`^(?:00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}|(?:[1-9a-f][0-9a-f]|0[1-9a-f])-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?)$`)

// maxTrace is how many bytes a traceparent or a tracestate has that is kept: the W3C asks for 512 of the latter.
const maxTrace = 512

// TraceContext returns the trace context that a request has in its header, both empty if it has none that is valid: an invalid one is ignored
// (W3C Trace Context, section 3.2).
func TraceContext(header http.Header) (parent, state string) {
	if values := header.Values("Traceparent"); len(values) == 1 {
		return traceContext(values[0], strings.Join(header.Values("Tracestate"), ","))
	}
	return "", ""
}

// traceContext returns a traceparent and its tracestate, each empty if it is not valid.
func traceContext(parent, state string) (validParent, validState string) {
	parent, state = strings.Trim(parent, " \t"), strings.Trim(state, " \t")
	if len(parent) > maxTrace || !traceParent.MatchString(parent) || strings.HasPrefix(parent, "ff") {
		return "", ""
	}
	const zeros = "00000000000000000000000000000000"
	if parent[3:35] == zeros || parent[36:52] == zeros[:16] {
		return "", ""
	}
	if !isTraceState(state) {
		state = ""
	}
	return parent, state
}

// isTraceState reports whether text may be a tracestate: a list of names and values.
func isTraceState(text string) bool {
	if len(text) > maxTrace || strings.Count(text, ",") >= 32 || strings.ContainsFunc(text, func(c rune) bool { return c != '\t' && (c < ' ' || c > '~') }) {
		return false
	}
	for item := range strings.SplitSeq(text, ",") {
		if name, _, ok := strings.Cut(strings.Trim(item, " \t"), "="); (!ok || name == "") && item != "" {
			return false
		}
	}
	return true
}

// setTrace sets the trace context of the event: that of its attributes, else that of the request.
func (e *Event) setTrace(header http.Header) {
	text := func(name string) string {
		value, _ := e.Attributes[name].(string)
		return value
	}
	if e.TraceParent, e.TraceState = traceContext(text("traceparent"), text("tracestate")); e.TraceParent == "" {
		e.TraceParent, e.TraceState = TraceContext(header)
	}
}
