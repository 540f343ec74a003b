package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// hostile is a text that a page must show as it is, and never run.
const hostile = `"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">`

// adminKey is the key of servers that need one.
const adminKey = "the-admin-key-of-these-tests-0123456789"

// longest is a name with as many characters as names of queues may have.
var longest = strings.Repeat("a-very-long-name.", 8)[:128]

// longTopic is a topic with as many words as one may have.
var longTopic = strings.Repeat("long-topic.", 8)[:87]

// routesOf returns the paths of internal/http/pages/routes.go with a method, such as queues/{name}, without downloads and files.
func routesOf(t *testing.T, method string) (routes []string) {
	t.Helper()
	source, err := os.ReadFile("../internal/http/pages/routes.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`r\.`+method+`\(Prefix(?:\+"([^"]*)")?, (?:h\.(?:page|action|reveal|trial)\(|exceptLive\(h\.showLogIn|h\.log(?:In|Out))`).FindAllStringSubmatch(string(source), -1) {
		routes = append(routes, found[1])
	}
	if len(routes) < 30 {
		t.Fatalf("routes.go has %d routes for %s, which cannot be: %q", len(routes), method, routes)
	}
	return routes
}

// routeOf returns the route that a path belongs to.
func routeOf(t *testing.T, routes []string, path string) string {
	t.Helper()
	path, _, _ = strings.Cut(path, "?")
	found := ""
	for _, route := range routes {
		pattern := "^" + regexp.MustCompile(`\\\{[a-z]+\\\}`).ReplaceAllString(regexp.QuoteMeta(route), "[^/]+") + "$"
		if regexp.MustCompile(pattern).MatchString(path) && (found == "" || !strings.Contains(route, "{")) {
			found = route
		}
	}
	return found
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(value); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decode[T any](t *testing.T, text []byte) (value T) {
	t.Helper()
	if err := json.Unmarshal(text, &value); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return value
}

// A lease is an event that was claimed.
type lease struct {
	ID      int64  `json:"id"`
	Receipt string `json:"receipt"`
}

// claim claims events.
func (p *process) claim(t *testing.T, queue, worker string, n int) []lease {
	t.Helper()
	body := encode(t, map[string]any{"queue": queue, "limit": n, "worker": worker, "invisible_for": "10m", "wait": "30s"})
	return decode[struct{ Events []lease }](t, p.request(t, "POST", "/claim", string(body))).Events
}

// fail ends an event as failed.
func (p *process) fail(t *testing.T, e lease, reason string) {
	t.Helper()
	p.request(t, "POST", fmt.Sprintf("/events/%d/nack", e.ID), string(encode(t, map[string]any{"receipt": e.Receipt, "error": reason, "final": true})))
}

// id returns the field id of an answer.
func id(t *testing.T, answer []byte) string {
	t.Helper()
	return string(decode[struct{ ID json.RawMessage }](t, answer).ID)
}

// fill gives a server what pages show: objects of each kind, events in each state and with each end, and texts of the longest and the worst kind. It returns the
// paths of pages about them.
func fill(t *testing.T, p *process, database string) (paths []string) {
	t.Helper()
	add := func(format string, values ...any) { paths = append(paths, fmt.Sprintf(format, values...)) }
	evil := url.QueryEscape(hostile)
	longType := strings.Repeat("long.type.", 25)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "sorry "+hostile, http.StatusInternalServerError)
	}))
	t.Cleanup(endpoint.Close)

	// Queues, and events of each kind.
	p.request(t, "PUT", "/queues/mail", `{"max_attempts":3,"backoff":{"kind":"exponential","base":"5s"},"dead_letter":{"queue":"mail.dead"}}`)
	for i := range 40 {
		p.request(t, "POST", fmt.Sprintf("/events?queue=mail&type=mail.welcome&delay=%dm", i%3), fmt.Sprintf(`{"to":"user%d@example.com","big":12345678901234567890}`, i))
	}
	large := id(t, p.request(t, "POST", "/events?queue=large", `{"text":"`+strings.Repeat("x", 1_000_000)+`"}`))
	p.request(t, "POST", "/queues/large/pause", "")
	p.request(t, "PUT", "/queues/limited", `{"flow":{"concurrency":1}}`)
	for range 3 { // of which two wait for their turn
		p.request(t, "POST", "/events?queue=limited&group="+strings.Repeat("g", 255), `{}`)
	}
	bad := id(t, p.request(t, "POST", "/events?queue=hostile&type="+evil+"&source="+evil+"&key="+evil+"&meta="+url.QueryEscape(string(encode(t, map[string]string{hostile: hostile}))),
		string(encode(t, map[string]string{hostile: hostile}))))
	for i, e := range p.claim(t, "mail", "worker-1", 12) {
		switch {
		case i < 6:
			p.request(t, "POST", fmt.Sprintf("/events/%d/ack", e.ID), fmt.Sprintf(`{"receipt":%q,"result":{"sent":true}}`, e.Receipt))
		case i < 9:
			p.fail(t, e, "SMTP 421: try again later "+hostile)
		case i < 11:
			p.request(t, "POST", fmt.Sprintf("/events/%d/nack", e.ID), string(encode(t, map[string]any{"receipt": e.Receipt, "error": "connection refused by 10.0.0.7:25"})))
		default:
			add("events/%d", e.ID)
			add("events/%d/cancel", e.ID)
		}
	}
	many := make([]map[string]any, 60)
	for i := range many {
		many[i] = map[string]any{"queue": "worked", "type": longType, "event": map[string]any{"n": i, "words": strings.Repeat("word ", 20)}}
	}
	p.request(t, "POST", "/events/batch", string(encode(t, map[string]any{"events": many})))
	for i, e := range p.claim(t, "worked", hostile, 60) {
		switch {
		case i == 0:
			p.fail(t, e, strings.Repeat("a long error, ", 100))
			add("events/%d", e.ID)
		case i%20 == 1:
			p.fail(t, e, hostile)
			add("events/%d", e.ID)
			add("events/%d/requeue", e.ID)
			add("history/requeue?id=%d", e.ID)
		default:
			p.request(t, "POST", fmt.Sprintf("/events/%d/ack", e.ID), string(encode(t, map[string]any{"receipt": e.Receipt, "result": map[string]string{hostile: hostile}})))
		}
	}
	add("events/%s", large)
	add("events/%s", bad)
	for _, path := range []string{
		"", "?range=7d", "queues", "queues?sort=failures", "queues/mail", "queues/mail?range=24h", "queues/large", "queues/limited", "queues/limited/events?state=waiting", "queues/hostile", "queues/mail/events", "queues/mail.dead",
		"history", "history?queue=mail&outcome=failed", "history?type=" + evil, "history/errors", "redrives/new?queue=mail&outcome=failed", "redrives/new?dead_letters=mail.dead",
	} {
		add("%s", path)
	}

	// What pushes, with the longest name.
	p.request(t, "PUT", "/queues/"+longest, `{"max_attempts":5,"dead_letter":{"queue":"mail.dead"}}`)
	p.request(t, "PUT", "/queues/"+longest+"/push", fmt.Sprintf(`{"url":%q,"headers":{"X-Team":"night"},"final_statuses":[422]}`, endpoint.URL+"/"+strings.Repeat("long/", 40)))
	pushed := id(t, p.request(t, "POST", "/events?queue="+longest+"&type="+longType, `{"text":"`+strings.Repeat("word ", 20)+`"}`))
	p.request(t, "POST", "/queues/"+longest+"/push/test", "")
	await(t, "a push has failed", func() bool {
		return strings.Contains(string(p.request(t, "GET", "/queues/"+longest+"/push/deliveries", "")), `"status":500`)
	})
	add("events/%s", pushed)
	for _, path := range []string{"", "/purge", "/policy", "/move", "/delete", "/events", "/push", "/push/change", "/push/secret", "/push/delete"} {
		paths = slices.Insert(paths, slices.Index(paths, "queues/large"), "queues/"+longest+path)
	}
	add("queues/mail/push")
	add("queues/mail/push/new")

	// Redrives.
	p.request(t, "POST", "/redrives", `{"filter":{"queue":"worked","outcome":"done"},"to":"worked.again","rate":0.01}`)
	p.request(t, "POST", "/redrives", `{"filter":{"queue":"worked","outcome":"failed","type":`+string(bytes.TrimSpace(encode(t, longType)))+`},"to":"worked.again"}`)
	for _, path := range []string{"", "?state=running", "/1", "/1/cancel", "/2"} {
		add("redrives%s", path)
	}

	// Schedules.
	p.request(t, "PUT", "/owners/"+longest, `{"timezone":"Europe/London","attributes":{"first_name":"Ada","note":"`+strings.Repeat("word ", 20)+`"}}`)
	p.request(t, "POST", "/schedules", `{"name":"nightly report","queue":"reports","event":{"report":"daily"},"cron":"*/20 * * * *","timezone":"Europe/Berlin"}`)
	p.request(t, "POST", "/schedules", string(encode(t, map[string]any{"name": hostile + longest, "queue": longest, "type": longType, "owner": longest, "event": map[string]string{hostile: hostile}, "rrule": "FREQ=MONTHLY;BYDAY=-1FR", "starts": "2026-01-30T09:00:00"})))
	p.request(t, "POST", "/schedules/1/run", "")
	for _, path := range []string{"schedules", "schedules?order=next", "schedules/new", "schedules/1", "schedules/2", "schedules/2/change", "schedules/2/delete", "owners"} {
		add("%s", path)
	}

	// Topics and subscriptions.
	p.request(t, "PUT", "/subscriptions/billing", `{"filters":[{"topics":["order.**"]}],"deliver":{"queue":"billing"}}`)
	p.request(t, "PUT", "/subscriptions/"+longest, string(encode(t, map[string]any{"filters": []map[string]any{
		{"name": "everything", "topics": []string{"order.**", longTopic, "a.*"}}, {"topics": []string{"b"}, "match": map[string]any{"text": []string{hostile}}},
	}})))
	p.request(t, "POST", "/topics/order.created?key=17", `{"total":"12.50"}`)
	position := decode[struct{ Position json.RawMessage }](t, p.request(t, "POST", "/topics/"+longTopic+"?key="+evil, string(encode(t, map[string]string{hostile: strings.Repeat("word ", 100)})))).Position
	add("log/%s", strings.Trim(string(position), `"`))
	for _, path := range []string{"topics", "topics/" + longTopic, "topics/order.created", "subscriptions", "subscriptions/billing", "subscriptions/" + longest, "subscriptions/" + longest + "/delete"} {
		add("%s", path)
	}

	// Sources, with deliveries that were taken and refused.
	p.request(t, "PUT", "/sources/shop", `{"kind":"token","header":"X-Token","secrets":["0123456789abcdef"],"queue":"shop","keep_raw":"1h"}`)
	p.request(t, "PUT", "/sources/"+longest, string(encode(t, map[string]any{"kind": "hmac", "secrets": []string{"0123456789abcdef"}, "queue": longest, "signature": map[string]any{"header": "X-Signature", "algorithm": "sha256", "encoding": "hex", "prefix": "sha256="}, "type": "shop.{/kind}"})))
	p.call(t, http.StatusOK, "POST", "/in/shop", `{"kind":"paid"}`, "X-Token", "0123456789abcdef")
	p.call(t, http.StatusUnauthorized, "POST", "/in/"+longest, `{"kind":"paid"}`, "X-Signature", "sha256=00")
	var came struct{ Events []struct{ ID int64 } }
	await(t, "the delivery is an event", func() bool {
		came = decode[struct{ Events []struct{ ID int64 } }](t, p.request(t, "GET", "/events?queue=shop", ""))
		return len(came.Events) == 1
	})
	add("events/%d", came.Events[0].ID) // with its raw body
	p.call(t, http.StatusOK, "POST", "/in/shop", "no JSON "+hostile, "X-Token", "0123456789abcdef")
	for _, path := range []string{"sources", "sources/shop", "sources/shop/test", "sources/" + longest, "sources/" + longest + "/change", "sources/" + longest + "/delete", "new/source"} {
		add("%s", path)
	}

	// Keys, and the rest.
	made := decode[struct{ ID string }](t, p.request(t, "POST", "/keys", string(encode(t, map[string]any{"name": hostile + longest, "scopes": []string{"read", "publish", "manage"}, "queues": []string{longest, "orders.*"}, "topics": []string{longTopic}, "rate_limit": map[string]int{"per_second": 50, "burst": 100}}))))
	p.request(t, "POST", "/keys", `{"name":"worker","scopes":["claim"],"expires_at":"2030-01-01T00:00:00Z"}`)
	for _, path := range []string{"keys", "keys/new", "keys/" + made.ID, "keys/" + made.ID + "/revoke", "audit", "audit?action=key.*", "fleet", "login", "nowhere", "events/999999999", "queues/" + url.PathEscape(hostile)} {
		add("%s", path)
	}

	liveAnHour(t, database)
	return paths
}

// pictured are the routes of which pictures of a second page are kept, with the longest name.
var pictured = []string{"queues/{name}", "events/{id}", "schedules/{id}", "subscriptions/{name}", "sources/{name}"}

// TestEachPageIsSoundWhenFull looks at every page there is in both schemes and at three widths, on a server that has much to show, and follows the links of all of them.
func TestEachPageIsSoundWhenFull(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	database := newDatabase(t)
	p := start(t, build(t), database, freeAddress(t), "QUEUED_API_KEY="+adminKey, "QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_PUSH_ALLOW=127.0.0.1")
	p.key = adminKey
	paths := fill(t, p, database)
	b := openTab(t, "http://"+p.address)
	b.look(1280, "light")
	b.open("login")
	b.view("full/login", true)
	b.logIn("qk_wrong")
	b.view("full/login-refused", true)
	b.logIn(adminKey)

	routes := routesOf(t, "Get")
	seen := map[string]int{"login": 1}
	links := map[string]string{} // a link of each kind, and the page that it is on
	for _, path := range paths {
		b.open(path)
		route := routeOf(t, routes, path)
		b.view("full/"+path, seen[route] == 0 || seen[route] == 1 && slices.Contains(pictured, route))
		seen[route]++
		if evaluate[bool](b.ctx, t, `window.hacked !== undefined`) {
			t.Fatalf("/ui/%s has run what somebody else wrote", path)
		}
		for _, link := range evaluate[[]string](b.ctx, t, `[...document.querySelectorAll("a[href]")].map(a => a.href)`) {
			if strings.HasPrefix(link, b.base) && !strings.Contains(link, "#") {
				links[kindOf(strings.TrimPrefix(link, b.base+"/ui/"))] = link + "\n" + path
			}
		}
	}
	for _, route := range routes {
		if seen[route] == 0 {
			t.Errorf("no page was looked at of the route %q", route)
		}
	}
	session := sessionOf(t, p)
	for _, link := range links {
		link, page, _ := strings.Cut(link, "\n")
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, link, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.AddCookie(session)
		resp, err := browserless.Do(req)
		if err != nil {
			t.Errorf("the page /ui/%s has a link to %s: %v", page, link, err)
			continue
		}
		// Read whole: an export that is broken off keeps the place of its key until the server has noticed
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Errorf("the page /ui/%s has a link to %s: %v", page, link, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("the page /ui/%s has a link to %s, which answers %s", page, link, resp.Status)
		}
	}
	if len(links) < 60 {
		t.Errorf("the pages have %d kinds of links: %v", len(links), links)
	}
}

// browserless opens pages without a browser, and follows no redirect: a link leads to its page at once.
var browserless = &http.Client{Timeout: 30 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// sessionOf logs in, and returns the cookie of the session.
func sessionOf(t *testing.T, p *process) *http.Cookie {
	t.Helper()
	resp, err := browserless.PostForm("http://"+p.address+"/ui/login", url.Values{"key": {p.key}})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for _, cookie := range resp.Cookies() {
		if strings.HasSuffix(cookie.Name, "queued") {
			return cookie
		}
	}
	t.Fatalf("the log-in answers %s, and sets no cookie", resp.Status)
	return nil
}

// kindOf returns the path of a page with * for the names in it, and the names of its parameters.
func kindOf(path string) string {
	path, query, _ := strings.Cut(path, "?")
	parts := strings.Split(path, "/")
	for i := 1; i < len(parts); i += 2 {
		parts[i] = "*"
	}
	values, _ := url.ParseQuery(query)
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(parts, "/") + strings.TrimSuffix("?"+strings.Join(names, "&"), "?")
}

// TestEachPageIsSoundWhenEmpty looks at the pages of a server that has nothing to show, and then of one that has an object of each kind with nothing in it.
func TestEachPageIsSoundWhenEmpty(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t), "QUEUED_SECRET_KEY=a-key-that-seals-secrets", "QUEUED_PUSH_ALLOW=127.0.0.1")
	b := openTab(t, "http://"+p.address)
	b.look(1280, "light")
	for _, path := range []string{
		"", "queues", "history", "history?queue=none", "history/errors", "redrives", "redrives/new?queue=none", "schedules", "schedules/new", "owners", "subscriptions", "topics", "topics/none",
		"sources", "new/source", "fleet", "keys", "keys/new", "audit", "queues/none", "nowhere",
	} {
		b.open(path)
		b.view("empty/"+path, true)
	}
	p.request(t, "PUT", "/queues/bare", `{}`)
	p.request(t, "PUT", "/queues/bare/push", `{"url":"http://127.0.0.1:1"}`)
	p.request(t, "POST", "/schedules", `{"queue":"bare","event":{},"at":"2999-01-01T00:00:00Z"}`)
	p.request(t, "PUT", "/subscriptions/bare", `{"filters":[{"topics":["bare"]}]}`)
	p.request(t, "PUT", "/sources/bare", `{"kind":"token","secrets":["0123456789abcdef"],"queue":"bare.in"}`)
	event := id(t, p.request(t, "POST", "/events?queue=fresh", `{}`))
	for _, path := range []string{
		"queues", "queues/bare", "queues/bare/events", "queues/bare/purge", "queues/bare/push", "queues/bare/policy", "schedules", "schedules/1", "subscriptions", "subscriptions/bare", "sources", "sources/bare", "events/" + event,
	} {
		b.open(path)
		b.view("bare/"+path, true)
	}
}
