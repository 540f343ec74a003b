package http

import (
	"bufio"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/webhook"
)

// sign returns the hexadecimal HMAC of a text.
func sign(secret, text string) string {
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

func base64Of(text []byte) string { return base64.StdEncoding.EncodeToString(text) }

// deliver posts to a source with header fields, names and values in turn.
func (c *client) deliver(name, sent string, fields ...string) answer {
	c.t.Helper()
	for i := 0; i < len(fields); i += 2 {
		c = c.with(fields[i], fields[i+1])
	}
	return c.try("POST", "/in/"+name, sent)
}

// putSource puts a new source.
func (c *client) putSource(name, put string) {
	c.t.Helper()
	c.call("PUT", "/sources/"+name, put).want(http.StatusCreated)
}

type seenSource struct {
	SecretCount                    int `json:"secret_count"`
	Version                        int64
	Received, Duplicates, Rejected int64
	LastReceivedAt                 *time.Time    `json:"last_received_at"`
	LastRejected                   *lastRejected `json:"last_rejected"`
	LastProblem                    *lastProblem  `json:"last_problem"`
}

// sourceUntil returns a source once its counts are as they should be: they are written each second.
func (h *environment) sourceUntil(name string, isReached func(*seenSource) bool) seenSource {
	h.t.Helper()
	for deadline := time.Now().Add(busyTimeout); ; {
		s := decode[seenSource](h.call("GET", "/sources/"+name, "").want(http.StatusOK))
		if isReached(&s) {
			return s
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("the source is %+v", s)
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // no signal announces it
	}
}

// at sets the clock of signatures.
func at(seconds int64) settings {
	return settings{sources: func(c *webhook.Config) { c.Now = func() time.Time { return time.Unix(seconds, 0) } }}
}

func TestTwentyEqualDeliveriesAtOnceMakeOneEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("github", `{"kind":"github","queue":"deploys","secrets":["s3cret"],"keep_raw":"1h","headers":["X-GitHub-Event","X-Absent"]}`)
	const body = `{"ref": "refs/heads/main"}`
	ids := make([]string, 20)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			got := h.deliver("github", body, "X-Hub-Signature-256", "sha256="+sign("s3cret", body), "X-GitHub-Delivery", "d-1", "X-GitHub-Event", "push")
			ids[i] = got.want(http.StatusOK).body
		})
	}
	all.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("got %s and %s", ids[0], id)
		}
	}
	events := h.claim(`{"queue":"deploys","limit":100}`)
	if len(events) != 1 || events[0].Type != "github.push" || events[0].Source != "github" || string(events[0].Event) != `{"ref": "refs/heads/main"}` && string(events[0].Event) != `{"ref":"refs/heads/main"}` {
		t.Fatalf("got %+v", events)
	}
	if raw := h.call("GET", fmt.Sprintf("/events/%d/raw", events[0].ID), "").want(http.StatusOK); raw.body != body {
		t.Errorf("the raw body is %q", raw.body)
	}
	if meta := fmt.Sprint(events[0].Meta); !strings.Contains(meta, `X-Github-Event:push`) || strings.Contains(meta, "Absent") {
		t.Errorf("the metadata is %s", meta)
	}
	got := h.sourceUntil("github", func(s *seenSource) bool { return s.Received == 20 })
	if got.Duplicates != 19 || got.Rejected != 0 || got.LastReceivedAt == nil || got.LastProblem != nil {
		t.Errorf("the source is %+v", got)
	}
	// A repeated delivery may differ from the first.
	other := h.deliver("github", `{"other":1}`, "X-Hub-Signature-256", "sha256="+sign("s3cret", `{"other":1}`), "X-GitHub-Delivery", "d-1", "X-GitHub-Event", "push")
	if other.want(http.StatusOK).body != ids[0] || other.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("got %s", other.body)
	}
	// The key is remembered for 168 h, not for the 24 h of other keys.
	if h.count(`select count(*) from agent.idempotency where key like '%d-1' and expires_at > now() + interval '160 hours'`) != 1 {
		t.Error("the key is not remembered as long as dedup_for")
	}
}

func TestPublicVectorsHoldOverHTTP(t *testing.T) {
	t.Parallel()
	for kind, fields := range map[string]func(v map[string]any) []string{
		"github": func(v map[string]any) []string { return []string{"X-Hub-Signature-256", fmt.Sprint(v["signature"])} },
		"slack": func(v map[string]any) []string {
			return []string{"X-Slack-Signature", fmt.Sprint(v["signature"]), "X-Slack-Request-Timestamp", fmt.Sprint(v["timestamp"])}
		},
		"stripe": func(v map[string]any) []string { return []string{"Stripe-Signature", fmt.Sprint(v["header"])} },
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile("../webhook/testdata/" + kind + ".json")
			if err != nil {
				t.Fatal(err)
			}
			var file struct{ Cases []map[string]any }
			if err := json.Unmarshal(text, &file); err != nil {
				t.Fatal(err)
			}
			var now time.Time
			h := setupWith(t, settings{sources: func(c *webhook.Config) { c.Now = func() time.Time { return now } }})
			accepted, refused := 0, 0
			for i, v := range file.Cases {
				secret, _ := v["secret"].(string)
				body, _ := v["body"].(string)
				isValid, _ := v["valid"].(bool)
				if secret == "" {
					continue
				}
				if at, ok := v["now"].(float64); ok {
					now = time.Unix(int64(at), 0)
				}
				put, _ := json.Marshal(map[string]any{"kind": kind, "queue": fmt.Sprint("q", i), "secrets": []string{secret}})
				h.putSource(fmt.Sprint("s", i), string(put))
				var headers []string
				for f := fields(v); len(f) > 0; f = f[2:] {
					if f[1] != "" && f[1] != "<nil>" {
						headers = append(headers, f[0], f[1])
					}
				}
				got := h.deliver(fmt.Sprint("s", i), body, append(headers, "Content-Type", "text/plain")...)
				events := h.claim(fmt.Sprintf(`{"queue":"q%d"}`, i))
				switch {
				case isValid:
					accepted++
					if got.status != http.StatusOK || len(events) != 1 {
						t.Errorf("%v: got %d %s and %d events", v["name"], got.status, got.body, len(events))
					}
				default:
					refused++
					got.wantProblem(problem.WebhookRejected)
					if len(events) != 0 {
						t.Errorf("%v: an event was stored", v["name"])
					}
				}
			}
			if accepted == 0 || refused < 5 {
				t.Errorf("%d were accepted, %d refused", accepted, refused)
			}
		})
	}
}

func TestEveryKindOfSourceReceives(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000
	h := setupWith(t, at(now))
	stamp := strconv.Itoa(now)
	standard := "c2VjcmV0IG9mIDI0IGJ5dGVzIGhlcmUh"
	standardMAC := hmac.New(sha256.New, []byte("secret of 24 bytes here!"))
	_, _ = standardMAC.Write([]byte("msg_1." + stamp + `.{"type":"user.made"}`))
	for _, c := range []struct {
		kind, put, body string
		headers         []string
		typ, key        string
	}{
		{"slack", ``, `{"type":"event_callback","event_id":"Ev1","event_time":1699999999,"event":{"type":"app_mention"}}`, nil, "slack.app_mention", "Ev1"},
		{"stripe", ``, `{"id":"evt_1","type":"charge.failed","created":1699999999}`, nil, "stripe.charge.failed", "evt_1"},
		{"standard", `"secrets":["whsec_` + standard + `"]`, `{"type":"user.made"}`, []string{
			"webhook-id", "msg_1", "webhook-timestamp", stamp, "webhook-signature", "v1," + base64Of(standardMAC.Sum(nil)),
		}, "user.made", "msg_1"},
		{
			"hmac", `"signature":{"header":"X-Sign","prefix":"v=","timestamp":"X-At"},"type":"shop.{/kind}","key":"{header:X-Id}-{query:n}","event_ts":"{/at}","priority":"{/p}","secrets":["s3cret"]`,
			`{"kind":"sold","at":"2023-11-14T00:00:00Z","p":-3}`,
			[]string{"X-At", stamp, "X-Sign", "v=" + sign("s3cret", stamp+`.{"kind":"sold","at":"2023-11-14T00:00:00Z","p":-3}`), "X-Id", "7"},
			"shop.sold", "7-1",
		},
		{"token", `"header":"X-Token","secrets":["old","s3cret"],"type":"{/kind}"`, `{"kind":"a"}`, []string{"X-Token", "s3cret"}, "a", ""},
		{"basic", ``, `[1]`, []string{"Authorization", "Basic " + base64Of([]byte("anybody:s3cret"))}, "", ""},
		{"cloudevents", ``, `{"a":1}`, []string{"Authorization", "Bearer s3cret", "ce-specversion", "1.0", "ce-id", "1", "ce-source", "/s", "ce-type", "t"}, "t", "/s 1"},
	} {
		put := c.put
		if put == "" {
			put = `"secrets":["s3cret"]`
		}
		h.putSource(c.kind, `{"kind":"`+c.kind+`","queue":"`+c.kind+`",`+put+`}`)
		headers := c.headers
		switch c.kind {
		case "slack":
			headers = []string{"X-Slack-Request-Timestamp", stamp, "X-Slack-Signature", "v0=" + sign("s3cret", "v0:"+stamp+":"+c.body)}
		case "stripe":
			headers = []string{"Stripe-Signature", "t=" + stamp + ",v1=" + sign("s3cret", stamp+"."+c.body)}
		}
		path := c.kind
		if c.kind == "hmac" {
			path += "?n=1"
		}
		got := h.deliver(path, c.body, headers...).want(http.StatusOK)
		if c.kind == "slack" != (got.body == "") {
			t.Errorf("%s answered %q", c.kind, got.body)
		}
		events := h.claim(`{"queue":"` + c.kind + `"}`)
		if len(events) != 1 || events[0].Type != c.typ || events[0].Key != c.key {
			t.Errorf("%s: got %+v, want the type %q and the key %q", c.kind, events, c.typ, c.key)
			continue
		}
		if e := events[0]; c.kind == "hmac" && (e.Priority != -3 || e.EventTS.Unix() != 1_699_920_000) || c.kind == "basic" && !strings.Contains(string(e.Event), `"data"`) {
			t.Errorf("%s: got %+v", c.kind, e)
		}
	}
}

func TestSlackGetsItsChallengeOnlyWhenItHasSigned(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000
	h := setupWith(t, at(now))
	h.putSource("slack", `{"kind":"slack","queue":"slack","secrets":["s3cret"]}`)
	const body = `{"type":"url_verification","challenge":"3eZbrw1aB"}`
	h.deliver("slack", body).wantProblem(problem.WebhookRejected)
	got := h.deliver("slack", body, "X-Slack-Request-Timestamp", "1700000000", "X-Slack-Signature", "v0="+sign("s3cret", "v0:1700000000:"+body))
	if got.want(http.StatusOK).body != `{"challenge":"3eZbrw1aB"}` && strings.TrimSpace(got.body) != `{"challenge":"3eZbrw1aB"}` {
		t.Errorf("got %s", got.body)
	}
	if events := h.claim(`{"queue":"slack"}`); len(events) != 0 {
		t.Errorf("stored %+v", events)
	}
}

func TestRefusedDeliveriesAreCountedAndStoreNothing(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_000
	h := setupWith(t, at(now))
	h.putSource("in", `{"kind":"hmac","queue":"in","secrets":["s3cret"],"max_body":64,"signature":{"header":"X-Sign","timestamp":"X-At"}}`)
	signed := func(at int64, body string) []string {
		stamp := strconv.FormatInt(at, 10)
		return []string{"X-At", stamp, "X-Sign", sign("s3cret", stamp+"."+body)}
	}
	rejected := int64(0)
	for _, c := range []struct {
		body    string
		headers []string
		want    problem.Type
		code    string
	}{
		{`{}`, nil, problem.WebhookRejected, "header_missing"},
		{`{}`, signed(now, `{"a":1}`), problem.WebhookRejected, "signature_mismatch"},
		{`{}`, signed(now-301, `{}`), problem.WebhookRejected, "timestamp_too_old"},
		{`{}`, signed(now+301, `{}`), problem.WebhookRejected, "timestamp_in_future"},
		{`{}`, []string{"X-At", "now", "X-Sign", "00"}, problem.WebhookRejected, "header_malformed"},
		{`{}`, append(signed(now, `{}`), "Content-Encoding", "gzip"), problem.UnsupportedMediaType, "content_encoding"},
		{strings.Repeat("x", 65), signed(now, ""), problem.BodyTooLarge, "body_too_large"},
	} {
		p := h.deliver("in", c.body, c.headers...).wantProblem(c.want)
		rejected++
		got := h.sourceUntil("in", func(s *seenSource) bool { return s.Rejected == rejected })
		if got.LastRejected == nil || got.LastRejected.Code != c.code || got.LastRejected.RequestID != p.RequestID {
			t.Errorf("%s: the latest is %+v, want the code %s", c.body, got.LastRejected, c.code)
		}
		if strings.Contains(p.Detail, "timestamp") || strings.Contains(p.Detail, "X-Sign") {
			t.Errorf("the sender reads %q", p.Detail)
		}
	}
	// A field that is there twice could be read in two ways.
	twice := h.request(t.Context(), "POST", "/in/in", `{}`)
	twice.Header["X-At"] = []string{"1700000000"}
	twice.Header["X-Sign"] = []string{sign("s3cret", "1700000000.{}"), sign("s3cret", "1700000000.{}")}
	resp, err := h.raw.RoundTrip(twice)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusUnauthorized {
		t.Errorf("a doubled signature returned %d", resp.StatusCode)
	}
	if events := h.claim(`{"queue":"in","limit":10}`); len(events) != 0 {
		t.Errorf("stored %+v", events)
	}
	metrics := h.call("GET", "/metrics", "").want(http.StatusOK).body
	if want := `queued_webhooks_total{result="rejected",source="in"} 8`; !strings.Contains(metrics, want) {
		t.Errorf("the metrics do not have %s", want)
	}
	if log := h.log.String(); strings.Contains(log, "s3cret") || !strings.Contains(log, `"rejected":"timestamp_too_old"`) {
		t.Error("the log has a secret, or not the reason")
	}
}

// A sender who has proven who it is would only send a body again that is refused.
func TestProvenBodyIsStoredWhateverItIs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/sources/in", `{"kind":"token","queue":"in","secrets":["s3cret"]}`).want(http.StatusCreated)
	for _, c := range []struct{ body, event, problem string }{
		{`{"a":`, `{"data":"{\"a\":"}`, "no JSON"},
		{"", `{"data":""}`, "no JSON"},
		{`{"a":"` + "\\u0000" + `"}`, `{"data_base64":"eyJhIjoiXHUwMDAwIn0="}`, "stored as bytes"},
		{`{"a":1e1001}`, `{"data_base64":"eyJhIjoxZTEwMDF9"}`, "stored as bytes"},
		{strings.Repeat(`{"a":`, 3000) + "1" + strings.Repeat("}", 3000), `{"data_base64":`, "stored as bytes"},
	} {
		got := h.deliver("in", c.body, "Authorization", "s3cret", "Content-Type", "application/json")
		if got.status >= http.StatusBadRequest {
			t.Errorf("%.40q is answered %d %s", c.body, got.status, got.body)
			continue
		}
		events := h.claim(`{"queue":"in"}`)
		if len(events) != 1 || !strings.HasPrefix(strings.ReplaceAll(string(events[0].Event), `": "`, `":"`), c.event) {
			t.Errorf("%.40q is stored as %+v, want %s", c.body, events, c.event)
		}
		h.sourceUntil("in", func(s *seenSource) bool {
			return s.LastProblem != nil && strings.Contains(s.LastProblem.Detail, c.problem)
		})
	}
}

func TestSecretsAreReplacedWithNoDeliveryLost(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["first"]}`)
	from := func(secret string) answer { return h.deliver("t", `{}`, "Authorization", secret) }
	from("first").want(http.StatusOK)
	h.call("PUT", "/sources/t", `{"kind":"token","queue":"in","secrets":["second!","first"]}`).want(http.StatusOK)
	from("first").want(http.StatusOK)
	from("second!").want(http.StatusOK)
	got := h.call("PUT", "/sources/t", `{"kind":"token","queue":"other"}`).want(http.StatusOK) // they stay
	if s := decode[seenSource](got); s.SecretCount != 2 || s.Version != 3 {
		t.Errorf("got %+v", s)
	}
	from("first").want(http.StatusOK)
	h.with("If-Match", `"2"`).call("PUT", "/sources/t", `{"kind":"token","queue":"in","secrets":["third"]}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `"3"`).call("PUT", "/sources/t", `{"kind":"token","queue":"in","secrets":["second!"]}`).want(http.StatusOK)
	from("first").wantProblem(problem.WebhookRejected)
	from("second!").want(http.StatusOK)
	for _, text := range []string{got.body, h.call("GET", "/sources", "").body, h.log.String()} {
		if strings.Contains(text, "first") || strings.Contains(text, "second!") {
			t.Errorf("a secret is shown: %s", text)
		}
	}
	h.call("PUT", "/sources/t", `{"kind":"standard","queue":"in"}`).want(http.StatusUnprocessableEntity) // "second!" is no key of that kind
}

func TestWrongSourcesAreRefusedWithAPointer(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for body, want := range map[string]string{
		`{"queue":"in","secrets":["s"]}`:                                                            "#/kind",
		`{"kind":"token","secrets":["s"]}`:                                                          "#/queue",
		`{"kind":"token","queue":"in","topic":"in","secrets":["s"]}`:                                "#/topic",
		`{"kind":"token","queue":"in"}`:                                                             "#/secrets",
		`{"kind":"token","queue":"in","secrets":["a","b","c","d","e","f"]}`:                         "#/secrets",
		`{"kind":"standard","queue":"in","secrets":["?"]}`:                                          "#/secrets",
		`{"kind":"hmac","queue":"in","secrets":["s"]}`:                                              "#/signature",
		`{"kind":"hmac","queue":"in","secrets":["s"],"signature":{"header":"X","algorithm":"md5"}}`: "#/signature/algorithm",
		`{"kind":"token","queue":"in","secrets":["s"],"signature":{"header":"X"}}`:                  "#/signature",
		`{"kind":"github","queue":"in","secrets":["s"],"header":"X"}`:                               "#/header",
		`{"kind":"token","queue":"in","secrets":["s"],"key":"{/id"}`:                                "#/key",
		`{"kind":"token","queue":"in","secrets":["s"],"type":"{body}"}`:                             "#/type",
		`{"kind":"token","queue":"in","secrets":["s"],"event_ts":"{/a~2}"}`:                         "#/event_ts",
		`{"kind":"token","topic":"in","secrets":["s"],"priority":"{/p}"}`:                           "#/priority",
		`{"kind":"token","topic":"in","secrets":["s"],"keep_raw":"1h"}`:                             "#/keep_raw",
		`{"kind":"token","queue":"queued.x","secrets":["s"]}`:                                       "#/queue",
		`{"kind":"token","queue":"in","secrets":["s"],"dedup_for":"0s"}`:                            "#/dedup_for",
		`{"kind":"token","queue":"in","secrets":["s"],"rate_limit":{"per_second":0}}`:               "#/rate_limit/per_second",
		// Names and values that no header field can have:
		`{"kind":"token","queue":"in","secrets":["s"],"header":"X Token"}`:                         "#/header",
		`{"kind":"token","queue":"in","secrets":["s"],"header":"Host"}`:                            "#/header",
		`{"kind":"token","queue":"in","secrets":["s\n"]}`:                                          "#/secrets",
		`{"kind":"token","queue":"in","secrets":[" s"]}`:                                           "#/secrets",
		`{"kind":"token","queue":"in","secrets":["bearer s"]}`:                                     "#/secrets",
		`{"kind":"hmac","queue":"in","secrets":["s"],"signature":{"header":"X:"}}`:                 "#/signature",
		`{"kind":"hmac","queue":"in","secrets":["s"],"signature":{"header":"X","timestamp":"Y "}}`: "#/signature",
		`{"kind":"hmac","queue":"in","secrets":["s"],"signature":{"header":"X","timestamp":"x"}}`:  "#/signature",
		`{"kind":"github","queue":"in","secrets":["s"],"headers":["X","Y Z"]}`:                     "#/headers",
		// Settings that would show a secret to readers of events:
		`{"kind":"basic","queue":"in","secrets":["s"],"headers":["authorization"]}`:                  "#/headers",
		`{"kind":"token","queue":"in","secrets":["s"],"header":"X-Token","headers":["X","x-token"]}`: "#/headers",
		`{"kind":"cloudevents","queue":"in","secrets":["s"],"key":"{/id}{header:authorization}"}`:    "#/key",
	} {
		p := h.try("PUT", "/sources/new", body).wantProblem(problem.ValidationFailed)
		if len(p.Errors) == 0 || p.Errors[0].Pointer != want {
			t.Errorf("%s: got %+v, want %s", body, p.Errors, want)
		}
	}
	h.call("GET", "/sources/new", "").wantProblem(problem.SourceNotFound)
}

func TestKeysOfOneSourceSwallowNothingOfOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, to := range []string{`"queue":"in"`, `"topic":"in"`} {
		h.putSource("a", `{"kind":"token",`+to+`,"secrets":["s"],"key":"{/id}"}`)
		h.putSource("b", `{"kind":"token",`+to+`,"secrets":["s"],"key":"{/id}"}`)
		if to == `"queue":"in"` {
			h.with("Idempotency-Key", "7").call("POST", "/events?queue=in", `{}`).want(http.StatusCreated)
			h.call("POST", "/events/batch", `{"events":[{"queue":"in","event":{},"key":"source:a\u001f7"}]}`).want(http.StatusCreated)
		} else {
			h.with("Idempotency-Key", "7").call("POST", "/topics/in", `{}`).want(http.StatusCreated)
			h.call("POST", "/publish", `{"events":[{"topic":"in","event":{},"idempotency_key":"source:a\u001f7"}]}`).want(http.StatusCreated)
		}
		answers := make(map[string]bool)
		for _, name := range []string{"a", "b"} {
			for i, want := range []string{"", "true"} {
				got := h.deliver(name, fmt.Sprintf(`{"id":7,"from":%q,"n":%d}`, name, i), "Authorization", "s").want(http.StatusOK)
				if got.header.Get("Idempotency-Replayed") != want {
					t.Errorf("%s, delivery %d from %s: replayed is %q", to, i, name, got.header.Get("Idempotency-Replayed"))
				}
				answers[got.body] = true
			}
		}
		if len(answers) != 2 {
			t.Errorf("%s: the answers are %v", to, answers)
		}
		h.call("DELETE", "/sources/a", "").want(http.StatusNoContent)
		h.call("DELETE", "/sources/b", "").want(http.StatusNoContent)
	}
	for _, e := range h.claim(`{"queue":"in","limit":100}`) {
		if e.Key != "7" && e.Key != "source:a\x1f7" {
			t.Errorf("the key is %q", e.Key)
		}
	}
	// Keys as long as may be.
	h.putSource(strings.Repeat("n", 128), `{"kind":"token","topic":"in","secrets":["s"],"key":"{/id}"}`)
	long := func(end string) answer {
		return h.deliver(strings.Repeat("n", 128), `{"id":"`+strings.Repeat("k", 254)+end+`"}`, "Authorization", "s").want(http.StatusOK)
	}
	if first, again, other := long("1"), long("1"), long("2"); first.body != again.body || first.body == other.body {
		t.Errorf("got %s, %s and %s", first.body, again.body, other.body)
	}
}

func TestDeliveryIsJudgedByItsSourceAsItIsOnceTheBodyIsThere(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for name, change := range map[string]func(name string){
		"rotated": func(name string) {
			h.call("PUT", "/sources/"+name, `{"kind":"token","queue":"in","secrets":["new"]}`).want(http.StatusOK)
		},
		"deleted": func(name string) { h.call("DELETE", "/sources/"+name, "").want(http.StatusNoContent) },
		"paused": func(name string) {
			h.call("PUT", "/sources/"+name, `{"kind":"token","queue":"in","paused":true}`).want(http.StatusOK)
		},
	} {
		h.putSource(name, `{"kind":"token","queue":"in","secrets":["old"]}`)
		admission, err := h.sources.Admit(t.Context(), name, "")
		if err != nil {
			t.Fatal(err)
		}
		change(name)
		got, err := admission.Receive(t.Context(), webhook.Delivery{Header: http.Header{"Authorization": {"old"}}, Body: []byte(`{}`)})
		if err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestPausedAndLimitedSourcesTellTheSenderToWait(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["s"],"paused":true}`)
	if got := h.deliver("t", `{}`, "Authorization", "s"); got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	} else {
		got.wantProblem(problem.SourcePaused)
	}
	h.call("PUT", "/sources/t", `{"kind":"token","queue":"in","rate_limit":{"per_second":0.001,"burst":1}}`).want(http.StatusOK)
	h.deliver("t", `{}`, "Authorization", "s").want(http.StatusOK)
	h.call("PUT", "/sources/t", `{"kind":"token","queue":"in","rate_limit":{"per_second":0.001,"burst":1}}`).want(http.StatusOK)
	if got := h.deliver("t", `{}`, "Authorization", "s"); got.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	} else {
		got.wantProblem(problem.RateLimited)
	}
	for _, name := range []string{"nobody", "%00", "%ff", strings.Repeat("n", 129)} {
		h.deliver(name, `{}`).wantProblem(problem.SourceNotFound)
	}
}

func TestDeliveriesOfATopicArePublishedOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("t", `{"kind":"token","topic":"shop.orders","secrets":["s"],"key":"{/id}","type":"{/kind}","event_ts":"{/at}"}`)
	first := h.deliver("t", `{"id":1,"kind":"sold","at":1700000000}`, "Authorization", "s").want(http.StatusOK)
	again := h.deliver("t", `{"id":1,"kind":"sold","n":2}`, "Authorization", "s").want(http.StatusOK)
	if first.body != again.body || !strings.Contains(first.body, `"position"`) || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("got %s and %s", first.body, again.body)
	}
	log := h.call("GET", "/log?topic=shop.orders", "").want(http.StatusOK).body
	if strings.Count(log, `"position"`) != 1 || !strings.Contains(log, `"type":"sold"`) && !strings.Contains(log, `"type": "sold"`) {
		t.Errorf("the log is %s", log)
	}
	got := h.sourceUntil("t", func(s *seenSource) bool { return s.Received == 2 })
	if got.Duplicates != 1 || got.LastProblem == nil || !strings.Contains(got.LastProblem.Detail, "event_ts") {
		t.Errorf("the source is %+v", got)
	}
	if h.count(`select count(*) from agent.publication_key where expires_at > now() + interval '160 hours'`) != 1 {
		t.Error("the key is not remembered as long as dedup_for")
	}
}

func TestTrialSaysWhatWouldBecomeOfADelivery(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("hmac", `{"kind":"hmac","queue":"in","secrets":["s"],"signature":{"header":"X-Sign","timestamp":"X-At"},"type":"{/kind}","key":"{query:k}"}`)
	try := func(fields string) testSourceResponse {
		return decode[testSourceResponse](h.call("POST", "/sources/hmac/test", fields).want(http.StatusOK))
	}
	const headers = `"headers":{"X-At":"1700000000","X-Sign":["SIGN"]},"body":"{\"kind\":\"a\"}"`
	signed := strings.Replace(headers, "SIGN", sign("s", `1700000000.{"kind":"a"}`), 1)
	if got := try(`{` + signed + `}`); got.Verified || got.Rejected.Code != webhook.TooOld {
		t.Errorf("got %+v", got)
	}
	got := try(`{` + signed + `,"at":"2023-11-14T22:13:20Z","query":"k=7"}`)
	if !got.Verified || got.Mapped == nil || got.Mapped.Type != "a" || got.Mapped.Key != "7" || len(got.Mapped.Problems) != 0 {
		t.Errorf("got %+v", got)
	}
	if got := try(`{` + signed + `,"at":"2023-11-14T22:13:20Z"}`); len(got.Mapped.Problems) != 1 {
		t.Errorf("got %+v", got)
	}
	if got := try(strings.Replace(`{`+signed+`,"at":"2023-11-14T22:13:20Z"}`, `"headers":{`, `"headers":{"Content-Encoding":"gzip",`, 1)); got.Verified || got.Mapped != nil || got.Rejected == nil || got.Rejected.Code != "content_encoding" {
		t.Errorf("got %+v", got)
	}
	h.call("POST", "/sources/hmac/test", `{"headers":{"X":1}}`).wantProblem(problem.ValidationFailed)
	if events := h.claim(`{"queue":"in"}`); len(events) != 0 {
		t.Errorf("stored %+v", events)
	}
}

func TestDeliveryWithoutDatabaseIsAnsweredWithinItsTimeLimit(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{sources: func(c *webhook.Config) { c.TimeLimit = 100 * time.Millisecond }})
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["s"]}`)
	release := h.lockEvents()
	defer release()
	// A known source is still verified.
	h.deliver("t", `{}`, "Authorization", "wrong").wantProblem(problem.WebhookRejected)
	if got := h.deliver("t", `{}`, "Authorization", "s"); got.header.Get("Retry-After") == "" { // far less than busyTimeout, which the other limits are
		t.Error("no Retry-After")
	} else {
		got.wantProblem(problem.DatabaseUnavailable)
	}
}

// lockEvents keeps every insert waiting until it is released.
func (h *environment) lockEvents() (release func()) {
	h.t.Helper()
	ctx := context.WithoutCancel(h.t.Context())
	tx, err := h.connect().Begin(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, `lock table agent.event in access exclusive mode`); err != nil {
		h.t.Fatal(err)
	}
	return func() { _ = tx.Rollback(ctx) }
}

func TestWithoutAKeyForSecretsNothingIsSealed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["s"]}`)
	unsealed := setupWith(t, settings{beside: h, sources: func(c *webhook.Config) { c.Sealer = nil }})
	for _, got := range []answer{
		unsealed.deliver("t", `{}`, "Authorization", "s"),
		unsealed.call("PUT", "/sources/new", `{"kind":"token","queue":"in","secrets":["s"]}`),
		unsealed.call("POST", "/sources/t/test", `{}`),
	} {
		if p := got.wantProblem(problem.SealingUnavailable); !strings.Contains(p.Detail, "QUEUED_SECRET_KEY") {
			t.Errorf("got %+v", p)
		}
	}
	unsealed.call("GET", "/sources/t", "").want(http.StatusOK)
}

func TestSourceIsKnownToOtherProcessesAtOnce(t *testing.T) {
	t.Parallel()
	a := setup(t)
	b := setupWith(t, settings{beside: a})
	b.deliver("t", `{}`, "Authorization", "s").wantProblem(problem.SourceNotFound)
	a.putSource("t", `{"kind":"token","queue":"in","secrets":["s"]}`)
	b.deliver("t", `{}`, "Authorization", "s").want(http.StatusOK)
	a.call("PUT", "/sources/t", `{"kind":"token","queue":"in","secrets":["other"]}`).want(http.StatusOK)
	for deadline := time.Now().Add(busyTimeout); b.deliver("t", `{}`, "Authorization", "other").status != http.StatusOK; {
		if time.Now().After(deadline) {
			t.Fatal("the other process does not take the new secret")
		}
	}
	if got := b.deliver("t", `{}`, "Authorization", "s"); got.status != http.StatusUnauthorized && got.status != http.StatusTooManyRequests {
		t.Errorf("with the former secret: %d: %s", got.status, got.body) // 429 where many with the new one were refused meanwhile
	}
	a.call("DELETE", "/sources/t", "").want(http.StatusNoContent)
	a.deliver("t", `{}`, "Authorization", "other").wantProblem(problem.SourceNotFound)
	for deadline := time.Now().Add(busyTimeout); b.deliver("t", `{}`, "Authorization", "other").status != http.StatusNotFound; {
		if time.Now().After(deadline) {
			t.Fatal("the other process still takes deliveries")
		}
	}
}

func TestSendersOfCloudEventsMayAskFirst(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("ce", `{"kind":"cloudevents","queue":"in","secrets":["s"],"rate_limit":{"per_second":2}}`)
	got := h.with("WebHook-Request-Origin", "sender.example").try("OPTIONS", "/in/ce", "").want(http.StatusOK)
	if got.header.Get("WebHook-Allowed-Origin") != "sender.example" || got.header.Get("WebHook-Allowed-Rate") != "120" || got.header.Get("Allow") != "POST, OPTIONS" {
		t.Errorf("got %v", got.header)
	}
	h.try("OPTIONS", "/in/ce", "").wantProblem(problem.InvalidParameter)
	h.with("WebHook-Request-Origin", "sender.example").try("OPTIONS", "/in/nobody", "").wantProblem(problem.SourceNotFound)
}

func TestBodyOfADeliveryIsNotReadBeyondItsLimit(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["s"],"max_body":100}`)
	var dialer net.Dialer
	for _, head := range []string{"Content-Length: 1000000000", "Transfer-Encoding: chunked"} {
		conn, err := dialer.DialContext(t.Context(), "tcp", strings.TrimPrefix(h.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprintf(conn, "POST /in/t HTTP/1.1\r\nHost: localhost\r\nAuthorization: s\r\n%s\r\n\r\n", head)
		if strings.HasPrefix(head, "T") {
			_, _ = fmt.Fprintf(conn, "c8\r\n%s\r\n", strings.Repeat("x", 200)) // and no end
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: got %d", head, resp.StatusCode)
		}
		_ = resp.Body.Close()
		_ = conn.Close()
	}
}

// begin sends the header of a request, with these fields, and part of a body of this length, and returns its connection.
func (h *environment) begin(target string, length int, part string, fields ...string) net.Conn {
	h.t.Helper()
	conn := h.dial()
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n", target, length)
	for i := 0; i < len(fields); i += 2 {
		head += fields[i] + ": " + fields[i+1] + "\r\n"
	}
	if _, err := io.WriteString(conn, head+"\r\n"+part); err != nil {
		h.t.Fatal(err)
	}
	return conn
}

// dial opens a connection to the server.
func (h *environment) dial() net.Conn {
	h.t.Helper()
	var dialer net.Dialer
	conn, err := dialer.DialContext(h.t.Context(), "tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// answerOn returns the answer that comes on a connection.
func (h *environment) answerOn(conn net.Conn) answer {
	h.t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(busyTimeout / 2)) // less than the server waits for a body
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	return answer{h.t, resp.StatusCode, resp.Header, strings.TrimSuffix(string(text), "\n")}
}

// forged is a signature of GitHub's form that nobody has made.
var forged = "sha256=" + strings.Repeat("0", 64)

func TestDeliveryWithoutProofIsRefusedBeforeItsBody(t *testing.T) {
	t.Parallel()
	const now = 1_700_000_010
	const secret = "YSBzZWNyZXQgb2YgMjQgYnl0ZXMh" // base64, as Standard Webhooks has it
	h := setupWith(t, at(now))
	for _, put := range []string{
		`"kind":"token"`, `"kind":"basic"`, `"kind":"cloudevents"`, `"kind":"github"`, `"kind":"slack"`, `"kind":"stripe"`, `"kind":"standard"`,
		`"kind":"hmac","signature":{"header":"X-Sign","timestamp":"X-At"}`,
	} {
		kind := strings.Split(put, `"`)[3]
		h.putSource(kind, `{`+put+`,"queue":"in","secrets":["`+secret+`"]}`)
	}
	const early, late = "1699999709", "1700000311"
	for _, c := range [][]string{
		{"token"},
		{"token", "Authorization", "wrong"},
		{"token", "Authorization", "wrong", "Expect", "100-continue"},
		{"basic"},
		{"basic", "Authorization", "Basic " + base64Of([]byte("anybody:wrong"))},
		{"basic", "Authorization", "Basic ?"},
		{"cloudevents"},
		{"cloudevents", "Authorization", "Bearer wrong"},
		{"github"},
		{"github", "X-Hub-Signature-256", "sha1=00"},
		{"github", "X-Hub-Signature-256", "sha256=00"},
		{"slack", "X-Slack-Request-Timestamp", "1700000000"},
		{"slack", "X-Slack-Request-Timestamp", early, "X-Slack-Signature", "v0=" + sign("s", "")},
		{"slack", "X-Slack-Request-Timestamp", late, "X-Slack-Signature", "v0=" + sign("s", "")},
		{"stripe", "Stripe-Signature", "t=1700000000"},
		{"stripe", "Stripe-Signature", "t=" + early + ",v1=" + sign("s", "")},
		{"standard", "webhook-id", "1", "webhook-timestamp", "1700000000"},
		{"standard", "webhook-id", "1", "webhook-timestamp", "1700000000", "webhook-signature", "v2,AA=="},
		{"standard", "webhook-id", "1", "webhook-timestamp", late, "webhook-signature", "v1,AA=="},
		{"hmac", "X-At", "1700000000"},
		{"hmac", "X-At", early, "X-Sign", sign("s", "")},
		{"hmac", "X-At", "x", "X-Sign", sign("s", "")},
	} {
		got := h.answerOn(h.begin("/in/"+c[0], 1000, "", c[1:]...))
		if got.status != http.StatusUnauthorized {
			t.Errorf("%v got %d %s", c, got.status, got.body)
		}
	}
	// A body that is in order so far is read.
	if used := h.srv.bodies.Stats(); used.Unverified != 0 || used.Verified != 0 && len(h.others) == 0 { // a gateway of several cells has claims of its own there
		t.Errorf("the bodies take %+v", used)
	}
	conn := h.begin("/in/github", 2, "{", "X-Hub-Signature-256", "sha256="+sign(secret, "{}"))
	_, _ = io.WriteString(conn, "}")
	h.answerOn(conn).want(http.StatusOK)
}

func TestForgeriesTakeNothingOfTheSendersRateLimit(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("github", `{"kind":"github","queue":"in","secrets":["s"],"rate_limit":{"per_second":0.001,"burst":1}}`)
	h.putSource("token", `{"kind":"token","queue":"in","secrets":["s"],"rate_limit":{"per_second":0.001,"burst":1}}`)
	for range 25 {
		h.deliver("github", `{}`, "X-Hub-Signature-256", forged).wantProblem(problem.WebhookRejected)
		h.deliver("token", `{}`, "Authorization", "wrong").wantProblem(problem.WebhookRejected)
	}
	h.deliver("github", `{}`, "X-Hub-Signature-256", "sha256="+sign("s", `{}`)).want(http.StatusOK)
	h.deliver("token", `{}`, "Authorization", "s").want(http.StatusOK)
	// Theirs is the limit of what they have sent.
	h.deliver("github", `{}`, "X-Hub-Signature-256", "sha256="+sign("s", `{}`)).wantProblem(problem.RateLimited)
	h.answerOn(h.begin("/in/token", 1000, "", "Authorization", "s")).wantProblem(problem.RateLimited)
}

func TestRefusalsHaveALimitOfTheirOwn(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("github", `{"kind":"github","queue":"in","secrets":["s"]}`)
	refused := 0
	for {
		got := h.deliver("github", `{}`, "X-Hub-Signature-256", forged)
		refused++
		if got.status == http.StatusTooManyRequests {
			if got.wantProblem(problem.RateLimited); got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
			break
		}
		got.wantProblem(problem.WebhookRejected)
		if refused > 10_000 {
			t.Fatal("there is none")
		}
	}
	h.deliver("github", `{}`, "X-Hub-Signature-256", "sha256="+sign("s", `{}`)).want(http.StatusOK)
	h.sourceUntil("github", func(s *seenSource) bool { return s.Rejected == int64(refused) && s.Received == 1 })
	loud := 0
	for line := range strings.Lines(h.log.String()) {
		if strings.Contains(line, `"level":"info"`) && strings.Contains(line, `"rejected":`) {
			loud++
		}
	}
	if loud != refused-1 {
		t.Errorf("%d of %d refusals are in the log at info, want all but the last", loud, refused)
	}
}

func TestUnverifiedBodiesShutNobodyOut(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{
		http: func(c *Config) { c.MaxBody = 64 << 10 },
		// Their time does not end before somebody needs their memory.
		server: func(s *Server, _ *http.Server) {
			s.bodies = body.NewBudget(body.Config{Limit: 1 << 20, Unverified: 64 << 10, UnverifiedTime: 10 * busyTimeout})
		},
	})
	h.putSource("github", `{"kind":"github","queue":"in","secrets":["s"]}`)
	h.putSource("token", `{"kind":"token","queue":"in","secrets":["s"]}`)
	answers := make(chan answer, 50)
	for range cap(answers) {
		conn := h.begin("/in/github", 60_000, strings.Repeat("x", 30_000), "X-Hub-Signature-256", forged)
		go func() {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return // the test has ended
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(resp.Body)
			answers <- answer{t, resp.StatusCode, resp.Header, string(text)}
		}()
	}
	// There is room for a few of them.
	for range cap(answers) - 10 {
		select {
		case got := <-answers:
			got.wantProblem(problem.Overloaded)
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		case <-time.After(busyTimeout):
			t.Fatal("their bodies are not bounded")
		}
	}
	if s := h.srv.bodies.Stats(); s.Unverified > s.UnverifiedLimit {
		t.Errorf("they take %+v", s)
	}
	h.call("POST", "/events", `{}`).want(http.StatusCreated)
	h.deliver("token", strings.Repeat("x", 60_000), "Authorization", "s", "Content-Type", "text/plain").want(http.StatusOK)
	// The slow ones give way to those who send, once they have had their time.
	genuine := strings.Repeat("x", 50_000)
	for deadline := time.Now().Add(busyTimeout); ; {
		got := h.deliver("github", genuine, "X-Hub-Signature-256", "sha256="+sign("s", genuine), "Content-Type", "text/plain")
		if got.status == http.StatusOK {
			break
		}
		got.wantProblem(problem.Overloaded)
		if time.Now().After(deadline) {
			t.Fatal("they shut the genuine sender out")
		}
	}
	if events := h.claim(`{"queue":"in","limit":100}`); len(events) != 2 {
		t.Errorf("%d events were stored", len(events))
	}
}

func TestUnverifiedBodyHasLittleTimeToArrive(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{server: func(s *Server, _ *http.Server) {
		s.bodies = body.NewBudget(body.Config{UnverifiedTime: 100 * time.Millisecond})
	}})
	h.putSource("github", `{"kind":"github","queue":"in","secrets":["s"]}`)
	h.answerOn(h.begin("/in/github", 1000, "x", "X-Hub-Signature-256", forged)).wantProblem(problem.InvalidJSON)
	if s := h.srv.bodies.Stats(); s.Unverified != 0 {
		t.Errorf("it takes %+v", s)
	}
}

func TestFieldThatEverWasTheProofIsNeverKept(t *testing.T) {
	t.Parallel()
	h := setup(t)
	refused := func(put, pointer string) {
		t.Helper()
		p := h.call("PUT", "/sources/t", put).wantProblem(problem.ValidationFailed)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != pointer {
			t.Errorf("%s: got %+v, want %s", put, p.Errors, pointer)
		}
	}
	h.putSource("t", `{"kind":"token","header":"X-Token","queue":"in","secrets":["the secret"]}`)
	// The old secret would be in the events of a sender that goes on sending it. A field whose value everybody knows is a proof, too.
	const known = `"kind":"token","header":"X-Known","queue":"in","secrets":["known"]`
	refused(`{`+known+`,"headers":["X-Other","x-token"]}`, "#/headers")
	refused(`{`+known+`,"key":"a{header:X-TOKEN}"}`, "#/key")
	refused(`{"kind":"github","queue":"in","secrets":["known"],"type":"{header:x-token}"}`, "#/type")
	h.call("PUT", "/sources/t", `{`+known+`}`).want(http.StatusOK)
	refused(`{`+known+`,"headers":["X-Token"]}`, "#/headers")
	refused(`{"kind":"github","queue":"in","secrets":["known"],"headers":["X-Known"]}`, "#/headers")
	h.call("DELETE", "/sources/t", "").want(http.StatusNoContent)
	refused(`{`+known+`,"headers":["X-Token"]}`, "#/headers")
	h.putSource("other", `{`+known+`,"headers":["X-Token"]}`) // which nobody sends the secret of t to
	for _, name := range []string{"Authorization", "proxy-authorization", "Cookie"} {
		refused(`{"kind":"github","queue":"in","secrets":["known"],"headers":["`+name+`"]}`, "#/headers")
		refused(`{"kind":"github","queue":"in","secrets":["known"],"type":"t.{header:`+name+`}"}`, "#/type")
	}
}

func TestSourceWrittenByHandKeepsNoSecretsEither(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("t", `{"kind":"token","header":"X-Token","queue":"in","secrets":["s"]}`)
	h.sql(`update agent.source set kind = 'token', header = 'X-New', headers = '{X-Token,x-new,Cookie,Authorization,X-Ok}', type = 'a.{header:Cookie}', key = '{header:X-Token}'
		, version = version + 1`)
	var events []seenEvent
	for deadline := time.Now().Add(busyTimeout); len(events) == 0; {
		h.deliver("t", `{}`, "X-Token", "former", "X-New", "s", "Cookie", "biscuit", "Authorization", "Bearer b", "X-Ok", "fine")
		events = h.claim(`{"queue":"in"}`)
		if time.Now().After(deadline) {
			t.Fatal("nothing was received")
		}
	}
	e := events[0]
	if meta := fmt.Sprint(e.Meta); !strings.Contains(meta, "X-Ok:fine") || strings.Contains(meta, "former") || strings.Contains(meta, "biscuit") || strings.Contains(meta, "Bearer") || strings.Contains(meta, "New") {
		t.Errorf("the metadata is %s", meta)
	}
	if e.Type != "" || e.Key != "" {
		t.Errorf("the type is %q, the key %q", e.Type, e.Key)
	}
	trial := h.call("POST", "/sources/t/test", `{"headers":{"X-New":"s","Cookie":"biscuit","X-Token":"former"},"body":"{}"}`).want(http.StatusOK)
	if strings.Contains(trial.body, "biscuit") || strings.Contains(trial.body, "former") {
		t.Errorf("the trial shows %s", trial.body)
	}
}

func TestOnlyDeliveriesSayWhichSourceHasVerifiedThem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const says = `"verified_source":"t"`
	verified := func(e seenEvent) any {
		t.Helper()
		meta, _ := json.Marshal(e.Meta)
		var in map[string]any
		_ = json.Unmarshal(meta, &in)
		return in["verified_source"]
	}
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["s"],"headers":["X-Long"]}`)
	h.deliver("t", `{"n":1}`, "Authorization", "s").want(http.StatusOK)
	e := h.claimOneBy(`{"queue":"in"}`)
	if verified(e) != "t" || e.Source != "t" {
		t.Fatalf("the claim is %+v", e)
	}
	// It stays through history, requeue and move.
	h.ack(e)
	if history := h.call("GET", "/history?queue=in", "").want(http.StatusOK).body; !strings.Contains(strings.ReplaceAll(history, " ", ""), says) {
		t.Errorf("history is %s", history)
	}
	h.call("POST", fmt.Sprintf("/history/%d/requeue", e.ID), "").want(http.StatusCreated)
	h.call("POST", "/queues/in/move", `{"to":"moved"}`).want(http.StatusOK)
	if e = h.claimOneBy(`{"queue":"moved"}`); verified(e) != "t" {
		t.Errorf("the moved copy is %+v", e)
	}
	out := h.with("Accept", "application/cloudevents+json").try("GET", fmt.Sprintf("/events/%d", e.ID), "").want(http.StatusOK).body
	if !strings.Contains(out, `"queuedverifiedsource":"t"`) {
		t.Errorf("as a CloudEvent it is %s", out)
	}
	// A header field that is too long to be kept does not take it along.
	h.deliver("t", `{"n":2}`, "Authorization", "s", "X-Long", strings.Repeat("x", 20_000)).want(http.StatusOK)
	if e := h.claimOneBy(`{"queue":"in"}`); verified(e) != "t" {
		t.Errorf("the claim is %+v", e)
	}

	// A topic's entry has it, and what a subscription delivers.
	h.call("PUT", "/subscriptions/sub", `{"filters":[{"topics":["shop.**"]}],"deliver":{"queue":"delivered"}}`).want(http.StatusCreated)
	h.putSource("topic", `{"kind":"token","topic":"shop.orders","secrets":["s"],"key":"{/id}"}`)
	for _, body := range []string{`{"id":1}`, `{}`} { // with a key, and without
		h.deliver("topic", body, "Authorization", "s").want(http.StatusOK)
		if e := h.claimOneBy(`{"queue":"delivered","wait":"60s"}`); verified(e) != "topic" {
			t.Errorf("the delivery of %s is %+v", body, e)
		}
	}
	log := ""
	for deadline := time.Now().Add(busyTimeout); strings.Count(log, `"verified_source":"topic"`) != 2; {
		log = strings.ReplaceAll(h.call("GET", "/log?topic=shop.orders&wait=1s", "").want(http.StatusOK).body, " ", "")
		if time.Now().After(deadline) {
			t.Fatalf("the log is %s", log)
		}
	}

	// Nobody else gets it said.
	for _, meta := range []string{`{"verified_source":"t"}`, `{"verified\u005fsource":"t"}`, `{"verified_source":null}`} {
		query := "/events?queue=forged&meta=" + url.QueryEscape(meta)
		if got := h.try("POST", query, `{}`); got.status/100 != 4 {
			t.Errorf("POST %s: %d", query, got.status)
		}
		if got := h.try("POST", query+"&key=k", `{}`); got.status/100 != 4 {
			t.Errorf("POST %s with a key: %d", query, got.status)
		}
		h.try("POST", "/events/batch", `{"events":[{"queue":"forged","event":{},"meta":`+meta+`}]}`).wantProblem(problem.ValidationFailed)
		h.try("POST", "/publish", `{"events":[{"topic":"forged","event":{},"meta":`+meta+`}]}`).wantProblem(problem.ValidationFailed)
		h.try("POST", "/publish", `{"events":[{"topic":"forged","event":{},"idempotency_key":"k","meta":`+meta+`}]}`).wantProblem(problem.ValidationFailed)
		text := "'" + meta + "'"
		for _, call := range []string{
			`agent.insert_event('{}', 'forged', _meta => ` + text + `)`,
			`agent.insert_event('{}', 'forged', _key => 'k', _meta => ` + text + `)`,
			`agent.insert_events('{"{}"}', '{forged}', _options => array[jsonb_build_object('meta', ` + text + `::jsonb)])`,
			`agent.insert_events('{"{}"}', '{forged}', _options => array[jsonb_build_object('meta', ` + text + `::jsonb, 'verified_source', 't')])`,
			`agent.insert_events('{"{}"}', '{forged}', _options => array[jsonb_build_object('meta', ` + text + `::jsonb, 'verified_source', 't', 'key', 'k')])`,
			`agent.publish('forged', '{}', _meta => ` + text + `)`,
			`agent.publish('forged', '{}', _meta => ` + text + `, _at => now() + interval '1 hour')`,
		} {
			conn := h.connect()
			_, err := conn.Exec(t.Context(), `select `+call)
			if refused, ok := errors.AsType[*pgconn.PgError](err); !ok || refused.Code != "QD003" {
				t.Errorf("%s: %v", call, err)
			}
		}
	}
	h.try("POST", "/events/batch", `{"events":[{"queue":"forged","event":{},"verified_source":"t"}]}`).wantProblem(problem.ValidationFailed)
	// One in other letters is not taken for it.
	imitation := `{"Verified_Source":"t","ce":{"specversion":"1.0","id":"1","source":"/s","type":"t","queuedverifiedsource":"t"}}`
	other := decode[seenEvent](h.call("POST", "/events?queue=other&meta="+url.QueryEscape(imitation), `{}`).want(http.StatusCreated)).ID
	out = h.with("Accept", "application/cloudevents+json").try("GET", fmt.Sprintf("/events/%d", other), "").want(http.StatusOK).body
	if strings.Contains(out, "verified") {
		t.Errorf("as a CloudEvent it is %s", out)
	}
	if n := h.count(`select (select count(*) from agent.event where queue = 'forged' or queue = 'queued.publish') + (select count(*) from agent.log where topic = 'forged')`); n != 0 {
		t.Errorf("%d forged events are stored", n)
	}
	// A delayed publication that was written by hand may say so.
	h.atHome().sql(`insert into agent.event (queue, event) values ('queued.publish', '{"topic": "late", "event": {}, "meta": {"verified_source": "t", "a": 1}}')`)
	h.sql(`select agent_service.publish_due()`)
	if n := h.count(`select count(*) from agent.log where topic = 'late' and meta = '{"a": 1}'`); n != 1 {
		t.Error("a delayed publication says so")
	}
}

// provokeSources provokes what is special to sources.
func provokeSources(h *environment, seen map[string]bool) {
	h.call("PUT", "/sources/shop", `{"kind":"token","queue":"in","secrets":["s"],"rate_limit":{"per_second":0.001,"burst":9},"keep_raw":"1h","max_body":1000}`).want(201)
	h.call("PUT", "/sources/shop", `{"kind":"token","queue":"in","rate_limit":{"per_second":0.001,"burst":9}}`).want(200)
	h.with("If-Match", `"9"`).call("PUT", "/sources/shop", `{"kind":"token","queue":"in"}`).wantProblem(problem.PreconditionFailed)
	h.with("If-None-Match", "*").call("PUT", "/sources/shop", `{"kind":"token","queue":"in"}`).wantProblem(problem.PreconditionFailed)
	h.call("GET", "/sources/shop", "").want(200)
	h.call("GET", "/sources/nothing", "").wantProblem(problem.SourceNotFound)
	h.call("GET", "/sources/shop/deliveries", "").want(200)
	h.call("GET", "/sources/nothing/deliveries", "").wantProblem(problem.SourceNotFound)
	h.call("GET", "/sources?limit=1", "").want(200)
	h.call("GET", "/sources?cursor=x", "").wantProblem(problem.InvalidCursor)
	h.call("POST", "/sources/shop/test", `{"headers":{"Authorization":"s"},"body":"{}"}`).want(200)
	h.call("POST", "/sources/nothing/test", `{}`).wantProblem(problem.SourceNotFound)
	h.deliver("shop", `{}`, "Authorization", "s").want(200)
	h.deliver("shop", `{}`, "Authorization", "other").wantProblem(problem.WebhookRejected)
	h.deliver("shop", `{}`, "Authorization", "s", "Sec-Fetch-Site", "cross-site").wantProblem(problem.CrossOrigin)
	h.deliver("nothing", `{}`).wantProblem(problem.SourceNotFound)
	h.deliver("shop", strings.Repeat("x", 9<<20), "Authorization", "s").wantProblem(problem.BodyTooLarge)
	h.deliver("shop", `{}`, "Authorization", "s", "Content-Encoding", "br").wantProblem(problem.UnsupportedMediaType)
	h.call("PUT", "/sources/ce", `{"kind":"cloudevents","queue":"in","secrets":["s"]}`).want(201)
	h.deliver("ce", `{"a":`, "Authorization", "s", "Content-Type", "application/cloudevents+json").wantProblem(problem.InvalidCloudEvent)
	h.deliver("shop", `{"a":"\u0000`+strings.Repeat("x", 900_000)+`"}`, "Authorization", "s").wantProblem(problem.Unrepresentable) // and too long to be kept as bytes
	for h.deliver("shop", `{}`, "Authorization", "s").status == http.StatusOK {
		continue
	}
	h.deliver("shop", `{}`, "Authorization", "s").wantProblem(problem.RateLimited)
	h.with("WebHook-Request-Origin", "a.example").try("OPTIONS", "/in/shop", "").want(200)
	h.try("OPTIONS", "/in/shop", "").wantProblem(problem.InvalidParameter)
	h.with("WebHook-Request-Origin", "a.example").try("OPTIONS", "/in/nothing", "").wantProblem(problem.SourceNotFound)
	h.with("If-Match", `"9"`).call("DELETE", "/sources/shop", "").wantProblem(problem.PreconditionFailed)
	h.call("DELETE", "/sources/nothing", "").wantProblem(problem.SourceNotFound)

	h.call("PUT", "/sources/cut", `{"kind":"token","queue":"in","secrets":["s"]}`).want(201)
	var dialer net.Dialer
	conn, err := dialer.DialContext(h.t.Context(), "tcp", strings.TrimPrefix(h.url, "http://"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprint(conn, "POST /in/cut HTTP/1.1\r\nHost: localhost\r\nAuthorization: s\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	_ = resp.Body.Close()
	seen[fmt.Sprintf("receive %d", resp.StatusCode)] = true
	h.call("DELETE", "/sources/cut", "").want(204)
}

// provokeForeignSource provokes the answer to a key that puts a source whose name others have.
func provokeForeignSource(h *environment) {
	h.key("secret").call("PUT", "/sources/theirs", `{"kind":"token","queue":"out","secrets":["s"]}`).want(201)
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage}, Queues: []string{"in"}})
	h.key(key).call("PUT", "/sources/theirs", `{"kind":"token","queue":"in","secrets":["s"]}`).wantProblem(problem.SourceNotFound)
}
