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
)

// pingTimeout is how long a server may take to answer a session that asks whether it is there.
const pingTimeout = 2 * time.Second

// Config is what a Database needs to know. All but URL may be zero.
type Config struct {
	URL             string               // as libpq takes it, as a URL or as keywords; with the pool_… parameters of pgxpool
	ListenURL       string               // where to listen for notifications when URL leads to a pooler; empty: URL
	ApplicationName string               // unless the URL has an application_name; empty: queued
	IsReadOnly      bool                 // a server that takes no writes will do
	IsUnprepared    bool                 // statements are not prepared, whatever stands between
	Notices         func(*pgconn.Notice) // is told of the server's notices; nil: nobody is
	Logger          zerolog.Logger       // zero: silent
}

// Database makes every connection of the service. A session that it returns is one where writing is allowed, unless the URL has a
// target_session_attrs of its own, and has the settings that the service relies on. When the primary changes, its pools leave the old one.
//
// It is safe for concurrent use. It holds no connection itself, and need not be closed.
type Database struct {
	log    zerolog.Logger
	direct bool // no pooler stands between
	main   endpoint
	listen endpoint

	mu       sync.Mutex
	pools    map[*pgxpool.Pool]struct{}
	sessions map[*pgconn.PgConn]session
	epoch    int           // grows with each reset
	moved    chan struct{} // closed by the next reset
	timeline string        // of the server where the latest session began
}

// endpoint is where connections lead to.
type endpoint struct {
	parsed
	dialer *dialer
}

// session is what is known of a live one.
type session struct {
	epoch    int
	timeline string
	address  string
}

// Open connects once, to learn what stands between, and returns a Database. It fails with ErrUnavailable when no server that takes
// writes can be reached; IsPermanent tells whether trying again is of no use.
func Open(ctx context.Context, cfg Config) (*Database, error) {
	if cfg.ApplicationName == "" {
		cfg.ApplicationName = "queued"
	}
	db := &Database{
		log:      cfg.Logger,
		pools:    make(map[*pgxpool.Pool]struct{}),
		sessions: make(map[*pgconn.PgConn]session),
		moved:    make(chan struct{}),
	}
	var err error
	if db.main, db.direct, err = db.open(ctx, cfg.URL, cfg); err != nil {
		return nil, err
	}
	db.listen = db.main
	if cfg.ListenURL != "" {
		var direct bool
		if db.listen, direct, err = db.open(ctx, cfg.ListenURL, cfg); err != nil {
			return nil, fmt.Errorf("the database of QUEUED_LISTEN_URL: %w", err)
		}
		if !direct {
			db.log.Warn().Msg("QUEUED_LISTEN_URL leads to a pooler: in transaction mode nothing is heard through it")
		}
	}
	if !db.direct && !cfg.IsUnprepared {
		db.log.Warn().Bool("listen_url", cfg.ListenURL != "").Msg("a pooler stands between here and PostgreSQL: statements are not prepared, and the timeouts " +
			"that the service needs are those of the role or the database, see docs/operations.md")
	}
	return db, nil
}

// open makes the endpoint of a URL, and reports whether it leads to PostgreSQL itself.
func (db *Database) open(ctx context.Context, text string, own Config) (e endpoint, direct bool, err error) {
	if e.parsed, err = parse(text); err != nil {
		return e, false, err
	}
	cfg := e.pool.ConnConfig
	// The URL's own wish is no sign of a standby.
	_, setsReadOnly := cfg.RuntimeParams["default_transaction_read_only"]
	setsReadOnly = setsReadOnly || strings.Contains(cfg.RuntimeParams["options"], "default_transaction_read_only")
	e.anyServer = e.anyServer || own.IsReadOnly || setsReadOnly
	timeout := cfg.ConnectTimeout
	if timeout == 0 {
		timeout = ConnectTimeout
	}
	cfg.ConnectTimeout = timeout
	e.dialer = newDialer(timeout, cfg.LookupFunc)
	cfg.DialFunc, cfg.LookupFunc = e.dialer.dial, e.dialer.resolve
	db.watch(&e, own.Notices)
	setDefaults(cfg.RuntimeParams, map[string]string{"application_name": own.ApplicationName})
	setDefaults(cfg.RuntimeParams, pooledSettings())
	plain := cfg.Copy()
	setDefaults(cfg.RuntimeParams, sessionSettings())

	conn, err := pgx.ConnectConfig(ctx, cfg)
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && (pgErr.Code == "08P01" || pgErr.Code == "42704") { // a startup parameter is refused
		*cfg = *plain
		conn, err = pgx.ConnectConfig(ctx, cfg)
		if err == nil {
			db.log.Info().Str("reason", pgErr.Message).Msg("the settings of a session are not taken at its start")
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
	direct = pid == conn.PgConn().PID() && pgErr == nil
	if !direct {
		*cfg = *plain
	}
	if own.IsUnprepared || !direct && !e.ownExecMode {
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

// permanent are the SQLSTATEs of a connection that no patience will make.
var permanent = map[string]bool{
	"28P01": true, // invalid_password
	"28000": true, // invalid_authorization_specification
	"3D000": true, // invalid_catalog_name: there is no such database
	"42501": true, // insufficient_privilege
}

// IsPermanent reports whether connecting failed for a reason that has to be mended first: a wrong password, an unknown database, a
// URL that makes no sense.
func IsPermanent(err error) bool {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return permanent[pgErr.Code]
	}
	var parseErr *pgconn.ParseConfigError
	return errors.As(err, &parseErr)
}

// errSilentSession is what connecting fails with when the session begins, and then its first statement is not answered.
var errSilentSession = errors.New("the session began, but its first statement was not answered in time: the server hangs, " +
	"or a pooler in between has no server connection left (in session mode it needs one for each of this program's)")

// watch has every session of an endpoint looked at before it is used, and its messages heeded.
func (db *Database) watch(e *endpoint, notices func(*pgconn.Notice)) {
	cfg := e.pool.ConnConfig
	own := cfg.ValidateConnect // what the URL asks for
	anyServer := e.anyServer
	dialer := e.dialer
	cfg.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if own != nil {
			if err := own(ctx, conn); err != nil {
				return silent(err)
			}
		}
		timeline, writable, err := look(ctx, conn)
		if err != nil {
			return silent(err)
		}
		nc := netConnOf(conn)
		if nc != nil {
			dialer.answered(nc.address, writable)
			if err := nc.settle(); err != nil {
				return err
			}
		}
		if !writable && own == nil && !anyServer {
			return pgconn.ErrReadOnlyConnection
		}
		db.begun(conn, nc, timeline, dialer)
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
			db.leave(conn)
			return false
		}
		return closesOn(conn, pgErr)
	}
}

// silent says more of a first statement that was not answered. It does not wrap the timeout, which pgx would put in its place.
func silent(err error) error {
	if pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded) {
		return errSilentSession
	}
	return err
}

// look returns the timeline of the server that conn leads to, empty where that is not to be learned, and whether one may write there.
func look(ctx context.Context, conn *pgconn.PgConn) (timeline string, writable bool, err error) {
	const (
		readOnly = `current_setting('transaction_read_only')`
		both     = `select ` + readOnly + `, case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end`
	)
	results, err := conn.Exec(ctx, both).ReadAll()
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && !conn.IsClosed() { // a server that is PostgreSQL in most respects
		results, err = conn.Exec(ctx, `select `+readOnly+`, ''`).ReadAll()
	}
	if err != nil {
		return "", false, err
	}
	row := results[0].Rows[0]
	return string(row[1]), string(row[0]) != "on", nil
}

// begun remembers a session. When it is on a newer timeline than those before, another server is the primary: the others are left.
func (db *Database) begun(conn *pgconn.PgConn, nc *netConn, timeline string, d *dialer) {
	db.mu.Lock()
	for known := range db.sessions {
		select {
		case <-known.CleanupDone(): // not IsClosed, which is for who uses the connection
			delete(db.sessions, known)
		default:
		}
	}
	s := session{epoch: db.epoch, timeline: timeline}
	if nc != nil {
		s.address = nc.address
	}
	before := db.timeline
	isNew := timeline != "" && before != "" && timeline > before // of eight hexadecimal digits each
	if timeline > before {
		db.timeline = timeline
	}
	var stale []*netConn
	if isNew {
		for known, other := range db.sessions {
			if other.timeline >= timeline {
				continue
			}
			if old := netConnOf(known); old != nil {
				stale = append(stale, old)
			}
			if other.address != s.address {
				d.leave(other.address)
			}
		}
		db.reset()
		s.epoch = db.epoch
	}
	db.sessions[conn] = s
	db.mu.Unlock()
	for _, old := range stale {
		old.endBy(time.Now())
	}
	if isNew {
		db.log.Warn().Str("server", s.address).Str("timeline", timeline).Str("before", before).Int("connections_ended", len(stale)).
			Msg("another server is the primary now")
	}
}

// ended forgets a session that is being closed, and bounds its goodbye.
func (db *Database) ended(conn *pgconn.PgConn) {
	db.mu.Lock()
	delete(db.sessions, conn)
	db.mu.Unlock()
	if nc := netConnOf(conn); nc != nil {
		nc.endBy(time.Now().Add(closeTimeout))
	}
}

// leave resets the pools because the server of conn takes no writes any more, unless that was done since conn was made.
func (db *Database) leave(conn *pgconn.PgConn) {
	db.mu.Lock()
	defer db.mu.Unlock()
	if s, ok := db.sessions[conn]; ok && s.epoch < db.epoch {
		return
	}
	db.log.Warn().Msg("the server takes no writes any more: all connections to it are given up")
	db.reset()
}

// Reset has every connection be made anew: idle ones at once, the others when they are given back, those of the listeners, too.
func (db *Database) Reset() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.reset()
}

// reset is Reset for callers that hold mu.
func (db *Database) reset() {
	db.epoch++
	close(db.moved)
	db.moved = make(chan struct{})
	for pool := range db.pools {
		go pool.Reset() // it may close connections while it holds its own lock
	}
}

// Resets returns a channel that is closed when connections are made anew the next time: by Reset, or because another server is the primary.
func (db *Database) Resets() <-chan struct{} {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.moved
}

// IsPooled reports whether a pooler stands between the service and PostgreSQL.
func (db *Database) IsPooled() bool { return !db.direct }

// MaxConns returns the URL's pool_max_conns, 0 when it has none.
func (db *Database) MaxConns() int {
	if !db.main.ownMaxConns {
		return 0
	}
	return int(db.main.pool.MaxConns)
}

// Connect returns a connection of the caller's own, to be closed with Close.
func (db *Database) Connect(ctx context.Context) (*pgx.Conn, error) { return db.main.connect(ctx) }

func (e *endpoint) connect(ctx context.Context) (*pgx.Conn, error) {
	cfg := e.pool.ConnConfig.Copy()
	e.dialer.order(cfg)
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		RegisterTypes(conn.TypeMap())
	}
	return conn, err
}

// ping asks a server whether it is there, and waits for pingTimeout at most.
func ping(ctx context.Context, conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	return conn.Ping(ctx)
}

// quoted is a setting's value in a statement.
func quoted(value string) string { return "'" + strings.ReplaceAll(value, "'", "''") + "'" }
