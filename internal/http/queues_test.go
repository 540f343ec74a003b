package http

import (
	"encoding/json"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
)

const wholePolicy = `{"max_attempts":3,"invisible_for":"2m","backoff":{"kind":"exponential","base":"10s","factor":3,"max":"20s","jitter":0},"paused":false,"history_retention":"720h"}`

func TestQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for range 2 {
		for call, isPaused := range map[string]bool{"pause": true, "resume": false} {
			got := decode[map[string]any](h.call("POST", "/queues/work/"+call, "").want(200))
			if got["paused"] != isPaused || got["queue"] != "work" {
				t.Errorf("%s returned %v", call, got)
			}
		}
	}
	h.call("POST", "/queues/work/pause", "").want(200)
	h.insertWith("queue=work")
	if got := h.claim(`{"queue":"work","wait":"200ms"}`); len(got) != 0 {
		t.Errorf("claimed %+v", got)
	}
	for _, q := range decode[struct{ Queues []map[string]any }](h.call("GET", "/queues", "").want(200)).Queues {
		if q["queue"] != "work" || q["paused"] != true || q["ready"] != 1.0 {
			t.Errorf("the queue is listed as %v", q)
		}
	}
}

func TestPolicyIsAnsweredWhole(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const noCounts = `,"ready":0,"scheduled":0,"waiting":0,"leased":0,"oldest_ready_age":null,"done_last_hour":0,"failed_last_hour":0,"expired_last_hour":0,"estimated":false,"dead_letters_of":[]}`
	const none = `{"queue":"work","max_attempts":null,"invisible_for":null,"backoff":null,"paused":false,"history_retention":null,"dead_letter":null,"delay":null,"wait":null,"group_from":null,"flow":null,"version":null,"updated_at":null` + noCounts
	if got := h.call("GET", "/queues/work", "").want(200).body; got != none {
		t.Errorf("a queue without a policy has %s", got)
	}
	put := h.call("PUT", "/queues/work", wholePolicy).want(200).body
	if got := h.call("GET", "/queues/work", "").want(200).body; got != strings.TrimSuffix(put, "}")+noCounts {
		t.Errorf("put %s, got %s", put, got)
	}
	h.call("PUT", "/queues/work", `{"backoff":{"kind":"constant","base":"0.25s"},"max_attempts":null,"paused":true}`).want(200)
	seen := decode[map[string]any](h.call("GET", "/queues/work", "").want(200))
	want := map[string]any{
		"max_attempts": nil, "invisible_for": nil, "history_retention": nil, "paused": true,
		"backoff": map[string]any{"kind": "constant", "base": "250ms", "factor": 1.0, "max": nil, "jitter": 0.0},
	}
	for member, value := range want {
		if diff := cmp.Diff(value, seen[member]); diff != "" {
			t.Errorf("%s of the policy that replaced it (-want +got)\n%s", member, diff)
		}
	}
	if got := h.call("PUT", "/queues/work", "").want(200).body; decode[map[string]any](answer{t: t, body: got})["backoff"] != nil {
		t.Errorf("an empty policy is %s", got)
	}
	if got := h.call("GET", "/queues/other", "").want(200).body; got == "" || decode[map[string]any](answer{t: t, body: got})["updated_at"] != nil {
		t.Errorf("another queue has %s", got)
	}
}

func TestPolicyIsReplacedOnlyAtTheVersionThatWasAskedFor(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/queues/work"
	if etag := h.call("GET", path, "").want(200).header.Get("Etag"); etag != "" {
		t.Errorf("a queue without a policy has the ETag %s", etag)
	}
	h.with("If-Match", `"1"`).call("PUT", path, `{}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `*`).call("PUT", path, `{}`).wantProblem(problem.PreconditionFailed)
	h.with("If-None-Match", `"1"`).try("PUT", path, `{}`).wantProblem(problem.InvalidParameter)
	first := h.with("If-None-Match", "*").call("PUT", path, `{"max_attempts":3}`).want(200).header.Get("Etag")
	h.with("If-None-Match", "*").call("PUT", path, `{"max_attempts":4}`).wantProblem(problem.PreconditionFailed)
	if got := h.call("GET", path, "").want(200); got.header.Get("Etag") != first || decode[map[string]any](got)["max_attempts"] != 3.0 {
		t.Errorf("got %s with the ETag %s, want that of the first PUT, %s", got.body, got.header.Get("Etag"), first)
	}
	if same := h.call("PUT", path, `{"max_attempts":3}`).want(200).header.Get("Etag"); same != first {
		t.Errorf("a PUT that changes nothing has the ETag %s, want %s", same, first)
	}
	second := h.call("POST", path+"/pause", "").want(200).header.Get("Etag") // by somebody else
	if second == first {
		t.Errorf("a pause leaves the ETag %s as it is", first)
	}
	h.with("If-Match", first).call("PUT", path, `{"max_attempts":5}`).wantProblem(problem.PreconditionFailed)
	if got := decode[map[string]any](h.call("GET", path, "").want(200)); got["paused"] != true || got["max_attempts"] != 3.0 {
		t.Errorf("a PUT for another version left %v", got)
	}
	third := h.with("If-Match", first+", "+second).call("PUT", path, `{"max_attempts":5}`).want(200).header.Get("Etag")
	h.with("If-Match", "*").call("PUT", path, `{"max_attempts":6}`).want(200)
	h.with("If-Match", third).call("PUT", path, `{"max_attempts":7}`).wantProblem(problem.PreconditionFailed)
}

func TestOneOfManyWhoReplaceTheSameVersionOfAPolicySucceeds(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path, writers = "/queues/work", 8
	for round := range 5 {
		header, value := "If-None-Match", "*"
		if round > 0 {
			header, value = "If-Match", h.call("GET", path, "").want(200).header.Get("Etag")
		}
		statuses := make(chan int, writers)
		for i := range writers {
			go func() {
				statuses <- h.with(header, value).call("PUT", path, fmt.Sprintf(`{"max_attempts":%d}`, 10*round+i+1)).status
			}()
		}
		replaced := 0
		for range writers {
			switch status := <-statuses; status {
			case 200:
				replaced++
			case 412:
			default:
				t.Errorf("round %d: a PUT was answered with %d", round, status)
			}
		}
		if replaced != 1 {
			t.Errorf("round %d: %d of %d succeeded, want 1", round, replaced, writers)
		}
	}
}

func TestPatchChangesWhatItHasAndNothingElse(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/queues/work"
	policy := func(a answer) (members map[string]any) {
		members = decode[map[string]any](a.want(200))
		delete(members, "version")
		delete(members, "updated_at")
		return members
	}
	want := policy(h.call("PATCH", path, `{"max_attempts":3}`)) // makes a policy
	for _, c := range []struct {
		body, member string
		value        any
	}{
		{`{"delay":"5m"}`, "delay", "5m0s"},
		{`{"flow":{"concurrency":5}}`, "flow", map[string]any{"concurrency": 5.0, "total": nil, "order": false, "on_failed": nil, "rate": nil, "fair": false}},
		{`{"flow":{"rate":{"limit":10,"period":"1s"}}}`, "flow", map[string]any{"concurrency": 5.0, "total": nil, "order": false, "on_failed": nil, "rate": map[string]any{"limit": 10.0, "period": "1s", "burst": 1.0}, "fair": false}},
		{`{"flow":{"rate":{"burst":4},"fair":true}}`, "flow", map[string]any{"concurrency": 5.0, "total": nil, "order": false, "on_failed": nil, "rate": map[string]any{"limit": 10.0, "period": "1s", "burst": 4.0}, "fair": true}},
		{`{"flow":{"rate":null,"concurrency":null}}`, "flow", map[string]any{"concurrency": nil, "total": nil, "order": false, "on_failed": nil, "rate": nil, "fair": true}},
		{`{"flow":null}`, "flow", nil},
		{`{"backoff":{"kind":"exponential","base":"1s","jitter":0.5}}`, "backoff", map[string]any{"kind": "exponential", "base": "1s", "factor": 2.0, "max": nil, "jitter": 0.5}},
		{`{"backoff":{"max":"1h"}}`, "backoff", map[string]any{"kind": "exponential", "base": "1s", "factor": 2.0, "max": "1h0m0s", "jitter": 0.5}},
		{`{"backoff":{"kind":"linear","factor":null,"max":null}}`, "backoff", map[string]any{"kind": "linear", "base": "1s", "factor": 1.0, "max": nil, "jitter": 0.5}},
		{`{"dead_letter":{"queue":"work.dead"},"max_attempts":3}`, "dead_letter", map[string]any{"queue": "work.dead"}},
		{`{"paused":true}`, "paused", true},
		{`{"group_from":"/tenant"}`, "group_from", "/tenant"},
		{`{"delay":null}`, "delay", nil},
		{`{}`, "paused", true},
	} {
		want[c.member] = c.value
		if diff := cmp.Diff(want, policy(h.call("PATCH", path, c.body))); diff != "" {
			t.Errorf("after %s (-want +got)\n%s", c.body, diff)
		}
	}
	before := h.call("GET", path, "").want(200)
	for body, field := range map[string]string{
		`{"max_attempts":0}`:                           "#/max_attempts",
		`{"paused":null}`:                              "#/paused",
		`{"flow":{"rate":{"burst":4}}}`:                "#/flow/rate/limit",
		`{"flow":{"on_failed":"block"}}`:               "flow/on_failed",
		`{"backoff":{"factor":0.5}}`:                   "#/backoff/factor",
		`{"dead_letter":{"queue":"queued.forward.1"}}`: "#/dead_letter/queue",
		`{"max_attempt":4}`:                            "#/max_attempt",
		`{"flow":{"speed":4}}`:                         "#/flow/speed",
	} {
		refused := h.try("PATCH", path, body)
		if refused.wantProblem(problem.ValidationFailed); !strings.Contains(refused.body, field) {
			t.Errorf("%s is refused with %s", body, refused.body)
		}
	}
	h.try("PATCH", path, "").wantProblem(problem.InvalidJSON)
	h.try("PATCH", path, "[]").wantProblem(problem.ValidationFailed)
	h.call("PATCH", "/queues/queued.forward.1", "{}").wantProblem(problem.InvalidParameter)
	h.with("If-Match", `"1"`).call("PATCH", path, `{"wait":"1s"}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", `*`).call("PATCH", "/queues/other", `{"wait":"1s"}`).wantProblem(problem.PreconditionFailed)
	if after := h.call("GET", path, "").want(200); after.header.Get("Etag") != before.header.Get("Etag") {
		t.Errorf("calls that are refused have changed it to %s", after.body)
	}
	h.with("If-Match", before.header.Get("Etag")).call("PATCH", path, `{"wait":"1s"}`).want(200)
	h.with("If-Match", `*`).call("PATCH", path, `{"wait":"2s"}`).want(200)
}

func TestPatchesAtTheSameTimeAreAllKept(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/queues/work"
	patches := map[string]any{"max_attempts": 3.0, "invisible_for": "2m0s", "history_retention": "720h0m0s", "delay": "1s", "wait": "20s", "group_from": "/tenant"}
	for range 5 {
		var changing sync.WaitGroup
		for member, value := range patches {
			body, err := json.Marshal(map[string]any{member: value})
			if err != nil {
				t.Fatal(err)
			}
			changing.Go(func() { h.call("PATCH", path, string(body)).want(200) })
		}
		changing.Wait()
		got := decode[map[string]any](h.call("GET", path, "").want(200))
		for member, value := range patches {
			if got[member] != value {
				t.Errorf("%s is %v, want %v", member, got[member], value)
			}
		}
		h.call("PUT", path, `{}`).want(200)
	}
}

func TestRestrictedKeyPatchesAPolicyWhoseDeadLettersGoElsewhere(t *testing.T) {
	t.Parallel()
	h := setup(t)
	admin := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Admin}}))
	own := h.key(h.createKey(access.CreateParams{Scopes: []access.Scope{access.Manage}, Queues: []string{"work"}}))
	admin.call("PUT", "/queues/work", `{"dead_letter":{"queue":"dead"}}`).want(200)
	if got := decode[map[string]any](own.call("PATCH", "/queues/work", `{"max_attempts":2}`).want(200)); got["dead_letter"] == nil {
		t.Errorf("it has %v", got)
	}
	own.call("PATCH", "/queues/work", `{"dead_letter":{"queue":"other"}}`).wantProblem(problem.Forbidden)
	own.call("PATCH", "/queues/dead", `{"max_attempts":2}`).wantProblem(problem.Forbidden)
	own.call("PATCH", "/queues/work", `{"dead_letter":null}`).want(200)
	own.call("PATCH", "/queues/work", `{"dead_letter":{"queue":"dead"}}`).wantProblem(problem.Forbidden)
}

func TestOneOfManyWhoCreateASourceOrAPushSucceeds(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const writers = 8
	for _, path := range []string{"/sources/shop", "/queues/work/push", "/sources/other", "/queues/other/push"} {
		body := `{"kind":"token","queue":"in","type":"%d","secrets":["a secret"]}`
		if strings.HasSuffix(path, "push") {
			body = `{"url":"http://127.0.0.1:9/%d"}`
		}
		statuses := make(chan int, writers)
		for i := range writers {
			go func() { statuses <- h.with("If-None-Match", "*").call("PUT", path, fmt.Sprintf(body, i)).status }()
		}
		seen := make(map[int]int)
		for range writers {
			seen[<-statuses]++
		}
		if seen[201] != 1 || seen[412] != writers-1 {
			t.Errorf("%s: the statuses are %v", path, seen)
		}
		before := h.call("GET", path, "").want(200).body
		h.with("If-None-Match", "*").call("PUT", path, fmt.Sprintf(strings.Replace(body, `,"secrets":["a secret"]`, "", 1), 9)).wantProblem(problem.PreconditionFailed)
		h.with("If-None-Match", `"1"`).call("PUT", path, fmt.Sprintf(body, 9)).wantProblem(problem.InvalidParameter)
		if after := h.call("GET", path, "").want(200).body; after != before {
			t.Errorf("it was %s, and is %s", before, after)
		}
	}
}

func TestQueueHasTheCountsOfItsListing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for range 3 {
		h.insertWith("queue=work")
	}
	h.insertWith("queue=work&delay=1h")
	h.insertWith("queue=other")
	h.ack(h.claimOneBy(`{"queue":"work"}`))
	h.claim(`{"queue":"work"}`)
	h.call("PUT", "/queues/work", `{"flow":{"concurrency":1}}`).want(200)
	for _, delay := range []string{"0s", "0s", "1h"} { // the second waits for its turn
		h.insertWith("queue=work&group=full&delay=" + delay)
	}
	h.sql("update agent.event set vt = now() - interval '10 minutes' where attempts = 0 and vt <= now()")
	got := decode[map[string]any](h.call("GET", "/queues/work", "").want(200))
	for _, q := range decode[struct{ Queues []map[string]any }](h.call("GET", "/queues", "").want(200)).Queues {
		if q["queue"] != "work" {
			continue
		}
		for member, want := range q {
			if value, exists := got[member]; !exists || !reflect.DeepEqual(value, want) && member != "oldest_ready_age" {
				t.Errorf("%s is %v, and %v in the listing", member, value, want)
			}
		}
	}
	if fmt.Sprint(got["ready"], got["scheduled"], got["waiting"], got["leased"], got["done_last_hour"]) != "2 2 1 1 1" {
		t.Errorf("the counts are %v", got)
	}
	if age, err := time.ParseDuration(fmt.Sprint(got["oldest_ready_age"])); err != nil || age < 10*time.Minute {
		t.Errorf("the oldest ready event has waited %v", got["oldest_ready_age"])
	}
}

func TestQueueWithEventsIsDeletedWithPurgeOnly(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const path = "/queues/work"
	h.call("DELETE", path, "").wantProblem(problem.QueueNotFound)
	etag := h.call("PUT", path, `{"max_attempts":3,"paused":true}`).want(200).header.Get("Etag")
	h.call("POST", path+"/resume", "").want(200)
	done, id, later := h.insertWith("queue=work"), h.insertWith("queue=work"), h.insertWith("queue=work&delay=1h")
	other := h.insertWith("queue=other")
	h.ack(h.claimOneBy(`{"queue":"work"}`))
	if p := h.call("DELETE", path, "").wantProblem(problem.QueueNotEmpty); !strings.Contains(p.Detail, "has events: 2.") {
		t.Errorf("the refusal is %q", p.Detail)
	}
	h.with("If-Match", etag).call("DELETE", path+"?purge=true", "").wantProblem(problem.PreconditionFailed)
	leased := h.claimOneBy(`{"queue":"work"}`)
	for _, query := range []string{"", "?purge=true"} { // without purge, too: to send it would not help
		p := h.call("DELETE", path+query, "").wantProblem(problem.QueueLeased)
		if !strings.Contains(p.Detail, "under a lease: 1. Pause the queue") || strings.Contains(p.Detail, "purge") {
			t.Errorf("the refusal is %q", p.Detail)
		}
	}
	if e := h.get(later); e.State != "scheduled" {
		t.Errorf("a refused deletion left the event %+v", e)
	}
	h.nack(leased, "")
	current := h.call("GET", path, "").want(200).header.Get("Etag")
	if got := h.with("If-Match", current).call("DELETE", path+"?purge=true", "").want(200).body; got != `{"purged":2}` {
		t.Errorf("the deletion answered %s", got)
	}
	for event, outcome := range map[int64]string{done: "done", id: "cancelled", later: "cancelled"} {
		if e := h.get(event); e.Outcome != outcome || e.Queue != "work" {
			t.Errorf("event %d is %+v, want it in history as %s", event, e, outcome)
		}
	}
	if e := h.get(other); e.State != "ready" {
		t.Errorf("an event of another queue is %+v", e)
	}
	if got := decode[map[string]any](h.call("GET", path, "").want(200)); got["version"] != nil || got["max_attempts"] != nil || got["ready"] != 0.0 {
		t.Errorf("after the deletion the queue is %v", got)
	}
	h.call("DELETE", path+"?purge=true", "").wantProblem(problem.QueueNotFound)
	h.insertWith("queue=work") // makes it anew
	if e := h.claim(`{"queue":"work"}`); len(e) != 1 {
		t.Errorf("claimed %+v from the new queue", e)
	}
	h.call("DELETE", "/queues/queued.publish", "").wantProblem(problem.InvalidParameter)
	h.try("DELETE", path+"?purge=perhaps", "").wantProblem(problem.InvalidParameter)
}

func TestQueueIsNotDeletedWhileSomethingNamesIt(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.placeOn(1, "work")
	const path = "/queues/work"
	h.call("PUT", path, "{}").want(200)
	schedule := decode[struct{ ID int64 }](h.call("POST", "/schedules", `{"event":{},"queue":"work","cron":"@yearly","timezone":"UTC"}`).want(201)).ID
	h.call("PUT", "/subscriptions/audit", `{"filters":[{"topics":["a.b"]}],"deliver":{"queue":"work"}}`)
	h.atHome().sql(`insert into agent.source (name, kind, queue, secrets, dedup_for, tolerance) values ('github', 'token', 'work', '{"\\x00"}', '1d', '5m')`)
	want := fmt.Sprintf("These name the queue: schedule %d, source github, subscription audit. ", schedule)
	for _, query := range []string{"", "?purge=true"} {
		if p := h.call("DELETE", path+query, "").wantProblem(problem.QueueInUse); !strings.HasPrefix(p.Detail, want) {
			t.Errorf("the refusal is %q, want %q", p.Detail, want)
		}
	}
	h.call("DELETE", "/subscriptions/audit", "")
	h.sql("delete from agent.source")
	h.call("DELETE", path, "").wantProblem(problem.QueueInUse)
	h.call("DELETE", fmt.Sprintf("/schedules/%d", schedule), "").want(204)
	h.call("DELETE", path, "").want(200)
}

func TestDeletedQueueIsForgottenByTheMetricsOfOtherProcesses(t *testing.T) {
	t.Parallel()
	h := setup(t)
	other := setupWith(t, settings{beside: h})
	h.insertWith("queue=work")
	if got := other.call("POST", "/claim", `{"queue":"work","wait":"10s"}`).want(200); len(decode[seenPage](got).Events) != 1 {
		t.Fatalf("claimed %s", got.body)
	}
	h.sql("update agent.event set vt = now()")
	for _, c := range []*client{other.client, h.client} {
		if metrics := c.call("GET", "/metrics", "").want(200).body; !strings.Contains(metrics, `queue="work"`) {
			t.Fatal("the metrics do not have the queue")
		}
	}
	h.call("DELETE", "/queues/work?purge=true", "").want(200)
	for _, c := range []*client{h.client, other.client} {
		for strings.Contains(c.call("GET", "/metrics", "").want(200).body, `queue="work"`) {
			if t.Context().Err() != nil {
				t.Fatal("the metrics still have the queue")
			}
			time.Sleep(20 * time.Millisecond) //nolint:forbidigo // no signal announces it
		}
	}
}

func TestPolicySuppliesWhatCallsOmit(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insertWith("queue=work") // before the policy is set
	h.call("PUT", "/queues/work", wholePolicy).want(200)
	claim := func(fields string) seenEvent {
		t.Helper()
		h.sql("update agent.event set vt = now()")
		return h.claimOneBy(`{"queue":"work"` + fields + `}`)
	}
	e := claim("")
	if lease := e.VT.Sub(e.Claimed[0]); lease != 2*time.Minute {
		t.Errorf("the lease is of %s, want 2m", lease)
	}
	extended := decode[seenEvent](h.call("POST", fmt.Sprintf("/events/%d/extend", id), fmt.Sprintf(`{"receipt":%q}`, e.Receipt)).want(200))
	if more := extended.VT.Sub(e.VT); more < 0 || more > time.Minute {
		t.Errorf("the lease was extended by %s, want a little", more)
	}
	waits := func(fields string, want time.Duration) {
		t.Helper()
		back := decode[seenEvent](h.nack(e, fields))
		attempts := h.attempts(id)
		if wait := back.VT.Sub(*attempts[len(attempts)-1].EndedAt); wait != want {
			t.Errorf("after attempt %d, the delay is %s, want %s", len(attempts), wait, want)
		}
	}
	waits("", 10*time.Second)
	e = claim(`,"invisible_for":"5m","max_attempts":1`) // overridden by the policy's max_attempts
	if lease := e.VT.Sub(e.Claimed[1]); lease != 5*time.Minute {
		t.Errorf("the lease is of %s, want 5m", lease)
	}
	waits("", 20*time.Second) // 30 s without the policy's maximum
	e = claim("")
	if got := decode[seenEvent](h.nack(e, "")); got.Outcome != "failed" {
		t.Errorf("the last attempt: %+v", got)
	}

	id = h.insertWith("queue=work")
	e = claim("")
	waits(`,"delay":"1s"`, time.Second)
}

func TestEndedLeaseUsesThePolicysMaxAttempts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("PUT", "/queues/work", `{"max_attempts":1}`).want(200)
	id, other := h.insertWith("queue=work"), h.insert(`{}`)
	h.claim(`{"queue":"work"}`)
	h.claimOne()
	h.sql("update agent.event set vt = now() - interval '1 second'")
	if got := h.claim(`{"queue":"work"}`); len(got) != 0 {
		t.Errorf("claimed %+v", got)
	}
	h.call("POST", "/sweep", `{"max_vt_age":null}`).want(200)
	if e := h.get(id); e.Outcome != "expired" || *e.ErrorCount != 1 {
		t.Errorf("the event is %+v", e)
	}
	if e := h.get(other); e.State != "ready" {
		t.Errorf("the event of another queue is %+v", e)
	}
}

func TestPurgeKeepsOnlyLeasedEvents(t *testing.T) {
	t.Parallel()
	h := setup(t)
	leased := h.insertWith("queue=work")
	h.claim(`{"queue":"work"}`)
	ready, scheduled, other := h.insertWith("queue=work&type=a&priority=5"), h.insertWith("queue=work&delay=1h"), h.insert(`{}`)
	for _, want := range []string{`{"purged":2}`, `{"purged":0}`} {
		if got := h.call("POST", "/queues/work/purge", "").want(200).body; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	tried := h.insertWith("queue=work")
	h.claim(`{"queue":"work","worker":"w"}`)
	h.sql("update agent.event set vt = now() where id = $1", tried)
	h.call("POST", "/queues/work/purge", "").want(200)
	if e, a := h.get(tried), h.attempts(tried); e.Outcome != "cancelled" || *e.ErrorCount != 1 || len(a) != 1 || a[0].Outcome != "lease_ended" || !a[0].EndedAt.Equal(e.VT) {
		t.Errorf("the event whose lease had ended is %+v, its attempts %+v", e, a)
	}
	for id, want := range map[int64]string{leased: "leased", ready: "cancelled", scheduled: "cancelled", other: "ready"} {
		if e := h.get(id); e.State+e.Outcome != want {
			t.Errorf("want %s, the event is %+v", want, e)
		}
	}
}

type seenExecution struct {
	Type, Worker                           string
	Cycles                                 int
	Last, Average, Fastest, Longest, Total float64
	At                                     time.Time
}

func (c *client) executions(query string) (out []seenExecution) {
	c.t.Helper()
	got := decode[struct {
		Executions []struct {
			Type    string    `json:"type"`
			Worker  string    `json:"worker"`
			Cycles  int       `json:"cycles"`
			Last    float64   `json:"last_ms"`
			Average float64   `json:"average_ms"`
			Fastest float64   `json:"fastest_ms"`
			Longest float64   `json:"longest_ms"`
			Total   float64   `json:"total_ms"`
			At      time.Time `json:"last_at"`
		}
	}](c.call("GET", "/stats/executions?"+query, "").want(200))
	for _, x := range got.Executions {
		out = append(out, seenExecution(x))
	}
	return out
}

func TestExecutionsAreCountedByTypeAndWorker(t *testing.T) {
	t.Parallel()
	h := setup(t)
	if got := h.call("GET", "/stats/executions", "").want(200).body; !strings.HasPrefix(got, `{"executions":[]`) {
		t.Errorf("before any work: %s", got)
	}
	work := func(options, claim string, took time.Duration) {
		t.Helper()
		id := h.insertWith(options)
		e := h.claimOneBy(claim)
		h.sql("update agent.event set claimed[1] = claimed[1] - $1::interval", took)
		h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
		_ = e
	}
	work("type=a", `{"worker":"w1"}`, 2*time.Second)
	work("type=a", `{"worker":"w1"}`, 4*time.Second)
	work("type=a", `{"worker":"w2"}`, time.Second)
	work("", `{"worker":"w1"}`, time.Second)
	work("type=b%20%26", ``, time.Second)
	h.insertWith("type=a")
	h.nack(h.claimOneBy(`{"worker":"w1"}`), `,"final":true`) // does not count
	h.insertWith("type=a")
	h.call("POST", "/queues/default/purge", "").want(200)

	for query, want := range map[string][]string{
		"":                               {" w1 1", "a w1 2", "a w2 1", "b &  1"},
		"type=a":                         {"a w1 2", "a w2 1"},
		"type=":                          {" w1 1"},
		"worker=w1":                      {" w1 1", "a w1 2"},
		"worker=":                        {"b &  1"},
		"type=a&worker=w2":               {"a w2 1"},
		"type=" + url.QueryEscape("b &"): {"b &  1"},
		"type=a&worker=nobody":           {},
	} {
		got := []string{}
		for _, x := range h.executions(query) {
			got = append(got, fmt.Sprintf("%s %s %d", x.Type, x.Worker, x.Cycles))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: got %q, want %q", query, got, want)
		}
	}
	x := h.executions("type=a&worker=w1")[0]
	if x.Fastest < 2000 || x.Fastest > 4000 || x.Longest < 4000 || x.Last != x.Longest || x.Total < x.Fastest+x.Longest-0.01 || x.Total > x.Fastest+x.Longest+0.01 ||
		x.Average < x.Total/2-0.01 || x.Average > x.Total/2+0.01 || time.Since(x.At) > time.Hour {
		t.Errorf("the times of two executions are %+v", x)
	}
}

func TestProcessesAreListedWithTheirCounts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.insert(`{}`)
	h.insert(`{}`)
	h.insert(`{}`)
	e := h.claim(`{"limit":3}`)
	h.ack(e[0])
	h.nack(e[1], "")
	h.nack(e[2], `,"final":true`)
	got := decode[struct{ Processes []map[string]any }](h.call("GET", "/stats/processes", "").want(200)).Processes
	if len(got) != len(h.all()) {
		t.Fatalf("there are %d processes, want one of each cell", len(got))
	}
	p := got[slices.IndexFunc(got, func(p map[string]any) bool { return p["posted"] != 0.0 })]
	counted := fmt.Sprint(p["posted"], p["claimed"], p["acked"], p["nacked"], p["failed"], p["expired"], p["released"], p["waiting_claims"])
	if counted != "3 3 1 1 1 0 0 0" {
		t.Errorf("%s is wrong: %v", counted, p)
	}
	if up, _ := p["uptime_ms"].(float64); p["id"] == "" || p["process"] == "" || p["started_at"] == nil || up <= 0 || up > float64(time.Hour.Milliseconds()) {
		t.Errorf("the process is %v", p)
	}
}

func TestProcessOfAnotherVersionIsListedWithWhatItReports(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.sql(`select agent_service.report_process('other', 'elsewhere:1', '{posted,version,novelty}', '{7,9.9.9,x}')`)
	for _, p := range decode[struct{ Processes []map[string]any }](h.call("GET", "/stats/processes", "").want(200)).Processes {
		if p["id"] == "other" {
			if p["process"] != "elsewhere:1" || p["version"] != "9.9.9" || p["posted"] != 7.0 || p["claimed"] != 0.0 || p["started_at"] != nil || p["uptime_ms"] != nil {
				t.Errorf("the other process is %v", p)
			}
			return
		}
	}
	t.Error("the other process is missing")
}
