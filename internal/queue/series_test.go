package queue_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// passMinutes lets n minutes pass for the statistics: everything that they know of is that much longer ago.
func (b env) passMinutes(t *testing.T, n int) {
	t.Helper()
	for _, column := range []string{
		"queue_sampling.at", "queue_sampling.sampled_at", "queue_sampling.counted_at", "queue_sample.at", "queue_sample.oldest_ready_at", "queue_latest.at",
		"queue_latest.oldest_ready_at", "queue_outcome.at", "event.vt", "event_hist.finished_at",
	} {
		table, name, _ := strings.Cut(column, ".")
		// By way of another century, as a primary key is checked row by row.
		b.exec(t, fmt.Sprintf(`update agent.%s set %s = %[2]s - interval '100 years'`, table, name))
		b.exec(t, fmt.Sprintf(`update agent.%s set %s = %[2]s + interval '100 years' - make_interval(mins => $1)`, table, name), n)
	}
	b.exec(t, `select agent_private.sum_outcome_hours(now() - interval '8 days', agent_private.latest_outcome_hour())`)
}

// sampleMinute samples the queues, and lets the minute pass.
func (b env) sampleMinute(t *testing.T) {
	t.Helper()
	queue.SampleQueues(t, b.Service)
	b.passMinutes(t, 1)
}

// thisMinute returns the start of the minute.
func (b env) thisMinute(t *testing.T) time.Time {
	t.Helper()
	return now(t, b.sql).UTC().Truncate(time.Minute)
}

// series returns the statistics of the queue a by minute, of the last n minutes and the one that has begun.
func (b env) series(t *testing.T, n int) queue.Series {
	t.Helper()
	at := b.thisMinute(t)
	found, err := b.Series(t.Context(), queue.SeriesParams{Queue: "a", From: at.Add(-time.Duration(n) * time.Minute), To: at.Add(time.Minute), Bucket: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// describeBuckets returns the counts of buckets: samples, ready, scheduled, waiting, leased, the four outcomes, and whether it is incomplete.
func describeBuckets(buckets ...queue.SeriesBucket) string {
	text := make([]string, len(buckets))
	for i, b := range buckets {
		waiting := "-"
		if b.Ready != nil {
			waiting = fmt.Sprintf("%d/%d/%d/%d", *b.Ready, *b.Scheduled, *b.Waiting, *b.Leased)
		}
		text[i] = fmt.Sprintf("%d %s %d/%d/%d/%d", b.Samples, waiting, b.Done, b.Failed, b.Expired, b.Cancelled)
		if !b.IsComplete {
			text[i] += "?"
		}
	}
	return strings.Join(text, ", ")
}

func TestSeriesShowWhatWaitedAndWhatEnded(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	loadQueue(t, b, "a", 8, queue.Ready, queue.Scheduled, queue.AwaitingTurn, queue.Leased)
	b.sampleMinute(t)
	b.insertN(t, "a", 3)
	loadHistory(t, b, "a", 0, 10, queue.Done, queue.Failed)
	loadHistory(t, b, "other", 0, 5, queue.Done)
	b.sampleMinute(t)
	b.sampleMinute(t) // nothing has changed
	loadHistory(t, b, "a", 0, 2, queue.Expired, queue.Cancelled)
	found := b.series(t, 4)
	if got, want := describeBuckets(found.Buckets...), "0 - 0/0/0/0?, 1 2/2/2/2 0/0/0/0, 1 5/2/2/2 5/5/0/0, 1 5/2/2/2 0/0/0/0, 0 - 0/0/1/1"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if got, want := describeBuckets(found.Total), "3 - 5/5/1/1?"; got != want {
		t.Errorf("got in all %s, want %s", got, want)
	}
	if events := found.Buckets[2].Events; events != 15 {
		t.Errorf("%d events were counted, want 15, of all queues", events)
	}
	if found.Since == nil || !found.Since.Equal(b.thisMinute(t).Add(-3*time.Minute)) {
		t.Errorf("there are samples since %v", found.Since)
	}
	if rows := pgtest.Query[int](t, b.sql, `select count(*) from agent.queue_sample where queue = 'a'`); rows != 2 {
		t.Errorf("the queue has %d rows for two changes", rows)
	}
	wide, err := b.Series(t.Context(), queue.SeriesParams{Queue: "a", From: found.Buckets[0].Start.Truncate(time.Hour), To: found.Buckets[4].Start.Truncate(time.Hour).Add(time.Hour), Bucket: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if len(wide.Buckets) > 2 || wide.Total.Done != 5 || wide.Total.Expired != 1 {
		t.Errorf("by hours: %+v", wide)
	}
}

func TestSeriesSayWhichMinutesWereNotSampled(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	if found := b.series(t, 1); found.Since != nil || describeBuckets(found.Buckets...) != "0 - 0/0/0/0?, 0 - 0/0/0/0?" {
		t.Errorf("before the first sample: %+v", found)
	}
	loadQueue(t, b, "a", 4, queue.Ready)
	b.sampleMinute(t)
	loadHistory(t, b, "a", 0, 7, queue.Done) // while nobody samples
	b.passMinutes(t, 2)
	queue.SampleQueues(t, b.Service)
	if got, want := describeBuckets(b.series(t, 3).Buckets...), "1 4/0/0/0 0/0/0/0, 0 - 7/0/0/0, 0 - 0/0/0/0, 1 4/0/0/0 0/0/0/0"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	b.passMinutes(t, 90) // the outcomes of the last hour are counted later
	queue.SampleQueues(t, b.Service)
	found := b.series(t, 90)
	for i, bucket := range found.Buckets {
		if want := i == 90 || i >= 30; bucket.IsComplete != want {
			t.Errorf("the minute %d is complete: %t, want %t", i, bucket.IsComplete, want)
		}
	}
}

// TestThreeProcessesSampleEachMinuteOnce has them do it at the same time.
func TestThreeProcessesSampleEachMinuteOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	all := []*queue.Service{b.Service, anotherService(t, b.url, nil), anotherService(t, b.url, nil)}
	b.exec(t, `
		create table public.samples (at timestamptz);
		create function public.note() returns trigger language plpgsql as $$ begin insert into public.samples values (new.sampled_at); return new; end $$;
		create trigger note after insert on agent.queue_sampling for each row when (new.sampled_at is not null) execute function public.note();
		grant insert on public.samples to public`)
	const minutes = 5
	loadQueue(t, b, "a", 4, queue.Ready)
	for range minutes {
		loadHistory(t, b, "a", 0, 3, queue.Done)
		before := b.thisMinute(t)
		var samplers sync.WaitGroup
		for _, s := range all {
			samplers.Go(func() { queue.SampleQueues(t, s) })
		}
		samplers.Wait()
		if b.thisMinute(t).Equal(before) {
			if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.queue_sampling where at = $1`, before); n != 1 {
				t.Fatalf("there are %d samples of the minute", n)
			}
		}
		b.passMinutes(t, 1)
	}
	queue.SampleQueues(t, b.Service)
	counts := pgtest.Query[[]int](t, b.sql, `select array[(select count(*) from public.samples), (select count(*) from agent.queue_sampling where sampled_at is not null),
		(select sum(done) from agent.queue_outcome)]`)
	if counts[0] != counts[1] || counts[0] < minutes+1 || counts[2] != 3*minutes {
		t.Errorf("samples, minutes with a sample, and events counted: %v", counts)
	}
}

// TestOutcomesOfATransactionThatCommitsLateAreCounted ends an event in a transaction that is committed after its minute was counted.
func TestOutcomesOfATransactionThatCommitsLateAreCounted(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.sampleMinute(t)
	for _, e := range b.insertN(t, "other", 1) { // TimescaleDB makes a chunk now: nothing gets into history beside a transaction that makes one
		b.exec(t, `select agent.delete_event($1)`, e)
	}
	ids := b.insertN(t, "a", 2)
	b.claim(t, queue.ClaimParams{Queue: "a", Limit: 2}, 2)
	late := pgtest.Connect(t, b.url)
	tx, err := late.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `select agent.delete_event($1)`, ids[0]); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `select agent.delete_event($1)`, ids[1])
	shift := func() {
		b.exec(t, `update agent.queue_sampling set at = at - interval '10 years', sampled_at = sampled_at - interval '10 years'`)
		b.exec(t, `update agent.queue_sampling set at = at + interval '10 years' - interval '5 minutes', sampled_at = sampled_at + interval '10 years' - interval '5 minutes'`)
		b.exec(t, `update agent.queue_outcome set at = at - interval '5 minutes'`)
		b.exec(t, `update agent.event_hist set finished_at = finished_at - interval '5 minutes'`)
	}
	shift()
	b.exec(t, `select agent_service.sample_queues()`)
	sum := func() int {
		return pgtest.Query[int](t, b.sql, `select coalesce(sum(done), 0)::int from agent.queue_outcome where queue = 'a'`)
	}
	count := func() {
		for {
			if did := pgtest.Query[string](t, b.sql, `select agent_service.count_outcomes()`); did != "counted" {
				return
			}
		}
	}
	count()
	if got := sum(); got != 1 {
		t.Fatalf("%d events are counted while the transaction runs, want 1", got)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `update agent.event_hist set finished_at = finished_at - interval '5 minutes' where id = $1`, ids[0])
	// A transaction in any database of the server holds the minutes back, and other tests have some.
	eventually(t, "all minutes are settled", func() bool {
		count()
		return pgtest.Query[int](t, b.sql, `select count(*) from agent.queue_sampling where not is_settled`) == 0
	})
	if got := sum(); got != 2 {
		t.Errorf("%d events are counted after it, want 2", got)
	}
}

func TestSeriesHaveTheDurationsOfWaitAndProcessing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	queue.SampleQueues(t, b.Service)
	// A hundred events that were due 10 min after they came, waited for 1 to 100 s, were claimed twice, and took 10 times as many ms the second time.
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, due_at, outcome, finished_at)
		select i, now(), 2, now(), array[at - interval '1 hour' + make_interval(secs => i), at - make_interval(secs => i * 0.01)], '{}', 'a', at - interval '70 min'
		, at - interval '1 hour', 'done', at
		from generate_series(1, 100) i, clock_timestamp() at`)
	total := b.series(t, 1).Total
	for name, d := range map[string]struct {
		got  *time.Duration
		want time.Duration
	}{
		"wait, p50": {total.WaitP50, 50 * time.Second}, "wait, p95": {total.WaitP95, 95 * time.Second},
		"processing, p50": {total.ProcessingP50, 500 * time.Millisecond}, "processing, p95": {total.ProcessingP95, 950 * time.Millisecond},
	} {
		if d.got == nil || (*d.got-d.want).Abs() > d.want/20 {
			t.Errorf("%s is %v, want %v", name, d.got, d.want)
		}
	}
}

func TestWaitBeginsWhenAnEventIsDue(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	queue.SampleQueues(t, b.Service)
	due := func(id int64) *time.Duration {
		return pgtest.Query[*time.Duration](t, b.sql, `select due_at - enqueued_at from agent.event where id = $1 union all select due_at - enqueued_at from agent.event_hist where id = $1`, id)
	}
	past := now(t, b.sql).Add(-time.Hour)
	inserted, err := b.Insert(t.Context(), []queue.InsertParams{
		{Event: []byte(`{}`), Queue: "a"}, {Event: []byte(`{}`), Queue: "a", Delay: time.Hour}, {Event: []byte(`{}`), Queue: "a", VT: &past}, {Event: []byte(`{}`), Queue: "a", Delay: 2 * time.Hour},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []time.Duration{0, time.Hour, 0, 2 * time.Hour} {
		if got := due(inserted[i].ID); want == 0 && got != nil || want > 0 && (got == nil || *got != want) {
			t.Errorf("the event %d is due %v after it was inserted, want %v", i, got, want)
		}
	}
	if _, err := b.RunQueue(t.Context(), queue.RunParams{Queue: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, e := range b.claim(t, queue.ClaimParams{Queue: "a", Limit: 4}, 4) {
		b.ack(t, lease(e))
	}
	if got := due(inserted[1].ID); got == nil || *got > 59*time.Minute {
		t.Errorf("an event that was run is due %v after it was inserted", got)
	}
	if wait := b.series(t, 1).Total.WaitP95; wait == nil || *wait > time.Minute {
		t.Errorf("the wait is %v", wait)
	}
}

func TestOverviewShowsProblemsFirst(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	loadQueue(t, b, "busy", 9, queue.Ready)
	loadQueue(t, b, "slow", 1, queue.Ready)
	loadQueue(t, b, "full", 12, queue.AwaitingTurn)
	b.exec(t, `update agent.event set vt = now() - interval '1 hour' where queue = 'slow'`)
	loadHistory(t, b, "bad", 0, 4, queue.Failed, queue.Done)
	b.exec(t, `insert into agent.queue (name, paused, dead_letter_queue) values ('quiet', true, 'full')`)
	queue.SampleQueues(t, b.Service)
	at := b.thisMinute(t)
	for _, c := range []struct {
		params queue.OverviewParams
		want   string
		total  int64
	}{
		{queue.OverviewParams{Order: queue.OrderFailed, Limit: 10}, "bad slow busy full quiet", 5},
		{queue.OverviewParams{Order: queue.OrderWaiting, Limit: 10}, "full busy slow bad quiet", 5},
		{queue.OverviewParams{Order: queue.OrderOldest, Limit: 10}, "slow busy bad full quiet", 5},
		{queue.OverviewParams{Order: queue.OrderName, Limit: 2, Offset: 1}, "busy full", 5},
		{queue.OverviewParams{Order: queue.OrderName, Limit: 2, Offset: 5}, "", 5},
		{queue.OverviewParams{Order: queue.OrderFailed, Limit: 10, Queues: []string{"b*"}}, "bad busy", 2},
		{queue.OverviewParams{Order: queue.OrderFailed, Limit: 10, Queues: []string{}}, "", 0},
		{queue.OverviewParams{Order: queue.OrderName, Limit: 10, NameContains: "B"}, "bad busy", 2},
		{queue.OverviewParams{Order: queue.OrderName, Limit: 1, Offset: 1, NameContains: "s"}, "slow", 2},
		{queue.OverviewParams{Order: queue.OrderFailed, Limit: 10, Queues: []string{"b*"}, NameContains: "us"}, "busy", 1},
		{queue.OverviewParams{Order: queue.OrderFailed, Limit: 10, NameContains: "%"}, "", 0},
	} {
		c.params.From, c.params.To, c.params.Bucket = at.Add(-4*time.Minute), at.Add(time.Minute), time.Minute
		found, err := b.Overview(t.Context(), c.params)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, q := range found.Queues {
			names = append(names, q.Queue)
			if len(q.ReadySeries) != 5 || q.ReadySeries[0] != nil || q.ReadySeries[4] == nil || *q.ReadySeries[4] != q.Ready {
				t.Errorf("%s: the series is %v, ready are %d", q.Queue, q.ReadySeries, q.Ready)
			}
			if q.Paused != (q.Queue == "quiet") {
				t.Errorf("%s is paused: %t", q.Queue, q.Paused)
			}
			failed := int64(0)
			for _, n := range q.FailedSeries {
				failed += n
			}
			if len(q.FailedSeries) != 5 || failed != q.Failed || q.Queue == "bad" != (failed == 2) || (q.LastFailedAt != nil) != (failed > 0) {
				t.Errorf("%s: the failures are %v, the last at %v", q.Queue, q.FailedSeries, q.LastFailedAt)
			}
			if q.LastFailedAt != nil && (q.LastFailedAt.Before(c.params.From) || q.LastFailedAt.Truncate(time.Minute) != *q.LastFailedAt) {
				t.Errorf("%s: the last failed at %v", q.Queue, q.LastFailedAt)
			}
			if of := strings.Join(q.DeadLettersOf, " "); of != map[bool]string{true: "quiet"}[q.Queue == "full" && c.params.Queues == nil] {
				t.Errorf("%s: takes the dead letters of %q", q.Queue, of)
			}
		}
		if got := strings.Join(names, " "); got != c.want || found.Total != c.total {
			t.Errorf("%+v: got %s of %d, want %s of %d", c.params, got, found.Total, c.want, c.total)
		}
		sum := func() (failed int64) {
			for _, o := range found.Outcomes {
				failed += o.Failed
			}
			return failed
		}()
		if sum != found.All.Failed || len(found.Outcomes) != 5 || c.total == 5 && (sum != 2 || found.All.Ready != 10 || found.All.Waiting != 12) || c.total == 0 && (sum != 0 || found.All.Ready != 0) {
			t.Errorf("%+v: %+v, failed by bucket %d", c.params, found.All, sum)
		}
	}
}

func TestQueueWithoutReadyEventsHasNoOldestOne(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	loadQueue(t, b, "held", 2, queue.Leased, queue.Scheduled)
	b.sampleMinute(t)
	queue.SampleQueues(t, b.Service)
	at := b.thisMinute(t)
	found, err := b.Overview(t.Context(), queue.OverviewParams{Order: queue.OrderName, Limit: 10, From: at.Add(-4 * time.Minute), To: at.Add(time.Minute), Bucket: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if len(found.Queues) != 1 || found.Queues[0].OldestReadyAge != nil || found.All.OldestReadyAge != nil {
		t.Errorf("the overview is %+v, of all %+v", found.Queues, found.All)
	}
	for _, bucket := range b.series(t, 4).Buckets {
		if bucket.OldestReadyAge != nil {
			t.Errorf("a bucket has an oldest ready event: %+v", bucket)
		}
	}
}

// TestOverviewOfALargeTableIsOfTheLatestSample has more events than are counted for each overview.
func TestOverviewOfALargeTableIsOfTheLatestSample(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	loadQueue(t, b, "small", 3, queue.Ready)
	b.exec(t, `insert into agent.event (event, queue) select jsonb_build_object('x', repeat('x', 1900)), 'large' from generate_series(1, 12000)`)
	loadQueue(t, b, "later", 1, queue.Scheduled)
	queue.SampleQueues(t, b.Service)
	loadQueue(t, b, "small", 2, queue.Ready)
	at := b.thisMinute(t)
	found, err := b.Overview(t.Context(), queue.OverviewParams{From: at.Add(-time.Minute), To: at.Add(time.Minute), Bucket: time.Minute, Order: queue.OrderWaiting, Limit: 5})
	if err != nil {
		t.Fatal(err)
	}
	if found.IsLive || found.All.Ready != 12003 || len(found.Queues) != 3 || found.Queues[0].Ready != 12000 || found.Queues[1].Ready != 5 || *found.Queues[1].ReadySeries[1] != 3 {
		t.Fatalf("got %+v", found)
	}
	if later := found.Queues[2]; later.Queue != "later" || later.OldestReadyAge != nil || found.Queues[1].OldestReadyAge == nil {
		t.Errorf("of a queue in which nothing is ready: %+v", later)
	}
}

// TestWindowsOfHoursHaveWhatTheirMinutesHave counts a minute after an hour that has outcomes, and a minute of that hour once more.
func TestWindowsOfHoursHaveWhatTheirMinutesHave(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const hour = `date_bin('1 hour', now(), 'epoch') - interval '2 hours'`
	b.exec(t, `
		insert into agent.queue_outcome (queue, at, done, failed, expired, cancelled, wait_bins, wait_counts, processing_bins, processing_counts)
		select 'a', `+hour+` + make_interval(mins => i), 3, 1, 0, 2, '{10, 20}'::int2[], '{2, 1}'::int8[], '{30}'::int2[], '{4}'::int8[] from generate_series(10, 12) as i
		union all select 'b', `+hour+` + interval '59 min', 1, 0, 1, 0, null, null, null, null`)
	b.exec(t, `
		insert into agent.queue_sampling (at, sampled_at, counted_at, events, done, failed, expired, cancelled, is_complete, is_settled)
		select m, m, m, c.done + c.failed + c.expired + c.cancelled, c.done, c.failed, c.expired, c.cancelled, true, true
		from generate_series(`+hour+`, `+hour+` + interval '59 min', '1 minute') as m
		cross join lateral
		( select coalesce(sum(o.done), 0) as done, coalesce(sum(o.failed), 0) as failed, coalesce(sum(o.expired), 0) as expired, coalesce(sum(o.cancelled), 0) as cancelled
			from agent.queue_outcome o where o.at = m
		) as c`)
	overview := func(from, to time.Duration) queue.Overview {
		t.Helper()
		at := b.thisMinute(t).Truncate(time.Hour).Add(-2 * time.Hour)
		found, err := b.Overview(t.Context(), queue.OverviewParams{Order: queue.OrderName, Limit: 10, From: at.Add(from), To: at.Add(to), Bucket: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	hours := func() int { return pgtest.Query[int](t, b.sql, `select count(*) from agent.queue_outcome_hour`) }
	check := func(when string) {
		t.Helper()
		whole, parts := overview(-time.Minute, time.Hour+time.Minute), []queue.Overview{overview(-time.Minute, 11*time.Minute), overview(11*time.Minute, time.Hour+time.Minute)}
		a := whole.Queues[0]
		if len(whole.Queues) != 2 || a.Done != 9 || a.Failed != 3 || a.Cancelled != 6 || whole.All.Done != 10 || whole.All.Expired != 1 ||
			a.FailedSeries[10] != 0 || a.FailedSeries[11] != 1 || a.FailedSeries[13] != 1 || !a.LastFailedAt.Equal(whole.Outcomes[13].Start) {
			t.Errorf("%s: got %+v, in all %+v", when, whole.Queues, whole.All)
		}
		for _, p := range parts {
			if p.Queues[0].WaitP95 == nil || a.WaitP95 == nil || *p.Queues[0].WaitP95 != *a.WaitP95 || *p.Queues[0].ProcessingP95 != *a.ProcessingP95 {
				t.Errorf("%s: the percentiles are %v, %v, and of a part %v, %v", when, a.WaitP95, a.ProcessingP95, p.Queues[0].WaitP95, p.Queues[0].ProcessingP95)
			}
		}
		if sum := parts[0].All.Done + parts[1].All.Done; sum != 10 {
			t.Errorf("%s: %d are done in two parts, want 10", when, sum)
		}
		var done int64
		for _, o := range whole.Outcomes {
			done += o.Done
		}
		if done != 10 {
			t.Errorf("%s: %d are done by bucket, want 10", when, done)
		}
	}
	check("before an hour is added up")
	if n := hours(); n != 0 {
		t.Fatalf("there are %d rows of hours", n)
	}
	if did := pgtest.Query[string](t, b.sql, `select agent_service.count_outcomes(_skip => true)`); did != "counted" {
		t.Fatalf("a minute of the next hour is %s", did)
	}
	if n := hours(); n != 2 {
		t.Errorf("there are %d rows of hours, want one of each queue", n)
	}
	check("after it")
	b.exec(t, `delete from agent.queue_outcome where queue = 'a'`) // so that what is read is the hour
	if found := overview(0, time.Hour); found.Queues[0].Done != 9 || found.Queues[0].WaitP95 == nil {
		t.Errorf("the hour has %+v", found.Queues[0])
	}

	// Of a minute that is counted once more, the hour follows. The row of the next hour stands for the minutes that were counted since.
	b.exec(t, `delete from agent.queue_sampling where at >= date_bin('1 hour', now(), 'epoch') - interval '1 hour'`)
	b.exec(t, `
		insert into agent.queue_sampling (at, sampled_at, horizon, counted_at, events, is_complete, is_settled)
		values (date_bin('1 minute', now(), 'epoch') - interval '30 minutes', now(), '3', now(), 0, true, false)
		, (date_bin('1 hour', now(), 'epoch') + interval '1 hour', now(), '3', now(), 0, true, true)`)
	loadHistory(t, b, "late", 0, 4, queue.Done)
	b.exec(t, `update agent.event_hist set finished_at = date_bin('1 minute', now(), 'epoch') - interval '30 minutes'`)
	if did := pgtest.Query[string](t, b.sql, `select agent_service.count_outcomes()`); did != "counted" {
		t.Fatalf("the minute is %s once more", did)
	}
	if n := pgtest.Query[int](t, b.sql, `select coalesce(sum(done), 0)::int from agent.queue_outcome_hour where queue = 'late'`); n != 4 {
		t.Errorf("the hour has %d events of a minute that was counted once more, want 4", n)
	}
}

func TestStatisticsAreKeptSevenDays(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	loadQueue(t, b, "a", 2, queue.Ready)
	loadHistory(t, b, "a", 0, 2, queue.Done)
	b.sampleMinute(t)
	queue.SampleQueues(t, b.Service)
	b.passMinutes(t, 60*24*3)
	queue.SampleQueues(t, b.Service) // says again what has not changed
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.queue_sample`); n != 2 {
		t.Fatalf("there are %d samples, want another one after a day", n)
	}
	b.passMinutes(t, 60*24*6)
	for n := int64(1); n > 0; {
		n = pgtest.Query[int64](t, b.sql, `select agent.prune_queue_samples(1)`)
	}
	left := pgtest.Query[[]int](t, b.sql, `select array[(select count(*) from agent.queue_sample), (select count(*) from agent.queue_outcome), (select count(*) from agent.queue_latest)]`)
	if fmt.Sprint(left) != "[1 0 1]" {
		t.Errorf("samples, outcomes and latest samples that are left: %v", left)
	}
	if got := describeBuckets(b.series(t, 60*24-1).Buckets[0]); got != "0 - 0/0/0/0?" {
		t.Errorf("got %s", got)
	}
}

func TestBadParametersOfStatisticsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	at := b.thisMinute(t)
	for _, p := range []queue.SeriesParams{
		{From: at, To: at, Bucket: time.Minute},
		{From: at, To: at.Add(-time.Minute), Bucket: time.Minute},
		{From: at, To: at.Add(time.Minute), Bucket: time.Second},
		{From: at, To: at.Add(time.Hour), Bucket: 90 * time.Second},
		{From: at.Add(-1501 * time.Minute), To: at, Bucket: time.Minute},
	} {
		_, err := b.Series(t.Context(), p)
		if _, ok := errors.AsType[*queue.InvalidError](err); !ok {
			t.Errorf("%+v: got %v", p, err)
		}
	}
}

// TestSamplesCountTheGroupsThatWait compares the samples with the listing of groups.
func TestSamplesCountTheGroupsThatWait(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "slots", `{"concurrency": 1}`)
	b.insertGrouped(t, "slots", "a", "a", "a", "b", "b", "free", "held", "held", "paused", "paused", "roomy", "roomy")
	b.claimSQL(t, "slots")
	b.insertGrouped(t, "slots", "late") // which has its turn with the next claim
	b.exec(t, `select agent.put_group('slots', 'held', '{"hold": "1 hour"}'), agent.put_group('slots', 'paused', '{"paused": true}'), agent.put_group('slots', 'roomy', '{"concurrency": 2}')`)
	b.limit(t, "ordered", `{"order": true, "on_failed": "block"}`)
	failed := b.insertGrouped(t, "ordered", "a", "a", "b", "stopped", "stopped")[3]
	b.claimSQL(t, "ordered")
	b.exec(t, `select agent.nack_event($1, null, _final => true)`, failed)
	b.limit(t, "paced", `{"rate": {"limit": 1, "period": "1 hour"}}`)
	b.insertGrouped(t, "paced", "a", "a", "a", "b", "b", "c")
	b.claimSQL(t, "paced")
	b.limit(t, "stopped", `{"concurrency": 1}`)
	b.insertGrouped(t, "stopped", "a", "a")
	b.claimSQL(t, "stopped")
	b.exec(t, `select agent.pause_queue('stopped')`)
	b.insertGrouped(t, "free", "a", "a")

	b.exec(t, `select agent_service.sample_groups()`)
	names := []string{"slots", "ordered", "paced", "stopped", "free"}
	got, err := b.GroupSamples(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	want := []queue.GroupSample{
		{Queue: "ordered", InOrder: 2, Longest: 1}, {Queue: "paced", Rate: 2, Longest: 1}, {Queue: "slots", Concurrency: 2, Hold: 1, Paused: 1, Longest: 2}, {Queue: "stopped", Longest: 1},
	}
	if !slices.Equal(got, want) {
		t.Errorf("sampled %+v, want %+v", got, want)
	}
	for _, g := range got {
		counts := map[string]int64{}
		reasons := pgtest.Query[[]string](t, b.sql, `select coalesce(array_agg(blocked_by ->> 'reason'), '{}') from agent.list_groups($1, 1000, _blocked => true)`, g.Queue)
		for _, reason := range reasons {
			counts[reason]++
		}
		delete(counts, "queue_paused")
		sampled := map[string]int64{"concurrency": g.Concurrency, "order": g.InOrder, "rate": g.Rate, "hold": g.Hold, "paused": g.Paused}
		maps.DeleteFunc(sampled, func(_ string, n int64) bool { return n == 0 })
		if !maps.Equal(counts, sampled) {
			t.Errorf("of the queue %s are listed %v, sampled %v", g.Queue, counts, sampled)
		}
	}

	// Of many groups the counts are estimates.
	b.limit(t, "many", `{"concurrency": 1}`)
	b.exec(t, `select count(agent.insert_event('{}', 'many', _group => 'g' || n % 5000)) from generate_series(1, 10000) n`)
	for range 100 {
		b.claimSQL(t, "many")
	}
	b.exec(t, `select agent_service.sample_groups()`)
	if got, err = b.GroupSamples(t.Context(), []string{"many"}); err != nil || len(got) != 1 || got[0].Concurrency < 4000 || got[0].Concurrency > 6000 || got[0].Longest != 1 {
		t.Errorf("of 5,000 groups that wait are sampled %+v: %v", got, err)
	}
}
