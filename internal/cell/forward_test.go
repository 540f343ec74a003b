package cell

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
)

// insertOfSource inserts an event that has come in for a source, as the service does, with a number, and options.
func insertOfSource(t *testing.T, conn *pgx.Conn, queue string, n int, options string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), `select agent_service.insert_and_claim_events(array[$1]::text[]::jsonb[], array[$2], null, null
		, _options => array[$3]::text[]::jsonb[])`, fmt.Sprintf(`{"n":%d}`, n), queue,
		`{"verified_source":"hooks","meta":{"verified_source":"hooks"}`+options+`}`); err != nil {
		t.Fatal(err)
	}
}

// eventsIn returns the events of a database as "n queue", in their order.
func eventsIn(t *testing.T, conn *pgx.Conn) string {
	t.Helper()
	return pgtest.Query[string](t, conn, `select coalesce(string_agg(concat_ws(' ', e.event ->> 'n', e.queue), ', ' order by (e.event ->> 'n')::int, e.id), '') from agent.event e`)
}

func TestEventsWaitForTheCellThatTheirQueueIsPlacedOn(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s, conn := open(t, db, 0), pgtest.Connect(t, db.URL)
	insertOfSource(t, conn, "q", 1, "")
	place(t, s, "q", 3)
	place(t, s, "here", 0)
	place(t, s, "both", 0, 3)
	if _, err := s.Place(t.Context(), PlaceParams{Queue: "all"}); err != nil {
		t.Fatal(err)
	}
	insertOfSource(t, conn, "q", 2, `,"key":"k","key_scope":"source:hooks","max_attempts":4,"priority":5,"type":"t"`)
	insertOfSource(t, conn, "q", 2, `,"key":"k","key_scope":"source:hooks","max_attempts":4,"priority":5,"type":"t"`) // which is the same
	for i, queue := range []string{"here", "both", "all", "unplaced"} {
		insertOfSource(t, conn, queue, 3+i, "")
	}
	// What somebody inserts here by a call of his own stays.
	if _, err := conn.Exec(t.Context(), `select agent.insert_event('{"n":9}', 'q')`); err != nil {
		t.Fatal(err)
	}
	want := func(want string) {
		t.Helper()
		if got := eventsIn(t, conn); got != want {
			t.Errorf("there is %s\nwant %s", got, want)
		}
	}
	want("1 q, 2 queued.forward.3, 3 here, 4 both, 5 all, 6 unplaced, 9 q")

	// Those that were not claimed follow their queue.
	insertOfSource(t, conn, "q", 7, "")
	if _, err := conn.Exec(t.Context(), `update agent.event set attempts = 1, claimed = array[now()] where event ->> 'n' = '7'`); err != nil {
		t.Fatal(err)
	}
	place(t, s, "q", 4)
	want("1 q, 2 queued.forward.4, 3 here, 4 both, 5 all, 6 unplaced, 7 queued.forward.3, 9 q")
	place(t, s, "q", 0)
	want("1 q, 2 q, 3 here, 4 both, 5 all, 6 unplaced, 7 queued.forward.3, 9 q")
	got := pgtest.Query[string](t, conn, `select concat_ws(' ', e.key, e.max_attempts, e.priority, e.type, e.publication, e.vt <= now(), e.due_at) from agent.event e where e.event ->> 'n' = '2'`)
	if got != "k 4 5 t t" {
		t.Errorf("an event that came back is %s", got)
	}

	// Of several cells, each gets some.
	place(t, s, "many", 1, 2)
	for i := range 20 {
		insertOfSource(t, conn, "many", 100+i, "")
	}
	if n := pgtest.Query[int](t, conn, `select count(distinct queue)::int4 from agent.event where queue like 'queued.forward._' and event ->> 'n' >= '100' and event ->> 'n' < '120'`); n != 2 {
		t.Errorf("the events of a queue on two cells wait in %d queues", n)
	}
	if err := s.DeletePlacement(t.Context(), "many", nil); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, conn, `select count(*)::int4 from agent.event where queue = 'many'`); n != 20 {
		t.Errorf("%d events came back when their queue was placed nowhere", n)
	}
}

// Limits that are left here from a time before the placement do not hold up what waits to be brought away.
func TestLimitsOfAQueueThatIsPlacedElsewhereHoldUpNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s, conn := open(t, db, 0), pgtest.Connect(t, db.URL)
	for _, flow := range []string{`{"order": true}`, `{"concurrency": 1, "rate": {"limit": 1, "period": "1 h"}}`, `{"fair": true}`} {
		queue := fmt.Sprintf("q%d", len(flow))
		if _, err := conn.Exec(t.Context(), `select agent.put_queue($1, jsonb_build_object('flow', $2::jsonb))`, queue, flow); err != nil {
			t.Fatal(err)
		}
		for n := range 3 { // as deliveries and occurrences are: inserted first
			if _, err := conn.Exec(t.Context(), `select agent.insert_event(jsonb_build_object('n', $2::int), $1, _group => 'g')`, queue, n); err != nil {
				t.Fatal(err)
			}
		}
		place(t, s, queue, 3)
		if _, err := conn.Exec(t.Context(), `select agent_private.forward_events(array_agg(id)) from agent.event where queue = $1`, queue); err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			insertOfSource(t, conn, queue, 10+n, `,"group":"g"`)
			insertOfSource(t, conn, queue, 20+n, fmt.Sprintf(`,"group":"g","key":"%d"`, n))
		}
		if got := pgtest.Query[string](t, conn, `
			select concat_ws(' ', count(*), count(*) filter (where queue = 'queued.forward.3' and vt <= clock_timestamp() and turn_vt is null and publication #> '{forward,vt}' is null)) from agent.event
			where publication #>> '{forward,queue}' = $1`, queue); got != "9 9" {
			t.Errorf("of a queue with %s there are, and can be brought away: %s", flow, got)
		}
	}
}

func TestForwardedEventIsInsertedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	s, conn := open(t, db, 3), pgtest.Connect(t, db.URL)
	event := func(id int, queue, rest string) json.RawMessage {
		return json.RawMessage(fmt.Sprintf(`{"id":%d,"event":{"n":%[1]d},"publication":{"forward":{"queue":%q}}%s}`, id, queue, rest))
	}
	batch := []json.RawMessage{
		event(2, "q", `,"type":"t","source":"s","priority":7,"key":"k","event_ts":"2026-01-02T03:04:05Z","meta":{"verified_source":"hooks","traceparent":"x"},"occurrence":{"schedule_id":1}`),
		event(1, "q", `,"raw":{"body":"YXMgaXQ=","media_type":"text/plain","kept_until":"2999-01-01T00:00:00Z"}`),
		[]byte(`{"id":3,"event":{"n":3},"publication":{"forward":{"queue":"q","vt":"2999-01-01T00:00:00","max_attempts":4},"subscription":"s","position":17}}`),
		event(4, "queued.publish", ""), event(5, "", ""), []byte(`{"id":6,"event":[],"publication":{"forward":{"queue":"q"}}}`), []byte(`{"event":{}}`),
	}
	// The same publication or occurrence, which a failover has had home make once more, and others.
	for i, about := range []string{
		`"publication":{"forward":{"queue":"again","reader":5},"position":17}`, `"publication":{"forward":{"queue":"again","reader":5},"position":17}`,
		`"publication":{"forward":{"queue":"again","reader":6},"position":17}`, `"publication":{"forward":{"queue":"again","reader":5},"position":18}`,
		`"publication":{"forward":{"queue":"again"}},"occurrence":{"schedule_id":1,"nominal_at":"2026-01-02T03:04:05","scheduled_for":"2026-01-02T03:04:05Z"}`,
		`"publication":{"forward":{"queue":"again"}},"occurrence":{"schedule_id":1,"nominal_at":"2026-01-02T03:04:05","scheduled_for":"2026-01-02T03:04:05Z"}`,
		`"publication":{"forward":{"queue":"again"}},"occurrence":{"schedule_id":1,"nominal_at":"2026-01-03T03:04:05","scheduled_for":"2026-01-03T03:04:05Z"}`,
	} {
		batch = append(batch, []byte(fmt.Sprintf(`{"id":%d,"event":{"n":%[1]d},%s}`, 11+i, about)))
	}
	// Gateways of any number bring the same events at the same time, and again.
	ids := make([]string, 8)
	var inserting sync.WaitGroup
	for i := range ids {
		inserting.Go(func() {
			results, err := s.InsertForwarded(t.Context(), batch)
			if err != nil {
				t.Error(err)
			}
			for _, r := range results {
				ids[i] += fmt.Sprint(" ", r.Forwarded, ":", r.ID)
				if (r.ID == 0) != (r.Result == ForwardRefused) || (r.Reason == "") != (r.ID > 0) {
					t.Errorf("got %+v", r)
				}
			}
		})
	}
	inserting.Wait()
	for _, one := range ids {
		if one != ids[0] {
			t.Errorf("one gateway was told of the ids%s, and another one of%s", ids[0], one)
		}
	}
	if got := eventsIn(t, conn); got != "1 q, 2 q, 3 q, 11 again, 13 again, 14 again, 15 again, 17 again" {
		t.Errorf("there is %s", got)
	}
	got := pgtest.Query[string](t, conn, `
		select string_agg(concat_ws(' ', e.type, e.source, e.priority, e.key, e.max_attempts, e.event_ts at time zone 'UTC', e.meta, e.occurrence, e.publication, e.due_at at time zone 'UTC', convert_from(r.body, 'UTF8')), e'\n' order by e.event ->> 'n')
		from agent.event e left join agent.raw_body r on r.event_id = e.id where e.queue = 'q'`)
	lines := strings.Split(got, "\n")
	for i, want := range []string{"as it", `t s 7 k 2026-01-02 03:04:05 {"traceparent": "x", "verified_source": "hooks"} {"schedule_id": 1}`, `{"position": 17, "subscription": "s"} 2999-01-01 00:00:00`} {
		if !strings.Contains(lines[i], want) {
			t.Errorf("event %d is %s, want %s", i+1, lines[i], want)
		}
	}
	if strings.Contains(got, "forward") {
		t.Errorf("there is %s", got)
	}
}
