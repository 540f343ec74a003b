package queue_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

func keyed(key, payload string) queue.InsertParams {
	return queue.InsertParams{Event: json.RawMessage(payload), IdempotencyKey: key}
}

func TestRepeatedKeyReturnsTheSameEventAndInsertsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	insert := func(events ...queue.InsertParams) []queue.Inserted {
		t.Helper()
		in, err := b.Insert(t.Context(), events)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	delayed := queue.InsertParams{Event: json.RawMessage(`{"b":1,"a":2}`), IdempotencyKey: "k", Delay: time.Hour, Type: "t", Priority: 2}
	first := insert(delayed)[0]
	delayed.Event = json.RawMessage(`{ "a": 2, "b": 1 }`)
	if again := insert(delayed)[0]; again.ID != first.ID || !again.VT.Equal(first.VT) || !again.Deduplicated || first.Deduplicated {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if elsewhere := insert(queue.InsertParams{Event: delayed.Event, IdempotencyKey: "k", Queue: "other"})[0]; elsewhere.ID == first.ID || elsewhere.Deduplicated {
		t.Errorf("the same key in another queue: %+v", elsewhere)
	}
	batch := insert(keyed("x", `{"n":1}`), queue.InsertParams{Event: json.RawMessage(`{"n":2}`)}, delayed, keyed("x", `{"n":1}`))
	if batch[0].Deduplicated || batch[1].Deduplicated || !batch[2].Deduplicated || batch[2].ID != first.ID || !batch[3].Deduplicated || batch[3].ID != batch[0].ID {
		t.Errorf("the batch: %+v", batch)
	}
	e := b.claim(t, queue.ClaimParams{}, 1)[0]
	if e.ID != batch[0].ID || e.IdempotencyKey != "x" {
		t.Errorf("claimed %+v", e)
	}
	b.ack(t, lease(e))
	if late := insert(keyed("x", `{"n":1}`))[0]; late.ID != e.ID || !late.Deduplicated {
		t.Errorf("after the event moved into history: %+v", late)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 3 {
		t.Errorf("%d events are in the queue", n)
	}
}

func TestKeyReusedForADifferentRequestIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first := queue.InsertParams{Event: json.RawMessage(`{"n":1}`), IdempotencyKey: "k", Type: "t"}
	b.insertEvents(t, first)
	for name, change := range map[string]func(*queue.InsertParams){
		"payload":      func(p *queue.InsertParams) { p.Event = json.RawMessage(`{"n":2}`) },
		"type":         func(p *queue.InsertParams) { p.Type = "" },
		"source":       func(p *queue.InsertParams) { p.Source = "s" },
		"priority":     func(p *queue.InsertParams) { p.Priority = 1 },
		"delay":        func(p *queue.InsertParams) { p.Delay = time.Second },
		"vt":           func(p *queue.InsertParams) { p.VT = new(time.Now()) },
		"max_attempts": func(p *queue.InsertParams) { p.MaxAttempts = 1 },
		"expires_at":   func(p *queue.InsertParams) { p.ExpiresAt = new(time.Now().Add(time.Hour)) },
		"event_ts":     func(p *queue.InsertParams) { p.EventTS = new(time.Now()) },
		"match": func(p *queue.InsertParams) {
			p.Event, p.OnDuplicate = json.RawMessage(`{"n":2}`), queue.Match
		},
	} {
		p := first
		change(&p)
		if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`)}, p}); !errors.Is(err, queue.ErrKeyReused) {
			t.Errorf("a different %s: %v", name, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events are in the queue", n)
	}
}

func TestMetaIsNoPartOfWhatAKeyStandsFor(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	p := keyed("k", `{"n":1}`)
	p.Meta, p.EventTS = json.RawMessage(`{"trace":1}`), new(time.Now().Truncate(time.Microsecond))
	first := b.insertEvents(t, p)[0]
	for _, meta := range []json.RawMessage{json.RawMessage(`{"trace":2}`), json.RawMessage(`{"trace":1}`), nil} {
		p.Meta = meta
		if in, err := b.Insert(t.Context(), []queue.InsertParams{p}); err != nil || in[0].ID != first || !in[0].Deduplicated {
			t.Errorf("with %s: %+v, %v", meta, in, err)
		}
	}
	if e := b.get(t, first); string(e.Meta) != `{"trace": 1}` {
		t.Errorf("the metadata is %s", e.Meta)
	}
	if again := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{"n": 1}', _key => 'k', _event_ts => $1, _meta => '{"sql": null}')`, *p.EventTS); again != first {
		t.Errorf("SQL got the event %d, want %d", again, first)
	}
	p.Meta = json.RawMessage(`[]`)
	if _, err := b.Insert(t.Context(), []queue.InsertParams{p}); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("metadata that is no object: %v", err)
	}
}

func TestFirstEventOfAKeyWins(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	first := func(payload string) queue.InsertParams {
		p := keyed("k", payload)
		p.OnDuplicate = queue.First
		return p
	}
	in, err := b.Insert(t.Context(), []queue.InsertParams{first(`{"n":1}`), first(`{"n":2}`), {Event: json.RawMessage(`{}`)}})
	if err != nil || in[0].Deduplicated || !in[1].Deduplicated || in[1].ID != in[0].ID || in[2].ID == in[0].ID {
		t.Fatalf("the batch: %+v, %v", in, err)
	}
	if e := b.get(t, in[0].ID); string(e.Payload) != `{"n": 1}` {
		t.Errorf("the event is %s", e.Payload)
	}
	for _, mixed := range [][]queue.InsertParams{{first(`{"n":3}`), keyed("k", `{"n":3}`)}, {keyed("k", `{"n":3}`), first(`{"n":3}`)}} {
		if _, err := b.Insert(t.Context(), mixed); !errors.Is(err, queue.ErrKeyReused) {
			t.Errorf("one that matches and one that does not: %v", err)
		}
	}
	b.exec(t, `select agent.delete_event($1)`, in[0].ID)
	const again = `select agent.insert_event('{"n": 4}', _key => 'k', _on_duplicate => 'first')`
	if id := pgtest.Query[int64](t, b.sql, again); id != in[0].ID {
		t.Errorf("SQL got the event %d, want %d", id, in[0].ID)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 1 {
		t.Errorf("%d events are in the queue", n)
	}
}

func TestConcurrentInsertsUnderOneKeyInsertOneEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := anotherService(t, b.url, nil)
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
				if i == 7 { // can be the first
					payload = `{"n":7}`
				}
				in, err := s.Insert(t.Context(), []queue.InsertParams{keyed(key, payload)})
				switch {
				case err == nil:
					ids[i], fresh[i] = in[0].ID, !in[0].Deduplicated
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
			t.Fatalf("round %d: %d calls inserted an event, want one", round, n)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != rounds {
		t.Errorf("%d events wait, want %d", n, rounds)
	}
}

func TestKeyIsPrunedAfterItsRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.KeyRetention = time.Hour })
	first := b.insertEvents(t, keyed("k", `{"n":1}`))[0]
	if left := pgtest.Query[time.Duration](t, b.sql, `select expires_at - now() from agent.idempotency`); left > time.Hour || left < 50*time.Minute {
		t.Errorf("the key expires in %v", left)
	}
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 s'`)
	second := b.insertEvents(t, keyed("k", `{"n":2}`))[0]
	if second == first {
		t.Error("an expired key deduplicated")
	}
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 s'`)
	if n := pgtest.Query[int](t, b.sql, `select agent.prune_keys()`); n != 1 {
		t.Errorf("%d keys were pruned", n)
	}
}

func TestKeyIsReplayedFromSQL(t *testing.T) {
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
		t.Errorf("the repeated call: %d, %v", again, err)
	}
	var pgErr *pgconn.PgError
	if _, err := insert(`{"n":2}`); !errors.As(err, &pgErr) || pgErr.Code != "QD005" {
		t.Errorf("another payload: %v", err)
	}
}

// insertAs inserts in a session with these settings and returns the id, or the SQLSTATE of the error.
func insertAs(t *testing.T, sql *pgx.Conn, settings, arguments string) (id int64, state string) {
	t.Helper()
	if _, err := sql.Exec(t.Context(), "reset all;"+settings); err != nil {
		t.Fatalf("%s: %v", settings, err)
	}
	err := sql.QueryRow(t.Context(), "select agent.insert_event("+arguments+")").Scan(&id)
	if pgErr := new(pgconn.PgError); errors.As(err, &pgErr) {
		return 0, pgErr.Code
	} else if err != nil {
		t.Fatal(err)
	}
	return id, ""
}

func TestKeysCompareValuesInAnySessionAndNotation(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const (
		utc    = "set timezone to 'UTC'"
		berlin = "set timezone to 'Europe/Berlin'"
	)
	for name, calls := range map[string][][2]string{
		"vt in zones": {
			{utc, `'{}', _vt => '2126-07-01 12:00+00'`},
			{berlin, `'{}', _vt => '2126-07-01 14:00'`},
			{"set timezone to 'Asia/Kathmandu'; set datestyle to 'German'", `'{}', _vt => '01.07.2126 12:00:00.000 UTC'`},
		},
		"expires_at in zones": {
			{utc, `'{}', _expires_at => '2126-07-01 12:00:00.5+00'`},
			{berlin, `'{}', _expires_at => '2126-07-01 14:00:00.500'`},
			{"set datestyle to 'SQL, DMY'; set timezone to 'America/New_York'", `'{}', _expires_at => '01/07/2126 08:00:00.5'`},
		},
		"a day": {
			{utc, `'{}', _delay => '24 hours'`},
			{utc, `'{}', _delay => '1 day'`},
			{"set intervalstyle to 'iso_8601'", `'{}', _delay => 'PT24H'`},
			{"set intervalstyle to 'sql_standard'; " + berlin, `'{}', _delay => '86400 s'`},
		},
		"months":   {{utc, `'{}', _delay => '1 year'`}, {utc, `'{}', _delay => '12 months'`}},
		"no delay": {{utc, `'{}'`}, {utc, `'{}', _delay => '0'`}, {utc, `'{}', _priority => 0`}},
		"numbers": {
			{utc, `'{"a":1.0,"b":[10,1.50,-0.0,{"c":100}],"s":"1.0"}'`},
			{utc, `'{"b":[1e1,1.5,0,{"c":1.00e2}],"a":1.00,"s":"1.0"}'`},
			{utc, `'{"s":"1.0","a":1,"b":[10.000,15e-1,0.0,{"c":100.0}],"a":1}'`},
		},
		"strings": {{utc, `'{"a \"1.0\" \\":1.0,"é\n":"\\\" 2.50"}'`}, {utc, `'{ "\u00e9\n" : "\\\" 2.50", "a \"1.0\" \\" : 1 }'`}},
	} {
		var first int64
		for i, call := range calls {
			id, state := insertAs(t, b.sql, call[0], call[1]+`, _key => '`+name+`'`)
			if i == 0 {
				first = id
			}
			if state != "" || id != first {
				t.Errorf("%s, call %d: event %d %s, want event %d", name, i+1, id, state, first)
			}
		}
	}
}

func TestKeysDistinguishDifferentValues(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i, call := range [][2]string{
		{`'{"a":1.0}'`, `'{"a":1.01}'`},
		{`'{"a":"1.0"}'`, `'{"a":"1.00"}'`},
		{`'{"a":"1.0"}'`, `'{"a":1.0}'`},
		{`'{"a":"\".50"}'`, `'{"a":"\".5"}'`},
		{`'{"a":"\\","b":1.10}'`, `'{"a":"\\","b":1.1000001}'`},
		{`'{"a":[1,[2]]}'`, `'{"a":[[1,2]]}'`},
		{`'{"a":10}'`, `'{"a":100}'`},
		{`'{"a":10.0}'`, `'{"a":1.00}'`},
		{`'{"a":null}'`, `'{}'`},
		{`'{}', _delay => '1 month'`, `'{}', _delay => '30 days'`},
		{`'{}', _delay => '1 s'`, `'{}', _delay => '1.000001 s'`},
		{`'{}', _vt => '2126-07-01 12:00+00'`, `'{}', _vt => '2126-07-01 12:00:00.000001+00'`},
		{`'{}', _vt => '2126-07-01 12:00+00'`, `'{}', _expires_at => '2126-07-01 12:00+00'`},
		{`'{}', _type => 'a', _source => 'b'`, `'{}', _type => 'b', _source => 'a'`},
		{`'{}', _type => '1'`, `'{}', _max_attempts => 1`},
	} {
		key := fmt.Sprintf(`, _key => 'k%d'`, i)
		if _, state := insertAs(t, b.sql, "", call[0]+key); state != "" {
			t.Fatalf("%s: %s", call[0], state)
		}
		if id, state := insertAs(t, b.sql, "", call[1]+key); state != "QD005" {
			t.Errorf("%s after %s: event %d %s", call[1], call[0], id, state)
		}
	}
}

func TestKeysAreTheSameForTheServiceAndSQL(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	at := time.Date(2126, 7, 1, 12, 0, 0, 500_000_000, time.UTC)
	for i, c := range []struct {
		params queue.InsertParams
		sql    string
	}{
		{queue.InsertParams{Delay: 24 * time.Hour}, `'{"n":1}', _delay => '1 day'`},
		{queue.InsertParams{VT: &at}, `'{"n":1.0}', _vt => '2126-07-01 14:00:00.5'`},
		{queue.InsertParams{ExpiresAt: &at, Type: "t", Source: "s", Priority: -3, MaxAttempts: 5}, `'{"n":1}', _expires_at => '2126-07-01 14:00:00.5', _type => 't', _source => 's', _priority => -3, _max_attempts => 5`},
		{queue.InsertParams{}, `'{"n":1}', _priority => 0`},
	} {
		c.params.Event, c.params.IdempotencyKey = json.RawMessage(`{"n":1}`), fmt.Sprintf("k%d", i)
		id := b.insertEvents(t, c.params)[0]
		if got, state := insertAs(t, b.sql, "set timezone to 'Europe/Berlin'", c.sql+`, _key => '`+c.params.IdempotencyKey+`'`); got != id {
			t.Errorf("%s: event %d %s, want event %d", c.sql, got, state, id)
		}
		if i > 1 {
			continue
		}
		// From here on, new sessions have another time zone.
		b.exec(t, `do $$ begin execute format('alter database %I set timezone to ''Asia/Tokyo''', current_database()); end $$`)
		if again := b.insertEvents(t, c.params)[0]; again != id {
			t.Errorf("the repeated insert returned event %d, want %d", again, id)
		}
		other := anotherService(t, b.url, nil)
		if in, err := other.Insert(t.Context(), []queue.InsertParams{c.params}); err != nil || in[0].ID != id {
			t.Errorf("from a session in another zone: %+v, %v; want event %d", in, err, id)
		}
	}
}

func TestKeyPrunedDuringARepetitionStillReturnsAnEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := pgtest.Connect(t, b.url)
	begin := func(conn *pgx.Conn) pgx.Tx {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	insert := func(q interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	},
	) (id *int64, err error) {
		err = q.QueryRow(t.Context(), `select agent.insert_event('{}', _key => 'k')`).Scan(&id)
		return id, err
	}
	first, err := insert(b.sql)
	if err != nil {
		t.Fatal(err)
	}

	// A repeated request locks the key until its transaction ends.
	tx := begin(b.sql)
	if again, err := insert(tx); err != nil || *again != *first {
		t.Fatal(again, err)
	}
	if _, err := other.Exec(t.Context(), `set lock_timeout to '100ms'; delete from agent.idempotency`); err == nil {
		t.Error("the key was pruned during a repetition")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	// A call that finds the key being pruned waits, and then inserts.
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 s'`)
	tx = begin(other)
	if n := 0; tx.QueryRow(t.Context(), `select agent.prune_keys()`).Scan(&n) != nil || n != 1 {
		t.Fatalf("%d keys were pruned", n)
	}
	answered := make(chan error, 1)
	var second *int64
	go func() {
		var err error
		second, err = insert(b.sql)
		answered <- err
	}()
	awaitLockWait(t, b, other)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answered; err != nil || second == nil || *second == *first {
		t.Fatal(second, err)
	}

	// A trigger deletes the key between the statements of the first call, which locks prevent otherwise.
	b.exec(t, `
		create table public.taken ();
		create function public.take() returns trigger language plpgsql as $$
		begin
			if not exists (select from public.taken) then
				insert into public.taken default values;
				delete from agent.idempotency;
			end if;
			return null;
		end $$;
		create trigger take after insert on agent.idempotency for each statement execute function public.take()`)
	third, err := insert(b.sql)
	if err != nil || third == nil || *third <= *second {
		t.Fatalf("the call whose key was deleted returned %v, %v", third, err)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where id = $1 and key = 'k'`, *third); n != 1 {
		t.Errorf("%d events have the returned id", n)
	}
}
