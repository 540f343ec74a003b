package http

import (
	"fmt"
	"testing"
	"time"
)

const wholePolicy = `{"max_attempts":3,"invisible_for":"2m","backoff":{"kind":"exponential","base":"10s","factor":3,"max":"20s","jitter":0},"paused":false,"history_retention":"720h"}`

func TestPolicyIsKeptWholeAndReplacedWhole(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	const none = `{"queue":"work","max_attempts":null,"invisible_for":null,"backoff":null,"paused":false,"history_retention":null,"updated_at":null}`
	if got := h.call("GET", "/queues/work", "").want(200).body; got != none {
		t.Errorf("a queue without a policy has %s", got)
	}
	put := h.call("PUT", "/queues/work", wholePolicy).want(200).body
	if got := h.call("GET", "/queues/work", "").want(200).body; got != put {
		t.Errorf("put %s, got %s", put, got)
	}
	seen := decode[map[string]any](answer{t: t, body: put})
	if fmt.Sprintf("%v %v %v %v %v", seen["max_attempts"], seen["invisible_for"], seen["backoff"], seen["paused"], seen["history_retention"]) !=
		"3 2m0s map[base:10s factor:3 jitter:0 kind:exponential max:20s] false 720h0m0s" {
		t.Errorf("the policy is %s", put)
	}
	h.call("PUT", "/queues/work", `{"backoff":{"kind":"constant","base":"0.25s"},"max_attempts":null,"paused":true}`).want(200)
	seen = decode[map[string]any](h.call("GET", "/queues/work", "").want(200))
	if fmt.Sprintf("%v %v %v %v %v", seen["max_attempts"], seen["invisible_for"], seen["backoff"], seen["paused"], seen["history_retention"]) !=
		"<nil> <nil> map[base:250ms factor:1 jitter:0 kind:constant max:<nil>] true <nil>" {
		t.Errorf("the policy that replaced it is %v", seen)
	}
	if got := h.call("PUT", "/queues/work", "").want(200).body; decode[map[string]any](answer{t: t, body: got})["backoff"] != nil {
		t.Errorf("an empty policy is %s", got)
	}
	if got := h.call("GET", "/queues/other", "").want(200).body; got == "" || decode[map[string]any](answer{t: t, body: got})["updated_at"] != nil {
		t.Errorf("another queue has %s", got)
	}
}

func TestPolicyDecidesWhatCallsDoNotSay(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	id := h.post("queue=work") // the policy comes after it
	h.call("PUT", "/queues/work", wholePolicy).want(200)
	claim := func(fields string) seenEvent {
		t.Helper()
		h.sql("update agent.event set vt = now()")
		return h.claim(`{"queue":"work"` + fields + `}`)[0]
	}
	e := claim("")
	if lease := e.VT.Sub(e.Claimed[0]); lease != 2*time.Minute {
		t.Errorf("the lease is of %s, want 2m", lease)
	}
	extended := decode[seenEvent](h.call("POST", fmt.Sprintf("/events/%d/extend", id), fmt.Sprintf(`{"receipt":%q}`, e.Receipt)).want(200))
	if more := extended.VT.Sub(e.VT); more < 0 || more > time.Minute {
		t.Errorf("it was extended by %s, want a little", more)
	}
	waits := func(fields string, want time.Duration) {
		t.Helper()
		back := decode[seenEvent](h.nack(e, fields))
		attempts := h.attempts(id)
		if wait := back.VT.Sub(*attempts[len(attempts)-1].EndedAt); wait != want {
			t.Errorf("after attempt %d it waits %s, want %s", len(attempts), wait, want)
		}
	}
	waits("", 10*time.Second)
	e = claim(`,"invisible_for":"5m","max_attempts":1`) // the policy's count goes before it
	if lease := e.VT.Sub(e.Claimed[1]); lease != 5*time.Minute {
		t.Errorf("the lease is of %s, want 5m", lease)
	}
	waits("", 20*time.Second) // 30 s, if it were not for the longest
	e = claim("")
	if got := decode[seenEvent](h.nack(e, "")); got.Outcome != "failed" {
		t.Errorf("the last attempt: %+v", got)
	}

	id = h.post("queue=work")
	e = claim("")
	waits(`,"delay":"1s"`, time.Second)
}

func TestLeaseThatRunsOutUsesThePolicysCount(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	h.call("PUT", "/queues/work", `{"max_attempts":1}`).want(200)
	id, other := h.post("queue=work"), h.insert(`{}`)
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

func TestPausedQueueTakesEventsAndHandsOutNone(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	before := h.post("queue=work")
	leased := h.claim(`{"queue":"work"}`)[0]
	paused := decode[map[string]any](h.call("POST", "/queues/work/pause", "").want(200))
	if paused["paused"] != true || paused["queue"] != "work" {
		t.Errorf("pausing was answered %v", paused)
	}
	h.call("POST", "/queues/work/pause", "").want(200)
	id := h.post("queue=work")
	if got := h.claim(`{"queue":"work"}`); len(got) != 0 {
		t.Errorf("claimed %+v", got)
	}
	if got := h.claim(`{"queue":"work","wait":"200ms"}`); len(got) != 0 {
		t.Errorf("claimed with wait %+v", got)
	}
	for _, q := range decode[struct{ Queues []map[string]any }](h.call("GET", "/queues", "").want(200)).Queues {
		if q["queue"] != "work" || q["paused"] != true || q["ready"] != 1.0 {
			t.Errorf("the queue is shown as %v", q)
		}
	}
	h.ack(leased, "")
	if e := h.get(before); e.Outcome != "done" {
		t.Errorf("the event that was leased is %+v", e)
	}
	other := h.insert(`{}`)
	if e := h.claimOne(); e.ID != other {
		t.Errorf("of another queue %+v was claimed", e)
	}
	claim := h.waiting(`{"queue":"work","wait":"60s"}`)
	began := time.Now()
	if got := decode[map[string]any](h.call("POST", "/queues/work/resume", "").want(200)); got["paused"] != false {
		t.Errorf("resuming was answered %v", got)
	}
	if got := decode[seenPage]((<-claim).want(200)).Events; len(got) != 1 || got[0].ID != id {
		t.Errorf("after the pause %+v was claimed", got)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestPurgeLeavesNothingButWhatIsLeased(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	leased := h.post("queue=work")
	h.claim(`{"queue":"work"}`)
	ready, scheduled, other := h.post("queue=work&type=a&priority=5"), h.post("queue=work&delay=1h"), h.insert(`{}`)
	for _, want := range []string{`{"purged":2}`, `{"purged":0}`} {
		if got := h.call("POST", "/queues/work/purge", "").want(200).body; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	tried := h.post("queue=work")
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
