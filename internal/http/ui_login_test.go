package http

import (
	"bufio"
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
)

// logIn sends the form of the log-in.
func (b *browser) logIn(key, to string) *pageSeen {
	b.t.Helper()
	return b.post("login", url.Values{"key": {key}, "to": {to}})
}

// leadsTo fails the test unless the page at a path leads to this one, under /ui/ too.
func (p *pageSeen) leadsTo(b *browser, path, want string) *pageSeen {
	p.t.Helper()
	if got := b.resolve(path, p.want(http.StatusSeeOther).header.Get("Location")); got != want {
		p.t.Fatalf("it leads to %q, want %q", got, want)
	}
	return p
}

func (h *environment) adminKey() string {
	h.t.Helper()
	return h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
}

func TestLogInLeadsToThePageAndLogOutFromIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := h.adminKey()
	h.key(key).call("POST", "/events?queue=mail", `{}`).want(201)
	b := h.browse(t)
	b.get("queues/mail?limit=3").leadsTo(b, "queues/mail?limit=3", "login?to=queues%2Fmail%3Flimit%3D3")
	b.get("login?to=queues%2Fmail%3Flimit%3D3").want(200).says(`name="to" value="queues/mail?limit=3"`, `type="password"`, "<title>Log in").saysNot("Log out", ">Queues<")

	sent := b.logIn(" "+key+"\n", "queues/mail?limit=3")
	cookie := sent.header.Get("Set-Cookie")
	for _, part := range []string{"__Host-queued=qs_", "; Path=/", "; Max-Age=43", "; HttpOnly", "; Secure", "; SameSite=Lax"} {
		if !strings.Contains(cookie, part) {
			t.Errorf("the cookie %q lacks %q", cookie, part)
		}
	}
	if strings.Contains(cookie, "Domain") || strings.Contains(cookie, key) {
		t.Errorf("the cookie is %q", cookie)
	}
	check := b.resolve("login", sent.want(http.StatusSeeOther).header.Get("Location"))
	b.get(check).leadsTo(b, check, "queues/mail?limit=3")
	b.get("queues/mail").want(200).says("Log out", `<span class="name">test</span>`)
	b.get("login").leadsTo(b, "login", "")

	out := b.post("logout", nil).leadsTo(b, "logout", "login?did=logout")
	if !strings.Contains(out.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("the cookie is kept: %q", out.header.Get("Set-Cookie"))
	}
	b.get("login?did=logout").want(200).says("Logged out.")
	b.get("queues/mail").leadsTo(b, "queues/mail", "login?to=queues%2Fmail")
	b.post("logout", nil).leadsTo(b, "logout", "login?did=logout") // again

	token, _, _ := strings.Cut(strings.TrimPrefix(cookie, "__Host-queued="), ";")
	b.http.Jar.SetCookies(parse(t, h.url), []*http.Cookie{{Name: "__Host-queued", Value: token, Path: "/", Secure: true}})
	b.get("queues").leadsTo(b, "queues", "login?did=session.ended&to=queues")
	b.get("login?did=session.ended&to=queues").want(200).says("The log-in has ended")
	if log := h.log.String(); strings.Contains(log, key) || strings.Contains(log, token) {
		t.Error("the log has the key or the token")
	}
}

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestLogInRefusesAndSaysWhy(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.adminKey()
	expired, revoked := endedKeys(h)
	slow := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Rate: &access.Rate{PerSecond: 0.001, Burst: 1}})
	b := h.browse(t)
	for key, says := range map[string]string{
		"": "Enter the key", "wrong": "No key has this text", unknownKey(): "No key has this text", admin[:len(admin)-1] + "1": "No key has this text",
		expired: "Key expired", revoked: "Key revoked", "<script>": "No key has this text", strings.Repeat("x", 20_000): "No key has this text",
		"qs_" + strings.Repeat("a", 39): "No key has this text",
	} {
		status := http.StatusUnauthorized
		if key == "" {
			status = http.StatusBadRequest
		}
		page := b.logIn(key, "queues").want(status).says(says, `name="to" value="queues"`)
		if key != "" {
			page.saysNot(key)
		}
		if page.header.Get("Set-Cookie") != "" || page.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%.20q: the header is %v", key, page.header)
		}
	}
	b.logIn(strings.Repeat("x", 40_000), "").want(413).says("too large", "32 KiB")
	b.send(http.MethodPost, "login?key="+admin, url.Values{}).want(400).says("Enter the key") // never by the URL
	b.logIn(slow, "").want(http.StatusSeeOther)
	if page := b.logIn(slow, "").want(429).says("Too many log-ins"); page.header.Get("Retry-After") != "3" {
		t.Errorf("Retry-After: %q", page.header.Get("Retry-After"))
	}
	log := h.log.String()
	for _, key := range []string{expired, revoked, slow, admin} {
		if strings.Contains(log, key) {
			t.Error("the log has a key")
		}
	}
}

func TestLogInLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := h.adminKey()
	b := h.browseAs(t, key)
	for to, want := range map[string]string{
		"": "", "queues/a%20b?x=1&y=%2F": "queues/a%20b?x=1&y=%2F", "queues/a:b": "queues/a:b", "history?q=https://x": "history?q=https://x",
		"//evil.example": "", "/evil": "", "https://evil.example": "", "https:evil.example": "", "javascript:alert(1)": "", `\\evil.example`: "", `/\evil.example`: "",
		"%5c%5cevil.example": "", "../docs": "", "queues/../../docs": "", "%2e%2e/docs": "", "queues/%2e%2e/%2e%2e/docs": "", ".": "", "./": "", "@evil.example": "@evil.example",
		"%2f%2fevil.example": "", "\t//evil.example": "", "\n//evil": "", "///evil": "", "%": "", "http:///evil": "", "queues#x": "queues", "q?" + strings.Repeat("x", 9000): "",
	} {
		path := "login?" + url.Values{"to": {to}}.Encode()
		b.get(path).leadsTo(b, path, want)
	}
}

func TestLogInSaysWhenTheBrowserKeepsNone(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := h.adminKey()
	b := h.browse(t)
	b.http.Jar = nil // as a browser does over plain HTTP
	b.follow("login", url.Values{"key": {key}, "to": {"queues"}}).want(http.StatusUnauthorized).says("did not keep the log-in", "https://", `value="queues"`)
}

func TestServersWithoutKeysHaveNoLogIn(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browse(t)
	b.get("login?to=queues").leadsTo(b, "login", "queues")
	b.logIn("whatever", "").leadsTo(b, "login", "")
	b.post("logout", nil).leadsTo(b, "logout", "")
	b.get("queues").want(200).saysNot("Log out")
}

func TestPagesSayWhenTheDatabaseCannotBeReached(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := h.adminKey()
	b, other := h.browseAs(t, key), h.browse(t)
	h.db.Disconnect(t)
	for _, page := range []*pageSeen{
		b.get("queues"), b.get("login"), b.post("queues/mail/pause", nil), b.post("logout", nil),
		other.logIn(key, ""), other.logIn(unknownKey(), ""),
	} {
		if page.want(http.StatusServiceUnavailable).says("database cannot be reached").header.Get("Retry-After") == "" {
			t.Error("there is no Retry-After")
		}
	}
	other.logIn("wrong", "").want(http.StatusUnauthorized) // nobody has to ask
}

func TestPagesCountForTheRateLimitOfTheKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.adminKey()
	h.key(admin).call("POST", "/events?queue=mail", `{}`).want(201)
	key := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage}, Rate: &access.Rate{PerSecond: 0.001, Burst: 3}})
	b := h.browseAs(t, key) // the first
	b.get("queues").want(200)
	b.get("queues/mail").want(200) // which makes two calls
	page := b.get("queues").want(429).says("Rate limited")
	if page.header.Get("Retry-After") == "" {
		t.Error("there is no Retry-After")
	}
	b.post("queues/mail/pause", nil).want(429).says("Nothing was done")
	if strings.Contains(h.key(admin).call("GET", "/queues/mail", "").want(200).body, `"paused":true`) {
		t.Error("the form was done")
	}
	b.post("logout", nil).leadsTo(b, "logout", "login?did=logout")
	b.logIn("wrong", "").want(401)
	metrics := h.key(admin).call("GET", "/metrics", "").want(200).body
	for _, line := range []string{`queued_key_requests_total{result="rate_limited"} 2`, `queued_key_requests_total{result="unauthorized"} 1`} {
		if !strings.Contains(metrics, line) {
			t.Errorf("the metrics lack %s", line)
		}
	}
}

func TestLogInsOfOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	key := h.adminKey()
	for _, path := range []string{"login", "logout"} {
		for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/ui/"+path, strings.NewReader(url.Values{"key": {key}}.Encode()))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Header.Set(name, value)
			resp, err := (&http.Client{Transport: h.raw}).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusForbidden || resp.Header.Get("Set-Cookie") != "" {
				t.Errorf("%s with %s: %s: status %d", path, name, value, resp.StatusCode)
			}
		}
	}
}

// live opens the live stream of a page. It returns the names of the events that come.
func (b *browser) live(path string) <-chan string {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	b.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base+"/ui/live?page="+url.QueryEscape(path), http.NoBody)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: b.http.Transport, Jar: b.http.Jar}).Do(req) //nolint:bodyclose // by the goroutine below
	if err != nil {
		b.t.Fatal(err)
	}
	names := make(chan string, 100)
	go func() {
		defer close(names)
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewScanner(resp.Body)
		lines.Buffer(nil, 1<<20) // a part may be large
		for lines.Scan() {
			if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				names <- name
			}
		}
	}()
	return names
}

// wantEvent waits for an event of a live stream.
func wantEvent(t *testing.T, names <-chan string, want string) {
	t.Helper()
	for deadline := time.After(busyTimeout); ; {
		select {
		case name, ok := <-names:
			if name == want {
				return
			}
			if !ok {
				t.Fatalf("the stream ended without the event %q", want)
			}
		case <-deadline:
			t.Fatalf("there was no event %q", want)
		}
	}
}

func TestEscapedNamesLeadToTheirPages(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail:eu")
	admin := h.adminKey()
	h.key(admin).call("POST", "/events?queue=mail:eu", `{}`).want(201)
	b := h.browseAs(t, admin)
	for _, path := range []string{"queues/mail:eu", "queues/mail%3Aeu", "queues/mail%3aeu/events", "events/%31"} {
		b.get(path).want(200).says("mail:eu")
	}
	b.post("queues/mail%3Aeu/pause", nil).want(http.StatusSeeOther)
	if paused := h.key(admin).call("GET", "/queues/mail:eu", "").want(200); !strings.Contains(paused.body, `"paused":true`) {
		t.Errorf("the queue is not paused: %s", paused.body)
	}
	b.get("queues/mail%2Feu").want(400)
}

func TestOnlyPagesAreLive(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.adminKey()
	h.key(admin).call("POST", "/events?queue=mail", `{}`).want(201)
	b := h.browseAs(t, h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}}))
	for _, path := range []string{
		"live", "live?page=queues", "live?page=live%3Fpage%3Dqueues", "login", "login?to=queues", "static/app.js", "queues/mail/pause", "history/download?format=csv", "find?id=1",
	} {
		if first := <-b.live(path); first != "problem" {
			t.Errorf("the stream of %s began with %q", path, first)
		}
	}
	wantEvent(t, b.live("queues"), "parts")
}

func TestWhatEndsASessionEndsItsPages(t *testing.T) {
	t.Parallel()
	here := setup(t)
	there := setupWith(t, settings{beside: here})
	admin := here.adminKey()
	here.key(admin).call("POST", "/events?queue=mail", `{}`).want(201)
	id := func(key string) string { return key[3:11] }
	ends := map[string]func(key string, b *browser){
		"log-out":    func(_ string, b *browser) { b.post("logout", nil).want(http.StatusSeeOther) },
		"revocation": func(key string, _ *browser) { here.key(admin).call("DELETE", "/keys/"+id(key), "").want(204) },
		"rotation": func(key string, _ *browser) {
			here.key(admin).call("POST", "/keys/"+id(key)+"/rotate", `{"grace":"0s"}`).want(200)
		},
		"expiry": func(key string, _ *browser) {
			here.sql(`update agent.api_key set expires_at = now() where id = $1`, id(key))
		},
	}
	for name, end := range ends { //nolint:paralleltest // what follows is of all of them
		t.Run(name, func(t *testing.T) {
			key := here.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage}})
			b := here.browseAs(t, key)
			elsewhere := *b
			elsewhere.t, elsewhere.base, elsewhere.http = t, there.url, &http.Client{Transport: there.raw, Jar: oneSession{b.http.Jar, parse(t, here.url)}, CheckRedirect: noRedirect}
			elsewhere.get("queues/mail").want(200)
			var streams []<-chan string
			for _, from := range []*browser{b, &elsewhere} {
				stream := from.live("queues/mail")
				wantEvent(t, stream, "parts")
				streams = append(streams, stream)
			}
			session := oneSession{b.http.Jar, parse(t, here.url)}.Cookies(nil)
			end(key, b)
			for _, stream := range streams {
				wantEvent(t, stream, "ended")
			}
			b.http.Jar.SetCookies(parse(t, here.url), session) // as of a page that is still open
			for _, from := range []*browser{b, &elsewhere} {
				from.get("queues/mail").want(http.StatusSeeOther)
				from.post("queues/mail/pause", nil).want(http.StatusUnauthorized).says("nothing was done", "Log in")
			}
		})
	}
	if strings.Contains(here.key(admin).call("GET", "/queues/mail", "").want(200).body, `"paused":true`) {
		t.Error("a form was done after the session had ended")
	}
}

// oneSession has for all servers the cookies of one.
type oneSession struct {
	http.CookieJar
	of *url.URL
}

// Cookies implements http.CookieJar.
func (j oneSession) Cookies(*url.URL) (cookies []*http.Cookie) {
	for _, c := range j.CookieJar.Cookies(j.of) {
		cookies = append(cookies, &http.Cookie{Name: c.Name, Value: c.Value, Path: "/", Secure: true})
	}
	return cookies
}

// SetCookies implements http.CookieJar.
func (oneSession) SetCookies(*url.URL, []*http.Cookie) {}

func TestLogInEndsTheSessionThatItReplaces(t *testing.T) {
	t.Parallel()
	h := setup(t)
	b := h.browseAs(t, h.adminKey())
	before := b.http.Jar.Cookies(parse(t, h.url))
	reader := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}})
	b.logIn("qk_aaaaaaaa_wrong", "").want(http.StatusUnauthorized)
	b.get("keys").want(200) // whoever does not get in stays logged in
	b.logIn(reader, "").want(http.StatusSeeOther)
	b.get("keys").want(403)
	b.http.Jar.SetCookies(parse(t, h.url), before)
	b.get("keys").leadsTo(b, "keys", "login?did=session.ended&to=keys")
}
