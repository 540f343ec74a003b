package http

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
)

// An accessLog gathers what is said about one request: in its line of the log and in the metrics.
type accessLog struct {
	id     string
	status int // 0 until the answer begins
	bytes  int64
	err    error // what the client was not told
	fields []any // names and values, in turn
}

type accessLogKey struct{}

// recordOf returns the record of r, which observe put there.
func logOf(r *http.Request) *accessLog { return r.Context().Value(accessLogKey{}).(*accessLog) }

// add adds a field to the request's line of the log. Payloads, receipts and keys have no
// place there.
func (rec *accessLog) add(name string, value any) { rec.fields = append(rec.fields, name, value) }

// observe gives each request its id and its record, and says in one line of the log and in
// the metrics how it went.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		rec := &accessLog{id: requestID(r)}
		h := w.Header()
		h.Set("X-Request-Id", rec.id)
		h["X-Content-Type-Options"] = noSniff
		h["Content-Security-Policy"] = noPage
		r = r.WithContext(context.WithValue(r.Context(), accessLogKey{}, rec))
		defer func() {
			took := time.Since(start)
			route := routeOf(r)
			s.metrics.observe(route, r.Method, rec.status, took)
			s.log.WithLevel(level(route, rec.status)).Err(rec.err).
				Str("request_id", rec.id).Str("method", r.Method).Str("route", route).Int("status", rec.status).
				Dur("duration_ms", took).Int64("bytes", rec.bytes).Fields(rec.fields).Msg("request")
		}()
		next.ServeHTTP(&writer{ResponseWriter: w, rec: rec}, r)
	})
}

// routeOf is the pattern that r matched, never its path: there are few of them, and they hold
// nothing of the caller's.
func routeOf(r *http.Request) string {
	if pattern := chi.RouteContext(r.Context()).RoutePattern(); pattern != "" {
		return pattern
	}
	return "unmatched"
}

// level keeps the machines that look in every few seconds out of an ordinary log.
func level(route string, status int) zerolog.Level {
	switch {
	case route == "/livez" || route == "/readyz" || route == "/metrics":
		return zerolog.DebugLevel
	case status >= http.StatusInternalServerError:
		return zerolog.ErrorLevel
	default:
		return zerolog.InfoLevel
	}
}

// requestID is what the caller named the request, if that is fit for a log, else a new id.
func requestID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	if len(id) < 1 || len(id) > 128 {
		return rand.Text()
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '\\' || c == '<' || c == '>' {
			return rand.Text()
		}
	}
	return id
}

var errPanic = errors.New("the handler panicked")

// rescue answers a panic with a problem and leaves its stack in the log.
func (s *Server) rescue(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			switch cause {
			case nil:
				return
			case http.ErrAbortHandler:
				panic(cause)
			}
			rec := logOf(r)
			s.log.Error().Str("request_id", rec.id).Any("panic", cause).Bytes("stack", debug.Stack()).Msg("panic")
			if rec.status != 0 { // half an answer must not look like a whole one
				panic(http.ErrAbortHandler)
			}
			fail(w, r, errPanic)
		}()
		next.ServeHTTP(w, r)
	})
}

// A writer notes in the record what is written through it.
type writer struct {
	http.ResponseWriter
	rec *accessLog
}

// WriteHeader implements http.ResponseWriter.
func (w *writer) WriteHeader(status int) {
	if w.rec.status == 0 && status >= http.StatusOK {
		w.rec.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *writer) Write(b []byte) (int, error) {
	if w.rec.status == 0 {
		w.rec.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.rec.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController reach the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// authenticate wants the API key, where there is one, of every call but the health checks. Those who
// read the docs in a browser may give it as the password of HTTP Basic.
func (s *Server) authenticate(next http.Handler) http.Handler {
	if s.cfg.APIKey == "" {
		return next
	}
	// Hashes are of one length, so comparing them tells nothing of the key's.
	want := sha256.Sum256([]byte(s.cfg.APIKey))
	fits := func(key string) bool {
		got := sha256.Sum256([]byte(key))
		return subtle.ConstantTimeCompare(got[:], want[:]) == 1
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		_, password, basic := r.BasicAuth()
		switch {
		case isHealth(r),
			strings.EqualFold(scheme, "Bearer") && fits(strings.TrimLeft(key, " ")),
			basic && isForReading(r) && fits(password):
			next.ServeHTTP(w, r)
			return
		}
		challenges := []string{"Bearer"}
		if isForReading(r) {
			challenges = append(challenges, `Basic realm="queued", charset="UTF-8"`)
		}
		fail(w, r, problem.New(problem.Unauthorized, "Send the API key as Authorization: Bearer KEY.").With("Www-Authenticate", challenges...))
	})
}

func isHealth(r *http.Request) bool { return r.URL.Path == "/livez" || r.URL.Path == "/readyz" }

// isForReading reports whether r is for a page that people open in a browser.
func isForReading(r *http.Request) bool {
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

// checkHost answers, without a key on loopback, only requests that were made to a loopback host. A web
// page can have its own name resolve to 127.0.0.1 (DNS rebinding), and is of the same origin then.
func (s *Server) checkHost(next http.Handler) http.Handler {
	if !s.cfg.LoopbackOnly {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// No browser sends a request without Host.
		if r.Host == "" || isHealth(r) || isLoopback(r.Host) {
			next.ServeHTTP(w, r)
			return
		}
		fail(w, r, problem.New(problem.HostNotAllowed,
			"Without an API key the host must be localhost, in 127.0.0.0/8 or [::1], not "+bind.Quote(r.Host)+"."))
	})
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
