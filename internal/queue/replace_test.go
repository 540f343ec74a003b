package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// underKey is an event with the payload {"n": n} under the key k.
func underKey(n int, onDuplicate queue.OnDuplicate) queue.InsertParams {
	return queue.InsertParams{Event: json.RawMessage(fmt.Sprintf(`{"n": %d}`, n)), Queue: "q", IdempotencyKey: "k", OnDuplicate: onDuplicate}
}

// insertOne inserts an event.
func (b env) insertOne(t *testing.T, p queue.InsertParams) queue.Inserted {
	t.Helper()
	inserted, err := b.Insert(t.Context(), []queue.InsertParams{p})
	if err != nil {
		t.Fatal(err)
	}
	return inserted[0]
}

// wantWaiting fails the test unless these are the payloads of the events of the queue that nobody has a lease on, by id.
func (b env) wantWaiting(t *testing.T, when string, want ...int) {
	t.Helper()
	got := pgtest.Query[[]int](t, b.sql, `
		select coalesce(array_agg((e.event ->> 'n')::int4 order by e.id), '{}') from agent.event e where e.queue = 'q' and agent_private.event_state(e, now()) <> 'leased'`)
	if !slices.Equal(got, want) {
		t.Errorf("%s, %v are waiting, want %v", when, got, want)
	}
}

func TestReplaceGivesAnEventThatNobodyHasClaimedAnotherPayload(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	runService(t, b.Service)
	delayed := func(n int, delay, maxWait time.Duration) queue.InsertParams {
		p := underKey(n, queue.Replace)
		p.Delay, p.MaxWait = delay, maxWait
		return p
	}
	p := delayed(1, time.Hour, 0)
	p.Raw = &queue.RawBody{Body: []byte("one"), Keep: time.Hour}
	p.Type = "t"
	first := b.insertOne(t, p)
	b.exec(t, `update agent.event set enqueued_at = now() - interval '10 minutes', vt = now() + interval '50 minutes' where id = $1`, first.ID)
	second := b.insertOne(t, delayed(2, time.Hour, 0))
	if second.ID != first.ID || second.Deduplicated {
		t.Errorf("the second one is %+v, the first %+v", second, first)
	}
	b.wantWaiting(t, "after the second one", 2)
	e := b.get(t, first.ID)
	if e.Type != "" || e.State != queue.Scheduled || e.VT.Before(now(t, b.sql).Add(55*time.Minute)) || e.EnqueuedAt.After(now(t, b.sql).Add(-9*time.Minute)) {
		t.Errorf("the event is %+v: want that its delay begins anew, and the time of the first insert", e)
	}
	if !second.VT.Equal(e.VT) {
		t.Errorf("the answer says %s, the event is due at %s", second.VT, e.VT)
	}
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.raw_body`); n != 0 {
		t.Error("the bytes of the first one are kept for the second")
	}

	// Its delay is bounded from the first insert on.
	b.insertOne(t, delayed(3, time.Hour, 15*time.Minute))
	if e = b.get(t, first.ID); e.VT.After(now(t, b.sql).Add(5*time.Minute)) || e.VT.Before(now(t, b.sql).Add(4*time.Minute)) {
		t.Errorf("with max_wait it is due at %s", e.VT)
	}
	b.insertOne(t, delayed(4, time.Hour, time.Minute))
	if e = b.get(t, first.ID); e.State != queue.Ready {
		t.Errorf("beyond max_wait it is %s", e.State)
	}
	b.wantWaiting(t, "after all", 4)

	// The key stands for the latest request.
	again := underKey(4, queue.Match)
	again.Delay = time.Hour
	if got := b.insertOne(t, again); got.ID != first.ID || !got.Deduplicated {
		t.Errorf("the repeated request got %+v", got)
	}
	if _, err := b.Insert(t.Context(), []queue.InsertParams{underKey(1, queue.Match)}); !errors.Is(err, queue.ErrKeyReused) {
		t.Errorf("the first request, repeated: %v", err)
	}
	claimed := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	if string(claimed.Payload) != `{"n": 4}` || claimed.Attempts != 1 {
		t.Errorf("claimed %+v", claimed)
	}
	b.ack(t, lease(claimed))
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event_hist`); n != 1 {
		t.Errorf("history has %d events, want the one", n)
	}

	// A claim that waits gets it as it is inserted.
	b.insertOne(t, delayed(5, time.Hour, 0))
	got := make(chan []queue.Event, 1)
	go func() {
		events, _ := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Wait: time.Minute})
		got <- events
	}()
	eventually(t, "the claim waits", func() bool { return queue.Offers(b.Service, "q") })
	b.insertOne(t, underKey(6, queue.Replace))
	if events := <-got; len(events) != 1 || string(events[0].Payload) != `{"n": 6}` {
		t.Errorf("the claim that waited got %+v", events)
	}
}

func TestAReplacementTakesThePlaceOfAnEventThatIsInsertedMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	other := pgtest.Connect(t, b.url)
	const replacing = `{"key": "k", "on_duplicate": "replace"}`
	for i, c := range []struct {
		options []string
		want    []int // is in the queue
	}{
		{[]string{replacing}, []int{1}},
		{[]string{replacing, replacing}, []int{2}},
		{[]string{`{}`, `{"key": "another"}`, replacing}, []int{1, 2, 3}},
	} {
		queueName, options, want := fmt.Sprintf("q%d", i), c.options, c.want
		tx, err := other.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var first int64
		if err := tx.QueryRow(t.Context(), `select agent.insert_event('{"n": -1}', _queue => $1, _key => 'k')`, queueName).Scan(&first); err != nil {
			t.Fatal(err)
		}
		answered := make(chan error, 1)
		var ids []int64
		go func() {
			answered <- b.sql.QueryRow(t.Context(), `
				select array_agg(a.id)
				from agent.insert_events
				( array(select jsonb_build_object('n', n) from generate_series(1, cardinality($2::jsonb[])) as n), array_fill($1::text, array[cardinality($2)]), _options => $2
				) a`, queueName, options).Scan(&ids)
		}()
		awaitLockWait(t, b, other)
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-answered; err != nil || len(ids) != len(options) || ids[len(ids)-1] != first {
			t.Fatalf("%v: the ids are %v (%v), want that of the first event, %d, for the last one", options, ids, err, first)
		}
		if got := pgtest.Query[[]int](t, b.sql, `select array_agg(n order by n) from (select (e.event ->> 'n')::int4 from agent.event e where e.queue = $1) as e (n)`, queueName); !slices.Equal(got, want) {
			t.Errorf("%v: %v are in the queue, want %v", options, got, want)
		}
	}
}

func TestReplaceAndSupersedeSayWhatBecomesOfAnEventThatWasClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertOne(t, underKey(1, queue.Replace))
	first := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	if got := b.insertOne(t, underKey(2, queue.Replace)); got.ID == first.ID || got.Deduplicated {
		t.Errorf("beside a lease, the insert returned %+v", got)
	}
	b.wantWaiting(t, "beside the leased one", 2)
	b.insertOne(t, underKey(3, queue.Replace))
	b.wantWaiting(t, "after the next one", 3)
	b.ack(t, lease(first)) // its lease is as it was
	second := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]

	// Superseded, it is cancelled, and its worker has lost the lease.
	b.insertOne(t, underKey(4, queue.Supersede))
	b.wantWaiting(t, "after it was superseded", 4)
	if e := b.get(t, second.ID); e.Outcome != queue.Cancelled || e.LastError == nil {
		t.Errorf("the superseded event is %+v", e)
	}
	if acked, err := b.Ack(t.Context(), []queue.Ack{{Lease: lease(second)}}); err != nil || !errors.Is(acked[0].Err, queue.ErrLeaseLost) {
		t.Errorf("its ack: %+v, %v", acked, err)
	}
	if _, err := b.Extend(t.Context(), lease(second), time.Minute); !errors.Is(err, queue.ErrLeaseLost) {
		t.Errorf("its extension: %v", err)
	}

	// One that waits for another attempt goes into history with those it had.
	third := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	b.exec(t, `select agent.nack_event($1, $2, interval '1 hour')`, third.ID, third.Receipt)
	if got := b.insertOne(t, underKey(5, queue.Replace)); got.ID == third.ID {
		t.Error("an event that has failed before has another payload now")
	}
	b.wantWaiting(t, "after a nack", 5)
	if e := b.get(t, third.ID); e.Outcome != queue.Cancelled || e.Attempts != 1 {
		t.Errorf("the event that was nacked is %+v", e)
	}
	// One whose lease is lost, too: the late ack ends nothing.
	fourth := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	b.exec(t, `update agent.event set vt = now() where id = $1`, fourth.ID)
	b.insertOne(t, underKey(6, queue.Supersede))
	if acked, err := b.Ack(t.Context(), []queue.Ack{{Lease: lease(fourth)}}); err != nil || !errors.Is(acked[0].Err, queue.ErrLeaseLost) {
		t.Errorf("the late ack: %+v, %v", acked, err)
	}
	b.wantWaiting(t, "after a lost lease", 6)

	// Where it has ended there is nothing to replace.
	b.exec(t, `select agent.purge_queue('q')`)
	for n, by := range []queue.OnDuplicate{queue.Replace, queue.Supersede} {
		if got := b.insertOne(t, underKey(7+n, by)); got.Deduplicated {
			t.Errorf("after its end: %+v", got)
		}
		b.wantWaiting(t, "after the end of the one before", 7+n)
		b.exec(t, `select agent.purge_queue('q')`)
	}
}

func TestOfABatchTheLastReplacementUnderAKeyCounts(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	before := b.insertOne(t, underKey(0, queue.Match))
	other := queue.InsertParams{Event: json.RawMessage(`{"n": 9}`), Queue: "q"}
	inserted, err := b.Insert(t.Context(), []queue.InsertParams{underKey(1, queue.Replace), other, underKey(2, queue.Replace), underKey(3, queue.Supersede), underKey(3, queue.Match)})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{before.ID, inserted[1].ID, before.ID, before.ID, before.ID} {
		if inserted[i].ID != want {
			t.Errorf("element %d is %+v, want the id %d", i, inserted[i], want)
		}
	}
	b.wantWaiting(t, "after the batch", 3, 9)
	if _, err := b.Insert(t.Context(), []queue.InsertParams{underKey(4, queue.Replace), underKey(5, queue.Match)}); !errors.Is(err, queue.ErrKeyReused) {
		t.Errorf("another request beside a replacement: %v", err)
	}
	b.wantWaiting(t, "after a batch that was refused", 3, 9)
}

func TestAKeyStandsUntilItsEventIsClaimedOrFinished(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	until := func(n int, until queue.KeyUntil) queue.InsertParams {
		p := underKey(n, queue.First)
		p.KeyUntil = until
		return p
	}
	first := b.insertOne(t, until(1, queue.UntilFinished))
	same := func(when string, p queue.InsertParams) {
		t.Helper()
		if got := b.insertOne(t, p); got.ID != first.ID || !got.Deduplicated {
			t.Errorf("%s: %+v, want the event %d", when, got, first.ID)
		}
	}
	same("while it waits", until(2, queue.UntilFinished))
	claimed := b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	same("while it is leased", until(2, queue.UntilClaimed)) // what the first request has said counts
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 second'`)
	same("after the time for which keys are kept", underKey(2, queue.First))
	if n := pgtest.Query[int64](t, b.sql, `select agent.prune_keys()`); n != 0 {
		t.Errorf("%d keys were pruned", n)
	}
	same("after pruning", underKey(2, queue.First))
	b.ack(t, lease(claimed))
	second := b.insertOne(t, until(3, queue.UntilClaimed))
	if second.ID == first.ID || second.Deduplicated {
		t.Errorf("after its end: %+v", second)
	}
	first = second
	same("while the next one waits", until(4, ""))
	claimed = b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	b.exec(t, `select agent.release_event($1, $2)`, claimed.ID, claimed.Receipt)
	same("after its release", until(4, ""))
	claimed = b.claim(t, queue.ClaimParams{Queue: "q"}, 1)[0]
	third := b.insertOne(t, until(4, ""))
	if third.ID == second.ID {
		t.Errorf("after its claim: %+v", third)
	}
	b.ack(t, lease(claimed))
	first = third
	b.exec(t, `select agent.purge_queue('q')`)
	same("after the end of one whose key is kept for a time", underKey(5, queue.First))
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 second'`)
	if n := pgtest.Query[int64](t, b.sql, `select agent.prune_keys()`); n != 1 {
		t.Errorf("%d keys were pruned, want 1", n)
	}

	// Keys without an event, whose time is over, are deleted; until then they make room at once.
	b.insertOne(t, until(6, queue.UntilFinished))
	b.exec(t, `select agent.purge_queue('q')`)
	b.exec(t, `update agent.idempotency set expires_at = now() - interval '1 second'`)
	if n := pgtest.Query[int64](t, b.sql, `select agent.prune_keys()`); n != 1 {
		t.Errorf("%d keys were pruned, want 1", n)
	}
	short := underKey(7, queue.First)
	short.KeyFor = time.Minute
	b.insertOne(t, short)
	if got := pgtest.Query[time.Duration](t, b.sql, `select expires_at - now() from agent.idempotency`); got > time.Minute {
		t.Errorf("the key stands for %s", got)
	}
	if got := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{"n": 8}', 'q', _key => 'sql', _on_duplicate => 'replace', _delay => '1 hour', _max_wait => '1 minute', _key_until => '10 minutes')`); got == 0 {
		t.Error("nothing was inserted by SQL")
	}
	if got := pgtest.Query[time.Duration](t, b.sql, `select max(vt) - now() from agent.event where key = 'sql'`); got > time.Minute {
		t.Errorf("the first one waits for %s, longer than its max_wait", got)
	}
}

func TestReplacementsInALimitedGroupTakeNoFurtherSlot(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 1}`)
	grouped := func(n int, key, group string) queue.InsertParams {
		p := underKey(n, queue.Supersede)
		p.IdempotencyKey, p.Group = key, group
		return p
	}
	b.insertOne(t, grouped(1, "a", "g"))
	b.insertOne(t, grouped(2, "b", "g"))
	b.insertOne(t, grouped(3, "a", "g"))
	first := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 10}, 1)[0]
	if string(first.Payload) != `{"n": 3}` {
		t.Errorf("claimed %s: the event keeps its place", first.Payload)
	}
	b.insertOne(t, grouped(4, "b", "h"))
	second := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 10}, 1)[0]
	if string(second.Payload) != `{"n": 4}` {
		t.Errorf("claimed %s, want the one in another group", second.Payload)
	}
	b.insertOne(t, grouped(5, "a", "g")) // its slot is free then
	third := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 10}, 1)[0]
	if string(third.Payload) != `{"n": 5}` {
		t.Errorf("claimed %s", third.Payload)
	}
	b.wantClaimed(t, "q", "with both slots taken")
	b.ack(t, lease(second))
	b.ack(t, lease(third))

	// In an ordered group it keeps its place, and stays the only one that can be claimed.
	b.limit(t, "q", `{"order": true}`)
	b.insertOne(t, grouped(6, "c", "g"))
	b.insertOne(t, grouped(7, "d", "g"))
	b.insertOne(t, grouped(8, "c", "g"))
	for _, want := range []string{`{"n": 8}`, `{"n": 7}`} {
		e := b.claim(t, queue.ClaimParams{Queue: "q", Limit: 10}, 1)[0]
		if string(e.Payload) != want {
			t.Errorf("claimed %s in the ordered group, want %s", e.Payload, want)
		}
		b.ack(t, lease(e))
	}
}

// refusedField returns the argument that a function has refused.
func refusedField(err error) string {
	if pgErr, isAnswer := errors.AsType[*pgconn.PgError](err); isAnswer && pgErr.Code == "QD003" {
		return pgErr.ColumnName
	}
	return ""
}

func TestOptionsOfKeysThatAreWrongAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for field, wrong := range map[string]string{
		"on_duplicate":  `{"on_duplicate": "replace"}`,
		"on_duplicate ": `{"on_duplicate": "merge", "key": "k"}`,
		"key_until":     `{"key_until": "finished"}`,
		"key_until ":    `{"key_until": "ended", "key": "k"}`,
		"key_until  ":   `{"key_until": "-1 hour", "key": "k"}`,
		"key_until   ":  `{"key_until": "claimed", "key_retention": "1 hour", "key": "k"}`,
		"max_wait":      `{"max_wait": "1 hour"}`,
		"max_wait ":     `{"max_wait": "1 hour", "key": "k", "on_duplicate": "first"}`,
		"max_wait  ":    `{"max_wait": "0", "key": "k", "on_duplicate": "replace"}`,
		"max_wait   ":   `{"max_wait": "soon", "key": "k", "on_duplicate": "replace"}`,
	} {
		_, err := b.sql.Exec(t.Context(), `select agent_service.insert_and_claim_events(array['{}'::jsonb], null, null, null, _options => array[$1::text::jsonb])`, wrong)
		if refusedField(err) != strings.TrimSpace(field) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	for wrong, field := range map[string]string{"_on_duplicate => 'replace'": "on_duplicate", "_key_until => 'claimed'": "key_until", "_max_wait => '1 hour'": "max_wait"} {
		_, err := b.sql.Exec(t.Context(), `select agent.insert_event('{}', `+wrong+`)`)
		if refusedField(err) != field {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events were inserted", n)
	}
}

// raceUnderOneKey has 20 callers insert under one key at once, in some rounds, while others claim and ack, and returns the promises that are broken: of what is inserted under a key at most one
// event waits at any time, and the last payload is worked on, or waits.
func raceUnderOneKey(t *testing.T, onDuplicate queue.OnDuplicate, broken ...string) (faults []string) {
	t.Helper()
	b := setup(t, nil)
	for _, statement := range broken {
		b.exec(t, statement)
	}
	const callers, rounds = 20, 25
	var (
		mu       sync.Mutex
		worked   = make(map[int]bool) // payloads that somebody has claimed
		answered = make(map[int]int64)
		callsWG  sync.WaitGroup
		claimsWG sync.WaitGroup
		end      = make(chan struct{})
	)
	fault := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		faults = append(faults, fmt.Sprintf(format, args...))
	}
	connect := func() *pgx.Conn {
		conn, err := pgx.Connect(t.Context(), b.url)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 3 {
		conn := connect()
		claimsWG.Go(func() {
			defer func() { _ = conn.Close(t.Context()) }()
			for {
				select {
				case <-end:
					return
				default:
				}
				var (
					id      int64
					receipt string
					n       int
				)
				err := conn.QueryRow(t.Context(), `select id, agent.receipt(e), (event ->> 'n')::int4 from agent.claim_events('q', 1) e`).Scan(&id, &receipt, &n)
				if errors.Is(err, pgx.ErrNoRows) {
					continue
				}
				if err != nil {
					fault("a claim: %v", err)
					return
				}
				mu.Lock()
				worked[n] = true
				mu.Unlock()
				_, err = conn.Exec(t.Context(), `select agent.delete_event($1, $2)`, id, receipt)
				if pgErr, _ := errors.AsType[*pgconn.PgError](err); pgErr != nil && pgErr.Code == "QD001" && onDuplicate == queue.Supersede {
					continue
				}
				if err != nil {
					fault("an ack while the lease runs: %v", err)
				}
			}
		})
	}
	for caller := range callers {
		conn := connect()
		callsWG.Go(func() {
			defer func() { _ = conn.Close(t.Context()) }()
			for round := range rounds {
				n := 1 + round*callers + caller
				var id int64
				if err := conn.QueryRow(t.Context(), `select agent.insert_event(jsonb_build_object('n', $1::int4), 'q', _key => 'k', _on_duplicate => $2)`, n, onDuplicate).Scan(&id); err != nil {
					fault("an insert: %v", err)
					return
				}
				mu.Lock()
				answered[n] = id
				mu.Unlock()
			}
		})
	}
	watcher := connect()
	claimsWG.Go(func() {
		defer func() { _ = watcher.Close(t.Context()) }()
		for {
			select {
			case <-end:
				return
			default:
			}
			var waiting int
			if err := watcher.QueryRow(t.Context(), `select count(*)::int4 from agent.event e where e.queue = 'q' and e.attempts = 0`).Scan(&waiting); err != nil {
				fault("a look: %v", err)
				return
			}
			if waiting > 1 {
				fault("%d events wait under the key", waiting)
				return
			}
		}
	})
	callsWG.Wait()
	close(end)
	claimsWG.Wait()

	// What the last commit has stored was worked on, or waits: the payload of the row of the key.
	waiting := pgtest.Query[int](t, b.sql, `select count(*)::int4 from agent.event where queue = 'q' and attempts = 0`)
	if waiting > 1 {
		faults = append(faults, fmt.Sprintf("%d events wait at the end", waiting))
	}
	last := pgtest.Query[int64](t, b.sql, `select event_id from agent.idempotency where queue = 'q' and key = 'k'`)
	if pgtest.Query[int64](t, b.sql, `select (select count(*) from agent.event where id = $1) + (select count(*) from agent.event_hist where id = $1)`, last) != 1 {
		faults = append(faults, fmt.Sprintf("the event %d, which the key stands for, is lost", last))
	}
	if n := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event e where e.key = 'k' and agent_private.event_state(e, now()) = 'leased'`); onDuplicate == queue.Supersede && n > 1 {
		faults = append(faults, fmt.Sprintf("%d events are leased", n))
	}
	// Each event that was answered is there, or was replaced by a later one with its id.
	for n, id := range answered {
		if pgtest.Query[int64](t, b.sql, `select (select count(*) from agent.event where id = $1) + (select count(*) from agent.event_hist where id = $1)`, id) != 1 {
			faults = append(faults, fmt.Sprintf("the event %d, which the insert of %d was answered with, is lost", id, n))
			break
		}
	}
	return faults
}

func TestOfManyCallersUnderOneKeyOneEventWaits(t *testing.T) {
	t.Parallel()
	for _, onDuplicate := range []queue.OnDuplicate{queue.Replace, queue.Supersede} {
		t.Run(string(onDuplicate), func(t *testing.T) {
			t.Parallel()
			for _, fault := range raceUnderOneKey(t, onDuplicate) {
				t.Error(fault)
			}
		})
	}
}

func TestABrokenReplacementIsCaught(t *testing.T) {
	pgtest.Nightly(t)
	t.Parallel()
	for name, statement := range map[string]string{
		"without locks": brokenFunction("free_keys", `for update) as e`, `limit 1) as e`),
		"no deletion":   brokenFunction("free_keys", `ids[_n] = _event.id`, `perform 1`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if len(raceUnderOneKey(t, queue.Replace, statement)) == 0 {
				t.Error("no promise was broken")
			}
		})
	}
}
