package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/sql"
)

// migrateCmd brings the schema up to date, as serve does at its start, and nothing else.
type migrateCmd struct {
	Status bool `help:"Show the versions of the database and of this program and what a migration would run; change nothing."`

	databaseSettings `embed:"" group:"database"`
	migrateSettings  `embed:"" group:"database"`
	logSettings      `embed:"" group:"log"`
}

// Run migrates, or shows the scripts that it would run.
func (c *migrateCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) (err error) {
	logger := c.logger(c.format(env.stderr), time.Now)
	reader.warnUnknown(logger, app.Model)
	if c.Status {
		dir, err := c.missingDataDir() // a status must not make one
		if err != nil {
			return err
		}
		if dir != "" {
			_, err := fmt.Fprintf(env.stdout, "database  none yet; serve and migrate make it in %s\nprogram   %s\n", dir, sql.Version())
			return err
		}
	}
	db, err := c.open(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()

	cfg := migrate.Config{DatabaseURL: db.url, IsForced: c.ForceMigrate, Logger: logger}
	if c.Status {
		status, err := migrate.Check(ctx, cfg)
		if err != nil {
			return err
		}
		return printStatus(env.stdout, db, status)
	}
	status, err := migrate.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if !status.Due() {
		_, err = fmt.Fprintf(env.stdout, "nothing to do: the database is at %s\n", status.Program)
		return err
	}
	_, err = fmt.Fprintf(env.stdout, "migrated from %s to %s\n", cmp.Or(status.Database, "none"), status.Program)
	return err
}

// printStatus writes the versions and the scripts that a migration would run.
func printStatus(w io.Writer, db *database, status migrate.Status) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintf(table, "database\t%s\t%s\n", cmp.Or(status.Database, "none"), db.about)
	_, _ = fmt.Fprintf(table, "program\t%s\t\n", status.Program)
	pending := status.Pending
	if !status.Due() {
		pending = []string{"nothing"}
	}
	_, _ = fmt.Fprintf(table, "to run\t%s\t\n", strings.Join(pending, "\t\n\t"))
	return table.Flush()
}
