package http

import (
	"fmt"
	"strings"
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
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // no signal announces it
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
	h.placeOn(1, "q", "before")
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

func TestMakersOfEventsMayGiveThemAGroup(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/q", `{"group_from":"/tenant"}`).want(200) // for those that say nothing, or nothing that is a group
	long := strings.Repeat("é", 128)

	made := h.call("POST", "/schedules", `{"event":{"tenant":"policy"},"cron":"@yearly","timezone":"UTC","queue":"q","group":"schedule"}`).want(201)
	at := made.header.Get("Location")
	h.call("POST", at+"/run", "").want(201)
	h.call("PATCH", at, `{"group":"patched"}`).want(200)
	h.call("POST", at+"/run", "").want(201)
	h.call("PATCH", at, `{"group":null}`).want(200)
	h.call("POST", at+"/run", "").want(201)
	h.try("PATCH", at, `{"group":"`+long+`"}`).wantProblem(problem.ValidationFailed)
	h.try("PATCH", at, `{"group":""}`).wantProblem(problem.ValidationFailed)
	h.try("POST", "/schedules", `{"event":{},"cron":"@yearly","timezone":"UTC","topic":"t","group":"g"}`).wantProblem(problem.ValidationFailed)
	h.call("PATCH", at, `{"group":"again"}`).want(200)
	if moved := h.call("PATCH", at, `{"topic":"other"}`).want(200).body; strings.Contains(moved, `"group"`) {
		t.Errorf("a schedule with a topic is %s", moved)
	}
	wantGroups(t, h, "q", map[string]int{"schedule": 1, "patched": 1, "policy": 1})

	for _, from := range []string{"key", "topic", "/a/0"} {
		name := strings.Trim(from, "/0")
		put := h.call("PUT", "/subscriptions/"+name, `{"filters":[{"topics":["orders.*"]}],"deliver":{"queue":"`+name+`","group_from":"`+from+`"}}`).want(201).body
		if !strings.Contains(put, `"group_from":"`+from+`"`) {
			t.Errorf("the subscription is %s", put)
		}
		if got := h.call("GET", "/subscriptions", "").want(200).body; !strings.Contains(got, `"group_from":"`+from+`"`) {
			t.Errorf("the subscriptions are %s", got)
		}
	}
	h.call("PUT", "/queues/key", `{"group_from":"/tenant"}`).want(200)
	h.call("POST", "/topics/orders.placed?key=k1", `{"a":["x"]}`).want(201)
	h.call("POST", "/topics/orders.paid", `{"a":["y"],"tenant":"policy"}`).want(201)
	h.call("POST", "/publish", `{"events":[{"topic":"orders.paid","key":"`+long+`","event":{"a":"z"}}]}`).want(201)
	wantGroups(t, h, "key", map[string]int{"k1": 1, "policy": 1, "": 1})
	wantGroups(t, h, "topic", map[string]int{"orders.placed": 1, "orders.paid": 2})
	wantGroups(t, h, "a", map[string]int{"x": 1, "y": 1, "": 1})
	h.call("PUT", "/subscriptions/a", `{"filters":[{"topics":["orders.*"]}],"deliver":{"queue":"a"}}`).want(200)
	h.call("POST", "/topics/orders.paid", `{"a":["y"]}`).want(201)
	wantGroups(t, h, "a", map[string]int{"x": 1, "y": 1, "": 2})
	for _, wrong := range []string{"", "queue", "a/0", "/~", "/" + strings.Repeat("x", 1024)} {
		h.try("PUT", "/subscriptions/s", `{"filters":[{}],"deliver":{"queue":"q","group_from":"`+wrong+`"}}`).wantProblem(problem.ValidationFailed)
	}

	const source = `{"kind":"token","secrets":["0123456789abcdef"],"queue":"s","group":"{/shop}/{header:X-Tenant}"}`
	if put := h.call("PUT", "/sources/hook", source).want(201).body; !strings.Contains(put, `"group":"{/shop}/{header:X-Tenant}"`) {
		t.Errorf("the source is %s", put)
	}
	sender := h.with("Authorization", "Bearer 0123456789abcdef").with("X-Tenant", "a")
	sender.call("POST", "/in/hook", `{"shop":7}`).want(200)
	sender.call("POST", "/in/hook", `{"shop":"`+long+`"}`).want(200)
	sender.call("POST", "/in/hook", `{}`).want(200)
	wantGroups(t, h, "s", map[string]int{"7/a": 1, "": 2})
	h.try("PUT", "/sources/hook", strings.Replace(source, "{/shop}", "{shop}", 1)).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/sources/hook", strings.Replace(source, "X-Tenant", "Authorization", 1)).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/sources/hook", strings.Replace(source, `"queue"`, `"topic"`, 1)).wantProblem(problem.ValidationFailed)

	const event = `{"specversion":"1.0","id":"ID","source":"/s","type":"t","data":{"tenant":"policy"},"partitionkey":KEY}`
	for i, key := range []string{`"ce"`, `7`, `true`, `"` + long + `"`} {
		one := strings.NewReplacer("ID", fmt.Sprint(i), "KEY", key).Replace(event)
		h.with("Content-Type", "application/cloudevents+json").call("POST", "/cloudevents?queue=ce", one).want(201)
		h.with("Content-Type", "application/cloudevents-batch+json").call("POST", "/cloudevents?queue=ces", "["+one+"]").want(201)
	}
	wantGroups(t, h, "ce", map[string]int{"ce": 1, "7": 1, "true": 1, "": 1})
	wantGroups(t, h, "ces", map[string]int{"ce": 1, "7": 1, "true": 1, "": 1})
	h.call("PUT", "/sources/ce", `{"kind":"cloudevents","secrets":["0123456789abcdef"],"queue":"sce"}`).want(201)
	sender = h.with("Authorization", "Bearer 0123456789abcdef").with("Content-Type", "application/cloudevents+json")
	sender.call("POST", "/in/ce", strings.NewReplacer("ID", "1", "KEY", `"ce"`).Replace(event)).want(200)
	wantGroups(t, h, "sce", map[string]int{"ce": 1})
	if out := h.with("Accept", "application/cloudevents-batch+json").call("GET", "/events?queue=sce", "").want(200).body; !strings.Contains(out, `"partitionkey":"ce"`) || !strings.Contains(out, `"queuedgroup":"ce"`) {
		t.Errorf("the event goes out as %s", out)
	}
}
