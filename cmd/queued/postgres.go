package main

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/embedded"
)

// postgresStopTimeout is how long PostgreSQL may take to write its last checkpoint.
const postgresStopTimeout = time.Minute

// database is the PostgreSQL a command works on: one that was there, or a private one.
type database struct {
	url    string
	about  string           // for people, without secrets
	server *embedded.Server // nil when it was there
}

// open finds the database these settings name, and starts it when they name none.
func (s *databaseSettings) open(ctx context.Context, src *source, logger zerolog.Logger) (*database, error) {
	url, err := s.url(src)
	if err != nil {
		return nil, err
	}
	if url != "" {
		return &database{url: url, about: describeDatabase(url)}, nil
	}
	dir, err := s.dir()
	if err != nil {
		return nil, err
	}
	server, err := embedded.Start(ctx, embedded.Config{DataDir: dir, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("the private PostgreSQL: %w", err)
	}
	return &database{url: server.URL(), about: "the private PostgreSQL in " + dir, server: server}, nil
}

// url is the database URL, wherever it was given; empty when it was not. It reads the file
// once: it may be a pipe.
func (s *databaseSettings) url(src *source) (string, error) {
	url, err := src.secret("database-url", s.DatabaseURL, s.DatabaseURLFile, parseDatabaseURL)
	if err == nil {
		s.DatabaseURL, s.DatabaseURLFile = url, ""
	}
	return url, err
}

// dir is where a private PostgreSQL has its data.
func (s *databaseSettings) dir() (string, error) {
	if s.DataDir != "" {
		return s.DataDir, nil
	}
	dir, err := embedded.DefaultDataDir()
	if err != nil {
		return "", usagef("%s, or QUEUED_DATABASE_URL to use a PostgreSQL that is there", err)
	}
	return dir, nil
}

// died is closed when a private PostgreSQL ends by itself; it is nil for any other.
func (d *database) died() <-chan struct{} {
	if d.server == nil {
		return nil
	}
	return d.server.Done()
}

// close stops a private PostgreSQL, with as much time as it needs even when ctx has ended.
func (d *database) close(ctx context.Context) error {
	if d.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), postgresStopTimeout)
	defer cancel()
	if err := d.server.Stop(ctx); err != nil {
		return fmt.Errorf("%w: the private PostgreSQL: %w", errUnclean, err)
	}
	return nil
}
