package migrate

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
)

const (
	// lockKey is the advisory lock of migrations. It is the same in every version.
	lockKey = 31321898691465844

	// pollInterval is how often a process that waits for the lock checks whether the migration is done.
	pollInterval = 200 * time.Millisecond

	// lockTimeout bounds how long a script waits for a table. Later users of the table queue behind that wait, so it is shorter than the
	// request timeout of clients, and longer than any statement of the service takes.
	lockTimeout = "10s"

	// slowScript is how long a script takes that is worth a line of the log. A new database takes some fifty that are quicker.
	slowScript = time.Second
)

var (
	//go:embed bootstrap.sql
	bootstrap string
	//go:embed lock_tables.sql
	lockTables string
)

// setTimeouts removes the timeouts that the role or the database may have; some of them do not exist on every server.
const setTimeouts = `
	select set_config(name, '0', true) from pg_settings
	where name in ('statement_timeout', 'transaction_timeout', 'idle_in_transaction_session_timeout');
	set local lock_timeout to '` + lockTimeout + `';`

// executeScript runs the script in the setting queued.script. EXECUTE refuses transaction control, so a stray commit is an error before it can
// split the migration's transaction. The script is not part of the statement, so that error positions refer to the script.
const executeScript = "do $$begin execute current_setting('queued.script'); end$$"

var errLockHeld = errors.New("the migration lock is held by another session")

// migrateLocked gets the lock and migrates, or returns once another session has migrated. Each try is a transaction of its own, so that none is
// idle between two tries. It takes, and returns, how the database was found last.
func (m *migrator) migrateLocked(ctx context.Context, status Status) (Status, error) {
	started := time.Now()
	for try := 1; ; try++ {
		migrated, err := m.migrate(ctx)
		if !errors.Is(err, errLockHeld) {
			return migrated, err
		}
		if try >= m.cfg.LockTries {
			return status, fmt.Errorf("%w: tried %d times in %v; %s", ErrLocked, try, time.Since(started).Round(time.Millisecond), m.lockHolder(ctx))
		}
		m.cfg.Logger.Info().Int("try", try).Int("tries", m.cfg.LockTries).Msg("another session is migrating the schema, waiting for it")
		if status, err = m.wait(ctx); err != nil || !status.Due() {
			return status, err
		}
	}
}

// wait returns after the delay between two tries, or as soon as no migration is due any more.
func (m *migrator) wait(ctx context.Context) (Status, error) {
	deadline := time.Now().Add(m.cfg.LockDelay)
	poll := time.NewTicker(min(pollInterval, m.cfg.LockDelay))
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return Status{Program: m.cfg.Version}, ctx.Err()
		case <-poll.C:
		}
		status, _, err := m.gate(ctx)
		if err != nil || !status.Due() || time.Now().After(deadline) {
			return status, err
		}
	}
}

// lockHolder describes the session that holds the lock, as far as this one can see.
func (m *migrator) lockHolder(ctx context.Context) string {
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
		return "its holder is unknown, the lock may have just been released"
	}
	return fmt.Sprintf("backend %d holds it (%s), see pg_stat_activity", pid, application)
}

// migrate runs the migration if the lock is free and it is still due. It fails with errLockHeld if the lock is not free.
func (m *migrator) migrate(ctx context.Context) (Status, error) {
	status := Status{Program: m.cfg.Version}
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
		if err := m.checkProcesses(ctx, tx, found); err != nil {
			return err
		}
		if err := m.runScripts(ctx, tx, found); err != nil {
			return fmt.Errorf("the migration to %s failed, the database is as it was: %w", status.Program, err)
		}
		committing = true
		return nil
	})
	switch {
	case err != nil && committing && errors.As(err, new(*pgconn.PgError)):
		return status, fmt.Errorf("the migration to %s failed at its commit, the database is as it was: %w", status.Program, err)
	case err != nil && committing:
		return status, fmt.Errorf("the migration to %s may or may not have been committed, check with queued migrate --status: %w", status.Program, err)
	case err == nil && status.Due():
		m.cfg.Logger.Info().Str("from", status.Database).Str("to", status.Program).Int("scripts", len(status.Pending)).
			Dur("took", time.Since(started)).Msg("the schema is migrated")
	}
	return status, err
}

// processLife is how long a process counts as living after its last report.
const processLife = 30 * time.Second

// checkProcesses fails with ErrProcessesTooOld when processes are alive whose version cannot run on the new schema. Those that start later see that
// the schema is newer, and end.
func (m *migrator) checkProcesses(ctx context.Context, tx pgx.Tx, found state) error {
	var hasProcesses bool
	if err := tx.QueryRow(ctx, "select to_regclass('agent.process_metric') is not null").Scan(&hasProcesses); err != nil || !found.migrated || !hasProcesses {
		return err
	}
	rows, _ := tx.Query(ctx, `
		select m.process, m.value, clock_timestamp() - m.updated_at
		from agent.process_metric m
		where m.category = 'version' and m.updated_at > clock_timestamp() - $1::interval
		order by m.process, m.id`, processLife)
	var (
		tooOld        []string
		name, version string
		ago           time.Duration
	)
	_, err := pgx.ForEachRow(rows, []any{&name, &version, &ago}, func() error {
		if compareVersions(version, m.cfg.Oldest) < 0 {
			tooOld = append(tooOld, fmt.Sprintf("%s (version %s, last seen %v ago)", name, cmp.Or(version, "unknown"), max(0, ago.Round(time.Second))))
		}
		return nil
	})
	switch {
	case err != nil:
		return fmt.Errorf("read agent.process_metric: %w", err)
	case len(tooOld) == 0:
		return nil
	case m.cfg.IsForced:
		m.cfg.Logger.Warn().Strs("processes", tooOld).Str("oldest", m.cfg.Oldest).Msg("processes are alive that cannot run on the new schema; it is migrated all the same")
		return nil
	}
	return fmt.Errorf("%w of version %s, which takes %s or newer: %s; stop them (one that was killed counts for %v), "+
		"or migrate all the same with --force-migrate (QUEUED_FORCE_MIGRATE=true): their calls fail from then on",
		ErrProcessesTooOld, m.cfg.Version, m.cfg.Oldest, strings.Join(tooOld, ", "), processLife)
}

// runScripts runs the pending scripts and sets the version. The transaction has the advisory lock.
func (m *migrator) runScripts(ctx context.Context, tx pgx.Tx, found state) error {
	type step struct{ doing, statements string }
	steps := []step{{"set timeouts", setTimeouts}}
	if found.owner == "" {
		steps = append(steps, step{"create the schema agent", "create schema agent"})
	}
	if !found.migrated {
		steps = append(steps, step{"create agent.version and agent.migration", bootstrap})
	}
	steps = append(steps, step{"lock agent.migration", "lock table agent.migration in exclusive mode"}, step{"lock the tables of the schema agent", lockTables})
	for _, s := range steps {
		if _, err := tx.Exec(ctx, s.statements); err != nil {
			return fmt.Errorf("%s: %w", s.doing, withHint(err))
		}
	}
	applied, err := readApplied(ctx, tx) // again: it is locked now
	if err != nil {
		return err
	}
	pending, err := m.scripts.pending(applied)
	if err != nil {
		return err
	}
	for _, s := range pending {
		if err := m.runScript(ctx, tx, s); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, `
		insert into agent.version (version) values ($1)
		on conflict (singleton) do update set version = excluded.version, updated_at = excluded.updated_at
	`, m.cfg.Version); err != nil {
		return fmt.Errorf("set agent.version: %w", err)
	}
	return nil
}

// runScript runs one script, and records it if it is incremental.
func (m *migrator) runScript(ctx context.Context, tx pgx.Tx, s script) error {
	// The script before may have set another search_path.
	if _, err := tx.Exec(ctx, `select set_config('search_path', '""', true), set_config('queued.script', $1, true)`, s.body); err != nil {
		return fmt.Errorf("%s: %w", s.path(), err)
	}
	started := time.Now()
	if _, err := tx.Exec(ctx, executeScript); err != nil {
		return s.locate(err)
	}
	took := time.Since(started)
	if s.folder == incrementalFolder {
		if _, err := tx.Exec(ctx, "insert into agent.migration (name, version, checksum, took) values ($1, $2, $3, $4)",
			s.name, m.cfg.Version, s.checksum[:], took); err != nil {
			return fmt.Errorf("%s: record it: %w", s.path(), err)
		}
	}
	level := zerolog.DebugLevel
	if took >= slowScript {
		level = zerolog.InfoLevel
	}
	m.cfg.Logger.WithLevel(level).Str("script", s.path()).Dur("took", took).Msg("migration script done")
	return nil
}

// locate adds to a failure of the script its line, and the detail, hint and context that the server gave.
func (s script) locate(err error) error {
	place, where := s.path(), ""
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		if line := s.line(pgErr); line > 0 {
			place = fmt.Sprintf("%s, line %d", place, line)
		}
		// The context, innermost first, ends with a part that is the same for every script: that executeScript ran the body, quoted in full.
		levels, _, _ := strings.Cut(pgErr.Where, s.body)
		if last := strings.LastIndexByte(levels, '\n'); last > 0 {
			where = "; where: " + strings.ReplaceAll(levels[:last], "\n", " < ")
		}
	}
	return fmt.Errorf("%s: %w%s", place, withHint(err), where)
}

// line returns the line of the script that the server's error position is in, or 0 when there is none.
func (s script) line(pgErr *pgconn.PgError) int {
	// The position counts characters, from 1, in the failing statement or function body, which the server quotes.
	quoted, position := pgErr.InternalQuery, int(pgErr.InternalPosition)
	if position < 1 || strings.Count(s.body, quoted) != 1 {
		return 0
	}
	before, _, _ := strings.Cut(s.body, quoted)
	characters := []rune(quoted)
	return 1 + strings.Count(before, "\n") + strings.Count(string(characters[:min(position-1, len(characters))]), "\n")
}

// withHint adds the server's detail and hint to an error, or a hint for errors that scripts are likely to run into.
func withHint(err error) error {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return err
	}
	hint := pgErr.Hint
	switch {
	case hint != "":
	case pgErr.Code == "0A000" && pgErr.Routine == "exec_stmt_dynexecute":
		hint = "scripts are executed inside the migration's one transaction, which they may neither begin nor end"
	case pgErr.Code == "55P03": // lock_not_available
		hint = "another session has used the table for longer than " + lockTimeout + ", which is as long as a migration waits; " +
			"look for long transactions in pg_stat_activity and try again"
	}
	if pgErr.Detail != "" {
		err = fmt.Errorf("%w; detail: %s", err, pgErr.Detail)
	}
	if hint != "" {
		err = fmt.Errorf("%w; hint: %s", err, hint)
	}
	return err
}
