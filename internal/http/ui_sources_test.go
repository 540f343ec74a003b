package http

import (
	"net/url"
	"strings"
	"testing"
	"time"
)

// sourceForm is the form of a source of the kind token.
func sourceForm(changes ...string) url.Values {
	form := url.Values{
		"name": {"shop"}, "kind": {"token"}, "queue": {"orders"}, "topic": {""}, "type": {"order.{/status}"}, "key": {"{/id}"}, "event_ts": {""}, "priority": {""},
		"header": {"X-Token"}, "secrets/0": {"the-token"}, "secrets/1": {""}, "secrets/2": {"the-next"}, "tolerance": {""}, "dedup_for": {"7d"}, "keep_raw": {"1h"},
		"max_body": {"100000"}, "rate_limit/per_second": {"2.5"}, "rate_limit/burst": {"9"}, "headers": {"X-Shop\r\n\r\n X-Lane \r\n"},
		"signature/header": {""}, "signature/algorithm": {"sha256"}, "signature/encoding": {"hex"}, "signature/prefix": {""}, "signature/timestamp": {""},
	}
	for i := 0; i+1 < len(changes); i += 2 {
		form.Set(changes[i], changes[i+1])
	}
	return form
}

// until opens a page again until it has a text: what it shows may be two seconds old.
func (b *browser) until(path, text string) *pageSeen {
	b.t.Helper()
	for deadline := time.Now().Add(busyTimeout); ; {
		page := b.get(path).want(200)
		if strings.Contains(page.body, text) {
			return page
		}
		if time.Now().After(deadline) {
			return page.says(text)
		}
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // no signal announces it
	}
}

func TestSourcesAreMadeAndChangedByForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("sources").want(200).says("No source is here", "new/source")
	b.get("new/source?queue=orders").want(200).says(`value="orders"`, "Create the source").saysNot("&lt;nil&gt;")
	b.follow("new/source", sourceForm()).want(200).says("The source is stored", "2 secrets, never shown", "order.{/status}", "X-Token", "X-Shop, X-Lane", "100,000 bytes", "2.5 a second, 9 at once", "kept for 1 h", "No delivery has come yet", "<code>/in/shop</code>").
		saysNot("the-token", "the-next")
	b.get("sources").want(200).says(`href="./sources/shop"`, "token")
	b.post("new/source", sourceForm("queue", "other")).want(400).says("there is already").saysNot("the-token")

	if got := h.call("GET", "/sources/shop", "").want(200).body; strings.Contains(got, `"queue":"other"`) {
		t.Errorf("the form of a new source has changed one: %s", got)
	}

	b.get("sources/shop/change").want(200).says("Change shop", `value="168h"`, `value="1h"`, `value="5m"`, `value="2.5"`, "X-Shop\nX-Lane", `name="version" value="1"`).saysNot("the-token", "&lt;nil&gt;")
	form := sourceForm("version", "1", "secrets/0", "", "secrets/2", "", "queue", "", "topic", "orders.paid", "keep_raw", "", "paused", "on", "rate_limit/per_second", "", "rate_limit/burst", "")
	b.follow("sources/shop/change", form).want(200).says("The change is stored", "topics/orders.paid", `<span class="tag paused">`, "2 secrets", "rate limit</dt><dd>none")
	b.post("sources/shop/change", form).want(412).says("Precondition failed", `value="orders.paid"`)
	form.Del("version")
	b.post("sources/shop/change", form).want(412)

	hmac := []string{"name", "signed", "kind", "hmac", "header", "", "signature/header", "X-Sig", "signature/algorithm", "sha512", "signature/encoding", "base64", "signature/prefix", "v=", "signature/timestamp", "X-Time"}
	b.follow("new/source", sourceForm(hmac...)).want(200).says("sha512, base64", "<code>X-Sig</code>", "<code>v=</code>", "<code>X-Time</code>")
	b.get("sources/signed/change").want(200).says("<option selected>sha512</option>", "<option selected>base64</option>", `value="X-Sig"`)

	for field, bad := range map[string]struct{ value, at, says string }{
		"name": {"a b", "name", "must"}, "kind": {"fax", "kind", "must be one of"}, "queue": {"a b", "queue", "must"}, "topic": {"a.b", "topic", "beside queue"},
		"type": {"{", "type", "without a }"}, "key": {"{nothing:x}", "key", "must be {/json/pointer}"}, "dedup_for": {"soon", "dedup_for", "duration"}, "tolerance": {"0s", "tolerance", "must be"},
		"keep_raw": {"999999999d", "keep_raw", "out of range"}, "max_body": {"big", "max_body", "must be"}, "rate_limit/per_second": {"-1", "rate_limit/per_second", "must be"},
		"rate_limit/burst": {"1.5", "rate_limit/burst", "must be"}, "headers": {"Authorization", "headers", "must not"}, "secrets/0": {strings.Repeat("x", 1025), "secrets", "must"},
	} {
		page := b.post("new/source", sourceForm("name", "bad", field, bad.value))
		if page.status != 400 && page.status != 422 {
			t.Errorf("%s: status %d: %s", field, page.status, page.body)
			continue
		}
		_, at, found := strings.Cut(page.body, `id="`+bad.at+`-wrong">`)
		if at, _, _ = strings.Cut(at, "<"); !found || !strings.Contains(at, bad.says) {
			t.Errorf("%s: at its field it says %q, want %q: %s", field, at, bad.says, page.body)
		}
		page.saysNot("the-token")
		if field != "secrets/0" {
			page.says("enter it again")
		}
	}
	b.post("new/source", sourceForm("name", "")).want(400).says("is missing")
}

func TestSourcesArePausedTestedAndDeletedByForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.putSource("new", `{"kind":"token","queue":"orders","key":"{/id}","type":"{/kind}","secrets":["the-token"],"rate_limit":{"per_second":3},"headers":["X-A"],"max_body":99999}`)
	b.follow("sources/new/pause", nil).want(200).says("The source is paused", `<span class="tag paused">`, "/resume", "3 a second", "99,999 bytes", "X-A", "1 secret,")
	b.follow("sources/new/pause", nil).want(200)
	h.deliver("new", `{}`, "Authorization", "the-token").want(503)
	b.follow("sources/new/resume", nil).want(200).says("no longer paused").saysNot("/resume") // its deliveries may say that they were refused
	h.deliver("new", `{}`, "Authorization", "the-token").want(200)

	b.get("sources/new/test").want(200).says("Test new", "Try it")
	tried := url.Values{"headers": {"Authorization: Bearer the-token\r\nX-A: b"}, "body": {"{\"id\":12345678901234567890,\r\n\"n\":1}"}, "query": {""}, "at": {""}}
	b.post("sources/new/test", tried).want(200).says("would be taken", "12345678901234567890", "X-A", "/kind", "queues/orders")
	tried.Set("headers", "Authorization: nothing")
	b.post("sources/new/test", tried).want(200).says("would be refused", "signature_mismatch", "It has not proved")
	tried.Set("headers", "no colon")
	b.post("sources/new/test", tried).want(400).says("Name: value", `no colon</textarea>`)
	tried.Set("headers", "")
	tried.Set("at", "yesterday")
	b.post("sources/new/test", tried).want(422).says(`id="at-wrong"`)
	if got := h.call("GET", "/events?queue=orders", "").want(200).body; strings.Count(got, `"id":`) != 1 {
		t.Errorf("stored is %s, want the one event of the delivery", got)
	}

	b.get("sources/new/delete").want(200).says("Delete the source new?", "received", `name="version" value="3"`)
	b.post("sources/new/delete", url.Values{"version": {"2"}}).want(412)
	b.post("sources/new/delete", nil).want(412)
	b.follow("sources/new/delete", url.Values{"version": {"3"}}).want(200).says("The source is deleted", "No source is here")
	for _, nothing := range []string{"sources/new", "sources/new/change", "sources/new/test", "sources/new/delete"} {
		b.get(nothing).want(404)
	}
	b.post("sources/new/pause", nil).want(404)
	b.post("sources/new/test", tried).want(404)
}

func TestDeliveryLogsOfSourcesShowStrangersTextAsText(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.putSource("shop", `{"kind":"github","queue":"orders","secrets":["s3cret"]}`)
	const evil = "<script>alert(1)</script>\u202e\x01"
	h.deliver("shop", evil, "X-Hub-Signature-256", "sha256="+sign("wrong", "x")).want(401)
	h.deliver("shop", `{"a":1}`, "X-Hub-Signature-256", "sha256="+sign("s3cret", `{"a":1}`), "X-GitHub-Delivery", evil[:25]).want(200)
	h.logUntil("/sources/shop/deliveries", 2)
	h.sourceUntil("shop", func(s *seenSource) bool { return s.Received == 1 && s.Rejected == 1 })
	b.until("sources/shop", "Last rejection").says("&lt;script&gt;alert(1)", "signature_mismatch", `<span class="tag rejected">`, `<span class="tag received">`, `events/1`, "Last rejection").
		saysNot("<script>alert", "\u202e", "\x01", "style=")
	b.get("sources").want(200).says("signature_mismatch")
	b.get("sources/shop?result=rejected&from=2020-01-01T00:00").want(200).says(`<span class="tag rejected">`, "Show all").saysNot(`<span class="tag received">`)
	b.get("sources/shop?to=2020-01-01T00:00").want(200).says("No delivery in the log passes the filter")
	for _, bad := range []string{"result=lost", "from=x", "to=x", "cursor=x"} {
		b.get("sources/shop?" + bad).want(400).says(`role="alert"`)
	}
	b.get("new/source?queue=" + url.QueryEscape(evil)).want(200).saysNot("<script>alert")
	b.post("new/source", sourceForm("name", evil, "type", evil, "headers", evil)).saysNot("<script>alert")
	b.post("sources/shop/test", url.Values{"headers": {"X: " + evil}, "body": {evil}, "query": {evil}}).saysNot("<script>alert")
}

func TestDeliveryLogsOfSourcesHaveMoreThanAPage(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	h.putSource("shop", `{"kind":"token","queue":"orders","key":"{/id}","secrets":["the-token"]}`)
	for range 51 {
		h.deliver("shop", `{}`, "Authorization", "the-token").want(200)
	}
	h.logUntil("/sources/shop/deliveries?limit=100", 51)
	first := b.get("sources/shop?result=received").want(200).says("50 shown", `rel="next"`)
	_, next, _ := strings.Cut(first.body, `rel="next" href="`)
	next, _, _ = strings.Cut(next, `"`)
	b.get("sources/shop"+strings.ReplaceAll(next, "&amp;", "&")).want(200).says("1 shown", "First page").saysNot(`rel="next"`)
}

func TestBodiesOfDeliveriesCanBeHidden(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(c *Config) { c.HidePayloads = true }})
	h.putSource("shop", `{"kind":"cloudevents","queue":"orders","secrets":["the-token"]}`)
	h.deliver("shop", `{"private":`, "Authorization", "the-token", "Content-Type", "application/cloudevents+json").want(400)
	h.deliver("shop", `private`, "Authorization", "the-token", "Content-Type", "application/cloudevents+json").want(400)
	h.logUntil("/sources/shop/deliveries", 2)
	h.browse(t).get("sources/shop").want(200).says("invalid", "hidden").saysNot("private")
}
