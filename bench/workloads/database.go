package workloads

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// database is the PostgreSQL behind a server, looked at from the side.
type database struct {
	config *pgx.ConnConfig
	conn   *pgx.Conn // for figures; workloads that measure open their own
}

// openDatabase connects to a database of queued's.
func openDatabase(ctx context.Context, config *pgx.ConnConfig) (*database, error) {
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("the database cannot be reached: %w", err)
	}
	db := &database{config: config, conn: conn}
	var version string
	if err := conn.QueryRow(ctx, `select version from agent.version`).Scan(&version); err != nil {
		db.close(ctx)
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) && (pgErr.Code == "42P01" || pgErr.Code == "3F000" || pgErr.Code == "42501") {
			return nil, fmt.Errorf("the database %q is not queued's, or not this user's to read: %s", config.Database, pgErr.Message)
		}
		return nil, err
	}
	return db, nil
}

// connect opens a further session. It must be closed.
func (db *database) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, db.config)
	if err != nil {
		return nil, fmt.Errorf("the database cannot be reached: %w", err)
	}
	return conn, nil
}

func (db *database) close(ctx context.Context) {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = db.conn.Close(closing)
}

// figures are counters of the database; differences of two say what happened between them.
type figures struct {
	wal     int64 // bytes, of the whole server
	commits int64 // of the database; sessions report them with a delay of up to a second
}

func (db *database) figures(ctx context.Context) (f figures, err error) {
	err = db.conn.QueryRow(ctx, `
		select (pg_current_wal_lsn() - '0/0')::int8, xact_commit
		from pg_stat_database where datname = current_database()`).Scan(&f.wal, &f.commits)
	return f, err
}

// version is PostgreSQL's own.
func (db *database) version(ctx context.Context) (version string, err error) {
	err = db.conn.QueryRow(ctx, `show server_version`).Scan(&version)
	return version, err
}

// cluster is a PostgreSQL server on which databases for measuring are made and dropped.
type cluster struct {
	config *pgx.ConnConfig
	text   string // the URL or the keywords that it was given by
}

func newCluster(databaseURL string) (*cluster, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return nil, errors.New("the database URL cannot be read")
	}
	return &cluster{config: config, text: databaseURL}, nil
}

// create makes an empty database and returns the URL of it.
func (c *cluster) create(ctx context.Context) (name, url string, err error) {
	name = "queued_bench_" + strings.ToLower(rand.Text()[:10])
	err = c.exec(ctx, "create database "+pgx.Identifier{name}.Sanitize())
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "42501" {
		return "", "", fmt.Errorf("the user of the database URL may not create databases, and what is measured gets one of its own: "+
			"allow it (alter role %s createdb), or measure a server that runs already (--url)", pgx.Identifier{c.config.User}.Sanitize())
	}
	if err != nil {
		return "", "", fmt.Errorf("creating a database to measure in: %w", err)
	}
	return name, withDatabase(c.text, name), nil
}

// drop removes a database that create made.
func (c *cluster) drop(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err := c.exec(ctx, "drop database "+pgx.Identifier{name}.Sanitize()+" with (force)"); err != nil {
		return fmt.Errorf("dropping the database %s: %w", name, err)
	}
	return nil
}

func (c *cluster) exec(ctx context.Context, statement string) error {
	conn, err := pgx.ConnectConfig(ctx, c.config)
	if err != nil {
		return fmt.Errorf("the database cannot be reached: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	_, err = conn.Exec(ctx, statement)
	return err
}

// withDatabase is a connection text with another database.
func withDatabase(text, name string) string {
	scheme, rest, isURL := strings.Cut(text, "://")
	if !isURL {
		return text + " dbname=" + name // the last one counts
	}
	rest, query, hasQuery := strings.Cut(rest, "?")
	host, _, _ := strings.Cut(rest, "/")
	text = scheme + "://" + host + "/" + name
	if hasQuery {
		text += "?" + query
	}
	return text
}
