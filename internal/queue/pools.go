package queue

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/queued/queued/internal/pg"
)

const (
	// callLockTimeout is how long a short call waits for a lock on the connections that it shares with all others. Then it waits for
	// Config.LockTimeout on one where only such calls wait.
	callLockTimeout = 10 * time.Millisecond
	// maxLockWaiters is how many calls may wait for locks at a time.
	maxLockWaiters = 200
	// minConns is how many connections the pools have at least, together.
	minConns = 7
)

// pools are the connections of a service, apart by what they are for, so that nothing which takes long stands in the way of something else.
type pools struct {
	writers  *pg.Pool // the flusher's, a connection for each writer
	calls    *pg.Pool // short calls about single events and queues: nack, extend, release, get
	patient  *pg.Pool // such calls, and operations of flushes, that have to wait for a lock of another transaction
	searches *pg.Pool // listings, searches and counts, each of them as long as Config.QueryTimeout
	loops    *pg.Pool // what the service does by itself, and sweeps and purges
	health   *pg.Pool // whether the database answers

	all     pg.Pools
	waiting chan struct{} // holds a token for each call that waits for a lock
}

// shares are the connections of each pool.
type shares struct{ writers, calls, patient, searches, loops, health int }

// sharesOf divides conns connections, minConns at least, among the pools. As a flush keeps one of the database's processors busy, there may be a writer for
// each of ours, as far as that is known, in two fifths of the connections.
func sharesOf(conns, processors int) shares {
	conns = max(conns, minConns)
	s := shares{writers: min(max(2, processors), conns*2/5), calls: 1, patient: 1, searches: 1, loops: 1, health: 1}
	rest := conns - s.writers - 5
	for i := 0; rest > 0; i, rest = i+1, rest-1 {
		*[]*int{&s.calls, &s.searches, &s.loops, &s.patient}[i%4]++
	}
	return s
}

// openPools makes the pools of a service.
func (s *Service) openPools(ctx context.Context) (err error) {
	n := sharesOf(cmp.Or(s.cfg.MaxConns, s.db.MaxConns(), DefaultMaxConns), runtime.GOMAXPROCS(0))
	s.pools.waiting = make(chan struct{}, maxLockWaiters)
	s.all, err = s.db.OpenPools(ctx,
		pg.PoolSpec{To: &s.writers, Config: pg.PoolConfig{MaxConns: n.writers, LockTimeout: flushLockTimeout}},
		pg.PoolSpec{To: &s.calls, Config: pg.PoolConfig{MaxConns: n.calls, LockTimeout: callLockTimeout}},
		pg.PoolSpec{To: &s.patient, Config: pg.PoolConfig{MaxConns: n.patient, LockTimeout: s.cfg.LockTimeout}},
		pg.PoolSpec{To: &s.searches, Config: pg.PoolConfig{MaxConns: n.searches}},
		pg.PoolSpec{To: &s.loops, Config: pg.PoolConfig{MaxConns: n.loops}},
		pg.PoolSpec{To: &s.health, Config: pg.PoolConfig{MaxConns: n.health}},
	)
	return err
}

// short makes a short call: run makes it on the connections of a pool, in one transaction. When it loses against another transaction there, nothing was
// written, and it is made once more where it may wait. It fails with ErrLocked when it has waited too long, and with ErrOverloaded when too many wait.
func (p *pools) short(ctx context.Context, run func(*pg.Pool) error) error {
	err := run(p.calls)
	if !pg.LostRace(err) {
		return err
	}
	select {
	case p.waiting <- struct{}{}:
		defer func() { <-p.waiting }()
		return run(p.patient)
	case <-ctx.Done():
		return ctx.Err()
	default:
		return fmt.Errorf("%w: %d calls wait for locks", ErrOverloaded, maxLockWaiters)
	}
}

// row makes a short call that returns one row, and scans it into dest.
func (p *pools) row(ctx context.Context, sql string, args []any, dest ...any) error {
	return p.short(ctx, func(pool *pg.Pool) error { return pool.QueryRow(ctx, sql, args...).Scan(dest...) })
}
