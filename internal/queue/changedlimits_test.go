package queue_test

import (
	"slices"
	"testing"

	"github.com/queued/queued/internal/pgtest"
)

// insertBacklog inserts so many events into the queue q, each of a group of its own.
func (b env) insertBacklog(t *testing.T, n int) {
	t.Helper()
	b.exec(t, `select agent.insert_event('{}', 'q', _group => 'backlog ' || n) from generate_series(1, $1) n`, n)
}

// claimOneByOne makes so many claims of one event each by SQL, and returns the ids of what they got.
func (b env) claimOneByOne(t *testing.T, n int) []int64 {
	t.Helper()
	var ids []int64
	for range n {
		ids = append(ids, pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(e.id), '{}') from agent.claim_events('q', 1) e`)...)
	}
	return ids
}

// passLeases has the leases of the queue q that end within an hour be over since long, and whatever is to happen by then happen next.
func (b env) passLeases(t *testing.T) {
	t.Helper()
	b.exec(t, `update agent.event set vt = vt - interval '2 hours' where queue = 'q' and vt > now() and vt < now() + interval '1 hour'`)
	b.exec(t, `update agent.event set turn_vt = turn_vt - interval '2 hours' where queue = 'q' and turn_vt > now() and turn_vt < now() + interval '1 hour'`)
	b.exec(t, `update agent_private.group_wake set at = at - interval '2 hours' where queue = 'q' and at > now() and at < now() + interval '1 hour'`)
}

// An event that is leased when limits change, and comes back later, is claimed in its turn also by claims that find enough else and so look for nothing more.
func TestAnEventThatWasLeasedWhenLimitsChangedComesBack(t *testing.T) {
	t.Parallel()
	for change, statements := range map[string][]string{
		"other limits":          {`select agent.put_queue('q', '{"flow": {"concurrency": 2}}')`},
		"order":                 {`select agent.put_queue('q', '{"flow": {"order": true}}')`},
		"limits off and on":     {`select agent.put_queue('q', '{}')`, `select agent_service.prune_groups('', '')`, `select agent.put_queue('q', '{"flow": {"concurrency": 1}}')`},
		"one of the group":      {`select agent.put_group('q', 'a', '{"concurrency": 3}')`},
		"a hold that is over":   {`select agent_service.hold_group('q', 'a', '1 ms')`, `select pg_sleep(0.002)`},
		"one of another kind":   {`select agent.put_queue('q', '{"flow": {"rate": {"limit": 1000, "period": "1 s", "burst": 1000}}}')`, `select agent.put_queue('q', '{"flow": {"concurrency": 1}}')`},
		"turns, and none again": {`select agent.put_queue('q', '{"flow": {"fair": true}}')`, `select agent.put_queue('q', '{"flow": {"concurrency": 1}}')`},
	} {
		for end, give := range map[string]string{
			"lost":     ``,
			"extended": `select agent.extend_event($1, $2, '20 minutes')`,
			"released": `select agent.release_event($1, $2)`,
			"undone":   `select agent.release_events(array[$1::int8], array[$2])`,
			"nacked":   `select agent.nack_event($1, $2)`,
			"delayed":  `select agent.nack_event($1, $2, '1 minute')`,
		} {
			t.Run(change+", "+end, func(t *testing.T) {
				t.Parallel()
				b := setup(t, nil)
				b.limit(t, "q", `{"concurrency": 1}`)
				id := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _group => 'a', _priority => -1)`) // more urgent than all else
				receipt := pgtest.Query[string](t, b.sql, `select agent.receipt(e) from agent.claim_events('q') e`)
				b.insertBacklog(t, 60)
				for _, statement := range statements {
					b.exec(t, statement)
					b.claimOneByOne(t, 3)
				}
				switch end {
				case "lost":
				case "extended": // and looked at when the lease would have ended
					b.exec(t, give, id, receipt)
					b.exec(t, `update agent_private.group_wake set at = now() where at > now() and at < now() + interval '11 minutes'`)
					b.claimOneByOne(t, 3)
				default:
					b.exec(t, give, id, receipt)
				}
				switch end {
				case "lost", "extended", "delayed":
					b.passLeases(t)
				}
				if got := b.claimOneByOne(t, 20); !slices.Contains(got, id) {
					t.Errorf("claimed %v, and not %d: %s", got, id, pgtest.Query[string](t, b.sql, `select (to_jsonb(e) - 'event')::text from agent.event e where id = $1`, id))
				}
			})
		}
	}
}

// What a transaction has claimed that is open while limits change comes back, too, when it is committed.
func TestAnEventThatWasLockedWhenLimitsChangedComesBack(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]string{
		"claimed": `select id from agent.claim_events('q', 1)`,
		"nacked":  `select e.id from agent.claim_events('q', 1) e cross join lateral agent.nack_event(e.id, agent.receipt(e)) n`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", `{"order": true}`)
			b.insertBacklog(t, 60)
			b.claimOneByOne(t, 1)
			b.exec(t, `select from agent.insert_events(array['{}']::jsonb[], array['q'], _options => array['{"group": "a", "priority": -1}']::jsonb[])`)
			tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var id int64
			if err := tx.QueryRow(t.Context(), statement).Scan(&id); err != nil {
				t.Fatal(err)
			}
			b.limit(t, "q", `{"concurrency": 1}`)
			b.claimOneByOne(t, 3)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			b.passLeases(t)
			b.claimOneByOne(t, 1)
			b.passLeases(t)
			if got := b.claimOneByOne(t, 20); !slices.Contains(got, id) {
				t.Errorf("claimed %v, and not %d: %s", got, id, pgtest.Query[string](t, b.sql, `select (to_jsonb(e) - 'event')::text from agent.event e where id = $1`, id))
			}
		})
	}
}

// An event of a transaction that began when others held, or none, and is committed after claims have looked at all groups, is found by claims that look for nothing more.
func TestAnEventThatWasInsertedWhileLimitsChangedComesBack(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"other limits": `{"concurrency": 2}`, "no limits": `null`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", before)
			b.insertBacklog(t, 700)
			tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var id int64
			if err := tx.QueryRow(t.Context(), `select id from agent.insert_events(array['{}']::jsonb[], array['q'], _options => array['{"group": "a", "priority": -1}']::jsonb[])`).Scan(&id); err != nil {
				t.Fatal(err)
			}
			b.limit(t, "q", `{"concurrency": 1}`)
			b.claimOneByOne(t, 10)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			for range 600 { // one of twenty looks, by chance
				if slices.Contains(b.claimOneByOne(t, 1), id) {
					return
				}
			}
			t.Error("no claim found it")
		})
	}
}
