package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// finish gives one event each outcome, all four with the same event_ts, and returns their ids.
func finish(t *testing.T, b env, q string, eventTS time.Time) (done, failed, expired, cancelled int64) {
	t.Helper()
	ids := b.insert(t, q, `{"user":{"id":1},"n":1}`, `{"user":{"id":2},"n":2}`, `{"user":{"id":1},"n":3}`, `{"n":4}`)
	b.exec(t, `update agent.event set event_ts = $1 where id = any($2)`, eventTS, ids)
	claimed := b.claim(t, queue.ClaimParams{Queue: q, Limit: 3}, 3)
	b.ack(t, lease(claimed[0]))
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(claimed[1]), Final: true}); err != nil {
		t.Fatal(err)
	}
	b.exec(t, `update agent.event set attempts = 9, vt = now() where id = $1`, ids[2])
	if _, err := b.Sweep(t.Context(), queue.SweepParams{}); err != nil {
		t.Fatal(err)
	}
	b.ack(t, queue.Lease{ID: ids[3]})
	return ids[0], ids[1], ids[2], ids[3]
}

func TestHistoryIsOfTheFlavourUnderTest(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	want := map[string]string{"plain": "partitioned", "timescale": "hypertable"}[pgtest.Flavour()]
	if got := pgtest.Query[string](t, sqlBench(t), `select agent_private.history_flavour()`); got != want {
		t.Errorf("history is %s on %s, want %s", got, pgtest.Flavour(), want)
	}
}

func TestHistoryFilters(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	now := time.Now()
	between := now.Add(-time.Minute)
	done, failed, expired, cancelled := finish(t, b, "a", now.Add(-time.Hour))
	done2, failed2, expired2, cancelled2 := finish(t, b, "b", now)

	for name, c := range map[string]struct {
		filter queue.HistoryFilter
		want   []int64
	}{
		"none":           {queue.HistoryFilter{}, []int64{cancelled2, expired2, failed2, done2, cancelled, expired, failed, done}},
		"queue":          {queue.HistoryFilter{Queue: "a"}, []int64{cancelled, expired, failed, done}},
		"outcome":        {queue.HistoryFilter{Outcome: queue.Failed}, []int64{failed2, failed}},
		"both":           {queue.HistoryFilter{Queue: "b", Outcome: queue.Expired}, []int64{expired2}},
		"from":           {queue.HistoryFilter{From: &between}, []int64{cancelled2, expired2, failed2, done2}},
		"to":             {queue.HistoryFilter{To: &between}, []int64{cancelled, expired, failed, done}},
		"contains":       {queue.HistoryFilter{Contains: json.RawMessage(`{"user":{"id":1}}`)}, []int64{expired2, done2, expired, done}},
		"contains none":  {queue.HistoryFilter{Contains: json.RawMessage(`{"user":{"id":3}}`)}, nil},
		"contains quote": {queue.HistoryFilter{Contains: json.RawMessage(`{"user":"it's \\ 'so'"}`)}, nil},
		"id":             {queue.HistoryFilter{ID: &failed}, []int64{failed}},
		"unknown queue":  {queue.HistoryFilter{Queue: "c'; drop table agent.event --"}, nil},
	} {
		page, err := b.History(t.Context(), queue.HistoryParams{HistoryFilter: c.filter})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		t.Log(name)
		checkIDs(t, page.Events, c.want) // ordered by id, because their event_ts are equal
	}
}

func TestHistoryPagesReturnEachRowOnceWhileRowsAreAdded(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	var want []int64
	for i := range 5 {
		ids := b.insertN(t, fmt.Sprint("q", i%2), 20)
		b.exec(t, `update agent.event set event_ts = event_ts - $1 * interval '1 day'`, i)
		want = append(want, ids...)
		if _, err := b.Ack(t.Context(), acks(leases(ids)...)); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[int64]int)
	cursor := ""
	for pages := 0; ; pages++ {
		page, err := b.History(t.Context(), queue.HistoryParams{Limit: 7, Cursor: cursor})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			seen[e.ID]++
		}
		if page.Next == "" {
			break
		}
		if pages > 100 {
			t.Fatal("the pages do not end")
		}
		cursor = page.Next
		late := b.insertN(t, "late", 3)
		b.exec(t, `update agent.event set event_ts = now() - random() * interval '5 days'`)
		if _, err := b.Ack(t.Context(), acks(leases(late)...)); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range want {
		if seen[id] != 1 {
			t.Errorf("event %d was listed %d times", id, seen[id])
		}
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("event %d was listed %d times", id, n)
		}
	}
}

func leases(ids []int64) []queue.Lease {
	all := make([]queue.Lease, len(ids))
	for i, id := range ids {
		all[i] = queue.Lease{ID: id}
	}
	return all
}

func TestListPagesByStateAndQueue(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	ready := b.insertN(t, "a", 5)
	b.insertN(t, "b", 5)
	leasedEvents := b.claim(t, queue.ClaimParams{Queue: "b", Limit: 5}, 5)
	in, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: "a", Delay: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	list := func(p queue.ListParams) (ids []int64) {
		t.Helper()
		p.Limit = 2
		for {
			page, err := b.List(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Events {
				ids = append(ids, e.ID)
				if p.State != "" && e.State != p.State {
					t.Errorf("asked for %s, got %s", p.State, e.State)
				}
			}
			if p.Cursor = page.Next; p.Cursor == "" {
				return ids
			}
		}
	}
	var leased []int64
	for _, e := range leasedEvents {
		leased = append(leased, e.ID)
	}
	scheduled := []int64{in[0].ID}
	for _, c := range []struct {
		p    queue.ListParams
		want []int64
	}{
		{queue.ListParams{}, slices.Concat(ready, leased, scheduled)},
		{queue.ListParams{Queue: "a"}, slices.Concat(ready, scheduled)},
		{queue.ListParams{State: queue.Ready}, ready},
		{queue.ListParams{State: queue.Leased}, leased},
		{queue.ListParams{State: queue.Scheduled}, scheduled},
		{queue.ListParams{Queue: "a", State: queue.Leased}, nil},
		{queue.ListParams{Queue: "nowhere"}, nil},
	} {
		if got := list(c.p); fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%+v listed %v, want %v", c.p, got, c.want)
		}
	}
}

func TestCursorsOfOtherListingsAreRefused(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.insertN(t, "", 2)
	page, err := b.List(t.Context(), queue.ListParams{Limit: 1})
	if err != nil || page.Next == "" {
		t.Fatalf("%+v, %v", page, err)
	}
	for _, cursor := range []string{page.Next, "x", "****", "aGlzdG9yeSAxIHg"} {
		if _, err := b.History(t.Context(), queue.HistoryParams{Cursor: cursor}); !errors.Is(err, queue.ErrBadCursor) {
			t.Errorf("cursor %q: %v", cursor, err)
		}
	}
}

func TestHistoryQueryTimeoutIsItsOwnError(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.QueryTimeout = time.Millisecond })
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select i, now(), 1, now(), '{}', jsonb_build_object('n', i), 'q', now(), 'done', now() from generate_series(1, 50000) i`)
	_, err := b.History(t.Context(), queue.HistoryParams{HistoryFilter: queue.HistoryFilter{Contains: json.RawMessage(`{"n":-1}`)}})
	if !errors.Is(err, queue.ErrQueryTimeout) {
		t.Errorf("a search without end returned %v", err)
	}
}

func TestHistoryStatsCountEveryBucket(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	at := func(text string) time.Time {
		ts, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return ts
	}
	finish(t, b, "a", at("2026-01-05T10:30:00Z"))
	finish(t, b, "b", at("2026-01-05T12:00:00Z"))
	p := queue.StatsParams{Bucket: time.Hour, From: at("2026-01-05T09:00:00Z"), To: at("2026-01-05T12:00:01Z")}
	buckets, err := b.HistoryStats(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	one := queue.StatsBucket{Done: 1, Failed: 1, Expired: 1, Cancelled: 1}
	want := []queue.StatsBucket{{}, one, {}, one}
	if len(buckets) != len(want) {
		t.Fatalf("got %d buckets: %+v", len(buckets), buckets)
	}
	for i, w := range want {
		w.Start = p.From.Add(time.Duration(i) * time.Hour)
		if got := buckets[i]; !got.Start.Equal(w.Start) || got.Done != w.Done || got.Failed != w.Failed ||
			got.Expired != w.Expired || got.Cancelled != w.Cancelled {
			t.Errorf("bucket %d is %+v, want %+v", i, got, w)
		}
	}
	p.Queue = "b"
	if buckets, err = b.HistoryStats(t.Context(), p); err != nil || buckets[1].Done != 0 || buckets[3].Done != 1 {
		t.Errorf("of queue b: %+v, %v", buckets, err)
	}
}

func TestQueuesAreCounted(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	finish(t, b, "gone", time.Now())
	b.insertN(t, "here", 5)
	b.claim(t, queue.ClaimParams{Queue: "here"}, 1)
	b.exec(t, `update agent.event set vt = vt - interval '1 hour' where vt <= now()`)
	if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(`{}`), Queue: "here", Delay: time.Hour}}); err != nil {
		t.Fatal(err)
	}
	b.insert(t, "busy", `{}`)
	b.claim(t, queue.ClaimParams{Queue: "busy"}, 1)
	queues, err := b.queues(t, time.Hour)
	if err != nil || len(queues) != 3 {
		t.Fatalf("%+v, %v", queues, err)
	}
	busy, gone, here := queues[0], queues[1], queues[2]
	if want := (queue.QueueStats{Queue: "busy", Leased: 1, DeadLettersOf: []string{}}); !reflect.DeepEqual(busy, want) {
		t.Errorf("busy: %+v", busy)
	}
	if gone.Queue != "gone" || gone.Events() != 0 || gone.OldestReadyAge != nil || gone.DoneLately != 1 || gone.ExpiredLately != 1 {
		t.Errorf("gone: %+v", gone)
	}
	if here.Ready != 4 || here.Scheduled != 1 || here.Leased != 1 || here.OldestReadyAge == nil || here.OldestReadyAge.Round(time.Hour) != time.Hour {
		t.Errorf("here: %+v", here)
	}
}

func TestRequeuedCopyNamesItsOriginal(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	_, failed, _, _ := finish(t, b, "a", time.Now())
	id, err := b.Requeue(t.Context(), failed, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := b.get(t, id)
	if id == failed || e.State != queue.Ready || e.Queue != "a" || e.Attempts != 0 || e.RequeuedFrom == nil || *e.RequeuedFrom != failed {
		t.Errorf("the copy of %d is %+v", failed, e)
	}
	old := b.get(t, failed)
	if old.Outcome != queue.Failed || old.RequeuedAs == nil || *old.RequeuedAs != id || string(old.Payload) != string(e.Payload) || !old.EventTS.Equal(e.EventTS) {
		t.Errorf("the original is %+v", old)
	}
	claimed := b.claim(t, queue.ClaimParams{Queue: "a"}, 1)[0]
	b.ack(t, lease(claimed))
	if h := b.get(t, id); h.Outcome != queue.Done || h.RequeuedFrom == nil || *h.RequeuedFrom != failed {
		t.Errorf("the copy ended as %+v", h)
	}
}

func TestRequeueMatchingContinuesWhereItStopped(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	ids := b.insertN(t, "a", 10)
	if _, err := b.Ack(t.Context(), acks(leases(ids)...)); err != nil {
		t.Fatal(err)
	}
	p := queue.RequeueParams{HistoryFilter: queue.HistoryFilter{Queue: "a", Outcome: queue.Cancelled}, Limit: 4}
	for _, step := range []struct {
		dryRun bool
		want   queue.RequeueResult
	}{
		{true, queue.RequeueResult{Matched: 10}},
		{false, queue.RequeueResult{Matched: 10, Requeued: 4}},
		{false, queue.RequeueResult{Matched: 6, Requeued: 4}},
		{false, queue.RequeueResult{Matched: 2, Requeued: 2}},
		{false, queue.RequeueResult{}},
	} {
		p.DryRun = step.dryRun
		if got, err := b.RequeueMatching(t.Context(), p); err != nil || got != step.want {
			t.Errorf("requeue returned %+v, %v; want %+v", got, err, step.want)
		}
	}
	var origins []int64
	for _, e := range b.claim(t, queue.ClaimParams{Queue: "a", Limit: 100}, 10) {
		origins = append(origins, *e.RequeuedFrom)
	}
	if fmt.Sprint(origins) != fmt.Sprint(ids) {
		t.Errorf("requeued %v, want %v in order", origins, ids)
	}
}
