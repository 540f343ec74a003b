-- Statistics: of queues and history, of executions by type and worker, and of the service's processes.

-- Counts of up to _limit queues (null: all) after _after by name, or of the queues _names: events by state, how long the oldest ready
-- event has been claimable (null: none is; at most 100,000 days), how many events became done, failed and expired within _lately (null: not
-- counted), whether the queue is paused, and the queues whose dead letters it takes, the first hundred of those that a pattern of _queues stands for. Counting takes as long as there is to count: counts are exact up to some 100,000 waiting
-- events and some 100,000 that ended lately. Beyond that the large counts are estimated from random blocks of the table, and estimated
-- is true. Of all queues, only those are counted that a pattern of _queues stands for (null: all) and that have _name_contains in their names, in upper or lower
-- case (null: all). To find these takes as long as there are queues after _after.
create or replace function agent.queue_stats
( _lately interval default interval '1 hour'
, _after text default null
, _limit int4 default null
, _names text[] default null
, _queues text[] default null
, _name_contains text default null
)
returns table
( queue text, ready int8, scheduled int8, waiting int8, leased int8, oldest_ready_age interval, done_lately int8, failed_lately int8, expired_lately int8
, estimated boolean, paused boolean, dead_letters_of text[]
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the query
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
begin
  if _limit < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  if _names is null then
    _names = array(select n from agent_private.queue_names(_after, _limit, _queues, _name_contains) n);
  end if;
  return query
  select n.name, coalesce(w.ready, 0), coalesce(w.scheduled, 0), coalesce(w.waiting, 0), coalesce(w.leased, 0)
  , agent_private.age_of(w.oldest_ready_at, _now)
  , coalesce(f.done, 0), coalesce(f.failed, 0), coalesce(f.expired, 0)
  , coalesce(w.estimated, false) or coalesce(f.estimated, false)
  , coalesce(p.paused, false)
  , array
    ( select q.name
      from agent.queue q
      where q.dead_letter_queue = n.name and agent_private.is_queue_allowed(q.name, _queues)
      order by q.name
      limit 100
    )
  from unnest(_names) as n (name)
  left join agent.queue p on p.name = n.name
  left join agent_private.count_waiting(_now, _names) w on w.queue = n.name
  left join
  ( select c.queue, sum(c.done)::int8 as done, sum(c.failed)::int8 as failed, sum(c.expired)::int8 as expired, bool_or(c.estimated) as estimated
    from agent_private.finished_counts(_now - _lately, _names) c
    group by c.queue
  ) as f on f.queue = n.name
  order by n.name;
end
$func$;

-- Up to _limit queues that have an event waiting or a policy, and how many such queues there are in all. If there are more than _limit,
-- the queues whose oldest ready event has waited longest and the queues with most events, in turn, found in a sample of a large table;
-- total is then the number of queues in the sample.
create or replace function agent_service.busiest_queues(_limit int4 default 500)
returns table (name text, total int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _share float8; -- of the blocks in the sample
  _names text[];
  _total int8;
begin
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  _names = agent_private.waiting_queues_if_few(_limit);
  _total = cardinality(_names);
  if _names is null then
    _share = least(1, 2500 / greatest(pg_relation_size('agent.event') / current_setting('block_size')::float8, 1));
    select array_agg(r.queue order by r.place, r.queue) filter (where r.place <= _limit), count(*) into _names, _total
    from
    ( select s.queue, row_number() over (order by least(s.by_age, s.by_size), s.by_age) as place
      from
      ( select c.queue
        , row_number() over (order by c.oldest, c.n desc) as by_age
        , row_number() over (order by c.n desc, c.oldest) as by_size
        from
        ( select e.queue, count(*) as n, min(e.vt) filter (where e.vt <= _now) as oldest
          from agent.event e tablesample system (100 * _share)
          group by e.queue
        ) as c
      ) as s
    ) as r;
  end if;
  return query
  select w.name, _total + (select count(*) from agent.queue q where q.name <> all (_names))
  from
  ( select n.name from unnest(_names) as n (name)
    union all
    ( select q.name from agent.queue q where q.name <> all (_names) order by q.name limit greatest(0, _limit - cardinality(_names)) )
  ) as w;
end
$func$;

-- Whether a name of a queue has _part (null: any) in it, in upper or lower case.
create or replace function agent_private.is_part_of_name(_part text, _name text)
returns boolean
language sql immutable parallel safe
return _part is null or strpos(lower(_name collate "C"), lower(_part collate "C")) > 0;

-- The names of up to _limit queues (null: all) after _after that have an event, waiting or in history, or a policy, that a pattern of
-- _queues stands for (null: all), and that have _name_contains in their names (null: all).
create or replace function agent_private.queue_names
( _after text default null
, _limit int4 default null
, _queues text[] default null
, _name_contains text default null
)
returns setof text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set enable_seqscan to off
set enable_bitmapscan to off
set jit to off
as $func$
declare
  _queue text = coalesce(_after, '');
  _n int4 = 0;
begin
  while _n < _limit or _limit is null loop
    _queue = least
    ( (select e.queue from agent.event e where e.queue > _queue order by e.queue limit 1)
    , (select h.queue from agent.event_hist h where h.queue > _queue order by h.queue limit 1)
    , (select q.name from agent.queue q where q.name > _queue order by q.name limit 1)
    );
    exit when _queue is null;
    continue when not agent_private.is_part_of_name(_name_contains, _queue) or not agent_private.is_queue_allowed(_queue, _queues);
    return next _queue;
    _n = _n + 1;
  end loop;
end
$func$;

-- How many events there are in these queues, by state, and since when the oldest ready one could have been claimed: exactly in the smallest ones, up to _exact events in all, and as an estimate in the others.
create or replace function agent_private.count_waiting(_now timestamptz, _names text[], _exact int8 default 100000)
returns table (queue text, ready int8, scheduled int8, waiting int8, leased int8, oldest_ready_at timestamptz, estimated boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the query
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _blocks float8 = pg_relation_size('agent.event') / current_setting('block_size')::int4;
  _share float8 = least(1, 250 / greatest(_blocks, 1)); -- of the blocks in the sample
begin
  return query
  with sample as materialized
  ( select s.queue
    , (s.ready / _share)::int8 as ready, (s.scheduled / _share)::int8 as scheduled, (s.waiting / _share)::int8 as waiting, (s.leased / _share)::int8 as leased
    , s.size / _share as size
    from
    ( select e.queue
      , count(*) filter (where e.state = 'ready') as ready
      , count(*) filter (where e.state = 'scheduled') as scheduled
      , count(*) filter (where e.state = 'waiting') as waiting
      , count(*) filter (where e.state = 'leased') as leased
      , count(*) as size
      -- offset: the state is computed once
      from (select e.queue, agent_private.event_state(e, _now) as state from agent.event e tablesample system (100 * _share) offset 0) as e
      group by e.queue
    ) as s
  )
  -- The smallest queues are counted exactly, as long as the sum is within the limit.
  , sized as
  ( select n.name, s.ready, s.scheduled, s.waiting, s.leased, coalesce(s.size, 0) as size
    , sum(coalesce(s.size, 0)) over (order by s.size nulls first, n.name) <= _exact as is_counted
    from unnest(_names) as n (name)
    left join sample s on s.queue = n.name
  )
  select z.name
  , case when c.is_whole then c.ready else coalesce(z.ready, c.ready) end + coalesce(t.waiting + t.scheduled, 0)
  , greatest(case when c.is_whole then c.scheduled else coalesce(z.scheduled, c.scheduled) end - coalesce(t.scheduled, 0), 0)
  , greatest(case when c.is_whole then c.waiting else coalesce(z.waiting, c.waiting) end - coalesce(t.waiting, 0), 0)
  , case when c.is_whole then c.leased else coalesce(z.leased, c.leased) end
  , least(agent_private.oldest_ready_at(z.name, _now), t.since)
  , not c.is_whole or not coalesce(t.is_whole, true)
  from sized z
  left join agent_private.count_next_turns(_names, _now) t on t.queue = z.name
  cross join lateral
  ( select z.is_counted and count(*) <= _exact
    , count(*) filter (where o.state = 'ready')
    , count(*) filter (where o.state = 'scheduled')
    , count(*) filter (where o.state = 'waiting')
    , count(*) filter (where o.state = 'leased')
    from
    ( select agent_private.event_state(e, _now) as state
      from agent.event e
      where e.queue = z.name
      limit case when z.is_counted then _exact + 1 else 0 end
    ) as o
  ) as c (is_whole, ready, scheduled, waiting, leased);
end
$func$;

-- How many events of these queues became done, failed and expired after _since (null: no rows). Up to 3,000 blocks of history, some 100,000
-- events, are counted. Of more, 24 runs of four blocks at random places are counted, which stand for all. A queue can have several rows,
-- to be added up.
create or replace function agent_private.finished_counts(_since timestamptz, _names text[])
returns table (queue text, done int8, failed int8, expired int8, estimated boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the query
set enable_seqscan to off
set enable_bitmapscan to on -- the block-range index needs it
as $func$
#variable_conflict use_column
declare
  _max_counted int8 = 3000; -- blocks
  _run_count int8 = 24;     -- of a sample of all of history
  _run_length int8 = 4;     -- blocks
  _part regclass;
  _first_block int8;
  _blocks int8;
  _all_blocks int8;
  _runs int8;
  _start int8;
begin
  if _since is null then
    return;
  end if;

  for _part, _first_block, _blocks, _all_blocks in
    select r.part, r.first_block, r.blocks, sum(r.blocks) over () from agent_private.recent_history_blocks(_since) r
  loop
    exit when _all_blocks <= _max_counted;
    _runs = ceil(_run_count * _blocks / _all_blocks::float8);
    for _run in 1 .. _runs loop
      _start = _first_block + floor(random() * greatest(1, _blocks - _run_length + 1));
      return query execute format
      ( 'select h.queue, (count(*) filter (where h.outcome = %L) * $2)::int8, (count(*) filter (where h.outcome = %L) * $2)::int8, (count(*) filter (where h.outcome = %L) * $2)::int8, true
         from only %s h where h.ctid >= %L and h.ctid < %L and h.finished_at > $1 and h.queue = any ($3) group by h.queue'
      , 'done', 'failed', 'expired', _part, format('(%s,0)', _start), format('(%s,0)', _start + _run_length)
      )
      using _since, _blocks::float8 / (_runs * least(_run_length, _blocks)), _names;
    end loop;
  end loop;

  if coalesce(_all_blocks, 0) <= _max_counted then
    return query
    select h.queue, count(*) filter (where h.outcome = 'done'), count(*) filter (where h.outcome = 'failed'), count(*) filter (where h.outcome = 'expired'), false
    from agent.event_hist h
    where h.finished_at > _since and h.queue = any (_names)
    group by h.queue;
  end if;
end
$func$;

-- The blocks of each chunk or partition of history that hold the events finished after _since. Events are appended, so these are its
-- last blocks, and a binary search finds the first of them.
create or replace function agent_private.recent_history_blocks(_since timestamptz)
returns table (part regclass, first_block int8, blocks int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _end int8;
  _low int8;
  _high int8;
  _middle int8;
  _finished_at timestamptz;
begin
  for part, _end in
    select i.inhrelid::regclass, pg_relation_size(i.inhrelid) / current_setting('block_size')::int4
    from pg_inherits i
    where i.inhparent = 'agent.event_hist'::regclass
  loop
    _low = 0;
    _high = _end;
    while _low < _high loop
      _middle = (_low + _high) / 2;
      execute format('select h.finished_at from only %s h where h.ctid >= %L limit 1', part, format('(%s,0)', _middle)) into _finished_at;
      if _finished_at <= _since then
        _low = _middle + 1;
      else
        _high = _middle;
      end if;
    end loop;
    first_block = _low;
    blocks = _end - _low;
    if blocks > 0 then
      return next;
    end if;
  end loop;
end
$func$;

-- Counts of history by outcome per time bucket of event_ts, from _from (inclusive) to _to (exclusive), of _queue (null: all). Buckets
-- are aligned to 1970-01-01 UTC; the first and the last may extend beyond the range but count only events in it. Empty buckets are
-- included.
create or replace function agent.history_stats(_bucket interval, _from timestamptz, _to timestamptz, _queue text default null, _queues text[] default null)
returns table (bucket timestamptz, done int8, failed int8, expired int8, cancelled int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- generate_series adds days of the session's zone, date_bin days of 24 hours
set jit to off
as $func$
#variable_conflict use_column
begin
  if _bucket is null or _bucket < interval '1 second' or extract(month from _bucket) <> 0 or extract(year from _bucket) <> 0 then
    perform agent_private.raise_invalid('bucket', 'must be at least a second and have no months');
  elsif not coalesce(isfinite(_from) and isfinite(_to) and _from < _to, false) then
    perform agent_private.raise_invalid('from', 'must be finite, and before to');
  end if;

  return query execute format
  ( $sql$
      select b.bucket, coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.expired, 0), coalesce(c.cancelled, 0)
      from generate_series(date_bin($1, $2, 'epoch'), $3 - interval '1 microsecond', $1) as b (bucket)
      left join
      ( select date_bin($1, h.event_ts, 'epoch')
        , count(*) filter (where h.outcome = 'done')
        , count(*) filter (where h.outcome = 'failed')
        , count(*) filter (where h.outcome = 'expired')
        , count(*) filter (where h.outcome = 'cancelled')
        from agent.event_hist h
        where true %s
        group by 1
      ) as c (bucket, done, failed, expired, cancelled) on c.bucket = b.bucket
      order by b.bucket
    $sql$
  , agent_private.history_filter(_queue, _from, _to, null, _queues => _queues)
  )
  using _bucket, _from, _to;
end
$func$;

-- Adds successful executions, each with its type, worker (null: unnamed) and duration, to a part of the statistics that nobody else
-- writes to at the same time (null: one for the transaction). With _counts, each element stands for so many executions: their sum is in
-- _times, the shortest and longest in _fastest and _longest, the last in _latest.
create or replace function agent_service.record_executions
( _types text[]
, _workers text[]
, _times interval[]
, _part text default null
, _counts int8[] default null
, _fastest interval[] default null
, _longest interval[] default null
, _latest interval[] default null
)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.execution as x (type, worker, part, cycles, total, fastest, longest, latest, latest_at)
  select coalesce(a.type, ''), coalesce(a.worker, ''), coalesce(_part, 'transaction ' || pg_current_xact_id()::text)
  , sum(coalesce(a.n, 1)), sum(a.took), min(coalesce(a.fastest, a.took)), max(coalesce(a.longest, a.took))
  , (array_agg(coalesce(a.latest, a.took) order by a.ord desc))[1], clock_timestamp()
  from unnest(_types, _workers, _times, _counts, _fastest, _longest, _latest) with ordinality
    as a (type, worker, took, n, fastest, longest, latest, ord)
  where a.took is not null
  group by 1, 2
  order by 1, 2
  on conflict (type, worker, part) do update
  set cycles = x.cycles + excluded.cycles
    , total = x.total + excluded.total
    , fastest = least(x.fastest, excluded.fastest)
    , longest = greatest(x.longest, excluded.longest)
    , latest = excluded.latest
    , latest_at = excluded.latest_at;
end
$func$;

-- The statistics by type and worker ('' where unnamed), of one type or worker unless that is null. average is total divided by cycles.
create or replace function agent.list_executions(_type text default null, _worker text default null)
returns table
( type text, worker text, cycles int8, latest interval, average interval, fastest interval, longest interval, total interval
, latest_at timestamptz
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  select x.type, x.worker, sum(x.cycles)::int8
  , (array_agg(x.latest order by x.latest_at desc))[1]
  , sum(x.total) / sum(x.cycles)::float8
  , min(x.fastest), max(x.longest), sum(x.total), max(x.latest_at)
  from agent.execution x
  where (_type is null or x.type = _type) and (_worker is null or x.worker = _worker)
  and x.cycles > 0 and x.total < interval '10000 years' -- larger ones would overflow the sum
  group by x.type, x.worker
  order by x.type, x.worker;
end
$func$;

-- Merges the statistics of transactions and of processes that are gone into one row, and deletes those of workers that have finished
-- nothing for _gone. Returns how many rows were deleted. Raises lock_not_available (55P03) while another session does it. The service
-- calls it now and then.
create or replace function agent.prune_executions(_gone interval default interval '30 days')
returns int8
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _deleted int8;
  _merged int8;
begin
  if not coalesce(_gone > interval '0', false) then
    perform agent_private.raise_invalid('gone', 'must be greater than zero');
  end if;
  perform agent_private.lock_upkeep('executions');

  with latest as (select x.type, x.worker, max(x.latest_at) as at from agent.execution x group by x.type, x.worker)
  delete from agent.execution x
  using latest l
  where l.type = x.type and l.worker = x.worker and l.at < clock_timestamp() - _gone;
  get diagnostics _deleted = row_count;

  with merged as
  ( delete from agent.execution x
    where x.part <> '' and not exists (select from agent.process_metric m where m.id = x.part) and x.total < interval '10000 years'
    returning x.*
  )
  , summed as
  ( select f.type, f.worker, sum(f.cycles) as cycles, sum(f.total) as total, min(f.fastest) as fastest, max(f.longest) as longest
    , (array_agg(f.latest order by f.latest_at desc))[1] as latest, max(f.latest_at) as latest_at, count(*) as n
    from merged f
    group by f.type, f.worker
  )
  , added as
  ( insert into agent.execution as x (type, worker, part, cycles, total, fastest, longest, latest, latest_at)
    select s.type, s.worker, '', s.cycles, s.total, s.fastest, s.longest, s.latest, s.latest_at
    from summed s
    order by s.type, s.worker
    on conflict (type, worker, part) do update
    set cycles = x.cycles + excluded.cycles
      , total = x.total + excluded.total
      , fastest = least(x.fastest, excluded.fastest)
      , longest = greatest(x.longest, excluded.longest)
      , latest = case when excluded.latest_at > x.latest_at then excluded.latest else x.latest end
      , latest_at = greatest(x.latest_at, excluded.latest_at)
    returning 1
  )
  select coalesce(sum(s.n), 0) into _merged from summed s;
  return _deleted + _merged;
end
$func$;

-- Sets the metrics of a process by category, and thereby reports that it runs.
create or replace function agent_service.report_process(_id text, _process text, _categories text[], _values text[])
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  insert into agent.process_metric as m (id, process, category, value, updated_at)
  select _id, _process, a.category, a.value, clock_timestamp()
  from unnest(_categories, _values) as a (category, value)
  order by a.category
  on conflict (id, category) do update
  set process = excluded.process, value = excluded.value, updated_at = excluded.updated_at;
end
$func$;

-- Fails where writes do: it writes a row of a process that is nobody else's, which takes a commit, and a file of about half a megabyte on the disk of the database's
-- tablespace, which ends with the statement and mostly never reaches the disk: a full disk may still have room for a row. For the service, which
-- calls it when it is asked whether it is ready and has written nothing for a second.
create or replace function agent_service.probe_write(_id text, _process text)
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set work_mem to '64kB' -- so that the rows below go into a file
set temp_tablespaces to ''
set jit to off
as $func$
begin
  begin
    perform count(*) from generate_series(1, 20000);
  exception when configuration_limit_exceeded then -- of a temp_file_limit, which bounds no writes
  end;
  perform agent_service.report_process(_id, _process, array['probed_at'], array[clock_timestamp()::text]);
end
$func$;

-- The metrics of the processes that have reported within _alive.
create or replace function agent.list_processes(_alive interval default interval '30 seconds')
returns table (id text, process text, category text, value text, updated_at timestamptz)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
begin
  return query
  select m.id, m.process, m.category, m.value, m.updated_at
  from agent.process_metric m
  where exists (select from agent.process_metric o where o.id = m.id and o.updated_at > clock_timestamp() - _alive)
  order by m.process, m.id, m.category;
end
$func$;

-- Deletes the metrics of a process that ends (_id), and of those that have not reported for _alive. One that has not reported for 15 s pushes no more, until it
-- reports again: other processes push its queues.
create or replace function agent_service.prune_processes(_id text default null, _alive interval default interval '30 seconds')
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  delete from agent.process_metric m
  where m.id = _id
  or m.category = 'pusher' and m.updated_at < clock_timestamp() - interval '15 seconds'
  or not exists (select from agent.process_metric o where o.id = m.id and o.updated_at > clock_timestamp() - _alive);
end
$func$;
