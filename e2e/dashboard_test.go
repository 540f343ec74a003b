package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// TestOpenPageShowsAChangeWithinThreeSeconds changes a queue while its page is open.
func TestOpenPageShowsAChangeWithinThreeSeconds(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t))
	p.request(t, "POST", "/events?queue=mail", `{}`)
	b := openTab(t, "http://"+p.address)
	b.open("queues/mail")
	b.await(`document.querySelector("#stream-state").classList.contains("on")`)
	seen := func(condition string) time.Duration {
		began := time.Now()
		b.await(condition)
		return time.Since(began)
	}
	var delays []time.Duration
	for i := range 3 {
		p.request(t, "POST", "/queues/mail/pause", "")
		delays = append(delays, seen(`document.querySelector(".head .tag.paused") !== null`))
		p.request(t, "POST", "/queues/mail/resume", "")
		delays = append(delays, seen(`document.querySelector(".head .tag.paused") === null`))
		p.request(t, "POST", "/events?queue=mail", `{}`)
		delays = append(delays, seen(fmt.Sprintf(`document.querySelector(".figure strong").textContent === "%d"`, i+2)))
	}
	slices.Sort(delays)
	if median := delays[len(delays)/2]; median > 3*time.Second { // a machine that is busy with other tests may hold up some of them
		t.Errorf("changes were seen after %s", delays)
	}
	// Who is on a button is on the one in its place afterwards.
	evaluate[any](b.ctx, t, `document.querySelector("form[action$='/pause'] button").focus(); []`)
	p.request(t, "POST", "/queues/mail/pause", "")
	seen(`document.activeElement.matches("form[action$='/resume'] button")`)
	b.check("the page of a queue")
	b.submit("/resume")
	b.await(`document.body.innerText.includes("no longer paused")`)
	b.check("the page of a queue that was resumed")
}

// TestTabGoesThroughEachControl presses Tab from the beginning of a page to its end.
func TestTabGoesThroughEachControl(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t))
	for range 3 {
		p.request(t, "POST", "/events?queue=mail", `{}`)
	}
	for _, e := range p.claim(t, "mail", "worker-1", 2) {
		p.fail(t, e, "refused")
	}
	b := openTab(t, "http://"+p.address)
	type focus struct {
		Control, Place     int // among the controls; -1: it is none
		Skip               bool
		Outline, Text      string
		Top, Bottom, Right float64
		High, Wide         float64 // of the window
	}
	const focused = `(() => {
		const controls = [...document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, pre[tabindex], .scroll")].filter(el => el.checkVisibility({visibilityProperty: true}) && !el.closest("dialog"));
		const el = document.activeElement, r = el.getBoundingClientRect(), style = getComputedStyle(el);
		return {Control: controls.indexOf(el), Place: controls.length, Skip: el.matches(".skip"), Text: el.outerHTML.slice(0, 120), Top: r.top, Bottom: r.bottom, Right: r.right, High: innerHeight, Wide: innerWidth,
			Outline: style.outlineStyle === "none" || parseFloat(style.outlineWidth) < 2 ? "" : style.outlineColor};
	})()`
	for _, page := range []string{"", "history", "queues/mail", "schedules/new"} {
		for _, width := range []int64{1280, 360} {
			b.look(width, "light")
			b.open(page)
			b.await(`document.documentElement.classList.contains("script")`)
			last := -1
			reached := 0
			for range 200 {
				b.do(chromedp.KeyEvent(kb.Tab))
				at := evaluate[focus](b.ctx, t, focused)
				if at.Control < 0 {
					break // the browser's own controls, after the last of the page
				}
				reached++
				if last == -1 && !at.Skip {
					t.Errorf("/ui/%s: the first control is not the link that skips the navigation, but %s", page, at.Text)
				}
				if at.Control < last {
					break // the first one again
				}
				if at.Outline == "" {
					t.Errorf("/ui/%s, %d px: nothing shows that this has the focus: %s", page, width, at.Text)
				}
				if at.Bottom <= 0 || at.Top >= at.High || at.Right <= 0 {
					t.Errorf("/ui/%s, %d px: what has the focus is not on the screen: %s", page, width, at.Text)
				}
				last = at.Control
			}
			if reached < 15 {
				t.Errorf("/ui/%s, %d px: Tab reaches %d controls", page, width, reached)
			}
			b.open(page)
			b.do(chromedp.KeyEvent(kb.Tab + kb.Enter))
			b.await(`document.activeElement.id === "main"`)
			b.do(chromedp.KeyEvent(kb.Tab))
			b.await(`document.activeElement.closest("main") !== null && document.activeElement.id !== "main"`)
			b.check(fmt.Sprintf("/ui/%s after Tab, %d px", page, width))
		}
	}
}

// TestShortcutsLeadWhereTheirHelpSays presses the keys that the help names.
func TestShortcutsLeadWhereTheirHelpSays(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t))
	for _, queue := range []string{"mail", "orders", "reports"} {
		p.request(t, "POST", "/events?queue="+queue, `{}`)
	}
	b := openTab(t, "http://"+p.address)
	b.open("")
	press := func(keys, want string) {
		t.Helper()
		b.do(chromedp.KeyEvent(keys))
		b.await(want)
	}
	press("?", `document.getElementById("help").open`)
	b.check("the help")
	pages := evaluate[map[string]string](b.ctx, t, `Object.fromEntries([...document.querySelectorAll("#help dl div")].filter(d => d.querySelectorAll("kbd").length === 2 && d.querySelector("kbd").textContent === "g").map(d => [d.querySelectorAll("kbd")[1].textContent, d.querySelector("dd").textContent]))`)
	press(kb.Escape, `!document.getElementById("help").open`)
	if len(pages) != 10 || pages["q"] != "Queues" {
		t.Errorf("the help names %v", pages)
	}
	for key, name := range pages {
		press("g"+key, `document.querySelector(".bar [aria-current]").textContent === "`+name+`" && document.documentElement.classList.contains("script")`)
	}
	press("gq", `location.pathname === "/ui/queues" && document.documentElement.classList.contains("script")`)
	const row = `[...document.querySelectorAll("tbody tr")].findIndex(r => r.classList.contains("current"))`
	press("j", row+" === 0")
	press("j", row+" === 1")
	press("jjj", row+" === 2")
	press("k", row+" === 1")
	b.check("a row that is current")
	press("/", `document.activeElement.matches("[data-search]")`)
	press("jg?", `document.activeElement.value.endsWith("jg?") && !document.getElementById("help").open && `+row+" === 1")
	evaluate[any](b.ctx, t, `document.activeElement.value = ""; document.activeElement.blur(); []`)
	press(kb.Enter, `location.pathname === "/ui/queues/orders"`)
	b.open("history")
	press("/", `document.activeElement.name === "contains"`)
	b.check("the search of history")
}

// behindProxy serves a server under the prefix /ops, as a proxy does that takes the prefix away, and returns its URL.
func behindProxy(t *testing.T, p *process) string {
	t.Helper()
	target := &url.URL{Scheme: "http", Host: p.address}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	front := httptest.NewServer(http.StripPrefix("/ops", proxy))
	t.Cleanup(front.Close)
	return front.URL + "/ops"
}

// TestOperatorLogsInAndPutsAFailureRight goes the way of somebody who is called at night: log in behind a proxy, see the failure, look at one, requeue all of them.
func TestOperatorLogsInAndPutsAFailureRight(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	const admin = adminKey
	p := start(t, build(t), newDatabase(t), freeAddress(t), "QUEUED_API_KEY="+admin)
	asAdmin := []string{"Authorization", "Bearer " + admin}
	const failures = 40
	var ids []int64
	for range failures {
		p.call(t, http.StatusCreated, "POST", "/events?queue=mail&type=mail.welcome", `{"to":"ada@example.com"}`, asAdmin...)
	}
	var claimed struct {
		Events []struct {
			ID      int64  `json:"id"`
			Receipt string `json:"receipt"`
		} `json:"events"`
	}
	if err := json.Unmarshal(p.call(t, http.StatusOK, "POST", "/claim", `{"queue":"mail","limit":40,"worker":"w1"}`, asAdmin...).body, &claimed); err != nil {
		t.Fatal(err)
	}
	for _, e := range claimed.Events {
		ids = append(ids, e.ID)
		body := encode(t, map[string]any{"receipt": e.Receipt, "error": "SMTP 550: no such user", "final": true})
		p.call(t, http.StatusOK, "POST", fmt.Sprintf("/events/%d/nack", e.ID), string(body), asAdmin...)
	}
	var reader struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(p.call(t, http.StatusCreated, "POST", "/keys", `{"name":"night","scopes":["read"]}`, asAdmin...).body, &reader); err != nil {
		t.Fatal(err)
	}

	b := openTab(t, behindProxy(t, p))
	const deep = "history?queue=mail&outcome=failed&finished_from=1h"
	b.open(deep)
	b.await(`location.pathname.endsWith("/ui/login")`)
	b.logIn("qk_wrong")
	b.await(`document.querySelector("[role=alert]") !== null`)
	b.check("the log-in with a wrong key")
	b.logIn(reader.Key)
	b.await(`location.pathname + location.search === "/ops/ui/` + deep + `" && document.querySelectorAll("tbody tr").length === 40 && document.querySelector("[name=outcome]").value === "failed"`)
	b.check("the page that a link led to before the log-in")
	b.open("queues/mail")
	if n := evaluate[int](b.ctx, t, `document.querySelectorAll("main form[method=post]").length`); n != 0 {
		t.Errorf("a key that may only read is shown %d forms", n)
	}
	b.check("the page of a queue for a key that may only read")
	b.picture("read-only")

	// A key that is revoked ends what is open.
	b.await(`document.querySelector("#stream-state").classList.contains("on")`)
	p.call(t, http.StatusNoContent, "DELETE", "/keys/"+reader.Key[3:11], "", asAdmin...)
	b.await(`location.pathname.endsWith("/ui/login")`)

	b.logIn(admin)
	b.open("")
	b.await(`document.body.innerText.includes("has 40 failures among 40 events")`)
	b.check("the overview with a failure")
	b.picture("overview-failure")
	b.click(".alert.bad a.button")
	b.await(`location.pathname.endsWith("/ui/history") && document.querySelectorAll("tbody tr").length === 40`)
	b.click(`a[href*="redrives/new"]`)
	b.await(`document.querySelector("h1")?.textContent.includes("Requeue 40 events?")`)
	b.check("the question before a redrive")
	if got := string(p.call(t, http.StatusOK, "GET", "/queues/mail", "", asAdmin...).body); !strings.Contains(got, `"ready":0`) {
		t.Errorf("the question has requeued something: %s", got)
	}
	b.enter("#rate", "4") // ten seconds, longer than the check of its page takes on a busy machine
	b.submit("redrives")
	b.await(`/\/ui\/redrives\/\d+$/.test(location.pathname)`)
	b.check("the page of a redrive that goes on")
	// Its progress is seen without the page being loaded again.
	evaluate[any](b.ctx, t, `window.isSame = true; window.steps = new Set(); new MutationObserver(() => steps.add(document.getElementById("done").value)).observe(document.querySelector("main"), {childList: true, subtree: true}); []`)
	b.await(`document.querySelector(".head .tag").textContent === "done" && document.getElementById("done").value === 40`)
	if steps := evaluate[int](b.ctx, t, `window.isSame ? [...steps].filter(n => n > 0 && n < 40).length : -1`); steps < 1 {
		t.Errorf("%d steps of the redrive were seen", steps)
	}
	b.check("the page of a redrive")
	b.picture("redrive")
	if got := string(p.call(t, http.StatusOK, "GET", "/queues/mail", "", asAdmin...).body); !strings.Contains(got, `"ready":40`) {
		t.Errorf("the events are not in their queue: %s", got)
	}
	if got := string(p.call(t, http.StatusOK, "GET", fmt.Sprintf("/events/%d", ids[0]), "", asAdmin...).body); !strings.Contains(got, `"requeued_as"`) {
		t.Errorf("the record does not say what it was requeued as: %s", got)
	}
	b.open("queues/mail")
	b.submit("/pause")
	b.await(`document.querySelector(".notice").innerText.includes("The queue is paused")`)
	if got := string(p.call(t, http.StatusOK, "GET", "/queues/mail", "", asAdmin...).body); !strings.Contains(got, `"paused":true`) {
		t.Errorf("the queue is not paused: %s", got)
	}
	b.check("the page of a queue that was paused")
	b.submit("logout")
	b.open("history")
	b.await(`location.pathname.endsWith("/ui/login")`)
}
