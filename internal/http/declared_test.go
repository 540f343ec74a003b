package http

import (
	"fmt"
	"strings"
	"testing"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

func setupDeclared(t *testing.T) *environment {
	t.Helper()
	h := setupWith(t, settings{queue: func(cfg *queue.Config) { cfg.DeclaredOnly = true }})
	h.call("PUT", "/queues/orders", `{}`).want(200)
	return h
}

// provokeUndeclared has every call that uses queues refuse one that nobody has made. h takes declared queues alone, and has the queue orders.
func provokeUndeclared(t *testing.T, h *environment) {
	t.Helper()
	h.call("POST", "/topics/a", `{}`).want(201)
	h.call("PUT", "/subscriptions/s", `{"filters":[],"deliver":{"queue":"orders"}}`).want(201)
	id := decode[map[string]any](h.call("POST", "/schedules", `{"event":{},"cron":"@daily","timezone":"UTC","queue":"orders"}`).want(201))["id"]
	const source = `{"kind":"token","header":"X-Token","secrets":["0123456789abcdef"],"queue":"orders"}`
	h.call("PUT", "/sources/hook", source).want(201)
	const event = `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{}}`
	for _, c := range []struct{ method, path, contentType, body, pointer string }{
		{"POST", "/events?queue=ordres", "", `{}`, "?queue"},
		{"POST", "/events?queue=ordres&keep_raw=1h", "", `{}`, "?queue"},
		{"POST", "/events/batch", "", `{"events":[{"event":{},"queue":"orders"},{"event":{},"queue":"ordres"},{"event":{},"queue":"ordres"}]}`, "#/events/1/queue"},
		{"POST", "/cloudevents?queue=ordres", "application/cloudevents+json", event, "?queue"},
		{"POST", "/cloudevents?queue=ordres", "application/cloudevents-batch+json", "[" + event + "]", "?queue"},
		{"POST", "/claim", "", `{"queue":"ordres","wait":"30s"}`, "#/queue"},
		{"POST", "/queues/orders/move", "", `{"to":"ordres"}`, "#/to"},
		{"POST", "/queues/ordres/pause", "", ``, "{name}"},
		{"POST", "/queues/ordres/resume", "", ``, "{name}"},
		{"PUT", "/queues/ordres/push", "", `{"url":"http://127.0.0.1:1"}`, "{name}"},
		{"POST", "/schedules", "", `{"event":{},"cron":"@daily","timezone":"UTC","queue":"ordres"}`, "#/queue"},
		{"PATCH", fmt.Sprintf("/schedules/%.0f", id), "", `{"queue":"ordres"}`, "#/queue"},
		{"PUT", "/sources/hook", "", strings.Replace(source, "orders", "ordres", 1), "#/queue"},
		{"PUT", "/subscriptions/s", "", `{"filters":[],"deliver":{"queue":"ordres"}}`, "#/deliver/queue"},
	} {
		caller := h.client
		if c.contentType != "" {
			caller = h.with("Content-Type", c.contentType)
		}
		doc := caller.call(c.method, c.path, c.body).wantProblem(problem.QueueNotDeclared)
		const detail = `Nobody has made the queue "ordres", and this server takes declared queues alone (QUEUED_QUEUES). Did you mean "orders"? ` +
			`Make a queue with PUT /queues/ordres, or with: queued queue set ordres`
		if doc.Detail != detail || len(doc.Errors) != 1 || doc.Errors[0].Pointer != c.pointer {
			t.Errorf("%s %s was refused with %q, %v", c.method, c.path, doc.Detail, doc.Errors)
		}
	}
	h.call("PUT", "/queues/short-lived", `{}`).want(200)
	done := decode[seenEvent](h.call("POST", "/events?queue=short-lived", `{}`).want(201)).ID
	h.call("DELETE", fmt.Sprintf("/events/%d", done), "").want(204)
	h.call("DELETE", "/queues/short-lived", "").want(200)
	h.call("POST", fmt.Sprintf("/history/%d/requeue", done), "").wantProblem(problem.QueueNotDeclared)
	h.call("POST", "/history/requeue", `{"queue":"short-lived"}`).wantProblem(problem.QueueNotDeclared)
	h.call("POST", "/history/999/requeue", "").wantProblem(problem.EventNotFound)
	h.call("POST", "/history/requeue", `{"queue":"orders"}`).want(200)
}

func TestCallsForUndeclaredQueuesAreRefused(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	provokeUndeclared(t, h)
	if n := h.count(`select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events were inserted", n)
	}
	if n := h.count(`select count(*) from agent.queue`); n != 1 {
		t.Errorf("there are %d queues, want 1", n)
	}
	h.call("PUT", "/queues/ordres", `{}`).want(200)
	h.call("POST", "/events?queue=ordres&keep_raw=1h", `{}`).want(201)
	h.call("POST", "/events/batch", `{"events":[{"event":{},"queue":"orders"},{"event":{},"queue":"ordres"}]}`).want(201)
	h.call("POST", "/cloudevents?queue=ordres", ce("1", "")).want(201)
	h.call("POST", "/topics/a?delay=1h", `{}`).want(202)
	if got := h.claim(`{"queue":"ordres","limit":10}`); len(got) != 3 {
		t.Errorf("claimed %d events of a queue that was declared, want 3", len(got))
	}
}

// What was accepted while any queue could be used goes on: webhooks, deliveries of subscriptions and schedules. What is in such a queue can be taken out of it.
func TestWhatWasAcceptedEarlierGoesOnForUndeclaredQueues(t *testing.T) {
	t.Parallel()
	before := setup(t)
	before.call("PUT", "/sources/hook", `{"kind":"token","header":"X-Token","secrets":["0123456789abcdef"],"queue":"hooks"}`).want(201)
	before.call("PUT", "/subscriptions/s", `{"filters":[{"topics":["a"]}],"deliver":{"queue":"delivered"}}`).want(201)
	id := decode[map[string]any](before.call("POST", "/schedules", `{"event":{},"cron":"@daily","timezone":"UTC","queue":"scheduled"}`).want(201))["id"]
	before.call("POST", "/events?queue=mail", `{}`).want(201)

	h := setupWith(t, settings{db: before.db, queue: func(cfg *queue.Config) { cfg.DeclaredOnly = true }})
	h.with("X-Token", "0123456789abcdef").call("POST", "/in/hook", `{}`).want(200)
	h.call("POST", "/topics/a", `{}`).want(201)
	h.call("POST", fmt.Sprintf("/schedules/%.0f/run", id), "").want(201)
	h.call("PATCH", fmt.Sprintf("/schedules/%.0f", id), `{"priority":3}`).want(200)
	h.call("POST", "/queues/mail/purge", "").want(200)
	h.call("GET", "/queues/mail", "").want(200)
	h.call("POST", "/claim", `{"queue":"scheduled"}`).wantProblem(problem.QueueNotDeclared)
	for _, name := range []string{"hooks", "delivered", "scheduled"} {
		h.call("PUT", "/queues/"+name, `{}`).want(200)
		if got := h.claim(`{"queue":"` + name + `","wait":"60s"}`); len(got) != 1 {
			t.Errorf("the queue %s got %d events, want 1", name, len(got))
		}
	}
}

// A waiting claim whose queue is deleted ends empty, as that of any queue that gets nothing; the next one is refused.
func TestWaitingClaimOfADeletedQueueEndsEmpty(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	claimed := h.waiting(`{"queue":"orders","wait":"2s"}`)
	h.call("DELETE", "/queues/orders", "").want(200)
	if got := (<-claimed).want(200); got.body != `{"events":[]}` {
		t.Errorf("got %s", got.body)
	}
	h.call("POST", "/claim", `{"queue":"orders","wait":"2s"}`).wantProblem(problem.QueueNotDeclared)
}

func TestKeySeesOnlyNamesOfItsQueuesInRefusals(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	h.call("PUT", "/queues/orders-eu", `{}`).want(200)
	all := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}})
	few := h.createKey(access.CreateParams{Scopes: []access.Scope{access.Publish}, Queues: []string{"ordr", "orders-*"}})
	for key, suggested := range map[string]bool{all: true, few: false} {
		detail := h.key(key).call("POST", "/events?queue=ordr", `{}`).wantProblem(problem.QueueNotDeclared).Detail
		if strings.Contains(detail, `Did you mean "orders"?`) != suggested {
			t.Errorf("a key is told %q", detail)
		}
	}
	h.key(few).call("POST", "/events?queue=invoices", `{}`).wantProblem(problem.Forbidden)
}
