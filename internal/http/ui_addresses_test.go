package http

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestPagesIgnoreNoPartOfTheirAddress(t *testing.T) {
	t.Parallel()
	h := setup(t)
	words := h.uiSide(h.client, "in")
	h.fail("in.q", `{}`, "broken", 2)
	b := h.browse(t)
	for _, r := range pageRoutes(t) {
		if r.method != http.MethodGet {
			continue
		}
		for query, says := range map[string]string{
			"queue=%zz":           "The address could not be read",
			"type=a;b":            "The address could not be read",
			"bogus=1":             "<code>bogus</code>",
			"cursor=a&cursor=b":   "<code>cursor</code>",
			"did=logout&did=more": "<code>did</code>",
		} {
			b.get(r.path(words) + "?" + query).want(400).says(says)
		}
	}
	for _, path := range []string{
		"?range=2h", "queues?range=2h", "queues?order=size", "queues/in.q?range=2h", "schedules?order=last", "history?queue=in.q&queue=in.r", "redrives/new?outcome=failed&queue=in.q&queue=in.r",
		"history/download?format=csv&queue=%zz", "history/download?format=csv&state=done", "queues/in.q/events?outcome=failed",
	} {
		b.get(path).want(400)
	}
}

func TestTimesThatCannotBeAreNoFilters(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.fail("mail", `{}`, "broken", 1)
	b := h.browse(t)
	for _, at := range []string{"9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00+23:00", "0001-01-01", "0000-06-01"} {
		for _, field := range []string{"from", "to", "finished_from", "finished_to"} {
			for _, path := range []string{"history?", "history/errors?", "history/download?format=csv&", "redrives/new?outcome=failed&"} {
				b.get(path + field + "=" + url.QueryEscape(at)).want(400).says("<code>" + field + "</code>")
			}
			b.post("redrives", url.Values{"outcome": {"failed"}, field: {at}}).want(400).says("<code>" + field + "</code>")
		}
	}
	b.get("redrives/new?outcome=cancelled&min_duration=0s").want(400).says("<code>min_duration</code>", "more than 0")
	b.post("redrives", url.Values{"outcome": {"cancelled"}, "min_duration": {"0"}}).want(400)
	if n := h.count(`select count(*) from agent.redrive`); n != 0 {
		t.Errorf("%d redrives were made", n)
	}
}

// Whatever a page leads to takes the address that the page has for it.
func TestPagesLeadToPagesThatTheyKnow(t *testing.T) {
	t.Parallel()
	h := setup(t)
	words := h.uiSide(h.client, "in")
	h.fail("in.q", `{}`, "broken", 60)
	b := h.browse(t)
	var paths []string
	for _, r := range pageRoutes(t) {
		if r.method == http.MethodGet {
			paths = append(paths, r.path(words))
		}
	}
	paths = append(paths, "history?queue=in.q&outcome=failed&finished_from=1h", "schedules?order=next", "redrives?state=running", "queues/in.q/events?state=ready", "queues?order=failed&range=6h")
	known, most := len(paths), 400
	for i := 0; i < len(paths) && i < most; i++ {
		p := b.get(paths[i])
		if i >= known && p.status == http.StatusBadRequest {
			t.Errorf("a page leads to %s, which is refused: %s", paths[i], p.body)
		}
		if p.status != http.StatusOK || !strings.Contains(p.header.Get("Content-Type"), "html") {
			continue
		}
		for _, link := range submatches(linkShown, p.body) {
			if strings.HasSuffix(link, "../docs") {
				continue
			}
			to := b.resolve(paths[i], strings.ReplaceAll(unescaped(link), " ", "%20"))
			if !slices.Contains(paths, to) {
				paths = append(paths, to)
			}
		}
	}
}

// What is wrong with a form is said as that, and not as a server that does not answer.
func TestFormsRefuseWhatCannotBeSent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.fail("mail", `{}`, "broken", 1)
	b := h.browse(t)
	for _, rate := range []string{"NaN", "Inf", "-inf", "1e400", "0", "-1", "fast"} {
		b.post("redrives", url.Values{"outcome": {"failed"}, "rate": {rate}}).want(400).says("<code>rate</code>", "more than 0")
	}
	for field, value := range map[string]string{"per_second": "NaN", "expires": "9999-12-31T23:59:59-23:59"} {
		b.post("keys/create", url.Values{"name": {"x"}, "scope": {"admin"}, field: {value}}).want(400).says("<code>" + field + "</code>")
	}
	for path, form := range map[string]url.Values{
		"redrives":            {"worker": {"\xff"}},
		"keys/create":         {"name": {"a\xc3("}, "scope": {"admin"}},
		"schedules/create":    {"name": {"\xff"}, "queue": {"mail"}, "cron": {"@daily"}, "timezone": {"UTC"}, "event": {"{}"}},
		"queues/mail/post":    {"event": {"{\"a\":\"\xff\"}"}},
		"sources/none/change": {"type": {"\xff"}},
	} {
		b.post(path, form).want(400).says("must be UTF-8")
	}
	b.get("redrives/new?worker=%ff").want(400).says("<code>worker</code>", "must be UTF-8")
	b.post("queues/mail/post", url.Values{"event": {`{"a":"` + strings.Repeat("x", 5<<20) + `"}`}}).want(413).says("The form is too large", "4,096 KiB")
	if n := h.count(`select count(*) from agent.redrive`) + h.atHome().count(`select count(*) from agent.api_key`) + h.count(`select count(*) from agent.schedule`); n != 0 {
		t.Errorf("%d things were made", n)
	}
}

func TestPagesSayWhichMethodsTheirAddressesTake(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "mail", "default")
	key := h.adminKey()
	words := h.uiSide(h.key(key), "in")
	b := h.browseAs(t, key)
	named := []string{"schedules/preview", "schedules/create", "topics/publish", "keys/create"} // as something could be that has a page
	takes := make(map[string][]string)                                                          // by path
	for _, r := range pageRoutes(t) {
		path := r.path(words)
		if slices.Contains(named, path) {
			continue
		}
		takes[path] = append(takes[path], r.method)
		if r.method == http.MethodGet {
			takes[path] = append(takes[path], http.MethodHead)
		}
	}
	for path, methods := range takes {
		isPage := slices.Contains(methods, http.MethodGet)
		others := []string{http.MethodPut, http.MethodDelete, http.MethodOptions, "QUERY"}
		if !isPage {
			others = append(others, http.MethodGet, http.MethodHead)
		}
		for _, method := range others {
			p := b.send(method, path, nil).want(405)
			if got, want := p.header.Get("Allow"), strings.Join(methods, ", "); got != want {
				t.Errorf("%s %s: Allow is %q, want %q", method, path, got, want)
			}
			if method != http.MethodHead && !strings.Contains(p.body, "<title>") {
				t.Errorf("%s %s: the page is %q", method, path, p.body)
			}
		}
		if isPage {
			head := b.send(http.MethodHead, path, nil)
			if page := b.get(path); head.status != page.status || head.body != "" || head.header.Get("Content-Type") != page.header.Get("Content-Type") {
				t.Errorf("HEAD %s: status %d, want %d as of GET; %q, of %q", path, head.status, page.status, head.body, head.header.Get("Content-Type"))
			}
		}
	}
	b.get("queues/in.q/pause").want(405).says("Not a page", "where a form is sent")
	b.send(http.MethodPut, "queues", nil).want(405).says("The address takes GET, HEAD.")
	b.send(http.MethodPut, "nothing/here", nil).want(404)
	if live := b.send(http.MethodHead, "live?page=", nil).want(200); live.header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the type of the stream is %q", live.header.Get("Content-Type"))
	}
	h.browse(t).send(http.MethodHead, "queues", nil).want(http.StatusSeeOther)
}
