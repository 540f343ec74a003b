package gateway

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/http/pages"
)

// Where there are several cells, the gateway serves the pages at /ui/ itself. What they show they read through the gateway's own API, without a connection, so they are of
// all cells. Their sessions are at home; see door.go.

// newPages returns the handler of the pages.
func (g *Gateway) newPages() *pages.Handler {
	return pages.New(pages.Config{
		Call: g.callWithin, Door: newDoor(g), Draining: g.drain.Done(), Version: g.cfg.Version, HidePayloads: g.cfg.HidePayloads, HasCells: true, Logger: g.log,
	})
}

// servePages serves the pages where there are several cells, and leaves all else to next.
func (g *Gateway) servePages(next http.Handler) http.Handler {
	page, live := &route{pattern: pages.Prefix}, &route{pattern: pages.Prefix, waits: true, streams: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isPage := strings.HasPrefix(r.URL.Path, pages.Prefix)
		if !isPage && r.URL.Path+"/" != pages.Prefix || g.single() != nil {
			next.ServeHTTP(w, r)
			return
		}
		c := callOf(r.Context())
		c.route = page
		h := c.Header()
		h["X-Request-Id"] = []string{c.id}
		h["X-Content-Type-Options"] = []string{"nosniff"}
		if !isPage {
			h["Cache-Control"] = []string{"no-store"}
			h["Location"] = []string{strings.TrimPrefix(pages.Prefix, "/")} // relative: nobody knows under which prefix a proxy has the gateway
			c.WriteHeader(http.StatusSeeOther)
			return
		}
		if r.URL.Path == pages.Prefix+"live" {
			c.route, c.mayWait = live, true
		}
		g.pages.ServeHTTP(c, r)
	})
}

// callWithin answers a call of the API that a page makes, in the name of a viewer. The request of the page has the line in the log, and calls that fail have one, too.
func (g *Gateway) callWithin(w http.ResponseWriter, r *http.Request, viewer pages.Viewer) {
	c := &call{ResponseWriter: w, id: callOf(r.Context()).id, start: time.Now()}
	c.ctx = callContext{context.WithValue(r.Context(), chi.RouteCtxKey, (*chi.Context)(nil)), c} // the route is not the page's
	r = r.WithContext(&c.ctx)                                                                    //nolint:contextcheck // it inherits from the context of r
	admitHeader(r)
	for _, name := range []string{"Authorization", "Cookie", "Origin"} {
		delete(r.Header, name)
	}
	if viewer != nil && !viewer.IsOpen() { // others call as anybody may
		maps.Copy(r.Header, g.home().ownHeader())
		c.behalf = viewer.KeyID()
	}
	defer func() {
		if c.err == nil {
			return
		}
		name := r.Method + " " + c.pattern()
		g.log.Error().Err(c.err).Str(failure.Field, cmp.Or(c.code, strconv.Itoa(c.status))+" "+name).Str("request_id", c.id).Str("call", name).Int("status", c.status).
			Dur("duration_ms", time.Since(c.start)).Msg("a call of a page failed")
	}()
	defer g.bodies.release(c)
	defer g.rescue(c, r)
	g.api.ServeHTTP(c, r)
}
