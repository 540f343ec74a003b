package http

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/request"
)

// authenticate finds the grant of the caller, for every call but the health checks and deliveries of sources. Browsers may send a key for the docs as the password of HTTP Basic.
func (s *Server) authenticate(next http.Handler) http.Handler {
	if s.access == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.IsHealth(r.URL.Path) || isWebhook(r.URL.Path) {
			next.ServeHTTP(w, r)
			return
		}
		grant, err := s.authenticateRequest(r)
		if err != nil {
			s.metrics.keys.WithLabelValues(refusalOf(err)).Inc()
			dropBody(w, r)
			fail(w, r, challenge(r, err))
			return
		}
		log := logOf(r)
		log.grant = grant
		if grant.KeyID != "" {
			log.add("key", grant.KeyID)
		}
		limit, ok := grant.Take()
		if limit != nil {
			setRateLimit(w.Header(), limit)
		}
		if !ok {
			s.metrics.keys.WithLabelValues(refusalOf(access.ErrRateLimited)).Inc()
			fail(w, r, problem.New(problem.RateLimited, "The key has made more requests than its rate limit allows in this process.").
				With("Retry-After", fmt.Sprint(int(limit.Retry/time.Second))))
			return
		}
		s.metrics.accepted.Inc()
		next.ServeHTTP(w, r)
	})
}

// keyOf returns the key that a request has sent, empty when it has sent none.
func keyOf(r *http.Request) string {
	scheme, key, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "Bearer") {
		return strings.TrimLeft(key, " ")
	}
	if _, password, ok := r.BasicAuth(); ok && isDocs(r) {
		return password
	}
	return ""
}

// challenge adds to the problem of a caller that is not let in how to get in.
func challenge(r *http.Request, err error) error {
	p := problem.Of(err)
	if p.Type.Status != http.StatusUnauthorized {
		return err
	}
	challenges := []string{"Bearer"}
	if isDocs(r) {
		challenges = append(challenges, `Basic realm="queued", charset="UTF-8"`)
	}
	if errors.Is(err, access.ErrUnauthorized) && keyOf(r) != "" {
		p.Detail = "No key has this text. Check that it was copied in full."
	}
	return p.With("Www-Authenticate", challenges...)
}

// refusalOf is the result of an authentication for the metrics.
func refusalOf(err error) string {
	switch {
	case errors.Is(err, access.ErrExpired):
		return "expired"
	case errors.Is(err, access.ErrRevoked):
		return "revoked"
	case errors.Is(err, access.ErrUnauthorized):
		return "unauthorized"
	case errors.Is(err, access.ErrRateLimited):
		return "rate_limited"
	}
	return "unavailable"
}

// setRateLimit says how much of a rate limit is left (draft-ietf-httpapi-ratelimit-headers-10).
func setRateLimit(h http.Header, l *access.Limit) {
	h["Ratelimit-Policy"] = []string{fmt.Sprintf(`"key";q=%d;w=%d`, l.Burst, int(l.Window/time.Second))}
	h["Ratelimit"] = []string{fmt.Sprintf(`"key";r=%d;t=%d`, l.Remaining, int(l.Reset/time.Second))}
}

// requireScope makes a route for callers that have a scope. The audit has their calls under their own name.
func (s *Server) requireScope(scope access.Scope, call http.Handler) http.HandlerFunc {
	needsNone := scope == public || scope == anyKey
	isAudited := scope == access.Manage || scope == access.Admin
	return func(w http.ResponseWriter, r *http.Request) {
		log := logOf(r)
		log.scope = scope
		if grant := log.grant; grant != nil && !needsNone {
			if !grant.Has(scope) {
				fail(w, r, s.forbid(r, problem.Required{Scope: string(scope)}))
				return
			}
			if isAudited {
				r = r.WithContext(grant.Acting(r.Context()))
			}
		}
		call.ServeHTTP(w, r)
	}
}

// forbid returns the problem of a caller whose key lacks the right required, and notes it.
func (s *Server) forbid(r *http.Request, required problem.Required) *problem.Problem {
	s.metrics.keys.WithLabelValues("forbidden").Inc()
	s.access.Refuse(logOf(r).grant, "forbidden")
	detail := "The key may not use what the call is about; see required."
	switch {
	case required.Scope != "":
		detail = "The call needs a key with the scope " + required.Scope + "."
	case required.Queue == "*" && required.Topic == "**":
		detail = "The call is about all queues and topics, and the key is restricted to some."
	}
	p := problem.New(problem.Forbidden, detail)
	p.Required = &required
	return p
}

// A caller is one that may use only some queues and topics.
type caller struct {
	*access.Grant
	s *Server
	r *http.Request
}
