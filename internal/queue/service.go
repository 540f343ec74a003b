// Package queue is what a caller can do with events: enqueue, claim, finish, give back, sweep,
// look at and requeue them. It calls the functions of the schema agent and knows nothing of HTTP.
package queue

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/queued/queued/internal/pg"
)

const (
	// DefaultMaxAttempts is how often an event is claimed before a sweep expires it.
	DefaultMaxAttempts = 3
	// DefaultInvisibleFor is the length of a lease.
	DefaultInvisibleFor = 10 * time.Minute
	// DefaultSweepInterval is the time between two sweeps of a running service.
	DefaultSweepInterval = 10 * time.Second
	// DefaultKeyRetention is how long an idempotency key is remembered.
	DefaultKeyRetention = 24 * time.Hour
	// DefaultQueryTimeout bounds one listing or count.
	DefaultQueryTimeout = 5 * time.Second
	// DefaultLockTimeout is how long a call waits for what another transaction has locked. It is less than a request may take.
	DefaultLockTimeout = 5 * time.Second
	// DefaultMaxConns is the most connections a service opens.
	DefaultMaxConns = 16
	// DefaultMaxPendingBytes bounds the events that wait to be written.
	DefaultMaxPendingBytes = 64 << 20
	// DefaultPage is how many events a page holds unless said otherwise.
	DefaultPage = 100
	// MaxPage is the most events one page holds.
	MaxPage = 1000
	// MaxBatch is the most events that one call may insert, claim, ack or requeue.
	MaxBatch = 1000
	// MaxWait is the longest a claim may wait.
	MaxWait = time.Minute
	// MaxBuckets is the most time buckets one call may ask for.
	MaxBuckets = 2000
)

// Config is what a Service needs to know. All but DatabaseURL or Database may be zero.
type Config struct {
	DatabaseURL   string       // a PostgreSQL URL or keyword string, as libpq takes it; the schema is migrated
	Database      *pg.Database // goes before DatabaseURL
	SchemaVersion string       // the version agent.version must have reached for CheckReady; empty: any
	RequireSync   bool         // CheckReady wants a server whose commits wait for a standby
	MaxConns      int          // connections at most, fewer than 7 are 7; zero: what the URL's pool_max_conns says, else DefaultMaxConns
	// MaxPendingBytes bounds the events that wait to be written, in bytes; beyond it inserts and acks fail with ErrOverloaded. Zero:
	// DefaultMaxPendingBytes.
	MaxPendingBytes int
	MaxAttempts     int            // default of claims and sweeps; zero: DefaultMaxAttempts
	SweepInterval   time.Duration  // time between sweeps of the service itself; zero: DefaultSweepInterval; negative: never
	MaxVTAge        time.Duration  // those sweeps also expire what has been claimable longer; zero: by attempts alone
	Retention       time.Duration  // history older than this (by event_ts) is dropped; zero: kept for ever
	LockTimeout     time.Duration  // how long a call waits for what another transaction has locked; zero: DefaultLockTimeout
	QueryTimeout    time.Duration  // bound of one listing or count; zero: DefaultQueryTimeout
	KeyRetention    time.Duration  // how long an idempotency key is remembered; zero: DefaultKeyRetention
	PollInterval    time.Duration  // longest time a waiting claim relies on notifications alone; zero: 2 s
	Logger          zerolog.Logger // zero: silent
}

func (c Config) withDefaults() Config {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = DefaultMaxAttempts
	}
	if c.SweepInterval == 0 {
		c.SweepInterval = DefaultSweepInterval
	}
	if c.QueryTimeout == 0 {
		c.QueryTimeout = DefaultQueryTimeout
	}
	if c.KeyRetention == 0 {
		c.KeyRetention = DefaultKeyRetention
	}
	if c.LockTimeout == 0 {
		c.LockTimeout = DefaultLockTimeout
	}
	if c.MaxPendingBytes == 0 {
		c.MaxPendingBytes = DefaultMaxPendingBytes
	}
	if c.PollInterval == 0 {
		c.PollInterval = 2 * time.Second
	}
	return c
}

// Service is the queue. It is safe for concurrent use, and any number of them, in any number
// of processes, may share one database.
type Service struct {
	cfg Config
	db  *pg.Database
	pools
	listener *pg.Listener
	name     string // tells this service's notifications from those of others
	counters counters
	notifier *notifier
	flusher  *flusher
	marks    marks
	server   server
	fits     fits
	lookouts lookouts
	started  time.Time

	executions executions
	upkeep     upkeep

	mu          sync.Mutex
	dispatchers map[string]*dispatcher // one per queue that has waiting claims
	draining    bool
	closed      bool           // nobody may join any more
	work        sync.WaitGroup // claims under way, and dispatchers
}

// Open returns a Service on a migrated database, and fails with ErrUnavailable when the
// database cannot be reached. It starts no loops: see Run. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	db := cfg.Database
	if db == nil {
		var err error
		if db, err = pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Logger: cfg.Logger}); err != nil {
			return nil, err
		}
	}
	cfg = cfg.withDefaults()
	s := &Service{
		cfg:         cfg,
		db:          db,
		name:        rand.Text(),
		started:     time.Now(),
		dispatchers: make(map[string]*dispatcher),
	}
	if err := s.openPools(ctx); err != nil {
		return nil, err
	}
	s.upkeep = upkeep{every: upkeepInterval, retry: upkeepRetry, pause: time.Second}
	s.notifier = newNotifier(s)
	s.listener = s.newListener()
	s.marks = marks{byKey: make(map[markKey]*laneMarks), off: true, every: lookBehindInterval}
	s.flusher = newFlusher(s)
	if err := s.health.Ping(ctx); err != nil {
		s.closePools(ctx)
		return nil, wrap("connecting", err)
	}
	return s, nil
}

// Run sweeps, looks after history and statistics, reports this process's metrics and listens for notifications until ctx ends. A Service
// that is not running still serves every call; its waiting claims then rely on polling.
// Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.listener.Run(ctx) })
	g.Go(func() error { return s.serverLoop(ctx) })
	g.Go(func() error { return s.notifier.run(ctx) })
	if s.cfg.SweepInterval > 0 {
		g.Go(func() error { return s.sweepLoop(ctx) })
	}
	g.Go(func() error { return s.upkeepLoop(ctx) })
	g.Go(func() error { return s.lookBehindLoop(ctx) })
	g.Go(func() error { return s.recordLoop(ctx) })
	g.Go(func() error { return s.reportLoop(ctx) })
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}

// Drain makes every waiting claim answer at once, empty if it must, and later ones not wait.
func (s *Service) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain()
}

// drain is Drain for callers that hold mu.
func (s *Service) drain() {
	s.draining = true
	for _, d := range s.dispatchers {
		d.drain()
	}
}

// Close drains, waits until the calls under way and what the service started have ended (or
// ctx has), and closes the connections. Run must have returned. Calls after Close fail with ErrUnavailable.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.drain()
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.work.Wait()
		s.flusher.close()
		s.recordLast(ctx)
	}()
	defer s.closePools(ctx)
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("closing the queue service: calls are still under way: %w", ctx.Err())
	}
}

// closePools closes the connections. A server that does not take leave of them loses nothing by it, so that they are not waited for longer than
// ctx lasts.
func (s *Service) closePools(ctx context.Context) {
	if err := s.all.CloseBy(ctx); err != nil {
		s.cfg.Logger.Warn().Err(err).Msg("the database does not answer: its connections are dropped")
	}
}

// Ping returns nil when the database answers.
func (s *Service) Ping(ctx context.Context) error {
	_, err := s.health.Exec(ctx, `select 1`)
	return wrap("asking the database for an answer", err)
}

// PoolStats describes the connections.
func (s *Service) PoolStats() pg.PoolStats { return s.all.Stats() }

// bounded runs read with the statement timeout of listings and counts.
func (s *Service) bounded(ctx context.Context, read func(pgx.Tx) error) error {
	return pg.Bounded(ctx, s.searches, s.cfg.QueryTimeout, read)
}
