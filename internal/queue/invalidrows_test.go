package queue_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// Rows that no call can write, but the owner can, or a restore without triggers.

// pages returns the ids on all pages of a listing.
func pages(t *testing.T, list func(cursor string) (queue.Page, error)) (ids []int64) {
	t.Helper()
	cursor := ""
	for range 100 {
		page, err := list(cursor)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			ids = append(ids, e.ID)
		}
		if cursor = page.Next; cursor == "" {
			return ids
		}
	}
	t.Fatalf("the listing has more than 100 pages: %v", ids)
	return nil
}

func TestListingsPageThroughTimesOutOfRange(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	times := []string{
		"294276-12-31 23:59:59.999999+00", "20000-01-01 00:00+00", "20000-01-01 00:00+00", "10000-01-01 00:00+00", "2026-01-01 00:00+00",
		"0001-01-01 00:00+00", "0044-03-15 00:00+00 BC", "0044-03-15 00:00+00 BC", "4713-01-01 00:00+00 BC",
	}
	// A hypertable has no chunk for the others.
	historyTimes := []string{"20000-01-01 00:00+00", "20000-01-01 00:00+00", "10000-01-01 00:00+00", "2026-01-01 00:00+00", "0001-01-01 00:00+00", "0044-03-15 00:00+00 BC"}
	if pgtest.Query[string](t, b.sql, `select agent_private.history_flavour()`) == "partitioned" {
		historyTimes = slices.Concat([]string{"infinity", "infinity", "infinity"}, times, []string{"-infinity", "-infinity", "-infinity"})
	}
	b.exec(t, `insert into agent.event (event, vt) select '{}', a.at::timestamptz from unnest($1::text[]) a (at)`, times)
	b.exec(t, `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select a.n, a.at::timestamptz, 1, a.at::timestamptz, array[a.at::timestamptz, null], '{}', 'q', a.at::timestamptz, 'done', now()
		from unnest($1::text[]) with ordinality a (at, n)`, historyTimes)

	for what, listing := range map[string]struct {
		list func(cursor string) (queue.Page, error)
		want int
	}{
		"waiting": {func(c string) (queue.Page, error) { return b.List(t.Context(), queue.ListParams{Limit: 2, Cursor: c}) }, len(times)},
		"history": {func(c string) (queue.Page, error) {
			return b.History(t.Context(), queue.HistoryParams{Limit: 2, Cursor: c})
		}, len(historyTimes)},
	} {
		ids := pages(t, listing.list)
		sorted := slices.Compact(slices.Sorted(slices.Values(ids)))
		if len(ids) != listing.want || len(sorted) != listing.want {
			t.Errorf("%s: the pages have %v, want %d events, each once", what, ids, listing.want)
		}
	}
}

// invalidValues are assignments that bypass the checks of the columns.
var invalidValues = []string{
	"attempts = -5", "attempts = -2147483648", "attempts = 2147483647", "max_attempts = 0", "max_attempts = -2147483648",
	"priority = -2147483648", "priority = 2147483647", "id = -7",
	"claimed = '{null}'", "claimed = '{{2026-01-01 00:00Z,null},{2026-01-01 00:00Z,2026-01-01 00:00Z}}'", "claimed = '{{2026-01-01 00:00Z}}'",
	"claimed = '[0:1]={2026-01-01 00:00Z,2026-01-01 00:00Z}'", "claimed = '{infinity}'", "claimed = '{-infinity}'", "claimed = '{}'",
	"claimed = '{294276-12-31 23:59Z}'", "claimed = '{4713-01-01 00:00Z BC}'",
	"claimed = array_fill(null::timestamptz, array[150])", "claimed = array_fill(timestamptz '2026-01-01 00:00Z', array[2, 100])",
	"past_attempts = '{}'", "past_attempts = '5'", "past_attempts = 'null'", `past_attempts = '[1,"x",{},null,[]]'`, `past_attempts = '[{"attempt":"x"}]'`,
	`past_attempts = '[{"attempt":1e300,"ended_at":"never","outcome":5}]'`, `past_attempts = '[{"attempt":1,"ended_at":"infinity","outcome":"invalid","worker":{},"error":[]}]'`,
	`past_attempts = (select jsonb_agg('x'::text) from generate_series(1, 200))`,
	"occurrence = '5'", "occurrence = '[]'", "occurrence = 'null'", "meta = '5'", "meta = '[]'", "meta = 'null'",
	"publication = '5'", "publication = '[]'", "publication = 'null'", "event = '5'", "event = '[]'", "event = 'null'",
	"event_ts = '20000-01-01Z'", "event_ts = '0044-03-15Z BC'", "enqueued_at = 'infinity'", "enqueued_at = '-infinity'",
	"nacked_at = 'infinity'", "nacked_at = '-infinity'", "expires_at = 'infinity'", "vt = '4713-01-01 00:00Z BC'",
	"type = ''", "worker = ''", "key = ''", "source = ''", "last_error = ''", "requeued_from = -1",
}

// invalidQueueValues are further ones for events in a queue. A hypertable cannot store them.
var invalidQueueValues = []string{"event_ts = 'infinity'", "event_ts = '-infinity'", "event_ts = '294276-12-31 23:59Z'", "event_ts = '4713-01-01 00:00Z BC'"}

// invalidHistoryValues are further ones for events in history.
var invalidHistoryValues = []string{
	"finished_at = 'infinity'", "finished_at = '-infinity'", "finished_at = '294276-12-31 23:59Z'", "vt = 'infinity'", "vt = '-infinity'",
	"result = '5'", "requeued_as = -1", "retryable = true",
}

// insertInvalidRows inserts one event with each of the assignments into a queue or into history, and returns the ids.
func insertInvalidRows(t *testing.T, b env, table string, assignments []string) (ids []int64) {
	t.Helper()
	var columns, values string
	if table == "agent.event_hist" {
		columns, values = ", outcome, finished_at", ", 'done', now()"
	} else {
		columns, values = ", text_size", ", 2"
		b.exec(t, `alter table agent.event disable trigger user`)
	}
	for i, assignment := range assignments {
		id := int64(1000 + i)
		eventTS := "now()"
		column, value, _ := strings.Cut(assignment, " = ")
		switch column {
		case "event_ts": // the partition key of history
			eventTS, assignment = value, "attempts = 1"
		case "id":
			id, assignment = pgtest.Query[int64](t, b.sql, `select `+value+`::int8`), "attempts = 1"
		}
		b.exec(t, `
			insert into `+table+` (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at`+columns+`) overriding system value
			values ($1, `+eventTS+`, 1, now() - interval '1 minute', array[now() - interval '2 minutes'], '{}', 'invalid', now()`+values+`)`, id)
		b.exec(t, `update `+table+` set `+assignment+` where id = $1`, id)
		ids = append(ids, id)
	}
	if table == "agent.event" {
		b.exec(t, `alter table agent.event enable trigger user`)
	}
	return ids
}

func TestInvalidRowsAreReturned(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	waiting := insertInvalidRows(t, b, "agent.event", slices.Concat(invalidValues, invalidQueueValues))
	for _, q := range []string{"", "invalid"} {
		for _, state := range []queue.State{"", queue.Ready} {
			page, err := b.List(t.Context(), queue.ListParams{Queue: q, State: state, Limit: queue.MaxPage})
			if err != nil || len(page.Events) != len(waiting) {
				t.Errorf("waiting in %q: %d events, %v, want %d", q, len(page.Events), err, len(waiting))
			}
		}
	}
	b.exec(t, `create table public.waiting as select id from agent.event`)
	look := func(ids []int64, what []string) {
		t.Helper()
		for i, id := range ids {
			if e, err := b.Get(t.Context(), id); err != nil || e.ID != id || e.ErrorCount < 0 {
				t.Errorf("%s: got %+v, %v", what[i], e, err)
			}
			if _, err := b.Attempts(t.Context(), id); err != nil {
				t.Errorf("%s: the attempts: %v", what[i], err)
			}
		}
	}
	look(waiting, slices.Concat(invalidValues, invalidQueueValues))
	if _, err := b.queues(t, time.Hour); err != nil {
		t.Error(err)
	}
	b.exec(t, `delete from agent.event`)

	what := slices.Concat(invalidValues, invalidHistoryValues)
	gone := insertInvalidRows(t, b, "agent.event_hist", what)
	look(gone, what)
	long := time.Hour
	for _, p := range []queue.HistoryParams{
		{Limit: queue.MaxPage},
		{Limit: queue.MaxPage, HistoryFilter: queue.HistoryFilter{Queue: "invalid", Outcome: queue.Done}},
		{Limit: queue.MaxPage, HistoryFilter: queue.HistoryFilter{Contains: json.RawMessage(`{}`)}},
		{Limit: queue.MaxPage, HistoryFilter: queue.HistoryFilter{MinDuration: &long}},
	} {
		page, err := b.History(t.Context(), p)
		if err != nil || len(page.Events) == 0 || p.MinDuration == nil && p.Contains == nil && len(page.Events) != len(gone) {
			t.Errorf("history by %+v: %d events of %d, %v", p, len(page.Events), len(gone), err)
		}
	}
	if _, err := b.HistoryStats(t.Context(), queue.StatsParams{Bucket: time.Hour, From: time.Now().Add(-24 * time.Hour), To: time.Now()}); err != nil {
		t.Error(err)
	}
	if _, err := b.queues(t, time.Hour); err != nil {
		t.Error(err)
	}
}

func TestInvalidRowsAreClaimedAndFinished(t *testing.T) {
	t.Parallel()
	for _, p := range []queue.ClaimParams{{}, {Types: []string{"t"}}, {Order: queue.Random}} {
		b := setup(t, nil)
		ids := insertInvalidRows(t, b, "agent.event", slices.Concat(invalidQueueValues, invalidValues))
		if p.Types != nil {
			b.exec(t, `alter table agent.event disable trigger user`)
			b.exec(t, `update agent.event set type = 't'`)
		}
		p.Queue, p.Limit, p.MaxAttempts = "invalid", 1000, 100
		events := b.claim(t, p, len(ids)-3) // without those that have used up their own max_attempts
		for i, e := range events {
			var err error
			switch i % 4 {
			case 0:
				err = b.ack(t, lease(e)).Err
			case 1:
				_, err = b.Nack(t.Context(), queue.NackParams{Lease: lease(e), Error: "x"})
			case 2:
				_, err = b.Extend(t.Context(), lease(e), time.Minute)
			case 3:
				err = b.Release(t.Context(), []queue.Lease{lease(e)})
			}
			if err != nil {
				t.Errorf("event %d, claimed %v: %v", e.ID, e.Claimed, err)
			}
		}
	}
}

func TestInvalidRowsAreSweptPurgedAndRequeued(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	n := int64(len(insertInvalidRows(t, b, "agent.event", slices.Concat(invalidValues, invalidQueueValues))))
	age := time.Second
	if swept, err := b.Sweep(t.Context(), queue.SweepParams{MaxVTAge: &age}); swept != n || err != nil {
		t.Errorf("swept %d of %d, %v", swept, n, err)
	}
	refused := int64(0) // events that cannot be requeued
	for _, assignment := range invalidValues {
		for _, refusal := range []string{"max_attempts", "event = ", "meta = ", "type = ''", "source = ''"} {
			if strings.HasPrefix(assignment, refusal) {
				refused++
			}
		}
	}
	for try, want := range []int64{n - refused, 0} {
		result, err := b.RequeueMatching(t.Context(), queue.RequeueParams{})
		if result.Requeued != want || err != nil {
			t.Errorf("call %d: %+v, %v, want %d requeued", try, result, err, want)
		}
	}
	bad := pgtest.Query[int64](t, b.sql, `select id from agent.event_hist where event = '5'`)
	if _, err := b.Requeue(t.Context(), bad, nil); !errors.Is(err, queue.ErrInvalid) {
		t.Errorf("an invalid event was requeued: %v", err)
	}
	if purged, err := b.Purge(t.Context(), "invalid"); purged != n-refused || err != nil {
		t.Errorf("purged %d of %d, %v", purged, n-refused, err)
	}
	insertInvalidRows(t, b, "agent.event", []string{"claimed = '{{2026-01-01Z,null}}'", "occurrence = '5'"})
	if purged, err := b.Purge(t.Context(), "invalid"); purged != 2 || err != nil {
		t.Errorf("purged %d, %v", purged, err)
	}
}

func TestExtremePolicyStopsNeitherUpkeepNorCalls(t *testing.T) {
	t.Parallel()
	b := setup(t, func(c *queue.Config) { c.Retention = 30 * 24 * time.Hour })
	b.exec(t, `
		insert into agent.queue (name, invisible_for, backoff_kind, backoff_base, backoff_factor, backoff_max, backoff_jitter, history_retention)
		values ('invalid', '178000000 years', 'exponential', '178000000 years', 1000, '178000000 years', 1, '178000000 years')`)
	b.exec(t, `insert into agent.queue (name, history_retention) values ('short', '1 day')`)
	insertOldHistory(t, b.sql, 1, 10)
	b.exec(t, `update agent.event_hist set queue = 'short'`)
	b.exec(t, `insert into agent.execution values ('t', 'w', '', 0, '178000000 years', '0', '0', '0', now()), ('u', 'w', 'gone', 1, '178000000 years', '0', '0', '0', now()), ('u', 'w', 'gone too', 1, '178000000 years', '0', '0', '0', now())`)
	runService(t, b.Service)
	eventually(t, "the history of the other queue is pruned", func() bool { return pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist`) == 0 })
	eventually(t, "the executions are folded", func() bool {
		return slices.ContainsFunc(b.Upkeep(), func(u queue.UpkeepStats) bool { return u.Task == "executions" && u.Failures == 0 && !u.Done.IsZero() })
	})
	if all, err := b.Executions(t.Context(), nil, nil); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	policy, err := b.GetPolicy(t.Context(), "invalid")
	if err != nil || policy.Retention == nil {
		t.Errorf("%+v, %v", policy, err)
	}
	b.insertN(t, "invalid", 1)
	e := b.claim(t, queue.ClaimParams{Queue: "invalid"}, 1)[0]
	if _, err := b.Extend(t.Context(), lease(e), 0); err != nil {
		t.Error(err)
	}
	if _, err := b.Nack(t.Context(), queue.NackParams{Lease: lease(e)}); err != nil {
		t.Error(err)
	}
	waiting := whileWaiting(t, b, queue.ClaimParams{Queue: "invalid", MaxAttempts: 9}, func() { b.insertN(t, "invalid", 1) })
	if len(waiting) != 1 {
		t.Errorf("claimed %+v", waiting)
	}
}
