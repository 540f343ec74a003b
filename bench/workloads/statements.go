package workloads

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/queued/queued/bench/load"
)

// All SQL of this package stands here. The first four are those of the service for a lone request and for a page of the log, so that the
// difference in time is that of HTTP and the service: TestStatementsAreTheServices compares them with its sources.
const (
	insertStatement = `
		select id, vt, null, null, null, null, replayed, null
		from agent_service.insert_and_claim_events($1::text[]::jsonb[], $2::text[], $3::interval[], $4::timestamptz[], $5::interval[], $6::text[], $7::text[]::jsonb[], $8, $9)`
	claimStatement = `
		select id, attempts, claim_token, slot, claimed, event_ts, enqueued_at, vt, event, last_error, requeued_from,
			type, source, priority, key, max_attempts, expires_at, worker, occurrence, meta, publication, dead_letter_of, prior_vt, group_key
		from agent_service.claim_from_watermarks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, _max_bytes => $12, _hashes => $13)`
	ackStatement = `
		select ord, status, queue, repeated, type, worker, took, ready_vt
		from agent_service.ack_events($1, $2, $3::text[]::jsonb[], $4::text[], $5, $6)`
	readLogStatement = `select head, gap_until, bytes, position, published_at, topic, event, meta, key, subscription, (select agent_service.log_origin()),
			case when gap_until is not null then (select agent_service.log_gap_reason($1)) end
		from agent_service.read_log_page($1, $2, $3, $4)`

	// Statements of SQL users.
	insertOneStatement = `select agent.insert_event($1::text::jsonb, $2)`
	claimOneStatement  = `select e.id, agent.receipt(e) from agent.claim_event(3, interval '24 hours', $1) e`

	// Backlogs, a statement for each chunk. Events become claimable a microsecond after one another, as if inserted in a
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
	// Events of one group, as the service inserts them.
	groupStatement = `
		select min(i.id), max(i.id), count(*)
		from agent_service.insert_and_claim_events
		( array_fill($1::text::jsonb, array[$3::int]), array_fill($2::text, array[$3::int]), null, null
		, _options => array_fill('{"group": "hot"}'::jsonb, array[$3::int])
		) i`
	publishedStatement = `
		select min(a.position), max(a.position), count(*)
		from agent_service.append_log(array_fill($2::text, array[$3::int]), array_fill($1::text::jsonb, array[$3::int])) a`
	leaseStatement = `select count(*) from agent.claim_events($1, $2, 3, interval '24 hours')`

	checkpointStatement     = `checkpoint`
	vacuumOffStatement      = `alter table agent.event set (autovacuum_enabled = off)`
	countDeliveredStatement = `select count(*), count(distinct coalesce(publication -> 'position', to_jsonb(id))) from agent.event where queue = $1`
	deleteQueuesStatement   = `
		with subscriptions as (select agent_service.delete_subscription_if_match(s.name, null) from agent.subscription s where s.name = any ($1))
		, deleted as (delete from agent.event where queue = any ($1))
		select count(*) from subscriptions`
	vacuumStatement     = `vacuum agent.event`
	countStatement      = `select (select count(*) from agent.event) + (select count(*) from agent.event_hist)`
	countQueueStatement = `
		select (select count(*) from agent.event where queue = $1) + (select count(*) from agent.event_hist where queue = $1)`
	existsStatement   = `select exists (select from agent.event where id = $1 and queue = $2)`
	snapshotStatement = `select 1 from agent.event limit 1`
	schemaStatement   = `select version from agent.version`

	// Sessions report their commits up to a second late.
	countersStatement = `
		select (pg_current_wal_lsn() - '0/0')::int8, xact_commit
		from pg_stat_database where datname = current_database()`
	sizesStatement = `
		select pg_relation_size('agent.event'), pg_indexes_size('agent.event'), pg_total_relation_size('agent.event')
		, (select coalesce(sum(pg_total_relation_size(c.oid)), 0)::int8
			from pg_class c join pg_namespace n on n.oid = c.relnamespace
			where c.relkind = 'r' and (n.nspname = 'agent' and c.relname like 'event\_hist%' or n.nspname = '_timescaledb_internal'))
		, coalesce((select n_dead_tup from pg_stat_user_tables where schemaname = 'agent' and relname = 'event'), 0)`
	// The tables that publishing and reading change, in MiB and dead rows, those of the log's segments first.
	logSizesStatement = `
		select coalesce(sum(pg_total_relation_size(s.relid)) filter (where s.relname ~ '^log_[0-9]+$'), 0)::float8 / 1048576
		, coalesce(sum(s.n_dead_tup) filter (where s.relname ~ '^log_[0-9]+$'), 0)::float8
		, coalesce(sum(pg_total_relation_size(s.relid)) filter (where s.relname !~ '^log_[0-9]+$'), 0)::float8 / 1048576
		, coalesce(sum(s.n_dead_tup) filter (where s.relname !~ '^log_[0-9]+$'), 0)::float8
		from pg_stat_user_tables s
		where s.schemaname = 'agent' and (s.relname ~ '^(log|subscription)' or s.relname in ('outgoing', 'publication_key'))`
	publishStatement  = `select agent.publish($1, $2::text::jsonb)`
	versionsStatement = `
		select current_setting('server_version'), coalesce((
			select default_version from pg_available_extensions
			where name = 'timescaledb' and current_setting('shared_preload_libraries') like '%timescaledb%'), '')`
	settingsStatement = `
		select name, current_setting(name), source not in ('default', 'client', 'override') and setting is distinct from boot_val
		from pg_settings
		where name not like '%\_file' and name not in ('data_directory', 'unix_socket_directories', 'unix_socket_permissions', 'port')`

	// A table like the queue's, to time a bare commit on.
	likeStatement     = `create table if not exists public.queued_bench (like agent.event including all)`
	likeDropStatement = `drop table if exists public.queued_bench`
	likeInsert        = `insert into public.queued_bench (event, queue, text_size) values ($1::text::jsonb, $2, octet_length($1))`

	// The log as others keep it: places by a sequence and by transaction, and readers that stay behind the oldest transaction of the server,
	// as Watermill's do.
	xminStatement = `
		create table public.queued_bench_log
		( "offset" bigserial, transaction_id xid8 not null default pg_current_xact_id(), published_at timestamptz not null, topic text not null
		, event jsonb not null, meta jsonb, key text, subscription text
		, primary key (transaction_id, "offset") );
		insert into public.queued_bench_log (published_at, topic, event, meta, key, subscription)
		select published_at, topic, event, meta, key, subscription from agent.log order by position;
		analyze public.queued_bench_log`
	readXminStatement = `
		select "offset", transaction_id, published_at, topic, event, meta, key, subscription
		from public.queued_bench_log
		where (transaction_id, "offset") > ($1::xid8, $2::int8) and transaction_id < pg_snapshot_xmin(pg_current_snapshot())
		order by transaction_id, "offset"
		limit $3`
)

// sqlInsert inserts one event as the service does.
func sqlInsert(ctx context.Context, conn *pgx.Conn, queue, payload string) error {
	rows, _ := conn.Query(ctx, insertStatement, []string{payload}, []string{queue}, nil, nil, nil, nil, nil, 24*time.Hour, nil)
	_, err := pgx.ForEachRow(rows, make([]any, 8), func() error { return nil })
	return err
}

// sqlClaim claims one event as the service does where it knows of no watermark. There is none when the id is zero.
func sqlClaim(ctx context.Context, conn *pgx.Conn, queue string) (id int64, receipt string, err error) {
	var attempts int32
	random := make([]byte, 8)
	_, _ = rand.Read(random) // never fails
	token := hex.EncodeToString(random)
	columns := make([]any, 24)
	columns[0], columns[1] = &id, &attempts
	rows, _ := conn.Query(ctx, claimStatement, queue, 1, 3, 24*time.Hour, "fifo", nil, nil, nil, nil, nil, nil, 8<<20, tokenHash(token))
	_, err = pgx.ForEachRow(rows, columns, func() error {
		receipt = fmt.Sprintf("%d.%d.%s", id, attempts, token) // as agent.receipt has it
		return nil
	})
	return id, receipt, err
}

// tokenHash is what the database keeps of the random part of a receipt.
func tokenHash(token string) []byte {
	sum := sha256.Sum256([]byte(token))
	return sum[:8]
}

// sqlAck acks one event as the service does.
func sqlAck(ctx context.Context, conn *pgx.Conn, id int64, receipt string) error {
	var status string
	columns := make([]any, 8)
	columns[1] = &status
	parts := strings.Split(receipt, ".")
	attempt, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil {
		return fmt.Errorf("reading the receipt of event %d: %w", id, err)
	}
	rows, _ := conn.Query(ctx, ackStatement, []int64{id}, []*string{&receipt}, nil, nil, []int32{int32(attempt)}, [][]byte{tokenHash(parts[2])})
	_, err = pgx.ForEachRow(rows, columns, func() error { return nil })
	if err == nil && status != "done" {
		err = fmt.Errorf("event %d was acked in SQL and is %q", id, status)
	}
	return err
}

// loadChunk is how many events one statement loads.
const loadChunk = 20_000

// load puts n events into a queue, or a topic, by one of the statements for backlogs, and notes them in the account.
func (s *session) load(ctx context.Context, srv *server, statement, queue string, n int, a *load.Account) error {
	for done := 0; done < n; {
		s.progress.show("loading %d of %d events", done, n)
		chunk := min(loadChunk, n-done)
		var first, last, count int64
		if err := srv.db.conn.QueryRow(ctx, statement, string(s.payload), queue, chunk).Scan(&first, &last, &count); err != nil {
			return fmt.Errorf("loading events: %w", err)
		}
		if last-first+1 != count {
			return fmt.Errorf("loading events: another program uses the database that was made for this")
		}
		for id := first; id <= last; id++ {
			a.Inserted(id)
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
