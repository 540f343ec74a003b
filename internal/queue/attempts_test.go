package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestEveryAttemptIsRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insertEvents(t, queue.InsertParams{Type: "t"})[0]
	claim := func(worker string) queue.Event {
		return b.claim(t, queue.ClaimParams{MaxAttempts: 100, Worker: worker}, 1)[0]
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

func TestAttemptsOfUnclaimedAndUnknownEvents(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insertEvents(t, queue.InsertParams{})[0]
	if got, err := b.Attempts(t.Context(), id); err != nil || len(got) != 0 {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := b.Attempts(t.Context(), id+1); !errors.Is(err, queue.ErrNotFound) {
		t.Errorf("an unknown event: %v", err)
	}
}

func TestFailedAttemptIsTheLastOneRecorded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insertEvents(t, queue.InsertParams{})[0]
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(b.claimOne(t)), Error: "hopeless", Final: true}); err != nil {
		t.Fatal(err)
	}
	got, err := b.Attempts(t.Context(), id)
	if err != nil || len(got) != 1 || got[0].Outcome != queue.AttemptFailed || got[0].EndedAt == nil || *got[0].Error != "hopeless" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// retry claims and nacks the event n times, in a few transactions, and returns the size of its row in bytes.
func (b env) retry(t *testing.T, id int64, n int, message string) (size int) {
	t.Helper()
	b.exec(t, `select set_config('test.message', $1, false)`, message)
	b.exec(t, fmt.Sprintf(`
		do $do$
		begin
			for _n in 1 .. %d loop
				perform agent.nack_event(c.id, agent.receipt(c), _error => concat(c.attempts, ' ', current_setting('test.message')), _notify => false)
				from agent.claim_events(_max_attempts => 1000000, _worker => 'w') c;
				if mod(_n, 20) = 0 then
					commit;
				end if;
			end loop;
		end
		$do$`, n))
	return pgtest.Query[int](t, b.sql, `select pg_column_size(e.claimed) + pg_column_size(e.past_attempts::text) from agent.event e where id = $1`, id)
}

func TestStorageOfManyAttemptsIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxAttempts = 1_000_000 })
	id := b.insertEvents(t, queue.InsertParams{})[0]
	const attempts, step = 2000, 200
	b.retry(t, id, 1, "first")
	first := b.get(t, id).Claimed[0]
	bound := 2 * b.retry(t, id, 199, strings.Repeat("x", 1000))
	for done := 200; done < attempts; done += step {
		if size := b.retry(t, id, min(step, attempts-done), strings.Repeat("x", 1000)); size > bound {
			t.Fatalf("after %d attempts, %d bytes are stored, want at most %d, twice as many as after 200", done+step, size, bound)
		}
	}

	e := b.get(t, id)
	if e.Attempts != attempts || e.ErrorCount != attempts || len(e.Claimed) != 100 || !e.Claimed[0].Equal(first) {
		t.Errorf("%d attempts, %d errors, %d claims, the first at %v, want %v", e.Attempts, e.ErrorCount, len(e.Claimed), e.Claimed[0], first)
	}
	claimed := b.claim(t, queue.ClaimParams{MaxAttempts: 1_000_000}, 1)[0]
	if err := b.Release(t.Context(), []queue.Lease{lease(claimed)}); err != nil {
		t.Fatal(err)
	}
	last := b.claim(t, queue.ClaimParams{MaxAttempts: 1_000_000}, 1)[0]
	if !last.Claimed[0].Equal(first) || len(last.Claimed) != 100 || last.Attempts != attempts+1 {
		t.Errorf("after a release: %d attempts, %d claims", last.Attempts, len(last.Claimed))
	}
	check := func(at string, outcome queue.AttemptOutcome) {
		t.Helper()
		got, err := b.Attempts(t.Context(), id)
		if err != nil || len(got) != 21 {
			t.Fatalf("%s: %d attempts, %v", at, len(got), err)
		}
		for i, a := range got {
			n := attempts + 1 - 20 + i
			start := last.Claimed[len(last.Claimed)-21+i]
			switch {
			case int(a.Number) != n || !a.StartedAt.Equal(start):
				t.Errorf("%s: attempt %d at %v, want %d at %v", at, a.Number, a.StartedAt, n, start)
			case i == 20 && a.Outcome != outcome:
				t.Errorf("%s: the last attempt was %s", at, a.Outcome)
			case i < 20 && (a.Outcome != queue.AttemptNacked || !strings.HasPrefix(*a.Error, fmt.Sprint(n, " x")) || a.EndedAt.Before(start)):
				t.Errorf("%s: attempt %d: %+v", at, n, a)
			}
		}
	}
	check("while it runs", queue.AttemptRunning)
	if result := b.ack(t, lease(last)); result.Err != nil {
		t.Fatal(result.Err)
	}
	check("when it is done", queue.AttemptDone)
	if e := b.get(t, id); e.ErrorCount != attempts || !e.Claimed[0].Equal(first) {
		t.Errorf("in history: %d errors, first claimed at %v", e.ErrorCount, e.Claimed[0])
	}
}

func TestStorageOfLongErrorsIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxAttempts = 1_000_000 })
	id := b.insertEvents(t, queue.InsertParams{})[0]
	long := strings.Repeat("x", 65_536-10)
	if size := b.retry(t, id, 30, long); size > 300_000 {
		t.Errorf("%d bytes are stored for 30 attempts", size)
	}
	got, err := b.Attempts(t.Context(), id)
	if err != nil || len(got) < 3 || got[len(got)-1].Number != 30 {
		t.Fatalf("%d attempts, %v", len(got), err)
	}
	for _, a := range got {
		if len(*a.Error) < 65_000 {
			t.Errorf("the error of attempt %d has %d bytes", a.Number, len(*a.Error))
		}
	}
	if e := b.get(t, id); e.ErrorCount != 30 {
		t.Errorf("%d errors are counted", e.ErrorCount)
	}
	_, err = b.Nack(t.Context(), queue.NackParams{Lease: lease(b.claim(t, queue.ClaimParams{MaxAttempts: 1_000_000}, 1)[0]), Error: strings.Repeat("x", 65_537)})
	if invalid := new(queue.InvalidError); !errors.As(err, &invalid) || invalid.Field != "error" {
		t.Errorf("an error of 65,537 characters: %v", err)
	}
}

func TestStorageOfManyEndedLeasesIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.MaxAttempts = 1_000_000 })
	for _, p := range []queue.ClaimParams{{}, {Types: []string{"t"}}} {
		p.MaxAttempts = 1_000_000
		p.Queue = fmt.Sprintf("q%d", len(p.Types))
		id := b.insertEvents(t, queue.InsertParams{Queue: p.Queue, Type: "t"})[0]
		var e queue.Event
		for range 130 {
			e = b.claim(t, p, 1)[0]
			b.endLease(t, id)
		}
		if n := pgtest.Query[int](t, b.sql, `select jsonb_array_length(past_attempts) from agent.event where id = $1`, id); n != 20 || len(e.Claimed) != 100 {
			t.Errorf("%+v: %d past attempts and %d claims are stored", p, n, len(e.Claimed))
		}
		got, err := b.Attempts(t.Context(), id)
		if err != nil || len(got) != 21 || got[0].Number != 110 || got[20].Number != 130 || got[0].Outcome != queue.AttemptLeaseEnded {
			t.Errorf("%+v: %d attempts, %v", p, len(got), err)
		}
		if e := b.get(t, id); e.ErrorCount != 130 {
			t.Errorf("%+v: %d errors", p, e.ErrorCount)
		}
	}
}
