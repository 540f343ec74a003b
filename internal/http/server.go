// Package http serves the HTTP/JSON API of the queue: it decodes and validates requests, calls
// queue.Service, schedule.Service, topic.Service, access.Service, push.Service or cell.Service, and encodes the results. It holds no state of its own.
package http

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	stdlog "log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/trace"
	"github.com/queued/queued/internal/webhook"
)

// Config holds the settings of a Server. All but Service and Schedules may be zero.
type Config struct {
	Service   *queue.Service
	Schedules *schedule.Service
	Topics    *topic.Service
	Access    *access.Service // who may call; nil: anyone
	Pushes    *push.Service
	Cells     *cell.Service        // which cell the database is
	Sources   *webhook.Service     // whose webhooks come in; nil: there are none
	Version   string               // of the program, for /version; empty: that of the build
	Logger    zerolog.Logger       // zero: silent
	Tracer    *trace.Tracer        // nil: there are no spans
	Registry  *prometheus.Registry // where the metrics are registered; nil: a registry of its own
	// RequestTimeout is how long a request may take once it has been read, besides the time that it asks to wait; zero: DefaultRequestTimeout.
	RequestTimeout time.Duration
	MaxBody        int64 // bytes of a body, and of one event however it comes; zero: 1 MiB
	MaxBatchBody   int64 // bytes of the body of POST /events/batch; zero: 8 MiB
	// MaxBodyMemory is how many bytes the bodies of all requests may take together, see body.Config, and again the large answers that are not read yet; zero: 128 MiB, or
	// more for the largest bodies.
	MaxBodyMemory int64
	MaxBatch      int  // elements of a batch, for tests; zero: queue.MaxBatch, what a statement writes at once
	MaxDepth      int  // how deeply an event may be nested, itself included, for tests; zero: 64, deeper than any event that people write
	LogAll        bool // log every request at info; false: successful busy calls at debug
	// HidePayloads has the pages at /ui/ show events without payloads, metadata, results and raw bodies.
	HidePayloads bool
	// VerifyClient returns the subject of the certificate that a client has shown over TLS, or an error for the client, who is then
	// refused; nil: clients need no certificate. Health checks need none.
	VerifyClient func(*tls.ConnectionState) (subject string, err error)
	LoopbackOnly bool     // listening on loopback: answer only requests that were made to a loopback host, or one of Hosts
	Hosts        []string // other names that requests may be made to, without a port; one of request.AnyHost: all names. None: on loopback no others, elsewhere all
}

// DefaultRequestTimeout is how long a request may take.
const DefaultRequestTimeout = 15 * time.Second

func (c Config) withDefaults() Config {
	c.RequestTimeout = cmp.Or(c.RequestTimeout, DefaultRequestTimeout)
	c.MaxBody = cmp.Or(c.MaxBody, 1<<20)
	c.MaxBatchBody = cmp.Or(c.MaxBatchBody, 8<<20)
	c.MaxBatch = cmp.Or(c.MaxBatch, queue.MaxBatch)
	c.MaxDepth = cmp.Or(c.MaxDepth, 64)
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c
}

func (c Config) limits() bind.Limits {
	return bind.Limits{Body: c.MaxBody, Event: c.MaxBody, Items: c.MaxBatch, Depth: c.MaxDepth}
}

// MinBodyMemory is the least Config.MaxBodyMemory for these MaxBody and MaxBatchBody.
func MinBodyMemory(maxBody, maxBatchBody int64) int64 {
	return body.MinLimit(max(maxBody, maxBatchBody))
}

func (c Config) bodies() body.Config {
	return body.Config{Limit: c.MaxBodyMemory, Largest: max(c.MaxBody, c.MaxBatchBody), Unverified: c.MaxBody}
}

// Server answers the calls of api/openapi.yaml. It is safe for concurrent use.
type Server struct {
	cfg       Config
	svc       *queue.Service
	schedules *schedule.Service
	topics    *topic.Service
	access    *access.Service
	pushes    *push.Service
	sources   *webhook.Service
	cells     *cell.Service
	bodies    *body.Budget
	answers   *body.Answers
	log       zerolog.Logger
	metrics   *metrics
	version   versionResponse
	draining  atomic.Bool
	drained   chan struct{} // is closed when it drains
	exports   exports
	handler   http.Handler

	heartbeat, blockedLimit time.Duration // of streams
	slowAfter               time.Duration // see slowAfter; tests on busy machines set more
}

// New returns a Server and registers its metrics on cfg.Registry, those of the Go runtime and
// of the process included; a registry serves one Server.
func New(cfg Config) *Server {
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, svc: cfg.Service, schedules: cfg.Schedules, topics: cfg.Topics, access: cfg.Access, pushes: cfg.Pushes, sources: cfg.Sources, cells: cfg.Cells, log: cfg.Logger, version: versionOf(cfg.Version)}
	s.heartbeat, s.blockedLimit, s.slowAfter = heartbeat, blockedLimit, slowAfter
	s.bodies = body.NewBudget(cfg.bodies())
	s.exports.actors = make(map[string]bool)
	s.answers = body.NewAnswers(s.bodies.Stats().Limit)
	s.metrics = newMetrics(cfg, s.version, s.bodies, s.answers)
	routes := s.routes().mux
	s.drained = make(chan struct{})
	pages := s.newPages(routes)
	s.handler = s.wrap(routes, servePages(pages, s.authenticate(checkOrigin(s.traceRequests(routes)))))
	return s
}

// wrap has every request observed, and answers those itself that must not come to next.
func (s *Server) wrap(routes chi.Routes, next http.Handler) http.Handler {
	return s.observe(routes, s.checkHost(s.checkClient(s.checkOutdated(next))))
}

// Handler returns the handler of every route.
func (s *Server) Handler() http.Handler { return s.handler }

// Drain makes /readyz answer 503 from now on, so that load balancers look elsewhere. Other
// calls are answered as before. It may be repeated.
func (s *Server) Drain() {
	if !s.draining.Swap(true) {
		close(s.drained)
	}
}

// HTTPServer returns a server of Handler with every timeout set: none is shorter than the
// longest call, and none is absent. Streams, which have no longest time, set the time of each write.
func (s *Server) HTTPServer() *http.Server {
	const (
		bodyTime  = time.Minute      // the largest body over a slow line
		replyTime = 30 * time.Second // writing the answer
	)
	return &http.Server{
		Handler:           s.handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       bodyTime, // net/http lifts it when the body has been read: waiting claims are not cut off
		WriteTimeout:      bodyTime + queue.MaxWait + s.cfg.RequestTimeout + replyTime,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    256 << 10, // a filter of 64 KiB in a URL takes up to three times that
		// The deadlines of HTTP/2's streams end them by a frame, which is not written either when the connection takes nothing any more:
		// these end the connection of a client that has stopped.
		HTTP2:    &http.HTTP2Config{SendPingTimeout: blockedLimit, WriteByteTimeout: blockedLimit},
		ErrorLog: stdlog.New(warnings{s.log}, "", 0),
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, conn)
		},
	}
}

// reports are how net/http's reports begin that anybody can cause, or that say that nobody is served.
var reports = []string{"http: TLS handshake error", "http: Accept error", "http: panic serving", "http2: "}

// warnings logs the errors that net/http reports, such as handshakes that failed.
type warnings struct{ log zerolog.Logger }

// Write implements io.Writer.
func (w warnings) Write(line []byte) (int, error) {
	text := string(bytes.TrimSpace(line))
	reason := "other"
	if i := slices.IndexFunc(reports, func(begin string) bool { return strings.HasPrefix(text, begin) }); i >= 0 {
		reason = reports[i]
	}
	w.log.Warn().Str("error", text).Str(failure.Field, reason).Msg("a connection could not be served")
	return len(line), nil
}

var errStarting = problem.New(problem.NotReady, "The server is starting: it waits for the database, or migrates it. Retry.").With("Retry-After", "1")

// Starting returns a Server for the time before there are services: /livez answers 200, and everything else 503. Of cfg it needs
// neither Service nor Schedules.
func Starting(cfg Config) *Server {
	cfg.Registry = prometheus.NewRegistry() // which is not served
	cfg = cfg.withDefaults()
	s := &Server{cfg: cfg, log: cfg.Logger, version: versionOf(cfg.Version), metrics: newRequestMetrics()}
	refuse := func(w http.ResponseWriter, r *http.Request) { fail(w, r, errStarting) }
	r := chi.NewRouter()
	r.Use(middleware.GetHead)
	r.NotFound(refuse)
	r.MethodNotAllowed(refuse)
	r.Method(http.MethodGet, "/livez", withoutParameters(s, s.livez))
	r.Get("/readyz", refuse)
	for _, path := range []string{"/stream", "/subscriptions/{name}/stream"} {
		r.Get(path, func(w http.ResponseWriter, r *http.Request) {
			if !isComingBack(r) || sendBack(w) != nil {
				refuse(w, r)
			}
		})
	}
	s.handler = s.observe(r, r)
	return s
}
