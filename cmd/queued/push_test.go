package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/sql"
)

func TestPushSettingsSayWhatIsCalledAndHow(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, want := r.UserAgent(), "queued/"+sql.Version(); got != want {
			t.Errorf("User-Agent %q, want %q", got, want)
		}
		if r.URL.IsAbs() { // as proxies see it
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	t.Cleanup(server.Close)
	send := func(listen string, environ ...string) (egress.Response, error) {
		g, _ := parse(t, nil, environ)
		_, sender, err := g.Serve.newSender(netip.MustParseAddrPort(listen))
		if err != nil {
			t.Fatal(err)
		}
		defer sender.Close()
		return sender.Send(t.Context(), egress.Request{URL: server.URL, Timeout: waitTimeout})
	}
	const elsewhere = "127.0.0.1:1"
	for name, c := range map[string]struct {
		listen  string
		environ []string
		status  int // zero: it may not be called
	}{
		"nothing is allowed":   {elsewhere, nil, 0},
		"something else is":    {elsewhere, []string{"QUEUED_PUSH_ALLOW=10.0.0.0/8,localhost"}, 0},
		"it is allowed":        {elsewhere, []string{"QUEUED_PUSH_ALLOW=10.0.0.0/8, 127.0.0.1"}, http.StatusOK},
		"it is queued itself":  {server.Listener.Addr().String(), []string{"QUEUED_PUSH_ALLOW=127.0.0.0/8"}, 0},
		"through a proxy":      {elsewhere, []string{"QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_PUSH_PROXY=" + server.URL}, http.StatusTeapot},
		"the proxy is no help": {elsewhere, []string{"QUEUED_PUSH_PROXY=" + server.URL}, 0},
	} {
		response, err := send(c.listen, c.environ...)
		if errors.Is(err, egress.ErrNotAllowed) != (c.status == 0) || response.Status != c.status {
			t.Errorf("%s: got %+v, %v; want the status %d", name, response, err, c.status)
		}
	}
}
