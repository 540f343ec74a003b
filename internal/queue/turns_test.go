package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
)

// claimGroups claims up to n events of the queue q as SQL does, acks them unless it keeps them, and returns their groups in the order of the claim; "-" stands for none.
func (b env) claimGroups(t *testing.T, n int, keeps bool) []string {
	t.Helper()
	groups := pgtest.Query[[]string](t, b.sql, `
		with claimed as materialized (select e.id, e.group_key, agent.receipt(e) as receipt, row_number() over () as n from agent.claim_events('q', $1) e)
		select coalesce(array_agg(coalesce(c.group_key, '-') order by c.n), '{}') from claimed c`, n)
	if !keeps {
		b.exec(t, `select agent.delete_events(array(select e.id from agent.event e where e.queue = 'q' and e.attempts > 0 and e.nacked_at is null and e.vt > now()))`)
	}
	return groups
}

// release releases leased events.
func (b env) release(t *testing.T, ids ...int64) {
	t.Helper()
	b.exec(t, `update agent.event set receipt_hash = agent_private.token_hash('0123456789abcdef') where id = any ($1)`, ids)
	b.exec(t, `select agent.release_event(e.id, e.id || '.' || e.attempts || '.0123456789abcdef') from agent.event e where e.id = any ($1)`, ids)
}

// missedTurn says of groups in the order in which they were claimed which one did not have its turn: between two claims of one, another came more than once. All events were there from the beginning. Empty: each had.
func missedTurn(claimed []string) string {
	last := make(map[string]int)
	for i, group := range claimed {
		since, again := last[group]
		last[group] = i
		if !again {
			continue
		}
		between := make(map[string]int)
		for _, other := range claimed[since+1 : i] {
			if between[other]++; between[other] > 1 {
				return fmt.Sprintf("group %s was claimed %d times between two claims of %s: %s", other, between[other], group, strings.Join(claimed, ""))
			}
		}
	}
	return ""
}

// wantTurns fails the test unless groups were claimed in turns.
func wantTurns(t *testing.T, claimed []string) {
	t.Helper()
	if missed := missedTurn(claimed); missed != "" {
		t.Error(missed)
	}
}

func TestGroupsTakeTurns(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 3, 7, 100} {
		t.Run(fmt.Sprint(n, " at a time"), func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", `{"fair": true}`)
			lines := map[string]int{"a": 60, "b": 3, "c": 20, "d": 1, "-": 12}
			for group, length := range lines {
				b.exec(t, `select agent.insert_event('{}', 'q', _group => nullif($1, '-')) from generate_series(1, $2::int)`, group, length)
			}
			var claimed []string
			for {
				got := b.claimGroups(t, n, false)
				if len(claimed)+len(got) < 96 && len(got) < n {
					t.Fatalf("a claim of %d got %d after %d", n, len(got), len(claimed))
				}
				if len(got) == 0 {
					break
				}
				claimed = append(claimed, got...)
			}
			wantTurns(t, claimed)
			for group, length := range lines {
				if got := len(slices.DeleteFunc(slices.Clone(claimed), func(g string) bool { return g != group })); got != length {
					t.Errorf("%d events of group %s were claimed, want %d", got, group, length)
				}
			}
		})
	}
}

func TestBrokenTurnsAreCaught(t *testing.T) {
	t.Parallel()
	for name, breakage := range map[string]string{
		"an event that is admitted keeps its own time":           brokenFunction("admit_paced_events", `greatest(least(e.turn_vt, _now), l.served_at)`, `e.turn_vt`),
		"the groups of a claim were all served at the same time": brokenFunction("admit_paced_events", `k.place * interval '1 us'`, `0 * k.place * interval '1 us'`),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.exec(t, breakage)
			b.limit(t, "q", `{"fair": true}`)
			for _, group := range []string{"e", "d", "c", "b", "a"} {
				b.exec(t, `select agent.insert_event('{}', 'q', _group => $1) from generate_series(1, 40)`, group)
			}
			var claimed []string
			for len(claimed) < 150 {
				claimed = append(claimed, b.claimGroups(t, 3, false)...)
			}
			if missedTurn(claimed) == "" {
				t.Error("nobody missed a turn")
			}
		})
	}
}

func TestAGroupThatComesLaterWaitsForOneRoundAtMost(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	for _, group := range []string{"a", "b", "c"} {
		b.exec(t, `select agent.insert_event('{}', 'q', _group => $1) from generate_series(1, 50)`, group)
	}
	b.claimGroups(t, 20, true)
	b.insertGrouped(t, "q", "late", "late")
	if got := b.claimGroups(t, 8, true); !slices.Contains(got[:4], "late") || !slices.Contains(got[4:], "late") {
		t.Errorf("after the insert, %v were claimed", got)
	}
}

func TestPrioritiesCountWithinAGroupWhereGroupsTakeTurns(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	insert := func(group string, priority int) int64 {
		return pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _group => nullif($1, ''), _priority => $2)`, group, priority)
	}
	a1, a2 := insert("a", 5), insert("a", 5)
	b1, b2 := insert("b", -5), insert("b", -5)
	u1, u2 := insert("", 100), insert("", 1)
	b.exec(t, `select agent_private.look_at_woken('q', 100)`) // which has one of each have its turn
	a0 := insert("a", 1)                                      // before the one of its group that nobody has claimed
	b.wantClaimed(t, "q", "in turns", a0, b1, u2, a1, b2, u1, a2)
}

func TestAnEventThatIsGivenBackIsTheNextOfItsGroup(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "b", "b")
	claim := func() int64 { return pgtest.Query[int64](t, b.sql, `select e.id from agent.claim_events('q') e`) }
	if got := claim(); got != ids[0] {
		t.Fatalf("claimed %d first, want %d", got, ids[0])
	}
	b.exec(t, `select agent.nack_event($1, null)`, ids[0])
	b.wantClaimedOne(t, ids[3], ids[0], ids[4])
	b.release(t, ids[4])
	b.wantClaimedOne(t, ids[1], ids[4], ids[2], ids[5])
}

// wantClaimedOne fails the test unless claims of one event each from the queue q get these, one after the other.
func (b env) wantClaimedOne(t *testing.T, want ...int64) {
	t.Helper()
	for i, id := range want {
		if got := pgtest.Query[int64](t, b.sql, `select coalesce((select e.id from agent.claim_events('q') e), 0)`); got != id {
			t.Errorf("claim %d got %d, want %d", i+1, got, id)
		}
	}
}

func TestGroupsTakeTurnsAtOnceWithWhatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertGrouped(t, "q", "", "", "", "", "a", "a", "a", "b", "b")
	leased := pgtest.Query[int64](t, b.sql, `select e.id from agent.claim_events('q') e`)
	delayed := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', '1 hour')`)
	b.limit(t, "q", `{"fair": true}`)
	var claimed []string
	for range 8 {
		claimed = append(claimed, b.claimGroups(t, 1, true)...)
	}
	if len(claimed) != 8 {
		t.Errorf("%v were claimed, want 8 events", claimed)
	}
	wantTurns(t, claimed)
	b.exec(t, `select agent.delete_event($1)`, leased)
	if state := pgtest.Query[string](t, b.sql, `select state from agent.get_event($1)`, delayed); state != "scheduled" {
		t.Errorf("the delayed event is %s", state)
	}

	b.release(t, pgtest.Query[[]int64](t, b.sql, `select array_agg(id) from agent.event where queue = 'q' and attempts > 0`)...)
	b.insertGrouped(t, "q", "")
	b.limit(t, "q", `null`)
	if got := b.claimGroups(t, 100, true); len(got) != 9 {
		t.Errorf("without limits %v were claimed, want 9 events", got)
	}
	b.exec(t, `select agent_service.prune_groups('', '')`)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where group_key = ''`); n > 0 {
		t.Errorf("%d events are in the group of those without one, in a queue without turns", n)
	}
}

func TestNobodySeesTheGroupOfEventsWithoutOne(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true, "concurrency": 1}`)
	ids := b.insertGrouped(t, "q", "", "", "a", "")
	if got := b.claimGroups(t, 10, true); len(got) != 4 {
		t.Errorf("%v were claimed: the limit is for groups", got)
	}
	if got := pgtest.Query[[]string](t, b.sql, `select array_agg(key) from agent.list_groups('q')`); !slices.Equal(got, []string{"a"}) {
		t.Errorf("listed are %v", got)
	}
	b.exec(t, `select agent.nack_event($1, null, '0', _hold_group => '1 hour')`, ids[0]) // it has none
	b.wantClaimed(t, "q", "after a nack", ids[0])
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	if n := pgtest.Query[int](t, b.sql, `
		select count(*) from (select group_key from agent.get_event($1) union all select group_key from agent.get_event($2) union all select group_key from agent.event_hist) g where g.group_key is not null`,
		ids[0], ids[1]); n > 0 {
		t.Errorf("%d events have a group", n)
	}
	b.exec(t, `select agent.nack_event($1, null, _final => true)`, ids[0])
	b.exec(t, `select agent.requeue_event($1)`, ids[0])
	if got := b.claimGroups(t, 10, true); !slices.Equal(got, []string{"-"}) {
		t.Errorf("after a requeue, %v were claimed", got)
	}
	if _, err := b.sql.Exec(t.Context(), `select agent.insert_event('{}', 'q', _group => '')`); !strings.Contains(fmt.Sprint(err), "group: must be 1 to 255 bytes long") {
		t.Errorf("an empty group: %v", err)
	}
	if _, err := b.sql.Exec(t.Context(), `select agent.insert_events(array['{}'::jsonb], array['q'], _options => array['{"group": ""}'::jsonb])`); !strings.Contains(fmt.Sprint(err), "group: must be 1 to 255 bytes long") {
		t.Errorf("an empty group among the options: %v", err)
	}
}

func TestEventsWithoutAGroupAreNotAmongTheLongestGroups(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	b.exec(t, `select count(*) from agent.insert_events(array_fill('{}'::jsonb, array[5000]), array_fill('q'::text, array[5000]))`)
	b.exec(t, `
		select count(*)
		from agent.insert_events(array_fill('{}'::jsonb, array[2400]), array_fill('q'::text, array[2400]), _options => array(select jsonb_build_object('group', 'g' || n % 1200) from generate_series(1, 2400) n))`)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent_service.longest_groups('q', 1000, false)`); n < 100 {
		t.Errorf("%d groups are listed", n)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent_service.longest_groups('q', 1000, false) g where g.key = ''`); n > 0 {
		t.Error("the events without a group are listed as one")
	}
}

func TestAnEventWhoseLeaseIsLostIsTheNextOfItsGroup(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	ids := b.insertGrouped(t, "q", "a", "a", "b", "b", "b")
	b.wantClaimedOne(t, ids[0], ids[2])
	b.exec(t, `update agent.event set vt = now() - interval '1 s' where id = $1`, ids[0])
	b.wantClaimedOne(t, ids[0], ids[3], ids[1], ids[4])
	b.exec(t, `update agent.event set vt = now() - interval '1 s' where id = $1`, ids[0])
	b.wantClaimedOne(t, ids[0]) // at once, as nothing else is there
}

func TestManyLostLeasesOfAGroupGiveItNoMoreTurns(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 21} {
		t.Run(fmt.Sprint(n, " at a time"), func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", `{"fair": true}`)
			b.insertGrouped(t, "q", slices.Repeat([]string{"a"}, 12)...)
			b.insertGrouped(t, "q", "c", "c", "c", "c")
			b.claimGroups(t, 14, true)
			b.exec(t, `update agent.event set vt = now() - interval '1 s' where attempts > 0`)
			b.insertGrouped(t, "q", "b", "b", "b", "", "")
			var claimed []string
			for len(claimed) < 21 {
				got := b.claimGroups(t, n, true)
				if len(got) < min(n, 21) {
					t.Fatalf("a claim of %d got %v after %v", n, got, claimed)
				}
				claimed = append(claimed, got...)
			}
			wantTurns(t, claimed)
		})
	}
}

func TestTurnsKeepOtherLimits(t *testing.T) {
	t.Parallel()
	t.Run("concurrency", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		b.limit(t, "q", `{"fair": true, "concurrency": 2}`)
		ids := b.insertGrouped(t, "q", "a", "a", "a", "b")
		b.wantClaimed(t, "q", "at first", ids[0], ids[3], ids[1])
		b.exec(t, `select agent.delete_event($1)`, ids[1])
		b.wantClaimed(t, "q", "after an ack", ids[2])
	})
	t.Run("total", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		b.limit(t, "q", `{"fair": true, "total": 3}`)
		ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "b")
		b.wantClaimed(t, "q", "at first", ids[0], ids[3], ids[1])
		b.exec(t, `select agent.delete_event($1)`, ids[0])
		b.wantClaimed(t, "q", "after an ack", ids[4])
	})
	t.Run("order", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		b.limit(t, "q", `{"fair": true, "order": true, "on_failed": "block"}`)
		ids := b.insertGrouped(t, "q", "a", "a", "b", "", "", "b")
		b.wantClaimed(t, "q", "at first", ids[0], ids[2], ids[3], ids[4])
		b.exec(t, `select agent.nack_event($1, null)`, ids[0])
		b.wantClaimed(t, "q", "after a nack", ids[0])
		b.exec(t, `select agent.nack_event($1, null, _final => true)`, ids[2])
		b.exec(t, `select agent.nack_event($1, null, _final => true)`, ids[3])
		b.wantClaimed(t, "q", "while b is stopped")
		b.insertGrouped(t, "q", "")
		if got := b.claimGroups(t, 10, true); !slices.Equal(got, []string{"-"}) {
			t.Errorf("events without a group have no order: %v", got)
		}
		late := b.insertGrouped(t, "q", "")
		b.exec(t, `select agent_private.look_at_woken('q', 100)`) // which has it have its turn
		urgent := pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', _priority => -1)`)
		b.wantClaimedOne(t, urgent, late[0])
	})
	t.Run("rate", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		b.limit(t, "q", `{"fair": true, "rate": {"limit": 1, "period": "1 hour", "burst": 2}}`)
		ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "", "")
		b.wantClaimed(t, "q", "at first", ids[0], ids[3], ids[4], ids[1], ids[5])
		if why := pgtest.Query[string](t, b.sql, `select coalesce(blocked_by ->> 'reason', 'nothing') from agent.list_groups('q', _group => 'a')`); why != "rate" {
			t.Errorf("the group is blocked by %s", why)
		}
		b.exec(t, `update agent.event set vt = now() - interval '1 s' where id = any ($1)`, []int64{ids[0], ids[4]})
		b.wantClaimed(t, "q", "after lost leases", ids[4]) // the group has no rate
		b.release(t, ids[1])
		b.wantClaimed(t, "q", "after a release", ids[0])
	})
	t.Run("hold", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		b.limit(t, "q", `{"fair": true}`)
		ids := b.insertGrouped(t, "q", "a", "b", "a", "b")
		b.exec(t, `select agent.put_group('q', 'a', '{"paused": true}')`)
		b.wantClaimed(t, "q", "while a is paused", ids[1], ids[3])
		b.exec(t, `select agent.delete_group('q', 'a')`)
		b.wantClaimed(t, "q", "afterwards", ids[0], ids[2])
	})
	t.Run("types", func(t *testing.T) {
		t.Parallel()
		b := setup(t, nil)
		b.limit(t, "q", `{"fair": true}`)
		for _, group := range []string{"a", "b"} {
			b.exec(t, `select agent.insert_event('{}', 'q', _group => $1, _type => t) from unnest(array['x', 'x', 'y']) t`, group)
		}
		if got := pgtest.Query[[]string](t, b.sql, `select array_agg(e.group_key || e.type) from agent.claim_events('q', 10, _types => array['y']) e`); !slices.Equal(got, []string{"ay", "by"}) {
			t.Errorf("of a type, %v were claimed", got)
		}
		if got := b.claimGroups(t, 10, true); !slices.Equal(got, []string{"a", "b", "a", "b"}) {
			t.Errorf("of the rest, %v were claimed", got)
		}
	})
}

func TestAClaimInTurnsTakesNothingOfAGroupThatAWakeHolds(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	ids := b.insertGrouped(t, "q", "a", "b")
	b.exec(t, `select agent_private.look_at_woken('q', 100)`) // which has both have their turn
	b.exec(t, `insert into agent_private.group_wake (queue, key, hold_until) values ('q', 'a', now() + interval '1 hour')`)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context()) // another claim is about to write the hold to the group
	if err != nil {
		t.Fatal(err)
	}
	for _, lock := range []string{`select from agent.queue_group where key = 'a' for update`, `select from agent_private.group_wake for update`} {
		if _, err := tx.Exec(t.Context(), lock); err != nil {
			t.Fatal(err)
		}
	}
	b.wantClaimed(t, "q", "while somebody else has the hold locked", ids[1])
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What a claim admits for itself, and then does not take, would be turns that the group has all at once.
func TestAClaimThatComesUpShortLeavesAGroupOneTurn(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ flow, claim string }{
		"total":       {`{"fair": true, "total": 2}`, `agent.claim_events('q', 20)`},
		"rate":        {`{"fair": true, "rate": {"limit": 1, "period": "1 hour", "burst": 5}}`, `agent.claim_events('q', 20)`},
		"types":       {`{"fair": true}`, `agent.claim_events('q', 20, _types => array['x'])`},
		"exclude_ids": {`{"fair": true}`, `agent.claim_events('q', 20, _exclude_ids => array(select e.id from agent.event e where e.type = 'y'))`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			b.limit(t, "q", test.flow)
			b.exec(t, `select agent.insert_event('{}', 'q', _group => 'a', _type => case when n <= 2 then 'x' else 'y' end) from generate_series(1, 30) n`)
			if n := pgtest.Query[int](t, b.sql, `select count(*) from `+test.claim); n < 2 {
				t.Fatalf("%d events were claimed", n)
			}
			if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event where flow = 0`); n != 1 {
				t.Errorf("%d events of the group have their turn and were not claimed, want 1", n)
			}
		})
	}
}

// Sessions that claim at the same time serve groups alike, however long their lines. A session that is slow delays the next turn of its group, so the numbers are not the same.
func TestGroupsTakeTurnsWithSeveralClaimers(t *testing.T) {
	t.Parallel()
	const claimers, groups, each = 4, 10, 100
	b := setup(t, nil)
	b.limit(t, "q", `{"fair": true}`)
	for g := range groups {
		b.exec(t, `select agent.insert_event('{}', 'q', _group => $1) from generate_series(1, $2::int)`, fmt.Sprint("g", g), each*(1+g%2*4))
	}
	var claiming sync.WaitGroup
	var mu sync.Mutex
	counts := make(map[string]int)
	deadline := time.Now().Add(2 * time.Minute)
	for range claimers {
		db := pgtest.Connect(t, b.url)
		claiming.Go(func() {
			for time.Now().Before(deadline) {
				var group string
				err := db.QueryRow(t.Context(), `
					with claimed as materialized (select e.id, e.group_key from agent.claim_events('q') e)
					, acked as (select agent.delete_event(c.id) from claimed c)
					select c.group_key from claimed c, acked`).Scan(&group)
				if err != nil {
					continue // nothing is free just now
				}
				mu.Lock()
				counts[group]++
				over := counts[group] >= each*9/10
				mu.Unlock()
				if over {
					return
				}
			}
		})
	}
	claiming.Wait()
	least, most := each, 0
	for g := range groups {
		n := counts[fmt.Sprint("g", g)]
		least, most = min(least, n), max(most, n)
	}
	t.Logf("of each group, %d to %d events were claimed", least, most)
	if most < each*9/10 || most-least > most/2 {
		t.Errorf("of each group, %d to %d events were claimed", least, most)
	}
}
