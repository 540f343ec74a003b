package pg

import (
	"context"
	"sync"
	"time"
)

// clockDrift is how far two clocks are assumed to run apart in a time: what NTP corrects at most.
const clockDrift = 500e-6

// A clock estimates the time of the database by that of this process.
type clock struct {
	mu    sync.Mutex
	ahead time.Duration // of the clock of this process
	error time.Duration // by which that may be wrong, when it was found
	setAt time.Time     // when that was; zero: never
}

// set takes the time that the database has given as an answer. It was read between two times of this process. An answer that took long, as it waited for
// a connection, takes the place of a better one only where that must be wrong by now.
func (c *clock) set(at, asked, answered time.Time) {
	took := answered.Sub(asked)
	ahead, within := at.Sub(asked)-took/2, took/2
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.error + time.Duration(clockDrift*float64(asked.Sub(c.setAt)))
	if c.setAt.IsZero() || within <= now || (ahead-c.ahead).Abs() > within+now {
		c.ahead, c.error, c.setAt = ahead, within, asked
	}
}

// ReadClock asks the database for its time.
func (db *Database) ReadClock(ctx context.Context, pool *Pool) error {
	var at time.Time
	asked := time.Now()
	if err := pool.QueryRow(ctx, `select clock_timestamp()`).Scan(&at); err != nil {
		return err
	}
	db.clock.set(at, asked, time.Now())
	return nil
}

// Now returns the time of the database, about: as a Replica or ReadClock has seen it last, and by the clock of this process since.
func (db *Database) Now() time.Time {
	db.clock.mu.Lock()
	defer db.clock.mu.Unlock()
	return time.Now().Add(db.clock.ahead)
}
