package http

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func declaredOnly(cfg *queue.Config) { cfg.DeclaredOnly = true }

func setupDeclared(t *testing.T) *environment {
	t.Helper()
	h := setupWith(t, settings{queue: declaredOnly})
	h.placeOn(0, "orders", "ordres") // each cell knows the queues that it has
	h.call("PUT", "/queues/orders", `{}`).want(200)
	return h
}

// callsThatFindNothing are the calls that are refused if they find nothing in the queue ordres, which nobody has made.
var callsThatFindNothing = []struct{ method, path, body string }{
	{"GET", "/queues/ordres", ""},
	{"GET", "/queues/ordres/stats", ""},
	{"GET", "/queues/ordres/groups", ""},
	{"GET", "/queues/ordres/groups/a", ""},
	{"GET", "/events?queue=ordres", ""},
	{"GET", "/history?queue=ordres", ""},
	{"GET", "/history/stats?queue=ordres", ""},
	{"GET", "/history/errors?queue=ordres", ""},
	{"GET", "/schedules?queue=ordres", ""},
	{"POST", "/queues/ordres/run", ""},
	{"POST", "/queues/ordres/move", `{"to":"orders"}`},
	{"POST", "/history/requeue", `{"queue":"ordres"}`},
	{"POST", "/queues/ordres/purge", ""},
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
		{"POST", "/redrives", "", `{"filter":{"queue":"orders"},"to":"ordres"}`, "#/to"},
		{"POST", "/redrives", "", `{"filter":{"queue":"orders"},"to":"ordres","dry_run":true}`, "#/to"},
		{"POST", "/queues/ordres/pause", "", ``, "{name}"},
		{"POST", "/queues/ordres/resume", "", ``, "{name}"},
		{"PUT", "/queues/orders", "", `{"dead_letter":{"queue":"ordres"}}`, "#/dead_letter/queue"},
		{"PATCH", "/queues/orders", "", `{"dead_letter":{"queue":"ordres"}}`, "#/dead_letter/queue"},
		{"PUT", "/queues/ordres/groups/a", "", `{}`, "{name}"},
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
	for _, c := range callsThatFindNothing {
		if p := h.call(c.method, c.path, c.body).wantProblem(problem.QueueNotDeclared); !strings.Contains(p.Detail, `Did you mean "orders"?`) {
			t.Errorf("%s %s was refused with %q", c.method, c.path, p.Detail)
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

	h := setupWith(t, settings{beside: before, queue: declaredOnly})
	h.with("X-Token", "0123456789abcdef").call("POST", "/in/hook", `{}`).want(200)
	h.call("POST", "/topics/a", `{}`).want(201)
	h.call("POST", fmt.Sprintf("/schedules/%.0f/run", id), "").want(201)
	h.call("PATCH", fmt.Sprintf("/schedules/%.0f", id), `{"priority":3}`).want(200)
	h.call("GET", "/queues/mail", "").want(200)
	h.call("POST", "/queues/mail/purge", "").want(200)
	h.call("POST", "/claim", `{"queue":"scheduled"}`).wantProblem(problem.QueueNotDeclared)
	for _, name := range []string{"hooks", "delivered", "scheduled"} {
		h.call("PUT", "/queues/"+name, `{}`).want(200)
		if got := h.claim(`{"queue":"` + name + `","wait":"60s"}`); len(got) != 1 {
			t.Errorf("the queue %s got %d events, want 1", name, len(got))
		}
	}
}

// namers are the calls that have something name the queue orders, and the queries that count what names it.
var namers = []struct{ method, path, body, names string }{
	{"POST", "/schedules", `{"event":{},"cron":"@daily","timezone":"UTC","queue":"orders"}`, `agent.schedule where queue = 'orders' and status in ('active', 'paused')`},
	{"PUT", "/sources/hook", `{"kind":"token","header":"X-Token","secrets":["0123456789abcdef"],"queue":"orders"}`, `agent.source where queue = 'orders'`},
	{"PUT", "/subscriptions/s", `{"filters":[],"deliver":{"queue":"orders"}}`, `agent.subscription where deliver_queue = 'orders'`},
	{"PUT", "/queues/orders/push", `{"url":"http://127.0.0.1:1"}`, `agent.push where queue = 'orders'`},
}

// What names a queue waits for a deletion of that queue that is under way, and is refused when the queue is gone.
func TestWhatNamesAQueueThatIsBeingDeletedIsRefused(t *testing.T) {
	t.Parallel()
	for _, n := range namers {
		t.Run(n.path, func(t *testing.T) {
			t.Parallel()
			h := setupDeclared(t)
			deleting, err := h.connect().Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = deleting.Rollback(context.WithoutCancel(t.Context())) }()
			if _, err := deleting.Exec(t.Context(), `select agent.delete_queue('orders')`); err != nil {
				t.Fatal(err)
			}
			named := make(chan answer, 1)
			go func() { named <- h.try(n.method, n.path, n.body) }()
			h.waitForLock()
			if err := deleting.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			(<-named).wantProblem(problem.QueueNotDeclared)
			if left := h.count(`select (select count(*) from agent.queue) + count(*) from ` + n.names); left != 0 {
				t.Errorf("%d rows name a queue that was deleted", left)
			}
		})
	}
}

// A deletion waits for what comes to name the queue, and is refused for it: a push goes with the queue.
func TestDeletionSeesWhatComesToNameTheQueueMeanwhile(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	naming, err := h.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = naming.Rollback(context.WithoutCancel(t.Context())) }()
	const put = `select from agent_service.put_source('hook', '{"kind":"token","header":"X-Token","queue":"orders"}', '{"\\x00"}') p where `
	if _, err := naming.Exec(t.Context(), put+pg.RequireQueue(true, "(p.source).queue")); err != nil {
		t.Fatal(err)
	}
	deleted := make(chan answer, 1)
	go func() { deleted <- h.try("DELETE", "/queues/orders", "") }()
	h.waitForLock()
	if err := naming.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	(<-deleted).wantProblem(problem.QueueInUse)
}

// waitForLock waits until a transaction waits for the lock on the name of a queue.
func (h *environment) waitForLock() {
	h.t.Helper()
	const waiting = `select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`
	conn := h.connect()
	for began := time.Now(); pgtest.Query[int](h.t, conn, waiting) == 0; pg.Pause(h.t.Context(), 5*time.Millisecond) {
		if time.Since(began) > busyTimeout {
			h.t.Fatal("nobody waits for the lock")
		}
	}
}

// Two processes have schedules, sources, subscriptions and pushes name a queue while both delete it: in the end either the queue is there, or nothing names it.
func TestNothingNamesAQueueThatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	processes := []*environment{h, setupWith(t, settings{beside: h, queue: declaredOnly})}
	const rounds = 60
	var deletions, named, refused int
	for round := range rounds {
		h.call("PUT", "/queues/orders", `{}`).want(200)
		for _, p := range processes { // which then take it for declared
			for began := time.Now(); p.try("POST", "/claim", `{"queue":"orders","limit":1}`).status != 200; pg.Pause(t.Context(), 10*time.Millisecond) {
				if time.Since(began) > busyTimeout {
					t.Fatal("a process does not learn of a declaration")
				}
			}
		}
		var calling sync.WaitGroup
		var mu sync.Mutex
		call := func(p *environment, method, path, body string) {
			pause := time.Duration(rand.IntN(5000)) * time.Microsecond
			calling.Go(func() {
				pg.Pause(t.Context(), pause)
				got := p.try(method, path, body)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case got.status < 300 && method == "DELETE":
					deletions++
				case got.status < 300:
					named++
				case got.status == 404:
					refused++
				case got.status != 409 && got.status != 503:
					t.Errorf("%s %s: %d %s", method, path, got.status, got.body)
				}
			})
		}
		for i, p := range processes {
			if round%2 == i {
				call(p, "DELETE", "/queues/orders", "")
			}
			for j, n := range namers {
				if (round+i+j)%3 == 0 { // so that the deletion comes first in some rounds
					call(p, n.method, n.path, n.body)
				}
			}
		}
		calling.Wait()
		if h.count(`select count(*) from agent.queue where name = 'orders'`) == 0 {
			for _, n := range namers {
				if left := h.count(`select count(*) from ` + n.names); left != 0 {
					t.Errorf("round %d: %d rows name a queue that is not declared: %s", round, left, n.names)
				}
			}
		}
		h.sql(`select agent.delete_schedule(id) from agent.schedule`)
		h.sql(`select agent.delete_source(name) from agent.source`)
		h.sql(`select agent_service.delete_subscription_if_match(name, null) from agent.subscription`)
		h.sql(`select from agent.delete_queue('orders') where exists (select from agent.queue)`)
	}
	t.Logf("%d deletions, %d named, %d refused", deletions, named, refused)
	if deletions == 0 || named == 0 || refused == 0 {
		t.Errorf("%d deletions, and %d calls named the queue, %d were refused: want some of each", deletions, named, refused)
	}
}

// A schedule that is completed does not keep its queue from being deleted, so it does not come again without it.
func TestCompletedScheduleDoesNotComeAgainWithoutItsQueue(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	type created struct{ ID int64 }
	id := decode[created](h.call("POST", "/schedules", `{"event":{},"at":"2020-01-01T00:00:00Z","queue":"orders","misfire":"skip"}`).want(201)).ID
	path := fmt.Sprintf("/schedules/%d", id)
	conn := h.connect()
	for began := time.Now(); pgtest.Query[int](t, conn, `select count(*) from agent.schedule where status = 'completed'`) == 0; pg.Pause(t.Context(), 10*time.Millisecond) {
		if time.Since(began) > busyTimeout {
			t.Fatal("the schedule does not complete")
		}
	}
	h.call("DELETE", "/queues/orders", "").want(200)
	h.call("PATCH", path, `{"name":"again"}`).want(200)
	h.call("PATCH", path, `{"at":"2100-01-01T00:00:00Z"}`).wantProblem(problem.QueueNotDeclared)
	h.call("POST", path+"/run", "").wantProblem(problem.QueueNotDeclared)
	h.call("PATCH", path, `{"topic":"a"}`).want(200)
	h.call("PATCH", path, `{"topic":null}`).wantProblem(problem.QueueNotDeclared) // it would be for the queue default
	if n := h.count(`select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events were inserted", n)
	}
	h.call("PATCH", path, `{"topic":"a","at":"2100-01-01T00:00:00Z"}`).want(200)
	h.call("PUT", "/queues/orders", `{}`).want(200)
	h.call("PATCH", path, `{"queue":"orders"}`).want(200)
	h.call("DELETE", "/queues/orders", "").wantProblem(problem.QueueInUse)
}

// A waiting claim whose queue is deleted ends empty, as that of any queue that gets nothing; the next one is refused.
func TestWaitingClaimOfADeletedQueueEndsEmpty(t *testing.T) {
	t.Parallel()
	h := setupDeclared(t)
	var got answer
	for range 100 { // until the claim is there before the deletion, which a busy machine may carry out first
		claimed := h.waiting(`{"queue":"orders","wait":"2s"}`)
		h.call("DELETE", "/queues/orders", "").want(200)
		if got = <-claimed; got.status != problem.QueueNotDeclared.Status {
			break
		}
		h.call("PUT", "/queues/orders", `{}`).want(200)
	}
	if got.want(200).body != `{"events":[]}` {
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

// What was accepted while any queue could be used can be read and purged.
func TestEmptyAnswersAboutUndeclaredQueuesAreRefused(t *testing.T) {
	t.Parallel()
	before := setup(t)
	before.call("POST", "/events?queue=left", `{}`).want(201)
	h := setupWith(t, settings{beside: before, queue: declaredOnly})
	h.call("PUT", "/queues/orders", `{}`).want(200)
	for _, c := range callsThatFindNothing {
		if !strings.HasSuffix(c.path, "/move") {
			h.call(c.method, strings.Replace(c.path, "ordres", "orders", 1), strings.Replace(c.body, "ordres", "orders", 1)).want(200)
		}
	}
	h.call("GET", "/queues/left", "").want(200)
	h.call("GET", "/events?queue=left", "").want(200)
	h.call("POST", "/queues/left/purge", "").want(200)
	h.call("GET", "/history?queue=left", "").want(200)
	h.call("GET", "/events?queue=left", "").wantProblem(problem.QueueNotDeclared)
}
