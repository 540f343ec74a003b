package pgtest

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/sql"
)

func TestMain(m *testing.M) { Main(m) }

func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// query returns the one value that a query selects.
func query[T any](t *testing.T, conn *pgx.Conn, query string, args ...any) T {
	t.Helper()
	var value T
	if err := conn.QueryRow(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %s", query, err)
	}
	return value
}

func databaseExists(t *testing.T, name string) bool {
	t.Helper()
	conn := connect(t, serverFor(t).URL)
	return query[bool](t, conn, "select exists (select from pg_catalog.pg_database where datname = $1)", name)
}

func TestParallelTestsSeeOnlyTheirOwnEvents(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"one", "two", "three", "four"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := connect(t, New(t).URL)
			for range 10 {
				if _, err := conn.Exec(t.Context(), "select agent.insert_event(pg_catalog.jsonb_build_object('from', $1::text))", name); err != nil {
					t.Fatal(err)
				}
			}
			if got := query[int](t, conn, "select pg_catalog.count(*) from agent.event where event->>'from' = $1", name); got != 10 {
				t.Errorf("own events: got %d, want 10", got)
			}
			if got := query[int](t, conn, "select pg_catalog.count(*) from agent.event"); got != 10 {
				t.Errorf("all events: got %d, want 10", got)
			}
		})
	}
}

func TestNewDatabaseIsMigratedToThisProgramsVersion(t *testing.T) {
	t.Parallel()
	conn := connect(t, New(t).URL)
	if got := query[string](t, conn, "select version from agent.version"); got != sql.Version() {
		t.Errorf("got version %s, want %s", got, sql.Version())
	}
}

func TestEmptyDatabaseHoldsNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, Empty(t).URL)
	if got := query[int](t, conn, "select pg_catalog.count(*) from pg_catalog.pg_namespace where nspname = 'agent'"); got != 0 {
		t.Error("there is a schema agent")
	}
	if got := query[int](t, conn, "select pg_catalog.count(*) from pg_catalog.pg_extension where extname <> 'plpgsql'"); got != 0 {
		t.Errorf("there are %d extensions", got)
	}
}

func TestSearchPathIsEmptyUnlessTheSessionSetsIt(t *testing.T) {
	t.Parallel()
	for name, db := range map[string]*DB{"migrated": New(t), "empty": Empty(t)} {
		if got := query[string](t, connect(t, db.URL), "select pg_catalog.array_to_string(pg_catalog.current_schemas(false), ',')"); got != "" {
			t.Errorf("%s: search_path finds %s", name, got)
		}
	}
}

func TestFlavourIsWhatTheServerHas(t *testing.T) {
	t.Parallel()
	conn := connect(t, New(t).URL)
	hypertables := 0
	if query[bool](t, conn, "select exists (select from pg_catalog.pg_extension where extname = 'timescaledb')") {
		hypertables = query[int](t, conn, "select pg_catalog.count(*) from timescaledb_information.hypertables where hypertable_schema = 'agent'")
	}
	want := 0
	if Flavour() == Timescale {
		want = 1
	}
	if hypertables != want {
		t.Errorf("flavour %s: got %d hypertables, want %d", Flavour(), hypertables, want)
	}
	if asked := os.Getenv(EnvFlavour); asked != "" && asked != Flavour() {
		t.Errorf("asked for flavour %s, got %s", asked, Flavour())
	}
}

func TestDatabaseIsDroppedAfterItsTestWhoeverIsConnected(t *testing.T) {
	t.Parallel()
	var name string
	t.Run("test", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), New(t).URL) // left open on purpose
		if err != nil {
			t.Fatal(err)
		}
		name = conn.Config().Database
	})
	if databaseExists(t, name) {
		t.Errorf("%s is still there", name)
	}
}

func TestTemplateIsMadeAnewAfterAFailure(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	broken := errors.New("broken on purpose")
	tm := &template{suffix: "_" + t.Name(), migrate: func(ctx context.Context, url string) error {
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		return errors.Join(execAll(ctx, conn, "create table public.half ()"), broken)
	}}
	t.Cleanup(func() { dropTemplate(t, server, tm) })
	if err := tm.make(t.Context(), server); !errors.Is(err, broken) {
		t.Fatalf("got error %v, want the migration's", err)
	}

	// As another test binary would, which finds what the first has left.
	var runs int
	again := &template{suffix: tm.suffix, migrate: func(ctx context.Context, url string) error {
		runs++
		conn, err := pgx.Connect(ctx, url)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close(ctx) }()
		return execAll(ctx, conn, "create table public.half ()") // fails in a database that has it
	}}
	for range 2 {
		if err := again.make(t.Context(), server); err != nil {
			t.Fatal(err)
		}
	}
	if runs != 1 {
		t.Errorf("migrated %d times, want once", runs)
	}
	connect(t, newDB(t, server, again.name()).URL)
}

func TestTemplateIsMadeOnceByManyAtTheSameTime(t *testing.T) {
	t.Parallel()
	server := serverFor(t)
	var mu sync.Mutex
	runs := 0
	suffix := "_" + t.Name()
	t.Cleanup(func() { dropTemplate(t, server, &template{suffix: suffix}) })
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			tm := &template{suffix: suffix, migrate: func(context.Context, string) error {
				mu.Lock()
				defer mu.Unlock()
				runs++
				return nil
			}}
			if err := tm.make(t.Context(), server); err != nil {
				t.Error(err)
				return
			}
			name := databaseName(t.Name())
			if err := errors.Join(server.clone(t.Context(), name, tm.name()), server.drop(t.Context(), name)); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if runs != 1 {
		t.Errorf("migrated %d times, want once", runs)
	}
}

func dropTemplate(t *testing.T, server *Server, tm *template) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	err := server.admin(ctx, func(conn *pgx.Conn) error {
		name := pgx.Identifier{tm.name()}.Sanitize()
		return execAll(ctx, conn, "alter database "+name+" with is_template false", "drop database "+name+" with (force)")
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDatabaseNamesFitAndDiffer(t *testing.T) {
	t.Parallel()
	for _, test := range []string{"TestX", "TestX/Ünïcode \"quoted\" / and so on, " + strings.Repeat("very ", 30) + "long", "", "///"} {
		a, b := databaseName(test), databaseName(test)
		if a == b {
			t.Errorf("%q: both are %s", test, a)
		}
		if len(a) > 63 {
			t.Errorf("%q: %s has %d bytes, PostgreSQL takes 63", test, a, len(a))
		}
	}
}

func TestURLOfKeepsAllButTheDatabase(t *testing.T) {
	t.Parallel()
	for from, want := range map[string]string{
		"postgres://u:p%40@h:1/a?sslmode=disable":        "postgres://u:p%40@h:1/x?sslmode=disable",
		"postgres://u@/a?host=%2Ftmp%2Fs":                "postgres://u@/x?host=%2Ftmp%2Fs",
		"postgresql:///?dbname=a&host=%2Ftmp%2Fs&user=u": "postgresql:///x?host=%2Ftmp%2Fs&user=u",
	} {
		got := (&Server{URL: from}).urlOf("x")
		if got != want {
			t.Errorf("%s: got %s, want %s", from, got, want)
		}
		if config, err := pgx.ParseConfig(got); err != nil || config.Database != "x" {
			t.Errorf("%s: pgx reads database %v, error %v", got, config, err)
		}
	}
}

func TestAttachRefusesWhatIsNoURL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"host=/tmp dbname=x", "http://127.0.0.1/", "://"} {
		if _, err := Attach(t.Context(), url); err == nil || !strings.Contains(err.Error(), EnvURL) {
			t.Errorf("%s: got error %v, want one that names %s", url, err, EnvURL)
		}
	}
}

func TestStartRefusesAnUnknownFlavour(t *testing.T) {
	t.Parallel()
	if _, err := Start(t.Context(), "vanilla"); err == nil || !strings.Contains(err.Error(), `"vanilla"`) {
		t.Errorf("got error %v, want one that names the flavour", err)
	}
}
