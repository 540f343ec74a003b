package queue_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// waitLimit bounds the wait for a condition, on a busy machine.
const waitLimit = 2 * time.Minute

// eventually waits until a condition holds that no signal announces, and fails the test after waitLimit.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting until %s", what)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("the test ended while waiting until %s", what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// awaitLockWait waits until a session waits for a lock of the holder's transaction, and returns the process id of that session.
func awaitLockWait(t *testing.T, b env, holder *pgx.Conn) (pid int) {
	t.Helper()
	watcher := pgtest.Connect(t, b.url) // the session of the env may be the one that waits
	eventually(t, "a session waits for the lock", func() bool {
		waiting := pgtest.Query[*int](t, watcher, `
			select min(pid) from pg_catalog.pg_stat_activity
			where datname = pg_catalog.current_database() and $1::int = any (pg_catalog.pg_blocking_pids(pid))`, holder.PgConn().PID())
		if waiting != nil {
			pid = *waiting
		}
		return waiting != nil
	})
	return pid
}

// awaitListening waits until the service listens for notifications.
func awaitListening(t *testing.T, b env) {
	t.Helper()
	eventually(t, "the service listens", func() bool { return b.Server().IsListening })
}
