package migrate_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pgtest"
)

func TestSessionSettingsDoNotReachTheScripts(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	exec(t, connect(t, db), `
		create schema shadow;
		create function shadow.current_setting(text) returns text language sql as 'select ''shadowed''';
		do $$ begin
		  execute format('alter database %I set search_path to shadow, public, pg_catalog', current_database());
		  execute format('alter database %I set statement_timeout to ''1h''', current_database());
		  execute format('alter database %I set idle_in_transaction_session_timeout to ''1h''', current_database());
		  execute format('alter database %I set default_transaction_isolation to serializable', current_database());
		end $$`)
	settings := `create table %s as select current_setting('search_path') || ' ' || current_setting('statement_timeout')
		|| ' ' || current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('lock_timeout')
		|| ' ' || current_setting('transaction_isolation') as settings;
		set local search_path to public, agent`
	run(t, migrate.Config{DatabaseURL: db, Scripts: tree(
		"incremental/001-a.sql", fmt.Sprintf(settings, "agent.a"), "incremental/002-b.sql", fmt.Sprintf(settings, "agent.b"),
	)})
	conn := connect(t, db)
	for _, table := range []string{"agent.a", "agent.b"} {
		if got := query[string](t, conn, "select settings from "+table); got != `"" 0 0 10s read committed` {
			t.Errorf("the script that made %s saw the settings %s", table, got)
		}
	}
}

func TestDatabaseURLTakesBothForms(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	db := pgtest.Empty(t).URL
	cfg, err := pgx.ParseConfig(db)
	if err != nil {
		t.Fatal(err)
	}
	keywords := fmt.Sprintf("host='%s' port=%d user='%s' password='%s' dbname='%s' pool_max_conns=3", cfg.Host, cfg.Port, cfg.User, cfg.Password, cfg.Database)
	scripts := tree("incremental/001-a.sql", "create table agent.a as select current_setting('application_name') as name")
	run(t, migrate.Config{DatabaseURL: keywords, Scripts: scripts})
	if status := run(t, migrate.Config{DatabaseURL: db, Scripts: scripts}); status.Due() {
		t.Errorf("the URL and the keywords are not the same database: %+v", status)
	}
	if name := query[string](t, connect(t, db), "select name from agent.a"); name != "queued migrate" {
		t.Errorf("application_name is %q", name)
	}
}

func TestUnusableDatabaseIsToldWithoutThePassword(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	gone, err := url.Parse(pgtest.Empty(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	gone.Path = "/nothing_of_this_name"
	for name, c := range map[string]struct{ url, want string }{
		"nobody listens":      {"postgres://me:s3cret@127.0.0.1:1/events", "connection refused"},
		"no socket":           {"host=/nowhere user=me password=s3cret", "no such file or directory"},
		"no such database":    {gone.String(), "does not exist"},
		"password with /":     {"postgres://me:s3cr/s3cret@localhost/events", `the database URL: got a URL with an "@" where none belongs`},
		"password with %":     {"postgres://me:s3cret%zz@localhost/events", "the database URL: got a value that is not shown"},
		"password with blank": {"host=localhost password=a s3cret", "the database URL: got a value that is not shown"},
		"wrong sslmode":       {"postgres://me:s3cret@localhost/events?sslmode=maybe", "sslmode is invalid"},
		"other database":      {"mysql://me:s3cret@localhost/events", "the database URL: got a value that is not shown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := migrate.Check(t.Context(), migrate.Config{DatabaseURL: c.url})
			wantError(t, err, nil, c.want)
			if err != nil && (strings.Contains(err.Error(), "s3cr") || strings.Contains(err.Error(), "\n")) {
				t.Errorf("the error shows the password, or has several lines: %v", err)
			}
		})
	}
}

// withOption returns the URL of sessions that start with a setting.
func withOption(t *testing.T, db, name, value string) string {
	t.Helper()
	u, err := url.Parse(db)
	if err != nil {
		t.Fatal(err)
	}
	query := u.Query()
	query.Set("options", "-c "+name+"="+value)
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	return u.String()
}
