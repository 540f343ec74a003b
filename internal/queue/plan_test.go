package queue_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// A session uses a plan made for a nearly empty table until the table is analyzed again, however much the table has grown.
// Such a plan of a search by id must use the index of ids, too, and not an index that supports an order.
func TestSearchByIDUsesTheIDIndexWhenPlannedForEmptyTables(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	for name, prepare := range map[string]string{
		"never analyzed": `select 1`,
		"a few rows": `
			select agent.insert_event('{}') from generate_series(1, 16);
			select agent.delete_event(id) from agent.event where id <= 8;
			analyze agent.event; analyze agent.event_hist`,
		"only dead rows": `
			select agent.insert_event('{}') from generate_series(1, 1000);
			select agent.delete_event(id) from agent.event;
			analyze agent.event; analyze agent.event_hist`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sql := sqlBench(t)
			if _, err := sql.Exec(t.Context(), prepare); err != nil {
				t.Fatal(err)
			}
			for _, statement := range []string{
				`delete from agent.event e where e.id = any($1) returning e.*`,
				`delete from agent.event e using unnest($1::int8[]) a (id) where e.id = any($1) and e.id = a.id returning e.*`,
				`select e.* from agent.event e where e.id = ($1::int8[])[1] for update`,
				`select exists (select from agent.event e where e.id = ($1::int8[])[1])`,
				`select h.outcome from agent.event_hist h where h.id = any($1)`,
				`select h.* from agent.event_hist h where h.id = ($1::int8[])[1]`,
			} {
				if _, err := sql.Exec(t.Context(), `
					set plan_cache_mode to force_generic_plan; set jit to off;
					set enable_seqscan to off; set enable_bitmapscan to off; set enable_nestloop to off;
					prepare lookup (int8[]) as `+statement); err != nil {
					t.Fatal(err)
				}
				rows, err := sql.Query(t.Context(), `explain (costs off) execute lookup ('{1,2}')`)
				if err != nil {
					t.Fatal(err)
				}
				lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
				if err != nil {
					t.Fatal(err)
				}
				plan := strings.Join(lines, "\n")
				for _, order := range []string{"queue_vt_id", "outcome_ts"} {
					if strings.Contains(plan, order) {
						t.Errorf("%s does not use the index of ids:\n%s", statement, plan)
					}
				}
				if _, err := sql.Exec(t.Context(), `deallocate lookup`); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// A claim fetches few events beyond those it claims, however many are in other lanes or not claimable.
func TestClaimScansNoOtherEvents(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `
		insert into agent.event (event, vt, type, priority, attempts, claimed)
		select '{}', now() + l.due, l.type, l.priority, l.attempts, case when l.attempts > 0 then array[now()] else '{}' end
		from generate_series(1, 2000)
		cross join
		( values
		  (interval '1 hour', 'mine', 0, 0)    -- scheduled
		, (interval '1 hour', 'mine', 0, 1)    -- leased
		, (interval '1 hour', 'mine', -5, 0)   -- of a lane that comes first
		, (interval '1 hour', null, -6, 1)
		, (interval '-1 hour', 'other', 0, 0)  -- of another type, and older
		, (interval '-1 hour', 'other', 3, 0)  -- of a lane that comes later
		) as l (due, type, priority, attempts)`)
	mine := b.insertEvents(t, queue.InsertParams{Type: "mine"}, queue.InsertParams{Type: "mine"})
	for name, claim := range map[string]string{
		"typed":            `select id from agent.claim_events(_types => array['mine'])`,
		"typed, random":    `select id from agent.claim_events(_types => array['mine'], _order => 'random')`,
		"of several types": `select id from agent.claim_events(_types => array['none', 'mine'])`,
		"untyped":          `select id from agent.claim_events()`,
		"untyped, random":  `select id from agent.claim_event()`,
		"next vt":          `select case when agent_service.next_vt() > interval '0' then 0 end`,
	} {
		tx, err := b.sql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var id int64
		if err := tx.QueryRow(t.Context(), claim).Scan(&id); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.HasPrefix(name, "typed") && id != mine[0] && id != mine[1] {
			t.Errorf("%s: claimed event %d", name, id)
		}
		var fetched int
		if err := tx.QueryRow(t.Context(), `select idx_tup_fetch from pg_catalog.pg_stat_xact_user_tables where relid = 'agent.event'::regclass`).Scan(&fetched); err != nil {
			t.Fatal(err)
		}
		if fetched < 1 || fetched > 200 {
			t.Errorf("%s: %d events were fetched", name, fetched)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// The first event of a group in order is found by a few looks at its index, by a plan made for an empty table, too, however many events wait and however their priorities differ.
func TestTheFirstOfAGroupInOrderIsFoundByAFewLooks(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.limit(t, "q", `{"order": true}`)
	const first = `select agent_private.first_in_order('q', 'a', false)`
	b.exec(t, first) // planned
	b.exec(t, `
		select agent.insert_events(array_agg('{}'::jsonb), array_agg('q'::text), _options => array_agg(jsonb_build_object('group', 'a', 'priority', n % 1001 - 500)))
		from generate_series(1, 5000) n`)
	b.exec(t, `update agent.event set flow = case when id % 7 = 0 then 4 else 3 end`) // some are not due yet
	looks := func(tx pgx.Tx) (n int) {
		t.Helper()
		if err := tx.QueryRow(t.Context(), `select idx_scan + coalesce(idx_tup_fetch, 0) from pg_catalog.pg_stat_xact_user_tables where relid = 'agent.event'::regclass`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 1500 {
		tx, err := b.sql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var found, want int64
		before := looks(tx)
		if err := tx.QueryRow(t.Context(), first).Scan(&found); err != nil {
			t.Fatal(err)
		}
		n := looks(tx) - before
		if err := tx.QueryRow(t.Context(), `select min(id) from agent.event`).Scan(&want); err != nil {
			t.Fatal(err)
		}
		if found != want || n > 20 {
			t.Fatalf("the event %d was found by %d looks and entries, the first is %d", found, n, want)
		}
		if _, err := tx.Exec(t.Context(), `delete from agent.event where id = $1`, found); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// An insert with keys reads the keys that it has, and not the whole table, also where statistics say that there are only a few.
func TestInsertWithKeysReadsNoOtherKeys(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.insert_event('{}', _key => 'first'); analyze agent.idempotency`)
	b.exec(t, `select count(*) from agent.insert_events(array_fill('{}'::jsonb, array[1000]), _options => array(select jsonb_build_object('key', 'key-' || n) from generate_series(1, 1000) n))`)
	for name, insert := range map[string]string{
		"one":     `select agent.insert_event('{}', _key => 'one')`,
		"known":   `select agent.insert_event('{}', _key => 'key-7')`,
		"several": `select count(*) from agent.insert_events(array_fill('{}'::jsonb, array[10]), _options => array(select jsonb_build_object('key', 'many-' || n) from generate_series(1, 10) n))`,
	} {
		tx, err := b.sql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		read := func() (scanned, fetched int) { // so far, earlier transactions of the session included
			if err := tx.QueryRow(t.Context(), `
				select seq_tup_read, idx_tup_fetch from pg_catalog.pg_stat_xact_user_tables where relid = 'agent.idempotency'::regclass`).Scan(&scanned, &fetched); err != nil {
				t.Fatal(err)
			}
			return scanned, fetched
		}
		scannedBefore, fetchedBefore := read()
		if _, err := tx.Exec(t.Context(), insert); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if scanned, fetched := read(); scanned > scannedBefore || fetched-fetchedBefore > 100 {
			t.Errorf("%s: %d keys were read in the order of the table, %d by an index", name, scanned-scannedBefore, fetched-fetchedBefore)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Requeuing an event looks for it in each partition of history once, and reads and changes it in its own one only.
func TestRequeueLooksOnceIntoOtherPartitionsOfHistory(t *testing.T) {
	pgtest.EachFlavour(t)
	t.Parallel()
	b := setup(t, nil)
	b.exec(t, `select agent.insert_event('{}', _event_ts => now() - n * interval '8 days') from generate_series(0, 7) n`)
	b.exec(t, `select count(*) from agent.delete_events(array(select id from agent.event))`)
	partitions := pgtest.Query[int](t, b.sql, `select count(*) from pg_catalog.pg_inherits where inhparent = 'agent.event_hist'::regclass`)
	for _, id := range pgtest.Query[[]int64](t, b.sql, `select array_agg(id order by id) from agent.event_hist`) {
		tx, err := b.sql.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		scans := func() (n int) { // so far, earlier transactions of the session included
			if err := tx.QueryRow(t.Context(), `
				select coalesce(sum(seq_scan + coalesce(idx_scan, 0)), 0) from pg_catalog.pg_stat_xact_all_tables where relname ~ '^(event_hist|_hyper)'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := scans()
		var requeued int64
		if err := tx.QueryRow(t.Context(), `select id from agent.requeue_event($1)`, id).Scan(&requeued); err != nil {
			t.Fatal(err)
		}
		if n := scans() - before; partitions < 5 || n < 2 || n > partitions+3 {
			t.Errorf("%d partitions were scanned %d times", partitions, n)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
