package access

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
)

// Defaults and bounds.
const (
	DefaultRecordInterval = time.Minute         // between two writings of when keys were used
	DefaultQueryTimeout   = 5 * time.Second     // of one statement
	DefaultAuditRetention = 90 * 24 * time.Hour // of the audit

	pruneInterval = time.Hour
	pruneBatch    = 1000
)

// Config holds the settings of a Service. Database is required.
type Config struct {
	Database       *pg.Database
	Key            string         // an admin key that is stored nowhere; empty: none
	IsRequired     bool           // callers need a key also before there has been one
	PollInterval   time.Duration  // between two looks whether keys have changed; zero: pg.DefaultReplicaPoll
	RecordInterval time.Duration  // zero: DefaultRecordInterval
	QueryTimeout   time.Duration  // zero: DefaultQueryTimeout
	AuditRetention time.Duration  // zero: DefaultAuditRetention; negative: for ever
	Logger         zerolog.Logger // zero: silent
}

func (c Config) withDefaults() Config {
	c.RecordInterval = cmp.Or(c.RecordInterval, DefaultRecordInterval)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.AuditRetention = cmp.Or(c.AuditRetention, DefaultAuditRetention)
	return c
}

// Service knows all keys. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg        Config
	pool       *pg.Pool // for listings
	lookUpPool *pg.Pool // for the keys in memory
	writes     pg.Writes
	pools      pg.Pools

	configured     *Grant // of Config.Key; nil: there is none
	configuredHash [sha256.Size]byte

	isRequired atomic.Bool // callers need a key; it never becomes false
	open       *Grant      // of callers without a key
	endOpen    context.CancelCauseFunc
	neverDone  context.Context //nolint:containedctx // it never ends

	keys     pg.Replica[set]
	sessions sessions

	drained chan struct{} // closed by Drain
	drain   sync.Once

	mu       sync.Mutex // guards the fields below
	refusals map[refusal]int
	changed  chan struct{} // closed when keys may have changed, and then another
}

// Open returns a Service on a migrated database, with the keys that there are. It starts no loops: see Run. It fails with ErrUnavailable when the
// database cannot be reached. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	s := &Service{cfg: cfg, refusals: make(map[refusal]int), drained: make(chan struct{}), changed: make(chan struct{})}
	ended, end := context.WithCancelCause(context.Background())
	s.endOpen, s.neverDone = end, context.Background()
	_, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	s.open = &Grant{IsOpen: true, ended: ended, svc: s, signer: signer}
	if cfg.Key != "" {
		s.configuredHash = hashOf(cfg.Key)
		s.configured = &Grant{actor: "QUEUED_API_KEY", svc: s, signer: signerOf(cfg.Key), logIns: logInLimiter()}
	}
	if cfg.Key != "" || cfg.IsRequired {
		s.require()
	}
	s.pools, err = cfg.Database.OpenPools(ctx, append([]pg.PoolSpec{{To: &s.lookUpPool, Config: pg.LookUpPool}, {To: &s.pool, Config: pg.ControlPool}},
		s.writes.Specs(pg.ControlPool, cfg.QueryTimeout)...)...)
	if err != nil {
		return nil, err
	}
	s.keys.Database, s.keys.Pool, s.keys.Names, s.keys.Doing = cfg.Database, s.lookUpPool, []string{"access"}, "reading the keys"
	s.keys.Timeout, s.keys.Poll = cfg.QueryTimeout, cfg.PollInterval
	s.sessions.prepare(s)
	s.keys.Read, s.keys.Swapped, s.keys.Differs = s.read, s.swapped, s.hasOthers
	if err := s.keys.Renew(ctx); err != nil {
		_ = s.pools.CloseBy(ctx) // nothing is lost with them
		return nil, err
	}
	return s, nil
}

// Run reads the keys when they have changed, records their use, looks whether sessions with open streams have ended, and prunes, until ctx ends. A Service that is not running knows the keys of when it was opened,
// and looks up those that it does not know. Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	s.keys.Run(ctx, s.cfg.Logger,
		pg.Loop{Doing: "recording the use of keys", Pass: s.record, Pause: s.cfg.RecordInterval, DelayFirst: true, Completes: true},
		pg.Loop{Doing: "looking whether sessions have ended", Pass: s.checkWatched, Pause: cmp.Or(s.cfg.PollInterval, pg.DefaultReplicaPoll), DelayFirst: true},
		pg.Loop{Doing: "pruning keys, sessions and the audit", Pass: s.prune, Pause: pruneInterval, Retry: time.Minute, IsUpkeep: true},
	)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.QueryTimeout)
	defer cancel()
	if err := s.record(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the last use of keys was not recorded")
	}
	return nil
}

// swapped is called when the keys were read anew.
func (s *Service) swapped(before, after *set) {
	s.endReplaced(before, after)
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
}

// changes returns a channel that is closed when keys may have changed.
func (s *Service) changes() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

// Drain has those who wait for changes of keys return. It may be repeated.
func (s *Service) Drain() { s.drain.Do(func() { close(s.drained) }) }

// Close closes the connections, by the end of ctx. Run must have returned. Known keys can be authenticated after Close.
func (s *Service) Close(ctx context.Context) error { return s.pools.CloseBy(ctx) }

// prune deletes keys that were revoked or have expired long ago, sessions that have expired, and entries that the audit keeps no longer.
func (s *Service) prune(ctx context.Context) error {
	if err := s.writes.Exec(ctx, `select agent.prune_api_keys()`); err != nil {
		return wrap("pruning keys", err)
	}
	if err := s.pruneBatches(ctx, "pruning sessions", `select agent_service.prune_sessions($1)`, pruneBatch); err != nil || s.cfg.AuditRetention <= 0 {
		return err
	}
	return s.pruneBatches(ctx, "pruning the audit", `select agent.prune_audit($2, $1)`, pruneBatch, s.cfg.AuditRetention)
}

// pruneBatches makes a call, which returns how many rows it has deleted, until that is less than pruneBatch.
func (s *Service) pruneBatches(ctx context.Context, doing, call string, args ...any) error {
	for {
		var n int64
		if err := s.writes.Row(ctx, call, args, &n); err != nil {
			return wrap(doing, err)
		}
		if n < pruneBatch {
			return nil
		}
	}
}
