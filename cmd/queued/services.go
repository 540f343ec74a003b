package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/queued/queued/internal/access"
	"github.com/queued/queued/internal/cell"
	"github.com/queued/queued/internal/egress"
	"github.com/queued/queued/internal/migrate"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/push"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/schedule"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/topic"
	"github.com/queued/queued/internal/trace"
	"github.com/queued/queued/internal/webhook"
	"github.com/queued/queued/sql"
)

// A service is a part of the process that is opened on the database, run, and stopped in three steps, each of them for all services before the next one begins: Drain has calls
// that wait answer at once, so that HTTP can shut down; then the context of Run ends, and its loops with it; Close closes the connections, when neither calls nor
// loops need them.
type service interface {
	Run(ctx context.Context) error
	Drain()
	Close(ctx context.Context) error
}

// services are those that the API serves. Those that could not be opened are nil.
type services struct {
	opened    []service // each after those that it uses; they are drained in the opposite order, so that nothing is pushed from a queue that waits no more
	cells     *cell.Service
	queue     *queue.Service
	schedules *schedule.Service
	topics    *topic.Service
	access    *access.Service
	pushes    *push.Service
	sender    *egress.Sender // of pushes
	sources   *webhook.Service
	sealer    *seal.Sealer // of secrets in the database; nil: there is no key
}

// openServices migrates the database and opens the services on it; when others than this machine reach tcp, where it listens, no caller is served without a key. While the database cannot be reached, or none of its servers takes
// writes, it tries again for StartTimeout. Permanent errors, such as a wrong password, are returned at once.
func (c *serveCmd) openServices(ctx context.Context, db *database, tcp *net.TCPAddr, tracer *trace.Tracer, logger zerolog.Logger) (*services, error) {
	started := time.Now()
	for pause := minStartPause; ; pause = min(2*pause, maxStartPause) {
		s, err := c.openServicesOnce(ctx, db, tcp, tracer, logger)
		switch {
		case err == nil, ctx.Err() != nil, pg.IsPermanent(err), !pg.IsUnavailable(err):
			return s, err
		case time.Since(started)+pause > c.StartTimeout:
			return nil, fmt.Errorf("giving up after %s (QUEUED_START_TIMEOUT): %w", time.Since(started).Round(time.Second), err)
		}
		logger.Warn().Str("error", redact(err.Error())).Msg("waiting for the database")
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// openServicesOnce is one attempt of openServices.
func (c *serveCmd) openServicesOnce(ctx context.Context, db *database, tcp *net.TCPAddr, tracer *trace.Tracer, logger zerolog.Logger) (s *services, err error) {
	if err := c.migrate(ctx, db, logger); err != nil {
		return nil, err
	}
	connections, err := pg.Open(ctx, pg.Config{URL: db.url, ListenURL: c.ListenURL, Logger: logger})
	if err != nil {
		return nil, fmt.Errorf("opening %s: %w", db.about, err)
	}
	sealer, err := c.sealer(db, logger)
	if err != nil {
		return nil, err
	}
	s = &services{sealer: sealer}
	defer func() {
		if err != nil {
			closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
			defer cancel()
			err = errors.Join(fmt.Errorf("opening the services on %s: %w", db.about, err), s.close(closing))
			s = nil
		}
	}()
	if s.cells, err = cell.Open(ctx, cell.Config{Database: connections, Number: c.Cell, QueryTimeout: c.QueryTimeout, KeyRetention: c.KeyRetention, Logger: logger}); err != nil {
		return s, err // before an id is given out
	}
	s.opened = append(s.opened, s.cells)
	isQuiet := c.Background == "off"
	if s.queue, err = queue.Open(ctx, queue.Config{
		Database:      connections,
		SchemaVersion: sql.Version(),
		RequireSync:   c.RequireSync,
		HasNoStandby:  db.dataDir != "",
		AdoptsAlways:  c.Adopt == "always",
		IsQuiet:       isQuiet,
		DeclaredOnly:  c.Queues == "declared",
		MaxConns:      c.MaxConns,
		MaxAttempts:   c.MaxAttempts,
		SweepInterval: c.SweepInterval,
		MaxVTAge:      c.MaxVTAge,
		Retention:     c.HistoryRetention,
		KeyRetention:  c.KeyRetention,
		QueryTimeout:  c.QueryTimeout,

		MaxPendingBytes: int(c.MaxPending),
		Logger:          logger,
	}); err != nil {
		return s, err
	}
	s.opened = append(s.opened, s.queue)
	if err = s.queue.CheckIdentity(ctx); err != nil { // so that it is said before anything is answered
		return s, err
	}
	if isQuiet {
		logger.Warn().Msg("QUEUED_BACKGROUND is off: this process pushes nothing, fires no schedules and delivers no subscriptions")
	}
	if s.schedules, err = schedule.Open(ctx, schedule.Config{
		IsQuiet:      isQuiet,
		Database:     connections,
		MisfireGrace: c.MisfireGrace,
		QueryTimeout: c.QueryTimeout,
		Retention:    c.OccurrenceRetention,
		DeclaredOnly: s.queue.IsDeclaredOnly(),
		Logger:       logger,
	}); err != nil {
		return s, err
	}
	s.opened = append(s.opened, s.schedules)
	if s.topics, err = topic.Open(ctx, topic.Config{
		Database: connections, Queue: s.queue, QueryTimeout: c.QueryTimeout, IsQuiet: isQuiet, Logger: logger,
	}); err != nil {
		return s, err
	}
	s.opened = append(s.opened, s.topics)
	if s.sources, err = webhook.Open(ctx, webhook.Config{
		Database: connections, Queue: s.queue, Topics: s.topics, Sealer: sealer, QueryTimeout: c.QueryTimeout, Logger: logger,
	}); err != nil {
		return s, err
	}
	s.opened = append(s.opened, s.sources)
	if s.access, err = access.Open(ctx, access.Config{
		Database:       connections,
		Key:            c.APIKey,
		IsRequired:     !isLoopback(tcp),
		QueryTimeout:   c.QueryTimeout,
		AuditRetention: c.AuditRetention,
		Logger:         logger,
	}); err != nil {
		return s, err
	}
	s.opened = append(s.opened, s.access)
	var guard *egress.Guard
	if guard, s.sender, err = c.newSender(tcp.AddrPort()); err != nil {
		return s, err
	}
	if s.pushes, err = push.Open(ctx, push.Config{
		Database: connections, Queue: s.queue, Guard: guard, Sender: s.sender, Sealer: sealer, QueryTimeout: c.QueryTimeout, IsQuiet: isQuiet, Logger: logger,
		Tracer: tracer,
	}); err != nil {
		return s, err
	}
	s.opened = append(s.opened, s.pushes)
	return s, nil
}

// migrate brings the schema up to date, or with --no-migrate checks that it is.
func (c *serveCmd) migrate(ctx context.Context, db *database, logger zerolog.Logger) error {
	cfg := migrate.Config{DatabaseURL: db.url, IsForced: c.ForceMigrate, Logger: logger}
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
			"or start without --no-migrate (QUEUED_NO_MIGRATE)", db.about, cmp.Or(status.Database, "none"), status.Program)
	}
	return nil
}

// run runs the loops of the services until ctx ends or one fails.
func (s *services) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range s.opened {
		g.Go(func() error { return one.Run(ctx) })
	}
	return g.Wait()
}

// drain ends the calls that wait for events.
func (s *services) drain() {
	for _, one := range slices.Backward(s.opened) {
		one.Drain()
	}
}

// waitForPushes waits until no request to an endpoint is under way, for at most limit.
func (s *services) waitForPushes(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.pushes.Wait(ctx)
}

// close closes the services that were opened, at the same time, by the end of ctx. Their loops must have ended.
func (s *services) close(ctx context.Context) error {
	var closing sync.WaitGroup
	errs := make([]error, len(s.opened))
	for i, one := range s.opened {
		closing.Go(func() { errs[i] = one.Close(ctx) })
	}
	closing.Wait()
	if s.sender != nil {
		s.sender.Close()
	}
	return errors.Join(errs...)
}
