package http

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/queued/queued/internal/http/problem"
)

// routes is every path there is. Each is in api/openapi.yaml, too, under the handler's name.
func (s *Server) routes() *chi.Mux {
	lim := s.cfg.limits()
	batch := lim
	batch.Body = s.cfg.MaxBatchBody

	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.NotFound(func(w http.ResponseWriter, r *http.Request) { fail(w, r, errNotFound) })
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) { fail(w, req, methodNotAllowed(r, req)) })

	r.Post("/events", endpoint(s, lim, s.insert))
	r.Post("/events/batch", endpoint(s, batch, s.insertBatch))
	r.Get("/events", endpoint(s, lim, s.listEvents))
	r.Get("/events/{id}", endpoint(s, lim, s.getEvent))
	r.Get("/events/{id}/attempts", endpoint(s, lim, s.listAttempts))
	r.Get("/events/{id}/raw", handler(lim, s.getRawBody))

	r.Post("/claim", endpoint(s, lim, s.claim))
	r.Delete("/events/{id}", endpoint(s, lim, s.ack))
	r.Post("/events/{id}/ack", endpoint(s, lim, s.ackWithResult))
	r.Post("/ack", endpoint(s, lim, s.ackBatch))
	r.Post("/events/{id}/nack", endpoint(s, lim, s.nack))
	r.Post("/events/{id}/extend", endpoint(s, lim, s.extend))
	r.Post("/sweep", endpoint(s, lim, s.sweep))

	r.Get("/history", endpoint(s, lim, s.listHistory))
	r.Get("/history/stats", endpoint(s, lim, s.historyStats))
	r.Post("/history/{id}/requeue", endpoint(s, lim, s.requeue))
	r.Post("/history/requeue", endpoint(s, lim, s.requeueMatching))
	r.Get("/queues", endpoint(s, lim, s.listQueues))
	r.Get("/queues/{name}", endpoint(s, lim, s.getQueue))
	r.Put("/queues/{name}", endpoint(s, lim, s.putQueue))
	r.Post("/queues/{name}/pause", endpoint(s, lim, s.changeQueue(s.svc.Pause)))
	r.Post("/queues/{name}/resume", endpoint(s, lim, s.changeQueue(s.svc.Resume)))
	r.Post("/queues/{name}/purge", endpoint(s, lim, s.purgeQueue))
	r.Get("/stats/executions", endpoint(s, lim, s.listExecutions))
	r.Get("/stats/processes", endpoint(s, lim, s.listProcesses))

	r.Post("/schedules", endpoint(s, lim, s.createSchedule))
	r.Get("/schedules", endpoint(s, lim, s.listSchedules))
	r.Post("/schedules/preview", endpoint(s, lim, s.previewSchedule))
	r.Get("/schedules/{id}", endpoint(s, lim, oneSchedule(s.schedules.Get)))
	r.Patch("/schedules/{id}", endpoint(s, lim, s.patchSchedule))
	r.Delete("/schedules/{id}", endpoint(s, lim, s.deleteSchedule))
	r.Post("/schedules/{id}/pause", endpoint(s, lim, oneSchedule(s.schedules.Pause)))
	r.Post("/schedules/{id}/resume", endpoint(s, lim, oneSchedule(s.schedules.Resume)))
	r.Post("/schedules/{id}/run", endpoint(s, lim, s.runSchedule))
	r.Get("/schedules/{id}/occurrences", endpoint(s, lim, s.listOccurrences))
	r.Get("/owners", endpoint(s, lim, s.listOwners))
	r.Put("/owners/{id}", endpoint(s, lim, s.putOwner))
	r.Get("/owners/{id}", endpoint(s, lim, s.getOwner))
	r.Delete("/owners/{id}", endpoint(s, lim, s.deleteOwner))

	r.Post("/topics/{topic}", endpoint(s, lim, s.publish))
	r.Get("/topics", endpoint(s, lim, s.listTopics))
	r.Post("/publish", endpoint(s, batch, s.publishBatch))
	r.Post("/match", endpoint(s, batch, s.match))
	r.Get("/log", endpoint(s, lim, s.readLog))
	r.Get("/log/settings", endpoint(s, lim, s.getLogSettings))
	r.Put("/log/settings", endpoint(s, lim, s.putLogSettings))
	r.Get("/log/{position}", endpoint(s, lim, s.getPublished))
	r.Get("/stream", handler(lim, s.stream))

	r.Get("/subscriptions", endpoint(s, lim, s.listSubscriptions))
	r.Put("/subscriptions/{name}", endpoint(s, batch, s.putSubscription))
	r.Get("/subscriptions/{name}", endpoint(s, lim, s.getSubscription))
	r.Delete("/subscriptions/{name}", endpoint(s, lim, s.deleteSubscription))
	r.Put("/subscriptions/{name}/filters/{filter}", endpoint(s, lim, s.putFilter))
	r.Delete("/subscriptions/{name}/filters/{filter}", endpoint(s, lim, s.deleteFilter))
	r.Post("/subscriptions/{name}/read", endpoint(s, lim, s.readSubscription))
	r.Post("/subscriptions/{name}/commit", endpoint(s, lim, s.commitCursor))
	r.Post("/subscriptions/{name}/seek", endpoint(s, lim, s.seekSubscription))
	r.Post("/subscriptions/{name}/replay", endpoint(s, lim, s.replaySubscription))
	r.Post("/subscriptions/{name}/pause", endpoint(s, lim, s.changeSubscription(s.topics.PauseSubscription)))
	r.Post("/subscriptions/{name}/resume", endpoint(s, lim, s.changeSubscription(s.topics.ResumeSubscription)))
	r.Get("/subscriptions/{name}/stream", handler(lim, s.streamSubscription))

	r.Get("/livez", withoutParameters(s.livez))
	r.Get("/readyz", endpoint(s, lim, s.readyz))
	r.Get("/version", withoutParameters(s.showVersion))
	r.Get("/metrics", withoutParameters(s.metrics.handler.ServeHTTP))
	r.Get("/openapi.yaml", withoutParameters(contract.ServeHTTP))
	r.Get("/docs", withoutParameters(s.serveDocs))
	r.Get("/docs/{asset}", withoutParameters(s.serveDocsAsset))
	r.Get("/", withoutParameters(s.index))
	return r
}

var errNotFound = problem.New(problem.NotFound, "Every path is described at /docs and in /openapi.yaml.")

// methodNotAllowed is the problem with the method of req, or with its path when no method is allowed there.
func methodNotAllowed(routes chi.Routes, req *http.Request) error {
	var allowed []string
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
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
