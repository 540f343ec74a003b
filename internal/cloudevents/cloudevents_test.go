package cloudevents

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// A scenario is a request of the vectors.
type scenario struct {
	Name, Mode, Body string
	Headers          map[string]string
	Attributes       map[string]any
	Data             any
	Events           int
}

func (s *scenario) header() http.Header {
	header := make(http.Header)
	for name, value := range s.Headers {
		header.Set(name, value)
	}
	return header
}

// headerOf returns a header of names and values in turn.
func headerOf(fields ...string) http.Header {
	header := make(http.Header)
	for i := 0; i < len(fields); i += 2 {
		header.Add(fields[i], fields[i+1])
	}
	return header
}

// readVectors reads a file of testdata.
func readVectors(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name + ".json")
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestCloudEventsOfTheVectorsAreDecoded(t *testing.T) {
	t.Parallel()
	var vectors struct {
		Scenarios      []scenario
		MustReject     []scenario                                  `json:"must_reject"`
		HeaderEncoding []struct{ Value, Encoded, Decoded *string } `json:"header_value_encoding"`
	}
	readVectors(t, "cloudevents-http", &vectors)
	if len(vectors.Scenarios) < 6 || len(vectors.MustReject) < 5 || len(vectors.HeaderEncoding) < 4 {
		t.Fatal("vectors are missing")
	}
	for _, s := range vectors.Scenarios {
		events, isBatch, err := Decode(s.header(), []byte(s.Body), 1000)
		if err != nil || isBatch != (s.Mode == "batched") {
			t.Errorf("%s: batch %v, %v", s.Name, isBatch, err)
			continue
		}
		if isBatch {
			if len(events) != s.Events {
				t.Errorf("%s: %d events, want %d", s.Name, len(events), s.Events)
			}
			continue
		}
		var data any
		if err := json.Unmarshal(events[0].Event, &data); err != nil || !reflect.DeepEqual(data, s.Data) || !reflect.DeepEqual(events[0].Attributes, s.Attributes) {
			t.Errorf("%s: got %s with %v", s.Name, events[0].Event, events[0].Attributes)
		}
		if want := time.Date(2018, 4, 5, 3, 56, 24, 0, time.UTC); !events[0].Time.Equal(want) || events[0].Key() != "/mycontext/subcontext 1234-1234-1234" {
			t.Errorf("%s: at %v, key %s", s.Name, events[0].Time, events[0].Key())
		}
	}
	for _, s := range vectors.MustReject {
		if events, _, err := Decode(s.header(), []byte(s.Body), 1000); err == nil {
			t.Errorf("%s: got %v", s.Name, events)
		}
	}
	for _, v := range vectors.HeaderEncoding {
		want := v.Decoded
		if v.Value != nil {
			want = v.Value
		}
		if got, err := headerText(*v.Encoded); (err == nil) != (want != nil) || want != nil && got != *want {
			t.Errorf("%s: got %q, %v", *v.Encoded, got, err)
		}
	}
}

// with returns an event in JSON with more members.
func with(members string) string {
	return `{"specversion":"1.0","id":"1","source":"/s","type":"t"` + members + `}`
}

// binary returns the header of an event in binary mode, with more fields.
func binary(fields ...string) http.Header {
	return headerOf(append([]string{"ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, fields...)...)
}

func TestDataBecomeTheEvent(t *testing.T) {
	t.Parallel()
	structured := headerOf("Content-Type", MediaType)
	for name, c := range map[string]struct {
		header http.Header
		body   string
		event  string
		shape  DataShape
	}{
		"an object":            {structured, with(`,"data": {"a": 1.50} `), `{"a": 1.50}`, DataObject},
		"a list":               {structured, with(`,"data":[1]`), `{"data":[1]}`, DataValue},
		"null":                 {structured, with(`,"data":null`), `{"data":null}`, DataValue},
		"text":                 {structured, with(`,"data":"é","datacontenttype":"text/plain"`), `{"data":"é"}`, DataValue},
		"bytes":                {structured, with(`,"data_base64":"AAE="`), `{"data_base64":"AAE="}`, DataBase64},
		"bytes beside null":    {structured, with(`,"data_base64":"AAE=","data":null`), `{"data_base64":"AAE="}`, DataBase64},
		"no data":              {structured, with(``), `{}`, DataNone},
		"no bytes":             {structured, with(`,"data_base64":null`), `{}`, DataNone},
		"binary object":        {binary("Content-Type", "application/vnd.x+json"), ` {"a":1} `, `{"a":1}`, DataObject},
		"binary number":        {binary("Content-Type", "text/json"), `1.0`, `{"data":1.0}`, DataValue},
		"binary text":          {binary("Content-Type", "text/plain"), `{"a":1}`, `{"data":"{\"a\":1}"}`, DataValue},
		"binary XML":           {binary("Content-Type", "application/xml"), "é", `{"data":"é"}`, DataValue},
		"binary Latin-1":       {binary("Content-Type", "text/plain; charset=iso-8859-1"), "a", `{"data_base64":"YQ=="}`, DataBase64},
		"binary broken text":   {binary("Content-Type", "text/plain"), "\xff", `{"data_base64":"/w=="}`, DataBase64},
		"binary NUL":           {binary("Content-Type", "text/plain"), "\x00", `{"data_base64":"AA=="}`, DataBase64},
		"binary protobuf":      {binary("Content-Type", "application/protobuf"), "a", `{"data_base64":"YQ=="}`, DataBase64},
		"binary nothing":       {binary("Content-Type", "application/json"), "", `{}`, DataNone},
		"binary JSON, untyped": {binary(), `{"a":1}`, `{"data_base64":"eyJhIjoxfQ=="}`, DataBase64},
		"binary text, untyped": {binary(), `a`, `{"data_base64":"YQ=="}`, DataBase64},
	} {
		events, _, err := Decode(c.header, []byte(c.body), 1000)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e := events[0]; string(e.Event) != c.event || e.Shape != c.shape {
			t.Errorf("%s: got %s of the shape %q, want %s of %q", name, e.Event, e.Shape, c.event, c.shape)
		}
	}
}

func TestAttributesKeepTheirTypes(t *testing.T) {
	t.Parallel()
	header := headerOf("Content-Type", "application/cloudevents+json; charset=UTF-8")
	events, _, err := Decode(header, []byte(with(`,"a":-2147483648,"b":true,"c":"","d":null,"time":"2026-01-02t03:04:05.5+01:00"`)), 1000)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"specversion": "1.0", "id": "1", "source": "/s", "type": "t", "a": int32(-2147483648), "b": true, "c": "", "time": "2026-01-02t03:04:05.5+01:00",
	}
	if !reflect.DeepEqual(events[0].Attributes, want) || !events[0].Time.Equal(time.Date(2026, 1, 2, 2, 4, 5, 5e8, time.UTC)) {
		t.Errorf("got %v at %v", events[0].Attributes, events[0].Time)
	}
	events, _, err = Decode(binary("ce-subject", `"caf%C3%A9 \"x\""`, "CE-N", "1"), nil, 1000)
	if err != nil || events[0].Attributes["subject"] != `café "x"` || events[0].Attributes["n"] != "1" {
		t.Errorf("binary: got %v, %v", events, err)
	}
}

func TestHeaderOfASenderThatEncodesNothingIsTaken(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, sent, want string }{
		{"subject", "100% é", "100% é"},
		{"subject", "100%25 é", "100% é"},
		{"source", "/a%20b", "/a%20b"},
		{"source", "/a%2520b", "/a%20b"},
		{"dataschema", "https://a.example/%20", "https://a.example/%20"},
	} {
		header := binary()
		header.Set("ce-"+c.name, c.sent)
		if events, _, err := Decode(header, nil, 1000); err != nil || events[0].Attributes[c.name] != c.want {
			t.Errorf("%s %s: got %v, %v, want %s", c.name, c.sent, events, err, c.want)
		}
	}
}

func TestWhatBreaksARuleOfCloudEventsIsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	structured, batch := headerOf("Content-Type", MediaType), headerOf("Content-Type", BatchMediaType)
	for name, c := range map[string]struct {
		header   http.Header
		body     string
		pointers []string
	}{
		"no JSON":                    {structured, `{"a":`, []string{"#"}},
		"two values":                 {structured, `{} {}`, []string{"#"}},
		"nothing":                    {structured, ``, []string{"#"}},
		"no UTF-8":                   {structured, with(`,"a":"` + "\xff" + `"`), []string{"#"}},
		"a list":                     {structured, `[]`, []string{"#"}},
		"no attributes":              {structured, `{}`, []string{"#/specversion", "#/id", "#/source", "#/type"}},
		"attributes of null":         {structured, `{"specversion":"1.0","id":null,"source":"/s","type":"t"}`, []string{"#/id"}},
		"an id of another type":      {structured, `{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, []string{"#/id"}},
		"an object":                  {structured, with(`,"a":{}`), []string{"#/a"}},
		"a list as type":             {structured, `{"specversion":"1.0","id":"1","source":"/s","type":[]}`, []string{"#/type"}},
		"a fraction":                 {structured, with(`,"a":1.0`), []string{"#/a"}},
		"a long integer":             {structured, with(`,"a":2147483648`), []string{"#/a"}},
		"empty":                      {structured, `{"specversion":"1.0","id":"","source":"","type":"","subject":"","time":""}`, []string{"#/id", "#/source", "#/subject", "#/time", "#/type"}},
		"another version":            {structured, `{"specversion":"0.3","id":"1","source":"/s","type":"t"}`, []string{"#/specversion"}},
		"duplicate names":            {structured, with(`,"a":"1","a":"1"`), []string{"#/a"}},
		"duplicate names, escaped":   {structured, with(`,"a":"1","\u0061":null`), []string{"#/a"}},
		"duplicate data":             {structured, with(`,"data":1,"data":1`), []string{"#/data"}},
		"capitals":                   {structured, with(`,"partitionKey":"1"`), []string{"#/partitionKey"}},
		"no name":                    {structured, with(`,"":"1"`), []string{"#/"}},
		"a slash":                    {structured, with(`,"a/b~ ":"1"`), []string{"#/a~1b~0%20"}},
		"data twice":                 {structured, with(`,"data":1,"data_base64":"AAE="`), []string{"#/data_base64"}},
		"no base64":                  {structured, with(`,"data_base64":"AAE"`), []string{"#/data_base64"}},
		"base64 of a number":         {structured, with(`,"data_base64":1`), []string{"#/data_base64"}},
		"a control character":        {structured, with(`,"a":"\u0000"`), []string{"#/a"}},
		"no character":               {structured, with(`,"a":"\uffff"`), []string{"#/a"}},
		"a lone surrogate":           {structured, with(`,"a":"\ud800"`), []string{"#/a"}},
		"the wrong surrogates":       {structured, with(`,"a":"\ude00\ud83d"`), []string{"#/a"}},
		"blanks in a source":         {structured, `{"specversion":"1.0","id":"1","source":"a b","type":"t"}`, []string{"#/source"}},
		"a relative schema":          {structured, with(`,"dataschema":"/s"`), []string{"#/dataschema"}},
		"no time":                    {structured, with(`,"time":"2026-01-02 03:04:05Z"`), []string{"#/time"}},
		"no media type":              {structured, with(`,"datacontenttype":"a b"`), []string{"#/datacontenttype"}},
		"a batch of an object":       {batch, `{}`, []string{"#"}},
		"a batch of null":            {batch, `null`, []string{"#"}},
		"a batch of a number":        {batch, `[1]`, []string{"#/0"}},
		"the second of a batch":      {batch, `[` + with(``) + `,{"specversion":"1.0","id":"1","source":"/s"}]`, []string{"#/1/type"}},
		"binary without a version":   {headerOf("ce-id", "1", "ce-source", "/s", "ce-type", "t"), ``, []string{"ce-specversion"}},
		"binary without a type":      {headerOf("ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s"), ``, []string{"ce-type"}},
		"binary data":                {binary("ce-data", "1"), ``, []string{"ce-data"}},
		"binary name":                {binary("ce-a-b", "1"), ``, []string{"ce-a-b"}},
		"binary twice":               {binary("ce-a", "1", "Ce-A", "1"), ``, []string{"ce-a"}},
		"binary, no UTF-8":           {binary("ce-a", "\xff"), ``, []string{"ce-a"}},
		"binary quotes":              {binary("ce-a", `"a`), ``, []string{"ce-a"}},
		"binary quotes within":       {binary("ce-a", `"a"b"`), ``, []string{"ce-a"}},
		"binary JSON":                {binary("Content-Type", "application/json"), `{`, []string{"#"}},
		"binary JSON of a charset":   {binary("Content-Type", "application/json; charset=utf-16"), `{}`, []string{"#"}},
		"two types of content":       {headerOf("Content-Type", MediaType, "Content-Type", "text/plain"), ``, []string{"Content-Type"}},
		"no such type of content":    {binary("Content-Type", ";"), ``, []string{"Content-Type"}},
		"binary type of content":     {binary("ce-datacontenttype", "text/plain"), ``, []string{"ce-datacontenttype"}},
		"binary, an encoded control": {binary("ce-a", "%00"), ``, []string{"ce-a"}},
	} {
		events, _, err := Decode(c.header, []byte(c.body), 1000)
		invalid, ok := errors.AsType[*InvalidError](err)
		if !ok {
			t.Errorf("%s: got %v, %v", name, events, err)
			continue
		}
		var pointers []string
		for _, v := range invalid.Violations {
			pointers = append(pointers, v.Pointer)
		}
		if !slices.Equal(pointers, c.pointers) {
			t.Errorf("%s: got %v, want them at %v", name, err, c.pointers)
		}
	}
	for _, media := range []string{"application/json", "", "application/cloudevents+xml", "application/cloudevents", "application/cloudevents+json; charset=utf-16"} {
		if _, _, err := Decode(headerOf("Content-Type", media), []byte(with(``)), 1000); !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", media, err)
		}
	}
	var bad InvalidError
	if _, err := decodeBatch([]byte(`[`+strings.Repeat(`{},`, 100)+`{}]`), 1000, &bad); err != nil || len(bad.Violations) != maxViolations {
		t.Errorf("an error has %d violations", len(bad.Violations))
	}
}

func TestBatchIsCountedBeforeItIsDecoded(t *testing.T) {
	t.Parallel()
	header := headerOf("Content-Type", BatchMediaType)
	for _, element := range []string{`{}`, `0`, `{"specversion":"1.0","id":"1","source":"/s","type":"t"}`} {
		body := []byte(`[` + strings.Repeat(element+`,`, 1000) + element + `]`)
		if _, isBatch, err := Decode(header, body, 1000); !errors.Is(err, ErrTooMany) || !isBatch {
			t.Errorf("1,001 times %s: %v", element, err)
		}
		var invalid *InvalidError
		if _, _, err := Decode(header, body, 1001); errors.Is(err, ErrTooMany) || err != nil && !errors.As(err, &invalid) {
			t.Errorf("as many as there may be: %v", err)
		}
	}
	attributes := make([]string, 5000)
	for i := range attributes {
		attributes[i] = fmt.Sprintf(`"a%d":1`, i)
	}
	_, _, err := Decode(headerOf("Content-Type", MediaType), []byte(with(`,`+strings.Join(attributes, `,`))), 1)
	if invalid, ok := errors.AsType[*InvalidError](err); !ok || invalid.Violations[0].Pointer != "#" {
		t.Errorf("5,000 attributes: %v", err)
	}
}

func TestBatchOfManyEventsTakesNoMoreMemoryThanItsLimit(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts those of others, too
	body := []byte(`[` + strings.Repeat(`{},`, 500_000) + `{}]`)
	header := headerOf("Content-Type", BatchMediaType)
	if n := testing.AllocsPerRun(1, func() { _, _, _ = Decode(header, body, 1000) }); n > 20_000 {
		t.Errorf("%g allocations for a batch of which 1,000 events could be taken", n)
	}
	invalid := []byte(`[` + strings.Repeat(`{},`, 999) + `{}]`)
	if n := testing.AllocsPerRun(1, func() { _, _, _ = Decode(header, invalid, 1000) }); n > 10_000 {
		t.Errorf("%g allocations for a batch of which 20 violations are told", n)
	}
}

func TestKeyTellsEventsApartWithinItsLength(t *testing.T) {
	t.Parallel()
	keys := make(map[string]bool)
	for _, e := range []Event{
		{Source: "/a", ID: "b c"},
		{Source: "/a", ID: "b"},
		{Source: "/b", ID: "a"},
		{Source: "/a", ID: strings.Repeat("é", 252)},
		{Source: "/a", ID: strings.Repeat("é", 253)},
		{Source: "/a", ID: strings.Repeat("é", 254)},
	} {
		key := e.Key()
		if n := utf8.RuneCountInString(key); keys[key] || n > 255 || key != e.Key() {
			t.Errorf("the key %s of %d characters", key, n)
		}
		keys[key] = true
	}
	if !keys["/a "+strings.Repeat("é", 252)] {
		t.Error("a key of 255 characters is hashed")
	}
}

func TestTraceContextIsKeptIfItIsValid(t *testing.T) {
	t.Parallel()
	var vectors struct {
		Cases []struct {
			Name, TraceParent string
			Headers           []string
			Keep              bool `json:"keep_trace_id"`
		}
	}
	readVectors(t, "traceparent", &vectors)
	if len(vectors.Cases) < 20 {
		t.Fatal("vectors are missing")
	}
	for _, v := range vectors.Cases {
		header := http.Header{"Traceparent": append(v.Headers, v.TraceParent)}
		if v.Headers != nil {
			header["Traceparent"] = v.Headers
		}
		if parent, _ := TraceContext(header); (parent != "") != v.Keep || v.Keep && parent != strings.TrimSpace(v.TraceParent) {
			t.Errorf("%s: got %q", v.Name, parent)
		}
	}
	const one, other = "00-12345678901234567890123456789012-1234567890123456-01", "00-22345678901234567890123456789012-1234567890123456-01"
	for state, want := range map[string]string{"a=1,b=2": "a=1,b=2", "": "", "a": "", "a=\x01": "", strings.Repeat("a=1,", 32) + "a=1": "", "a=" + strings.Repeat("b", 511): ""} {
		if parent, got := TraceContext(http.Header{"Traceparent": {one}, "Tracestate": {state}}); parent != one || got != want {
			t.Errorf("%q: got %q, %q", state, parent, got)
		}
	}
	for name, c := range map[string]struct {
		header              http.Header
		parent, state, meta string
	}{
		"of the event":               {binary("ce-traceparent", one, "ce-tracestate", "a=1", "traceparent", other, "tracestate", "b=2"), one, "a=1", one},
		"of the request":             {binary("traceparent", other, "tracestate", "b=2", "tracestate", "c=3"), other, "b=2,c=3", ""},
		"invalid, and of the header": {binary("ce-traceparent", "00", "ce-tracestate", "a=1", "traceparent", other), other, "", "00"},
		"invalid":                    {binary("ce-traceparent", "00", "traceparent", "00", "tracestate", "a=1"), "", "", "00"},
	} {
		events, _, err := Decode(c.header, nil, 1000)
		if err != nil {
			t.Fatal(err)
		}
		e := events[0]
		if kept, _ := e.Attributes["traceparent"].(string); e.TraceParent != c.parent || e.TraceState != c.state || kept != c.meta {
			t.Errorf("%s: got %q, %q, attribute %q", name, e.TraceParent, e.TraceState, kept)
		}
	}
}

func TestEventGoesOutAsACloudEvent(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 678900, time.UTC)
	for name, c := range map[string]struct {
		e    Outgoing
		want string
	}{
		"an event of its own": {
			OutgoingOf(7, "mail", "", "", at, json.RawMessage(`{"a":1}`), nil),
			`{"specversion":"1.0","id":"7","source":"/queues/mail","type":"queued.event","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json","data":{"a":1}}`,
		},
		"with a source and a type": {
			OutgoingOf(7, "mail", "my <shop>", "a \"b\"<\x01é", at, json.RawMessage(`{}`), json.RawMessage(`{"traceparent":"x"}`)),
			`{"specversion":"1.0","id":"7","source":"my%20%3Cshop%3E","type":"a \"b\"<é","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json","data":{}}`,
		},
		"with a source that begins like a URI": {
			OutgoingOf(7, "mail", ":", "t", at, json.RawMessage(`{}`), nil),
			`{"specversion":"1.0","id":"7","source":"%3A","type":"t","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json","data":{}}`,
		},
		"of a queue of any name": {
			OutgoingOf(7, "a/b é", "", "", at, json.RawMessage(`{}`), nil),
			`{"specversion":"1.0","id":"7","source":"/queues/a%2Fb%20%C3%A9","type":"queued.event","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json","data":{}}`,
		},
		"metadata that only look like a CloudEvent's": {
			OutgoingOf(7, "mail", "", "", at, json.RawMessage(`{"data":1}`), json.RawMessage(`{"ce":{"id":"1","X":1,"source":"/s"},"ce_data":"value"}`)),
			`{"specversion":"1.0","id":"7","source":"/queues/mail","type":"queued.event","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json","data":{"data":1}}`,
		},
		"metadata of another form": {
			OutgoingOf(7, "mail", "", "", at, json.RawMessage(`{}`), json.RawMessage(`{"ce":[1]}`)),
			`{"specversion":"1.0","id":"7","source":"/queues/mail","type":"queued.event","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json","data":{}}`,
		},
		"a CloudEvent with attributes that are none": {
			OutgoingOf(7, "mail", "", "", at, json.RawMessage(`{}`), json.RawMessage(`{"ce":{"id":"1","X":1,"source":"/s","type":"t","specversion":"1.0","time":"now","n":1e9,"o":{},"b":false}}`)),
			`{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05.000678Z","b":false,"data":{}}`,
		},
		"a CloudEvent with data that have changed since": {
			OutgoingOf(7, "mail", "", "", at, json.RawMessage(`{"data_base64":1}`), json.RawMessage(`{"ce":{"id":"1","source":"/s","type":"t","specversion":"1.0","time":"2026-01-02T03:04:05Z"},"ce_data":"base64"}`)),
			`{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05Z","data":{"data_base64":1}}`,
		},
		"an event with a trace": {
			OutgoingOf(7, "mail", "", "", at, json.RawMessage(`{}`), json.RawMessage(`{"traceparent":"00-12345678901234567890123456789012-1234567890123456-01","tracestate":"a=1"}`)),
			`{"specversion":"1.0","id":"7","source":"/queues/mail","type":"queued.event","time":"2026-01-02T03:04:05.000678Z","datacontenttype":"application/json",` +
				`"traceparent":"00-12345678901234567890123456789012-1234567890123456-01","tracestate":"a=1","data":{}}`,
		},
		"extensions": {
			Outgoing{
				ID: 7, Source: "/s", Type: "", Time: at, Payload: json.RawMessage(`{}`), Extensions: []Extension{{"queuedid", "7"}, {"queuedreceipt", ""}, {"b", "\x00x"}, {"n", int32(-1)}, {"none", nil}},
				Meta: json.RawMessage(`{"ce":{"id":"1","source":"/s","type":"t","specversion":"1.0","time":"2026-01-02T03:04:05Z","queuedid":1,"queuedreceipt":"r","a":"z"}}`),
			},
			`{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05Z","a":"z","b":"x","n":-1,"queuedid":"7","data":{}}`,
		},
	} {
		got := Append(nil, &c.e)
		if string(got) != c.want {
			t.Errorf("%s: got\n%s, want\n%s", name, got, c.want)
		}
		if _, _, err := Decode(headerOf("Content-Type", MediaType), got, 1000); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzCloudEvents holds that whatever is taken for an event comes out as the event that it was, and that whatever goes out is an event.
func FuzzCloudEvents(f *testing.F) {
	for _, seed := range []string{
		with(`,"data":{"a":1}`), with(`,"data":[1]`), with(`,"data":{"data":1}`), with(`,"data_base64":"AAE="`), with(``), with(`,"a":-1,"b":true,"c":"é\"\\\u2028"`),
		`[` + with(`,"data":null`) + `]`, with(`,"data":"\ud83d\ude00"`), with(`,"a":"\ud83d\ude00"`),
	} {
		f.Add(seed, "", "", "")
	}
	f.Add("text", "text/plain", "a%20b", `"q"`)
	f.Add("{}", "application/json", "1", "/s")
	f.Fuzz(func(t *testing.T, body, contentType, id, source string) {
		for _, header := range []http.Header{
			headerOf("Content-Type", MediaType), headerOf("Content-Type", BatchMediaType),
			{"Ce-Specversion": {"1.0"}, "Ce-Id": {id}, "Ce-Source": {source}, "Ce-Type": {"t"}, "Content-Type": {contentType}},
		} {
			events, _, err := Decode(header, []byte(body), 1000)
			for i := range events {
				checkRoundTrip(t, &events[i])
			}
			if invalid, ok := errors.AsType[*InvalidError](err); err != nil && !errors.Is(err, ErrFormat) && (!ok || len(invalid.Violations) == 0) {
				t.Errorf("the error %v says nothing", err)
			}
		}
		if json.Valid([]byte(body)) && utf8.ValidString(body) && strings.HasPrefix(body, "{") {
			out := OutgoingOf(1, id, source, contentType, time.Unix(0, 0), json.RawMessage(body), json.RawMessage(body))
			if _, _, err := Decode(headerOf("Content-Type", MediaType), Append(nil, &out), 1000); err != nil && utf8.ValidString(source+contentType) {
				t.Errorf("what goes out is no CloudEvent: %v", err)
			}
		}
	})
}

func checkRoundTrip(t *testing.T, e *Event) {
	t.Helper()
	if !json.Valid(e.Event) || e.Event[0] != '{' {
		t.Fatalf("the event %s is no object", e.Event)
	}
	meta, err := json.Marshal(e.Meta())
	if err != nil {
		t.Fatal(err)
	}
	out := OutgoingOf(1, "q", e.Source, e.Type, e.Time, e.Event, meta)
	text := Append(nil, &out)
	again, _, err := Decode(headerOf("Content-Type", MediaType), text, 1000)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, name := range []string{"time", "traceparent", "tracestate"} { // which an event without them gets from elsewhere
		delete(again[0].Attributes, name)
		delete(e.Attributes, name)
	}
	if got := again[0]; !reflect.DeepEqual(got.Attributes, e.Attributes) || string(got.Event) != string(e.Event) || got.Shape != e.Shape {
		t.Fatalf("got %v %s %q, want %v %s %q", got.Attributes, got.Event, got.Shape, e.Attributes, e.Event, e.Shape)
	}
}
