package pg

import (
	"context"
	"fmt"
	"time"
)

const (
	// quickLockTimeout is how long a write waits for a lock on the connections that all writes of a service share.
	quickLockTimeout = 10 * time.Millisecond
	// maxLockWaiters is how many writes of a service may wait for locks at a time.
	maxLockWaiters = 200
)

// Writes are the connections of short calls that may have to wait for a lock of another transaction. A call that has to is made again on a
// connection where only such calls are, for a limited time: neither reads nor writes of anything else wait with it.
type Writes struct {
	quick, patient *Pool
	limit          time.Duration // of the wait for a connection of patient, and of that for a lock
	slots          chan struct{} // full while one of the calls is on patient
	waiters        chan struct{} // has an element for each call that is on patient or waits for that
}

// Specs asks OpenPools for the pools of w: as many connections as quick has for calls that wait for nothing, and one of those that all services share for calls that have to.
// A call waits for locks no longer than limit in all.
func (w *Writes) Specs(quick PoolConfig, limit time.Duration) []PoolSpec {
	w.limit = limit / 2
	w.slots, w.waiters = make(chan struct{}, 1), make(chan struct{}, maxLockWaiters)
	quick.LockTimeout = min(quickLockTimeout, w.limit)
	patient := patientPool
	patient.LockTimeout = w.limit
	return []PoolSpec{{To: &w.quick, Config: quick}, {To: &w.patient, Config: patient}}
}

// Do makes a call: run makes it on the connections of a pool, in one transaction. When it loses against another transaction there, nothing was
// written, and it is made again where it may wait. It fails with ErrLocked when it has waited too long, or too many wait.
func (w *Writes) Do(ctx context.Context, run func(*Pool) error) error {
	err := run(w.quick)
	if !LostRace(err) {
		return err
	}
	select {
	case w.waiters <- struct{}{}:
		defer func() { <-w.waiters }()
	default:
		return fmt.Errorf("%w: %d calls wait for locks", ErrLocked, maxLockWaiters)
	}
	timer := time.NewTimer(w.limit)
	defer timer.Stop()
	for _, slots := range []chan struct{}{w.slots, w.patient.bounded} {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-timer.C:
			return fmt.Errorf("%w: other calls wait for locks", ErrLocked)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return run(w.patient)
}

// Exec is Pool.Exec as a call of its own.
func (w *Writes) Exec(ctx context.Context, sql string, args ...any) error {
	return w.Do(ctx, func(pool *Pool) error {
		_, err := pool.Exec(ctx, sql, args...)
		return err
	})
}

// Row makes a call that returns one row, and scans it into dest.
func (w *Writes) Row(ctx context.Context, sql string, args []any, dest ...any) error {
	return w.Do(ctx, func(pool *Pool) error { return pool.QueryRow(ctx, sql, args...).Scan(dest...) })
}

// WriteOne makes a call that returns one row.
func WriteOne[T any](ctx context.Context, w *Writes, sql string, args ...any) (found T, err error) {
	err = w.Do(ctx, func(pool *Pool) error {
		rows, _ := pool.Query(ctx, sql, args...)
		found, err = CollectOne[T](rows)
		return err
	})
	return found, err
}
