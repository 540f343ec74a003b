package topic

import (
	"cmp"
	"context"
	"crypto/rand"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"github.com/queued/queued/internal/failure"
	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/queue"
	"github.com/queued/queued/internal/rounds"
)

// Defaults and bounds.
const (
	DefaultMaxConns     = 3               // connections for reads; writeConns and loopConns more are its own
	DefaultQueryTimeout = 5 * time.Second // of one statement
	DefaultPollInterval = time.Second     // how long readers rely on notifications alone
	MaxWait             = time.Minute     // of a read

	// DelayedQueue is the queue in which publications wait for their time.
	DelayedQueue = "queued.publish"

	// loopConns is the number of connections of the loops.
	loopConns = 3
	// writeConns is the number of connections of writes that wait for no lock.
	writeConns = 2
)

// Config holds the settings of a Service. Database and Queue are required.
type Config struct {
	Database       *pg.Database
	Queue          *queue.Service // publishes in its group commits
	MaxConns       int            // connections for reads; zero: DefaultMaxConns
	QueryTimeout   time.Duration  // bound of one statement, and of all waits for locks of one call; zero: DefaultQueryTimeout
	PollInterval   time.Duration  // longest time that readers rely on notifications alone; zero: DefaultPollInterval
	UpkeepInterval time.Duration  // time between two rounds of upkeep; zero: 10 s
	TailBytes      int            // memory of the newest events, about; zero: 32 MiB
	IsQuiet        bool           // Run delivers nothing into queues
	Logger         zerolog.Logger // zero: silent
}

func (c Config) withDefaults() Config {
	c.MaxConns = cmp.Or(c.MaxConns, DefaultMaxConns)
	c.QueryTimeout = cmp.Or(c.QueryTimeout, DefaultQueryTimeout)
	c.PollInterval = cmp.Or(c.PollInterval, DefaultPollInterval)
	c.UpkeepInterval = cmp.Or(c.UpkeepInterval, 10*time.Second)
	c.TailBytes = cmp.Or(c.TailBytes, 32<<20)
	return c
}

// Service is the log. It is safe for concurrent use, and any number of them, in any number of processes, may share one database.
type Service struct {
	cfg    Config
	name   string   // tells this service's notifications from those of others
	reads  *pg.Pool // reads that wait for no transaction that writes
	writes pg.Writes
	loops  *pg.Pool
	pools  pg.Pools
	tail   *tail

	publishing *queue.Joint[*publishing]
	published  atomic.Int64 // events, by this service

	appended pg.Signal // this service has appended to the log, and other processes have not been notified
	delayed  pg.Signal // a publication waits that may be due first

	isNoneDue bool // no publication is due before the next pass of publishDue, as far as is known; belongs to that loop

	calls           *rounds.Loop  // the rounds of streams, and of reads that wait
	follows, routes *rounds.Loop  // those within a pass of followLog, and of the router and of those that are not in step
	catchUps        chan struct{} // has an element for each stream that reads from the database
	streams, behind atomic.Int64  // see StreamStats

	filters filterCache // of subscriptions
	watches *watches    // of subscriptions
	router  *router
}

// Open returns a Service on a migrated database. It starts no loops: see Run. It fails with ErrUnavailable when the database cannot be reached.
// Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	s := &Service{cfg: cfg, name: rand.Text(), appended: pg.NewSignal(), delayed: pg.NewSignal()}
	s.tail = newTail(cfg.TailBytes)
	s.watches = newWatches(cfg.PollInterval)
	s.router = newRouter(s)
	s.tail.onAppend = s.router.wake
	s.publishing = queue.NewJoint(cfg.Queue, s.addPublications)
	s.catchUps = make(chan struct{}, max(1, cfg.MaxConns/2))
	counts := &cfg.Database.Rounds
	s.calls, s.follows, s.routes = counts.Loop("reading the log for callers"), counts.Loop("reading on in the log"), counts.Loop("delivering in turns")
	var err error
	s.pools, err = cfg.Database.OpenPools(ctx, append(s.writes.Specs(pg.PoolConfig{Name: "topic_writes", MaxConns: writeConns}, cfg.QueryTimeout),
		pg.PoolSpec{To: &s.reads, Config: pg.PoolConfig{Name: "topic_reads", MaxConns: cfg.MaxConns, LockTimeout: cfg.QueryTimeout}},
		pg.PoolSpec{To: &s.loops, Config: pg.PoolConfig{Name: "topic_loops", MaxConns: loopConns, LockTimeout: cfg.QueryTimeout}},
	)...)
	if err != nil {
		return nil, err
	}
	if err := s.reads.Ping(ctx); err != nil {
		_ = s.pools.CloseBy(ctx) // nothing is lost with them
		return nil, wrap("connecting", err)
	}
	return s, nil
}

// Run follows the log, delivers it into queues, publishes due publications, and looks after segments until ctx ends. A Service that is not running still serves every call; those who
// wait for events then poll. Faults of the database are logged and tried again; Run returns nil once ctx has ended.
func (s *Service) Run(ctx context.Context) error {
	s.tail.setRunning(true)
	defer s.tail.setRunning(false)
	s.watches.setRunning(true)
	defer s.watches.setRunning(false)
	loops := []pg.Loop{
		{Doing: "following the log", Pass: s.followLog, Pause: s.cfg.PollInterval, Wakes: s.tail.wake.Received},
		{Doing: "watching subscriptions", Pass: s.watchSubscriptions, Next: s.untilWatch, Pause: s.cfg.PollInterval, Wakes: s.watches.wake.Received},
		{Doing: "notifying other processes of the log", Pass: s.notify, Pause: time.Hour, DelayFirst: true, Retry: s.cfg.PollInterval, Wakes: s.appended.Received},
		{Doing: "publishing what is due", Pass: s.publishDue, Next: s.untilDue, Pause: s.cfg.PollInterval, Wakes: s.delayed.Received},
		{Doing: "upkeep of the log", Pass: s.doUpkeep, Pause: s.cfg.UpkeepInterval, IsUpkeep: true},
	}
	if !s.cfg.IsQuiet {
		behind := &catchUp{r: s.router}
		loops = append(loops,
			pg.Loop{Doing: "delivering into queues", Pass: s.router.pass, Next: s.router.untilDue, Pause: s.cfg.PollInterval, Wakes: s.router.woken.Received},
			pg.Loop{Doing: "catching up", Pass: behind.pass, Next: behind.untilDue, Pause: s.cfg.PollInterval, Wakes: s.router.behind.Received},
		)
	}
	s.cfg.Database.RunLoops(ctx, s.cfg.Logger, []pg.Subscriber{s.subscriber()}, loops...)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.QueryTimeout)
	defer cancel()
	if err := s.router.release(ending); err != nil {
		s.cfg.Logger.Warn().Func(failure.Of(err)).Msg("the lease of the router was not ended: another process goes on when it has")
	}
	return nil
}

// Drain ends streams, makes everybody who waits for events stop, and later calls not wait.
func (s *Service) Drain() { s.tail.drain() }

// Close closes the connections, by the end of ctx. Run must have returned. Calls after Close fail with ErrUnavailable.
func (s *Service) Close(ctx context.Context) error {
	s.Drain()
	return s.pools.CloseBy(ctx)
}

// CountPublished returns how many events this service has published, those of SQL and of schedules aside.
func (s *Service) CountPublished() int64 { return s.published.Load() }

// StreamStats describes the streams.
func (s *Service) StreamStats() StreamStats {
	return StreamStats{Open: s.streams.Load(), Behind: s.behind.Load(), TailBytes: s.tail.size()}
}

// channel is the channel that publishing notifies on. The payload is the name of the service that has published, empty from SQL.
const channel = "agent_log"

const (
	// notifyShare bounds what notifications take of a connection, and of a lock that all databases of the server share: the rest after one is so many times as long as it took.
	notifyShare = 20
	// notifyInterval is as long as that rest gets, on a busy server.
	notifyInterval = 20 * time.Millisecond
)

func (s *Service) subscriber() pg.Subscriber {
	return pg.Subscriber{
		Channel: channel,
		Started: s.tail.requestRead,
		Received: func(payload string) {
			if payload != s.name { // those of its own commits were seen already
				s.tail.requestRead()
				s.delayed.Send()
			}
		},
	}
}

// passOn wakes those who follow the log here, and has other processes notified, after a commit of this process.
func (s *Service) passOn(events []Event) {
	s.tail.offer(events)
	s.appended.Send()
}

// notify tells other processes that the log has grown, then rests. It does not wait for the disk: the events that it tells of are there already.
func (s *Service) notify(ctx context.Context) error {
	began := time.Now()
	if _, err := s.loops.Exec(ctx, `select set_config('synchronous_commit', 'off', true), agent_service.notify_log($1)`, s.name); err != nil {
		return wrap("their readers poll", err)
	}
	pg.Worked(ctx)
	pg.Pause(ctx, min(notifyShare*time.Since(began), notifyInterval))
	return nil
}
