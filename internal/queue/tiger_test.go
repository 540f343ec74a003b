package queue_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/queued/queued/internal/pgtest"
)

// A parameter as psycopg sends one: in text format, with the type that it takes for the value in Python.
type parameter struct {
	oid  uint32
	text string
}

func pyJSON(text string) parameter { return parameter{pgtype.JSONBOID, text} } // Jsonb(…)
func pyText(text string) parameter { return parameter{0, text} }               // a str has no type
func pyInterval(text string) parameter {
	return parameter{pgtype.IntervalOID, text} // a timedelta
}

func pyTime(at time.Time) parameter {
	return parameter{pgtype.TimestamptzOID, at.Format(time.RFC3339Nano)} // a datetime with a zone
}

// pyInt is an int, which has the smallest type that its value fits into.
func pyInt(n int64) parameter {
	switch text := strconv.FormatInt(n, 10); {
	case n == int64(int16(n)):
		return parameter{pgtype.Int2OID, text}
	case n == int64(int32(n)):
		return parameter{pgtype.Int4OID, text}
	default:
		return parameter{pgtype.Int8OID, text}
	}
}

var pyNone = parameter{} // of no type, and null

// tigerRow is a row by the names of its columns, as text; null: "".
type tigerRow map[string]string

// tiger sends a statement as the worker of tiger-agents-for-work does, and returns the rows.
func tiger(t *testing.T, conn *pgconn.PgConn, statement string, parameters ...parameter) []tigerRow {
	t.Helper()
	var values [][]byte
	var oids []uint32
	for _, p := range parameters {
		oids = append(oids, p.oid)
		if p == pyNone {
			values = append(values, nil)
		} else {
			values = append(values, []byte(p.text))
		}
	}
	result := conn.ExecParams(t.Context(), statement, values, oids, nil, nil).Read()
	if result.Err != nil {
		t.Fatalf("%s: %v", statement, result.Err)
	}
	var rows []tigerRow
	for _, values := range result.Rows {
		row := tigerRow{}
		for i, field := range result.FieldDescriptions {
			row[field.Name] = string(values[i])
		}
		rows = append(rows, row)
	}
	return rows
}

// tigerRole is a session with the rights that docs/sql.md says the worker needs.
func tigerRole(t *testing.T) (worker *pgconn.PgConn, owner *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	url := insertingRole(t, db, "agent.insert_event, agent.insert_event_hist, agent.claim_event, agent.delete_event, agent.delete_expired_events")
	owner = pgtest.Connect(t, db.URL)
	role := pgtest.Query[string](t, pgtest.Connect(t, url), `select quote_ident(current_user)`)
	if _, err := owner.Exec(t.Context(), `grant select on agent.event, agent.event_hist to `+role); err != nil {
		t.Fatal(err)
	}
	worker, err := pgconn.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = worker.Close(context.WithoutCancel(t.Context())) })
	return worker, owner
}

const (
	tigerInsert = `select agent.insert_event($1, $2::timestamptz)`
	tigerClaim  = `select * from agent.claim_event($1, $2::int8 * interval '1m')`
	tigerDelete = `select agent.delete_event($1)`
	tigerFail   = `select agent.delete_event($1::int8, _processed=>false)`
	tigerSweep  = `select agent.delete_expired_events($1, $2::int8 * interval '1m')`
	tigerRecord = `select agent.insert_event_hist($1)`
	tigerPast   = `select * from agent.event_hist where id = $1`
)

func TestTigersWorkerInsertsClaimsAndDeletes(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	worker, owner := tigerRole(t)
	tiger(t, worker, tigerInsert, pyJSON(`{"type": "message", "user": "U1", "event_ts": "`+epochText(time.Now())+`"}`), pyNone)
	if rows := tiger(t, worker, `select agent.insert_event($1)`, pyJSON(`{"type": "message", "user": "U1"}`)); len(rows) != 1 {
		t.Errorf("an insert without a vt returned %v", rows)
	}
	for _, want := range []string{"done", "failed"} {
		rows := tiger(t, worker, tigerClaim, pyInt(3), pyInt(10))
		if len(rows) != 1 {
			t.Fatalf("claimed %v, want one event", rows)
		}
		for _, column := range []string{"id", "event_ts", "attempts", "vt", "claimed", "event"} {
			if rows[0][column] == "" {
				t.Errorf("a claimed row has no %s: %v", column, rows[0])
			}
		}
		id, err := strconv.ParseInt(rows[0]["id"], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if want == "done" {
			tiger(t, worker, tigerDelete, pyInt(id))
		} else {
			tiger(t, worker, tigerFail, pyInt(id))
		}
		past := tiger(t, worker, tigerPast, pyInt(id))
		if len(past) != 1 || past[0]["outcome"] != want || past[0]["processed"] != map[string]string{"done": "t", "failed": "f"}[want] || past[0]["attempts"] != "1" {
			t.Errorf("history of %d is %v, want it %s", id, past, want)
		}
	}
	if rows := tiger(t, worker, tigerClaim, pyInt(3), pyInt(10)); len(rows) != 0 {
		t.Errorf("claimed %v of an empty queue", rows)
	}
	if n := pgtest.Query[int](t, owner, `select count(*) from agent.event`); n != 0 {
		t.Errorf("%d events are left", n)
	}
}

func TestTigersReminderIsDueAtItsTime(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	worker, _ := tigerRole(t)
	due := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	tiger(t, worker, tigerInsert, pyJSON(`{"type": "reminder", "user": "U1"}`), pyTime(due))
	if rows := tiger(t, worker, tigerClaim, pyInt(3), pyInt(10)); len(rows) != 0 {
		t.Errorf("claimed %v before its time", rows)
	}
	find := func() []tigerRow {
		return tiger(t, worker, `select * from agent.event where event->>'type' = $1 and event->>'user' = $2 and vt = $3`, pyText("reminder"), pyText("U1"), pyTime(due))
	}
	found := find()
	if len(found) != 1 {
		t.Fatalf("found %v, want the reminder", found)
	}
	id, err := strconv.ParseInt(found[0]["id"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	tiger(t, worker, tigerDelete, pyInt(id)) // it makes another one in its place
	if left := find(); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	if past := tiger(t, worker, tigerPast, pyInt(id)); len(past) != 1 || past[0]["outcome"] != "cancelled" || past[0]["processed"] != "f" {
		t.Errorf("history has %v, want it cancelled", past)
	}
}

func TestTigersHandledEventsGoIntoHistory(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	worker, owner := tigerRole(t)
	at := time.Now().Add(-time.Hour).Truncate(time.Microsecond)
	rows := tiger(t, worker, tigerRecord, pyJSON(`{"type": "message", "user": "U1", "event_ts": "`+epochText(at)+`"}`))
	if len(rows) != 1 {
		t.Fatalf("got %v, want the id", rows)
	}
	id, err := strconv.ParseInt(rows[0]["insert_event_hist"], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	past := tiger(t, worker, tigerPast, pyInt(id))
	if len(past) != 1 || past[0]["processed"] != "t" || past[0]["outcome"] != "done" || past[0]["attempts"] != "0" || past[0]["claimed"] != "{}" || past[0]["queue"] != "default" {
		t.Errorf("history has %v", past)
	}
	if got := pgtest.Query[time.Time](t, owner, `select event_ts from agent.event_hist where id = $1`, id); !got.Equal(at) {
		t.Errorf("event_ts is %v, want %v", got, at)
	}
	if rows := tiger(t, worker, tigerClaim, pyInt(3), pyInt(10)); len(rows) != 0 {
		t.Errorf("claimed %v, which is in history", rows)
	}
	if n := pgtest.Query[int](t, owner, `select count(*) from agent.list_history(_id => $1)`, id); n != 1 {
		t.Errorf("history lists it %d times", n)
	}
}

func TestTigersSweepEndsEventsWithoutAttemptsLeft(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	worker, owner := tigerRole(t)
	tiger(t, worker, tigerInsert, pyJSON(`{"type": "message"}`), pyNone)
	for range 3 {
		if rows := tiger(t, worker, tigerClaim, pyInt(3), pyInt(10)); len(rows) != 1 {
			t.Fatalf("claimed %v", rows)
		}
		if _, err := owner.Exec(t.Context(), `update agent.event set vt = now()`); err != nil { // the worker has died
			t.Fatal(err)
		}
	}
	tiger(t, worker, tigerSweep, pyInt(3), pyInt(60))
	if rows := tiger(t, worker, `select * from agent.event_hist where not processed`); len(rows) != 1 || rows[0]["outcome"] != "expired" {
		t.Errorf("history has %v, want one expired event", rows)
	}
}

// The worker looks for its events in both tables.
func TestTigersWorkerReadsEventsAndHistory(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	worker, _ := tigerRole(t)
	at := time.Now().Add(-time.Minute).Truncate(time.Millisecond).UTC()
	payload := pyJSON(`{"type": "salesforce_event", "subtype": "new_feed_item", "user": "U1", "feed_item": {"Id": "F1"}, "case": {"Id": "C1"}, "event_ts": "` + epochText(at) + `"}`)
	tiger(t, worker, tigerInsert, payload, pyNone)
	tiger(t, worker, tigerRecord, payload)

	count := tiger(t, worker, `select count(*) as n from
		( select 1 from agent.event where event->>'user' = $1 and event_ts >= now() - $2
		  union all
		  select 1 from agent.event_hist where event->>'user' = $3 and event_ts >= now() - $4
		) combined`, pyText("U1"), pyInterval("3600s 0us"), pyText("U1"), pyInterval("3600s 0us"))
	if count[0]["n"] != "2" {
		t.Errorf("counted %v, want 2", count)
	}
	cases := tiger(t, worker, `select event->'case'->>'Id' as case_id from
		( select event, event_ts from agent.event where event->>'type' = 'salesforce_event' and event_ts >= $1
		  union all
		  select event, event_ts from agent.event_hist where event->>'type' = 'salesforce_event' and event_ts >= $2
		) combined where event->'case'->>'Id' in ($3, $4)`, pyTime(at), pyTime(at), pyText("C1"), pyText("C2"))
	if len(cases) != 2 {
		t.Errorf("found %v, want the case twice", cases)
	}
	for _, table := range []string{"event", "event_hist"} {
		latest := tiger(t, worker, `select * from agent.`+table+` where event->>'subtype' = 'new_feed_item' and event->'case'->>'Id' = $1 order by event_ts desc limit 1;`, pyText("C1"))
		if len(latest) != 1 {
			t.Errorf("agent.%s: found %v", table, latest)
		}
		known := tiger(t, worker, `select elem->>'id' as id from jsonb_array_elements($1::jsonb) as elem where exists
			( select 1 from agent.`+table+` where event_ts = (elem->>'created_date')::timestamptz and event->'feed_item'->>'Id' = elem->>'id' )`,
			pyJSON(`[{"id": "F1", "created_date": "`+at.Format("2006-01-02T15:04:05.000+0000")+`"}, {"id": "F2", "created_date": "`+at.Format("2006-01-02T15:04:05.000+0000")+`"}]`))
		if len(known) != 1 || known[0]["id"] != "F1" {
			t.Errorf("agent.%s: known are %v, want F1", table, known)
		}
	}
}

// What takes the place of the queue is its name in any type of text, or a vt, whether its type is said or not.
func TestSecondArgumentOfInsertEventIsAQueueOrAVT(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	for call, want := range map[string]string{
		`agent.insert_event('{}', 'mail')`:                        "mail 0",
		`agent.insert_event('{}', 'mail'::varchar(9))`:            "mail 0",
		`agent.insert_event('{}', 'mail'::name, '1 hour')`:        "mail 60",
		`agent.insert_event('{}', _queue => 'mail')`:              "mail 0",
		`agent.insert_event('{}', null)`:                          "default 0",
		`agent.insert_event('{}', null::timestamptz)`:             "default 0",
		`agent.insert_event('{}', now() + '1 hour')`:              "default 60",
		`agent.insert_event('{}', _vt => now() + '1 hour')`:       "default 60",
		`agent.insert_event('{}', now() + '1 hour', _key => 'k')`: "default 60",
	} {
		got := pgtest.Query[string](t, sql, `with made as materialized (select `+call+` as id) select e.queue || ' ' || round(extract(epoch from e.vt - e.enqueued_at) / 60)
			from made, lateral (select * from agent.list_events(_queue => null) l where l.id = made.id) e`)
		if got != want {
			t.Errorf("%s: %s, want %s", call, got, want)
		}
	}
	if _, err := sql.Exec(t.Context(), `select agent.insert_event($1, $2)`, `{}`, "untyped"); err != nil {
		t.Errorf("a parameter without a type: %v", err)
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event where queue = 'untyped'`); n != 1 {
		t.Errorf("%d events in the queue of a parameter without a type", n)
	}
}

func TestDeleteEventThatWasNotProcessed(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	sql := sqlBench(t)
	id := pgtest.Query[int64](t, sql, `select agent.insert_event('{}')`)
	if got := pgtest.Query[string](t, sql, `select agent.delete_event($1, _processed => false)`, id); got != "failed" {
		t.Errorf("of an event that nobody has claimed it returned %s", got)
	}
	id = pgtest.Query[int64](t, sql, `select agent.insert_event('{}')`)
	receipt := pgtest.Query[string](t, sql, `select agent.receipt(e) from agent.claim_event() e`)
	for call, state := range map[string]string{
		`select agent.delete_event($1, '` + receipt + `0', _processed => false)`:       "QD001",
		`select agent.delete_event($1, _result => '1', _processed => false)`:           "QD003",
		`select agent.delete_event($1 + 4711, _processed => false)`:                    "QD002",
		`select agent.delete_event($1 + 4711, '` + receipt + `', _processed => false)`: "QD002",
	} {
		_, err := sql.Exec(t.Context(), call, id)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != state {
			t.Errorf("%s: %v, want %s", call, err, state)
		}
	}
	if got := pgtest.Query[string](t, sql, `select agent.delete_event($1, $2, _processed => false)`, id, receipt); got != "failed" {
		t.Errorf("it returned %s", got)
	}
	if got := pgtest.Query[string](t, sql, `select agent.delete_event($1, $2, _processed => false)`, id, receipt); got != "failed" {
		t.Errorf("repeated it returned %s", got)
	}
	pgtest.Query[int64](t, sql, `select agent.insert_event('{}')`)
	if got := pgtest.Query[string](t, sql, `select agent.delete_event(e.id, _processed => null) from agent.claim_event() e`); got != "done" {
		t.Errorf("with a null it returned %s", got)
	}
}
