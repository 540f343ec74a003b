-- Sweeping: what nobody will finish any more leaves for history as expired.

-- The names of all queues with an event in them, found by leaping from one to the next in the index.
create or replace function agent.waiting_queues()
returns setof text
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _queue text = '';
begin
  loop
    select e.queue into _queue from agent.event e where e.queue > _queue order by e.queue limit 1;
    exit when not found;
    return next _queue;
  end loop;
end
$func$;

-- Expires events that were claimed _max_attempts times, and those that have been claimable for longer than _max_vt_age (null:
-- whatever their age), in _queue or (null) all queues, up to about _limit (null: all there are). An event whose last lease
-- still runs is never taken. Returns how many went, by queue.
create or replace function agent.expire_events
( _max_attempts int4 default 3
, _max_vt_age interval default interval '1 hour'
, _queue text default null
, _limit int4 default null
)
returns table (queue text, expired int8)
language plpgsql volatile
security definer
set search_path to pg_catalog, pg_temp
set plan_cache_mode to force_generic_plan
set jit to off
set enable_seqscan to off
set enable_bitmapscan to off
as $func$
#variable_conflict use_column
declare
  _now timestamptz = clock_timestamp();
  _name text;
  _aged int8[];
  _ids int8[] = '{}';
begin
  perform agent.refuse('max_attempts', 'must be at least 1') where coalesce(_max_attempts, 0) < 1;
  perform agent.refuse('max_vt_age', 'must not be negative') where _max_vt_age < interval '0';
  perform agent.refuse('limit', 'must be at least 1') where _limit < 1;

  if _max_attempts > 1 then
    _ids = array
    ( select e.id
      from agent.event e
      where e.attempts > 1 and e.attempts >= _max_attempts and e.vt <= _now and (_queue is null or e.queue = _queue)
      limit _limit
      for update skip locked
    );
  else -- the index of the attempts has none that were claimed once: all that is ready is looked through
    for _name in select w.name from agent.waiting_queues() as w (name) where _queue is null or w.name = _queue loop
      _ids = _ids || array
      ( select e.id
        from agent.event e
        where e.queue = _name and e.vt <= _now and e.attempts > 0
        order by e.vt, e.id
        limit _limit - cardinality(_ids)
        for update skip locked
      );
    end loop;
  end if;

  if _max_vt_age is not null then
    for _name in select w.name from agent.waiting_queues() as w (name) where _queue is null or w.name = _queue loop
      exit when cardinality(_ids) >= _limit;
      _aged = array
      ( select e.id
        from agent.event e
        where e.queue = _name and e.vt < _now - _max_vt_age and e.id <> all(_ids)
        order by e.vt, e.id
        limit _limit - cardinality(_ids)
        for update skip locked
      );
      _ids = _ids || _aged;
    end loop;
  end if;

  return query
  select m.queue, count(*) from agent.move_to_history(_ids, 'expired') m group by m.queue;
end
$func$;

-- The same, and the number of all events that went.
create or replace function agent.delete_expired_events
( _max_attempts int4 default 3
, _max_vt_age interval default interval '1 hour'
, _queue text default null
, _limit int4 default null
)
returns int8
language sql volatile
security definer
set search_path to pg_catalog, pg_temp
as $func$
  select coalesce(sum(x.expired), 0)::int8 from agent.expire_events(_max_attempts, _max_vt_age, _queue, _limit) x
$func$;
