package http

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/problem"
)

// Bodies that every call refuses.
var badBodies = map[string]string{
	"broken":          `{"a":`,
	"not JSON":        `a=1&b=2`,
	"trailing bytes":  `{} x`,
	"two values":      `{}{}`,
	"deep":            strings.Repeat(`{"a":`, 100_000),
	"deep and whole":  `{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + `}`,
	"duplicate names": `{"a":1,"a":2}`,
	"NUL":             `{"a":"\u0000"}`,
	"a bare NUL":      "{\"a\":\"\x00\"}",
	"lone surrogate":  `{"a":"\ud800"}`,
	"invalid UTF-8":   "{\"a\":\"\xc3\x28\"}",
	"huge number":     `{"a":1e999999}`,
	"huger number":    `{"a":-1E+99999999999999999999}`,
	"tiny number":     `{"a":1e-99999999999999999999}`,
	"array":           `[{}]`,
	"string":          `"x"`,
	"number":          `1`,
	"null":            `null`,
	"true":            `true`,
}

func TestBadBodiesAreProblemsAndStoreNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, r := range everyRoute(t) {
		if !r.writes() || r.isWebhook() { // of a webhook, text and any JSON become an event
			continue
		}
		for name, body := range badBodies {
			got := h.try(r.method, r.path, body)
			if got.status == 413 && len(h.others) > 0 && len(body) > 128<<10 { // a gateway of several cells reads no more of it to find the cell
				continue
			}
			if got.status != 400 && got.status != 422 {
				t.Errorf("%s: %s returned %d %s", r.id, name, got.status, got.body)
			}
		}
		if got := h.try(r.method, r.path, `{"`+strings.Repeat("a", 9<<20)+`":1}`); got.status != 413 {
			t.Errorf("%s: a too large body returned %d %s", r.id, got.status, got.body)
		}
		switch {
		case r.id == "postCloudEvents": // which takes any media type, and JSON of one form only
			h.try(r.method, r.path, "").wantProblem(problem.UnsupportedMediaType)
			for _, body := range []string{" \n", `{"nonsense":1}`} {
				h.try(r.method, r.path, body).wantProblem(problem.InvalidCloudEvent)
			}
			continue
		case r.id == "requeueMatching" || r.id == "createRedrive" || r.id == "previewSchedule": // {} lacks a filter, or a time
			h.try(r.method, r.path, "").wantProblem(problem.ValidationFailed)
		case r.body != "":
			h.try(r.method, r.path, "").wantProblem(problem.InvalidJSON)
			h.try(r.method, r.path, " \n").wantProblem(problem.InvalidJSON)
		}
		if r.id != "insert" && r.id != "publish" {
			h.try(r.method, r.path, `{"nonsense":1}`).wantProblem(problem.ValidationFailed)
		}
	}
	wantNoRow(h)
}

func wantNoRow(h *environment) {
	h.t.Helper()
	n := h.count(`select (select count(*) from agent.event) + (select count(*) from agent.event_hist) + (select count(*) from agent.queue)
		+ (select count(*) from agent.log) + (select count(*) from agent.subscription) + (select count(*) from agent.idempotency) + (select count(*) from agent.schedule) + (select count(*) from agent.owner)
		+ (select count(*) from agent.redrive)`)
	if n != 0 {
		h.t.Errorf("%d rows were stored", n)
	}
}

func TestBadFieldsAreProblemsAndStoreNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	long := strings.Repeat("q", 129)
	for path, bodies := range map[string][]string{
		"/events/batch": {
			`{"events":{}}`, `{"events":[]}`, `{"events":[null]}`, `{"events":[{}]}`, `{"events":[{"event":[]}]}`, `{"events":[{"event":null}]}`,
			`{"events":[{"event":"{}"}]}`, `{"events":[{"event":{},"queue":"a b"}]}`, `{"events":[{"event":{},"queue":"queued.publish"}]}`, `{"events":[{"event":{},"queue":"` + long + `"}]}`,
			`{"events":[{"event":{},"delay":5}]}`, `{"events":[{"event":{},"delay":"-5s"}]}`, `{"events":[{"event":{},"delay":"10 minutes"}]}`,
			`{"events":[{"event":{},"vt":1}]}`, `{"events":[{"event":{},"vt":"now"}]}`, `{"events":[{"event":{},"vt":"infinity"}]}`,
			`{"events":[{"event":{},"delay":"1s","vt":"2026-01-01T00:00:00Z"}]}`, `{"events":[{"event":{}},{"event":{"a":"\u0000"}}]}`,
			`{"events":[{"event":{}},{"event":{"a":1,"a":2}}]}`, `{"events":[{"event":{}},{"event":{"a":1e5000}}]}`, `{"events":[{"event":{},"x":1}]}`,
			`{"events":[{"event":{},"type":""}]}`, `{"events":[{"event":{},"type":1}]}`, `{"events":[{"event":{},"source":"\u0000"}]}`, `{"events":[{"event":{},"priority":"1"}]}`,
			`{"events":[{"event":{},"priority":2147483648}]}`, `{"events":[{"event":{},"key":""}]}`, `{"events":[{"event":{},"key":"` + long + long + `"}]}`,
			`{"events":[{"event":{},"max_attempts":0}]}`, `{"events":[{"event":{},"expires_at":"1h"}]}`, `{"events":[{"event":{},"occurrence":{}}]}`,
			`{"events":[{"event":{},"vt":"9999-12-31T23:59:59-01:00"}]}`, `{"events":[{"event":{}}` + strings.Repeat(`,{"event":{}}`, 1000) + `]}`,
		},
		"/claim": {
			`{"queue":"queued.publish"}`, `{"limit":-1}`, `{"limit":0}`, `{"limit":1001}`, `{"limit":"1"}`, `{"limit":1.5}`, `{"limit":18446744073709551616}`, `{"queue":null}`, `{"queue":""}`,
			`{"wait":"61s"}`, `{"wait":"-1s"}`, `{"wait":"10 minutes"}`, `{"wait":3}`, `{"invisible_for":"0s"}`, `{"invisible_for":"100000h"}`, `{"max_attempts":0}`,
			`{"max_attempts":2147483648}`, `{"order":"lifo"}`, `{"order":1}`, `{"queue":["a"]}`, `{"types":"a"}`, `{"types":[""]}`, `{"types":null}`, `{"exclude_ids":[0]}`, `{"exclude_ids":["1"]}`, `{"worker":""}`,
			`{"worker":"\u0000"}`, `{"types":["\ud800"]}`,
		},
		"/ack": {
			`{"events":[]}`, `{"events":[{}]}`, `{"events":[{"id":0}]}`, `{"events":[{"id":-1}]}`, `{"events":[{"id":"1"}]}`, `{"events":[{"id":9223372036854775808}]}`,
			`{"events":[{"id":1,"receipt":""}]}`, `{"events":[{"id":1,"receipt":7}]}`, `{"events":[{"id":1,"receipt":"\u0000"}]}`, `{"events":[{"id":1,"receipt":null}]}`,
			`{"events":[{"id":1}` + strings.Repeat(`,{"id":1}`, 1000) + `]}`,
		},
		"/events/7/nack": {
			`{}`, `{"receipt":""}`, `{"receipt":7}`, `{"receipt":"x","delay":"-1s"}`, `{"receipt":"x","delay":5}`, `{"receipt":"x","error":1}`, `{"receipt":"x","error":"\u0000"}`,
			`{"receipt":"x","error":"\udfff"}`, `{"receipt":"x","final":"true"}`, `{"receipt":"x","retryable":"no"}`, `{"receipt":"x","retryable":null}`, `{"receipt":"x","error":"` + strings.Repeat("e", 65537) + `"}`,
		},
		"/events/7/ack":    {`{"receipt":""}`, `{"result":"\u0000"}`, `{"result":"` + strings.Repeat("r", 65536) + `"}`, `{"result":1e5000}`, `{"id":7}`},
		"/events/7/extend": {`{}`, `{"receipt":"x","invisible_for":"0s"}`, `{"receipt":"x","invisible_for":"-1s"}`, `{"receipt":"x","invisible_for":"8761h"}`, `{"receipt":"x","invisible_for":60}`},
		"/extend": {
			`{"events":[]}`, `{"events":[{"id":1}]}`, `{"events":[{"id":0,"receipt":"x"}]}`, `{"events":[{"id":1,"receipt":"x"}],"invisible_for":"0s"}`,
			`{"events":[{"id":1,"receipt":"x","invisible_for":"-1s"}]}`, `{"events":[{"id":1,"receipt":"x"}` + strings.Repeat(`,{"id":1,"receipt":"x"}`, 1000) + `]}`,
		},
		"/release": {
			`{"events":[]}`, `{"events":[{"id":1}]}`, `{"events":[{"id":1,"receipt":""}]}`, `{"events":[{"id":1,"receipt":"x","delay":"1s"}]}`,
			`{"events":[{"id":1,"receipt":"x"}],"delay":"-1s"}`, `{"events":[{"id":1,"receipt":"x"}` + strings.Repeat(`,{"id":1,"receipt":"x"}`, 1000) + `]}`,
		},
		"/events/7/release": {`{}`, `{"receipt":7}`, `{"receipt":"x","delay":"-1s"}`, `{"receipt":"x","delay":"87601h"}`, `{"receipt":"x","error":"e"}`},
		"/queues/q/run":     {`{"types":"a"}`, `{"types":[""]}`, `{"nacked_only":1}`, `{"limit":0}`, `{"limit":-1}`, `{"name":"q"}`},
		"/sweep":            {`{"max_attempts":0}`, `{"max_vt_age":"-1s"}`, `{"max_vt_age":3600}`, `{"max_vt_age":"1 hour"}`, `{"queue":"ä"}`, `{"max_attempts":null}`},
		"/redrives": {
			`{}`, `{"dry_run":true}`, `{"filter":{}}`, `{"filter":null}`, `{"filter":[]}`, `{"filter":{"queue":"a","limit":1}}`, `{"filter":{"id":1}}`, `{"filter":{"outcome":"gone"}}`, `{"filter":{"queue":"ä"}}`,
			`{"filter":{"from":"2026-02-01T00:00:00Z","to":"2026-01-01T00:00:00Z"}}`, `{"filter":{"contains":[]}}`, `{"filter":{"meta":null}}`, `{"filter":{"contains":{"a":"\u0000"}}}`,
			`{"filter":{"queue":"a"},"to":"queued.publish"}`, `{"filter":{"queue":"a"},"to":"a b"}`, `{"filter":{"queue":"a"},"to":"origin"}`, `{"filter":{"queue":"a"},"to":null}`, `{"filter":{"queue":"a"},"to":""}`,
			`{"filter":{"queue":"a"},"rate":-1}`, `{"filter":{"queue":"a"},"rate":0.001}`, `{"filter":{"queue":"a"},"rate":1000001}`, `{"filter":{"queue":"a"},"rate":"5"}`, `{"filter":{"queue":"a"},"idempotency_key":""}`,
			`{"queue":"queued.publish"}`, `{"queue":"a.dead","to":"a.dead"}`, `{"queue":"a.dead","filter":{"outcome":"failed"}}`, `{"queue":"a.dead","filter":{"queue":"a"}}`, `{"queue":"a.dead","filter":{"worker":"w"}}`,
			`{"filter":{"finished_from":"yesterday"}}`, `{"filter":{"finished_from":"2026-02-01T00:00:00Z","finished_to":"2026-01-01T00:00:00Z"}}`, `{"filter":{"finished_at":"2026-01-01T00:00:00Z"}}`,
			`{"queue":"a.dead","filter":{"finished_from":"2026-02-01T00:00:00Z"}}`, `{"queue":"a.dead","filter":{"finished_to":"2026-02-01T00:00:00Z"}}`, `{"filter":{"queue":"a"},"dry_run":"yes"}`, `{"filter":{"queue":"a"},"state":"paused"}`,
		},
		"/history/requeue": {
			`{}`, `{"dry_run":true}`, `{"outcome":"gone"}`, `{"from":"yesterday"}`, `{"from":"2026-02-01T00:00:00Z","to":"2026-01-01T00:00:00Z"}`, `{"contains":[]}`, `{"contains":{"a":"\u0000"}}`,
			`{"finished_from":"1h"}`, `{"finished_to":1770091507}`, `{"finished_from":"2026-02-01T00:00:00Z","finished_to":"2026-02-01T00:00:00Z"}`,
			`{"id":0}`, `{"id":9223372036854775808}`, `{"outcome":"done","limit":0}`, `{"outcome":"done","limit":-5}`, `{"outcome":"done","limit":1001}`, `{"outcome":"done","dry_run":1}`,
			`{"meta":[]}`, `{"meta":null}`, `{"type":""}`, `{"worker":1}`, `{"min_duration":"-1s"}`, `{"min_duration":5}`,
		},
	} {
		for _, body := range bodies {
			if got := h.try("POST", path, body); got.status != 400 && got.status != 422 {
				t.Errorf("%s %.200s returned %d %s", path, body, got.status, got.body)
			}
		}
	}
	for _, body := range []string{
		`{"max_attempts":0}`, `{"max_attempts":"5"}`, `{"invisible_for":"0s"}`, `{"invisible_for":60}`, `{"backoff":{}}`, `{"backoff":{"kind":"linear"}}`, `{"backoff":{"kind":"x","base":"1s"}}`,
		`{"backoff":{"kind":"linear","base":"-1s"}}`, `{"backoff":{"kind":"linear","base":"1s","jitter":2}}`, `{"backoff":{"kind":"linear","base":"1s","factor":0}}`, `{"paused":"yes"}`,
		`{"history_retention":"0s"}`, `{"queue":"mail"}`,
	} {
		h.try("PUT", "/queues/mail", body).wantProblem(problem.ValidationFailed)
	}
	for _, name := range []string{"a%20b", "%00", "%ff", "%C3%A4", long} {
		for _, r := range []route{{method: "GET"}, {method: "PUT"}, {method: "POST", path: "/pause"}, {method: "POST", path: "/resume"}, {method: "POST", path: "/purge"}} {
			if p := h.try(r.method, "/queues/"+name+r.path, "").wantProblem(problem.InvalidParameter); p.Errors[0].Pointer != "{name}" {
				t.Errorf("%s %s%s returned %+v", r.method, name, r.path, p)
			}
		}
	}
	h.with("X-Worker", strings.Repeat("w", 256)).try("POST", "/claim", "").wantProblem(problem.InvalidParameter)
	h.with("Idempotency-Key", `"open`).try("POST", "/events", "{}").wantProblem(problem.InvalidParameter)
	wantNoRow(h)
}

func TestBadParametersAreProblemsAndStoreNothing(t *testing.T) {
	t.Parallel()
	h := setup(t)
	q := url.QueryEscape
	for path, queries := range map[string][]string{
		"/events": {
			"limit=-1", "limit=0", "limit=1001", "limit=x", "limit=1e2", "limit=+1", "limit=", "limit=99999999999999999999", "limit=1&limit=2", "state=done", "state=", "queue=", "queue=a%20b",
			"queue=" + strings.Repeat("q", 129), "queue=%00", "queue=%ff", "cursor=", "cursor=nonsense", "cursor=" + strings.Repeat("c", 2000), "%zz", "a;b", "Limit=1",
			"contains=", "contains=[]", "meta=", "meta=x", "meta=5", "meta=" + q(`{"a":1,"a":2}`),
		},
		"/history": {
			"outcome=ready", "from=yesterday", "from=2026-01-01", "from=2026-01-01T00:00:00", "to=1770091507", "from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z",
			"from=2026-01-01T00:00:00+01:00", "contains=", "contains=x", "contains=[]", "contains=" + q(`{"a":1,"a":2}`), "contains=" + q(`{} {}`),
			"id=0", "id=-1", "id=x", "id=9223372036854775808", "limit=1001", "type=", "type=%ff", "source=%00", "worker=" + strings.Repeat("w", 256),
			"min_duration=-1s", "min_duration=5", "min_duration=87601h", "cursor=bGlzdCAxIDE", "cursor=%00",
			"finished_from=1h", "finished_to=", "finished_to=infinity", "finished_from=2026-01-01T00:00:00Z&finished_to=2026-01-01T00:00:00Z", "finished_from=0000-01-01T00:00:00Z", "finished_at=2026-01-01T00:00:00Z",
		},
		"/queues/q/stats": {
			"from=yesterday", "to=1", "bucket=1", "bucket=0s", "bucket=-1m", "bucket=59s", "bucket=90s", "bucket=169h", "bucket=1m&bucket=2m", "limit=1", "name=q",
			"from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from=2026-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "from=2026-01-01T00:00:00Z&to=2026-01-03T00:00:00Z",
			"from=0001-01-01T00:00:00Z&bucket=168h", "from=1969-12-31T23:59:59Z&bucket=168h", "from=2026-01-01T00:00:00Z&to=9999-12-31T23:59:59Z&bucket=168h",
		},
		"/stats/queues": {
			"order=", "order=size", "limit=0", "limit=201", "offset=-1", "offset=1000001", "offset=x", "bucket=30s", "bucket=1m30s", "bucket=1m&from=2026-01-01T00:00:00Z&to=2026-01-01T03:00:00Z",
			"bucket=24h&from=2026-01-01T00:00:00Z&to=2026-02-01T00:00:00Z", "from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "cursor=x", "queue=a", "queues=a",
			"name_contains=%00", "name_contains=%ff", "name_contains=" + strings.Repeat("n", 129), "name_contains=a&name_contains=b",
		},
		"/stats/executions": {"type=%ff", "worker=%00", "worker=" + strings.Repeat("w", 256), "type=a&type=b", "queue=a"},
		"/stats/workers":    {"lately=0s", "lately=25h", "lately=1", "limit=0", "limit=1001", "queue=a"},
		"/stats/holders":    {"queue=a", "limit=1"},
		"/history/errors": {
			"queue=a%20b", "type=", "type=%00", "from=x", "to=x", "from=2026-02-01T00:00:00Z&to=2026-01-01T00:00:00Z", "limit=0", "limit=101", "cursor=a", "outcome=done",
			"finished_from=x", "finished_to=%00", "finished_from=2026-02-01T00:00:00Z&finished_to=2026-01-01T00:00:00Z",
		},
		"/history/stats": {
			"bucket=0s", "bucket=-1h", "bucket=1", "bucket=10%20minutes", "bucket=1ns", "bucket=9000h", "from=x", "to=x", "from=2100-01-01T00:00:00Z",
			"bucket=1s&from=2026-01-01T00:00:00Z&to=2026-01-01T01:00:00Z", "from=0001-01-01T00:00:00Z", "from=0000-01-01T00:00:00Z",
		},
	} {
		for _, query := range queries {
			if got := h.try("GET", path+"?"+query, ""); got.status != 400 {
				t.Errorf("GET %s?%s returned %d %s", path, query, got.status, got.body)
			}
		}
	}
	for _, query := range []string{
		"queue=", "queue=a%20b", "queue=a&queue=b", "queue=a%0A", "delay=10%20minutes", "delay=-1s", "delay=5", "delay=87601h", "delay=1s&vt=2026-01-01T00:00:00Z", "vt=now", "vt=infinity", "vt=2026-13-01T00:00:00Z",
		"nonsense=1", "delay=1s&delay=2s", "priority=", "priority=1.5", "priority=2147483648", "priority=-2147483649", "type=", "type=%00", "type=%ff", "type=" + strings.Repeat("t", 256),
		"source=", "source=%ff", "source=" + strings.Repeat("s", 256), "key=", "key=%ff", "key=" + strings.Repeat("k", 256), "max_attempts=0", "max_attempts=-1", "max_attempts=2147483648",
		"expires_at=tomorrow", "expires_at=infinity", "occurrence=1",
	} {
		if got := h.try("POST", "/events?"+query, "{}"); got.status != 400 {
			t.Errorf("POST /events?%s returned %d %s", query, got.status, got.body)
		}
	}
	for _, r := range everyRoute(t) {
		if !strings.Contains(r.path, "/7") {
			continue
		}
		for _, id := range []string{"0", "-1", "+7", "07", "7.0", "7e0", "x", "0x7", "%00", "%20", "9223372036854775808", strings.Repeat("9", 100)} {
			if id == "0" && strings.HasPrefix(r.path, "/cells/") { // which is home
				continue
			}
			got := h.try(r.method, strings.Replace(r.path, "/7", "/"+id, 1), r.body)
			if p := got.wantProblem(problem.InvalidParameter); !slices.Contains([]string{"{id}", "{position}", "{number}"}, p.Errors[0].Pointer) {
				t.Errorf("%s of %s returned %s", r.id, id, got.body)
			}
		}
	}
	for _, receipt := range []string{"", strings.Repeat("r", 257), "%00", "a&receipt=b"} {
		h.try("DELETE", "/events/7?receipt="+receipt, "").wantProblem(problem.InvalidParameter)
	}
	wantNoRow(h)
}

func TestBodiesAreReadByTheirContentType(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for media, want := range map[string]int{
		"":                                  201,
		"application/json":                  201,
		"Application/JSON; charset=UTF-8":   201,
		"application/merge-patch+json":      201,
		"text/plain":                        201,
		"text/plain; charset=us-ascii":      201,
		"application/x-www-form-urlencoded": 201,
		"text/plain; charset=iso-8859-1":    415,
		"multipart/form-data; boundary=x":   415,
		"application/xml":                   415,
		"application/cloudevents+json":      415, // has a route of its own
		"text/html":                         415,
		"json":                              415,
		"a/b/c; ;;":                         415,
	} {
		h.with("Content-Type", media).try("POST", "/events", "{}").want(want)
	}
	h.with("Content-Encoding", "identity").try("POST", "/events", "{}").want(201)
	h.with("Content-Encoding", "gzip").try("POST", "/events", "{}").wantProblem(problem.UnsupportedMediaType)
	h.with("Content-Type", "application/xml").try("POST", "/claim", "").want(200) // without a body, the type does not matter
}

func TestBodiesAboveTheLimitAreRefused(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) {
		cfg.MaxBody, cfg.MaxBatchBody, cfg.MaxBatch, cfg.MaxDepth = 100, 300, 2, 3
	}})
	sized := func(n int) string { return `{"a":"` + strings.Repeat("x", n-8) + `"}` }
	h.try("POST", "/events", sized(100)).want(201)
	h.try("POST", "/events", sized(101)).wantProblem(problem.BodyTooLarge)
	h.try("POST", "/events/batch", `{"events":[{"event":`+sized(100)+`},{"event":`+sized(100)+`}]}`).want(201)
	got := h.try("POST", "/events/batch", `{"events":[{"event":{}},{"event":`+sized(101)+`}]}`).wantProblem(problem.BodyTooLarge)
	if got.Errors[0].Pointer != "#/events/1/event" {
		t.Errorf("got %+v", got)
	}
	h.try("POST", "/events/batch", sized(301)).wantProblem(problem.BodyTooLarge)
	h.try("POST", "/events/batch", `{"events":[{"event":{}},{"event":{}},{"event":{}}]}`).wantProblem(problem.BatchTooLarge)
	h.try("POST", "/ack", `{"events":[{"id":1},{"id":2},{"id":3}]}`).wantProblem(problem.BatchTooLarge)
	h.try("POST", "/events", `{"a":[[]]}`).want(201)
	h.try("POST", "/events", `{"a":[[[]]]}`).wantProblem(problem.TooDeep)

	// A body of unknown length is refused while it is read.
	r, err := http.NewRequestWithContext(t.Context(), "POST", h.url+"/events", struct{ *strings.Reader }{strings.NewReader(sized(101))})
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.http.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 413 || r.ContentLength != 0 {
		t.Errorf("a stream of 101 bytes returned %d", resp.StatusCode)
	}
}

func TestBodiesOfAllRequestsTakeNoMoreThanTheirBudget(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) { cfg.MaxBody, cfg.MaxBatchBody, cfg.MaxBodyMemory = 64<<10, 256<<10, 1<<20 }})
	answers := make(chan answer, 12)
	batch := `{"events":[{"event":{"a":"` + strings.Repeat("x", 250_000)
	for range cap(answers) { // three of them fit
		conn := h.begin("/events/batch", 256<<10, batch)
		go func() {
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				return // the test has ended
			}
			defer func() { _ = resp.Body.Close() }()
			text, _ := io.ReadAll(resp.Body)
			answers <- answer{t, resp.StatusCode, resp.Header, string(text)}
		}()
	}
	for range cap(answers) - 4 {
		select {
		case got := <-answers:
			got.wantProblem(problem.Overloaded)
			if got.header.Get("Retry-After") == "" {
				t.Error("no Retry-After")
			}
		case <-time.After(busyTimeout / 2):
			t.Fatal("they are not bounded")
		}
	}
	if s := h.srv.bodies.Stats(); s.Verified > s.Limit {
		t.Errorf("they take %+v", s)
	}
	h.call("POST", "/events", `{}`).want(http.StatusCreated)
	if n := h.count(`select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events were stored, want the one that was answered", n)
	}
	metrics := h.call("GET", "/metrics", "").want(http.StatusOK).body
	for _, want := range []string{`queued_body_bytes_max{sender="all"} 1.048576e+06`, `queued_body_bytes{sender="verified"} `, `queued_bodies_refused_total{reason="full"} `} {
		if !strings.Contains(metrics, want) {
			t.Errorf("the metrics do not have %s", want)
		}
	}
}

func TestAnswersThatNobodyReadsGiveWayToOthers(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) { cfg.MaxBodyMemory = 16 << 20 }})
	h.placeOn(0, "default")
	for range 9 {
		h.call("POST", "/events", `{"a":"`+strings.Repeat("x", 1_000_000)+`"}`).want(http.StatusCreated)
	}
	used := func() int64 { return h.srv.answers.Stats().Bytes }
	var readers []net.Conn
	for range 20 {
		conn := h.dial()
		if _, err := io.WriteString(conn, "GET /events?queue=default&limit=9 HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		readers = append(readers, conn)
	}
	h.eventually("an answer takes memory", func() bool { return used() > 7<<20 })
	h.call("GET", "/queues/default", "").want(http.StatusOK)
	h.eventually("another caller is answered, once an answer that nobody reads has given way", func() bool {
		got := h.call("GET", "/events?queue=default&limit=9", "")
		if got.status != http.StatusOK {
			got.wantProblem(problem.Overloaded)
		}
		return got.status == http.StatusOK
	})
	for _, conn := range readers {
		_ = conn.Close()
	}
	h.eventually("the memory is given back", func() bool { return used() == 0 })
	if s := h.srv.answers.Stats(); s.TooSlow == 0 {
		t.Errorf("got %+v", s)
	}
}

func TestAnswersToTheKeyOfTheConfigurationHaveTheShareOfACaller(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{keys: func(cfg *access.Config) { cfg.Key = "s3cret" }})
	grant, err := h.access.Authenticate(t.Context(), "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	answers := body.NewAnswers(1 << 20)
	l := &accessLog{ResponseWriter: httptest.NewRecorder(), answers: answers, mayRefuse: true, grant: grant}
	l.Header().Set("Content-Length", "1048576")
	isTaken := l.takeMemory()
	defer l.releaseMemory()
	if got := answers.Stats().Bytes; !isTaken || got != 3<<18 {
		t.Errorf("an answer of all of the budget takes %d bytes, want three quarters", got)
	}
}

func TestBodiesAreForgottenWithTheirRequests(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.call("POST", "/events", `{}`).want(201)
	h.try("POST", "/events", `{"a":`).wantProblem(problem.InvalidJSON)
	h.call("POST", "/events/batch", `{"events":[{"event":{"a":"`+strings.Repeat("x", 100_000)+`"}}]}`).want(201)
	h.with("Content-Type", structured).try("POST", "/cloudevents", `{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{}}`).want(201)
	h.putSource("t", `{"kind":"token","queue":"in","secrets":["s"]}`)
	h.deliver("t", `{}`, "Authorization", "s").want(200)
	h.putSource("g", `{"kind":"github","queue":"in","secrets":["s"]}`)
	h.deliver("g", `{}`, "X-Hub-Signature-256", "sha256="+sign("s", `{}`)).want(200)
	h.deliver("g", `{}`, "X-Hub-Signature-256", forged).wantProblem(problem.WebhookRejected)
	_ = h.begin("/events", 1000, "x").Close()
	for deadline := time.Now().Add(busyTimeout); ; time.Sleep(time.Millisecond) { //nolint:forbidigo // the server ends a request after its answer, without a signal
		s := h.srv.bodies.Stats()
		if s.Unverified == 0 && (s.Verified == 0 || len(h.others) > 0) { // a gateway of several cells has claims of its own there
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("they take %+v", s)
		}
	}
}
