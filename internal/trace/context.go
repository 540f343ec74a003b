package trace

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/queued/queued/internal/cloudevents"
)

// A Context is a trace context of the W3C, as a request's header or the metadata of an event have it; zero: none.
type Context struct {
	Parent string // traceparent
	State  string // tracestate, maybe empty
}

// The members of metadata that are a trace context.
const (
	metaParent = "traceparent"
	metaState  = "tracestate"
)

// IsZero reports whether there is no context.
func (c Context) IsZero() bool { return c.Parent == "" }

// OfHeader returns the context of a request, or none if there is none that is valid.
func OfHeader(header http.Header) Context {
	if header["Traceparent"] == nil { // most requests
		return Context{}
	}
	parent, state := cloudevents.TraceContext(header)
	return Context{parent, state}
}

// Of returns the context that a traceparent and a tracestate are, or none if they are not valid.
func Of(parent, state string) Context {
	if parent == "" {
		return Context{}
	}
	return OfHeader(http.Header{"Traceparent": {parent}, "Tracestate": {state}})
}

// OfMeta returns the context of an event with this metadata, or none if there is none that is valid.
func OfMeta(meta json.RawMessage) Context {
	if !bytes.Contains(meta, []byte(metaParent)) { // which clients could write with escapes only
		return Context{}
	}
	var members struct{ Traceparent, Tracestate any }
	if json.Unmarshal(meta, &members) != nil {
		return Context{}
	}
	parent, _ := members.Traceparent.(string)
	state, _ := members.Tracestate.(string)
	return Of(parent, state)
}

// AddTo sets the context in a header.
func (c Context) AddTo(header http.Header) {
	if c.IsZero() {
		return
	}
	header["Traceparent"] = []string{c.Parent}
	if c.State != "" {
		header["Tracestate"] = []string{c.State}
	}
}

// maxAddedTo is how long metadata may be that a context is added to: no event becomes too long to be inserted by it.
const maxAddedTo = 8 << 10

// InMeta returns metadata with the context, unless they have one, or something else in its place, or are long. What is no JSON object is returned as it is.
func (c Context) InMeta(meta json.RawMessage) json.RawMessage {
	if c.IsZero() || len(meta) > maxAddedTo {
		return meta
	}
	var members map[string]json.RawMessage
	if len(meta) > 0 && (json.Unmarshal(meta, &members) != nil || members == nil) || members[metaParent] != nil || members[metaState] != nil {
		return meta
	}
	added := map[string]string{metaParent: c.Parent}
	if c.State != "" {
		added[metaState] = c.State
	}
	text, err := json.Marshal(added)
	if err != nil || len(members) == 0 {
		return text
	}
	// In front of the members, which stay as they were written.
	rest := bytes.TrimLeft(meta, " \t\r\n")[1:]
	return append(append(text[:len(text)-1], ','), rest...)
}
