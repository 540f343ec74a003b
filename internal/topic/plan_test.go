package topic_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A delivery reads the subscriptions that it is for and the events of the log at its positions, whatever was there when it was planned, and locks no
// segment of the log but those that it reads.
func TestDeliveryReadsOnlyWhatItDelivers(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `
		insert into agent.subscription (name, start_position, max_waiting, deliver_queue, is_in_step)
		select 's' || i, 0, 1000, 'q', true from generate_series(1, 300) i`)
	env.exec(t, `
		insert into agent.log (position, published_at, topic, event, text_size)
		select (1::int8 << 32) + i, now(), 'a', jsonb_build_object('n', i), 10 from generate_series(1, 1000) i`)
	ids := value[[]int64](t, env, `select array_agg(s.id order by i) from generate_series(1, 100) i join agent.subscription s on s.name = 's' || i % 2 + 1`)
	for _, analyze := range []string{"", "analyze agent.subscription, agent.log"} {
		env.exec(t, analyze)
		for range 3 { // the first one is planned
			tx, err := env.sql.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			read := func() (subscriptions, events int) { // so far, earlier transactions of the session included
				const sql = `
					select coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) filter (where relname = 'subscription'), 0)
					, coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) filter (where relname ~ '^log_[0-9]'), 0)
					from pg_catalog.pg_stat_xact_user_tables where schemaname = 'agent'`
				if err := tx.QueryRow(t.Context(), sql).Scan(&subscriptions, &events); err != nil {
					t.Fatal(err)
				}
				return subscriptions, events
			}
			subscriptionsBefore, eventsBefore := read()
			var delivered, segments int
			if err := tx.QueryRow(t.Context(), `
				select cardinality(agent_private.deliver
				( $1
				, array(select (1::int8 << 32) + i * 9 from generate_series(1, 100) i)
				, array_fill('[]'::text, array[100])
				, true
				))`, ids).Scan(&delivered); err != nil {
				t.Fatal(err)
			}
			subscriptions, events := read()
			subscriptions, events = subscriptions-subscriptionsBefore, events-eventsBefore
			if delivered != 100 || subscriptions < 2 || subscriptions > 4 || events < 100 || events > 110 {
				t.Errorf("%d deliveries have read %d subscriptions and %d events", delivered, subscriptions, events)
			}
			if err := tx.QueryRow(t.Context(), `
				select count(*) from pg_catalog.pg_locks l join pg_catalog.pg_class c on c.oid = l.relation
				where l.pid = pg_backend_pid() and l.database = (select oid from pg_catalog.pg_database where datname = current_database()) and c.relname ~ '^log_[0-9]+$'`,
			).Scan(&segments); err != nil {
				t.Fatal(err)
			}
			if segments != 1 {
				t.Errorf("%d segments of the log are locked", segments)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A publication with an idempotency key reads the keys that it has, and not the whole table, also where statistics say that there are only a few.
func TestPublicationsWithKeysReadNoOtherKeys(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	const append10 = `
		select count(*) from agent_service.append_log
		( array_fill('t'::text, array[10]), array_fill('{}'::jsonb, array[10]), _idempotency_keys => array(select 'key-' || n from generate_series($1::int4, $1 + 9) n))`
	env.exec(t, `select count(*) from agent_service.append_log(array['t'], array['{}'::jsonb], _idempotency_keys => array['first'])`)
	env.exec(t, `analyze agent.publication_key`)
	for i := range 100 { // what they read is planned now, for the table as it was
		env.exec(t, append10, 10*i)
	}
	for name, publish := range map[string]string{
		"one":     `select agent_service.append_log(array['t'], array['{}'::jsonb], _idempotency_keys => array['one'])`,
		"known":   `select agent_service.append_log(array['t'], array['{}'::jsonb], _idempotency_keys => array['key-7'])`,
		"several": strings.ReplaceAll(append10, "$1", "2000"),
		"some":    strings.ReplaceAll(append10, "$1", "995"),
		"later":   `select agent_service.publish_later('t', '{}', null, null, 'later', null, interval '1 hour', null)`,
		"in SQL":  `select agent.publish('t', '{}', _idempotency_key => 'sql'); select agent_private.append_outgoing()`,
	} {
		tx, err := env.sql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read := func() (scanned, fetched int) { // so far, earlier transactions of the session included
			if err := tx.QueryRow(t.Context(), `
				select seq_tup_read, idx_tup_fetch from pg_catalog.pg_stat_xact_user_tables where relid = 'agent.publication_key'::regclass`).Scan(&scanned, &fetched); err != nil {
				t.Fatal(err)
			}
			return scanned, fetched
		}
		scannedBefore, fetchedBefore := read()
		if _, err := tx.Exec(t.Context(), publish, pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if scanned, fetched := read(); scanned > scannedBefore || fetched-fetchedBefore > 100 {
			t.Errorf("%s: %d keys were read in the order of the table, %d by an index", name, scanned-scannedBefore, fetched-fetchedBefore)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// What is delivered is delivered in the order in which it is given, each event to the subscription beside it. An event without members is one as any other.
func TestDeliveryKeepsItsOrder(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `
		insert into agent.subscription (name, start_position, max_waiting, deliver_queue, is_in_step)
		values ('a', 0, 1000, 'q', true), ('b', 0, 1000, 'r', true), ('alone', 0, 1000, 'q', false)`)
	env.exec(t, `
		insert into agent.log (position, published_at, topic, event, text_size)
		values ((1::int8 << 32) + 1, now(), 't', '{"n": 1}', 10), ((1::int8 << 32) + 2, now(), 't', '{}', 10), ((2::int8 << 32) + 1, now(), 't', '{"n": 3}', 10)`)
	const deliver = `
		select cardinality(agent_private.deliver
		( array(select s.id from unnest($1::text[]) with ordinality as n (name, ord) left join agent.subscription s on s.name = n.name order by n.ord)
		, array(select (p::int8 / 10 << 32) + p % 10 from unnest($2::int4[]) p)
		, array(select to_jsonb(array['f' || i])::text from generate_series(1, cardinality($2)) i)
		, true
		))`
	if n := value[int](t, env, deliver, []string{"b", "a", "alone", "a", "gone", "b", "a"}, []int{21, 11, 11, 21, 12, 12, 12}); n != 5 {
		t.Errorf("%d events were delivered", n)
	}
	got := value[[]string](t, env, `
		select array_agg(concat_ws(' ', e.queue, e.publication ->> 'subscription', e.publication ->> 'matched', e.event) order by e.id) from agent.event e`)
	want := []string{`r b ["f1"] {"n": 3}`, `q a ["f2"] {"n": 1}`, `q a ["f4"] {"n": 3}`, `r b ["f6"] {}`, `q a ["f7"] {}`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if _, err := env.sql.Exec(t.Context(), deliver, []string{"a", "a"}, []int{11, 13}); errorOf(err).Code != "40001" {
		t.Errorf("the delivery of an event that is not there: %v", err)
	}
}
