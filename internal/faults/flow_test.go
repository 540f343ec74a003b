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
	groupsUnlogged  = build{name: "groups that a promoted server does not have", setting: `alter table agent.queue_group set unlogged`}
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

// pausedQueue is the limited queue of which groups are paused.
const pausedQueue = "pausing"

var limitedQueues = map[string]limited{
	"few":       {flow: `{"concurrency":2}`, concurrency: 2},
	"total":     {flow: `{"concurrency":3,"total":4}`, concurrency: 3, total: 4},
	"ordered":   {flow: `{"order":true}`, concurrency: 1, isOrdered: true},
	pausedQueue: {flow: `{"concurrency":3}`, concurrency: 3},
	"paced":     {flow: `{"concurrency":4,"rate":{"limit":5,"period":"1s","burst":2}}`, concurrency: 4, burst: 2, interval: 200 * time.Millisecond},
	"turns":     {flow: `{"fair":true,"concurrency":2}`, concurrency: 2},
}

// startLimited returns a load on the limited queues, which has started, and records what becomes of its events in the database of server.
func startLimited(t *testing.T, l *ledger, server *Server, servers ...*queued) *load {
	t.Helper()
	server.Exec(ordinary, grouptest.Record)
	d := newLoad(t, l, servers...)
	d.groups = []string{"a", "b", ""}
	for name, q := range limitedQueues {
		servers[0].mustAsk("PUT", "/queues/"+name, `{"flow":`+q.flow+`}`)
		d.queues = append(d.queues, name)
	}
	slices.Sort(d.queues)
	d.start()
	d.addInserters(3, false)
	d.addWorkers(8)
	return d
}

// finishLimited finishes a load on the limited queues, whose record is in the database of server, and checks their promises.
func finishLimited(t *testing.T, d *load, server *Server, q *queued) {
	t.Helper()
	d.awaitInserts(200)
	ended := time.Now()
	q.mustAsk("PUT", "/queues/paced", `{}`) // what waits for the rate may go now: it would take minutes
	d.finish(server.AdminURL())
	checkLimits(t, d.ledger, server.AdminURL(), ended)
}

// limitGroups kills and freezes processes, and ends their connections, while limits of groups hold: the promises are checked from a record of all changes.
func limitGroups(t *testing.T, b build, l *ledger, rounds int) {
	t.Helper()
	server := Start(t, Config{})
	servers := []*queued{startQueued(t, b, server.URL()), startQueued(t, b, server.URL())}
	b.breakDatabase(t, server)
	d := startLimited(t, l, server, servers...)
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
	finishLimited(t, d, server, servers[0])
}

// failOverLimited injects a fault into the primary of a pair and promotes the standby, repeatedly, while limits of groups hold and a group is paused. The promises are checked
// from the record that the promoted server has.
func failOverLimited(replication Replication, fault func(*Pair, *load)) scenario {
	return func(t *testing.T, b build, l *ledger, rounds int) {
		t.Helper()
		l.lossy = replication == Asynchronous
		pair := StartPair(t, replication, Config{})
		servers := []*queued{startQueued(t, b, pair.URL()), startQueued(t, b, pair.URL())}
		b.breakDatabase(t, pair.Primary)
		d := startLimited(t, l, pair.Primary, servers...)
		for i := range rounds {
			d.awaitInserts(200)
			paused := hold{queue: pausedQueue, group: d.groups[i%2]}
			path := "/queues/" + paused.queue + "/groups/" + paused.group
			servers[0].mustAsk("PUT", path, `{"paused":true}`)
			paused.from = time.Now()
			pair.Primary.AwaitStandby(pair.Standby)
			fault(pair, d)
			pair.Failover()
			d.awaitInsertAfter(time.Now())
			d.awaitInserts(200)
			paused.until = time.Now()
			l.held(paused)
			servers[0].mustAsk("DELETE", path, "")
			if i+1 < rounds {
				pair.Rejoin()
			}
		}
		finishLimited(t, d, pair.Primary, servers[0])
	}
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
	recorded := map[int64][]time.Time{} // by event: when it was claimed
	for _, lease := range leases {
		recorded[lease.ID] = append(recorded[lease.ID], lease.Claimed)
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
		if q.isOrdered {
			l.checkOrder(name, leases)
		}
		if q.interval > 0 {
			if lease, early := grouptest.FirstTooEarly(leases, q.burst, q.interval); lease != nil {
				l.violated("the event %d of %s was claimed at %s, %s before its rate allows it", lease.ID, name, lease.Claimed, early)
			}
		}
		for _, lease := range leases {
			for _, h := range l.holds {
				if h.queue == of[0] && h.group == of[1] && lease.Began.After(h.from) && lease.From.Before(h.until) {
					l.violated("the event %d of %s was claimed at %s, while the group was held from %s until %s", lease.ID, name, lease.From, h.from, h.until)
				}
			}
		}
	}
	unknown := 0
	for _, leases := range l.leases {
		for _, lease := range leases {
			if slices.ContainsFunc(recorded[lease.ID], lease.begin().Equal) {
				continue
			}
			unknown++
			if !l.lossy {
				l.violated("a client got a lease of the event %d of %s, made at %s, that is not in the record", lease.ID, lease.Queue, lease.begin())
			}
		}
	}
	t.Logf("%d leases in the record, %d times a group was held, %d leases of clients were lost", len(leases), len(l.holds), unknown)
}

// checkOrder checks that of a group in order no event was claimed while another one was unfinished whose insert had been answered before that of the first was sent.
func (l *ledger) checkOrder(name string, leases []*grouptest.Lease) {
	for _, lease := range leases {
		sent := l.sent[l.byID[lease.ID]]
		for _, other := range leases {
			confirmed := l.confirmed[other.ID]
			if !confirmed.IsZero() && confirmed.Before(sent) && (other.Ended.IsZero() || other.Ended.After(lease.From)) {
				l.violated("the event %d of %s was claimed at %s, before %d was finished", lease.ID, name, lease.From, other.ID)
			}
		}
	}
}

func TestLimitsOfGroupsHoldWhenProcessesAreKilledAndFrozen(t *testing.T) {
	t.Parallel()
	runScenario(t, limitGroups, 3, 300)
}

func TestLimitsOfGroupsHoldWhenPrimaryIsKilledAndStandbyPromoted(t *testing.T) {
	t.Parallel()
	runScenario(t, failOverLimited(Synchronous, killPrimary), 1, 20)
}

func TestLimitsOfGroupsHoldWhenPrimaryIsFrozenAndStandbyPromoted(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	runScenario(t, failOverLimited(Synchronous, freezePrimary), 1, 10)
}

func TestLimitsOfGroupsHoldByTheRecordOfALaggingStandby(t *testing.T) {
	t.Parallel()
	runScenario(t, failOverLimited(Asynchronous, killUnreplicated), 1, 20)
}

func TestBrokenBuildWithLocalCommitIsCaughtByGroups(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, failOverLimited(Synchronous, killUnreplicated), commitLocal, 2)
}

func TestBrokenBuildWithUnloggedGroupsIsCaught(t *testing.T) {
	t.Parallel()
	inLongForm(t)
	expectViolation(t, failOverLimited(Synchronous, killPrimary), groupsUnlogged, 3)
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
