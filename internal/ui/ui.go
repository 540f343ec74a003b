// Package ui makes the HTML of the pages at /ui/. It is pure: a page goes in as a struct, and HTML comes out. Package pages reads what the pages show
// through the API and serves them.
//
// Each page has a template of its own in templates/, which defines "main"; layout.html is around all of them, and parts.html has what several use. The
// parts of a page that change while somebody looks at it stand between {{live "name"}} and {{endlive "name"}}; see [LiveRegions].
package ui

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"io"
	"io/fs"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed templates/*.html
var templateFiles embed.FS

// A Page is what every page has. View is what one page shows; its type is named after the page.
type Page struct {
	Name   string // of the template: "overview", "queue", …
	Title  string
	Nav    string // the entry of the navigation that the page belongs to, one of the paths in navigation
	Root   string // the relative URL of /ui/ on this page, such as "../"
	Path   string // the path under /ui/ with its query, by which the live stream finds the page again
	Viewer Viewer
	Server Server
	At     time.Time // when it was read
	IsLive bool      // the page has parts that change while it is open
	// Notice says what the last action did; empty: nothing. Problem is why the page, or the action, failed; nil: it did not.
	Notice  string
	Problem *Problem
	Form    url.Values // what was entered when the action failed, so that it is not lost; nil: nothing
	View    any
}

// A Viewer is who looks at a page.
type Viewer struct {
	Name   string // of the key; empty: the server needs no keys
	IsOpen bool   // nobody needs a key: there is no log-in
	Can    func(scope string) bool
}

// A Server is what the footer says.
type Server struct{ Version string }

// A Problem is an error as the API has it, or one of the page itself.
type Problem struct {
	Status    int
	Title     string
	Detail    string
	Fields    []Field
	RequestID string
	// RetryAfter is when to try again; 0: nobody knows.
	RetryAfter time.Duration
}

// A Field is what is wrong with one field of a form.
type Field struct{ Name, Detail string }

// Can reports whether the viewer's key has a scope. A page shows no button for what it does not allow.
func (p *Page) Can(scope string) bool { return p.Viewer.Can == nil || p.Viewer.Can(scope) }

// Entered returns what was entered in a field when the action failed, else what is given.
func (p *Page) Entered(name string, otherwise any) string {
	if p.Form.Has(name) {
		return p.Form.Get(name)
	}
	if otherwise == nil {
		return ""
	}
	return fmt.Sprint(otherwise)
}

// Chosen reports whether a box or a button of a choice is on that stands for a value of a field: as it was entered when the action failed, else as is given.
// always is a field that its form sends in any case.
func (p *Page) Chosen(always, name, value string, otherwise bool) bool {
	if p.Form.Has(always) {
		return slices.Contains(p.Form[name], value)
	}
	return otherwise
}

// Link is an entry of the navigation.
type Link struct {
	Path, Text, Key string
	Scope           string // that it takes to see the page
}

// navigation are the pages that the bar at the top leads to, with the letter that leads there after g.
var navigation = []Link{
	{"", "Overview", "o", "read"},
	{"queues", "Queues", "q", "read"},
	{"history", "History", "h", "read"},
	{"redrives", "Redrives", "r", "read"},
	{"schedules", "Schedules", "s", "read"},
	{"subscriptions", "Subscriptions", "t", "read"},
	{"sources", "Sources", "w", "read"},
	{"fleet", "Fleet", "f", "read"},
	{"keys", "Keys", "k", "admin"},
	{"audit", "Audit", "a", "admin"},
}

// Navigation returns the links that the viewer may follow.
func (p *Page) Navigation() (links []Link) {
	for _, l := range navigation {
		if p.Can(l.Scope) {
			links = append(links, l)
		}
	}
	return links
}

// pages are the templates by the name of the page. They are parsed for the first page that is rendered: that takes longer than most commands, which need none.
var pages = sync.OnceValue(parse)

func parse() map[string]*template.Template {
	common := template.Must(template.New("layout.html").Funcs(functions).ParseFS(templateFiles, "templates/layout.html", "templates/parts.html"))
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	parsed := make(map[string]*template.Template, len(names))
	for _, file := range names {
		name := strings.TrimSuffix(path.Base(file), ".html")
		if name == "layout" || name == "parts" {
			continue
		}
		one := template.Must(common.Clone())
		parsed[name] = template.Must(one.ParseFS(templateFiles, file))
	}
	return parsed
}

// Render writes the HTML of a page. It fails when a template fails, and then has written nothing.
func Render(w io.Writer, p *Page) error {
	t := pages()[p.Name]
	if t == nil {
		return fmt.Errorf("there is no page %q", p.Name)
	}
	var buffer bytes.Buffer
	if err := t.Execute(&buffer, p); err != nil {
		return fmt.Errorf("rendering the page %q: %w", p.Name, err)
	}
	_, err := buffer.WriteTo(w)
	return err
}

const (
	liveBegin = `<div class="live" id="live-`
	liveEnd   = `</div><!--live-`
)

// live begins a part that changes while the page is open. Names have letters and hyphens.
func live(name string) template.HTML {
	return template.HTML(liveBegin + name + `">`) //nolint:gosec // the name is a constant of a template
}

// endLive ends the part of this name.
func endLive(name string) template.HTML {
	return template.HTML(liveEnd + name + `-->`) //nolint:gosec // the name is a constant of a template
}

// LiveRegions returns the parts of a rendered page that change while it is open, by name: what stands between live and endlive. Nothing that
// a page shows can look like one of the marks, because it is escaped.
func LiveRegions(page []byte) map[string]string {
	regions := make(map[string]string)
	for rest := string(page); ; {
		_, after, found := strings.Cut(rest, liveBegin)
		if !found {
			return regions
		}
		name, after, _ := strings.Cut(after, `">`)
		content, after, found := strings.Cut(after, liveEnd+name+`-->`)
		if !found {
			return regions
		}
		regions[name], rest = content, after
	}
}
