package queue_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// addFailures adds events of history with errors, n of which format has the number of, a second apart.
func (b env) addFailures(t *testing.T, q, outcome, format string, n int) {
	t.Helper()
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at, last_error, worker, type)
		select nextval(pg_get_serial_sequence('agent.event', 'id')), ts, 1, ts, array[ts - interval '1 s'], '{}', $1, ts, $2, ts, replace($3, '#', i::text), 'w' || i % 10, 't'
		from (select i, now() - i * interval '1 s' from generate_series(1, $4) i) as n (i, ts)`, q, outcome, format, n)
}

func causesOf(t *testing.T, b env, p queue.CausesParams) queue.Causes {
	t.Helper()
	if p.Limit == 0 {
		p.Limit = 100
	}
	found, err := b.Causes(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestFailuresAreGroupedByCause(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.addFailures(t, "a", "failed", "order # is gone", 30)
	b.addFailures(t, "b", "expired", "order # is gone", 20)
	b.addFailures(t, "b", "failed", `<script>alert("#")</script>\u0000`, 10)
	b.addFailures(t, "b", "done", "was tried # times", 10)
	b.exec(t, `update agent.event_hist set last_error = null where queue = 'a' and outcome = 'failed' and last_error = 'order 1 is gone'`)

	found := causesOf(t, b, queue.CausesParams{})
	if found.LookedAt != 59 || found.Total != 2 || !found.Complete || len(found.Causes) != 2 {
		t.Fatalf("got %+v", found)
	}
	first := found.Causes[0]
	if first.Text != "order <number> is gone" || first.Count != 49 || !slices.Equal(first.Queues, []string{"a", "b"}) || !slices.Equal(first.Types, []string{"t"}) ||
		first.LastAt.Sub(first.FirstAt) < 28*time.Second || first.ExampleTruncated {
		t.Errorf("the first cause is %+v", first)
	}
	if e := b.get(t, first.ExampleID); e.LastError == nil || *e.LastError != first.ExampleError {
		t.Errorf("the example has the error %q, the event %v", first.ExampleError, e.LastError)
	}
	if second := found.Causes[1]; second.Text != `<script>alert(<string>)</script>\u<number>` || second.Count != 10 {
		t.Errorf("the second cause is %+v", second)
	}

	middle := pgtest.Query[time.Time](t, b.sql, `select event_ts from agent.event_hist where last_error = 'order 15 is gone' and queue = 'a'`)
	for name, c := range map[string]struct {
		p    queue.CausesParams
		want int64
	}{
		"queue": {queue.CausesParams{Queue: "a"}, 29}, "type": {queue.CausesParams{Type: "t"}, 59}, "another type": {queue.CausesParams{Type: "x"}, 0},
		"queues": {queue.CausesParams{Queues: []string{"b*"}}, 30}, "no queues": {queue.CausesParams{Queues: []string{}}, 0},
		"to": {queue.CausesParams{Queue: "a", To: &middle}, 15}, "from": {queue.CausesParams{Queue: "a", From: &middle}, 14},
	} {
		got := causesOf(t, b, c.p)
		if got.LookedAt != c.want {
			t.Errorf("%s: %d failures, want %d", name, got.LookedAt, c.want)
		}
	}
	if got := causesOf(t, b, queue.CausesParams{Limit: 1}); len(got.Causes) != 1 || got.Total != 2 {
		t.Errorf("with a limit of 1: %+v", got)
	}
}

func TestCausesAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.addFailures(t, "long", "failed", strings.Repeat("x", 100_000)+"#", 50)
	long := causesOf(t, b, queue.CausesParams{})
	if c := long.Causes[0]; c.Count != 50 || len(c.Text) > 310 || len(c.ExampleError) != 8192 || !c.ExampleTruncated {
		t.Errorf("got %d failures of a cause of %d bytes, an example of %d", c.Count, len(c.Text), len(c.ExampleError))
	}

	b.exec(t, `truncate agent.event_hist`)
	b.addFailures(t, "many", "failed", "x#", queue.MaxFailures+1)
	b.exec(t, `update agent.event_hist set last_error = translate(last_error, '0123456789', 'abcdefghij')`) // each its own
	many := causesOf(t, b, queue.CausesParams{})
	if many.Complete || many.LookedAt != queue.MaxFailures || many.Total != queue.MaxFailures || len(many.Causes) != 100 {
		t.Errorf("%d causes of %d failures, complete: %t", many.Total, many.LookedAt, many.Complete)
	}
	if got := causesOf(t, b, queue.CausesParams{Queues: []string{"other"}}); !got.Complete || got.LookedAt != 0 {
		t.Errorf("of another queue: %d failures, complete: %t", got.LookedAt, got.Complete)
	}
	b.addFailures(t, "many", "failed", "x#", queue.MaxLooked-queue.MaxFailures)
	if got := causesOf(t, b, queue.CausesParams{Type: "x"}); got.Complete || got.LookedAt != 0 {
		t.Errorf("beyond the events that are read: %d failures, complete: %t", got.LookedAt, got.Complete)
	}
}

func workersOf(t *testing.T, b env, p queue.WorkersParams) queue.Workers {
	t.Helper()
	if p.Limit == 0 {
		p.Limit = 1000
	}
	if p.Lately == 0 {
		p.Lately = time.Hour
	}
	found, err := b.Workers(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestWorkersAreThoseWithLeasesAndThoseSeenLately(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "a", 3)
	b.insertN(t, "b", 2)
	b.insertLater(t, queue.InsertParams{Queue: "a"})
	b.claim(t, queue.ClaimParams{Queue: "a", Limit: 2, Worker: "ada"}, 2)
	b.claim(t, queue.ClaimParams{Queue: "b", Limit: 1, Worker: "ada"}, 1)
	b.claim(t, queue.ClaimParams{Queue: "b", Limit: 1}, 1)
	b.addFailures(t, "c", "failed", "#", 20)
	b.addFailures(t, "c", "done", "#", 10)

	found := workersOf(t, b, queue.WorkersParams{})
	if found.Total != 12 || !found.Complete || found.CountedSince.IsZero() {
		t.Fatalf("got %+v", found)
	}
	ada := found.Workers[0]
	if ada.Name != "ada" || ada.Leases != 3 || !slices.Equal(ada.Queues, []string{"a", "b"}) || ada.OldestClaimedAt == nil || !ada.OldestEndsAt.After(*ada.OldestClaimedAt) || ada.Average != nil {
		t.Errorf("the first is %+v", ada)
	}
	if unnamed := found.Workers[1]; unnamed.Name != "" || unnamed.Leases != 1 {
		t.Errorf("the second is %+v", unnamed)
	}
	if w := found.Workers[2]; w.Leases != 0 || w.Ended != 3 || w.Failed != 2 || w.Average == nil || *w.Average != time.Second || *w.Longest != time.Second || w.OldestEndsAt != nil {
		t.Errorf("the third is %+v", w)
	}
	if got := workersOf(t, b, queue.WorkersParams{Queues: []string{"b"}}); got.Total != 2 || got.Workers[0].Leases != 1 {
		t.Errorf("of one queue: %+v", got)
	}
	if got := workersOf(t, b, queue.WorkersParams{Limit: 1, Queues: []string{}}); got.Total != 0 || len(got.Workers) != 0 {
		t.Errorf("of no queue: %+v", got)
	}
	if got := workersOf(t, b, queue.WorkersParams{Limit: 1}); got.Total != 12 || len(got.Workers) != 1 {
		t.Errorf("one: %+v", got)
	}
}

func TestWorkersOfRetriedEventsHaveTheirAttempts(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.insert(t, "", `{}`)[0]
	first := b.claim(t, queue.ClaimParams{Worker: "first"}, 1)[0]
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(first), Error: "no"}); err != nil {
		t.Fatal(err)
	}
	second := b.claim(t, queue.ClaimParams{Worker: "second"}, 1)[0]
	if got := workersOf(t, b, queue.WorkersParams{}); got.Total != 1 {
		t.Errorf("while event %d is leased: %+v", id, got)
	}
	b.ack(t, lease(second))
	found := workersOf(t, b, queue.WorkersParams{})
	slices.SortFunc(found.Workers, func(a, b queue.Worker) int { return strings.Compare(a.Name, b.Name) })
	if len(found.Workers) != 2 || found.Workers[0].Ended != 1 || found.Workers[0].Failed != 1 || found.Workers[1].Ended != 1 || found.Workers[1].Failed != 0 {
		t.Errorf("got %+v", found)
	}
}

func TestAWorkerThatExtendsItsLeaseIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "a", 2)
	leases := b.claim(t, queue.ClaimParams{Queue: "a", Limit: 2, Worker: "ada"}, 2)
	for i, extend := range []string{`select agent.extend_event($1, $2)`, `select agent_service.extend_leases(array[$1::int8], array[$2], array[null::interval])`} {
		b.exec(t, `update agent.event set claimed = array[now() - interval '4 minutes'], extended_at = extended_at - interval '4 minutes'`)
		before := workersOf(t, b, queue.WorkersParams{}).Workers[0]
		b.exec(t, extend, leases[i].ID, leases[i].Receipt)
		if after := workersOf(t, b, queue.WorkersParams{}).Workers[0]; after.LastSeenAt.Before(now(t, b.sql).Add(-60e9)) || after.OldestClaimedAt.After(after.LastSeenAt.Add(-200e9)) {
			t.Errorf("%s: the worker was seen at %v, and claimed at %v; before at %v", extend, after.LastSeenAt, after.OldestClaimedAt, before.LastSeenAt)
		}
	}
}

func TestTenThousandWorkersAndQueuesAreCounted(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		insert into agent.event (event, queue, vt, attempts, claimed, worker)
		select '{}', 'q' || i, now() + interval '10 min', 1, array[now()], 'w' || i from generate_series(1, 10000) i`)
	if got := workersOf(t, b, queue.WorkersParams{}); got.Total != 10_000 || len(got.Workers) != 1000 || !got.Complete {
		t.Errorf("%d workers, %d listed, complete: %t", got.Total, len(got.Workers), got.Complete)
	}
}

func holdersOf(t *testing.T, b env, queues []string, withQueries bool) []queue.Holder {
	t.Helper()
	found, err := b.Holders(t.Context(), queues, withQueries)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestGroupsThatHaveStoppedHoldOthersBack(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.put_queue(q, '{"flow":{"order":true,"on_failed":"block"}}') from unnest(array['accounts', 'other']) as q`)
	stopped := func(queues []string) (found []queue.Holder) {
		t.Helper()
		for _, h := range holdersOf(t, b, queues, false) {
			if h.Kind == "stopped_group" {
				found = append(found, h)
			}
		}
		return found
	}
	b.exec(t, `select agent.insert_event(_event => '{}', _queue => q, _group => g) from unnest(array['accounts', 'accounts', 'other']) with ordinality as q (q, n) cross join unnest(array['ada', 'bob']) as g`)
	if got := stopped(nil); len(got) != 0 {
		t.Errorf("groups that go on are listed: %+v", got)
	}
	failed := b.claim(t, queue.ClaimParams{Queue: "accounts", Limit: 2}, 2)
	for _, e := range failed {
		b.exec(t, fmt.Sprintf(`select agent.nack_event(%d, '%s', _error => 'no such account', _final => true)`, e.ID, e.Receipt))
	}
	got := stopped(nil)
	if len(got) != 2 || got[0].Queue != "accounts" || got[0].Name != "ada" || got[1].Name != "bob" || got[0].EventID != failed[0].ID || got[0].OfKind != 2 || got[0].Since == nil ||
		!strings.Contains(got[0].What, "no such account") || !strings.Contains(got[0].Advice, "unblock") {
		t.Errorf("got %+v", got)
	}
	if got := stopped([]string{"other"}); len(got) != 0 {
		t.Errorf("a restricted caller sees %+v", got)
	}
	b.exec(t, `select agent.unblock_group('accounts', 'ada')`)
	b.exec(t, fmt.Sprintf(`select agent.requeue_event(%d)`, failed[1].ID))
	if got := stopped(nil); len(got) != 0 {
		t.Errorf("groups that go on again are listed: %+v", got)
	}
}

func TestHoldersSayWhatHoldsOthersBack(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ofKind := func(all []queue.Holder, kind string) (of []queue.Holder) {
		for _, h := range all {
			if h.Kind == kind {
				of = append(of, h)
			}
		}
		return of
	}
	b.insertN(t, "stuck", 2)
	b.insertN(t, "used", 3)
	b.claim(t, queue.ClaimParams{Queue: "stuck", Limit: 2, Worker: "w"}, 2)
	if got := ofKind(holdersOf(t, b, nil, false), "lease"); len(got) != 0 {
		t.Errorf("new leases are listed: %+v", got)
	}
	b.exec(t, `update agent.event set claimed = array[now() - interval '101 minutes'] where id = (select min(id) from agent.event where queue = 'stuck')`)
	b.exec(t, `update agent.event set attempts = 3, vt = now() - interval '11 minutes' where queue = 'used'`)
	tx, err := pgtest.Connect(t, b.url).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{ // as a publisher holds the head
		`lock table agent.log in row exclusive mode`,
		fmt.Sprintf(`select pg_advisory_xact_lock_shared(agent_private.head_lock() << 53 | 1), '%s'`, strings.Repeat("s", 300)),
	} {
		if _, err := tx.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}

	all := holdersOf(t, b, nil, true)
	if got := ofKind(all, "lease"); len(got) != 1 || got[0].Queue != "stuck" || got[0].Worker != "w" || got[0].EventID == 0 || got[0].Since == nil || got[0].Advice == "" {
		t.Errorf("leases: %+v", got)
	}
	if got := ofKind(all, "exhausted"); len(got) != 1 || got[0].Queue != "used" || got[0].Events != 3 {
		t.Errorf("exhausted: %+v", got)
	}
	if got := ofKind(all, "log_head"); len(got) != 1 || got[0].PID == 0 || len(got[0].Query) != 200 {
		t.Errorf("the head: %+v", got)
	}
	if got := ofKind(holdersOf(t, b, nil, false), "log_head"); len(got) != 1 || got[0].Query != "" {
		t.Errorf("the head without queries: %+v", got)
	}
	restricted := holdersOf(t, b, []string{"used"}, true)
	for _, h := range restricted {
		if h.Kind != "exhausted" && (h.Kind != "log_head" || h.PID != 0 || h.Query != "" || h.Application != "") {
			t.Errorf("a restricted caller sees %+v", h)
		}
	}
	if len(restricted) != 2 {
		t.Errorf("a restricted caller sees %d", len(restricted))
	}
}
