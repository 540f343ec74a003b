package queue_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A plan that a session made while a table was nearly empty serves it until the table is analyzed again, however much has come
// and gone since. So a search by id must not find the indexes that keep an order attractive, not even then.
func TestSearchesByIDUseTheIndexOfTheIDsInTablesThatSeemEmpty(t *testing.T) {
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
						t.Errorf("%s goes by an index that keeps an order:\n%s", statement, plan)
					}
				}
				if _, err := sql.Exec(t.Context(), `deallocate lookup`); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
