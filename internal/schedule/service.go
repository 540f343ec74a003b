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

	"github.com/queued/queued/internal/pg"
)

// Defaults and bounds.
const (
	DefaultMisfireGrace = time.Minute      // how late an occurrence may be before it counts as missed
	DefaultQueryTimeout = 5 * time.Second  // of one listing, and of the expansion of one schedule
	DefaultCallTimeout  = 15 * time.Second // of any other call
	DefaultMaxConns     = 2                // connections for reads; writeConns and loopConns more are its own
	DefaultPage         = pg.DefaultPage   // rows of a page unless said otherwise
	MaxPage             = pg.MaxPage       // rows of a page
	DefaultUpcoming     = 10               // instants of a preview unless said otherwise
	MaxUpcoming         = 1000             // instants to come that one call returns
	MinRetention        = 48 * time.Hour   // how long occurrences are kept at least: a change of zone could bring back the time of a later one
)

const (
	loopConns  = 2           // connections of the loops: one fires, one prunes or checks the rules of zones
	writeConns = 1           // connections of writes that wait for no lock
	closeGrace = time.Second // how long calls may take to end once they are cancelled
)

// Config configures a Service. All fields but DatabaseURL or Database may be zero.
type Config struct {
	DatabaseURL  string         // a PostgreSQL URL or keyword string, as libpq takes it; the schema is migrated
	Database     *pg.Database   // takes precedence over DatabaseURL
	MaxConns     int            // connections at most, two or more; zero: DefaultMaxConns
	MisfireGrace time.Duration  // an occurrence that is later is missed; zero: DefaultMisfireGrace
	PollInterval time.Duration  // longest time between two looks for due schedules; zero: 1 s
	ZoneInterval time.Duration  // time between two checks of the zones' rules; zero: an hour
	QueryTimeout time.Duration  // bound of one listing or preview; zero: DefaultQueryTimeout
	CallTimeout  time.Duration  // bound of any other call; zero: DefaultCallTimeout
	IsQuiet      bool           // Run fires nothing
	DeclaredOnly bool           // schedules are refused whose queue nobody has made
	Retention    time.Duration  // occurrences that were due longer ago are pruned; zero or less: none are; MinRetention at least
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

// Service stores schedules and fires those that are due. It is safe for concurrent use, and any number of them, in any number of processes, may
// share one database.
type Service struct {
	cfg    Config
	db     *pg.Database
	pool   *pg.Pool // for reads
	writes pg.Writes
	loops  *pg.Pool  // for the loops of Run
	pools  pg.Pools  // all of them
	woken  pg.Signal // something may be due

	closed context.Context // ends when calls under way are to end
	cancel context.CancelFunc

	counters counters

	zonesMu sync.Mutex
	zones   time.Time // the pools' sessions know the changes of zone rules up to here

	// The firing loop's.
	postponed map[int64]time.Time // schedules that could not be expanded in time, and when they are tried again
	isBehind  bool                // more is due than fires at once
	isNoneDue bool                // nothing is due before the next pass of fireAll, as far as is known
}

// Open returns a Service on a migrated database. It starts no loops: see Run. It fails with ErrUnavailable when the database cannot be reached.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	db := cfg.Database
	if db == nil {
		var err error
		if db, err = pg.Open(ctx, pg.Config{URL: cfg.DatabaseURL, Logger: cfg.Logger}); err != nil {
			return nil, err
		}
	}
	s := &Service{cfg: cfg, db: db, woken: pg.NewSignal(), postponed: make(map[int64]time.Time)}
	var err error
	s.pools, err = db.OpenPools(ctx, append(s.writes.Specs(pg.PoolConfig{Name: "schedule_writes", MaxConns: writeConns}, cfg.QueryTimeout),
		pg.PoolSpec{To: &s.pool, Config: pg.PoolConfig{Name: "schedule_reads", MaxConns: cfg.MaxConns, LockTimeout: cfg.QueryTimeout}},
		pg.PoolSpec{To: &s.loops, Config: pg.PoolConfig{Name: "schedule_loops", MaxConns: loopConns, LockTimeout: cfg.QueryTimeout}},
	)...)
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

// Drain does nothing: no call waits.
func (*Service) Drain() {}

// Close closes the connections, once the calls under way have ended. Those that have not when ctx ends are cancelled and have a second more; it
// fails when one of them did not end. Run must have returned. Calls after Close fail with ErrUnavailable.
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

// Run fires due schedules, and watches the rules of the zones in use, until ctx ends. A Service that is not running still serves every other call. Faults
// of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	loops := []pg.Loop{
		{Doing: "checking the rules of time zones", Pass: s.CheckZones, Pause: s.cfg.ZoneInterval, Retry: min(s.cfg.ZoneInterval, time.Minute)},
	}
	if !s.cfg.IsQuiet {
		loops = append(loops, pg.Loop{Doing: "firing schedules", Pass: s.fireAll, Next: s.untilDue, Retry: s.cfg.PollInterval, Wakes: s.woken.Received})
	}
	if s.cfg.Retention > 0 {
		loops = append(loops, pg.Loop{Doing: "pruning occurrences", Pass: s.pruneAll, Pause: pruneInterval, IsUpkeep: true})
	}
	s.db.RunLoops(ctx, s.cfg.Logger, []pg.Subscriber{s.subscriber()}, loops...)
	return nil
}

// call runs do with the deadline of a call.
func (s *Service) call(ctx context.Context, doing string, do func(context.Context) error) error {
	return s.within(ctx, s.cfg.CallTimeout, doing, ErrUnavailable, do)
}

// expand runs do with the deadline and the budget of an expansion. Beyond the deadline, it fails with ErrQueryTimeout.
func (s *Service) expand(ctx context.Context, q querier, do func(*expander) error) error {
	return s.within(ctx, s.cfg.QueryTimeout, "expanding", ErrQueryTimeout, func(ctx context.Context) error {
		return do(newExpander(ctx, q))
	})
}

// list runs a listing, with a deadline that the server has as well. Beyond it, it fails with ErrQueryTimeout.
func list[T any](ctx context.Context, s *Service, doing, sql string, args ...any) (all []T, err error) {
	// The server's own limit comes first, as it does not cost the connection.
	err = s.within(ctx, s.cfg.QueryTimeout+closeGrace/2, doing, ErrQueryTimeout, func(ctx context.Context) error {
		return pg.Bounded(ctx, s.pool, s.cfg.QueryTimeout, func(tx pgx.Tx) error {
			rows, _ := tx.Query(ctx, sql, args...)
			all, err = pg.Collect[T](rows)
			return err
		})
	})
	return all, err
}

// one runs a statement that reads one row, with the deadline of a call.
func one[T any](ctx context.Context, s *Service, doing, sql string, args ...any) (found T, err error) {
	err = s.call(ctx, doing, func(ctx context.Context) error {
		rows, _ := s.pool.Query(ctx, sql, args...)
		found, err = pg.CollectOne[T](rows)
		return err
	})
	return found, err
}

// writeOne runs a statement that changes something and returns one row, with the deadline of a call.
func writeOne[T any](ctx context.Context, s *Service, doing, sql string, args ...any) (found T, err error) {
	err = s.call(ctx, doing, func(ctx context.Context) error {
		found, err = pg.WriteOne[T](ctx, &s.writes, sql, args...)
		return err
	})
	return found, err
}

// within runs do with a deadline, or until the service is closed. Beyond the deadline it fails with beyond.
func (s *Service) within(ctx context.Context, limit time.Duration, doing string, beyond error, do func(context.Context) error) error {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer context.AfterFunc(s.closed, cancel)() //nolint:contextcheck // the service's end, beside the call's
	err := do(bounded)
	switch {
	case errors.Is(err, ErrQueryTimeout): // of an expansion within do
	case ctx.Err() == nil && s.closed.Err() != nil && errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", doing, pg.ErrClosed)
	case err != nil && ctx.Err() == nil && errors.Is(bounded.Err(), context.DeadlineExceeded) && !errors.Is(err, ErrInvalid):
		return fmt.Errorf("%s: %w: it took longer than %s: %w", doing, beyond, limit, err)
	}
	return wrap(doing, err)
}

// wrap adds the action to an error, and turns an error of PostgreSQL into one of this package.
func wrap(doing string, err error) error {
	if errors.Is(err, ErrQueryTimeout) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return sqlstates.Wrap(doing, err)
}
