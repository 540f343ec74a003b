package suite

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5"
)

// server is the one database server that everything runs on.
type server struct{ url string }

// urlOf returns the URL of a database on the server.
func (s *server) urlOf(database string) (string, error) {
	u, err := url.Parse(s.url)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return "", fmt.Errorf("--database-url: want a URL that begins with postgres://")
	}
	u.Path = "/" + database
	query := u.Query()
	query.Del("dbname")
	query.Del("database")
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// with calls f with a connection to a database; the empty name is the server's own.
func (s *server) with(ctx context.Context, database string, f func(*pgx.Conn) error) error {
	target := s.url
	if database != "" {
		var err error
		if target, err = s.urlOf(database); err != nil {
			return err
		}
	}
	conn, err := pgx.Connect(ctx, target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// fresh makes an empty database, in place of one that an earlier run has left, and returns its URL.
func (s *server) fresh(ctx context.Context, name string) (string, error) {
	if err := s.drop(ctx, name); err != nil {
		return "", err
	}
	err := s.with(ctx, "", func(conn *pgx.Conn) error {
		// From template0: nothing of the server's owner is in it.
		_, err := conn.Exec(ctx, "create database "+pgx.Identifier{name}.Sanitize()+" template template0")
		return err
	})
	if err != nil {
		return "", fmt.Errorf("making a database: %w", err)
	}
	return s.urlOf(name)
}

func (s *server) drop(ctx context.Context, name string) error {
	return s.with(ctx, "", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "drop database if exists "+pgx.Identifier{name}.Sanitize()+" with (force)")
		return err
	})
}

// settle writes out what earlier runs have left behind, so that every run begins with the same debt: none.
func (s *server) settle(ctx context.Context) error {
	return s.with(ctx, "", func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "checkpoint")
		return err
	})
}

// execScript runs a file of statements in a database.
func (s *server) execScript(ctx context.Context, database, script string) error {
	return s.with(ctx, database, func(conn *pgx.Conn) error {
		results := conn.PgConn().Exec(ctx, script)
		_, err := results.ReadAll()
		return err
	})
}

// databaseName makes the name of a part's database.
func databaseName(part string) string {
	return "queued_bench_" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, part)
}
