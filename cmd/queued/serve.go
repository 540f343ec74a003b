package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	httpapi "github.com/queued/queued/internal/http"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/sql"
)

// closeTimeout is how long the loops and the connections may take to end once no request is
// under way: each has at most one statement to finish.
const closeTimeout = 10 * time.Second

// gcPercent is how much the heap may grow between two collections: it is small, some 10 MB under full load, so that a fifteenth of
// the processors' time is had for another 10 MB.
const gcPercent = 200

// errUnclean is wrapped by whatever goes wrong during a shutdown.
var errUnclean = errors.New("the stop was not clean")

// serveCmd serves the queue over HTTP until it is told to stop.
type serveCmd struct {
	settings `embed:""`
}

// Run serves until ctx ends, then drains. Mistakes in the settings are returned; whatever
// fails later is logged.
func (c *serveCmd) Run(ctx context.Context, p *process, src *source, app *kong.Kong) error {
	key, err := src.secret("api-key", c.APIKey, c.APIKeyFile, parseSecret)
	if err != nil {
		return err
	}
	if _, err := c.url(src); err != nil { // before anything is opened
		return err
	}
	if !slices.ContainsFunc(p.environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
	logger := c.logger(p.stderr, time.Now)
	warnUnknown(logger, src, app.Model)

	err = c.serve(ctx, p, src, logger, key)
	var usage *usageError
	switch {
	case err == nil:
		logger.Info().Msg("stopped")
		return nil
	case errors.As(err, &usage):
		return err
	case ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, errUnclean):
		logger.Info().Msg("stopped before it was ready")
		return nil
	default:
		logger.Error().Str("error", redact(err.Error())).Msg("failed")
		return errReported
	}
}

// serve opens everything in the order in which one thing needs the other, the port first so
// that a second queued fails before it touches a database, and closes it in reverse.
func (c *serveCmd) serve(ctx context.Context, p *process, src *source, logger zerolog.Logger, key string) (err error) {
	listener, err := listen(ctx, src.name("listen"), c.Listen, key != "")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // closed already once it was served
	tcp := listener.Addr().(*net.TCPAddr)
	logger.Info().Str("version", sql.Version()).Str("addr", tcp.String()).Msg("starting")

	db, err := c.open(ctx, src, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()

	if err := c.migrate(ctx, db, logger); err != nil {
		return err
	}
	svc, err := queue.Open(ctx, queue.Config{
		DatabaseURL:   db.url,
		SchemaVersion: sql.Version(),
		MaxConns:      c.MaxConns,
		MaxAttempts:   c.MaxAttempts,
		SweepInterval: c.SweepInterval,
		MaxVTAge:      c.MaxVTAge,
		Retention:     c.HistoryRetention,
		KeyRetention:  c.KeyRetention,
		QueryTimeout:  c.QueryTimeout,

		MaxPendingBytes: int(c.MaxPending),
		Logger:          logger,
	})
	if err != nil {
		return fmt.Errorf("opening the queue on %s: %w", db.about, err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if closeErr := svc.Close(closing); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errUnclean, closeErr))
		}
	}()

	schedules, err := schedule.Open(ctx, schedule.Config{
		DatabaseURL:  db.url,
		MisfireGrace: c.MisfireGrace,
		QueryTimeout: c.QueryTimeout,
		Retention:    c.OccurrenceRetention,
		Logger:       logger,
	})
	if err != nil {
		return fmt.Errorf("opening the schedules on %s: %w", db.about, err)
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if closeErr := schedules.Close(closing); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errUnclean, closeErr))
		}
	}()

	api := httpapi.New(httpapi.Config{
		Service:        svc,
		Schedules:      schedules,
		APIKey:         key,
		Version:        sql.Version(),
		Logger:         logger,
		RequestTimeout: c.RequestTimeout,
		MaxBody:        c.MaxBody,
		MaxBatchBody:   c.MaxBatchBody,
		MaxBatch:       c.MaxBatch,
		MaxDepth:       c.MaxDepth,
		LoopbackOnly:   key == "", // without one nothing else is listened on
	})
	srv := &server{settings: &c.settings, svc: svc, schedules: schedules, api: api, db: db, logger: logger}
	return srv.run(ctx, listener, func() {
		logger.Info().Str("addr", tcp.String()).Str("url", localURL(tcp)).Str("database", db.about).
			Bool("api_key", key != "").Msg("serving")
		if c.forPeople(p.stderr) {
			_, _ = fmt.Fprint(p.stderr, welcome(localURL(tcp), db.about, key != ""))
		}
	})
}

// migrate brings the schema up to date, or with --no-migrate makes sure that it is.
func (c *serveCmd) migrate(ctx context.Context, db *database, logger zerolog.Logger) error {
	cfg := migrate.Config{DatabaseURL: db.url, Logger: logger}
	if !c.NoMigrate {
		if _, err := migrate.Run(ctx, cfg); err != nil {
			return fmt.Errorf("migrating %s: %w", db.about, err)
		}
		return nil
	}
	status, err := migrate.Check(ctx, cfg)
	if err != nil {
		return fmt.Errorf("checking the version of %s: %w", db.about, err)
	}
	if status.Due() {
		return fmt.Errorf("the schema of %s is at version %s and this program needs %s: run \"queued migrate\", "+
			"or start without --no-migrate (QUEUED_NO_MIGRATE)", db.about, orNone(status.Database), status.Program)
	}
	return nil
}

// welcome says where the server is and what to type next.
func welcome(url, database string, key bool) string {
	header := ""
	if key {
		header = ` -H "Authorization: Bearer $QUEUED_API_KEY"`
	}
	return strings.NewReplacer("URL", url, "DATABASE", database, "HEADER", header).Replace(`
  queued is ready at URL
  events are in DATABASE

  Post an event, claim it, and finish it with the id and receipt that the claim shows:

    curlHEADER -d '{"hello":"world"}' URL/events
    curlHEADER -X POST URL/claim
    curlHEADER -X DELETE 'URL/events/ID?receipt=RECEIPT'

  All calls, to read and to try: URL/docs
  Ctrl-C stops it; the events stay.

`)
}
