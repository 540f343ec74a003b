package http

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
)

// A router has the routes, each with the scope that its callers need.
type router struct {
	mux    *chi.Mux
	s      *Server
	scopes map[string]access.Scope  // by method and pattern
	bound  map[string]*bind.Binding // of requests, by method and pattern
}

// The scopes of calls that need none of the scopes of keys.
const (
	public access.Scope = "public" // anybody may call
	anyKey access.Scope = "any"    // whoever has a key may call
)

// Get adds a route for callers with a scope.
func (r *router) Get(path string, scope access.Scope, call http.Handler) {
	r.add(http.MethodGet, path, scope, call)
}

// Post adds a route for callers with a scope.
func (r *router) Post(path string, scope access.Scope, call http.Handler) {
	r.add(http.MethodPost, path, scope, call)
}

// Put adds a route for callers with a scope.
func (r *router) Put(path string, scope access.Scope, call http.Handler) {
	r.add(http.MethodPut, path, scope, call)
}

// Patch adds a route for callers with a scope.
func (r *router) Patch(path string, scope access.Scope, call http.Handler) {
	r.add(http.MethodPatch, path, scope, call)
}

// Delete adds a route for callers with a scope.
func (r *router) Delete(path string, scope access.Scope, call http.Handler) {
	r.add(http.MethodDelete, path, scope, call)
}

func (r *router) add(method, path string, scope access.Scope, call http.Handler) {
	r.scopes[method+" "+path] = scope
	if bound, ok := call.(boundHandler); ok {
		r.bound[method+" "+path] = bound.binding
	}
	r.mux.Method(method, path, r.s.requireScope(scope, call))
}

// routes is every path there is, with the scope that its callers need. Each is in api/openapi.yaml, too, under the handler's name.
func (s *Server) routes() *router {
	lim := s.cfg.limits()
	lim.Bodies = s.bodies
	batch := lim
	batch.Body = s.cfg.MaxBatchBody

	r := &router{mux: chi.NewRouter(), s: s, scopes: make(map[string]access.Scope), bound: make(map[string]*bind.Binding)}
	r.mux.Use(middleware.GetHead)
	r.mux.NotFound(func(w http.ResponseWriter, r *http.Request) { fail(w, r, errNotFound) })
	r.mux.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) { fail(w, req, methodNotAllowed(r.mux, req)) })

	r.Post("/events", access.Publish, endpoint(s, lim, s.insert))
	r.Post("/events/batch", access.Publish, endpoint(s, batch, s.insertBatch))
	r.Post("/cloudevents", access.Publish, endpoint(s, batch, s.postCloudEvents))
	r.Get("/events", access.Read, endpoint(s, lim, s.listEvents))
	r.Get("/events/{id}", access.Read, endpoint(s, lim, s.getEvent))
	r.Post("/events/{id}/run", access.Manage, endpoint(s, lim, s.runEvent))
	r.Get("/events/{id}/attempts", access.Read, endpoint(s, lim, s.listAttempts))
	r.Get("/events/{id}/raw", access.Read, handler(s, lim, s.getRawBody))

	r.Post("/claim", access.Claim, endpoint(s, lim, s.claim))
	r.Delete("/events/{id}", access.Claim, endpoint(s, lim, s.ack))
	r.Post("/events/{id}/ack", access.Claim, endpoint(s, lim, s.ackWithResult))
	r.Post("/ack", access.Claim, endpoint(s, lim, s.ackBatch))
	r.Post("/events/{id}/nack", access.Claim, endpoint(s, lim, s.nack))
	r.Post("/events/{id}/extend", access.Claim, endpoint(s, lim, s.extend))
	r.Post("/extend", access.Claim, endpoint(s, lim, s.extendBatch))
	r.Post("/events/{id}/release", access.Claim, endpoint(s, lim, s.releaseEvent))
	r.Post("/release", access.Claim, endpoint(s, lim, s.releaseBatch))
	r.Post("/sweep", access.Manage, endpoint(s, lim, s.sweep))

	r.Get("/history", access.Read, listing(s, lim, s.listHistory, s.exportHistory))
	r.Get("/history/stats", access.Read, listing(s, lim, s.historyStats, s.exportHistoryStats))
	r.Get("/history/errors", access.Read, endpoint(s, lim, s.historyErrors))
	r.Post("/history/{id}/requeue", access.Manage, endpoint(s, lim, s.requeue))
	r.Post("/history/requeue", access.Manage, endpoint(s, lim, s.requeueMatching))
	r.Post("/redrives", access.Manage, endpoint(s, lim, s.createRedrive))
	r.Get("/redrives", access.Read, endpoint(s, lim, s.listRedrives))
	r.Get("/redrives/{id}", access.Read, endpoint(s, lim, s.aboutRedrive(s.svc.GetRedrive)))
	r.Post("/redrives/{id}/pause", access.Manage, endpoint(s, lim, s.aboutRedrive(s.svc.PauseRedrive)))
	r.Post("/redrives/{id}/resume", access.Manage, endpoint(s, lim, s.aboutRedrive(s.svc.ResumeRedrive)))
	r.Post("/redrives/{id}/cancel", access.Manage, endpoint(s, lim, s.aboutRedrive(s.svc.CancelRedrive)))
	r.Get("/queues", access.Read, endpoint(s, lim, s.listQueues))
	r.Get("/queues/{name}", access.Read, endpoint(s, lim, s.getQueue))
	r.Put("/queues/{name}", access.Manage, endpoint(s, lim, s.putQueue))
	r.Patch("/queues/{name}", access.Manage, endpoint(s, lim, s.patchQueue(lim)))
	r.Delete("/queues/{name}", access.Manage, endpoint(s, lim, s.deleteQueue))
	r.Post("/queues/{name}/pause", access.Manage, endpoint(s, lim, s.changeQueue(s.svc.Pause)))
	r.Post("/queues/{name}/resume", access.Manage, endpoint(s, lim, s.changeQueue(s.svc.Resume)))
	r.Post("/queues/{name}/purge", access.Manage, endpoint(s, lim, s.purgeQueue))
	r.Post("/queues/{name}/move", access.Manage, endpoint(s, lim, s.moveEvents))
	r.Post("/queues/{name}/run", access.Manage, endpoint(s, lim, s.runQueue))
	r.Put("/queues/{name}/push", access.Manage, endpoint(s, lim, s.putPush))
	r.Get("/queues/{name}/push", access.Read, endpoint(s, lim, s.getPush))
	r.Delete("/queues/{name}/push", access.Manage, endpoint(s, lim, s.deletePush))
	r.Post("/queues/{name}/push/secret", access.Manage, endpoint(s, lim, s.rotatePushSecret))
	r.Post("/queues/{name}/push/test", access.Manage, endpoint(s, lim, s.testPush))
	r.Get("/queues/{name}/push/deliveries", access.Read, endpoint(s, lim, s.listPushDeliveries))
	r.Post("/queues/{name}/push/enable", access.Manage, endpoint(s, lim, s.enablePush))
	r.Get("/queues/{name}/groups", access.Read, endpoint(s, lim, s.listGroups))
	r.Get("/queues/{name}/groups/{group}", access.Read, endpoint(s, lim, s.getGroup))
	r.Put("/queues/{name}/groups/{group}", access.Manage, endpoint(s, lim, s.putGroup))
	r.Delete("/queues/{name}/groups/{group}", access.Manage, endpoint(s, lim, s.deleteGroup))
	r.Post("/queues/{name}/groups/{group}/unblock", access.Manage, endpoint(s, lim, s.unblockGroup))
	r.Get("/queues/{name}/stats", access.Read, endpoint(s, lim, s.queueStats))
	r.Put("/queues/{name}/placement", access.Manage, endpoint(s, lim, s.putPlacement))
	r.Post("/queues/{name}/placement", access.Publish, endpoint(s, lim, s.placeNewQueue))
	r.Get("/queues/{name}/placement", access.Read, endpoint(s, lim, s.getPlacement))
	r.Delete("/queues/{name}/placement", access.Manage, endpoint(s, lim, s.deletePlacement))
	r.Post("/queues/{name}/placement/drained", access.Manage, endpoint(s, lim, s.drainPlacement))
	r.Get("/placements", access.Read, endpoint(s, lim, s.listPlacements))
	r.Get("/stats/queues", access.Read, endpoint(s, lim, s.queuesOverview))
	r.Get("/stats/executions", access.Read, endpoint(s, lim, s.listExecutions))
	r.Get("/stats/processes", access.Read, endpoint(s, lim, s.listProcesses))
	r.Get("/stats/workers", access.Read, endpoint(s, lim, s.listWorkers))
	r.Get("/stats/holders", access.Read, endpoint(s, lim, s.listHolders))

	r.Post("/schedules", access.Manage, endpoint(s, lim, s.createSchedule))
	r.Get("/schedules", access.Read, endpoint(s, lim, s.listSchedules))
	r.Post("/schedules/preview", access.Read, endpoint(s, lim, s.previewSchedule))
	r.Get("/schedules/{id}", access.Read, endpoint(s, lim, s.getSchedule))
	r.Patch("/schedules/{id}", access.Manage, endpoint(s, lim, s.patchSchedule))
	r.Delete("/schedules/{id}", access.Manage, endpoint(s, lim, s.deleteSchedule))
	r.Post("/schedules/{id}/pause", access.Manage, endpoint(s, lim, s.pauseSchedule))
	r.Post("/schedules/{id}/resume", access.Manage, endpoint(s, lim, s.resumeSchedule))
	r.Post("/schedules/{id}/run", access.Manage, endpoint(s, lim, s.runSchedule))
	r.Get("/schedules/{id}/occurrences", access.Read, endpoint(s, lim, s.listOccurrences))
	r.Get("/owners", access.Read, endpoint(s, lim, s.listOwners))
	r.Put("/owners/{id}", access.Manage, endpoint(s, lim, s.putOwner))
	r.Get("/owners/{id}", access.Read, endpoint(s, lim, s.getOwner))
	r.Delete("/owners/{id}", access.Manage, endpoint(s, lim, s.deleteOwner))

	r.Post("/topics/{topic}", access.Publish, endpoint(s, lim, s.publish))
	r.Get("/topics", access.Read, endpoint(s, lim, s.listTopics))
	r.Post("/publish", access.Publish, endpoint(s, batch, s.publishBatch))
	r.Post("/match", access.Read, endpoint(s, batch, s.match))
	r.Get("/log", access.Read, endpoint(s, lim, s.readLog))
	r.Get("/log/settings", access.Read, endpoint(s, lim, s.getLogSettings))
	r.Put("/log/settings", access.Manage, endpoint(s, lim, s.putLogSettings))
	r.Get("/log/{position}", access.Read, endpoint(s, lim, s.getPublished))
	r.Get("/stream", access.Read, handler(s, lim, s.stream))
	r.Post("/stream/tokens", access.Read, endpoint(s, lim, s.createStreamToken))

	r.Get("/subscriptions", access.Read, endpoint(s, lim, s.listSubscriptions))
	r.Put("/subscriptions/{name}", access.Manage, endpoint(s, batch, s.putSubscription))
	r.Get("/subscriptions/{name}", access.Read, endpoint(s, lim, s.getSubscription))
	r.Delete("/subscriptions/{name}", access.Manage, endpoint(s, lim, s.deleteSubscription))
	r.Put("/subscriptions/{name}/filters/{filter}", access.Manage, endpoint(s, lim, s.putFilter))
	r.Delete("/subscriptions/{name}/filters/{filter}", access.Manage, endpoint(s, lim, s.deleteFilter))
	r.Post("/subscriptions/{name}/read", access.Claim, endpoint(s, lim, s.readSubscription))
	r.Post("/subscriptions/{name}/commit", access.Claim, endpoint(s, lim, s.commitCursor))
	r.Post("/subscriptions/{name}/seek", access.Manage, endpoint(s, lim, s.seekSubscription))
	r.Post("/subscriptions/{name}/replay", access.Manage, endpoint(s, lim, s.replaySubscription))
	r.Post("/subscriptions/{name}/pause", access.Manage, endpoint(s, lim, s.changeSubscription(s.topics.PauseSubscription)))
	r.Post("/subscriptions/{name}/resume", access.Manage, endpoint(s, lim, s.changeSubscription(s.topics.ResumeSubscription)))
	r.Get("/subscriptions/{name}/stream", access.Claim, handler(s, lim, s.streamSubscription))

	r.Post("/keys", access.Admin, endpoint(s, lim, s.createKey))
	r.Get("/keys", access.Admin, endpoint(s, lim, s.listKeys))
	r.Get("/keys/self", anyKey, endpoint(s, lim, s.getOwnKey))
	r.Get("/keys/{id}", access.Admin, endpoint(s, lim, s.getKey))
	r.Patch("/keys/{id}", access.Admin, endpoint(s, lim, s.patchKey))
	r.Post("/keys/{id}/rotate", access.Admin, endpoint(s, lim, s.rotateKey))
	r.Delete("/keys/{id}", access.Admin, endpoint(s, lim, s.revokeKey))
	r.Get("/audit", access.Admin, listing(s, lim, s.listAudit, s.exportAudit))

	r.Get("/sources", access.Read, endpoint(s, lim, s.listSources))
	r.Put("/sources/{name}", access.Manage, endpoint(s, lim, s.putSource))
	r.Get("/sources/{name}", access.Read, endpoint(s, lim, s.getSource))
	r.Delete("/sources/{name}", access.Manage, endpoint(s, lim, s.deleteSource))
	r.Get("/sources/{name}/deliveries", access.Read, endpoint(s, lim, s.listSourceDeliveries))
	r.Post("/sources/{name}/test", access.Manage, endpoint(s, lim, s.testSource))
	r.Post("/in/{name}", public, http.HandlerFunc(s.receive))
	r.add(http.MethodOptions, "/in/{name}", public, http.HandlerFunc(s.shakeHands))

	r.Get("/cell", access.Read, endpoint(s, lim, s.getCell))
	r.Get("/cells", access.Admin, endpoint(s, lim, s.listCells))
	r.Put("/cells/{number}", access.Admin, endpoint(s, lim, s.putCell))
	r.Delete("/cells/{number}", access.Admin, endpoint(s, lim, s.deleteCell))
	r.Post("/cell/events", access.Admin, endpoint(s, batch, s.insertForwarded))
	r.Get("/cell/queues", access.Read, endpoint(s, lim, s.listCellQueues))
	r.Post("/cell/queues/{name}/keys", access.Publish, endpoint(s, lim, s.leaveKeys))
	r.Get("/cell/keys", access.Admin, endpoint(s, lim, s.listKeyCopies))
	r.Put("/cell/keys", access.Admin, endpoint(s, batch, s.putKeyCopies))
	r.Get("/cell/settings", access.Admin, endpoint(s, lim, s.listQueueCopies))
	r.Put("/cell/settings", access.Admin, endpoint(s, batch, s.putQueueCopies))

	r.Get("/livez", public, withoutParameters(s, s.livez))
	r.Get("/readyz", public, endpoint(s, lim, s.readyz))
	r.Get("/version", anyKey, withoutParameters(s, s.showVersion))
	r.Get("/metrics", access.Metrics, withoutParameters(s, s.metrics.handler.ServeHTTP))
	r.Get("/openapi.yaml", anyKey, withoutParameters(s, contract.ServeHTTP))
	r.Get("/docs", anyKey, withoutParameters(s, s.serveDocs))
	r.Get("/docs/{asset}", anyKey, withoutParameters(s, s.serveDocsAsset))
	r.Get("/", anyKey, withoutParameters(s, s.index))
	return r
}

var errNotFound = problem.New(problem.NotFound, "Every path is described at /docs and in /openapi.yaml.")

// methodNotAllowed is the problem with the method of req, or with its path when no method is allowed there.
func methodNotAllowed(routes chi.Routes, req *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions} {
		if !routes.Match(chi.NewRouteContext(), method, req.URL.Path) {
			continue
		}
		allowed = append(allowed, method)
		if method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	if len(allowed) == 0 { // chi knows some methods only, and looks no further for others
		return errNotFound
	}
	list := strings.Join(allowed, ", ")
	return problem.New(problem.MethodNotAllowed, "Expected one of "+list+".").With("Allow", list)
}
