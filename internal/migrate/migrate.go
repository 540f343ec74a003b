// Package migrate brings the schema agent of a database to the version of the program: the version gate, and the runner of the scripts of
// package sql.
//
// A migration is one transaction under an advisory lock: of several processes that start one, one migrates, and the others go on as soon
// as it has committed.
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"golang.org/x/mod/semver"

	"github.com/queued/queued/sql"
)

// Errors of Run and Check, beside a database that cannot be used or a script that fails. The errors returned wrap one of these and
// say what to do.
var (
	// ErrProgramOlder: the database was migrated by a newer program.
	ErrProgramOlder = errors.New("the program is older than the database")
	// ErrDevelopment: a version below the first release made the database, or scripts that this release does not have. Nothing upgrades it.
	ErrDevelopment = errors.New("the database was made by a development version of queued")
	// ErrNotOwner: a migration is due, and only the owner of the schema agent may run it. Only Run.
	ErrNotOwner = errors.New("not the owner of the schema agent")
	// ErrScriptChanged: an applied incremental script was changed, renamed or removed, or one was added without a new version.
	ErrScriptChanged = errors.New("the incremental scripts are not those that the database has applied")
	// ErrBadScripts: a script breaks the rules for names and numbers.
	ErrBadScripts = errors.New("the migration scripts are not in order")
	// ErrLocked: another session held the migration lock at each of Config.LockTries. Only Run.
	ErrLocked = errors.New("another migration holds the lock")
	// ErrProcessesTooOld: processes are alive that cannot run on the new schema. Only Run.
	ErrProcessesTooOld = errors.New("processes are alive that cannot run on the new schema")
)

// Config configures a migration. All fields but DatabaseURL may be zero.
type Config struct {
	DatabaseURL string         // a PostgreSQL URL or keyword string, as libpq takes it; pool_ settings are ignored
	Scripts     fs.FS          // holds the folders incremental and idempotent; nil: sql.FS
	Version     string         // the program's, a semantic version without a v; empty: sql.Version()
	Oldest      string         // the oldest version whose processes may be alive; empty: sql.OldestBeside
	IsForced    bool           // migrates whatever processes are alive
	LockTries   int            // how often the lock is tried; zero: 10
	LockDelay   time.Duration  // time between two tries; zero: 10 s
	Logger      zerolog.Logger // zero: silent
}

// Status compares a database with the program. Beside an error it holds the values known by then.
type Status struct {
	Database string   // the version the database was found at; empty: never migrated
	Program  string   // the program's version
	Pending  []string // the scripts that would run, or that Run has run, in order: "incremental/001-event.sql"
}

// Due reports whether the database was found at a version older than the program's.
func (s Status) Due() bool { return compareVersions(s.Database, s.Program) < 0 }

// Check compares the database with the program and changes nothing. It needs to read agent.version and agent.migration only. It fails with
// ErrProgramOlder, ErrDevelopment, ErrScriptChanged or ErrBadScripts, or when the database cannot be reached or used.
func Check(ctx context.Context, cfg Config) (Status, error) {
	m, err := open(ctx, cfg, true)
	if err != nil {
		return Status{}, err
	}
	defer m.close(ctx)
	status, _, err := m.gate(ctx)
	return status, err
}

// Run migrates the database if it is older than the program, and otherwise does the same as Check. It waits for another session that is
// migrating. On an error the database is as it was; it fails with any error of this package.
func Run(ctx context.Context, cfg Config) (Status, error) {
	m, err := open(ctx, cfg, false)
	if err != nil {
		return Status{}, err
	}
	defer m.close(ctx)

	status, found, err := m.gate(ctx)
	if err == nil && status.Due() {
		if err = found.mayMigrate(); err == nil {
			status, err = m.migrateLocked(ctx, status)
		}
	}
	if err == nil && !status.Due() {
		m.cfg.Logger.Info().Str("version", status.Program).Msg("the schema is up to date")
	}
	return status, err
}

// migrator is one call of Run or Check.
type migrator struct {
	cfg     Config // with defaults
	scripts scripts
	conn    *pgx.Conn
}

// open checks cfg and connects, to a server that takes writes unless isReadOnly.
func open(ctx context.Context, cfg Config, isReadOnly bool) (*migrator, error) {
	cfg.Version = cmp.Or(cfg.Version, sql.Version())
	cfg.Oldest = cmp.Or(cfg.Oldest, sql.OldestBeside)
	cfg.LockTries = cmp.Or(max(cfg.LockTries, 0), 10)
	cfg.LockDelay = cmp.Or(max(cfg.LockDelay, 0), 10*time.Second)
	if cfg.Scripts == nil {
		cfg.Scripts = sql.FS
	}
	if !semver.IsValid("v" + cfg.Version) {
		return nil, fmt.Errorf("the program's version %q is not a semantic version like 1.2.3", cfg.Version)
	}
	scripts, err := load(cfg.Scripts)
	if err != nil {
		return nil, err
	}
	conn, err := connect(ctx, cfg.DatabaseURL, isReadOnly, cfg.Logger)
	if err != nil {
		return nil, err
	}
	return &migrator{cfg, scripts, conn}, nil
}

// close ends the session, and waits for the server to finish with it if ctx ended early.
func (m *migrator) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = m.conn.Close(ctx) // the transaction has ended either way
	select {
	case <-m.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// gate reads the database's state in one snapshot, without the lock, and compares it with the program.
func (m *migrator) gate(ctx context.Context) (Status, state, error) {
	var found state
	err := pgx.BeginTxFunc(ctx, m.conn, beginReading, func(tx pgx.Tx) (err error) {
		found, err = inspect(ctx, tx)
		return err
	})
	if err != nil {
		return Status{Program: m.cfg.Version}, state{}, err
	}
	status, err := m.compare(found)
	return status, found, err
}

// compare returns the scripts that are due. On an error Pending is empty, and the versions are those found.
func (m *migrator) compare(found state) (Status, error) {
	status := Status{Database: found.version, Program: m.cfg.Version}
	if found.migrated && compareVersions(found.version, sql.FirstRelease) < 0 {
		return status, fmt.Errorf("%w, %s, which no release upgrades: make the database anew", ErrDevelopment, found.version)
	}
	order := compareVersions(found.version, status.Program)
	if order > 0 {
		return status, fmt.Errorf("%w: the database is at %s, this program is %s: run a newer queued", ErrProgramOlder, found.version, status.Program)
	}
	pending, err := m.scripts.pending(found.applied)
	switch {
	case err != nil:
		return status, err
	case order == 0 && len(pending) > 0 && pending[0].folder == incrementalFolder:
		return status, fmt.Errorf("%w: the database is at %s like this program, but has not applied %s: a new script needs a new version",
			ErrScriptChanged, found.version, pending[0].path())
	case order < 0:
		for _, s := range pending {
			status.Pending = append(status.Pending, s.path())
		}
	}
	return status, nil
}

// compareVersions orders versions as semver does. The empty one, of a database never migrated, comes first.
func compareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }
