//go:build unix

package faults

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/grouptest"
)

// The broken builds of this file.
var (
	groupsUnlocked = build{name: "groups that are not locked while their slots are counted", sql: []edit{{
		"lock_groups", `g.key = k.key for no key update skip locked`, `g.key = k.key`,
	}}}
	slotsFreedByTime = build{name: "a slot that is free when its lease has ended", sql: []edit{
		{
			"admit_events", `from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow <= 2 limit`,
			`from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow <= 2 and not (e.attempts > 0 and e.nacked_at is null and e.vt <= _now) limit`,
		},
		{
			"admit_new_events", `from agent.event e where e.queue = l.queue and e.group_key = l.key and e.flow <= 2 limit`,
			`from agent.event e where e.queue = l.queue and e.group_key = l.key and e.flow <= 2 and not (e.attempts > 0 and e.nacked_at is null and e.vt <= _now) limit`,
		},
	}}
	claimsUncounted = build{name: "a rate that counts no claims", sql: []edit{{"note_claims", `count(*)::int4 as n`, `0 as n`}}}
	wakesLost       = build{name: "wakes of groups that are lost", setting: `
		create function public.lose() returns trigger language plpgsql as $$ begin return null; end $$;
		create trigger lose before insert on agent_private.group_wake for each row when (new.event_id is null and new.key <> '') execute function public.lose()`}
)

// A limited queue of the load, and what holds for each of its groups.
type limited struct {
	flow        string
	concurrency int           // leases of a group at once; 0: any number
	total       int           // of the queue; 0: any number
	isOrdered   bool          // a group's events come one after the other
	burst       int           // of claims of a group
	interval    time.Duration // between two claims beyond the burst; 0: there is no rate
}

var limitedQueues = map[string]limited{
	"few":     {flow: `{"concurrency":2}`, concurrency: 2},
	"total":   {flow: `{"concurrency":3,"total":4}`, concurrency: 3, total: 4},
	"ordered": {flow: `{"order":true}`, concurrency: 1, isOrdered: true},
	"paced":   {flow: `{"concurrency":4,"rate":{"limit":5,"period":"1s","burst":2}}`, concurrency: 4, burst: 2, interval: 200 * time.Millisecond},
}

// limitGroups kills and freezes processes, and ends their connections, while limits of groups hold: the promises are checked from a record of all changes.
func limitGroups(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, server.URL())}
	b.breakDatabase(t, server)
	server.Exec(ordinary, grouptest.Record)
	d := newLoad(t, l, servers...)
	d.groups = []string{"a", "b", ""}
	for name, q := range limitedQueues {
		if status, answer := servers[0].ask("PUT", "/queues/"+name, `{"flow":`+q.flow+`}`); status != 200 {
			t.Fatalf("setting the limits of %s: %d %s", name, status, answer)
		}
		d.queues = append(d.queues, name)
	}
	slices.Sort(d.queues)
	d.start()
	d.addInserters(3, false)
	d.addWorkers(8)
	for i := range rounds {
		d.awaitInserts(200)
		victim := servers[i/3%2]
		switch i % 3 {
		case 0:
			victim.kill()
			victim.start()
			victim.awaitReady(startLimit)
		case 1: // its leases end, and so do those of the claims that it goes on with
			if err := victim.process.signalTree(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			pause(leaseTime * 3 / 2)
			if err := victim.process.signalTree(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		case 2:
			server.Exec(ordinary, `select pg_terminate_backend(pid) from pg_stat_activity where pid <> pg_backend_pid() and datname = current_database() and random() < 0.5`)
		}
	}
	d.awaitInserts(200)
	ended := time.Now()
	// What waits for the rate may go now: it would take minutes.
	if status, answer := servers[0].ask("PUT", "/queues/paced", `{}`); status != 200 {
		t.Fatalf("ending the rate: %d %s", status, answer)
	}
	d.finish(server.AdminURL())
	checkLimits(t, l, server.AdminURL(), ended)
}

// checkLimits adds the broken promises of the limited queues to the ledger. The limits of the queue paced have ended at some time.
func checkLimits(t *testing.T, l *ledger, url string, ended time.Time) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(t.Context()) }()
	leases, err := grouptest.Leases(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	byQueue, byGroup := map[string][]*grouptest.Lease{}, map[[2]string][]*grouptest.Lease{}
	for _, lease := range leases {
		if lease.Queue == "paced" && lease.From.After(ended) {
			continue
		}
		byQueue[lease.Queue] = append(byQueue[lease.Queue], lease)
		if lease.Group != "" {
			byGroup[[2]string{lease.Queue, lease.Group}] = append(byGroup[[2]string{lease.Queue, lease.Group}], lease)
		}
	}
	for name, q := range limitedQueues {
		if most, when := grouptest.MostAtOnce(byQueue[name]); q.total > 0 && most > q.total {
			l.violated("%d leases of the queue %s at %s, the limit is %d", most, name, when, q.total)
		}
		if len(byQueue[name]) == 0 {
			l.violated("nothing of the queue %s was claimed", name)
		}
	}
	for of, leases := range byGroup {
		q, name := limitedQueues[of[0]], fmt.Sprintf("the group %s of %s", of[1], of[0])
		if most, when := grouptest.MostAtOnce(leases); q.concurrency > 0 && most > q.concurrency {
			l.violated("%d leases of %s at %s, the limit is %d", most, name, when, q.concurrency)
		}
		slices.SortFunc(leases, func(a, b *grouptest.Lease) int { return a.From.Compare(b.From) })
		for i, lease := range leases {
			if before := leases[max(i-1, 0)]; q.isOrdered && before.ID != lease.ID && (before.Ended.IsZero() || before.Ended.After(lease.From)) {
				l.violated("the event %d of %s was claimed at %s, before %d was finished", lease.ID, name, lease.From, before.ID)
			}
			if n := q.burst + 1; q.interval > 0 && i >= n {
				// The trigger writes a claim down somewhat later than it was made.
				const late = 40 * time.Millisecond
				if window := lease.From.Sub(leases[i-n].From); window+late < q.interval {
					l.violated("%d claims of %s within %s at %s, the burst is %d and the interval %s", n+1, name, window, lease.From, q.burst, q.interval)
				}
			}
		}
	}
	t.Logf("%d leases", len(leases))
}

func TestLimitsOfGroupsHoldWhenProcessesAreKilledAndFrozen(t *testing.T) {
	t.Parallel()
	runScenario(t, limitGroups, 3, 300)
}

func TestBrokenBuildWithUnlockedGroupsIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, limitGroups, groupsUnlocked, 30)
}

func TestBrokenBuildWithSlotsFreedByTimeIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, limitGroups, slotsFreedByTime, 12)
}

func TestBrokenBuildWithUncountedClaimsIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, limitGroups, claimsUncounted, 3)
}

func TestBrokenBuildWithLostWakesIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, limitGroups, wakesLost, 6)
}
