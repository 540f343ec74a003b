// Package pgtest gives every test a PostgreSQL database of its own, cloned from a template that
// is migrated once. A test package uses it through two lines:
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	db := pgtest.New(t) // in any test, parallel ones too
//
// The server is the one that QUEUED_TEST_DATABASE_URL names, or else one that is started for
// this test binary alone, of the flavour that QUEUED_TEST_FLAVOUR asks for. The command in the folder
// run starts one server for many test binaries. Without a server the tests fail.
package pgtest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// The environment that tests read.
const (
	EnvURL      = "QUEUED_TEST_DATABASE_URL"    // URL of a running server, whose user may create databases and roles
	EnvFlavour  = "QUEUED_TEST_FLAVOUR"         // flavour of the server to start: Plain (the default) or Timescale
	EnvLifetime = "QUEUED_TEST_SERVER_LIFETIME" // of the server at EnvURL: LifetimeOfTests; anything else: it stays
)

// LifetimeOfTests is the EnvLifetime of a server that ends with the tests, and every database with it.
const LifetimeOfTests = "tests"

const (
	startLimit = 2 * time.Minute // for a server and for the template, on a busy machine
	stopLimit  = 30 * time.Second
	cloneLimit = time.Minute
)

// DB is a database that belongs to one test. Its search_path is empty unless the session sets it.
type DB struct {
	// URL connects as the role that owns the database and the schema, and has no other right on the server: neither superuser,
	// nor allowed to make roles or databases. Operators of a managed PostgreSQL have such a role.
	URL string
	// ServiceURL connects as a role that may run the service and do nothing else: see agent.grant_service. In an Empty database it may
	// do nothing.
	ServiceURL string
	// AdminURL connects as the server's administrator, who may make roles.
	AdminURL string
}

// shared is the one server of this test binary, started when the first test asks for a database.
var shared struct {
	inMain   bool
	start    sync.Once
	server   *Server
	err      error
	template template
	private  bool // started by this process
}

// Main runs the tests of a package and exits: with their code, or with 1 when they passed but left
// goroutines behind or the server could not be stopped. It stops the server if it was started for them.
func Main(m *testing.M) {
	os.Exit(Run(m))
}

// Run does the same as Main, but returns the code, for packages that have more to clean up.
func Run(m *testing.M) int {
	shared.inMain = true
	code := m.Run()
	if shared.server != nil {
		if err := stopShared(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "pgtest:", err)
			code = max(code, 1)
		}
	}
	// A failed test may well have been in the middle of something.
	if code == 0 {
		if err := goleak.Find(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "pgtest: the tests left goroutines behind:", err)
			code = 1
		}
	}
	return code
}

// New returns a database with the schema as this program's migration makes it, and no events. It is
// dropped at the end of the test, after whatever the test cleans up, whoever is connected; when the
// test failed it is kept, and its URL logged.
func New(tb testing.TB) *DB {
	tb.Helper()
	server := serverFor(tb)
	ctx, cancel := context.WithTimeout(tb.Context(), startLimit)
	defer cancel()
	if err := shared.template.make(ctx, server); err != nil {
		tb.Fatalf("making the template database: %s", err)
	}
	return newDB(tb, server, shared.template.name())
}

// Empty is like New, but there is nothing in the database: no schema, no extension.
func Empty(tb testing.TB) *DB {
	tb.Helper()
	return newDB(tb, serverFor(tb), "template0")
}

// Flavour returns the flavour that the tests run on: Plain or Timescale. It panics when there is no server.
func Flavour() string {
	server, err := sharedServer()
	if err != nil {
		panic(err)
	}
	return server.Flavour
}

// EachFlavour says that TimescaleDB can change what a test sees, mostly of the history of events. It does nothing: make test-timescale runs
// the tests that call it in their first line, and no others. Every night all tests are run on both flavours.
func EachFlavour(testing.TB) {}

// EnvNightly is set for the tests that make test-nightly runs beside the others: see Nightly.
const EnvNightly = "QUEUED_TEST_NIGHTLY"

// IsNightly reports whether tests may take minutes.
func IsNightly() bool { return os.Getenv(EnvNightly) != "" }

// Nightly says that a test repeats something for long, or tests another test by a product that is broken on purpose. It is skipped except by
// make test-nightly.
func Nightly(tb testing.TB) {
	tb.Helper()
	if !IsNightly() {
		tb.Skip("every night only: make test-nightly, or " + EnvNightly + "=1")
	}
}

// WithoutRaceDetector says that a test computes much in one goroutine, where the race detector finds nothing and makes it ten times as
// slow. With the race detector it is skipped.
func WithoutRaceDetector(tb testing.TB) {
	tb.Helper()
	if HasRaceDetector {
		tb.Skip("computes much in one goroutine: it is run without the race detector")
	}
}

func newDB(tb testing.TB, server *Server, template string) *DB {
	tb.Helper()
	name := databaseName(tb.Name())
	ctx, cancel := context.WithTimeout(tb.Context(), cloneLimit)
	defer cancel()
	if err := server.clone(ctx, name, template); err != nil {
		tb.Fatalf("making a database for the test: %s", err)
	}
	if template == shared.template.name() {
		if err := server.begin(ctx, name); err != nil {
			tb.Fatalf("making the test's database one of its own: %s", err)
		}
	}
	db := &DB{URL: patient(server.ownerURL(name)), AdminURL: patient(server.urlOf(name))}
	db.ServiceURL = AsService(db.URL)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Log(keptDatabaseHint(server, name, tb.Name()))
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), cloneLimit)
		defer cancel()
		if err := server.drop(ctx, name); err != nil {
			tb.Errorf("dropping the test's database: %s", err)
		}
	})
	noteTimes(tb, server, name)
	return db
}

// keptDatabaseHint returns where the database of a failed test is, or how to keep it the next time.
func keptDatabaseHint(server *Server, database, test string) string {
	if !shared.private && os.Getenv(EnvLifetime) != LifetimeOfTests {
		return fmt.Sprintf("the database of this test is kept: psql %q", server.urlOf(database))
	}
	dir, err := os.Getwd() // go test runs a package's tests in its folder
	if err != nil {
		dir = "PACKAGE"
	}
	return fmt.Sprintf("the database of this test, %s, ends with the server of this run. To keep it and look into it:\n"+
		"\tgo run ./internal/pgtest/run -flavour %s -keep -- go test -run '^%s$' %s", server.urlOf(database), server.Flavour, test, dir)
}

func serverFor(tb testing.TB) *Server {
	tb.Helper()
	if !shared.inMain {
		tb.Fatal("pgtest needs `func TestMain(m *testing.M) { pgtest.Main(m) }` in this package")
	}
	server, err := sharedServer()
	if err != nil {
		tb.Fatalf("no PostgreSQL to test on: %s", err)
	}
	return server
}

func sharedServer() (*Server, error) {
	shared.start.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		if url := os.Getenv(EnvURL); url != "" {
			shared.server, shared.err = Attach(ctx, url)
			return
		}
		flavour := os.Getenv(EnvFlavour)
		if flavour == "" {
			flavour = Plain
		}
		if shared.server, shared.err = Start(ctx, flavour); shared.err == nil {
			shared.private = true
			stopOnSignal()
		}
	})
	return shared.server, shared.err
}

// interrupted receives signals that would end this process without stopping its server.
var interrupted = make(chan os.Signal, 1)

// stopOnSignal makes an interrupted run stop its server before it ends the way it would have.
func stopOnSignal() {
	signal.Notify(interrupted, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		sig, ok := <-interrupted
		if !ok {
			return
		}
		signal.Reset()
		if err := stopServer(); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, "pgtest:", err)
		}
		if own, err := os.FindProcess(os.Getpid()); err == nil {
			_ = own.Signal(sig)
		}
	}()
}

func stopShared() error {
	signal.Stop(interrupted)
	close(interrupted)
	return stopServer()
}

func stopServer() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopLimit)
	defer cancel()
	return shared.server.Stop(ctx)
}

// Disconnect ends every connection to the database and refuses new ones, until the end of the test.
func (db *DB) Disconnect(tb testing.TB) {
	tb.Helper()
	cfg, err := pgx.ParseConfig(db.URL)
	if err != nil {
		tb.Fatal(err)
	}
	database := cfg.Database
	cfg.Database = "postgres"
	ctx := context.WithoutCancel(tb.Context())
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	name := pgx.Identifier{database}.Sanitize()
	if _, err := conn.Exec(ctx, "alter database "+name+" allow_connections false"); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_, _ = conn.Exec(ctx, "alter database "+name+" allow_connections true")
		_ = conn.Close(ctx)
	})
	// The administrator, whose connections the owner cannot end, is about to leave, and so is autovacuum.
	const end = `select pg_terminate_backend(a.pid) from pg_stat_activity a join pg_roles r on r.oid = a.usesysid where a.datname = $1 and a.pid <> pg_backend_pid() and not r.rolsuper`
	if _, err := conn.Exec(ctx, end, database); err != nil {
		tb.Fatal(err)
	}
}

// Connect returns a connection of its own, which the test's end closes.
func Connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(tb.Context(), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// LockTables begins a transaction and locks every table of the schemas agent and agent_private. It starts anew when another session would wait for one of
// its locks while it waits for one of that session's.
func LockTables(tb testing.TB, conn *pgx.Conn) pgx.Tx {
	tb.Helper()
	tx, err := conn.Begin(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	_, err = tx.Exec(tb.Context(), `
		do $$
		declare
		  _table regclass;
		begin
		  loop
		    begin
		      for _table in
		        select c.oid from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
		        where n.nspname in ('agent', 'agent_private') and c.relkind in ('r', 'p')
		      loop
		        execute pg_catalog.format('lock table %s in access exclusive mode', _table);
		      end loop;
		      exit;
		    exception when deadlock_detected then null; -- which has released the locks
		    end;
		  end loop;
		end
		$$`)
	if err != nil {
		tb.Fatal(err)
	}
	return tx
}

// Query returns the single value of a statement.
func Query[T any](tb testing.TB, conn *pgx.Conn, sql string, args ...any) T {
	tb.Helper()
	var v T
	if err := conn.QueryRow(tb.Context(), sql, args...).Scan(&v); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
	return v
}
