package queue_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// finishedAt is when the events of addFinished end.
var finishedAt = time.Date(2026, 2, 3, 4, 0, 0, 0, time.UTC)

// addFinished adds n events to history, each of which ended a second after the one before, and began a day before the one before began. It returns their ids.
func (b env) addFinished(t *testing.T, q, outcome string, n int) []int64 {
	t.Helper()
	return pgtest.Query[[]int64](t, b.sql, `
		with added as
		( insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at, last_error, type, source, worker, meta)
			select nextval(pg_get_serial_sequence('agent.event', 'id')), ts - i * interval '1 day', 1, ts, array[ts - interval '1 minute'], jsonb_build_object('n', i), $1, ts, $2
			, ts + make_interval(secs => i - 1), 'order ' || i || ' is gone', 't' || i, 's', 'w', jsonb_build_object('n', i)
			from (select i, $3::timestamptz from generate_series(1, $4::int) i) as n (i, ts)
			returning id
		)
		select array_agg(id order by id) from added`, q, outcome, finishedAt, n)
}

// readByEventTS makes history with times of the end read as if too many events had ended within them.
func (b env) readByEventTS(t *testing.T) {
	t.Helper()
	b.exec(t, `create or replace function agent_private.is_small_window(_window text, _limit int4 default 200000) returns boolean language sql return false`)
}

func after(d time.Duration) *time.Time {
	at := finishedAt.Add(d)
	return &at
}

func TestHistoryOfTheTimeInWhichEventsEnded(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for name, readAll := range map[string]bool{"read by the index of the end": false, "read by event_ts": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, nil)
			if readAll {
				b.readByEventTS(t)
			}
			a := b.addFinished(t, "a", "failed", 5) // newest event_ts first
			other := b.addFinished(t, "b", "done", 5)
			second, year := time.Second, 8760*time.Hour
			from, to := finishedAt.AddDate(0, 0, -3), finishedAt.AddDate(0, 0, -1)
			window := queue.HistoryFilter{FinishedFrom: after(second), FinishedTo: after(4 * second)}
			for i, c := range []struct {
				change func(*queue.HistoryFilter)
				want   []int64
			}{
				{func(f *queue.HistoryFilter) { f.Queue = "a" }, a[1:4]},
				{func(f *queue.HistoryFilter) { f.Outcome = queue.Failed }, a[1:4]},
				{func(f *queue.HistoryFilter) { f.Queue, f.FinishedTo = "a", nil }, a[1:]},
				{func(f *queue.HistoryFilter) { f.Queue, f.FinishedFrom = "a", nil }, a[:4]},
				{func(f *queue.HistoryFilter) { f.Queue, f.FinishedFrom = "a", after(second+time.Microsecond) }, a[2:4]},
				{func(f *queue.HistoryFilter) { f.Queue, f.FinishedTo = "a", after(4*second+time.Microsecond) }, a[1:]},
				{func(f *queue.HistoryFilter) { f.FinishedFrom, f.FinishedTo = after(year), nil }, nil},
				{func(f *queue.HistoryFilter) { f.Queue, f.From = "a", &from }, a[1:3]},
				{func(f *queue.HistoryFilter) { f.Queue, f.To = "a", &to }, a[1:4]},
				{func(f *queue.HistoryFilter) { f.Queue, f.From, f.To = "a", &from, &from }, nil},
				{func(f *queue.HistoryFilter) { f.ID = &a[2] }, a[2:3]},
				{func(f *queue.HistoryFilter) { f.ID = &a[0] }, nil},
				{func(f *queue.HistoryFilter) { f.Queue, f.Type = "b", "t3" }, other[2:3]},
				{func(f *queue.HistoryFilter) { f.Type = "t1" }, nil},
				{func(f *queue.HistoryFilter) { f.Queue, f.Source, f.Worker = "a", "s", "w" }, a[1:4]},
				{func(f *queue.HistoryFilter) { f.Queue, f.Contains = "a", json.RawMessage(`{"n":3}`) }, a[2:3]},
				{func(f *queue.HistoryFilter) { f.Queue, f.Meta = "a", json.RawMessage(`{"n":4}`) }, a[3:4]},
				{func(f *queue.HistoryFilter) { d := 62 * second; f.Queue, f.MinDuration = "a", &d }, a[2:4]},
				{func(f *queue.HistoryFilter) { f.Queues = []string{"b*"} }, other[1:4]},
				{func(f *queue.HistoryFilter) { f.Queue, f.Queues = "a", []string{"b*"} }, nil},
				{func(f *queue.HistoryFilter) { f.Queues = []string{} }, nil},
			} {
				filter := window
				c.change(&filter)
				var got []int64
				p := queue.HistoryParams{HistoryFilter: filter, Limit: 2}
				for {
					page, err := b.History(t.Context(), p)
					if err != nil {
						t.Fatalf("case %d: %v", i, err)
					}
					for _, e := range page.Events {
						got = append(got, e.ID)
					}
					if p.Cursor = page.Next; page.Next == "" {
						break
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(c.want) {
					t.Errorf("case %d, %+v: got %v, want %v", i, filter, got, c.want)
				}
				if counted, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: filter, DryRun: true}); err != nil || counted.Matched != int64(len(c.want)) {
					t.Errorf("case %d: %d could be requeued, want %d: %v", i, counted.Matched, len(c.want), err)
				}
				if filter.ID == nil {
					if n, _, err := b.CountRedrive(t.Context(), queue.RedriveParams{HistoryFilter: filter}); err != nil || n != int64(len(c.want)) {
						t.Errorf("case %d: %d could be redriven, want %d: %v", i, n, len(c.want), err)
					}
				}
			}
		})
	}
}

func TestAnEventOfYesterdayThatFailsNowIsOneOfTheLastHour(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	ids := b.insert(t, "a", `{}`, `{}`)
	b.exec(t, `update agent.event set event_ts = event_ts - interval '1 day'`)
	for _, e := range b.claim(t, queue.ClaimParams{Queue: "a", Limit: 2}, 2) {
		if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Final: true, Error: "the shop is closed"}); err != nil {
			t.Fatal(err)
		}
	}
	hourAgo, now := time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		p    queue.CausesParams
		want int64
	}{
		"posted within the hour": {queue.CausesParams{From: &hourAgo}, 0},
		"failed within the hour": {queue.CausesParams{FinishedFrom: &hourAgo, FinishedTo: &now}, 2},
		"failed before":          {queue.CausesParams{FinishedTo: &hourAgo}, 0},
		"of the queue":           {queue.CausesParams{FinishedFrom: &hourAgo, Queue: "a"}, 2},
		"of another queue":       {queue.CausesParams{FinishedFrom: &hourAgo, Queue: "b"}, 0},
		"of allowed queues":      {queue.CausesParams{FinishedFrom: &hourAgo, Queues: []string{"b"}}, 0},
		"of another type":        {queue.CausesParams{FinishedFrom: &hourAgo, Type: "x"}, 0},
	} {
		if got := causesOf(t, b, c.p); got.LookedAt != c.want || !got.Complete {
			t.Errorf("%s: got %+v, want %d", name, got, c.want)
		}
	}
	last := queue.HistoryFilter{FinishedFrom: &hourAgo}
	if got, err := b.RequeueMatching(t.Context(), queue.RequeueParams{HistoryFilter: last, Limit: 1}); err != nil || got.Matched != 2 || got.Requeued != 1 {
		t.Fatalf("requeued were %+v: %v", got, err)
	}
	runService(t, b.Service)
	r := b.awaitRedrive(t, b.redrive(t, queue.RedriveParams{HistoryFilter: last}).ID, queue.RedriveDone)
	if r.Matched != 1 || r.Requeued != 1 || r.FinishedFrom == nil || !r.FinishedFrom.Equal(hourAgo.Truncate(time.Microsecond)) || r.FinishedTo != nil {
		t.Errorf("redriven was %+v", r)
	}
	b.checkRedriven(t, len(ids))

	b.readByEventTS(t)
	if got := causesOf(t, b, queue.CausesParams{FinishedFrom: &hourAgo}); got.LookedAt != 2 || !got.Complete {
		t.Errorf("by event_ts: got %+v", got)
	}
	if got := causesOf(t, b, queue.CausesParams{FinishedTo: &hourAgo}); got.LookedAt != 0 || !got.Complete {
		t.Errorf("by event_ts, before: got %+v", got)
	}
}

func TestRedriveOfATimeBeginsAndEndsWithItsEvents(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	ids := b.addFinished(t, "a", "failed", 30)
	b.addFinished(t, "b", "failed", 30)
	filter := queue.HistoryFilter{Queue: "a", FinishedFrom: after(10 * time.Second), FinishedTo: after(20 * time.Second)}
	made := b.redrive(t, queue.RedriveParams{HistoryFilter: filter, IdempotencyKey: "k"})
	if made.Matched != 10 || made.IsEstimate {
		t.Errorf("made was %+v", made)
	}
	if again, isDeduplicated, err := b.CreateRedrive(t.Context(), queue.RedriveParams{HistoryFilter: filter, IdempotencyKey: "k"}); err != nil || !isDeduplicated || again.ID != made.ID {
		t.Errorf("the same key made %+v: %v", again, err)
	}
	filter.FinishedTo = nil
	if _, _, err := b.CreateRedrive(t.Context(), queue.RedriveParams{HistoryFilter: filter, IdempotencyKey: "k"}); err == nil {
		t.Error("the same key stands for another time of the end")
	}
	n := pgtest.Query[int](t, b.sql, `select count(*) from agent.redrive r cross join lateral agent_private.redrive_page(r, 1000) p
		join agent.event_hist f on f.id = $1 join agent.event_hist l on l.id = $2 where r.cursor_ts = f.event_ts and r.last_ts = l.event_ts and cardinality(p.ids) = 10`, ids[19], ids[10])
	if n != 1 {
		t.Error("the redrive looks at more than the events from the first to the last that match")
	}
	runService(t, b.Service)
	b.awaitRedrive(t, made.ID, queue.RedriveDone)
	b.checkRedriven(t, 10)
	none := b.redrive(t, queue.RedriveParams{HistoryFilter: queue.HistoryFilter{FinishedFrom: after(8760 * time.Hour), FinishedTo: after(8761 * time.Hour)}})
	if r := b.awaitRedrive(t, none.ID, queue.RedriveDone); r.Matched != 0 || r.Requeued != 0 {
		t.Errorf("of a time without an event: %+v", r)
	}
	b.checkRedriven(t, 10)
}

func TestHistoryOfATimeReadsNoMoreThanWhatEndedThen(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	const all, within = 300_000, 1000
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at, last_error)
		select i, $1::timestamptz - (i::int8 * 7919 % 86400) * interval '1 s', 1, $1, array[$1::timestamptz], '{}', 'q' || i % 20, $1, case when i % 10 = 0 then 'failed' else 'done' end
		, $1::timestamptz + i * interval '1 s', 'order is gone'
		from generate_series(1, $2::int) i`, finishedAt, all)
	b.exec(t, `vacuum analyze agent.event_hist`)
	window := queue.HistoryFilter{FinishedFrom: after(100_000 * time.Second), FinishedTo: after((100_000 + within) * time.Second)}
	// Of the session: it can have what earlier transactions read.
	const readSQL = `select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int8 from pg_stat_xact_all_tables where relname ~ '^(event_hist|_hyper)'`
	for call, sql := range map[string]string{
		"a page":     `select count(*) from agent.list_history(_finished_from => $1, _finished_to => $2)`,
		"a queue":    `select count(*) from agent.list_history('q7', 'failed', _finished_from => $1, _finished_to => $2)`,
		"failures":   `select count(*) from agent_service.list_failures(_finished_from => $1, _finished_to => $2)`,
		"a dry run":  `select count(*) from agent.requeue_events(_finished_from => $1, _finished_to => $2, _dry_run => true)`,
		"a requeue":  `select count(*) from agent.requeue_events(_outcome => 'failed', _limit => 3, _finished_from => $1, _finished_to => $2)`,
		"the window": `select count(*) from agent_private.redrive_span((select r from (select null::agent.redrive) as n (x) cross join lateral jsonb_populate_record(x, jsonb_build_object('finished_from', $1::timestamptz, 'finished_to', $2::timestamptz)) r))`,
	} {
		began := time.Now()
		var n, before, read int64
		err := pgx.BeginFunc(t.Context(), b.sql, func(tx pgx.Tx) error {
			if err := tx.QueryRow(t.Context(), readSQL).Scan(&before); err != nil {
				return err
			}
			if err := tx.QueryRow(t.Context(), sql, window.FinishedFrom, window.FinishedTo).Scan(&n); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), readSQL).Scan(&read)
		})
		if err != nil {
			t.Fatalf("%s: %v", call, err)
		}
		read -= before
		t.Logf("%s: %d rows, %d events read, %v", call, n, read, time.Since(began))
		if read > 10*within || read < within {
			t.Errorf("%s reads %d of %d events to find those of %d", call, read, all, within)
		}
	}
}
