package pg_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pg"
	"github.com/queued/queued/internal/pgtest"
)

func TestColumnsAreReadIntoTheFieldsOfTheirNames(t *testing.T) {
	t.Parallel()
	type kind string
	type part struct {
		MaxAttempts *int32
		Payload     json.RawMessage `db:"event"`
	}
	type thing struct {
		ID int64
		part
		Kind    kind
		Took    time.Duration
		Claimed []time.Time
	}
	url := pgtest.New(t).URL
	for what, mode := range modes {
		conn := connect(t, url, mode)
		rows, _ := conn.Query(t.Context(), `
			select kind, id, event, max_attempts, took, claimed
			from (values ('once', 1::int8, '{"n": 1}'::jsonb, 3, interval '2 s', array['1970-01-01 00:00:05+00'::timestamptz]), (null, 2, null, null, null, null))
				v (kind, id, event, max_attempts, took, claimed)`)
		got, err := pg.Collect[thing](rows)
		want := []thing{
			{1, part{new(int32(3)), json.RawMessage(`{"n": 1}`)}, "once", 2 * time.Second, []time.Time{time.Unix(5, 0)}},
			{ID: 2},
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
		}

		rows, _ = conn.Query(t.Context(), `
			select i::int8 as id, i as max_attempts, to_jsonb(i) as event, array_fill(to_timestamp(i), array[2]) as claimed from generate_series(1, 2) i`)
		got, err = pg.Collect[thing](rows)
		want = nil
		for i := range int64(2) {
			at := time.Unix(i+1, 0)
			payload := strconv.AppendInt(nil, i+1, 10)
			want = append(want, thing{ID: i + 1, part: part{new(int32(i + 1)), payload}, Claimed: []time.Time{at, at}})
		}
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: rows share values: got %+v, %v, want %+v", what, got, err, want)
		}

		rows, _ = conn.Query(t.Context(), `select 1::int8 as id, 2 as other`)
		if _, err := pg.Collect[thing](rows); err == nil || !strings.Contains(err.Error(), "other") {
			t.Errorf("%s: a column without a field: %v", what, err)
		}
		rows, _ = conn.Query(t.Context(), `select 1::int8 / (i - 1) as id from generate_series(2, 0, -1) i`)
		if _, err := pg.Collect[thing](rows); err == nil {
			t.Errorf("%s: the error of the second row is lost", what)
		}
		rows, _ = conn.Query(t.Context(), `select 1::int8 as id where false`)
		if _, err := pg.CollectOne[thing](rows); !errors.Is(err, pgx.ErrNoRows) {
			t.Errorf("%s: none of one: %v", what, err)
		}
		rows, _ = conn.Query(t.Context(), `select i::int8 as id from generate_series(1, 9) i`)
		for row, err := range pg.Each[thing](rows) {
			if err != nil || row.ID == 2 {
				break
			}
		}
		if _, err := conn.Exec(t.Context(), `select 1`); err != nil {
			t.Errorf("%s: after rows that were not read to their end: %v", what, err)
		}
	}
}

func TestEveryRowIsOnOnePage(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b", "c", "d", "e"}
	read := func(after pg.Cursor, n int) ([]string, error) {
		from := 0
		if after.Name != nil {
			from = 1 + strings.Index("abcde", *after.Name)
		}
		return names[from:min(from+n, len(names))], nil
	}
	end := func(name *string) pg.Cursor { return pg.Cursor{Name: name} }
	for limit := 1; limit <= len(names)+1; limit++ {
		var all []string
		cursor := ""
		for pages := 0; ; pages++ {
			page, next, err := pg.ReadPage("names", cursor, limit, read, end)
			if err != nil || len(page) > limit || pages > len(names) {
				t.Fatalf("pages of %d: %q, %v", limit, page, err)
			}
			all = append(all, page...)
			if cursor = next; next == "" {
				break
			}
		}
		if !reflect.DeepEqual(all, names) {
			t.Errorf("pages of %s have %q", strconv.Itoa(limit), all)
		}
	}
	if _, _, err := pg.ReadPage("other", pg.Cursor{Listing: "names"}.String(), 1, read, end); !errors.Is(err, pg.ErrBadCursor) {
		t.Errorf("a cursor of another listing: %v", err)
	}
}
