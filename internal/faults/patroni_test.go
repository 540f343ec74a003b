//go:build unix

package faults

import (
	"testing"
	"time"
)

// patroniRecoveryLimit is how soon after Patroni has a new leader inserts must succeed: see recoveryLimit. A gateway may take a second longer.
const patroniRecoveryLimit = recoveryLimit + time.Second

// patroniCells has two cells whose PostgreSQL is a Patroni cluster each, and a gateway in front of them. In turn their leaders hand over, as an operator has them,
// and are lost by a fault.
func patroniCells(fault func(c *cluster, d *load, cell int) (restart func())) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		store := startEtcd(t)
		clusters := []*cluster{startCluster(t, store, "cell-0", 2), startCluster(t, store, "cell-1", 2)}
		var urls, adminURLs []string
		for _, c := range clusters {
			c.awaitSync()
			urls, adminURLs = append(urls, c.url()), append(adminURLs, c.adminURL())
		}
		f := startFleet(t, b, 1, urls...)
		if b.setting != "" {
			for _, c := range clusters {
				c.exec(b.setting)
			}
		}
		d := f.newLoad(t, l)
		d.start()
		var longest time.Duration
		for i := range rounds {
			number := i % len(clusters)
			c, other := clusters[number], 1-number
			d.awaitInserts(20)
			c.switchover()
			back := d.awaitInsertOn(number, time.Now())
			c.awaitSync()
			d.awaitInserts(20)
			began := time.Now()
			restart := fault(c, d, number)
			back = max(back, d.awaitInsertOn(number, time.Now()))
			d.awaitInsertOn(other, began) // it went on
			restart()
			c.awaitSync()
			if longest = max(longest, back); back > patroniRecoveryLimit {
				l.violated("the first insert succeeded %v after there was a new leader", back)
			}
		}
		d.awaitInserts(20)
		t.Logf("%d switchovers and %[1]d lost leaders: the first insert succeeded within %v of a new leader", rounds, longest)
		d.finish(adminURLs...)
	}
}

func killLeader(c *cluster, _ *load, _ int) (restart func()) { return c.killLeader() }

// killUnreplicatedLeader kills the leader after commits that did not reach the standby.
func killUnreplicatedLeader(c *cluster, d *load, cell int) (restart func()) {
	c.pauseReplication()
	for range 5 {
		d.awaitInsertOn(cell, time.Now())
	}
	return c.killLeader()
}

func TestNothingIsLostWhenLeadersOfPatroniHandOverAndAreKilled(t *testing.T) {
	inLongForm(t)
	t.Parallel()
	runScenario(t, patroniCells(killLeader), 1, 20)
}

func TestBrokenBuildWithLocalCommitIsCaughtByPatroni(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, patroniCells(killUnreplicatedLeader), commitLocal, 2)
}
