package e2e_test

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// audit.js returns what is wrong with the page that is open: text without contrast, text that is cut off, and so on.
//
//go:embed audit.js
var auditScript string

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
	t.Cleanup(func() { b.tell("the end of the test") })
	if _, err := chromedp.Call(ctx, cdplog.Enable, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	// The tab counts as the one that is being looked at, whatever other tabs there are: hidden pages are not live.
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		t.Fatal(err)
	}
	return b
}

// hear notes what the browser reports, such as what a Content-Security-Policy has forbidden. A page that answers with an error status is reported, too, and is
// looked at by the tests; one of its files that does so is an error.
func (b *tab) hear(event any) {
	report := ""
	switch e := event.(type) {
	case *cdplog.EventEntryAdded:
		if e.Entry.Level == cdplog.EntryLevelError && (e.Entry.Source != cdplog.EntrySourceNetwork || strings.Contains(e.Entry.URL, "/static/")) {
			report = fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		report = "exception: " + e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			report += " " + e.ExceptionDetails.Exception.Description
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			report = fmt.Sprintf("console: %v", e.Args)
		}
	}
	if report != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reported = append(b.reported, report)
	}
}

// tell fails the test for what the browser has reported since it was told last.
func (b *tab) tell(what string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, report := range b.reported {
		b.t.Errorf("%s: the browser reports: %s", what, report)
	}
	b.reported = nil
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

// widths and schemes are those that each page is looked at with.
var (
	widths  = []int64{1440, 768, 360}
	schemes = []string{"light", "dark"}
)

// look sets the width of the window and the colour scheme.
func (b *tab) look(width int64, scheme string) {
	b.t.Helper()
	b.resize(width, 900)
	b.colour(scheme)
}

// resize sets the size of the window, in pixels.
func (b *tab) resize(width, height int64) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: height, DeviceScaleFactor: 1}); err != nil {
		b.t.Fatal(err)
	}
}

// colour sets the colour scheme: light or dark.
func (b *tab) colour(scheme string) {
	b.t.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}},
	})
	if err != nil {
		b.t.Fatal(err)
	}
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
	b.press(`form[action$="` + suffix + `"] button:not([formaction])`)
}

// click clicks at an element. A live part may be replaced between the search for it and the click: then that is made at what is there now.
func (b *tab) click(selector string) {
	b.t.Helper()
	for {
		err := chromedp.Do(b.ctx, chromedp.Click(chromedp.CSS(selector)))
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "Could not find node with given id") {
			b.t.Fatal(err)
		}
	}
}

// press clicks at what leads to another page, and waits for that.
func (b *tab) press(selector string) {
	b.t.Helper()
	evaluate[any](b.ctx, b.t, `window.isOld = true; []`)
	b.await(`document.querySelector(` + strconv.Quote(selector) + `) !== null`)
	b.click(selector)
	b.await(`window.isOld === undefined && document.readyState === "complete"`)
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

// check fails the test for what the browser has reported, and for what is wrong with the page that is open.
func (b *tab) check(what string) {
	b.t.Helper()
	b.checkLook(what, true)
	b.checkNames(what)
	b.tell(what)
}

// checkLook fails the test for what is wrong with how the page is laid out and coloured now and, if isFull, with its structure.
func (b *tab) checkLook(what string, isFull bool) {
	b.t.Helper()
	for _, wrong := range evaluate[[]string](b.ctx, b.t, fmt.Sprintf("(%s)(%t)", strings.TrimSpace(auditScript), isFull)) {
		b.t.Errorf("%s: %s", what, wrong)
	}
}

// named are the roles of what needs a name for those who do not see it.
var named = regexp.MustCompile(`^(button|link|textbox|searchbox|combobox|listbox|checkbox|radio|spinbutton|slider|switch|tab|Date|DateTime|InputTime|DisclosureTriangle|progressbar|image|dialog|alertdialog|search)$`)

// checkNames fails the test for controls and drawings that have no name in the tree that the browser shows to screen readers.
func (b *tab) checkNames(what string) {
	b.t.Helper()
	tree, err := chromedp.Call(b.ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		b.t.Fatal(err)
	}
	controls := 0
	for _, node := range tree.Nodes {
		if node.Ignored || !named.MatchString(textOf(node.Role)) {
			continue
		}
		controls++
		if textOf(node.Name) == "" {
			b.t.Errorf("%s: something has the role %s and no name (node %d)", what, textOf(node.Role), node.BackendDOMNodeID)
		}
	}
	if controls == 0 {
		b.t.Errorf("%s: the tree for screen readers has no controls", what)
	}
}

// textOf returns a value of the tree for screen readers as a text.
func textOf(value *accessibility.Value) (text string) {
	if value != nil {
		_ = json.Unmarshal(value.Value, &text)
	}
	return strings.TrimSpace(text)
}

// view checks the page that is open at each width and in each scheme. If isKept, and QUEUED_E2E_SCREENSHOTS names a folder, it keeps a picture of each.
func (b *tab) view(name string, isKept bool) {
	b.t.Helper()
	isKept = isKept && screenshots != ""
	b.checkNames(name)
	for _, width := range widths {
		b.resize(width, 900)
		if isKept {
			b.resizeToPage()
		}
		for i, scheme := range schemes {
			b.colour(scheme)
			b.checkLook(fmt.Sprintf("%s, %d px, %s", name, width, scheme), i == 0)
			if isKept {
				b.keep(fmt.Sprintf("%s-%d-%s", fileName(name), width, scheme))
			}
		}
	}
	b.tell(name)
}

// unfit is what the name of a file has no place for.
var unfit = regexp.MustCompile(`[^a-zA-Z0-9/.=&?]+`)

// fileName returns the name of the pictures of a page, by what the page is called.
func fileName(name string) string {
	name = unfit.ReplaceAllString(strings.NewReplacer(longest, "longest", longTopic, "longest", url.QueryEscape(hostile), "hostile", url.PathEscape(hostile), "hostile").Replace(name), "-")
	folder, name, _ := strings.Cut(name, "/")
	name = strings.NewReplacer("/", "-", "?", "-", "&", "-", "=", "-").Replace(name)
	if name = strings.Trim(name, "-"); name == "" {
		name = "overview"
	}
	return filepath.Join(folder, name[:min(len(name), 70)])
}

// screenshots is the folder that pictures of pages are kept in; empty: none are.
var screenshots = os.Getenv("QUEUED_E2E_SCREENSHOTS")

// picture keeps a picture of all of the page, when QUEUED_E2E_SCREENSHOTS names a folder for them.
func (b *tab) picture(name string) {
	b.t.Helper()
	if screenshots != "" {
		b.resizeToPage()
		b.keep(name)
	}
}

// resizeToPage makes the window as high as the page: what is below a window is not always painted.
func (b *tab) resizeToPage() {
	b.t.Helper()
	size := evaluate[[]int64](b.ctx, b.t, `[document.documentElement.clientWidth, document.documentElement.scrollHeight]`)
	b.resize(size[0], max(size[1], 480))
}

// keep keeps a picture of what the window shows.
func (b *tab) keep(name string) {
	b.t.Helper()
	isFast := true
	shot, err := chromedp.Call(b.ctx, page.CaptureScreenshot, page.CaptureScreenshotParams{Format: page.CaptureScreenshotFormatPng, OptimizeForSpeed: &isFast})
	if err != nil {
		b.t.Error(err)
		return
	}
	write(b.t, screenshots, name, shot.Data)
}

// write writes a picture into a folder.
func write(t *testing.T, folder, name string, png []byte) {
	t.Helper()
	file := filepath.Join(folder, name+".png")
	err := os.MkdirAll(filepath.Dir(file), 0o755)
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
