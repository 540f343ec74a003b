-- For operators: the failures of a time, the workers that are there, and what holds others back. None of these writes anything, and each reads a bounded number of rows.

-- The latest events of history, by event_ts, that ended as failed or expired and have an error: up to _limit of those that the filters take (see list_history), the newest
-- first, with the first _max_length characters of the error. At most _max_looked failed and expired events are looked at: if there are more, the last row has is_bound, and is one
-- of those that the filters take only if it has an id. _finished_from (inclusive) and _finished_to (exclusive) bound finished_at: where up to 200,000 events have finished within
-- that time, only those count as looked at.
create or replace function agent_service.list_failures
( _queue text default null
, _type text default null
, _from timestamptz default null
, _to timestamptz default null
, _queues text[] default null
, _limit int4 default 10000
, _max_looked int4 default 20000
, _max_length int4 default 600
, _finished_from timestamptz default null
, _finished_to timestamptz default null
)
returns table (id int8, queue text, type text, finished_at timestamptz, error text, is_bound boolean)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set datestyle to 'ISO' -- as in history_filter
set intervalstyle to 'postgres'
set enable_seqscan to off -- as in find_history
set enable_indexscan to on
set enable_bitmapscan to off
set enable_sort to off
set jit to off
as $func$
#variable_conflict use_column
declare
  _range text = agent_private.history_filter(_queue, _from, _to, null);
  _window text = agent_private.finished_window(_from, _to, _finished_from, _finished_to);
  _matches text = 'h.last_error is not null'
    || agent_private.history_filter(null, null, null, null, _type, _queues => _queues, _finished_from => _finished_from, _finished_to => _finished_to);
  _rows text;
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  if agent_private.is_small_window(_window) then
    perform agent_private.read_by_finished_at();
    _rows = format($sql$select h.* from (%s) h where h.outcome in ('failed', 'expired')%s$sql$, agent_private.window_rows(_window), _range);
  else
    _rows = format
    ( $sql$
        (select h.* from agent.event_hist h where h.outcome = 'failed'%s order by h.event_ts desc, h.id desc limit $2)
        union all
        (select h.* from agent.event_hist h where h.outcome = 'expired'%1$s order by h.event_ts desc, h.id desc limit $2)
      $sql$
    , _range);
  end if;
  -- Errors are cut before they are sent: PostgreSQL reads the beginning of a long one alone.
  return query execute format
  ( $sql$
      select case when f.matches then f.id end, f.queue, f.type, f.finished_at, case when f.matches then left(f.last_error, $1) end, f.n = $2
      from
      ( select h.id, h.queue::text, h.type::text, h.finished_at, h.last_error, h.event_ts, (%s) as matches, row_number() over (order by h.event_ts desc, h.id desc) as n
        from
        ( %s
          order by event_ts desc, id desc
          limit $2
        ) as h
      ) as f
      where f.matches or f.n = $2
      order by f.event_ts desc, f.id desc
      limit $3
    $sql$
  , _matches, _rows
  )
  using _max_length, _max_looked, _limit;
end
$func$;

-- The first _max_length characters of the errors of these events of history, and how many they have; no row where there is no such event.
create or replace function agent_service.event_errors(_ids int8[], _max_length int4 default 8192)
returns table (id int8, error text, length int4)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set enable_seqscan to off
set jit to off
as $func$
#variable_conflict use_column
begin
  return query select h.id, left(h.last_error, _max_length), length(h.last_error) from agent.event_hist h where h.id = any (_ids) and h.last_error is not null;
end
$func$;

-- The leases that run, of queues that a pattern of _queues stands for (null: all). Events that cannot be claimed yet are looked at, those first in each lane whose vt comes
-- first: leases, and delayed events. At most about _max_looked are: the events beyond are left out, and a row without an id says so. Of more than a thousand queues, all
-- events are looked at, in a sample of the blocks of a large table.
create or replace function agent_private.running_leases(_queues text[] default null, _max_looked int4 default 50000)
returns table (id int8, queue text, worker text, attempts int4, claimed_at timestamptz, extended_at timestamptz, ends_at timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan -- the bounds below are in the plan
set enable_seqscan to off
set enable_bitmapscan to off
set max_parallel_workers_per_gather to 0
set jit to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _names text[] = agent_private.waiting_queues_if_few();
  _max_blocks int8 = 30000;
  _blocks int8;
  _lanes int8;
  _each int8; -- events of a lane at most
begin
  if _names is null then
    _blocks = pg_relation_size('agent.event') / current_setting('block_size')::int8;
    return query
    select e.id, e.queue::text, e.worker::text, e.attempts, e.claimed[cardinality(e.claimed)], e.extended_at, e.vt
    from agent.event e tablesample system (least(100, 100 * _max_blocks / greatest(_blocks, 1)::float8))
    where e.vt > _now and e.attempts > 0 and e.nacked_at is null and agent_private.is_queue_allowed(e.queue, _queues);
    if _blocks > _max_blocks then
      return query select null::int8, null::text, null::text, null::int4, null::timestamptz, null::timestamptz, null::timestamptz;
    end if;
    return;
  end if;

  _names = array(select n.name from unnest(_names) as n (name) where agent_private.is_queue_allowed(n.name, _queues));
  select count(*) into _lanes from unnest(_names) as n (name) cross join lateral agent_private.list_lanes(n.name) as l;
  _each = greatest(_max_looked / greatest(_lanes, 1), 100);
  return query
  select case when k.is_lease then k.id end, k.queue::text, k.worker::text, k.attempts, k.claimed[cardinality(k.claimed)], k.extended_at, k.vt
  from unnest(_names) as n (name)
  cross join lateral agent_private.list_lanes(n.name) as l
  cross join lateral
  ( select e.*, e.attempts > 0 and e.nacked_at is null as is_lease, row_number() over (order by e.vt, e.id) as n
    from agent.event e
    where e.queue = n.name and e.priority = l.priority and e.vt > _now
    order by e.vt, e.id
    limit _each
  ) as k
  where k.is_lease or k.n = _each;
end
$func$;

-- The attempts that have ended within _lately, of the events of history that ended within that time, and of queues that a pattern of _queues stands for (null: all). Where many
-- events have ended, only those of a shorter time before now are read: since says from when on, in each row, and in one without an attempt if there is none. ok says whether the
-- attempt succeeded. Attempts at events that wait for another one count once these have ended.
create or replace function agent_private.ended_attempts(_lately interval, _queues text[] default null)
returns table (worker text, ok boolean, took interval, ended_at timestamptz, since timestamptz)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_custom_plan
set jit to off
set max_parallel_workers_per_gather to 0
set enable_seqscan to off
set enable_indexscan to off -- the block-range index needs a bitmap scan
set enable_bitmapscan to on
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _max_blocks int8 = 2500;
  _since timestamptz;
begin
  foreach _lately in array array[_lately, _lately / 4, _lately / 16, _lately / 64, _lately / 256, _lately / 1024] loop
    _since = _now - _lately;
    exit when coalesce((select sum(r.blocks) from agent_private.recent_history_blocks(_since) r), 0) <= _max_blocks;
  end loop;
  return query select null::text, null::boolean, null::interval, null::timestamptz, _since;
  return query
  with ended as materialized
  ( select h.worker::text, h.outcome, h.attempts, h.claimed, h.past_attempts, h.nacked_at, h.finished_at
    from agent.event_hist h
    where h.finished_at > _since and h.attempts > 0 and (h.outcome in ('done', 'failed') or h.past_attempts is not null)
    and agent_private.is_queue_allowed(h.queue, _queues)
  )
  select e.worker, e.outcome = 'done', agent_private.last_attempt_took(e.outcome, e.claimed, e.nacked_at, e.finished_at), coalesce(e.nacked_at, e.finished_at), _since
  from ended e
  where e.outcome in ('done', 'failed')
  union all
  select p.worker, false, agent_private.elapsed(agent_private.attempt_start(e.attempts, e.claimed, p.attempt), p.ended_at), p.ended_at, _since
  from ended e
  cross join lateral agent_private.read_attempts(e.past_attempts) p
  where e.past_attempts is not null and p.ended_at > _since and (p.attempt <> e.attempts or e.outcome not in ('done', 'failed'));
end
$func$;

-- The workers that hold a lease, or have ended an attempt within _lately: the first _limit of them, those with most leases first, then those seen last. worker is empty for claims
-- without a name. For each: how many leases run, in which queues (up to 100), when the oldest was claimed and when it ends; how many attempts have ended since
-- counted_since, how many of those without success, how long they took on average and at most; and when it was last seen, which is the time of its latest claim, extension of a lease that
-- it has, or end of an attempt. total is how many workers there are. is_complete is false if there were too many events to look at all of their leases. Only queues that a pattern of
-- _queues stands for count (null: all).
create or replace function agent.list_workers(_lately interval default interval '1 hour', _limit int4 default 100, _queues text[] default null)
returns table
( worker text, queues text[], leases int8, oldest_claimed_at timestamptz, oldest_ends_at timestamptz, ended int8, failed int8, average interval, longest interval
, last_seen_at timestamptz, total int8, counted_since timestamptz, is_complete boolean
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  if not coalesce(_lately between interval '1 second' and interval '24 hours', false) then
    perform agent_private.raise_invalid('lately', 'must be 1s to 24h');
  elsif coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  return query
  with lease as materialized
  ( select l.* from agent_private.running_leases(_queues) l
  )
  , attempt as materialized
  ( select a.* from agent_private.ended_attempts(_lately, _queues) a
  )
  , worker as
  ( select coalesce(l.worker, '') as name, count(*) as leases, (array_agg(distinct l.queue))[:100] as queues
    , min(l.claimed_at) as oldest_claimed_at, (array_agg(l.ends_at order by l.claimed_at))[1] as oldest_ends_at
    , 0::int8 as ended, 0::int8 as failed, null::interval as total_time, 0::int8 as timed, null::interval as longest, max(greatest(l.claimed_at, l.extended_at)) as last_seen_at
    from lease l
    where l.id is not null
    group by 1
    union all
    select coalesce(a.worker, ''), 0, null, null, null
    , count(*), count(*) filter (where not a.ok)
    , sum(a.took) filter (where a.took < interval '10000 years'), count(*) filter (where a.took < interval '10000 years') -- larger ones would overflow the sum
    , max(a.took), max(a.ended_at)
    from attempt a
    where a.ended_at is not null
    group by 1
    union all
    -- Whoever has acked something lately is there, also if the attempts of a shorter time were read.
    select x.worker, 0, null, null, null, 0, 0, null, 0, null, max(x.latest_at)
    from agent.execution x
    where _queues is null and x.latest_at > _now - _lately
    group by x.worker
  )
  , summed as
  ( select w.name, sum(w.leases)::int8 as leases, max(w.queues) as queues, max(w.oldest_claimed_at) as oldest_claimed_at, max(w.oldest_ends_at) as oldest_ends_at
    , sum(w.ended)::int8 as ended, sum(w.failed)::int8 as failed, max(w.total_time) / nullif(sum(w.timed), 0)::float8 as average, max(w.longest) as longest
    , max(w.last_seen_at) as last_seen_at
    from worker w
    group by w.name
  )
  select s.name, coalesce(s.queues, '{}'), s.leases, s.oldest_claimed_at, s.oldest_ends_at, s.ended, s.failed, s.average, s.longest, s.last_seen_at, t.total
  , t.counted_since, t.is_complete
  from
  ( select (select count(*) from summed), (select a.since from attempt a where a.ended_at is null), not exists (select from lease l where l.id is null)
  ) as t (total, counted_since, is_complete)
  left join (select * from summed u order by u.leases desc, u.last_seen_at desc, u.name limit _limit) as s on true
  order by s.leases desc, s.last_seen_at desc, s.name;
end
$func$;

-- What holds others back now, the oldest of each kind first, up to a hundred of each:
--
--   log_head              a transaction that has published and has not ended: what was published after it cannot be read
--   transaction           a transaction open for more than a minute whose snapshot or writes keep vacuum from removing dead rows
--   prepared_transaction  the same, prepared: it waits for commit prepared or rollback prepared
--   replication_slot      a slot that nobody reads, which keeps WAL and perhaps dead rows
--   hidden_sessions       sessions of other roles that the owner of the schema may not see: what they do is missing here
--   lease                 a lease that runs more than ten times as long as its queue's lease lasts
--   exhausted             events of a queue whose attempts were used up more than ten minutes ago, and which no sweep has moved
--   stopped_group         a group in order that has stopped for an event that failed; name is the group
--
-- what says what it does and advice what to do about it, since when it began; the other columns are null where they do not apply. of_kind is how many of the kind there are: a
-- thousand or more stand for at least that many. query has the first 200 characters of a session's latest statement, if _with_queries. Only queues that a pattern of _queues
-- stands for count (null: all); with such patterns, nothing is said about sessions, transactions and slots but that something holds the head. Events without a max_attempts of
-- their own or of their queue count as exhausted from _max_attempts on. is_complete is false if there were too many events to look at all of them.
create or replace function agent.list_holders(_queues text[] default null, _with_queries boolean default false, _max_attempts int4 default 3)
returns table
( kind text, what text, advice text, since timestamptz, queue text, event_id int8, worker text, pid int4, name text, role text, application text, database text, state text
, query_started_at timestamptz, query text, events int8, of_kind int8, is_complete boolean
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0
set plan_cache_mode to force_custom_plan
set enable_seqscan to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _max_exhausted int4 = 50000;
  _is_complete boolean;
begin
  return query
  select 'log_head', format('holds back the log after position %s: what was published since cannot be read', h.position)
  , case when h.pid is not null then format('have it commit or roll back; if its client is stuck: select pg_terminate_backend(%s)', h.pid)
    else format('commit prepared or rollback prepared %L', h.prepared) end
  , _now - h.age, null::text, null::int8, null::text, case when _queues is null then h.pid end, case when _queues is null then h.prepared end
  , s.usename::text, s.application_name, s.datname::text, s.state, s.query_start, case when _with_queries and _queues is null then left(h.query, 200) end
  , null::int8, 1::int8, true
  from agent.log_holder() h
  left join pg_stat_activity s on s.pid = h.pid and _queues is null;

  if _queues is null then
    return query
    select 'transaction'
    , 'keeps dead rows from being removed: tables and indexes grow, and claims slow down'
    , format(case when s.state like 'idle%%' then 'its client has left it open: have it end, or: select pg_terminate_backend(%s); idle_in_transaction_session_timeout ends such transactions'
        else 'wait for its statement, or cancel it: select pg_cancel_backend(%s)' end, s.pid)
    , s.xact_start, null::text, null::int8, null::text, s.pid, null::text, s.usename::text, s.application_name, s.datname::text, s.state, s.query_start
    , case when _with_queries then left(s.query, 200) end, null::int8, count(*) over (), true
    from pg_stat_activity s
    where s.xact_start < _now - interval '1 minute' and (s.backend_xmin is not null or s.backend_xid is not null) and s.pid <> pg_backend_pid()
    and (s.datname = current_database() or s.datname is null) and s.backend_type not in ('autovacuum worker', 'parallel worker')
    order by s.xact_start
    limit 100;

    return query
    select 'prepared_transaction'
    , 'keeps dead rows from being removed and its locks, also through restarts, until somebody ends it'
    , format('commit prepared %L, or rollback prepared %1$L', p.gid)
    , p.prepared, null::text, null::int8, null::text, null::int4, p.gid, p.owner::text, null::text, p.database::text, null::text, null::timestamptz, null::text, null::int8
    , count(*) over (), true
    from pg_prepared_xacts p
    where p.prepared < _now - interval '1 minute' and p.database = current_database()
    order by p.prepared
    limit 100;

    return query
    select 'replication_slot'
    , concat('nobody reads it: it keeps WAL on the disk', case when s.restart_lsn is not null and not pg_is_in_recovery() then
        ', ' || pg_size_pretty(greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)) || ' so far' end
      , case when s.xmin is not null or s.catalog_xmin is not null then ', and dead rows' end)
    , format('start its reader, or drop it: select pg_drop_replication_slot(%L)', s.slot_name)
    , null::timestamptz, null::text, null::int8, null::text, null::int4, s.slot_name::text, null::text, null::text, s.database::text, null::text, null::timestamptz, null::text, null::int8
    , count(*) over (), true
    from pg_replication_slots s
    where not s.active
    order by s.restart_lsn, s.slot_name
    limit 100;

    return query
    select 'hidden_sessions'
    , format('%s sessions of other roles are hidden from the owner of the schema, and %s of them have a snapshot or writes: how old these are cannot be said', h.n, h.holding)
    , format('grant pg_read_all_stats to %I', current_user)
    , null::timestamptz, null::text, null::int8, null::text, null::int4, null::text, null::text, null::text, null::text, null::text, null::timestamptz, null::text, null::int8
    , h.n, true
    from
    ( select count(*), count(*) filter (where s.backend_xmin is not null or s.backend_xid is not null)
      from pg_stat_activity s
      where s.query = '<insufficient privilege>' and s.pid <> pg_backend_pid() and (s.datname = current_database() or s.datname is null)
      and not pg_has_role(current_user, 'pg_read_all_stats', 'usage')
    ) as h (n, holding)
    where h.n > 0;
  end if;

  return query
  with lease as materialized
  ( select l.* from agent_private.running_leases(_queues) l
  )
  select 'lease'
  , case when l.id is null then 'there are too many events to look at all leases'
    else format('has been leased for %s, which is more than ten times the lease of its queue, %s', date_trunc('second', _now - l.claimed_at), l.usual) end
  , case when l.id is null then 'the leases that end first were looked at' else 'see whether the worker still works on it; once it stops extending the lease, another worker gets the event' end
  , l.claimed_at, l.queue, l.id, l.worker, null::int4, null::text, null::text, null::text, null::text, null::text, null::timestamptz, null::text, null::int8
  , count(*) over (), l.id is not null
  from
  ( select l.*, coalesce(q.invisible_for, interval '10 minutes') as usual
    from lease l
    left join agent.queue q on q.name = l.queue
    where l.id is not null and l.claimed_at < _now - 10 * least(coalesce(q.invisible_for, interval '10 minutes'), interval '1000 days')
    union all
    select null, null, null, null, null, null, null, null where exists (select from lease l where l.id is null)
  ) as l
  order by l.claimed_at nulls first, l.id
  limit 101;

  return query
  with looked as materialized
  ( ( select e.queue::text, e.vt, e.attempts, e.max_attempts, row_number() over () as n
      from agent.event e
      where e.attempts > 1 and e.vt < _now - interval '10 minutes'
      limit _max_exhausted
    )
    union all
    ( select e.queue::text, e.vt, e.attempts, e.max_attempts, row_number() over ()
      from agent.event e
      where e.attempts >= e.max_attempts and e.attempts = 1 and e.vt < _now - interval '10 minutes'
      limit _max_exhausted
    )
  )
  select 'exhausted'
  , format('%s events have used up their attempts and are still in the queue', count(*))
  , 'POST /sweep moves them to history; see whether a process with QUEUED_SWEEP_INTERVAL runs, and what its log says'
  , min(l.vt), l.queue, null::int8, null::text, null::int4, null::text, null::text, null::text, null::text, null::text, null::timestamptz, null::text, count(*)
  , count(*) over (), max(max(l.n)) over () < _max_exhausted
  from looked l
  left join agent.queue q on q.name = l.queue
  where l.attempts >= coalesce(l.max_attempts, q.max_attempts, _max_attempts) and agent_private.is_queue_allowed(l.queue, _queues)
  group by l.queue
  order by min(l.vt), l.queue
  limit 100;

  return query
  select 'stopped_group'
  , concat(format('the group %s of %s has stopped, since the event %s failed', b.key, b.queue, b.event_id), ': ' || left(h.last_error, 400))
  , 'requeue the event once its cause is gone: its copy takes its place; or unblock the group: it goes on without the event'
  , h.finished_at, b.queue::text, b.event_id, null::text, null::int4, b.key::text, null::text, null::text, null::text, null::text, null::timestamptz, null::text, null::int8
  , b.n, true
  from
  ( select b.*, count(*) over () as n
    from
    ( select distinct on (b.queue, b.key) b.queue, b.key, b.event_id
      from agent_private.group_block b
      join agent.queue q on q.name = b.queue and q.flow_on_failed = 'block'
      where b.requeued_as is null and agent_private.is_queue_allowed(b.queue, _queues)
      order by b.queue, b.key, b.place
    ) as b
    order by b.event_id
    limit 100
  ) as b
  left join lateral (select h.last_error, h.finished_at from agent.event_hist h where h.id = b.event_id limit 1) as h on true
  order by h.finished_at, b.event_id;
end
$func$;
