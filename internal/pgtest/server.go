package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/embedded"
)

// The flavours of servers that the schema is made for.
const (
	Plain     = "plain"     // PostgreSQL as it comes
	Timescale = "timescale" // with TimescaleDB preloaded
)

// Server is a PostgreSQL to run tests on.
type Server struct {
	URL     string // connects to a database to create others from
	Flavour string // Plain or Timescale

	stopOnce sync.Once
	stop     func(context.Context) error
	stopErr  error

	mu       sync.Mutex  // guards the fields below
	idle     []*pgx.Conn // of maintain
	hasRoles bool
}

// Start starts a server of the flavour that may lose its data in a crash, and keeps them in memory where it can: Plain from the machine's
// binaries, in a temporary directory; Timescale as a container of the image that build/images makes. Stop ends it. If this process is killed
// before, a plain server ends with it (on Linux), a container within hours.
func Start(ctx context.Context, flavour string) (*Server, error) {
	return start(ctx, flavour, disposable)
}

// StartDurable starts a server as Start does, but one that keeps every commit through a crash: one to measure on.
func StartDurable(ctx context.Context, flavour string) (*Server, error) {
	return start(ctx, flavour, durable)
}

func start(ctx context.Context, flavour string, kept durability) (*Server, error) {
	switch flavour {
	case Plain:
		return startPlain(ctx, kept)
	case Timescale:
		return startTimescale(ctx, kept)
	default:
		return nil, fmt.Errorf("%s: no such flavour %q: it is %s or %s", EnvFlavour, flavour, Plain, Timescale)
	}
}

// Attach returns the running server at a URL, which Stop leaves alone.
func Attach(ctx context.Context, rawURL string) (*Server, error) {
	if parsed, err := url.Parse(rawURL); err != nil || parsed.Scheme != "postgres" && parsed.Scheme != "postgresql" {
		return nil, fmt.Errorf("%s: want a URL that begins with postgres://", EnvURL)
	}
	s := &Server{URL: rawURL, Flavour: Plain}
	err := s.admin(ctx, func(conn *pgx.Conn) error {
		// Of TimescaleDB's settings this one is there as soon as the library is preloaded, before any
		// database has the extension, and everyone may see it.
		var preloaded bool
		err := conn.QueryRow(ctx, `select exists (select from pg_catalog.pg_settings
			where name = 'timescaledb.max_background_workers')`).Scan(&preloaded)
		if preloaded {
			s.Flavour = Timescale
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", EnvURL, err)
	}
	return s, nil
}

// Stop closes the connections of s, and ends a server that Start has started, with all its databases, whoever is connected. A call on a
// stopped server returns the result of the first one.
func (s *Server) Stop(ctx context.Context) error {
	s.stopOnce.Do(func() {
		s.closeIdle(ctx)
		if s.stop != nil {
			s.stopErr = s.stop(ctx)
		}
	})
	return s.stopErr
}

// maxConnections is enough for several test binaries at once, one of which starts ten programs, each with all its pools.
const maxConnections = "1000"

// durability is which data of a server survive a crash: nothing that anyone relies on, or every commit.
type durability bool

const (
	disposable durability = false
	durable    durability = true
)

// settings returns those that make commits durable, as PostgreSQL's defaults do, or those that make a database per test cheap. preloaded are the
// libraries that the flavour needs.
func (d durability) settings(preloaded ...string) map[string]string {
	value := "off"
	if d == durable {
		value = "on"
	} else {
		// A session of a test calls a few functions and ends. A tenth of its processor time would be the loading of this library.
		preloaded = append(preloaded, "plpgsql")
	}
	return map[string]string{
		"shared_preload_libraries": strings.Join(preloaded, ","),

		"fsync":              value,
		"full_page_writes":   value,
		"synchronous_commit": value,
		"max_connections":    maxConnections,

		"max_prepared_transactions": "20",
	}
}

func startPlain(ctx context.Context, kept durability) (*Server, error) {
	base := os.TempDir()
	if kept == disposable {
		base = fastBase()
	}
	dir, err := newDirectory(base)
	if err != nil {
		return nil, err
	}
	server, err := embedded.Start(ctx, embedded.Config{
		DataDir:  filepath.Join(dir.path, "data"),
		Settings: kept.settings(),
		Logger:   zerolog.New(os.Stderr).Level(zerolog.WarnLevel),
	})
	if err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	return &Server{
		URL:     server.URL(),
		Flavour: Plain,
		stop: func(ctx context.Context) error {
			if err := server.Stop(ctx); err != nil {
				return err
			}
			return dir.remove()
		},
	}, nil
}

// arguments returns settings the way the postgres program takes them.
func arguments(settings map[string]string) []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// urlOf returns the URL of another database on the server.
func (s *Server) urlOf(database string) string {
	u, err := url.Parse(s.URL)
	if err != nil {
		panic(err) // Attach has looked, and Start makes its own
	}
	u.Path = "/" + database
	// In a URL without a host the database may stand in the query as well, and would win.
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String()
}

// The roles of tests, on every server: who owns the databases, and who runs the service in them. They have no other right; the password guards nothing.
const (
	ownerRole    = "queued_test_owner"
	serviceRole  = "queued_test_service"
	rolePassword = "pgtest"
)

// ownerURL returns the URL of a database on the server for the role that owns it.
func (s *Server) ownerURL(database string) string { return asRole(ownerRole, s.urlOf(database)) }

// AsService returns the URL of a test's database for the role that may run the service and do nothing else: see agent.grant_service.
func AsService(databaseURL string) string { return asRole(serviceRole, databaseURL) }

func asRole(role, databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		panic(err) // a Server made it
	}
	u.User = url.UserPassword(role, rolePassword)
	query := u.Query() // which may name the user as well, and would win
	query.Del("user")
	query.Del("password")
	u.RawQuery = query.Encode()
	return u.String()
}

// patient returns a database's URL with a connect_timeout that a busy machine keeps. Without it a connection may take pg.ConnectTimeout, which is for users.
func patient(databaseURL string) string {
	u, err := url.Parse(databaseURL)
	if err != nil {
		panic(err) // a Server made it
	}
	query := u.Query()
	query.Set("connect_timeout", "60")
	u.RawQuery = query.Encode()
	return u.String()
}

// makeRoles makes the roles of tests, unless they are known to be there.
func (s *Server) makeRoles(ctx context.Context, conn *pgx.Conn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hasRoles {
		return nil
	}
	err := execAll(ctx, conn, `do $do$
		begin
			perform pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('`+ownerRole+`', 0));
			if not exists (select from pg_catalog.pg_roles where rolname = '`+ownerRole+`') then
				create role `+ownerRole+` login password '`+verifier(rolePassword)+`';
			end if;
			if not exists (select from pg_catalog.pg_roles where rolname = '`+serviceRole+`') then
				create role `+serviceRole+` login password '`+verifier(rolePassword)+`';
				grant `+serviceRole+` to `+ownerRole+`; -- that tests may see and end its sessions
			end if;
		end
		$do$`)
	s.hasRoles = err == nil
	return err
}

// admin calls f with a connection to the server's own database.
func (s *Server) admin(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.URL)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// maintain calls f with a connection as admin does, but keeps it for the next call: a test makes two, and to connect costs as much as a tenth of making
// a database.
func (s *Server) maintain(ctx context.Context, f func(*pgx.Conn) error) error {
	conn := s.takeIdle()
	if conn == nil {
		var err error
		if conn, err = pgx.Connect(ctx, s.URL); err != nil {
			return err
		}
	}
	err := f(conn)
	if err == nil && s.putIdle(conn) {
		return nil
	}
	_ = conn.Close(context.WithoutCancel(ctx))
	return err
}

// maxIdle is how many connections wait for the next call of maintain: as many tests as make test runs at a time in one test binary.
const maxIdle = 4

func (s *Server) takeIdle() *pgx.Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.idle) > 0 {
		conn := s.idle[len(s.idle)-1]
		s.idle = s.idle[:len(s.idle)-1]
		if !conn.IsClosed() {
			return conn
		}
	}
	return nil
}

func (s *Server) putIdle(conn *pgx.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) == maxIdle {
		return false
	}
	s.idle = append(s.idle, conn)
	return true
}

func (s *Server) closeIdle(ctx context.Context) {
	for conn := s.takeIdle(); conn != nil; conn = s.takeIdle() {
		_ = conn.Close(ctx)
	}
}

// execAll runs statements in order, up to the first that fails.
func execAll(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimSpace(statement), err)
		}
	}
	return nil
}
