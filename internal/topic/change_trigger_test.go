package topic_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// asMallory returns a session of a role that may publish the changes of its tables, and make temporary tables: it has the schema evil, with the function
// probe, which raises an exception with the name of the role that runs it, and views of pg_temp by the names of transition tables that call it.
func asMallory(t *testing.T, env environment, admin *pgx.Conn) *pgx.Conn {
	t.Helper()
	role := roleName(env, "mallory")
	execAll(t, admin, `create role "`+role+`" login`, `create schema evil authorization "`+role+`"`, `grant usage on schema agent to "`+role+`"`,
		`grant execute on function agent.publish_changes, agent.stop_publishing_changes, agent.publish_change to "`+role+`"`)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		conn, err := pgx.Connect(ctx, admin.Config().ConnString())
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close(ctx) }()
		if _, err := conn.Exec(ctx, `drop owned by "`+role+`" cascade; drop role "`+role+`"`); err != nil {
			t.Error(err)
		}
	})
	mallory := pgtest.Connect(t, admin.Config().ConnString())
	execAll(t, mallory, `set session authorization "`+role+`"`,
		`create function evil.probe() returns int4 language plpgsql as $$ begin raise exception 'ran as %', current_user using errcode = 'ZZ001'; end $$`,
		`create view pg_temp.new_rows as select evil.probe() as a`, `create view pg_temp.old_rows as select evil.probe() as a`,
		`grant select on pg_temp.new_rows, pg_temp.old_rows to public`,
		`create table evil.t (a int4)`, `insert into evil.t values (0)`)
	return mallory
}

func execAll(t *testing.T, conn *pgx.Conn, statements ...string) {
	t.Helper()
	for _, statement := range statements {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

func TestTriggersThatPublishChangesHasNotMadeAreRefused(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	env, admin := withUsers(t)
	mallory := asMallory(t, env, admin)
	for name, c := range map[string]struct{ setup, statement string }{
		"insert without transition table": {
			`create trigger x after insert on evil.t for each statement execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"update without transition tables": {
			`create trigger x after update on evil.t for each statement execute function agent.publish_change('a.update', 'evil.t', '', 'changed', '')`,
			`update evil.t set a = 1`,
		},
		"update with one of two": {
			`create trigger x after update on evil.t referencing old table as old_rows for each statement execute function agent.publish_change('a.update', 'evil.t', '', 'changed', '')`,
			`update evil.t set a = 1`,
		},
		"delete without transition table": {
			`create trigger x after delete on evil.t for each statement execute function agent.publish_change('a.delete', 'evil.t', '', 'changed', '')`,
			`delete from evil.t`,
		},
		"transition table of another name": {
			`create trigger x after insert on evil.t referencing new table as others for each statement execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"several operations": {
			`create trigger x after insert or delete on evil.t for each statement execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"before the statement": {
			`create trigger x before insert on evil.t for each statement execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"before the row": {
			`create trigger x before insert on evil.t for each row execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"instead of the row": {
			`create view evil.v as select 1 as a; create trigger x instead of insert on evil.v for each row execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.v values (1)`,
		},
		"constraint trigger": {
			`create constraint trigger x after insert on evil.t for each row execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"with a condition": {
			`create trigger x after insert on evil.t for each row when (new.a > 0) execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"temporary table": {
			`create temporary table x (a int4); create trigger x after insert on x referencing new table as new_rows for each statement execute function agent.publish_change('a.insert', 'evil.t', '', 'changed', '')`,
			`insert into x values (1)`,
		},
		"topic of another operation": {
			`create trigger x after insert on evil.t referencing new table as new_rows for each statement execute function agent.publish_change('a.delete', 'evil.t', '', 'changed', '')`,
			`insert into evil.t values (1)`,
		},
		"no arguments": {
			`create trigger x after insert on evil.t referencing new table as new_rows for each statement execute function agent.publish_change()`,
			`insert into evil.t values (1)`,
		},
		"truncate with no arguments": {`create trigger x after truncate on evil.t for each statement execute function agent.publish_change()`, `truncate evil.t`},
	} {
		execAll(t, mallory, `begin`, c.setup)
		_, err := mallory.Exec(t.Context(), c.statement)
		if sqlState(err) != "42501" {
			t.Errorf("%s: %v, want insufficient_privilege (42501)", name, err)
		}
		execAll(t, mallory, `rollback`)
	}
	env.wantChanges(t)
}

// The trigger that the catalog shows need not be the one that fires.
func TestReplacedTriggersReadNothingOfTheirWriter(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	env, admin := withUsers(t)
	mallory := asMallory(t, env, admin)
	const (
		bare = `create or replace trigger "00_publish_insert" after insert on evil.t
			for each statement execute function agent.publish_change('evil.t.insert', 'evil.t', '', 'changed', '')`
		genuine = `create or replace trigger "00_publish_insert" after insert on evil.t referencing new table as new_rows
			for each statement execute function agent.publish_change('evil.t.insert', 'evil.t', '', 'changed', '')`
	)
	wantNothingRead := func(what string, conn *pgx.Conn) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), `insert into evil.t values (1)`); sqlState(err) == "ZZ001" {
			t.Errorf("%s: a view of the writer was read: %v", what, err)
		}
	}

	execAll(t, mallory, bare,
		`create function evil.replace() returns trigger language plpgsql as $f$ begin execute $$`+genuine+`$$; return null; end $f$`,
		`create trigger "000_replace" after insert on evil.t for each statement execute function evil.replace()`)
	wantNothingRead("replaced by the statement itself", mallory)

	execAll(t, mallory, `drop trigger "000_replace" on evil.t`, genuine, `begin isolation level repeatable read`, `select`)
	other := pgtest.Connect(t, admin.Config().ConnString())
	execAll(t, other, `set session authorization "`+roleName(env, "mallory")+`"`, bare)
	wantNothingRead("replaced since the snapshot", mallory)
	execAll(t, mallory, `rollback`)
}

func TestTemporaryTablesDoNotStandInTheWayOfChanges(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `select agent.publish_changes('shop.users')`)
	env.exec(t, `create temporary table new_rows as select 7 as id; create temporary table old_rows as select 8 as id`)
	env.exec(t, `insert into shop.users values (1, 'Ada', 'a@x')`)
	env.exec(t, `update shop.users set name = 'Eve'`)
	env.exec(t, `delete from shop.users`)
	env.wantChanges(t,
		`shop.users.insert 1 {"new": {"id": 1, "name": "Ada", "email": "a@x"}}`,
		`shop.users.update 1 {"new": {"id": 1, "name": "Eve", "email": "a@x"}, "old": {"name": "Ada"}, "changed": ["name"]}`,
		`shop.users.delete 1 {"old": {"id": 1, "name": "Eve", "email": "a@x"}}`)

	// Nothing tells them from the transition tables here, and the write does not fail.
	env.exec(t, `begin isolation level repeatable read`)
	env.exec(t, `insert into shop.users values (1, 'Ada', 'a@x')`)
	env.exec(t, `commit`)
	env.wantChanges(t, `shop.users.insert - {"omitted": ["*"]}`)
}

func TestTriggerMadeSinceTheSnapshotPublishes(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	env, _ := withUsers(t)
	env.exec(t, `begin isolation level repeatable read`)
	env.exec(t, `select`)
	execAll(t, pgtest.Connect(t, env.url), `select agent.publish_changes('shop.users')`)
	env.exec(t, `insert into shop.users values (1, 'Ada', 'a@x')`)
	env.exec(t, `commit`)
	env.wantChanges(t, `shop.users.insert 1 {"new": {"id": 1, "name": "Ada", "email": "a@x"}}`)
}

func TestSchemaThatIsNotOfTheExtensionIsNotRead(t *testing.T) {
	t.Parallel()
	env, admin := withUsers(t)
	if pgtest.Flavour() == pgtest.Timescale {
		t.Skip("the extension is there, and so is its schema")
	}
	execAll(t, admin, `create schema timescaledb_information`, `grant usage on schema timescaledb_information to public`,
		`create function timescaledb_information.probe() returns text language plpgsql as $$ begin raise exception 'ran as %', current_user; end $$`,
		`create view timescaledb_information.hypertables as select timescaledb_information.probe() as hypertable_schema, null::text as hypertable_name`,
		`grant select on timescaledb_information.hypertables to public`)
	env.exec(t, `select agent.publish_changes('shop.users')`)
}
