package http

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
)

// pushForm is the form of a push.
func pushForm(to string, changes ...string) url.Values {
	form := url.Values{
		"url": {to}, "format": {"event"}, "headers": {"X-Lane: fast\r\nAuthorization: Bearer hunter2\r\n"}, "timeout": {"20s"}, "max_in_flight": {"7"},
		"rate/per_second": {"50.5"}, "rate/burst": {"60"}, "final_statuses": {"400, 422"}, "disable_after": {"3d"},
	}
	for i := 0; i+1 < len(changes); i += 2 {
		form.Set(changes[i], changes[i+1])
	}
	return form
}

// secretText matches the secret of a push.
var secretText = regexp.MustCompile(`whsec_[A-Za-z0-9+/=&#;]{40,}`)

func TestPushesAreMadeAndChangedByForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	to := endpointOf(t, http.StatusOK, "thanks")
	h.call("PUT", "/queues/mail", `{}`).want(200)
	b.get("queues/mail").want(200).says(`queues/mail/push"`)
	b.get("queues/mail/push").want(200).says("This queue is not pushed", "push/new")
	b.get("queues/mail/push/new").want(200).says("Begin to push").saysNot("&lt;nil&gt;")
	made := b.post("queues/mail/push/new", pushForm(to.URL)).want(200).says("shown this once", "whsec_", to.URL)
	b.post("queues/mail/push/new", pushForm(to.URL)).want(409).says("pushed already").saysNot("hunter2")
	shown := b.get("queues/mail/push").want(200).says("Push of", `<span class="tag enabled">`, to.URL, "<code>Authorization, X-Lane</code>", "20 s", "at most 7 requests", "50.5 a second, 60 at once", "400, 422", "3 d of failures", "No event was sent yet", "Begin anew")
	shown.saysNot("hunter2", "whsec_")
	b.get("queues/mail/push/change").want(200).says(`value="72h"`, `value="20s"`, `value="400 422"`, `value="50.5"`, `value="1"`, "Authorization, X-Lane").saysNot("hunter2", "&lt;nil&gt;")

	b.follow("queues/mail/push/change", pushForm(to.URL, "version", "1", "headers", "", "final_statuses", "", "rate/per_second", "", "rate/burst", "", "timeout", "")).want(200).
		says("The change is stored", "<code>Authorization, X-Lane</code>", "rate limit</dt><dd>none", "final statuses</dt><dd>none", "15 s")
	b.post("queues/mail/push/change", pushForm(to.URL, "version", "1")).want(412).saysNot("hunter2").says("enter them again")
	b.post("queues/mail/push/change", pushForm(to.URL)).want(412)
	b.follow("queues/mail/push/change", pushForm(to.URL, "version", "2", "headers", "", "no_headers", "on")).want(200).says("headers</dt><dd>none")

	b.get("queues/mail/push/secret").want(200).says("Rotate the secret of mail?", "(1 secret)")
	b.post("queues/mail/push/secret", url.Values{"keep": {"soon"}}).want(422).says(`id="keep-wrong"`, `value="soon"`)
	rotation := url.Values{"keep": {"1h"}, "nonce": {b.get("queues/mail/push/secret").nonce()}}
	rotated := b.post("queues/mail/push/secret", rotation).want(200).says("shown this once", "the old one, too")
	b.post("queues/mail/push/secret", rotation).want(409).says("Sent before").saysNot("whsec_")
	if one, other := secretText.FindString(made.body), secretText.FindString(rotated.body); one == "" || other == "" || one == other {
		t.Errorf("the secrets are %q and %q", one, other)
	}
	b.get("queues/mail/push").want(200).says("old secret", "signs until").saysNot("whsec_")

	for field, bad := range map[string]struct{ value, at, says string }{
		"url": {"ftp://a.b/", "url", "must"}, "format": {"xml", "format", "must be one of"}, "headers": {"X-A", "headers", "line 1"}, "timeout": {"0s", "timeout", "must"},
		"max_in_flight": {"many", "max_in_flight", "must"}, "rate/per_second": {"x", "rate/per_second", "must"}, "rate/burst": {"-1", "rate/burst", "must"},
		"final_statuses": {"200", "final_statuses", "0: must"}, "disable_after": {"1h", "disable_after", "must"},
	} {
		page := b.post("queues/other/push/new", pushForm(to.URL, field, bad.value))
		_, at, found := strings.Cut(page.body, `id="`+bad.at+`-wrong">`)
		if at, _, _ = strings.Cut(at, "<"); !found || page.status != 400 && page.status != 422 || !strings.Contains(at, bad.says) {
			t.Errorf("%s: %d, at its field it says %q, want %q: %s", field, page.status, at, bad.says, page.body)
		}
		page.saysNot("hunter2")
	}
	b.post("queues/other/push/new", pushForm(to.URL, "headers", "X-A: 1\nX-A: 2")).want(400).says("X-A twice")

	b.get("queues/mail/push/delete").want(200).says("Delete the push of mail?", "The 0 events", `name="version" value="3"`)
	b.post("queues/mail/push/delete", url.Values{"version": {"2"}}).want(412)
	b.follow("queues/mail/push/delete", url.Values{"version": {"3"}}).want(200).says("The push is deleted", "This queue is not pushed")
	for _, nothing := range []string{"change", "secret", "delete"} {
		b.get("queues/mail/push/" + nothing).want(404)
	}
	for _, nothing := range []string{"enable", "test", "secret"} {
		b.post("queues/mail/push/"+nothing, nil).want(404)
	}
	b.post("queues/mail/push/change", pushForm(to.URL, "version", "1")).want(412) // not made anew
}

func TestPushesAreTestedEnabledAndSentAgainByButtons(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	const evil = "<script>alert(1)</script>\u202e\x00\xff\x1b"
	to := endpointOf(t, http.StatusTeapot, evil)
	h.call("PUT", "/queues/tea/push", `{"url":"`+to.URL+`","final_statuses":[418]}`).want(201)
	b.post("queues/tea/push/test", nil).want(200).says("Not delivered.", "answered 418", "&lt;script&gt;alert(1)").saysNot("<script>alert", "\u202e", "\x00", "\x1b")
	h.call("POST", "/events?queue=tea&type="+url.QueryEscape(evil[:25]), `{"a":1}`).want(201)
	h.logUntil("/queues/tea/push/deliveries?outcome=failed", 1)
	b.until("queues/tea/push", "events/1\"").says("&lt;script&gt;alert(1)", `<span class="tag failed">`, "418", `name="requeue" value="1"`, "events/1").saysNot("<script>alert", "\u202e", "\x00", "\x1b", "style=")
	b.follow("queues/tea/push/again?outcome=failed", url.Values{"requeue": {"1"}}).want(200).says("the event 2", `<option selected>failed</option>`)
	b.post("queues/tea/push/again", url.Values{"requeue": {"1"}}).want(409).says("Its latest copy is the event 2")
	h.logUntil("/queues/tea/push/deliveries?event=2", 1)
	b.get("queues/tea/push?event=2&status=418").want(200).says("events/2", "Show all").saysNot("events/1\"")
	b.get("queues/tea/push?status=503").want(200).says("No attempt in the log passes the filter")
	for _, bad := range []string{"outcome=lost", "status=x", "event=0", "from=x", "cursor=x"} {
		b.get("queues/tea/push?" + bad).want(400).says(`role="alert"`)
	}
	b.post("queues/tea/push/again", url.Values{"requeue": {"99"}}).want(404)
	b.post("queues/tea/push/again", url.Values{"requeue": {"x"}}).want(400)
	b.post("queues/tea/push/again", nil).want(400)

	h.call("PUT", "/queues/slow/push", `{"url":"`+to.URL+`"}`).want(201)
	h.call("POST", "/events?queue=slow", `{}`).want(201)
	h.logUntil("/queues/slow/push/deliveries?outcome=retried", 1)
	b.until("queues/slow/push", "1 failure in a row") // which is written a moment later
	again := b.until("queues/slow/push", `name="run"`).says(`<span class="tag retried">`)
	id := regexp.MustCompile(`name="run" value="(\d+)"`).FindStringSubmatch(again.body)[1]
	b.follow("queues/slow/push/again", url.Values{"run": {id}}).want(200).says("is due now")
	h.logUntil("/queues/slow/push/deliveries", 2)

	h.sql(`update agent.push_state set epoch = epoch + 1, disabled_at = now(), disabled_reason = $1 where queue = 'slow'`, evil[:25])
	b.until("queues/slow/push", "Disabled since").says("Mend the endpoint", "&lt;script&gt;", ">Enable</button>").saysNot("<script>alert")
	b.follow("queues/slow/push/enable", nil).want(200).says("begins anew", `<span class="tag enabled">`)
}

func TestPagesOfSourcesAndPushesAreForWhoMaySeeThem(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("shop", `{"kind":"token","queue":"orders.in","secrets":["the-token"]}`)
	h.putSource("other", `{"kind":"token","queue":"mail","secrets":["the-token"]}`)
	to := endpointOf(t, http.StatusOK, "")
	for _, queue := range []string{"orders.in", "mail"} {
		h.call("PUT", "/queues/"+queue+"/push", `{"url":"`+to.URL+`"}`).want(201)
	}
	h.call("POST", "/events?queue=orders.in", `{}`).want(201)
	h.logUntil("/queues/orders.in/push/deliveries", 1)
	h.adminKey()
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Queues: []string{"orders.*"}})
	b := h.browseAs(t, key)
	b.get("sources").want(200).says("sources/shop").saysNot("sources/other", "New source")
	b.get("sources/shop").want(200).saysNot("Pause", "Change…", "Delete…", "Test…")
	b.get("queues/orders.in/push").want(200).says("delivered").saysNot("Send", "Rotate", "Change…", "Delete…", "Enable", "Begin anew")
	for _, others := range []string{"sources/other", "sources/other/change", "queues/mail/push", "queues/mail/push/secret"} {
		if page := b.get(others); page.status != 403 && page.status != 404 {
			t.Errorf("%s: status %d", others, page.status)
		}
	}
	for _, form := range []string{"sources/shop/pause", "sources/shop/delete", "sources/shop/test", "new/source", "queues/orders.in/push/secret", "queues/orders.in/push/test", "queues/orders.in/push/enable", "queues/orders.in/push/delete"} {
		b.post(form, url.Values{"name": {"x"}, "kind": {"token"}, "queue": {"orders.a"}, "version": {"1"}}).want(403)
	}
	b.post("queues/orders.in/push/again", url.Values{"requeue": {"1"}}).want(403)
}
