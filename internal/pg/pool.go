package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"
)

// DefaultLockTimeout is how long a statement waits for a lock unless its pool says otherwise.
const DefaultLockTimeout = 5 * time.Second

// PoolConfig configures a Pool. All fields may be zero.
type PoolConfig struct {
	Name        string        // in the metrics: what the connections are for
	MaxConns    int           // the most connections; zero: the URL's pool_max_conns, or pgxpool's default
	LockTimeout time.Duration // how long a statement waits for a lock, see Pool.Prologue; zero: DefaultLockTimeout
	MaxBounded  int           // calls of Bounded at a time, or of Writes that wait for locks, so that something is left to others; zero: any number
	IsShared    bool          // all pools of a Database that have this name use the same connections; MaxConns and MaxBounded are those of the first
}

// The pools that services share. With them a process has few connections for what is seldom done, and nothing of it waits for something that may take long:
// listings take at most half of ControlPool, a wait for a lock is on a connection of the patient pool, and nothing but keys is looked up on LookUpPool, so
// that a caller with a new key is let in whatever endpoints, sources and listings do. Nobody who holds a connection of one of them waits for another one.
var (
	// LookUpPool is for the keys of callers.
	LookUpPool = PoolConfig{Name: "lookup", MaxConns: 2, IsShared: true}
	// ControlPool is for what keys, sources and pushes read and change otherwise, and for the listener.
	ControlPool = PoolConfig{Name: "control", MaxConns: 2, MaxBounded: 1, IsShared: true}
	// patientPool is for the changes of all services but the queue's that have to wait for a lock. A service takes one of its connections at a time.
	patientPool = PoolConfig{Name: "patient", MaxConns: 2, MaxBounded: 2, IsShared: true}
)

// A Pool is a pgxpool.Pool whose calls fail with ErrUnconfirmed when they have committed a transaction without the confirmation of the
// synchronous standby. Calls that can commit are replaced; Acquire, AcquireFunc, AcquireAllIdle, BeginTx and CopyFrom are not to be used.
type Pool struct {
	*pgxpool.Pool
	db          *Database
	lockTimeout time.Duration
	prologue    string
	bounded     chan struct{} // has an element for each call that MaxBounded counts; nil: there is no limit
	isClosed    atomic.Bool
}

// An openPool is the connections of one Pool, or of several that share them.
type openPool struct {
	*Pool
	cfg   PoolConfig
	users int // Pools
}

// NewPool returns a pool without connections; it connects when it is used.
func (db *Database) NewPool(ctx context.Context, cfg PoolConfig) (*Pool, error) {
	db.opening.Lock()
	defer db.opening.Unlock()
	if cfg.IsShared {
		if p := db.share(cfg); p != nil {
			return p, nil
		}
	}
	pcfg := db.main.pool.Copy()
	if cfg.MaxConns > 0 {
		pcfg.MaxConns = int32(min(cfg.MaxConns, 10_000))
		pcfg.MinConns, pcfg.MinIdleConns = min(pcfg.MinConns, pcfg.MaxConns), min(pcfg.MinIdleConns, pcfg.MaxConns)
	}
	p := &Pool{db: db, lockTimeout: cfg.lockTimeout()}
	if cfg.MaxBounded > 0 {
		p.bounded = make(chan struct{}, cfg.MaxBounded)
	}
	if db.direct {
		pcfg.ConnConfig.RuntimeParams["lock_timeout"] = p.LockTimeout()
	} else {
		p.setPrologue()
	}
	pcfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		db.main.dialer.sortHosts(c)
		return nil
	}
	pcfg.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		RegisterTypes(conn.TypeMap())
		return nil
	}
	pcfg.BeforeClose = limitClose
	pcfg.ShouldPing = func(ctx context.Context, params pgxpool.ShouldPingParams) bool {
		if params.IdleDuration <= time.Second {
			return false
		}
		err := ping(ctx, params.Conn)
		if err == nil || ctx.Err() != nil {
			return false
		}
		if pgconn.Timeout(err) { // the pings of other connections would take as long
			db.log.Warn().Msg("the database does not answer: its connections are made anew")
			db.Reset()
		}
		return true // which fails at once: the connection is closed
	}
	pool, err := pgxpool.NewWithConfig(ctx, pcfg)
	if err != nil {
		return nil, fmt.Errorf("opening a connection pool: %w", err)
	}
	p.Pool = pool
	db.mu.Lock()
	db.pools[pool] = &openPool{Pool: p, cfg: cfg, users: 1}
	db.mu.Unlock()
	return p, nil
}

func (c *PoolConfig) lockTimeout() time.Duration {
	return max(cmp.Or(c.LockTimeout, DefaultLockTimeout), time.Millisecond)
}

// share returns a pool on the connections of one that is open under the same name, or nil. Where that waits for locks for another time, each transaction says so.
func (db *Database) share(cfg PoolConfig) *Pool {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, open := range db.pools {
		if !open.cfg.IsShared || open.cfg.Name != cfg.Name {
			continue
		}
		open.users++
		p := &Pool{Pool: open.Pool.Pool, db: db, lockTimeout: cfg.lockTimeout(), bounded: open.bounded}
		if !db.direct || p.lockTimeout != open.lockTimeout {
			p.setPrologue()
		}
		return p
	}
	return nil
}

func (p *Pool) setPrologue() {
	p.prologue = `select set_config('lock_timeout', '` + p.LockTimeout() + `', true)`
}

// Prologue returns a statement that each batch must begin with, empty when there is none. It sets the lock timeout for one transaction, where the session has another
// one: behind a pooler, whose next transaction may be in another session, and on shared connections. The other methods send it themselves.
func (p *Pool) Prologue() string { return p.prologue }

// LockTimeout returns how long a statement waits for a lock, as the setting lock_timeout has it.
func (p *Pool) LockTimeout() string { return fmt.Sprint(p.lockTimeout.Milliseconds()) }

// acquire is pgxpool.Pool.Acquire, but fails when the pool was closed though others still use its connections.
func (p *Pool) acquire(ctx context.Context) (*pgxpool.Conn, error) {
	if p.isClosed.Load() {
		return nil, puddle.ErrClosedPool
	}
	return p.Acquire(ctx)
}

// Pools returns the pools that are open, in no order; of those that share their connections one.
func (db *Database) Pools() (pools Pools) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, open := range db.pools {
		pools = append(pools, open.Pool)
	}
	return pools
}

// Pools are the pools of one service, apart by what they are for, so that nothing which takes long stands in the way of something else.
type Pools []*Pool

// PoolSpec asks OpenPools for a pool.
type PoolSpec struct {
	To     **Pool // where the pool goes
	Config PoolConfig
}

// OpenPools makes several pools, or none.
func (db *Database) OpenPools(ctx context.Context, wanted ...PoolSpec) (pools Pools, err error) {
	for _, w := range wanted {
		if *w.To, err = db.NewPool(ctx, w.Config); err != nil {
			return nil, errors.Join(err, pools.CloseBy(ctx))
		}
		pools = append(pools, *w.To)
	}
	return pools, nil
}

// CloseBy closes the connections and waits for those in use. It fails when ctx ends first; they are then closed when they are released. No
// pool waits for another one. Connections that other pools share stay open.
func (ps Pools) CloseBy(ctx context.Context) error {
	var closing sync.WaitGroup
	for _, p := range ps {
		if p.leave() {
			closing.Go(p.Close)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		closing.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("closing connections: %w", ctx.Err())
	}
}

// leave notes that the pool is used no more, and reports whether its connections are.
func (p *Pool) leave() (isLast bool) {
	p.db.mu.Lock()
	defer p.db.mu.Unlock()
	open := p.db.pools[p.Pool]
	if open == nil {
		return true // it was closed before: who calls again waits again
	}
	if !p.isClosed.Swap(true) {
		open.users--
	}
	if open.users > 0 {
		return false
	}
	delete(p.db.pools, p.Pool)
	return true
}

// Reset has every connection of the pools be made anew.
func (ps Pools) Reset() {
	for _, p := range ps {
		p.Reset()
	}
}

// PoolStats describes connections: those in use, idle, and at most, and what acquiring them has cost so far.
type PoolStats struct {
	Name                 string // what they are for; empty: the connections of several pools
	InUse, Idle, Max     int32
	Acquires             int64         // connections handed out
	EmptyAcquires        int64         // of those, how many had to wait for one
	EmptyAcquireWaitTime time.Duration // how long those waited, in all
}

// add adds the connections of a pool.
func (sum *PoolStats) add(st *pgxpool.Stat) {
	sum.InUse += st.AcquiredConns()
	sum.Idle += st.IdleConns()
	sum.Max += st.MaxConns()
	sum.Acquires += st.AcquireCount()
	sum.EmptyAcquires += st.EmptyAcquireCount()
	sum.EmptyAcquireWaitTime += st.EmptyAcquireWaitTime()
}

// Stats describes the connections of all pools.
func (ps Pools) Stats() (sum PoolStats) {
	for _, p := range ps {
		sum.add(p.Stat())
	}
	return sum
}

// PoolStats describes all connections that the program may have open at a time, by what they are for: those of every pool, and the listener's, which is in use while
// it is open.
func (db *Database) PoolStats() []PoolStats {
	db.mu.Lock()
	open := slices.Collect(maps.Values(db.pools)) // a pool that is locked may wait for mu
	db.mu.Unlock()
	byName := map[string]*PoolStats{"listener": {Name: "listener", Max: 1}}
	if db.listener.isConnected.Load() {
		byName["listener"].InUse = 1
	}
	for _, p := range open {
		name := cmp.Or(p.cfg.Name, "other")
		if byName[name] == nil {
			byName[name] = &PoolStats{Name: name}
		}
		byName[name].add(p.Stat())
	}
	var all []PoolStats
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, *byName[name])
	}
	return all
}

// Bounded runs read in a transaction whose statements may each take limit, at least a millisecond.
func Bounded(ctx context.Context, pool *Pool, limit time.Duration, read func(pgx.Tx) error) error {
	if pool.bounded != nil {
		select {
		case pool.bounded <- struct{}{}:
			defer func() { <-pool.bounded }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("set local statement_timeout = %d", max(1, limit.Milliseconds()))); err != nil {
			return err
		}
		return read(tx)
	})
}

// unconfirmedKey marks a connection, in its CustomData, whose last commit was not confirmed.
const unconfirmedKey = "queued.unconfirmed"

// noteUnconfirmed marks the connection of a notice that a commit was not confirmed. PostgreSQL has no SQLSTATE for it: it is a WARNING,
// 01000, of SyncRepWaitForLSN, whose text is translated and whose routine is not.
func noteUnconfirmed(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" {
		conn.CustomData()[unconfirmedKey] = true
	}
}

// pooledConn is a connection of the pool in use.
type pooledConn struct{ conn *pgxpool.Conn }

// release releases the connection, once. It returns err, or else ErrUnconfirmed when a commit of the connection was not confirmed.
func (l *pooledConn) release(err error) error {
	if l.conn == nil {
		return err
	}
	data := l.conn.Conn().PgConn().CustomData()
	if _, isUnconfirmed := data[unconfirmedKey]; isUnconfirmed {
		delete(data, unconfirmedKey)
		err = cmp.Or(err, ErrUnconfirmed)
	}
	l.conn.Release()
	l.conn = nil
	return err
}

// actorKey is the key of the actor in a context.
type actorKey struct{}

// WithActor returns a context in which the transactions of Exec, Query, QueryRow and Begin have the setting agent.actor, which the audit records. An actor is made
// of letters, digits and _ : . -; what else it has is left out.
func WithActor(ctx context.Context, actor string) context.Context {
	return context.WithValue(ctx, actorKey{}, strings.Map(func(c rune) rune {
		if c < 0x80 && (c == '_' || c == ':' || c == '.' || c == '-' || unicode.IsLetter(c) || unicode.IsDigit(c)) {
			return c
		}
		return -1
	}, actor))
}

// first returns the statements that a transaction has to begin with, nil when there are none.
func (p *Pool) first(ctx context.Context) (statements []string) {
	if p.prologue != "" {
		statements = append(statements, p.prologue)
	}
	if actor, _ := ctx.Value(actorKey{}).(string); actor != "" {
		statements = append(statements, `select set_config('agent.actor', '`+actor+`', true)`)
	}
	return statements
}

// Exec is pgxpool.Pool.Exec, for one statement.
func (p *Pool) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	rows, _ := p.Query(ctx, sql, args...) // Err returns the error
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// Query is pgxpool.Pool.Query. An unconfirmed commit is reported when the rows are closed.
func (p *Pool) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	c, err := p.acquire(ctx)
	if err != nil {
		return &poolRows{err: err}, err
	}
	r := &poolRows{pooledConn: pooledConn{c}}
	if first := p.first(ctx); first == nil {
		r.Rows, err = c.Query(ctx, sql, args...)
	} else { // in one transaction, and one round trip
		b := new(pgx.Batch)
		for _, statement := range first {
			b.Queue(statement)
		}
		b.Queue(sql, args...)
		r.batch = c.SendBatch(ctx, b)
		for range first {
			if _, err = r.batch.Exec(); err != nil {
				break
			}
		}
		if err == nil {
			r.Rows, err = r.batch.Query()
		}
		if err != nil {
			_ = r.batch.Close() // it returns the same error
		}
	}
	if err != nil {
		r.Rows, r.err = nil, r.release(err)
	}
	return r, err
}

// QueryRow is pgxpool.Pool.QueryRow.
func (p *Pool) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	rows, _ := p.Query(ctx, sql, args...) // Scan returns the error
	return poolRow{rows}
}

// SendBatch sends a batch and calls the functions that were set for its results. Without a transaction of its own, the batch is
// committed when it returns.
func (p *Pool) SendBatch(ctx context.Context, b *pgx.Batch) error {
	c, err := p.acquire(ctx)
	if err != nil {
		return err
	}
	l := pooledConn{c}
	return l.release(c.SendBatch(ctx, b).Close())
}

// Begin is pgxpool.Pool.Begin.
func (p *Pool) Begin(ctx context.Context) (pgx.Tx, error) {
	c, err := p.acquire(ctx)
	if err != nil {
		return nil, err
	}
	var options pgx.TxOptions
	if first := p.first(ctx); first != nil {
		options.BeginQuery = "begin; " + strings.Join(first, "; ")
	}
	tx, err := c.BeginTx(ctx, options)
	if err != nil {
		c.Release()
		return nil, err
	}
	return &poolTx{Tx: tx, pooledConn: pooledConn{c}}, nil
}

type poolTx struct {
	pgx.Tx
	pooledConn
}

// Commit commits the transaction. It fails with ErrUnconfirmed when that is done, but not confirmed.
func (tx *poolTx) Commit(ctx context.Context) error { return tx.release(tx.Tx.Commit(ctx)) }

// Rollback undoes the transaction, unless it has ended.
func (tx *poolTx) Rollback(ctx context.Context) error { return tx.release(tx.Tx.Rollback(ctx)) }

type poolRows struct {
	pgx.Rows // nil when the statement was not sent
	pooledConn
	batch pgx.BatchResults // that the rows are from, or nil
	err   error
}

// Close reads the remaining rows.
func (r *poolRows) Close() {
	if r.conn == nil {
		return
	}
	r.Rows.Close()
	err := r.Rows.Err()
	if r.batch != nil { // it commits after the rows
		err = cmp.Or(err, r.batch.Close())
	}
	r.err = r.release(err)
}

// Next closes the rows after the last one, and after one that could not be read.
func (r *poolRows) Next() bool {
	if r.Rows == nil {
		return false
	}
	more := r.Rows.Next()
	if !more {
		r.Close()
	}
	return more
}

// Err returns the error of the statement, once the rows are closed.
func (r *poolRows) Err() error {
	if r.err != nil || r.Rows == nil {
		return r.err
	}
	return r.Rows.Err()
}

// CommandTag returns the tag of the statement, once the rows are closed.
func (r *poolRows) CommandTag() (tag pgconn.CommandTag) {
	if r.Rows == nil {
		return tag
	}
	return r.Rows.CommandTag()
}

type poolRow struct{ rows pgx.Rows }

// Scan reads the first row. It fails with pgx.ErrNoRows when there is none.
func (r poolRow) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		return cmp.Or(r.rows.Err(), pgx.ErrNoRows)
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}
