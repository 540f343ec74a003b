package http

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
)

var (
	secretShown = regexp.MustCompile(`<pre class="card" id="secret"[^>]*>(qk_[a-z2-7]{8}_[a-z2-7]{33})</pre>`)
	nonceShown  = regexp.MustCompile(`name="nonce" value="([A-Z0-9]+)"`)
)

// secret returns the text of a key that the page shows once.
func (p *pageSeen) secret() string {
	p.t.Helper()
	found := secretShown.FindStringSubmatch(p.want(http.StatusOK).body)
	if found == nil {
		p.t.Fatalf("the page shows no text of a key: %s", p.body)
	}
	if p.header.Get("Cache-Control") != "no-store" {
		p.t.Errorf("the secret may be stored: %q", p.header.Get("Cache-Control"))
	}
	return found[1]
}

// nonce returns that of the form of a page.
func (p *pageSeen) nonce() string {
	p.t.Helper()
	found := nonceShown.FindStringSubmatch(p.want(http.StatusOK).body)
	if found == nil {
		p.t.Fatalf("the page has no nonce: %s", p.body)
	}
	return found[1]
}

func TestKeysAreMadeAndTheirTextShownOnce(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("keys").want(200).says("No key is in the database", "everybody who reaches the server may do everything")
	page := b.get("keys/new").want(200).says("It is the first key", `value="admin" checked`)
	b.post("keys/create", url.Values{"name": {"ops"}, "scope": {"read"}, "uses": {"all"}}).want(422).says("must have admin for the first key", `value="ops"`, `value="read" checked`)
	form := url.Values{"name": {"ops"}, "scope": {"admin"}, "uses": {"all"}, "nonce": {page.nonce()}}
	made := b.post("keys/create", form).says("It is the first key: from now on", "login?to=keys", "data-copy")
	admin := made.secret()
	b.post("keys/create", form).want(http.StatusUnauthorized)
	b.get("keys").want(http.StatusSeeOther)

	b = h.browseAs(t, admin)
	b.post("keys/create", form).want(http.StatusConflict).says("Sent before").saysNot(admin)
	b.get("keys").want(200).says(">ops<", admin[3:11], ">active<").saysNot(admin)
	limited := url.Values{
		"name": {"shop"}, "scope": {"publish", "read"}, "uses": {"some"}, "queues": {"orders.*\r\nmail"}, "topics": {"order.**"}, "per_second": {"0.5"}, "burst": {"7"},
		"expires": {"90d"}, "nonce": {b.get("keys/new").nonce()},
	}
	text := b.post("keys/create", limited).saysNot("first key").secret()
	k := decode[struct {
		Queues, Topics, Scopes []string
		RateLimit              struct {
			PerSecond float64 `json:"per_second"`
			Burst     int
		} `json:"rate_limit"`
		ExpiresAt time.Time `json:"expires_at"`
	}](h.key(admin).call("GET", "/keys/"+text[3:11], "").want(200))
	if strings.Join(k.Queues, " ") != "orders.* mail" || strings.Join(k.Topics, " ") != "order.**" || len(k.Scopes) != 2 || k.RateLimit.PerSecond != 0.5 || k.RateLimit.Burst != 7 {
		t.Errorf("the key is %+v", k)
	}
	if left := time.Until(k.ExpiresAt); (left - 90*24*time.Hour).Abs() > time.Hour {
		t.Errorf("it expires in %s", left)
	}
	b.get("keys/"+text[3:11]).want(200).says("orders.*, mail", "0.5 requests a second, 7 at once", `value="publish" checked`, `value="some" checked`, "orders.*\nmail</textarea>").saysNot(text)
	if log := h.log.String(); strings.Contains(log, text) || strings.Contains(log, admin) {
		t.Error("the log has the text of a key")
	}

	n := h.atHome().count(`select count(*) from agent.api_key`)
	for field, bad := range map[string]string{
		"expires": "soon", "per_second": "NaN", "burst": "many", "queues": "", "name": "", "scope": "god", "topics": "a..b", "uses": "some",
	} {
		changed := url.Values{"name": {"bad"}, "scope": {"read"}, "uses": {"some"}, "queues": {"a"}, "per_second": {"1"}}
		changed.Set(field, bad)
		if field == "uses" {
			changed.Set("scope", "admin") // which may use everything
		}
		if page := b.post("keys/create", changed); page.status != 400 && page.status != 422 {
			t.Errorf("%s: %q: status %d", field, bad, page.status)
		} else if page.says(`role="alert"`); strings.Contains(page.body, `id="secret"`) {
			t.Errorf("%s: %q made a key", field, bad)
		}
	}
	b.post("keys/create", url.Values{"name": {"bad"}, "scope": {"read"}, "expires": {"2020-01-01T00:00"}}).want(400).says("is over")
	if got := h.atHome().count(`select count(*) from agent.api_key`); got != n {
		t.Errorf("%d keys were made", got-n)
	}
}

func TestKeysAreChangedRotatedAndRevoked(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.adminKey()
	const script = `<script>alert(1)</script>`
	text := h.createKey(access.CreateParams{Name: script, Scopes: []access.Scope{access.Read}, Queues: []string{"a", "b.*"}})
	at := "keys/" + text[3:11]
	b := h.browseAs(t, admin)
	b.get("keys").want(200).says("&lt;script&gt;", "a, b.*", ">none<").saysNot(script)
	b.get(at).want(200).says("&lt;script&gt;", "never", `name="version" value="1"`).saysNot(script)
	b.get("keys/aaaaaaaa").want(404).says("Key not found")
	b.get("keys/" + url.PathEscape("a/../b")).want(404)

	change := url.Values{"version": {"1"}, "name": {"shop"}, "scope": {"read", "publish"}, "uses": {"some"}, "queues": {"c"}, "expires": {"2099-01-02T03:04:05.678Z"}}
	b.follow(at+"/change", change).want(200).says("The key is changed", "<h1>shop</h1>", `2099-01-02 03:04:05<span class="utc"> UTC`, `value="2099-01-02T03:04:05.678Z"`)
	b.post(at+"/change", change).want(412).says("Precondition failed", `name="version" value="2"`) // from the page as it was before
	change.Set("version", "2")
	change.Set("queues", "")
	b.post(at+"/change", change).want(400).says("name one at least") // and never all
	change.Set("uses", "all")
	change.Set("expires", "")
	b.follow(at+"/change", change).want(200).says("The key is changed", `<dt>queues</dt><dd>all</dd>`, `<dt>expires</dt><dd>never</dd>`)

	b.post(at+"/rotate", url.Values{"grace": {"long"}}).want(400).says("must be a duration", `value="read" checked`)
	b.post(at+"/rotate", url.Values{"grace": {"10000d"}}).want(422)
	b.post(at+"/rotate", url.Values{"grace": {""}}).want(400).says("is missing")
	rotate := url.Values{"grace": {"1h"}, "nonce": {b.get(at).nonce()}}
	second := b.post(at+"/rotate", rotate).says("has another text", "The text before is taken until").secret()
	b.post(at+"/rotate", rotate).want(http.StatusConflict)
	h.key(text).call("GET", "/queues", "").want(200)
	h.key(second).call("GET", "/queues", "").want(200)
	third := b.post(at+"/rotate", url.Values{"grace": {"0s"}}).says("is taken no longer").secret()
	h.key(second).call("GET", "/queues", "").want(401)
	h.key(third).call("GET", "/queues", "").want(200)

	b.get(at+"/revoke").want(200).says("Revoke the key shop", "within the last minute").saysNot("last admin key", "logged out")
	b.follow(at+"/revoke", nil).want(200).says("The key is revoked", ">revoked<", "listed for 90 days more").saysNot("<h2>Change", "<h2>Rotate", "Revoke…")
	h.key(third).call("GET", "/queues", "").want(401)

	own := "keys/" + admin[3:11]
	b.get(own+"/revoke").want(200).says("It is the last admin key", "you will be logged out")
	b.post(own+"/revoke", nil).want(409).says("Last admin key")
	b.post("keys/create", url.Values{"name": {"other"}, "scope": {"admin"}}).secret()
	b.get(own + "/revoke").want(200).saysNot("It is the last admin key")
	b.post(own+"/revoke", nil).want(http.StatusSeeOther)
	b.get("keys").leadsTo(b, "keys", "login?did=session.ended&to=keys")
}
