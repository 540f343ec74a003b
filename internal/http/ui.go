package http

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/http/pages"
)

// servePages serves the pages at /ui/, leads browsers there that open the server's address, and leaves all else to api.
func servePages(ui, api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, pages.Prefix):
			ui.ServeHTTP(w, r)
		case r.URL.Path+"/" == pages.Prefix, r.URL.Path == "/" && isBrowser(r):
			w.Header()["Cache-Control"] = noStore
			w.Header().Set("Vary", "Accept")
			redirect(w, strings.TrimPrefix(pages.Prefix, "/"))
		default:
			api.ServeHTTP(w, r)
		}
	})
}

// isBrowser reports whether a request is one of a browser that opens an address.
func isBrowser(r *http.Request) bool {
	return (r.Method == http.MethodGet || r.Method == http.MethodHead) && strings.Contains(r.Header.Get("Accept"), "text/html")
}

// redirect leads to a path that is relative to that of the request, as http.Redirect does not: nobody knows under which prefix a proxy has the server.
func redirect(w http.ResponseWriter, path string) {
	w.Header().Set("Location", path)
	w.WriteHeader(http.StatusSeeOther)
}

// newPages returns the handler of the pages, whose calls of the API the routes answer.
func (s *Server) newPages(routes *chi.Mux) *pages.Handler {
	cfg := pages.Config{
		Call: func(w http.ResponseWriter, r *http.Request, viewer pages.Viewer) {
			var grant *access.Grant
			if v, ok := viewer.(pageViewer); ok {
				grant = v.grant
			}
			s.callWithin(routes, w, r, grant)
		},
		Draining: s.drained, Now: s.now, Version: s.version.Version, HidePayloads: s.cfg.HidePayloads, Logger: s.log,
	}
	if s.cells != nil {
		cfg.Cell = s.cells.Number()
	}
	if s.access != nil {
		cfg.Door = pageDoor{s}
	}
	return pages.New(cfg)
}

// callWithin answers a call of the API that a page makes, in the name of the bearer of a grant. The request of the page has the line in the log, and
// calls that fail have one, too.
func (s *Server) callWithin(routes *chi.Mux, w http.ResponseWriter, r *http.Request, grant *access.Grant) {
	page := logOf(r)
	l := &accessLog{ResponseWriter: w, began: time.Now(), id: page.id, grant: grant}
	r = l.start(r, routes)
	defer l.body.Release()
	defer func() {
		if l.err != nil {
			route := r.Method + " " + cmp.Or(r.Pattern, "unmatched")
			s.log.Error().Err(l.err).Str(failure.Field, l.reason(route)).Str("request_id", l.id).Str("call", route).Int("status", l.status).
				Dur("duration_ms", time.Since(l.began)).Msg("a call of a page failed")
		}
	}()
	defer s.rescue(l, r)
	routes.ServeHTTP(l, r)
}
