package http

import (
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/http/problem"
)

// wantReplay fails the test unless the answer is that of first once more, and says so.
func (a answer) wantReplay(first answer) {
	a.t.Helper()
	a.want(200)
	if a.body != first.body || a.header.Get("Location") != first.header.Get("Location") || a.header.Get("Idempotency-Replayed") != "true" {
		a.t.Errorf("a repetition was answered %s at %q, replayed %q; the first call %s at %q",
			a.body, a.header.Get("Location"), a.header.Get("Idempotency-Replayed"), first.body, first.header.Get("Location"))
	}
}

func TestSameRequestUnderTheSameKeyMakesOneEvent(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	const path = "/events?queue=work&type=a"
	first := h.with("Idempotency-Key", `"order-1"`).call("POST", path, `{"a":1,"b":[2]}`).want(201)
	if first.header.Get("Idempotency-Replayed") != "" {
		t.Error("the first call says that it is a repetition")
	}
	again := func() {
		h.with("Idempotency-Key", `"order-1"`).call("POST", path, `{"a":1,"b":[2]}`).wantReplay(first)
		h.with("Idempotency-Key", `order-1`).call("POST", path, `{ "b" : [2], "a" : 1 }`).wantReplay(first)
		h.call("POST", path+"&key=order-1", `{"a":1,"b":[2]}`).wantReplay(first)
		h.with("Idempotency-Key", `order-1`).call("POST", path+"&key=order-1", `{"a":1,"b":[2]}`).wantReplay(first)
	}
	again()
	e := h.claim(`{"queue":"work"}`)[0]
	if e.Key != "order-1" {
		t.Errorf("claimed %+v", e)
	}
	again()
	h.call("DELETE", fmt.Sprintf("/events/%d?receipt=%s", e.ID, e.Receipt), "").want(204)
	again() // though the event is in history
	if got := h.get(e.ID); got.Outcome != "done" || got.Key != "order-1" {
		t.Errorf("the event is %+v", got)
	}
	if n := h.count("select count(*) from agent.event where queue = $1", "work"); n != 0 {
		t.Errorf("%d events wait", n)
	}
	h.with("Idempotency-Key", "order-1").call("POST", "/events?queue=other&type=a", `{"a":1,"b":[2]}`).want(201)
	h.sql("update agent.idempotency set expires_at = now() - interval '1 second'")
	if later := h.with("Idempotency-Key", "order-1").call("POST", path, `{"a":1,"b":[2]}`).want(201); later.body == first.body {
		t.Error("a key whose time is over still stands for its event")
	}
}

func TestAnotherRequestUnderTheSameKeyIsRefused(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	first := h.call("POST", "/events?key=k&priority=3&delay=1h", `{"a":1}`).want(201)
	for path, body := range map[string]string{
		"/events?key=k&priority=3&delay=1h":                                 `{"a":2}`,
		"/events?key=k&priority=4&delay=1h":                                 `{"a":1}`,
		"/events?key=k&priority=3":                                          `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&type=a":                          `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&source=a":                        `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&max_attempts=1":                  `{"a":1}`,
		"/events?key=k&priority=3&delay=1h&expires_at=2100-01-01T00:00:00Z": `{"a":1}`,
	} {
		h.call("POST", path, body).wantProblem(problem.KeyReused)
	}
	h.call("POST", "/events/batch", `{"events":[{"event":{"new":true}},{"event":{"a":2},"key":"k"}]}`).wantProblem(problem.KeyReused)
	if n := h.count("select count(*) from agent.event"); n != 1 {
		t.Errorf("there are %d events, want 1", n)
	}
	h.call("POST", "/events?key=k&priority=3&delay=1h", `{"a":1}`).wantReplay(first)
}

func TestKeyOfTheHeaderAndThatOfTheQueryMustBeOne(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	p := h.with("Idempotency-Key", `"a"`).call("POST", "/events?key=b", `{}`).wantProblem(problem.InvalidParameter)
	if diff := cmp.Diff([]problem.FieldError{{Pointer: "?key", Detail: "must be the same as the header Idempotency-Key"}}, p.Errors); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p = h.with("Idempotency-Key", `"a"`).call("POST", "/events/batch", `{"events":[{"event":{}}]}`).wantProblem(problem.InvalidParameter)
	if p.Errors[0].Pointer != "Idempotency-Key" {
		t.Errorf("a key for a batch: %+v", p)
	}
	wantNoRow(h)
}

func TestEachEventOfABatchHasItsOwnKey(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	post := func(events string) ([]int64, answer) {
		t.Helper()
		got := h.call("POST", "/events/batch", `{"events":[`+events+`]}`)
		return decode[insertBatchResponse](got).IDs, got
	}
	ids, got := post(`{"event":{"n":1},"key":"k1"},{"event":{"n":2},"key":"k2"}`)
	if got.want(201).header.Get("Idempotency-Replayed") != "" {
		t.Error("the first batch says that it is a repetition")
	}
	again, got := post(`{"event":{"n":2},"key":"k2"},{"event":{"n":1},"key":"k1"}`)
	if got.want(200).header.Get("Idempotency-Replayed") != "true" || again[0] != ids[1] || again[1] != ids[0] {
		t.Errorf("a batch of what was there got %v, replayed %q; it was %v", again, got.header.Get("Idempotency-Replayed"), ids)
	}
	mixed, got := post(`{"event":{"n":3}},{"event":{"n":2},"key":"k2"},{"event":{"n":4},"key":"k4"},{"event":{"n":4},"key":"k4"}`)
	if got.want(201).header.Get("Idempotency-Replayed") != "" || mixed[1] != ids[1] || mixed[2] != mixed[3] || mixed[0] == mixed[2] {
		t.Errorf("a mixed batch got %v, replayed %q", mixed, got.header.Get("Idempotency-Replayed"))
	}
	if n := h.count("select count(*) from agent.event"); n != 4 {
		t.Errorf("there are %d events, want 4", n)
	}
	if string(h.get(mixed[0]).Event) != `{"n":3}` || string(h.get(mixed[2]).Event) != `{"n":4}` {
		t.Error("the ids are not in the order of the events")
	}
}

func TestTwentyPostsOfOneKeyAtOnceMakeOneEvent(t *testing.T) {
	t.Parallel()
	h := start(t, settings{})
	for round := range 20 {
		answers := make([]answer, 20)
		var posts sync.WaitGroup
		for i := range answers {
			posts.Go(func() {
				answers[i] = h.with("Idempotency-Key", fmt.Sprintf("round-%d", round)).try("POST", "/events", fmt.Sprintf(`{"round":%d}`, round))
			})
		}
		posts.Wait()
		first := 0
		for _, got := range answers {
			if got.status == 201 {
				first++
			} else {
				got.want(200)
			}
			if got.body != answers[0].body {
				t.Fatalf("round %d: got %s and %s", round, got.body, answers[0].body)
			}
		}
		if first != 1 {
			t.Errorf("round %d: %d posts were the first", round, first)
		}
	}
	if n := h.count("select count(*) from agent.event"); n != 20 {
		t.Errorf("there are %d events, want 20", n)
	}
}
