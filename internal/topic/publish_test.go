package topic_test

import (
	"context"
	"crypto/rand"
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

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/topic"
)

func TestPublishedEventsAreReadInTheirOrder(t *testing.T) {
	t.Parallel()
	env := setup(t)
	first := env.publish(t, "order.placed", "order.paid", "user.added")
	second := env.publish(t, "order.sent")
	page := env.read(t, topic.ReadParams{})
	if want := slices.Concat(first, second); !slices.Equal(positions(page.Events), want) || page.Next != page.Head || page.Head < second[0] {
		t.Errorf("read %d up to %d of %d, want %d", positions(page.Events), page.Next, page.Head, want)
	}
	e := page.Events[0]
	if e.Topic != "order.placed" || string(e.Event) != `{"n": 0}` || e.Meta != nil || e.Key != "" || time.Since(e.PublishedAt).Abs() > busyTimeout {
		t.Errorf("read %+v", e)
	}
}

func TestKeyAndMetaGoAlong(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	_, err := env.Publish(t.Context(), []topic.Publication{
		{Topic: "a", Event: json.RawMessage(`{}`), Key: "k", Meta: json.RawMessage(`{"trace": 1}`)},
		{Topic: "b", Event: json.RawMessage(`{}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	env.exec(t, `select agent.publish('c', '{}', 'l', '{"trace": 2}')`)
	events := env.read(t, topic.ReadParams{}).Events
	if len(events) != 3 || events[0].Key != "k" || string(events[0].Meta) != `{"trace": 1}` || events[1].Key != "" || events[1].Meta != nil ||
		events[2].Key != "l" || string(events[2].Meta) != `{"trace": 2}` {
		t.Errorf("read %+v", events)
	}
}

func TestPublishingTakesItsPlaceAtCommit(t *testing.T) {
	t.Parallel()
	env := setup(t)
	early := pgtest.Connect(t, env.url)
	tx, err := early.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.publish('early', '{}')`); err != nil {
		t.Fatal(err)
	}
	// An open transaction that has published delays nobody.
	later := env.publish(t, "later")
	if page := env.read(t, topic.ReadParams{}); !slices.Equal(positions(page.Events), later) {
		t.Errorf("beside an open publisher %d are read, want %d", positions(page.Events), later)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if page := env.read(t, topic.ReadParams{After: later[0]}); len(page.Events) != 1 || page.Events[0].Topic != "early" {
		t.Errorf("after the commit %+v comes after what was published meanwhile, want the early one", page.Events)
	}
	if n := value[int](t, env, `select count(*) from agent.outgoing`); n != 0 {
		t.Errorf("%d rows are left in agent.outgoing", n)
	}
}

func TestRolledBackPublicationsAreNotPublished(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `begin; select agent.publish('a', '{}'); rollback`)
	env.exec(t, `begin; select agent.publish('b', '{}'); savepoint s; select agent.publish('c', '{}'); rollback to s; select agent.publish('d', '{}'); commit`)
	var topics []string
	for _, e := range env.read(t, topic.ReadParams{}).Events {
		topics = append(topics, e.Topic)
	}
	if !slices.Equal(topics, []string{"b", "d"}) {
		t.Errorf("published %q, want b and d", topics)
	}
}

func TestAManyTimesPublishingTransactionKeepsItsOrder(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `do $$ begin for i in 1..250 loop perform agent.publish('a', jsonb_build_object('n', i)); end loop; end $$`)
	if !value[bool](t, env, `select array_agg((event ->> 'n')::int4 order by position) = array(select generate_series(1, 250)) from agent.log`) {
		t.Error("the events are not in the order in which they were published")
	}
}

// Functions and tables with which a transaction may ask for constraints at once.
const askingForConstraints = `
create function public.ask() returns void language plpgsql as $$ begin set constraints all immediate; end $$;
create function public.ask_in_sql() returns void language sql as 'set constraints all immediate';
create procedure public.ask_and_commit() language plpgsql as $$ begin
  perform agent.publish('early', '{"n": 1}');
  set constraints all immediate;
  set constraints all immediate;
  if exists (select from agent.log where xmin::text = pg_current_xact_id()::text) then raise 'a place was taken before the commit'; end if;
  commit;
  perform agent.publish('early', '{"n": 2}');
  set constraints all immediate;
  commit;
end $$;
create table public.checked (note text);
create function public.publish_note() returns trigger language plpgsql as $$ begin
  if new.note = 'ask' then set constraints all immediate; else perform agent.publish('early', new.note::jsonb); end if;
  return null;
end $$;
create constraint trigger publish_note after insert on public.checked deferrable initially deferred for each row execute function public.publish_note();
create table public.users (id int8 primary key);
select agent.publish_changes('public.users', 'early');`

func TestSetConstraintsTakesNoPlaceEarly(t *testing.T) {
	t.Parallel()
	const (
		ask   = `set constraints all immediate`
		one   = `select agent.publish('early', '{"n": 1}')`
		two   = `select agent.publish('early', '{"n": 2}')`
		three = `select agent.publish('early', '{"n": 3}')`
	)
	tests := map[string]struct {
		statements []string
		want       string
	}{
		"before publishing":                   {[]string{ask, one}, "1"},
		"after publishing":                    {[]string{one, ask}, "1"},
		"both":                                {[]string{ask, one, ask}, "1"},
		"twice":                               {[]string{one, ask, ask}, "1"},
		"many times":                          {[]string{one, ask, two, ask, ask, three, ask, ask, ask}, "1 2 3"},
		"many events":                         {[]string{one, two, ask, three, ask}, "1 2 3"},
		"by name":                             {[]string{one, `set constraints agent.publish_at_commit immediate`, two, `set constraints agent.publish_at_commit immediate`}, "1 2"},
		"with a comment in it":                {[]string{one, `SET/* all */Constraints all immediate`}, "1"},
		"in a function":                       {[]string{one, `select public.ask()`, two, `select public.ask()`}, "1 2"},
		"in an SQL function":                  {[]string{one, `select public.ask_in_sql()`}, "1"},
		"in a block":                          {[]string{one, `do $$ begin execute 'set constraints all ' || 'immediate'; perform public.ask(); end $$`}, "1"},
		"in a block that publishes":           {[]string{`do $$ begin ` + ask + `; for i in 1..3 loop perform agent.publish('early', jsonb_build_object('n', i)); perform public.ask(); end loop; end $$`}, "1 2 3"},
		"in a savepoint":                      {[]string{one, `savepoint s`, two, ask, `release s`, ask}, "1 2"},
		"in what is rolled back":              {[]string{one, `savepoint s`, two, ask, ask, `rollback to s`, three, ask}, "1 3"},
		"rolled back alone":                   {[]string{one, two, `savepoint s`, ask, ask, `rollback to s`}, "1 2"},
		"in a failing block":                  {[]string{one, `do $$ begin perform public.ask(); perform agent.publish('early', '{"n": 2}'); raise 'no'; exception when others then null; end $$`, three}, "1 3"},
		"in a failing block, twice":           {[]string{one, ask, `do $$ begin perform public.ask(); raise 'no'; exception when others then null; end $$`, ask}, "1"},
		"with a trigger that publishes then":  {[]string{`insert into public.checked values ('{"n": 1}')`, two, `insert into public.checked values ('{"n": 3}')`, ask, ask}, "2 1 3"},
		"with a trigger that asks at the end": {[]string{`insert into public.checked values ('ask')`, one, `insert into public.checked values ('ask')`, two}, "1 2"},
		"with changes of tables":              {[]string{`insert into public.users values (1)`, ask, `insert into public.users values (2)`, ask, ask}, "1 2"},
		"after asking for the end":            {[]string{one, ask, `set constraints all deferred`, two, ask}, "1 2"},
	}
	for protocol, exec := range map[string]func(*pgx.Conn, string) error{
		"simple": func(c *pgx.Conn, sql string) error {
			_, err := c.PgConn().Exec(t.Context(), sql).ReadAll()
			return err
		},
		"extended": func(c *pgx.Conn, sql string) error {
			return c.PgConn().ExecParams(t.Context(), sql, nil, nil, nil, nil).Read().Err
		},
	} {
		for _, isPrepared := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s protocol, prepared %t", protocol, isPrepared), func(t *testing.T) {
				t.Parallel()
				env := setupIdle(t)
				env.exec(t, askingForConstraints)
				conn := pgtest.Connect(t, env.url)
				end := []string{`commit`}
				if isPrepared {
					id := "'" + value[string](t, env, `select current_database()`) + "'" // as a server has one of each name
					end = []string{`prepare transaction ` + id, `commit prepared ` + id}
				}
				for name, test := range tests {
					run := func(statements ...string) {
						t.Helper()
						for _, statement := range statements {
							if err := exec(conn, statement); err != nil {
								t.Fatalf("%s: %s: %v", name, statement, err)
							}
						}
					}
					before := env.publish(t, "before")[0]
					run(`begin`)
					run(test.statements...)
					later := env.publish(t, "later")
					if page := env.read(t, topic.ReadParams{After: before}); !slices.Equal(positions(page.Events), later) {
						t.Errorf("%s: %d are read beside it, want %d", name, positions(page.Events), later)
					}
					run(end...)
					env.wantEarly(t, name, later[0], test.want)
				}
			})
		}
	}
}

func TestPlaceIsTakenAtTheCommitWhateverTheQueryHasInItsText(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	env := environmentOn(t, db.URL)
	env.exec(t, askingForConstraints)
	const early = `do $$ begin if exists (select from agent.log where xmin::text = pg_current_xact_id()::text) then raise 'a place was taken before the commit'; end if; end $$; `
	for name, test := range map[string]struct{ query, want string }{
		"with its commit":           {`begin; select agent.publish('early', '{"n": 1}'); set constraints all immediate; commit`, "1"},
		"more than once":            {`begin; select agent.publish('early', '{"n": 1}'); set constraints all immediate; set constraints all immediate; ` + early + `commit`, "1"},
		"in two transactions":       {`begin; select agent.publish('early', '{"n": 1}'); set constraints all immediate; ` + early + `commit; begin; select agent.publish('early', '{"n": 2}'); commit`, "1 2"},
		"followed by another":       {`begin; select agent.publish('early', '{"n": 1}'); set constraints all immediate; commit and chain; select agent.publish('early', '{"n": 2}'); set constraints all immediate; commit`, "1 2"},
		"without a transaction":     {`select agent.publish('early', '{"n": 1}'); set constraints all immediate; set constraints all immediate; ` + early + `select agent.publish('early', '{"n": 2}')`, "1 2"},
		"in a comment":              {`/* set constraints all immediate */ select agent.publish('early', '{"n": 1}') -- set constraints all immediate`, "1"},
		"in a literal":              {`select agent.publish('early', '{"n": 1, "text": "set constraints all immediate"}')`, "1"},
		"in a literal, in a block":  {`do $$ begin perform agent.publish('early', '{"n": 1, "text": "set constraints all immediate"}'); end $$`, "1"},
		"as a procedure":            {`call public.ask_and_commit()`, "1 2"},
		"as a block with a commit":  {`do $$ begin perform agent.publish('early', '{"n": 1}'); commit; perform agent.publish('early', '{"n": 2}'); end $$`, "1 2"},
		"with a session's setting":  {`begin; set local lc_messages = 'C'; select agent.publish('early', '{"n": 1}'); select public.ask(); ` + early + `commit`, "1"},
		"at a higher isolation":     {`begin isolation level serializable; select agent.publish('early', '{"n": 1}'); select public.ask(); set constraints all immediate; ` + early + `commit`, "1"},
		"in a session of a replica": {`set session_replication_role = replica; begin; select agent.publish('early', '{"n": 1}'); set constraints all immediate; set constraints all immediate; ` + early + `commit`, "1"},
	} {
		before := env.publish(t, "before")[0]
		conn := pgtest.Connect(t, db.AdminURL)
		if _, err := conn.PgConn().Exec(t.Context(), test.query).ReadAll(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close(t.Context())
		env.wantEarly(t, name, before, test.want)
	}
}

// wantEarly checks that a test has published these numbers after a position, in their order, and that nothing is left to publish or holds the head.
func (env environment) wantEarly(t *testing.T, test string, after int64, want string) {
	t.Helper()
	numbers := value[string](t, env, `select coalesce(string_agg(coalesce(event ->> 'n', event ->> 'key'), ' ' order by position), '')
		from agent.log where position > $1 and topic like 'early%'`, after)
	if numbers != want {
		t.Errorf("%s: published %s, want %s", test, numbers, want)
	}
	if n := value[int](t, env, `select count(*) from agent.outgoing`); n != 0 {
		t.Errorf("%s: %d rows are left in agent.outgoing", test, n)
	}
	if h, err := env.Holder(t.Context()); h != nil || err != nil {
		t.Errorf("%s: the holder is %+v, %v; want none", test, h, err)
	}
}

func TestHolderOfTheHeadIsNamed(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	before := env.publish(t, "before")
	holder := pgtest.Connect(t, env.url)
	tx, err := holder.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent_service.append_log('{held}', '{"{}"}')`); err != nil {
		t.Fatal(err)
	}
	env.publish(t, "after")
	page := env.read(t, topic.ReadParams{})
	if !slices.Equal(positions(page.Events), before) || page.Next != before[0] {
		t.Errorf("behind a held head %d are read, up to %d; want %d", positions(page.Events), page.Next, before)
	}
	h, err := env.Holder(t.Context())
	if err != nil || h == nil || h.PID == nil || uint32(*h.PID) != holder.PgConn().PID() || h.Position != before[0] {
		t.Errorf("the holder is %+v, %v; want the session %d", h, err, holder.PgConn().PID())
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if page := env.read(t, topic.ReadParams{After: before[0]}); len(page.Events) != 1 || page.Events[0].Topic != "after" {
		t.Errorf("when it has ended %+v is read, want the one after it", page.Events)
	}
	if h, err := env.Holder(t.Context()); h != nil || err != nil {
		t.Errorf("the holder is %+v, %v; want none", h, err)
	}
}

func TestPreparedTransactionHoldsTheHead(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `begin`)
	env.exec(t, `select agent.publish('prepared', '{}')`)
	env.exec(t, `prepare transaction 'held by a test'`)
	defer env.exec(t, `commit prepared 'held by a test'`) // else the database could not be dropped
	env.publish(t, "after")
	if page := env.read(t, topic.ReadParams{}); len(page.Events) != 0 {
		t.Errorf("behind a prepared transaction %+v is read", page.Events)
	}
	h, err := env.Holder(t.Context())
	if err != nil || h == nil || h.PID != nil || h.Prepared == nil || *h.Prepared != "held by a test" {
		t.Errorf("the holder is %+v, %v; want the prepared transaction", h, err)
	}
}

func TestLocksOfOthersDoNotHoldTheHead(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	// The lock that hold_head would take, by somebody who may not write to the log.
	env.exec(t, `select pg_advisory_lock_shared(679::int8 << 53 | 1)`)
	want := env.publish(t, "a")
	if page := env.read(t, topic.ReadParams{}); !slices.Equal(positions(page.Events), want) {
		t.Errorf("%d are read, want %d", positions(page.Events), want)
	}
}

func TestLocksOfOthersDoNotBlockPublishers(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `select count(pg_advisory_lock(679::int8 << 53 | s.last_value + i)) from agent.log_position_seq s cross join generate_series(-20, 1000) i`)
	want := append(env.publish(t, "a"), env.publish(t, "b", "c")...)
	if page := env.read(t, topic.ReadParams{}); !slices.Equal(positions(page.Events), want) {
		t.Errorf("%d are read, want %d", positions(page.Events), want)
	}
}

// Its snapshot does not show the row of the segment that it publishes into.
func TestRepeatableReadTransactionPublishesIntoALaterSegment(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	other := pgtest.Connect(t, env.url)
	tx, err := other.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.publish('a', '{"n": 1}')`); err != nil {
		t.Fatal(err)
	}
	env.exec(t, `select setval('agent.log_position_seq', (last_value >> 32) + 9 << 32) from agent.log_position_seq`)
	env.maintain(t)
	env.publish(t, "b")
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
	if page := env.read(t, topic.ReadParams{}); len(page.Events) != 2 || page.Events[1].Topic != "a" {
		t.Errorf("read %+v, want b and a", page.Events)
	}
}

// Only a superuser can make a session one of a replica, in which ordinary triggers do nothing.
func TestReplicaSessionsPublish(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	if fires := value[string](t, env, `select tgenabled::text from pg_trigger where tgname = 'publish_at_commit'`); fires != "A" {
		t.Errorf("the trigger that publishes fires in the mode %s, want always (A)", fires)
	}
}

// Each lock takes room that all sessions of the server share.
func TestLargeTransactionTakesOneLockAndKeepsItsOrder(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	// This is how some clients still connect.
	env.exec(t, `set standard_conforming_strings = off`)
	env.exec(t, `begin`)
	env.exec(t, `select agent.publish_events(array_agg('a'::text), array_agg(jsonb_build_object('n', 1000 * k + n)),
			_idempotency_keys => array_agg(case when n % 100 = 0 then n || ' ' || k end))
		from generate_series(0, 4) k cross join generate_series(0, 999) n group by k order by k`)
	env.exec(t, `prepare transaction 'large'`)
	locks := value[int](t, env, `select count(*) from pg_locks where locktype = 'advisory' and pid is null and database = (select oid from pg_database where datname = current_database())`)
	env.exec(t, `commit prepared 'large'`)
	if locks != 1 {
		t.Errorf("the transaction held %d advisory locks", locks)
	}
	if n := value[int](t, env, `select count(*) from (select (event ->> 'n')::int8 as n, row_number() over (order by position) - 1 as place from agent.log) l where n = place`); n != 5000 {
		t.Errorf("%d of 5000 events are in their place", n)
	}
	if n := value[int](t, env, `select count(*) from agent.publication_key k join agent.log l using (position, published_at)
		where k.key = (l.event ->> 'n')::int4 % 1000 || ' ' || (l.event ->> 'n')::int4 / 1000`); n != 50 {
		t.Errorf("%d of 50 keys have the position of their event", n)
	}
}

func TestFirstPublicationAnswersForLaterOnesThatSaySo(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	of := func(n string, onDuplicate queue.OnDuplicate) topic.Publication {
		return topic.Publication{Topic: "a", Event: json.RawMessage(`{"n": ` + n + `}`), IdempotencyKey: "k", OnDuplicate: onDuplicate}
	}
	first, err := env.Publish(t.Context(), []topic.Publication{of("1", queue.First), of("2", queue.First)})
	if err != nil || first[0].Deduplicated || !first[1].Deduplicated || first[1].Position != first[0].Position {
		t.Fatalf("got %+v, %v", first, err)
	}
	again, err := env.Publish(t.Context(), []topic.Publication{of("3", queue.First), {Topic: "b", Event: json.RawMessage(`{}`)}})
	if err != nil || again[0].Position != first[0].Position || !again[0].Deduplicated || again[1].Deduplicated {
		t.Errorf("another event: %+v, %v", again, err)
	}
	if _, err := env.Publish(t.Context(), []topic.Publication{of("3", queue.First), of("3", queue.Match)}); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("beside one that must be the same: %v, want ErrKeyReused", err)
	}
	later := of("1", "")
	later.IdempotencyKey = "later"
	if _, err := env.PublishLater(t.Context(), later, time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	later.OnDuplicate = queue.First
	if _, err := env.Publish(t.Context(), []topic.Publication{later}); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("with the key of what waits, and has no position: %v, want ErrKeyReused", err)
	}
}

func TestIdempotencyKeyPublishesOnce(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	p := topic.Publication{Topic: "a", Event: json.RawMessage(`{"n": 1}`), IdempotencyKey: "k"}
	first, err := env.Publish(t.Context(), []topic.Publication{p})
	if err != nil {
		t.Fatal(err)
	}
	again, err := env.Publish(t.Context(), []topic.Publication{{Topic: "b", Event: p.Event}, p, p})
	if err != nil || again[1].Position != first[0].Position || !again[1].PublishedAt.Equal(first[0].PublishedAt) || !again[1].Deduplicated || !again[2].Deduplicated ||
		again[0].Deduplicated {
		t.Errorf("repeated: %+v, %v; first: %+v", again, err, first)
	}
	env.exec(t, `select agent.publish('a', '{"n": 1.0}', _idempotency_key => 'k')`)
	if _, err := env.Publish(t.Context(), []topic.Publication{{Topic: "a", Event: json.RawMessage(`{"n": 2}`), IdempotencyKey: "k"}}); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("another event with the key: %v, want ErrKeyReused", err)
	}
	if other, err := env.Publish(t.Context(), []topic.Publication{{Topic: "b", Event: json.RawMessage(`{"n": 2}`), IdempotencyKey: "k"}}); err != nil || other[0].Deduplicated {
		t.Errorf("the key on another topic: %+v, %v", other, err)
	}
	if n := value[int](t, env, `select count(*) from agent.log`); n != 3 {
		t.Errorf("%d events are in the log, want 3", n)
	}
	env.exec(t, `update agent.publication_key set expires_at = now()`)
	if expired, err := env.Publish(t.Context(), []topic.Publication{p}); err != nil || expired[0].Deduplicated {
		t.Errorf("after the key has expired: %+v, %v", expired, err)
	}
}

func TestTwentyEqualPublicationsAtOnceBecomeOne(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	other := environmentOn(t, env.url)
	var all sync.WaitGroup
	results := make([]int64, 20)
	for i := range results {
		all.Go(func() {
			service := []environment{env, other}[i%2]
			published, err := service.Publish(t.Context(), []topic.Publication{{Topic: "a", Event: json.RawMessage(`{}`), IdempotencyKey: "k"}})
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = published[0].Position
		})
	}
	all.Wait()
	if slices.Min(results) != slices.Max(results) || len(allPositions(t, env)) != 1 {
		t.Errorf("positions %d of %d events", results, len(allPositions(t, env)))
	}
}

// A user who could insert into the queue of delayed publications, claim from it or pause it could publish, and withhold the publications of others.
func TestQueueOfDelayedPublicationsIsTheServicesOwn(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `select agent.publish('a', '{}', _at => now() + interval '1 hour')`)
	for _, call := range []string{
		`agent.insert_event('{"topic": "a", "event": {}}', 'queued.publish')`,
		`agent.insert_event('{}', 'queued.publish', _key => 'k')`,
		`agent.insert_events(array['{}', '{}']::jsonb[], array['a', 'queued.other'])`,
		`agent.claim_event(_queue => 'queued.publish')`,
		`agent.claim_events('queued.publish')`,
		`agent.put_queue('queued.publish', '{"paused": true}')`,
		`agent.pause_queue('queued.publish')`,
		`agent.purge_queue('queued.publish')`,
	} {
		var pgErr *pgconn.PgError
		if _, err := env.sql.Exec(t.Context(), `select * from `+call); !errors.As(err, &pgErr) || pgErr.Code != "QD003" || pgErr.ColumnName != "queue" {
			t.Errorf("%s: %v, want QD003", call, err)
		}
	}
	env.exec(t, `select agent.get_queue('queued.publish')`)
	if n := value[int](t, env, `select count(agent.delete_event(id)) from agent.list_events('queued.publish')`); n != 1 {
		t.Errorf("%d waiting publications were cancelled, want 1", n)
	}
	if n := value[int](t, env, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

// One key stands for one publication, whether that is published at once or later, over HTTP's calls and in SQL.
func TestOneKeyIsOnePublicationAtOnceOrLater(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	body := json.RawMessage(`{"n": 1}`)
	waiting := func() int {
		return value[int](t, env, `select count(*) from agent.event where queue = 'queued.publish'`)
	}
	inSQL := func(key, at string) error {
		_, err := env.sql.Exec(t.Context(), `select agent.publish('a', '{"n": 1}', _idempotency_key => $1, _at => `+at+`)`, key)
		return err
	}

	p := topic.Publication{Topic: "a", Event: body, IdempotencyKey: "first at once"}
	first, err := env.Publish(t.Context(), []topic.Publication{p})
	if err != nil {
		t.Fatal(err)
	}
	later, err := env.PublishLater(t.Context(), p, time.Hour, nil)
	if err != nil || !later.Deduplicated || later.ID != 0 || later.Published == nil || later.Published.Position != first[0].Position {
		t.Errorf("later: %+v, %v; want position %d", later, err, first[0].Position)
	}
	if err := inSQL(p.IdempotencyKey, `now() + interval '1 hour'`); err != nil {
		t.Errorf("later in SQL: %v", err)
	}
	if n := waiting(); n != 0 {
		t.Errorf("%d publications wait", n)
	}
	other := p
	other.Event = json.RawMessage(`{"n": 2}`)
	if _, err := env.PublishLater(t.Context(), other, time.Hour, nil); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("another one later: %v", err)
	}

	p.IdempotencyKey = "first later"
	at := time.Now().Add(time.Hour).Truncate(time.Second)
	if later, err = env.PublishLater(t.Context(), p, 0, &at); err != nil || later.Deduplicated || later.ID == 0 {
		t.Fatalf("later: %+v, %v", later, err)
	}
	if again, err := env.PublishLater(t.Context(), p, 0, &at); err != nil || !again.Deduplicated || again.ID != later.ID || !again.At.Equal(at) {
		t.Errorf("later again: %+v, %v", again, err)
	}
	if err := inSQL(p.IdempotencyKey, at.Format(`'2006-01-02T15:04:05Z07:00'`)); err != nil {
		t.Errorf("later again in SQL: %v", err)
	}
	if _, err := env.PublishLater(t.Context(), p, 2*time.Hour, nil); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("later, at another time: %v", err)
	}
	if _, err := env.Publish(t.Context(), []topic.Publication{p}); !errors.Is(err, pg.ErrKeyReused) {
		t.Errorf("then at once: %v", err)
	}
	if err := inSQL(p.IdempotencyKey, `null`); err == nil {
		t.Error("then at once in SQL: no error")
	}
	if n := waiting(); n != 1 || len(allPositions(t, env)) != 1 {
		t.Errorf("%d wait, %d are published; want one of each", n, len(allPositions(t, env)))
	}
}

func TestOneKeyAtOnceAndLaterByManyAtOnceIsOnePublication(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	other := environmentOn(t, env.url)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			service := []environment{env, other}[i%2]
			p := topic.Publication{Topic: "a", Event: json.RawMessage(`{}`), IdempotencyKey: "k"}
			var err error
			if i%4 < 2 {
				_, err = service.Publish(t.Context(), []topic.Publication{p})
			} else {
				_, err = service.PublishLater(t.Context(), p, time.Hour, nil)
			}
			if err != nil && !errors.Is(err, pg.ErrKeyReused) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if waiting := value[int](t, env, `select count(*) from agent.event where queue = 'queued.publish'`); waiting+len(allPositions(t, env)) != 1 {
		t.Errorf("%d wait, %d are published; want one of both", waiting, len(allPositions(t, env)))
	}
}

func TestDelayedPublicationIsPublishedOnceAtItsTime(t *testing.T) {
	t.Parallel()
	env := setup(t)
	other := environmentOn(t, env.url)
	other.run(t)
	p := topic.Publication{
		Topic: "later", Event: json.RawMessage(`{"n": 1}`), Key: "k", Meta: json.RawMessage(`{"m": 1}`), IdempotencyKey: "i",
	}
	first, err := env.PublishLater(t.Context(), p, time.Hour, nil)
	if err != nil || first.ID == 0 || time.Until(first.At) < 50*time.Minute {
		t.Fatalf("delayed: %+v, %v", first, err)
	}
	if again, err := env.PublishLater(t.Context(), p, time.Hour, nil); err != nil || !again.Deduplicated || again.ID != first.ID {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	env.exec(t, `select agent.publish('later', '{"n": 2}', _at => now() + interval '2 hours')`)
	if page := env.read(t, topic.ReadParams{}); len(page.Events) != 0 {
		t.Fatalf("before its time %+v is read", page.Events)
	}
	env.exec(t, `update agent.event set vt = now() where queue = 'queued.publish'`)
	page := env.read(t, topic.ReadParams{Wait: busyTimeout})
	for len(page.Events) < 2 {
		more := env.read(t, topic.ReadParams{After: page.Next, Wait: busyTimeout})
		if len(more.Events) == 0 {
			t.Fatalf("only %+v was published", page.Events)
		}
		page.Events, page.Next = append(page.Events, more.Events...), more.Next
	}
	if e := page.Events[0]; e.Topic != "later" || e.Key != "k" || string(e.Meta) != `{"m": 1}` || string(e.Event) != `{"n": 1}` {
		t.Errorf("published %+v", e)
	}
	if n := value[int](t, env, `select count(*) from agent.event_hist where queue = 'queued.publish' and outcome = 'done'`); n != 2 || len(allPositions(t, env)) != 2 {
		t.Errorf("%d are done, %d published; want 2 of each", n, len(allPositions(t, env)))
	}
}

func TestUnpublishableDelayedEventFailsAloneAndDelaysNone(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.exec(t, `select agent_service.insert_and_claim_events(array['{"topic": "..", "event": {}}', '{}', '{"topic": "good", "event": {}}']::jsonb[], array_fill('queued.publish'::text, '{3}'), null, null)`)
	if page := env.read(t, topic.ReadParams{Wait: busyTimeout}); len(page.Events) != 1 || page.Events[0].Topic != "good" {
		t.Errorf("read %+v, want the good one", page.Events)
	}
	if n := value[int](t, env, `select count(*) from agent.event_hist where outcome = 'failed' and last_error like 'topic: %'`); n != 2 {
		t.Errorf("%d have failed with a reason, want 2", n)
	}
}

func TestInvalidPublicationsAreRefusedWhole(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	long := string(slices.Repeat([]byte("x"), 256))
	good := topic.Publication{Topic: "a", Event: json.RawMessage(`{}`)}
	for name, p := range map[string]topic.Publication{
		"topic":           {Topic: "a..b", Event: good.Event},
		"topic.empty":     {Topic: "", Event: good.Event},
		"topic.reserved":  {Topic: "queued.x", Event: good.Event},
		"topic.long":      {Topic: long, Event: good.Event},
		"topic.words":     {Topic: "a.b.c.d.e.f.g.h.i", Event: good.Event},
		"topic.space":     {Topic: "a b", Event: good.Event},
		"topic.line":      {Topic: "a\n", Event: good.Event},
		"event":           {Topic: "a", Event: json.RawMessage(`[]`)},
		"key":             {Topic: "a", Event: good.Event, Key: long},
		"meta":            {Topic: "a", Event: good.Event, Meta: json.RawMessage(`1`)},
		"meta.long":       {Topic: "a", Event: good.Event, Meta: json.RawMessage(`{"a":"` + strings.Repeat("x", 16376) + `"}`)},
		"idempotency_key": {Topic: "a", Event: good.Event, IdempotencyKey: long},
		"subscription":    {Topic: "a", Event: good.Event, Subscription: "a/b"},
	} {
		field, _, _ := strings.Cut(name, ".")
		_, err := env.Publish(t.Context(), []topic.Publication{good, p})
		var invalid *topic.InvalidError
		if !errors.As(err, &invalid) || invalid.Field != field || invalid.Detail == "" {
			t.Errorf("%s: %v, want an InvalidError of %s", name, err, field)
		}
	}
	if n := len(allPositions(t, env)); n != 0 {
		t.Errorf("%d events were published", n)
	}
	_, err := env.sql.Exec(t.Context(), `select agent.publish('a', '{}', _at => 'infinity')`)
	if pgErr := errorOf(err); pgErr.Code != "QD003" || pgErr.ColumnName != "at" {
		t.Errorf("a time without end: %v", err)
	}
}

func TestPublishOnlyRoleMayPublishAndNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner, admin := pgtest.Connect(t, db.URL), pgtest.Connect(t, db.AdminURL)
	role := "queued_test_publisher_" + strings.ToLower(rand.Text())
	if _, err := admin.Exec(t.Context(), `create role `+role); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = admin.Exec(context.Background(), `reset role; drop owned by `+role+`; drop role `+role) })
	for _, grant := range []string{`grant usage on schema agent to `, `grant execute on function agent.publish to `} {
		if _, err := owner.Exec(t.Context(), grant+role); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := admin.Exec(t.Context(), `set role `+role); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `select agent.publish('a', '{}')`); err != nil {
		t.Error(err)
	}
	for _, statement := range []string{
		`insert into agent.outgoing (publications) values ('{}')`, `select * from agent.read_log(0)`, `do $$ begin lock table agent.log in row exclusive mode; end $$`,
		`select agent_service.append_log('{a}', '{"{}"}')`,
	} {
		if _, err := admin.Exec(t.Context(), statement); errorOf(err).Code != "42501" {
			t.Errorf("%s: %v, want insufficient_privilege", statement, err)
		}
	}
	var n int
	if err := owner.QueryRow(t.Context(), `select count(*) from agent.log`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d events are in the log, %v", n, err)
	}
}

func TestReadersOfOtherIsolationLevelsAreRefused(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx, err := env.sql.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `select * from agent.read_log(0)`); errorOf(err).Code != "0A000" {
			t.Errorf("%s: %v, want feature_not_supported", level, err)
		}
		_ = tx.Rollback(t.Context())
	}
}

// errorOf returns the server's error, or an empty one.
func errorOf(err error) *pgconn.PgError {
	pgErr := new(pgconn.PgError)
	errors.As(err, &pgErr)
	return pgErr
}
