package http

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

// unreadable is what an event has that cannot be read.
var unreadable = fmt.Sprintf(`"event":null,"unreadable":%q`, queue.Unreadable)

func TestEventThatCannotBeReadIsAnsweredWithTheReason(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.atHome().sql(`insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select 1, now(), 0, now(), '{}', jsonb_build_object('n', jsonb_agg('1e131071'::jsonb)), 'q', now(), 'failed', now() from generate_series(1, 9000)`)
	for _, call := range []string{"/history", "/events/1"} {
		if body := h.call("GET", call, "").want(200).body; !strings.Contains(body, unreadable) || !strings.Contains(body, `"outcome":"failed"`) {
			t.Errorf("%s: %s", call, body)
		}
	}
	if body := h.with("Accept", "application/cloudevents+json").call("GET", "/events/1", "").want(200).body; !strings.Contains(body, `"data":null`) ||
		!strings.Contains(body, queue.Unreadable) {
		t.Errorf("as a CloudEvent: %s", body)
	}
	h.call("POST", "/history/1/requeue", "").wantProblem(problem.ValidationFailed)
}

func TestNumbersOfManyZerosAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	number := "1" + strings.Repeat("0", 5000)
	h.call("POST", "/events", `{"n":`+number+`}`).wantProblem(problem.ValidationFailed)
	h.call("POST", "/topics/a.b", `{"n":`+number+`}`).wantProblem(problem.ValidationFailed)
	h.call("POST", "/events", `{"n":`+strings.Repeat("7", 5000)+`}`).want(201)
}
