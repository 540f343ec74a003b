package workloads

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/bench/report"
)

// Postgres is a PostgreSQL server on which databases are made and dropped.
type Postgres struct {
	config *pgx.ConnConfig
	text   string // the URL or the keywords that it was given by
}

// NewPostgres takes the URL of any database on the server.
func NewPostgres(databaseURL string) (*Postgres, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, Invalidf("--database-url: got a value that is not shown, as it may hold a password; expected a URL such as postgres://…")
	}
	return &Postgres{config: config, text: databaseURL}, nil
}

// Create makes an empty database and returns the URL of it.
func (p *Postgres) Create(ctx context.Context) (name, url string, err error) {
	name = "queued_bench_" + strings.ToLower(rand.Text()[:10])
	// From template0: nothing of the server's owner is in it.
	err = p.Exec(ctx, "", "create database "+pgx.Identifier{name}.Sanitize()+" template template0")
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		return "", "", fmt.Errorf("the user of the database URL may not create databases, and what is measured gets one of its own: "+
			"allow it (alter role %s createdb), or measure a server that runs already (--url)", pgx.Identifier{p.config.User}.Sanitize())
	}
	if err != nil {
		return "", "", fmt.Errorf("creating a database to measure in: %w", err)
	}
	return name, p.URL(name), nil
}

// Drop removes a database, whoever is connected and whether or not ctx has ended.
func (p *Postgres) Drop(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err := p.Exec(ctx, "", "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)"); err != nil {
		return fmt.Errorf("dropping the database %s: %w", name, err)
	}
	return nil
}

// Checkpoint writes out the dirty pages of earlier runs, so that no run pays for another's.
func (p *Postgres) Checkpoint(ctx context.Context) error { return p.Exec(ctx, "", checkpointStatement) }

// Exec runs statements in a database; the empty name is that of the server's URL.
func (p *Postgres) Exec(ctx context.Context, database, statements string) error {
	conn, err := connect(ctx, p.URL(database))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.PgConn().Exec(ctx, statements).ReadAll()
	return err
}

// URL is the server's with another database.
func (p *Postgres) URL(database string) string {
	if database == "" {
		return p.text
	}
	scheme, rest, isURL := strings.Cut(p.text, "://")
	if !isURL {
		return p.text + " dbname=" + database // the last one counts
	}
	rest, query, hasQuery := strings.Cut(rest, "?")
	host, _, _ := strings.Cut(rest, "/")
	if hasQuery {
		query = "?" + query
	}
	return scheme + "://" + host + "/" + database + query
}

// Describe notes in m the versions and the settings of the server.
func (p *Postgres) Describe(ctx context.Context, m *report.Machine) error {
	conn, err := connect(ctx, p.text)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return describe(ctx, conn, m)
}

// durability are the settings that make a commit last, and the values that they must have.
var durability = map[string][]string{
	"fsync":              {"on"},
	"full_page_writes":   {"on"},
	"synchronous_commit": {"on", "remote_apply"},
}

func describe(ctx context.Context, conn *pgx.Conn, m *report.Machine) error {
	if err := conn.QueryRow(ctx, versionsStatement).Scan(&m.PostgreSQL, &m.TimescaleDB); err != nil {
		return err
	}
	m.Settings, m.Unsafe = map[string]string{}, nil
	rows, err := conn.Query(ctx, settingsStatement)
	if err != nil {
		return err
	}
	var name, value string
	var changed bool
	_, err = pgx.ForEachRow(rows, []any{&name, &value, &changed}, func() error {
		if changed {
			m.Settings[name] = value
		}
		if want, ok := durability[name]; ok && !slices.Contains(want, value) {
			m.Unsafe = append(m.Unsafe, fmt.Sprintf("%s = %s", name, value))
		}
		return nil
	})
	slices.Sort(m.Unsafe)
	return err
}

func connect(ctx context.Context, url string) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("the database cannot be reached: %w", err)
	}
	return conn, nil
}

// database is the PostgreSQL database of a server of queued.
type database struct {
	url  string
	conn *pgx.Conn // for counters; workloads that measure open their own
}

func openDatabase(ctx context.Context, url string) (*database, error) {
	conn, err := connect(ctx, url)
	if err != nil {
		return nil, err
	}
	db := &database{url: url, conn: conn}
	if _, err := conn.Exec(ctx, schemaStatement); err != nil {
		db.close(ctx)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && slices.Contains([]string{"42P01", "3F000", "42501"}, pgErr.Code) {
			return nil, fmt.Errorf("the database %q is not one of queued, or this user may not read it: %s", conn.Config().Database, pgErr.Message)
		}
		return nil, err
	}
	return db, nil
}

// connect opens a further session. It must be closed.
func (db *database) connect(ctx context.Context) (*pgx.Conn, error) { return connect(ctx, db.url) }

func (db *database) close(ctx context.Context) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = db.conn.Close(closing)
}

// sizes is how large the tables are, in MiB, and how many dead rows PostgreSQL knows of.
func (db *database) sizes(ctx context.Context) (map[string]float64, error) {
	const mib = 1 << 20
	var table, indexes, total, history, dead float64
	if err := db.conn.QueryRow(ctx, sizesStatement).Scan(&table, &indexes, &total, &history, &dead); err != nil {
		return nil, fmt.Errorf("asking for the sizes of the tables: %w", err)
	}
	return map[string]float64{
		"event_table_mib": table / mib, "event_indexes_mib": indexes / mib, "event_total_mib": total / mib,
		"history_total_mib": history / mib, "event_dead_rows": dead,
	}, nil
}
