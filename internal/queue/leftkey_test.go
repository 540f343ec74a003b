package queue_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func TestKeysThatWereLeftAreRefusedAndThoseOfEventsAreKept(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first := b.insertEvents(t, keyed("known", `{}`), keyed("with\x1fseparator", `{}`))
	leave := func(keys ...string) []*int64 {
		t.Helper()
		events, err := b.LeaveKeys(t.Context(), queue.Default, keys)
		if err != nil {
			t.Fatal(err)
		}
		return events
	}
	for range 2 {
		got := leave("new", "known", "with\x1fseparator", "new")
		if len(got) != 4 || got[0] != nil || got[3] != nil || got[1] == nil || *got[1] != first[0] || got[2] == nil || *got[2] != first[1] {
			t.Errorf("left %v, want the events %d and %d", got, first[0], first[1])
		}
	}
	if _, err := b.Insert(t.Context(), []queue.InsertParams{keyed("new", `{}`)}); !errors.Is(err, queue.ErrKeyLeft) {
		t.Errorf("an insert under a key that was left: %v", err)
	}
	if in, err := b.Insert(t.Context(), []queue.InsertParams{keyed("known", `{}`)}); err != nil || !in[0].Deduplicated || in[0].ID != first[0] {
		t.Errorf("a repetition: %+v, %v", in, err)
	}
	results, err := b.InsertEach(t.Context(), []queue.InsertParams{keyed("other", `{}`), keyed("new", `{}`), {Event: []byte(`{}`)}})
	if err != nil || results[0].Err != nil || !errors.Is(results[1].Err, queue.ErrKeyLeft) || results[2].Err != nil {
		t.Errorf("inserts of which one is under a key that was left: %+v, %v", results, err)
	}
	// They are forgotten as others are.
	pgtest.Query[int](t, b.sql, `with changed as (update agent.idempotency set expires_at = clock_timestamp() where key = 'new' returning 1) select count(*) from changed`)
	if in, err := b.Insert(t.Context(), []queue.InsertParams{keyed("new", `{}`)}); err != nil || in[0].Deduplicated {
		t.Errorf("after its time: %+v, %v", in, err)
	}
	if got := leave("new"); got[0] == nil {
		t.Error("an event that was inserted after that is not known")
	}
	if _, err := b.LeaveKeys(t.Context(), "no good", []string{"k"}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("a name that is none: %v", err)
	}
}

func TestKeyIsLeftOrInsertedAndNeverBoth(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const keys = 60
	var mu sync.Mutex
	known, inserted := map[string]bool{}, map[string]bool{}
	var running sync.WaitGroup
	for i := range keys {
		key := fmt.Sprint("k", i)
		running.Go(func() {
			in, err := b.Insert(t.Context(), []queue.InsertParams{keyed(key, `{}`)})
			if err != nil && !errors.Is(err, queue.ErrKeyLeft) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			inserted[key] = err == nil && in[0].ID > 0
		})
		running.Go(func() {
			events, err := b.LeaveKeys(t.Context(), queue.Default, []string{key})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			known[key] = events[0] != nil
		})
	}
	running.Wait()
	var both, neither []string
	for i := range keys {
		switch key := fmt.Sprint("k", i); {
		case inserted[key] && !known[key]:
			both = append(both, key)
		case !inserted[key] && known[key]:
			neither = append(neither, key)
		}
	}
	if len(both)+len(neither) > 0 {
		t.Errorf("inserted and left: %v; neither: %v", both, neither)
	}
	if got, want := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`), pgtest.Query[int](t, b.sql, `select count(*) from agent.idempotency where event_id > 0`); got != want {
		t.Errorf("there are %d events, and keys of %d", got, want)
	}
}
