package migrate

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pg"
)

// connect opens the session of a migration. No setting outlives a transaction, so it may go through a pooler.
func connect(ctx context.Context, url string, isReadOnly bool, log zerolog.Logger) (*pgx.Conn, error) {
	db, err := pg.Open(ctx, pg.Config{
		URL:             url,
		ApplicationName: "queued migrate",
		IsReadOnly:      isReadOnly,
		IsUnprepared:    true,
		Notices: func(n *pgconn.Notice) {
			level := zerolog.DebugLevel
			if n.SeverityUnlocalized == "WARNING" {
				level = zerolog.WarnLevel
			}
			log.WithLevel(level).Str("sqlstate", n.Code).Msg(n.Message)
		},
		Logger: log,
	})
	if err != nil {
		return nil, connectError{err}
	}
	conn, err := db.Connect(ctx)
	if err != nil {
		return nil, connectError{err}
	}
	return conn, nil
}

// connectError is on one line, while pgx writes one for each address it tried.
type connectError struct{ err error }

func (e connectError) Error() string {
	return "cannot connect to the database: " + strings.Join(strings.Fields(e.err.Error()), " ")
}

func (e connectError) Unwrap() error { return e.err }

// state is the schema agent of a database, and the rights of the session's user.
type state struct {
	user, database string
	owner          string // of the schema agent; empty: there is no such schema
	mayCreate      bool   // the user may create schemas
	standby        bool
	migrated       bool   // the runner's tables are there
	version        string // empty: not migrated
	applied        []applied
}

// The transactions of a migration. Nothing in them relies on a search_path.
var (
	beginReading = pgx.TxOptions{BeginQuery: "begin isolation level repeatable read, read only; " + emptySearchPath}
	beginWriting = pgx.TxOptions{BeginQuery: "begin isolation level read committed, read write; " + emptySearchPath}
)

const emptySearchPath = "set local search_path to ''"

// inspect reads the state. It fails if no migration could run on the database, or if the user may not read its version.
func inspect(ctx context.Context, tx pgx.Tx) (state, error) {
	var s state
	var serverNumber int
	var server, encoding string
	var hasObjects, hasVersion, hasMigration, mayRead bool
	err := tx.QueryRow(ctx, `
		select current_setting('server_version_num')::int4, current_setting('server_version'), current_setting('server_encoding')
		, pg_is_in_recovery(), current_user::text, current_database()::text
		, has_database_privilege(current_database(), 'create')
		, coalesce(pg_get_userbyid(n.nspowner)::text, '')
		, exists
		  ( select from pg_depend d
		    where d.refclassid = 'pg_namespace'::regclass and d.refobjid = n.oid
		    and d.deptype = 'n' -- what is in it; settings such as default privileges are not
		  )
		, v.oid is not null, m.oid is not null
		, coalesce(has_schema_privilege(n.oid, 'usage') and has_table_privilege(v.oid, 'select') and has_table_privilege(m.oid, 'select'), false)
		from (values (true)) as one_row
		left join pg_namespace n on n.nspname = 'agent'
		left join pg_class v on v.relnamespace = n.oid and v.relkind = 'r' and v.relname = 'version'
		left join pg_class m on m.relnamespace = n.oid and m.relkind = 'r' and m.relname = 'migration'
	`).Scan(&serverNumber, &server, &encoding, &s.standby, &s.user, &s.database, &s.mayCreate, &s.owner,
		&hasObjects, &hasVersion, &hasMigration, &mayRead)
	if err != nil {
		return state{}, fmt.Errorf("inspect the database: %w", err)
	}
	if err := checkServer(serverNumber, server, encoding); err != nil {
		return state{}, err
	}
	s.migrated = hasVersion && hasMigration
	switch {
	case !s.migrated && hasObjects:
		return state{}, fmt.Errorf("the schema agent of database %q holds something else than queued's: it is not empty and has no tables "+
			"agent.version and agent.migration; rename that schema, or use another database", s.database)
	case !s.migrated:
		return s, nil
	case !mayRead:
		user := pgx.Identifier{s.user}.Sanitize()
		return state{}, fmt.Errorf("role %q may not read which version the database is at: as the owner, "+
			"grant usage on schema agent to %s; grant select on agent.version, agent.migration to %[2]s", s.user, user)
	}
	if s.version, err = readVersion(ctx, tx); err == nil {
		s.applied, err = readApplied(ctx, tx)
	}
	return s, err
}

func readVersion(ctx context.Context, tx pgx.Tx) (string, error) {
	var version string
	err := tx.QueryRow(ctx, "select v.version from agent.version v").Scan(&version)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return "", errors.New("agent.version is empty, it should have one row: restore the database, or put back the version it was at")
	case err != nil:
		return "", fmt.Errorf("read agent.version: %w", err)
	case compareVersions(version, "") == 0: // the empty string is not valid, and all that is not valid is equal
		return "", fmt.Errorf("agent.version says %q, which is no version of queued", version)
	}
	return version, nil
}

func readApplied(ctx context.Context, tx pgx.Tx) ([]applied, error) {
	rows, _ := tx.Query(ctx, "select m.name, m.version, m.checksum from agent.migration m order by m.name collate \"C\"") // CollectRows returns the error
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (a applied, err error) {
		err = row.Scan(&a.name, &a.version, &a.checksum)
		return a, err
	})
	if err != nil {
		return nil, fmt.Errorf("read agent.migration: %w", err)
	}
	return all, nil
}

// checkServer fails for servers that the schema does not work on.
func checkServer(number int, version, encoding string) error {
	if number < 14_00_00 {
		return fmt.Errorf("PostgreSQL 14 or newer is needed, this is %s", version)
	}
	if encoding != "UTF8" { // events are JSON in UTF-8, and must come back as they were sent
		return fmt.Errorf("a database with encoding UTF8 is needed, this one has %s: "+
			"create it with: create database … encoding 'UTF8' template template0", encoding)
	}
	return nil
}

// mayMigrate fails unless the user may migrate. It fails with ErrNotOwner if another role may.
func (s state) mayMigrate() error {
	switch {
	case s.standby:
		return errors.New("a migration is due, and this server is a standby: migrate on the primary")
	case s.owner == "" && !s.mayCreate:
		user := pgx.Identifier{s.user}.Sanitize()
		return fmt.Errorf("role %q may not create the schema agent in database %q: as a superuser or the database's owner, "+
			"either grant create on database %s to %s, or create schema agent authorization %[4]s; create schema agent_service authorization %[4]s; create schema agent_private authorization %[4]s",
			s.user, s.database, pgx.Identifier{s.database}.Sanitize(), user)
	case s.owner != "" && s.owner != s.user:
		return fmt.Errorf("%w: it belongs to %q, and this is %q: run queued migrate as %[2]q", ErrNotOwner, s.owner, s.user)
	}
	return nil
}
