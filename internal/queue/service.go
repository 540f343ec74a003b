package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/groupcommit"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/rounds"
	"github.com/queued/queued/internal/watermark"
)

// Defaults and bounds.
const (
	DefaultMaxAttempts     = 3                // claims of an event before a sweep expires it
	DefaultInvisibleFor    = 10 * time.Minute // the length of a lease
	DefaultSweepInterval   = 10 * time.Second // between two sweeps of a running service
	DefaultKeyRetention    = 24 * time.Hour   // how long an idempotency key is remembered
	DefaultQueryTimeout    = 5 * time.Second  // of one listing or count
	DefaultLockTimeout     = 5 * time.Second  // how long a call waits for a lock of another transaction; less than a request may take
	DefaultMaxConns        = 16               // connections of a service
	DefaultMaxPendingBytes = 64 << 20         // of events that wait to be written
	DefaultPollInterval    = 2 * time.Second  // how long a waiting claim relies on notifications alone
	DefaultPage            = pg.DefaultPage   // events of a page unless said otherwise
	MaxPage                = pg.MaxPage       // events of a page
	MaxBatch               = 1000             // events that one call may insert, claim, ack or requeue
	MaxWait                = time.Minute      // of a claim
	MaxBuckets             = 2000             // time buckets that one call may ask for
)

// defaultWatermarkScanTime is about the time of a small claim in all. A scan takes as long when some 50,000 events have been claimed since the last vacuum.
const defaultWatermarkScanTime = 250 * time.Microsecond

// Config holds the settings of a Service. All but DatabaseURL or Database may be zero; the meaning of zero is given where it is not "none".
type Config struct {
	DatabaseURL       string         // a PostgreSQL URL or keyword string, as libpq takes it; the schema is migrated
	Database          *pg.Database   // goes before DatabaseURL
	SchemaVersion     string         // the version agent.version must have reached for CheckReady; empty: any
	RequireSync       bool           // CheckReady wants a server whose commits wait for a standby
	HasNoStandby      bool           // nothing takes over from the server, as from a private one: commits wait for no standby, and none is missed
	AdoptsAlways      bool           // a copy of a database is adopted as soon as it is seen
	IsQuiet           bool           // this process neither pushes nor fires schedules nor delivers subscriptions: for Server
	DeclaredOnly      bool           // calls are refused that name a queue which nobody has made by PutPolicy: see RequireQueues
	MaxConns          int            // connections at most, fewer than 7 are 7; zero: the URL's pool_max_conns, else DefaultMaxConns
	MaxPendingBytes   int            // events that wait to be written; beyond it inserts and acks fail with ErrOverloaded; zero: DefaultMaxPendingBytes
	MaxAttempts       int            // default of claims and sweeps; zero: DefaultMaxAttempts
	SweepInterval     time.Duration  // time between sweeps of the service itself; zero: DefaultSweepInterval; negative: never
	MaxVTAge          time.Duration  // those sweeps also expire events that have been claimable longer; zero: by attempts alone
	Retention         time.Duration  // history older than this (by event_ts) is dropped; zero: kept for ever
	LockTimeout       time.Duration  // how long a call waits for a lock of another transaction; zero: DefaultLockTimeout
	QueryTimeout      time.Duration  // bound of one listing or count; zero: DefaultQueryTimeout
	KeyRetention      time.Duration  // how long an idempotency key is remembered; zero: DefaultKeyRetention
	PollInterval      time.Duration  // longest time a waiting claim relies on notifications alone; zero: DefaultPollInterval
	WatermarkInterval time.Duration  // time between two scans below a watermark; zero: a second
	WatermarkScanTime time.Duration  // claims begin at watermarks while such scans take the database longer; zero: 250 µs; negative: always
	LookAheadTime     time.Duration  // a waiting claim does not wait for a look ahead that takes the database longer; zero: 1 ms; negative: for none
	UpkeepInterval    time.Duration  // time between two rounds of upkeep; zero: an hour; negative: never
	UpkeepRetry       time.Duration  // time after which a failed task of upkeep is tried again; zero: a minute
	UpkeepStepRetry   time.Duration  // time after which a step of upkeep is tried again that would have had to wait; zero: a second
	Logger            zerolog.Logger // zero: silent
}

func (c Config) withDefaults() Config {
	c.MaxPendingBytes = cmp.Or(c.MaxPendingBytes, DefaultMaxPendingBytes)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, DefaultMaxAttempts)
	c.SweepInterval = cmp.Or(c.SweepInterval, DefaultSweepInterval)
	c.LockTimeout = cmp.Or(c.LockTimeout, DefaultLockTimeout)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.KeyRetention = cmp.Or(c.KeyRetention, DefaultKeyRetention)
	c.PollInterval = cmp.Or(c.PollInterval, DefaultPollInterval)
	c.WatermarkInterval = cmp.Or(c.WatermarkInterval, time.Second)
	c.WatermarkScanTime = cmp.Or(c.WatermarkScanTime, defaultWatermarkScanTime)
	c.LookAheadTime = cmp.Or(c.LookAheadTime, time.Millisecond)
	c.UpkeepInterval = cmp.Or(c.UpkeepInterval, time.Hour)
	c.UpkeepRetry = cmp.Or(c.UpkeepRetry, time.Minute)
	c.UpkeepStepRetry = cmp.Or(c.UpkeepStepRetry, time.Second)
	return c
}

// Service is the queue. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg Config
	db  *pg.Database
	pools
	name       string // tells this service's notifications from those of others
	started    time.Time
	notifier   *notifier
	commits    *groupcommit.Committer[*operation]
	ends       *endWaits
	watermarks *watermark.Set
	claimSizes claimSizeLimits
	slow       slowNextDue
	server     server
	writes     writes
	counters   counters
	executions executions
	declared   *declaredQueues // nil: unless Config.DeclaredOnly
	waits      policyWaits
	upkeep     upkeep
	isPusher   atomic.Bool
	isOutdated atomic.Bool  // the schema has moved beyond this program
	pollsIdle  atomic.Bool  // pollIdle looks at the queues of the dispatchers that sleep
	spans      atomic.Int64 // of the commits: how many have begun or ended; see span
	adopted    pg.Signal    // the database may have been adopted
	redrives   redrives

	mu          sync.Mutex
	dispatchers map[string]*dispatcher // one per queue that has waiting claims
	claims      *rounds.Loop           // the rounds of dispatchers
	handsOver   map[string]bool        // queues in which acks have freed slots since a claim was taken along with acks in vain; some have no dispatcher any more
	draining    bool
	closed      bool           // no claim may join any more
	work        sync.WaitGroup // claims under way, dispatchers, and goroutines of theirs
}

// Open returns a Service on a migrated database, and fails with ErrUnavailable when the database cannot be reached. It starts no loops: see Run.
// Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	db := cfg.Database
	if db == nil {
		var err error
		if db, err = pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Logger: cfg.Logger}); err != nil {
			return nil, err
		}
	}
	s := &Service{
		cfg:         cfg,
		db:          db,
		name:        rand.Text(),
		started:     time.Now(),
		adopted:     pg.NewSignal(),
		redrives:    redrives{added: pg.NewSignal()},
		watermarks:  watermark.New(cfg.WatermarkInterval, cfg.WatermarkScanTime),
		dispatchers: make(map[string]*dispatcher),
		claims:      db.Rounds.Loop("claiming for waiters"),
		handsOver:   make(map[string]bool),
		writes:      writes{checking: make(chan struct{}, 1)},
	}
	if err := s.openPools(ctx); err != nil {
		return nil, err
	}
	s.addUpkeepTasks()
	s.notifier = newNotifier(s)
	if cfg.DeclaredOnly {
		s.declared = newDeclaredQueues(&s.pools)
	}
	s.openPolicyWaits()
	s.ends = newEndWaits(s)
	s.commits = s.newCommitter()
	if err := s.health.Ping(ctx); err != nil {
		s.closePools(ctx)
		return nil, wrap("connecting", err)
	}
	return s, nil
}

// Run sweeps, looks after history and statistics, reports this process's metrics and listens for notifications until ctx ends. A Service
// that is not running still serves every call; its waiting claims then rely on polling. Faults of the database are logged and tried again; Run
// returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	s.watermarks.Enable(true)
	loops := []pg.Loop{
		{Doing: "notifying other processes", Pass: s.notifier.notify, Pause: time.Hour, Wakes: s.notifier.added.Received},
		{Doing: "looking at the server", Pass: s.checkServer, Pause: serverInterval, Retry: time.Second, Wakes: s.db.Resets},
		{Doing: "looking for what becomes claimable", Pass: s.pollIdle, Pause: s.cfg.PollInterval},
		{Doing: "looking whether the database is a copy", Pass: s.CheckIdentity, Pause: serverInterval, Retry: time.Second, Wakes: s.adopted.Received},
		{Doing: "looking for late events", Pass: s.scanBelowWatermarks, Pause: s.cfg.WatermarkInterval, DelayFirst: true},
		s.redriveLoop(),
		s.sampleLoop(),
		{Doing: "recording executions", Pass: s.recordLeft, Pause: recordInterval, DelayFirst: true},
		{Doing: "reporting this process", Pass: s.report, Pause: reportInterval},
		{Doing: "pruning processes", Pass: s.pruneProcesses, Pause: reportInterval, IsUpkeep: true},
	}
	if s.declared != nil {
		loops = append(loops,
			pg.Loop{Doing: "looking which queues are declared", Pass: s.declared.verify, Pause: verifyInterval, DelayFirst: true},
			pg.Loop{Doing: "looking for undeclared queues in use", Pass: s.warnOfUndeclared, Pause: undeclaredInterval, Retry: time.Minute, IsUpkeep: true})
	}
	if s.cfg.UpkeepInterval > 0 {
		loops = append(loops, pg.Loop{Doing: "upkeep", Pass: s.doUpkeep, Pause: s.cfg.UpkeepInterval, Retry: s.cfg.UpkeepRetry})
	}
	if s.cfg.SweepInterval > 0 {
		loops = append(loops, pg.Loop{Doing: "sweep", Pass: s.sweepAll, Pause: s.cfg.SweepInterval, DelayFirst: true})
	}
	s.db.RunLoops(ctx, s.cfg.Logger, []pg.Subscriber{s.subscriber(), s.redriveSubscriber()}, loops...)
	s.watermarks.Enable(false) // at once, as nothing scans below them any more
	s.pollsIdle.Store(false)
	s.wakeAll()
	s.endReports(ctx)
	return nil
}

// Drain makes every waiting claim answer at once, empty if it must, and every WaitEvent with the event as it is; later ones do not wait.
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
	s.ends.drain()
}

// Close drains, waits until the calls under way and the goroutines of the service have ended (or ctx has), and closes the connections. Run must have
// returned. Calls after Close fail with ErrUnavailable.
func (s *Service) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.drain()
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.work.Wait()
		s.commits.Close()
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

const (
	// callLockTimeout is how long a short call waits for a lock on the connections that it shares with all others. Then it waits for
	// Config.LockTimeout on one where only such calls wait.
	callLockTimeout = 10 * time.Millisecond
	// partitionTries is how often a call may be made where it waits. Whoever waits for the default partition of history while a partition is
	// attached is refused by the default one, and the next try finds the new one; upkeep attaches no more than a few in a row.
	partitionTries = 10
	// maxLockWaiters is how many calls may wait for locks at a time.
	maxLockWaiters = 200
	// minConns is how many connections the pools have at least, together.
	minConns = 7
)

// pools are the connections of a service, apart by purpose, so that nothing which takes long stands in the way of something else.
type pools struct {
	writers  *pg.Pool // the group commit's, a connection for each writer
	calls    *pg.Pool // short calls about single events and queues, reads included: only short uses it
	patient  *pg.Pool // such calls, and operations of group commits, that have to wait for a lock of another transaction
	searches *pg.Pool // listings, searches and counts, each of them as long as Config.QueryTimeout
	loops    *pg.Pool // the background work of the service, and sweeps and purges
	health   *pg.Pool // whether the database answers a scrape

	all         pg.Pools
	lockWaiters chan struct{} // holds a token for each call that waits for a lock
	requeues    chan struct{} // holds a token for each search that may wait for a lock: half of the connections are left to the others
}

// openPools divides the connections among the pools. As a commit keeps one of the database's processors busy, there may be a writer for each of
// ours, as far as that is known, in two fifths of the connections.
func (s *Service) openPools(ctx context.Context) (err error) {
	conns := max(cmp.Or(s.cfg.MaxConns, s.db.MaxConns(), DefaultMaxConns), minConns)
	writers := min(max(2, runtime.GOMAXPROCS(0)), conns*2/5)
	rest := conns - writers - 1 // health has one
	share := func(i int) int { return (rest + 3 - i) / 4 }
	s.lockWaiters = make(chan struct{}, maxLockWaiters)
	s.requeues = make(chan struct{}, max(1, share(1)/2))
	s.all, err = s.db.OpenPools(ctx,
		pg.PoolSpec{To: &s.writers, Config: pg.PoolConfig{Name: "queue_writers", MaxConns: writers, LockTimeout: commitLockTimeout}},
		pg.PoolSpec{To: &s.calls, Config: pg.PoolConfig{Name: "queue_calls", MaxConns: share(0), LockTimeout: callLockTimeout}},
		pg.PoolSpec{To: &s.searches, Config: pg.PoolConfig{Name: "queue_searches", MaxConns: share(1), LockTimeout: s.cfg.LockTimeout}},
		pg.PoolSpec{To: &s.loops, Config: pg.PoolConfig{Name: "queue_loops", MaxConns: share(2), LockTimeout: s.cfg.LockTimeout}},
		pg.PoolSpec{To: &s.patient, Config: pg.PoolConfig{Name: "queue_patient", MaxConns: share(3), LockTimeout: s.cfg.LockTimeout}},
		pg.PoolSpec{To: &s.health, Config: pg.PoolConfig{Name: "queue_health", MaxConns: 1, LockTimeout: s.cfg.LockTimeout}},
	)
	return err
}

// closePools closes the connections, by the end of ctx: a server that does not answer then loses nothing.
func (s *Service) closePools(ctx context.Context) {
	if err := s.all.CloseBy(ctx); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the database does not answer: its connections are dropped")
	}
}

// short makes a short call: run makes it on the connections of a pool, in one transaction. When it loses against another transaction there, nothing was
// written, and it is made again where it may wait. It fails with ErrLocked when it has waited too long, and with ErrOverloaded when too many wait.
func (p *pools) short(ctx context.Context, run func(*pg.Pool) error) error {
	err := run(p.calls)
	if !pg.LostRace(err) {
		return err
	}
	select {
	case p.lockWaiters <- struct{}{}:
		defer func() { <-p.lockWaiters }()
		for range partitionTries {
			if err = run(p.patient); !pg.PartitionAttached(err) {
				break
			}
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	default:
		return fmt.Errorf("%w: %d calls wait for locks", ErrOverloaded, maxLockWaiters)
	}
}

// shortCall makes a short call, and returns what read makes of its rows.
func shortCall[T any](ctx context.Context, p *pools, read func(pgx.Rows) (T, error), sql string, args ...any) (found T, err error) {
	err = p.short(ctx, func(pool *pg.Pool) error {
		rows, _ := pool.Query(ctx, sql, args...)
		found, err = read(rows)
		return err
	})
	return found, err
}

// row makes a short call that returns one row, and scans it into dest.
func (p *pools) row(ctx context.Context, sql string, args []any, dest ...any) error {
	return p.short(ctx, func(pool *pg.Pool) error { return pool.QueryRow(ctx, sql, args...).Scan(dest...) })
}

// bounded runs read in a transaction with the statement timeout of listings and counts.
func (s *Service) bounded(ctx context.Context, read func(pgx.Tx) error) error {
	return pg.Bounded(ctx, s.searches, s.cfg.QueryTimeout, read)
}

// KeyRetention is how long the idempotency keys of events and publications are remembered.
func (s *Service) KeyRetention() time.Duration { return s.cfg.KeyRetention }

// Rounds returns the counts of the loops of all services on the database.
func (s *Service) Rounds() *rounds.Counts { return &s.db.Rounds }

// PoolStats describes the connections of the service.
func (s *Service) PoolStats() pg.PoolStats { return s.all.Stats() }

// Database returns the maker of the connections of the service.
func (s *Service) Database() *pg.Database { return s.db }

// Ping returns nil when the database answers.
func (s *Service) Ping(ctx context.Context) error {
	_, err := s.health.Exec(ctx, `select 1`)
	return wrap("asking the database for an answer", err)
}
