package migrate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const (
	// lockKey is the advisory lock of migrations. Everything that migrates a schema agent, in any
	// version, uses this key.
	lockKey = 31321898691465844

	// pollInterval is how soon a process that waits for the lock sees that the work is done.
	pollInterval = 200 * time.Millisecond

	// lockTimeout bounds how long a script waits for a table. All later users of the table queue up
	// behind that wait, so it is shorter than the patience of clients, and longer than any
	// statement of the service takes.
	lockTimeout = "10s"
)

// executeScript runs the script in the setting queued.script. EXECUTE refuses to begin, commit or
// roll back, so that a stray commit is an error before it can break the migration's one transaction
// in two. The text of the script is not part of the statement: the server would take positions for places in this one.
const executeScript = "do $$begin execute current_setting('queued.script'); end$$"

// lockTables locks the tables of the schema, all at once and before the first script. A script that has locked one and waits for the next could
// otherwise meet a transaction of the service that holds that one and waits for the first: a deadlock, of which one of the two dies. What cannot be
// had within a moment makes all be given back, so that this transaction is never in the way of one that it waits for. agent.event comes first, as most
// transactions begin there. The tables that the runner itself writes are left to those who look at the version meanwhile.
const lockTables = `
do $$
declare
  _tables text;
  _until timestamptz = pg_catalog.clock_timestamp() + interval '` + lockTimeout + `';
begin
  select pg_catalog.string_agg(pg_catalog.format('only %I.%I', 'agent', c.relname), ', ' order by c.relname <> 'event', c.relname)
  into _tables
  from pg_catalog.pg_class c
  where c.relnamespace = 'agent'::pg_catalog.regnamespace and c.relkind in ('r', 'p') and not c.relispartition
  and c.relname not in ('version', 'migration');
  loop
    exit when _tables is null;
    begin
      set local lock_timeout to '100ms';
      execute 'lock table ' || _tables;
      exit;
    exception when lock_not_available or deadlock_detected then -- the locks are let go by now
      if pg_catalog.clock_timestamp() > _until then
        raise;
      end if;
      perform pg_catalog.pg_sleep(0.05 + 0.1 * pg_catalog.random());
    end;
  end loop;
  set local lock_timeout to '` + lockTimeout + `';
end$$`

//go:embed bootstrap.sql
var bootstrap string

var errLockHeld = errors.New("the migration lock is held by another session")

// migrateLocked gets the lock and migrates, or goes on without once another session has. Each try is
// a transaction of its own: none sits idle between two of them, in the way of the other session's
// locks. It is given, and in the end returns, how the database was found last.
func (m *migrator) migrateLocked(ctx context.Context, status Status) (Status, error) {
	started := time.Now()
	for try := 1; ; try++ {
		migrated, err := m.migrate(ctx)
		if !errors.Is(err, errLockHeld) {
			return migrated, err
		}
		if try >= m.lockTries {
			return status, fmt.Errorf("%w: tried %d times in %v; %s", ErrLocked, try, time.Since(started).Round(time.Millisecond), m.holder(ctx))
		}
		m.log.Info().Int("try", try).Int("tries", m.lockTries).Msg("another session is migrating the schema, waiting for it")
		status, err = m.wait(ctx)
		if err != nil || !status.Due() {
			return status, err
		}
	}
}

// wait returns after the delay between two tries, or as soon as no migration is due any more.
func (m *migrator) wait(ctx context.Context) (Status, error) {
	next := time.NewTimer(m.lockDelay)
	defer next.Stop()
	poll := time.NewTicker(min(pollInterval, m.lockDelay))
	defer poll.Stop()
	for {
		var last bool
		select {
		case <-ctx.Done():
			return Status{Program: m.program}, ctx.Err()
		case <-next.C:
			last = true
		case <-poll.C:
		}
		status, _, err := m.gate(ctx)
		if err != nil || !status.Due() || last {
			return status, err
		}
	}
}

// holder says who holds the lock, as far as this session can see.
func (m *migrator) holder(ctx context.Context) string {
	var pid int
	var application string
	err := m.conn.QueryRow(ctx, `
		select l.pid, coalesce(nullif(a.application_name, ''), 'no application_name')
		from pg_catalog.pg_locks l
		left join pg_catalog.pg_stat_activity a on a.pid = l.pid
		where l.locktype = 'advisory' and l.granted and l.objsubid = 1
		and l.database = (select d.oid from pg_catalog.pg_database d where d.datname = pg_catalog.current_database())
		and (l.classid::int8 << 32 | l.objid::int8) = $1::int8
	`, int64(lockKey)).Scan(&pid, &application)
	if err != nil {
		return "it is not to be seen who holds it, it may just have been let go"
	}
	return fmt.Sprintf("backend %d holds it (%s), see pg_stat_activity", pid, application)
}

// migrate does the whole migration if the lock is free and a migration still due. It fails with
// errLockHeld if the lock is not free.
func (m *migrator) migrate(ctx context.Context) (Status, error) {
	status := Status{Program: m.program}
	started, committing := time.Now(), false
	err := pgx.BeginTxFunc(ctx, m.conn, beginWriting, func(tx pgx.Tx) error {
		var locked bool
		if err := tx.QueryRow(ctx, "select pg_try_advisory_xact_lock($1::int8)", int64(lockKey)).Scan(&locked); err != nil {
			return fmt.Errorf("lock: %w", err)
		}
		if !locked {
			return errLockHeld
		}
		found, err := inspect(ctx, tx)
		if err != nil {
			return err
		}
		if status, err = m.compare(found); err != nil || !status.Due() {
			return err
		}
		if err := found.mayMigrate(); err != nil {
			return err
		}
		if err := m.runScripts(ctx, tx, found); err != nil {
			return fmt.Errorf("the migration to %s failed, the database is as it was: %w", m.program, err)
		}
		committing = true
		return nil
	})
	if err != nil {
		if pgErr := new(pgconn.PgError); committing && errors.As(err, &pgErr) {
			err = fmt.Errorf("the migration to %s failed at its commit, the database is as it was: %w", m.program, err)
		} else if committing {
			err = fmt.Errorf("the migration to %s may or may not have been committed, look with queued migrate --status: %w", m.program, err)
		}
		return status, err
	}
	if status.Due() {
		m.log.Info().Str("from", status.Database).Str("to", status.Program).Int("scripts", len(status.Pending)).
			Dur("took", time.Since(started)).Msg("the schema is migrated")
	}
	return status, nil
}

// runScripts runs what is pending and sets the version. The transaction has the advisory lock.
func (m *migrator) runScripts(ctx context.Context, tx pgx.Tx, found state) error {
	// A migration takes the time it takes, whatever timeouts the role has; not all of these exist on all servers.
	if _, err := tx.Exec(ctx, `
		select set_config(name, '0', true) from pg_settings
		where name in ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout');
		set local lock_timeout to '`+lockTimeout+`';
	`); err != nil {
		return fmt.Errorf("set timeouts: %w", err)
	}
	if found.owner == "" {
		if _, err := tx.Exec(ctx, "create schema agent"); err != nil {
			return fmt.Errorf("create the schema agent: %w", err)
		}
	}
	if !found.migrated {
		if _, err := tx.Exec(ctx, bootstrap); err != nil {
			return fmt.Errorf("create agent.version and agent.migration: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, "lock table agent.migration in exclusive mode"); err != nil {
		return fmt.Errorf("lock agent.migration: %w", err)
	}
	done, err := readApplied(ctx, tx) // again: only now can nobody change it by hand
	if err != nil {
		return err
	}
	pending, err := m.scripts.pending(done)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, lockTables); err != nil {
		if pgErr := new(pgconn.PgError); errors.As(err, &pgErr) && hint(pgErr) != "" {
			err = fmt.Errorf("%w; hint: %s", err, hint(pgErr))
		}
		return fmt.Errorf("lock the tables of the schema agent: %w", err)
	}
	for _, s := range pending {
		if err := m.runScript(ctx, tx, s); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `
		insert into agent.version (version) values ($1)
		on conflict (singleton) do update set version = excluded.version, updated_at = excluded.updated_at
	`, m.program); err != nil {
		return fmt.Errorf("set agent.version: %w", err)
	}
	return nil
}

// runScript runs one script, and remembers it if it is incremental.
func (m *migrator) runScript(ctx context.Context, tx pgx.Tx, s script) error {
	if _, err := tx.Exec(ctx, emptySearchPath); err != nil { // the script before may have set another
		return fmt.Errorf("%s: %w", s.path(), err)
	}
	if _, err := tx.Exec(ctx, "select set_config('queued.script', $1, true)", s.body); err != nil {
		return fmt.Errorf("%s: %w", s.path(), err)
	}
	started := time.Now()
	if _, err := tx.Exec(ctx, executeScript); err != nil {
		return s.explain(err)
	}
	took := time.Since(started)
	if s.folder == incrementalFolder {
		if _, err := tx.Exec(ctx, "insert into agent.migration (name, version, checksum, took) values ($1, $2, $3, $4)",
			s.name, m.program, s.checksum[:], took); err != nil {
			return fmt.Errorf("%s: remember it: %w", s.path(), err)
		}
	}
	m.log.Info().Str("script", s.path()).Dur("took", took).Msg("migration script done")
	return nil
}
