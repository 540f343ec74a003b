// Package request has what a server and a gateway make of each request alike: its id, the hosts that it may be made to, its method in metrics, and the media types that it accepts. It knows
// nothing else.
package request

import (
	"crypto/rand"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ID is the caller's id of the request, from X-Request-Id, if that is fit for a log, else a new one.
func ID(r *http.Request) string {
	id := r.Header.Get("X-Request-Id")
	unfit := func(c rune) bool { return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"\<>`, c) }
	if len(id) < 1 || len(id) > 128 || strings.ContainsFunc(id, unfit) {
		return rand.Text()
	}
	return id
}

// IsHealth reports whether a path is of a health check, which anybody may make.
func IsHealth(path string) bool { return path == "/livez" || path == "/readyz" }

// KnownMethod returns a method as metrics have it: those that callers make up are one, "other", so that they are not series.
func KnownMethod(method string) string {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
		return method
	default:
		return "other"
	}
}

// AnyHost in Hosts.Names stands for all names.
const AnyHost = "*"

// Hosts are those that requests may be made to. On loopback, and wherever there are Names, these are loopback hosts and the Names; elsewhere all. A web page can have its own
// name resolve to 127.0.0.1 (DNS rebinding), and is of the same origin then: whatever keys the browser has for that name, or the user is made to enter, would be of use to it.
type Hosts struct {
	LoopbackOnly bool     // the listener is on loopback
	Names        []string // other names, without a port; one of AnyHost: all
}

// AllowAll reports whether requests may be made to any host.
func (h Hosts) AllowAll() bool {
	return !h.LoopbackOnly && len(h.Names) == 0 || slices.Contains(h.Names, AnyHost)
}

// Allow reports whether r may be made to its host. Health checks may be made to any, and so may requests without one, which no browser sends.
func (h Hosts) Allow(r *http.Request) bool {
	host := withoutPort(r.Host)
	return r.Host == "" || IsHealth(r.URL.Path) || isLoopback(host) || h.AllowAll() || slices.ContainsFunc(h.Names, func(name string) bool { return strings.EqualFold(name, host) })
}

// withoutPort returns the host of a Host header.
func withoutPort(hostport string) string {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil { // no port
		host = strings.TrimSuffix(strings.TrimPrefix(hostport, "["), "]")
	}
	return host
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// SessionCookie returns the name of the cookie that the log-in to the pages of a cell is in. By its beginning browsers take it from a secure origin only, for its host alone and for all paths:
// nothing else that is served under the domain can set it. Behind a gateway the pages of all cells are under one host, so each cell has a name of its own.
func SessionCookie(cell int) string {
	if cell == 0 {
		return "__Host-queued"
	}
	return "__Host-queued-" + strconv.Itoa(cell)
}
