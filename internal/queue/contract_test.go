package queue_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
)

// sqlBench is a plain session on a database of its own, as a SQL user has it.
func sqlBench(t *testing.T) *pgx.Conn {
	t.Helper()
	return pgtest.Connect(t, pgtest.New(t).URL)
}

func TestSQLContractNamesTypesAndDefaults(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	columns := pgtest.Query[string](t, sql, `
		select string_agg(a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
		from pg_catalog.pg_attribute a where a.attrelid = 'agent.event'::regclass and a.attnum between 1 and 6`)
	want := "id bigint, event_ts timestamp with time zone, attempts integer, vt timestamp with time zone, " +
		"claimed timestamp with time zone[], event jsonb"
	if columns != want {
		t.Errorf("agent.event begins with %s, want %s", columns, want)
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.version`); n != 1 {
		t.Errorf("agent.version has %d rows", n)
	}
	for _, call := range []string{
		`select agent.insert_event(_event => '{"a":1}')`,
		`select * from agent.claim_event(_max_attempts => 3, _invisible_for => interval '10m')`,
		`select agent.delete_event(_id => 1)`,
		`select agent.delete_expired_events(_max_attempts => 3, _max_vt_age => interval '1h')`,
		`select agent.to_timestamptz(1763700000.123456)`,
		`select agent.to_timestamptz('1763700000.123456'::text)`,
		`select agent.from_timestamptz(now())`,
		`select agent.claim_event(3, interval '10m')`,
		`select agent.delete_expired_events(3, interval '1h')`,
	} {
		if _, err := sql.Exec(t.Context(), call); err != nil {
			t.Errorf("%s: %v", call, err)
		}
	}
}

func TestSQLFunctionsAreNotPublicAndPinSearchPath(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	loose := pgtest.Query[[]string](t, sql, `
		select coalesce(array_agg(p.oid::regprocedure::text), '{}')
		from pg_catalog.pg_proc p
		join pg_catalog.pg_namespace n on n.oid = p.pronamespace
		where n.nspname = 'agent'
		and ( p.proowner <> n.nspowner
		   or p.prosqlbody is null and not exists (select from unnest(p.proconfig) c where c like 'search_path=%')
		   or p.proacl is null
		   or exists (select from pg_catalog.aclexplode(p.proacl) a where a.grantee = 0))`)
	if len(loose) != 0 {
		t.Errorf("owned by others, without a pinned search_path, or executable by all: %v", loose)
	}
}

func TestEventTSComesFromThePayloadWithinBounds(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	now := pgtest.Query[time.Time](t, sql, `select now()`)
	epoch := now.Add(-time.Hour).Truncate(time.Microsecond)
	for payload, want := range map[string]time.Time{
		`{"event_ts":` + epochText(epoch) + `}`:                                     epoch,
		`{"event_ts":"` + epochText(epoch) + `"}`:                                   epoch,
		`{"event_ts":"` + epoch.UTC().Format(time.RFC3339Nano) + `"}`:               epoch,
		`{"event_ts":"` + now.Add(-11*365*24*time.Hour).Format(time.RFC3339) + `"}`: now,
		`{"event_ts":"` + now.Add(25*time.Hour).Format(time.RFC3339) + `"}`:         now,
		`{"event_ts":1e300}`:                    now,
		`{"event_ts":-1e300}`:                   now,
		`{"event_ts":"99999999999999"}`:         now,
		`{"event_ts":"NaN"}`:                    now,
		`{"event_ts":"infinity"}`:               now,
		`{"event_ts":"tomorrow"}`:               now,
		`{"event_ts":"2026-13-45T99:99:99Z"}`:   now,
		`{"event_ts":"2026-02-30T00:00:00Z"}`:   now,
		`{"event_ts":true}`:                     now,
		`{"event_ts":null}`:                     now,
		`{"event_ts":{}}`:                       now,
		`{"event_ts":["2026-01-01T00:00:00Z"]}`: now,
		`{}`:                                    now,
	} {
		id := pgtest.Query[int64](t, sql, `select agent.insert_event($1::jsonb)`, payload)
		got := pgtest.Query[time.Time](t, sql, `select event_ts from agent.event where id = $1`, id)
		if d := got.Sub(want).Abs(); (want.Equal(now) && d > time.Minute) || (!want.Equal(now) && d > time.Microsecond) {
			t.Errorf("%s was recorded as %v, want %v", payload, got, want)
		}
		if kept := pgtest.Query[bool](t, sql, `select event = $2::jsonb from agent.event where id = $1`, id, payload); !kept {
			t.Errorf("%s was not kept as sent", payload)
		}
	}
}

// epochText is a time as epoch seconds with six decimals, the way Slack writes them.
func epochText(ts time.Time) string {
	return fmt.Sprintf("%d.%06d", ts.Unix(), ts.Nanosecond()/1000)
}

func TestTimestampsRoundTrip(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	for _, check := range []string{
		`select agent.from_timestamptz(agent.to_timestamptz(1763700000.123456)) = 1763700000.123456`,
		`select agent.from_timestamptz(agent.to_timestamptz('1763700000.123456'::text)) = 1763700000.123456`,
		`select agent.from_timestamptz(agent.to_timestamptz(-1.5)) = -1.5`,
		`select agent.to_timestamptz('2026-11-21T10:00:00.25+02:00'::text) = timestamptz '2026-11-21 08:00:00.25+00'`,
		`select agent.to_timestamptz(null::text) is null and agent.to_timestamptz(null::numeric) is null and agent.from_timestamptz(null) is null`,
	} {
		if !pgtest.Query[bool](t, sql, check) {
			t.Errorf("not so: %s", check)
		}
	}
}

func TestSQLFunctionsRefuseBadArguments(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	for call, state := range map[string]string{
		`select agent.insert_event('[1]')`:                                                                                            "QD003",
		`select agent.insert_event(null)`:                                                                                             "QD003",
		`select agent.insert_event('{}', 'with space')`:                                                                               "QD003",
		`select agent.insert_event('{}', '.')`:                                                                                        "QD003",
		`select agent.insert_event('{}', '..')`:                                                                                       "QD003",
		`select agent.insert_event('{}', '..', _key => 'k')`:                                                                          "QD003",
		`insert into agent.event (event, queue) values ('{}', '..')`:                                                                  "QD003",
		`select agent.insert_events(array['{}']::jsonb[], array['.'])`:                                                                "QD003",
		`select agent.move_events('..', 'a')`:                                                                                         "QD003",
		`select agent.pause_queue('.')`:                                                                                               "QD003",
		`select agent.put_queue('..', '{}')`:                                                                                          "QD003",
		`select agent.create_redrive('a', _to_queue => '..')`:                                                                         "QD003",
		`select agent.place_queue('..', null)`:                                                                                        "QD003",
		`select agent.insert_event('{}', '')`:                                                                                         "QD003",
		`select agent.insert_event('{}', repeat('q', 129))`:                                                                           "QD003",
		`select agent.insert_event('{}', 5)`:                                                                                          "QD003",
		`select agent.insert_event('{}', current_date)`:                                                                               "QD003",
		`select agent.insert_event('{}', now(), _vt => now())`:                                                                        "QD003",
		`select agent.insert_event('{}', timestamptz 'infinity')`:                                                                     "QD003",
		`select agent.insert_event('{}', _delay => '-1s')`:                                                                            "QD003",
		`select agent.insert_event('{}', _delay => '1s', _vt => now())`:                                                               "QD003",
		`select agent.insert_event('{}', _vt => 'infinity')`:                                                                          "QD003",
		`insert into agent.event (event) values ('7')`:                                                                                "QD003",
		`insert into agent.event (event, queue) values ('{}', 'a b')`:                                                                 "QD003",
		`select agent.claim_event(0)`:                                                                                                 "QD003",
		`select agent.claim_event(_invisible_for => '0s')`:                                                                            "QD003",
		`select agent.claim_events(_limit => 0)`:                                                                                      "QD003",
		`select agent.claim_events(_order => 'lifo')`:                                                                                 "QD003",
		`select agent.delete_event(4711)`:                                                                                             "QD002",
		`select agent.nack_event(4711, 'x')`:                                                                                          "QD002",
		`select agent.extend_event(4711, 'x')`:                                                                                        "QD002",
		`select agent.requeue_event(4711)`:                                                                                            "QD002",
		`select agent.nack_event(4711, 'x', '-1s')`:                                                                                   "QD003",
		`select agent.release_event(4711, 'x', '-1s')`:                                                                                "QD003",
		`select agent.extend_event(4711, 'x', '0s')`:                                                                                  "QD003",
		`select agent.delete_expired_events(0)`:                                                                                       "QD003",
		`select agent.delete_expired_events(3, '-1s')`:                                                                                "QD003",
		`select agent.list_events(_state => 'asleep')`:                                                                                "QD003",
		`select agent.list_history(_outcome => 'lost')`:                                                                               "QD003",
		`select agent.history_stats('1 month', now() - interval '1 day', now())`:                                                      "QD003",
		`select agent.history_stats('1 hour', now(), now() - interval '1 day')`:                                                       "QD003",
		`select agent.requeue_events(_limit => 0)`:                                                                                    "QD003",
		`select agent.delete_events(array[1, 2], array['x'])`:                                                                         "QD003",
		`select agent.insert_events(array['{}']::jsonb[], array['a', 'b'])`:                                                           "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _delays => array['1 s', '1 s']::interval[])`:                                "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _vts => array[now(), now()])`:                                               "QD003",
		`select agent.insert_events(null, array['a'])`:                                                                                "QD003",
		`select agent.insert_events(array['{}', '{}']::jsonb[], array['a', 'b c'])`:                                                   "QD003",
		`select agent.insert_events(array['{}', '7']::jsonb[])`:                                                                       "QD003",
		`select agent.insert_events(array['{}', '{}']::jsonb[], _vts => array[null, timestamptz '-infinity'])`:                        "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"type": ""}']::jsonb[])`:                                "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array[jsonb_build_object('source', repeat('s', 256))])`:         "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"key": ""}']::jsonb[])`:                                 "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"max_attempts": 0}']::jsonb[])`:                         "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"expires_at": "infinity"}']::jsonb[])`:                  "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"colour": "red"}']::jsonb[])`:                           "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"key": "k", "key_scope": "queued.forward"}']::jsonb[])`: "QD003", // the service alone
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"key": "k", "key_retention": "1 day"}']::jsonb[])`:      "QD003", // the service alone
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"key": "k", "occurrence": {}}']::jsonb[])`:              "QD003", // the service alone
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"key": "k", "verified_source": "github"}']::jsonb[])`:   "QD003", // the service alone
		`select agent.insert_events(array['7']::jsonb[], _options => array['{"key": "k"}']::jsonb[])`:                                 "QD003",
		`select agent.insert_events(array['{}']::jsonb[], array['a b'], _options => array['{"key": "k"}']::jsonb[])`:                  "QD003",
		`select agent.insert_event('{}', _type => '')`:                                                                                "QD003",
		`select agent.insert_event('{}', _max_attempts => 0)`:                                                                         "QD003",
		`select agent.insert_event('{}', 'a b', _key => 'k')`:                                                                         "QD003",
		`insert into agent.event (event, expires_at) values ('{}', 'infinity')`:                                                       "QD003",
		`insert into agent.event (event, source) values ('{}', '')`:                                                                   "QD003",
		`select agent.insert_event('{}', _meta => '[]')`:                                                                              "QD003",
		`select agent.insert_event('{}', _meta => 'null')`:                                                                            "QD003",
		`select agent.insert_event('{}', _key => 'k', _meta => '5')`:                                                                  "QD003",
		`select agent.insert_event('{}', _meta => jsonb_build_object('a', repeat('x', 16376)))`:                                       "QD003",
		`select agent.insert_event('{}', _event_ts => now() - interval '11 years')`:                                                   "QD003",
		`select agent.insert_event('{}', _event_ts => 'infinity')`:                                                                    "QD003",
		`select agent.insert_event('{}', _vt => '0001-01-01Z')`:                                                                       "QD003",
		`select agent.insert_events(array['{}', '{}']::jsonb[], _vts => array[now(), '0001-01-01Z'])`:                                 "QD003",
		`select agent.insert_event('{}', _on_duplicate => 'last')`:                                                                    "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"meta": []}']::jsonb[])`:                                "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"event_ts": "2001-01-01Z"}']::jsonb[])`:                 "QD003",
		`select agent.insert_events(array['{}']::jsonb[], _options => array['{"on_duplicate": "last"}']::jsonb[])`:                    "QD003",
		`insert into agent.event (event, meta) values ('{}', '"text"')`:                                                               "QD003",
		`select agent.publish('a', '{}', _meta => jsonb_build_object('a', repeat('x', 16376)))`:                                       "QD003",
		`select agent.maintain_history('0s')`:                                                                                         "QD003",
		`select agent.to_timestamptz('soon'::text)`:                                                                                   "22007",
	} {
		_, err := sql.Exec(t.Context(), call)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != state {
			t.Errorf("%s: %v, want SQLSTATE %s", call, err, state)
		}
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events were stored by refused calls", n)
	}
}

func TestPlainInsertIsCheckedAfterInsertEventsInTheSameTransaction(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	tx, err := sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	if _, err := tx.Exec(t.Context(), `select count(*) from agent.insert_events(array['{}']::jsonb[])`); err != nil {
		t.Fatal(err)
	}
	_, err = tx.Exec(t.Context(), `insert into agent.event (event) values ('7')`)
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "QD003" || pgErr.ColumnName != "event" {
		t.Errorf("got %v, want QD003", err)
	}
}

func TestAcksOfOneCallAreIndependent(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	if _, err := sql.Exec(t.Context(), `select count(*) from agent.insert_events(array_fill('{}'::jsonb, array[4]))`); err != nil {
		t.Fatal(err)
	}
	claimed := pgtest.Query[string](t, sql, `select agent.receipt(e) from agent.claim_event(_queue => 'default') e`)
	id := pgtest.Query[int64](t, sql, `select split_part($1, '.', 1)::int8`, claimed)
	rows, _ := sql.Query(t.Context(), `select id from agent.event where attempts = 0 order by id`)
	free, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		t.Fatal(err)
	}
	stale := claimed + "0"
	got := func() (answers []string) {
		rows, _ := sql.Query(t.Context(), `select id || ' ' || status || ' ' || coalesce(queue, '-') || case when repeated then ' again' else '' end
			from agent.delete_events($1, $2)`,
			[]int64{4711, id, free[1], id, free[0], id, free[0]}, []*string{nil, &claimed, &stale, &claimed, nil, &stale, nil})
		answers, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		return answers
	}
	lost := fmt.Sprintf("%d lease_lost", id)
	want := []string{
		"4711 not_found - again",
		fmt.Sprintf("%d done default", id),
		fmt.Sprintf("%d lease_lost - again", free[1]),
		fmt.Sprintf("%d done default again", id),
		fmt.Sprintf("%d cancelled default", free[0]),
		lost + " default again",
		fmt.Sprintf("%d cancelled default again", free[0]),
	}
	first := got()
	// Of two acks of the same lease, either can be the first.
	if strings.HasSuffix(first[1], "again") {
		first[1], first[3] = first[3], first[1]
	}
	if strings.HasSuffix(first[4], "again") {
		first[4], first[6] = first[6], first[4]
	}
	if !slices.Equal(first, want) {
		t.Errorf("got %q, want %q", first, want)
	}
	want[1], want[4] = want[3], fmt.Sprintf("%d not_found default again", free[0])
	want[6] = want[4]
	if again := got(); !slices.Equal(again, want) {
		t.Errorf("repeated: got %q, want %q", again, want)
	}
	if n := pgtest.Query[int](t, sql, `select coalesce(sum(cycles), 0) from agent.execution`); n != 1 {
		t.Errorf("%d executions were counted", n)
	}
}

func TestInsertIsPartOfTheCallersTransaction(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	sql, other := pgtest.Connect(t, url), pgtest.Connect(t, url)
	tx, err := sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.insert_event('{"a":1}')`); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, other, `select count(*) from agent.claim_event()`); n != 0 {
		t.Error("an event was claimable before its transaction committed")
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, other, `select count(*) from agent.event`); n != 0 {
		t.Error("an event outlived its transaction's rollback")
	}
}

func TestLeastPrivilegedRoleCanOnlyInsert(t *testing.T) {
	t.Parallel()
	sql := pgtest.Connect(t, pgtest.New(t).AdminURL)
	role := "enqueuer_" + pgtest.Query[string](t, sql, `select current_database()`)
	for _, s := range []string{
		`create role "` + role + `"`,
		`grant usage on schema agent to "` + role + `"`,
		`grant execute on function agent.insert_event to "` + role + `"`,
		`set role "` + role + `"`,
		`select agent.insert_event('{"a":1}')`,
		`set agent.checked to 'yes'`,
	} {
		if _, err := sql.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	for s, want := range map[string]string{
		`select * from agent.event`:                                               "42501", // insufficient_privilege
		`select agent.claim_event()`:                                              "42501",
		`delete from agent.event`:                                                 "42501",
		`select agent.insert_event('[1]')`:                                        "QD003",
		`select agent.insert_event('{}', 'no name')`:                              "QD003",
		`select agent.insert_event('{}', _max_attempts => -1)`:                    "QD003",
		`select agent.insert_event('{}', _expires_at => 'infinity')`:              "QD003",
		`select agent.insert_event('{}', _key => 'k', _expires_at => 'infinity')`: "QD003",
	} {
		var pgErr *pgconn.PgError
		if _, err := sql.Exec(t.Context(), s); !errors.As(err, &pgErr) || pgErr.Code != want {
			t.Errorf("%s: %v, want SQLSTATE %s", s, err, want)
		}
	}
	for _, s := range []string{`reset role`, `drop owned by "` + role + `"`, `drop role "` + role + `"`} {
		if _, err := sql.Exec(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

func TestEventTSNearZeroIsNow(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	for _, ts := range []string{`1e-1000`, `-1e-1000`, `"1e-1000"`, `"0.000000000001"`} {
		id := pgtest.Query[int64](t, sql, `select agent.insert_event($1::jsonb)`, `{"event_ts":`+ts+`}`)
		if !pgtest.Query[bool](t, sql, `select event_ts = enqueued_at from agent.event where id = $1`, id) {
			t.Errorf("the event_ts %s was not recorded as now", ts)
		}
	}
}

func TestUpdateToAnInvalidEventIsRefused(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	id := pgtest.Query[int64](t, sql, `select agent.insert_event('{"a":1}')`)
	for column, value := range map[string]string{"event": `'[]'`, "queue": `'a b'`} {
		_, err := sql.Exec(t.Context(), `update agent.event set `+column+` = `+value+` where id = $1`, id)
		var pgErr *pgconn.PgError
		if !errors.As(err, &pgErr) || pgErr.Code != "QD003" || pgErr.ColumnName != column {
			t.Errorf("%s = %s: %v", column, value, err)
		}
	}
}

func TestSessionSettingsDoNotChangeTimes(t *testing.T) {
	t.Parallel()
	url := pgtest.New(t).URL
	for _, set := range []string{
		`set datestyle = 'SQL, DMY'`, `set datestyle = 'German'`, `set datestyle = 'Postgres, MDY'`, `set intervalstyle = 'iso_8601'`,
		`set timezone = 'Europe/Berlin'`, `set timezone = 'America/New_York'`, `set timezone = 'Asia/Kathmandu'`, `set extra_float_digits = -15`,
	} {
		sql := pgtest.Connect(t, url)
		if _, err := sql.Exec(t.Context(), set); err != nil {
			t.Fatal(err)
		}
		// Local times that New York or Berlin had twice or never.
		for ts, epoch := range map[string]int64{
			`"2025-03-30T02:30:00+01:00"`: 1743298200, `"2025-10-26T02:30:00+01:00"`: 1761442200, `"2025-10-26T02:30:00+02:00"`: 1761438600,
			`"2025-11-02T01:30:00-04:00"`: 1762061400, `1762065000`: 1762065000, `"1762065000.000000"`: 1762065000,
		} {
			id := pgtest.Query[int64](t, sql, `select agent.insert_event($1::jsonb, 'ts')`, `{"event_ts":`+ts+`}`)
			if got := pgtest.Query[int64](t, sql, `select extract(epoch from event_ts)::int8 from agent.event where id = $1`, id); got != epoch {
				t.Errorf("%s: the event_ts %s was recorded as %d", set, ts, got)
			}
		}

		const halfYear = 200 * 24 * 60 * 60 // includes a change of daylight saving time
		id := pgtest.Query[int64](t, sql, `select agent.insert_event('{}', 'delayed', '200 days')`)
		batch := pgtest.Query[int64](t, sql, `select id from agent.insert_events(array['{}']::jsonb[], array['delayed'], array['200 days']::interval[])`)
		for _, id := range []int64{id, batch} {
			if got := pgtest.Query[int64](t, sql, `select extract(epoch from vt - enqueued_at)::int8 from agent.event where id = $1`, id); got != halfYear {
				t.Errorf("%s: 200 days of delay became %d s", set, got)
			}
		}
		pgtest.Query[int64](t, sql, `select agent.insert_event('{}', 'claimed')`)
		var receipt, want string
		var leased int64
		err := sql.QueryRow(t.Context(), `
			select e.id, agent.receipt(e), e.id || '.1.' || e.claim_token, extract(epoch from e.vt - e.claimed[1])::int8
			from agent.claim_event(_queue => 'claimed', _invisible_for => '200 days') e`).Scan(&id, &receipt, &want, &leased)
		if err != nil {
			t.Fatal(err)
		}
		if receipt != want || leased != halfYear {
			t.Errorf("%s: claimed for %d s with receipt %s, want %s", set, leased, receipt, want)
		}
		const ahead = `round(extract(epoch from vt - clock_timestamp()) / 60)::int8`
		if got := pgtest.Query[int64](t, sql, `select `+ahead+` from agent.extend_event($1, $2, '200 days') vt`, id, receipt); got != halfYear/60 {
			t.Errorf("%s: extended by %d min", set, got)
		}
		if got := pgtest.Query[int64](t, sql, `select `+ahead+` from agent.nack_event($1, $2, '200 days')`, id, receipt); got != halfYear/60 {
			t.Errorf("%s: nacked with a delay of %d min", set, got)
		}
		if got := pgtest.Query[string](t, sql, `select agent.delete_event($1, $2)`, id, receipt); got != "done" {
			t.Errorf("%s: the ack returned %s", set, got)
		}
	}
}
