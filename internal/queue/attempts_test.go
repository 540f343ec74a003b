package queue_test

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/queued/queued/internal/queue"
)

func TestEveryAttemptIsOnRecord(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	id := b.put(t, queue.InsertParams{Type: "t"})[0]
	claim := func(worker string) queue.Event {
		return b.take(t, queue.ClaimParams{MaxAttempts: 100, Worker: worker}, 1)[0]
	}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(claim("a")), Error: "first"}); err != nil {
		t.Fatal(err)
	}
	claim("b")
	b.endLease(t, id)
	if err := b.Release(t.Context(), []queue.Lease{lease(claim("c"))}); err != nil { // which does not count
		t.Fatal(err)
	}
	if e := b.get(t, id); e.Worker != "b" || e.Attempts != 2 || e.ErrorCount != 2 {
		t.Errorf("after the release: %+v", e)
	}
	last := claim("")

	check := func(at string, final queue.Attempt) {
		t.Helper()
		want := []queue.Attempt{
			{Number: 1, Worker: "a", Outcome: queue.AttemptNacked, Error: new("first")},
			{Number: 2, Worker: "b", Outcome: queue.AttemptLeaseEnded},
			final,
		}
		got, err := b.Attempts(t.Context(), id)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%s: %+v, %v", at, got, err)
		}
		for i, w := range want {
			g := got[i]
			if g.Number != w.Number || g.Worker != w.Worker || g.Outcome != w.Outcome || (g.Error == nil) != (w.Error == nil) || g.Error != nil && *g.Error != *w.Error {
				t.Errorf("%s, attempt %d: %+v, want %+v", at, i+1, g, w)
			}
			if (g.EndedAt == nil) != (w.Outcome == queue.AttemptRunning) || g.EndedAt != nil && i != 1 && g.EndedAt.Before(g.StartedAt) || !g.StartedAt.Equal(last.Claimed[i]) {
				t.Errorf("%s, attempt %d went from %v to %v", at, i+1, g.StartedAt, g.EndedAt)
			}
		}
	}
	check("while it runs", queue.Attempt{Number: 3, Outcome: queue.AttemptRunning})
	results, err := b.Ack(t.Context(), []queue.Ack{{Lease: lease(last), Result: json.RawMessage(`{"sent": [1, null]}`)}})
	if err != nil || results[0].Err != nil {
		t.Fatal(results, err)
	}
	check("when it is done", queue.Attempt{Number: 3, Outcome: queue.AttemptDone})
	e := b.get(t, id)
	if string(e.Result) != `{"sent": [1, null]}` || e.ErrorCount != 2 || *e.LastError != "first" || e.Processing == nil || *e.Processing <= 0 {
		t.Errorf("in history: %+v", e)
	}
	if _, err := b.Ack(t.Context(), []queue.Ack{{Lease: lease(last), Result: json.RawMessage(`"other"`)}}); err != nil {
		t.Fatal(err)
	}
	if again := b.get(t, id); string(again.Result) != string(e.Result) {
		t.Errorf("a repeated ack changed the result to %s", again.Result)
	}
}

func TestAttemptsOfAnEventThatNobodyClaimedOrThatIsUnknown(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	id := b.put(t, queue.InsertParams{})[0]
	if got, err := b.Attempts(t.Context(), id); err != nil || len(got) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := b.Attempts(t.Context(), id+1); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("an unknown event: %v", err)
	}
}

func TestFailedAttemptEndsTheRecord(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	id := b.put(t, queue.InsertParams{})[0]
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(b.takeOne(t)), Error: "hopeless", Final: true}); err != nil {
		t.Fatal(err)
	}
	got, err := b.Attempts(t.Context(), id)
	if err != nil || len(got) != 1 || got[0].Outcome != queue.AttemptFailed || got[0].EndedAt == nil || *got[0].Error != "hopeless" {
		t.Errorf("got %+v, %v", got, err)
	}
}
