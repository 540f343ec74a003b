package http

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
)

var errStarting = &problem{
	kind:   notReady,
	detail: "The server is starting: it waits for the database, or migrates it. Try again.",
	header: http.Header{"Retry-After": {"1"}},
}

// Starting returns a Server for the time before there are services: /livez answers 200, and everything else 503. Of cfg it needs
// neither Service nor Schedules.
func Starting(cfg Config) *Server {
	cfg.Registry = prometheus.NewRegistry() // of nobody's
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Logger, version: versionOf(cfg.Version), metrics: newRequestMetrics()}
	r := chi.NewRouter()
	r.Use(s.observe, s.rescue, s.checkHost)
	refuse := func(w http.ResponseWriter, r *http.Request) { fail(w, r, errStarting) }
	r.NotFound(refuse)
	r.MethodNotAllowed(refuse)
	r.Get("/livez", endpoint(s, limits{body: cfg.MaxBody, event: cfg.MaxBody, items: cfg.MaxBatch, depth: cfg.MaxDepth}, s.livez))
	r.Get("/readyz", refuse)
	s.handler = r
	return s
}
