package pg

import (
	"context"
	"errors"
	"time"
)

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

// CloseBy closes the pools as Pool.CloseBy does, all of them by the end of ctx.
func (ps Pools) CloseBy(ctx context.Context) error {
	var failed []error
	for _, p := range ps {
		failed = append(failed, p.CloseBy(ctx))
	}
	return errors.Join(failed...)
}

// Reset has every connection of the pools be made anew.
func (ps Pools) Reset() {
	for _, p := range ps {
		p.Reset()
	}
}

// PoolStats describes connections: those in use, idle, and at most, and what acquiring them has cost so far.
type PoolStats struct {
	InUse, Idle, Max     int32
	Acquires             int64         // connections handed out
	EmptyAcquires        int64         // of those, how many had to wait for one
	EmptyAcquireWaitTime time.Duration // how long those waited, in all
}

// Stats describes the connections of all pools.
func (ps Pools) Stats() (sum PoolStats) {
	for _, p := range ps {
		st := p.Stat()
		sum.InUse += st.AcquiredConns()
		sum.Idle += st.IdleConns()
		sum.Max += st.MaxConns()
		sum.Acquires += st.AcquireCount()
		sum.EmptyAcquires += st.EmptyAcquireCount()
		sum.EmptyAcquireWaitTime += st.EmptyAcquireWaitTime()
	}
	return sum
}
