package http

import (
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
)

// A pageRoute is one of pages/routes.go.
type pageRoute struct{ method, pattern string }

var (
	routeLine     = regexp.MustCompile(`r\.(Get|Post)\(Prefix(?:\+"([^"]*)")?,`)
	routeWord     = regexp.MustCompile(`\{[a-z]+\}`)
	formShown     = regexp.MustCompile(`(?s)<form[^>]* method="post"[^>]* action="([^"]*)"[^>]*>(.*?)</form>`)
	otherAction   = regexp.MustCompile(`formaction="([^"]*)"`)
	linkShown     = regexp.MustCompile(`<a [^>]*href="([^"#]*)"`)
	notOfKeys     = []string{"login", "logout", "live", "static/{file}"}
	storesNothing = []string{"preview", "seek", "replay", "try", "test", "dry-run"} // how the paths of forms end that ask before they act
)

// pageRoutes returns every route of pages that needs a key, as the one function has them that declares routes.
func pageRoutes(t *testing.T) (routes []pageRoute) {
	t.Helper()
	source, err := os.ReadFile("pages/routes.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range routeLine.FindAllStringSubmatch(string(source), -1) {
		if !slices.Contains(notOfKeys, found[2]) {
			routes = append(routes, pageRoute{strings.ToUpper(found[1]), found[2]})
		}
	}
	if len(routes) < 30 {
		t.Fatalf("found %d routes", len(routes))
	}
	return routes
}

// uiSide has one of each kind in queues and topics that begin alike. It returns what the words in patterns of routes stand for, by the beginning of the pattern.
func (h *environment) uiSide(c *client, side string) map[string]string {
	h.t.Helper()
	type made struct {
		ID       int64
		Position int64
	}
	event := decode[made](c.call("POST", "/events?queue="+side+".q", `{"secret":"`+side+`-payload"}`).want(201))
	schedule := decode[made](c.call("POST", "/schedules", `{"name":"`+side+`-schedule","event":{},"queue":"`+side+`.q","cron":"@yearly","timezone":"UTC"}`).want(201))
	published := decode[made](c.call("POST", "/topics/"+side+".t", `{"secret":"`+side+`-payload"}`).want(201))
	c.call("PUT", "/subscriptions/"+side+"-reader", `{"filters":[{"topics":["`+side+`.t"]}]}`).want(201)
	c.call("PUT", "/queues/"+side+".q", `{}`).want(200)
	c.putSource(side+"-source", `{"kind":"token","queue":"`+side+`.q","secrets":["the-token"]}`)
	return map[string]string{
		"queues": side + ".q", "events": fmt.Sprint(event.ID), "history": fmt.Sprint(event.ID), "schedules": fmt.Sprint(schedule.ID), "subscriptions": side + "-reader",
		"topics": side + ".t", "log": fmt.Sprint(published.Position), "keys": "aaaaaaaa", "sources": side + "-source", "redrives": "1",
	}
}

// path returns the path of a route in which words are replaced.
func (r pageRoute) path(words map[string]string) string {
	noun, _, _ := strings.Cut(r.pattern, "/")
	word, ok := words[noun]
	if !ok {
		word = "1"
	}
	return routeWord.ReplaceAllLiteralString(r.pattern, url.PathEscape(word))
}

// state is what forms change: every row that tells of a change.
func (h *environment) state() string {
	h.t.Helper()
	var all string
	err := h.connect().QueryRow(h.t.Context(), `select format('%s actions, %s events, %s ended, %s keys',
		(select count(*) from agent.audit where action not like 'session.%' and action <> 'access.refuse'),
		(select jsonb_agg(array[e.id::text, e.queue, e.vt::text] order by e.id) from agent.event e), (select count(*) from agent.event_hist),
		(select jsonb_agg(array[k.id, k.version::text] order by k.id) from agent.api_key k))`).Scan(&all)
	if err != nil {
		h.t.Fatal(err)
	}
	return all
}

// forms returns the paths under /ui/ that the forms of a page are sent to, with what they send unasked.
func (b *browser) forms(path string, p *pageSeen) map[string]url.Values {
	b.t.Helper()
	found := make(map[string]url.Values)
	for _, form := range formShown.FindAllStringSubmatch(p.body, -1) {
		actions := submatches(otherAction, form[2])
		if strings.Count(form[2], "<button") > len(actions) {
			actions = append(actions, form[1])
		}
		for _, action := range actions {
			if to := b.resolve(path, action); to != "logout" {
				found[to] = url.Values{}
			}
		}
	}
	return found
}

func submatches(pattern *regexp.Regexp, text string) (found []string) {
	for _, match := range pattern.FindAllStringSubmatch(text, -1) {
		found = append(found, match[1])
	}
	return found
}

// storesNothingAt reports whether a form at a path asks before it acts.
func storesNothingAt(path string) bool {
	return slices.ContainsFunc(storesNothing, func(end string) bool { return strings.HasSuffix(path, "/"+end) })
}

func TestPagesDoNothingThatTheKeyMayNot(t *testing.T) {
	t.Parallel()
	routes := pageRoutes(t)
	for name, scopes := range map[string][]access.Scope{
		"read": {access.Read}, "claim": {access.Claim}, "metrics": {access.Metrics}, "publish": {access.Publish}, "manage": {access.Manage},
		"read and claim": {access.Read, access.Claim}, "read and publish": {access.Read, access.Publish}, "read and manage": {access.Read, access.Manage}, "admin": {access.Admin},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := setup(t)
			admin := h.key(h.adminKey())
			words := h.uiSide(admin, "in")
			b := h.browseAs(t, h.createKey(access.CreateParams{Scopes: scopes}))
			may := func(scope access.Scope) bool {
				return slices.Contains(scopes, scope) || slices.Contains(scopes, access.Admin)
			}

			shown := make(map[string]url.Values)
			for _, r := range routes {
				if r.method != http.MethodGet {
					continue
				}
				path := r.path(words)
				p := b.get(path)
				if p.status == http.StatusOK && !may(access.Read) {
					t.Errorf("GET %s is shown without the scope read", r.pattern)
				}
				if p.status == http.StatusForbidden && may(access.Read) && may(access.Admin) {
					t.Errorf("GET %s is refused: %s", r.pattern, p.body)
				}
				for to, form := range b.forms(path, p) {
					shown[to] = form
				}
				if p.status == http.StatusOK {
					for _, link := range submatches(linkShown, p.body) {
						if at, ok := strings.CutSuffix(link, "/revoke"); ok && !may(access.Admin) {
							t.Errorf("GET %s leads to %s", r.pattern, at)
						}
					}
				}
			}
			if !may(access.Publish) && !may(access.Manage) {
				for to := range shown {
					if !storesNothingAt(to) {
						t.Errorf("a page shows the form %s", to)
					}
				}
			}
			before := h.state()
			if !may(access.Publish) && !may(access.Manage) { // nothing may change at all
				for _, r := range routes {
					if r.method != http.MethodPost {
						continue
					}
					p := b.post(r.path(words), url.Values{"event": {"{}"}, "name": {"x"}, "scope": {"admin"}, "uses": {"all"}, "grace": {"1h"}, "topic": {"in.t"}, "queue": {"in.q"}, "to": {"in.r"}, "from": {"earliest"}})
					if p.status < http.StatusBadRequest && !storesNothingAt(r.pattern) {
						t.Errorf("POST %s: status %d", r.pattern, p.status)
					}
				}
				if after := h.state(); after != before {
					t.Errorf("a form was done: %s, before %s", after, before)
				}
			}
			for to, form := range shown { // each of them may be used
				if p := b.post(to, form); p.status == http.StatusForbidden {
					t.Errorf("a page shows the form %s, which is refused: %s", to, p.body)
				}
			}
			if !may(access.Admin) && h.atHome().count(`select count(*) from agent.api_key where version > 1`)+h.atHome().count(`select count(*) from agent.api_key`) != 2 {
				t.Error("a key was made or changed")
			}
		})
	}
}

func TestPagesOfRestrictedKeysHaveNothingOfOthers(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.adminKey())
	h.uiSide(admin, "in")
	out := h.uiSide(admin, "out")
	b := h.browseAs(t, h.createKey(access.CreateParams{
		Scopes: []access.Scope{access.Read, access.Manage, access.Publish, access.Claim}, Queues: []string{"in.*"}, Topics: []string{"in.**"},
	}))
	before := h.state()
	for _, r := range pageRoutes(t) {
		path := r.path(out)
		var p *pageSeen
		if r.method == http.MethodGet {
			p = b.get(path)
		} else {
			p = b.post(path, url.Values{"event": {"{}"}, "to": {"earliest"}, "from": {"earliest"}, "grace": {"1h"}})
		}
		for _, secret := range []string{"out-payload", "out-schedule", `>out-reader<`, `>out-source<`, `>out.q<`, `>out.t<`} {
			if p.status == http.StatusOK && strings.Contains(p.body, secret) {
				t.Errorf("%s %s shows %s", r.method, r.pattern, secret)
			}
		}
		if strings.Contains(r.pattern, "{") && p.status < http.StatusBadRequest {
			t.Errorf("%s %s of others: status %d", r.method, r.pattern, p.status)
		}
	}
	if after := h.state(); after != before {
		t.Errorf("something of others has changed: %s, before %s", after, before)
	}
}

// What the pages of a restricted key lead to, they show.
func TestPagesOfRestrictedKeysShowTheirOwn(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.adminKey())
	h.uiSide(admin, "in")
	h.uiSide(admin, "out")
	for _, side := range []string{"in", "out"} {
		admin.call("POST", "/claim", `{"queue":"`+side+`.q","worker":"`+side+`-worker"}`).want(200)
	}
	b := h.browseAs(t, h.createKey(access.CreateParams{
		Scopes: []access.Scope{access.Read}, Queues: []string{"in.*"}, Topics: []string{"in.**"},
	}))
	b.get("fleet").want(200).says(">in-worker<", "Processes and executions are of all queues").saysNot("out-worker", "<h2>Processes", "<h2>Executions")
	b.get("topics").want(200).says("topics/in.t")
	b.get("topics/in.t").want(200).says("in-payload")
	b.get("topics/out.t").want(403).saysNot("out-payload")
}
