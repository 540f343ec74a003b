package workloads

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What this package says to the database about events stands here, and nowhere else. The first three are
// what the service says for a lone request, so that the difference in time is what HTTP and the service add.
const (
	postStatement = `
		select id, vt
		from agent.insert_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], _notify => false)`
	claimStatement = `
		select id, event_ts, enqueued_at, attempts, vt, claimed, event, last_error, requeued_from,
			coalesce(type, ''), coalesce(source, ''), priority, coalesce(key, ''), max_attempts, expires_at, coalesce(worker, ''), occurrence, prior_vt
		from agent.claim_from_watermarks($1, $2, $3, $4, $5)`
	ackStatement = `
		select ord, status, queue, repeated, coalesce(type, ''), coalesce(worker, ''), took
		from agent.ack_events($1, $2)`

	// What SQL users say.
	insertOneStatement = `select agent.insert_event($1::text::jsonb, $2)`
	claimOneStatement  = `select e.id, agent.receipt(e) from agent.claim_event(3, interval '24 hours', $1) e`

	// Backlogs, a statement per chunk. Events become claimable a microsecond after one another, as if posted in a
	// row, the newest of them now; those of the future lie between 1 and 2 hours ahead.
	readyStatement = `
		select min(i.id), max(i.id), count(*)
		from (select array_agg($1::text::jsonb), array_agg($2::text), array_agg(now() - (($3 - n) || ' us')::interval)
			from generate_series(1, $3::int) n) a (events, queues, vts)
		cross join agent.insert_events(a.events, a.queues, null, a.vts, _notify => false) i`
	delayedStatement = `
		select min(i.id), max(i.id), count(*)
		from (select array_agg($1::text::jsonb), array_agg($2::text), array_agg(interval '1 hour' + interval '1 hour' * n / $3)
			from generate_series(1, $3::int) n) a (events, queues, delays)
		cross join agent.insert_events(a.events, a.queues, a.delays, null, _notify => false) i`
	leaseStatement = `select count(*) from agent.claim_events($1, $2, 3, interval '24 hours')`

	checkpointStatement = `checkpoint`
	vacuumOffStatement  = `alter table agent.event set (autovacuum_enabled = off)`
	countStatement      = `select (select count(*) from agent.event) + (select count(*) from agent.event_hist)`
	snapshotStatement   = `select 1 from agent.event limit 1`

	sizesStatement = `
		select pg_relation_size('agent.event'), pg_indexes_size('agent.event'), pg_total_relation_size('agent.event')
		, (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8
			from pg_class c join pg_namespace n on n.oid = c.relnamespace
			where c.relkind = 'r' and (n.nspname = 'agent' and c.relname like 'event\_hist%' or n.nspname = '_timescaledb_internal'))
		, coalesce((select n_dead_tup from pg_stat_user_tables where schemaname = 'agent' and relname = 'event'), 0)`

	// A table like the queue's, to time a bare commit on.
	likeStatement     = `create table %s (like agent.event including all)`
	likeDropStatement = `drop table %s`
	likeInsert        = `insert into %s (event, queue) values ($1::text::jsonb, $2)`
)

// sqlPost enqueues one event as the service does.
func sqlPost(ctx context.Context, conn *pgx.Conn, queue, payload string) (id int64, err error) {
	var vt time.Time
	rows, _ := conn.Query(ctx, postStatement, []string{payload}, []string{queue}, nil, nil)
	_, err = pgx.ForEachRow(rows, []any{&id, &vt}, func() error { return nil })
	return id, err
}

// sqlClaim claims one event as the service does. There is none when id is zero.
func sqlClaim(ctx context.Context, conn *pgx.Conn, queue string) (id int64, receipt string, err error) {
	var (
		eventTS, enqueuedAt, vt, priorVT time.Time
		attempts                         int32
		claimed                          []time.Time
		event                            []byte
		lastError                        *string
		requeuedFrom                     *int64
		typ, source, key, worker         string
		priority                         int32
		maxAttempts                      *int32
		expiresAt                        *time.Time
		occurrence                       []byte
	)
	rows, _ := conn.Query(ctx, claimStatement, queue, 1, 3, 24*time.Hour, "fifo")
	_, err = pgx.ForEachRow(rows, []any{
		&id, &eventTS, &enqueuedAt, &attempts, &vt, &claimed, &event, &lastError, &requeuedFrom,
		&typ, &source, &priority, &key, &maxAttempts, &expiresAt, &worker, &occurrence, &priorVT,
	}, func() error {
		receipt = fmt.Sprintf("%d.%d.%d", id, attempts, claimed[len(claimed)-1].UnixMicro()) // as agent.receipt has it
		return nil
	})
	return id, receipt, err
}

// sqlAck finishes one event as the service does.
func sqlAck(ctx context.Context, conn *pgx.Conn, id int64, receipt string) error {
	var ord int
	var status string
	var queue *string
	var repeated bool
	var typ, worker string
	var took *time.Duration
	rows, _ := conn.Query(ctx, ackStatement, []int64{id}, []*string{&receipt})
	_, err := pgx.ForEachRow(rows, []any{&ord, &status, &queue, &repeated, &typ, &worker, &took}, func() error { return nil })
	if err == nil && status != "done" {
		err = fmt.Errorf("event %d was acked in SQL and is %s", id, status)
	}
	return err
}

// loadChunk is how many events one statement loads.
const loadChunk = 20_000

// load puts n events into a queue by one of the statements for backlogs, and notes them in the ledger.
func (s *session) load(ctx context.Context, srv *server, statement, queue string, n int, l *ledger) error {
	for done := 0; done < n; {
		s.progress.say("loading %d of %d events", done, n)
		chunk := min(loadChunk, n-done)
		var first, last, count int64
		if err := srv.db.conn.QueryRow(ctx, statement, string(s.payload), queue, chunk).Scan(&first, &last, &count); err != nil {
			return fmt.Errorf("loading events: %w", err)
		}
		if last-first+1 != count {
			return fmt.Errorf("loading events: somebody else uses the database that was made for this")
		}
		for id := first; id <= last; id++ {
			l.post(id)
		}
		done += chunk
	}
	return nil
}

// leaseAll claims n events by SQL.
func (srv *server) leaseAll(ctx context.Context, queue string, n int) error {
	for done := 0; done < n; done += loadChunk {
		var count int
		if err := srv.db.conn.QueryRow(ctx, leaseStatement, queue, min(loadChunk, n-done)).Scan(&count); err != nil {
			return fmt.Errorf("leasing events: %w", err)
		}
	}
	return nil
}
