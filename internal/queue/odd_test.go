package queue_test

import (
	"slices"
	"testing"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// Rows that nobody could have written by a call: by hand, as the owner, or by a restore that leaves the triggers out.

// pages returns the ids of all pages of a listing, of two events each.
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
	t.Fatalf("a hundred pages, and no end: %v", ids)
	return nil
}

func TestListingsPageThroughTimesThatNoAnswerCanHold(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	times := []string{
		"294276-12-31 23:59:59.999999+00", "20000-01-01 00:00+00", "20000-01-01 00:00+00", "10000-01-01 00:00+00", "2026-01-01 00:00+00",
		"0001-01-01 00:00+00", "0044-03-15 00:00+00 BC", "0044-03-15 00:00+00 BC", "4713-01-01 00:00+00 BC",
	}
	// A hypertable has no chunk for the others.
	historyTimes := []string{"20000-01-01 00:00+00", "20000-01-01 00:00+00", "10000-01-01 00:00+00", "2026-01-01 00:00+00", "0001-01-01 00:00+00", "0044-03-15 00:00+00 BC"}
	if pgtest.Query[string](t, b.sql, `select agent.history_kind()`) == "partitioned" {
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
