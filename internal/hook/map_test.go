package hook

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
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
		"a list":                      {Mapping{Kind: Token}, nil, ` [1.50,"a"]`, `{"data":[1.50,"a"]}`, "", "", 0, 0},
		"a text":                      {Mapping{Kind: Token}, headerOf("Content-Type", "text/plain"), "hello\n", `{"data":"hello\n"}`, "", "", 0, 0},
		"nothing":                     {Mapping{Kind: Token}, nil, "", `{"data":""}`, "", "", 0, 0},
		"bytes":                       {Mapping{Kind: Token}, headerOf("Content-Type", "image/png"), "\x89PNG", `{"data_base64":"iVBORw=="}`, "", "", 0, 0},
		"a form":                      {Mapping{Kind: Token}, headerOf("Content-Type", form), "a=1&b=2&b=3", `{"a":"1","b":["2","3"]}`, "", "", 0, 0},
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

func TestBodyThatIsNoJSONAsItSaysIsRefused(t *testing.T) {
	t.Parallel()
	for _, body := range []string{`{"a":`, `{} {}`, `{"a":1}x`, ""} {
		mapping := Mapping{Kind: GitHub}
		if got, err := mapping.Map(headerOf("Content-Type", "application/json"), nil, []byte(body)); !errors.Is(err, ErrBody) {
			t.Errorf("%q: got %s, %v, want ErrBody", body, got.Event, err)
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
