// Package pages serves the pages at /ui/. It has no way to the data of its own: whatever a page shows, it reads through the API, with the rights of whoever
// looks at it, and whatever a form does is a call of the API, too. Package ui makes the HTML.
//
// A page is a function of a [visit] that returns what to show, in the file of its subject, and a form is one that makes the call and says where to go on:
// see routes. Pages with parts that change are rendered again for those who look at them, every two seconds, once for all viewers with the same key; see
// live.go.
package pages

import (
	"bytes"
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/ui"
)

// Config has what the pages need. All but Door and Draining must be set.
type Config struct {
	// Call answers a call of the API that a page makes in the name of a viewer; nil: of anybody. r is of the page's context.
	Call     func(w http.ResponseWriter, r *http.Request, viewer Viewer)
	Door     Door            // who may look; nil: anyone
	Draining <-chan struct{} // is closed when the server stops: open pages are told to come back; nil: never
	Version  string
	Cell     int              // the number of the database as one of several cells: the cookie of the log-in is named after it
	Now      func() time.Time // the time of the database
	// HidePayloads has events shown without their payloads, metadata, results and raw bodies.
	HidePayloads bool
	Logger       zerolog.Logger
}

// Prefix is the path that the pages are under.
const Prefix = "/ui/"

// maxForm bounds the body of a form, in bytes. The largest has an event; the API bounds that.
const maxForm = 4 << 20

// policy lets a page load, call and send forms to nothing but this server, and run nothing that stands in the page itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// A Handler serves the pages. It is safe for concurrent use.
type Handler struct {
	cfg   Config
	mux   *chi.Mux
	reads *readCache
	live  *hub
	sent  nonces
	forms *http.CrossOriginProtection
}

// New returns a Handler.
func New(cfg Config) *Handler {
	h := &Handler{cfg: cfg, mux: chi.NewRouter(), reads: newReadCache(), forms: http.NewCrossOriginProtection()}
	h.live = newHub(h)
	h.routes()
	return h
}

var errOtherOrigin = problem(http.StatusForbidden, "Cross-origin request refused",
	"The browser reports that a page of another origin sent this, and nothing was done. If it was a page of this server, a proxy in front of it changes the header Host: it has to pass on that of the browser.")

// ServeHTTP implements http.Handler for paths that begin with Prefix. Forms of pages of other origins are refused.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("Referrer-Policy", "same-origin")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if err := h.forms.Check(r); err != nil {
		h.showProblem(w, r, errOtherOrigin)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// A view is what a page shows.
type view struct {
	name   string // of the template
	title  string
	nav    string // the entry of the navigation
	isLive bool
	body   any
}

// A page reads what a view shows. Its errors are those of the client, or of the page itself. With an error, the view is shown only if it has a body: that of a
// form, which is shown as it was sent.
type page func(v *visit) (view, error)

// An action does what a form asks for. It returns where to go on: a path under Prefix, with the parameters did and n, which say what was done; see notices.
type action func(v *visit) (next string, err error)

// page serves a page. parameters are the names of what its address may have after the question mark; see checkQuery.
func (h *Handler) page(show page, parameters ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := h.visit(w, r)
		if !ok {
			return
		}
		h.show(w, v, func(v *visit) (view, error) {
			if err := v.checkQuery(parameters); err != nil {
				return view{}, err
			}
			return show(v)
		}, nil)
	}
}

// action serves a form of a page: when the action fails, the page is shown again, with the problem and what was entered.
func (h *Handler) action(do action, again page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := h.visit(w, r)
		if !ok {
			return
		}
		err := v.readForm(w)
		next := ""
		if err == nil {
			next, err = do(v)
			h.reads.clear() // whoever did something sees it done
		}
		if err != nil {
			h.show(w, v, again, err)
			return
		}
		redirect(w, r, next)
	}
}

// trial serves a form that stores nothing, with a page that has what was entered and what comes of it. When that fails, the page again is shown, with the problem.
func (h *Handler) trial(try, again page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := h.visit(w, r)
		if !ok {
			return
		}
		err := v.readForm(w)
		var tried view
		if err == nil {
			tried, err = try(v)
		}
		if err != nil {
			h.show(w, v, again, err)
			return
		}
		h.show(w, v, func(*visit) (view, error) { return tried, nil }, nil)
	}
}

// readForm reads the form of a visit.
func (v *visit) readForm(w http.ResponseWriter) error {
	v.r.Body = http.MaxBytesReader(w, v.r.Body, maxForm)
	if err := v.r.ParseForm(); err != nil {
		return unreadable(err)
	}
	if err := checkText(v.r.PostForm); err != nil {
		return err
	}
	v.form = v.r.PostForm
	return nil
}

// show renders a page, or what is left of it when it cannot be read. failed is why an action failed; nil: none did.
func (h *Handler) show(w http.ResponseWriter, v *visit, read page, failed error) {
	p, status := h.build(v, read, failed)
	if live := renderedFor(v.r); live != nil {
		live.problem = p.Problem
	}
	h.write(w, p, status)
}

// build returns a page as it is to be shown, and its status.
func (h *Handler) build(v *visit, read page, failed error) (*ui.Page, int) {
	shown, err := read(v)
	status := http.StatusOK
	p := &ui.Page{
		Root: v.root(), Path: v.path(), Viewer: v.shownViewer(), Server: h.server(), At: h.cfg.Now(),
		Name: shown.name, Title: shown.title, Nav: shown.nav, IsLive: shown.isLive && v.form == nil && err == nil, View: shown.body, Notice: notice(v.r.URL.Query()), Form: v.form,
	}
	if err != nil && shown.body == nil { // what could not be read is never shown as if there were nothing; a page with a form shows that
		p.Name, p.IsLive, p.View = "error", false, nil
	}
	if failed == nil {
		failed = err
	}
	if failed != nil {
		p.Problem = problemOf(failed)
		p.Title = cmp.Or(p.Title, p.Problem.Title)
		p.Notice, status = "", p.Problem.Status
	}
	return p, status
}

// server returns what pages say of the server.
func (h *Handler) server() ui.Server {
	return ui.Server{Version: h.cfg.Version}
}

// showProblem answers with a page that has nothing but a problem, whoever asks.
func (h *Handler) showProblem(w http.ResponseWriter, r *http.Request, err error) {
	p := h.pageOfNobody(r)
	p.Name = "error"
	p.Problem = problemOf(err)
	p.Title = p.Problem.Title
	h.write(w, p, p.Problem.Status)
}

// redirect leads to a path under Prefix. The reference is relative, because nobody knows under which prefix a proxy has the server.
func redirect(w http.ResponseWriter, r *http.Request, path string) {
	w.Header().Set("Location", rootOf(r)+path)
	w.WriteHeader(http.StatusSeeOther)
}

// pageOfNobody returns a page for who is not logged in: it leads to no other pages.
func (h *Handler) pageOfNobody(r *http.Request) *ui.Page {
	return &ui.Page{Root: rootOf(r), Server: h.server(), At: h.cfg.Now(), Viewer: ui.Viewer{IsOpen: true, Can: func(string) bool { return false }}}
}

// write renders a page, or, where that fails, one that says so.
func (h *Handler) write(w http.ResponseWriter, p *ui.Page, status int) {
	var page bytes.Buffer
	if err := ui.Render(&page, p); err != nil {
		h.cfg.Logger.Error().Func(failure.Of(err)).Str("page", p.Name).Msg("a page could not be rendered")
		page.Reset()
		status = http.StatusInternalServerError
		failed := *p
		failed.Name, failed.IsLive, failed.View, failed.Form, failed.Notice = "error", false, nil, nil, ""
		failed.Problem = &ui.Problem{Status: status, Title: "Internal error", Detail: "The page could not be rendered. The log of the server has the reason."}
		p = &failed
		if err := ui.Render(&page, p); err != nil {
			h.cfg.Logger.Error().Func(failure.Of(err)).Str("page", p.Name).Msg("a page could not be rendered")
		}
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if p.Problem != nil && p.Problem.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(p.Problem.RetryAfter/time.Second)))
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("Www-Authenticate", "Cookie") // there is no registered scheme for this; a 401 has to name one
	}
	w.Header().Set("Content-Length", strconv.Itoa(page.Len()))
	w.WriteHeader(status)
	_, _ = page.WriteTo(w) // a browser that has gone misses nothing but this
}

// problemOf returns an error as a page shows it.
func problemOf(err error) *ui.Problem {
	if answer, ok := errors.AsType[*client.Error](err); ok {
		p := &ui.Problem{Status: answer.Status, Title: cmp.Or(answer.Title, http.StatusText(answer.Status)), Detail: answer.Detail, RequestID: answer.RequestID, RetryAfter: answer.RetryAfter}
		if answer.Required != nil {
			p.Title, p.Detail = "Not allowed", lacking(*answer.Required)
		}
		for _, f := range answer.Errors {
			p.Fields = append(p.Fields, ui.Field{Name: strings.TrimLeft(f.Pointer, "#/?"), Detail: f.Detail})
		}
		return p
	}
	return &ui.Problem{Status: http.StatusServiceUnavailable, Title: "The page could not be read", Detail: "The server did not answer in time. Load the page again."}
}

// lacking says what the viewer's key may not do.
func lacking(right client.Requirement) string {
	switch {
	case right.Scope != "":
		return "The key that you are logged in with does not have the scope " + right.Scope + ". Log out, and log in with a key that has it."
	case right.Queue == "*":
		return "The page is about all queues, and the key that you are logged in with may use some of them."
	case right.Queue != "":
		return "The key that you are logged in with may not use the queue " + right.Queue + "."
	case right.Topic == "**":
		return "The page is about all topics, and the key that you are logged in with may use some of them."
	}
	return "The key that you are logged in with may not use the topic " + right.Topic + "."
}

// unreadable is the problem with a form that err is the reason of.
func unreadable(err error) error {
	if long, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return problem(http.StatusRequestEntityTooLarge, "The form is too large", "It may have "+ui.Count(long.Limit>>10, "KiB", "KiB")+" at most, and nothing was done. Send what is larger to the API.")
	}
	return problem(http.StatusBadRequest, "The form could not be read", err.Error()+".")
}

// problem returns an error that a page finds itself.
func problem(status int, title, detail string) error {
	return &client.Error{Status: status, Title: title, Detail: detail}
}

// did returns a path with the notice of what was done there; n is the number that the notice has, if any.
func did(path, what, n string) string {
	query := url.Values{"did": {what}}
	if n != "" {
		query.Set("n", n)
	}
	if strings.Contains(path, "?") {
		return path + "&" + query.Encode()
	}
	return path + "?" + query.Encode()
}
