package http

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/problem"
)

const (
	structured = "application/cloudevents+json"
	batched    = "application/cloudevents-batch+json"
)

// ce returns a CloudEvent in JSON with this id, and more members.
func ce(id, members string) string {
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/shop","type":"order.paid"%s}`, id, members)
}

func TestCloudEventBecomesAnEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	at := time.Now().UTC().Add(-time.Hour).Truncate(time.Millisecond)
	body := ce("1", `,"time":"`+at.Format(time.RFC3339Nano)+`","n":-7,"ok":true,"data":{"total":1.50}`)
	post := h.with("Content-Type", structured+"; charset=utf-8").with("Traceparent", trace).with("Tracestate", "a=1")
	got := post.call("POST", "/cloudevents?queue=shop&priority=-1&max_attempts=2", body).want(201)
	id := decode[seenEvent](got).ID
	if location := got.header.Get("Location"); location != fmt.Sprintf("/events/%d", id) || decode[seenEvent](got).Queue != "shop" {
		t.Errorf("it is at %s: %s", location, got.body)
	}
	e := decode[seenEvent](h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200))
	if e.Type != "order.paid" || e.Source != "/shop" || e.Key != "/shop 1" || !e.EventTS.Equal(at) || e.Priority != -1 || e.MaxAttempts != 2 ||
		string(e.Event) != `{"total":1.50}` {
		t.Errorf("got %+v", e)
	}
	attributes, _ := json.Marshal(e.Meta)
	if want := fmt.Sprintf(`{"ce":{"id":"1","n":-7,"ok":true,"source":"/shop","specversion":"1.0","time":%q,"type":"order.paid"},"traceparent":%q,"tracestate":"a=1"}`,
		at.Format(time.RFC3339Nano), trace); string(attributes) != want {
		t.Errorf("got the metadata %s, want %s", attributes, want)
	}
	again := post.with("Traceparent", "nonsense").call("POST", "/cloudevents?queue=shop", ce("1", `,"data":{"other":true}`)).want(200)
	if decode[seenEvent](again).ID != id || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("the same id and source: %s", again.body)
	}
	if other := decode[seenEvent](post.call("POST", "/cloudevents", ce("1", "")).want(201)); other.Queue != "default" {
		t.Errorf("without a queue: %+v", other)
	}
}

func TestCloudEventInBinaryModeBecomesAnEvent(t *testing.T) {
	t.Parallel()
	h := setup(t)
	binary := h.with("ce-specversion", "1.0").with("ce-id", "caf%C3%A9").with("ce-source", "/s").with("ce-type", "t").with("Content-Type", "text/plain")
	id := decode[seenEvent](binary.call("POST", "/cloudevents?keep_raw=1h", "hello\n").want(201)).ID
	e := decode[seenEvent](h.call("GET", fmt.Sprintf("/events/%d", id), "").want(200))
	if string(e.Event) != `{"data":"hello\n"}` || e.Key != "/s café" || e.Meta["ce"].(map[string]any)["datacontenttype"] != "text/plain" || e.Meta["ce_data"] != "value" {
		t.Errorf("got %+v", e)
	}
	h.wantRaw(id, "hello\n", "text/plain")
	e = decode[seenEvent](h.call("GET", fmt.Sprintf("/events/%d", decode[seenEvent](binary.with("Content-Type", "application/json").
		call("POST", "/events", `{"a":1}`).want(201)).ID), "").want(200))
	if e.Meta != nil || e.Key != "" {
		t.Errorf("POST /events: got %+v, want an ordinary event", e)
	}
}

func TestBatchOfCloudEventsIsInsertedInFullOrNotAtAll(t *testing.T) {
	t.Parallel()
	h := setupWith(t, settings{http: func(cfg *Config) { cfg.MaxBatch = 3 }})
	post := h.with("Content-Type", batched)
	p := post.call("POST", "/cloudevents", `[`+ce("1", "")+`,`+ce("2", `,"data":{"a":"\u0000"}`)+`]`).wantProblem(problem.Unrepresentable)
	if p.Errors[0].Pointer != "#/1/data/a" {
		t.Errorf("got %+v", p)
	}
	post.call("POST", "/cloudevents", `[`+strings.Repeat(ce("1", "")+`,`, 3)+ce("2", "")+`]`).wantProblem(problem.BatchTooLarge)
	if n := h.count(`select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events of refused batches are there", n)
	}
	got := post.call("POST", "/cloudevents", `[`+ce("1", "")+`,`+ce("2", "")+`,`+ce("1", `,"data":1`)+`]`).want(201)
	ids := decode[map[string][]int64](got)["ids"]
	if len(ids) != 3 || ids[0] != ids[2] || ids[0] == ids[1] {
		t.Errorf("got %v", ids)
	}
	post.call("POST", "/cloudevents", `[`+ce("1", "")+`]`).want(200)
	if got := post.call("POST", "/cloudevents", `[]`); got.status != 201 || got.body != `{"ids":[]}` {
		t.Errorf("an empty batch: %d %s", got.status, got.body)
	}
}

func TestCloudEventsArePublished(t *testing.T) {
	t.Parallel()
	h := setup(t)
	post := h.with("Content-Type", structured)
	got := post.call("POST", "/cloudevents?topic=orders", ce("1", `,"data":[1]`)).want(201)
	position := decode[publishResponse](got).Position
	e := decode[struct {
		Topic       string
		Event, Meta json.RawMessage
	}](h.call("GET", got.header.Get("Location"), "").want(200))
	if e.Topic != "orders" || string(e.Event) != `{"data":[1]}` || !strings.Contains(string(e.Meta), `"ce_data":"value"`) {
		t.Errorf("got %+v", e)
	}
	again := post.with("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").call("POST", "/cloudevents?topic=orders", ce("1", "")).want(200)
	if decode[publishResponse](again).Position != position {
		t.Errorf("the same id and source: %s", again.body)
	}
	batch := h.with("Content-Type", batched).call("POST", "/cloudevents?topic=orders", `[`+ce("1", "")+`,`+ce("2", "")+`]`).want(201)
	if positions := decode[map[string][]int64](batch)["positions"]; len(positions) != 2 || positions[0] != position {
		t.Errorf("got %s", batch.body)
	}
}

func TestBadCloudEventIsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	h := setup(t)
	long := strings.Repeat("x", 256)
	for name, c := range map[string]struct {
		query, media, body string
		want               problem.Type
		pointer            string
	}{
		"no id":                 {"", structured, ce("", ""), problem.InvalidCloudEvent, "#/id"},
		"no JSON":               {"", structured, `{`, problem.InvalidCloudEvent, "#"},
		"in a batch":            {"", batched, `[` + ce("1", "") + `,` + ce("2", `,"A":1`) + `]`, problem.InvalidCloudEvent, "#/1/A"},
		"another format":        {"", "application/cloudevents+xml", `<a/>`, problem.UnsupportedMediaType, ""},
		"no CloudEvent":         {"", "application/json", ce("1", ""), problem.UnsupportedMediaType, ""},
		"queue and topic":       {"?queue=a&topic=b", structured, ce("1", ""), problem.InvalidParameter, "?queue"},
		"a delayed publication": {"?topic=b&delay=1s", structured, ce("1", ""), problem.InvalidParameter, "?delay"},
		"delay and vt":          {"?delay=1s&vt=2026-01-01T00:00:00Z", structured, ce("1", ""), problem.InvalidParameter, "?vt"},
		"the raw batch":         {"?keep_raw=1h", batched, `[` + ce("1", "") + `]`, problem.InvalidParameter, "?keep_raw"},
		"a queue of queued":     {"?queue=queued.publish", structured, ce("1", ""), problem.InvalidParameter, "?queue"},
		"a pattern":             {"?topic=a.*", structured, ce("1", ""), problem.InvalidParameter, "?topic"},
		"a long type":           {"", structured, strings.Replace(ce("1", ""), "order.paid", long, 1), problem.ValidationFailed, "#/type"},
		"a long source":         {"", batched, `[` + strings.Replace(ce("1", ""), "/shop", long, 1) + `]`, problem.ValidationFailed, "#/0/source"},
		"long attributes":       {"", structured, ce("1", `,"a":"`+strings.Repeat("x", 16<<10)+`"`), problem.ValidationFailed, "#"},
		"duplicate names":       {"", structured, ce("1", `,"data":{"a":{"b":1,"b":2}}`), problem.InvalidJSON, "#/data/a/b"},
		"in a list":             {"", structured, ce("1", `,"data":["\u0000"]`), problem.Unrepresentable, "#/data/0"},
		"deep data":             {"", structured, ce("1", `,"data":`+strings.Repeat("[", 100)+strings.Repeat("]", 100)), problem.TooDeep, "#/data" + strings.Repeat("/0", 63)},
		"long data":             {"", structured, ce("1", `,"data":"`+strings.Repeat("x", 1<<20)+`"`), problem.BodyTooLarge, "#/data"},
		"an old time":           {"", structured, ce("1", `,"time":"1970-01-01T00:00:00Z"`), problem.ValidationFailed, "#/time"},
		"the earliest time":     {"", structured, ce("1", `,"time":"0001-01-01T00:00:00Z"`), problem.ValidationFailed, "#/time"},
		"an old time in a list": {"", batched, `[` + ce("1", "") + `,` + ce("2", `,"time":"1970-01-01T00:00:00Z"`) + `]`, problem.ValidationFailed, "#/1/time"},
	} {
		p := h.with("Content-Type", c.media).try("POST", "/cloudevents"+c.query, c.body).wantProblem(c.want)
		if c.pointer == "" && p.Errors != nil || c.pointer != "" && (len(p.Errors) == 0 || p.Errors[0].Pointer != c.pointer) {
			t.Errorf("%s: got %+v, want %s", name, p, c.pointer)
		}
	}
	if p := h.with("Content-Type", "application/json").with("ce-id", "1").try("POST", "/cloudevents", `{}`).wantProblem(problem.InvalidCloudEvent); len(p.Errors) != 3 || p.Errors[0].Pointer != "ce-specversion" {
		t.Errorf("binary mode: %+v", p)
	}
	h.with("ce-specversion", "1.0").with("ce-id", "1").with("ce-source", "/s").with("ce-type", "t").with("ce-time", "0001-01-01T00:00:00Z").try("POST", "/cloudevents", "").wantProblem(problem.ValidationFailed)
	h.with("Content-Type", structured).with("Idempotency-Key", "k").try("POST", "/cloudevents", ce("1", "")).wantProblem(problem.InvalidParameter)
	h.with("Content-Type", structured).with("Content-Encoding", "gzip").try("POST", "/cloudevents", ce("1", "")).wantProblem(problem.UnsupportedMediaType)
	for path, media := range map[string]string{"/events": structured, "/events/batch": batched, "/topics/a": structured} {
		if p := h.with("Content-Type", media).try("POST", path, ce("1", "")).wantProblem(problem.UnsupportedMediaType); !strings.Contains(p.Detail, "POST /cloudevents") {
			t.Errorf("%s: %s", path, p.Detail)
		}
	}
	if n := h.count(`select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events came of bad ones", n)
	}
}
