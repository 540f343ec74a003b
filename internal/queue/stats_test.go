package queue_test

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// loadQueue inserts n events into a queue, with each of the states in turn.
func loadQueue(t *testing.T, b env, q string, n int, states ...queue.State) {
	t.Helper()
	b.exec(t, `
		insert into agent.event (event, queue, vt, attempts, claimed, group_key, flow)
		select '{}', $1
		, case when s.state in ('ready', 'waiting') then now() - interval '1 minute' else now() + interval '1 hour' end
		, case when s.state = 'leased' then 1 else 0 end
		, case when s.state = 'leased' then array[now()] else '{}' end
		, case when s.state = 'waiting' then 'g' end, case when s.state = 'waiting' then 3 end
		from generate_series(0, $2 - 1) i
		cross join lateral (select ($3::text[])[1 + i % cardinality($3)]) s (state)`, q, n, states)
}

// loadHistory inserts n events into history that ended this long ago, with each of the outcomes in turn.
func loadHistory(t *testing.T, b env, q string, ago time.Duration, n int, outcomes ...queue.Outcome) {
	t.Helper()
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select i, now(), 1, now(), array[now()], jsonb_build_object('x', repeat('x', 1700)), $1, now(), ($4::text[])[1 + i % cardinality($4)], now() - $2::interval
		from generate_series(0, $3 - 1) i`, q, ago, n, outcomes)
}

// queues returns the statistics of all queues.
func (b env) queues(t *testing.T, lately time.Duration) ([]queue.QueueStats, error) {
	t.Helper()
	page, err := b.Queues(t.Context(), queue.QueuesParams{Lately: lately, Limit: queue.MaxPage})
	if page.Next != "" {
		t.Fatalf("there are more than %d queues", queue.MaxPage)
	}
	return page.Queues, err
}

// statsOf returns the statistics of one queue.
func statsOf(t *testing.T, b env, q string) queue.QueueStats {
	t.Helper()
	queues, err := b.queues(t, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(queues, func(s queue.QueueStats) bool { return s.Queue == q })
	if i < 0 {
		t.Fatalf("there is no queue %s among %+v", q, queues)
	}
	s := queues[i]
	s.OldestReadyAge, s.DeadLettersOf = nil, nil
	return s
}

// checkEstimate fails the test unless the median of the estimates is within a fifth of the truth. A single estimate can be further off.
func checkEstimate(t *testing.T, what string, truth int64, estimates []int64) {
	t.Helper()
	slices.Sort(estimates)
	if e := estimates[len(estimates)/2]; e < truth*4/5 || e > truth*6/5 {
		t.Errorf("%s: the estimates are %v, want about %d", what, estimates, truth)
	}
}

func TestCountsAreExactWithinTheBounds(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	if queues, err := b.queues(t, time.Hour); err != nil || len(queues) != 0 {
		t.Errorf("without events: %+v, %v", queues, err)
	}
	loadQueue(t, b, "a", 1, queue.Ready)
	if got := statsOf(t, b, "a"); !reflect.DeepEqual(got, queue.QueueStats{Queue: "a", Ready: 1}) {
		t.Errorf("with one event: %+v", got)
	}
	loadQueue(t, b, "a", 10_000, queue.Ready, queue.Scheduled)
	loadQueue(t, b, "a", 1_999, queue.Ready)
	loadQueue(t, b, "a", 900, queue.AwaitingTurn)
	loadQueue(t, b, "b", 8_000, queue.Leased)
	loadQueue(t, b, "b", 1, queue.Scheduled)
	loadHistory(t, b, "b", 2*time.Hour, 100, queue.Done, queue.Expired)
	loadHistory(t, b, "b", time.Minute, 60, queue.Done, queue.Failed, queue.Expired)
	loadHistory(t, b, "b", time.Minute, 680, queue.Done)
	loadHistory(t, b, "b", time.Minute, 10, queue.Expired)
	loadHistory(t, b, "c", time.Minute, 9, queue.Expired)
	for _, want := range []queue.QueueStats{
		{Queue: "a", Ready: 7_000, Scheduled: 5_000, Waiting: 900},
		{Queue: "b", Scheduled: 1, Leased: 8_000, DoneLately: 700, FailedLately: 20, ExpiredLately: 30},
		{Queue: "c", ExpiredLately: 9},
	} {
		if got := statsOf(t, b, want.Queue); !reflect.DeepEqual(got, want) {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	}

	b.exec(t, `delete from agent.event where queue <> 'b' or vt < now() + interval '30 minutes'`)
	b.exec(t, `delete from agent.event where ctid not in (select e.ctid from agent.event e where e.queue = 'b' order by e.id limit 3)`)
	b.exec(t, `delete from agent.event_hist where queue = 'b'`)
	for range 2 {
		for _, want := range []queue.QueueStats{{Queue: "b", Leased: 3}, {Queue: "c", ExpiredLately: 9}} {
			if got := statsOf(t, b, want.Queue); !reflect.DeepEqual(got, want) {
				t.Errorf("after most events were deleted: got %+v, want %+v", got, want)
			}
		}
		b.exec(t, `vacuum agent.event, agent.event_hist`)
	}
}

func TestDeepQueueIsEstimatedAndOthersAreCounted(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	loadQueue(t, b, "small", 300, queue.Ready)
	loadQueue(t, b, "deep", 160_000, queue.Ready, queue.Scheduled, queue.Leased, queue.Ready)
	loadQueue(t, b, "deep", 40_000, queue.AwaitingTurn)
	loadQueue(t, b, "small", 2_000, queue.Leased)
	loadQueue(t, b, "lone", 1, queue.Scheduled)
	var ready, scheduled, waiting, leased []int64
	for range 5 {
		deep := statsOf(t, b, "deep")
		if !deep.Estimated {
			t.Errorf("the deep queue: %+v", deep)
		}
		ready, scheduled = append(ready, deep.Ready), append(scheduled, deep.Scheduled)
		waiting, leased = append(waiting, deep.Waiting), append(leased, deep.Leased)
		for _, want := range []queue.QueueStats{
			{Queue: "small", Ready: 300, Leased: 2_000}, {Queue: "lone", Scheduled: 1},
		} {
			if got := statsOf(t, b, want.Queue); !reflect.DeepEqual(got, want) {
				t.Errorf("another queue: got %+v, want %+v", got, want)
			}
		}
	}
	checkEstimate(t, "ready", 80_000, ready)
	checkEstimate(t, "scheduled", 40_000, scheduled)
	checkEstimate(t, "waiting", 40_000, waiting)
	checkEstimate(t, "leased", 40_000, leased)

	// Nearly all blocks of the table are empty now.
	b.exec(t, `delete from agent.event where queue = 'deep' and (vt < now() or attempts > 0 or flow = 3 or id % 75 <> 0)`)
	left := pgtest.Query[int64](t, b.sql, `select count(*) from agent.event where queue = 'deep'`)
	for range 2 {
		if got := statsOf(t, b, "deep"); !reflect.DeepEqual(got, queue.QueueStats{Queue: "deep", Scheduled: left}) || left == 0 {
			t.Errorf("after most events were deleted: got %+v, want %d", got, left)
		}
		b.exec(t, `vacuum agent.event`)
	}
}

// TestEventsThatWaitForTheirTurnAreCountedByTheirState has some that are due in a group that is full, and some that are not due.
func TestEventsThatWaitForTheirTurnAreCountedByTheirState(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"concurrency": 1}`)
	ids := b.insertGrouped(t, "q", "a", "a", "a", "b", "b", "")
	delayed := pgtest.Query[[]int64](t, b.sql, `select array_agg(agent.insert_event('{}', 'q', _group => 'a', _delay => '1 hour')) from generate_series(1, 2)`)
	b.wantClaimed(t, "q", "at first", ids[0], ids[3], ids[5])
	check := func(when string, want queue.QueueStats) {
		t.Helper()
		want.Queue = "q"
		if got := statsOf(t, b, "q"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: counted %+v, want %+v", when, got, want)
		}
		at := b.thisMinute(t)
		over, err := b.Overview(t.Context(), queue.OverviewParams{Order: queue.OrderName, Limit: 1, From: at, To: at.Add(time.Minute), Bucket: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, got := range append(over.Queues, over.All) {
			if got.Ready != want.Ready || got.Scheduled != want.Scheduled || got.Waiting != want.Waiting || got.Leased != want.Leased {
				t.Errorf("%s: the overview has %+v, want %+v", when, got, want)
			}
		}
		for state, n := range map[queue.State]int64{queue.Ready: want.Ready, queue.Scheduled: want.Scheduled, queue.AwaitingTurn: want.Waiting, queue.Leased: want.Leased} {
			page, err := b.List(t.Context(), queue.ListParams{Queue: "q", State: state, Limit: 100})
			if err != nil {
				t.Fatal(err)
			}
			if int64(len(page.Events)) != n {
				t.Errorf("%s: listed %d as %s, want %d", when, len(page.Events), state, n)
			}
		}
	}
	inGroups := func(when string, waiting, scheduled int64) {
		t.Helper()
		var sum queue.Group
		groups, err := b.Groups(t.Context(), queue.GroupsParams{Queue: "q", Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups.Groups {
			sum.Waiting, sum.Scheduled = sum.Waiting+g.Waiting, sum.Scheduled+g.Scheduled
		}
		if sum.Waiting != waiting || sum.Scheduled != scheduled {
			t.Errorf("%s: %d wait in the groups, and %d are scheduled, want %d and %d", when, sum.Waiting, sum.Scheduled, waiting, scheduled)
		}
	}
	check("with two full groups", queue.QueueStats{Scheduled: 2, Waiting: 3, Leased: 3})
	b.exec(t, `update agent.event set turn_vt = now() where id = $1`, delayed[0])
	b.exec(t, `update agent_private.group_wake set at = now() where event_id = $1`, delayed[0])
	check("when a delay is over", queue.QueueStats{Scheduled: 1, Waiting: 4, Leased: 3})
	inGroups("when a delay is over", 4, 1)
	b.exec(t, `select agent.nack_event($1, null, '1 hour')`, ids[3])
	check("after a nack, whose slot another event gets", queue.QueueStats{Ready: 1, Scheduled: 2, Waiting: 3, Leased: 2})
	b.exec(t, `select agent.put_queue('q', '{}')`)
	b.wantClaimed(t, "q", "without limits", ids[1], ids[2], ids[4], delayed[0])
	check("without limits", queue.QueueStats{Scheduled: 2, Leased: 6})
}

func TestLargeRecentHistoryIsEstimated(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	loadHistory(t, b, "busy", 2*time.Hour, 8_000, queue.Done) // four to a block
	loadHistory(t, b, "busy", 10*time.Minute, 16_000, queue.Done, queue.Done, queue.Expired, queue.Failed)
	estimated := func() (done, expired []int64) {
		for range 5 {
			busy := statsOf(t, b, "busy")
			if !busy.Estimated {
				t.Errorf("counted %+v", busy)
			}
			done, expired = append(done, busy.DoneLately), append(expired, busy.ExpiredLately)
		}
		return done, expired
	}
	done, expired := estimated()
	checkEstimate(t, "done", 8_000, done)
	checkEstimate(t, "expired", 4_000, expired)

	b.exec(t, `delete from agent.event_hist where id % 2 = 0`) // half of the rows of each block
	for range 2 {
		done, expired = estimated()
		checkEstimate(t, "done, after half was deleted", 4_000, done)
		checkEstimate(t, "expired, after half was deleted", 0, expired)
		b.exec(t, `vacuum agent.event_hist`)
	}
	b.exec(t, `delete from agent.event_hist where id < 15900`)
	if got := statsOf(t, b, "busy"); got.DoneLately > 2_000 {
		t.Errorf("after nearly all events were deleted: %+v", got)
	}
}

func TestBlockOfHistoryHoldsAtMost70Rows(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select i, now(), 0, now(), '{}', '{}', 'q', now(), 'done', now() from generate_series(1, 1000) i`)
	if n := pgtest.Query[int](t, b.sql, `select max(((h.ctid::text)::point)[1])::int from agent.event_hist h`); n > 70 {
		t.Errorf("a block of history holds %d rows, want at most 70", n)
	}
}
