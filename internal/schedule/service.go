// Package schedule turns times to come into events: once at an instant or a local time, or again and again by a rule.
//
// The local date-time and the zone are the truth, instants are derived. The zone rules are those of the PostgreSQL server, and
// agent.resolve_local alone applies them, so that all processes agree; package time never decides. Rules are expanded over local
// date-times without a zone, which are held as a time.Time in UTC.
//
// Rules are expanded outside of transactions, by a budget of steps and until the call's deadline (expand.go). What is planned so is stored with one statement,
// which makes sure that nothing it was planned from has changed, or else it is planned again. The one transaction of several statements is that of
// the firing loop, for schedules that are in time and whose next time is found in a few steps.
//
// Goroutines of Run: the firing loop, which has a pool of its own, the listener, the check of the zones, and the pruning of old occurrences.
package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/queued/queued/internal/loop"
	"github.com/queued/queued/internal/pg"
)

const (
	// DefaultMisfireGrace is how late an occurrence may be before it counts as missed.
	DefaultMisfireGrace = time.Minute
	// DefaultQueryTimeout bounds one listing, and the planning of one schedule.
	DefaultQueryTimeout = 5 * time.Second
	// DefaultCallTimeout bounds one call, beside listings.
	DefaultCallTimeout = 15 * time.Second
	// DefaultMaxConns is the most connections a service opens for calls. While it runs it opens up to loopConns more, one to listen, and now and
	// then one to look at the zones.
	DefaultMaxConns = 4
	// loopConns is how many connections the loops have of their own, so that no calls keep them from firing: one fires, one prunes.
	loopConns = 2
	// DefaultPage is how much a page holds unless said otherwise.
	DefaultPage = 100
	// MaxPage is the most that one page holds.
	MaxPage = 1000
	// DefaultUpcoming is how many instants a preview has unless said otherwise.
	DefaultUpcoming = 10
	// MaxUpcoming is the most instants that one call looks ahead for.
	MaxUpcoming = 1000
	// MinRetention is the shortest time that occurrences are kept: until no move of an owner can bring their time back.
	MinRetention = 48 * time.Hour
)

// Config is what a Service needs to know. All but DatabaseURL or Database may be zero.
type Config struct {
	DatabaseURL  string         // a PostgreSQL URL or keyword string, as libpq takes it; the schema is migrated
	Database     *pg.Database   // goes before DatabaseURL
	MaxConns     int            // connections at most, two or more; zero: DefaultMaxConns
	MisfireGrace time.Duration  // an occurrence that is later is missed; zero: DefaultMisfireGrace
	PollInterval time.Duration  // longest time between two looks for what is due; zero: 1 s
	ZoneInterval time.Duration  // time between two checks of the zones' rules; zero: an hour
	QueryTimeout time.Duration  // bound of one listing or preview; zero: DefaultQueryTimeout
	CallTimeout  time.Duration  // bound of any other call; zero: DefaultCallTimeout
	Retention    time.Duration  // occurrences that were due longer ago are forgotten; zero or less: none are; MinRetention at least
	Logger       zerolog.Logger // zero: silent
}

func (c Config) withDefaults() Config {
	c.MaxConns = max(2, cmp.Or(c.MaxConns, DefaultMaxConns))
	c.MisfireGrace = cmp.Or(c.MisfireGrace, DefaultMisfireGrace)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.ZoneInterval = cmp.Or(c.ZoneInterval, time.Hour)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.CallTimeout = cmp.Or(c.CallTimeout, DefaultCallTimeout)
	if c.Retention > 0 {
		c.Retention = max(c.Retention, MinRetention)
	}
	return c
}

// Service makes schedules and turns what is due into events. It is safe for concurrent use, and any number of them, in any
// number of processes, may share one database.
type Service struct {
	cfg   Config
	db    *pg.Database
	pool  *pg.Pool      // for calls
	loops *pg.Pool      // for the loops of Run
	pools pg.Pools      // both
	wakes chan struct{} // holds a token when something may be due

	closed context.Context // ends when calls under way are to end
	cancel context.CancelFunc

	counters counters

	mu    sync.Mutex
	zones time.Time // changes of zone rules up to here are known to the pools' sessions

	postponedMu sync.Mutex
	postponed   map[int64]time.Time // schedules that could not be planned in time, and when they are tried again
}

// Open returns a Service on a migrated database, and fails with ErrUnavailable when the
// database cannot be reached. It starts no loops: see Run. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	db := cfg.Database
	if db == nil {
		var err error
		if db, err = pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Logger: cfg.Logger}); err != nil {
			return nil, err
		}
	}
	s := &Service{cfg: cfg, db: db, wakes: make(chan struct{}, 1), postponed: make(map[int64]time.Time)}
	var err error
	s.pools, err = db.OpenPools(ctx,
		pg.PoolSpec{To: &s.pool, Config: pg.PoolConfig{MaxConns: cfg.MaxConns}},
		pg.PoolSpec{To: &s.loops, Config: pg.PoolConfig{MaxConns: loopConns}},
	)
	if err != nil {
		return nil, err
	}
	if err := s.pool.Ping(ctx); err != nil {
		_ = s.pools.CloseBy(ctx) // nothing is lost with them
		return nil, wrap("connecting", err)
	}
	s.closed, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return s, nil
}

// closeGrace is how long calls that are told to end may take to do so.
const closeGrace = time.Second

// Close closes the connections, once the calls under way have ended; those that have not when ctx ends are told to, and have a second more. It fails when one of
// them did not. Run must have returned. Calls after Close fail with ErrUnavailable.
func (s *Service) Close(ctx context.Context) error {
	defer s.cancel()
	if s.pools.CloseBy(ctx) == nil {
		return nil
	}
	s.cancel()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	if err := s.pools.CloseBy(ctx); err != nil {
		return fmt.Errorf("closing the schedules: a call under way did not end: %w", err)
	}
	return nil
}

// Run turns what is due into events, and watches the rules of the zones in use, until ctx ends. A Service that is not running still
// serves every other call. Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.fireLoop(ctx) })
	g.Go(func() error { return s.listen(ctx) })
	g.Go(func() error { return s.zoneLoop(ctx) })
	if s.cfg.Retention > 0 {
		g.Go(func() error { return s.upkeepLoop(ctx) })
	}
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

const (
	// upkeepInterval is how often old occurrences are forgotten.
	upkeepInterval = time.Hour
	// upkeepBlocks is how much of their table one transaction goes through: some 2 MB, or about 20,000 of them.
	upkeepBlocks = 256
	// upkeepPause is the time between two of these transactions, for others.
	upkeepPause = 20 * time.Millisecond
)

// upkeepLoop forgets old occurrences now and then until ctx ends.
func (s *Service) upkeepLoop(ctx context.Context) error {
	for {
		forgotten, err := s.Prune(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			s.cfg.Logger.Error().Err(err).Msg("old occurrences could not be forgotten; it is tried again in about an hour")
		case forgotten > 0:
			s.cfg.Logger.Info().Int64("occurrences", forgotten).Msg("old occurrences are forgotten")
		}
		if !loop.Pause(ctx, loop.Jittered(upkeepInterval)) {
			return nil
		}
	}
}

// Prune forgets the occurrences that were due longer ago than Config.Retention, in short transactions, and returns how many. Run does so at its start and
// hourly. Without a Retention it does nothing.
func (s *Service) Prune(ctx context.Context) (forgotten int64, err error) {
	if s.cfg.Retention <= 0 {
		return 0, nil
	}
	for block := int64(0); ; block += upkeepBlocks {
		var n *int64
		err := s.loops.QueryRow(ctx, `select agent.prune_occurrences($1, $2, $3)`, s.cfg.Retention, block, upkeepBlocks).Scan(&n)
		if err != nil {
			return forgotten, wrap("forgetting old occurrences", err)
		}
		if n == nil {
			return forgotten, nil
		}
		if forgotten += *n; *n > 0 && !loop.Pause(ctx, upkeepPause) {
			return forgotten, ctx.Err()
		}
	}
}

// call runs do with the deadline of a call, and says what was being done when it fails.
func (s *Service) call(ctx context.Context, doing string, do func(context.Context) error) error {
	return s.within(ctx, s.cfg.CallTimeout, doing, ErrUnavailable, do)
}

// plan runs do, which expands rules, with the deadline of planning. Beyond it, it fails with ErrQueryTimeout.
func (s *Service) plan(ctx context.Context, do func(context.Context) error) error {
	return s.within(ctx, s.cfg.QueryTimeout, "planning", ErrQueryTimeout, do)
}

// bounded runs read in a transaction with the deadline of a listing, which the server is told as well. Beyond it, it fails with ErrQueryTimeout.
func (s *Service) bounded(ctx context.Context, doing string, read func(context.Context, pgx.Tx) error) error {
	// The server's own limit comes first, as it leaves the connection whole.
	return s.within(ctx, s.cfg.QueryTimeout+closeGrace/2, doing, ErrQueryTimeout, func(ctx context.Context) error {
		return pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error { return read(ctx, tx) })
	})
}

// within runs do with a deadline, or until the service is closed. Beyond the deadline it fails with beyond.
func (s *Service) within(ctx context.Context, limit time.Duration, doing string, beyond error, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(s.closed, cancel)() //nolint:contextcheck // the service's end, beside the call's
	err := do(bounded)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrQueryTimeout): // of a part of it
	case ctx.Err() == nil && s.closed.Err() != nil && errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", doing, pg.ErrClosed)
	case ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrInvalid):
		return fmt.Errorf("%s: %w: it took longer than %s: %w", doing, beyond, limit, err)
	}
	return wrap(doing, err)
}

func pageSize(limit int) int { return min(cmp.Or(limit, DefaultPage), MaxPage) }
