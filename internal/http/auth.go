package http

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
)

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
		fail(w, r, &problem{
			kind:   unauthorized,
			detail: "Send the API key along: Authorization: Bearer KEY.",
			header: http.Header{"Www-Authenticate": challenges},
		})
	})
}

func isHealth(r *http.Request) bool { return r.URL.Path == "/livez" || r.URL.Path == "/readyz" }

// isForReading reports whether r is for a page that people open in a browser.
func isForReading(r *http.Request) bool {
	return r.URL.Path == "/openapi.yaml" || r.URL.Path == "/docs" || strings.HasPrefix(r.URL.Path, "/docs/")
}
