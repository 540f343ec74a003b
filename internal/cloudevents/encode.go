package cloudevents

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// An Outgoing is an event that is to be written as a CloudEvent. An event that came in as one goes out with the attributes that it had, which are in
// its metadata.
type Outgoing struct {
	ID      int64           // the id of the CloudEvent, unless it has its own, as for the next fields
	Source  string          // any text; one that is no URI-reference is percent-encoded
	Type    string          // not empty
	Time    time.Time       // of the event
	Payload json.RawMessage // an object
	Meta    json.RawMessage // an object, or nil
	// Extensions are further attributes. Those that it came in with and that have the same name are left out.
	Extensions []Extension
}

// An Extension is an attribute of a CloudEvent. Its name has lower-case letters and digits only.
type Extension struct {
	Name  string
	Value any // a string, a bool or an int32; nil and "" are left out
}

// verifiedSource is the attribute with the name of the source that has verified who sent an event, which its metadata has.
const verifiedSource = "queuedverifiedsource"

// VerifiedSource returns the name of the source that has verified who sent the event with this metadata; empty: none has. The name of the member is looked for
// as it is: one in other letters is of anybody's making.
func VerifiedSource(meta json.RawMessage) (name string) {
	var in map[string]json.RawMessage
	if len(meta) == 0 || json.Unmarshal(meta, &in) != nil || json.Unmarshal(in["verified_source"], &name) != nil {
		return ""
	}
	return name
}

// DefaultType is the type of a CloudEvent whose event has none.
const DefaultType = "queued.event"

// OutgoingOf returns the CloudEvent of an event of a queue: its source and its type are the event's own, else "/queues/" with the name of the queue,
// and DefaultType.
func OutgoingOf(id int64, queue, source, typ string, at time.Time, payload, meta json.RawMessage) Outgoing {
	return Outgoing{
		ID: id, Source: cmp.Or(source, "/queues/"+url.PathEscape(queue)), Type: cmp.Or(typ, DefaultType), Time: at, Payload: payload, Meta: meta,
	}
}

// Append appends an event as a CloudEvent in JSON, its structured mode. The payload is appended as it is.
func Append(b []byte, e *Outgoing) []byte {
	attributes, shape, parent, state := attributesIn(e.Meta)
	came := attributes["specversion"] != nil && attributes["id"] != nil && attributes["source"] != nil && attributes["type"] != nil
	if !came { // no attribute can be relied on, but that of the service
		verified := attributes[verifiedSource]
		attributes, shape = make(map[string]any), DataObject
		if verified != nil {
			attributes[verifiedSource] = verified
		}
		attributes["id"] = strconv.FormatInt(e.ID, 10)
		attributes["source"] = e.Source
		if violation("source", e.Source) != "" {
			attributes["source"] = strings.ReplaceAll(url.PathEscape(e.Source), ":", "%3A") // a colon would end a scheme
		}
		attributes["type"] = cmp.Or(printable(e.Type), DefaultType)
		attributes["datacontenttype"] = "application/json"
	}
	if attributes["specversion"] = "1.0"; attributes["traceparent"] == nil && parent != "" {
		attributes["traceparent"] = parent
		delete(attributes, "tracestate")
		if state != "" {
			attributes["tracestate"] = state
		}
	}
	if attributes["time"] == nil {
		attributes["time"] = e.Time.UTC().Truncate(time.Microsecond).Format(time.RFC3339Nano)
	}
	for _, extension := range e.Extensions {
		delete(attributes, extension.Name)
		switch value := extension.Value.(type) {
		case string:
			if value = printable(value); value != "" {
				attributes[extension.Name] = value
			}
		case bool, int32:
			attributes[extension.Name] = value
		}
	}
	b = append(b, '{')
	for _, name := range slices.Concat(contextAttributes, slices.Sorted(maps.Keys(attributes))) {
		if value, ok := attributes[name]; ok {
			b = appendMember(b, name, value)
			delete(attributes, name)
		}
	}
	return append(appendData(b, e.Payload, shape), '}')
}

// printable returns text without the characters that CloudEvents forbids in strings.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if isForbidden(c) {
			return -1
		}
		return c
	}, text)
}

// attributesIn returns the attributes that metadata have of a CloudEvent, and a trace context, but nothing of either that is not valid: metadata may be of
// anybody's making.
func attributesIn(meta json.RawMessage) (attributes map[string]any, shape DataShape, traceParent, traceState string) {
	var in map[string]json.RawMessage
	if len(meta) == 0 || json.Unmarshal(meta, &in) != nil {
		return nil, DataObject, "", ""
	}
	text := func(name string) (value string) {
		if json.Unmarshal(in[name], &value) != nil {
			return ""
		}
		return value
	}
	var given map[string]json.RawMessage
	if json.Unmarshal(in[metaAttributes], &given) != nil {
		given = nil
	}
	attributes = make(map[string]any, len(given))
	for name, value := range given {
		if attribute, detail := attributeOf(value); attribute != nil && detail == "" && violation(name, attribute) == "" {
			attributes[name] = attribute
		}
	}
	delete(attributes, verifiedSource) // whatever it has come in with
	if name := printable(text("verified_source")); name != "" {
		attributes[verifiedSource] = name
	}
	traceParent, traceState = traceContext(text("traceparent"), text("tracestate"))
	return attributes, DataShape(text(metaShape)), traceParent, traceState
}

// appendMember appends a member to an object.
func appendMember(b []byte, name string, value any) []byte {
	if b[len(b)-1] != '{' {
		b = append(b, ',')
	}
	b = append(appendString(b, name), ':')
	switch value := value.(type) {
	case bool:
		return strconv.AppendBool(b, value)
	case int32:
		return strconv.AppendInt(b, int64(value), 10)
	case string:
		return appendString(b, value)
	}
	return append(b, "null"...) // attributes have no other type
}

// appendString appends text as a JSON string, without escapes that only HTML needs.
func appendString(b []byte, text string) []byte {
	isPlain := func(c rune) bool { return c >= ' ' && c <= '~' && c != '"' && c != '\\' }
	if !strings.ContainsFunc(text, func(c rune) bool { return !isPlain(c) }) {
		return append(append(append(b, '"'), text...), '"')
	}
	var quoted bytes.Buffer
	encoder := json.NewEncoder(&quoted)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(text) // a string always encodes
	return append(b, bytes.TrimSuffix(quoted.Bytes(), []byte("\n"))...)
}

// appendData appends the data to an event, as their shape says. A payload that does not have that shape, as it was changed since, is the data itself.
func appendData(b []byte, payload json.RawMessage, shape DataShape) []byte {
	name := map[DataShape]string{DataValue: "data", DataBase64: "data_base64"}[shape]
	var members map[string]json.RawMessage
	if shape != DataObject && json.Unmarshal(payload, &members) == nil {
		value := members[name]
		switch {
		case shape == DataNone && len(members) == 0:
			return b
		case name != "" && len(members) == 1 && value != nil && (shape == DataValue || value[0] == '"'):
			return append(append(b, `,"`+name+`":`...), value...)
		}
	}
	return append(append(b, `,"data":`...), payload...)
}
