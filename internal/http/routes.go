package http

import (
	"net/http"
	"path"
	"strings"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
)

// A router has the routes of a Server by method and pattern, and answers everything else with a problem.
type router struct {
	mux      http.ServeMux
	patterns []string // of the routes: "GET /events/{id}"
}

func newRouter() *router {
	rt := new(router)
	rt.mux.HandleFunc(unmatched, func(w http.ResponseWriter, r *http.Request) { fail(w, r, rt.noRoute(r)) })
	return rt
}

// unmatched is the pattern of what no route is for.
const unmatched = "/"

func (rt *router) handle(pattern string, handler http.HandlerFunc) {
	rt.mux.Handle(pattern, handler)
	rt.patterns = append(rt.patterns, pattern)
}

// routes is every path there is. Each is in api/openapi.yaml, too, under the handler's name.
func (s *Server) routes() *router {
	lim := s.cfg.limits()
	batch := lim
	batch.Body = s.cfg.MaxBatchBody

	r := newRouter()
	r.handle("POST /events", endpoint(s, lim, s.insert))
	r.handle("POST /events/batch", endpoint(s, batch, s.insertBatch))
	r.handle("GET /events", endpoint(s, lim, s.listEvents))
	r.handle("GET /events/{id}", endpoint(s, lim, s.getEvent))
	r.handle("GET /events/{id}/attempts", endpoint(s, lim, s.listAttempts))

	r.handle("POST /claim", endpoint(s, lim, s.claim))
	r.handle("DELETE /events/{id}", endpoint(s, lim, s.ack))
	r.handle("POST /events/{id}/ack", endpoint(s, lim, s.ackWithResult))
	r.handle("POST /ack", endpoint(s, lim, s.ackBatch))
	r.handle("POST /events/{id}/nack", endpoint(s, lim, s.nack))
	r.handle("POST /events/{id}/extend", endpoint(s, lim, s.extend))
	r.handle("POST /sweep", endpoint(s, lim, s.sweep))

	r.handle("GET /history", endpoint(s, lim, s.listHistory))
	r.handle("GET /history/stats", endpoint(s, lim, s.historyStats))
	r.handle("POST /history/{id}/requeue", endpoint(s, lim, s.requeue))
	r.handle("POST /history/requeue", endpoint(s, lim, s.requeueMatching))
	r.handle("GET /queues", endpoint(s, lim, s.listQueues))
	r.handle("GET /queues/{name}", endpoint(s, lim, s.getQueue))
	r.handle("PUT /queues/{name}", endpoint(s, lim, s.putQueue))
	r.handle("POST /queues/{name}/pause", endpoint(s, lim, s.pauseQueue))
	r.handle("POST /queues/{name}/resume", endpoint(s, lim, s.resumeQueue))
	r.handle("POST /queues/{name}/purge", endpoint(s, lim, s.purgeQueue))
	r.handle("GET /stats/executions", endpoint(s, lim, s.listExecutions))
	r.handle("GET /stats/processes", endpoint(s, lim, s.listProcesses))

	r.handle("POST /schedules", endpoint(s, lim, s.createSchedule))
	r.handle("GET /schedules", endpoint(s, lim, s.listSchedules))
	r.handle("POST /schedules/preview", endpoint(s, lim, s.previewSchedule))
	r.handle("GET /schedules/{id}", endpoint(s, lim, s.getSchedule))
	r.handle("PATCH /schedules/{id}", endpoint(s, lim, s.patchSchedule))
	r.handle("DELETE /schedules/{id}", endpoint(s, lim, s.deleteSchedule))
	r.handle("POST /schedules/{id}/pause", endpoint(s, lim, s.pauseSchedule))
	r.handle("POST /schedules/{id}/resume", endpoint(s, lim, s.resumeSchedule))
	r.handle("POST /schedules/{id}/run", endpoint(s, lim, s.runSchedule))
	r.handle("GET /schedules/{id}/occurrences", endpoint(s, lim, s.listOccurrences))
	r.handle("GET /owners", endpoint(s, lim, s.listOwners))
	r.handle("PUT /owners/{id}", endpoint(s, lim, s.putOwner))
	r.handle("GET /owners/{id}", endpoint(s, lim, s.getOwner))
	r.handle("DELETE /owners/{id}", endpoint(s, lim, s.deleteOwner))

	r.handle("GET /livez", withoutParameters(s.livez))
	r.handle("GET /readyz", endpoint(s, lim, s.readyz))
	r.handle("GET /version", withoutParameters(s.showVersion))
	r.handle("GET /metrics", withoutParameters(s.metrics.handler.ServeHTTP))
	r.handle("GET /openapi.yaml", withoutParameters(contract.ServeHTTP))
	r.handle("GET /docs", withoutParameters(s.serveDocs))
	r.handle("GET /docs/{asset}", withoutParameters(s.serveDocsAsset))
	r.handle("GET /{$}", withoutParameters(s.index))
	return r
}

// ServeHTTP implements http.Handler.
func (rt *router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != path.Clean(r.URL.Path) { // http.ServeMux would redirect it
		fail(w, r, errNotFound)
		return
	}
	rt.mux.ServeHTTP(w, r)
}

var errNotFound = problem.New(problem.NotFound, "Every path is described at /docs and in /openapi.yaml.")

// noRoute is the problem with a request that no route is for: its path, or its method.
func (rt *router) noRoute(r *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		if _, pattern := rt.mux.Handler(&http.Request{Method: method, URL: r.URL, Host: r.Host}); pattern != unmatched {
			allowed = append(allowed, method)
		}
	}
	if len(allowed) == 0 {
		return errNotFound
	}
	list := strings.Join(allowed, ", ")
	return problem.New(problem.MethodNotAllowed, "Expected one of "+list+".").With("Allow", list)
}

// withoutParameters makes a route of a handler that takes nothing: an unknown parameter is an error there, too.
func withoutParameters(handler http.HandlerFunc) http.HandlerFunc {
	none := bind.New[noRequest](bind.Limits{})
	return func(w http.ResponseWriter, r *http.Request) {
		if err := none.Decode(w, r, new(noRequest)); err != nil {
			fail(w, r, err)
			return
		}
		handler(w, r)
	}
}
