// Package pg connects the services to PostgreSQL. It has what queue, schedule and migrate share: a Database that follows the primary
// through failovers, Pools whose calls know whether a commit was confirmed, one listener for all who subscribe to notifications, the errors that SQLSTATEs
// become, the reading of rows, times and intervals, pages of listings, time limits of statements, and the Loop of background work.
//
// A Database has a goroutine while somebody listens for notifications, and no other that lasts. Database.mu is locked before dialer.mu, and never while a pool
// is locked: pools are reset in goroutines of their own.
package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/rounds"
)

// pingTimeout is how long a server may take to answer a ping.
const pingTimeout = 2 * time.Second

// ConnectTimeout bounds connecting to each host of a URL without connect_timeout.
const ConnectTimeout = 3 * time.Second

// idleInTransactionTimeout is how long a process that is stopped, or cut off from the network, in the middle of a transaction can block
// others.
const idleInTransactionTimeout = 5 * time.Second

// sessionSettings are the settings that the services rely on. They override the defaults of the role, the database and the server, and
// parameters of the URL override them.
func sessionSettings() map[string]string {
	return map[string]string{
		"default_transaction_isolation":       "read committed",
		"statement_timeout":                   "0",
		"lock_timeout":                        "0",
		"idle_in_transaction_session_timeout": fmt.Sprint(idleInTransactionTimeout.Milliseconds()),
		"idle_session_timeout":                "0", // pools and listeners keep sessions that have nothing to do
		"intervalstyle":                       "postgres",
	}
}

// pooledSettings are further ones, which PgBouncer keeps for each client. It refuses or ignores all others.
func pooledSettings() map[string]string {
	return map[string]string{
		"client_encoding":             "UTF8",
		"datestyle":                   "ISO, MDY",
		"timezone":                    "UTC",
		"standard_conforming_strings": "on",
	}
}

// Config configures a Database. All fields but URL may be zero.
type Config struct {
	URL             string               // a URL or keywords as libpq takes them, with the pool_… parameters of pgxpool
	ListenURL       string               // for listeners, when URL leads to a pooler; empty: URL
	ApplicationName string               // unless the URL has an application_name; empty: queued
	IsReadOnly      bool                 // accepts a server that takes no writes
	IsUnprepared    bool                 // never prepares statements
	Notices         func(*pgconn.Notice) // gets the server's notices; nil: they are ignored
	Logger          zerolog.Logger       // zero: nothing is logged
}

// Database makes all connections of the program. Its sessions can write, unless the URL has a target_session_attrs, and have the settings
// that the services rely on. When the primary changes, its pools leave the old one.
//
// It is safe for concurrent use. It holds no connection itself, but the one to listen while there are subscribers, and need not be closed.
type Database struct {
	Rounds rounds.Counts // of the loops of all services

	log    zerolog.Logger
	direct bool // no pooler is in between

	isListenDirect bool // the same for the listener

	main   endpoint
	listen endpoint

	listener listener
	replicas replicas
	clock    clock
	opening  sync.Mutex // held while a pool is opened; mu is locked after it

	mu       sync.Mutex // guards the fields below
	pools    map[*pgxpool.Pool]*openPool
	sessions map[*netConn]struct{} // open ones
	resets   int                   // number of resets
	reset    chan struct{}         // closed by the next reset
	timeline string                // the latest one of all sessions
	place    string                // the start of the server, and the database, of the latest session; empty: it is unknown
	places   int64                 // how often place has changed
}

// endpoint is a URL with the state of its connections.
type endpoint struct {
	pool        *pgxpool.Config
	anyServer   bool // the URL has target_session_attrs=any
	hasExecMode bool // the URL has a default_query_exec_mode
	maxConns    int  // the URL's pool_max_conns; zero: it has none
	dialer      *dialer
}

// session describes an open session.
type session struct {
	resets   int // number of resets before it
	timeline string
}

// Open connects once, to detect a pooler, and returns a Database. It fails with ErrUnavailable when no server that takes writes can be
// reached; IsPermanent reports whether another attempt would fail, too.
func Open(ctx context.Context, cfg Config) (*Database, error) {
	if cfg.ApplicationName == "" {
		cfg.ApplicationName = "queued"
	}
	db := &Database{
		log:      cfg.Logger,
		pools:    make(map[*pgxpool.Pool]*openPool),
		sessions: make(map[*netConn]struct{}),
		reset:    make(chan struct{}),
	}
	var err error
	if db.main, db.direct, err = db.open(ctx, cfg.URL, cfg); err != nil {
		return nil, err
	}
	db.listen, db.isListenDirect = db.main, db.direct
	if cfg.ListenURL != "" {
		if db.listen, db.isListenDirect, err = db.open(ctx, cfg.ListenURL, cfg); err != nil {
			return nil, fmt.Errorf("the database of QUEUED_LISTEN_URL: %w", err)
		}
		if !db.isListenDirect {
			db.log.Warn().Msg("QUEUED_LISTEN_URL leads to a pooler, which in transaction mode passes on no notifications")
		}
	}
	if !db.direct && !cfg.IsUnprepared {
		db.log.Warn().Bool("listen_url", cfg.ListenURL != "").Msg("the database URL leads to a pooler: statements are not prepared, and timeouts must be set " +
			"for the role or the database, see docs/operations.md")
	}
	return db, nil
}

// open makes the endpoint of a URL and reports whether it leads to PostgreSQL without a pooler.
func (db *Database) open(ctx context.Context, text string, own Config) (e endpoint, direct bool, err error) {
	if e, err = parseURL(text); err != nil {
		return e, false, fmt.Errorf("the database URL: %w", err)
	}
	cfg := e.pool.ConnConfig
	// A session that the URL makes read-only does not mean that the server is a standby.
	_, setsReadOnly := cfg.RuntimeParams["default_transaction_read_only"]
	setsReadOnly = setsReadOnly || strings.Contains(cfg.RuntimeParams["options"], "default_transaction_read_only")
	e.anyServer = e.anyServer || own.IsReadOnly || setsReadOnly
	timeout := cfg.ConnectTimeout
	if timeout == 0 {
		timeout = ConnectTimeout
	}
	cfg.ConnectTimeout = timeout
	e.dialer = newDialer(timeout, cfg.LookupFunc, db.removeSession)
	cfg.DialFunc, cfg.LookupFunc = e.dialer.dial, e.dialer.resolve
	db.addHooks(&e, own.Notices)
	setDefaults(cfg.RuntimeParams, map[string]string{"application_name": own.ApplicationName})
	setDefaults(cfg.RuntimeParams, pooledSettings())
	plain := cfg.Copy()
	setDefaults(cfg.RuntimeParams, sessionSettings())

	conn, err := pgx.ConnectConfig(ctx, cfg)
	pgErr, isRefused := errors.AsType[*pgconn.PgError](err)
	if isRefused && (pgErr.Code == "08P01" || pgErr.Code == "42704") { // of a startup parameter
		*cfg = *plain
		conn, err = pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			db.log.Info().Str("reason", pgErr.Message).Msg("the server or the pooler refuses settings at the start of a session")
		}
	}
	if err != nil {
		return e, false, States{}.Wrap("connecting", err)
	}
	defer db.Close(ctx, conn)
	var pid uint32
	if err := conn.QueryRow(ctx, `select pg_backend_pid()`, pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return e, false, States{}.Wrap("connecting", err)
	}
	direct = pid == conn.PgConn().PID() && !isRefused
	if !direct {
		*cfg = *plain
	}
	if own.IsUnprepared || !direct && !e.hasExecMode {
		cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	return e, direct, nil
}

// setDefaults adds parameters that are not there.
func setDefaults(params, defaults map[string]string) {
	for name, value := range defaults {
		if _, given := params[name]; !given {
			params[name] = value
		}
	}
}

// permanent are the SQLSTATEs of connection errors that do not go away by themselves.
var permanent = map[string]bool{
	"28P01": true, // invalid_password
	"28000": true, // invalid_authorization_specification
	"3D000": true, // invalid_catalog_name: there is no such database
	"42501": true, // insufficient_privilege
}

// IsPermanent reports whether connecting failed for a reason that an operator has to remove: a wrong password, an unknown database.
func IsPermanent(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && permanent[pgErr.Code]
}

// errSessionHangs is returned when a session began and its first statement was not answered.
var errSessionHangs = errors.New("the session began, but its first statement was not answered in time: the server hangs, " +
	"or a pooler in between has no server connection left (in session mode it needs one for each of this program's)")

// addHooks sets the hooks of the connections of an endpoint, which inspect each new session and the server's messages.
func (db *Database) addHooks(e *endpoint, notices func(*pgconn.Notice)) {
	cfg, anyServer, dialer := e.pool.ConnConfig, e.anyServer, e.dialer
	urlsOwn := cfg.ValidateConnect // for a target_session_attrs of the URL
	cfg.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if urlsOwn != nil {
			if err := urlsOwn(ctx, conn); err != nil {
				return hangsIfTimeout(err)
			}
		}
		timeline, place, isWritable, err := inspect(ctx, conn)
		if err != nil {
			return hangsIfTimeout(err)
		}
		nc := netConnOf(conn)
		dialer.noteAnswer(nc.address, isWritable)
		if err := nc.removeLimit(); err != nil {
			return err
		}
		if !isWritable && urlsOwn == nil && !anyServer {
			return pgconn.ErrReadOnlyConnection
		}
		db.addSession(nc, timeline, place, dialer)
		return nil
	}
	cfg.OnNotice = func(conn *pgconn.PgConn, n *pgconn.Notice) {
		noteUnconfirmed(conn, n)
		if notices != nil {
			notices(n)
		}
	}
	closesOn := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, pgErr *pgconn.PgError) bool {
		if pgErr.Code == "25006" { // read_only_sql_transaction
			db.leaveServerOf(conn)
			return false
		}
		return closesOn(conn, pgErr)
	}
}

// hangsIfTimeout replaces a timeout by errSessionHangs. The result does not wrap the timeout, which pgx would return in its place.
func hangsIfTimeout(err error) error {
	if pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return errSessionHangs
	}
	return err
}

// inspect returns the timeline of the server of conn and its place, empty when they are unknown, and whether the session can write.
func inspect(ctx context.Context, conn *pgconn.PgConn) (timeline, place string, isWritable bool, err error) {
	const (
		readOnly = `pg_catalog.current_setting('transaction_read_only')`
		all      = `select ` + readOnly + `, case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end` +
			`, pg_postmaster_start_time() || ' ' || (select oid from pg_catalog.pg_database where datname = current_database())`
	)
	results, err := conn.Exec(ctx, all).ReadAll()
	if _, ok := errors.AsType[*pgconn.PgError](err); ok && !conn.IsClosed() { // a server without these functions, which is compatible otherwise
		results, err = conn.Exec(ctx, `select `+readOnly+`, '', ''`).ReadAll()
	}
	if err != nil {
		return "", "", false, err
	}
	row := results[0].Rows[0]
	return string(row[1]), string(row[2]), string(row[0]) != "on", nil
}

// Place returns a number that changes before the first session in another database, or on a server that was started again, is used: what was read before
// may be of another database than what is read after. Behind a pooler, whose sessions last, it does not change.
func (db *Database) Place() int64 {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.places
}

// addSession registers a session. When its timeline is newer than all others, its server has been promoted: the connections to other
// servers are ended and the pools reset.
func (db *Database) addSession(nc *netConn, timeline, place string, d *dialer) {
	db.mu.Lock()
	if place != db.place {
		db.place = place
		db.places++
	}
	before := db.timeline
	db.timeline = max(before, timeline) // each has eight hexadecimal digits
	isPromoted := before != "" && timeline > before
	var stale []*netConn
	if isPromoted {
		for old := range db.sessions {
			if old.timeline >= timeline {
				continue
			}
			stale = append(stale, old)
			if old.address != nc.address {
				d.leave(old.address)
			}
		}
		db.resetLocked()
	}
	nc.session = session{resets: db.resets, timeline: timeline}
	db.sessions[nc] = struct{}{}
	db.mu.Unlock()
	for _, old := range stale {
		old.limit(time.Now())
	}
	if isPromoted {
		db.log.Warn().Str("server", nc.address).Str("timeline", timeline).Str("before", before).Int("connections_ended", len(stale)).
			Msg("another server is the primary now")
	}
}

// removeSession forgets the session of a connection.
func (db *Database) removeSession(nc *netConn) {
	db.mu.Lock()
	defer db.mu.Unlock()
	delete(db.sessions, nc)
}

// limitClose limits the time of closing a connection.
func limitClose(conn *pgx.Conn) { netConnOf(conn.PgConn()).limit(time.Now().Add(closeTimeout)) }

// leaveServerOf resets the pools because the server of conn no longer takes writes, unless there was a reset since conn was made.
func (db *Database) leaveServerOf(conn *pgconn.PgConn) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if netConnOf(conn).resets < db.resets {
		return
	}
	db.log.Warn().Msg("the server no longer takes writes: all connections to it are closed")
	db.resetLocked()
}

// Reset replaces all connections: idle ones at once, the others when they are released, and the listener's.
func (db *Database) Reset() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.resetLocked()
}

// resetLocked is Reset for callers that hold mu.
func (db *Database) resetLocked() {
	db.resets++
	close(db.reset)
	db.reset = make(chan struct{})
	for pool := range db.pools {
		go pool.Reset() // it may close connections, which locks mu, while it holds its own lock
	}
}

// Resets returns a channel that is closed by the next reset: a call of Reset, or a new primary.
func (db *Database) Resets() <-chan struct{} {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.reset
}

// IsPooled reports whether a pooler is between the program and PostgreSQL.
func (db *Database) IsPooled() bool { return !db.direct }

// MaxConns returns the URL's pool_max_conns, 0 when it has none.
func (db *Database) MaxConns() int { return db.main.maxConns }

// Connect returns a connection of the caller's own, to be closed with Close.
func (db *Database) Connect(ctx context.Context) (*pgx.Conn, error) { return db.main.connect(ctx) }

func (e *endpoint) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg := e.pool.ConnConfig.Copy()
	e.dialer.sortHosts(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		RegisterTypes(conn.TypeMap())
	}
	return conn, err
}

// Close closes a connection that Connect returned, also after ctx has ended.
func (db *Database) Close(ctx context.Context, conn *pgx.Conn) {
	limitClose(conn)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx) // the connection is of no use any more
}

// ping checks that a server answers, within pingTimeout.
func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return conn.Ping(ctx)
}
