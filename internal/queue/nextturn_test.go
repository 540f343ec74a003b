package queue_test

import (
	"slices"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// wantReady fails the test unless these events of the queue q are ready, and no others, wherever that is said; and unless a claim gets them, where claims.
func (b env) wantReady(t *testing.T, when string, claims bool, want ...int64) {
	t.Helper()
	const q = "q"
	got := []int64{}
	for _, id := range pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(id order by id), '{}') from agent.event where queue = $1`, q) {
		if b.get(t, id).State == queue.Ready {
			got = append(got, id)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s: %v say that they are ready, want %v", when, got, want)
	}
	states := map[queue.State]int64{}
	for _, p := range []queue.ListParams{{Queue: q}, {Queues: []string{q}}, {}} {
		clear(states)
		for _, state := range []queue.State{queue.Ready, queue.Scheduled, queue.AwaitingTurn, queue.Leased, ""} {
			p.State = state
			all := []int64{}
			for p.Cursor = ""; ; {
				p.Limit = 2
				page, err := b.List(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				for i := range page.Events {
					e := &page.Events[i]
					if e.Queue != q {
						continue
					}
					if state == queue.Ready || state == "" && e.State == queue.Ready {
						all = append(all, e.ID)
					}
					if state == "" {
						states[e.State]++
					} else if e.State != state {
						t.Errorf("%s: a listing of what is %s has event %d, which is %s", when, state, e.ID, e.State)
					}
				}
				if p.Cursor = page.Next; p.Cursor == "" {
					break
				}
			}
			if slices.Sort(all); (state == queue.Ready || state == "") && !slices.Equal(all, want) {
				t.Errorf("%s: a listing of %q, with %v, says that %v are ready, want %v", when, state, p.Queues, all, want)
			}
		}
	}
	_, stats, err := b.Queue(t.Context(), q, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	if stats.Ready != int64(len(want)) || stats.Waiting != states[queue.AwaitingTurn] || stats.Scheduled != states[queue.Scheduled] || stats.Leased != states[queue.Leased] || stats.Estimated {
		t.Errorf("%s: the counts are %+v, want %d ready and %v", when, stats, len(want), states)
	}
	if age := stats.OldestReadyAge; (age != nil) != (len(want) > 0) || age != nil && *age < 0 {
		t.Errorf("%s: the oldest of %d ready events is so for %v", when, len(want), age)
	}
	var ready, waiting, scheduled int64
	if err := b.sql.QueryRow(t.Context(), `select ready, waiting, scheduled from agent_private.queue_depths(clock_timestamp()) where queue = $1`, q).Scan(&ready, &waiting, &scheduled); err != nil {
		t.Fatal(err)
	}
	if ready != stats.Ready || waiting != stats.Waiting || scheduled != stats.Scheduled {
		t.Errorf("%s: a sample has %d ready, %d waiting, %d scheduled, the counts are %+v", when, ready, waiting, scheduled, stats)
	}
	var admitted, inLine int64
	if err := b.sql.QueryRow(t.Context(), `select coalesce(sum(admitted), 0), coalesce(sum(waiting), 0) from agent.list_groups($1)`, q).Scan(&admitted, &inLine); err != nil {
		t.Fatal(err)
	}
	if isGrouped := pgtest.Query[bool](t, b.sql, `select not exists (select from agent.event where queue = $1 and group_key = '')`, q); isGrouped && inLine != stats.Waiting || admitted > stats.Ready {
		t.Errorf("%s: the groups have %d admitted and %d waiting, the counts are %+v", when, admitted, inLine, stats)
	}
	if claims {
		got = b.claimSQL(t, q)
		if missing := len(want) - len(got); missing > 0 { // another rate counts from the first look on, which that claim has made
			got = append(got, pgtest.Query[[]int64](t, b.sql, `select coalesce(array_agg(e.id), '{}') from agent.claim_events($1, $2) e`, q, missing)...)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: a claim gets %v, and %v were ready", when, got, want)
		}
	}
}

// comeDue lets the time come at which all that waits for one is due.
func (b env) comeDue(t *testing.T) {
	t.Helper()
	b.exec(t, `update agent.event set turn_vt = now() - interval '5 minutes' where flow = 4`)
	b.exec(t, `update agent_private.group_wake set at = now() - interval '5 minutes'`)
	b.exec(t, `update agent.queue_group set held_until = now() - interval '5 minutes' where held_until is not null`)
}

// What the next claim gets is ready, whether or not anybody has looked at its group since its turn came.
func TestWhatAClaimWouldGetIsReady(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, b env) []int64{
		"a retry that is due": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 1}`)
			ids := b.insertGrouped(t, "q", "a")
			b.claimSQL(t, "q")
			b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[0])
			b.wantReady(t, "before it is due", false)
			b.comeDue(t)
			return ids
		},
		"a delay that is over": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 2}`)
			var ids []int64
			for range 3 {
				ids = append(ids, pgtest.Query[int64](t, b.sql, `select agent.insert_event('{}', 'q', '1 hour', _group => 'a')`))
			}
			b.claimSQL(t, "q")
			b.wantReady(t, "before they are due", false)
			b.comeDue(t)
			return ids[:2]
		},
		"inserted by SQL": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 2}`)
			ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "")
			return []int64{ids[0], ids[1], ids[3], ids[4]}
		},
		"beside a lease": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 2}`)
			b.insertGrouped(t, "q", "a")
			b.claimSQL(t, "q")
			return b.insertGrouped(t, "q", "a", "a")[:1]
		},
		"resumed": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.exec(t, `select agent.put_group('q', 'a', '{"paused": true}')`)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.wantReady(t, "while the group is paused", true)
			b.exec(t, `select agent.delete_group('q', 'a')`)
			return ids
		},
		"no more held": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.exec(t, `select agent.put_group('q', 'a', '{"hold": "1 hour", "concurrency": 1}')`)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.wantReady(t, "while the group is held", true)
			b.comeDue(t)
			return ids[:1]
		},
		"a higher limit of the queue": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 1}`)
			ids := b.insertGrouped(t, "q", "a", "a", "a", "a", "b")
			b.wantClaimed(t, "q", "limited to one", ids[0], ids[4])
			b.wantReady(t, "limited to one", true)
			b.limit(t, "q", `{"concurrency": 3}`)
			return ids[1:3]
		},
		"no limit any more": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 1}`)
			ids := b.insertGrouped(t, "q", "a", "a", "a")
			b.wantClaimed(t, "q", "limited to one", ids[0])
			b.limit(t, "q", `null`)
			return ids[1:]
		},
		"a higher limit of the group": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 1}`)
			ids := b.insertGrouped(t, "q", "a", "a", "a")
			b.wantClaimed(t, "q", "limited to one", ids[0])
			b.exec(t, `select agent.put_group('q', 'a', '{"concurrency": 2}')`)
			return ids[1:2]
		},
		"a higher rate of the queue": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"rate": {"limit": 1, "period": "1 hour", "burst": 1}}`)
			ids := b.insertGrouped(t, "q", "a", "a", "a", "a")
			b.wantClaimed(t, "q", "at one an hour", ids[0])
			b.wantReady(t, "at one an hour", true)
			b.limit(t, "q", `{"rate": {"limit": 10000, "period": "1 s", "burst": 2}}`)
			return ids[1:3]
		},
		"a higher rate of the group": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.exec(t, `select agent.put_group('q', 'a', '{"rate": {"limit": 1, "period": "1 hour"}}')`)
			ids := b.insertGrouped(t, "q", "a", "a", "a")
			b.wantClaimed(t, "q", "at one an hour", ids[0])
			b.exec(t, `select agent.put_group('q', 'a', '{"rate": {"limit": 10000, "period": "1 s", "burst": 2}}')`)
			return ids[1:]
		},
		"resumed, with a rate": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"rate": {"limit": 1, "period": "1 hour", "burst": 2}}`)
			b.exec(t, `select agent.put_group('q', 'a', '{"paused": true}')`)
			ids := b.insertGrouped(t, "q", "a", "a", "a", "a")
			b.exec(t, `select agent.delete_group('q', 'a')`)
			return ids[:2]
		},
		"a rate that is used up": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"rate": {"limit": 1, "period": "1 hour"}}`)
			b.insertGrouped(t, "q", "a")
			b.claimSQL(t, "q")
			b.insertGrouped(t, "q", "a")
			return []int64{}
		},
		"in order": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"order": true}`)
			return b.insertGrouped(t, "q", "a", "a")[:1]
		},
		"in order, with a rate": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"order": true, "rate": {"limit": 1, "period": "1 hour"}}`)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.wantClaimed(t, "q", "at first", ids[0])
			b.exec(t, `select agent.delete_event($1)`, ids[0])
			b.wantReady(t, "at one an hour", true)
			b.limit(t, "q", `{"order": true, "rate": {"limit": 10000, "period": "1 s"}}`)
			return ids[1:]
		},
		"unblocked": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"order": true, "on_failed": "block"}`)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.claimSQL(t, "q")
			b.exec(t, `select agent.nack_event($1, null, '0', _final => true)`, ids[0])
			b.wantReady(t, "while the group has stopped", true)
			b.exec(t, `select agent.unblock_group('q', 'a')`)
			return ids[1:]
		},
		"requeued": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"order": true, "on_failed": "block"}`)
			ids := b.insertGrouped(t, "q", "a", "a")
			b.claimSQL(t, "q")
			b.exec(t, `select agent.nack_event($1, null, '0', _final => true)`, ids[0])
			return []int64{pgtest.Query[int64](t, b.sql, `select id from agent.requeue_event($1)`, ids[0])}
		},
		"moved in": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"concurrency": 1}`)
			ids := b.insertGrouped(t, "p", "a", "a")
			b.exec(t, `select agent.move_events('p', 'q')`)
			return ids[:1]
		},
		"in turns": func(t *testing.T, b env) []int64 {
			t.Helper()
			b.limit(t, "q", `{"fair": true}`)
			ids := b.insertGrouped(t, "q", "a", "a", "b", "", "")
			return []int64{ids[0], ids[2], ids[3]}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			want := test(t, b)
			b.wantReady(t, name, name != "in turns", want...) // a claim of many gets more turns
		})
	}
}

// The count of what has its turn with the next claim reads what the groups with due wakes have to hand out, and not their lines, nor what is not due yet.
func TestCountingNextTurnsReadsNoLines(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 2}`)
	b.exec(t, `
		select agent.insert_events(array_agg('{}'::jsonb), array_agg('q'::text), _options => array_agg(jsonb_build_object('group', 'g' || n % 20, 'priority', n % 3)))
		from generate_series(1, 10000) n`)
	b.exec(t, `select agent.claim_events('q', 1000)`)
	b.exec(t, `update agent.event set flow = 4, turn_vt = now() + interval '1 hour' where flow = 3 and id / 20 % 2 = 0`)
	b.exec(t, `
		delete from agent_private.group_wake;
		insert into agent_private.group_wake (queue, key, at, event_id) select queue, group_key, turn_vt, id from agent.event where flow = 4;
		insert into agent_private.group_wake (queue, key) select 'q', 'g' || n from generate_series(0, 9) n, generate_series(1, 100);
		delete from agent.event where flow = 1 and group_key in ('g0', 'g1', 'g2', 'g3', 'g4')`) // five of ten groups with due wakes have free slots
	tx, err := b.sql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context()) //nolint:errcheck // nothing was changed
	read := func() (n int) {
		if err := tx.QueryRow(t.Context(), `
			select idx_scan + seq_tup_read + coalesce(idx_tup_fetch, 0) from pg_catalog.pg_stat_xact_user_tables where relid = 'agent.event'::regclass`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read()
	counted := pgtest.Query[[]string](t, b.sql, `select array_agg(format('%s %s %s %s', queue, waiting, scheduled, is_whole)) from agent_private.count_next_turns(null, clock_timestamp())`)
	if n := read() - before; n > 200 || !slices.Equal(counted, []string{"q 10 0 t"}) {
		t.Errorf("%d looks and entries for 10 groups with 1,000 wakes, and counted %v", n, counted)
	}
}
