// Package schedule turns times to come into events: once at an instant or a local time, or again and again by a rule.
//
// The local date-time and the zone are the truth, instants are derived. The zone rules are those of the PostgreSQL server, and
// agent.resolve_local alone applies them, so that all processes agree; package time never decides. Rules are expanded over local
// date-times without a zone, which are held as a time.Time in UTC: they wear UTC's clothes.
package schedule

import (
	"cmp"
	"context"
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
	// DefaultQueryTimeout bounds one listing.
	DefaultQueryTimeout = 5 * time.Second
	// DefaultMaxConns is the most connections a service opens, beside one that listens.
	DefaultMaxConns = 4
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
	QueryTimeout time.Duration  // bound of one listing; zero: DefaultQueryTimeout
	Retention    time.Duration  // occurrences that were due longer ago are forgotten; zero: none are; MinRetention at least
	Logger       zerolog.Logger // zero: silent
}

func (c Config) withDefaults() Config {
	c.MaxConns = max(2, cmp.Or(c.MaxConns, DefaultMaxConns))
	c.MisfireGrace = cmp.Or(c.MisfireGrace, DefaultMisfireGrace)
	c.PollInterval = cmp.Or(c.PollInterval, time.Second)
	c.ZoneInterval = cmp.Or(c.ZoneInterval, time.Hour)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
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
	pool  *pg.Pool
	wakes chan struct{} // holds a token when something may be due

	counters counters

	mu    sync.Mutex
	zones time.Time // changes of zone rules up to here are known to the pool's sessions
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
	pool, err := db.NewPool(ctx, pg.PoolConfig{MaxConns: cfg.MaxConns})
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, wrap("connecting", err)
	}
	return &Service{cfg: cfg, db: db, pool: pool, wakes: make(chan struct{}, 1)}, nil
}

// Close closes the connections, once the calls under way have ended. Run must have returned. Calls after Close fail with ErrUnavailable.
func (s *Service) Close() { s.pool.Close() }

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

// upkeepInterval is how often old occurrences are forgotten.
const upkeepInterval = time.Hour

// upkeepLoop forgets old occurrences now and then until ctx ends.
func (s *Service) upkeepLoop(ctx context.Context) error {
	for {
		if _, err := s.pool.Exec(ctx, `select agent.keep_occurrences($1)`, s.cfg.Retention); err != nil && ctx.Err() == nil {
			s.cfg.Logger.Error().Err(err).Msg("old occurrences could not be forgotten; it is tried again in about an hour")
		}
		if !loop.Pause(ctx, loop.Jittered(upkeepInterval)) {
			return nil
		}
	}
}

// inTx runs do in a transaction, and says what was being done when it fails.
func (s *Service) inTx(ctx context.Context, doing string, do func(pgx.Tx) error) error {
	return wrap(doing, pgx.BeginFunc(ctx, s.pool, do))
}

// bounded runs read with the statement timeout of listings.
func (s *Service) bounded(ctx context.Context, doing string, read func(pgx.Tx) error) error {
	return wrap(doing, pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, read))
}

func pageSize(limit int) int { return min(cmp.Or(limit, DefaultPage), MaxPage) }
