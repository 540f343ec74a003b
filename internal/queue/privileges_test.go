package queue_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// insertingRole creates a role that can only use the schema and execute these functions, and returns its connection URL.
func insertingRole(t *testing.T, db *pgtest.DB, functions string) string {
	t.Helper()
	name := "queued_test_enqueuer_" + strings.ToLower(rand.Text())
	admin := pgtest.Connect(t, db.AdminURL)
	run := func(ctx context.Context, statements ...string) {
		t.Helper()
		for _, statement := range statements {
			if _, err := admin.Exec(ctx, statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
	}
	run(t.Context(), "create role "+name+" login password 'pgtest'")
	t.Cleanup(func() { run(context.Background(), "drop owned by "+name, "drop role "+name) })
	owner := pgtest.Connect(t, db.URL)
	if _, err := owner.Exec(t.Context(), "grant usage on schema agent to "+name+"; grant execute on function "+functions+" to "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "pgtest")
	return u.String()
}

// refusedInserts are arguments that insert_event must refuse in every session.
func refusedInserts() []string {
	return []string{
		`'[]'`, `'[{}]'`, `'1'`, `'"x"'`, `'null'`, `null`,
		`'{}', ''`, `'{}', 'a b'`, `'{}', 'ü'`, `'{}', '` + strings.Repeat("q", 129) + `'`, `'{}', e'a\n'`,
		`'{}', _max_attempts => 0`, `'{}', _max_attempts => -1`,
		`'{}', _expires_at => 'infinity'`, `'{}', _expires_at => '-infinity'`,
		`'{}', _vt => 'infinity'`, `'{}', _vt => '-infinity'`, `'{}', _delay => '-1 us'`, `'{}', _delay => '1 s', _vt => now()`,
		`'{}', _delay => '300000 years'`,
		`'{}', _type => ''`, `'{}', _type => repeat('t', 256)`, `'{}', _source => ''`, `'{}', _source => repeat('s', 256)`,
		`'{}', _key => ''`, `'{}', _key => repeat('k', 256)`,
		`'{}', _key => 'k', _key_retention => '0'`, `'{}', _key => 'k', _key_retention => '-1 s'`, `'{}', _key => 'k', _key_retention => null`,
		`'[]', _key => 'k'`, `'{}', 'a b', _key => 'k'`, `'{}', _key => 'k', _max_attempts => -1`, `'{}', _key => 'k', _expires_at => 'infinity'`,
		`'{}', _key => 'k', _type => ''`, `'{}', _key => 'k', _vt => 'infinity'`,
	}
}

// refusedBatches are arguments that insert_events must refuse in every session.
func refusedBatches() []string {
	return []string{
		`'{"[]"}'`, `array['{}', null]::jsonb[]`, `array['{}', '[]']::jsonb[]`, `'{"{}"}', '{a b}'`, `'{"{}"}', _delays => '{-1 s}'`, `'{"{}"}', _vts => '{infinity}'`,
		`'{"{}"}', _options => array['{"max_attempts": -1}']::jsonb[]`, `'{"{}"}', _options => array['{"expires_at": "infinity"}']::jsonb[]`,
		`'{"{}"}', _options => array['{"type": ""}']::jsonb[]`, `'{"{}"}', _options => array['{"key": "k", "max_attempts": 0}']::jsonb[]`,
		`'{"{}"}', _options => array['{"key": ""}']::jsonb[]`, `'{"{}"}', _options => array['{"id": 1}']::jsonb[]`, `'{"{}"}', _options => array['5']::jsonb[]`,
		`'{"[]"}', _options => array['{"key": "k"}']::jsonb[]`, `'{"{}"}', '{a b}', _options => array['{"key": "k"}']::jsonb[]`,
	}
}

// hostileObjects are statements with which a role can try to shadow objects that the functions use.
const hostileObjects = `
	create function pg_temp.isfinite(timestamptz) returns boolean language sql as 'select true';
	create function pg_temp.length(text) returns int4 language sql as 'select 1';
	create function pg_temp.jsonb_typeof(jsonb) returns text language sql as 'select ''object''';
	create function pg_temp.eq(text, text) returns boolean language sql as 'select true';
	create operator pg_temp.= (leftarg = text, rightarg = text, function = pg_temp.eq);
	create temporary table event (id int8, event jsonb);
	create temporary table idempotency (queue text, key text);
	create domain pg_temp.int4 as pg_catalog.int8;
	create domain pg_temp.jsonb as pg_catalog.text;
	create temporary sequence event_id_seq;`

func TestInsertingRoleCanDoNothingElse(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	hostile := pgtest.Connect(t, insertingRole(t, db, "agent.insert_event"))
	owner := pgtest.Connect(t, db.URL)
	functions := pgtest.Query[[]string](t, hostile, `select array_agg(p.oid::regprocedure::text) from pg_proc p
		where p.pronamespace in ('agent'::regnamespace, 'agent_service'::regnamespace) and p.proname <> 'insert_event' and has_function_privilege(p.oid, 'execute')`)
	if len(functions) > 0 {
		t.Errorf("the role can execute %q", functions)
	}
	relations := pgtest.Query[[]string](t, hostile, `select array_agg(c.oid::regclass::text) from pg_class c
		where c.relnamespace = 'agent'::regnamespace and c.relkind not in ('i', 'I', 'c', 'S')
		and (has_table_privilege(c.oid, 'select, insert, update, delete, truncate, references, trigger') or has_any_column_privilege(c.oid, 'select, insert, update'))`)
	if len(relations) > 0 {
		t.Errorf("the role can use %q", relations)
	}
	if _, err := hostile.Exec(t.Context(), `create table agent.mine ()`); err == nil {
		t.Error("the role created a table in the schema")
	}
	if n := pgtest.Query[int](t, owner, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events are stored", n)
	}
}

// TestNobodyElseSetsOptionsOfTheService sends each function of agent that takes options, as a role that may execute it alone, all that are not documented: those
// that the service sets of an event, and the columns of the tables.
func TestNobodyElseSetsOptionsOfTheService(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	owner := pgtest.Connect(t, db.URL)
	if _, err := owner.Exec(t.Context(), `select agent_service.create_api_key('aaaaaaaa', 'first', '{admin}', sha256('a'), sha256('b'))`); err != nil {
		t.Fatal(err)
	}
	functions := map[string]struct {
		call       string // $1 are the options
		documented string
	}{
		"insert_events._options":  {`agent.insert_events('{"{}"}', _options => array[$1::jsonb])`, "type source priority key max_attempts expires_at event_ts on_duplicate meta group key_until max_wait"},
		"put_queue._policy":       {`agent.put_queue('q', $1)`, "max_attempts invisible_for backoff paused history_retention dead_letter delay wait group_from flow"},
		"put_group._settings":     {`agent.put_group('q', 'g', $1)`, "concurrency paused held_until hold rate"},
		"update_api_key._changes": {`agent.update_api_key('aaaaaaaa', $1)`, "name scopes queues topics expires_at rate_per_second rate_burst"},
	}
	found := pgtest.Query[[]string](t, owner, `
		select array_agg(format('%s.%s', p.proname, a.name))
		from pg_proc p
		cross join lateral unnest(p.proargnames, string_to_array(p.proargtypes::text, ' ')::oid[]) as a (name, type)
		where p.pronamespace = 'agent'::regnamespace and a.type in ('jsonb'::regtype, 'jsonb[]'::regtype)
		and a.name not in ('_event', '_events', '_meta', '_metas', '_contains', '_result', '_results')`)
	if want := slices.Sorted(maps.Keys(functions)); !slices.Equal(slices.Sorted(slices.Values(found)), want) {
		t.Errorf("options are taken by %q, want %q", found, want)
	}
	names := pgtest.Query[[]string](t, owner, `
		select array_agg(distinct n.name)
		from
		( select a.attname::text
		  from pg_attribute a
		  where a.attrelid in ('agent.event'::regclass, 'agent.idempotency'::regclass, 'agent.queue'::regclass, 'agent.queue_group'::regclass, 'agent.api_key'::regclass)
		  and a.attnum > 0 and not a.attisdropped
		  union
		  select o.name
		  from regexp_matches(pg_get_functiondef('agent_private.check_event_options'::regproc), '''{([a-z_,]+)}''', 'g') as m (options)
		  cross join lateral unnest(string_to_array(m.options[1], ',')) as o (name)
		) as n (name)`)
	for _, name := range []string{"key_scope", "key_retention", "occurrence", "verified_source", "version", "hash", "flow_version"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not tried", name)
		}
	}
	refusal := func(conn *pgx.Conn, call, options string) *pgconn.PgError {
		_, err := conn.Exec(t.Context(), `select `+call, options)
		pgErr, _ := errors.AsType[*pgconn.PgError](err)
		return pgErr
	}
	for argument, f := range functions {
		function, _, _ := strings.Cut(argument, ".")
		role := pgtest.Connect(t, insertingRole(t, db, "agent."+function))
		for _, name := range names {
			if slices.Contains(strings.Fields(f.documented), name) {
				continue
			}
			if err := refusal(role, f.call, fmt.Sprintf(`{%q: null}`, name)); err == nil || err.Code != "QD003" || err.ColumnName != name {
				t.Errorf("%s with %s failed with %v, want QD003", function, name, err)
			}
			for _, value := range []string{`"x"`, `1`, `true`, `["*"]`, `"1 day"`} {
				if refusal(role, f.call, fmt.Sprintf(`{%q: %s}`, name, value)) == nil {
					t.Errorf("%s takes %s as %s", function, value, name)
				}
			}
		}
	}
	role := pgtest.Connect(t, insertingRole(t, db, "agent.insert_event, agent.insert_events, agent.publish, agent.publish_events"))
	for _, call := range []string{
		`agent.insert_event('{}', _meta => $1)`, `agent.insert_event('{}', _key => 'k', _meta => $1)`, `agent.insert_events('{"{}"}', _options => array[jsonb_build_object('meta', $1::jsonb)])`,
		`agent.publish('a', '{}', _meta => $1)`, `agent.publish('a', '{}', _meta => $1, _at => now() + '1 day')`, `agent.publish_events('{a}', '{"{}"}', _metas => array[$1::jsonb])`,
	} {
		if err := refusal(role, call, `{"verified_source": "github"}`); err == nil || err.Code != "QD003" || err.ColumnName != "meta" {
			t.Errorf("%s failed with %v, want QD003 for meta", call, err)
		}
	}
	for _, table := range []string{"agent.event", "agent.idempotency", "agent.queue", "agent.queue_group"} {
		if n := pgtest.Query[int](t, owner, `select count(*) from `+table); n != 0 {
			t.Errorf("%s has %d rows", table, n)
		}
	}
	if name := pgtest.Query[string](t, owner, `select name from agent.api_key`); name != "first" {
		t.Errorf("the key has the name %q", name)
	}
}

func TestNoSessionSettingDisablesAValidation(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	owner := pgtest.Connect(t, db.URL)
	hostileURL := insertingRole(t, db, "agent.insert_event, agent.insert_events")

	// Every setting that a role can change, with each of its values, or with its bounds. Those of PostgreSQL itself are tried without TimescaleDB.
	prefix := ""
	if pgtest.Flavour() == pgtest.Timescale {
		prefix = "timescaledb."
	}
	settings := pgtest.Query[[]string](t, pgtest.Connect(t, hostileURL), `
		select array_agg(format('set %I to %L', s.name, v.value) order by s.name, v.value)
		from pg_settings s
		cross join lateral unnest
		( case s.vartype when 'bool' then array['on', 'off'] when 'enum' then s.enumvals when 'string' then '{}' else array[s.min_val, s.max_val] end
		) as v (value)
		where s.context = 'user' and s.name not like '%timeout' and v.value is distinct from s.setting and starts_with(s.name, $1)`, prefix)
	settings = append(settings, "", hostileObjects,
		"set agent.checked to 'yes'", "set agent.checked to 'no'", "set search_path to pg_temp, public", hostileObjects+"set search_path to pg_temp, pg_catalog, agent",
		"set timezone to 'Asia/Kathmandu'", "set datestyle to 'SQL, DMY'", "set datestyle to 'German'", "set statement_timeout to '1 ms'", "set lock_timeout to '1 ms'",
		"set transaction_isolation to serializable", "begin isolation level repeatable read", "begin isolation level serializable deferrable", "begin read only",
		"set role none", "set session_replication_role to replica", "set timezone_abbreviations to 'Australia'", "set default_tablespace to ''", "set client_encoding to 'LATIN1'",
	)
	if prefix == "" && len(settings) < 100 {
		t.Fatalf("only %d settings were found", len(settings))
	}
	var first *int64
	made := 0
	for _, setting := range settings {
		conn, err := pgx.Connect(t.Context(), hostileURL)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Exec(t.Context(), setting) // can be forbidden
		try := func(function, arguments string) {
			if _, err := conn.Exec(t.Context(), "select agent."+function+"("+arguments+")"); err == nil {
				t.Errorf("%s: select agent.%s(%s) succeeded", setting, function, arguments)
			}
			if !conn.IsClosed() && conn.PgConn().TxStatus() != 'I' {
				_, _ = conn.Exec(t.Context(), "rollback; "+setting)
			}
		}
		for _, arguments := range refusedInserts() {
			try("insert_event", arguments)
		}
		for _, arguments := range refusedBatches() {
			try("insert_events", arguments)
		}
		// The same request in other notations must be deduplicated in every session.
		var id *int64
		err = conn.QueryRow(t.Context(), `select agent.insert_event(jsonb_build_object('n', 1.50, 's', '"1.50'), 'keyed', _delay => '24 hours', _expires_at => '2126-01-01 00:00+00', _key => 'same')`).Scan(&id)
		switch {
		case err != nil && (conn.IsClosed() || strings.Contains(err.Error(), "25006") || strings.Contains(err.Error(), "57014")): // caused by the setting
		case err != nil:
			t.Errorf("%s: the valid request: %v", setting, err)
		case id == nil:
			t.Errorf("%s: the valid request returned null", setting)
		case first == nil:
			first = id
			made++
		case *id == *first:
			made++
		default:
			t.Errorf("%s: the repeated request inserted another event", setting)
		}
		_, _ = conn.Exec(t.Context(), "commit")
		_ = conn.Close(t.Context())
	}
	if made < len(settings)/2 {
		t.Errorf("the valid request succeeded in only %d of %d sessions", made, len(settings))
	}
	if n := pgtest.Query[int](t, owner, `select count(*) from agent.event`); n != 1 {
		t.Errorf("there are %d events, want 1", n)
	}
}

func TestHostileInsertsDoNotBlockOtherEvents(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	s := anotherService(t, db.URL, nil)
	b := env{Service: s, url: db.URL, sql: pgtest.Connect(t, db.URL)}
	runService(t, s)
	hostile := pgtest.Connect(t, insertingRole(t, db, "agent.insert_event"))
	honest := make(map[int64]bool)
	for _, q := range []string{"work", "other"} {
		for _, id := range b.insertN(t, q, 10) {
			honest[id] = true
		}
	}
	// Numeric arguments are the extremes of their types. A refused call inserts nothing.
	for _, arguments := range []string{
		`'{}', 'work', _vt => '4714-11-24 00:00:00+00 BC'`, `'{}', 'work', _vt => '294276-12-31 23:59:59.999999+00'`, `'{}', 'work', _delay => '200000 years'`,
		`'{}', 'work', _vt => '4714-11-24 00:00:00+00 BC', _priority => -2147483648`, `'{}', 'work', _priority => 2147483647`,
		`'{}', 'work', _expires_at => '290000-01-01'`, `'{}', 'work', _expires_at => '4714-11-24 00:00:00+00 BC'`,
		`'{}', 'work', _max_attempts => 2147483647`, `'{}', 'work', _key => 'k', _key_retention => '290000 years'`, `'{}', 'work', _key => 'k2', _key_retention => '1 us'`,
		`'{"event_ts": 1e300}', 'work'`, `'{"event_ts": -99999999999.9}', 'work'`, `'{"event_ts": "infinity"}', 'work'`, `'{"event_ts": "999999999999"}', 'work'`,
		`'{"event_ts": "9999-99-99T99:99:99Z"}', 'work'`, `'{"event_ts": "0000-01-01T00:00:00Z"}', 'work'`, `'{"event_ts": [1]}', 'work'`,
		`'{"event_ts": 1e-100000}', 'work'`, `'{"event_ts": "NaN"}', 'work'`, `'{"event_ts": {"a": "epoch"}}', 'work'`,
		`jsonb_build_object('n', repeat('9', 100000)::numeric, 't', repeat(e'\u0001', 100000)), 'work'`,
		`jsonb_build_object('text', repeat('x', 8000000)), 'work'`,
		`('{"a":' || repeat('[', 3000) || repeat(']', 3000) || '}')::jsonb, 'work'`,
		`'{}', 'work', _type => repeat(U&'\+01F600', 255), _source => repeat(U&'\+01F600', 255), _key => repeat(U&'\+01F600', 255)`,
		`'{}', 'work', _type => e'\u0001\n', _source => e'\u0001\n', _key => e'\u0001\n'`,
	} {
		_, _ = hostile.Exec(t.Context(), "select agent.insert_event("+arguments+")")
	}
	for _, q := range []string{"work", "other"} {
		for _, id := range b.insertN(t, q, 10) {
			honest[id] = true
		}
	}

	for _, p := range []queue.ClaimParams{{Queue: "work", Limit: 1}, {Queue: "work", Limit: 7, Order: queue.Random}, {Queue: "work", Limit: 1000}, {Queue: "other", Limit: 1000}} {
		for {
			events, err := b.Claim(t.Context(), p)
			if err != nil {
				t.Fatalf("%+v: %v", p, err)
			}
			for _, e := range events {
				if result := b.ack(t, lease(e)); result.Err != nil {
					t.Errorf("event %d: %v", e.ID, result.Err)
				}
				delete(honest, e.ID)
			}
			if len(events) == 0 || p.Limit < 1000 {
				break
			}
		}
	}
	if len(honest) > 0 {
		t.Errorf("%d valid events were not claimed", len(honest))
	}
	for name, call := range map[string]func() error{
		"sweep":   func() error { _, err := b.Sweep(t.Context(), queue.SweepParams{}); return err },
		"list":    func() error { _, err := b.List(t.Context(), queue.ListParams{Limit: 1000}); return err },
		"history": func() error { _, err := b.History(t.Context(), queue.HistoryParams{Limit: 1000}); return err },
		"queues":  func() error { _, err := b.queues(t, time.Hour); return err },
		"requeue": func() error {
			_, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Queue: "work"}})
			return err
		},
		"stats": func() error {
			_, err := b.HistoryStats(t.Context(), queue.StatsParams{Bucket: time.Hour, From: time.Now().Add(-24 * time.Hour), To: time.Now()})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where queue not in ('work', 'other')`); n != 0 {
		t.Errorf("%d events are in other queues", n)
	}
}

// shadowingObjects are a schema in front of pg_catalog, whose functions and operators say that all is well.
const shadowingObjects = `
	create schema shadow;
	grant usage on schema shadow to public;
	create function shadow.jsonb_typeof(jsonb) returns text language sql return 'object';
	create function shadow.octet_length(text) returns int4 language sql return 1;
	create function shadow.pg_column_size(jsonb) returns int4 language sql return 1;
	create function shadow.yes(text, text) returns boolean language sql return true;
	create function shadow.yes(int4, int4) returns boolean language sql return true;
	create function shadow.no(jsonb, text) returns boolean language sql return false;
	create operator shadow.= (leftarg = text, rightarg = text, function = shadow.yes);
	create operator shadow.<> (leftarg = text, rightarg = text, function = shadow.yes);
	create operator shadow.!~ (leftarg = text, rightarg = text, function = shadow.yes);
	create operator shadow.<= (leftarg = int4, rightarg = int4, function = shadow.yes);
	create operator shadow.> (leftarg = int4, rightarg = int4, function = shadow.yes);
	create operator shadow.? (leftarg = jsonb, rightarg = text, function = shadow.no);
	create domain shadow.text as pg_catalog.text`

func TestRowsWrittenByHandKeepTheRules(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.New(t)
	owner := pgtest.Connect(t, db.URL)
	exec := func(conn *pgx.Conn, statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec(owner, shadowingObjects)
	writer := pgtest.Connect(t, insertingRole(t, db, "agent.insert_event"))
	exec(owner, "grant insert, select, update on agent.event to "+pgtest.Query[string](t, writer, "select current_user"))

	for _, conn := range []*pgx.Conn{owner, writer} {
		for _, setting := range []string{"reset search_path", "set search_path to shadow, pg_catalog", "set search_path to ''"} {
			exec(conn, setting)
			for _, row := range []string{
				`(event) values ('[]')`, `(event) values ('5')`, `(event) values ('null')`, `(event) values ('{"n": 1e1001}')`, `(event) values ('{"n": [[1, 1e-1001]]}')`,
				`(event, queue) values ('{}', 'a b')`, `(event, queue) values ('{}', '')`, `(event, queue) values ('{}', 'ü')`, `(event, queue) values ('{}', pg_catalog.repeat('q', 129))`,
				`(event, type) values ('{}', '')`, `(event, type) values ('{}', pg_catalog.repeat('t', 256))`, `(event, source) values ('{}', '')`,
				`(event, source) values ('{}', pg_catalog.repeat('t', 256))`, `(event, key) values ('{}', '')`, `(event, key) values ('{}', pg_catalog.repeat('t', 256))`,
				`(event, max_attempts) values ('{}', 0)`, `(event, expires_at) values ('{}', 'infinity')`, `(event, vt) values ('{}', 'infinity')`,
				`(event, meta) values ('{}', '5')`, `(event, meta) values ('{}', '[]')`, `(event, meta) values ('{}', '{"n": 1e1001}')`,
				`(event, meta) values ('{}', pg_catalog.jsonb_build_object('m', pg_catalog.repeat('m', 16385)))`, `(event, occurrence) values ('{}', '{"n": 1e1001}')`,
				`(event, publication) values ('{}', '{"n": 1e1001}')`, `(event, past_attempts) values ('{}', '[1e1001]')`,
				`(event, meta, dead_letter_of) values ('{}', '{"dead_letter": 5}', 1)`,
			} {
				for _, size := range []string{"", "null", "7"} {
					statement := "insert into agent.event " + row
					if size != "" {
						statement = strings.Replace(strings.Replace(statement, "(event", "(text_size, event", 1), "values (", "values ("+size+", ", 1)
					}
					if _, err := conn.Exec(t.Context(), statement); err == nil {
						t.Errorf("%s: %s succeeded", setting, statement)
					}
				}
			}
			// The size is that of the row, whatever was written, and a claim need not measure it.
			for row, want := range map[string]string{
				`(text_size, event) values (null, '{}')`: `pg_catalog.pg_column_size(event)`,
				`(text_size, event, queue, type, source, key, max_attempts, meta) values (-7, '{"n": 1}', 'q', 't', 's', 'k', 1, '{"m": 2}')`:                          `pg_catalog.pg_column_size(event) + pg_catalog.pg_column_size(meta)`,
				`(text_size, event, expires_at) values (2147483647, pg_catalog.jsonb_build_object('n', pg_catalog.repeat('n', 5000)), pg_catalog.now() + '1 day')`:     `5010`,
				`(text_size, event, occurrence) values (5, pg_catalog.jsonb_build_object('n', pg_catalog.repeat('n', 1500)), pg_catalog.jsonb_build_object('a', 'b'))`: `1519 + pg_catalog.pg_column_size(occurrence)`,
			} {
				var size, stored int
				if err := conn.QueryRow(t.Context(), "insert into agent.event "+row+" returning text_size, "+want).Scan(&size, &stored); err != nil {
					t.Errorf("%s: %s: %v", setting, row, err)
				} else if size < stored-20 || size > stored+20 {
					t.Errorf("%s: %s: the size is %d, want some %d", setting, row, size, stored)
				}
			}
		}
	}
	exec(owner, "reset search_path")
	if n := pgtest.Query[int](t, owner, `select count(*) from agent.event`); n != 24 {
		t.Errorf("there are %d events, want 24", n)
	}
}
