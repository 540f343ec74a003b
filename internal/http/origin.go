package http

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// checkOrigin keeps web pages from calling through the browser of someone who can reach this server:
// bodies are taken with content types that a page may send anywhere without asking first.
func checkOrigin(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := protection.Check(r); err != nil {
			fail(w, r, &problem{kind: crossOrigin, detail: "The browser says that a page of another origin makes this call."})
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
		fail(w, r, &problem{
			kind:   hostNotAllowed,
			detail: "Without an API key this server answers for localhost, 127.0.0.0/8 and [::1] only, not for " + quote(r.Host) + ".",
		})
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
