-- Lanes: which there are, when the next event of a queue becomes claimable, and what low-water marks hide.

-- The lanes of _queue, of these types only or (null) whatever the type, found by leaping from one to the next.
-- Private to the functions of this schema.
create or replace function agent_private.list_lanes(_queue text, _types text[] default null)
returns table (type text, priority int4)
language plpgsql volatile
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _type text;
  _lane int4;
  _after int8;
begin
  if _types is null then
    _after = -2147483649;
    loop
      select e.priority into _lane from agent.event e where e.queue = _queue and e.priority > _after order by e.priority limit 1;
      exit when not found;
      return query select null::text, _lane;
      _after = _lane;
    end loop;
    return;
  end if;
  foreach _type in array _types loop
    _after = -2147483649;
    loop
      select e.priority into _lane from agent.event e
      where e.queue = _queue and e.type = _type and e.priority > _after order by e.priority limit 1;
      exit when not found;
      return query select _type, _lane;
      _after = _lane;
    end loop;
  end loop;
end
$func$;

-- How long until something of _queue may become claimable that is not so yet, an hour at most: null when nothing will
-- by itself.
create or replace function agent.next_vt(_queue text default 'default')
returns interval
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
declare
  _now timestamptz = clock_timestamp();
begin
  return
  ( select least(min(n.vt) - _now, interval '1 hour')
    from agent_private.list_lanes(_queue) as l
    cross join lateral
    ( select e.vt
      from agent.event e
      where e.queue = _queue and e.priority = l.priority and e.vt > _now
      order by e.vt, e.id
      limit 1
    ) as n
    having count(*) > 0
  );
end
$func$;

-- The lanes of _queue (see claim_from_watermarks), and in each the vt of the oldest event that could be claimed although it lies before the lane's
-- mark, and before now where it has none: what the marks hide. And how long it took to find out, in all.
create or replace function agent.check_watermarks
( _queue text
, _max_attempts int4
, _types text[] default null
, _lanes int4[] default null
, _lane_types text[] default null
, _marks timestamptz[] default null
)
returns table (type text, priority int4, vt timestamptz, took interval)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
set enable_sort to off
as $func$
#variable_conflict use_column
declare
  _start timestamptz;
  _took interval;
  _max int4 = coalesce((select q.max_attempts from agent.queue q where q.name = _queue), _max_attempts, 3);
  _found_types text[];
  _found_lanes int4[];
  _found_vts timestamptz[];
begin
  for _try in 1 .. 2 loop
    _start = clock_timestamp();
    select array_agg(l.type), array_agg(l.priority), array_agg
    ( case when l.type is null then
      ( select e.vt
        from agent.event e
        where e.queue = _queue and e.priority = l.priority and e.vt < least(m.mark, _start)
        and e.attempts < coalesce(e.max_attempts, _max) and (e.expires_at is null or e.expires_at > _start)
        order by e.vt, e.id
        limit 1
      ) else
      ( select e.vt
        from agent.event e
        where e.queue = _queue and e.type = l.type and e.priority = l.priority and e.vt < least(m.mark, _start)
        and e.attempts < coalesce(e.max_attempts, _max) and (e.expires_at is null or e.expires_at > _start)
        order by e.vt, e.id
        limit 1
      ) end
    )
    into _found_types, _found_lanes, _found_vts
    from agent_private.list_lanes(_queue, _types) as l
    left join unnest(_lanes, _lane_types, _marks) as m (priority, type, mark)
      on m.priority = l.priority and m.type is not distinct from l.type;
    _took = least(_took, clock_timestamp() - _start);
    exit when _took > interval '5 ms'; -- a short one may have been planning, or the first to come by
  end loop;
  return query select f.*, _took from unnest(_found_types, _found_lanes, _found_vts) as f;
end
$func$;
