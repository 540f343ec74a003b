package pg

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// PoolConfig is what a pool of connections is for. All may be zero.
type PoolConfig struct {
	MaxConns    int           // connections at most; zero: the URL's pool_max_conns, or pgxpool's default
	LockTimeout time.Duration // bound of waiting for a lock, see Pool.Prologue; zero: none
}

// A Pool is connections to the database. Beyond what pgxpool does, it knows of commits that the server could not confirm: a call that
// made one fails with ErrUnavailable.
type Pool struct {
	*pgxpool.Pool
	db       *Database
	prologue string
}

// NewPool returns a pool of connections, none of which is made yet.
func (db *Database) NewPool(ctx context.Context, cfg PoolConfig) (*Pool, error) {
	pcfg := db.main.pool.Copy()
	if cfg.MaxConns > 0 {
		pcfg.MaxConns = int32(min(cfg.MaxConns, 10_000))
		pcfg.MinConns, pcfg.MinIdleConns = min(pcfg.MinConns, pcfg.MaxConns), min(pcfg.MinIdleConns, pcfg.MaxConns)
	}
	p := &Pool{db: db}
	if cfg.LockTimeout > 0 {
		value := fmt.Sprint(max(1, cfg.LockTimeout.Milliseconds()))
		if db.direct {
			pcfg.ConnConfig.RuntimeParams["lock_timeout"] = value
		} else {
			p.prologue = `select set_config('lock_timeout', ` + quoted(value) + `, true)`
		}
	}
	pcfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		db.main.dialer.order(c)
		return nil
	}
	pcfg.AfterConnect = AfterConnect
	pcfg.BeforeClose = func(conn *pgx.Conn) { db.ended(conn.PgConn()) }
	pcfg.ShouldPing = func(ctx context.Context, params pgxpool.ShouldPingParams) bool {
		if params.IdleDuration <= time.Second {
			return false
		}
		err := ping(ctx, params.Conn)
		if err == nil || ctx.Err() != nil {
			return false
		}
		if pgconn.Timeout(err) { // the others would each take as long to find out
			db.log.Warn().Msg("the database does not answer: its connections are made anew")
			db.Reset()
		}
		return true // which fails at once, as the connection is closed by now
	}
	pool, err := pgxpool.NewWithConfig(ctx, pcfg)
	if err != nil {
		return nil, fmt.Errorf("opening a connection pool: %w", err)
	}
	p.Pool = pool
	db.mu.Lock()
	db.pools[pool] = struct{}{}
	db.mu.Unlock()
	return p, nil
}

// Prologue is a statement that each batch of the pool has to begin with, empty when there is none: behind a pooler a session may be
// another one in the next transaction, and settings must not stay in it. The other methods send it themselves.
func (p *Pool) Prologue() string { return p.prologue }

// Database returns where the pool's connections lead to.
func (p *Pool) Database() *Database { return p.db }

// Close closes the connections, once those in use have been given back.
func (p *Pool) Close() {
	p.db.mu.Lock()
	delete(p.db.pools, p.Pool)
	p.db.mu.Unlock()
	p.Pool.Close()
}

// CloseBy is Close, but it waits until ctx ends at most, and then fails: the rest is closed as it is given back.
func (p *Pool) CloseBy(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Close()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("closing connections: %w", ctx.Err())
	}
}
