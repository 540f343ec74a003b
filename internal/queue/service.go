// Package queue is what a caller can do with events: enqueue, claim, finish, give back, sweep,
// look at and requeue them. It calls the functions of the schema agent and knows nothing of HTTP.
package queue

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
)

const (
	// DefaultMaxAttempts is how often an event is claimed before a sweep expires it.
	DefaultMaxAttempts = 3
	// DefaultInvisibleFor is the length of a lease.
	DefaultInvisibleFor = 10 * time.Minute
	// DefaultPage and MaxPage bound the events of one page.
	DefaultPage, MaxPage = 100, 1000
	// MaxBatch is the most events that one call may insert, claim, ack or requeue.
	MaxBatch = 1000
	// MaxWait is the longest a claim may wait.
	MaxWait = time.Minute
	// MaxBuckets is the most time buckets one call may ask for.
	MaxBuckets = 2000
)

// Config is what a Service needs to know. All but DatabaseURL may be zero.
type Config struct {
	DatabaseURL   string         // a PostgreSQL URL or keyword string, as libpq takes it; the schema is migrated
	MaxConns      int            // connections at most; zero: what the URL's pool_max_conns says, else 10
	MaxAttempts   int            // default of claims and sweeps; zero: DefaultMaxAttempts
	SweepInterval time.Duration  // time between sweeps of the service itself; zero: 10 s; negative: never
	MaxVTAge      time.Duration  // those sweeps also expire what has been claimable longer; zero: by attempts alone
	Retention     time.Duration  // history older than this (by event_ts) is dropped; zero: kept for ever
	QueryTimeout  time.Duration  // bound of one listing or count; zero: 5 s
	PollInterval  time.Duration  // longest time a waiting claim relies on notifications alone; zero: 2 s
	Logger        zerolog.Logger // zero: silent
}

// Service is the queue. It is safe for concurrent use, and any number of them, in any number
// of processes, may share one database.
type Service struct{}

var errTODO = errors.New("todo")

// Open returns a Service on a migrated database, and fails with ErrUnavailable when the
// database cannot be reached. It starts no loops: see Run. Close it.
func Open(ctx context.Context, cfg Config) (*Service, error) { return nil, errTODO }

// Run sweeps, looks after history and listens for notifications until ctx ends. A Service
// that is not running still serves every call; its waiting claims then rely on polling.
func (s *Service) Run(ctx context.Context) error { return errTODO }

// Drain makes every waiting claim answer at once, empty if it must, and later ones not wait.
func (s *Service) Drain() {}

// Close drains, waits until the calls under way and what the service started have ended (or
// ctx has), and closes the connections. Run must have returned.
func (s *Service) Close(ctx context.Context) error { return errTODO }

// PoolStats describes the connection pool.
func (s *Service) PoolStats() PoolStats { return PoolStats{} }

// PoolStats describes the connection pool: connections in use, idle, and at most, and what
// acquiring them has cost so far.
type PoolStats struct {
	InUse, Idle, Max     int32
	Acquires             int64         // connections handed out
	EmptyAcquires        int64         // of those, how many had to wait for one
	EmptyAcquireWaitTime time.Duration // how long those waited, in all
}

// CheckReady returns nil when the database answers and its schema is the one this build needs.
func (s *Service) CheckReady(ctx context.Context) error { return errTODO }

// Insert enqueues all of events or, on any error, none; results are in the order of events.
// It fails with an *InvalidError or ErrUnrepresentable.
func (s *Service) Insert(ctx context.Context, events []InsertParams) ([]Inserted, error) {
	return nil, errTODO
}

// Claim takes up to p.Limit events, waiting up to p.Wait for the first; none is no error.
// When ctx ends during the call nothing stays claimed.
func (s *Service) Claim(ctx context.Context, p ClaimParams) ([]Event, error) { return nil, errTODO }

// Release undoes claims that never reached their client: the events are claimable again at once
// and the attempts do not count. Leases that were lost meanwhile are passed over. It outlives ctx's
// cancellation.
func (s *Service) Release(ctx context.Context, leases []Lease) error { return errTODO }

// Ack finishes each of leases on its own, as Done, or as Cancelled where nobody ever claimed
// the event. Results are in the order of leases. A repeated ack with the receipt that succeeded succeeds again.
func (s *Service) Ack(ctx context.Context, leases []Lease) ([]AckResult, error) { return nil, errTODO }

// Nack gives a claimed event back, or with p.Final moves it to history. It fails with
// ErrNotFound or ErrLeaseLost; repeated with the same receipt, it answers as it did.
func (s *Service) Nack(ctx context.Context, p NackParams) (NackResult, error) {
	return NackResult{}, errTODO
}

// Extend makes the lease last until invisibleFor from now and returns that time. It fails
// with ErrNotFound or ErrLeaseLost.
func (s *Service) Extend(ctx context.Context, l Lease, invisibleFor time.Duration) (time.Time, error) {
	return time.Time{}, errTODO
}

// Sweep moves events to history as Expired and returns how many. No running lease is touched.
func (s *Service) Sweep(ctx context.Context, p SweepParams) (int64, error) { return 0, errTODO }

// List returns waiting events by (vt, id). It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) List(ctx context.Context, p ListParams) (Page, error) { return Page{}, errTODO }

// Get returns one event, in its queue or in history. It fails with ErrNotFound.
func (s *Service) Get(ctx context.Context, id int64) (Event, error) { return Event{}, errTODO }

// History returns one page of history. It fails with ErrBadCursor or ErrQueryTimeout.
func (s *Service) History(ctx context.Context, p HistoryParams) (Page, error) { return Page{}, errTODO }

// HistoryStats counts history per bucket, empty buckets included, oldest first. The caller
// keeps the number of buckets within MaxBuckets. It fails with ErrQueryTimeout.
func (s *Service) HistoryStats(ctx context.Context, p StatsParams) ([]StatsBucket, error) {
	return nil, errTODO
}

// Requeue copies one event of history back into its queue and returns the copy's id. It fails with ErrNotFound.
func (s *Service) Requeue(ctx context.Context, id int64) (int64, error) { return 0, errTODO }

// RequeueMatching requeues by filter. It fails with ErrQueryTimeout.
func (s *Service) RequeueMatching(ctx context.Context, p RequeueParams) (RequeueResult, error) {
	return RequeueResult{}, errTODO
}

// Queues describes every queue that holds an event, waiting or in history, by name.
func (s *Service) Queues(ctx context.Context) ([]QueueStats, error) { return nil, errTODO }

// Counters returns what this process has done since it started, by queue.
func (s *Service) Counters() []Counters { return nil }

// Counters counts events of one queue.
type Counters struct {
	Queue                                                              string
	Inserted, Claimed, Released, Acked, Nacked, Failed, Expired, Requeued int64
}
