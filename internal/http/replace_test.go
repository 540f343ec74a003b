package http

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queued/queued/internal/http/problem"
)

func TestARequestMayTakeThePlaceOfTheOneUnderItsKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/events?queue=q&key=k&on_duplicate=replace&delay=1h&max_wait=2h&key_until=finished"
	first := h.call("POST", path, `{"n":1}`).want(201)
	second := h.call("POST", path, `{"n":2}`).want(201)
	id := decode[seenEvent](first).ID
	if decode[seenEvent](second).ID != id || second.header.Get("Idempotency-Replayed") != "" {
		t.Errorf("the answers are %s, %s", first.body, second.body)
	}
	if e := decode[seenEvent](h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200)); string(e.Event) != `{"n":2}` || e.State != "scheduled" {
		t.Errorf("the event is %+v", e)
	}
	h.with("Idempotency-Key", "k").call("POST", "/events?queue=q&on_duplicate=replace", `{"n":3}`).want(201)
	h.call("POST", "/events/batch", `{"events":[{"queue":"q","key":"k","on_duplicate":"replace","max_wait":"1m","event":{"n":4}},{"queue":"q","key":"k","on_duplicate":"supersede","key_until":"10m","event":{"n":5}}]}`).want(201)
	claimed := decode[seenPage](h.call("POST", "/claim", `{"queue":"q","limit":10}`).want(200)).Events
	if len(claimed) != 1 || string(claimed[0].Event) != `{"n":5}` || claimed[0].ID != id {
		t.Fatalf("claimed %+v", claimed)
	}
	third := decode[seenEvent](h.call("POST", "/events?queue=q&key=k&on_duplicate=supersede", `{"n":6}`).want(201)).ID
	if third == id {
		t.Error("an event that was leased has another payload")
	}
	h.try("POST", fmt.Sprintf("/events/%d/ack", id), `{"receipt":"`+claimed[0].Receipt+`"}`).wantProblem(problem.LeaseLost)

	for query, where := range map[string]string{
		"&on_duplicate=merge":               "?on_duplicate",
		"&key_until=never":                  "?key_until",
		"&key_until=-1h":                    "?key_until",
		"&on_duplicate=replace&max_wait=0s": "?max_wait",
	} {
		if got := h.try("POST", "/events?queue=q&key=x"+query, `{}`).wantProblem(problem.InvalidParameter); !strings.Contains(fmt.Sprint(got), where) {
			t.Errorf("%s: %v", query, got)
		}
	}
	for _, query := range []string{"on_duplicate=replace", "on_duplicate=supersede", "key_until=claimed", "max_wait=1m", "key=k&max_wait=1m"} {
		h.try("POST", "/events?queue=q&"+query, `{}`).wantProblem(problem.ValidationFailed)
	}
	h.try("POST", "/events/batch", `{"events":[{"queue":"q","on_duplicate":"replace","event":{}}]}`).wantProblem(problem.ValidationFailed)
	h.try("POST", "/events/batch", `{"events":[{"queue":"q","key":"k","key_until":"soon","event":{}}]}`).wantProblem(problem.ValidationFailed)
}

func TestAKeyThatIsReusedWithinABatchIsNamed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	replaced := `{"key":"k","on_duplicate":"replace","event":{"n":2}}`
	for events, pointer := range map[string]string{
		`{"event":{}},{"key":"k","event":{"n":1}},` + replaced: "#/events/2/key",
		replaced + `,{"key":"k","event":{"n":1}}`:              "#/events/1/key",
	} {
		h.call("POST", "/events/batch", `{"events":[`+events+`]}`).wantPointer(pointer)
	}
	got := h.call("POST", "/events/batch", `{"events":[{"key":"k","event":{"n":1}},{"key":"k","event":{"n":2}}]}`).wantProblem(problem.KeyReused)
	if len(got.Errors) > 0 {
		t.Errorf("of two events that say the same about their key: %v", got.Errors)
	}
	h.call("POST", "/events/batch", `{"events":[`+replaced+`,{"key":"k","queue":"other","event":{"n":1}}]}`).want(201)
}
