package http

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/queued/queued/internal/queue"
)

func TestHandWrittenEncodersMatchTheJSONTags(t *testing.T) {
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
	at := func() time.Time { return time.UnixMicro(r.Int64N(1 << 51)).In(time.FixedZone("", 3600)) }
	maybe := func(set func()) {
		if r.IntN(2) == 0 {
			set()
		}
	}
	payload := func() []byte { return []byte(payloads[r.IntN(len(payloads))]) }
	some := func() queue.Event {
		e := queue.Event{ID: r.Int64(), Queue: text(), EventTS: at(), EnqueuedAt: at(), Attempts: r.Int32() - 1<<30, VT: at(), Claimed: []time.Time{}}
		e.Payload, e.ErrorCount = payload(), r.Int32()
		maybe(func() { e.State = queue.State(text()) })
		maybe(func() { e.Outcome = queue.Outcome(text()) })
		for range r.IntN(3) {
			e.Claimed = append(e.Claimed, at())
		}
		maybe(func() { e.FinishedAt = new(at()) })
		maybe(func() { e.LastError = new(text()) })
		maybe(func() { e.RequeuedFrom = new(r.Int64()) })
		maybe(func() { e.RequeuedAs = new(r.Int64()) })
		maybe(func() { e.DeadLetterOf = new(r.Int64()) })
		maybe(func() { e.DeadLetteredAs = new(r.Int64()) })
		maybe(func() { e.Receipt = text() })
		maybe(func() { e.Type, e.IdempotencyKey = text(), text() })
		maybe(func() { e.Source = text() })
		maybe(func() { e.Priority = r.Int32() - 1<<30 })
		maybe(func() { e.MaxAttempts = new(r.Int32() - 1<<30) })
		maybe(func() { e.ExpiresAt = new(at()) })
		maybe(func() { e.Worker = text() })
		maybe(func() { e.Processing = new(time.Duration(r.Int64N(1<<r.IntN(60)) - 1000)) })
		maybe(func() { e.Result = []byte(results[r.IntN(len(results))]) })
		maybe(func() { e.Retryable = new(r.IntN(2) == 0) })
		maybe(func() { e.Occurrence = payload() })
		maybe(func() { e.Occurrence = []byte(results[r.IntN(len(results))]) })
		maybe(func() { e.Meta = payload() })
		maybe(func() { e.Meta = []byte(results[r.IntN(len(results))]) })
		maybe(func() { e.Publication = payload() })
		maybe(func() { e.Publication = []byte(results[r.IntN(len(results))]) })
		return e
	}
	for range 300 {
		events, tagged := make([]queue.Event, r.IntN(3)), []taggedEvent{}
		for i := range events {
			events[i] = some()
			tagged = append(tagged, taggedEventOf(&events[i]))
		}
		one, inserted := some(), insertResponse{ID: r.Int64(), Queue: text(), VT: at()}
		var next *string
		maybe(func() { next = new("bGlzdA") })
		page := eventPage{Events: events}
		if next != nil {
			page.Next = *next
		}
		for _, tc := range []struct {
			resp   appender
			tagged any
		}{
			{(*event)(&one), taggedEventOf(&one)},
			{inserted, struct {
				ID    int64     `json:"id"`
				Queue string    `json:"queue"`
				VT    timestamp `json:"vt"`
			}{inserted.ID, inserted.Queue, timestamp(inserted.VT)}},
			{eventList(events), struct {
				Events []taggedEvent `json:"events"`
			}{tagged}},
			{ackedAndClaimed{events, []ackResult{{ID: 1, Status: 204}, {ID: 2, Status: 409, Code: "lease_lost"}}}, struct {
				Events []taggedEvent `json:"events"`
				Acks   []ackResult   `json:"acks"`
			}{tagged, []ackResult{{ID: 1, Status: 204}, {ID: 2, Status: 409, Code: "lease_lost"}}}},
			{ackedAndClaimed{events, nil}, struct {
				Events []taggedEvent `json:"events"`
				Acks   []ackResult   `json:"acks"`
			}{tagged, []ackResult{}}},
			{page, struct {
				Events []taggedEvent `json:"events"`
				Next   *string       `json:"next"`
			}{tagged, next}},
		} {
			var want bytes.Buffer
			if err := json.MarshalWrite(&want, tc.tagged, encodeOptions); err != nil {
				t.Fatal(err)
			}
			if got := string(tc.resp.appendJSON(nil)); got != want.String() {
				t.Fatalf("%T encodes as\n%s\nwant\n%s", tc.resp, got, want.String())
			}
		}
	}
}

// A taggedEvent describes by its tags what appendJSON writes.
type taggedEvent struct {
	ID               int64          `json:"id"`
	Queue            string         `json:"queue"`
	State            queue.State    `json:"state,omitzero"`
	Outcome          queue.Outcome  `json:"outcome,omitzero"`
	Status           queue.Outcome  `json:"status,omitzero"` // the outcome by the name that a job's has
	Type             string         `json:"type,omitzero"`
	Source           string         `json:"source,omitzero"`
	Priority         int32          `json:"priority"`
	Key              string         `json:"key,omitzero"`
	MaxAttempts      *int32         `json:"max_attempts,omitzero"`
	ExpiresAt        *timestamp     `json:"expires_at,omitzero"`
	EventTS          timestamp      `json:"event_ts"`
	EnqueuedAt       timestamp      `json:"enqueued_at"`
	Attempts         int32          `json:"attempts"`
	VT               timestamp      `json:"vt"`
	Claimed          []time.Time    `json:"claimed"`
	Worker           string         `json:"worker,omitzero"`
	FirstAttemptedAt *timestamp     `json:"first_attempted_at,omitzero"`
	LastAttemptedAt  *timestamp     `json:"last_attempted_at,omitzero"`
	FinishedAt       *timestamp     `json:"finished_at,omitzero"`
	ProcessingMS     *milliseconds  `json:"processing_ms,omitzero"`
	Result           jsontext.Value `json:"result,omitzero"`
	LastError        *string        `json:"last_error,omitzero"`
	ErrorCount       *int32         `json:"error_count,omitzero"` // a claim does not look it up
	Retryable        *bool          `json:"retryable,omitzero"`
	Occurrence       jsontext.Value `json:"occurrence,omitzero"`
	Meta             jsontext.Value `json:"meta,omitzero"`
	Publication      jsontext.Value `json:"publication,omitzero"`
	RequeuedFrom     *int64         `json:"requeued_from,omitzero"`
	RequeuedAs       *int64         `json:"requeued_as,omitzero"`
	DeadLetterOf     *int64         `json:"dead_letter_of,omitzero"`
	DeadLetteredAs   *int64         `json:"dead_lettered_as,omitzero"`
	Event            jsontext.Value `json:"event"`
	Receipt          string         `json:"receipt,omitzero"`
}

func taggedEventOf(e *queue.Event) taggedEvent {
	out := taggedEvent{
		ID:           e.ID,
		Queue:        e.Queue,
		State:        e.State,
		Outcome:      e.Outcome,
		Status:       e.Outcome,
		Type:         e.Type,
		Source:       e.Source,
		Priority:     e.Priority,
		Key:          e.IdempotencyKey,
		ExpiresAt:    (*timestamp)(e.ExpiresAt),
		EventTS:      timestamp(e.EventTS),
		EnqueuedAt:   timestamp(e.EnqueuedAt),
		Attempts:     max(e.Attempts, 0),
		VT:           timestamp(e.VT),
		Claimed:      e.Claimed,
		Worker:       e.Worker,
		FinishedAt:   (*timestamp)(e.FinishedAt),
		Result:       jsontext.Value(e.Result),
		LastError:    e.LastError,
		Retryable:    e.Retryable,
		RequeuedFrom: e.RequeuedFrom,
		RequeuedAs:   e.RequeuedAs,
		DeadLetterOf: e.DeadLetterOf, DeadLetteredAs: e.DeadLetteredAs,
		Event:   jsontext.Value(e.Payload),
		Receipt: e.Receipt,
	}
	// Values that SQL wrote past the checks are answered as values that the contract has.
	if e.MaxAttempts != nil && *e.MaxAttempts >= 1 {
		out.MaxAttempts = e.MaxAttempts
	}
	for _, v := range []struct {
		of   []byte
		into *jsontext.Value
	}{{e.Occurrence, &out.Occurrence}, {e.Meta, &out.Meta}, {e.Publication, &out.Publication}} {
		if len(v.of) > 0 && v.of[0] == '{' {
			*v.into = jsontext.Value(v.of)
		}
	}
	if e.Processing != nil {
		out.ProcessingMS = new(milliseconds(max(*e.Processing, 0)))
	}
	if e.Receipt == "" {
		out.ErrorCount = &e.ErrorCount
	}
	if n := len(e.Claimed); e.Outcome != "" && n > 0 {
		out.FirstAttemptedAt, out.LastAttemptedAt = (*timestamp)(&e.Claimed[0]), (*timestamp)(&e.Claimed[n-1])
	}
	return out
}
