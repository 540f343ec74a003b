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
	results := []string{`null`, `true`, `-1.50`, `"a b"`, `[1, "x , y", {"a": []}]`, `{"a": "b"}`}
	text := func() string { return texts[r.IntN(len(texts))] }
	at := func() timestamp { return timestamp(time.UnixMicro(r.Int64N(1 << 51)).In(time.FixedZone("", 3600))) }
	maybe := func(set func()) {
		if r.IntN(2) == 0 {
			set()
		}
	}
	some := func() event {
		e := event{ID: r.Int64(), Queue: text(), EventTS: at(), EnqueuedAt: at(), Attempts: r.Int32(), VT: at(), Claimed: timestamps{}}
		e.Event = jsontext.Value(payloads[r.IntN(len(payloads))])
		maybe(func() { e.State = queue.State(text()) })
		maybe(func() { e.Outcome = queue.Outcome(text()) })
		for range r.IntN(3) {
			e.Claimed = append(e.Claimed, time.Time(at()))
		}
		maybe(func() { e.FinishedAt = new(at()) })
		maybe(func() { e.LastError = new(text()) })
		maybe(func() { e.RequeuedFrom = new(r.Int64()) })
		maybe(func() { e.RequeuedAs = new(r.Int64()) })
		maybe(func() { e.Receipt = text() })
		maybe(func() { e.Status = queue.Outcome(text()) })
		maybe(func() { e.Type, e.Key = text(), text() })
		maybe(func() { e.Source = text() })
		maybe(func() { e.Priority = r.Int32() - 1<<30 })
		maybe(func() { e.MaxAttempts, e.ErrorCount = new(r.Int32()), new(r.Int32()) })
		maybe(func() { e.ExpiresAt = new(at()) })
		maybe(func() { e.Worker = text() })
		maybe(func() { e.FirstAttemptedAt, e.LastAttemptedAt = new(at()), new(at()) })
		maybe(func() { e.ProcessingMS = new(milliseconds(r.Int64N(1 << r.IntN(60)))) })
		maybe(func() { e.Result = jsontext.Value(results[r.IntN(len(results))]) })
		maybe(func() { e.Retryable = new(r.IntN(2) == 0) })
		maybe(func() { e.Occurrence = jsontext.Value(payloads[r.IntN(len(payloads))]) })
		return e
	}
	for range 300 {
		events := make([]event, r.IntN(3))
		for i := range events {
			events[i] = some()
		}
		for _, resp := range []appender{
			new(some()),
			insertResponse{ID: r.Int64(), Queue: text(), VT: at()},
			eventsResponse{events},
		} {
			var want bytes.Buffer
			if err := json.MarshalWrite(&want, resp, encoding); err != nil {
				t.Fatal(err)
			}
			if got := string(resp.appendJSON(nil)); got != want.String() {
				t.Fatalf("%s writes\n%s\nnot\n%s", fmt.Sprintf("%T", resp), got, want.String())
			}
		}
	}
}
