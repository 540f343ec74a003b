package main

import (
	"context"
	"fmt"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
)

// adoptCmd makes a copy of a database one that acts by itself, whether a server runs or not. The running ones go on within moments.
type adoptCmd struct {
	keysSettings `embed:""`
}

// Run adopts the database and says whether it was a copy. It may be repeated.
func (c *adoptCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.useDatabase(ctx, env, reader, app, refuseEmpty, func(db *database, connections *pg.Database, _ zerolog.Logger) error {
		before, err := queue.Adopt(ctx, connections)
		if err != nil {
			return err
		}
		if !before.IsCopy {
			_, err = fmt.Fprintf(env.stdout, "nothing to do: %s is no copy (%s)\n", db.about, before.Identity)
			return err
		}
		_, err = fmt.Fprintf(env.stdout, "adopted %s: pushes, schedules and deliveries of subscriptions go on\nbefore  %s\nnow     %s\n", db.about, before.Recorded, before.Identity)
		return err
	})
}
