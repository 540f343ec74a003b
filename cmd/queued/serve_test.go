package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/sql"
)

func TestEventIsInsertedClaimedAndAcked(t *testing.T) {
	t.Parallel()
	p := setup(t)
	p.wantReady()
	posted := p.want(http.StatusCreated, http.MethodPost, "/events", `{"hello":"world"}`).decode(t)
	event := p.claimOne()
	if event["id"] != posted["id"] || fmt.Sprint(event["event"]) != "map[hello:world]" {
		t.Errorf("posted %v, claimed %v", posted, event)
	}
	path := fmt.Sprintf("/events/%.0f", event["id"])
	p.want(http.StatusNoContent, http.MethodDelete, path+"?receipt="+url.QueryEscape(event["receipt"].(string)), "")
	if got := p.want(http.StatusOK, http.MethodGet, path, "").decode(t)["outcome"]; got != "done" {
		t.Errorf("the outcome is %v, want done", got)
	}
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func TestEventsSurviveARestart(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	first := serve(t, nil, "QUEUED_DATABASE_URL="+db.ServiceURL)
	first.want(http.StatusCreated, http.MethodPost, "/events", `{"n":1}`)
	first.signal(syscall.SIGINT)
	if code := first.wait(); code != exitOK {
		t.Errorf("exit code %d after SIGINT", code)
	}
	second := serve(t, []string{"serve"}, "QUEUED_DATABASE_URL="+db.ServiceURL)
	second.claimOne()
}

func TestEveryCallExceptHealthNeedsTheKey(t *testing.T) {
	t.Parallel()
	const key = "s3cr3t-k3y-of-tests"
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, given := range map[string]string{"variable": "QUEUED_API_KEY=" + key, "file": "QUEUED_API_KEY_FILE=" + path} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := setup(t, "QUEUED_LISTEN=:0", given)
			_, port, err := net.SplitHostPort(p.addr)
			if err != nil {
				t.Fatal(err)
			}
			p.addr = net.JoinHostPort("127.0.0.1", port)
			p.want(http.StatusOK, http.MethodGet, "/livez", "")
			p.wantReady()
			p.want(http.StatusUnauthorized, http.MethodPost, "/events", `{}`)
			p.want(http.StatusUnauthorized, http.MethodPost, "/events", `{}`, "Authorization: Bearer wrong")
			p.want(http.StatusUnauthorized, http.MethodGet, "/metrics", "")
			p.want(http.StatusCreated, http.MethodPost, "/events", `{}`, "Authorization: Bearer "+key)
		})
	}
}

func TestSecretsAreNotLogged(t *testing.T) {
	t.Parallel()
	const key, password = "s3cr3t-k3y-of-tests", "hunter2-hunter2"
	db, err := url.Parse(pgtest.New(t).ServiceURL)
	if err != nil {
		t.Fatal(err)
	}
	// A server that asks for a password refuses this one, which must not be logged either.
	query := db.Query()
	query.Set("sslpassword", password)
	right := *db
	right.RawQuery = query.Encode()
	p := serve(t, nil, "QUEUED_DATABASE_URL="+right.String(), "QUEUED_API_KEY="+key, "QUEUED_LOG_LEVEL=trace")
	p.want(http.StatusCreated, http.MethodPost, "/events", `{}`, "Authorization: Bearer "+key)
	p.want(http.StatusUnauthorized, http.MethodPost, "/events", `{}`, "Authorization: Bearer "+key+"x")
	p.signal(syscall.SIGTERM)
	p.wait()

	wrong := *db
	wrong.User = url.UserPassword("nobody-of-this-name", password)
	wrong.Path = "/no-database-of-this-name"
	wrong.RawQuery = "host=" + url.QueryEscape(filepath.Join(t.TempDir(), "nothing-here"))
	q := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + wrong.String(), "QUEUED_LOG_LEVEL=trace", "QUEUED_START_TIMEOUT=1s"})
	if code := q.wait(); code != exitFailure {
		t.Errorf("exit code %d without a database, want %d", code, exitFailure)
	}
	said := p.output() + q.output()
	for _, secret := range []string{key, password} {
		if strings.Contains(said, secret) {
			t.Errorf("the log holds %q", secret)
		}
	}
	if !strings.Contains(said, "no-database-of-this-name") {
		t.Error("the log does not say which database could not be used")
	}
}

func TestMisspeltVariableIsLogged(t *testing.T) {
	t.Parallel()
	p := setup(t, "QUEUED_MAX_ATTEMPT=9", "QUEUED_TEST_ANYTHING=1")
	warning := p.waitFor("this variable sets nothing; a typing error?")
	if warning["variable"] != "QUEUED_MAX_ATTEMPT" || warning["closest"] != "QUEUED_MAX_ATTEMPTS" {
		t.Errorf("the warning is %v", warning)
	}
	if strings.Contains(p.output(), "QUEUED_TEST_ANYTHING") {
		t.Error("a variable of the tests is warned about")
	}
}

func TestPortInUseFailsTheStartBeforeTheDatabaseIsUsed(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	listener, err := listen(t.Context(), "--listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	address := listener.Addr().String()
	p := startProgram(t, []string{"--listen", address}, []string{"QUEUED_DATABASE_URL=" + db.URL})
	if code := p.wait(); code != exitFailure {
		t.Errorf("exit code %d, want %d", code, exitFailure)
	}
	if want := "--listen: " + address + " is in use by another process"; !strings.Contains(p.output(), want) {
		t.Errorf("it does not say %q", want)
	}
	if got := schemaVersion(t, db.URL); got != "" {
		t.Errorf("the database is at %q", got)
	}
}

func TestTenProcessesStartedAtOnceMigrateOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.Empty(t)
	var programs [10]*program
	for i := range programs {
		programs[i] = startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + db.URL, "QUEUED_MAX_CONNS=2"})
	}
	migrated := 0
	for _, p := range programs {
		p.addr, _ = p.waitFor("serving")["addr"].(string)
		p.wantReady()
		migrated += strings.Count(p.output(), `"the schema is migrated"`)
	}
	if migrated != 1 {
		t.Errorf("%d processes migrated, want 1", migrated)
	}
	for _, p := range programs {
		p.signal(syscall.SIGTERM)
	}
	for _, p := range programs {
		if code := p.wait(); code != exitOK {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestHealthcheckUsesTheListenSetting(t *testing.T) {
	t.Parallel()
	p := setup(t, "QUEUED_API_KEY=a-key-of-the-tests")
	ready := startProgram(t, []string{"healthcheck"}, []string{"QUEUED_LISTEN=" + p.addr})
	if code := ready.wait(); code != exitOK || ready.stdout.String() != "ready\n" {
		t.Errorf("exit code %d, %q", code, ready.stdout.String())
	}
	p.signal(syscall.SIGTERM)
	p.wait()
	gone := startProgram(t, []string{"healthcheck"}, []string{"QUEUED_LISTEN=" + p.addr})
	if code := gone.wait(); code != exitFailure || !strings.Contains(gone.output(), "not ready") {
		t.Errorf("exit code %d, %q", code, gone.output())
	}
}

func TestWelcomeShowsTheFirstCalls(t *testing.T) {
	t.Parallel()
	p := startProgram(t, nil, []string{"QUEUED_DATABASE_URL=" + pgtest.New(t).ServiceURL, "QUEUED_LOG_FORMAT=console"})
	p.waitForLine("Ctrl-C", func(line string) bool { return strings.Contains(line, "Ctrl-C stops it") })
	said := p.output()
	for _, want := range []string{"queued is ready at http://127.0.0.1:", "/events", "/claim", "/docs", "/ui/"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not mention %s", want)
		}
	}
}

func TestVersionShowsSchemaAndGoVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"version"}, {"--version"}} {
		code, stdout, _ := runHere(t, args, nil)
		if code != exitOK || !strings.HasPrefix(stdout, "queued "+sql.Version()+"\ncommit ") || !strings.Contains(stdout, "\ngo1") {
			t.Errorf("%v: exit code %d, %q", args, code, stdout)
		}
	}
}

// connect returns a connection to a database.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// schemaVersion returns the version of a database's schema, empty when there is none.
func schemaVersion(t *testing.T, url string) (version string) {
	t.Helper()
	conn := connect(t, url)
	var there bool
	if err := conn.QueryRow(t.Context(), `select pg_catalog.to_regclass('agent.version') is not null`).Scan(&there); err != nil {
		t.Fatal(err)
	}
	if !there {
		return ""
	}
	if err := conn.QueryRow(t.Context(), `select version from agent.version`).Scan(&version); err != nil {
		t.Fatal(err)
	}
	return version
}
