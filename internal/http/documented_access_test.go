package http

import (
	"errors"
	"net/http"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pg"
)

// key returns a client that sends a key.
func (h *environment) key(text string) *client { return h.with("Authorization", "Bearer "+text) }

// createKey creates a key with the service, and returns when all cells have it.
func (h *environment) createKey(p access.CreateParams) (text string) {
	h.t.Helper()
	if p.Name == "" {
		p.Name = "test"
	}
	made, text, err := h.access.Create(h.t.Context(), p)
	if err != nil {
		h.t.Fatal(err)
	}
	h.awaitKey(made.ID, func(access.Key) bool { return true })
	return text
}

// revokeKey revokes a key with the service, and returns when it is revoked on all cells.
func (h *environment) revokeKey(id string) {
	h.t.Helper()
	if err := h.access.Revoke(h.t.Context(), id); err != nil {
		h.t.Fatal(err)
	}
	h.awaitKey(id, func(k access.Key) bool { return k.RevokedAt != nil })
}

// awaitRefused waits until all services of several cells refuse a key.
func (h *environment) awaitRefused(text string, want error) {
	h.t.Helper()
	for _, at := range h.all() {
		for _, keys := range []*access.Service{at.access, at.forGateway} {
			for began := time.Now(); keys != nil && len(h.others) > 0; pg.Pause(h.t.Context(), time.Millisecond) {
				if _, err := keys.Authenticate(h.t.Context(), text); errors.Is(err, want) {
					break
				} else if time.Since(began) > busyTimeout {
					h.t.Fatalf("a cell takes the key: %v, want %v", err, want)
				}
			}
		}
	}
}

// awaitKey waits until the other cells have a key as a test wants it: a gateway copies it to them.
func (h *environment) awaitKey(id string, has func(access.Key) bool) {
	h.t.Helper()
	for _, at := range h.others {
		for began := time.Now(); ; pg.Pause(h.t.Context(), time.Millisecond) {
			if key, err := at.access.Get(h.t.Context(), id); err == nil && has(key) {
				break
			} else if time.Since(began) > busyTimeout {
				h.t.Fatalf("a cell has the key as %+v: %v", key, err)
			}
		}
	}
}

// seenKey is a key in a response.
type seenKey struct {
	ID, Name, Key, Status string
	Scopes                []string
	Queues, Topics        []string
	Version               int64
}

// provokeAccess makes every call about keys, and has every route refuse some. h needs the key "secret".
func provokeAccess(h *environment, routes []route) {
	admin := h.key("secret")
	admin.call("POST", "/stream/tokens", `{"topics":["order.*"],"match":{"total":[{"numeric":[">",100]}]},"expires_in":"10m"}`).want(http.StatusCreated)
	admin.call("POST", "/stream/tokens", `{"topics":["order.**.late"]}`).wantProblem(problem.FilterRefused)
	made := decode[seenKey](admin.call("POST", "/keys",
		`{"name":"all","scopes":["admin"],"expires_at":"2100-01-01T00:00:00Z","rate_limit":{"per_second":1000,"burst":1000}}`).want(http.StatusCreated))
	path := "/keys/" + made.ID
	own := h.key(made.Key)
	own.call("GET", "/keys", "").want(200)
	own.call("GET", "/keys/self", "").want(200)
	etag := own.call("GET", path, "").want(200).header.Get("Etag")
	admin.with("If-Match", etag).call("PATCH", path, `{"name":"every","queues":null,"topics":null,"rate_limit":{"per_second":0.5,"burst":1000000},"expires_at":null}`).want(200)
	admin.with("If-Match", etag).call("PATCH", path, `{"name":"other"}`).wantProblem(problem.PreconditionFailed)
	admin.call("POST", path+"/rotate", `{"grace":"1h"}`).want(200)
	admin.call("PATCH", path, `{"scopes":["read"]}`).wantProblem(problem.LastAdminKey)
	admin.call("DELETE", path, "").wantProblem(problem.LastAdminKey)
	admin.call("GET", "/audit?actor=QUEUED_API_KEY&action=key.*&target="+made.ID, "").want(200)
	other := decode[seenKey](admin.call("POST", "/keys", `{"name":"other","scopes":["read"],"queues":["a.*"],"topics":["**"]}`).want(http.StatusCreated))
	for range 2 {
		admin.call("DELETE", "/keys/"+other.ID, "").want(204)
	}
	h.key(other.Key).try("GET", "/queues", "").wantProblem(problem.KeyRevoked)
	admin.call("POST", "/keys/"+other.ID+"/rotate", "").wantProblem(problem.KeyEnded)
	admin.call("PATCH", "/keys/"+other.ID, `{"name":"gone"}`).wantProblem(problem.KeyEnded)
	for method, path := range map[string]string{"GET": "/keys/nothing", "PATCH": "/keys/nothing", "DELETE": "/keys/nothing", "POST": "/keys/nothing/rotate"} {
		admin.call(method, path, map[string]string{"PATCH": "{}"}[method]).wantProblem(problem.KeyNotFound)
	}
	admin.call("GET", "/keys?cursor=x", "").wantProblem(problem.InvalidCursor)

	metrics := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Metrics}})
	read := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}})
	slow := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}, Rate: &access.Rate{PerSecond: 0.001, Burst: 1}})
	h.key(slow).try("GET", "/version", "").want(200)
	for _, r := range routes {
		if r.isHealth() || r.isWebhook() {
			continue
		}
		if got := h.key(slow).try(r.method, r.path, r.body); got.header.Get("Retry-After") == "" || got.header.Get("RateLimit-Policy") == "" || got.header.Get("RateLimit") == "" {
			h.t.Errorf("%s: a rate limit returned %v", r.id, got.header)
		} else {
			got.wantProblem(problem.RateLimited)
		}
		if r.takesAnyKey() {
			continue
		}
		wrong := metrics
		if r.id == "metrics" {
			wrong = read
		}
		if p := h.key(wrong).try(r.method, r.path, r.body).wantProblem(problem.Forbidden); p.Required == nil || p.Required.Scope == "" {
			h.t.Errorf("%s: got %+v", r.id, p)
		}
	}
}

// takesAnyKey reports whether a call needs no scope.
func (r route) takesAnyKey() bool {
	switch r.id {
	case "showVersion", "openapi", "docs", "docsAsset", "index", "getOwnKey":
		return true
	}
	return r.isHealth()
}

// unknownKey is the text of a key that there is not.
func unknownKey() string {
	return "qk_k3x7q2ab_b7vgx2mfhqzc4lw3s6tnpay5jd2ku4yey"
}
