package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func keyed(key, payload string) queue.InsertParams {
	return queue.InsertParams{Event: json.RawMessage(payload), Key: key}
}

func TestTheSameKeyAgainAnswersTheSameAndEnqueuesNothing(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	insert := func(events ...queue.InsertParams) []queue.Inserted {
		t.Helper()
		in, err := b.Insert(t.Context(), events)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	delayed := queue.InsertParams{Event: json.RawMessage(`{"b":1,"a":2}`), Key: "k", Delay: time.Hour, Type: "t", Priority: 2}
	first := insert(delayed)[0]
	delayed.Event = json.RawMessage(`{ "a": 2, "b": 1 }`)
	if again := insert(delayed)[0]; again.ID != first.ID || !again.VT.Equal(first.VT) || !again.Replayed || first.Replayed {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if elsewhere := insert(queue.InsertParams{Event: delayed.Event, Key: "k", Queue: "other"})[0]; elsewhere.ID == first.ID || elsewhere.Replayed {
		t.Errorf("another queue's key: %+v", elsewhere)
	}
	batch := insert(keyed("x", `{"n":1}`), queue.InsertParams{Event: json.RawMessage(`{"n":2}`)}, delayed, keyed("x", `{"n":1}`))
	if batch[0].Replayed || batch[1].Replayed || !batch[2].Replayed || batch[2].ID != first.ID || !batch[3].Replayed || batch[3].ID != batch[0].ID {
		t.Errorf("the batch: %+v", batch)
	}
	e := b.take(t, queue.ClaimParams{}, 1)[0]
	if e.ID != batch[0].ID || e.Key != "x" {
		t.Errorf("claimed %+v", e)
	}
	b.ack(t, lease(e))
	if late := insert(keyed("x", `{"n":1}`))[0]; late.ID != e.ID || !late.Replayed {
		t.Errorf("after it went to history: %+v", late)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 3 {
		t.Errorf("%d events wait", n)
	}
}

func TestAKeyWithAnythingElseDifferentIsRefused(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	first := queue.InsertParams{Event: json.RawMessage(`{"n":1}`), Key: "k", Type: "t"}
	b.put(t, first)
	for name, change := range map[string]func(*queue.InsertParams){
		"payload":      func(p *queue.InsertParams) { p.Event = json.RawMessage(`{"n":2}`) },
		"type":         func(p *queue.InsertParams) { p.Type = "" },
		"source":       func(p *queue.InsertParams) { p.Source = "s" },
		"priority":     func(p *queue.InsertParams) { p.Priority = 1 },
		"delay":        func(p *queue.InsertParams) { p.Delay = time.Second },
		"vt":           func(p *queue.InsertParams) { p.VT = new(time.Now()) },
		"max_attempts": func(p *queue.InsertParams) { p.MaxAttempts = 1 },
		"expires_at":   func(p *queue.InsertParams) { p.ExpiresAt = new(time.Now().Add(time.Hour)) },
	} {
		p := first
		change(&p)
		if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`)}, p}); !errors.Is(err, queue.ErrKeyReused) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events wait", n)
	}
}

func TestManyAtOnceWithOneKeyMakeOneEvent(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	other := openOn(t, b.url, nil)
	const rounds, callers = 50, 20
	for round := range rounds {
		key := fmt.Sprint("round ", round)
		var all sync.WaitGroup
		ids := make([]int64, callers)
		fresh := make([]bool, callers)
		for i := range callers {
			s := []*queue.Service{b.Service, other}[i%2]
			all.Go(func() {
				payload := `{"n":1}`
				if i == 7 { // which may come first
					payload = `{"n":7}`
				}
				in, err := s.Insert(t.Context(), []queue.InsertParams{keyed(key, payload)})
				switch {
				case err == nil:
					ids[i], fresh[i] = in[0].ID, !in[0].Replayed
				case !errors.Is(err, queue.ErrKeyReused):
					t.Error(err)
				}
			})
		}
		all.Wait()
		var id int64
		n := 0
		for i := range ids {
			if fresh[i] {
				n++
			}
			if ids[i] != 0 && id != 0 && ids[i] != id {
				t.Fatalf("round %d: ids %v", round, ids)
			}
			id = max(id, ids[i])
		}
		if n != 1 {
			t.Fatalf("round %d: %d of the calls enqueued an event", round, n)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != rounds {
		t.Errorf("%d events wait, want %d", n, rounds)
	}
}

func TestAKeyIsForgottenAfterItsTime(t *testing.T) {
	t.Parallel()
	b := open(t, func(c *queue.Config) { c.KeyRetention = time.Hour })
	first := b.put(t, keyed("k", `{"n":1}`))[0]
	if left := pgtest.Query[time.Duration](t, b.sql, `select expires_at - now() from agent.idempotency`); left > time.Hour || left < 50*time.Minute {
		t.Errorf("the key is kept for %v", left)
	}
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 s'`)
	second := b.put(t, keyed("k", `{"n":2}`))[0]
	if second == first {
		t.Error("a key whose time was over stood for its event still")
	}
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 s'`)
	if n := pgtest.Query[int](t, b.sql, `select agent.forget_keys()`); n != 1 {
		t.Errorf("%d keys were forgotten", n)
	}
}

func TestKeyOfSQL(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	insert := func(payload string) (int64, error) {
		var id int64
		err := sql.QueryRow(t.Context(), `select agent.insert_event($1, _key => 'k', _type => 't', _priority => 3)`, payload).Scan(&id)
		return id, err
	}
	first, err := insert(`{"n":1}`)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := insert(`{"n":1}`); err != nil || again != first {
		t.Errorf("again: %d, %v", again, err)
	}
	var pgErr *pgconn.PgError
	if _, err := insert(`{"n":2}`); !errors.As(err, &pgErr) || pgErr.Code != "QD005" {
		t.Errorf("another payload: %v", err)
	}
}
