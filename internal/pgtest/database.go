package pgtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/sql"
)

// template is the migrated database that tests' databases are copies of. Test binaries on the same
// server share it: its name says which scripts made it, and it is marked as a template when
// it is complete. The zero value is of this program's scripts.
type template struct {
	suffix  string                                      // tells the templates of this package's own tests apart
	migrate func(ctx context.Context, url string) error // zero: migrate.Run

	mu   sync.Mutex
	done bool
}

func (tm *template) name() string {
	return "queued_template_" + sql.Digest()[:12] + "_roles" + tm.suffix
}

// make makes the database unless it is there and complete. One that is not complete, because its
// making was cut short, is made anew.
func (tm *template) make(ctx context.Context, server *Server) error {
	tm.mu.Lock()
	defer tm.mu.Unlock()
	if tm.done {
		return nil
	}
	err := server.admin(ctx, func(conn *pgx.Conn) error {
		// Held until the connection is closed, so that one process makes it and the others wait.
		if _, err := conn.Exec(ctx, `select pg_catalog.pg_advisory_lock(pg_catalog.hashtextextended($1, 0))`, tm.name()); err != nil {
			return err
		}
		var complete bool
		err := conn.QueryRow(ctx, `select exists (select from pg_catalog.pg_database where datname = $1 and datistemplate)`,
			tm.name()).Scan(&complete)
		if err != nil || complete {
			return err
		}
		return tm.makeAnew(ctx, server, conn)
	})
	tm.done = err == nil
	return err
}

func (tm *template) makeAnew(ctx context.Context, server *Server, conn *pgx.Conn) error {
	name := pgx.Identifier{tm.name()}.Sanitize()
	if err := server.makeRoles(ctx, conn); err != nil {
		return err
	}
	err := execAll(ctx, conn,
		"drop database if exists "+name+" with (force)",
		"create database "+name+" template template0 owner "+ownerRole,
		"alter database "+name+" set search_path = ''",
	)
	if err != nil {
		return err
	}
	run := tm.migrate
	if run == nil {
		run = func(ctx context.Context, url string) error {
			_, err := migrate.Run(ctx, migrate.Config{DatabaseURL: url})
			return err
		}
	}
	if err := run(ctx, server.ownerURL(tm.name())); err != nil {
		return err
	}
	if tm.migrate == nil {
		if err := server.grantService(ctx, tm.name()); err != nil {
			return err
		}
	}
	// Nobody may be connected to a database that is copied. TimescaleDB's scheduler has come by
	// itself; once the database is closed, it does not come back.
	if err := execAll(ctx, conn, "alter database "+name+" with allow_connections false"); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `select pg_catalog.pg_terminate_backend(pid, 10000) from pg_catalog.pg_stat_activity
		where datname = $1`, tm.name())
	if err != nil {
		return fmt.Errorf("ending the sessions in %s: %w", tm.name(), err)
	}
	return execAll(ctx, conn, "alter database "+name+" with is_template true")
}

// grantService lets the service's role run the service in a database, as its owner does it.
func (s *Server) grantService(ctx context.Context, database string) error {
	conn, err := pgx.Connect(ctx, s.ownerURL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return execAll(ctx, conn, "select agent.grant_service('"+serviceRole+"')")
}

// clone makes a database as a copy of another.
func (s *Server) clone(ctx context.Context, name, template string) error {
	return s.maintain(ctx, func(conn *pgx.Conn) error {
		if err := s.makeRoles(ctx, conn); err != nil {
			return err
		}
		database := pgx.Identifier{name}.Sanitize()
		// A copy of the files takes 15 ms of processor time, the default strategy, by way of the WAL, 44 ms.
		create := "create database " + database + " template " + pgx.Identifier{template}.Sanitize() + " owner " + ownerRole + " strategy file_copy"
		err := execAll(ctx, conn, create)
		// A background worker may still be about to leave.
		for tries := 0; isInUse(err) && tries < 20; tries++ {
			select {
			case <-ctx.Done():
				return err
			case <-time.After(100 * time.Millisecond):
				err = execAll(ctx, conn, create)
			}
		}
		if err != nil {
			return err
		}
		// A database's settings are not copied.
		return execAll(ctx, conn, "alter database "+database+" set search_path = ''")
	})
}

// begin makes a clone of the template a database that is no copy, as after a migration. Otherwise its log and its ids would move on, and
// background work would be suspended.
func (s *Server) begin(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, s.urlOf(name))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return execAll(ctx, conn, `update agent.log_server set place = pg_catalog.pg_relation_filepath('agent.log_server')`,
		`select pg_catalog.setval('agent.server_identity', 0), pg_catalog.setval('agent.server_mark', 0), agent_private.advance_sequences()`,
		`update agent.server s set database_oid = i.database_oid from agent_private.database_identity() i`)
}

func isInUse(err error) bool {
	var pgErr *pgconn.PgError
	return errors.As(err, &pgErr) && pgErr.Code == "55006" // object_in_use
}

// drop drops a database and ends the sessions in it.
func (s *Server) drop(ctx context.Context, name string) error {
	return s.maintain(ctx, func(conn *pgx.Conn) error {
		return execAll(ctx, conn, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)")
	})
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// databaseName returns a name that no other test has and that tells which test has it.
func databaseName(test string) string {
	const maxReadable = 63 - len("queued_test__") - 26 // PostgreSQL cuts names to 63 bytes; rand.Text has 26
	readable := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(test), "_"), "_")
	return fmt.Sprintf("queued_test_%.*s_%s", maxReadable, readable, strings.ToLower(rand.Text()))
}
