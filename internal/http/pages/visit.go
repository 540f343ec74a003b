package pages

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/ui"
)

// A visit is one request for a page, or the making of a page for those who look at it.
type visit struct {
	h      *Handler
	r      *http.Request
	viewer Viewer         // nil: somebody with all rights
	api    *client.Client // which calls in the name of the viewer
	form   url.Values     // what was sent; nil: nothing was
}

// visit returns the visit of a request. It answers those who have to log in first, or to wait, and then returns false.
func (h *Handler) visit(w http.ResponseWriter, r *http.Request) (*visit, bool) {
	viewer, err := h.admit(r)
	if err != nil {
		h.refuse(w, r, err)
		return nil, false
	}
	return &visit{h: h, r: r, viewer: viewer, api: h.clientFor(r, viewer)}, true
}

// needs makes a page for viewers whose key has a scope: one with a form that is refused without it, although the page reads nothing that is.
func needs(scope string, show page) page {
	return func(v *visit) (view, error) {
		if !v.can(scope) {
			return view{}, &client.Error{Status: http.StatusForbidden, Required: &client.Requirement{Scope: scope}}
		}
		return show(v)
	}
}

// maxFieldProblems is how many parameters or fields a problem lists.
const maxFieldProblems = 20

// checkQuery returns the problem with a query that cannot be read, has other parameters than these and the notice, or one of them twice: a filter that were ignored would
// leave a page that shows more than was asked for, and a question about more than was meant. A name that ends in + may be given more than once.
func (v *visit) checkQuery(names []string) error {
	query, err := url.ParseQuery(v.r.URL.RawQuery)
	if err != nil {
		return problem(http.StatusBadRequest, "The address could not be read", "What is after its question mark is not right: "+err.Error()+".")
	}
	var wrong []client.FieldError
	for _, name := range slices.Sorted(maps.Keys(query)) {
		isOnce := slices.Contains(names, name) || name == "did" || name == "n"
		switch {
		case isOnce && len(query[name]) > 1:
			wrong = append(wrong, client.FieldError{Pointer: name, Detail: "is given more than once"})
		case !isOnce && !slices.Contains(names, name+"+"):
			wrong = append(wrong, client.FieldError{Pointer: ui.Short(40, name), Detail: "is no parameter of this page"})
		}
	}
	if len(wrong) == 0 {
		return checkText(query)
	}
	return &client.Error{Status: http.StatusBadRequest, Title: "Invalid parameter", Errors: wrong[:min(len(wrong), maxFieldProblems)]}
}

// checkText returns the problem with values that are not UTF-8: JSON would have other characters in their place.
func checkText(values url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if slices.ContainsFunc(values[name], func(value string) bool { return !utf8.ValidString(value) }) {
			return invalid(ui.Short(40, name), "must be UTF-8")
		}
	}
	return nil
}

// window returns the time that the charts of a page are of.
func (v *visit) window() (ui.Window, error) {
	w, ok := ui.WindowOf(v.query("range"))
	if !ok {
		return w, invalid("range", "must be 1h, 6h, 24h or 7d")
	}
	return w, nil
}

// path returns the path of the page under Prefix, with its query but for the notice.
func (v *visit) path() string {
	path := strings.TrimPrefix(v.r.URL.EscapedPath(), Prefix)
	if query := v.parameters(); len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// parameters returns those of the query but for the notice.
func (v *visit) parameters() url.Values {
	query := v.r.URL.Query()
	query.Del("did")
	query.Del("n")
	return query
}

// root returns the reference to Prefix that is relative to the page.
func (v *visit) root() string { return rootOf(v.r) }

func rootOf(r *http.Request) string {
	depth := strings.Count(strings.TrimPrefix(r.URL.EscapedPath(), Prefix), "/")
	return cmp.Or(strings.Repeat("../", depth), "./")
}

// parameter returns a parameter of the path.
func (v *visit) parameter(name string) string {
	value := v.r.PathValue(name)
	if v.r.URL.RawPath != "" { // then chi matches that, and its values are escaped
		value, _ = url.PathUnescape(value) // it was valid when it was parsed
	}
	return value
}

// id returns the parameter id of the path.
func (v *visit) id() (int64, error) {
	id, err := strconv.ParseInt(v.parameter("id"), 10, 64)
	if err != nil || id < 1 {
		return 0, errNoPage
	}
	return id, nil
}

// query returns a parameter of the query.
func (v *visit) query(name string) string { return v.r.URL.Query().Get(name) }

// can reports whether the viewer may make calls of a scope.
func (v *visit) can(scope string) bool { return v.viewer == nil || v.viewer.Has(scope) }

// isOpen reports whether nobody needs a key, which a page with a first key has to know.
func (v *visit) isOpen() bool { return v.viewer != nil && v.viewer.IsOpen() }

// isOwnKey reports whether the viewer is logged in with the key of an id.
func (v *visit) isOwnKey(id string) bool { return v.viewer != nil && v.viewer.KeyID() == id }

// shownViewer returns who looks at the page.
func (v *visit) shownViewer() ui.Viewer {
	if v.viewer == nil || v.viewer.IsOpen() {
		return ui.Viewer{IsOpen: true}
	}
	return ui.Viewer{Name: cmp.Or(v.viewer.KeyName(), "the configured key"), Can: v.viewer.Has}
}
