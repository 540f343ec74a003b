//go:build unix

package faults

import (
	"context"
	"testing"
	"time"
)

// cancelledWaitCommits is the broken build of this file.
var cancelledWaitCommits = build{name: "a cancelled wait for the standby counts as a commit", edits: []edit{
	{"internal/pg/pool.go", `n.Routine == "SyncRepWaitForLSN"`, `n.Routine == "none"`},
}}

// cancelWaits pauses replication, cancels the waits of commits for the standby, as an operator can, and then kills the primary.
func cancelWaits(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	pair := StartPair(t, Synchronous, Config{})
	q := startQueued(t, b, pair.URL())
	b.breakDatabase(t, pair.Primary)
	d := startLoad(t, l, q)
	for i := range rounds {
		d.awaitInserts(20)
		pair.Primary.PauseReplication()
		cancelled := 0
		for began := time.Now(); cancelled < 10 && time.Since(began) < startLimit; pause(20 * time.Millisecond) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			var n int
			err := pair.Primary.queryRow(ctx, &n, `
				select pg_catalog.count(pg_catalog.pg_cancel_backend(pid))::int4 from pg_catalog.pg_stat_activity
				where wait_event = 'SyncRep' and usename = 'queued'`)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			cancelled += n
		}
		if cancelled == 0 {
			t.Fatal("no commit waited for the standby")
		}
		pair.Primary.Kill()
		pair.Failover()
		d.awaitInsertAfter(time.Now())
		if i+1 < rounds {
			pair.Rejoin()
		}
	}
	d.awaitInserts(20)
	d.finish(pair.Primary.AdminURL())
}

func TestCommitWithCancelledStandbyWaitIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	runScenario(t, cancelWaits, 1, 10)
}

func TestBrokenBuildWithCancelledWaitAsCommitIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, cancelWaits, cancelledWaitCommits, 2)
}
