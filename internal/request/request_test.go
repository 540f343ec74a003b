package request

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestRequestsAreAllowedToTheirHostsAlone(t *testing.T) {
	t.Parallel()
	loopback, named := Hosts{LoopbackOnly: true}, Hosts{Names: []string{"queued.example"}}
	for _, c := range []struct {
		hosts      Hosts
		host, path string
		want       bool
	}{
		{loopback, "localhost:8080", "/events", true},
		{loopback, "LOCALHOST", "/events", true},
		{loopback, "127.1.2.3:1", "/events", true},
		{loopback, "[::1]:8080", "/events", true},
		{loopback, "[::ffff:127.0.0.1]", "/events", true},
		{loopback, "", "/events", true},
		{loopback, "evil.example", "/events", false},
		{loopback, "localhost.evil.example", "/events", false},
		{loopback, "evil.example", "/livez", true},
		{loopback, "evil.example", "/livez/", false},
		{named, "Queued.example:443", "/events", true},
		{named, "127.0.0.1", "/events", true},
		{named, "other.example", "/events", false},
		{Hosts{}, "other.example", "/events", true},
		{Hosts{LoopbackOnly: true, Names: []string{AnyHost}}, "other.example", "/events", true},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, http.NoBody)
		r.Host = c.host
		if got := c.hosts.Allow(r); got != c.want {
			t.Errorf("%+v: a request for %s at the host %q is allowed: %t, want %t", c.hosts, c.path, c.host, got, c.want)
		}
	}
}
