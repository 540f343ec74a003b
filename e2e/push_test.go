package e2e_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// A receiver takes pushes as one of webhooks would that uses the library of https://www.standardwebhooks.com.
type receiver struct {
	mu      sync.Mutex
	webhook *standardwebhooks.Webhook
	isDown  bool
	came    map[string][]string // the webhook-ids with which something came, by its data
	refused int                 // requests whose signatures were wrong
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		err = r.webhook.Verify(body, req.Header)
	}
	var message struct {
		Type string `json:"type"`
		Data struct {
			N string `json:"n"`
		} `json:"data"`
	}
	switch {
	case err != nil:
		r.refused++
		http.Error(w, err.Error(), http.StatusUnauthorized)
	case r.isDown:
		http.Error(w, "down", http.StatusInternalServerError)
	case json.Unmarshal(body, &message) != nil:
		http.Error(w, "no JSON", http.StatusUnprocessableEntity)
	default:
		what := strings.TrimSpace(message.Type + " " + message.Data.N)
		r.came[what] = append(r.came[what], req.Header.Get("Webhook-Id"))
	}
}

// set changes how requests are answered.
func (r *receiver) set(t *testing.T, secret string, isDown bool) {
	t.Helper()
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.webhook, r.isDown, r.refused = webhook, isDown, 0
}

// await waits until something has come n times, and returns its webhook-ids.
func (r *receiver) await(t *testing.T, what string, n int) (ids []string) {
	t.Helper()
	await(t, what, func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		ids = r.came[what]
		return len(ids) >= n
	})
	return ids
}

// number returns how many different things have come whose names begin so, and how many requests were refused.
func (r *receiver) number(prefix string) (n, refused int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for what := range r.came {
		if strings.HasPrefix(what, prefix) {
			n++
		}
	}
	return n, r.refused
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); time.Sleep(20 * time.Millisecond) { //nolint:forbidigo // there is no signal to wait on
		if time.Since(began) > limit {
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// TestWhateverGetsIntoAQueueIsPushed takes a push through the whole program: all ways into a queue, a rotation of the secret, an endpoint that fails, and
// restarts with and without events under way.
func TestWhateverGetsIntoAQueueIsPushed(t *testing.T) {
	t.Parallel()
	r := &receiver{came: make(map[string][]string)}
	endpoint := httptest.NewServer(r)
	t.Cleanup(endpoint.Close)
	database, address := newDatabase(t), freeAddress(t)
	serve := func() *process {
		return start(t, build(t), database, address, "QUEUED_PUSH_ALLOW=127.0.0.1", "QUEUED_SECRET_KEY=a-key-that-seals-secrets")
	}
	p := serve()
	secretOf := func(a answer) string {
		var push struct{ Secret string }
		if err := json.Unmarshal(a.body, &push); err != nil || push.Secret == "" {
			t.Fatalf("no secret: %s, %v", a.body, err)
		}
		return push.Secret
	}
	p.call(t, http.StatusOK, http.MethodPut, "/queues/out", `{"max_attempts":100,"backoff":{"kind":"constant","base":"10ms"}}`)
	first := secretOf(p.call(t, http.StatusCreated, http.MethodPut, "/queues/out/push", fmt.Sprintf(`{"url":%q,"max_in_flight":4}`, endpoint.URL)))
	r.set(t, first, false)
	p.call(t, http.StatusCreated, http.MethodPut, "/subscriptions/orders", `{"filters":[{"topics":["order.*"]}],"deliver":{"queue":"out","type":"order"}}`)
	p.call(t, http.StatusCreated, http.MethodPut, "/subscriptions/alerts", `{"filters":[{"topics":["queued.push.*"]}]}`)

	// The ways into a queue.
	post := func(kind, n string) {
		t.Helper()
		p.call(t, http.StatusCreated, http.MethodPost, "/events?queue=out&type="+kind, fmt.Sprintf(`{"n":%q}`, n))
	}
	post("posted", "1")
	p.call(t, http.StatusCreated, http.MethodPost, "/schedules", `{"queue":"out","type":"scheduled","event":{"n":"1"},"at":"`+time.Now().Add(time.Second).UTC().Format(time.RFC3339Nano)+`"}`)
	p.call(t, http.StatusCreated, http.MethodPost, "/topics/order.paid", `{"n":"1"}`)
	r.await(t, "scheduled 1", 1)
	r.await(t, "order 1", 1)
	r.await(t, "posted 1", 1)
	var done struct{ Events []struct{ ID int64 } }
	await(t, "the event is in history", func() bool {
		_ = json.Unmarshal(p.call(t, http.StatusOK, http.MethodGet, "/history?queue=out&type=posted", "").body, &done)
		return len(done.Events) == 1
	})
	p.call(t, http.StatusCreated, http.MethodPost, fmt.Sprintf("/history/%d/requeue", done.Events[0].ID), "")
	if ids := r.await(t, "posted 1", 2); ids[0] != ids[1] {
		t.Errorf("a requeued event came as %s, and before as %s", ids[1], ids[0])
	}

	// The rotation: the receiver changes its secret when it wants, until that before ends.
	second := secretOf(p.call(t, http.StatusOK, http.MethodPost, "/queues/out/push/secret", `{"keep":"1h"}`))
	post("rotated", "1")
	r.await(t, "rotated 1", 1)
	r.set(t, second, false)
	post("rotated", "2")
	r.await(t, "rotated 2", 1)
	third := secretOf(p.call(t, http.StatusOK, http.MethodPost, "/queues/out/push/secret", `{"keep":"0s"}`))
	post("rotated", "3")
	await(t, "what is signed with a secret that nobody knows is refused", func() bool { _, refused := r.number(""); return refused > 0 })
	r.set(t, third, false)
	r.await(t, "rotated 3", 1)

	// A restart while events are under way.
	const many = 500
	batch := func(kind string) {
		t.Helper()
		var events []string
		for i := range many {
			events = append(events, fmt.Sprintf(`{"queue":"out","type":%q,"event":{"n":"%d"}}`, kind, i))
		}
		p.call(t, http.StatusCreated, http.MethodPost, "/events/batch", `{"events":[`+strings.Join(events, ",")+`]}`)
	}
	batch("under-way")
	await(t, "some have come", func() bool { n, _ := r.number("under-way "); return n > 0 })
	p.end(t, syscall.SIGTERM)
	if n, _ := r.number("under-way "); n == many {
		t.Log("all events had come before the restart")
	}
	p = serve()
	await(t, "all have come", func() bool { n, _ := r.number("under-way "); return n == many })

	// An endpoint that fails, and a restart meanwhile.
	alert := func(want string) {
		t.Helper()
		var page struct {
			Cursor string
			Events []struct {
				Topic string
				Event struct{ Queue string }
			}
		}
		body := p.call(t, http.StatusOK, http.MethodPost, "/subscriptions/alerts/read", `{"wait":"60s"}`).body
		if err := json.Unmarshal(body, &page); err != nil || len(page.Events) != 1 || page.Events[0].Topic != want || page.Events[0].Event.Queue != "out" {
			t.Fatalf("got %s, %v; want %s", body, err, want)
		}
		p.call(t, http.StatusOK, http.MethodPost, "/subscriptions/alerts/commit", fmt.Sprintf(`{"cursor":%q}`, page.Cursor))
	}
	r.set(t, third, true)
	batch("kept")
	alert("queued.push.opened")
	p.end(t, syscall.SIGTERM)
	r.set(t, third, false)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	// The half minute until the probe passes.
	if _, err := conn.Exec(t.Context(), `update agent.push_state set retry_at = clock_timestamp() where queue = 'out' and opened_at is not null`); err != nil {
		t.Error(err)
	}
	_ = conn.Close(t.Context())
	p = serve()
	alert("queued.push.closed")
	await(t, "all have come", func() bool { n, _ := r.number("kept "); return n == many })
	await(t, "all are done", func() bool {
		text := p.call(t, http.StatusOK, http.MethodGet, "/events?queue=out", "").body
		return strings.Contains(string(text), `"events":[]`)
	})
	if text := p.call(t, http.StatusOK, http.MethodGet, "/history?queue=out&outcome=failed", "").body; !strings.Contains(string(text), `"events":[]`) {
		t.Errorf("events have failed: %s", text)
	}
}
