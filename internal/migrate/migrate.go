// Package migrate brings the schema agent of a database to the version of the program: the
// version gate, and the runner of the scripts that package sql holds.
//
// All of a migration is one transaction. Any number of processes may start one at the same time: a
// lock lets one through, and the others go on as soon as it has committed.
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

// What Run and Check can fail with, beside a database that cannot be used or a script that fails. The errors
// returned wrap one of these and say what to do.
var (
	// ErrProgramOlder: the database was migrated by a newer program.
	ErrProgramOlder = errors.New("the program is older than the database")
	// ErrNotOwner: a migration is due, and only the owner of the schema agent may run it. Only Run.
	ErrNotOwner = errors.New("not the owner of the schema agent")
	// ErrScriptChanged: an incremental script that the database has applied was changed, renamed or
	// taken away since, or one was added without a new version.
	ErrScriptChanged = errors.New("the incremental scripts are not those that the database has applied")
	// ErrBadScripts: a file among the scripts breaks the rules for names and numbers.
	ErrBadScripts = errors.New("the migration scripts are not in order")
	// ErrLocked: another session held the migration lock all through Config.LockTries. Only Run.
	ErrLocked = errors.New("another migration holds the lock")
)

// Config is what a migration needs to know. All but DatabaseURL may be zero.
type Config struct {
	DatabaseURL string         // a PostgreSQL URL or keyword string, as libpq takes it; pool_ settings are passed over
	Scripts     fs.FS          // holds the folders incremental and idempotent; zero: sql.FS
	Version     string         // the program's, a semantic version without a v; zero: sql.Version()
	LockTries   int            // how often the lock is tried; zero: 10
	LockDelay   time.Duration  // time between two tries; zero: 10 s
	Logger      zerolog.Logger // zero: silent
}

// Status compares a database with the program. Beside an error it holds what was known by then.
type Status struct {
	Database string   // the version the database was found at; empty: never migrated
	Program  string   // the program's version
	Pending  []string // the scripts that would run, or that Run has run, in order: "incremental/001-event.sql"
}

// Due tells whether the database was found at a version older than the program's.
func (s Status) Due() bool { return compareVersions(s.Database, s.Program) < 0 }

// Check compares the database with the program and changes nothing. It needs no more than to
// read agent.version and agent.migration. It fails with ErrProgramOlder, ErrScriptChanged or ErrBadScripts, or
// when the database cannot be reached or is none that a migration could work on.
func Check(ctx context.Context, cfg Config) (Status, error) {
	m, err := open(ctx, cfg, true)
	if err != nil {
		return Status{}, err
	}
	defer m.close(ctx)
	status, _, err := m.gate(ctx)
	return status, err
}

// Run migrates the database if it is older than the program, and otherwise does what Check does. When another
// session is migrating it waits for it, and takes part only if something is left to do. On an
// error the database is as it was; it fails with any error of this package.
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
		m.log.Info().Str("version", status.Program).Msg("the schema is up to date")
	}
	return status, err
}

// migrator is one call of Run or Check.
type migrator struct {
	conn      *pgx.Conn
	scripts   scripts
	program   string
	lockTries int
	lockDelay time.Duration
	log       zerolog.Logger
}

// open checks cfg and connects, to a server that takes writes unless isReadOnly.
func open(ctx context.Context, cfg Config, isReadOnly bool) (*migrator, error) {
	m := &migrator{
		program:   cmp.Or(cfg.Version, sql.Version()),
		lockTries: cmp.Or(max(cfg.LockTries, 0), 10),
		lockDelay: cmp.Or(max(cfg.LockDelay, 0), 10*time.Second),
		log:       cfg.Logger,
	}
	if !semver.IsValid("v" + m.program) {
		return nil, fmt.Errorf("the program's version %q is no semantic version like 1.2.3", m.program)
	}
	files := cfg.Scripts
	if files == nil {
		files = sql.FS
	}
	var err error
	if m.scripts, err = load(files); err != nil {
		return nil, err
	}
	if m.conn, err = connect(ctx, cfg.DatabaseURL, isReadOnly, cfg.Logger); err != nil {
		return nil, err
	}
	return m, nil
}

// close ends the session, and waits until the server has let go of what it was doing if ctx ended early.
func (m *migrator) close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = m.conn.Close(ctx) // what matters is committed or has failed by now
	select {
	case <-m.conn.PgConn().CleanupDone():
	case <-ctx.Done():
	}
}

// gate looks at the database in one snapshot, without the lock, and compares it with the program.
func (m *migrator) gate(ctx context.Context) (Status, state, error) {
	var found state
	err := pgx.BeginTxFunc(ctx, m.conn, beginReading, func(tx pgx.Tx) (err error) {
		found, err = inspect(ctx, tx)
		return err
	})
	if err != nil {
		return Status{Program: m.program}, state{}, err
	}
	status, err := m.compare(found)
	return status, found, err
}

// compare says what is due. On an error Pending is empty, and the versions are those found.
func (m *migrator) compare(found state) (Status, error) {
	status := Status{Database: found.version, Program: m.program}
	order := compareVersions(found.version, m.program)
	if order > 0 {
		return status, fmt.Errorf("%w: the database is at %s, this program is %s: run a newer queued", ErrProgramOlder, found.version, m.program)
	}
	pending, err := m.scripts.pending(found.applied)
	switch {
	case err != nil:
		return status, err
	case order == 0 && len(found.applied) < len(m.scripts.incremental):
		return status, fmt.Errorf("%w: the database is at %s like this program, but has not applied %s: a new script needs a new version",
			ErrScriptChanged, found.version, m.scripts.incremental[len(found.applied)].path())
	case order < 0:
		for _, s := range pending {
			status.Pending = append(status.Pending, s.path())
		}
	}
	return status, nil
}

// compareVersions orders versions as semver does. The empty one, of a database never migrated, comes first.
func compareVersions(a, b string) int { return semver.Compare("v"+a, "v"+b) }
