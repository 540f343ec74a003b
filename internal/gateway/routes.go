package gateway

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
)

// A route is one of the API.
type route struct {
	method, pattern string
	choose          chooser // where there are several cells; nil: the gateway answers itself
	own             func(*Gateway, *call, *http.Request)

	waits   bool     // it may be held for long before it is answered
	waitsIf bool     // … if it has the parameter wait
	streams bool     // its answer has no end; it waits, too
	changes *subject // what it changes at home that all cells have copies of; nil: nothing
	manages bool     // it is for callers with the scope manage
	claims  bool     // its answer has leases, which are given back when it does not reach the client
	isPage  bool     // it is one of the pages of home, whose log-in is in a cookie
	places  bool     // it places a queue on cells, which the gateway has to know
	busy    bool     // it is called for every event, or every few seconds: the log of all of them would be most of the log
}

// isHealth reports whether the route is one that probes ask.
func (r *route) isHealth() bool { return r.pattern == "/livez" || r.pattern == "/readyz" }

// An option says something of a route.
type option func(*route)

func waits(r *route)       { r.waits = true }
func waitsIf(r *route)     { r.waitsIf = true }
func streams(r *route)     { r.waits, r.streams = true, true }
func changesKeys(r *route) { r.changes = new(ofKeys) }
func places(r *route)      { r.places = true }
func setsQueue(r *route)   { r.changes = new(ofSettings) }
func manages(r *route)     { r.manages = true }
func busy(r *route)        { r.busy = true }
func claims(r *route)      { r.claims = true }

// table is every route of the API, as in internal/http/routes.go and api/openapi.yaml.
func table() []*route {
	var routes []*route
	add := func(method, pattern string, choose chooser, options ...option) {
		r := &route{method: method, pattern: pattern, choose: choose}
		for _, set := range options {
			set(r)
		}
		routes = append(routes, r)
	}
	own := func(method, pattern string, answer func(*Gateway, *call, *http.Request), options ...option) {
		add(method, pattern, nil, append(options, func(r *route) { r.own = answer })...)
	}
	const get, post, put, patch, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete

	add(post, "/events", chooseInsert, busy)
	add(post, "/events/batch", chooseBatch, busy)
	add(post, "/cloudevents", chooseCloudEvents)
	add(get, "/events", waitingInQuery)
	add(get, "/events/{id}", byID, waitsIf)
	add(post, "/events/{id}/run", byID)
	add(get, "/events/{id}/attempts", byID)
	add(get, "/events/{id}/raw", byID)

	add(post, "/claim", chooseClaim, waits, busy, claims)
	add(del, "/events/{id}", byID, busy)
	add(post, "/events/{id}/ack", byID, busy)
	add(post, "/ack", bodyIDs, busy)
	add(post, "/events/{id}/nack", byID, busy)
	add(post, "/events/{id}/extend", byID, busy)
	add(post, "/extend", bodyIDs, busy)
	add(post, "/events/{id}/release", byID, busy)
	add(post, "/release", bodyIDs, busy)
	add(post, "/sweep", inBody((*Gateway).cellsOf), manages)

	add(get, "/history", pastInQuery)
	add(get, "/history/stats", pastInQuery)
	add(get, "/history/errors", pastInQuery)
	add(post, "/history/{id}/requeue", byID)
	add(post, "/history/requeue", inBody((*Gateway).cellsEver), manages)
	add(post, "/redrives", inBody((*Gateway).cellsEver), manages)
	add(get, "/redrives", ofAllQueues)
	add(get, "/redrives/{id}", byID)
	add(post, "/redrives/{id}/pause", byID)
	add(post, "/redrives/{id}/resume", byID)
	add(post, "/redrives/{id}/cancel", byID)
	add(get, "/queues", ofAllQueues)
	add(get, "/queues/{name}", waitingInPath)
	add(put, "/queues/{name}", usesAtHome, setsQueue, manages)
	add(patch, "/queues/{name}", usesAtHome, setsQueue, manages)
	add(del, "/queues/{name}", deleteQueue, setsQueue)
	add(post, "/queues/{name}/pause", usesAtHome, setsQueue, manages)
	add(post, "/queues/{name}/resume", usesAtHome, setsQueue, manages)
	add(post, "/queues/{name}/purge", waitingInPath)
	add(post, "/queues/{name}/move", chooseMove, manages)
	add(post, "/queues/{name}/run", waitingInPath)
	add(put, "/queues/{name}/push", usesAtHome, setsQueue, manages)
	add(get, "/queues/{name}/push", byPathQueue)
	add(del, "/queues/{name}/push", toHome, setsQueue)
	add(post, "/queues/{name}/push/secret", toHome, setsQueue)
	add(post, "/queues/{name}/push/test", byPathQueue)
	add(get, "/queues/{name}/push/deliveries", byPathQueue)
	add(post, "/queues/{name}/push/enable", waitingInPath)
	add(get, "/queues/{name}/groups", waitingInPath)
	add(get, "/queues/{name}/groups/{group}", byGroup)
	add(put, "/queues/{name}/groups/{group}", useGroup, manages)
	add(del, "/queues/{name}/groups/{group}", byGroup)
	add(post, "/queues/{name}/groups/{group}/unblock", byGroup)
	add(get, "/queues/{name}/stats", pastInPath)
	add(put, "/queues/{name}/placement", choosePlacement, places)
	add(post, "/queues/{name}/placement", toHome, places)
	add(get, "/queues/{name}/placement", toHome)
	add(del, "/queues/{name}/placement", toHome)
	add(post, "/queues/{name}/placement/drained", toHome)
	add(get, "/placements", toHome, waitsIf)
	add(get, "/cell", toHome)
	own(get, "/cells", (*Gateway).showCells)
	own(put, "/cells/{number}", (*Gateway).putCell)
	own(del, "/cells/{number}", (*Gateway).deleteCell)
	add(post, "/cell/events", toHome)
	add(get, "/cell/queues", toHome)
	add(post, "/cell/queues/{name}/keys", toHome)
	add(get, "/cell/keys", toHome)
	add(put, "/cell/keys", toHome)
	add(get, "/cell/settings", toHome)
	add(put, "/cell/settings", toHome)
	add(get, "/stats/queues", ofAllQueues)
	add(get, "/stats/executions", ofAllQueues)
	add(get, "/stats/processes", ofAllQueues)
	add(get, "/stats/workers", ofAllQueues)
	add(get, "/stats/holders", ofAllQueues)

	add(post, "/schedules", toHome)
	add(get, "/schedules", toHome)
	add(post, "/schedules/preview", toHome)
	add(get, "/schedules/{id}", toHome)
	add(patch, "/schedules/{id}", toHome)
	add(del, "/schedules/{id}", toHome)
	add(post, "/schedules/{id}/pause", toHome)
	add(post, "/schedules/{id}/resume", toHome)
	add(post, "/schedules/{id}/run", toHome)
	add(get, "/schedules/{id}/occurrences", toHome)
	add(get, "/owners", toHome)
	add(put, "/owners/{id}", toHome)
	add(get, "/owners/{id}", toHome)
	add(del, "/owners/{id}", toHome)

	add(post, "/topics/{topic}", toHome, busy)
	add(get, "/topics", toHome)
	add(post, "/publish", toHome, busy)
	add(post, "/match", toHome)
	add(get, "/log", toHome, waitsIf, busy)
	add(get, "/log/settings", toHome)
	add(put, "/log/settings", toHome)
	add(get, "/log/{position}", toHome)
	add(get, "/stream", toHome, streams)
	add(post, "/stream/tokens", toHome)

	add(get, "/subscriptions", toHome)
	add(put, "/subscriptions/{name}", toHome)
	add(get, "/subscriptions/{name}", toHome)
	add(del, "/subscriptions/{name}", toHome)
	add(put, "/subscriptions/{name}/filters/{filter}", toHome)
	add(del, "/subscriptions/{name}/filters/{filter}", toHome)
	add(post, "/subscriptions/{name}/read", toHome, waits, busy)
	add(post, "/subscriptions/{name}/commit", toHome, busy)
	add(post, "/subscriptions/{name}/seek", toHome)
	add(post, "/subscriptions/{name}/replay", toHome)
	add(post, "/subscriptions/{name}/pause", toHome)
	add(post, "/subscriptions/{name}/resume", toHome)
	add(get, "/subscriptions/{name}/stream", toHome, streams)

	add(post, "/keys", toHome, changesKeys)
	add(get, "/keys", toHome)
	add(get, "/keys/self", toHome)
	add(get, "/keys/{id}", toHome)
	add(patch, "/keys/{id}", toHome, changesKeys)
	add(post, "/keys/{id}/rotate", toHome, changesKeys)
	add(del, "/keys/{id}", toHome, changesKeys)
	add(get, "/audit", toHome)

	add(get, "/sources", toHome)
	add(put, "/sources/{name}", toHome)
	add(get, "/sources/{name}", toHome)
	add(del, "/sources/{name}", toHome)
	add(get, "/sources/{name}/deliveries", toHome)
	add(post, "/sources/{name}/test", toHome)
	add(post, "/in/{name}", toHome, busy)
	add(http.MethodOptions, "/in/{name}", toHome)

	own(get, "/livez", (*Gateway).livez, busy)
	own(get, "/readyz", (*Gateway).readyz, busy)
	own(get, "/version", (*Gateway).showVersion, busy)
	own(get, "/metrics", (*Gateway).showMetrics, busy)
	add(get, "/openapi.yaml", toHome)
	add(get, "/docs", toHome)
	add(get, "/docs/{asset}", toHome)
	add(get, "/", toHome)
	return routes
}

// newMux returns the handler of all routes, and of those of one cell below /cells/{number}/. What matches none goes to home, which says so as it says it of every path, and has the pages.
func (g *Gateway) newMux() http.Handler {
	mux := chi.NewRouter()
	mux.Use(middleware.GetHead)
	for _, found := range table() {
		mux.Method(found.method, found.pattern, g.routed(found))
	}
	mux.Handle(ofCellPattern, http.HandlerFunc(g.passToCell))
	pages, live := g.routed(&route{pattern: pagesPrefix, choose: toHome, isPage: true}), g.routed(&route{pattern: pagesPrefix, choose: toHome, isPage: true, waits: true, streams: true})
	rest := g.routed(nil)
	unmatched := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch isPage := r.URL.Path+"/" == pagesPrefix || strings.HasPrefix(r.URL.Path, pagesPrefix); {
		case isPage && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/event-stream"):
			live.ServeHTTP(w, r)
		case isPage:
			pages.ServeHTTP(w, r)
		default:
			rest.ServeHTTP(w, r)
		}
	})
	mux.NotFound(unmatched)
	mux.MethodNotAllowed(unmatched)
	return mux
}

// routed returns the handler of the requests of a route; nil: of those that have none.
func (g *Gateway) routed(found *route) http.Handler {
	return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		c := callOf(r.Context())
		c.route = found
		isOwn := found != nil && found.own != nil && c.only == nil
		if isOwn {
			found.own(g, c, r)
			return
		}
		if found != nil {
			c.mayWait = found.waits || found.waitsIf && queryOf(r, "wait", "") != ""
		}
		g.recognize(c, r)
		var err error
		only := g.single()
		switch {
		case c.only != nil:
			c.target = c.only
		case only != nil:
			c.target = only
		case found == nil, isMalformed(r.URL.RawQuery): // home says what is wrong
			c.target = g.home()
		default:
			err = found.choose(g, c, r)
		}
		if err == nil {
			_, err = g.peek(c, r, g.cfg.MaxBody)
		}
		if err == nil && c.answer == nil && found != nil && found.places && (only == nil || c.only != nil) {
			err = g.checkPlaces(c, r)
		}
		if err == nil && c.answer != nil {
			err = c.answer(r)
		} else if err == nil {
			c.keepCookie(r)
			g.pass(c, r)
		}
		if err != nil {
			g.fail(c, r, err)
		}
	})
}
