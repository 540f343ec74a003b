package faults

import (
	"testing"
	"time"
)

// backLimit is how soon after a promotion posts have to be taken again: 10 s are promised, and a busy machine takes its share.
const backLimit = 15 * time.Second

// The broken builds of this file.
var (
	local = build{name: "commits that do not wait for the standby", setting: `alter database queued set synchronous_commit = local`}
)

// failOver promotes the standby of a pair, after strike, again and again.
func failOver(replication Replication, strike func(*Pair, *load)) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		l.lossy = replication == Asynchronous
		pair := StartPair(t, replication, Config{})
		servers := []*queued{startQueued(t, b, pair.URL()), startQueued(t, b, pair.URL())}
		b.breakDatabase(t, pair.Primary)
		d := startLoad(t, l, servers...)
		var longest time.Duration
		for range rounds {
			d.awaitPosts(20)
			strike(pair, d)
			pair.Failover()
			back := d.awaitPostAfter(time.Now())
			longest = max(longest, back)
			if back > backLimit {
				l.violated("posts were taken again %v after the promotion", back)
			}
			pair.Rejoin()
		}
		d.awaitPosts(20)
		t.Logf("%d failovers: after the promotion, the first post was acknowledged within %v", rounds, longest)
		d.finish(pair.Primary.AdminURL())
		for _, q := range servers {
			if code, took := q.terminate(startLimit); code != 0 || took > 40*time.Second {
				l.violated("queued stopped with exit code %d after %v", code, took)
			}
		}
	}
}

func killPrimary(p *Pair, _ *load) { p.Primary.Kill() }

// loseTail kills the primary after some of what it acknowledged was kept from the standby.
func loseTail(p *Pair, d *load) {
	p.Primary.HoldBackStandbys()
	d.awaitPosts(20)
	p.Primary.Kill()
}

func TestNothingIsLostWhenThePrimaryIsKilledAndTheStandbyPromoted(t *testing.T) {
	t.Parallel()
	failOver(Synchronous, killPrimary).holds(t, 1, 20)
}

func TestFailoversShowCommitsThatDoNotWaitForTheStandby(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	failOver(Synchronous, loseTail).catches(t, local, 3)
}
