package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/cli"
	"github.com/queued/queued/internal/embedded"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/seal"
)

// secretsCmd manages the secrets that are sealed in the database.
type secretsCmd struct {
	Reseal resealCmd `cmd:"" help:"Seal the secrets in the database under the first of the secret keys, so that the others can be thrown away. It may be repeated, also while servers run."`
}

type resealCmd struct {
	secretSettings `embed:"" group:"Secrets:"`
	keysSettings   `embed:""`
}

// Run seals anew the secrets that are sealed under another key than the first.
func (c *resealCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.useDatabase(ctx, env, reader, app, refuseEmpty, func(db *database, connections *pg.Database, logger zerolog.Logger) error {
		sealer, err := c.sealer(db, logger)
		if err != nil {
			return err
		}
		if sealer == nil {
			return usagef("there is no key: set QUEUED_SECRET_KEY to the new key, a comma, and those before it")
		}
		done, err := seal.Reseal(ctx, connections, sealer)
		if err != nil {
			return err
		}
		for _, failure := range done.Failed {
			if _, err := fmt.Fprintln(env.stderr, cli.Printable(failure.Error())); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(env.stdout, "%d sealed, of which %d anew; %d were changed by others meanwhile; %d cannot be opened\n",
			done.Sealed, done.Anew, done.Changed, len(done.Failed)); err != nil {
			return err
		}
		if len(done.Failed) > 0 {
			return fmt.Errorf("%d secrets cannot be opened: add the keys under which they were sealed to QUEUED_SECRET_KEY", len(done.Failed))
		}
		return nil
	})
}

// sealer returns the sealer of the secrets in a database: under the keys of the settings, else, in a private PostgreSQL, under a key of its own, which the first call
// makes. It is nil when there is no key.
func (s *secretSettings) sealer(db *database, logger zerolog.Logger) (*seal.Sealer, error) {
	keys := s.SecretKey
	if len(keys) == 0 && db.dataDir != "" {
		key, isNew, err := embedded.SecretKey(db.dataDir)
		if err != nil {
			return nil, err
		}
		if isNew {
			logger.Warn().Str("file", filepath.Join(db.dataDir, embedded.SecretKeyFile)).
				Msg("made a key that seals secrets in the database: back up this file, too; without it a restored database cannot open them")
		}
		keys = []string{key}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	sealer, err := seal.NewSealer(keys...)
	if err != nil {
		return nil, fmt.Errorf("the key for secrets: %w", err)
	}
	return sealer, nil
}
