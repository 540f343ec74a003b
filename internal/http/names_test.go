package http

import (
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

// Browsers and proxies take . and .. for steps of a path: a queue of such a name could not be reached.
func TestNamesThatAreStepsOfAPathAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, c := range []struct{ method, path, body string }{
		{"POST", "/events?queue=NAME", `{}`},
		{"POST", "/events/batch", `{"events":[{"event":{},"queue":"NAME"}]}`},
		{"POST", "/claim", `{"queue":"NAME"}`},
		{"POST", "/redrives", `{"queue":"a","to":"NAME"}`},
		{"PUT", "/queues/a", `{"dead_letter":{"queue":"NAME"}}`},
		{"POST", "/schedules", `{"queue":"NAME","event":{},"cron":"@daily","timezone":"UTC"}`},
		{"PUT", "/subscriptions/s", `{"filters":[{"name":"f","topics":["a"]}],"deliver":{"queue":"NAME"}}`},
		{"PUT", "/sources/s", `{"kind":"token","secret":"0123456789abcdef0123456789abcdef","queue":"NAME"}`},
		{"GET", "/history?queue=NAME", ""},
	} {
		for _, name := range []string{".", ".."} {
			got := h.try(c.method, strings.ReplaceAll(c.path, "NAME", name), strings.ReplaceAll(c.body, "NAME", name))
			if got.status != 400 && got.status != 422 || !strings.Contains(got.body, "steps of a path") {
				t.Errorf("%s %s %s: %d %s", c.method, c.path, c.body, got.status, got.body)
			}
		}
	}
	for _, path := range []string{"/queues/%2E%2E", "/queues/%2E", "/queues/%2e%2e/pause", "/sources/%2E%2E", "/subscriptions/%2E%2E"} {
		got := h.try("PUT", path, `{}`)
		if got.status < 400 || got.status >= 500 {
			t.Errorf("PUT %s: %d %s", path, got.status, got.body)
		}
	}
	h.try("PUT", "/queues/%2E%2E", `{}`).wantProblem(problem.InvalidParameter)
	for _, name := range []string{"...", "..a", ".a", "a.."} {
		h.call("POST", "/events?queue="+name, `{}`).want(201)
		h.call("PUT", "/queues/"+name, `{"max_attempts":3}`).want(200)
	}
	if n := h.count("select count(*) from agent.event where queue in ('.', '..')"); n != 0 {
		t.Errorf("%d events are in queues that cannot be reached", n)
	}
}
