package http

import (
	"fmt"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

// groupsIn returns how many events of each group are in a queue, or were; those without one under "".
func groupsIn(t *testing.T, h *environment, name string) map[string]int {
	t.Helper()
	groups := make(map[string]int)
	for _, list := range []string{"/events", "/history"} {
		for _, e := range decode[seenPage](h.call("GET", list+"?limit=1000&queue="+name, "").want(200)).Events {
			groups[e.Group]++
		}
	}
	return groups
}

// wantGroups waits until a queue has so many events of each group, and no others.
func wantGroups(t *testing.T, h *environment, name string, want map[string]int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		got := groupsIn(t, h, name)
		if fmt.Sprint(got) == fmt.Sprint(want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the queue %s has %v, want %v", name, got, want)
		}
	}
}

func TestEveryMakerOfEventsGivesThemTheGroupThatThePolicyFinds(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/q", `{"group_from":"/tenant"}`).want(200)
	const event = `{"tenant":"a"}`

	h.call("POST", "/events?queue=q", event).want(201)
	h.with("Idempotency-Key", "k").call("POST", "/events?queue=q", event).want(201)
	h.call("POST", "/events/batch", `{"events":[{"queue":"q","event":`+event+`},{"queue":"q","event":`+event+`,"key":"k2"}]}`).want(201)
	wantGroups(t, h, "q", map[string]int{"a": 4})

	const tenant = `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"tenant":"ce"}}`
	h.with("Content-Type", "application/cloudevents+json").call("POST", "/cloudevents?queue=q", tenant).want(201)
	h.call("PUT", "/sources/hook", `{"kind":"token","secrets":["0123456789abcdef"],"queue":"q"}`).want(201)
	h.with("Authorization", "Bearer 0123456789abcdef").call("POST", "/in/hook", `{"tenant":"source"}`).want(200)
	id := decode[map[string]any](h.call("POST", "/schedules", `{"event":{"tenant":"schedule"},"cron":"@yearly","timezone":"UTC","queue":"q"}`).want(201))["id"]
	h.call("POST", fmt.Sprintf("/schedules/%.0f/run", id), "").want(201)
	h.call("PUT", "/subscriptions/s", `{"filters":[{}],"deliver":{"queue":"q"}}`).want(201)
	h.call("POST", "/topics/t", `{"tenant":"delivery"}`).want(201)
	wantGroups(t, h, "q", map[string]int{"a": 4, "ce": 1, "source": 1, "schedule": 1, "delivery": 1})

	// Events that come from elsewhere without a group, and dead letters.
	h.call("PUT", "/queues/before", `{"max_attempts":1,"dead_letter":{"queue":"q"}}`).want(200)
	h.call("POST", "/events?queue=before", `{"tenant":"moved"}`).want(201)
	h.call("POST", "/queues/before/move", `{"to":"q"}`).want(200)
	h.call("POST", "/events?queue=before", `{"tenant":"dead"}`).want(201)
	e := decode[seenPage](h.call("POST", "/claim", `{"queue":"before"}`).want(200)).Events[0]
	h.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), `{"receipt":"`+e.Receipt+`","final":true}`).want(200)
	made := decode[seenEvent](h.call("POST", "/events?queue=q", `{"tenant":9}`).want(201)).ID
	h.call("DELETE", fmt.Sprintf("/events/%d", made), "").want(204)
	h.call("POST", fmt.Sprintf("/history/%d/requeue", made), "").want(201)
	wantGroups(t, h, "q", map[string]int{"a": 4, "ce": 1, "source": 1, "schedule": 1, "delivery": 1, "moved": 1, "dead": 1, "9": 2})

	h.try("PUT", "/queues/q", `{"group_from":"tenant"}`).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/queues/q", `{"group_from":7}`).wantProblem(problem.ValidationFailed)
}
