package bind_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
)

var limits = bind.Limits{Body: 200, Event: 100, Items: 3, Depth: 3}

// decode decodes a request into a Req.
func decode[Req any](r *http.Request) (Req, error) {
	var req Req
	err := bind.New[Req](limits).Decode(httptest.NewRecorder(), r, new(body.Hold), &req)
	return req, err
}

func post(target, body string) *http.Request {
	return httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
}

func get(target string) *http.Request {
	return httptest.NewRequest(http.MethodGet, target, http.NoBody)
}

// said is the code of a problem, and each bad field or the detail; "ok" when there is no error.
func said(t *testing.T, err error) string {
	t.Helper()
	if err == nil {
		return "ok"
	}
	p, ok := errors.AsType[*problem.Problem](err)
	if !ok {
		t.Fatalf("the error %v is no problem", err)
	}
	if len(p.Errors) == 0 {
		return p.Type.Code + "\n" + p.Detail
	}
	text := p.Type.Code
	for _, e := range p.Errors {
		text += "\n" + e.Pointer + " " + e.Detail
	}
	return text
}

// wantProblems decodes each body into a Req, and compares what is said about it.
func wantProblems[Req any](t *testing.T, want map[string]string) {
	t.Helper()
	for body, want := range want {
		_, err := decode[Req](post("/", body))
		if diff := cmp.Diff(want, said(t, err)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", body, diff)
		}
	}
}

// wantParameterProblems does the same for each query.
func wantParameterProblems[Req any](t *testing.T, want map[string]string) {
	t.Helper()
	for query, want := range want {
		_, err := decode[Req](get("/?" + query))
		if diff := cmp.Diff(want, said(t, err)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", query, diff)
		}
	}
}

type listing struct {
	Limit  int        `query:"limit" default:"10" validate:"min=1,max=20"`
	Queue  string     `query:"queue" validate:"queue"`
	Since  *time.Time `query:"since"`
	Follow bool       `query:"follow"`
	Topics []string   `query:"topic" validate:"max=3,dive,min=1,max=8"`
	IDs    []int64    `query:"id" validate:"dive,min=1"`
}

func TestQueryParametersAreDecoded(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for query, want := range map[string]listing{
		"":                                  {Limit: 10},
		"limit=20&queue=a.b:c":              {Limit: 20, Queue: "a.b:c"},
		"since=2026-02-03T05:05:06%2B01:00": {Limit: 10, Since: &at},
		"follow=true":                       {Limit: 10, Follow: true},
		"follow=false":                      {Limit: 10},
		"topic=a":                           {Limit: 10, Topics: []string{"a"}},
		"topic=a&limit=1&topic=b&topic=a":   {Limit: 1, Topics: []string{"a", "b", "a"}},
		"topic=a,b&id=7&id=3":               {Limit: 10, Topics: []string{"a,b"}, IDs: []int64{7, 3}},
	} {
		got, err := decode[listing](get("/?" + query))
		if err != nil {
			t.Fatalf("%s: %s", query, said(t, err))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", query, diff)
		}
	}
}

func TestBadQueryParametersAreNamedAllAtOnce(t *testing.T) {
	t.Parallel()
	wantParameterProblems[listing](t, map[string]string{
		"limit=0&queue=":  "invalid_parameter\n?limit must be at least 1\n?queue must be 1 to 128 of A–Z a–z 0–9 . _ : -",
		"limit=1&limit=2": "invalid_parameter\n?limit must be given once",
		"limit=%2B1":      "invalid_parameter\n?limit must be an integer, not \"+1\"",
		"limit=":          "invalid_parameter\n?limit must be an integer, not \"\"",
		"follow=yes":      "invalid_parameter\n?follow must be true or false, not \"yes\"",
		"since=2026-02-03T04:05:06+01:00": "invalid_parameter\n?since must be an RFC 3339 time such as \"2026-02-03T04:05:06Z\", " +
			"not \"2026-02-03T04:05:06 01:00\"; in a URL, write \"+\" as %2B",
		"since=0000-12-31T23:59:59Z":      "invalid_parameter\n?since \"0000-12-31T23:59:59Z\" is out of range: the year in UTC must be 1 to 9999",
		"topic=a&topic=":                  "invalid_parameter\n?topic must not be empty",
		"topic=a&topic=b&topic=c&topic=d": "invalid_parameter\n?topic must be at most 3 elements long",
		"topic=" + strings.Repeat("é", 9): "invalid_parameter\n?topic must be at most 8 characters long",
		"id=1&id=x&id=0":                  "invalid_parameter\n?id must be an integer, not \"x\"\n?id must be at least 1",
		"topic=%00":                       "invalid_parameter\n?topic must not contain a NUL character",
		"topic=%ff":                       "invalid_parameter\n?topic must be valid UTF-8",
		"limt=1&Queue=a":                  "unknown_parameter\n?Queue unknown parameter; expected one of limit, queue, since, follow, topic, id\n?limt unknown parameter; expected one of limit, queue, since, follow, topic, id",
		"a;b":                             "invalid_parameter\nThe query string is malformed: invalid semicolon separator in query.",
	})
	wantParameterProblems[struct{}](t, map[string]string{"": "ok", "a=1": "unknown_parameter\n?a unknown parameter; expected none"})
}

type object struct {
	Contains json.RawMessage `query:"contains"`
	Must     string          `query:"must" validate:"required"`
}

func TestObjectInTheQueryIsHeldToTheSameLimits(t *testing.T) {
	t.Parallel()
	want := make(map[string]string)
	for contains, problem := range map[string]string{
		` {"a": 1} `:     "ok",
		`{"a":[[]]}`:     "ok",
		`{"a":[[[]]]}`:   "too_deep\n?contains must be nested at most 3 levels deep",
		`{"a":"\u0000"}`: "unrepresentable\n?contains contains \\u0000, which PostgreSQL cannot store",
		``:               "invalid_parameter\n?contains must be a JSON object: The JSON ends early",
		`[]`:             "invalid_parameter\n?contains must be a JSON object, not []",
		`{"a":1,"a":2}`:  "invalid_parameter\n?contains duplicate name",
		`{} x`:           "invalid_parameter\n?contains must be a JSON object: The body must be one JSON value, but more follows at byte 3",
	} {
		want["must=x&contains="+url.QueryEscape(contains)] = problem
	}
	want["contains=%7B%7D"] = "invalid_parameter\n?must is required"
	wantParameterProblems[object](t, want)
	if req, err := decode[object](get("/?must=x&contains=%20%7B%22a%22:1%7D")); err != nil || string(req.Contains) != `{"a":1}` {
		t.Errorf("got %s, %v", req.Contains, err)
	}
}

type place struct {
	ID      int64  `path:"id" validate:"min=1" log:"id"`
	Name    string `path:"name" validate:"owner" log:"owner"`
	Token   string `header:"X-Token" validate:"max=4"`
	Version tags   `header:"If-Match"`
	Hidden  string
}

// tags are a list in one or more header lines.
type tags []string

func (ts *tags) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("must name a tag")
	}
	*ts = strings.Split(string(text), ", ")
	return nil
}

func TestPathAndHeaderAreDecoded(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		id, name string
		header   http.Header
		want     string
	}{
		{"7", "ada@example.org", nil, "ok"},
		{"9223372036854775807", "a", http.Header{"X-Token": {"é€𝄞x"}, "If-Match": {"a, b", "c"}}, "ok"},
		{"07", "a b", nil, "invalid_parameter\n{id} must be an integer, not \"07\"\n{name} must be 1 to 128 of A–Z a–z 0–9 . _ : @ + -"},
		{"9223372036854775808", "a", nil, "invalid_parameter\n{id} must be at most 9223372036854775807"},
		{"-9223372036854775809", "a", nil, "invalid_parameter\n{id} must be at least -9223372036854775808"},
		{"7", "a", http.Header{"X-Token": {"a", "b"}, "If-Match": {""}}, "invalid_parameter\nX-Token must be given once\nIf-Match must name a tag"},
		{"7", "a", http.Header{"X-Token": {"abcde"}}, "invalid_parameter\nX-Token must be at most 4 characters long"},
	} {
		r := get("/")
		r.SetPathValue("id", tc.id)
		r.SetPathValue("name", tc.name)
		r.Header = tc.header
		got, err := decode[place](r)
		if diff := cmp.Diff(tc.want, said(t, err)); diff != "" {
			t.Errorf("%+v (-want +got)\n%s", tc, diff)
		}
		if err == nil && (fmt.Sprint(got.ID) != tc.id || got.Name != tc.name || got.Token != tc.header.Get("X-Token") || (tc.header != nil && len(got.Version) != 3)) {
			t.Errorf("%+v was decoded as %+v", tc, got)
		}
	}
}

func TestLogHasTheTaggedFields(t *testing.T) {
	t.Parallel()
	logged := make(map[string]any)
	bind.New[place](limits).Log(&place{ID: 7, Name: "ada", Token: "secret"}, func(name string, value any) { logged[name] = value })
	if diff := cmp.Diff(map[string]any{"id": int64(7), "owner": "ada"}, logged); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

type order struct {
	Name   string          `json:"name" validate:"required,min=1,max=5"`
	N      int32           `json:"n,omitzero" default:"3" validate:"min=1"`
	Rate   float64         `json:"rate" validate:"max=1"`
	Urgent *bool           `json:"urgent"`
	Wait   *time.Duration  `json:"wait" default:"1m" null:"nil" validate:"min=0s,max=1h"`
	Note   *string         `json:"note" null:"zero" validate:"max=3"`
	Kind   string          `json:"kind" default:"a" validate:"oneof=a b"`
	Tags   []string        `json:"tags" validate:"max=2,dive,min=1"`
	Lines  []line          `json:"lines" validate:"min=1"`
	Event  json.RawMessage `json:"event"`
	Result bind.Value      `json:"result"`
}

type line struct {
	Item  string `json:"item" validate:"required"`
	Count int    `json:"count" default:"1"`
	Of    int    `json:"of"`
}

// Check implements bind.Checker.
func (l *line) Check(report func(field, detail string)) {
	if l.Of != 0 && l.Count > l.Of {
		report("count", "must be at most of")
	}
}

func TestBodyIsDecodedWithItsDefaults(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]order{
		`{"name":"x"}`: {Name: "x", N: 3, Wait: new(time.Minute), Kind: "a"},
		` { "name" : "\u0061\n" , "n" : 1 , "rate" : -0.5e-1 , "urgent" : false , "wait" : null , "note" : null , "kind" : "b" } `: {
			Name: "a\n", N: 1, Rate: -0.05, Urgent: new(bool), Note: new(string), Kind: "b",
		},
		`{"name":"x","wait":"90s","note":"abc","tags":["a","b"],"lines":[{"item":"i"},{"count":2,"item":""}]}`: {
			Name: "x", N: 3, Wait: new(90 * time.Second), Note: new("abc"), Kind: "a", Tags: []string{"a", "b"},
			Lines: []line{{Item: "i", Count: 1}, {Count: 2}},
		},
		`{"name":"x","event": {"a" : [1, "\u00e9"]} ,"result": [null ] }`: {
			Name: "x", N: 3, Wait: new(time.Minute), Kind: "a", Event: json.RawMessage(`{"a" : [1, "\u00e9"]}`), Result: bind.Value(`[null ]`),
		},
	} {
		got, err := decode[order](post("/", body))
		if err != nil {
			t.Fatalf("%s: %s", body, said(t, err))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", body, diff)
		}
	}
}

func TestBadFieldsOfABodyAreNamedAllAtOnce(t *testing.T) {
	t.Parallel()
	wantProblems[order](t, map[string]string{
		``:                  "invalid_json\nThe body is empty; expected a JSON object with name.",
		` `:                 "invalid_json\nThe body is empty; expected a JSON object with name.",
		`[1]`:               "validation_failed\n# must be a JSON object, not [1]",
		`{}`:                "validation_failed\n#/name is required",
		`{"name":"","n":0}`: "validation_failed\n#/name must not be empty\n#/n must be at least 1",
		`{"name":1,"n":"1","rate":true,"urgent":1,"wait":1,"tags":{},"lines":[1],"event":null}`: "validation_failed\n#/name must be a string, not 1\n" +
			"#/n must be an integer, not \"1\"\n#/rate must be a number, not true\n#/urgent must be true or false, not 1\n" +
			"#/wait must be a duration such as \"90s\", \"10m\" or \"7d\", not 1\n#/tags must be an array, not {}\n#/lines/0 must be a JSON object, not 1\n" +
			"#/event must be a JSON object, not null",
		`{"name":"abcdef","n":2147483648,"rate":1e999,"wait":"61m","kind":"c"}`: "validation_failed\n#/name must be at most 5 characters long\n" +
			"#/n must be at most 2147483647\n#/rate must be at most 1\n#/wait must be at most 1h0m0s\n#/kind must be one of a, b",
		`{"name":"x","wait":"99999999w"}`: "validation_failed\n#/wait \"99999999w\" is out of range: a duration is at most 106751d",
		`{"name":"x","tags":["",2,"a"],"lines":[]}`: "validation_failed\n#/tags/0 must not be empty\n#/tags/1 must be a string, not 2\n" +
			"#/tags must be at most 2 elements long\n#/lines must not be empty",
		`{"name":"x","lines":[{},{"item":"i","count":3,"of":2},{"item":"i","a~/b":[1]}]}`: "validation_failed\n#/lines/0/item is required\n" +
			"#/lines/1/count must be at most of\n#/lines/2/a~0~1b unknown field; expected one of item, count, of",
	})
}

func TestWhatEndsTheDecodingIsReportedAlone(t *testing.T) {
	t.Parallel()
	wantProblems[order](t, map[string]string{
		`{"name":1,"lines":[{},{},{},{}]}`:                        "batch_too_large\n#/lines must be at most 3 elements long",
		`{"name":1,"name":"\u0000"}`:                              "invalid_json\n#/name duplicate name",
		`{"n":0,"name":"\u0000"}`:                                 "unrepresentable\n#/name contains \\u0000, which PostgreSQL cannot store",
		`{"n":0,"name":"\ud800"}`:                                 "unrepresentable\n#/name contains a lone surrogate, which UTF-8 cannot encode",
		`{"n":0,"event":{"a":["\\u0000"]}}`:                       "validation_failed\n#/n must be at least 1\n#/name is required",
		`{"n":0,"event":{"a":["\\\u0000"]}}`:                      "unrepresentable\n#/event/a/0 contains \\u0000, which PostgreSQL cannot store",
		`{"n":0,"event":{"a":[[{}]]}}`:                            "too_deep\n#/event/a/0/0 must be nested at most 3 levels deep",
		`{"n":0,"result":1e1001}`:                                 "unrepresentable\n#/result is a number with too many digits when written out",
		`{"n":0,"result":[1e150,1e150]}`:                          "unrepresentable\n#/result/1 is the number with which the body, its numbers written out, exceeds 200 bytes",
		`{"n":0,"event":{"a":"` + strings.Repeat("x", 93) + `"}}`: "body_too_large\n#/event must be at most 100 bytes long, not 101",
		`{"n":0`:     "invalid_json\nThe JSON ends early.",
		"\ufeff{}":   "invalid_json\nThe JSON begins with a byte order mark; send it without one.",
		`{"n":0,}`:   "invalid_json\nAt byte 6: invalid character ',' at start of value.",
		`{"n":0} {}`: "invalid_json\nThe body must be one JSON value, but more follows at byte 8.",
	})
}

type wrapped struct {
	Event json.RawMessage `body:"event"`
	Span  `in:"query"`
}

// A Span has members of a body or, with the tag in, of a query.
type Span struct {
	From int `json:"from" default:"1"`
	To   int `json:"to"`
}

// Check implements bind.Checker.
func (s *Span) Check(report func(field, detail string)) {
	if s.To != 0 && s.From > s.To {
		report("from", "must be at most to")
	}
}

type spanRequest struct {
	Span `require:"to"`
}

func TestEmbeddedFieldsAreWhereTheirTagSays(t *testing.T) {
	t.Parallel()
	got, err := decode[wrapped](post("/?to=5", ` {"from":9} `))
	if diff := cmp.Diff(wrapped{json.RawMessage(`{"from":9}`), Span{1, 5}}, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	_, err = decode[wrapped](post("/?from=5&to=2", `{}`))
	if got := said(t, err); got != "invalid_parameter\n?from must be at most to" {
		t.Errorf("got %s", got)
	}
	wantProblems[wrapped](t, map[string]string{``: "invalid_json\nThe body is empty; expected a JSON object."})
	wantProblems[spanRequest](t, map[string]string{
		`{"to":1}`:          "ok",
		`{"from":2,"to":1}`: "validation_failed\n#/from must be at most to",
		`{"from":2}`:        "validation_failed\n#/to is required",
	})
}

func TestBodiesAreLimitedAndHaveAMediaType(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		body, media, coding string
		want                string
	}{
		{`{"a":1}`, "", "", "ok"},
		{`{"a":1}`, "text/plain; charset=US-ASCII", "Identity", "ok"},
		{`{"a":1}`, "application/merge-patch+json", "", "ok"},
		{
			`{"a":1}`, "application/cloudevents+json", "", `unsupported_media_type` + "\n" +
				`The body must be sent as application/json, not as "application/cloudevents+json". POST /cloudevents takes CloudEvents.`,
		},
		{``, "application/xml", "gzip", "invalid_json\nThe body is empty; expected a JSON object."},
		{`{"a":1}`, "application/xml", "", `unsupported_media_type` + "\n" + `The body must be sent as application/json, not as "application/xml".`},
		{`{"a":1}`, "text/plain; charset=Latin1", "", `unsupported_media_type` + "\n" + `The body must be in UTF-8, not in "latin1".`},
		{`{"a":1}`, "application/json", "gzip", "unsupported_media_type\nThe body must be sent without Content-Encoding."},
		{`{"a":"` + strings.Repeat("x", 193) + `"}`, "", "", "body_too_large\nThe body must be at most 200 bytes long."},
	} {
		for _, length := range []int64{int64(len(tc.body)), -1} {
			r := post("/", tc.body)
			r.ContentLength = length
			r.Header.Set("Content-Type", tc.media)
			r.Header.Set("Content-Encoding", tc.coding)
			_, err := decode[wrapped](r)
			if diff := cmp.Diff(tc.want, said(t, err)); diff != "" {
				t.Errorf("%+v (-want +got)\n%s", tc, diff)
			}
		}
	}
	r := post("/", "")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(`{"a"`)), 10
	_, err := decode[wrapped](r)
	if got := said(t, err); got != "invalid_json\nThe body did not arrive in full, or not in time." {
		t.Errorf("a body that ends early: got %s", got)
	}
}

func TestInvalidDefaultPanics(t *testing.T) {
	t.Parallel()
	defer func() {
		if got := fmt.Sprint(recover()); !strings.Contains(got, "Limit must be at least 1") {
			t.Errorf("got %s", got)
		}
	}()
	bind.New[struct {
		Limit int `query:"limit" default:"0" validate:"min=1"`
	}](limits)
}
