package http

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

// deadPolicy is a policy with a dead-letter queue.
const deadPolicy = `{"max_attempts":1,"dead_letter":{"queue":"work.dead"}}`

func TestDeadLetterIsShownWithItsEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(1, "work", "work.dead")
	h.call("PUT", "/queues/work", deadPolicy).want(200)
	id := h.insertWith("queue=work&type=order.ship")
	e := h.claimOneBy(`{"queue":"work"}`)
	h.call("POST", fmt.Sprintf("/events/%d/nack", id), fmt.Sprintf(`{"receipt":%q,"error":"no such customer"}`, e.Receipt)).want(200)

	claimed := decode[struct{ Events []map[string]any }](h.call("POST", "/claim", `{"queue":"work.dead"}`).want(200)).Events[0]
	if claimed["dead_letter_of"] != float64(id) || claimed["attempts"] != 1.0 || claimed["type"] != "order.ship" {
		t.Errorf("the dead letter is %v", claimed)
	}
	why, _ := claimed["meta"].(map[string]any)["dead_letter"].(map[string]any)
	if fmt.Sprintf("%v %v %v %v", why["queue"], why["outcome"], why["attempts"], why["error"]) != "work failed 1 no such customer" {
		t.Errorf("the cause is %v", why)
	}
	for path, want := range map[string][2]any{
		fmt.Sprintf("/events/%d", id):                      {"dead_lettered_as", claimed["id"]},
		fmt.Sprintf("/events/%.0f", claimed["id"]):         {"dead_letter_of", float64(id)},
		"/history?queue=work":                              {"dead_lettered_as", claimed["id"]},
		"/events?queue=work.dead":                          {"dead_letter_of", float64(id)},
		"/events?queue=work.dead&state=leased&meta=%7B%7D": {"dead_letter_of", float64(id)},
	} {
		seen := decode[map[string]any](h.call("GET", path, "").want(200))
		if events, ok := seen["events"].([]any); ok {
			seen, _ = events[0].(map[string]any)
		}
		if seen[want[0].(string)] != want[1] {
			t.Errorf("%s has %v", path, seen)
		}
	}
	if metrics := h.call("GET", "/metrics", "").want(200).body; !strings.Contains(metrics, `queued_dead_lettered_total{queue="work"} 1`) {
		t.Error("the metrics do not count the dead letter")
	}
	if got := decode[map[string]any](h.call("GET", "/queues/work.dead", "").want(200))["dead_letters_of"]; fmt.Sprint(got) != "[work]" {
		t.Errorf("the dead-letter queue takes those of %v", got)
	}
	if got := h.call("GET", "/queues", "").want(200).body; !strings.Contains(got, `"queue":"work.dead"`) || !strings.Contains(got, `"dead_letters_of":["work"]`) {
		t.Errorf("the queues are %s", got)
	}
}

func TestDeadLetterChainIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(1, "work", "work.dead")
	h.call("PUT", "/queues/work", deadPolicy).want(200)
	for path, to := range map[string]string{"/queues/work.dead": "elsewhere", "/queues/shop": "work", "/queues/self": "self"} {
		h.call("PUT", path, fmt.Sprintf(`{"dead_letter":{"queue":%q}}`, to)).wantProblem(problem.DeadLetterChain)
	}
	h.call("PUT", "/queues/shop", `{"dead_letter":{"queue":"queued.publish"}}`).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/queues/shop", `{"dead_letter":{"queue":"no name"}}`).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/queues/shop", `{"dead_letter":{}}`).wantProblem(problem.ValidationFailed)
	h.try("PUT", "/queues/shop", `{"dead_letter":"work.dead"}`).wantProblem(problem.ValidationFailed)
	h.insertWith("queue=work.dead")
	if p := h.call("DELETE", "/queues/work.dead?purge=true", "").wantProblem(problem.QueueInUse); !strings.HasPrefix(p.Detail, "These name the queue: queue work. ") {
		t.Errorf("the refusal is %q", p.Detail)
	}
	h.call("PUT", "/queues/work", `{"dead_letter":null}`).want(200)
	h.call("DELETE", "/queues/work.dead?purge=true", "").want(200)
}

func TestRestrictedKeyNamesOnlyItsOwnDeadLetterQueue(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(0, "work", "work.dead", "others")
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	key := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage, access.Read}, Queues: []string{"work*"}}))
	p := key.call("PUT", "/queues/work", `{"dead_letter":{"queue":"others"}}`).wantProblem(problem.Forbidden)
	if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/dead_letter/queue" {
		t.Errorf("the problem is %+v", p)
	}
	key.call("PUT", "/queues/work", deadPolicy).want(200)
	if got := admin.audit("action=queue.put"); len(got) != 1 || !strings.Contains(string(got[0].Detail), "work.dead") {
		t.Errorf("the audit has %+v", got)
	}
	admin.call("PUT", "/queues/others", deadPolicy).want(200)
	admin.call("POST", "/events?queue=work.dead", `{}`).want(201)
	for c, want := range map[*client]string{admin: "[others work]", key: "[work]"} {
		if got := decode[map[string]any](c.call("GET", "/queues/work.dead", "").want(200))["dead_letters_of"]; fmt.Sprint(got) != want {
			t.Errorf("the dead-letter queue takes those of %v, want %s", got, want)
		}
		if got := decode[struct {
			Queues []struct {
				Queue string
				Of    []string `json:"dead_letters_of"`
			}
		}](c.call("GET", "/queues", "").want(200)).Queues; fmt.Sprint(got[len(got)-1].Of) != want {
			t.Errorf("the listing has %+v, want %s", got, want)
		}
	}
	if p := key.call("DELETE", "/queues/work.dead", "").wantProblem(problem.QueueInUse); strings.Contains(p.Detail, "others") {
		t.Errorf("the refusal is %q", p.Detail)
	}
}

func TestClaimsThatDoNotSayWaitAsThePolicySays(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/work", `{"wait":"61s"}`).wantProblem(problem.ValidationFailed)
	h.call("PUT", "/queues/work", `{"wait":"300ms"}`).want(200)
	took := func(body string) time.Duration {
		t.Helper()
		start := time.Now()
		if got := h.claim(body); len(got) != 0 {
			t.Errorf("claimed %+v", got)
		}
		return time.Since(start)
	}
	if d := took(`{"queue":"work"}`); d < 300*time.Millisecond {
		t.Errorf("a claim that does not say waited %v", d)
	}
	h.call("PUT", "/queues/work", `{"wait":"60s"}`).want(200)
	if d := took(`{"queue":"work","wait":"0s"}`); d > 30*time.Second {
		t.Errorf("a claim that says not to wait waited %v", d)
	}
	events := make(chan []seenEvent)
	go func() { events <- h.claim(`{"queue":"work"}`) }()
	h.insertWith("queue=work")
	if got := <-events; len(got) != 1 {
		t.Errorf("claimed %+v", got)
	}
}

func TestExplicitDelayGoesBeforeThatOfThePolicy(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/work", `{"delay":"1h"}`).want(200)
	for query, want := range map[string]string{"": "scheduled", "&delay=0s": "ready", "&vt=2020-01-01T00:00:00Z": "ready"} {
		if got := decode[map[string]any](h.call("GET", fmt.Sprintf("/events/%d", h.insertWith("queue=work"+query)), "").want(200))["state"]; got != want {
			t.Errorf("an event with %q is %v, want %s", query, got, want)
		}
	}
}

func TestRequeueingAnEventAgainNamesItsCopy(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.insert(`{}`)
	e := h.claimOne()
	h.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "").want(204)
	again := fmt.Sprintf("/history/%d/requeue", e.ID)
	copied := decode[struct{ ID int64 }](h.call("POST", again, "").want(201)).ID
	want := fmt.Sprintf("its copy, the event %d, is in a queue, or done", copied)
	if p := h.call("POST", again, "").wantProblem(problem.EventRequeued); !strings.Contains(p.Detail, want) {
		t.Errorf("while the copy waits, the problem says %s", p.Detail)
	}
	e = h.claimOne()
	h.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "").want(204)
	if p := h.call("POST", again, "").wantProblem(problem.EventRequeued); !strings.Contains(p.Detail, want) {
		t.Errorf("when the copy is done, the problem says %s", p.Detail)
	}
	h.call("POST", fmt.Sprintf("/history/%d/requeue", copied), "").want(201)
}
