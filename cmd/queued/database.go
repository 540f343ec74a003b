package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/embedded"
	"github.com/queued/queued/internal/pg"
)

// postgresStopTimeout bounds the stop of a private PostgreSQL, which writes a checkpoint.
const postgresStopTimeout = time.Minute

// database is the PostgreSQL of a command: the one of the database URL, or a private one.
type database struct {
	url     string
	about   string           // for logs and errors, without secrets
	dataDir string           // of a private one, else empty
	server  *embedded.Server // nil unless it is private, and of this process
}

// open returns the database of these settings, and starts it when it is a private one.
func (s *databaseSettings) open(ctx context.Context, logger zerolog.Logger) (*database, error) {
	if s.DatabaseURL != "" {
		return &database{url: s.DatabaseURL, about: pg.DescribeURL(s.DatabaseURL)}, nil
	}
	dir, err := s.dataDir()
	if err != nil {
		return nil, err
	}
	server, err := embedded.Start(ctx, embedded.Config{DataDir: dir, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("the private PostgreSQL: %w", err)
	}
	return &database{url: server.URL(), about: "the private PostgreSQL in " + dir, dataDir: dir, server: server}, nil
}

// openBeside is open also while another process runs the private PostgreSQL.
func (s *databaseSettings) openBeside(ctx context.Context, logger zerolog.Logger) (*database, error) {
	db, err := s.open(ctx, logger)
	if !errors.Is(err, embedded.ErrInUse) {
		return db, err
	}
	dir, err := s.dataDir()
	if err != nil {
		return nil, err
	}
	url, err := embedded.RunningURL(dir)
	if err != nil {
		return nil, err
	}
	return &database{url: url, about: "the private PostgreSQL in " + dir, dataDir: dir}, nil
}

// dataDir returns the data directory of a private PostgreSQL.
func (s *databaseSettings) dataDir() (string, error) {
	if s.DataDir != "" {
		return s.DataDir, nil
	}
	dir, err := embedded.DefaultDataDir()
	if err != nil {
		return "", usagef("%s", err)
	}
	return dir, nil
}

// missingDataDir returns the data directory of a private PostgreSQL that does not exist yet, otherwise nothing.
func (s *databaseSettings) missingDataDir() (string, error) {
	if s.DatabaseURL != "" {
		return "", nil
	}
	dir, err := s.dataDir()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "pg")); errors.Is(err, os.ErrNotExist) {
		return dir, nil
	}
	return "", nil
}

// ended returns a channel that is closed when a private PostgreSQL ends by itself.
func (d *database) ended() <-chan struct{} {
	if d.server == nil {
		return nil
	}
	return d.server.Done()
}

// close stops a private PostgreSQL, also after ctx has ended.
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
