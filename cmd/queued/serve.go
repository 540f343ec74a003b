package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"
	"github.com/rs/zerolog"

	httpapi "github.com/queued/queued/internal/http"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/sql"
)

// closeTimeout is how long the loops and the connections may take to end, in all, once no request is under way, whatever
// the database does.
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
	listenURL, err := src.secret("listen-url", c.ListenURL, c.ListenURLFile, parseDatabaseURL)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(p.environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") }) {
		debug.SetGCPercent(gcPercent)
	}
	logger := c.logger(p.stderr, time.Now)
	warnUnknown(logger, src, app.Model)

	err = c.serve(ctx, p, src, logger, key, listenURL)
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
func (c *serveCmd) serve(ctx context.Context, p *process, src *source, logger zerolog.Logger, key, listenURL string) (err error) {
	listener, err := listen(ctx, src.name("listen"), c.Listen, key != "")
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }() // closed already once it was served
	tcp := listener.Addr().(*net.TCPAddr)
	logger.Info().Str("version", sql.Version()).Str("addr", tcp.String()).Msg("starting")

	httpConfig := httpapi.Config{
		APIKey:         key,
		Version:        sql.Version(),
		Logger:         logger,
		RequestTimeout: c.RequestTimeout,
		MaxBody:        c.MaxBody,
		MaxBatchBody:   c.MaxBatchBody,
		MaxBatch:       c.MaxBatch,
		MaxDepth:       c.MaxDepth,
		LoopbackOnly:   key == "", // without one nothing else is listened on
	}
	door := openDoor(listener, httpapi.Starting(httpConfig), c.QueryTimeout)
	defer door.shut()

	db, err := c.open(ctx, src, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()

	svc, schedules, err := c.openServices(ctx, db, listenURL, logger)
	if err != nil {
		return err
	}
	closing := sync.OnceValue(func() context.Context {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		context.AfterFunc(closing, cancel)
		return closing
	})
	defer func() { //nolint:contextcheck // closing is made of it, and outlives its end
		if closeErr := closeServices(closing(), svc, schedules); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errUnclean, closeErr))
		}
	}()

	httpConfig.Service, httpConfig.Schedules = svc, schedules
	srv := &server{
		settings: &c.settings, svc: svc, schedules: schedules, api: httpapi.New(httpConfig), door: door, closing: closing, db: db, logger: logger,
	}
	return srv.run(ctx, func() {
		logger.Info().Str("addr", tcp.String()).Str("url", localURL(tcp)).Str("database", db.about).
			Bool("api_key", key != "").Msg("serving")
		if c.forPeople(p.stderr) {
			_, _ = fmt.Fprint(p.stderr, welcome(localURL(tcp), db.about, key != ""))
		}
	})
}

// The pause between two tries to reach the database at the start grows from the first to the second of these.
const (
	shortestStartPause = 500 * time.Millisecond
	longestStartPause  = 5 * time.Second
)

// openServices migrates the database and opens the services on it. While it cannot be reached, or there is no server that takes writes, it
// tries again until the start's time limit. What has to be mended first, such as a wrong password, fails at once.
func (c *serveCmd) openServices(ctx context.Context, db *database, listenURL string, logger zerolog.Logger) (*queue.Service, *schedule.Service, error) {
	started := time.Now()
	for pause := shortestStartPause; ; pause = min(2*pause, longestStartPause) {
		svc, schedules, err := c.tryToOpen(ctx, db, listenURL, logger)
		switch {
		case err == nil, ctx.Err() != nil, pg.IsPermanent(err), !pg.IsUnavailable(err):
			return svc, schedules, err
		case time.Since(started)+pause > c.StartTimeout:
			return nil, nil, fmt.Errorf("giving up after %s (QUEUED_START_TIMEOUT): %w", time.Since(started).Round(time.Second), err)
		}
		logger.Warn().Str("error", redact(err.Error())).Msg("waiting for the database")
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// tryToOpen is one try of openServices.
func (c *serveCmd) tryToOpen(ctx context.Context, db *database, listenURL string, logger zerolog.Logger) (*queue.Service, *schedule.Service, error) {
	if err := c.migrate(ctx, db, logger); err != nil {
		return nil, nil, err
	}
	connections, err := pg.Open(ctx, pg.Config{URL: db.url, ListenURL: listenURL, Logger: logger})
	if err != nil {
		return nil, nil, fmt.Errorf("opening %s: %w", db.about, err)
	}
	svc, err := queue.Open(ctx, queue.Config{
		Database:      connections,
		SchemaVersion: sql.Version(),
		RequireSync:   c.RequireSync,
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
		return nil, nil, fmt.Errorf("opening the queue on %s: %w", db.about, err)
	}
	schedules, err := schedule.Open(ctx, schedule.Config{
		Database:     connections,
		MisfireGrace: c.MisfireGrace,
		QueryTimeout: c.QueryTimeout,
		Retention:    c.OccurrenceRetention,
		Logger:       logger,
	})
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return nil, nil, errors.Join(fmt.Errorf("opening the schedules on %s: %w", db.about, err), svc.Close(closing))
	}
	return svc, schedules, nil
}

// closeServices closes both until ctx ends at most, and fails when calls are still under way then.
func closeServices(ctx context.Context, svc *queue.Service, schedules *schedule.Service) error {
	closed := start(func() error { return schedules.Close(ctx) })
	err := svc.Close(ctx)
	<-closed.done
	return errors.Join(closed.err, err)
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
