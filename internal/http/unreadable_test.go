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
	const huge = `(select jsonb_build_object('n', jsonb_agg('1e131071'::jsonb)) from generate_series(1, 9000))`
	h.atHome().sql(`insert into agent.log (position, published_at, topic, event) select nextval('agent.log_position_seq'), now(), 'a.b', ` + huge)
	h.sql(`alter table agent.event disable trigger user`)
	h.atHome().sql(`insert into agent.event (event, queue) select ` + huge + `, 'q'`)
	h.sql(`alter table agent.event enable trigger user`)
	h.call("PUT", "/subscriptions/s", `{"filters":[{"name":"f","topics":["a.b"]}],"start":"earliest"}`).want(201)

	position := decode[seenLog](h.call("GET", "/log", "").want(200)).Events[0].Position
	listed := h.call("GET", "/events?queue=q", "").want(200).body
	id, _, _ := strings.Cut(strings.TrimPrefix(listed, `{"events":[{"id":`), ",")
	for _, call := range []string{"/log", fmt.Sprintf("/log/%d", position), "/events?queue=q", "/events/" + id} {
		if body := h.call("GET", call, "").want(200).body; !strings.Contains(body, unreadable) {
			t.Errorf("%s: %s", call, body)
		}
	}
	if body := h.call("POST", "/subscriptions/s/read", "").want(200).body; !strings.Contains(body, unreadable) {
		t.Errorf("the subscription has %s", body)
	}
	if body := h.with("Accept", "application/cloudevents-batch+json").call("GET", "/log", "").want(200).body; !strings.Contains(body, `"data":null`) ||
		!strings.Contains(body, queue.Unreadable) {
		t.Errorf("as CloudEvents: %s", body)
	}
	if claimed := h.call("POST", "/claim", `{"queue":"q"}`).want(200).body; !strings.HasPrefix(claimed, `{"events":[]`) {
		t.Errorf("claimed %s", claimed)
	}
	for _, call := range []string{"/history", "/events/" + id} {
		body := h.call("GET", call, "").want(200).body
		if !strings.Contains(body, unreadable) || !strings.Contains(body, `"outcome":"failed"`) || !strings.Contains(body, fmt.Sprintf(`"last_error":%q`, queue.Unreadable)) {
			t.Errorf("%s: %s", call, body)
		}
	}
	h.call("POST", "/history/"+id+"/requeue", "").wantProblem(problem.ValidationFailed)
}

func TestNumbersOfManyZerosAreRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	number := "1" + strings.Repeat("0", 5000)
	h.call("POST", "/events", `{"n":`+number+`}`).wantProblem(problem.ValidationFailed)
	h.call("POST", "/topics/a.b", `{"n":`+number+`}`).wantProblem(problem.ValidationFailed)
	h.call("POST", "/events", `{"n":`+strings.Repeat("7", 5000)+`}`).want(201)
}
