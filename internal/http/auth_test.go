package http

import (
	"encoding/base64"
	"slices"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

func TestEveryCallButTheHealthChecksNeedsTheKey(t *testing.T) {
	t.Parallel()
	h := start(t, settings{http: func(cfg *Config) { cfg.APIKey = "s3cret" }})
	basic := func(password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte("me:"+password))
	}
	for _, r := range everyRoute(t) {
		if r.isHealth() {
			h.try(r.method, r.path, r.body).want(200)
			continue
		}
		for _, wrong := range []string{"", "Bearer", "Bearer ", "Bearer s3cre", "Bearer s3crets", "Bearer S3CRET", "s3cret", "Basic s3cret", "Token s3cret", basic("wrong"), basic("")} {
			got := h.with("Authorization", wrong).try(r.method, r.path, r.body)
			got.wantProblem(problem.Unauthorized)
			challenges := got.header.Values("Www-Authenticate")
			if challenges[0] != "Bearer" || slices.ContainsFunc(challenges, func(c string) bool { return strings.HasPrefix(c, "Basic") }) != strings.Contains(r.path+"/", "/docs/") && r.path != "/openapi.yaml" {
				t.Errorf("%s is challenged with %q", r.id, challenges)
			}
		}
		for _, right := range []string{"Bearer s3cret", "bearer  s3cret"} {
			if got := h.with("Authorization", right).try(r.method, r.path, r.body); got.status == 401 {
				t.Errorf("%s with %q was answered %s", r.id, right, got.body)
			}
		}
		readable := strings.HasPrefix(r.path, "/docs") || r.path == "/openapi.yaml"
		if got := h.with("Authorization", basic("s3cret")).try(r.method, r.path, r.body); (got.status != 401) != readable {
			t.Errorf("%s with the key as a password was answered %d", r.id, got.status)
		}
	}
	h.try("GET", "/nothing", "").wantProblem(problem.Unauthorized)
	h.with("Authorization", "Bearer s3cret").try("GET", "/nothing", "").wantProblem(problem.NotFound)
	if strings.Contains(h.log.String(), "s3cret") {
		t.Error("the key is in the log")
	}
}

func TestPagesOfOtherOriginsMayNotWrite(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	h.with("Sec-Fetch-Site", "same-origin").try("POST", "/events", "{}").want(201)
	h.with("Sec-Fetch-Site", "none").try("POST", "/events", "{}").want(201)
	h.with("Origin", h.url).try("POST", "/events", "{}").want(201)
	h.with("Sec-Fetch-Site", "cross-site").try("POST", "/events", "{}").wantProblem(problem.CrossOrigin)
	h.with("Sec-Fetch-Site", "same-site").try("POST", "/claim", "").wantProblem(problem.CrossOrigin)
	h.with("Origin", "https://evil.example").try("DELETE", "/events/1", "").wantProblem(problem.CrossOrigin)
	h.with("Origin", "null").try("POST", "/sweep", "").wantProblem(problem.CrossOrigin)
	h.with("Origin", "https://evil.example").try("GET", "/queues", "").want(200) // without CORS the page cannot read it
	if got := h.with("Origin", "https://evil.example").try("OPTIONS", "/events", ""); got.header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a preflight was granted: %v", got.header)
	}
}

func TestOnlyLoopbackHostsAreAnsweredOnLoopback(t *testing.T) {
	t.Parallel()
	h := start(t, settings{http: func(cfg *Config) { cfg.LoopbackOnly = true }})
	for _, host := range []string{"localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:8080", "127.9.8.7:1", "[::1]", "[::1]:8080", "[::ffff:127.0.0.1]:80"} {
		h.with("Host", host).try("GET", "/queues", "").want(200)
	}
	for _, host := range []string{"evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io:8080", "10.0.0.1", "[::2]:80", "0.0.0.0:8080", "2130706433", "127.1"} {
		h.with("Host", host).try("GET", "/queues", "").wantProblem(problem.HostNotAllowed)
		h.with("Host", host).try("GET", "/nothing", "").wantProblem(problem.HostNotAllowed)
		h.with("Host", host).try("GET", "/livez", "").want(200)
		h.with("Host", host).try("GET", "/readyz", "").want(200)
	}
}
