package cloudevents

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// The media types of CloudEvents in JSON.
const (
	MediaType      = "application/cloudevents+json"       // one event
	BatchMediaType = "application/cloudevents-batch+json" // a list of them
)

// An Event is an event of CloudEvents 1.0 that has come in over HTTP.
type Event struct {
	ID, Source, Type string
	Time             time.Time       // zero: not said
	Event            json.RawMessage // the object that it becomes: its data, or an object around them, as Shape says
	Shape            DataShape
	Attributes       map[string]any // all of them, by name: a string, a bool or an int32 each
	// The W3C's trace context, of the event's attributes, else of the request. Empty: none that is valid.
	TraceParent, TraceState string

	whole string                   // where it was, for errors
	at    func(name string) string // where an attribute or the data were
}

// DataShape says how the data of a CloudEvent are in the event that it becomes.
type DataShape string

// The shapes of data.
const (
	DataObject DataShape = ""       // data are an object, which is the event
	DataValue  DataShape = "value"  // data are another JSON value or text: {"data": …}
	DataBase64 DataShape = "base64" // data are bytes: {"data_base64": …}
	DataNone   DataShape = "none"   // there are no data: {}
)

// An InvalidError says why a request is no CloudEvent.
type InvalidError struct{ Violations []Violation }

// A Violation is a defect of a part of a CloudEvent. Pointer is a JSON pointer as the fragment of a URI, or the name of a header field.
type Violation struct{ Pointer, Detail string }

// Error implements error.
func (e *InvalidError) Error() string {
	texts := make([]string, len(e.Violations))
	for i, v := range e.Violations {
		texts[i] = v.Pointer + " " + v.Detail
	}
	return "no valid CloudEvent: " + strings.Join(texts, "; ")
}

// ErrFormat is wrapped by the error of a format of CloudEvents that is not understood.
var ErrFormat = errors.New("a format of CloudEvents that is not understood")

// ErrTooMany is the error of a batch that has more events than it may have. None of them was decoded.
var ErrTooMany = errors.New("too many CloudEvents in a batch")

// maxViolations bounds how many violations an error has.
const maxViolations = 20

// maxMembers bounds how many members an event has in JSON. Its attributes are kept in metadata, which has room for fewer.
const maxMembers = 4096

// add notes a violation, unless detail is empty.
func (e *InvalidError) add(pointer, detail string) {
	if detail != "" && len(e.Violations) < maxViolations {
		e.Violations = append(e.Violations, Violation{pointer, detail})
	}
}

// err returns e, or nil if it has no violation.
func (e *InvalidError) err() error {
	if len(e.Violations) == 0 {
		return nil
	}
	return e
}

// Decode decodes the CloudEvents of a request of HTTP: one in structured or binary mode, or at most so many in batched mode. It fails
// with a *InvalidError, ErrTooMany or ErrFormat. Duplicate names in data are not looked for.
func Decode(header http.Header, body []byte, most int) (events []Event, isBatch bool, err error) {
	if types := header.Values("Content-Type"); len(types) > 1 {
		return nil, false, &InvalidError{[]Violation{{"Content-Type", "must be given once"}}}
	}
	given := header.Get("Content-Type")
	media, params, err := mime.ParseMediaType(given)
	isStructured := strings.HasPrefix(media, "application/cloudevents")
	switch charset := strings.ToLower(params["charset"]); {
	case given != "" && err != nil:
		return nil, false, &InvalidError{[]Violation{{"Content-Type", "must be a media type, not " + quote(given)}}}
	case isStructured && media != MediaType && media != BatchMediaType:
		return nil, false, fmt.Errorf("%w: expected %s or %s, not %s", ErrFormat, MediaType, BatchMediaType, quote(media))
	case isStructured && !isUTF8(charset):
		return nil, false, fmt.Errorf("%w: expected UTF-8, not %s", ErrFormat, quote(charset))
	}
	var bad InvalidError
	switch {
	case !isStructured && !isBinary(header):
		return nil, false, fmt.Errorf("%w: expected the media type %s or %s, or the header field ce-specversion", ErrFormat, MediaType, BatchMediaType)
	case !isStructured:
		events = []Event{decodeBinary(header, body, &bad)}
	case !utf8.Valid(body):
		bad.add("#", "is not in UTF-8")
	case media == BatchMediaType:
		isBatch = true
		if events, err = decodeBatch(body, most, &bad); err != nil {
			return nil, isBatch, err
		}
	default:
		events = []Event{decodeStructured(body, "#", &bad)}
	}
	if err := bad.err(); err != nil {
		return nil, isBatch, err
	}
	for i := range events {
		events[i].setTrace(header)
	}
	return events, isBatch, nil
}

func isUTF8(charset string) bool { return charset == "" || charset == "utf-8" || charset == "us-ascii" }

func quote(text string) string { return strconv.Quote(clip(text)) }

func clip(text string) string { return text[:min(len(text), 64)] }

// decodeBatch decodes the batched mode: a list of at most so many events in JSON. Elements are counted before any is decoded, since each takes many times the
// memory of its text; and none is decoded for an error that has all the violations it may have.
func decodeBatch(body []byte, most int, bad *InvalidError) ([]Event, error) {
	if !json.Valid(body) {
		bad.add("#", "is not valid JSON")
		return nil, nil
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if token, _ := decoder.Token(); token != json.Delim('[') {
		bad.add("#", "must be a list of CloudEvents")
		return nil, nil
	}
	var list []json.RawMessage
	for decoder.More() {
		if len(list) == most {
			return nil, ErrTooMany
		}
		var text json.RawMessage
		if err := decoder.Decode(&text); err != nil {
			return nil, err // it never fails: the text is valid
		}
		list = append(list, text)
	}
	events := make([]Event, len(list))
	for i, text := range list {
		if len(bad.Violations) == maxViolations {
			break
		}
		events[i] = decodeStructured(text, "#/"+strconv.Itoa(i), bad)
	}
	return events, nil
}

// decodeStructured decodes an event in JSON. pointer says where it is.
func decodeStructured(text []byte, pointer string, bad *InvalidError) (e Event) {
	if !json.Valid(text) {
		bad.add(pointer, "is not valid JSON")
		return e
	}
	if text = bytes.TrimLeft(text, " \t\r\n"); text[0] != '{' {
		bad.add(pointer, "must be an object with the attributes of a CloudEvent")
		return e
	}
	at := func(name string) string { return pointer + "/" + fragment(name) }
	e.whole = pointer
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	_, _ = decoder.Token() // {; the text is valid, so nothing here fails
	attributes := make(map[string]any)
	seen := make(map[string]bool)
	var data, dataBase64 json.RawMessage // nil: not given
	for decoder.More() {
		token, _ := decoder.Token()
		var value json.RawMessage
		_ = decoder.Decode(&value)
		name, _ := token.(string)
		if seen[name] {
			bad.add(at(name), "duplicate name")
			continue
		}
		seen[name] = true
		if len(seen) > maxMembers {
			bad.add(pointer, fmt.Sprintf("must have at most %d members", maxMembers))
			return e
		}
		switch name {
		case "data":
			data = value
		case "data_base64":
			dataBase64 = value
		default:
			attribute, detail := attributeOf(value)
			bad.add(at(name), detail)
			if attribute != nil {
				attributes[name] = attribute
			} else if detail != "" {
				attributes[name] = "-" // it is there
			}
		}
	}
	isNull := func(value json.RawMessage) bool { return string(value) == "null" }
	switch {
	case dataBase64 != nil && !isNull(dataBase64) && data != nil && !isNull(data):
		bad.add(at("data_base64"), "must not be given together with data")
	case dataBase64 != nil && !isNull(dataBase64):
		var encoded any
		_ = json.Unmarshal(dataBase64, &encoded)
		encodedText, isText := encoded.(string)
		content, err := base64.StdEncoding.DecodeString(encodedText)
		if !isText || err != nil {
			bad.add(at("data_base64"), "must be bytes in base64, of the standard alphabet and with its padding")
		}
		e.setBytes(content)
	case data != nil:
		e.setValue(data)
	default:
		e.Shape, e.Event = DataNone, json.RawMessage("{}")
	}
	e.setAttributes(attributes, at, bad)
	return e
}

// attributeOf returns an attribute of an event in JSON: a string, a bool or an int32; nil for null, which is as if it were not given.
func attributeOf(value json.RawMessage) (attribute any, detail string) {
	const wants = "must be a string, a boolean or an integer of 32 bits"
	switch value[0] {
	case 'n':
		return nil, ""
	case 't', 'f':
		return value[0] == 't', ""
	case '"':
		if hasLoneSurrogate(value) {
			return nil, "contains a lone surrogate, which UTF-8 cannot encode"
		}
		var text string
		_ = json.Unmarshal(value, &text) // it is valid
		return text, ""
	case '{', '[':
		return nil, wants
	}
	n, err := strconv.ParseInt(string(value), 10, 32)
	if err != nil {
		return nil, wants
	}
	return int32(n), ""
}

// hasLoneSurrogate reports whether a JSON string has an escape that is half of a surrogate pair, which encoding/json would replace.
func hasLoneSurrogate(text []byte) bool {
	for i := 0; i < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if i++; text[i] != 'u' {
			continue
		}
		first, _ := strconv.ParseUint(string(text[i+1:i+5]), 16, 16)
		i += 4
		if first < 0xD800 || first > 0xDFFF {
			continue
		}
		if first > 0xDBFF || !bytes.HasPrefix(text[i+1:], []byte(`\u`)) {
			return true
		}
		if second, _ := strconv.ParseUint(string(text[i+3:i+7]), 16, 16); second < 0xDC00 || second > 0xDFFF {
			return true
		}
		i += 6
	}
	return false
}

// fragment escapes a name for a JSON pointer in the fragment of a URI. A name that is too long for an error is cut off.
func fragment(name string) string {
	const maxName = 64
	if len(name) > maxName {
		name = strings.ToValidUTF8(name[:maxName], "") + "…"
	}
	name = strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
	return (&url.URL{Fragment: name}).EscapedFragment()
}

// headerPrefix is the prefix of the header fields of attributes, as net/http writes it.
const headerPrefix = "Ce-"

// isBinary reports whether a header has an attribute of a CloudEvent.
func isBinary(header http.Header) bool {
	for field := range header {
		if isAttribute(field) {
			return true
		}
	}
	return false
}

func isAttribute(field string) bool {
	return len(field) > len(headerPrefix) && strings.EqualFold(field[:len(headerPrefix)], headerPrefix)
}

// decodeBinary decodes the binary mode: the attributes are header fields, and the body is the data.
func decodeBinary(header http.Header, body []byte, bad *InvalidError) (e Event) {
	at := func(name string) string {
		switch name {
		case "datacontenttype":
			return "Content-Type"
		case "data":
			return "#"
		}
		return "ce-" + clip(name)
	}
	e.whole = "#"
	attributes := make(map[string]any)
	for _, field := range slices.Sorted(maps.Keys(header)) {
		if !isAttribute(field) {
			continue
		}
		name := strings.ToLower(field[len(headerPrefix):])
		text, err := headerText(header[field][0])
		if isURI := name == "source" || name == "dataschema"; isURI && violation(name, text) != "" {
			text = header[field][0] // of a sender that encodes nothing, as the SDK for Go does
		}
		switch {
		case len(header[field]) > 1:
			bad.add("ce-"+clip(name), "must be given once")
		case name == "datacontenttype":
			bad.add("ce-datacontenttype", "must not be given; the field Content-Type has it")
		case name == "data":
			bad.add("ce-data", "must not be given; the body has the data")
			continue
		case err != nil:
			bad.add("ce-"+clip(name), err.Error())
		}
		attributes[name] = text
	}
	contentType := header.Get("Content-Type")
	if contentType != "" {
		attributes["datacontenttype"] = contentType
	}
	bad.add("#", e.setBody(contentType, body))
	e.setAttributes(attributes, at, bad)
	return e
}

// headerText decodes the value of a header field of binary mode (HTTP protocol binding, section 3.1.3.2).
func headerText(value string) (string, error) {
	value = strings.Trim(value, " \t")
	if strings.HasPrefix(value, `"`) {
		inner, isQuoted := strings.CutSuffix(value[1:], `"`)
		var plain strings.Builder
		for i := 0; i < len(inner); i++ {
			switch c := inner[i]; {
			case c == '\\' && i+1 < len(inner):
				i++
				plain.WriteByte(inner[i])
			case c == '\\' || c == '"':
				isQuoted = false
			default:
				plain.WriteByte(c)
			}
		}
		if !isQuoted {
			return "", errors.New("must be a string in quotes, or begin with none")
		}
		value = plain.String()
	}
	text, err := url.PathUnescape(value)
	if err != nil {
		text = value // of a sender that encodes nothing, as the SDK for Go does
	}
	if !utf8.ValidString(text) {
		return "", errors.New("must be UTF-8 once its percent-encoding is decoded")
	}
	return text, nil
}

// setBody sets the event to the data of binary mode.
func (e *Event) setBody(contentType string, body []byte) (detail string) {
	media, params, _ := mime.ParseMediaType(contentType)
	charset := strings.ToLower(params["charset"])
	switch {
	case len(body) == 0:
		e.Shape, e.Event = DataNone, json.RawMessage("{}")
	case isJSON(media):
		switch {
		case !isUTF8(charset) || !utf8.Valid(body):
			return "must be in UTF-8, as it is JSON"
		case !json.Valid(body):
			return "is not valid JSON, which Content-Type says it is"
		}
		e.setValue(body)
	case isText(media, charset) && utf8.Valid(body) && !bytes.ContainsRune(body, 0): // which jsonb cannot hold
		value, _ := json.Marshal(string(body)) // a string always encodes
		e.setValue(value)
	default:
		e.setBytes(body)
	}
	return ""
}

// isJSON reports whether a media type is one of JSON (JSON event format, section 3.1).
func isJSON(media string) bool {
	return strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
}

// isText reports whether data of a media type are text for who reads them, and can be a JSON string.
func isText(media, charset string) bool {
	if !isUTF8(charset) {
		return false
	}
	return charset != "" || strings.HasPrefix(media, "text/") || strings.HasSuffix(media, "/xml") || strings.HasSuffix(media, "+xml") ||
		media == "application/x-www-form-urlencoded"
}

// setValue sets the event to data that are a valid JSON value.
func (e *Event) setValue(value []byte) {
	value = bytes.Trim(value, " \t\r\n")
	if value[0] == '{' {
		e.Shape, e.Event = DataObject, value
		return
	}
	e.Shape, e.Event = DataValue, slices.Concat([]byte(`{"data":`), value, []byte{'}'})
}

func (e *Event) setBytes(content []byte) {
	e.Shape, e.Event = DataBase64, []byte(`{"data_base64":"`+base64.StdEncoding.EncodeToString(content)+`"}`)
}

// contextAttributes are the attributes that the specification has, all of which are strings.
var contextAttributes = []string{"specversion", "id", "source", "type", "time", "subject", "dataschema", "datacontenttype"}

// requiredAttributes says which of them there must be: the first ones.
const requiredAttributes = 4

// setAttributes sets the attributes of the event, and notes which of them break a rule of the specification.
func (e *Event) setAttributes(attributes map[string]any, at func(name string) string, bad *InvalidError) {
	e.Attributes, e.at = attributes, at
	for i, name := range contextAttributes {
		if attributes[name] == nil && i < requiredAttributes {
			bad.add(at(name), "is required")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		bad.add(at(name), violation(name, attributes[name]))
	}
	text := func(name string) string {
		value, _ := attributes[name].(string)
		return value
	}
	e.ID, e.Source, e.Type = text("id"), text("source"), text("type")
	if at := text("time"); at != "" {
		e.Time, _ = parseRFC3339(at)
	}
}

// EventTime returns the time of the event; nil: it says none.
func (e *Event) EventTime() *time.Time {
	if _, isSaid := e.Attributes["time"]; !isSaid {
		return nil
	}
	return &e.Time
}

// violation says what is wrong with an attribute of any name; empty: nothing.
func violation(name string, value any) string {
	text, isText := value.(string)
	switch {
	case !isAttributeName(name):
		return "is no name of an attribute, which has lower-case letters a to z and digits only"
	case !isText && slices.Contains(contextAttributes, name):
		return "must be a string"
	case !isText:
		return ""
	case text == "" && slices.Contains(contextAttributes, name):
		return "must not be empty"
	}
	if i := strings.IndexFunc(text, isForbidden); i >= 0 {
		c, _ := utf8.DecodeRuneInString(text[i:])
		return fmt.Sprintf("contains %U, which CloudEvents forbids in strings", c)
	}
	switch name {
	case "specversion":
		if text != "1.0" {
			return `must be "1.0", not ` + quote(text)
		}
	case "source", "dataschema":
		u, err := parseURI(text)
		switch {
		case err != nil:
			return "must be a URI-reference, with other characters percent-encoded, not " + quote(text)
		case name == "dataschema" && !u.IsAbs():
			return "must be a URI with a scheme, not " + quote(text)
		}
	case "time":
		if _, err := parseRFC3339(text); err != nil {
			return `must be a time of RFC 3339 such as "2026-01-02T03:04:05Z", not ` + quote(text)
		}
	case "datacontenttype":
		if _, _, err := mime.ParseMediaType(text); err != nil {
			return "must be a media type, not " + quote(text)
		}
	}
	return ""
}

func isAttributeName(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789") == "" && name != "data"
}

// isForbidden reports whether strings must not have a character: a control character, or one that Unicode says is none.
func isForbidden(c rune) bool {
	return unicode.Is(unicode.Cc, c) || c >= 0xFDD0 && c <= 0xFDEF || c&0xFFFE == 0xFFFE
}

// parseURI parses a URI-reference of RFC 3986. url.Parse alone takes other characters, too.
func parseURI(text string) (*url.URL, error) {
	const others = "-._~:/?#[]@!$&'()*+,;=%" // besides letters and digits
	isOther := func(c rune) bool {
		return (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && !strings.ContainsRune(others, c)
	}
	if strings.ContainsFunc(text, isOther) {
		return nil, errors.New("it has a character that no URI has")
	}
	return url.Parse(text)
}

// parseRFC3339 is strict, but takes t and z, which the RFC does, too.
func parseRFC3339(text string) (at time.Time, err error) {
	err = at.UnmarshalText([]byte(strings.ToUpper(text)))
	return at, err
}

// Pointer says where an attribute of the event is, or its data: a JSON pointer, or the name of a header field. With no name it says where the event is.
func (e *Event) Pointer(name string) string {
	if name == "" {
		return e.whole
	}
	return e.at(name)
}

// maxKey is how many characters an idempotency key may have.
const maxKey = 255

// Key returns the idempotency key of the event, which source and id together are: no two events of one sender have the same. It has up to 255
// characters: a longer one is hashed.
func (e *Event) Key() string { return KeyOf(e.Source, e.ID) }

// KeyOf returns the idempotency key of an event with this source and this id.
func KeyOf(source, id string) string {
	key := source + " " + id // a source has no blank
	if utf8.RuneCountInString(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key = "sha256:" + hex.EncodeToString(sum[:])
	}
	return key
}

// PartitionKey is the attribute that says which events belong together (the Partitioning extension).
const PartitionKey = "partitionkey"

// maxGroup is how many bytes a group may have.
const maxGroup = 255

// Group returns the group of the event, which is the text of its partitionkey. It is empty if there is none, or if that is longer than 255 bytes: the event is taken nevertheless.
func (e *Event) Group() string {
	text := ""
	switch value := e.Attributes[PartitionKey].(type) {
	case string:
		text = value
	case bool, int32:
		text = fmt.Sprint(value)
	}
	return GroupOf(text)
}

// GroupOf returns the group of an event whose partitionkey has this text.
func GroupOf(partitionKey string) string {
	if len(partitionKey) > maxGroup {
		return ""
	}
	return partitionKey
}

// The members of metadata that CloudEvents have.
const (
	metaAttributes = "ce"      // an object of all attributes
	metaShape      = "ce_data" // a DataShape; not given: DataObject
)

// Meta returns the metadata of the event: its attributes, from which Append writes it again, and its trace context.
func (e *Event) Meta() map[string]any {
	meta := map[string]any{metaAttributes: e.Attributes}
	for name, text := range map[string]string{metaShape: string(e.Shape), "traceparent": e.TraceParent, "tracestate": e.TraceState} {
		if text != "" {
			meta[name] = text
		}
	}
	return meta
}
