package http

import (
	"net/http"
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// sessionSeen is an answer about a session.
type sessionSeen struct {
	Result     string
	Token      string
	KeyID      *string `json:"key_id"`
	Name       *string
	Scopes     []string
	Version    int64
	RetryAfter int `json:"retry_after"`
}

func TestGatewaysBeginLookAtAndEndSessions(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.adminKey())
	text := h.createKey(access.CreateParams{Name: "night", Scopes: []access.Scope{access.Read}, Queues: []string{"mail"}})
	begun := decode[sessionSeen](admin.call("POST", "/cell/sessions", `{"key":"`+text+`"}`).want(http.StatusOK))
	if begun.Result != "accepted" || !strings.HasPrefix(begun.Token, "qs_") {
		t.Fatalf("the log-in: %+v", begun)
	}
	of := admin.with("Queued-Session", begun.Token)
	look := func() sessionSeen {
		return decode[sessionSeen](of.call("GET", "/cell/session?counts=true", "").want(http.StatusOK))
	}
	first := look()
	if first.Result != "accepted" || first.Name == nil || *first.Name != "night" || len(first.Scopes) != 1 || first.Scopes[0] != "read" || first.KeyID == nil || first.Version == 0 {
		t.Fatalf("the session: %+v", first)
	}
	admin.call("PATCH", "/keys/"+*first.KeyID, `{"scopes":["read","manage"]}`).want(http.StatusOK)
	if changed := look(); changed.Version == first.Version || len(changed.Scopes) != 2 {
		t.Errorf("after a change of the key: %+v", changed)
	}
	of.call("DELETE", "/cell/session", "").want(http.StatusNoContent)
	of.call("DELETE", "/cell/session", "").want(http.StatusNoContent)
	if ended := look(); ended.Result != "unauthorized" || ended.KeyID != nil || len(ended.Scopes) != 0 {
		t.Errorf("an ended session: %+v", ended)
	}
	again := decode[sessionSeen](admin.call("POST", "/cell/sessions", `{"key":"`+text+`"}`).want(http.StatusOK))
	admin.call("DELETE", "/keys/"+*first.KeyID, "").want(http.StatusNoContent)
	of = admin.with("Queued-Session", again.Token)
	if revoked := look(); revoked.Result != "revoked" && revoked.Result != "unauthorized" {
		t.Errorf("the session of a revoked key: %+v", revoked)
	}
	if refused := decode[sessionSeen](admin.call("POST", "/cell/sessions", `{"key":"`+text+`"}`).want(http.StatusOK)); refused.Result != "revoked" || refused.Token != "" {
		t.Errorf("a log-in with a revoked key: %+v", refused)
	}
	if log := h.log.String(); strings.Contains(log, text) || strings.Contains(log, begun.Token) {
		t.Error("the log has the key or the token")
	}
	slow := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Rate: &access.Rate{PerSecond: 0.001, Burst: 2}})
	of = admin.with("Queued-Session", decode[sessionSeen](admin.call("POST", "/cell/sessions", `{"key":"`+slow+`"}`).want(http.StatusOK)).Token)
	for range 3 {
		of.call("GET", "/cell/session", "").want(http.StatusOK) // counts for nothing
	}
	if got := look(); got.Result != "accepted" {
		t.Errorf("the first request: %+v", got)
	}
	if got := look(); got.Result != "rate_limited" || got.RetryAfter < 1 {
		t.Errorf("beyond the rate limit: %+v", got)
	}
}

func TestSessionsAreOpenWhereNobodyNeedsAKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if got := decode[sessionSeen](h.call("GET", "/cell/session", "").want(http.StatusOK)); got.Result != "open" || len(got.Scopes) != len(access.Scopes) {
		t.Errorf("without keys: %+v", got)
	}
	if got := decode[sessionSeen](h.call("POST", "/cell/sessions", `{"key":"any"}`).want(http.StatusOK)); got.Result != "open" || got.Token != "" {
		t.Errorf("a log-in without keys: %+v", got)
	}
}

func TestAdminsCallInTheNameOfKeys(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.adminKey())
	text := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read, access.Manage}, Queues: []string{"mail"}})
	id := text[3:11]
	for _, queue := range []string{"mail", "other"} {
		admin.call("POST", "/events?queue="+queue, `{}`).want(http.StatusCreated)
	}
	as := admin.with("Queued-As", id)
	if seen := as.call("GET", "/queues", "").want(http.StatusOK); !strings.Contains(seen.body, `"mail"`) || strings.Contains(seen.body, `"other"`) {
		t.Errorf("the queues of the key: %s", seen.body)
	}
	as.call("GET", "/events?queue=other", "").wantProblem(problem.Forbidden)
	as.call("POST", "/events?queue=mail", `{}`).wantProblem(problem.Forbidden) // the key may not publish
	as.call("GET", "/keys", "").wantProblem(problem.Forbidden)
	if self := as.call("GET", "/keys/self", "").want(http.StatusOK); !strings.Contains(self.body, id) {
		t.Errorf("who it is: %s", self.body)
	}
	as.call("POST", "/stream/tokens", `{"topics":["a.b"]}`).wantProblem(problem.Forbidden)
	as.call("POST", "/queues/mail/pause", "").want(http.StatusOK)
	if audit := admin.call("GET", "/audit?action=queue.pause", "").want(http.StatusOK); !strings.Contains(audit.body, `"actor":"key:`+id+`"`) {
		t.Errorf("the audit: %s", audit.body)
	}

	h.key(text).with("Queued-As", id).try("GET", "/queues", "").wantProblem(problem.Forbidden)
	h.key("wrong").with("Queued-As", id).try("GET", "/queues", "").wantProblem(problem.Unauthorized)
	for _, unknown := range []string{"", "k3x7q2ab", "no key", strings.Repeat("a", 4000)} {
		admin.with("Queued-As", unknown).try("GET", "/queues", "").wantProblem(problem.Unauthorized)
	}
	h.key(text).with("Queued-As", "").try("GET", "/queues", "").wantProblem(problem.Forbidden)
	admin.call("DELETE", "/keys/"+id, "").want(http.StatusNoContent)
	as.try("GET", "/queues", "").wantProblem(problem.KeyRevoked)
	expired, _ := endedKeys(h)
	admin.with("Queued-As", expired[3:11]).try("GET", "/queues", "").wantProblem(problem.KeyExpired)
}

// provokeSessions provokes what is documented of sessions.
func provokeSessions(admin *client) {
	begun := decode[sessionSeen](admin.call("POST", "/cell/sessions", `{"key":"secret"}`).want(http.StatusOK))
	of := admin.with("Queued-Session", begun.Token)
	of.call("GET", "/cell/session", "").want(http.StatusOK)
	of.call("DELETE", "/cell/session", "").want(http.StatusNoContent)
	admin.try("POST", "/cell/sessions", `{"key":""}`).wantProblem(problem.ValidationFailed)
	for _, method := range []string{"GET", "DELETE"} {
		admin.with("Queued-Session", strings.Repeat("x", 256)).try(method, "/cell/session", "").wantProblem(problem.InvalidParameter)
	}
}

// provokeBrokenSessions breaks the database, and provokes what is documented of sessions then.
func provokeBrokenSessions(h *environment) {
	admin := h.key("secret")
	of := admin.with("Queued-Session", decode[sessionSeen](admin.call("POST", "/cell/sessions", `{"key":"secret"}`).want(http.StatusOK)).Token)
	h.sql("alter schema agent_service rename to elsewhere")
	admin.try("POST", "/cell/sessions", `{"key":"secret"}`).wantProblem(problem.Internal)
	of.try("DELETE", "/cell/session", "").wantProblem(problem.Internal)
	of.try("GET", "/cell/session", "").wantProblem(problem.DatabaseUnavailable)
}
