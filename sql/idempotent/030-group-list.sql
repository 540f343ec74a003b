-- Groups as they are listed: what there is of each, by key, and those with the longest lines.

-- The keys of up to _limit groups of a queue after _after: those that have events, those that something is set for, and those that have stopped.
create or replace function agent_private.next_groups(_queue text, _after text, _limit int4)
returns text[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _keys text[] = '{}';
begin
  while cardinality(_keys) < _limit loop
    _after = least
    ( (select e.group_key from agent.event e where e.queue = _queue and e.group_key > _after order by e.group_key limit 1)
    , ( select g.key from agent.queue_group g
        where g.queue = _queue and g.key > _after
        and (g.concurrency is not null or g.rate_limit is not null or g.paused or g.held_until is not null) -- as the index has it
        and (g.concurrency is not null or g.rate_limit is not null or g.paused or g.held_until > clock_timestamp())
        order by g.key
        limit 1
      )
    , (select b.key from agent_private.group_block b where b.queue = _queue and b.key > _after and b.requeued_as is null order by b.key limit 1)
    );
    exit when _after is null;
    _keys = _keys || _after;
  end loop;
  return _keys;
end
$func$;

-- What there is of these groups of a queue, in their order, as agent.list_groups has it: of one that has nothing, too.
create or replace function agent_private.describe_groups(_queue text, _keys text[])
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4
)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _max_counted int4 = 10000;
  _policy agent.queue;
  _blocking int8; -- with order, the event that the others wait for
  _until timestamptz; -- with a rate, when the next event can be claimed
  _set agent.queue_group;
  _hold_until timestamptz; -- of a wake
  _total int8;
begin
  select q.* into _policy from agent.queue q where q.name = _queue;
  select count(*) into _total
  from (select from agent.event e where e.in_total and e.queue = _queue and e.vt > _now and e.attempts > 0 and e.nacked_at is null limit coalesce(_policy.flow_total, 0)) as e;
  foreach key in array _keys loop
    concurrency = null;
    paused = false;
    held_until = null;
    version = null;
    updated_at = null;
    rate_limit = null;
    rate_period = null;
    rate_burst = null;
    select g.* into _set from agent.queue_group g where g.queue = _queue and g.key = describe_groups.key;
    _hold_until = (select max(w.hold_until) from agent_private.group_wake w where w.queue = _queue and w.key = describe_groups.key and w.hold_until > _now);
    if _hold_until is not null then
      _set.held_until = greatest(_set.held_until, _hold_until);
    end if;
    if agent_private.is_group_set(_set) then
      concurrency = _set.concurrency;
      paused = _set.paused;
      held_until = case when _set.held_until > _now then _set.held_until end;
      version = _set.version;
      updated_at = _set.updated_at;
      rate_limit = _set.rate_limit;
      rate_period = _set.rate_period;
      rate_burst = _set.rate_burst;
    end if;
    select count(*) into waiting
    from (select from agent.event e where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 3 limit _max_counted) as e;
    select min(e.turn_vt) into oldest
    from
    ( select e.turn_vt from agent.event e
      where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 3
      order by e.priority, e.id
      limit 100
    ) as e;
    select count(*) filter (where e.vt <= _now)
    , count(*) filter (where e.vt > _now and e.attempts > 0 and e.nacked_at is null)
    , count(*) filter (where e.vt > _now and not (e.attempts > 0 and e.nacked_at is null))
    , least(oldest, min(e.vt) filter (where e.vt <= _now)), min(e.vt) filter (where e.vt > _now and not (e.attempts > 0 and e.nacked_at is null))
    into admitted, leased, scheduled, oldest, next_at
    from
    ( select e.vt, e.attempts, e.nacked_at from agent.event e
      where e.queue = _queue and e.group_key = describe_groups.key and e.flow <= 2
      limit _max_counted
    ) as e;
    select least(waiting + count(*) filter (where e.turn_vt <= _now), _max_counted), least(oldest, min(e.turn_vt) filter (where e.turn_vt <= _now))
    , scheduled + count(*) filter (where e.turn_vt > _now), least(next_at, min(e.turn_vt) filter (where e.turn_vt > _now))
    into waiting, oldest, scheduled, next_at
    from
    ( select e.turn_vt from agent.event e
      where e.queue = _queue and e.group_key = describe_groups.key and e.flow = 4
      limit _max_counted
    ) as e;
    if waiting + scheduled > 0 and not paused and held_until is null and admitted + leased < coalesce(concurrency, _policy.flow_concurrency, _max_counted) then
      select admitted + count(*), waiting - count(*) filter (where t.state = 'waiting'), scheduled - count(*) filter (where t.state = 'scheduled')
      into admitted, waiting, scheduled
      from agent_private.next_turns(_queue, array[key], _now) t;
      next_at = case when scheduled > 0 then next_at end;
    end if;
    _until = null;
    if _policy.flow_paced and admitted = 0 then
      select min(e.vt) into _until
      from
      ( select e.vt from agent.event e
        where e.queue = _queue and e.group_key = describe_groups.key and e.flow between 0 and 1 and e.vt > _now and (e.attempts = 0 or e.nacked_at is not null)
        limit _max_counted
      ) as e;
    end if;
    _blocking = null;
    if _policy.flow_order then
      _blocking = coalesce
      ( case when _policy.flow_on_failed = 'block' then
        ( select b.event_id from agent_private.group_block b
          where b.queue = _queue and b.key = describe_groups.key and b.requeued_as is null
          order by b.place
          limit 1
        ) end
      , case when waiting + scheduled > 0 then
        ( select e.id from agent.event e
          where e.queue = _queue and e.group_key = describe_groups.key and e.flow <= 2
          order by e.flow, e.priority, e.id
          limit 1
        ) end
      );
    end if;
    blocked_by = case
      when waiting + admitted = 0 and _blocking is null and _until is null then null
      when _policy.paused then jsonb_build_object('reason', 'queue_paused')
      when paused then jsonb_build_object('reason', 'paused')
      when held_until is not null then jsonb_build_object('reason', 'hold', 'until', held_until)
      when _until is not null then jsonb_build_object('reason', 'rate', 'until', _until)
      when _blocking is not null then jsonb_build_object('reason', 'order', 'event_id', _blocking)
      when waiting > 0 and admitted + leased >= coalesce(concurrency, _policy.flow_concurrency)
        then jsonb_build_object('reason', 'concurrency', 'limit', coalesce(concurrency, _policy.flow_concurrency))
      when _total >= _policy.flow_total then jsonb_build_object('reason', 'total', 'limit', _policy.flow_total)
    end;
    return next;
  end loop;
end
$func$;

-- Up to _limit groups of a queue after _after by key, or the one _group: those that have events, and those that something is set for. Of their events, up to 10,000 of each kind are counted: waiting for their
-- turn, admitted and not leased, leased, and scheduled. oldest is since when the first in the line is due, next_at when the next scheduled one will be. blocked_by says why the
-- first one that waits does, as an object with a reason: queue_paused, paused, hold with until, rate with until, order with the event_id of the first one, which is unfinished, or of that for which the group has stopped, concurrency with its limit, or total with its limit; null: nothing waits, or it has its turn with the next claim.
-- version is that of what is set for it; null: nothing is. With _blocked only groups are listed that something blocks: to find these takes as long as there are groups after _after.
create or replace function agent.list_groups(_queue text, _limit int4 default 100, _after text default null, _group text default null, _blocked boolean default false)
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _keys text[];
  _n int4 = 0;
  _listed int4;
begin
  perform agent_private.check_queue_name(_queue);
  if coalesce(_limit, 0) < 1 then
    perform agent_private.raise_invalid('limit', 'must be at least 1');
  end if;
  if _group is not null then
    return query select d.* from agent_private.describe_groups(_queue, array[_group]) d where d.blocked_by is not null or not _blocked;
    return;
  end if;
  _after = coalesce(_after, '');
  loop
    _keys = agent_private.next_groups(_queue, _after, least(_limit - _n, 100));
    exit when _keys = '{}';
    return query select d.* from agent_private.describe_groups(_queue, _keys) d where d.blocked_by is not null or not _blocked;
    get diagnostics _listed = row_count;
    _n = _n + _listed;
    _after = _keys[cardinality(_keys)];
  end loop;
end
$func$;

-- agent.list_groups for the service: groups of a queue after _after by key, of which a call looks at a thousand. If it has come to no end then, the last row, which is not listed, says up to which
-- group it has looked.
create or replace function agent_service.list_groups(_queue text, _limit int4, _after text, _blocked boolean)
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4, is_listed boolean
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
#variable_conflict use_column
declare
  _max_looked int4 = 1000;
  _keys text[];
  _n int4;
begin
  perform agent_private.check_queue_name(_queue);
  while _limit > 0 loop
    _keys = agent_private.next_groups(_queue, _after, least(case when _blocked then 100 else _limit end, _max_looked));
    exit when _keys = '{}';
    return query
    select d.*, true from agent_private.describe_groups(_queue, _keys) d where d.blocked_by is not null or not _blocked limit _limit;
    get diagnostics _n = row_count;
    _limit = _limit - _n;
    _max_looked = _max_looked - cardinality(_keys);
    _after = _keys[cardinality(_keys)];
    if _max_looked <= 0 and _limit > 0 then
      key = _after;
      is_listed = false;
      return next;
      return;
    end if;
  end loop;
end
$func$;

-- What there is of one group, as agent.list_groups has it: also of one that has nothing. For the service.
create or replace function agent_service.get_group(_queue text, _group text)
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
begin
  perform agent_private.check_queue_name(_queue);
  return query select d.* from agent_private.describe_groups(_queue, array[_group]) d;
end
$func$;

-- Up to _limit groups of a queue, those first in which the most events wait for their turn. Of a queue with more than a thousand groups it counts a thousand: those of which a sample of 2,000 events, at
-- random from all that wait, has the most. A group with one in a hundred of these is in the sample but for one time in 500 million. For the service.
create or replace function agent_service.longest_groups(_queue text, _limit int4, _blocked boolean)
returns table
( key text, concurrency int4, paused boolean, held_until timestamptz, waiting int8, admitted int8, leased int8, scheduled int8
, oldest timestamptz, next_at timestamptz, blocked_by jsonb, version int8, updated_at timestamptz, rate_limit int4, rate_period interval, rate_burst int4
)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
declare
  _max_looked int4 = 1000;
  _keys text[];
begin
  perform agent_private.check_queue_name(_queue);
  _keys = agent_private.next_groups(_queue, '', _max_looked + 1);
  if cardinality(_keys) > _max_looked then
    _keys = agent_private.sample_groups(_queue, _max_looked);
  end if;
  return query
  select d.*
  from agent_private.describe_groups(_queue, _keys) d
  where d.blocked_by is not null or not _blocked
  order by d.waiting desc, d.oldest nulls last, d.key
  limit _limit;
end
$func$;

-- Up to _limit groups of a queue in which events wait, found by a sample of these: those first that have the most of it.
create or replace function agent_private.sample_groups(_queue text, _limit int4)
returns text[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
declare
  _sample int4 = 2000;
begin
  return array
  ( select s.group_key
    from
    ( select l.priority, l.first_id, l.last_id, greatest(_sample / count(*) over (), 1) as sample
      from
      ( select l.priority
        , ( select e.id from agent.event e
            where e.queue = _queue and e.priority = l.priority and e.vt = agent_private.no_turn()
            order by e.vt, e.id
            limit 1
          ) as first_id
        , ( select e.id from agent.event e
            where e.queue = _queue and e.priority = l.priority and e.vt = agent_private.no_turn()
            order by e.vt desc, e.id desc
            limit 1
          ) as last_id
        from agent_private.list_lanes(_queue) l
      ) as l
      where l.first_id is not null
    ) as l
    cross join lateral (select l.first_id + floor(random() * (l.last_id - l.first_id + 1))::int8 from generate_series(1, l.sample)) as r (id)
    cross join lateral
    ( select e.group_key
      from agent.event e
      where e.queue = _queue and e.priority = l.priority and e.vt = agent_private.no_turn() and e.id >= r.id
      order by e.vt, e.id
      limit 1
    ) as s
    where s.group_key <> '' -- which is no group: see default_group
    group by s.group_key
    order by count(*) desc, s.group_key
    limit _limit
  );
end
$func$;

-- How many of these groups of a queue wait, by what for, as agent.list_groups says it. It counts nothing beyond what an answer takes, so that it may look at many of them.
create or replace function agent_private.count_blocked_groups
  (_queue text, _keys text[], out concurrency int8, out in_order int8, out rate int8, out hold int8, out paused int8)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_hashjoin to off
set enable_mergejoin to off
as $func$
declare
  _now timestamptz = clock_timestamp();
  _max_counted int4 = 1000; -- of a group with so many admitted events and others that wait, one waits for a slot
  _policy agent.queue;
begin
  select q.* into _policy from agent.queue q where q.name = _queue;
  select count(*) filter (where b.reason = 'concurrency'), count(*) filter (where b.reason = 'order'), count(*) filter (where b.reason = 'rate')
  , count(*) filter (where b.reason = 'hold'), count(*) filter (where b.reason = 'paused')
  into concurrency, in_order, rate, hold, paused
  from unnest(_keys) as k (key)
  join agent.queue_group g on g.queue = _queue and g.key = k.key
  cross join lateral (select exists (select from agent.event e where e.queue = _queue and e.group_key = g.key and e.flow = 3) as waits) as w
  cross join lateral
  ( select case
      when _policy.paused then null
      when g.paused and w.waits then 'paused'
      when w.waits and
        ( g.held_until > _now
          or exists (select from agent_private.group_wake h where h.queue = _queue and h.key = g.key and h.hold_until is not null and h.hold_until > _now)
        ) then 'hold'
      when _policy.flow_paced
        and not exists (select from agent.event e where e.queue = _queue and e.group_key = g.key and e.flow <= 2 and e.vt <= _now)
        and exists
        ( select from agent.event e
          where e.queue = _queue and e.group_key = g.key and e.flow between 0 and 1 and e.vt > _now and (e.attempts = 0 or e.nacked_at is not null)
        ) then 'rate'
      when _policy.flow_on_failed = 'block'
        and exists (select from agent_private.group_block b where b.queue = _queue and b.key = g.key and b.requeued_as is null) then 'order'
      when _policy.flow_order and exists (select from agent.event e where e.queue = _queue and e.group_key = g.key and e.flow <= 2)
        and (w.waits or exists (select from agent.event e where e.queue = _queue and e.group_key = g.key and e.flow = 4)) then 'order'
      when w.waits and least(coalesce(g.concurrency, _policy.flow_concurrency), _max_counted) <=
        ( select count(*)
          from
          ( select from agent.event e
            where e.queue = _queue and e.group_key = g.key and e.flow <= 2
            limit least(coalesce(g.concurrency, _policy.flow_concurrency), _max_counted)
          ) as e
        ) then 'concurrency'
    end as reason
  ) as b;
end
$func$;

-- Counts, for metrics, the groups of queues with limits that wait, by what for, and the events that wait in the group that has the most of them. Of a queue with more than 1,000 groups it looks at about so many,
-- chosen anew each time, and the counts are estimates; the longest lines are found by a sample of what waits, as agent_service.longest_groups finds them, and up to 100,000 events of each are counted. Queues that it has
-- not come to after two seconds are the first ones of the next call. Raises lock_not_available (55P03) while another session does it. For the service, which calls it once a minute.
create or replace function agent_service.sample_groups()
returns void
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set max_parallel_workers_per_gather to 0
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
declare
  _began timestamptz = clock_timestamp();
  _max_looked int4 = 1000;
  _max_counted int4 = 100000;
  _queue text;
  _groups int8;
  _salt int8 = extract(epoch from _began)::int8;
  _keys text[];
  _blocked record;
  _share float8; -- by which the counts are multiplied
  _longest int8;
begin
  perform agent_private.lock_upkeep('queue_samples');
  delete from agent_private.group_sample s where not exists (select from agent.queue q where q.name = s.queue and q.flow_version is not null);
  for _queue in
    select q.name
    from agent.queue q
    left join agent_private.group_sample s on s.queue = q.name
    where q.flow_version is not null
    order by s.at nulls first, q.name
  loop
    exit when clock_timestamp() > _began + interval '2 seconds';
    select count(*) into _groups from agent.queue_group g where g.queue = _queue;
    _keys = array
    ( select g.key
      from agent.queue_group g
      where g.queue = _queue and (_groups <= _max_looked or hashtextextended(g.key, _salt) & 1048575 < 1048576.0 * _max_looked / _groups)
    );
    _share = case when cardinality(_keys) > 0 then _groups::float8 / cardinality(_keys) else 1 end;
    select b.* into _blocked from agent_private.count_blocked_groups(_queue, _keys) b;
    select coalesce(max(l.n), 0) into _longest
    from unnest(agent_private.sample_groups(_queue, 20)) as k (key)
    cross join lateral
    ( select count(*) as n
      from (select from agent.event e where e.queue = _queue and e.group_key = k.key and e.flow = 3 limit _max_counted) as e
    ) as l;
    insert into agent_private.group_sample as s (queue, at, concurrency, in_order, rate, hold, paused, longest)
    values (_queue, clock_timestamp(), round(_blocked.concurrency * _share), round(_blocked.in_order * _share), round(_blocked.rate * _share), round(_blocked.hold * _share)
    , round(_blocked.paused * _share), _longest)
    on conflict (queue) do update
    set at = excluded.at, concurrency = excluded.concurrency, in_order = excluded.in_order, rate = excluded.rate, hold = excluded.hold, paused = excluded.paused, longest = excluded.longest;
  end loop;
end
$func$;

-- What agent_service.sample_groups has found of these queues within the last hour. For the service.
create or replace function agent_service.list_group_samples(_names text[])
returns table (queue text, concurrency int8, in_order int8, rate int8, hold int8, paused int8, longest int8)
language sql stable
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select s.queue, s.concurrency, s.in_order, s.rate, s.hold, s.paused, s.longest
  from agent_private.group_sample s
  where s.queue = any (_names) and s.at > clock_timestamp() - interval '1 hour'
  order by s.queue
$func$;
