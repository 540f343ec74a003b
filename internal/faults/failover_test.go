//go:build unix

package faults

import (
	"testing"
	"time"
)

// recoveryLimit is how soon after a promotion inserts must succeed: the promised 10 s, and 5 s for a busy machine.
const recoveryLimit = 15 * time.Second

// The broken builds of this file.
var (
	commitLocal          = build{name: "commits that do not wait for the standby", setting: `alter database queued set synchronous_commit = local`}
	sequencesNotAdvanced = build{name: "id sequences that are not moved ahead", sql: []edit{{
		"advance_sequences", "perform setval(_sequence, least(_latest, _end - _distance) + _distance, _is_called or _latest > _end - _distance);", "null;",
	}}}
	longConnectTimeout = build{name: "connections that wait a minute for a server", edits: []edit{
		{"internal/pg/database.go", "ConnectTimeout = 3 * time.Second", "ConnectTimeout = time.Minute"},
		{"internal/pg/database.go", "pingTimeout = 2 * time.Second", "pingTimeout = time.Minute"},
		{"internal/queue/write.go", "commitTimeout = ", "commitTimeout = 6 * "},
	}}
)

// failOver injects a fault into the primary of a pair and promotes the standby, repeatedly.
func failOver(replication Replication, fault func(*Pair, *load)) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		l.lossy = replication == Asynchronous
		pair := StartPair(t, replication, Config{})
		servers := []*queued{startQueued(t, b, pair.URL()), startQueued(t, b, pair.URL())}
		b.breakDatabase(t, pair.Primary)
		d := startLoad(t, l, servers...)
		var longest time.Duration
		for i := range rounds {
			d.awaitInserts(20)
			fault(pair, d)
			pair.Failover()
			back := d.awaitInsertAfter(time.Now())
			longest = max(longest, back)
			if back > recoveryLimit {
				l.violated("the first insert succeeded %v after the promotion", back)
			}
			if i+1 < rounds {
				pair.Rejoin()
			}
		}
		d.awaitInserts(20)
		t.Logf("%d failovers: the first insert succeeded within %v of the promotion", rounds, longest)
		d.finish(pair.Primary.AdminURL())
		for _, q := range servers {
			if code, took := q.terminate(); code != 0 || took > 40*time.Second {
				l.violated("queued stopped with exit code %d after %v", code, took)
			}
		}
	}
}

func killPrimary(p *Pair, _ *load) { p.Primary.Kill() }

func freezePrimary(p *Pair, _ *load) { p.Primary.Freeze() }

// killUnreplicated kills the primary after commits that did not reach the standby.
func killUnreplicated(p *Pair, d *load) {
	p.Primary.PauseReplication()
	d.awaitInserts(20)
	p.Primary.Kill()
}

func TestNothingIsLostWhenPrimaryIsKilledAndStandbyPromoted(t *testing.T) {
	t.Parallel()
	runScenario(t, failOver(Synchronous, killPrimary), 1, 20)
}

func TestNothingIsLostWhenPrimaryIsFrozenAndStandbyPromoted(t *testing.T) {
	t.Parallel()
	runScenario(t, failOver(Synchronous, freezePrimary), 1, 20)
}

func TestBrokenBuildWithLongConnectTimeoutIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, failOver(Synchronous, freezePrimary), longConnectTimeout, 2)
}

func TestBrokenBuildWithLocalCommitIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, failOver(Synchronous, killUnreplicated), commitLocal, 3)
}

func TestIDsAreNotReusedAfterAsynchronousFailover(t *testing.T) {
	t.Parallel()
	runScenario(t, failOver(Asynchronous, killUnreplicated), 1, 20)
}

func TestBrokenBuildWithoutSequenceAdvanceIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, failOver(Asynchronous, killUnreplicated), sequencesNotAdvanced, 2)
}
