package queue_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// Numbers that take little of a table and much as text. What is stored is bounded, but the owner of the tables can write a row past the checks.

// hugeNumbers is a SQL expression of an object with so many numbers, each of 131,072 digits.
func hugeNumbers(n int) string {
	return fmt.Sprintf(`(select jsonb_build_object('n', jsonb_agg('1e131071'::jsonb)) from generate_series(1, %d))`, n)
}

// insertUnchecked inserts an event into the queue q past all checks, and returns its id.
func (b env) insertUnchecked(t *testing.T, event string) int64 {
	t.Helper()
	b.exec(t, `alter table agent.event disable trigger user`)
	defer b.exec(t, `alter table agent.event enable trigger user`)
	return pgtest.Query[int64](t, b.sql, `insert into agent.event (event, queue, vt, text_size)
		select e.event, 'q', now() - interval '1 hour', agent_private.stored_json_size(e.event) from (select `+event+`) as e (event) returning id`)
}

func TestStoringNumbersWithTooManyDigitsIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	b.insert(t, "q", `{}`)
	for _, number := range []string{"1e131071", "-1e131071", "1e1000", "1e-16383", "0e-16383", "-12.5e-1001"} {
		event := `{"a": [{"b": ` + number + `}]}`
		padded := `{"long": "` + strings.Repeat("x", 20_000) + `", "a": ` + number + `}`
		for _, call := range []string{
			`insert into agent.event (event) values ('` + event + `')`,
			`insert into agent.event (event) values ('` + padded + `')`,
			`insert into agent.event (event, occurrence) values ('{}', '` + event + `')`,
			`insert into agent.event (event, publication) values ('{}', '` + event + `')`,
			`insert into agent.event (event, past_attempts) values ('{}', '[` + event + `]')`,
			`update agent.event set event = '` + event + `'`,
			`select agent.insert_event('` + event + `')`,
			`select agent.insert_event('` + event + `', _key => 'k')`,
			`select agent.insert_event('{}', _meta => '` + event + `')`,
			`select agent.insert_event('{}', _key => 'k', _meta => '` + event + `')`,
			`select agent.insert_events(array['{}', '` + event + `']::jsonb[])`,
			`select agent_service.insert_and_claim_events('{"{}"}', null, null, null, _options => array['{"occurrence": ` + number + `}']::jsonb[])`,
			`select agent.delete_event(id, null, '` + event + `') from agent.event`,
			`select agent.delete_events(array_agg(id), null, array['` + event + `']::jsonb[]) from agent.event`,
			`select agent_service.insert_schedule(jsonb_build_object('queue', 'q', 'event', '` + event + `'::jsonb, 'kind', 'once', 'at_instant', now() + interval '1 day', 'next_at', now() + interval '1 day', 'next_local', now()::timestamp, 'zone', 'UTC'))`,
			`select agent_service.put_owner_if_match('o', 'UTC', '` + event + `', null, false)`,
		} {
			_, err := b.sql.Exec(t.Context(), call)
			if pgErr, ok := errors.AsType[*pgconn.PgError](err); !ok || pgErr.Code != "QD003" {
				t.Errorf("%.110s: %v", call, err)
			}
		}
		if _, err := b.Insert(t.Context(), []queue.InsertParams{{Event: json.RawMessage(event)}}); !errors.Is(err, queue.ErrInvalid) {
			t.Errorf("inserting %s: %v", number, err)
		}
	}
	for _, number := range []string{"1e999", "-1e999", "1.5e-999", strings.Repeat("7", 100_000), "0." + strings.Repeat("7", 16_000), "1." + strings.Repeat("3", 1500)} {
		b.insert(t, "q", `{"a": [{"b": `+number+`}]}`)
	}
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event`); n != 7 {
		t.Errorf("the queue has %d events, want 7", n)
	}
}

func TestHistoryIsListedBesideWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for i, column := range []string{"event", "result", "meta", "publication", "occurrence"} {
		b.exec(t, `insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
			values ($1, now(), 0, now(), '{}', '{"n": 1}', 'q', now(), 'done', now())`, i+1)
		b.exec(t, `update agent.event_hist set `+column+` = `+hugeNumbers(9000)+` where id = $1`, i+1)
	}
	page, err := b.History(t.Context(), queue.HistoryParams{})
	if err != nil || len(page.Events) != 5 {
		t.Fatalf("history has %d events, %v", len(page.Events), err)
	}
	for _, e := range page.Events {
		if (e.Payload == nil) != (e.ID == 1) || e.Result != nil || e.Meta != nil || e.Publication != nil || e.Occurrence != nil {
			t.Errorf("history has %+v", e)
		}
		if got, err := b.Get(t.Context(), e.ID); err != nil || (got.Payload == nil) != (e.ID == 1) {
			t.Errorf("got %+v, %v", got, err)
		}
	}
}

func TestPagesAndClaimsAreBoundedByWhatTheyHaveAsText(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	const events, numbers = 3, 66
	const size = numbers * 131_072 // as text: a bit more than a page may have; in the table it is 1 KB
	var want []int64
	for range events {
		want = append(want, b.insertUnchecked(t, hugeNumbers(numbers)))
	}
	b.exec(t, `insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		select id, enqueued_at, 0, vt, '{}', event, queue, enqueued_at, 'done', now() from agent.event`)
	for what, list := range map[string]func(cursor string) (queue.Page, error){
		"waiting": func(c string) (queue.Page, error) { return b.List(t.Context(), queue.ListParams{Cursor: c}) },
		"history": func(c string) (queue.Page, error) { return b.History(t.Context(), queue.HistoryParams{Cursor: c}) },
	} {
		ids := pages(t, func(cursor string) (queue.Page, error) {
			page, err := list(cursor)
			if len(page.Events) > 1 || err == nil && len(page.Events[0].Payload) < size {
				t.Errorf("%s: a page has %d events", what, len(page.Events))
			}
			return page, err
		})
		if slices.Sort(ids); !slices.Equal(ids, want) {
			t.Errorf("%s: the pages have %v", what, ids)
		}
	}
	for _, sql := range []string{
		`select sum(octet_length(event::text)) from agent.list_events('q', _max_bytes => 8388608)`,
		`select sum(octet_length(event::text)) from agent.list_history('q', _max_bytes => 8388608)`,
		`select sum(octet_length(event::text)) from agent_service.claim_from_watermarks('q', 1000, 3, interval '1 second', 'fifo', _max_bytes => 8388608)`,
	} {
		if sent := pgtest.Query[int64](t, b.sql, sql); sent > 2*size {
			t.Errorf("the database sends %d bytes: %s", sent, sql)
		}
	}
	b.exec(t, `update agent.event set vt = now()`)
	claimed, err := b.Claim(t.Context(), queue.ClaimParams{Queue: "q", Limit: 100})
	if err != nil || len(claimed) != 1 {
		t.Errorf("claimed %d events, %v", len(claimed), err)
	}
}

// idsOf are the ids of events.
func idsOf(events []queue.Event) (ids []int64) {
	for _, e := range events {
		ids = append(ids, e.ID)
	}
	return ids
}
