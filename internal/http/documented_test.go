package http

import (
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/webhook"
)

// A route is an operation with a request for it that is well-formed.
type route struct {
	id, method, path, body string
	pattern                string // of the path
}

// everyRoute returns a request for each operation of the contract.
func everyRoute(t *testing.T) []route {
	t.Helper()
	bodies := map[string]string{
		"insert":          `{"a":1}`,
		"insertBatch":     `{"events":[{"event":{"a":1}}]}`,
		"postCloudEvents": ce("1", ""),
		"ackBatch":        `{"events":[{"id":7}]}`,
		"nack":            `{"receipt":"7.1.1"}`,
		"extend":          `{"receipt":"7.1.1"}`,
		"extendBatch":     `{"events":[{"id":7,"receipt":"7.1.1"}]}`,
		"release":         `{"receipt":"7.1.1"}`,
		"releaseBatch":    `{"events":[{"id":7,"receipt":"7.1.1"}]}`,
		"requeueMatching": `{"outcome":"failed"}`,
		"createRedrive":   `{"filter":{"outcome":"failed"}}`,
		"moveEvents":      `{"to":"elsewhere"}`,
		"patchQueue":      `{}`,
		"putPlacement":    `{"cells":[1]}`,
		"insertForwarded": `{"events":[{"id":1,"event":{},"publication":{"forward":{"queue":"q"}}}]}`,
		"putKeyCopies":    `{"keys":[{"id":"k3x7q2ac"}]}`,
		"putQueueCopies":  `{"queues":[{"queue":"copied","policy":{}}]}`,
		"leaveKeys":       `{"keys":["k"]}`,
		"drainPlacement":  `{"cells":[1]}`,
		"putPush":         `{"url":"http://127.0.0.1:1"}`,
		"createSchedule":  `{"event":{},"at":"2100-01-01T00:00:00","timezone":"Europe/Berlin"}`,
		"previewSchedule": `{"cron":"@daily","timezone":"Europe/Berlin"}`,
		"putOwner":        `{"timezone":"Europe/Berlin"}`,
		"publish":         `{"a":1}`,
		"match":           `{"filter":{"topics":["a"]},"last":1}`,
		"publishBatch":    `{"events":[{"topic":"a","event":{"a":1}}]}`,
		"createKey":       `{"name":"first","scopes":["admin"]}`,

		"createStreamToken": `{"topics":["a"]}`,
		"putSource":         `{"kind":"token","queue":"in","secrets":["a secret"]}`,

		"putSubscription":    `{"filters":[{"topics":["a"]}]}`,
		"commitCursor":       `{"cursor":"AAcBAgOBgICAEBckJ9AG-Q"}`, // of an event of a subscription mail that there is not
		"seekSubscription":   `{"to":7}`,
		"replaySubscription": `{"from":0}`,
	}
	var routes []route
	operations(loadSpec(t), func(method, path string, op *openapi3.Operation) {
		pattern := path
		path = strings.NewReplacer("/owners/{id}", "/owners/ada", "/keys/{id}", "/keys/k3x7q2ab", "{id}", "7", "{number}", "7", "{name}", "mail", "{asset}", "init.js", "{topic}", "a.b", "{filter}", "large", "{position}", "7").Replace(path)
		routes = append(routes, route{op.OperationID, method, path, bodies[op.OperationID], pattern})
	})
	return routes
}

func (r route) isHealth() bool { return r.path == "/livez" || r.path == "/readyz" }
func (r route) writes() bool   { return r.method != "GET" && r.method != "OPTIONS" }

// isWebhook reports whether the call proves itself to a source.
func (r route) isWebhook() bool { return r.pattern == "/in/{name}" }

// usesDatabase reports whether the call cannot be answered without the database.
func (r route) usesDatabase() bool {
	switch r.id {
	case "livez", "readyz", "metrics", "showVersion", "openapi", "docs", "docsAsset", "index", "getOwnKey", "createStreamToken":
		return false
	default:
		return true
	}
}

// TestEveryDocumentedResponseIsReturned provokes every status of every operation in the contract,
// and checks the responses against it.
func TestEveryDocumentedResponseIsReturned(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	routes := everyRoute(t)

	open := setupWith(t, settings{seen: seen})
	provokeSuccesses(open)
	provokeConflicts(open)
	provokeSchedules(open)
	provokeJobs(open)
	provokeRedrives(open)
	provokeTopics(open)
	provokeStreams(open)
	provokeSubscriptions(open)
	provokeSubscribedStreams(open)
	provokePushes(open)
	provokeSources(open, seen)
	provokePlacements(open)
	provokeCells(open)
	provokeQueueCopies(open)
	provokeKeyCopies(open)
	provokeNotHome(setupWith(t, settings{seen: seen, cell: inCell(3)}))
	declared := setupWith(t, settings{seen: seen, queue: declaredOnly})
	declared.call("PUT", "/queues/orders", `{}`).want(200)
	provokeUndeclared(t, declared)
	for _, r := range routes {
		if r.isWebhook() { // which takes anything
			continue
		}
		if got := open.try(r.method, r.path+"?nonsense=1", r.body).wantProblem(problem.UnknownParameter); len(got.Errors) != 1 {
			t.Errorf("%s: got %+v", r.id, got)
		}
		if r.writes() {
			open.with("Sec-Fetch-Site", "cross-site").try(r.method, r.path, r.body).wantProblem(problem.CrossOrigin)
			open.with("Content-Type", "application/xml").try(r.method, r.path, "<a/>").wantProblem(problem.UnsupportedMediaType)
			if r.id != "postCloudEvents" { // where any list is a batch of them
				open.try(r.method, r.path, `[]`).wantProblem(problem.ValidationFailed)
			}
			open.try(r.method, r.path, `{"a":"`+strings.Repeat("x", 9<<20)+`"}`).wantProblem(problem.BodyTooLarge)
		}
	}

	keyed := setupWith(t, settings{seen: seen, keys: func(cfg *access.Config) { cfg.Key = "secret" }})
	provokeAccess(keyed, routes)
	provokeForeignSource(keyed)
	local := setupWith(t, settings{seen: seen, http: func(cfg *Config) { cfg.LoopbackOnly = true }})
	for _, r := range routes {
		if !r.isHealth() {
			if !r.isWebhook() {
				keyed.try(r.method, r.path, r.body).wantProblem(problem.Unauthorized)
			}
			local.with("Host", "evil.example").try(r.method, r.path, r.body).wantProblem(problem.HostNotAllowed)
		}
	}

	broken := setupWith(t, settings{seen: seen, queue: func(cfg *queue.Config) { cfg.PollInterval = time.Hour }})
	broken.sql("alter schema agent rename to elsewhere")
	for _, r := range routes {
		if r.usesDatabase() {
			broken.try(r.method, r.path, r.body).wantProblem(problem.Internal)
		}
	}
	broken.try("GET", "/readyz", "").wantProblem(problem.NotReady)

	away := setupWith(t, settings{seen: seen})
	away.db.Disconnect(t)
	for _, r := range routes {
		if r.usesDatabase() {
			if got := away.try(r.method, r.path, r.body); got.header.Get("Retry-After") == "" {
				t.Errorf("%s: no Retry-After", r.id)
			} else {
				got.wantProblem(problem.DatabaseUnavailable)
			}
		}
	}
	away.try("GET", "/readyz", "").wantProblem(problem.DatabaseUnavailable)
	away.try("GET", "/livez", "").want(200)
	for _, r := range routes { // which have a key that may be new
		if !r.isHealth() && !r.isWebhook() && !r.usesDatabase() {
			away.key(unknownKey()).try(r.method, r.path, r.body).wantProblem(problem.DatabaseUnavailable)
		}
	}

	documented := make(map[string]bool)
	operations(loadSpec(t), func(_, _ string, op *openapi3.Operation) {
		for status := range op.Responses.Map() {
			documented[op.OperationID+" "+status] = true
		}
	})
	if diff := cmp.Diff(slices.Sorted(maps.Keys(documented)), slices.Sorted(maps.Keys(seen))); diff != "" {
		t.Errorf("(-documented +seen)\n%s", diff)
	}
}

func provokeSuccesses(h *environment) {
	h.call("GET", "/history/stats", "").want(200)
	id := h.insert(`{"n":1}`)
	h.call("POST", "/events/batch", `{"events":[{"event":{"n":2},"delay":"1h"}]}`).want(201)
	h.call("GET", "/events?state=ready", "").want(200)
	h.call("GET", "/queues", "").want(200)
	h.call("GET", "/queues?name_contains=wor", "").want(200)
	lease := h.claimOne()
	h.call("POST", fmt.Sprintf("/events/%d/extend", id), fmt.Sprintf(`{"receipt":%q}`, lease.Receipt)).want(200)
	h.call("POST", "/extend", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}],"invisible_for":"1h"}`, id, lease.Receipt)).want(200)
	h.call("POST", fmt.Sprintf("/events/%d/release", id), fmt.Sprintf(`{"receipt":%q}`, lease.Receipt)).want(200)
	lease = h.claimOne()
	h.call("POST", "/release", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q}]}`, id, lease.Receipt)).want(200)
	lease = h.claimOne()
	h.call("POST", fmt.Sprintf("/events/%d/nack", id), fmt.Sprintf(`{"receipt":%q}`, lease.Receipt)).want(200)
	h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200)
	h.call("GET", "/history?contains="+url.QueryEscape(`{"n":1}`), "").want(200)
	for _, path := range []string{"/history?contains=", "/events?meta="} {
		h.call("GET", path+url.QueryEscape(`{"n":"\u0000"}`), "").wantProblem(problem.Unrepresentable)
	}
	copied := decode[seenEvent](h.call("POST", fmt.Sprintf("/history/%d/requeue", id), "").want(201)).ID
	h.call("POST", "/history/requeue", `{"outcome":"done"}`).want(200)
	h.call("POST", fmt.Sprintf("/history/%d/requeue", id), "").wantProblem(problem.EventRequeued)
	h.call("POST", "/ack", fmt.Sprintf(`{"events":[{"id":%d}]}`, copied)).want(200)
	h.call("POST", "/sweep", "").want(200)
	h.call("POST", "/cell/events", `{"events":[{"id":1,"event":{},"publication":{"forward":{"queue":"q"}}}]}`).want(200)
	for _, path := range []string{"/livez", "/readyz", "/version", "/cell", "/cell/queues", "/cell/keys", "/cell/settings", "/metrics", "/"} {
		h.call("GET", path, "").want(200)
	}
	h.with("Accept", "text/html").call("GET", "/", "").want(303)
	paths := []string{"/openapi.yaml", "/docs"}
	for name := range docsAssets {
		paths = append(paths, "/docs/"+name)
	}
	for _, path := range paths {
		etag := h.call("GET", path, "").want(200).header.Get("Etag")
		h.with("If-None-Match", etag).call("GET", path, "").want(304)
	}
	h.call("GET", "/docs/nothing.js", "").wantProblem(problem.NotFound)
}

func provokeJobs(h *environment) {
	for _, status := range []int{201, 200} {
		h.with("Idempotency-Key", `"k1"`).call("POST", "/events?queue=work&type=a&source=s&priority=-1&max_attempts=2&expires_at=2100-01-01T00:00:00Z", `{"n":4}`).want(status)
		h.call("POST", "/events/batch", `{"events":[{"event":{"n":5},"queue":"work","key":"k2","type":"b","source":"s","priority":1,"max_attempts":2,"expires_at":"2100-01-01T00:00:00Z"}]}`).want(status)
	}
	for _, status := range []int{201, 200} {
		h.call("POST", "/cloudevents?queue=ce", ce("1", "")).want(status)
	}
	h.try("POST", "/cloudevents", `{}`).wantProblem(problem.InvalidCloudEvent)
	h.call("POST", "/cloudevents", ce("1", `,"time":"1970-01-01T00:00:00Z"`)).wantProblem(problem.ValidationFailed)
	h.call("GET", "/events?queue=work", "").want(200)
	raw := decode[seenEvent](h.call("POST", "/events?queue=raw&keep_raw=1h", `{ "n": 6 }`).want(201)).ID
	h.call("GET", fmt.Sprintf("/events/%d/raw", raw), "").want(200)
	e := h.claimOneBy(`{"queue":"work","types":["a"],"exclude_ids":[1],"worker":"w"}`)
	h.call("GET", fmt.Sprintf("/events/%d/attempts", e.ID), "").want(200)
	h.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), fmt.Sprintf(`{"receipt":%q,"result":[1]}`, e.Receipt)).want(200)
	h.call("GET", "/history?type=a&source=s&worker=w&cause=no+%3Cid%3E&min_duration=0s&finished_from=2026-01-01T00:00:00Z&finished_to=9999-01-01T00:00:00Z", "").want(200)
	h.call("PUT", "/queues/work", `{"max_attempts":5,"invisible_for":"1m","backoff":{"kind":"linear","base":"1s","factor":null,"max":null,"jitter":0.5},"history_retention":"720h"}`).want(200)
	h.with("If-None-Match", "*").call("PUT", "/queues/work", `{}`).wantProblem(problem.PreconditionFailed)
	h.call("PATCH", "/queues/work", `{"max_attempts":null,"backoff":{"base":"2s","max":"1m"},"flow":{"concurrency":2},"wait":null}`).want(200)
	h.with("If-Match", `"1"`).call("PATCH", "/queues/work", `{"wait":"1s"}`).wantProblem(problem.PreconditionFailed)
	h.with("If-Match", h.call("GET", "/queues/work", "").want(200).header.Get("Etag")).call("PUT", "/queues/work", `{}`).want(200)
	later := decode[seenEvent](h.call("POST", "/events?queue=work&delay=1h", `{"n":7}`).want(201)).ID
	h.call("POST", fmt.Sprintf("/events/%d/run", later), "").want(200)
	h.call("POST", fmt.Sprintf("/events/%d/run", e.ID), "").wantProblem(problem.EventEnded)
	h.call("POST", "/queues/work/run", `{"types":["x"],"nacked_only":true,"limit":1}`).want(200)
	h.call("POST", "/queues/work/move", `{"to":"other","types":["x"],"limit":1}`).want(200)
	for _, verb := range []string{"pause", "resume", "purge"} {
		h.call("POST", "/queues/work/"+verb, "").want(200)
	}
	h.call("PUT", "/queues/work/groups/ada", `{"concurrency":2,"hold":"1s"}`).want(200)
	h.with("If-None-Match", "*").call("PUT", "/queues/work/groups/ada", `{}`).wantProblem(problem.PreconditionFailed)
	h.call("GET", "/queues/work/groups/ada", "").want(200)
	h.call("GET", "/queues/work/groups?state=blocked&sort=waiting", "").want(200)
	h.with("If-Match", `"1"`).call("DELETE", "/queues/work/groups/ada", "").wantProblem(problem.PreconditionFailed)
	h.call("DELETE", "/queues/work/groups/ada", "").want(204)
	h.call("POST", "/queues/work/groups/ada/unblock", "").want(200)
	h.insertWith("queue=unwanted")
	h.call("DELETE", "/queues/unwanted", "").wantProblem(problem.QueueNotEmpty)
	h.with("If-Match", `"1"`).call("DELETE", "/queues/unwanted", "").wantProblem(problem.PreconditionFailed)
	h.call("DELETE", "/queues/unwanted?purge=true", "").want(200)
	h.call("DELETE", "/queues/unwanted?purge=true", "").wantProblem(problem.QueueNotFound)
	h.call("GET", "/stats/executions?type=a&worker=", "").want(200)
	h.call("GET", "/queues/a/stats?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z&bucket=10m", "").want(200)
	h.call("GET", "/stats/queues?from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z&bucket=10m&order=oldest&limit=1&offset=1&name_contains=a", "").want(200)
	h.call("GET", "/stats/processes", "").want(200)
	h.call("GET", "/stats/workers?lately=2h&limit=10", "").want(200)
	h.call("GET", "/stats/holders", "").want(200)
	h.call("GET", "/history/errors?type=a&limit=5&finished_from=2026-01-01T00:00:00Z&finished_to=9999-01-01T00:00:00Z", "").want(200)

	h.with("Idempotency-Key", "k1").call("POST", "/events?queue=work", `{"n":4}`).wantProblem(problem.KeyReused)
	h.call("POST", "/events/batch", `{"events":[{"event":{},"queue":"work","key":"k1"}]}`).wantProblem(problem.KeyReused)
	h.call("POST", "/cell/queues/work/keys", `{"keys":["k1","left"]}`).want(200)
	left := h.with("Idempotency-Key", "left").call("POST", "/events?queue=work", `{}`)
	if left.wantProblem(problem.KeyLeft); left.header.Get("Retry-After") == "" {
		h.t.Error("no Retry-After")
	}
	h.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), `{"receipt":"x"}`).wantProblem(problem.LeaseLost)
	h.call("POST", "/events/1152921504606846976/ack", `{"receipt":"x"}`).wantProblem(problem.EventNotFound)
	h.call("GET", "/events/1152921504606846976/attempts", "").wantProblem(problem.EventNotFound)
	h.call("GET", "/events/1152921504606846976/raw", "").wantProblem(problem.RawBodyNotFound)
}

func provokeRedrives(h *environment) {
	for range 3 {
		h.insertWith("queue=redriven")
	}
	h.call("POST", "/queues/redriven/purge", "").want(200)
	h.call("POST", "/redrives", `{"filter":{"queue":"redriven"},"dry_run":true}`).want(200)
	const body = `{"filter":{"queue":"redriven","outcome":"cancelled","from":"2026-01-01T00:00:00Z"},"to":"redriven.again","rate":0.01}`
	h.call("POST", "/redrives", `{"queue":"redriven","to":"redriven"}`).wantProblem(problem.ValidationFailed)
	var made redrive
	for _, status := range []int{202, 200} {
		made = decode[redrive](h.with("Idempotency-Key", "r1").call("POST", "/redrives", body).want(status))
	}
	h.with("Idempotency-Key", "r1").call("POST", "/redrives", `{"filter":{"queue":"redriven"}}`).wantProblem(problem.KeyReused)
	path := fmt.Sprintf("/redrives/%d", made.ID)
	h.call("GET", path, "").want(200)
	h.call("GET", "/redrives?state=running&limit=1", "").want(200)
	for _, verb := range []string{"pause", "resume", "cancel"} {
		h.call("POST", path+"/"+verb, "").want(200)
		h.call("POST", "/redrives/1152921504606846976/"+verb, "").wantProblem(problem.RedriveNotFound)
	}
	h.call("GET", "/redrives/1152921504606846976", "").wantProblem(problem.RedriveNotFound)
	h.sql("insert into agent.redrive (created_by, caller, last_id, state) select r.created_by, r.caller, 0, 'paused' from agent.redrive r, generate_series(1, 100)")
	h.call("POST", "/redrives", body).wantProblem(problem.TooManyRedrives)
	h.sql("update agent.redrive set state = 'done'")
	for _, verb := range []string{"pause", "resume", "cancel"} {
		h.call("POST", path+"/"+verb, "").wantProblem(problem.RedriveEnded)
	}
}

func provokeConflicts(h *environment) {
	id := h.insert(`{"n":3}`)
	h.claimOne()
	for at, k := range map[int64]problem.Type{id: problem.LeaseLost, 1 << 60: problem.EventNotFound} {
		h.call("DELETE", fmt.Sprintf("/events/%d?receipt=x", at), "").wantProblem(k)
		h.call("POST", fmt.Sprintf("/events/%d/nack", at), `{"receipt":"x"}`).wantProblem(k)
		h.call("POST", fmt.Sprintf("/events/%d/extend", at), `{"receipt":"x"}`).wantProblem(k)
		h.call("POST", fmt.Sprintf("/events/%d/release", at), `{"receipt":"x"}`).wantProblem(k)
	}
	h.call("POST", fmt.Sprintf("/events/%d/run", id), "").wantProblem(problem.EventLeased)
	h.call("POST", "/events/1152921504606846976/run", "").wantProblem(problem.EventNotFound)
	h.call("GET", "/events/1152921504606846976", "").wantProblem(problem.EventNotFound)
	h.call("POST", "/history/1152921504606846976/requeue", "").wantProblem(problem.EventNotFound)
}

func TestSlowQueryIsAProblem(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{queue: func(cfg *queue.Config) { cfg.QueryTimeout = 50 * time.Millisecond }})
	tx, err := h.connect().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []string{"agent.event", "agent.event_hist"} {
		if _, err := tx.Exec(t.Context(), "lock table "+table+" in access exclusive mode"); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/events", "/history", "/history/stats", "/queues"} {
		h.call("GET", path, "").wantProblem(problem.QueryTimeout)
	}
	h.call("POST", "/history/requeue", `{"outcome":"failed"}`).wantProblem(problem.QueryTimeout)
	metrics := h.call("GET", "/metrics", "").want(http.StatusOK)
	if !strings.Contains(metrics.body, "\nqueued_queues_counted 0\n") || !strings.Contains(metrics.body, "\ngo_goroutines ") {
		t.Errorf("the metrics without the counts of queues are\n%s", metrics.body)
	}
}

func TestEveryCallIsAnsweredInTimeWhenTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{
		http:    func(cfg *Config) { cfg.RequestTimeout = 500 * time.Millisecond },
		queue:   func(cfg *queue.Config) { cfg.QueryTimeout, cfg.LockTimeout = time.Hour, time.Hour },
		plans:   func(cfg *schedule.Config) { cfg.QueryTimeout = time.Hour },
		sources: func(cfg *webhook.Config) { cfg.QueryTimeout, cfg.TimeLimit = time.Hour, 500*time.Millisecond },
	})
	locked := pgtest.LockTables(t, h.connect())
	var all sync.WaitGroup
	for _, r := range everyRoute(t) {
		if !r.usesDatabase() || r.id == "previewSchedule" { // reads no table
			continue
		}
		all.Go(func() {
			got := h.try(r.method, r.path, r.body)
			if got.status != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
				t.Errorf("%s: got %d with Retry-After %q, want 503: %s", r.id, got.status, got.header.Get("Retry-After"), got.body)
			}
		})
	}
	all.Wait() // none of them got a connection
	h.try("GET", "/livez", "").want(http.StatusOK)
	if err := locked.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
