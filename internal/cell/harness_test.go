package cell

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// busyTimeout bounds what tests wait for: on a busy machine it takes longer than users would wait.
const busyTimeout = time.Minute

// tryOpen opens a service on a database, which is closed at the end of the test.
func tryOpen(t *testing.T, db *pgtest.DB, number int) (*Service, error) {
	t.Helper()
	connections, err := pg.Open(t.Context(), pg.Config{URL: db.ServiceURL})
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Config{Database: connections, Number: number, QueryTimeout: busyTimeout})
	if err == nil {
		t.Cleanup(func() {
			if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
	return s, err
}

// open is tryOpen that must succeed.
func open(t *testing.T, db *pgtest.DB, number int) *Service {
	t.Helper()
	s, err := tryOpen(t, db, number)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// clone makes a clone of a database, which nobody may be connected to, until the end of the test. It returns what makes the URL of a database that of its clone.
func clone(t *testing.T, db *pgtest.DB) (url func(string) string, name string) {
	t.Helper()
	cfg, err := pgx.ParseConfig(db.AdminURL)
	if err != nil {
		t.Fatal(err)
	}
	original := cfg.Database
	name = original[:min(len(original), 50)] + "_clone"
	cfg.Database = "postgres"
	ctx := context.WithoutCancel(t.Context())
	admin, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	owner := pgtest.Query[string](t, admin, `select pg_get_userbyid(datdba)::text from pg_database where datname = $1`, original)
	for _, statement := range []string{
		fmt.Sprintf(`select pg_terminate_backend(pid, 10000) from pg_stat_activity where datname = '%s'`, original),
		fmt.Sprintf(`create database "%s" template "%s" owner "%s"`, name, original, owner),
	} {
		if _, err := admin.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		_, _ = admin.Exec(ctx, fmt.Sprintf(`drop database "%s" with (force)`, name))
		_ = admin.Close(ctx)
	})
	return func(url string) string { return strings.Replace(url, "/"+original, "/"+name, 1) }, name
}
