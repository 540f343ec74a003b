package webhook

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/deliverylog"
	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/seal"
	"github.com/queued/queued/internal/topic"
)

// Defaults and bounds.
const (
	DefaultRecordInterval = time.Second     // between two writings of the counts
	DefaultQueryTimeout   = 5 * time.Second // of one statement
	DefaultTimeLimit      = 2 * time.Second // of a delivery, but for the arrival of its body: less than the 3 s after which Slack sends it again

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
	Now            func() time.Time // the clock that timestamps of signatures are compared with; nil: the database's
	PollInterval   time.Duration    // between two looks whether sources have changed; zero: pg.DefaultReplicaPoll
	RecordInterval time.Duration    // zero: DefaultRecordInterval
	QueryTimeout   time.Duration    // zero: DefaultQueryTimeout
	TimeLimit      time.Duration    // zero: DefaultTimeLimit
	Logger         zerolog.Logger   // zero: silent
}

func (c Config) withDefaults() Config {
	c.RecordInterval = cmp.Or(c.RecordInterval, DefaultRecordInterval)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.TimeLimit = cmp.Or(c.TimeLimit, DefaultTimeLimit)
	if c.Now == nil {
		c.Now = c.Database.Now
	}
	return c
}

// Service knows all sources and receives from them. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg    Config
	pool   *pg.Pool // for reads
	writes pg.Writes
	pools  pg.Pools

	sources    pg.Replica[set]
	deliveries *deliverylog.Buffer[deliveryRow] // that are not logged yet

	mu      sync.Mutex        // guards the fields below
	tallies map[string]*tally // by source, also of those that were deleted since
	labels  map[string]*[len(results)]int64
}

// Open returns a Service on a migrated database, with the sources that there are. It starts no loops: see Run. It fails with ErrUnavailable when the
// database cannot be reached. Close it.
func Open(ctx context.Context, cfg Config) (s *Service, err error) {
	s = &Service{
		cfg:     cfg.withDefaults(),
		tallies: make(map[string]*tally), labels: make(map[string]*[len(results)]int64),
		deliveries: deliverylog.New[deliveryRow](takenLimit, refusedLimit, unprovenLimit),
	}
	s.pools, err = cfg.Database.OpenPools(ctx, append([]pg.PoolSpec{{To: &s.pool, Config: pg.ControlPool}},
		s.writes.Specs(pg.ControlPool, s.cfg.QueryTimeout)...)...)
	if err != nil {
		return nil, err
	}
	s.sources.Database, s.sources.Pool, s.sources.Names, s.sources.Doing = cfg.Database, s.pool, []string{"source"}, "reading the sources"
	s.sources.Timeout, s.sources.Poll = s.cfg.QueryTimeout, s.cfg.PollInterval
	s.sources.Read, s.sources.Differs = s.read, s.hasOthers
	if err := s.sources.Renew(ctx); err != nil {
		_ = s.pools.CloseBy(ctx) // nothing is lost with them
		return nil, err
	}
	return s, nil
}

// Run reads the sources when they have changed, and writes the counts and the log of deliveries, until ctx ends. A Service that is not running knows the sources of when it was opened,
// and looks up those that it does not know. Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	s.sources.Run(ctx, s.cfg.Logger,
		pg.Loop{Doing: "counting deliveries", Pass: s.record, Pause: s.cfg.RecordInterval, DelayFirst: true, Completes: true},
		pg.Loop{Doing: "logging deliveries", Pass: s.writeDeliveries, Pause: s.cfg.RecordInterval, Retry: logRetry, DelayFirst: true, Completes: true},
	)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.QueryTimeout)
	defer cancel()
	if err := s.record(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the last deliveries of sources were not counted")
	}
	if err := s.writeDeliveries(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the last deliveries of sources were not logged")
	}
	return nil
}

// Drain does nothing: no call waits for anything.
func (*Service) Drain() {}

// Close closes the connections, by the end of ctx. Run must have returned.
func (s *Service) Close(ctx context.Context) error { return s.pools.CloseBy(ctx) }
