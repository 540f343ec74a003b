package http

import (
	"net/http"
	"strings"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

type createStreamTokenRequest struct {
	filterBody `require:"topics"`
	ExpiresIn  time.Duration `json:"expires_in" default:"5m" validate:"min=1s,max=1h"`
}

type createStreamTokenResponse struct {
	Token     string    `json:"token"`
	ExpiresAt time.Time `json:"expires_at"`
}

// createStreamToken answers with a token for a page in a browser, whose EventSource can send no header.
func (s *Server) createStreamToken(r *http.Request, req createStreamTokenRequest) (reply, error) {
	if _, err := req.parse(""); err != nil {
		return reply{}, err
	}
	token, until, err := s.access.SignToken(logOf(r).grant, keyOf(r), req.Topics, req.Match, req.ExpiresIn)
	return created(createStreamTokenResponse{token, until}, "", false), err
}

// tokenOf returns the token in the query of a request for a stream, empty when it has none. Nothing of a query is ever logged.
func tokenOf(r *http.Request) string {
	if r.URL.Path != "/stream" || !strings.Contains(r.URL.RawQuery, "token=") {
		return ""
	}
	return r.URL.Query().Get("token")
}

// authenticateRequest returns the grant of the caller: by its token for a stream, or else by its key.
func (s *Server) authenticateRequest(r *http.Request) (*access.Grant, error) {
	if token := tokenOf(r); token != "" {
		return s.access.AuthenticateToken(token)
	}
	return s.access.Authenticate(r.Context(), keyOf(r))
}

// errTokenAndFilter is the problem with a filter beside a token.
var errTokenAndFilter = problem.InField(problem.InvalidParameter, "?token", "must not be given together with topic or match: it says which events it is for")

// restrict has a stream with a token follow the events that the token is for.
func (req *streamRequest) restrict(c *caller) error {
	if req.Token == "" {
		return nil
	}
	if len(req.Topics) > 0 || req.Match != nil {
		return errTokenAndFilter
	}
	req.Topics, req.Match = c.Topics(), c.Match()
	return nil
}
