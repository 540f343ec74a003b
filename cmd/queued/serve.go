package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/cli"
	"github.com/queued/queued/internal/failure"
	httpapi "github.com/queued/queued/internal/http"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/sql"
)

// closeTimeout bounds the time in which the loops end and the connections are closed, in all, after the last request.
const closeTimeout = 10 * time.Second

// The pause between two attempts to reach the database at the start doubles from minStartPause to maxStartPause.
const (
	minStartPause = 500 * time.Millisecond
	maxStartPause = 5 * time.Second
)

// errUnclean is wrapped by the errors of a shutdown.
var errUnclean = errors.New("the stop was not clean")

// serveCmd serves the queue over HTTP until it is told to stop.
type serveCmd struct {
	settings `embed:""`
}

// Run serves until ctx ends, then shuts down. It returns usage errors and logs others.
func (c *serveCmd) Run(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong) error {
	return runLogged(ctx, env, reader, app, &c.logSettings, func(logger zerolog.Logger) error { return c.serve(ctx, env, reader, logger) })
}

// runLogged runs a command that serves until ctx ends, with the logger of settings. It returns usage errors and logs others.
func runLogged(ctx context.Context, env *cliEnv, reader *settingsReader, app *kong.Kong, settings *logSettings, serve func(zerolog.Logger) error) error {
	if !slices.ContainsFunc(env.environ, func(entry string) bool { return strings.HasPrefix(entry, "GOGC=") }) {
		boundGarbage()
	}
	failures := failure.NewLimiter(settings.format(env.stderr), time.Now)
	limiting, stopLimiting := context.WithCancel(context.WithoutCancel(ctx)) // until everything else has ended
	limited := start(func() error { failures.Run(limiting); return nil })
	defer func() {
		stopLimiting()
		<-limited.done
	}()
	logger := settings.logger(failures, time.Now)
	reader.warnUnknown(logger, app.Model)

	err := serve(logger)
	switch {
	case err == nil:
		logger.Info().Msg("stopped")
		return nil
	case errors.As(err, new(*usageError)):
		return err
	case ctx.Err() != nil && errors.Is(err, context.Canceled) && !errors.Is(err, errUnclean):
		logger.Info().Msg("stopped before it was ready")
		return nil
	default:
		logger.Error().Str("error", redact(err.Error())).Msg("failed")
		return errReported
	}
}

// serve opens the port, the database and the services, in this order, so that a second queued fails before it touches a database.
func (c *serveCmd) serve(ctx context.Context, env *cliEnv, reader *settingsReader, logger zerolog.Logger) (err error) {
	if least := httpapi.MinBodyMemory(c.MaxBody, c.MaxBatchBody); c.MaxBodyMemory != 0 && c.MaxBodyMemory < least {
		return usagef("%s: must be at least %d bytes, twice the largest body (%s, %s)", reader.name("max-body-memory"), least, reader.name("max-body"), reader.name("max-batch-body"))
	}
	if env.isBare && cli.IsTerminal(env.stderr) {
		intention, err := c.intention()
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(env.stderr, "queued: "+cli.Printable(intention))
	}
	cert, closeCert, err := c.openCertificate(ctx, reader, logger)
	if err != nil {
		return err
	}
	defer closeCert()
	tracer, err := openTracer(ctx, env.environ, logger)
	if err != nil {
		return err
	}
	defer closeTracer(ctx, tracer, logger)
	listener, err := listen(ctx, reader.name("listen"), c.Listen)
	if err != nil {
		return err
	}
	tcp := listener.Addr().(*net.TCPAddr)
	url := localURL(tcp, cert != nil)
	logger.Info().Str("version", sql.Version()).Str("addr", tcp.String()).Msg("starting")

	isPublic := !isLoopback(tcp)
	httpConfig := httpapi.Config{
		Version:        sql.Version(),
		Logger:         logger,
		RequestTimeout: c.RequestTimeout,
		MaxBody:        c.MaxBody,
		MaxBatchBody:   c.MaxBatchBody,
		MaxBodyMemory:  c.MaxBodyMemory,
		Tracer:         tracer,
		LogAll:         c.AccessLog == "all",
		HidePayloads:   c.UIPayloads == "hidden",
		LoopbackOnly:   !isPublic,
		Hosts:          c.Hosts,
	}
	var tlsConfig *tls.Config
	if cert != nil {
		tlsConfig = cert.TLSConfig()
		if c.TLSClientCA != "" {
			httpConfig.VerifyClient = cert.VerifyClient
		}
		httpConfig.Registry = prometheus.NewRegistry()
		cert.Register(httpConfig.Registry)
	}
	front := startHTTP(listener, tlsConfig, httpapi.Starting(httpConfig), c.QueryTimeout, logger)
	defer front.close()

	db, err := c.open(ctx, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(ctx)) }()

	opened, err := c.openServices(ctx, db, tcp, tracer, logger)
	if err != nil {
		return err
	}
	if isPublic && !opened.access.HasLiveAdmin() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(noKey(reader.name("listen"), tcp), opened.close(closing))
	}
	httpConfig.Service, httpConfig.Schedules, httpConfig.Topics, httpConfig.Access = opened.queue, opened.schedules, opened.topics, opened.access
	httpConfig.Pushes, httpConfig.Sources, httpConfig.Cells = opened.pushes, opened.sources, opened.cells
	needsKey := opened.access.IsRequired()
	api := httpapi.New(httpConfig) //nolint:contextcheck // its calls have the contexts of their requests
	s := &server{settings: &c.settings, services: opened, api: api, http: front, db: db, logger: logger}
	return s.run(ctx, func() {
		logger.Info().Str("addr", tcp.String()).Str("url", url).Str("database", db.about).
			Bool("needs_key", needsKey).Msg("serving")
		if c.isConsole(env.stderr) {
			about := ""
			if cert != nil {
				about = aboutCertificate(cert, c.TLSClientCA != "")
			}
			_, _ = fmt.Fprint(env.stderr, welcome(url, db.about, about, needsKey))
		}
	})
}

// intention describes what a queued without arguments is going to do.
func (c *serveCmd) intention() (string, error) {
	database := "in " + pg.DescribeURL(c.DatabaseURL)
	if c.DatabaseURL == "" {
		dir, err := c.dataDir()
		if err != nil {
			return "", err
		}
		database = "in a private PostgreSQL whose data are in " + dir
		if missing, err := c.missingDataDir(); err == nil && missing != "" {
			database += " (a new one)"
		}
	}
	return fmt.Sprintf("serving on %s, with the events %s; Ctrl-C stops it, \"queued help\" lists what else there is", c.Listen, database), nil
}

// server is everything that runs while the queue is served.
type server struct {
	settings *settings
	services *services
	api      *httpapi.Server
	http     *httpServer
	db       *database
	logger   zerolog.Logger
}

// run serves until ctx ends or a part fails, then shuts down, closes the services and returns the failures. It calls ready once
// requests are served.
func (s *server) run(ctx context.Context, ready func()) error {
	ctx, stopped := context.WithoutCancel(ctx), ctx.Done() // the shutdown outlives the stop signal
	loopsCtx, stopLoops := context.WithCancel(ctx)
	defer stopLoops()
	loops := start(func() error { return s.services.run(loopsCtx) })
	s.http.setHandler(s.api)
	ready()

	var failure error
	select {
	case <-stopped:
		s.logger.Info().Msg("stopping: finishing what is under way; a second signal ends it at once")
	case <-loops.done:
		failure = fmt.Errorf("the loops ended: %w", cmp.Or(loops.err, errors.New("before the shutdown, without an error")))
	case <-s.http.serving.done:
		failure = fmt.Errorf("serving HTTP ended: %w", s.http.serving.err)
	case <-s.db.ended():
		failure = s.db.server.Err()
	}
	if failure != nil {
		s.logger.Error().Str("error", redact(failure.Error())).Msg("stopping because a part failed")
	}

	s.api.Drain()
	if failure == nil {
		select {
		case <-time.After(s.settings.DrainDelay):
		case <-s.db.ended():
		}
	}
	s.services.drain()
	pushed := start(func() error { return s.services.waitForPushes(ctx, s.settings.ShutdownTimeout) })
	err := s.http.shutdown(ctx, s.settings.ShutdownTimeout)
	<-pushed.done
	if pushed.err != nil {
		s.logger.Warn().Err(pushed.err).Msg("requests to endpoints are still under way: their events are pushed again when their leases have run out")
	}

	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	stopLoops()
	select {
	case <-loops.done:
	case <-ctx.Done():
		err = errors.Join(err, fmt.Errorf("%w: the loops did not end", errUnclean))
	}
	if closeErr := s.services.close(ctx); closeErr != nil {
		err = errors.Join(err, fmt.Errorf("%w: %w", errUnclean, closeErr))
	}
	return errors.Join(failure, err)
}

// task is a function that runs in a goroutine of its own.
type task struct {
	done chan struct{} // closed when it has returned
	err  error         // its result, to be read after done
}

// start runs f as a task.
func start(f func() error) *task {
	t := &task{done: make(chan struct{})}
	go func() {
		defer close(t.done)
		t.err = f()
	}()
	return t
}

// welcome returns the commands to type next, for a terminal. certificate is a note on it, empty without TLS.
func welcome(url, database, certificate string, needsKey bool) string {
	header := ""
	if needsKey {
		header = ` -H "Authorization: Bearer $QUEUED_API_KEY"`
	}
	return strings.NewReplacer("URL", url, "DATABASE", database, "HEADER", header, "CERTIFICATE", certificate).Replace(`
  queued is ready at URL
  events are in DATABASE

  Insert an event, claim it, and ack it with the id and receipt that the claim shows:

    curlHEADER -d '{"hello":"world"}' URL/events
    curlHEADER -X POST URL/claim
    curlHEADER -X DELETE 'URL/events/ID?receipt=RECEIPT'

CERTIFICATE  Pages with queues, events and what is wrong: URL/ui/
  API documentation, to try calls from: URL/docs
  Ctrl-C stops it; the events stay.

`)
}
