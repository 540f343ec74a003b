-- Groups as the service lists them: pages by key, and those with the longest lines.

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
    group by s.group_key
    order by count(*) desc, s.group_key
    limit _limit
  );
end
$func$;
