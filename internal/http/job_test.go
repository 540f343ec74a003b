package http

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/queued/queued/internal/http/problem"
)

// insertWith inserts an event with options in the query, and returns its id.
func (c *client) insertWith(options string) int64 {
	c.t.Helper()
	return decode[seenEvent](c.call("POST", "/events?"+options, `{}`).want(201)).ID
}

func ids(events []seenEvent) (ids []int64) {
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}

// seenAttempt is an attempt in a response.
type seenAttempt struct {
	Attempt    int        `json:"attempt"`
	Worker     string     `json:"worker"`
	StartedAt  time.Time  `json:"started_at"`
	EndedAt    *time.Time `json:"ended_at"`
	DurationMS *float64   `json:"duration_ms"`
	Outcome    string     `json:"outcome"`
	Error      string     `json:"error"`
}

func (c *client) attempts(id int64) []seenAttempt {
	c.t.Helper()
	got := c.call("GET", fmt.Sprintf("/events/%d/attempts", id), "").want(200)
	return decode[struct{ Attempts []seenAttempt }](got).Attempts
}

// nack nacks a claimed event, with further fields in the body.
func (c *client) nack(e seenEvent, fields string) answer {
	c.t.Helper()
	return c.call("POST", fmt.Sprintf("/events/%d/nack", e.ID), fmt.Sprintf(`{"receipt":%q%s}`, e.Receipt, fields)).want(200)
}

func (c *client) ack(e seenEvent) {
	c.t.Helper()
	c.call("POST", fmt.Sprintf("/events/%d/ack", e.ID), fmt.Sprintf(`{"receipt":%q}`, e.Receipt)).want(200)
}

func TestJobIsReturnedAsInserted(t *testing.T) {
	t.Parallel()
	h := setup(t)
	expires := time.Now().Add(time.Hour).UTC().Truncate(time.Microsecond)
	at := expires.Format(time.RFC3339Nano)
	h.insertWith("type=mail%20é&source=shop&priority=-7&key=k1&max_attempts=4&expires_at=" + at)
	h.call("POST", "/events/batch", `{"events":[{"event":{},"type":"mail é","source":"shop","priority":-7,"key":"k2","max_attempts":4,"expires_at":"`+at+`"}]}`).want(201)
	check := func(what string, events []seenEvent, wantErrors bool) {
		t.Helper()
		if len(events) != 2 {
			t.Fatalf("%s: there are %d events, want 2", what, len(events))
		}
		for i, e := range events {
			if e.Type != "mail é" || e.Source != "shop" || e.Priority != -7 || e.Key != fmt.Sprintf("k%d", i+1) || e.MaxAttempts != 4 ||
				e.ExpiresAt == nil || !e.ExpiresAt.Equal(expires) || (e.ErrorCount != nil) != wantErrors {
				t.Errorf("%s: event %d is %+v", what, i, e)
			}
		}
	}
	list := func(path string) []seenEvent { return decode[seenPage](h.call("GET", path, "").want(200)).Events }
	check("waiting", list("/events"), true)
	claimed := h.claim(`{"limit":2}`)
	check("claimed", claimed, false)
	check("leased", []seenEvent{h.get(claimed[0].ID), h.get(claimed[1].ID)}, true)
	for _, e := range claimed {
		h.ack(e)
	}
	done := list("/history?type=mail%20%C3%A9")
	check("done", []seenEvent{done[1], done[0]}, true)
	copied := decode[seenEvent](h.call("POST", fmt.Sprintf("/history/%d/requeue", claimed[0].ID), "").want(201)).ID
	if e := h.get(copied); e.Type != "mail é" || e.Source != "shop" || e.Priority != -7 || e.MaxAttempts != 4 || e.Key != "" || e.ExpiresAt != nil {
		t.Errorf("its copy is %+v", e)
	}
	plain := h.get(h.insert(`{}`))
	if plain.Type != "" || plain.Source != "" || plain.Priority != 0 || plain.MaxAttempts != 0 || plain.ExpiresAt != nil {
		t.Errorf("an event without options is %+v", plain)
	}
}

func TestMetaIsReturnedAsInserted(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const meta = `{"traceparent":"00-4bf9-01","ce":{"type":"é <&>","nothing":null,"big":123456789012345678901234567890.5}}`
	one := h.insertWith("meta=" + url.QueryEscape(meta))
	batch := h.call("POST", "/events/batch", `{"events":[{"event":{}},{"event":{},"key":"k","meta":`+meta+`}]}`).want(201)
	two := decode[struct{ IDs []int64 }](batch).IDs[1]
	want := h.call("GET", fmt.Sprintf("/events/%d", one), "").want(200).body
	for _, part := range []string{`"meta":{"ce":{`, `"type":"é <&>"`, `"nothing":null`, `"big":123456789012345678901234567890.5`, `"traceparent":"00-4bf9-01"`} {
		if !strings.Contains(want, part) {
			t.Errorf("%s lacks %s", want, part)
		}
	}
	first, second := h.get(one), h.get(two)
	if diff := cmp.Diff(first.Meta, second.Meta); diff != "" || len(first.Meta) != 2 {
		t.Errorf("metadata of a single event and of a batch (-one +two)\n%s", diff)
	}
	for query, want := range map[string][]int64{
		"meta=" + url.QueryEscape(`{"ce":{"type":"é <&>"}}`):                               {one, two},
		"state=ready&meta=" + url.QueryEscape(`{"traceparent":"00-4bf9-01","ce":{}}`):      {one, two},
		"queue=default&limit=1&meta=" + url.QueryEscape(`{"ce":{"nothing":null}}`):         {one},
		"meta=" + url.QueryEscape(`{"ce":{"type":"e"}}`):                                   nil,
		"contains=" + url.QueryEscape(`{"n":1}`):                                           nil,
		"state=leased&meta=" + url.QueryEscape(`{}`):                                       nil,
		"contains=" + url.QueryEscape(`{}`) + "&meta=" + url.QueryEscape(`{"ce":{}}`):      {one, two},
		"contains=" + url.QueryEscape(`{"n":1}`) + "&meta=" + url.QueryEscape(`{"ce":{}}`): nil,
	} {
		if diff := cmp.Diff(want, ids(decode[seenPage](h.call("GET", "/events?"+query, "").want(200)).Events)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", query, diff)
		}
	}
	for _, e := range h.claim(`{"limit":3}`) {
		h.ack(e)
	}
	if got := decode[requeueResponseSeen](h.call("POST", "/history/requeue", `{"meta":{"ce":{"nothing":null}}}`).want(200)); got.Matched != 2 || got.Requeued != 2 {
		t.Errorf("requeued %+v", got)
	}
	if h.insertWith("meta="+url.QueryEscape(metaOf(16384))) == 0 {
		t.Error("metadata of 16 KiB was not stored")
	}
}

// metaOf returns metadata whose text is n bytes long as PostgreSQL writes it.
func metaOf(n int) string { return `{"a": "` + strings.Repeat("x", n-len(`{"a": ""}`)) + `"}` }

type requeueResponseSeen struct{ Matched, Requeued int64 }

func TestMetaThatIsTooLongIsRefused(t *testing.T) {
	t.Parallel()
	h := setup(t)
	long := metaOf(16385)
	compact := strings.Replace(long, " ", "", 1) // 16 KiB as it is sent, and more as it is stored
	for _, tc := range []struct {
		path, body, pointer string
	}{
		{"/events?meta=" + url.QueryEscape(long), `{}`, "?meta"},
		{"/events?meta=" + url.QueryEscape(compact), `{}`, "#/meta"},
		{"/events?key=k&meta=" + url.QueryEscape(compact), `{}`, "#/meta"},
		{"/events/batch", `{"events":[{"event":{}},{"event":{},"meta":` + long + `}]}`, "#/events/1/meta"},
		{"/events/batch", `{"events":[{"event":{},"meta":{}},{"event":{},"meta":` + compact + `}]}`, "#/meta"},
		{"/events/batch", `{"events":[{"event":{},"meta":[]}]}`, "#/events/0/meta"},
		{"/events/batch", `{"events":[{"event":{},"meta":null}]}`, "#/events/0/meta"},
	} {
		p := h.try("POST", tc.path, tc.body).wantProblem(problem.ValidationFailed)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != tc.pointer {
			t.Errorf("%.40s %.80s: %+v", tc.path, tc.body, p)
		}
	}
	h.try("POST", "/events?meta=5", `{}`).wantProblem(problem.InvalidParameter)
	wantNoRow(h)
}

func TestEventTSOfTheInsertWinsOverThePayloads(t *testing.T) {
	t.Parallel()
	h := setup(t)
	now := time.Now().UTC().Truncate(time.Microsecond)
	at, payload := now.Add(-time.Hour), `{"event_ts":"`+now.Add(-2*time.Hour).Format(time.RFC3339)+`"}`
	one := h.call("POST", "/events?event_ts="+at.Format(time.RFC3339Nano), payload).want(201)
	batch := h.call("POST", "/events/batch", `{"events":[{"event":`+payload+`,"event_ts":"`+at.Format(time.RFC3339Nano)+`"}]}`).want(201)
	for _, id := range []int64{decode[seenEvent](one).ID, decode[struct{ IDs []int64 }](batch).IDs[0]} {
		if e := h.get(id); !e.EventTS.Equal(at) {
			t.Errorf("event %d has the time %v, want %v", id, e.EventTS, at)
		}
	}
	for _, refused := range []time.Time{now.AddDate(-11, 0, 0), now.Add(25 * time.Hour)} {
		p := h.call("POST", "/events?event_ts="+refused.Format(time.RFC3339), payload).wantProblem(problem.ValidationFailed)
		if len(p.Errors) != 1 || p.Errors[0].Pointer != "#/event_ts" {
			t.Errorf("%v: %+v", refused, p)
		}
	}
	h.try("POST", "/events?event_ts=yesterday", payload).wantProblem(problem.InvalidParameter)
}

func TestFirstEventAnswersWhateverIsSentUnderItsKey(t *testing.T) {
	t.Parallel()
	h := setup(t)
	first := h.call("POST", "/events?key=k&on_duplicate=first", `{"pending_webhooks":2}`).want(201)
	for _, other := range []string{`{"pending_webhooks":1}`, `{"pending_webhooks":2}`, `{}`} {
		again := h.with("Idempotency-Key", "k").call("POST", "/events?type=t&delay=1h&on_duplicate=first", other).want(200)
		if again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
			t.Errorf("%s was answered with %s, want %s", other, again.body, first.body)
		}
	}
	id := decode[seenEvent](first).ID
	if got := string(h.get(id).Event); got != `{"pending_webhooks":2}` {
		t.Errorf("the event is %s", got)
	}
	batch := h.call("POST", "/events/batch", `{"events":[{"event":{"n":1},"key":"k","on_duplicate":"first"}]}`).want(200)
	if got := decode[struct{ IDs []int64 }](batch).IDs[0]; got != id {
		t.Errorf("a batch was answered with %d, want %d", got, id)
	}
	for _, query := range []string{"key=k", "key=k&on_duplicate=match"} {
		h.call("POST", "/events?"+query, `{"pending_webhooks":1}`).wantProblem(problem.KeyReused)
	}
	h.try("POST", "/events?key=k&on_duplicate=last", `{}`).wantProblem(problem.InvalidParameter)
}

func TestMetaAndPublicationGoAlongWithTheirEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id, plain := h.insert(`{}`), h.insert(`{}`)
	meta := map[string]any{"source": "urn:shop", "nested": map[string]any{"n": 1.0}}
	publication := map[string]any{
		"subscription": "mail", "position": 4294967297.0, "topic": "order.paid", "published_at": "2026-03-02T07:00:00Z", "matched": []any{"paid"},
	}
	h.sql(`update agent.event set meta = $2, publication = $3 where id = $1`, id, meta, publication)
	check := func(what string, events ...seenEvent) {
		t.Helper()
		if len(events) == 0 {
			t.Errorf("%s: there is no event", what)
		}
		for _, e := range events {
			wantMeta, wantPublication := meta, publication
			if e.ID == plain {
				wantMeta, wantPublication = nil, nil
			}
			if diff := cmp.Diff([]map[string]any{wantMeta, wantPublication}, []map[string]any{e.Meta, e.Publication}); diff != "" {
				t.Errorf("%s: event %d (-want +got)\n%s", what, e.ID, diff)
			}
		}
	}
	list := func(path string) []seenEvent { return decode[seenPage](h.call("GET", path, "").want(200)).Events }
	check("waiting", list("/events")...)
	first := h.claim(`{"limit":2}`)
	check("claimed", first...)
	h.nack(first[0], "")
	h.nack(first[1], "")
	claimed := h.claim(`{"limit":2}`)
	check("claimed again", claimed...)
	for _, e := range claimed {
		h.ack(e)
	}
	check("in history", h.get(id), h.get(plain))
	check("history", list("/history")...)
	copied := h.get(decode[seenEvent](h.call("POST", fmt.Sprintf("/history/%d/requeue", id), "").want(201)).ID)
	check("requeued", copied)
}

func TestClaimTakesTheLowestPriorityThenTheOldest(t *testing.T) {
	t.Parallel()
	h := setup(t)
	var want []int64
	last, first := h.insertWith("priority=2147483647"), h.insertWith("priority=-2147483648")
	want = append(want, first, h.insertWith("priority=-1"), h.insertWith("priority=0"), h.insertWith(""), last)
	if diff := cmp.Diff(want, ids(h.claim(`{"limit":10}`))); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestClaimIsLimitedByTypesAndExcludedIDs(t *testing.T) {
	t.Parallel()
	h := setup(t)
	a, b, none := h.insertWith("type=a"), h.insertWith("type=b"), h.insertWith("")
	a2, c := h.insertWith("type=a&priority=1"), h.insertWith("type=c")
	for _, tc := range []struct {
		body string
		want []int64
	}{
		{`{"limit":10,"types":["d"]}`, nil},
		{fmt.Sprintf(`{"limit":10,"types":["a","b"],"exclude_ids":[%d,%d]}`, a, c), []int64{b, a2}},
		{fmt.Sprintf(`{"limit":10,"exclude_ids":[%d,4711]}`, none), []int64{a, c}},
		{`{"limit":10,"types":[],"exclude_ids":[]}`, []int64{none}},
	} {
		if diff := cmp.Diff(tc.want, ids(h.claim(tc.body))); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tc.body, diff)
		}
	}
}

func TestWaitingClaimGetsOnlyItsTypes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	claim := h.waiting(`{"types":["b"],"wait":"60s"}`)
	a, b := h.insertWith("type=a"), h.insertWith("type=b")
	if diff := cmp.Diff([]int64{b}, ids(decode[seenPage]((<-claim).want(200)).Events)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if e := h.get(a); e.State != "ready" || e.Attempts != 0 {
		t.Errorf("the event of another type is %+v", e)
	}
}

func TestExpiredJobIsNotClaimedAndIsSwept(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insertWith("expires_at=2026-01-01T00:00:00Z")
	if got := h.claim(""); len(got) != 0 {
		t.Errorf("claimed %+v", got)
	}
	h.call("POST", "/sweep", `{"max_vt_age":null}`).want(200)
	if e := h.get(id); e.Outcome != "expired" || e.Status != "expired" || *e.ErrorCount != 0 {
		t.Errorf("the event is %+v", e)
	}
}

func TestWorkerIsReadFromTheBodyOrTheHeader(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for worker, claim := range map[string]func() []seenEvent{
		"by body":   func() []seenEvent { return h.claim(`{"worker":"by body"}`) },
		"by header": func() []seenEvent { return h.with("X-Worker", "by header").claim("") },
		"by both":   func() []seenEvent { return h.with("X-Worker", "by both").claim(`{"worker":"by both"}`) },
		"":          func() []seenEvent { return h.claim("") },
	} {
		id := h.insert(`{}`)
		e := claim()[0]
		if e.ID != id || e.Worker != worker || h.get(id).Worker != worker || h.attempts(id)[0].Worker != worker {
			t.Errorf("%q claimed %+v", worker, e)
		}
	}
	waiting := make(chan []seenEvent, 1)
	go func() { waiting <- h.with("X-Worker", "in wait").claim(`{"wait":"60s"}`) }()
	id := h.insert(`{}`)
	if e := (<-waiting)[0]; e.Worker != "in wait" || h.get(id).Worker != "in wait" {
		t.Errorf("a waiting worker claimed %+v", e)
	}
	p := h.with("X-Worker", "a").call("POST", "/claim", `{"worker":"b"}`).wantProblem(problem.ValidationFailed)
	if diff := cmp.Diff([]problem.FieldError{{Pointer: "#/worker", Detail: "must be the same as the header X-Worker"}}, p.Errors); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	h.with("X-Worker", "\xe4").try("POST", "/claim", "").wantProblem(problem.InvalidParameter)
}

func TestResultOfAnAckIsStoredInHistory(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for _, result := range []string{`{"pages":3,"big":12345678901234567890.5}`, `[1,"a b",null]`, `"ä😀"`, `false`, `null`, `1.50`} {
		id := h.insert(`{}`)
		e := h.claimOne()
		path := fmt.Sprintf("/events/%d/ack", id)
		got := h.call("POST", path, fmt.Sprintf(`{"receipt":%q,"result":%s}`, e.Receipt, result)).want(200).body
		if want := fmt.Sprintf(`{"id":%d,"outcome":"done"}`, id); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		h.call("POST", path, fmt.Sprintf(`{"receipt":%q,"result":"another"}`, e.Receipt)).want(200)
		body := h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200).body
		if !sameJSON(t, string(decode[seenEvent](answer{t: t, body: body}).Result), result) || !strings.Contains(body, `"result":`) {
			t.Errorf("the result %s was returned as %s", result, body)
		}
	}
	first, second, third := h.insert(`{}`), h.insert(`{}`), h.insert(`{}`)
	e := h.claim(`{"limit":3}`)
	h.call("POST", "/ack", fmt.Sprintf(`{"events":[{"id":%d,"receipt":%q,"result":{"n":2}},{"id":%d,"receipt":%q},{"id":%d,"receipt":%q,"result":1}]}`,
		second, e[1].Receipt, first, e[0].Receipt, third, e[2].Receipt)).want(200)
	if a, b, c := h.get(first), h.get(second), h.get(third); a.Result != nil || string(b.Result) != `{"n":2}` || string(c.Result) != `1` {
		t.Errorf("the results of a batch are %s, %s, %s", a.Result, b.Result, c.Result)
	}
	never := h.insert(`{}`)
	if got := h.call("POST", fmt.Sprintf("/events/%d/ack", never), "").want(200).body; got != fmt.Sprintf(`{"id":%d,"outcome":"cancelled"}`, never) {
		t.Errorf("an unclaimed event: %s", got)
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	return cmp.Equal(decode[any](answer{t: t, body: a}), decode[any](answer{t: t, body: b}))
}

func TestHistoryHasTheAttemptsAndTimesOfAJob(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insertWith("type=a&max_attempts=9")
	h.nack(h.claimOneBy(`{"worker":"w1"}`), `,"error":"try later"`)
	h.claim(`{"worker":"w2"}`)
	h.sql("update agent.event set vt = now()") // the lease of w2 has ended
	if e := h.get(id); *e.ErrorCount != 2 || *e.LastError != "try later" {
		t.Errorf("between the attempts, the event is %+v", e)
	}
	h.claim(`{"worker":"w3"}`)
	h.sql("update agent.event set claimed[3] = claimed[3] - interval '1500.25 milliseconds'")
	last := h.get(id)
	h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)

	e := h.get(id)
	if e.Status != "done" || e.Outcome != "done" || *e.ErrorCount != 2 || *e.LastError != "try later" || e.Worker != "w3" || e.Attempts != 3 ||
		!e.FirstAttemptedAt.Equal(e.Claimed[0]) || !e.LastAttemptedAt.Equal(last.Claimed[2]) || e.Retryable != nil {
		t.Errorf("the job is %+v", e)
	}
	if took := e.FinishedAt.Sub(*e.LastAttemptedAt); *e.ProcessingMS != float64(took.Microseconds())/1000 || took < 1500*time.Millisecond {
		t.Errorf("processing_ms is %v, but the attempt took %s", *e.ProcessingMS, took)
	}
	attempts := h.attempts(id)
	var said []string
	for i, a := range attempts {
		said = append(said, strings.TrimSpace(fmt.Sprintf("%d %s %s %s", a.Attempt, a.Worker, a.Outcome, a.Error)))
		if !a.StartedAt.Equal(e.Claimed[i]) || *a.DurationMS != float64(a.EndedAt.Sub(a.StartedAt).Microseconds())/1000 {
			t.Errorf("attempt %d is %+v", i+1, a)
		}
	}
	if diff := cmp.Diff([]string{"1 w1 nacked try later", "2 w2 lease_ended", "3 w3 done"}, said); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if !attempts[2].EndedAt.Equal(*e.FinishedAt) {
		t.Errorf("the last attempt ended at %s, the job at %s", attempts[2].EndedAt, e.FinishedAt)
	}
}

func TestRunningAttemptHasNoEnd(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insert(`{}`)
	if got := h.call("GET", fmt.Sprintf("/events/%d/attempts", id), "").want(200).body; got != `{"attempts":[]}` {
		t.Errorf("before any attempt: %s", got)
	}
	h.claimOne()
	if a := h.attempts(id)[0]; a.Outcome != "running" || a.EndedAt != nil || a.DurationMS != nil {
		t.Errorf("the attempt is %+v", a)
	}
}

func TestUnclaimedJobHasNoAttemptTimes(t *testing.T) {
	t.Parallel()
	h := setup(t)
	id := h.insert(`{}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", id), "").want(204)
	if e := h.get(id); e.Status != "cancelled" || *e.ErrorCount != 0 || e.FirstAttemptedAt != nil || e.LastAttemptedAt != nil || e.ProcessingMS != nil || e.Worker != "" {
		t.Errorf("the job is %+v", e)
	}
}

func TestNackSaysThatTheEventHasFailed(t *testing.T) {
	t.Parallel()
	h := setup(t)
	for fields, want := range map[string]bool{
		`,"retryable":false,"error":"no such mailbox"`:          false,
		`,"final":true,"error":"no such mailbox"`:               false,
		`,"final":true,"retryable":true,"error":"too late now"`: true,
	} {
		id := h.insert(`{}`)
		e := h.claimOne()
		for range 2 {
			if got := h.nack(e, fields).body; got != fmt.Sprintf(`{"id":%d,"outcome":"failed"}`, id) {
				t.Errorf("%s: %s", fields, got)
			}
		}
		got := h.get(id)
		if got.Status != "failed" || *got.ErrorCount != 1 || got.LastError == nil || got.Retryable == nil || *got.Retryable != want || got.ProcessingMS == nil {
			t.Errorf("%s: the job is %+v", fields, got)
		}
		if a := h.attempts(id); len(a) != 1 || a[0].Outcome != "failed" || a[0].Error != *got.LastError {
			t.Errorf("%s: its attempts are %+v", fields, a)
		}
	}
	h.insert(`{}`)
	e := h.claimOne()
	h.nack(e, `,"retryable":true`)
	if got := h.get(e.ID); got.State != "ready" {
		t.Errorf("a job with a retryable nack is %+v", got)
	}
}

func TestNackSaysThatNoAttemptIsLeft(t *testing.T) {
	t.Parallel()
	h := setup(t)
	h.insertWith("")
	for _, want := range []string{"", "", `"exhausted":true`} { // of the three that the service gives
		if got := h.nack(h.claimOne(), "").want(200).body; strings.Contains(got, "exhausted") != (want != "") || !strings.Contains(got, want) || !strings.Contains(got, `"vt":`) {
			t.Errorf("the nack says %s, want %q", got, want)
		}
	}
}

func TestHistoryIsFilteredByJobFields(t *testing.T) {
	t.Parallel()
	h := setup(t)
	a, b, c := h.insertWith("type=mail&source=shop"), h.insertWith("type=mail&source=blog"), h.insertWith("source=shop")
	events := h.claim(`{"limit":2,"worker":"w1"}`)
	h.sql("update agent.event set claimed[1] = claimed[1] - interval '1 minute' where id = $1", a)
	h.call("DELETE", fmt.Sprintf("/events/%d", a), "").want(204)
	h.nack(events[1], `,"final":true`)
	h.claim(`{"worker":"w2"}`)
	h.call("DELETE", fmt.Sprintf("/events/%d", c), "").want(204)
	hourAgo := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano)
	filters := map[string][]int64{
		"type=mail":                {b, a},
		"type=Mail":                nil,
		"source=shop":              {c, a},
		"worker=w1":                {b, a},
		"worker=w3":                nil,
		"min_duration=30s":         {a},
		"min_duration=0s":          {c, b, a},
		"min_duration=1h":          nil,
		"finished_from=" + hourAgo: {c, b, a},
		"finished_to=" + hourAgo:   nil,
		"outcome=failed&finished_from=" + hourAgo + "&finished_to=9999-01-01T00:00:00Z": {b},
		"type=mail&source=shop":                         {a},
		"worker=w1&outcome=failed":                      {b},
		"queue=default&source=shop&id=" + fmt.Sprint(c): {c},
	}
	for query, want := range filters {
		if diff := cmp.Diff(want, ids(decode[seenPage](h.call("GET", "/history?"+query, "").want(200)).Events)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", query, diff)
		}
	}
	for body, want := range map[string]int{
		`{"type":"mail"}`: 2, `{"source":"shop","worker":"w1"}`: 1, `{"worker":"w2"}`: 1, `{"min_duration":"30s"}`: 1,
		`{"finished_from":"` + hourAgo + `"}`: 3, `{"finished_to":"` + hourAgo + `"}`: 0,
	} {
		got := h.call("POST", "/history/requeue", strings.TrimSuffix(body, "}")+`,"dry_run":true}`).want(200).body
		if got != fmt.Sprintf(`{"matched":%d,"requeued":0}`, want) {
			t.Errorf("%s: %s, want %d", body, got, want)
		}
	}
}
