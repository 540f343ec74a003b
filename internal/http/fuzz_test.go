package http

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/body"
	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/pgtest"
)

// eventSeeds are bodies near the limits of what is accepted.
func eventSeeds() []string {
	seeds := []string{
		`{}`, ` {"a" : 1} `, `{"a":[1,2.50,-0,-3E+2,1e-7,true,false,null,"x",{"b":{}}]}`, `{"":""}`, `{"a":"\\u0000 \u00e9 \ud83d\ude00 \/ \b\f\n\r\t"}`,
		"{\"\u2028\":\"\U0010ffff\ufffe\ufeff\"}", nested(64), `{"a":1e999}`, `{"a":-1.5e-990}`, `{"a":0e999}`, `{"a":0.0e-999}`, `{"a":-0}`, `{"a":-0.0}`,
		`{"a":` + strings.Repeat("9", 131_072) + `}`, `{"a":0.` + strings.Repeat("9", 16_383) + `}`, `{"a":-` + strings.Repeat("8", 131_072) + `.` + strings.Repeat("7", 16_383) + `}`,
		`{"a":` + strings.Repeat("9", 5000) + `e100}`, `{"a":0.` + strings.Repeat("0", 5000) + `1e-400}`, `{"a":` + strings.Repeat("9", 131_000) + `.5e72}`,
		`{"a":0.` + strings.Repeat("1", 16_300) + `e-83}`, `{"event_ts":"\u0031770091506"}`, `{"` + strings.Repeat("k", 100_000) + `":1}`,
		`{"a":[` + strings.Repeat("1e900,", 1000) + `1]}`,
	}
	for _, body := range badBodies {
		if len(body) < 100_000 {
			seeds = append(seeds, body)
		}
	}
	return seeds
}

// storedJSON returns text as PostgreSQL stores it as jsonb.
func storedJSON(t *testing.T, conn *pgx.Conn, text string) string {
	t.Helper()
	var held string
	if err := conn.QueryRow(t.Context(), `select $1::text::jsonb::text`, text).Scan(&held); err != nil {
		t.Fatalf("PostgreSQL refuses an accepted event: %v\n%.500s", err, text)
	}
	return held
}

// checkEvent compares the decoder with PostgreSQL and encoding/json.
func checkEvent(t *testing.T, conn *pgx.Conn, body string) {
	t.Helper()
	req, err := decodeAs[insertRequest]("/events", body)
	if err != nil {
		if p := problem.Of(err); p.Type.Status < 400 || p.Type.Status > 422 || (p.Detail == "" && len(p.Errors) == 0) {
			t.Errorf("%.500q was refused with %+v", body, p)
		}
		return
	}
	event := string(req.Event)
	if !json.Valid(req.Event) || !utf8.ValidString(event) || event[0] != '{' {
		t.Errorf("%.500q was accepted, but is not an event", body)
	}
	if held := storedJSON(t, conn, event); len(held) > 2*len(event)+int(testLimits.Body) {
		t.Errorf("%.500q grew from %d to %d bytes", body, len(event), len(held))
	}
}

func TestPostgresStoresEveryAcceptedEvent(t *testing.T) {
	t.Parallel()
	conn := setup(t).connect()
	accepted := 0
	for _, body := range eventSeeds() {
		checkEvent(t, conn, body)
		if _, err := decodeAs[insertRequest]("/events", body); err == nil {
			accepted++
		}
	}
	if accepted < 15 {
		t.Errorf("only %d seeds were accepted", accepted)
	}
}

// maxFuzzSeed limits the seeds, because the fuzzer spends much time on minimizing large inputs.
const maxFuzzSeed = 1000

func FuzzEvent(f *testing.F) {
	for _, seed := range eventSeeds() {
		if len(seed) < maxFuzzSeed {
			f.Add(seed)
		}
	}
	conn, err := pgx.Connect(f.Context(), pgtest.Empty(f).URL) // each process runs its inputs one after the other
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close(context.WithoutCancel(f.Context())) })
	f.Fuzz(func(t *testing.T, body string) { checkEvent(t, conn, body) })
}

// resultSeeds are results near the limits of what is accepted.
func resultSeeds() []string {
	return append(eventSeeds(), `null`, `true`, `"a\\u0000"`, `"\ud83d\ude00"`, `-0.0e5`, `1e999`, `[]`, `[[1],{"a":[null]}]`, ` [ 1 , 2 ] `, `,1`, `:1`, `1,"receipt":"x"`, `]`, `"`)
}

// checkResult compares the decoding of a result with PostgreSQL, and reports whether the result was accepted.
func checkResult(t *testing.T, conn *pgx.Conn, value string) bool {
	t.Helper()
	req, err := decodeAs[ackWithResultRequest]("/events/7/ack", `{"result":`+value+`}`)
	if err != nil {
		if p := problem.Of(err); p.Type.Status < 400 || p.Type.Status > 422 {
			t.Errorf("%.500q was refused with %+v", value, p)
		}
		return false
	}
	if req.Result == nil || !json.Valid(req.Result) || len(req.Result) > bind.MaxValue {
		t.Errorf("%.500q became %.500q", value, req.Result)
		return false
	}
	storedJSON(t, conn, string(req.Result))
	return true
}

func TestPostgresStoresEveryAcceptedResult(t *testing.T) {
	t.Parallel()
	conn := setup(t).connect()
	taken := 0
	for _, value := range resultSeeds() {
		if checkResult(t, conn, value) {
			taken++
		}
	}
	if taken < 15 {
		t.Errorf("only %d seeds were accepted", taken)
	}
}

func FuzzResult(f *testing.F) {
	for _, seed := range resultSeeds() {
		if len(seed) < maxFuzzSeed {
			f.Add(seed)
		}
	}
	conn, err := pgx.Connect(f.Context(), pgtest.Empty(f).URL)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = conn.Close(context.WithoutCancel(f.Context())) })
	f.Fuzz(func(t *testing.T, value string) { checkResult(t, conn, value) })
}

var queueName = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,128}$`)

// FuzzBatch: for every body, the decoder returns a batch of complete events or a 4xx problem.
func FuzzBatch(f *testing.F) {
	for _, seed := range eventSeeds() {
		if len(seed) > maxFuzzSeed {
			continue
		}
		f.Add(`{"events":[{"event":` + seed + `,"queue":"a","delay":"1s"}]}`)
	}
	f.Add(`{"events":[{"event":{},"vt":"2026-01-01T00:00:00Z"},{"x":[1,{"y":2}]}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		req, err := decodeAs[insertBatchRequest]("/events/batch", body)
		if err != nil {
			if p := problem.Of(err); p.Type.Status < 400 || p.Type.Status > 422 {
				t.Errorf("%q was refused with %+v", body, p)
			}
			return
		}
		if len(req.Events) < 1 || len(req.Events) > testLimits.Items {
			t.Errorf("%d events", len(req.Events))
		}
		for _, item := range req.Events {
			if !json.Valid(item.Event) || item.Event[0] != '{' || !queueName.MatchString(item.Queue) {
				t.Errorf("%q has the item %+v", body, item)
			}
		}
	})
}

// FuzzQuery: for every query string, the decoder returns a filter within its limits or a 4xx problem.
func FuzzQuery(f *testing.F) {
	for _, seed := range []string{
		"", "queue=a&outcome=done", "from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00%2B01:00", "contains=%7B%22a%22%3A1%7D", "id=1&limit=5&cursor=x", "limit=0", "%zz", "a;b", "contains=%7B%22a%22%3A%22%5Cu0000%22%7D",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, query string) {
		var req listHistoryRequest
		r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/history", RawQuery: query}}
		err := bind.New[listHistoryRequest](testLimits).Decode(nil, r, new(body.Hold), &req)
		if err != nil {
			if p := problem.Of(err); p.Type.Status < 400 || p.Type.Status > 422 {
				t.Errorf("%q was refused with %+v", query, p)
			}
			return
		}
		// Zero is none: how many a page has at most is for the handler, as an export has no such bound.
		if req.Limit < 0 || (req.Limit == 0) == r.URL.Query().Has("limit") || (req.Queue != "" && !queueName.MatchString(req.Queue)) || (req.Contains != nil && !json.Valid(req.Contains)) {
			t.Errorf("%q became %+v", query, req)
		}
	})
}
