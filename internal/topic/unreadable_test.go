package topic_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/topic"
)

// Numbers that take little of a table and much as text. What is published is bounded, but the owner of the log can write a row past the checks.

// numbers is a SQL expression of an object with so many numbers, each of 131,072 digits.
func numbers(n int) string {
	return fmt.Sprintf(`(select jsonb_build_object('n', jsonb_agg('1e131071'::jsonb)) from generate_series(1, %d))`, n)
}

// append appends an event of the topic a.b to the log past all checks, and returns its position. It holds the head
// before it draws that, or whoever reads the log meanwhile would pass over the event.
func (env environment) append(t *testing.T, event string) int64 {
	t.Helper()
	return value[int64](t, env, `with held as materialized (select agent_private.hold_head())
		insert into agent.log (position, published_at, topic, event, text_size)
		select nextval('agent.log_position_seq'), clock_timestamp(), 'a.b', e.event, agent_private.stored_json_size(e.event) from held, (select `+event+`) as e (event) returning position`)
}

func TestPublishingNumbersWithTooManyDigitsIsRefused(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	for _, number := range []string{"1e131071", "-1e131071", "1e1000", "1e-16383", "0e-16383", "-12.5e-1001"} {
		event := `{"a": [{"b": ` + number + `}]}`
		padded := strings.Replace(event, "{", `{"long": "`+strings.Repeat("x", 20_000)+`", `, 1)
		for _, call := range []string{
			`select agent.publish('a.b', '` + event + `')`,
			`select agent.publish('a.b', '` + padded + `')`,
			`select agent.publish('a.b', '{}', _meta => '` + event + `')`,
			`select agent.publish('a.b', '` + event + `', _at => now() + interval '1 hour')`,
			`select agent.publish('a.b', '` + event + `', _idempotency_key => 'k')`,
			`select agent.publish_events('{a.b,a.b}', array['{}', '` + event + `']::jsonb[])`,
			`select agent_service.append_log('{a.b,a.b}', array['{}', '` + event + `']::jsonb[])`,
			`select agent_service.publish_later('a.b', '` + event + `', null, null, 'k', null, interval '1 hour', null)`,
		} {
			_, err := env.sql.Exec(t.Context(), call)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "QD003" || pgErr.ColumnName != "event" && pgErr.ColumnName != "meta" {
				t.Errorf("%.100s: %v", call, err)
			}
		}
	}
	for _, number := range []string{"1e999", "-1e999", "1.5e-999", strings.Repeat("7", 100_000), "0." + strings.Repeat("7", 16_000), "1." + strings.Repeat("3", 1500)} {
		env.exec(t, `select agent.publish('a.b', '{"a": [{"b": `+number+`}]}')`)
	}
	if n := value[int](t, env, `select count(*) from agent.log`); n != 6 {
		t.Errorf("%d events were published, want 6", n)
	}
}

func TestPageOfTheLogIsBoundedByWhatItHasAsText(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	const events, size = 7, 100 * 131_072 // about 13 MiB as text, and 1.7 KB in the table
	for range events {
		env.append(t, numbers(100))
	}
	if stored := value[int](t, env, `select max(pg_column_size(event)) from agent.log`); stored > 2000 {
		t.Fatalf("an event takes %d bytes of the table", stored)
	}
	n := 0
	for p := (topic.ReadParams{}); n < events; {
		page := env.read(t, p)
		if len(page.Events) == 0 || len(page.Events) > 2 {
			t.Fatalf("a page has %d events of %d bytes each", len(page.Events), size)
		}
		for _, e := range page.Events {
			if len(e.Event) < size {
				t.Fatalf("an event has %d bytes", len(e.Event))
			}
		}
		p.After, n = page.Next, n+len(page.Events)
	}
	var sent int64
	if err := env.sql.QueryRow(t.Context(), `select sum(octet_length(event::text)) from agent_service.read_log_page(0, 1000, 4194304)`).Scan(&sent); err != nil || sent > 2*size {
		t.Errorf("the database sends %d bytes for a page, %v", sent, err)
	}
}

func TestChangeWithNumbersOfTooManyDigitsIsPublishedWithoutThem(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `create table public.readings (id int8 primary key, name text, value numeric, list numeric[], doc jsonb, more jsonb)`)
	env.exec(t, `select agent.publish_changes('public.readings')`)
	huge := numbers(9000)
	env.exec(t, `insert into public.readings values (1, 'a', 1e131071, '{1}', `+huge+`, '{"n": 5}')`)
	env.exec(t, `update public.readings set value = 5, list = array_fill(1e131071::numeric, array[5000]), doc = null`)
	env.exec(t, `delete from public.readings`)
	for i, want := range []string{
		`{"op": "insert", "key": "1", "omitted": ["doc", "value"], "new": {"id": 1, "name": "a", "list": [1], "more": {"n": 5}}}`,
		`{"op": "update", "key": "1", "omitted": ["doc", "list", "value"], "changed": ["value", "list", "doc"]}`,
		`{"op": "delete", "key": "1", "omitted": ["list"], "old": {"id": 1, "name": "a", "value": 5}}`,
	} {
		event := value[string](t, env, `select event || jsonb_build_object('omitted', (select jsonb_agg(o order by o) from jsonb_array_elements(event -> 'omitted') o))
			from agent.read_log(0) order by position offset $1 limit 1`, i)
		if !value[bool](t, env, `select $1::jsonb @> $2::jsonb and not $1::jsonb ? 'too_large'`, event, want) {
			t.Errorf("change %d is %.500s\nwant it to have %s", i, event, want)
		}
	}
	// Ten thousand rows, in one statement.
	env.exec(t, `insert into public.readings (id, value, doc) select i, 1e131071, '{"a": [1e131071]}' from generate_series(1, 10000) i`)
	if n := value[int](t, env, `select count(*) from agent.log where topic = 'public.readings.insert' and event -> 'omitted' @> '["doc", "value"]' and jsonb_array_length(event -> 'omitted') = 2 and event -> 'new' ? 'name' and event ->> 'key' = (event -> 'new' ->> 'id') and event ->> 'key' <> '1'`); n != 9_999 {
		t.Errorf("%d changes were published, want 9,999", n)
	}
	// A row of many values, none of which is too large.
	env.exec(t, `create table public.wide (id int8 primary key, a text, b text, c text, d text, e text, f text)`)
	env.exec(t, `select agent.publish_changes('public.wide')`)
	env.exec(t, `insert into public.wide select 7, x, x, x, x, x, x from repeat('x', 250000) x`)
	var bounded bool
	if err := env.sql.QueryRow(t.Context(), `select event ->> 'key' = '7' and event ->> 'too_large' = 'true' and jsonb_array_length(event -> 'omitted') = 2
		and octet_length(event::text) < 1048576 from agent.log where topic = 'public.wide.insert'`).Scan(&bounded); err != nil || !bounded {
		t.Errorf("the wide row was published as it should not be: %v", err)
	}
	// A key that nobody can read.
	env.exec(t, `create table public.odd (id jsonb primary key)`)
	env.exec(t, `select agent.publish_changes('public.odd')`)
	env.exec(t, `insert into public.odd values ('1e131071'), ('{"a": [1e131071]}')`)
	if n := value[int](t, env, `select count(*) from agent.log where topic = 'public.odd.insert' and event -> 'omitted' @> '["id", "key"]'`); n != 2 {
		t.Errorf("%d changes were published, want 2", n)
	}
}

// nested is a SQL expression of an object that is nested so many levels deep.
func nested(levels int) string {
	return fmt.Sprintf(`('{"a": ' || repeat('[', %[1]d) || repeat(']', %[1]d) || '}')::jsonb`, levels-1)
}

// How deep JSON may be for a function depends on what has called it. What has been published has to go wherever it is delivered.
func TestNothingIsPublishedThatIsNestedTooDeeplyToBeDelivered(t *testing.T) {
	t.Parallel()
	env := setup(t)
	env.deliver(t, "delivered", wants(t, "f", []string{"a.b"}, ""))
	for _, levels := range []int{1026, 5000, 9950, 9970, 9980, 9990} {
		for _, call := range []string{
			`select agent.publish('a.b', ` + nested(levels) + `)`,
			`select agent.publish('a.b', '{}', _meta => ` + nested(levels) + `)`,
			`select agent.publish('a.b', ` + nested(levels) + `, _at => now() + interval '1 hour')`,
			`select agent_service.append_log('{a.b}', array[` + nested(levels) + `])`,
			`select agent.insert_event(` + nested(levels) + `)`,
		} {
			if _, err := env.sql.Exec(t.Context(), call); sqlState(err) != "QD003" {
				t.Errorf("%s: %v", call, err)
			}
		}
	}
	env.exec(t, `select agent.publish('a.b', `+nested(1024)+`)`)
	env.exec(t, `select agent.publish('a.b', '{"last": 1}')`)
	await(t, "the delivery", func() bool {
		return value[int](t, env, `select count(*) from agent.event where queue = 'delivered'`) ==
			value[int](t, env, `select count(*) from agent.log where topic = 'a.b'`)
	})
}

func TestDeeplyNestedValueTakesNoOtherRowsValuesAlong(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `create table public.deep (id int8 primary key, doc jsonb, text json)`)
	env.exec(t, `select agent.publish_changes('public.deep')`)
	env.exec(t, `insert into public.deep values (1, '{}', '{}'), (2, `+nested(9990)+`, '{}'), (3, '{}', (`+nested(9000)+`)::text::json), (4, `+nested(12000)+`, '{}')`)
	env.wantChanges(t,
		`public.deep.insert 1 {"new": {"id": 1, "doc": {}, "text": {}}}`,
		`public.deep.insert 2 {"new": {"id": 2, "text": {}}, "omitted": ["doc"]}`,
		`public.deep.insert 3 {"new": {"id": 3, "doc": {}}, "omitted": ["text"]}`,
		`public.deep.insert 4 {"new": {"id": 4, "text": {}}, "omitted": ["doc"]}`,
	)
}

// The end of a transaction looks into the text of its query, which may be as long as PostgreSQL takes it.
func TestWriteByAQueryOfAnyLengthIsPublished(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `create table public.large (id int8 primary key)`)
	env.exec(t, `select agent.publish_changes('public.large')`)
	query := `insert into public.large values (1) /*` + strings.Repeat("x", 270_000_000) + `*/`
	if _, err := env.sql.PgConn().Exec(t.Context(), query).ReadAll(); err != nil {
		t.Fatal(err)
	}
	env.wantChanges(t, `public.large.insert 1 {"new": {"id": 1}}`)
}

// Beyond 256 KiB the numbers of JSON are measured one by one: however many they are, each takes as long as the others.
func TestEventWithManyNumbersIsMeasuredInTime(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `set statement_timeout = '100s'`) // it takes some seconds; what moves all the others for each number takes more than ten minutes
	env.exec(t, `select agent.publish('a.b', (select jsonb_build_object('n', jsonb_agg(1)) from generate_series(1, 1000000)))`)
	if n := value[int](t, env, `select jsonb_array_length(event -> 'n') from agent.log where text_size >= 3000000`); n != 1_000_000 {
		t.Errorf("the event has %d numbers", n)
	}
}

// Readers of the log have to get past each of its events within the time that a statement may take.
func TestNothingIsPublishedThatTakesTooLongToBeRead(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	long := `jsonb_build_object('a', repeat('x', 67108864))`
	for _, call := range []string{
		`select agent.publish('a.b', ` + long + `)`,
		`select agent.publish_events('{a.b,a.b}', array['{}', ` + long + `]::jsonb[])`,
		`select agent_service.append_log('{a.b,a.b}', array['{}', ` + long + `]::jsonb[])`,
		`select agent_service.append_log('{a.b}', array[` + long + `], _idempotency_keys => '{k}')`,
		`select agent.publish('a.b', ` + long + `, _at => now() + interval '1 hour')`,
	} {
		if _, err := env.sql.Exec(t.Context(), call); sqlState(err) != "QD003" {
			t.Errorf("%s: %v", call, err)
		}
	}
	env.exec(t, `select agent.publish('a.b', jsonb_build_object('a', repeat('x', 67000000)))`)
	if page := env.read(t, topic.ReadParams{}); len(page.Events) != 1 {
		t.Errorf("the log has %d events", len(page.Events))
	}
}
