package migrate_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
)

// catalogQuery lists everything a migration can make, one line each, and the rows of the runner's
// tables if they are there. Nothing of it depends on object ids or on when it was made.
const catalogQuery = `
with n as
( select oid, nspname, nspowner, nspacl from pg_namespace
  where nspname !~ '^pg_|^information_schema$|timescaledb'
)
select line from
( select format('schema %I %s %s', nspname, pg_get_userbyid(nspowner), case when nspacl is not null then array(select a::text from unnest(nspacl) a order by 1) end) as line
  from n
  union all
  select format('relation %s %s %s %s %s %s %s %s %s', c.relkind, c.oid::regclass, c.relpersistence, pg_get_userbyid(c.relowner)
  , case when c.relacl is not null then array(select a::text from unnest(c.relacl) a order by 1) end
  , c.reloptions, pg_get_expr(c.relpartbound, c.oid), pg_get_partkeydef(c.oid), case when c.relkind in ('v', 'm') then pg_get_viewdef(c.oid) end)
  from pg_class c join n on n.oid = c.relnamespace
  union all
  select format('column %s.%I %s %s notnull=%s default=%s identity=%s generated=%s storage=%s compression=%s statistics=%s %s %s', c.oid::regclass, a.attname
  , a.attnum, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated
  , a.attstorage, a.attcompression, coalesce(a.attstattarget, -1)
  , array(select o from unnest(a.attoptions) o where o !~ '^pg_attver=') -- which some builds of PostgreSQL number each column by
  , a.attacl)
  from pg_class c join n on n.oid = c.relnamespace
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
  union all
  select format('constraint %s %I %s validated=%s', coalesce(nullif(o.conrelid, 0)::regclass::text, o.contypid::regtype::text), o.conname
  , pg_get_constraintdef(o.oid), o.convalidated)
  from pg_constraint o join n on n.oid = o.connamespace
  union all
  select format('index %s valid=%s', pg_get_indexdef(i.indexrelid), i.indisvalid)
  from pg_index i join pg_class c on c.oid = i.indexrelid join n on n.oid = c.relnamespace
  union all
  select format('function %s %s %s %s', p.oid::regprocedure, pg_get_userbyid(p.proowner)
  , case when p.proacl is not null then array(select a::text from unnest(p.proacl) a order by 1) end
  , case when p.prokind in ('f', 'p') then pg_get_functiondef(p.oid) end)
  from pg_proc p join n on n.oid = p.pronamespace
  where not exists (select from pg_depend e where e.classid = 'pg_proc'::regclass and e.objid = p.oid and e.deptype = 'e')
  union all
  select format('trigger %s %s %s', t.tgrelid::regclass, pg_get_triggerdef(t.oid), t.tgenabled)
  from pg_trigger t join pg_class c on c.oid = t.tgrelid join n on n.oid = c.relnamespace where not t.tgisinternal
  union all
  select format('sequence %s', s) from pg_sequences s join n on n.nspname = s.schemaname
  union all
  select format('type %s %s %s %s %s', t.oid::regtype, t.typtype, pg_get_userbyid(t.typowner), t.typacl
  , array(select e.enumlabel from pg_enum e where e.enumtypid = t.oid order by e.enumsortorder))
  from pg_type t join n on n.oid = t.typnamespace
  union all
  select format('policy %s', p) from pg_policies p join n on n.nspname = p.schemaname
  union all
  select format('comment %s %s: %s', i.type, i.identity, d.description)
  from pg_description d, pg_identify_object(d.classoid, d.objoid, d.objsubid) i
  where i.schema in (select nspname from n) or i.identity in (select quote_ident(nspname) from n)
  union all
  select format('extension %s %s', extname, extversion) from pg_extension
) as everything
order by line collate "C"`

// catalog returns what the database has, one line per object.
func catalog(t *testing.T, url string) []string {
	t.Helper()
	conn := connect(t, url)
	exec(t, conn, "set search_path to ''")
	lines := column(t, conn, catalogQuery)
	if query[bool](t, conn, "select exists (select from pg_tables where schemaname = 'agent' and tablename = 'migration')") {
		lines = append(lines, column(t, conn, "select 'version ' || v::text from agent.version v")...)
		lines = append(lines, column(t, conn, "select 'applied ' || m::text from agent.migration m order by name")...)
	}
	return lines
}

// connect returns a connection that ends with the test.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

func exec(t *testing.T, conn *pgx.Conn, statements string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statements); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// query returns the only value of the only row.
func query[T any](t *testing.T, conn *pgx.Conn, statement string, args ...any) T {
	t.Helper()
	rows, _ := conn.Query(t.Context(), statement, args...)
	value, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return value
}

func column(t *testing.T, conn *pgx.Conn, statement string) []string {
	t.Helper()
	rows, _ := conn.Query(t.Context(), statement)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return values
}
