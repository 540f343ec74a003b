package http

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"
)

// A browser opens pages of a server as people's browsers do, without a script: it keeps cookies, and follows no redirect by itself.
type browser struct {
	t      *testing.T
	http   *http.Client
	base   string
	header http.Header // of every request, besides
}

// A pageSeen is a page as a browser has it.
type pageSeen struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

// browse returns a browser for the pages of a server, which has sampled the queues: before that there are no statistics.
func (h *environment) browse(t *testing.T) *browser {
	t.Helper()
	for _, at := range h.all() {
		samplings := at.database.Rounds.Loop("sampling queues")
		h.eventually("the queues were sampled", func() bool { return samplings.Total() > 0 })
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &browser{t: t, base: h.url, http: &http.Client{
		Transport: h.raw, Jar: localJar{jar}, Timeout: busyTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// browseAs returns a browser that has logged in with a key.
func (h *environment) browseAs(t *testing.T, key string) *browser {
	t.Helper()
	b := h.browse(t)
	b.follow("login", url.Values{"key": {key}}).want(http.StatusSeeOther)
	return b
}

// localJar keeps cookies for secure origins, as browsers do for localhost.
type localJar struct{ http.CookieJar }

// SetCookies implements http.CookieJar.
func (j localJar) SetCookies(u *url.URL, cookies []*http.Cookie) {
	j.CookieJar.SetCookies(secure(u), cookies)
}

// Cookies implements http.CookieJar.
func (j localJar) Cookies(u *url.URL) []*http.Cookie { return j.CookieJar.Cookies(secure(u)) }

func secure(u *url.URL) *url.URL {
	changed := *u
	changed.Scheme = "https"
	return &changed
}

// get opens the page at a path under /ui/.
func (b *browser) get(path string) *pageSeen { return b.send(http.MethodGet, path, nil) }

// post sends a form to a path under /ui/.
func (b *browser) post(path string, form url.Values) *pageSeen {
	return b.send(http.MethodPost, path, form)
}

// follow sends a form, and returns the page that it leads to.
func (b *browser) follow(path string, form url.Values) *pageSeen {
	b.t.Helper()
	sent := b.post(path, form).want(http.StatusSeeOther)
	return b.get(b.resolve(path, sent.header.Get("Location")))
}

// resolve returns the path under /ui/ that a location in the answer of a path stands for. It fails the test if that is not under /ui/ of this server.
func (b *browser) resolve(path, location string) string {
	b.t.Helper()
	at, err := url.Parse(b.base + "/ui/" + path)
	if err != nil {
		b.t.Fatal(err)
	}
	next, err := at.Parse(location)
	if err != nil {
		b.t.Fatal(err)
	}
	under, ok := strings.CutPrefix(next.String(), b.base+"/ui/")
	if !ok {
		b.t.Fatalf("%s leads to %q, which is %s", path, location, next)
	}
	return under
}

func (b *browser) send(method, path string, form url.Values) *pageSeen {
	b.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(b.t.Context(), method, b.base+"/ui/"+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	maps.Copy(req.Header, b.header)
	resp, err := b.http.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	content, err := io.ReadAll(resp.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return &pageSeen{b.t, resp.StatusCode, resp.Header, string(content)}
}

// want fails the test unless the page has this status.
func (p *pageSeen) want(status int) *pageSeen {
	p.t.Helper()
	if p.status != status {
		p.t.Fatalf("status %d, want %d: %s", p.status, status, p.body)
	}
	return p
}

// says fails the test unless the page has all these texts, as its HTML has them.
func (p *pageSeen) says(texts ...string) *pageSeen {
	p.t.Helper()
	for _, text := range texts {
		if !strings.Contains(p.body, text) {
			p.t.Errorf("the page does not say %q: %s", text, p.body)
		}
	}
	return p
}

// saysNot fails the test if the page has one of these texts.
func (p *pageSeen) saysNot(texts ...string) *pageSeen {
	p.t.Helper()
	for _, text := range texts {
		if strings.Contains(p.body, text) {
			p.t.Errorf("the page says %q: %s", text, p.body)
		}
	}
	return p
}

func TestBrowsersAreLedToThePages(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("").want(200).says("<title>Overview · queued</title>", "No problems")
	for path, location := range map[string]string{"/": "ui/", "/ui": "ui/"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.url+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/html")
		resp, err := b.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get("Location"); resp.StatusCode != http.StatusSeeOther || got != location {
			t.Errorf("%s: %d to %q, want 303 to %q", path, resp.StatusCode, got, location)
		}
	}
	b.get("nothing/here").want(404).says("No such page")
}

func TestPagesRunNothingOfOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const script = `<script>alert(1)</script>`
	h.call("POST", "/events?queue=evil&type="+url.QueryEscape(script), `{"a":1}`).want(201)
	b := h.browse(t)
	page := b.get("queues/evil").want(200).says("&lt;script&gt;alert(1)&lt;/script&gt;").saysNot(script, "style=", "onclick=")
	policy := page.header.Get("Content-Security-Policy")
	for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, part) {
			t.Errorf("the policy %q lacks %q", policy, part)
		}
	}
}

func TestFormsActThroughTheAPI(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail")
	h.call("POST", "/events?queue=mail", `{"a":1}`).want(201)
	b := h.browse(t)
	b.follow("queues/mail/pause", nil).want(200).says("The queue is paused", `<span class="tag paused">`, "/resume")
	b.follow("queues/mail/resume", nil).want(200).says("no longer paused").saysNot(`<span class="tag paused">`)
	b.get("queues/mail/purge").want(200).says("moves the 1 event that")
	b.follow("queues/mail/purge", nil).want(200).says("Events purged: 1", "No event is in this queue now")

	form := url.Values{"event": {`{"n":12345678901234567890}`}, "type": {"mail.new"}, "key": {"once"}}
	b.follow("queues/mail/post", form).want(200).says("Posted the event 2")
	b.follow("queues/mail/post", form).want(200).says("Posted the event 2") // sent twice, and stored once
	if got := h.call("GET", "/events/2", "").want(200).body; !strings.Contains(got, "12345678901234567890") {
		t.Errorf("the event lost digits: %s", got)
	}
	form.Set("event", `{"n":2}`)
	b.follow("queues/mail/post", form).want(200).says("Posted the event ").saysNot("Posted the event 2.") // changed, as after going back in the browser
	b.post("queues/mail/post", url.Values{"event": {"{"}, "type": {"kept"}}).want(400).says("must be JSON", `value="kept"`)
	b.post("queues/mail/post", url.Values{"event": {"[]"}}).want(422).says("Validation failed")
	b.post("queues/mail/post", url.Values{"event": {"{}"}, "delay": {"soon"}}).want(400).says("must be a duration")
}

func TestPagesOfOtherOriginsSendNoForms(t *testing.T) {
	t.Parallel()
	h := setup(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/ui/queues/mail/pause", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	resp, err := (&http.Client{Transport: h.raw}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusForbidden || !strings.Contains(string(page), "<title>") || !strings.Contains(string(page), "a proxy in front of it") {
		t.Errorf("status %d, want 403 and a page: %s", resp.StatusCode, page)
	}
	if n := h.count(`select count(*) from agent.queue`); n != 0 {
		t.Error("the form was done")
	}
}

func TestOpenPagesAreToldWhatChanges(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/events?queue=mail", `{"a":1}`).want(201)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.url+"/ui/live?page=queues%2Fmail", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: h.raw}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	next := func() map[string]string {
		t.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				var message struct{ Parts map[string]string }
				if err := json.Unmarshal([]byte(data), &message); err != nil {
					t.Fatal(err)
				}
				return message.Parts
			}
		}
		t.Fatalf("the stream ended: %v", lines.Err())
		return nil
	}
	first := next()
	if !strings.Contains(first["figures"], "ready now") || strings.Contains(first["state"], "tag paused") {
		t.Fatalf("the first parts are %q", first)
	}
	h.call("POST", "/queues/mail/pause", "").want(200)
	deadline := time.Now().Add(busyTimeout)
	for parts := next(); !strings.Contains(parts["state"], "paused"); parts = next() {
		if time.Now().After(deadline) {
			t.Fatal("the page was not told of the pause")
		}
		if parts["events"] != "" {
			t.Errorf("a part that did not change was sent: %q", parts["events"])
		}
	}
}

func TestOverviewNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "slow")
	b := h.browse(t)
	h.call("POST", "/events?queue=mail", `{}`).want(201)
	claimed := h.call("POST", "/claim", `{"queue":"mail"}`).want(200)
	receipt := strings.SplitN(strings.SplitN(claimed.body, `"receipt":"`, 2)[1], `"`, 2)[0]
	h.call("POST", "/events/1/nack", `{"receipt":"`+receipt+`","error":"SMTP 421 from 10.0.0.7","final":true}`).want(200)
	h.call("POST", "/events?queue=slow", `{}`).want(201)
	h.sql(`update agent.event set vt = now() - interval '14 minutes' where queue = 'slow'`)
	page := b.get("").want(200).says("2 problems", "has 1 failure among 1 event", "SMTP 421 from", "the oldest of 1 ready event has waited for 14 min", `href="./queues/slow"`)
	if bad, warning := strings.Index(page.body, "has 1 failure"), strings.Index(page.body, "has waited for"); bad > warning {
		t.Error("what may do harm stands before what does")
	}
	b.get("queues?order=failed").want(200).says("1 to 2 of 2", `aria-current="true">most failures`)
	b.get("queues?offset=2").want(200).says("The list has 2 queues, and none is this far down").saysNot("No queue has events")
	b.get("queues?order=size").want(400).says("order")
	b.get("queues?order=failed&range=6h&name_contains=MA").want(200).says("1 to 1 of 1", `name="name_contains" maxlength="128" value="MA"`, `name="order" value="failed"`, `name="range" value="6h"`,
		`href="?name_contains=MA&amp;order=oldest&amp;range=6h"`, `href="./queues/mail"`).saysNot(`href="./queues/slow"`)
	b.get("queues?name_contains=%3Cb%3E").want(200).says("No queue has <code>&lt;b&gt;</code> in its name").saysNot("No queue has events or a policy yet")
	b.get("queues?offset=-1").want(400).says("must be a number, 0 or more")
	b.get("queues/mail?range=7d").want(200).says(`<span class="each wide">2 hours</span>`, ">1 failed</a>")
}

func TestOverviewLeadsToWhatItCounts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "old")
	h.call("POST", "/events?queue=old&max_attempts=1", `{}`).want(201)
	h.claim(`{"queue":"old"}`)
	h.sql(`update agent.event set vt = now() - interval '1 second'`)
	h.call("POST", "/sweep", `{}`).want(200)
	b := h.browse(t)
	link := "history?finished_from=1h&outcome=expired&queue=old"
	b.get("").want(200).says("has 1 failure among 1 event", strings.ReplaceAll(link, "&", "&amp;"))
	b.get(link).want(200).says(`events/1"`)
}
