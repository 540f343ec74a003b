package webhook

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/singleflight"
	"golang.org/x/time/rate"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/topic"
)

// Defaults and bounds.
const (
	DefaultPollInterval   = 3 * time.Second // between two looks whether sources have changed
	DefaultRecordInterval = time.Second     // between two writings of what has come in
	DefaultQueryTimeout   = 5 * time.Second // of one statement
	DefaultTimeLimit      = 2 * time.Second // of a delivery, but for the arrival of its body: less than the 3 s after which Slack sends it again

	maxConns      = 3
	writeConns    = 1  // connections of writes, and as many where they wait for locks
	lookUpsPerSec = 50 // of unknown names; known ones are not affected
	lookUpsBurst  = 100

	// Of each source, deliveries without a proof that are answered one by one; beyond these they are told to wait, and their log lines are for debugging.
	refusalsPerSec = 10
	refusalsBurst  = 100
)

// Config holds the settings of a Service. Database, Queue and Topics are required.
type Config struct {
	Database       *pg.Database
	Queue          *queue.Service
	Topics         *topic.Service
	Sealer         *seal.Sealer     // opens and seals secrets; nil: sources can be neither put nor received from
	Now            func() time.Time // what timestamps of signatures are compared with; nil: time.Now
	PollInterval   time.Duration    // zero: DefaultPollInterval
	RecordInterval time.Duration    // zero: DefaultRecordInterval
	QueryTimeout   time.Duration    // zero: DefaultQueryTimeout
	TimeLimit      time.Duration    // zero: DefaultTimeLimit
	Logger         zerolog.Logger   // zero: silent
}

func (c Config) withDefaults() Config {
	c.PollInterval = cmp.Or(c.PollInterval, DefaultPollInterval)
	c.RecordInterval = cmp.Or(c.RecordInterval, DefaultRecordInterval)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.TimeLimit = cmp.Or(c.TimeLimit, DefaultTimeLimit)
	if c.Now == nil {
		c.Now = time.Now
	}
	return c
}

// Service knows all sources and receives from them. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg    Config
	pool   *pg.Pool // for reads
	writes pg.Writes
	pools  pg.Pools

	sources atomic.Pointer[set]
	changed pg.Signal // sources may have changed
	lookUps *rate.Limiter
	asked   singleflight.Group

	renewing sync.Mutex
	mu       sync.Mutex        // guards what follows
	tallies  map[string]*tally // by source, also of those that were deleted since
	labels   map[string]*[len(results)]int64
}

// Open returns a Service on a migrated database, with the sources that there are. It starts no loops: see Run. It fails with ErrUnavailable when the
// database cannot be reached. Close it.
func Open(ctx context.Context, cfg Config) (s *Service, err error) {
	s = &Service{
		cfg: cfg.withDefaults(), changed: pg.NewSignal(), lookUps: rate.NewLimiter(lookUpsPerSec, lookUpsBurst),
		tallies: make(map[string]*tally), labels: make(map[string]*[len(results)]int64),
	}
	s.sources.Store(new(set))
	s.pools, err = cfg.Database.OpenPools(ctx, append(s.writes.Specs(writeConns, s.cfg.QueryTimeout),
		pg.PoolSpec{To: &s.pool, Config: pg.PoolConfig{MaxConns: maxConns, LockTimeout: s.cfg.QueryTimeout}})...)
	if err != nil {
		return nil, err
	}
	if err := s.renew(ctx); err != nil {
		_ = s.pools.CloseBy(ctx) // nothing is lost with them
		return nil, err
	}
	return s, nil
}

// Run reads the sources when they have changed, and writes what has come in, until ctx ends. A Service that is not running knows the sources of when it was opened,
// and looks up those that it does not know. Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	pg.RunLoops(ctx, s.cfg.Logger, s.listener(),
		pg.Loop{Doing: "reading the sources", Pass: s.renew, Pause: s.cfg.PollInterval, Wakes: s.changed.Received},
		pg.Loop{Doing: "counting deliveries", Pass: s.record, Pause: s.cfg.RecordInterval, DelayFirst: true},
	)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.QueryTimeout)
	defer cancel()
	if err := s.record(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the last deliveries of sources were not counted")
	}
	return nil
}

// Close closes the connections, by the end of ctx. Run must have returned.
func (s *Service) Close(ctx context.Context) error { return s.pools.CloseBy(ctx) }

// PoolStats describes the connections.
func (s *Service) PoolStats() pg.PoolStats { return s.pools.Stats() }

// channel is what changes of sources notify on.
const channel = "agent_source"

func (s *Service) listener() *pg.Listener {
	return &pg.Listener{
		Database: s.cfg.Database,
		Pool:     s.pool,
		Channel:  channel,
		Started:  s.changed.Send,
		Received: func(string) { s.changed.Send() },
		Failed: func(err error) {
			s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("not listening for changes of sources: they are polled for until the connection is back")
		},
	}
}
