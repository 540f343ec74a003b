package pg

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// LostListenerAfter is how long it takes at most until notifications are known to arrive no longer.
const LostListenerAfter = pingAfter + pingTimeout

// BehindPooler has a Database take its server for a pooler, but for notifications. It is called before the Database is used.
func (db *Database) BehindPooler() { db.direct = false }

// RereadInterval is the time after which a replica is read though its version is the same.
const RereadInterval = rereadInterval

// Age has the latest reading of a replica be so much longer ago.
func (r *Replica[S]) Age(by time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = r.readAt.Add(-by)
}

// NewResolver returns what resolves the hosts of a Database whose connections may take timeout.
func NewResolver(timeout time.Duration, resolver pgconn.LookupFunc) func(ctx context.Context, host string) ([]string, error) {
	return newDialer(timeout, resolver, nil).resolve
}
