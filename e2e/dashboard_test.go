package e2e_test

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// audit.js returns what is wrong with the page that is open: controls without names, text without contrast, and so on.
//
//go:embed audit.js
var auditScript string

// hostile is a text that a page must show as it is, and never run.
const hostile = `"><script>window.hacked=1</script><img src=x onerror="window.hacked=1">`

// A tab is a browser's tab with the pages of a server. Whatever the browser reports as an error fails the test.
type tab struct {
	t    *testing.T
	ctx  context.Context //nolint:containedctx // chromedp has the tab in it
	base string          // the URL of /ui/, without it

	mu       sync.Mutex
	reported []string
}

// openTab opens a tab for the pages of a server.
func openTab(t *testing.T, base string) *tab {
	t.Helper()
	browser := findBrowser(t)
	ctx, cancel := context.WithTimeout(t.Context(), 4*limit)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.Headless)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx, base: base}
	if err := chromedp.Listen(ctx, b.hear); err != nil {
		t.Fatal(err)
	}
	if _, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	// The tab counts as the one that is being looked at, whatever other tabs there are: hidden pages are not live.
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		t.Fatal(err)
	}
	return b
}

// hear notes what the browser reports. A page that answers with an error status is reported, too, and is looked at by the tests.
func (b *tab) hear(event any) {
	report := ""
	switch e := event.(type) {
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError && e.Entry.Source != cdplog.EntrySourceNetwork {
			report = fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		report = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			report += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			report = fmt.Sprintf("console: %v", e.Args)
		}
	}
	if report != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reported = append(b.reported, report)
	}
}

// do makes actions in the tab.
func (b *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, actions...); err != nil {
		b.t.Fatal(err)
	}
}

// open opens the page at a path under /ui/.
func (b *tab) open(path string) {
	b.t.Helper()
	b.do(chromedp.Navigate(b.base + "/ui/" + path))
}

// look sets the width of the window, in pixels, and the colour scheme: light or dark.
func (b *tab) look(width int64, scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
	b.do(chromedp.EmulateViewport(width, 900))
}

// await waits until an expression is true in the page, also while one page gives way to another.
func (b *tab) await(condition string) {
	b.t.Helper()
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // there is no signal to wait on
		is, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("Boolean("+condition+")"))
		if err == nil && is {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s: %t, %v\n%s", condition, is, err, b.text())
		}
	}
}

// text returns the text of the page.
func (b *tab) text() string { return evaluate[string](b.ctx, b.t, "document.body.innerText") }

// submit presses the button of the first form that sends to an action ending with suffix, and waits for the page that it leads to.
func (b *tab) submit(suffix string) {
	b.t.Helper()
	evaluate[any](b.ctx, b.t, `window.isOld = true; []`)
	b.await(`document.querySelector('form[action$="` + suffix + `"] button') !== null`)
	b.do(chromedp.Click(chromedp.CSS(`form[action$="` + suffix + `"] button`)))
	b.await(`window.isOld === undefined && document.readyState === "complete"`)
}

// check fails the test for what the browser has reported, and for what is wrong with the page that is open.
func (b *tab) check(what string) {
	b.t.Helper()
	for _, wrong := range evaluate[[]string](b.ctx, b.t, auditScript) {
		b.t.Errorf("%s: %s", what, wrong)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, report := range b.reported {
		b.t.Errorf("%s: the browser reports: %s", what, report)
	}
	b.reported = nil
}

// picture keeps a picture of the page, when QUEUED_E2E_PICTURES names a folder for them.
func (b *tab) picture(name string) {
	b.t.Helper()
	b.keep(name, chromedp.FullScreenshot(100))
}

// keep keeps a picture, when QUEUED_E2E_PICTURES names a folder for them.
func (b *tab) keep(name string, take chromedp.Action[[]byte]) {
	b.t.Helper()
	folder := os.Getenv("QUEUED_E2E_PICTURES")
	if folder == "" {
		return
	}
	png, err := chromedp.Run(b.ctx, take)
	if err == nil {
		err = os.MkdirAll(folder, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(folder, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// call makes a call of the API, which has to succeed, and returns its answer.
func (p *process) request(t *testing.T, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+p.address+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, answer, err)
	}
	return answer
}

// fill gives a server what pages show: events in each state and with each end, and texts of the longest and the worst kind.
func fill(t *testing.T, p *process) {
	t.Helper()
	long := strings.Repeat("a-very-long-name.", 8)[:128]
	p.request(t, "PUT", "/queues/mail", `{"max_attempts":3,"backoff":{"kind":"exponential","base":"5s"},"dead_letter":{"queue":"mail.dead"}}`)
	for i := range 40 {
		p.request(t, "POST", fmt.Sprintf("/events?queue=mail&type=mail.welcome&delay=%dm", i%3), fmt.Sprintf(`{"to":"user%d@example.com","big":12345678901234567890}`, i))
	}
	p.request(t, "POST", "/events?queue="+long+"&type="+url.QueryEscape(strings.Repeat("long.type.", 25)), `{"text":"`+strings.Repeat("word ", 20)+`"}`)
	p.request(t, "POST", "/events?queue=large", `{"text":"`+strings.Repeat("x", 1_000_000)+`"}`)
	p.request(t, "POST", "/events?queue=hostile&type="+url.QueryEscape(hostile)+"&source="+url.QueryEscape(hostile)+"&key="+url.QueryEscape(hostile), string(encode(t, map[string]string{hostile: hostile})))
	var claimed struct {
		Events []struct {
			ID      int64  `json:"id"`
			Receipt string `json:"receipt"`
		} `json:"events"`
	}
	if err := json.Unmarshal(p.request(t, "POST", "/claim", `{"queue":"mail","limit":12,"worker":"worker-1"}`), &claimed); err != nil {
		t.Fatal(err)
	}
	for i, e := range claimed.Events {
		switch {
		case i < 6:
			p.request(t, "POST", fmt.Sprintf("/events/%d/ack", e.ID), fmt.Sprintf(`{"receipt":%q,"result":{"sent":true}}`, e.Receipt))
		case i < 9:
			p.request(t, "POST", fmt.Sprintf("/events/%d/nack", e.ID), string(encode(t, map[string]any{"receipt": e.Receipt, "error": "SMTP 421: try again later " + hostile, "final": true})))
		case i < 11:
			p.request(t, "POST", fmt.Sprintf("/events/%d/nack", e.ID), string(encode(t, map[string]any{"receipt": e.Receipt, "error": "connection refused by 10.0.0.7:25"})))
		}
	}
	p.request(t, "POST", "/queues/large/pause", "")
	p.request(t, "POST", "/schedules", `{"queue":"reports","event":{"report":"daily"},"cron":"0 9 * * *","timezone":"Europe/Berlin"}`)
	p.request(t, "PUT", "/subscriptions/billing", `{"filters":[{"topics":["order.**"]}],"deliver":{"queue":"billing"}}`)
	p.request(t, "POST", "/topics/order.created", `{"total":"12.50"}`)
}

func encode(t *testing.T, value any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(value); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unfit is what the name of a picture has no place for.
var unfit = regexp.MustCompile(`[^a-z0-9]+`)

// numbers are the parts of a path that name one of many: pages that differ in these alone are alike.
var numbers = regexp.MustCompile(`[0-9]+`)

// TestEachPageIsSoundInBothSchemesAndAtThreeWidths follows the links from the overview, and looks at one or two pages of each kind.
func TestEachPageIsSoundInBothSchemesAndAtThreeWidths(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t))
	empty := openTab(t, "http://"+p.address)
	for _, page := range []string{"", "queues", "history"} {
		empty.look(1280, "light")
		empty.open(page)
		empty.check("the empty page /ui/" + page)
		empty.picture("empty-" + strings.Trim(page, "/"))
	}
	fill(t, p)
	b := openTab(t, "http://"+p.address)
	seen := map[string]int{}
	waiting := []string{""}
	for visited := 0; len(waiting) > 0 && visited < 60; visited++ {
		path := waiting[0]
		waiting = waiting[1:]
		b.look(1280, "light")
		b.open(path)
		for _, look := range []struct {
			width  int64
			scheme string
		}{{1280, "light"}, {1280, "dark"}, {768, "light"}, {360, "dark"}} {
			b.look(look.width, look.scheme)
			b.check(fmt.Sprintf("/ui/%s, %d px, %s", path, look.width, look.scheme))
			if look.width != 768 {
				b.picture(fmt.Sprintf("%s-%d-%s", strings.Trim(unfit.ReplaceAllString(shorten(path), "-"), "-"), look.width, look.scheme))
			}
		}
		if evaluate[bool](b.ctx, t, `window.hacked !== undefined`) {
			t.Fatalf("/ui/%s has run what somebody else wrote", path)
		}
		for _, link := range evaluate[[]string](b.ctx, t, `[...document.querySelectorAll("main a[href]:not([download]), nav a[href]")].map(a => a.href)`) {
			next, isPage := strings.CutPrefix(link, b.base+"/ui/")
			kind := numbers.ReplaceAllString(kindOf(next), "0")
			if !isPage || seen[kind] >= 2 || slices.Contains(waiting, next) || strings.Contains(next, "#") {
				continue
			}
			seen[kind]++
			waiting = append(waiting, next)
		}
	}
	for _, kind := range []string{"queues/*", "queues/*/purge"} {
		if seen[kind] == 0 {
			t.Errorf("no link leads to a page like %q: %v", kind, seen)
		}
	}
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

func shorten(path string) string { return path[:min(len(path), 60)] }

// TestOpenPageShowsWhatHappensMeanwhile has events come in and a queue be paused while its page is open.
func TestOpenPageShowsWhatHappensMeanwhile(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t))
	p.request(t, "POST", "/events?queue=mail", `{}`)
	b := openTab(t, "http://"+p.address)
	b.open("queues/mail")
	b.await(`document.querySelector("#stream-state").classList.contains("on")`)
	p.request(t, "POST", "/queues/mail/pause", "")
	began := time.Now()
	b.await(`document.querySelector(".head .tag.paused") !== null`)
	t.Logf("the pause was seen after %s", time.Since(began).Round(10*time.Millisecond))
	b.check("the page of a queue")
	b.submit("/resume")
	b.await(`document.body.innerText.includes("no longer paused")`)
	b.check("the page of a queue that was resumed")
}

// TestPagesWorkWithoutScripts pauses, posts to and purges a queue in a browser that runs no script.
func TestPagesWorkWithoutScripts(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	p := start(t, build(t), newDatabase(t), freeAddress(t))
	p.request(t, "POST", "/events?queue=mail", `{}`)
	b := openTab(t, "http://"+p.address)
	if _, err := chromedp.Call(b.ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true}); err != nil {
		t.Fatal(err)
	}
	b.open("queues/mail")
	press := func(suffix, want string) {
		t.Helper()
		b.do(chromedp.Click(chromedp.CSS(`form[action$="` + suffix + `"] button`)))
		for limit := time.Now().Add(time.Minute); ; { // the page before has a notice, too, until the next one is there
			notice, err := chromedp.Run(b.ctx, chromedp.Text(chromedp.CSS(".notice")))
			if err == nil && strings.Contains(notice, want) {
				return
			}
			if b.ctx.Err() != nil || time.Now().After(limit) {
				t.Fatalf("%s says %q, %v, want %q", suffix, notice, err, want)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	press("/pause", "paused")
	press("/post", "Posted the event")
	b.open("queues/mail/purge")
	press("/purge", "Events purged: 2")
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

// enter puts a text into a field.
func (b *tab) enter(selector, text string) {
	b.t.Helper()
	b.await(`document.querySelector(` + strconv.Quote(selector) + `) !== null`)
	evaluate[any](b.ctx, b.t, `document.querySelector(`+strconv.Quote(selector)+`).value = ""; []`)
	b.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// logIn logs in with a key.
func (b *tab) logIn(key string) {
	b.t.Helper()
	b.enter("#key", key)
	b.submit("login")
}

// TestOperatorLogsInAndPutsAFailureRight goes the way of somebody who is called at night: log in behind a proxy, see the failure, look at one, requeue all of them.
func TestOperatorLogsInAndPutsAFailureRight(t *testing.T) {
	t.Parallel()
	findBrowser(t)
	const admin = "the-admin-key-of-this-test-0123456789"
	p := start(t, build(t), newDatabase(t), freeAddress(t), "QUEUED_API_KEY="+admin)
	asAdmin := []string{"Authorization", "Bearer " + admin}
	var ids []int64
	for range 3 {
		p.call(t, http.StatusCreated, "POST", "/events?queue=mail&type=mail.welcome", `{"to":"ada@example.com"}`, asAdmin...)
	}
	var claimed struct {
		Events []struct {
			ID      int64  `json:"id"`
			Receipt string `json:"receipt"`
		} `json:"events"`
	}
	if err := json.Unmarshal(p.call(t, http.StatusOK, "POST", "/claim", `{"queue":"mail","limit":3,"worker":"w1"}`, asAdmin...).body, &claimed); err != nil {
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
	b.open("queues/mail")
	b.await(`location.pathname.endsWith("/ui/login")`)
	b.logIn("qk_wrong")
	b.await(`document.querySelector("[role=alert]") !== null`)
	b.check("the log-in with a wrong key")
	b.logIn(reader.Key)
	b.await(`location.pathname === "/ops/ui/queues/mail"`)
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
	b.await(`document.body.innerText.includes("has 3 failures among 3 events")`)
	b.check("the overview with a failure")
	b.picture("overview-failure")
	b.do(chromedp.Click(chromedp.CSS(".alert.bad a.button")))
	b.await(`location.pathname.endsWith("/ui/history") && document.querySelectorAll("tbody tr").length === 3`)
	b.do(chromedp.Click(chromedp.CSS(`a[href*="redrives/new"]`)))
	b.await(`document.querySelector("h1")?.textContent.includes("Requeue 3 events?")`)
	b.check("the question before a redrive")
	b.submit("redrives")
	b.await(`/\/ui\/redrives\/\d+$/.test(location.pathname)`)
	b.await(`document.querySelector("main").innerText.includes("done")`)
	b.check("the page of a redrive")
	b.picture("redrive")
	if got := string(p.call(t, http.StatusOK, "GET", "/queues/mail", "", asAdmin...).body); !strings.Contains(got, `"ready":3`) {
		t.Errorf("the events are not in their queue: %s", got)
	}
	if got := string(p.call(t, http.StatusOK, "GET", fmt.Sprintf("/events/%d", ids[0]), "", asAdmin...).body); !strings.Contains(got, `"requeued_as"`) {
		t.Errorf("the record does not say what it was requeued as: %s", got)
	}
	b.submit("logout")
	b.open("history")
	b.await(`location.pathname.endsWith("/ui/login")`)
}
