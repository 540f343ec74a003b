package http

import (
	"testing"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

func TestCallsAreAnswered503WhenTheSchemaHasMovedBeyondTheProgram(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{queue: func(cfg *queue.Config) { cfg.SchemaVersion = "1.0.0" }})
	h.call("GET", "/readyz", "").want(200)
	h.insert(`{}`)
	h.sql(`create or replace function agent_service.oldest_beside() returns text language sql as 'select ''99.0.0''::text'`)
	h.call("GET", "/readyz", "").wantProblem(problem.NotReady)
	for _, path := range []string{"/queues", "/events", "/history"} {
		h.call("GET", path, "").wantProblem(problem.DatabaseUnavailable)
	}
	h.call("POST", "/events", `{}`).wantProblem(problem.DatabaseUnavailable)
	for _, path := range []string{"/livez", "/version", "/metrics"} {
		h.call("GET", path, "").want(200)
	}
}
