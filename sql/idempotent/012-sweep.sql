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

-- Expires events that were claimed _max_attempts times (what the event or its queue's policy says goes before it), those whose expires_at has
-- passed, and those that have been claimable for longer than _max_vt_age (null: whatever their age), in _queue or (null) all queues, up to
-- about _limit (null: all there are). An event whose last lease still runs is never taken. Returns how many went, by queue.
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
  _max int4;
  _ids int8[];
begin
  perform agent.refuse('max_attempts', 'must be at least 1') where coalesce(_max_attempts, 0) < 1;
  perform agent.refuse('max_vt_age', 'must not be negative') where _max_vt_age < interval '0';
  perform agent.refuse('limit', 'must be at least 1') where _limit < 1;

  -- What has its own end, each by an index of its own.
  _ids = array
  ( select e.id
    from agent.event e
    where e.attempts >= e.max_attempts and e.vt <= _now and (_queue is null or e.queue = _queue)
    order by e.vt
    limit _limit
    for update skip locked
  );
  _ids = _ids || array
  ( select e.id
    from agent.event e
    where e.expires_at <= _now and (_queue is null or e.queue = _queue)
    and agent.event_state(e, _now) <> 'leased' and e.id <> all(_ids)
    order by e.expires_at
    limit _limit - cardinality(_ids)
    for update skip locked
  );

  -- What was claimed too often by the account of its queue, or else of the caller.
  for _name, _max in
    select q.name, q.max_attempts
    from agent.queue q
    where q.max_attempts is not null and (_queue is null or q.name = _queue)
    union all
    select null, _max_attempts
  loop
    exit when cardinality(_ids) >= _limit;
    _ids = _ids || agent.used_up(_name, _queue, _max, _limit - cardinality(_ids), _now);
  end loop;

  if _max_vt_age is not null then
    for _name, _max in
      select w.name, l.priority
      from agent.waiting_queues() as w (name)
      cross join lateral agent.lanes(w.name) as l
      where _queue is null or w.name = _queue
    loop
      exit when cardinality(_ids) >= _limit;
      _ids = _ids || array
      ( select e.id
        from agent.event e
        where e.queue = _name and e.priority = _max and e.vt < _now - _max_vt_age and e.id <> all(_ids)
        order by e.vt, e.id
        limit _limit - cardinality(_ids)
        for update skip locked
      );
    end loop;
  end if;

  return query
  select m.queue, count(*) from agent.move_to_history(_ids, 'expired') m group by m.queue;
end
$func$;

-- Events without attempts of their own that were claimed _max times and whose last lease is over, locked: those of a queue that has a policy, or
-- (_policied null) of the queues that have none, of _queue only unless it is null. Private to the functions of this schema, and planned under
-- expire_events' settings.
create or replace function agent.used_up(_policied text, _queue text, _max int4, _limit int4, _now timestamptz)
returns int8[]
language plpgsql volatile
set search_path to pg_catalog, pg_temp
as $func$
declare
  _name text;
  _lane int4;
  _ids int8[] = '{}';
begin
  if _max > 1 then
    return array
    ( select e.id
      from agent.event e
      where e.attempts > 1 and e.attempts >= _max and e.vt <= _now and e.max_attempts is null
      and (_queue is null or e.queue = _queue)
      and (e.queue = _policied or _policied is null and not exists (select from agent.queue q where q.name = e.queue and q.max_attempts is not null))
      limit _limit
      for update of e skip locked
    );
  end if;
  -- The index of the attempts has none that were claimed once: all that is ready is looked through.
  for _name, _lane in
    select w.name, l.priority
    from agent.waiting_queues() as w (name)
    cross join lateral agent.lanes(w.name) as l
    where (_queue is null or w.name = _queue)
    and (w.name = _policied or _policied is null and not exists (select from agent.queue q where q.name = w.name and q.max_attempts is not null))
  loop
    _ids = _ids || array
    ( select e.id
      from agent.event e
      where e.queue = _name and e.priority = _lane and e.vt <= _now and e.attempts > 0 and e.max_attempts is null
      order by e.vt, e.id
      limit _limit - cardinality(_ids)
      for update skip locked
    );
  end loop;
  return _ids;
end
$func$;

-- expire_events, and the number of all events that went.
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
