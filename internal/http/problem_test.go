package http

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/webhook"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", "problems", name+".json")
	if *update {
		if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got+"\n"); diff != "" {
		t.Errorf("%s (-want +got)\n%s", path, diff)
	}
}

// testdata/problems has a document of each problem type; -update rewrites them.
func TestProblemDocumentsAreUnchanged(t *testing.T) {
	t.Parallel()
	h := setup(t)
	keyed := setupWith(t, settings{keys: func(cfg *access.Config) { cfg.Key = "secret" }})
	local := setupWith(t, settings{http: func(cfg *Config) { cfg.LoopbackOnly = true }})
	certified := setupWith(t, settings{http: func(cfg *Config) { cfg.VerifyClient = refuseClient }})
	id := h.insert(`{}`)
	reader := keyed.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}})
	slow := keyed.createKey(access.CreateParams{Scopes: []access.Scope{access.Read}, Rate: &access.Rate{PerSecond: 0.001, Burst: 1}})
	keyed.key(slow).try("GET", "/keys/self", "").want(200)
	seen := make(map[string]bool)
	for name, got := range map[string]answer{
		"invalid_json":           h.try("POST", "/events", `{"a":1,}`),
		"invalid_json-empty":     h.try("POST", "/events", ""),
		"invalid_json-duplicate": h.try("POST", "/events", `{"a":{"b":1,"b":1}}`),
		"invalid_parameter":      h.try("GET", "/history?limit=0&from=yesterday&contains=%7B%7D", ""),
		"invalid_parameter-id":   h.try("GET", "/events/9223372036854775808", ""),
		"unknown_parameter":      h.try("GET", "/events?que=mail", ""),
		"invalid_cursor":         h.try("GET", "/keys?cursor=x", ""),
		"invalid_cloudevent":     h.try("POST", "/cloudevents", `{"specversion":"1.0","id":"1","source":"my shop","partitionKey":1}`),
		"unauthorized":           keyed.try("POST", "/claim", ""),
		"cross_origin":           h.with("Origin", "https://evil.example").try("POST", "/claim", ""),
		"not_found":              h.try("GET", "/nothing", ""),
		"event_not_found":        h.try("GET", "/events/4711", ""),
		"raw_body_not_found":     h.try("GET", "/events/4711/raw", ""),
		"source_not_found":       h.try("GET", "/sources/nothing", ""),
		"ids_exhausted":          failWith(t, fmt.Errorf("inserting: %w", queue.ErrIDsExhausted)),
		"source_paused":          failWith(t, fmt.Errorf("receiving: %w", webhook.ErrPaused)),
		"webhook_rejected":       failWith(t, problemOfDelivery(&webhook.RejectedError{Code: "too_old", Reason: "secret text"})),
		"schedule_not_found":     h.try("GET", "/schedules/4711", ""),
		"owner_not_found":        h.try("GET", "/owners/nobody", ""),
		"position_not_found":     h.try("GET", "/log/4711", ""),
		"subscription_not_found": h.try("GET", "/subscriptions/nothing", ""),
		"filter_not_found":       failWith(t, fmt.Errorf("deleting: %w", topic.ErrFilterNotFound)),
		"cursor_lost":            failWith(t, fmt.Errorf("committing: %w", topic.ErrCursorLost)),
		"wrong_delivery":         failWith(t, fmt.Errorf("reading: %w", topic.ErrWrongDelivery)),
		"filter_refused":         h.try("GET", "/log?topic=order.**.late&match=%7B%22total%22:%5B%7B%22numerc%22:1%7D%5D%7D", ""),
		"method_not_allowed":     h.try("PUT", "/events", "{}"),
		"lease_lost":             h.try("DELETE", fmt.Sprintf("/events/%d?receipt=x", id), ""),
		"event_leased":           failWith(t, fmt.Errorf("running: %w", queue.ErrLeased)),
		"event_ended":            failWith(t, fmt.Errorf("running: %w", queue.ErrEnded)),
		"event_requeued":         failWith(t, fmt.Errorf("requeueing: %w", &queue.RequeuedError{Copy: 7})),
		"redrive_not_found":      h.try("GET", "/redrives/4711", ""),
		"redrive_ended":          failWith(t, fmt.Errorf("pausing: %w", queue.ErrRedriveEnded)),
		"too_many_redrives":      failWith(t, fmt.Errorf("creating: %w", queue.ErrTooManyRedrives)),
		"queue_not_found":        h.try("DELETE", "/queues/nothing", ""),
		"queue_not_empty":        h.try("DELETE", "/queues/default", ""),
		"queue_not_declared":     failWith(t, fmt.Errorf("inserting: %w", &queue.UndeclaredError{Queue: "ordres"})),
		"queue_leased":           failWith(t, fmt.Errorf("deleting: %w", queue.ErrQueueLeased)),
		"queue_in_use":           failWith(t, fmt.Errorf("deleting: %w", queue.ErrQueueInUse)),
		"dead_letter_chain":      failWith(t, fmt.Errorf("setting: %w", queue.ErrDeadLetterChain)),
		"key_expired":            failWith(t, fmt.Errorf("asking: %w", access.ErrExpired)),
		"key_revoked":            failWith(t, fmt.Errorf("asking: %w", access.ErrRevoked)),
		"placement_not_found":    h.try("GET", "/queues/nothing/placement", ""),
		"cell_not_found":         h.try("DELETE", "/cells/9", ""),
		"cell_in_use":            failWith(t, fmt.Errorf("deleting: %w", cell.ErrInUse)),
		"key_left":               failWith(t, fmt.Errorf("inserting: %w", queue.ErrKeyLeft)),
		"not_home":               failWith(t, fmt.Errorf("placing: %w", cell.ErrNotHome)),
		"push_not_found":         h.try("GET", "/queues/nothing/push", ""),
		"sealing_unavailable":    failWith(t, fmt.Errorf("setting: %w", push.ErrNoSealer)),
		"key_not_found":          failWith(t, fmt.Errorf("revoking: %w", access.ErrNotFound)),
		"key_ended":              failWith(t, fmt.Errorf("rotating: %w", access.ErrInactive)),
		"last_admin_key":         failWith(t, fmt.Errorf("revoking: %w", access.ErrLastAdmin)),
		"forbidden":              keyed.key(reader).try("POST", "/claim", ""),
		"rate_limited":           keyed.key(slow).try("GET", "/keys/self", ""),
		"schedule_ended":         failWith(t, fmt.Errorf("pausing: %w", schedule.ErrEnded)),
		"precondition_failed":    failWith(t, fmt.Errorf("changing: %w", schedule.ErrStale)),
		"idempotency_key_reused": failWith(t, fmt.Errorf("inserting: %w", queue.ErrKeyReused)),
		"body_too_large":         h.try("POST", "/events", strings.Repeat(" ", 1<<20+1)),
		"unsupported_media_type": h.with("Content-Type", "application/xml").try("POST", "/events", "<a/>"),
		"host_not_allowed":       local.with("Host", "evil.example").try("GET", "/queues", ""),
		"validation_failed":      h.try("POST", "/claim", `{"wait":"10 minutes","limit":0,"lease":"1m"}`),
		"unrepresentable":        h.try("POST", "/events/batch", `{"events":[{"event":{}},{"event":{"a":{"b":"\u0000"}}}]}`),
		"too_deep":               h.try("POST", "/events", nested(65)),
		"batch_too_large":        h.try("POST", "/ack", `{"events":[{"id":1}`+strings.Repeat(`,{"id":1}`, 1000)+`]}`),
		"internal":               failWith(t, errors.New("secret text")),
		"query_timeout":          failWith(t, fmt.Errorf("listing: %w", queue.ErrQueryTimeout)),
		"database_unavailable":   failWith(t, fmt.Errorf("claiming: %w: secret text", queue.ErrUnavailable)),
		"overloaded":             failWith(t, fmt.Errorf("writing: %w", queue.ErrOverloaded)),
		"locked":                 failWith(t, fmt.Errorf("nacking: %w: secret text", queue.ErrLocked)),
		"validation_failed-zone": h.try("POST", "/schedules", `{"event":{},"at":"2027-03-28T09:00:00","timezone":"Europe/Atlantis"}`),
		"validation_failed-late": failWith(t, fmt.Errorf("inserting: %w", &queue.InvalidError{Field: "vt", Detail: "must be finite"})),

		"client_certificate_required": certified.try("POST", "/claim", ""),
	} {
		code, _, _ := strings.Cut(name, "-")
		p := decode[problem.Document](got)
		if p.Code != code || p.Status != got.status {
			t.Errorf("%s has the body %s", name, got.body)
		}
		seen[code] = true
		golden(t, name, strings.Replace(got.body, p.RequestID, "REQUEST-ID", 1))
	}
	for _, k := range kinds {
		if !seen[k.Code] && k != problem.NotReady {
			t.Errorf("%s has no golden file", k.Code)
		}
	}
}

// failWith is the answer to a call that fails with err.
func failWith(t *testing.T, err error) answer {
	t.Helper()
	return ask(t, New(Config{}), func(w http.ResponseWriter, r *http.Request) { fail(w, r, err) }, "")
}

func TestUnknownPathsAndMethodsAreProblems(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, path := range []string{"/nothing", "/events/", "/events/1/", "/events/1/work", "/EVENTS", "//events", "/history/1", "/docs/", "/docs/../events", "/favicon.ico"} {
		h.try("GET", path, "").wantProblem(problem.NotFound)
	}
	for call, allow := range map[string]string{
		"PUT /events": "GET, HEAD, POST", "DELETE /events": "GET, HEAD, POST", "PATCH /events/1": "GET, HEAD, DELETE", "GET /claim": "POST", "HEAD /claim": "POST",
		"GET /events/1/nack": "POST", "GET /history/1/requeue": "POST", "POST /history": "GET, HEAD", "DELETE /history/stats": "GET, HEAD",
		"POST /livez": "GET, HEAD", "OPTIONS /sweep": "POST", "BREW /sweep": "POST", "TRACE /": "GET, HEAD", "POST /docs/init.js": "GET, HEAD", "PUT /events/batch": "GET, HEAD, POST, DELETE",
	} {
		method, path, _ := strings.Cut(call, " ")
		got := h.try(method, path, "")
		if got.status != 405 || got.header.Get("Allow") != allow {
			t.Errorf("%s returned %d, Allow %q, want %q", call, got.status, got.header.Get("Allow"), allow)
		}
		if method != "HEAD" {
			got.wantProblem(problem.MethodNotAllowed)
		}
	}
}

func TestHeadIsGetWithoutItsBody(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, path := range []string{"/queues", "/livez", "/docs", "/openapi.yaml", "/metrics"} {
		if got := h.try("HEAD", path, ""); got.status != 200 || got.body != "" || got.header.Get("Content-Type") == "" {
			t.Errorf("HEAD %s returned %d %q", path, got.status, got.body)
		}
	}
	if got := h.try("HEAD", "/events/99", ""); got.status != 404 {
		t.Errorf("HEAD of an unknown event returned %d", got.status)
	}
}

func TestBodyOfAGetIsIgnored(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.try("GET", "/queues", `{"a`).want(200)
}

// ask calls a handler behind the server's observe middleware.
func ask(t *testing.T, s *Server, handler http.HandlerFunc, requestID string) answer {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/somewhere?secret=1", nil)
	if requestID != "" {
		r.Header.Set("X-Request-Id", requestID)
	}
	s.observe(nil, handler).ServeHTTP(w, r)
	return answer{t: t, status: w.Code, header: w.Header(), body: strings.TrimSuffix(w.Body.String(), "\n")}
}
