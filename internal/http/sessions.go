package http

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// Gateways serve pages to people. The sessions of these are at home, and begun, looked up and ended by the calls in this file. What such a page then calls, a gateway
// calls in the name of the viewer's key: see actAs.

// onBehalfHeader has the id of the key in whose name an admin calls.
const onBehalfHeader = "Queued-As"

// actAs returns the rights of a key in whose name an admin calls. It fails with a problem.
func (s *Server) actAs(r *http.Request, caller *access.Grant, id string) (*access.Grant, error) {
	if !caller.Has(access.Admin) {
		p := s.forbid(r, problem.Required{Scope: string(access.Admin)})
		p.Detail = onBehalfHeader + " is for callers with the scope admin."
		return nil, p
	}
	grant, err := s.access.AuthenticateAs(r.Context(), id)
	if err == nil {
		return grant, nil
	}
	s.metrics.keys.WithLabelValues(refusalOf(err)).Inc()
	p := problem.Of(err)
	if errors.Is(err, access.ErrUnauthorized) {
		p.Detail = "No key has the id in " + onBehalfHeader + "."
	}
	return nil, challenge(r, p)
}

// onBehalfOf returns the id of the key in whose name a request is made, if it is.
func onBehalfOf(r *http.Request) (id string, isSo bool) {
	values, isSo := r.Header[onBehalfHeader]
	return strings.Join(values, ","), isSo
}

// The results of a log-in, or of looking at a session, besides those of refusalOf.
const (
	sessionAccepted = "accepted"
	sessionOpen     = "open" // callers need no key, and therefore no session
)

type createSessionRequest struct {
	Key string `json:"key" validate:"required,min=1,max=32768"`
}

type createSessionResponse struct {
	Result     string     `json:"result"`
	Token      *string    `json:"token"`
	ExpiresAt  *time.Time `json:"expires_at"`
	RetryAfter int        `json:"retry_after,omitzero"` // seconds
}

// createSession begins a session, as the form of the log-in does.
func (s *Server) createSession(r *http.Request, req createSessionRequest) (reply, error) {
	token, until, err := s.access.CreateSession(r.Context(), req.Key)
	switch {
	case err != nil:
		result, err := s.sessionRefused(err)
		body := createSessionResponse{Result: result}
		if result == refusalOf(access.ErrRateLimited) {
			body.RetryAfter = int(logInRetry / time.Second)
		}
		return reply{body: body}, err
	case token == "":
		return reply{body: createSessionResponse{Result: sessionOpen}}, nil
	}
	s.metrics.accepted.Inc()
	return reply{body: createSessionResponse{Result: sessionAccepted, Token: &token, ExpiresAt: &until}}, nil
}

// sessionRefused returns the result of a log-in, or of a session, that is refused, and counts it. It fails if it is not known whether it is to be.
func (s *Server) sessionRefused(err error) (result string, unknown error) {
	result = refusalOf(err)
	s.metrics.keys.WithLabelValues(result).Inc()
	if result == "unavailable" {
		return "", err
	}
	return result, nil
}

type sessionRequest struct {
	Token string `header:"Queued-Session" validate:"max=255"`
}

type getSessionRequest struct {
	sessionRequest
	Counts bool `query:"counts"`
}

type getSessionResponse struct {
	Result     string         `json:"result"`
	KeyID      *string        `json:"key_id"`
	Name       *string        `json:"name"`
	Scopes     []access.Scope `json:"scopes"`
	Version    int64          `json:"version"`
	RetryAfter int            `json:"retry_after,omitzero"` // seconds
}

// getSession says whose a session is.
func (s *Server) getSession(r *http.Request, req getSessionRequest) (reply, error) {
	body := getSessionResponse{Scopes: []access.Scope{}}
	grant, err := s.access.AuthenticateSession(r.Context(), req.Token)
	if err != nil {
		if body.Result, err = s.sessionRefused(err); err != nil {
			return reply{}, err
		}
		return reply{body: body}, nil
	}
	body.Result, body.Scopes, body.Version = sessionAccepted, grant.Scopes(), grant.KeyVersion
	if grant.IsOpen {
		body.Result = sessionOpen
	}
	if body.Scopes == nil {
		body.Scopes = access.Scopes
	}
	if grant.KeyID != "" {
		body.KeyID, body.Name = &grant.KeyID, &grant.KeyName
	}
	if req.Counts {
		if limit, ok := grant.Take(); !ok {
			s.metrics.keys.WithLabelValues(refusalOf(access.ErrRateLimited)).Inc()
			body.Result, body.RetryAfter = refusalOf(access.ErrRateLimited), int(math.Ceil(limit.Retry.Seconds()))
			return reply{body: body}, nil
		}
		s.metrics.accepted.Inc()
	}
	return reply{body: body}, nil
}

// deleteSession ends a session.
func (s *Server) deleteSession(r *http.Request, req sessionRequest) (reply, error) {
	return noContent, s.access.EndSession(r.Context(), req.Token)
}
