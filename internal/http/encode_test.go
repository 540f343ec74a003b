package http

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/queue"
)

func TestResponsesThatWriteThemselvesAreWhatTheirTagsSay(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	texts := []string{"a", `say "so"`, `back\slash`, "line\nbreak\ttab", "é 世 🙂", "<script>&", "\u2028\u007f\u0001", "done"}
	payloads := []string{
		`{}`, `{"a": 1}`, `{"a": [1, 2, {"b": "c, d: e"}], "quote \" , : {": "\\"}`, `{"a": "\\\" x ", "b": " "}`, `{"a": {}, "b": [], "c": null}`,
	}
	text := func() string { return texts[r.IntN(len(texts))] }
	at := func() timestamp { return timestamp(time.UnixMicro(r.Int64N(1 << 51)).In(time.FixedZone("", 3600))) }
	maybe := func(set func()) {
		if r.IntN(2) == 0 {
			set()
		}
	}
	some := func() event {
		e := event{ID: r.Int64(), Queue: text(), EventTS: at(), EnqueuedAt: at(), Attempts: r.Int32(), VT: at(), Claimed: []timestamp{}}
		e.Event = jsontext.Value(payloads[r.IntN(len(payloads))])
		maybe(func() { e.State = queue.State(text()) })
		maybe(func() { e.Outcome = queue.Outcome(text()) })
		for range r.IntN(3) {
			e.Claimed = append(e.Claimed, at())
		}
		maybe(func() { e.FinishedAt = new(at()) })
		maybe(func() { e.LastError = new(text()) })
		maybe(func() { e.RequeuedFrom = new(r.Int64()) })
		maybe(func() { e.RequeuedAs = new(r.Int64()) })
		maybe(func() { e.Receipt = text() })
		return e
	}
	for range 300 {
		events := make([]event, r.IntN(3))
		ids := make([]int64, len(events))
		results := make([]ackResult, len(events))
		for i := range events {
			events[i] = some()
			ids[i] = r.Int64()
			results[i] = ackResult{ID: r.Int64(), Status: 204}
			maybe(func() { results[i].Status, results[i].Code = 409, text() })
		}
		page := pageResponse{Events: events}
		maybe(func() { page.Next = new(text()) })
		one := some()
		for _, resp := range []appender{
			&one,
			claimResponse{Events: events},
			page,
			insertBatchResponse{IDs: ids},
			ackBatchResponse{Results: results},
			insertResponse{ID: r.Int64(), Queue: text(), VT: at()},
		} {
			var want bytes.Buffer
			if err := json.MarshalWrite(&want, resp, passThrough); err != nil {
				t.Fatal(err)
			}
			if got := string(resp.appendJSON(nil)); got != want.String() {
				t.Fatalf("%s writes\n%s\nnot\n%s", fmt.Sprintf("%T", resp), got, want.String())
			}
		}
	}
}
