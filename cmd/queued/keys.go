package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	"github.com/queued/queued/client"
	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cli"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
)

// keysCmd manages keys: those of a server, over HTTP, or straight in the database, whether a server runs or not, because the first key cannot come
// over HTTP where a key is needed.
type keysCmd struct {
	List   keyCmd[cli.KeysList, *cli.KeysList]   `cmd:"" default:"withargs" help:"List the keys, without their texts; what \"queued keys\" does."`
	Show   keyCmd[cli.KeyShow, *cli.KeyShow]     `cmd:"" help:"Show a key, without its text."`
	Create keyCreateCmd                          `cmd:"" help:"Create a key and print it, once."`
	Set    keyCmd[cli.KeySet, *cli.KeySet]       `cmd:"" aliases:"change" help:"Change what a key may do, its name, or when it expires."`
	Rotate keyCmd[cli.KeyRotate, *cli.KeyRotate] `cmd:"" help:"Give a key another text and print that, once. The one before is accepted for a time."`
	Revoke keyCmd[cli.KeyRevoke, *cli.KeyRevoke] `cmd:"" help:"Revoke a key, for ever."`
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
	ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong, empty onEmpty, do func(*access.Service, *database) error,
) (err error) {
	return c.useDatabase(ctx, env, reader, app, empty, func(db *database, connections *pg.Database, logger zerolog.Logger) (err error) {
		keys, err := access.Open(ctx, access.Config{Database: connections, Logger: logger})
		if err != nil {
			return fmt.Errorf("opening the keys: %w", err)
		}
		defer func() {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			err = errors.Join(err, keys.Close(closing))
		}()
		return explain(do(keys, db))
	})
}

// useDatabase calls do with the database. One of another version is left alone.
func (c *keysSettings) useDatabase(
	ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong, empty onEmpty, do func(*database, *pg.Database, zerolog.Logger) error,
) (err error) {
	settings := logSettings(c.quietLogSettings)
	logger := settings.logger(settings.format(env.stderr), time.Now)
	reader.warnUnknown(logger, app.Model)
	if empty == refuseEmpty { // which must not make one
		if dir, err := c.missingDataDir(); err != nil || dir != "" {
			return cmp.Or(err, fmt.Errorf("there is no private PostgreSQL in %s yet: start \"queued serve\" first, or name a server with --url, or a database with --database-url", dir))
		}
	}
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
		return cli.ErrNoKey
	case errors.Is(err, access.ErrLastAdmin):
		return usagef("it is the last admin key that is live: create another one first")
	case errors.Is(err, access.ErrInactive):
		return usagef("the key was revoked, or has expired: create a new one")
	}
	return err
}

// usesDatabase reports whether "queued keys" works straight on the database: if a flag says so, or if no flag names a server and a variable names
// a database, or if nothing names a server. The variable of the data directory does not name one: it says where the private PostgreSQL is, for "queued serve", too.
func usesDatabase(reader *settingsReader, env *cli.Env) (bool, error) {
	byFlag, byVariable := map[bool]string{}, map[bool]string{}
	for isDatabase, settings := range map[bool][]string{
		true:  {"database-url", "database-url-file", "data-dir"},
		false: {"url", "context", "key", "key-file", "cacert", "cert", "client-key"},
	} {
		for _, setting := range settings {
			switch given := reader.names[setting]; {
			case strings.HasPrefix(given, "--"):
				byFlag[isDatabase] = given
			case given != "" && setting != "data-dir":
				byVariable[isDatabase] = given
			}
		}
	}
	switch {
	case byFlag[true] != "" && byFlag[false] != "":
		return false, usagef("%s is about a database, and %s about a server; want one of them", byFlag[true], byFlag[false])
	case byFlag[true] != "" || byFlag[false] != "":
		return byFlag[true] != "", nil
	case byVariable[true] != "" || byVariable[false] != "":
		return byVariable[true] != "", nil
	}
	current, err := cli.CurrentContext(env)
	return current == "", err
}

// serverKeys connects to the server of a command.
type serverKeys interface {
	KeysOfServer(env *cli.Env) (cli.KeyStore, func(), error)
}

// manage calls do with the keys of the server, or of the database.
func (c *keysSettings) manage(
	ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong, empty onEmpty, server serverKeys, do func(context.Context, *cli.Env, cli.KeyStore) error,
) error {
	if !env.onDatabase {
		keys, done, err := server.KeysOfServer(env.client)
		if err != nil {
			return err
		}
		defer done()
		return do(ctx, env.client, keys)
	}
	return c.use(ctx, env, reader, app, empty, func(keys *access.Service, db *database) error {
		return do(ctx, env.client, &databaseKeys{keys, db, env})
	})
}

// databaseKeys are the keys in a database.
type databaseKeys struct {
	service *access.Service
	db      *database
	env     *cliEnv
}

// About implements cli.KeyStore.
func (d *databaseKeys) About() string { return d.db.about }

// IsOpen implements cli.KeyStore. QUEUED_API_KEY of servers is not known here.
func (d *databaseKeys) IsOpen() bool { return !d.service.IsRequired() }

// ListKeys implements cli.KeyStore.
func (d *databaseKeys) ListKeys(ctx context.Context) iter.Seq2[client.AccessKey, error] {
	return func(yield func(client.AccessKey, error) bool) {
		for cursor := ""; ; {
			page, err := d.service.List(ctx, pg.MaxPage, cursor)
			if err != nil {
				yield(client.AccessKey{}, err)
				return
			}
			for i := range page.Keys {
				if !yield(d.clientKey(&page.Keys[i]), nil) {
					return
				}
			}
			if cursor = page.Next; cursor == "" {
				return
			}
		}
	}
}

// CreateKey implements cli.KeyStore.
func (d *databaseKeys) CreateKey(ctx context.Context, k client.NewKey) (client.IssuedKey, error) {
	p := access.CreateParams{Name: k.Name, Queues: k.Queues, Topics: k.Topics, Scopes: scopesOf(k.Scopes), Rate: rateOf(k.RateLimit)}
	if !k.ExpiresAt.IsZero() {
		p.ExpiresAt = &k.ExpiresAt
	}
	created, text, err := d.service.Create(ctx, p)
	if err == nil && !d.service.HasLiveAdmin() {
		_, _ = fmt.Fprintln(d.env.stderr, "There is no admin key: over HTTP nobody can manage keys until \"queued keys create --scope admin\" has made one here, or queued serve has QUEUED_API_KEY.")
	}
	return client.IssuedKey{AccessKey: d.clientKey(&created), Key: text}, err
}

// GetKey implements cli.KeyStore.
func (d *databaseKeys) GetKey(ctx context.Context, id string) (client.AccessKey, error) {
	k, err := d.service.Get(ctx, id)
	return d.clientKey(&k), err
}

// ChangeKey implements cli.KeyStore.
func (d *databaseKeys) ChangeKey(ctx context.Context, id string, change cli.KeyChange) (client.AccessKey, error) {
	c := access.Change{Name: change.Name, Queues: change.Queues, Topics: change.Topics}
	if change.Scopes != nil {
		c.Scopes = new(scopesOf(*change.Scopes))
	}
	if at := change.ExpiresAt; at != nil {
		c.ExpiresAt = new(at)
		if at.IsZero() {
			*c.ExpiresAt = nil
		}
	}
	if change.RateLimit != nil {
		c.Rate = new(rateOf(*change.RateLimit))
	}
	k, err := d.service.Update(ctx, id, c, nil)
	return d.clientKey(&k), err
}

// RotateKey implements cli.KeyStore.
func (d *databaseKeys) RotateKey(ctx context.Context, id string, grace time.Duration) (client.IssuedKey, error) {
	k, text, err := d.service.Rotate(ctx, id, max(0, grace))
	return client.IssuedKey{AccessKey: d.clientKey(&k), Key: text}, err
}

// RevokeKey implements cli.KeyStore.
func (d *databaseKeys) RevokeKey(ctx context.Context, id string) error {
	return d.service.Revoke(ctx, id)
}

func scopesOf(names []string) []access.Scope {
	scopes := make([]access.Scope, len(names))
	for i, name := range names {
		scopes[i] = access.Scope(name)
	}
	return scopes
}

func rateOf(l *client.RateLimit) *access.Rate {
	if l == nil {
		return nil
	}
	return &access.Rate{PerSecond: l.PerSecond, Burst: l.Burst}
}

// clientKey returns a key as a server shows it.
func (d *databaseKeys) clientKey(k *access.Key) client.AccessKey {
	shown := client.AccessKey{
		ID: k.ID, Name: k.Name, Queues: k.Queues, Topics: k.Topics, Status: d.service.Status(k), Version: k.Version, CreatedAt: k.CreatedAt, UpdatedAt: k.UpdatedAt,
		Scopes: make([]string, len(k.Scopes)),
	}
	for i, scope := range k.Scopes {
		shown.Scopes[i] = string(scope)
	}
	for _, at := range []struct {
		target *time.Time
		value  *time.Time
	}{{&shown.ExpiresAt, k.ExpiresAt}, {&shown.PreviousUntil, k.PreviousUntil}, {&shown.RevokedAt, k.RevokedAt}, {&shown.LastUsedAt, k.LastUsedAt}} {
		if at.value != nil {
			*at.target = *at.value
		}
	}
	if k.Rate != nil {
		shown.RateLimit = &client.RateLimit{PerSecond: k.Rate.PerSecond, Burst: k.Rate.Burst}
	}
	return shown
}

// keyCmd is one of the commands about keys that there are.
type keyCmd[C any, P interface {
	*C
	serverKeys
	Help() string
	Manage(ctx context.Context, env *cli.Env, keys cli.KeyStore) error
}] struct {
	Command      C `embed:""`
	keysSettings `embed:""`
}

// Help returns the text below the usage.
func (c *keyCmd[C, P]) Help() string { return P(&c.Command).Help() }

// Run runs the command.
func (c *keyCmd[C, P]) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.manage(ctx, env, reader, app, refuseEmpty, P(&c.Command), P(&c.Command).Manage)
}

type keyCreateCmd struct {
	cli.KeyCreate `embed:""`
	keysSettings  `embed:""`
	Yes           bool `help:"Create the first key also without the scope admin: from then on callers need a key, and nobody can manage keys over HTTP without QUEUED_API_KEY."`
}

// Run creates a key.
func (c *keyCreateCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return c.manage(ctx, env, reader, app, migrateEmpty, c, func(ctx context.Context, client *cli.Env, keys cli.KeyStore) error {
		if env.onDatabase && !c.Yes && keys.IsOpen() && !slices.Contains(c.Scope, string(access.Admin)) { // a server refuses it
			return usagef("--scope: it would be the first key. From then on every call to every server on %s needs a key, and nobody could manage keys over HTTP with this one. "+
				"Create an admin key first: \"queued keys create --scope admin --name ops\". Where queued serve has QUEUED_API_KEY, which is an admin key, pass --yes", keys.About())
		}
		return c.Manage(ctx, client, keys)
	})
}
