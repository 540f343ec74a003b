package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cli"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
)

// keysCmd manages keys: those of a server, over HTTP, or straight in the database, whether a server runs or not, because the first key cannot come
// over HTTP where a key is needed.
type keysCmd struct {
	Create keysCreateCmd `cmd:"" help:"Create a key and print it, once."`
	List   keysListCmd   `cmd:"" help:"List the keys, without their texts."`
	Rotate keysRotateCmd `cmd:"" help:"Give a key another text and print that, once. The one before is accepted for a time."`
	Revoke keysRevokeCmd `cmd:"" help:"Revoke a key, for ever."`
}

// keysSettings say which database it is.
type keysSettings struct {
	databaseSettings `embed:"" group:"Database:"`
	quietLogSettings `embed:"" group:"Log:"`
}

// quietLogSettings are logSettings of a command that answers on standard output, and is not watched.
type quietLogSettings struct {
	LogLevel  string `type:"choice" choices:"trace,debug,info,warn,error" placeholder:"LEVEL" default:"warn"`
	LogFormat string `type:"choice" choices:"auto,json,console" placeholder:"FORMAT" default:"auto"`
}

// onEmpty is how a command treats a database without the schema.
type onEmpty bool

const (
	refuseEmpty  onEmpty = false // nothing in it can be shown or changed
	migrateEmpty onEmpty = true
)

// use calls do with the keys of the database. One of another version is left alone.
func (c *keysSettings) use(
	ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong, empty onEmpty, do func(*access.Service) error,
) (err error) {
	return c.useDatabase(ctx, env, reader, app, empty, func(_ *database, connections *pg.Database, logger zerolog.Logger) (err error) {
		keys, err := access.Open(ctx, access.Config{Database: connections, Logger: logger})
		if err != nil {
			return fmt.Errorf("opening the keys: %w", err)
		}
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			err = errors.Join(err, keys.Close(closing))
		}()
		return explain(do(keys))
	})
}

// useDatabase calls do with the database. One of another version is left alone.
func (c *keysSettings) useDatabase(
	ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong, empty onEmpty, do func(*database, *pg.Database, zerolog.Logger) error,
) (err error) {
	settings := logSettings(c.quietLogSettings)
	logger := settings.logger(settings.format(env.stderr), time.Now)
	reader.warnUnknown(logger, app.Model)
	db, err := c.openBeside(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()
	cfg := migrate.Config{DatabaseURL: db.url, Logger: logger}
	status, err := migrate.Check(ctx, cfg)
	switch {
	case err != nil:
		return fmt.Errorf("checking the version of %s: %w", db.about, err)
	case status.Database == "" && empty == migrateEmpty:
		_, err = migrate.Run(ctx, cfg)
	case status.Database == "":
		err = fmt.Errorf("%s has no schema of queued yet: start \"queued serve\" or run \"queued migrate\" first", db.about)
	case status.Due():
		err = fmt.Errorf("the schema of %s is at version %s and this program needs %s: run \"queued migrate\" first", db.about, status.Database, status.Program)
	}
	if err != nil {
		return err
	}
	connections, err := pg.Open(ctx, pg.Config{URL: db.url, Logger: logger})
	if err != nil {
		return fmt.Errorf("opening %s: %w", db.about, err)
	}
	return do(db, connections, logger)
}

// explain returns the error of a command for a value that the database refuses.
func explain(err error) error {
	invalid, isInvalid := errors.AsType[*access.InvalidError](err)
	switch {
	case isInvalid:
		return usagef("%s: %s", invalid.Field, invalid.Detail)
	case errors.Is(err, access.ErrNotFound):
		return usagef("no key has this id; \"queued keys list\" lists them")
	case errors.Is(err, access.ErrLastAdmin):
		return usagef("it is the last admin key that is live: create another one first")
	case errors.Is(err, access.ErrInactive):
		return usagef("the key was revoked, or has expired: create a new one")
	}
	return err
}

// show prints a new text of a key: that alone on standard output, so that scripts can take it, and the rest on standard error.
func show(env *cliEnv, did string, k *access.Key, text string) error {
	_, err := fmt.Fprintf(env.stderr, "%s the key %s (%s) with the scopes %s. It is not shown again:\n", did, k.ID, cli.Printable(k.Name), scopeList(k.Scopes))
	if err == nil {
		_, err = fmt.Fprintln(env.stdout, text)
	}
	return err
}

func scopeList(scopes []access.Scope) string {
	names := make([]string, len(scopes))
	for i, scope := range scopes {
		names[i] = string(scope)
	}
	return strings.Join(names, ",")
}

type keysCreateCmd struct {
	Name      string        `help:"What the key is for; by default its scopes."`
	Scope     []string      `required:"" placeholder:"SCOPE" enum:"publish,claim,read,manage,metrics,admin" help:"What the key may do: publish, claim, read, manage, metrics or admin; several with commas."`
	Queue     []string      `placeholder:"PATTERN" help:"Queues that it may use: names, or beginnings before *. Without this and --topic: all queues and topics."`
	Topic     []string      `placeholder:"PATTERN" help:"Topics that it may use, in which * stands for one word and ** at the end for one or more."`
	ExpiresIn time.Duration `placeholder:"DURATION" help:"After what time it expires, such as 720h; never unless this is given."`
	Rate      float64       `placeholder:"N" help:"Requests per second that it may make in each process; no limit unless this is given."`
	Burst     int           `placeholder:"N" help:"Requests that it may make at once under --rate; by default those of a second."`

	keysSettings `embed:""`
}

// Run creates a key.
func (c *keysCreateCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	p := access.CreateParams{Name: cmp.Or(c.Name, strings.Join(c.Scope, ",")), Queues: c.Queue, Topics: c.Topic}
	for _, scope := range c.Scope {
		p.Scopes = append(p.Scopes, access.Scope(scope))
	}
	if c.ExpiresIn < 0 || c.Rate < 0 || c.Burst < 0 {
		return usagef("--expires-in, --rate and --burst must not be negative")
	}
	if c.Burst > 0 && c.Rate == 0 {
		return usagef("--burst: is for keys with --rate")
	}
	if c.ExpiresIn > 0 {
		p.ExpiresAt = new(time.Now().Add(c.ExpiresIn))
	}
	if c.Rate > 0 {
		p.Rate = &access.Rate{PerSecond: c.Rate, Burst: cmp.Or(c.Burst, max(1, int(c.Rate)))}
	}
	return c.use(ctx, env, reader, app, migrateEmpty, func(keys *access.Service) error {
		k, text, err := keys.Create(ctx, p)
		if err != nil {
			return err
		}
		if !keys.HasLiveAdmin() {
			_, _ = fmt.Fprintln(env.stderr, "There is no admin key: over HTTP nobody can manage keys until there is one (--scope admin, or QUEUED_API_KEY of queued serve).")
		}
		return show(env, "created", &k, text)
	})
}

type keysListCmd struct {
	keysSettings `embed:""`
}

// Run lists the keys.
func (c *keysListCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.use(ctx, env, reader, app, refuseEmpty, func(keys *access.Service) error {
		table := tabwriter.NewWriter(env.stdout, 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(table, "ID\tNAME\tSCOPES\tQUEUES\tTOPICS\tLAST USED\tENDS")
		for cursor := ""; ; {
			page, err := keys.List(ctx, pg.MaxPage, cursor)
			if err != nil {
				return err
			}
			for i := range page.Keys {
				k := &page.Keys[i]
				ends := timeOr(k.ExpiresAt, "never")
				if k.RevokedAt != nil {
					ends = "revoked " + timeOr(k.RevokedAt, "")
				}
				_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
					k.ID, cli.Printable(k.Name), scopeList(k.Scopes), cli.Printable(patterns(k.Queues)), cli.Printable(patterns(k.Topics)), timeOr(k.LastUsedAt, "never"), ends)
			}
			if cursor = page.Next; cursor == "" {
				return table.Flush()
			}
		}
	})
}

func timeOr(at *time.Time, otherwise string) string {
	if at == nil {
		return otherwise
	}
	return at.UTC().Format("2006-01-02 15:04")
}

func patterns(list []string) string {
	switch {
	case list == nil:
		return "all"
	case len(list) == 0:
		return "none"
	}
	return strings.Join(list, ",")
}

type keysRotateCmd struct {
	ID    string        `arg:"" help:"The id of the key: its eight characters after qk_."`
	Grace time.Duration `default:"24h" placeholder:"DURATION" help:"How long the text before is accepted; 0s: no more."`

	keysSettings `embed:""`
}

// Run rotates a key.
func (c *keysRotateCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.use(ctx, env, reader, app, refuseEmpty, func(keys *access.Service) error {
		k, text, err := keys.Rotate(ctx, c.ID, c.Grace)
		if err != nil {
			return err
		}
		return show(env, "rotated", &k, text)
	})
}

type keysRevokeCmd struct {
	ID string `arg:"" help:"The id of the key: its eight characters after qk_."`

	keysSettings `embed:""`
}

// Run revokes a key.
func (c *keysRevokeCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.use(ctx, env, reader, app, refuseEmpty, func(keys *access.Service) error {
		if err := keys.Revoke(ctx, c.ID); err != nil {
			return err
		}
		_, err := fmt.Fprintf(env.stderr, "revoked the key %s; it holds everywhere within 5 s\n", c.ID)
		return err
	})
}
