-- Counting: queues as they stand, and history over time.

-- The names of up to _limit queues (null: all) after _after that have an event, waiting or in history, or a policy.
create or replace function agent_private.queue_names(_after text default null, _limit int4 default null)
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
    return next _queue;
    _n = _n + 1;
  end loop;
end
$func$;

-- Up to _limit queues (null: all) after _after, by name (see agent_private.queue_names), or those of _names, with what waits in each by state, how long the oldest ready event has been
-- claimable (null: none is; 100,000 days at most), and how many events left it as done and as expired within _lately (null: not asked), and whether it is paused.
-- Counting takes as long as there is to count, so counts are exact up to some 100,000 events that wait, and some 100,000 that left lately; beyond that the large ones are
-- estimated from a random sample of the table's blocks, and estimated is true.
create or replace function agent.queue_stats
( _lately interval default interval '1 hour'
, _after text default null
, _limit int4 default null
, _names text[] default null
)
returns table
( queue text, ready int8, scheduled int8, leased int8, oldest_ready_age interval, done_lately int8, expired_lately int8
, estimated boolean, paused boolean
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the rest
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
    _names = array(select n from agent_private.queue_names(_after, _limit) n);
  end if;
  return query
  select n.name, coalesce(w.ready, 0), coalesce(w.scheduled, 0), coalesce(w.leased, 0)
  , ( select least(_now - min(o.vt), interval '100000 days')
      from agent_private.list_lanes(n.name) as l
      cross join lateral
      ( select e.vt
        from agent.event e
        where e.queue = n.name and e.priority = l.priority and e.vt <= _now
        order by e.vt, e.id
        limit 1
      ) as o
      having count(*) > 0
    )
  , coalesce(f.done, 0), coalesce(f.expired, 0)
  , coalesce(w.estimated, false) or coalesce(f.estimated, false)
  , coalesce(p.paused, false)
  from unnest(_names) as n (name)
  left join agent.queue p on p.name = n.name
  left join agent_private.waiting_counts(_now, _names) w on w.queue = n.name
  left join
  ( select c.queue, sum(c.done)::int8 as done, sum(c.expired)::int8 as expired, bool_or(c.estimated) as estimated
    from agent_private.finished_counts(_now - _lately, _names) c
    group by c.queue
  ) as f on f.queue = n.name
  order by n.name;
end
$func$;

-- The names of up to _limit queues that have an event waiting, or a policy, and how many of these there are in all: of more than _limit those whose oldest ready
-- event is claimable the longest, and those with the most events, in turn. They are found in a sample of the table then, unless it is small, and
-- total is how many queues were seen.
create or replace function agent.busiest_queues(_limit int4 default 500)
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

-- What waits in these queues, by state. Private to the functions of this schema.
create or replace function agent_private.waiting_counts(_now timestamptz, _names text[])
returns table (queue text, ready int8, scheduled int8, leased int8, estimated boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the rest
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _exact int8 = 100000; -- events counted one by one
  _blocks float8 = pg_relation_size('agent.event') / current_setting('block_size')::int4;
  _share float8 = least(1, 250 / greatest(_blocks, 1)); -- of the blocks in the sample
begin
  return query
  with sample as materialized
  ( select s.queue
    , (s.ready / _share)::int8 as ready, (s.scheduled / _share)::int8 as scheduled, (s.leased / _share)::int8 as leased
    , (s.ready + s.scheduled + s.leased) / _share as size
    from
    ( select e.queue
      , count(*) filter (where e.vt <= _now) as ready
      , count(*) filter (where e.vt > _now and not (e.attempts > 0 and e.nacked_at is null)) as scheduled
      , count(*) filter (where e.vt > _now and e.attempts > 0 and e.nacked_at is null) as leased
      from agent.event e tablesample system (100 * _share)
      group by e.queue
    ) as s
  )
  -- The small ones are counted, as far as that goes.
  , sized as
  ( select n.name, s.ready, s.scheduled, s.leased, coalesce(s.size, 0) as size
    , sum(coalesce(s.size, 0)) over (order by s.size nulls first, n.name) <= _exact as is_counted
    from unnest(_names) as n (name)
    left join sample s on s.queue = n.name
  )
  select z.name
  , case when c.is_whole then c.ready else coalesce(z.ready, c.ready) end
  , case when c.is_whole then c.scheduled else coalesce(z.scheduled, c.scheduled) end
  , case when c.is_whole then c.leased else coalesce(z.leased, c.leased) end
  , not c.is_whole
  from sized z
  cross join lateral
  ( select z.is_counted and count(*) <= _exact
    , count(*) filter (where o.vt <= _now)
    , count(*) filter (where o.vt > _now and not o.is_leased)
    , count(*) filter (where o.vt > _now and o.is_leased)
    from
    ( select e.vt, e.attempts > 0 and e.nacked_at is null as is_leased
      from agent.event e
      where e.queue = z.name
      limit case when z.is_counted then _exact + 1 else 0 end
    ) as o
  ) as c (is_whole, ready, scheduled, leased);
end
$func$;

-- The blocks of each chunk or partition of history that have the events finished after _since. Events are appended, so that these are its last blocks, and
-- the first of them is found by binary search.
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

-- How many events left these queues as done and as expired after _since; no row when it is null. Up to 3,000 blocks of history, some 100,000 events, are counted.
-- Of more, about 24 runs of four blocks each are counted, at random places, and stand for the rest. A queue may have several rows, which the caller adds up.
create or replace function agent_private.finished_counts(_since timestamptz, _names text[])
returns table (queue text, done int8, expired int8, estimated boolean)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set jit to off
set max_parallel_workers_per_gather to 0 -- starting workers takes longer than the rest
set enable_seqscan to off
set enable_bitmapscan to on -- the block-range index is for nothing else
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
      ( 'select h.queue, (count(*) filter (where h.outcome = %L) * $2)::int8, (count(*) filter (where h.outcome = %L) * $2)::int8, true
         from only %s h where h.ctid >= %L and h.ctid < %L and h.finished_at > $1 and h.queue = any ($3) group by h.queue'
      , 'done', 'expired', _part, format('(%s,0)', _start), format('(%s,0)', _start + _run_length)
      )
      using _since, _blocks::float8 / (_runs * least(_run_length, _blocks)), _names;
    end loop;
  end loop;

  if coalesce(_all_blocks, 0) <= _max_counted then
    return query
    select h.queue, count(*) filter (where h.outcome = 'done'), count(*) filter (where h.outcome = 'expired'), false
    from agent.event_hist h
    where h.finished_at > _since and h.queue = any (_names)
    group by h.queue;
  end if;
end
$func$;

-- History counted by outcome per time bucket of event_ts, from _from (inclusive) to _to (exclusive), of _queue (null: all). Buckets are
-- aligned to 1970-01-01 UTC; the first and last may reach beyond the range but count only what lies in it. Empty buckets are there, too.
create or replace function agent.history_stats(_bucket interval, _from timestamptz, _to timestamptz, _queue text default null)
returns table (bucket timestamptz, done int8, failed int8, expired int8, cancelled int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set timezone to 'UTC' -- generate_series adds days of the session's zone, date_bin of 24 hours
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
  , agent_private.history_filter(_queue, _from, _to, null)
  )
  using _bucket, _from, _to;
end
$func$;
