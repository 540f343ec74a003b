//go:build unix

package faults

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/queued/queued/sql"
)

// The broken builds of this file.
var (
	functionRemoved = build{
		name:    "a migration that drops a function of the version before",
		setting: `drop function agent_service.claim_from_watermarks`,
	}
	migrationUnlocked = build{name: "a migration that does not wait for another one", edits: []edit{
		{"internal/migrate/run.go", "if !locked {", "if locked != locked {"},
	}}
)

// nextOf is a build as the version after it would be: with another version, and a script more.
func nextOf(t *testing.T, b build) build {
	t.Helper()
	scripts, err := fs.Glob(sql.FS, "incremental/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	b.edits = append(slices.Clone(b.edits),
		edit{"sql/VERSION", sql.Version(), "999.0.0"},
		edit{fmt.Sprintf("sql/incremental/%03d-next.sql", len(scripts)+1), "", `
			create table agent.next (n int8 primary key);
			alter table agent.owner add next int8 not null default 0;
			create index event_next on agent.event (id, queue) where attempts > 100;`})
	b.name += ", as the next version"
	return b
}

// upgrade starts a process of this version, migrates its database to the next one, and runs both versions side by side.
func upgrade(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	after := nextOf(t, b)
	for range rounds {
		one := newLedger() // of a database of its own
		server := Start(t, Config{})
		old := startQueued(t, unmodified, server.URL())
		d := startLoad(t, one, old)
		d.awaitInserts(50)
		next := startQueued(t, after, server.URL()) // migrates the database
		b.breakDatabase(t, server)
		both := startLoad(t, one, old, next)
		both.awaitInserts(200)
		d.stopInserting()
		d.inserting.Wait()
		both.finish(server.AdminURL())
		if code, took := old.terminate(); code != 0 {
			one.violated("the version before ended with exit code %d after %v", code, took)
		}
		next.kill()
		server.Kill()
		l.add(one)
	}
}

func TestTwoVersionsServeSideBySide(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	runScenario(t, upgrade, 0, 3)
}

func TestBrokenBuildWithRemovedFunctionIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, upgrade, functionRemoved, 1)
}

// catalog returns the result of a migration as text: the columns, functions, constraints, triggers and grants of the schema, and the applied migrations.
const catalog = `
	select string_agg(line, e'\n' order by line) from
	( select format('column %s.%s %s %s %s', a.attrelid::regclass, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)) as line
	  from pg_attribute a join pg_class c on c.oid = a.attrelid left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
	  where c.relnamespace = 'agent'::regnamespace and a.attnum > 0 and not a.attisdropped and c.relname !~ '_p\d+|_\d{6,}|_w\d+'
	  union all
	  select 'relation ' || c.relname || ' ' || c.relkind::text || coalesce(c.relacl::text, '') from pg_class c where c.relnamespace = 'agent'::regnamespace and c.relname !~ '\d{4,}'
	  union all
	  select pg_get_functiondef(p.oid) || coalesce(p.proacl::text, '') from pg_proc p where p.pronamespace in ('agent'::regnamespace, 'agent_service'::regnamespace, 'agent_private'::regnamespace)
	  union all
	  select 'constraint ' || c.conrelid::regclass || pg_get_constraintdef(c.oid) from pg_constraint c where c.connamespace = 'agent'::regnamespace and c.conname !~ '\d{4,}' and c.conrelid::regclass::text !~ '\d{4,}'
	  union all
	  select 'trigger ' || pg_get_triggerdef(g.oid) from pg_trigger g join pg_class c on c.oid = g.tgrelid where c.relnamespace = 'agent'::regnamespace and c.relname !~ '\d{4,}' and not g.tgisinternal
	  union all
	  select 'version ' || version from agent.version
	  union all
	  select 'migration ' || name || ' ' || encode(checksum, 'hex') from agent.migration
	) as c`

// failStatement makes one statement of a migration fail: the one whose number is in public.failing_statement. All data definition statements
// count, including those that were rolled back.
const failStatement = `
	create table public.failing_statement (at int8);
	insert into public.failing_statement values (0);
	create sequence public.statements;
	create function public.count_statement() returns event_trigger language plpgsql security definer set search_path to pg_catalog, pg_temp as $$
	begin
		if pg_catalog.nextval('public.statements') = (select at from public.failing_statement) then
			raise exception 'failed on purpose';
		end if;
	end $$;
	create event trigger fail_statement on ddl_command_end execute function public.count_statement()`

// migrateAtOnce starts ten concurrent migrations of one database in which one statement fails: each in turn, or as many as there are rounds,
// evenly spread. One of the ten must fail, and the resulting schema must be the same as without a failure.
func migrateAtOnce(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{Settings: map[string]string{"max_locks_per_transaction": "256"}})
	bases := []string{""}
	if form() == longForm {
		server.Exec("", `create database previous owner `+ordinary)
		if err := migrateOne(t, unmodified.program(t), server, "previous"); err != nil {
			t.Fatal(err)
		}
		bases = append(bases, "previous")
	}
	for _, base := range bases {
		m := migrations{t: t, b: b, l: l, server: server, base: base}
		if base != "" {
			m.b = nextOf(t, b)
		}
		reference := m.database("reference", 0)
		if err := migrateOne(t, m.b.program(t), server, reference); err != nil {
			t.Fatal(err)
		}
		m.want = query[string](t, server.adminURL(reference), catalog)
		statements := int(query[int64](t, server.adminURL(reference), `select last_value from public.statements`))
		step := max(1, statements/rounds)
		// Several at a time, because after a failure the other migrations wait for seconds.
		var all errgroup.Group
		all.SetLimit(4)
		tried := 0
		for at := 1 + step/2; at <= statements; at += step {
			tried++
			all.Go(func() error {
				m.failAt(at)
				return nil
			})
		}
		_ = all.Wait()
		t.Logf("from %q: %d of %d statements failed, each in ten concurrent migrations", base, tried, statements)
	}
}

// migrations are migrations of databases that are copies of base.
type migrations struct {
	t      *testing.T
	b      build
	l      *ledger
	server *Server
	base   string
	want   string // the expected catalog
}

// database creates a database in which a statement fails.
func (m *migrations) database(name string, at int) string {
	name += "_" + m.base
	template := ""
	if m.base != "" {
		template = " template " + m.base
	}
	m.server.Exec("", `create database `+name+` owner `+ordinary+template)
	m.server.Exec(name, failStatement)
	m.server.Exec(name, fmt.Sprintf(`update public.failing_statement set at = %d`, at))
	return name
}

// failAt starts ten concurrent migrations in which a statement fails once.
func (m *migrations) failAt(at int) {
	name := m.database(fmt.Sprintf("d%d", at), at)
	const processes = 10
	var mu sync.Mutex
	failed := []string{}
	var all sync.WaitGroup
	for range processes {
		all.Go(func() {
			if err := migrateOne(m.t, m.b.program(m.t), m.server, name); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err.Error())
			}
		})
	}
	all.Wait()
	if len(failed) != 1 || !strings.Contains(failed[0], "failed on purpose") {
		m.l.violated("statement %d failed once, but %d of %d migrations failed: %.600q", at, len(failed), processes, failed)
	}
	if got := query[string](m.t, m.server.adminURL(name), catalog); got != m.want {
		m.l.violated("after the failure of statement %d, the schema differs: %s", at, difference(got, m.want))
	}
	m.server.Exec("", `drop database `+name+` with (force)`)
}

// migrateOne runs queued migrate on a database.
func migrateOne(t *testing.T, program string, server *Server, database string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "migrate")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nowhere", "QUEUED_DATABASE_URL=" + strings.Replace(server.URL(), "/"+ordinary+"?", "/"+database+"?", 1)}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// difference returns the first lines that only one of two texts has.
func difference(got, want string) string {
	had := map[string]bool{}
	for line := range strings.Lines(want) {
		had[line] = true
	}
	var extra []string
	for line := range strings.Lines(got) {
		if !had[line] {
			extra = append(extra, line)
		}
		delete(had, line)
	}
	missing := make([]string, 0, len(had))
	for line := range had {
		missing = append(missing, line)
	}
	return fmt.Sprintf("it has %.300q and lacks %.300q", extra, missing)
}

func TestConcurrentMigrationsSucceedWhenAnyStatementFails(t *testing.T) {
	t.Parallel()
	runScenario(t, migrateAtOnce, 2, 1000)
}

func TestBrokenBuildWithoutMigrationLockIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, migrateAtOnce, migrationUnlocked, 5)
}
