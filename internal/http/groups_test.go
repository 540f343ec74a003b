package http

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

func TestGroupsAreLimitedByThePolicyOfTheirQueue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	put := h.call("PUT", "/queues/q", `{"flow":{"concurrency":1,"total":null}}`).want(200).body
	if got := h.call("GET", "/queues/q", "").want(200).body; !strings.Contains(put, `"flow":{"concurrency":1,"total":null}`) || !strings.HasPrefix(got, strings.TrimSuffix(put, "}")) {
		t.Errorf("put %s, got %s", put, got)
	}
	h.call("POST", "/events?queue=q&group=ada", `{"n":1}`).want(201)
	h.call("POST", "/events/batch", `{"events":[{"queue":"q","group":"ada","event":{"n":2}},{"queue":"q","group":"bob","event":{"n":3}},{"queue":"q","event":{"n":4}}]}`).want(201)
	claim := func() string {
		var got []string
		for _, e := range decode[seenPage](h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)).Events {
			got = append(got, e.Group+decode[struct{ N json.Number }](answer{t: t, body: string(e.Event)}).N.String())
		}
		return strings.Join(got, " ")
	}
	if got := claim(); got != "ada1 bob3 4" {
		t.Errorf("claimed %s", got)
	}
	if waiting := decode[seenPage](h.call("GET", "/events?queue=q&state=waiting", "").want(200)).Events; len(waiting) != 1 || waiting[0].State != "waiting" || waiting[0].Group != "ada" {
		t.Errorf("waiting are %+v", waiting)
	}
	h.call("DELETE", "/events/1", "").want(204)
	if got := claim(); got != "ada2" {
		t.Errorf("after an ack, claimed %s", got)
	}
	if e := decode[seenEvent](h.call("GET", "/events/1", "").want(200)); e.Group != "ada" || e.Outcome != "done" {
		t.Errorf("history has %+v", e)
	}
	h.try("PUT", "/queues/q", `{"flow":{"total":0}}`).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/queues/q", `{"flow":{"rate":1}}`).wantProblem(problem.ValidationFailed)
	h.call("POST", "/events/batch", `{"events":[{"group":"`+strings.Repeat("é", 200)+`","event":{}}]}`).wantProblem(problem.ValidationFailed)
}
