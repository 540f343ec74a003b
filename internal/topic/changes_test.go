package topic_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
)

// changes are the events of tables that were published since the last call, each as its topic, its key and its JSON.
func (env environment) changes(t *testing.T) []string {
	t.Helper()
	rows, err := env.sql.Query(t.Context(), `
		select topic || ' ' || coalesce(key, '-') || ' ' || (event - 'op' - 'table' - 'key')::text from agent.log order by position`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	env.exec(t, `delete from agent.log`)
	return all
}

// wantChanges fails unless exactly these changes were published since the last call.
func (env environment) wantChanges(t *testing.T, want ...string) {
	t.Helper()
	if got := env.changes(t); !slices.Equal(got, want) {
		t.Errorf("published\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	if n := value[int](t, env, `select count(*) from agent.outgoing`); n != 0 {
		t.Errorf("%d rows are left in agent.outgoing", n)
	}
}

// withUsers returns an idle environment with the table shop.users, whose changes are not published yet, and a session of the administrator.
func withUsers(t *testing.T) (environment, *pgx.Conn) {
	t.Helper()
	db := pgtest.New(t)
	env := environmentOn(t, db.URL)
	env.exec(t, `create schema shop; create table shop.users (id int8 primary key, name text, email text)`)
	return env, pgtest.Connect(t, db.AdminURL)
}

// roleName is a name for a role of a test: roles belong to the whole server, where other tests run.
func roleName(env environment, name string) string {
	database := env.sql.Config().Database
	return name + database[max(0, len(database)-26):]
}

// sqlState is the SQLSTATE of an error of the database; empty for any other.
func sqlState(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

func TestChangesOfATableArePublished(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users')`)
	env.exec(t, `insert into shop.users values (1, 'Ada', 'a@x'), (2, 'Bob', null)`)
	event := value[string](t, env, `select event::text from agent.log order by position limit 1`)
	if event != `{"op": "insert", "key": "1", "new": {"id": 1, "name": "Ada", "email": "a@x"}, "table": "shop.users"}` {
		t.Errorf("the event is %s", event)
	}
	env.exec(t, `update shop.users set email = 'b@x' where id = 2`)
	env.exec(t, `update shop.users set email = email`)
	env.exec(t, `update shop.users set id = 3 where id = 2`)
	env.exec(t, `delete from shop.users where id = 3`)
	env.exec(t, `delete from shop.users where id = 3`)
	env.exec(t, `truncate shop.users`)
	env.wantChanges(t,
		`shop.users.insert 1 {"new": {"id": 1, "name": "Ada", "email": "a@x"}}`,
		`shop.users.insert 2 {"new": {"id": 2, "name": "Bob", "email": null}}`,
		`shop.users.update 2 {"new": {"id": 2, "name": "Bob", "email": "b@x"}, "old": {"email": null}, "changed": ["email"]}`,
		`shop.users.update 3 {"new": {"id": 3, "name": "Bob", "email": "b@x"}, "old": {"id": 2}, "changed": ["id"]}`,
		`shop.users.delete 3 {"old": {"id": 3, "name": "Bob", "email": "b@x"}}`,
		`shop.users.truncate - {}`)

	env.exec(t, `select agent.stop_publishing_changes('shop.users')`)
	env.exec(t, `select agent.stop_publishing_changes('shop.users')`)
	env.exec(t, `insert into shop.users values (1); update shop.users set name = 'x'; delete from shop.users; truncate shop.users`)
	env.wantChanges(t)
}

func TestSettingsOfPublishedChanges(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings string
		want     []string
	}{
		"topic": {`_topic => 'people', _operations => '{insert}'`, []string{
			`people.insert 1 {"new": {"id": 1, "name": "Ada", "email": "a"}}`,
		}},
		"operations": {`_operations => '{delete,truncate}'`, []string{
			`shop.users.delete 2 {"old": {"id": 2, "name": "Bob", "email": "b"}}`, `shop.users.truncate - {}`,
		}},
		"columns": {`_columns => '{email}'`, []string{
			`shop.users.insert 1 {"new": {"email": "a"}}`,
			`shop.users.update 1 {"new": {"email": "b"}, "old": {"email": "a"}, "changed": ["email"]}`,
			`shop.users.delete 2 {"old": {"email": "b"}}`, `shop.users.truncate - {}`,
		}},
		"all former values": {`_operations => '{update,delete}', _old => 'full'`, []string{
			`shop.users.update 1 {"new": {"id": 1, "name": "Bob", "email": "a"}, "old": {"id": 1, "name": "Ada", "email": "a"}, "changed": ["name"]}`,
			`shop.users.update 1 {"new": {"id": 1, "name": "Bob", "email": "b"}, "old": {"id": 1, "name": "Bob", "email": "a"}, "changed": ["email"]}`,
			`shop.users.update 2 {"new": {"id": 2, "name": "Bob", "email": "b"}, "old": {"id": 1, "name": "Bob", "email": "b"}, "changed": ["id"]}`,
			`shop.users.delete 2 {"old": {"id": 2, "name": "Bob", "email": "b"}}`,
		}},
		"no former values but those of a changed key": {`_operations => '{update,delete}', _old => 'none'`, []string{
			`shop.users.update 1 {"new": {"id": 1, "name": "Bob", "email": "a"}, "changed": ["name"]}`,
			`shop.users.update 1 {"new": {"id": 1, "name": "Bob", "email": "b"}, "changed": ["email"]}`,
			`shop.users.update 2 {"new": {"id": 2, "name": "Bob", "email": "b"}, "old": {"id": 1}, "changed": ["id"]}`,
			`shop.users.delete 2 {}`,
		}},
		"key": {`_operations => '{insert,delete}', _key => '{name,id}', _columns => '{id}'`, []string{
			`shop.users.insert ["Ada", 1] {"new": {"id": 1}}`, `shop.users.delete ["Bob", 2] {"old": {"id": 2}}`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, _ := withUsers(t)
			env.exec(t, `select agent.publish_changes('shop.users', _topic => 'replaced', _old => 'full')`)
			env.exec(t, `select agent.publish_changes('shop.users', `+c.settings+`)`)
			env.exec(t, `insert into shop.users values (1, 'Ada', 'a')`)
			env.exec(t, `update shop.users set name = 'Bob'; update shop.users set email = 'b'; update shop.users set id = 2`)
			env.exec(t, `delete from shop.users; truncate shop.users`)
			env.wantChanges(t, c.want...)
		})
	}
}

func TestManyChangedRowsArePublishedInTheirOrder(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users')`)
	env.exec(t, `insert into shop.users select i, 'n' || i from generate_series(1, 3500) i`)
	// Every row gets the key of another one, and each third row is not changed.
	env.exec(t, `update shop.users set id = case when id % 3 = 0 then id else 10000 - id end`)
	env.exec(t, `delete from shop.users`)
	if n := value[int](t, env, `select count(*) from agent.log where topic = 'shop.users.insert' and event #>> '{new,name}' = 'n' || key`); n != 3500 {
		t.Errorf("%d of 3500 inserted rows are published", n)
	}
	if n := value[int](t, env, `
		select count(*) from agent.log
		where topic = 'shop.users.update' and event #>> '{new,name}' = 'n' || (event #>> '{old,id}') and (10000 - key::int4)::text = event #>> '{old,id}'`); n != 2334 {
		t.Errorf("%d of 2334 changed rows are published with their own former values", n)
	}
	if n := value[int](t, env, `select count(distinct key) from agent.log where topic = 'shop.users.delete'`); n != 3500 {
		t.Errorf("%d of 3500 deleted rows are published", n)
	}
	if !value[bool](t, env, `select bool_and(key = ord::text) from (select key, row_number() over (order by position) ord from agent.log where topic like '%insert') i`) {
		t.Error("the inserted rows are not in their order")
	}
}

func TestEveryStatementThatChangesRowsPublishesThem(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `
		create table shop.orders (id int8 generated always as identity primary key, user_id int8 references shop.users on delete cascade on update cascade,
			n int4, double int4 generated always as (n * 2) stored)`)
	env.exec(t, `select agent.publish_changes('shop.users', 'u'); select agent.publish_changes('shop.orders', 'o')`)

	if _, err := env.sql.CopyFrom(t.Context(), pgx.Identifier{"shop", "users"}, []string{"id", "name"},
		pgx.CopyFromRows([][]any{{1, "Ada"}, {2, "Bob"}})); err != nil {
		t.Fatal(err)
	}
	env.wantChanges(t, `u.insert 1 {"new": {"id": 1, "name": "Ada", "email": null}}`, `u.insert 2 {"new": {"id": 2, "name": "Bob", "email": null}}`)

	env.exec(t, `insert into shop.users values (2, 'Bob', 'b'), (3, 'Cy', 'c') on conflict (id) do update set email = excluded.email`)
	env.wantChanges(t, `u.update 2 {"new": {"id": 2, "name": "Bob", "email": "b"}, "old": {"email": null}, "changed": ["email"]}`,
		`u.insert 3 {"new": {"id": 3, "name": "Cy", "email": "c"}}`)
	env.exec(t, `insert into shop.users values (2, 'Bob', 'b') on conflict do nothing`)
	env.wantChanges(t)

	env.exec(t, `insert into shop.orders (user_id, n) values (1, 5)`)
	env.exec(t, `update shop.users set id = 10 where id = 1`)
	env.exec(t, `delete from shop.users where id = 10`)
	env.wantChanges(t, `o.insert 1 {"new": {"n": 5, "id": 1, "double": 10, "user_id": 1}}`,
		`u.update 10 {"new": {"id": 10, "name": "Ada", "email": null}, "old": {"id": 1}, "changed": ["id"]}`,
		`o.update 1 {"new": {"n": 5, "id": 1, "double": 10, "user_id": 10}, "old": {"user_id": 1}, "changed": ["user_id"]}`,
		`u.delete 10 {"old": {"id": 10, "name": "Ada", "email": null}}`,
		`o.delete 1 {"old": {"n": 5, "id": 1, "double": 10, "user_id": 10}}`)

	env.exec(t, `with gone as (delete from shop.users where id = 2 returning *) insert into shop.users select 4, name, email from gone`)
	if got := env.changes(t); len(got) != 2 {
		t.Errorf("published %q, want a delete and an insert", got)
	}
	if value[int](t, env, `select current_setting('server_version_num')::int4`) >= 150000 {
		env.exec(t, `merge into shop.users u using (values (3, 'Cyril'), (5, 'Eve')) as v (id, name) on u.id = v.id
			when matched then update set name = v.name when not matched then insert (id, name) values (v.id, v.name)`)
		env.wantChanges(t, `u.update 3 {"new": {"id": 3, "name": "Cyril", "email": "c"}, "old": {"name": "Cy"}, "changed": ["name"]}`,
			`u.insert 5 {"new": {"id": 5, "name": "Eve", "email": null}}`)
	}
}

func TestPartitionedTablePublishesEachChangeOnce(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `
		create schema shop;
		create table shop.sales (id int8, day int4, n int4, primary key (day, id)) partition by range (day);
		create table shop.sales_1 partition of shop.sales for values from (0) to (10);
		create table shop.sales_2 partition of shop.sales for values from (10) to (20) partition by range (day);
		create table shop.sales_2a (n int4, day int4 not null, id int8 not null); -- in another order
		alter table shop.sales_2 attach partition shop.sales_2a for values from (10) to (20);
		select agent.publish_changes('shop.sales', 's')`)
	env.exec(t, `insert into shop.sales values (1, 1, 0), (2, 11, 0)`)
	env.exec(t, `insert into shop.sales_1 values (3, 1, 0)`)
	env.exec(t, `insert into shop.sales_2 values (4, 12, 0)`)
	env.exec(t, `insert into shop.sales_2a (id, day, n) values (5, 12, 0)`)
	env.wantChanges(t, `s.insert [1, 1] {"new": {"n": 0, "id": 1, "day": 1}}`, `s.insert [11, 2] {"new": {"n": 0, "id": 2, "day": 11}}`,
		`s.insert [1, 3] {"new": {"n": 0, "id": 3, "day": 1}}`, `s.insert [12, 4] {"new": {"n": 0, "id": 4, "day": 12}}`,
		`s.insert [12, 5] {"new": {"n": 0, "id": 5, "day": 12}}`)
	env.exec(t, `update shop.sales set day = 11, n = id where id in (1, 3)`) // into another partition
	env.exec(t, `delete from shop.sales_2a where id = 5`)
	env.wantChanges(t, `s.update [11, 1] {"new": {"n": 1, "id": 1, "day": 11}, "old": {"n": 0, "id": 1, "day": 1}, "changed": ["day", "n"]}`,
		`s.update [11, 3] {"new": {"n": 3, "id": 3, "day": 11}, "old": {"n": 0, "id": 3, "day": 1}, "changed": ["day", "n"]}`,
		`s.delete [12, 5] {"old": {"n": 0, "id": 5, "day": 12}}`)

	env.exec(t, `begin; truncate shop.sales_1; truncate shop.sales_1, shop.sales_2; insert into shop.sales values (6, 6, 6); truncate shop.sales; commit`)
	env.wantChanges(t, `s.truncate - {"partition": "shop.sales_1"}`, `s.truncate - {"partition": "shop.sales_1"}`, `s.truncate - {"partition": "shop.sales_2"}`,
		`s.insert [6, 6] {"new": {"n": 6, "id": 6, "day": 6}}`, `s.truncate - {}`)

	// A partition that comes later.
	env.exec(t, `create table shop.sales_3 partition of shop.sales for values from (20) to (30)`)
	env.exec(t, `insert into shop.sales values (7, 21, 0)`)
	env.exec(t, `select agent.publish_changes('shop.sales', 's')`)
	env.exec(t, `insert into shop.sales_3 values (8, 21, 0)`)
	env.wantChanges(t, `s.insert [21, 7] {"new": {"n": 0, "id": 7, "day": 21}}`, `s.insert [21, 8] {"new": {"n": 0, "id": 8, "day": 21}}`)

	// A trigger that refuses a row on its way. What became of the rows cannot be told then, but that something did.
	env.exec(t, `
		create function shop.refuse() returns trigger language plpgsql as 'begin return null; end';
		create trigger refuse before insert on shop.sales_1 for each row when (new.id = 7) execute function shop.refuse();
		update shop.sales set day = 1`)
	env.wantChanges(t, `s.update - {"omitted": ["*"]}`)

	env.exec(t, `select agent.stop_publishing_changes('shop.sales')`)
	env.exec(t, `delete from shop.sales; delete from shop.sales_1; truncate shop.sales`)
	env.wantChanges(t)
	if n := value[int](t, env, `select count(*) from pg_trigger where tgname like '00_publish%'`); n != 0 {
		t.Errorf("%d triggers are left", n)
	}
}

func TestTableWithForeignPartitionIsPublishedRowByRow(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	env := environmentOn(t, db.URL)
	admin := pgtest.Connect(t, db.AdminURL)
	if _, err := admin.Exec(t.Context(), `
		create foreign data wrapper nowhere;
		create server nowhere foreign data wrapper nowhere;
		create schema shop;
		create table shop.sales (id int8, day int4) partition by list (day);
		create table shop.sales_1 partition of shop.sales for values in (1);
		create table shop.sales_3 partition of shop.sales for values in (3);
		create foreign table shop.sales_2 partition of shop.sales for values in (2) server nowhere;
		select agent.publish_changes('shop.sales', 's', _key => '{id}');
		create table shop.sales_4 partition of shop.sales for values in (4)`); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.Exec(t.Context(), `
		insert into shop.sales values (1, 1), (2, 3);
		insert into shop.sales_4 values (3, 4);
		update shop.sales_1 set id = 5;
		delete from shop.sales_3`); err != nil {
		t.Fatal(err)
	}
	env.wantChanges(t, `s.insert 1 {"new": {"id": 1, "day": 1}}`, `s.insert 2 {"new": {"id": 2, "day": 3}}`, `s.insert 3 {"new": {"id": 3, "day": 4}}`,
		`s.update 5 {"new": {"id": 5, "day": 1}, "old": {"id": 1}, "changed": ["id"]}`, `s.delete 2 {"old": {"id": 2, "day": 3}}`)
}

func TestHypertablePublishesItsChanges(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	if pgtest.Flavour() != pgtest.Timescale {
		return // there are none; on partitions see above
	}
	env := setupIdle(t)
	env.exec(t, `
		create schema shop;
		create table shop.m (day date not null, id int8 not null, n int4, primary key (id, day));
		select public.create_hypertable('shop.m', 'day');
		insert into shop.m values ('2026-01-01', 0, 0);
		select agent.publish_changes('shop.m')`)
	env.exec(t, `insert into shop.m values ('2026-01-01', 1, 1), ('2026-06-01', 2, 2)`)
	if _, err := env.sql.CopyFrom(t.Context(), pgx.Identifier{"shop", "m"}, []string{"day", "id"},
		pgx.CopyFromRows([][]any{{time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC), 3}})); err != nil {
		t.Fatal(err)
	}
	env.exec(t, `update shop.m set n = 5 where id = 2`)
	env.exec(t, `delete from shop.m where id = 3`)
	env.exec(t, `truncate shop.m`)
	env.wantChanges(t, `shop.m.insert [1, "2026-01-01"] {"new": {"n": 1, "id": 1, "day": "2026-01-01"}}`,
		`shop.m.insert [2, "2026-06-01"] {"new": {"n": 2, "id": 2, "day": "2026-06-01"}}`,
		`shop.m.insert [3, "2026-09-01"] {"new": {"n": null, "id": 3, "day": "2026-09-01"}}`,
		`shop.m.update [2, "2026-06-01"] {"new": {"n": 5, "id": 2, "day": "2026-06-01"}, "old": {"n": 2}, "changed": ["n"]}`,
		`shop.m.delete [3, "2026-09-01"] {"old": {"n": null, "id": 3, "day": "2026-09-01"}}`,
		`shop.m.truncate - {}`)
	env.exec(t, `select agent.stop_publishing_changes('shop.m')`)
	env.exec(t, `insert into shop.m values ('2026-01-01', 1, 1), ('2026-12-01', 2, 2); delete from shop.m`)
	env.wantChanges(t)
}

func TestWritesOfTriggersArePublishedAfterTheirCause(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `
		create function shop.add_email() returns trigger language plpgsql as
			'begin update shop.users set email = name || ''@x'' where email is null; return null; end';
		create trigger after_statement after insert on shop.users for each statement execute function shop.add_email();
		select agent.publish_changes('shop.users', 'u');
		insert into shop.users values (1, 'Ada')`)
	want := []string{
		`u.insert 1 {"new": {"id": 1, "name": "Ada", "email": null}}`,
		`u.update 1 {"new": {"id": 1, "name": "Ada", "email": "Ada@x"}, "old": {"email": null}, "changed": ["email"]}`,
	}
	env.wantChanges(t, want...)
	env.exec(t, `
		drop trigger after_statement on shop.users;
		create trigger after_row after insert on shop.users for each row execute function shop.add_email();
		delete from shop.users; delete from agent.log;
		select agent.publish_changes('shop.users', 'u');
		insert into shop.users values (1, 'Ada')`)
	env.changes(t) // the delete, too
	env.exec(t, `select agent.stop_publishing_changes('shop.users'); delete from shop.users; select agent.publish_changes('shop.users', 'u')`)
	env.exec(t, `insert into shop.users values (1, 'Ada')`)
	env.wantChanges(t, want...)

	// A row that refers to itself.
	env.exec(t, `
		create table shop.nodes (id int8 primary key, parent int8 references shop.nodes on update cascade);
		select agent.publish_changes('shop.nodes', 'n');
		insert into shop.nodes values (1, 1);
		update shop.nodes set id = 2`)
	env.wantChanges(t, `n.insert 1 {"new": {"id": 1, "parent": 1}}`,
		`n.update 2 {"new": {"id": 2, "parent": 1}, "old": {"id": 1}, "changed": ["id"]}`,
		`n.update 2 {"new": {"id": 2, "parent": 2}, "old": {"parent": 1}, "changed": ["parent"]}`)
}

func TestValuesArePublishedAlikeWhateverTheSessionHasSet(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `
		create schema shop;
		create type shop.mood as enum ('sad', 'happy');
		create type shop.part as (a text, moods shop.mood[], doc json);
		create domain shop.moods as shop.mood[];
		create type shop.span as range (subtype = float8);
		create table shop.v (id int8 primary key, n numeric, f float8, d date, ts timestamptz, iv interval, b bytea, r tstzrange, e shop.mood, p shop.part,
			pp shop.part[], m shop.moods, s shop.span, money money, class regclass, "odd ""%s"" 'name" text, r1 text[], x xml, u uuid, bits bit(3));
		select agent.publish_changes('shop.v')`)
	insert := `insert into shop.v values (1, 'NaN', 0.1::float8 + 0.2, 'infinity', '2026-03-01 12:00+02', '1 day 02:00', '\x00ff', '[2026-03-01 00:00+02,)', 'sad',
		row('x', '{sad,happy}', '{"k": "\u0000"}'), array[row('y', null, '{"k": 1}')::shop.part], '{{sad},{happy}}', '[1,2)', '12.5', 'shop.v', 'z', '{a,null}',
		'<a/>', '00000000-0000-0000-0000-000000000001', '101')`
	want := `shop.v.insert 1 {"new": {"b": "\\x00ff", "d": "infinity", "e": "sad", ` +
		`"f": 0.30000000000000004, "m": "{{sad},{happy}}", "n": "NaN", "p": {"a": "x", "doc": "{\"k\": \"\\u0000\"}", "moods": ["sad", "happy"]}, ` +
		`"r": "[\"2026-02-28 22:00:00+00\",)", "s": "[1,2)", "u": "00000000-0000-0000-0000-000000000001", "x": "<a/>", "id": 1, "iv": "P1DT2H", ` +
		`"pp": [{"a": "y", "doc": {"k": 1}, "moods": null}], "r1": ["a", null], "ts": "2026-03-01T10:00:00+00:00", "bits": "101", "class": "shop.v", ` +
		`"money": "$12.50", "odd \"%s\" 'name": "z"}}`
	for _, settings := range []string{
		``,
		`set search_path = shop, pg_catalog; set datestyle = 'German'; set intervalstyle = sql_standard; set extra_float_digits = -3; set bytea_output = escape;
			set timezone = 'Asia/Tokyo'; set quote_all_identifiers = on; set standard_conforming_strings = on; set row_security = off;
			set transform_null_equals = on; set plan_cache_mode = force_custom_plan; set jit = off`,
	} {
		env.exec(t, settings)
		env.exec(t, `delete from shop.v`)
		env.changes(t)
		env.exec(t, insert)
		env.wantChanges(t, want)
	}
}

func TestValuesThatCannotBePublishedAreOmitted(t *testing.T) {
	t.Parallel()
	env := setupIdle(t)
	env.exec(t, `
		create schema shop;
		create table shop.docs (id text primary key, doc json, docs json[], body text, bytes bytea, jb jsonb);
		select agent.publish_changes('shop.docs', 'd', _operations => '{insert,update,delete}')`)
	env.exec(t, `insert into shop.docs values ('1', '{"a": "\u0000"}', array['{"a": 1e999999}'::json], repeat('é', 131073), repeat('x', 131073)::bytea,
		to_jsonb(repeat('x', 300000)))`)
	env.wantChanges(t, `d.insert 1 {"new": {"id": "1"}, "omitted": ["body", "bytes", "doc", "docs", "jb"]}`)
	// The names of changed columns are told though their values are not.
	env.exec(t, `update shop.docs set doc = '{"a": "\u0000\u0000"}'`)
	env.exec(t, `update shop.docs set body = body || 'x', jb = to_jsonb(repeat('y', 300000))`)
	env.exec(t, `update shop.docs set doc = '{}', docs = null, bytes = null, jb = null, body = body`)
	env.exec(t, `update shop.docs set body = ''`)
	env.wantChanges(t, `d.update 1 {"new": {"id": "1"}, "old": {}, "changed": ["doc"], "omitted": ["body", "bytes", "doc", "docs", "jb"]}`,
		`d.update 1 {"new": {"id": "1"}, "old": {}, "changed": ["body", "jb"], "omitted": ["body", "bytes", "doc", "docs", "jb"]}`,
		`d.update 1 {"new": {"id": "1", "jb": null, "doc": {}, "docs": null, "bytes": null}, "old": {}, "changed": ["doc", "docs", "bytes", "jb"], `+
			`"omitted": ["body", "bytes", "doc", "docs", "jb"]}`,
		`d.update 1 {"new": {"id": "1", "jb": null, "doc": {}, "body": "", "docs": null, "bytes": null}, "old": {}, "changed": ["body"], "omitted": ["body"]}`)
	// Keys that a publication cannot have.
	env.exec(t, `update shop.docs set id = ''; update shop.docs set id = repeat('k', 256)`)
	env.wantChanges(t, `d.update - {"new": {"id": "", "jb": null, "doc": {}, "body": "", "docs": null, "bytes": null}, "old": {"id": "1"}, "changed": ["id"], "omitted": ["key"]}`,
		`d.update - {"new": {"id": "`+strings.Repeat("k", 256)+`", "jb": null, "doc": {}, "body": "", "docs": null, "bytes": null}, "old": {"id": ""}, "changed": ["id"], "omitted": ["key"]}`)

	// Row by row.
	env.exec(t, `
		create table shop.texts (id int8 primary key, body text);
		create function shop.nothing() returns trigger language plpgsql as 'begin return null; end';
		create trigger nothing after insert on shop.texts for each row execute function shop.nothing();
		select agent.publish_changes('shop.texts', 't');
		insert into shop.texts values (1, 'a'), (2, repeat('x', 262145)), (3, 'c');
		update shop.texts set body = 'b' where id < 3`)
	env.wantChanges(t, `t.insert 1 {"new": {"id": 1, "body": "a"}}`, `t.insert 2 {"new": {"id": 2}, "omitted": ["body"]}`,
		`t.insert 3 {"new": {"id": 3, "body": "c"}}`, `t.update 1 {"new": {"id": 1, "body": "b"}, "old": {"body": "a"}, "changed": ["body"]}`,
		`t.update 2 {"new": {"id": 2, "body": "b"}, "old": {}, "changed": ["body"], "omitted": ["body"]}`)

	// The event as a whole.
	env.exec(t, `select agent.stop_publishing_changes('shop.docs')`)
	columns := make([]string, 8)
	for i := range columns {
		columns[i] = fmt.Sprintf("c%d text default repeat('x', %d)", i, 200_000+i)
	}
	env.exec(t, `create table shop.wide (id int8 primary key, `+strings.Join(columns, ", ")+`); select agent.publish_changes('shop.wide'); insert into shop.wide values (1)`)
	if got := value[string](t, env, `select event ->> 'omitted' from agent.log`); got != `["c7", "c6", "c5"]` {
		t.Errorf("of an event of 1.6 MB %s are omitted, want the three largest", got)
	}
	env.exec(t, `delete from agent.log; update shop.wide set c0 = c0 || 'y'`)
	if got := value[int](t, env, `select octet_length(event::text) from agent.log`); got > 1<<20 {
		t.Errorf("an update has %d bytes", got)
	}
}

func TestChangesOfThePublishedTableItself(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users', _operations => '{insert}')`)
	env.exec(t, `insert into shop.users values (1)`)
	env.exec(t, `alter table shop.users add nick text default 'n', drop email`)
	env.exec(t, `insert into shop.users values (2)`)
	env.exec(t, `alter table shop.users alter nick drop default, alter nick type int4 using 0, drop constraint users_pkey`)
	env.exec(t, `alter table shop.users rename name to full_name`)
	env.exec(t, `alter table shop.users rename to people`)
	env.exec(t, `alter schema shop rename to store`)
	env.exec(t, `insert into store.people values (3)`)
	env.wantChanges(t, `shop.users.insert 1 {"new": {"id": 1, "name": null, "email": null}}`, `shop.users.insert 2 {"new": {"id": 2, "name": null, "nick": "n"}}`,
		`shop.users.insert - {"new": {"id": 3, "nick": null, "full_name": null}}`)

	env.exec(t, `alter table store.people add email text; select agent.publish_changes('store.people', _columns => '{email,nick}', _key => '{id}')`)
	env.exec(t, `alter table store.people drop nick; alter table store.people rename id to number`)
	env.exec(t, `insert into store.people values (4)`)
	env.exec(t, `update store.people set full_name = 'x'; update store.people set email = 'y' where number = 4`)
	env.wantChanges(t, `store.people.insert - {"new": {"email": null}, "omitted": ["id", "nick"]}`,
		`store.people.update - {"new": {"email": "y"}, "old": {"email": null}, "changed": ["email"], "omitted": ["id", "nick"]}`)

	env.exec(t, `drop table store.people`)
	env.exec(t, `create table store.none (); select agent.publish_changes('store.none'); insert into store.none default values`)
	env.wantChanges(t, `store.none.insert - {"new": {}}`)
	env.exec(t, `drop schema agent, agent_service, agent_private cascade`)
	env.exec(t, `insert into store.none default values`)
	if n := value[int](t, env, `select count(*) from pg_trigger where tgname like '00_publish%'`); n != 0 {
		t.Errorf("without the schema agent %d triggers are left", n)
	}
}

func TestOnlyOwnersPublishTheChangesOfTheirTables(t *testing.T) {
	t.Parallel()
	env, admin := withUsers(t)
	owner, writer := roleName(env, "owner"), roleName(env, "writer")
	for _, statement := range []string{
		`create role "` + owner + `" login`, `create role "` + writer + `" login`,
		`create schema app authorization "` + owner + `"`, `grant usage on schema app to "` + writer + `"`, `grant usage on schema shop to "` + owner + `"`,
		`create table app.t (id int8 primary key)`, `alter table app.t owner to "` + owner + `"`, `grant insert, update, select on app.t to "` + writer + `"`,
	} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		admin, err := pgx.Connect(ctx, admin.Config().ConnString())
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = admin.Close(ctx) }()
		for _, role := range []string{owner, writer} {
			if _, err := admin.Exec(ctx, `drop owned by "`+role+`" cascade; drop role "`+role+`"`); err != nil {
				t.Error(err)
			}
		}
	})
	as := func(role string) *pgx.Conn {
		conn := pgtest.Connect(t, admin.Config().ConnString())
		if _, err := conn.Exec(t.Context(), `set session authorization "`+role+`"`); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	wantDenied := func(conn *pgx.Conn, sql, message string) {
		t.Helper()
		_, err := conn.Exec(t.Context(), sql)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "42501" || !strings.Contains(pgErr.Message, message) {
			t.Errorf("%s: %v, want 42501 about %q", sql, err, message)
		}
	}
	asOwner, asWriter := as(owner), as(writer)
	wantDenied(asOwner, `select agent.publish_changes('app.t')`, "schema agent")
	env.exec(t, `grant usage on schema agent to "`+owner+`", "`+writer+`"`)
	wantDenied(asOwner, `select agent.publish_changes('app.t')`, "function publish_changes")
	env.exec(t, `grant execute on function agent.publish_changes, agent.stop_publishing_changes, agent.publish_change to "`+owner+`", "`+writer+`"`)
	if _, err := asOwner.Exec(t.Context(), `select agent.publish_changes('app.t')`); err != nil {
		t.Fatal(err)
	}
	wantDenied(asWriter, `select agent.publish_changes('app.t')`, "only the owner of the table app.t")
	wantDenied(asWriter, `select agent.stop_publishing_changes('app.t')`, "only the owner of the table app.t")
	wantDenied(asOwner, `select agent.publish_changes('shop.users')`, "only the owner of the table shop.users")
	wantDenied(asWriter, `insert into agent.outgoing (publications) values ('{}')`, "outgoing")

	// Who writes needs no right on the schema agent, and who has published it none any longer.
	env.exec(t, `revoke execute on function agent.publish_changes, agent.stop_publishing_changes, agent.publish_change from "`+owner+`", "`+writer+`"`)
	env.exec(t, `revoke usage on schema agent from "`+owner+`", "`+writer+`"`)
	for i, conn := range []*pgx.Conn{asWriter, asOwner, admin} {
		if _, err := conn.Exec(t.Context(), `insert into app.t values ($1)`, i); err != nil {
			t.Errorf("writing to a published table: %v", err)
		}
	}
	env.wantChanges(t, `app.t.insert 0 {"new": {"id": 0}}`, `app.t.insert 1 {"new": {"id": 1}}`, `app.t.insert 2 {"new": {"id": 2}}`)
	if _, err := admin.Exec(t.Context(), `select agent.stop_publishing_changes('app.t')`); err != nil {
		t.Errorf("as administrator: %v", err)
	}
}

func TestCastsOfUsersAreNotCalledWithTheRightsOfTheOwner(t *testing.T) {
	t.Parallel()
	env, admin := withUsers(t)
	role := roleName(env, "mallory")
	for _, statement := range []string{
		`create role "` + role + `" login`, `create schema evil authorization "` + role + `"`, `grant usage on schema agent to "` + role + `"`,
		`grant execute on function agent.publish_changes, agent.stop_publishing_changes, agent.publish_change to "` + role + `"`,
		`set session authorization "` + role + `"`,
		`create type evil.pair as (a int4); create type evil.mood as enum ('m'); create domain evil.dom as evil.pair; create type evil.span as range (subtype = int4)`,
		`create function evil.show() returns json language sql as 'select to_json(current_user)'`,
		`create function evil.pair(evil.pair) returns json language sql as 'select evil.show()'; create cast (evil.pair as json) with function evil.pair(evil.pair)`,
		`create function evil.mood(evil.mood) returns json language sql as 'select evil.show()'; create cast (evil.mood as json) with function evil.mood(evil.mood)`,
		`create function evil.span(evil.span) returns json language sql as 'select evil.show()'; create cast (evil.span as json) with function evil.span(evil.span)`,
		`create function evil.moodtext(evil.mood) returns text language sql as 'select current_user::text'; create cast (evil.mood as text) with function evil.moodtext(evil.mood)`,
		`create table evil.t (id evil.mood primary key, p evil.pair, m evil.mood, d evil.dom, s evil.span, pp evil.pair[], mm evil.mood[], ss evil.span[], dd evil.dom[])`,
		`select agent.publish_changes('evil.t')`,
		`insert into evil.t values ('m', row(1), 'm', row(2), '[1,2)', array[row(3)::evil.pair], '{m}', '{"[3,4)"}', array[row(5)::evil.dom])`,
		`reset session authorization`,
	} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), `drop owned by "`+role+`" cascade; drop role "`+role+`"`); err != nil {
			t.Error(err)
		}
	})
	env.wantChanges(t, `evil.t.insert m {"new": {"d": {"a": 2}, "m": "m", "p": {"a": 1}, "s": "[1,2)", "dd": [{"a": 5}], "id": "m", "mm": ["m"], "pp": [{"a": 3}], "ss": ["[3,4)"]}}`)
}

func TestWhatCannotBePublishedIsRefused(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `
		create view shop.v as select 1; create sequence shop.s; create temporary table temporary (id int8); create table shop."odd name" (id int8);
		create table shop.parted (id int8) partition by list (id); create table shop.part partition of shop.parted for values in (1)`)
	for call, want := range map[string]string{
		`null`:                                      `table: must be a table`,
		`'shop.v'`:                                  `table: must be a table`,
		`'shop.s'`:                                  `table: must be a table`,
		`'pg_temp.temporary'`:                       `table: must not be temporary`,
		`'agent.log_topic'`:                         `table: must not be one of the schema agent`,
		`'shop.part'`:                               `table: shop.part is a partition; name the table that it belongs to, which is shop.parted`,
		`'shop."odd name"'`:                         `topic: shop.odd name.<operation> is no topic`,
		`'shop.users', 'queued.users'`:              `topic: queued.users.<operation> is no topic`,
		`'shop.users', 'a.b.c.d.e.f.g.h'`:           `topic: a.b.c.d.e.f.g.h.<operation> is no topic`,
		`'shop.users', repeat('a', 247)`:            `topic: a`,
		`'shop.users', ''`:                          `topic: .<operation> is no topic`,
		`'shop.users', _operations => '{}'`:         `operations: must be some of`,
		`'shop.users', _operations => '{insert,x}'`: `operations: must be some of`,
		`'shop.users', _operations => '{null}'`:     `operations: must be some of`,
		`'shop.users', _columns => '{}'`:            `columns: must be some columns`,
		`'shop.users', _columns => '{id,x}'`:        `columns: the table has no column x`,
		`'shop.users', _columns => '{null}'`:        `columns: the table has no column null`,
		`'shop.users', _key => '{ctid}'`:            `key: the table has no column ctid`,
		`'shop.users', _old => 'some'`:              `old: must be`,
		`'shop.users', _old => null`:                `old: must be`,
	} {
		_, err := env.sql.Exec(t.Context(), `select agent.publish_changes(`+call+`)`)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "QD003" || !strings.HasPrefix(pgErr.Message, want) ||
			!strings.HasPrefix(want, pgErr.ColumnName+": ") {
			t.Errorf("publish_changes(%s): %v, want QD003: %s", call, err, want)
		}
	}
	env.exec(t, `select agent.publish_changes('shop."odd name"', 'shop.odd_name', array['insert', 'insert'])`)
	env.exec(t, `insert into shop."odd name" values (1)`)
	if got := value[string](t, env, `select event ->> 'table' from agent.log`); got != `shop."odd name"` {
		t.Errorf("the table is %s", got)
	}
}

func TestChangesArePublishedWithTheirTransaction(t *testing.T) {
	t.Parallel()
	env, admin := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users', 'u', '{insert}', '{id}')`)
	env.exec(t, `begin; insert into shop.users values (1); rollback`)
	env.exec(t, `begin; insert into shop.users values (2); savepoint s; insert into shop.users values (3); rollback to s; insert into shop.users values (4); commit`)
	env.wantChanges(t, `u.insert 2 {"new": {"id": 2}}`, `u.insert 4 {"new": {"id": 4}}`)
	env.exec(t, `begin`)
	env.exec(t, `insert into shop.users values (5)`)
	env.exec(t, `prepare transaction 'changes of `+env.sql.Config().Database+`'`)
	env.wantChanges(t)
	env.exec(t, `commit prepared 'changes of `+env.sql.Config().Database+`'`)
	env.wantChanges(t, `u.insert 5 {"new": {"id": 5}}`)
	for _, level := range []string{"repeatable read", "serializable"} {
		env.exec(t, `begin isolation level `+level+`; delete from shop.users; insert into shop.users values (6); commit`)
		env.wantChanges(t, `u.insert 6 {"new": {"id": 6}}`)
	}
	// A replicated row was published where it was written.
	if _, err := admin.Exec(t.Context(), `set session_replication_role = replica; insert into shop.users values (7)`); err != nil {
		t.Fatal(err)
	}
	env.wantChanges(t)
}

func TestPublishingChangesLeavesNothingInItsTransaction(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users')`)
	env.exec(t, `begin`)
	for i := range 10 {
		env.exec(t, `insert into shop.users values ($1)`, i)
	}
	// A transaction with more than 64 ids of subtransactions slows down all others.
	if n := value[int](t, env, `select count(*) from pg_locks where locktype = 'transactionid' and pid = pg_backend_pid()`); n != 1 {
		t.Errorf("a transaction of ten statements has %d ids", n)
	}
	env.exec(t, `update shop.users set name = 'x'`)
	if n := value[int](t, env, `select count(*) from pg_cursors where statement not like '%pg_cursors%'`); n != 0 {
		t.Errorf("%d cursors are open", n)
	}
	env.exec(t, `commit`)
}

func TestTimeoutsAndCancelsEndStatementsThatPublish(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users', 'u')`)
	blocker, err := pgtest.Connect(t, env.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := blocker.Exec(t.Context(), `lock table agent.outgoing`); err != nil {
		t.Fatal(err)
	}
	for setting, code := range map[string]string{"lock_timeout": "55P03", "statement_timeout": "57014"} {
		_, err := pgtest.Connect(t, env.url).Exec(t.Context(), `set `+setting+` = 50; insert into shop.users values (1)`)
		if sqlState(err) != code {
			t.Errorf("%s: %v, want %s", setting, err, code)
		}
	}
	if err := blocker.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	// While values are read.
	env.exec(t, `insert into shop.users select i, repeat('x', 1000) from generate_series(1, 20000) i`)
	env.changes(t)
	if _, err := pgtest.Connect(t, env.url).Exec(t.Context(), `set statement_timeout = 300; update shop.users set email = name`); sqlState(err) != "57014" {
		t.Errorf("a long update ended with %v, want 57014", err)
	}
	env.wantChanges(t)
}

func TestPublishingBeginsAndEndsBesideWriters(t *testing.T) {
	t.Parallel()
	env, _ := withUsers(t)
	var writers, others sync.WaitGroup
	var isDone atomic.Bool
	for w := range 3 {
		conn := pgtest.Connect(t, env.url)
		writers.Go(func() {
			for i := range 150 {
				if _, err := conn.Exec(t.Context(), `insert into shop.users values ($1, 'x')`, w*1000+i); err != nil {
					t.Errorf("a writer got %v", err)
					return
				}
			}
		})
	}
	for range 2 {
		conn := pgtest.Connect(t, env.url)
		others.Go(func() {
			for !isDone.Load() {
				for _, call := range []string{`publish_changes('shop.users', 'a')`, `publish_changes('shop.users', 'b', '{insert}')`, `stop_publishing_changes('shop.users')`} {
					if _, err := conn.Exec(t.Context(), `select agent.`+call); err != nil {
						t.Errorf("%s: %v", call, err)
						return
					}
				}
			}
		})
	}
	writers.Wait()
	isDone.Store(true)
	others.Wait()
	if n := value[int](t, env, `select count(*) - count(distinct key) from agent.log`); n != 0 {
		t.Errorf("%d rows were published twice", n)
	}
	env.exec(t, `select agent.publish_changes('shop.users', 'c'); delete from agent.log; insert into shop.users values (-1)`)
	env.wantChanges(t, `c.insert -1 {"new": {"id": -1, "name": null, "email": null}}`)
}
