package http

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/http/bind"
	"github.com/queued/queued/internal/http/problem"
	"github.com/queued/queued/internal/queue"
)

type linesRequest struct {
	Topics []string `query:"topic" validate:"required,max=3"`
}

// writeLines answers with a line for each topic, each sent at once, and fails at the topic "error".
func writeLines(w http.ResponseWriter, _ *http.Request, req linesRequest) error {
	for _, topic := range req.Topics {
		if topic == "error" {
			return problem.New(problem.EventNotFound, "No such topic.")
		}
		if _, err := io.WriteString(w, topic+"\n"); err != nil {
			return err
		}
		if err := http.NewResponseController(w).Flush(); err != nil {
			return err
		}
	}
	return nil
}

func TestHandlersCanStreamTheirAnswer(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	srv := httptest.NewServer(s.observe(s.routes().mux, handler(s, testLimits, writeLines)))
	t.Cleanup(srv.Close)
	for query, want := range map[string]struct {
		status int
		body   string
		whole  bool
	}{
		"?topic=a&topic=b":     {200, "a\nb\n", true},
		"?topic=error":         {404, `"code":"event_not_found"`, true},
		"":                     {400, `"pointer":"?topic"`, true},
		"?topic=a&topic=error": {200, "a\n", false}, // it must not look like a whole answer
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/"+query, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := srv.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != want.status || !strings.Contains(string(body), want.body) || (err == nil) != want.whole {
			t.Errorf("%s: got %d %s, %v", query, resp.StatusCode, body, err)
		}
	}
}

// benchmarkLimits are the limits of a server by default.
var benchmarkLimits = bind.Limits{Body: 8 << 20, Event: 1 << 20, Items: 1000, Depth: 64}

// benchmarkEndpoint measures an endpoint without what the service does: reading the request, and writing rep.
func benchmarkEndpoint[Req any](b *testing.B, target, body string, rep reply) {
	b.Helper()
	s := New(Config{Service: new(queue.Service)})
	handler := s.observe(s.routes().mux, endpoint(s, benchmarkLimits, func(*http.Request, Req) (reply, error) { return rep, nil }))
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code >= http.StatusBadRequest {
			b.Fatalf("got %d %s", w.Code, w.Body)
		}
	}
}

const benchmarkPayload = `{"user":{"id":42,"name":"Ada Lovelace","mail":"ada@example.org"},"items":[{"sku":"A-1","n":2,"price":19.95},` +
	`{"sku":"B-7","n":1,"price":5.5}],"note":"leave it \"there\", please","paid":true,"event_ts":1770091507}`

func BenchmarkInsert(b *testing.B) {
	rep := created(insertResponse{ID: 1, Queue: "default", VT: time.Now()}, "/events/1", false)
	benchmarkEndpoint[insertRequest](b, "/events?queue=mail&type=sent", benchmarkPayload, rep)
}

func BenchmarkInsertBatchOf100(b *testing.B) {
	body := `{"events":[` + strings.Repeat(`{"event":`+benchmarkPayload+`,"queue":"mail"},`, 99) + `{"event":{}}]}`
	benchmarkEndpoint[insertBatchRequest](b, "/events/batch", body, created(map[string][]int64{"ids": make([]int64, 100)}, "", false))
}

func BenchmarkClaimOf100(b *testing.B) {
	claimed := make([]queue.Event, 100)
	for i := range claimed {
		claimed[i] = queue.Event{
			ID: int64(i), Queue: "mail", EventTS: time.Now(), EnqueuedAt: time.Now(), VT: time.Now(), Attempts: 1, Claimed: []time.Time{time.Now()},
			Payload: json.RawMessage(benchmarkPayload), Receipt: fmt.Sprintf("%d.1.abcdef", i),
		}
	}
	benchmarkEndpoint[claimRequest](b, "/claim", `{"queue":"mail","limit":100,"wait":"10s"}`, reply{body: eventList(claimed)})
}

func BenchmarkAckBatchOf100(b *testing.B) {
	var items []string
	for i := range 100 {
		items = append(items, fmt.Sprintf(`{"id":%d,"receipt":"%d.1.abcdef"}`, i+1, i+1))
	}
	rep := reply{body: map[string][]ackResult{"results": make([]ackResult, 100)}}
	benchmarkEndpoint[ackBatchRequest](b, "/ack", `{"events":[`+strings.Join(items, ",")+`]}`, rep)
}
