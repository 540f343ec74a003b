package http

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

// logUntil returns a page of a delivery log once it has n rows.
func (h *environment) logUntil(path string, n int) (deliveries []map[string]any) {
	h.t.Helper()
	for deadline := time.Now().Add(busyTimeout); ; {
		page := decode[struct {
			Deliveries []map[string]any
			Dropped    *int
		}](h.call("GET", path, "").want(http.StatusOK))
		if page.Dropped == nil {
			h.t.Fatal("the page does not say what was dropped")
		}
		if len(page.Deliveries) >= n {
			return page.Deliveries
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("%s has %d rows, want %d: %v", path, len(page.Deliveries), n, page.Deliveries)
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // no signal announces it
	}
}

func TestLogOfAPushHasItsAttempts(t *testing.T) {
	t.Parallel()
	h := setup(t)
	to := endpointOf(t, http.StatusTeapot, "short and stout")
	h.call("PUT", "/queues/tea/push", `{"url":"`+to.URL+`"}`).want(http.StatusCreated)
	h.call("POST", "/events?queue=tea&type=pot", `{}`).want(http.StatusCreated)
	d := h.logUntil("/queues/tea/push/deliveries?status=418&outcome=retried&event=1&from=2020-01-01T00:00:00Z&limit=1", 1)[0]
	for field, want := range map[string]any{
		"outcome": "retried", "event_id": 1.0, "type": "pot", "attempt": 1.0, "status": 418.0, "excerpt": "short and stout", "send_again": "run", "error": nil,
	} {
		if d[field] != want {
			t.Errorf("%s is %v, want %v", field, d[field], want)
		}
	}
	if d["next_attempt_at"] == nil || d["at"] == nil || d["ms"] == nil {
		t.Errorf("got %v", d)
	}
	h.call("POST", "/events/1/run", "").want(http.StatusOK)
	h.logUntil("/queues/tea/push/deliveries", 2)
	for _, query := range []string{
		"status=99", "status=x", "outcome=lost", "event=0", "event=9223372036854775808", "from=yesterday", "limit=0", "limit=1001", "cursor=x", "nothing=1",
		"from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
	} {
		if got := h.try("GET", "/queues/tea/push/deliveries?"+query, ""); got.status != http.StatusBadRequest {
			t.Errorf("%s: got %d: %s", query, got.status, got.body)
		}
	}
	h.call("GET", "/queues/coffee/push/deliveries", "").wantProblem(problem.PushNotFound)
}

func TestLogOfASourceHasNoProof(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.putSource("shop", `{"kind":"token","queue":"in","key":"{/id}","secrets":["the-good-token"],"max_body":1000}`)
	h.putSource("hub", `{"kind":"github","topic":"hub","secrets":["s3cret"]}`)
	h.putSource("ce", `{"kind":"cloudevents","queue":"in","secrets":["the-good-token"]}`)
	for _, c := range []struct {
		source, body, want string
		header             []string
	}{
		{"shop", `{"id":"a"}`, `{"result":"received","status":200,"events":1,"key":"a","size":10}`, []string{"Authorization", "Bearer the-good-token"}},
		{"shop", `{"id":"a"}`, `{"result":"duplicate","status":200,"events":1,"key":"a","size":10}`, []string{"Authorization", "Bearer the-good-token"}},
		{"shop", `{"id":"b"}`, `{"result":"rejected","code":"signature_mismatch","status":401,"events":0}`, []string{"Authorization", "Bearer the-bad-token"}},
		{"shop", `nonsense`, `{"result":"received","status":200,"events":1,"size":8}`, []string{"Authorization", "Bearer the-good-token"}},
		{"ce", `nonsense`, `{"result":"invalid","code":"invalid_cloudevent","status":400,"events":0,"size":8,"excerpt":"nonsense"}`, []string{"Authorization", "Bearer the-good-token", "Content-Type", "application/cloudevents+json"}},
		{"shop", strings.Repeat("x", 1001), `{"result":"rejected","code":"body_too_large","status":413,"events":0}`, []string{"Authorization", "Bearer the-good-token"}},
		{"hub", `{"password":"hunter2","n":1}`, `{"result":"rejected","code":"signature_mismatch","status":401,"events":0,"size":28,"excerpt":"{\"password\":\"[redacted]\",\"n\":1}"}`, []string{"X-Hub-Signature-256", "sha256=" + sign("wrong", "x")}},
		{"hub", `{"n":1}`, `{"result":"received","status":200,"events":1,"key":"d-9","size":7}`, []string{"X-Hub-Signature-256", "sha256=" + sign("s3cret", `{"n":1}`), "X-GitHub-Delivery", "d-9"}},
	} {
		before := len(h.logUntil("/sources/"+c.source+"/deliveries", 0))
		answer := h.deliver(c.source, c.body, c.header...)
		d := h.logUntil("/sources/"+c.source+"/deliveries", before+1)[0]
		if d["request_id"] != answer.header.Get("X-Request-Id") || d["address"] != "127.0.0.1" || d["at"] == nil || d["ms"] == nil || d["id"] == nil {
			t.Errorf("%s: got %v", c.body, d)
		}
		if (d["position"] != nil) != (c.source == "hub" && answer.status == http.StatusOK) || (d["event_id"] != nil) != (c.source == "shop" && answer.status == http.StatusOK) {
			t.Errorf("%s: got %v", c.body, d)
		}
		for _, field := range []string{"request_id", "address", "at", "ms", "id", "event_id", "position"} {
			delete(d, field)
		}
		var want map[string]any
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(d) != fmt.Sprint(want) {
			t.Errorf("%.20s: got %v, want %v", c.body, d, want)
		}
	}
	var stored string
	if err := h.connect().QueryRow(t.Context(), `select string_agg(d::text, ' ') from agent.source_delivery d`).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{"the-good-token", "the-bad-token", "sha256=", "hunter2"} {
		if strings.Contains(stored, secret) {
			t.Errorf("the log has %s", secret)
		}
	}
	h.logUntil("/sources/shop/deliveries?result=rejected&from=2020-01-01T00:00:00Z", 2)
	h.try("GET", "/sources/shop/deliveries?result=lost", "").wantProblem(problem.InvalidParameter)
	h.call("GET", "/sources/nobody/deliveries", "").wantProblem(problem.SourceNotFound)
	h.call("DELETE", "/sources/shop", "").want(http.StatusNoContent)
	h.call("GET", "/sources/shop/deliveries", "").wantProblem(problem.SourceNotFound)
}
