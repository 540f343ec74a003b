package webhook

import (
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/cloudevents"
)

func template(t *testing.T, text string) Template {
	t.Helper()
	parsed, err := ParseTemplate(text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return parsed
}

func TestTemplatesAreFilledIn(t *testing.T) {
	t.Parallel()
	var payload any
	decoder := json.NewDecoder(strings.NewReader(
		`{"id":12345678901234567890,"f":1.50,"ok":true,"none":null,"list":["a",{"b":"c"}],"a/b":{"~":"tilde"},"":{"":"empty names"},"object":{},"text":"{/id}"}`))
	decoder.UseNumber()
	if err := decoder.Decode(&payload); err != nil {
		t.Fatal(err)
	}
	d := &delivery{header: headerOf("X-Event", "push"), query: url.Values{"tenant": {"t1"}, "empty": {""}}, payload: payload}
	for text, want := range map[string]string{
		"":                            "",
		"plain":                       "plain",
		"a.{/id}.b":                   "a.12345678901234567890.b",
		"{/f}{/ok}":                   "1.50true",
		"{/list/0}-{/list/1/b}":       "a-c",
		"{/a~1b/~0}":                  "tilde",
		"{//}":                        "empty names",
		"{/text}":                     "{/id}",
		"{header:x-event}":            "push",
		"{query:tenant}{query:empty}": "t1",
	} {
		if got, err := template(t, text).fill(d); err != nil || got != want {
			t.Errorf("%s: got %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{"{/nothing}", "{/none}", "{/object}", "{/list}", "{/list/2}", "{/list/00}", "{/list/-1}", "{/list/b}", "{/id/x}", "{header:None}", "{query:none}", "x{/nothing}"} {
		if got, err := template(t, text).fill(d); err == nil || got != "" {
			t.Errorf("%s: got %q, want an error", text, got)
		}
	}
	for _, text := range []string{"{", "}", "a}b", "{}", "{x}", "{header:}", "{header:a b}", "{header:é}", "{query:}", "{/a", "{/~}", "{/~2}", "{{/a}}", "{body:/a}"} {
		if _, err := ParseTemplate(text); err == nil {
			t.Errorf("the template %s is taken", text)
		}
	}
}

func TestDeliveriesBecomeEvents(t *testing.T) {
	t.Parallel()
	form := "application/x-www-form-urlencoded"
	for name, c := range map[string]struct {
		mapping Mapping
		header  http.Header
		body    string

		event, typ, key string
		at              int64
		problems        int
	}{
		"an event of Slack": {
			Mapping{Kind: Slack},
			nil, `{"type":"event_callback","event_id":"Ev1","event_time":1234567890,"event":{"type":"app_mention"}}`,
			`{"type":"event_callback","event_id":"Ev1","event_time":1234567890,"event":{"type":"app_mention"}}`, "slack.app_mention", "Ev1", 1234567890, 0,
		},
		"a command of Slack": {
			Mapping{Kind: Slack},
			headerOf("Content-Type", form), "command=%2Fdeploy&text=a+b&trigger_id=13345224609.738474920",
			`{"command":"/deploy","text":"a b","trigger_id":"13345224609.738474920"}`, "slack.command", "13345224609.738474920", 0, 0,
		},
		"an interaction with Slack": {
			Mapping{Kind: Slack},
			headerOf("Content-Type", form), "payload=" + url.QueryEscape(`{"type":"block_actions","trigger_id":"t1"}`),
			`{"type":"block_actions","trigger_id":"t1"}`, "slack.block_actions", "t1", 0, 0,
		},
		"GitHub": {
			Mapping{Kind: GitHub}, headerOf("X-GitHub-Event", "push", "X-GitHub-Delivery", "d-1"), `{"ref":"main"}`, `{"ref":"main"}`, "github.push", "d-1", 0, 0,
		},
		"Stripe": {
			Mapping{Kind: Stripe},
			nil, `{"id":"evt_1","type":"charge.refunded","created":1700000000}`,
			`{"id":"evt_1","type":"charge.refunded","created":1700000000}`, "stripe.charge.refunded", "evt_1", 1700000000, 0,
		},
		"Standard Webhooks": {
			Mapping{Kind: Standard},
			headerOf("Webhook-Id", "msg_1", "Webhook-Timestamp", "1700000001"), `{"type":"user.created"}`,
			`{"type":"user.created"}`, "user.created", "msg_1", 1700000001, 0,
		},
		"Svix": {
			Mapping{Kind: Standard},
			headerOf("Svix-Id", "msg_2", "Svix-Timestamp", "1700000001"), `{"type":"user.created"}`,
			`{"type":"user.created"}`, "user.created", "msg_2", 1700000001, 0,
		},
		"templates of one's own": {
			Mapping{Kind: HMAC, Type: template(t, "shop.{/kind}"), Key: template(t, "{/id}"), EventTS: template(t, "{/at}"), Priority: template(t, "{/p}")},
			nil,
			`{"kind":"sale","id":7,"at":"2026-01-02T03:04:05Z","p":-3}`, `{"kind":"sale","id":7,"at":"2026-01-02T03:04:05Z","p":-3}`, "shop.sale", "7", 1767323045, 0,
		},
		"templates that meet nothing": {
			Mapping{Kind: HMAC, Type: template(t, "{/kind}"), Key: template(t, "{/id}"), EventTS: template(t, "{/at}"), Priority: template(t, "{/p}")},
			nil,
			`{"id":"` + strings.Repeat("x", 256) + `","at":"soon","p":1.5}`, `{"id":"` + strings.Repeat("x", 256) + `","at":"soon","p":1.5}`, "", "", 0, 4,
		},
		"a list":  {Mapping{Kind: Token}, nil, ` [1.50,"a"]`, `{"data":[1.50,"a"]}`, "", "", 0, 0},
		"a text":  {Mapping{Kind: Token}, headerOf("Content-Type", "text/plain"), "hello\n", `{"data":"hello\n"}`, "", "", 0, 0},
		"nothing": {Mapping{Kind: Token}, nil, "", `{"data":""}`, "", "", 0, 0},
		"bytes":   {Mapping{Kind: Token}, headerOf("Content-Type", "image/png"), "\x89PNG", `{"data_base64":"iVBORw=="}`, "", "", 0, 0},
		"a form of GitHub": {
			Mapping{Kind: GitHub},
			headerOf("Content-Type", form+"; charset=utf-8", "X-GitHub-Event", "push", "X-GitHub-Delivery", "d1"),
			"payload=" + url.QueryEscape(`{"ref":"refs/heads/a+b","msg":"ü & %"}`), `{"ref":"refs/heads/a+b","msg":"ü & %"}`, "github.push", "d1", 0, 0,
		},
		"a list in a form of GitHub":  {Mapping{Kind: GitHub}, headerOf("Content-Type", form), "payload=[1]", `{"data":[1]}`, "", "", 0, 2},
		"a payload of anybody else":   {Mapping{Kind: Token}, headerOf("Content-Type", form), "payload={}&payload=x", `{"payload":["{}","x"]}`, "", "", 0, 0},
		"a form":                      {Mapping{Kind: Token}, headerOf("Content-Type", form), "a=1&b=2&b=3", `{"a":"1","b":["2","3"]}`, "", "", 0, 0},
		"a form with a lone percent":  {Mapping{Kind: Token}, headerOf("Content-Type", form), "a=100%&b=%zz%4&c%3D=%41+x", `{"a":"100%","b":"%zz%4","c=":"A x"}`, "", "", 0, 0},
		"a form with a semicolon":     {Mapping{Kind: Token}, headerOf("Content-Type", form), "a=x;y&&b", `{"a":"x;y","b":""}`, "", "", 0, 0},
		"a form that is no UTF-8":     {Mapping{Kind: Token}, headerOf("Content-Type", form), "a=%ff%C3%BC", "{\"a\":\"\ufffdü\"}", "", "", 0, 0},
		"JSON after a mark":           {Mapping{Kind: GitHub}, headerOf("Content-Type", "application/json", "X-GitHub-Event", "push", "X-GitHub-Delivery", "d1"), "\ufeff{\"a\":1}", `{"a":1}`, "github.push", "d1", 0, 0},
		"JSON that curl calls a form": {Mapping{Kind: Token}, headerOf("Content-Type", form), `{"a":1}`, `{"a":1}`, "", "", 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := c.mapping.Map(c.header, nil, []byte(c.body))
			if err != nil {
				t.Fatal(err)
			}
			if string(got.Event) != c.event || got.Type != c.typ || got.Key != c.key || len(got.Problems) != c.problems || c.at != 0 && got.EventTS.Unix() != c.at {
				t.Errorf("got %s, type %s, key %s, at %v, problems %q", got.Event, got.Type, got.Key, got.EventTS, got.Problems)
			}
			if c.at == 0 && !got.EventTS.IsZero() {
				t.Errorf("it has the time %v", got.EventTS)
			}
		})
	}
}

func TestBodyThatIsNoJSONAsItSaysIsTakenWithAProblem(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		`{"a":`: `{"data":"{\"a\":"}`, `{} {}`: `{"data":"{} {}"}`, `{"a":1}x`: `{"data":"{\"a\":1}x"}`, "": `{"data":""}`, "{\xff": `{"data_base64":"e/8="}`,
	} {
		mapping := Mapping{Kind: Token}
		got, err := mapping.Map(headerOf("Content-Type", "application/json"), nil, []byte(body))
		if err != nil || string(got.Event) != want || len(got.Problems) != 1 || got.Problems[0] != "body: it is no JSON, as its Content-Type says" {
			t.Errorf("%q: got %s, problems %q, %v; want %s", body, got.Event, got.Problems, err, want)
		}
	}
}

func TestFormWithoutThePayloadOfItsSenderIsTakenWithAProblem(t *testing.T) {
	t.Parallel()
	header := headerOf("Content-Type", "application/x-www-form-urlencoded")
	for body, want := range map[string][2]string{
		"":                              {"the form has no field payload", `{}`},
		"Payload=%7B%7D":                {"the form has no field payload", `{"Payload":"{}"}`},
		"payload=%7B%7D&payload=%7B%7D": {"the form has 2 fields payload; expected one", `{"payload":["{}","{}"]}`},
		"payload=":                      {"the field payload of the form is no JSON", `{"payload":""}`},
		"payload=hello":                 {"the field payload of the form is no JSON", `{"payload":"hello"}`},
		"payload=%7B%22a%22%3A":         {"the field payload of the form is no JSON", `{"payload":"{\"a\":"}`},
		"payload=%7B%7D%7B%7D":          {"the field payload of the form is no JSON", `{"payload":"{}{}"}`},
		"payload=%zz":                   {"the field payload of the form is no JSON", `{"payload":"%zz"}`},
	} {
		for _, kind := range []Kind{GitHub, Slack} {
			if kind == Slack && strings.Contains(want[0], "has no field") {
				continue // a command
			}
			mapping := Mapping{Kind: kind}
			got, err := mapping.Map(header, nil, []byte(body))
			if err != nil || string(got.Event) != want[1] || len(got.Problems) == 0 || !strings.Contains(got.Problems[0], want[0]) {
				t.Errorf("%s, %q: got %s, problems %q, %v; want %s, and %s", kind, body, got.Event, got.Problems, err, want[1], want[0])
			}
		}
	}
}

func TestChallengeOfSlackIsNoEvent(t *testing.T) {
	t.Parallel()
	mapping := Mapping{Kind: Slack}
	got, err := mapping.Map(nil, nil, []byte(`{"token":"t","challenge":"c1","type":"url_verification"}`))
	if err != nil || got.Challenge != "c1" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err = (&Mapping{Kind: Token}).Map(nil, nil, []byte(`{"challenge":"c1","type":"url_verification"}`)); err != nil || got.Challenge != "" {
		t.Errorf("from another sender: got %+v, %v", got, err)
	}
}

func TestHeaderFieldsAreKeptWhereTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	mapping := Mapping{Kind: Token, Headers: []string{"x-request-id", "X-None"}}
	got, err := mapping.Map(headerOf("X-Request-Id", "r1", "X-Request-Id", "r2", "Authorization", "Bearer secret"), nil, []byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(got.Meta); string(text) != `{"headers":{"X-Request-Id":"r1, r2"}}` {
		t.Errorf("got %s", text)
	}
}

func TestTimesOfDeliveriesAreParsed(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"1700000000":                "2023-11-14T22:13:20Z",
		"1700000000.25":             "2023-11-14T22:13:20.25Z",
		"-1":                        "1969-12-31T23:59:59Z",
		"2026-01-02T03:04:05+01:00": "2026-01-02T03:04:05+01:00",
	} {
		if got, err := parseTime(text); err != nil || got.Format(time.RFC3339Nano) != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
	wrong := []string{"", "soon", "NaN", "inf", "1e12", "0x10", "2026-13-01T00:00:00Z"}
	if i := slices.IndexFunc(wrong, func(text string) bool { _, err := parseTime(text); return err == nil }); i >= 0 && wrong[i] != "0x10" {
		t.Errorf("%s is taken for a time", wrong[i])
	}
}

func TestCloudEventsAreMappedByWhatTheySay(t *testing.T) {
	t.Parallel()
	header := headerOf("Content-Type", cloudevents.BatchMediaType, "X-A", "1")
	body := `[{"specversion":"1.0","id":"1","source":"/s","type":"t","time":"2026-01-02T03:04:05Z","n":7,"data":{"order":4711}},
		{"specversion":"1.0","id":"2","source":"/s","type":"` + strings.Repeat("x", 256) + `","n":8,"data":["a"]}]`
	all, isBatch, err := (&Mapping{Kind: CloudEvents, Headers: []string{"X-A"}, MaxBatch: 1000}).MapAll(header, nil, []byte(body))
	if err != nil || !isBatch || len(all) != 2 {
		t.Fatalf("got %+v, %v", all, err)
	}
	one, two := all[0], all[1]
	if string(one.Event) != `{"order":4711}` || one.Type != "t" || one.Key != "/s 1" || one.EventTS.Unix() != 1767323045 || one.Problems != nil {
		t.Errorf("got %+v", one)
	}
	if meta, _ := json.Marshal(one.Meta); string(meta) !=
		`{"ce":{"id":"1","n":7,"source":"/s","specversion":"1.0","time":"2026-01-02T03:04:05Z","type":"t"},"headers":{"X-A":"1"}}` {
		t.Errorf("got the metadata %s", meta)
	}
	if string(two.Event) != `{"data":["a"]}` || two.Type != "" || two.Key != "/s 2" || !two.EventTS.IsZero() || len(two.Problems) != 1 {
		t.Errorf("got %+v", two)
	}
	mapping := Mapping{Kind: CloudEvents, Type: template(t, "order.{/n}"), Key: template(t, "{/data/order}"), Priority: template(t, "{/n}"), MaxBatch: 2}
	if all, _, err = mapping.MapAll(header, nil, []byte(body)); err != nil {
		t.Fatal(err)
	}
	if e := all[0]; e.Type != "order.7" || e.Key != "4711" || e.Priority != 7 || e.Problems != nil {
		t.Errorf("by templates: got %+v", e)
	}
	if e := all[1]; e.Type != "order.8" || e.Key != "/s 2" || len(e.Problems) != 1 {
		t.Errorf("by a template that meets nothing: got %+v", e)
	}
	if _, _, err := mapping.MapAll(header, nil, []byte(`[{},{},{}]`)); !errors.Is(err, ErrBody) || !errors.Is(err, cloudevents.ErrTooMany) {
		t.Errorf("more events than a batch may have: %v", err)
	}
	if _, _, err := mapping.MapAll(header, nil, []byte(`[{}]`)); !errors.Is(err, ErrBody) {
		t.Errorf("no CloudEvent: %v, want ErrBody", err)
	}
	if all, _, err := (&Mapping{Kind: GitHub}).MapAll(headerOf("X-GitHub-Event", "push"), nil, []byte(`{}`)); err != nil || len(all) != 1 || all[0].Type != "github.push" {
		t.Errorf("of another kind: %+v, %v", all, err)
	}
}

func TestPriorityOutOfRangeStaysEmpty(t *testing.T) {
	t.Parallel()
	m := Mapping{Kind: Token, Priority: template(t, "{/p}")}
	for text, want := range map[string]int32{"99999999999": 0, "-99999999999": 0, "1.0": 0, "2147483647": math.MaxInt32} {
		out, err := m.Map(nil, nil, []byte(`{"p":`+text+`}`))
		if err != nil || out.Priority != want || (len(out.Problems) == 0) != (want != 0) {
			t.Errorf("%s: got %d, %q, %v", text, out.Priority, out.Problems, err)
		}
	}
}
