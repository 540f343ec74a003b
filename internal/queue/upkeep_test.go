package queue_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/internal/pgtest"
	"github.com/queued/queued/internal/queue"
)

// aged puts an event into history whose event_ts lies so many days back.
func aged(t *testing.T, conn *pgx.Conn, id int64, days int) {
	t.Helper()
	_, err := conn.Exec(t.Context(), `
		insert into agent.event_hist (id, event_ts, attempts, vt, claimed, event, queue, enqueued_at, outcome, finished_at)
		values ($1, now() - make_interval(days => $2), 1, now(), '{}', '{}', 'q', now(), 'done', now())`, id, days)
	if err != nil {
		t.Fatal(err)
	}
}

func TestRetentionDropsWhatIsOlder(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	for i, days := range []int{0, 1, 5, 25, 45, 400, 3000} {
		aged(t, sql, int64(i), days)
	}
	if _, err := sql.Exec(t.Context(), `select agent.keep_history()`); err != nil {
		t.Fatal(err)
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event_hist`); n != 7 {
		t.Errorf("without a retention %d of 7 events are left", n)
	}
	if _, err := sql.Exec(t.Context(), `select agent.keep_history('30 days')`); err != nil {
		t.Fatal(err)
	}
	// Whole weeks go at once, so an event may stay for up to seven days longer, but none goes early.
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event_hist where event_ts > now() - interval '30 days'`); n != 4 {
		t.Errorf("%d of the 4 events within the retention are left", n)
	}
	if n := pgtest.Query[int](t, sql, `select count(*) from agent.event_hist where event_ts < now() - interval '38 days'`); n != 0 {
		t.Errorf("%d events beyond the retention are left", n)
	}
}

func TestRetentionDropsWholePartitions(t *testing.T) {
	t.Parallel()
	sql := sqlBench(t)
	if pgtest.Query[string](t, sql, `select agent.history_kind()`) == "partitioned" {
		if _, err := sql.Exec(t.Context(), `select agent.make_history_partition(now() - interval '60 days')`); err != nil {
			t.Fatal(err)
		}
	}
	aged(t, sql, 1, 60)
	const partitions = `
		select count(*) from pg_catalog.pg_inherits where inhparent = 'agent.event_hist'::regclass`
	before := pgtest.Query[int](t, sql, partitions)
	if before < 1 {
		t.Fatalf("history has %d partitions", before)
	}
	if _, err := sql.Exec(t.Context(), `select agent.keep_history('30 days')`); err != nil {
		t.Fatal(err)
	}
	if after := pgtest.Query[int](t, sql, partitions); after != before-1 {
		t.Errorf("history has %d partitions, had %d", after, before)
	}
}

func TestPartitionsAreMadeAheadAndTakeOverFromTheDefault(t *testing.T) {
	t.Parallel()
	b := open(t, nil)
	if pgtest.Query[string](t, b.sql, `select agent.history_kind()`) != "partitioned" {
		return // a hypertable makes its chunks when they are needed
	}
	// As if nobody had seen to history for months: what comes in goes to the default partition.
	b.exec(t, `
		do $$ declare p text; begin
			for p in select c.oid::regclass from pg_catalog.pg_class c where c.relname ~ '^event_hist_[0-9]{8}$' loop
				execute 'drop table ' || p;
			end loop;
		end $$`)
	aged(t, b.sql, 1, 0)
	if n := pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist_default`); n != 1 {
		t.Fatalf("the default partition holds %d events", n)
	}
	running(t, b.Service)
	deadline := time.Now().Add(20 * time.Second)
	for pgtest.Query[int](t, b.sql, `select count(*) from agent.event_hist_default`) != 0 {
		if time.Now().After(deadline) {
			t.Fatal("the event stayed in the default partition")
		}
	}
	if h := b.get(t, 1); h.Outcome != queue.Done {
		t.Errorf("the event became %+v", h)
	}
	if n := pgtest.Query[int](t, b.sql, `
		select count(*) from pg_catalog.pg_class
		where relname ~ '^event_hist_[0-9]{8}$' and to_date(right(relname, 8), 'YYYYMMDD') > now() + interval '14 days'`); n < 1 {
		t.Error("no partition is ready for the weeks ahead")
	}
}
