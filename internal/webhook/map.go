package webhook

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/queued/queued/internal/cloudevents"
)

// A Mapping says which event a delivery becomes. A template that is empty is that of the kind, if it has one.
type Mapping struct {
	Kind     Kind
	Type     Template
	Key      Template // the idempotency key
	EventTS  Template // seconds since 1970, or RFC 3339
	Priority Template // an integer
	Group    Template // 1 to 255 bytes
	Headers  []string // fields to keep in the metadata
	MaxBatch int      // events of a batch of CloudEvents
}

// defaults are the templates of each kind. The first of a field that meets a value counts.
var defaults = map[Kind]struct{ typ, key, eventTS []Template }{
	Slack: { // events; then commands and interactions, which have no time
		typ:     templates("slack.{/event/type}", "slack.{/type}", "slack.command"),
		key:     templates("{/event_id}", "{/trigger_id}"),
		eventTS: templates("{/event_time}", ""),
	},
	GitHub: {typ: templates("github.{header:X-GitHub-Event}"), key: templates("{header:X-GitHub-Delivery}")},
	Stripe: {typ: templates("stripe.{/type}"), key: templates("{/id}"), eventTS: templates("{/created}")},
	Standard: {
		typ:     templates("{/type}"),
		key:     templates("{header:Webhook-Id}", "{header:Svix-Id}"),
		eventTS: templates("{header:Webhook-Timestamp}", "{header:Svix-Timestamp}"),
	},
}

func templates(texts ...string) (all []Template) {
	for _, text := range texts {
		t, err := ParseTemplate(text)
		if err != nil {
			panic(err)
		}
		all = append(all, t)
	}
	return all
}

// Mapped is the event that a delivery becomes.
type Mapped struct {
	Event    json.RawMessage // an object
	Type     string
	Key      string
	EventTS  time.Time // zero: not said
	Priority int32
	Group    string         // empty: none
	Meta     map[string]any // the kept header fields, under "headers"; nil: none
	// Challenge is the text that Slack wants back from a new endpoint, in the place of an event.
	Challenge string
	Problems  []string // templates that met no value, or one that does not fit; the field is empty then
}

// ErrBody is wrapped by the error of a body that cannot become an event.
var ErrBody = errors.New("the body cannot become an event")

// maxField is how many characters types and keys may have.
const maxField = 255

// MapAll maps a delivery that was verified: to one event, or to any number of them if it is a batch of CloudEvents.
func (m *Mapping) MapAll(header http.Header, query url.Values, body []byte) (all []Mapped, isBatch bool, err error) {
	if m.Kind == CloudEvents {
		return m.mapCloudEvents(header, query, body)
	}
	one, err := m.Map(header, query, body)
	return []Mapped{one}, false, err
}

// Map maps a delivery that was verified, of any kind but CloudEvents.
func (m *Mapping) Map(header http.Header, query url.Values, body []byte) (Mapped, error) {
	event, payload, problem, err := eventOf(m.Kind, header, body)
	if err != nil {
		return Mapped{}, err
	}
	out := Mapped{Event: event}
	if problem != "" {
		out.Problems = []string{"body: " + problem}
	}
	if m.Kind == Slack {
		if kind, _ := lookUp(payload, []string{"type"}); kind == "url_verification" {
			out.Challenge, _ = lookUp(payload, []string{"challenge"})
			return out, nil
		}
	}
	m.fill(&out, &delivery{header: header, query: query, payload: payload})
	return out, nil
}

// mapCloudEvents maps CloudEvents. Their attributes give the fields that templates give for other deliveries; templates of the source come first. Templates see each as
// it is in structured mode, whatever it has come in.
func (m *Mapping) mapCloudEvents(header http.Header, query url.Values, body []byte) (all []Mapped, isBatch bool, err error) {
	events, isBatch, err := cloudevents.Decode(header, body, m.MaxBatch)
	switch {
	case errors.Is(err, cloudevents.ErrTooMany):
		return nil, isBatch, fmt.Errorf("%w: %w: it may have %d", ErrBody, err, m.MaxBatch)
	case err != nil:
		return nil, isBatch, fmt.Errorf("%w: %w", ErrBody, err)
	}
	all = make([]Mapped, len(events))
	for i := range events {
		e := &events[i]
		out := &all[i]
		*out = Mapped{Event: e.Event, Key: e.Key(), EventTS: e.Time, Group: e.Group(), Meta: e.Meta()}
		if utf8.RuneCountInString(e.Type) <= maxField {
			out.Type = e.Type
		} else if m.Type.IsEmpty() {
			out.problem("type", fmt.Errorf("it is longer than %d characters", maxField))
		}
		payload := make(map[string]any)
		for name, value := range e.Attributes {
			if n, ok := value.(int32); ok {
				value = json.Number(strconv.Itoa(int(n)))
			}
			payload[name] = value
		}
		var data any
		decoder := json.NewDecoder(bytes.NewReader(e.Event))
		decoder.UseNumber()
		_ = decoder.Decode(&data) // it is valid
		if object, ok := data.(map[string]any); ok && (e.Shape == cloudevents.DataValue || e.Shape == cloudevents.DataBase64) {
			maps.Copy(payload, object)
		} else if e.Shape == cloudevents.DataObject {
			payload["data"] = data
		}
		m.fill(out, &delivery{header: header, query: query, payload: payload})
	}
	return all, isBatch, nil
}

// fill sets the fields of an event that templates give.
func (m *Mapping) fill(out *Mapped, d *delivery) {
	ofKind := defaults[m.Kind]
	out.Type = cmp.Or(out.text(d, "type", m.Type.or(ofKind.typ)...), out.Type)
	out.Key = cmp.Or(out.text(d, "key", m.Key.or(ofKind.key)...), out.Key)
	if text := out.text(d, "event_ts", m.EventTS.or(ofKind.eventTS)...); text != "" {
		at, err := parseTime(text)
		if err != nil {
			out.problem("event_ts", err)
		} else {
			out.EventTS = at
		}
	}
	if text := out.text(d, "priority", m.Priority); text != "" {
		priority, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			out.problem("priority", fmt.Errorf("%s is no integer of 32 bits", strconv.Quote(clip(text))))
		} else { // ParseInt returns the nearest one, too
			out.Priority = int32(priority)
		}
	}
	out.Group = cmp.Or(out.text(d, "group", m.Group), out.Group)
	kept := make(map[string]any)
	for _, name := range m.Headers {
		if values := d.header.Values(name); len(values) > 0 {
			kept[http.CanonicalHeaderKey(name)] = strings.Join(values, ", ")
		}
	}
	if len(kept) > 0 {
		if out.Meta == nil {
			out.Meta = make(map[string]any)
		}
		out.Meta["headers"] = kept
	}
}

// or returns t, or if that is empty the templates of the kind in its place.
func (t Template) or(ofKind []Template) []Template {
	if t.IsEmpty() {
		return ofKind
	}
	return []Template{t}
}

// text returns the text of the first template that meets values, and notes a problem if none does.
func (e *Mapped) text(d *delivery, field string, templates ...Template) string {
	var problem error
	for _, t := range templates {
		text, err := t.fill(d)
		switch {
		case err != nil:
		case field == "group" && len(text) > maxField:
			err = fmt.Errorf("%s is longer than %d bytes", t.text, maxField)
		case field != "event_ts" && utf8.RuneCountInString(text) > maxField:
			err = fmt.Errorf("%s is longer than %d characters", t.text, maxField)
		}
		if err == nil {
			return text
		}
		problem = err
	}
	if problem != nil {
		e.problem(field, problem)
	}
	return ""
}

func (e *Mapped) problem(field string, err error) {
	e.Problems = append(e.Problems, field+": "+err.Error())
}

func clip(text string) string { return text[:min(len(text), 64)] }

// parseTime parses seconds since 1970, with a fraction or without, or RFC 3339.
func parseTime(text string) (time.Time, error) {
	if at, err := time.Parse(time.RFC3339Nano, text); err == nil {
		return at, nil
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(seconds) || math.Abs(seconds) > 1e11 {
		return time.Time{}, fmt.Errorf("%s is neither seconds since 1970 nor RFC 3339", strconv.Quote(clip(text)))
	}
	whole, fraction := math.Modf(seconds)
	return time.Unix(int64(whole), int64(math.Round(fraction*1e6))*1000).UTC(), nil
}

// eventOf returns the event of a body, and its payload for templates: an object as it was sent; a form as an object of its fields, but one of Slack or
// GitHub with a payload as the JSON in that; any other JSON, and text, under "data"; other bytes under "data_base64". What is not as it says is taken all the same, with a problem: a sender who has proven
// who it is would only send it again, and give up.
func eventOf(kind Kind, header http.Header, body []byte) (event json.RawMessage, payload any, problem string, err error) {
	media, _, _ := mime.ParseMediaType(header.Get("Content-Type"))
	body = bytes.TrimPrefix(body, []byte("\ufeff")) // a byte order mark, which is no part of the text
	if media == "application/x-www-form-urlencoded" && !looksLikeJSON(body) {
		form := parseForm(string(body))
		inner := form["payload"]
		switch {
		case kind != GitHub && (kind != Slack || len(inner) == 0): // commands of Slack have none
		case len(inner) == 0:
			problem = "the form has no field payload, in which GitHub sends its JSON"
		case len(inner) > 1:
			problem = fmt.Sprintf("the form has %d fields payload; expected one", len(inner))
		case !json.Valid([]byte(inner[0])):
			problem = "the field payload of the form is no JSON"
		default:
			return eventOf(kind, nil, []byte(inner[0]))
		}
		return encode(formObject(form), problem)
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	if err := decoder.Decode(&payload); err != nil || isMore(decoder) {
		if strings.HasSuffix(media, "json") {
			problem = "it is no JSON, as its Content-Type says"
		}
		if utf8.Valid(body) {
			return encode(map[string]any{"data": string(body)}, problem)
		}
		return encode(asBytes(body), problem)
	}
	if _, isObject := payload.(map[string]any); isObject {
		return body, payload, "", nil
	}
	return encode(map[string]any{"data": payload}, "")
}

// asBytes returns the object that has any body.
func asBytes(body []byte) map[string]any {
	return map[string]any{"data_base64": base64.StdEncoding.EncodeToString(body)}
}

func looksLikeJSON(body []byte) bool {
	return bytes.HasPrefix(bytes.TrimLeft(body, " \t\r\n"), []byte("{"))
}

// isMore reports whether anything but blanks follows the first value.
func isMore(decoder *json.Decoder) bool {
	_, err := decoder.Token()
	return !errors.Is(err, io.EOF)
}

// parseForm reads a form as the URL Standard of WHATWG has it (section 5.1), which takes every text: a percent sign that begins no byte is itself,
// and so is a semicolon. url.ParseQuery refuses both.
func parseForm(text string) url.Values {
	form := make(url.Values)
	for _, field := range strings.Split(text, "&") {
		if field == "" {
			continue
		}
		name, value, _ := strings.Cut(field, "=")
		form.Add(unescape(name), unescape(value))
	}
	return form
}

// unescape decodes the name or the value of a field. What is no UTF-8 becomes U+FFFD.
func unescape(text string) string {
	decoded := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '+':
			decoded = append(decoded, ' ')
		case c == '%' && i+2 < len(text):
			if n, err := hex.DecodeString(text[i+1 : i+3]); err == nil {
				decoded = append(decoded, n[0])
				i += 2
				continue
			}
			decoded = append(decoded, c)
		default:
			decoded = append(decoded, c)
		}
	}
	return strings.ToValidUTF8(string(decoded), "\ufffd")
}

// formObject returns the fields of a form: text, or a list where a field is repeated.
func formObject(form url.Values) map[string]any {
	object := make(map[string]any, len(form))
	for _, name := range slices.Sorted(maps.Keys(form)) {
		if values := form[name]; len(values) == 1 {
			object[name] = values[0]
		} else {
			object[name] = values
		}
	}
	return object
}

func encode(object map[string]any, problem string) (event json.RawMessage, payload any, problemOf string, err error) {
	if event, err = json.Marshal(object); err != nil {
		return nil, nil, "", fmt.Errorf("%w: %w", ErrBody, err)
	}
	return event, object, problem, nil
}
