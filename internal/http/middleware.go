package http

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/request"
	"github.com/queued/queued/internal/timelimit"
)

// An accessLog gathers the fields of one request for the log and the metrics. It is the request's http.ResponseWriter, too, to see the
// answer.
type accessLog struct {
	http.ResponseWriter

	id          string
	began       time.Time
	wait        time.Duration // how long the request asked to be held
	status      int           // 0 until the answer begins
	bytes       int64
	isQuiet     bool          // there are too many like it for a line each
	body        body.Hold     // of the request's body
	grant       *access.Grant // the rights of the caller; nil: all
	scope       access.Scope  // of the route; empty: there is no route
	err         error         // the cause of an answer of 500 or above, for the log only
	code        string        // of the problem that was answered; empty: there was none
	answers     *body.Answers // the memory of large answers
	answer      *body.Answer  // of this one, if it is large
	mayRefuse   bool          // the answer can be refused: the call has changed nothing, or that is undone
	isRefused   bool          // there was no memory for the answer: a problem was written in its place
	fields      []any         // names and values, in turn
	fieldBuffer [8]any        // of fields, so that most requests need no more

	route  chi.Context
	ctx    requestContext
	client context.Context // ends when the client has gone
}

// A requestContext is the context of a request, with its accessLog and its route. It is part of the accessLog, so that a request has one
// allocation and one copy for all of them.
type requestContext struct {
	timelimit.Context
	log *accessLog
}

// start makes r the request that l is about. Its route is one of routes.
func (l *accessLog) start(r *http.Request, routes chi.Routes) *http.Request {
	l.fields = l.fieldBuffer[:0]
	l.route.Routes = routes
	l.client = r.Context()
	l.ctx.Context.Context, l.ctx.log = l.client, l
	return r.WithContext(&l.ctx) //nolint:contextcheck // its parent is that of the request
}

type accessLogKey struct{}

// Value implements context.Context.
func (c *requestContext) Value(key any) any {
	switch key {
	case accessLogKey{}:
		return c.log
	case chi.RouteCtxKey:
		return &c.log.route
	default:
		return c.Context.Value(key)
	}
}

// logOf returns the accessLog of r, which observe put there.
func logOf(r *http.Request) *accessLog { return r.Context().Value(accessLogKey{}).(*accessLog) }

// add adds a field to the request's line of the log. Payloads, receipts and keys have no place there.
func (l *accessLog) add(name string, value any) { l.fields = append(l.fields, name, value) }

// WriteHeader implements http.ResponseWriter. A large answer, which says its length, is refused when there is no memory left for answers.
func (l *accessLog) WriteHeader(status int) {
	if l.isRefused {
		return
	}
	if l.status == 0 && status >= http.StatusOK {
		if !l.takeMemory() {
			l.refuse()
			return
		}
		l.status = status
	}
	l.ResponseWriter.WriteHeader(status)
}

// takeMemory takes the memory of the answer, if it is large, and reports whether there was enough.
func (l *accessLog) takeMemory() bool {
	length := l.Header()["Content-Length"]
	if !l.mayRefuse || l.answers == nil || len(length) == 0 || len(length[0]) < len("65536") {
		return true
	}
	size, err := strconv.ParseInt(length[0], 10, 64)
	if err != nil || size < body.LargeAnswer {
		return true
	}
	l.answer, err = l.answers.Begin(l.ResponseWriter, l.grant.Actor(), size)
	return err == nil
}

var errAnswersFull = problem.New(problem.Overloaded, "Answers that their clients have not read yet take all the memory that there is for them (QUEUED_MAX_BODY_MEMORY), in all or of this caller. Retry with growing pauses, or ask for shorter pages.").
	With("Retry-After", "1")

// refuse answers with a problem in place of what follows.
func (l *accessLog) refuse() {
	header := l.Header()
	for _, name := range []string{"Etag", "Location", "Idempotency-Replayed", "Content-Disposition", "Expires"} {
		delete(header, name)
	}
	l.status, l.code = errAnswersFull.Type.Status, errAnswersFull.Type.Code
	errAnswersFull.Write(l.ResponseWriter, l.id)
	l.isRefused = true
}

// Write implements http.ResponseWriter.
func (l *accessLog) Write(b []byte) (int, error) {
	if l.status == 0 {
		l.WriteHeader(http.StatusOK)
	}
	if l.isRefused {
		return 0, body.ErrAnswersFull
	}
	out := io.Writer(l.ResponseWriter)
	if l.answer != nil {
		out = l.answer
	}
	n, err := out.Write(b)
	l.bytes += int64(n)
	return n, err
}

// releaseMemory gives back the memory of the answer.
func (l *accessLog) releaseMemory() {
	if l.answer != nil {
		l.answer.End()
	}
}

// Unwrap lets http.ResponseController reach the connection.
func (l *accessLog) Unwrap() http.ResponseWriter { return l.ResponseWriter }

// observe gives each request its id and its accessLog, answers panics, and says in one line of the log and in the metrics how the
// request went.
func (s *Server) observe(routes chi.Routes, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l := &accessLog{ResponseWriter: w, began: time.Now(), id: request.ID(r), answers: s.answers, mayRefuse: r.Method == http.MethodGet && !isDocs(r)}
		h := w.Header()
		h["X-Request-Id"] = []string{l.id}
		h["X-Content-Type-Options"] = noSniff
		h["Content-Security-Policy"] = noPage
		r = l.start(r, routes)
		defer s.finish(l, r)
		defer l.releaseMemory()
		defer l.body.Release()
		defer s.rescue(l, r)
		next.ServeHTTP(l, r)
	})
}

// finish notes in the log and in the metrics how r went.
func (s *Server) finish(l *accessLog, r *http.Request) {
	took := time.Since(l.began)
	// The route is the pattern that r matched, never its path: there are few of them, and they hold nothing of the caller's.
	route := cmp.Or(r.Pattern, "unmatched")
	s.metrics.observe(route, r.Method, l.status, took)
	level := s.level(l, r.Method+" "+r.Pattern, took)
	line := s.log.WithLevel(level).Err(l.err)
	if level == zerolog.ErrorLevel && !s.cfg.LogAll {
		line.Str(failure.Field, l.reason(r.Method+" "+route))
	}
	line.Str("request_id", l.id).Str("method", r.Method).Str("route", route).Int("status", l.status).
		Dur("duration_ms", took).Int64("bytes", l.bytes).Fields(l.fields).Msg("request")
}

// reason returns why a request failed, as failure.Field has it. Internal errors are faults of the program, which each route has of its own.
func (l *accessLog) reason(route string) string {
	reason := strings.TrimSpace(cmp.Or(l.code, strconv.Itoa(l.status)) + " " + failure.Reason(l.err))
	if l.code == problem.Internal.Code {
		reason += " " + route
	}
	return reason
}

// slowAfter is how long a request may take, beside the time that it asks to wait, before it counts as slow.
const slowAfter = time.Second

// busyRoutes are called for every event, or every few seconds: the log of all of them would be most of the log.
var busyRoutes = map[string]bool{
	"POST /events": true, "POST /events/batch": true, "POST /claim": true, "POST /ack": true, "POST /events/{id}/ack": true,
	"DELETE /events/{id}": true, "POST /events/{id}/nack": true, "POST /events/{id}/extend": true, "POST /extend": true, "POST /events/{id}/release": true, "POST /release": true,
	"POST /topics/{topic}": true, "POST /publish": true, "GET /log": true, "POST /subscriptions/{name}/read": true, "POST /subscriptions/{name}/commit": true,
	"POST /in/{name}": true,
	"GET /cell":       true, "GET /cell/queues": true, "GET /placements": true, // by gateways
	"GET /livez": true, "GET /readyz": true, "GET /metrics": true, "GET /version": true,
}

func (s *Server) level(l *accessLog, pattern string, took time.Duration) zerolog.Level {
	switch {
	case l.isQuiet && !s.cfg.LogAll:
		return zerolog.DebugLevel
	case l.code == problem.NotReady.Code && !s.cfg.LogAll && !request.IsHealth(strings.TrimPrefix(pattern, "GET ")): // callers try again until the process has started
		return zerolog.DebugLevel
	case l.status >= http.StatusInternalServerError && l.code != problem.NotReady.Code && !request.IsHealth(strings.TrimPrefix(pattern, "GET ")):
		return zerolog.ErrorLevel
	case !s.cfg.LogAll && busyRoutes[pattern] && l.status < http.StatusBadRequest && took < l.wait+s.slowAfter:
		return zerolog.DebugLevel
	default:
		return zerolog.InfoLevel
	}
}

var errPanic = errors.New("the handler panicked")

// rescue, deferred, answers a panic with a problem and leaves its stack in the log.
func (s *Server) rescue(l *accessLog, r *http.Request) {
	cause := recover()
	switch cause {
	case nil:
		return
	case http.ErrAbortHandler:
		panic(cause)
	}
	s.log.Error().Str(failure.Field, panicked()).Str("request_id", l.id).Any("panic", cause).Bytes("stack", debug.Stack()).Msg("panic")
	fail(l, r, errPanic)
}

// panicked returns where a panic began that the caller of its caller recovers from: a function and a line.
func panicked() string {
	callers := make([]uintptr, 32)
	frames := runtime.CallersFrames(callers[:runtime.Callers(0, callers)])
	isPast := false
	for {
		frame, isMore := frames.Next()
		isOfRuntime := strings.HasPrefix(frame.Function, "runtime.")
		if isPast && !isOfRuntime {
			return frame.Function + ":" + strconv.Itoa(frame.Line)
		}
		isPast = isPast || frame.Function == "runtime.gopanic"
		if !isMore {
			return "panic"
		}
	}
}

// checkClient requires a client certificate, where there is an authority for them, for every call but the health checks.
func (s *Server) checkClient(next http.Handler) http.Handler {
	if s.cfg.VerifyClient == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.IsHealth(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		subject, err := s.cfg.VerifyClient(r.TLS)
		if err != nil {
			// There is no registered scheme for this; a 401 has to name one.
			fail(w, r, problem.New(problem.ClientCertificate, sentence(err.Error())).With("Www-Authenticate", "ClientCertificate"))
			return
		}
		logOf(r).add("client", subject)
		next.ServeHTTP(w, r)
	})
}

// sentence makes a sentence of the text of an error.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] + "." }

// isDocs reports whether r is for a page that people open in a browser.
func isDocs(r *http.Request) bool {
	return r.URL.Path == "/openapi.yaml" || r.URL.Path == "/docs" || strings.HasPrefix(r.URL.Path, "/docs/")
}

// checkOrigin keeps web pages from calling through the browser of someone who can reach this server:
// bodies are taken with content types that a page may send anywhere without asking first.
func checkOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protection.Check(r); err != nil {
			fail(w, r, problem.New(problem.CrossOrigin, "The browser reports that a page of another origin makes this call."))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// checkHost answers only requests that were made to a host that they may be made to: see request.Hosts.
func (s *Server) checkHost(next http.Handler) http.Handler {
	hosts := request.Hosts{LoopbackOnly: s.cfg.LoopbackOnly, Names: s.cfg.Hosts}
	if hosts.AllowAll() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if hosts.Allow(r) {
			next.ServeHTTP(w, r)
			return
		}
		fail(w, r, problem.New(problem.HostNotAllowed,
			"The host must be localhost, in 127.0.0.0/8, [::1] or one of QUEUED_HOSTS, not "+bind.Quote(r.Host)+"."))
	})
}
